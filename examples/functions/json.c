/* One field of a JSON object, without the rest of it.
 *
 * get: replies the field that the parameter names; "a.b" is b in a. Strings come with their quotes.
 * set: the parameter is the name, a line end, and JSON text, which becomes the field's value (of an
 * object that is there). Names are compared as they are written, escapes included. */
#include "splice.h"

enum { NO_OBJECT = 1, NO_FIELD = 2, TOO_LONG = 3 };

static u8 param[8 << 10];

static u32 skip_space(u32 at) {
    for (i32 c = byte_at(at); c == ' ' || c == '\n' || c == '\r' || c == '\t'; c = byte_at(at)) at++;
    return at;
}

/* Behind a string that starts at `at`. */
static u32 skip_string(u32 at) {
    for (at++; byte_at(at) != '"' && byte_at(at) >= 0; at++) at += byte_at(at) == '\\';
    return at + 1;
}

/* Behind a value that starts at `at`. */
static u32 skip_value(u32 at) {
    u32 depth = 0;
    do {
        at = skip_space(at);
        i32 c = byte_at(at);
        if (c == '"') at = skip_string(at);
        else if (c == '{' || c == '[') depth++, at++;
        else if (c == '}' || c == ']') {
            if (depth == 0) return at;
            depth--, at++;
        } else if (c == ',' || c == ':') at++;
        else if (c < 0) return at;
        else while (c = byte_at(at), c > ' ' && c != ',' && c != '}' && c != ']') at++;
    } while (depth > 0);
    return at;
}

/* Whether the string at `at` is a name. */
static i32 is_name(u32 at, const u8 *name, u32 len) {
    for (u32 i = 0; i < len; i++)
        if (byte_at(at + 1 + i) != name[i]) return 0;
    return byte_at(at + 1 + len) == '"';
}

static u32 value_from, value_to, last_end;
static i32 empty;

/* Looks for a field of the object at `at`; a status. */
static i32 find_in(u32 at, const u8 *name, u32 len) {
    at = skip_space(at);
    if (byte_at(at) != '{') return NO_OBJECT;
    at = skip_space(at + 1);
    last_end = at;
    empty = 1;
    while (byte_at(at) == '"') {
        u32 behind = skip_space(skip_string(at));
        if (byte_at(behind) != ':') return NO_OBJECT;
        value_from = skip_space(behind + 1);
        value_to = skip_value(value_from);
        if (is_name(at, name, len)) return 0;
        last_end = value_to;
        empty = 0;
        at = skip_space(value_to);
        if (byte_at(at) == ',') at = skip_space(at + 1);
    }
    return byte_at(at) == '}' ? NO_FIELD : NO_OBJECT;
}

/* As above, along a path of names; `*last` is the last one. */
static i32 find(u32 len, u32 *last) {
    u32 at = 0;
    if (!value_open()) return NO_OBJECT;
    for (u32 from = 0;;) {
        u32 to = from;
        while (to < len && param[to] != '.') to++;
        i32 status = find_in(at, param + from, to - from);
        *last = from;
        if (to == len || status != 0) return to == len ? status : NO_OBJECT;
        at = value_from;
        from = to + 1;
    }
}

HEADWATER_FUNCTION(get) {
    u32 last, len = param_read(0, param, sizeof param);
    i32 status = find(len, &last);
    if (status == 0) reply_value(value_from, value_to - value_from);
    return status == NO_FIELD ? 0 : status;
}

HEADWATER_FUNCTION(set) {
    static u8 text[sizeof param + 8];
    u32 last, name = 0, len = param_read(0, param, sizeof param);
    if (len == sizeof param) return TOO_LONG;
    while (name < len && param[name] != '\n') name++;
    if (name >= len - 1) return NO_FIELD;
    i32 status = find(name, &last);
    const u8 *given = param + name + 1;
    u32 count = len - name - 1;
    if (status == 0) return splice(value_from, value_to, given, count) ? 0 : TOO_LONG;
    if (status != NO_FIELD) return status;
    u32 out = 0;
    if (!empty) text[out++] = ',';
    text[out++] = '"';
    for (u32 i = last; i < name; i++) text[out++] = param[i];
    text[out++] = '"';
    text[out++] = ':';
    for (u32 i = 0; i < count; i++) text[out++] = given[i];
    return splice(last_end, last_end, text, out) ? 0 : TOO_LONG;
}
