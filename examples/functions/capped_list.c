/* A list of entries, each behind its length (two bytes, the lower first), that keeps the newest.
 *
 * push: appends the parameter; where the list has more bytes than fit, its oldest entries go.
 * The parameter of push is the bound in bytes (four bytes, the lowest first) and the entry.
 * last: replies as many of the newest entries, as the parameter says (text), oldest first. */
#include "headwater.h"

enum { BAD_PARAMETER = 1, BAD_VALUE = 2 };

static u8 room[16 << 10];

static u32 length_at(u32 at) {
    u8 bytes[2];
    return value_read(at, bytes, 2) == 2 ? bytes[0] | bytes[1] << 8 : 0xffffff;
}

HEADWATER_FUNCTION(push) {
    u32 given = param_read(0, room, sizeof room);
    if (given < 4 || given == sizeof room) return BAD_PARAMETER;
    u32 bound = room[0] | room[1] << 8 | room[2] << 16 | (u32)room[3] << 24;
    u32 len = given - 4;
    if (len + 2 > bound) return BAD_PARAMETER;
    i32 have = value_len();
    u32 whole = have < 0 ? 0 : have;
    room[2] = len;
    room[3] = len >> 8;
    if (whole + len + 2 <= bound) {
        value_append(room + 2, len + 2);
        return 0;
    }
    /* Makes room for an eighth more than is needed, so that it is not made each time. */
    u32 from = 0;
    while (from < whole && whole - from + len + 2 + bound / 8 > bound) from += 2 + length_at(from);
    if (from > whole) return BAD_VALUE;
    u32 to = 0;
    static u8 part[4096];
    while (from < whole) {
        u32 count = value_read(from, part, sizeof part);
        value_write(to, part, count);
        from += count;
        to += count;
    }
    value_truncate(to);
    value_append(room + 2, len + 2);
    return 0;
}

HEADWATER_FUNCTION(last) {
    i64 wanted = 0;
    if (!number_parse(room, param_read(0, room, NUMBER_MAX), &wanted) || wanted < 0)
        return BAD_PARAMETER;
    i32 len = value_len();
    i64 count = 0;
    for (u32 at = 0; len > 0 && at < (u32)len; at += 2 + length_at(at)) count++;
    u32 from = 0;
    for (i64 skip = count - wanted; skip > 0; skip--) from += 2 + length_at(from);
    if (len > 0) reply_value(from, len - from);
    return 0;
}
