/* Functions next to the data, in C. See docs/functions.md.
 *
 *     clang --target=wasm32 -O2 -nostdlib -mbulk-memory -Wl,--no-entry -Wl,-z,stack-size=8192 \
 *         -o counter.wasm counter.c
 *
 * A function is marked with HEADWATER_FUNCTION(name), takes nothing and gives a status: 0 for
 * success; anything else undoes all that it has changed and is told to the caller. */
#ifndef HEADWATER_H
#define HEADWATER_H

typedef unsigned char u8;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;

#define HEADWATER_FUNCTION(name) __attribute__((export_name(#name))) i32 name(void)
#define HEADWATER_CALL(name) __attribute__((import_module("headwater"), import_name(#name)))

/* Length of the value; -1 where the key is absent. */
HEADWATER_CALL(value_len) i32 value_len(void);
/* Copies up to `len` bytes of the value from `offset` on; gives how many there were. */
HEADWATER_CALL(value_read) u32 value_read(u32 offset, void *to, u32 len);
/* Puts bytes in the place of those from `offset` on; a shorter value grows, with zeros between. */
HEADWATER_CALL(value_write) void value_write(u32 offset, const void *from, u32 len);
/* Puts bytes behind the value. */
HEADWATER_CALL(value_append) void value_append(const void *from, u32 len);
/* Cuts the value to its first `len` bytes. */
HEADWATER_CALL(value_truncate) void value_truncate(u32 len);
/* Gives the key another value. */
HEADWATER_CALL(value_replace) void value_replace(const void *from, u32 len);
/* Removes the key. */
HEADWATER_CALL(value_delete) void value_delete(void);
/* Puts bytes behind what has been replied. */
HEADWATER_CALL(reply) void reply(const void *from, u32 len);
/* Replies up to `len` bytes of the value from `offset` on, without copying them here. */
HEADWATER_CALL(reply_value) u32 reply_value(u32 offset, u32 len);
/* The key. */
HEADWATER_CALL(key_len) u32 key_len(void);
HEADWATER_CALL(key_read) u32 key_read(u32 offset, void *to, u32 len);
/* What the caller gave. */
HEADWATER_CALL(param_len) u32 param_len(void);
HEADWATER_CALL(param_read) u32 param_read(u32 offset, void *to, u32 len);
/* Milliseconds since 1970. Who uses it is not pure, and cannot be used in joins. */
HEADWATER_CALL(now_ms) u64 now_ms(void);

/* In functions that flows call: slots of the changed key, other keys, and those that WRITES declares. */
HEADWATER_CALL(slot_len) i32 slot_len(u32 number);
HEADWATER_CALL(slot_read) u32 slot_read(u32 number, u32 offset, void *to, u32 len);
/* Looks a key up: the length of its value, or -1. What was found is read with found_…. */
HEADWATER_CALL(find) i32 find_key(const void *key, u32 len);
/* Looks the first pairs of a range up; 0 where there are none. */
HEADWATER_CALL(find_range) u32 find_range(const void *first, u32 first_len, const void *last, u32 last_len, u32 most);
/* Goes on to the next pair; 0 where there is none. */
HEADWATER_CALL(found_next) i32 found_next(void);
HEADWATER_CALL(found_key_len) i32 found_key_len(void);
HEADWATER_CALL(found_key_read) u32 found_key_read(u32 offset, void *to, u32 len);
HEADWATER_CALL(found_len) i32 found_len(void);
HEADWATER_CALL(found_read) u32 found_read(u32 offset, void *to, u32 len);
HEADWATER_CALL(put) void put(const void *key, u32 key_len, const void *value, u32 value_len);
HEADWATER_CALL(remove) void remove_key(const void *key, u32 len);

/* Longest text of a whole number. */
#define NUMBER_MAX 21

/* Reads a whole number; gives 0 if the text is none. */
static inline i32 number_parse(const u8 *text, u32 len, i64 *number) {
    u64 sum = 0;
    u32 at = len > 0 && text[0] == '-';
    if (at == len || len >= NUMBER_MAX) return 0;
    u64 max = 0x7fffffffffffffffULL + at;
    for (u32 i = at; i < len; i++) {
        u64 digit = (u64)text[i] - '0';
        if (digit > 9 || sum > (max - digit) / 10) return 0;
        sum = sum * 10 + digit;
    }
    *number = at ? (i64)(0 - sum) : (i64)sum;
    return 1;
}

/* Writes a whole number; gives its length. */
static inline u32 number_write(i64 number, u8 *text) {
    u8 room[NUMBER_MAX];
    u32 at = sizeof room;
    u64 rest = number < 0 ? 0 - (u64)number : (u64)number;
    do {
        room[--at] = '0' + rest % 10;
    } while (rest /= 10);
    if (number < 0) room[--at] = '-';
    u32 len = sizeof room - at;
    for (u32 i = 0; i < len; i++) text[i] = room[at + i];
    return len;
}

static inline void reply_number(i64 number) {
    u8 text[NUMBER_MAX];
    reply(text, number_write(number, text));
}

#endif
