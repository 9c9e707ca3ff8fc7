/* Reading a value byte by byte, and putting other bytes in the place of a part of it. */
#ifndef SPLICE_H
#define SPLICE_H
#include "headwater.h"

enum { TAIL_MAX = 256 << 10 };

static u8 window[512];
static u32 window_at, window_len, value_bytes;

/* To be called first; whether there is a value. */
static inline i32 value_open(void) {
    i32 len = value_len();
    value_bytes = len < 0 ? 0 : len;
    window_len = 0;
    return len >= 0;
}

/* The byte at an offset; -1 behind the end. */
static inline i32 byte_at(u32 at) {
    if (at >= value_bytes) return -1;
    if (at < window_at || at >= window_at + window_len) {
        window_at = at;
        window_len = value_read(at, window, sizeof window);
    }
    return window[at - window_at];
}

/* Puts `len` bytes in the place of those between two offsets; whether that could be done. What is
 * behind them moves only if the length changes, and may have 256 KiB. */
static inline i32 splice(u32 from, u32 to, const u8 *bytes, u32 len) {
    static u8 tail[TAIL_MAX];
    if (to - from == len) {
        value_write(from, bytes, len);
        return 1;
    }
    u32 rest = value_bytes - to;
    if (rest > TAIL_MAX) return 0;
    value_read(to, tail, rest);
    value_truncate(from);
    value_append(bytes, len);
    value_append(tail, rest);
    return 1;
}
#endif
