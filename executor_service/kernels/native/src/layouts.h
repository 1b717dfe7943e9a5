/* Where the numbers of a packed weight are. Every layout holds what its kind stores, interleaved by
 * output feature: a panel is what PANEL rows of the weight become.
 *
 * float32   [in_features][PANEL] floats
 * int8,     [PANEL] float factors of whole rows, then for each group
 * Q8_0      [PANEL] half scales, [GROUP / SIGNED_TOGETHER][PANEL][SIGNED_TOGETHER] bytes
 * Q4_0      for each group [PANEL] half scales, nibbles
 * Q4_1      for each group [PANEL] half scales, [PANEL] half minimums, nibbles
 * Q4_K      for each block of 256 [PANEL] half scales, [PANEL] half scales of minimums, then for
 *           each group [PANEL] byte scales, [PANEL] byte minimums, nibbles
 * Q6_K      for each block of 256 [PANEL] half scales, then for each group [PANEL][2] signed byte
 *           scales of 16 in_features each, nibbles, [2][PANEL][4] bytes of upper pairs of bits
 *
 * Nibbles are [4][PANEL][4] bytes: byte j of an output feature has in_feature j in its lower half
 * and j + 16 in its upper.
 */
#ifndef OCTAVO_LAYOUTS_H
#define OCTAVO_LAYOUTS_H

#include "linear.h"

/* Of 256 weights as a GGUF file has them. */
#define Q4_K_BLOCK_BYTES 144
#define Q6_K_BLOCK_BYTES 210

#define INT8_FACTOR_BYTES (PANEL * 4)
#define INT8_GROUP_BYTES (PANEL * (2 + GROUP))
#define NIBBLE_BYTES (PANEL * GROUP / 2)
#define Q4_0_GROUP_BYTES (PANEL * 2 + NIBBLE_BYTES)
#define Q4_1_GROUP_BYTES (PANEL * 4 + NIBBLE_BYTES)
#define Q4_K_GROUP_BYTES (PANEL * 2 + NIBBLE_BYTES)
#define Q4_K_SUPER_BYTES (PANEL * 4 + SUPER / GROUP * Q4_K_GROUP_BYTES)
#define Q6_K_GROUP_BYTES (PANEL * 2 + NIBBLE_BYTES + PANEL * GROUP / 4)
#define Q6_K_SUPER_BYTES (PANEL * 2 + SUPER / GROUP * Q6_K_GROUP_BYTES)

/* In bytes. 0 for a kind that is not known. */
ALWAYS_INLINE size_t panel_bytes(int32_t kind, int32_t in_features)
{
    size_t groups = (size_t)(in_features / GROUP), supers = (size_t)(in_features / SUPER);
    switch (kind) {
    case OCT_FLOAT32:
        return (size_t)in_features * PANEL * sizeof(float);
    case OCT_INT8:
    case OCT_Q8_0:
        return INT8_FACTOR_BYTES + groups * INT8_GROUP_BYTES;
    case OCT_Q4_0:
        return groups * Q4_0_GROUP_BYTES;
    case OCT_Q4_1:
        return groups * Q4_1_GROUP_BYTES;
    case OCT_Q4_K:
        return supers * Q4_K_SUPER_BYTES;
    case OCT_Q6_K:
        return supers * Q6_K_SUPER_BYTES;
    }
    return 0;
}

/* Where, after a group's scales, the byte of in_feature k of output feature n is. */
ALWAYS_INLINE int signed_place(int k, int n)
{
    return (k / SIGNED_TOGETHER * PANEL + n) * SIGNED_TOGETHER + k % SIGNED_TOGETHER;
}

/* The same of byte j of nibbles, and of pairs of bits. */
ALWAYS_INLINE int nibble_place(int j, int n)
{
    return (j / 4 * PANEL + n) * 4 + j % 4;
}

/* The two upper bits of in_feature k are shifted to the left by this in byte k % 8 of the group's
 * pairs: 0 and 2 for the lower nibbles of the two bytes that share it, 4 and 6 for the upper. */
ALWAYS_INLINE int pair_shift(int k)
{
    return k / 16 * 4 + k % 16 / 8 * 2;
}

#endif
