;; What `headwater bench functions` calls. The module beside it is this text, assembled.
(module
  (import "headwater" "value_read" (func $value_read (param i32 i32 i32) (result i32)))
  (import "headwater" "value_write" (func $value_write (param i32 i32 i32)))
  (import "headwater" "value_replace" (func $value_replace (param i32 i32)))
  (import "headwater" "param_read" (func $param_read (param i32 i32 i32) (result i32)))
  (import "headwater" "reply" (func $reply (param i32 i32)))
  (import "headwater" "reply_value" (func $reply_value (param i32 i32) (result i32)))
  (memory 1)

  ;; The parameter is an offset (4 bytes, the lowest first) and 16 bytes: puts these there.
  (func (export "put") (result i32)
    (if (i32.ne (call $param_read (i32.const 0) (i32.const 0) (i32.const 21)) (i32.const 20))
      (then (return (i32.const 1))))
    (call $value_write (i32.load (i32.const 0)) (i32.const 4) (i32.const 16))
    (i32.const 0))

  ;; The same; replies the 16 bytes that were there.
  (func (export "swap") (result i32)
    (if (i32.ne (call $param_read (i32.const 0) (i32.const 0) (i32.const 21)) (i32.const 20))
      (then (return (i32.const 1))))
    (drop (call $reply_value (i32.load (i32.const 0)) (i32.const 16)))
    (call $value_write (i32.load (i32.const 0)) (i32.const 4) (i32.const 16))
    (i32.const 0))

  ;; Replies the 4 bytes at the offset that the parameter is.
  (func (export "field") (result i32)
    (if (i32.ne (call $param_read (i32.const 0) (i32.const 0) (i32.const 5)) (i32.const 4))
      (then (return (i32.const 1))))
    (drop (call $reply_value (i32.load (i32.const 0)) (i32.const 4)))
    (i32.const 0))

  ;; The whole number that so many bytes of memory are the text of; -1: they are none.
  (func $number (param $at i32) (param $len i32) (result i64)
    (local $end i32) (local $n i64) (local $digit i32)
    (if (i32.gt_u (local.get $len) (i32.const 18)) (then (return (i64.const -1))))
    (local.set $end (i32.add (local.get $at) (local.get $len)))
    (block (loop
      (br_if 1 (i32.eq (local.get $at) (local.get $end)))
      (local.set $digit (i32.sub (i32.load8_u (local.get $at)) (i32.const 48)))
      (if (i32.gt_u (local.get $digit) (i32.const 9)) (then (return (i64.const -1))))
      (local.set $n (i64.add (i64.mul (local.get $n) (i64.const 10))
        (i64.extend_i32_u (local.get $digit))))
      (local.set $at (i32.add (local.get $at) (i32.const 1)))
      (br 0)))
    (local.get $n))

  ;; Adds the parameter, a whole number as text, to the one that the value is; replies the sum.
  (func (export "add") (result i32)
    (local $n i64) (local $by i64) (local $at i32)
    (local.set $n (call $number (i32.const 0)
      (call $value_read (i32.const 0) (i32.const 0) (i32.const 19))))
    (local.set $by (call $number (i32.const 32)
      (call $param_read (i32.const 0) (i32.const 32) (i32.const 19))))
    (if (i64.lt_s (i64.or (local.get $n) (local.get $by)) (i64.const 0))
      (then (return (i32.const 1))))
    (local.set $n (i64.add (local.get $n) (local.get $by)))
    (local.set $at (i32.const 96))
    (loop
      (local.set $at (i32.sub (local.get $at) (i32.const 1)))
      (i32.store8 (local.get $at) (i32.add (i32.const 48)
        (i32.wrap_i64 (i64.rem_u (local.get $n) (i64.const 10)))))
      (br_if 0 (i64.ne (i64.const 0)
        (local.tee $n (i64.div_u (local.get $n) (i64.const 10))))))
    (call $value_replace (local.get $at) (i32.sub (i32.const 96) (local.get $at)))
    (call $reply (local.get $at) (i32.sub (i32.const 96) (local.get $at)))
    (i32.const 0))

  ;; What follows is hostile: `headwater bench hostile` calls it.

  ;; Writes, and never ends.
  (func (export "spin") (result i32)
    (call $value_write (i32.const 0) (i32.const 0) (i32.const 64))
    (loop (br 0))
    (i32.const 0))

  ;; Takes all memory that it can, and touches it.
  (func (export "hog") (result i32)
    (loop
      (memory.fill (i32.const 0) (i32.const 7) (i32.shl (memory.size) (i32.const 16)))
      (br_if 0 (i32.ne (i32.const -1) (memory.grow (i32.const 16)))))
    (i32.const 1))

  (func $deep (param i32) (result i32)
    (i32.add (local.get 0) (call $deep (i32.add (local.get 0) (i32.const 1)))))

  (func (export "recurse") (result i32) (call $deep (i32.const 0)))

  ;; Has the host write where there is no memory.
  (func (export "outside") (result i32)
    (call $value_write (i32.const 0) (i32.const 0) (i32.const 64))
    (drop (call $value_read (i32.const 0) (i32.const 65500) (i32.const 64)))
    (i32.const 0))

  ;; Replies without end.
  (func (export "flood") (result i32)
    (loop (call $reply (i32.const 0) (i32.const 65536)) (br 0))
    (i32.const 0)))
