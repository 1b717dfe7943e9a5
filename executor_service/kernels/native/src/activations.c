/* Quantizes activations, in groups of 32 within one row. */
#include <math.h>

#include "linear.h"

#define GROUP_VECTORS (GROUP / LANES)
typedef int8_t byte_lanes __attribute__((vector_size(LANES)));

#define LEAST 1e-30f /* a group whose largest value is below it counts as zeros */

#define INFINITE 0x7f800000 /* the bits of infinity; those of NaN are above it */

/* The largest magnitude of a group: as bits they are in the order of their values. */
ALWAYS_INLINE int32_t largest_bits(const vf values[GROUP_VECTORS])
{
    vi most = (vi)values[0] & 0x7fffffff;
    UNROLL for (int i = 1; i < GROUP_VECTORS; i++)
        most = vi_max((vi)values[i] & 0x7fffffff, most);
    return vi_largest(most);
}

static act_group quantize_group(const float *x, int8_t *bytes)
{
    vf values[GROUP_VECTORS];
    UNROLL for (int i = 0; i < GROUP_VECTORS; i++)
        values[i] = vf_load(x + i * LANES);
    int32_t bits = largest_bits(values);
    float most;
    memcpy(&most, &bits, sizeof most);
    float inverse = most >= LEAST ? 127.0f / most : 0.0f;
    act_group group = {.scale = most >= LEAST ? most / 127.0f : 0.0f};
    if (bits >= INFINITE)
        group.scale = NAN;
    const int32_t kept = bits < INFINITE ? -1 : 0; /* no bit of what is no number */
    vi sums[2] = {{0}, {0}};
    UNROLL for (int i = 0; i < GROUP_VECTORS; i++) {
        vi q = rounded(values[i] * inverse) & kept;
        byte_lanes narrow = __builtin_convertvector(q, byte_lanes);
        memcpy(bytes + i * LANES, &narrow, sizeof narrow);
        sums[i * 2 / GROUP_VECTORS] += q;
    }
    group.halves[0] = (int16_t)vi_sum(sums[0]);
    group.halves[1] = (int16_t)vi_sum(sums[1]);
    group.sum = group.halves[0] + group.halves[1];
    group.scaled_sum = group.scale * (float)group.sum;
    return group;
}

void quantize_row(const float *x, int32_t in_features, uint8_t *row)
{
    act_rows one = {.base = row, .in_features = in_features};
    act_group *groups = (act_group *)row;
    int8_t *bytes = (int8_t *)(groups + in_features / GROUP);
    for (int32_t g = 0; g < in_features / GROUP; g++)
        groups[g] = quantize_group(x + g * GROUP, bytes + g * GROUP);
    if (LANES == 8) {
        int16_t *shorts = (int16_t *)act_shorts(one, 0);
        for (int32_t k = 0; k < in_features; k++)
            shorts[k] = bytes[k];
    }
}
