/* The object of the thesis: the recordings of a household, a record of 480 bytes each, in lists of 10
 * to 200 KiB.
 *
 *     offset  bytes
 *          0      8  number of the recording, the lowest byte first; ascending in the list
 *          8      1  state: 0 scheduled, 1 recording, 2 recorded, 3 watched, 4 deleted
 *          9      7  position of the viewer, in milliseconds
 *         16    464  title, channel, times, which these functions do not look at
 *
 * set_state: the parameter is a number (8 bytes), a state (1) and a position (7): changes 8 bytes.
 * get_state: replies state and position of the recording whose number (8 bytes) is the parameter.
 * count: replies how many recordings are in the state (1 byte), as text. */
#include "headwater.h"

enum { RECORD = 480, STATE = 8, NOT_THERE = 1, BAD_PARAMETER = 2 };

static u64 number_at(u32 record) {
    u64 number;
    value_read(record * RECORD, &number, sizeof number);
    return number;
}

/* The record with this number, by halving; `count` if there is none. */
static u32 find(u64 number, u32 count) {
    u32 from = 0, to = count;
    while (from < to) {
        u32 middle = from + (to - from) / 2;
        u64 there = number_at(middle);
        if (there == number) return middle;
        if (there < number) from = middle + 1;
        else to = middle;
    }
    return count;
}

static u32 records(void) {
    i32 len = value_len();
    return len > 0 ? len / RECORD : 0;
}

HEADWATER_FUNCTION(set_state) {
    struct { u64 number; u8 state[8]; } wanted;
    if (param_read(0, &wanted, sizeof wanted) != sizeof wanted) return BAD_PARAMETER;
    u32 count = records(), record = find(wanted.number, count);
    if (record == count) return NOT_THERE;
    value_write(record * RECORD + STATE, wanted.state, sizeof wanted.state);
    return 0;
}

HEADWATER_FUNCTION(get_state) {
    u64 number;
    if (param_read(0, &number, sizeof number) != sizeof number) return BAD_PARAMETER;
    u32 count = records(), record = find(number, count);
    if (record == count) return NOT_THERE;
    reply_value(record * RECORD + STATE, 8);
    return 0;
}

HEADWATER_FUNCTION(count) {
    u8 wanted, state;
    if (param_read(0, &wanted, 1) != 1) return BAD_PARAMETER;
    i64 found = 0;
    for (u32 record = 0, all = records(); record < all; record++) {
        value_read(record * RECORD + STATE, &state, 1);
        found += state == wanted;
    }
    reply_number(found);
    return 0;
}
