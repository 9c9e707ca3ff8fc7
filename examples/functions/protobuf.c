/* One field of a protobuf message, without its description.
 *
 * get: replies the field whose number (text) is the parameter: a varint as text, anything else as its
 * bytes. Of several, the last one, as protobuf has it.
 * set: the parameter is "number=whole number" for a varint, or "number:bytes" for a string, bytes or a
 * message; a field that is not there is added. */
#include "splice.h"

enum { NO_MESSAGE = 1, BAD_PARAMETER = 2, OTHER_TYPE = 3, TOO_LONG = 4 };
enum { VARINT = 0, EIGHT = 1, BYTES = 2, FOUR = 5 };

static u8 param[8 << 10];

/* Reads a varint; 0 if there is none. */
static u32 varint(u32 *at, u64 *number) {
    *number = 0;
    for (u32 shift = 0; shift < 64; shift += 7) {
        i32 c = byte_at(*at);
        if (c < 0) return 0;
        ++*at;
        *number |= (u64)(c & 127) << shift;
        if (c < 128) return 1;
    }
    return 0;
}

static u32 write_varint(u64 number, u8 *to) {
    u32 len = 0;
    for (; number > 127; number >>= 7) to[len++] = number | 128;
    to[len++] = number;
    return len;
}

/* The payload of a field, and where the field starts. */
static u32 field_from, payload_from, payload_to, type;
static u64 payload;

/* Looks for a field: 1 found, 0 not there, -1 no message. */
static i32 find(u64 wanted) {
    i32 found = 0;
    if (!value_open()) return 0;
    for (u32 at = 0; at < value_bytes;) {
        u32 from = at;
        u64 tag, len;
        if (!varint(&at, &tag)) return -1;
        u32 start = at;
        switch (tag & 7) {
        case VARINT: if (!varint(&at, &len)) return -1; break;
        case EIGHT: at += 8; break;
        case FOUR: at += 4; break;
        case BYTES:
            if (!varint(&at, &len) || len > value_bytes) return -1;
            start = at;
            at += len;
            break;
        default: return -1;
        }
        if (at > value_bytes) return -1;
        if (tag >> 3 == wanted) {
            found = 1;
            field_from = from, payload_from = start, payload_to = at, type = tag & 7;
            payload = len;
        }
    }
    return found;
}

HEADWATER_FUNCTION(get) {
    i64 number;
    u32 len = param_read(0, param, NUMBER_MAX);
    if (!number_parse(param, len, &number) || number <= 0) return BAD_PARAMETER;
    i32 found = find(number);
    if (found < 0) return NO_MESSAGE;
    if (found && type == VARINT) reply_number(payload);
    else if (found) reply_value(payload_from, payload_to - payload_from);
    return 0;
}

HEADWATER_FUNCTION(set) {
    static u8 text[sizeof param + 32];
    i64 number, given;
    u32 len = param_read(0, param, sizeof param), at = 0;
    while (at < len && param[at] != '=' && param[at] != ':') at++;
    if (len == sizeof param || at == len || !number_parse(param, at, &number)) return BAD_PARAMETER;
    if (number <= 0 || number >= 1 << 29) return BAD_PARAMETER;
    u32 wanted = param[at] == '=' ? VARINT : BYTES;
    const u8 *bytes = param + at + 1;
    u32 count = len - at - 1;
    u32 out = write_varint((u64)number << 3 | wanted, text);
    if (wanted == VARINT) {
        if (!number_parse(bytes, count, &given)) return BAD_PARAMETER;
        out += write_varint(given, text + out);
    } else {
        out += write_varint(count, text + out);
        for (u32 i = 0; i < count; i++) text[out++] = bytes[i];
    }
    i32 found = find(number);
    if (found < 0) return NO_MESSAGE;
    if (found && type != wanted) return OTHER_TYPE;
    if (!found) field_from = payload_to = value_bytes;
    return splice(field_from, payload_to, text, out) ? 0 : TOO_LONG;
}
