/* A rate limit: a bucket that fills by `rate` tokens a second up to `size`, from which calls take.
 *
 * take: the parameter is "rate size wanted" (whole numbers). Replies 1 if there were so many tokens,
 * which are gone then, and 0 if not. The value is 16 bytes: thousandths of tokens, and when. */
#include "headwater.h"

enum { BAD_PARAMETER = 1, BAD_VALUE = 2 };
#define NUMBER_LIMIT 1000000000LL

/* The next of the numbers in a text. */
static i32 next(const u8 *text, u32 len, u32 *at, i64 *number) {
    while (*at < len && text[*at] == ' ') ++*at;
    u32 start = *at;
    while (*at < len && text[*at] != ' ') ++*at;
    return number_parse(text + start, *at - start, number) && *number >= 0
        && *number <= NUMBER_LIMIT;
}

HEADWATER_FUNCTION(take) {
    u8 text[80];
    u32 len = param_read(0, text, sizeof text), at = 0;
    i64 rate, size, wanted;
    if (!next(text, len, &at, &rate) || !next(text, len, &at, &size)
        || !next(text, len, &at, &wanted) || at != len)
        return BAD_PARAMETER;
    struct { u64 thousandths, when; } bucket;
    i32 have = value_len();
    u64 now = now_ms(), full = size * 1000;
    if (have < 0) {
        bucket.thousandths = full;
    } else {
        if (have != sizeof bucket) return BAD_VALUE;
        value_read(0, &bucket, sizeof bucket);
        u64 passed = now > bucket.when ? now - bucket.when : 0;
        /* A token a second is a thousandth a millisecond. */
        u64 longest = rate > 0 ? full / rate + 1 : 0;
        bucket.thousandths += (passed < longest ? passed : longest) * rate;
        if (bucket.thousandths > full) bucket.thousandths = full;
    }
    bucket.when = now;
    i32 fits = bucket.thousandths >= (u64)wanted * 1000;
    if (fits) bucket.thousandths -= wanted * 1000;
    value_replace(&bucket, sizeof bucket);
    reply(fits ? "1" : "0", 1);
    return 0;
}
