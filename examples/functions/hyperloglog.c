/* How many different things were added, about: 1024 registers of a byte, an error of 3 %.
 *
 * add: adds the parameter; replies 1 if that changed a register. Writes a byte, of 1 KiB.
 * count: replies the estimate (Flajolet et al., 2007), as text. */
#include "headwater.h"

enum { BITS = 10, REGISTERS = 1 << BITS, BAD_VALUE = 1 };

static u8 registers[REGISTERS];

/* FNV-1a, mixed as in MurmurHash3. */
static u64 hash_param(void) {
    u64 hash = 0xcbf29ce484222325ULL;
    u8 part[256];
    for (u32 at = 0, len; (len = param_read(at, part, sizeof part)) > 0; at += len)
        for (u32 i = 0; i < len; i++) hash = (hash ^ part[i]) * 0x100000001b3ULL;
    hash = (hash ^ hash >> 33) * 0xff51afd7ed558ccdULL;
    hash = (hash ^ hash >> 33) * 0xc4ceb9fe1a85ec53ULL;
    return hash ^ hash >> 33;
}

HEADWATER_FUNCTION(add) {
    i32 len = value_len();
    if (len >= 0 && len != REGISTERS) return BAD_VALUE;
    if (len < 0) value_replace(registers, REGISTERS);
    u64 hash = hash_param();
    u32 at = hash >> (64 - BITS);
    u8 rank = __builtin_clzll(hash << BITS | 1ULL << (BITS - 1)) + 1, there;
    value_read(at, &there, 1);
    if (rank > there) value_write(at, &rank, 1);
    reply(rank > there ? "1" : "0", 1);
    return 0;
}

/* The natural logarithm of a number of at least 1. */
static double logarithm(double x) {
    double sum = 0;
    while (x > 1.5) {
        x /= 2;
        sum += 0.69314718055994530942;
    }
    double y = (x - 1) / (x + 1), term = y;
    for (int i = 1; i < 40; i += 2) {
        sum += 2 * term / i;
        term *= y * y;
    }
    return sum;
}

HEADWATER_FUNCTION(count) {
    i32 len = value_len();
    if (len >= 0 && len != REGISTERS) return BAD_VALUE;
    value_read(0, registers, REGISTERS);
    double sum = 0;
    u32 zeros = 0;
    for (u32 i = 0; i < REGISTERS; i++) {
        sum += 1.0 / (double)(1ULL << registers[i]);
        zeros += registers[i] == 0;
    }
    double estimate = 0.7213 / (1 + 1.079 / REGISTERS) * REGISTERS * REGISTERS / sum;
    if (estimate <= 2.5 * REGISTERS && zeros > 0)
        estimate = REGISTERS * logarithm((double)REGISTERS / zeros);
    reply_number((i64)(estimate + 0.5));
    return 0;
}
