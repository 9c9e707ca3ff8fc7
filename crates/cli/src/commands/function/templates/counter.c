/* Functions of the module NAME. docs/functions.md says what they can do. */
#include "headwater.h"

enum { NOT_A_NUMBER = 1 };

/* Adds the parameter (text; nothing: 1) to the whole number that the value is, and replies the sum. */
HEADWATER_FUNCTION(add) {
    u8 text[NUMBER_MAX];
    i64 number = 0, by = 1;
    u32 len = value_read(0, text, sizeof text);
    if (len > 0 && !number_parse(text, len, &number)) return NOT_A_NUMBER;
    len = param_read(0, text, sizeof text);
    if (len > 0 && !number_parse(text, len, &by)) return NOT_A_NUMBER;
    len = number_write(number + by, text);
    value_replace(text, len);
    reply(text, len);
    return 0;
}
