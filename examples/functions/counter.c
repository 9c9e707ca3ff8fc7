/* A whole number as text, as INCR keeps it: adds the parameter (nothing: 1) and replies the sum. */
#include "headwater.h"

enum { NOT_A_NUMBER = 1, OVERFLOW = 2 };

HEADWATER_FUNCTION(add) {
    u8 text[NUMBER_MAX];
    i64 number = 0, by = 1;
    i32 len = value_len();
    if (len >= (i32)sizeof text) return NOT_A_NUMBER;
    if (len > 0) {
        value_read(0, text, len);
        if (!number_parse(text, len, &number)) return NOT_A_NUMBER;
    }
    u32 given = param_read(0, text, sizeof text);
    if (given > 0 && !number_parse(text, given, &by)) return NOT_A_NUMBER;
    if (__builtin_saddll_overflow(number, by, &number)) return OVERFLOW;
    u32 written = number_write(number, text);
    value_replace(text, written);
    reply(text, written);
    return 0;
}
