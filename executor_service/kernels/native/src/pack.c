/* From rows as a checkpoint has them to panels. */
#include <math.h>

#include "layouts.h"

/* Lane n of a panel. */
typedef struct {
    uint8_t *panel;
    int n;
} lane;

ALWAYS_INLINE void put_half(uint8_t *place, int n, uint16_t half)
{
    memcpy(place + n * 2, &half, sizeof half);
}

ALWAYS_INLINE uint16_t half_at(const uint8_t *place)
{
    uint16_t half;
    memcpy(&half, place, sizeof half);
    return half;
}

static void put_signed(uint8_t *group, const int8_t *bytes, int n)
{
    uint8_t *place = group + PANEL * 2;
    for (int k = 0; k < GROUP; k++)
        place[signed_place(k, n)] = (uint8_t)(bytes[k] + SIGNED_OFFSET);
}

ALWAYS_INLINE float largest_of(const float *x, int32_t count)
{
    float most = 0.0f;
    for (int32_t k = 0; k < count; k++)
        most = fabsf(x[k]) > most ? fabsf(x[k]) : most;
    return most;
}

/* Quantizes. The factor of the row, a power of 2, brings the largest scale into [1, 2), so that
 * scales down to 2^-14 of it are as exact as a half can be. */
static void pack_int8(const float *row, int32_t in_features, lane to)
{
    int exponent;
    frexpf(largest_of(row, in_features) / 127.0f, &exponent);
    const float factor = ldexpf(1.0f, exponent - 1), inverse_factor = ldexpf(1.0f, 1 - exponent);
    ((float *)to.panel)[to.n] = factor;
    for (int32_t g = 0; g < in_features / GROUP; g++) {
        const float *x = row + g * GROUP;
        uint8_t *group = to.panel + INT8_FACTOR_BYTES + (size_t)g * INT8_GROUP_BYTES;
        uint16_t scale = half_of(largest_of(x, GROUP) / 127.0f * inverse_factor);
        float step = float_of_half(scale), inverse = step > 0.0f ? 1.0f / step : 0.0f;
        int8_t bytes[GROUP];
        for (int k = 0; k < GROUP; k += LANES) {
            vf q = vf_load(x + k) * inverse_factor * inverse;
            vi whole = rounded(vf_min(vf_set(127.0f), vf_max(vf_set(-127.0f), q)));
            for (int i = 0; i < LANES; i++)
                bytes[k + i] = (int8_t)whole[i];
        }
        put_half(group, to.n, scale);
        put_signed(group, bytes, to.n);
    }
}

/* Blocks of 32: half scale, bytes. */
static void pack_q8_0(const uint8_t *row, int32_t in_features, lane to)
{
    ((float *)to.panel)[to.n] = 1.0f;
    for (int32_t g = 0; g < in_features / GROUP; g++, row += 2 + GROUP) {
        uint8_t *group = to.panel + INT8_FACTOR_BYTES + (size_t)g * INT8_GROUP_BYTES;
        put_half(group, to.n, half_at(row));
        put_signed(group, (const int8_t *)row + 2, to.n);
    }
}

static void put_nibbles(uint8_t *place, const uint8_t *nibbles, int n)
{
    for (int j = 0; j < GROUP / 2; j++)
        place[nibble_place(j, n)] = nibbles[j];
}

/* Blocks of 32: `halves` halves, nibbles in the order of the panel. */
static void pack_q4(const uint8_t *row, int32_t in_features, const int halves, lane to)
{
    uint8_t *group = to.panel;
    for (int32_t g = 0; g < in_features / GROUP; g++) {
        for (int i = 0; i < halves; i++)
            put_half(group + PANEL * 2 * i, to.n, half_at(row + i * 2));
        put_nibbles(group + PANEL * 2 * halves, row + halves * 2, to.n);
        row += halves * 2 + GROUP / 2;
        group += PANEL * 2 * halves + NIBBLE_BYTES;
    }
}

/* Blocks of 256: two halves, 12 bytes of eight pairs of 6-bit numbers, and for each 64 weights 32
 * bytes: the first 32 weights in their lower nibbles, the others in the upper. */
static void pack_q4_k(const uint8_t *row, int32_t in_features, lane to)
{
    uint8_t *place = to.panel;
    for (int32_t s = 0; s < in_features / SUPER; s++, row += Q4_K_BLOCK_BYTES) {
        put_half(place, to.n, half_at(row));
        put_half(place + PANEL * 2, to.n, half_at(row + 2));
        place += PANEL * 4;
        for (int g = 0; g < SUPER / GROUP; g++, place += Q4_K_GROUP_BYTES) {
            const uint8_t *six = row + 4, *bytes = row + 16 + g / 2 * 32;
            int upper = g % 2 * 4;
            uint8_t nibbles[GROUP / 2];
            for (int j = 0; j < GROUP / 2; j++)
                nibbles[j] = (uint8_t)((bytes[j] >> upper & 15)
                                       | (bytes[j + GROUP / 2] >> upper & 15) << 4);
            place[to.n] = g < 4 ? six[g] & 63 : (uint8_t)((six[g + 4] & 15) | six[g - 4] >> 6 << 4);
            place[PANEL + to.n] =
                g < 4 ? six[g + 4] & 63 : (uint8_t)(six[g + 4] >> 4 | six[g] >> 6 << 4);
            put_nibbles(place + PANEL * 2, nibbles, to.n);
        }
    }
}

/* The 6-bit code of weight k of a block of Q6_K: each 128 weights have 64 bytes of nibbles, weights
 * 0 to 63 in the lower ones, and 32 bytes of pairs of bits, weights 0 to 31 in the lowest. */
ALWAYS_INLINE int q6_code(const uint8_t *block, int k)
{
    int half = k / 128, i = k % 128;
    int nibble = block[half * 64 + i % 64] >> (i / 64 * 4) & 15;
    int pair = block[128 + half * 32 + i % 32] >> (i / 32 * 2) & 3;
    return nibble | pair << 4;
}

/* Blocks of 256: nibbles, pairs of bits, 16 signed byte scales, half scale. */
static void pack_q6_k(const uint8_t *row, int32_t in_features, lane to)
{
    uint8_t *place = to.panel;
    for (int32_t s = 0; s < in_features / SUPER; s++, row += Q6_K_BLOCK_BYTES) {
        put_half(place, to.n, half_at(row + 208));
        place += PANEL * 2;
        for (int g = 0; g < SUPER / GROUP; g++, place += Q6_K_GROUP_BYTES) {
            uint8_t nibbles[GROUP / 2] = {0}, pairs[GROUP / 4] = {0};
            for (int k = 0; k < GROUP; k++) {
                int code = q6_code(row, g * GROUP + k);
                nibbles[k % 16] |= (uint8_t)((code & 15) << k / 16 * 4);
                pairs[k % 8] |= (uint8_t)(code >> 4 << pair_shift(k));
            }
            memcpy(place + to.n * 2, row + 192 + g * 2, 2);
            put_nibbles(place + PANEL * 2, nibbles, to.n);
            for (int j = 0; j < GROUP / 4; j++)
                place[PANEL * 2 + NIBBLE_BYTES + nibble_place(j, to.n)] = pairs[j];
        }
    }
}

static void pack_row(int32_t kind, const void *row, int32_t in_features, lane to)
{
    switch (kind) {
    case OCT_INT8:
        pack_int8(row, in_features, to);
        break;
    case OCT_Q8_0:
        pack_q8_0(row, in_features, to);
        break;
    case OCT_Q4_0:
        pack_q4(row, in_features, 1, to);
        break;
    case OCT_Q4_1:
        pack_q4(row, in_features, 2, to);
        break;
    case OCT_Q4_K:
        pack_q4_k(row, in_features, to);
        break;
    case OCT_Q6_K:
        pack_q6_k(row, in_features, to);
        break;
    }
}

size_t oct_packed_bytes(int32_t kind, int32_t out_features, int32_t in_features)
{
    return (size_t)((out_features + PANEL - 1) / PANEL) * panel_bytes(kind, in_features);
}

size_t oct_source_bytes(int32_t kind, int32_t in_features)
{
    size_t groups = (size_t)(in_features / GROUP), supers = (size_t)(in_features / SUPER);
    switch (kind) {
    case OCT_Q4_0:
        return groups * (2 + GROUP / 2);
    case OCT_Q4_1:
        return groups * (4 + GROUP / 2);
    case OCT_Q8_0:
        return groups * (2 + GROUP);
    case OCT_Q4_K:
        return supers * Q4_K_BLOCK_BYTES;
    case OCT_Q6_K:
        return supers * Q6_K_BLOCK_BYTES;
    }
    return (size_t)in_features * sizeof(float);
}

/* Lanes [first, last) of a panel, in the order of the panel: it is larger than what is near. */
static void pack_floats(const float *rows, int32_t in_features, float *panel, int first, int last)
{
    for (int32_t k = 0; k < in_features; k++)
        for (int n = first; n < last; n++)
            panel[(size_t)k * PANEL + (size_t)n] =
                rows[(size_t)(n - first) * (size_t)in_features + (size_t)k];
}

void oct_pack(int32_t kind, int32_t in_features, void *data, int32_t first, int32_t num_rows,
              const void *rows)
{
    const size_t row_bytes = oct_source_bytes(kind, in_features);
    const int32_t end = first + num_rows;
#pragma omp parallel for schedule(static)
    for (int32_t p = first / PANEL; p < (end + PANEL - 1) / PANEL; p++) {
        const int32_t from = p * PANEL < first ? first : p * PANEL;
        const int32_t to = (p + 1) * PANEL < end ? (p + 1) * PANEL : end;
        const uint8_t *source = (const uint8_t *)rows + (size_t)(from - first) * row_bytes;
        uint8_t *panel = (uint8_t *)data + (size_t)p * panel_bytes(kind, in_features);
        if (kind == OCT_FLOAT32) {
            pack_floats((const float *)source, in_features, (float *)panel, from % PANEL,
                        from % PANEL + to - from);
            continue;
        }
        for (int32_t i = from; i < to; i++, source += row_bytes)
            pack_row(kind, source, in_features, (lane){panel, i % PANEL});
    }
}
