// Functions of the module NAME. docs/functions.md says what they can do.

@external("headwater", "value_read") declare function value_read(offset: u32, to: usize, len: u32): u32;
@external("headwater", "value_replace") declare function value_replace(from: usize, len: u32): void;
@external("headwater", "param_read") declare function param_read(offset: u32, to: usize, len: u32): u32;
@external("headwater", "reply") declare function reply(from: usize, len: u32): void;

const NOT_A_NUMBER = 1;
const TEXT_MAX: u32 = 20;
const room = memory.data(32);
let parsed: i64 = 0;

// Reads the whole number that `len` bytes of `room` are the text of; nothing is `otherwise`.
function parse(len: u32, otherwise: i64): bool {
  parsed = otherwise;
  if (len == 0) return true;
  const negative = load<u8>(room) == 45;
  if (len == TEXT_MAX || (negative && len == 1)) return false;
  parsed = 0;
  for (let at: u32 = negative ? 1 : 0; at < len; at++) {
    const digit = <i64>load<u8>(room + at) - 48;
    if (digit < 0 || digit > 9) return false;
    parsed = parsed * 10 + digit;
  }
  if (negative) parsed = -parsed;
  return true;
}

// Adds the parameter (text; nothing: 1) to the whole number that the value is, and replies the sum.
export function add(): i32 {
  if (!parse(value_read(0, room, TEXT_MAX), 0)) return NOT_A_NUMBER;
  const number = parsed;
  if (!parse(param_read(0, room, TEXT_MAX), 1)) return NOT_A_NUMBER;
  const sum = number + parsed;
  let rest = sum < 0 ? -sum : sum;
  let at: u32 = 32;
  do {
    at--;
    store<u8>(room + at, <u8>(48 + rest % 10));
    rest /= 10;
  } while (rest > 0);
  if (sum < 0) store<u8>(room + --at, 45);
  value_replace(room + at, 32 - at);
  reply(room + at, 32 - at);
  return 0;
}
