/* Quantizes activations, in groups of 32 within one row. */
#include "linear.h"

#define GROUP_VECTORS (GROUP / LANES)
typedef int8_t byte_lanes __attribute__((vector_size(LANES)));

#define LEAST 1e-30f /* a group whose largest value is below it counts as zeros */

/* 0, or NaN where any of the group is not finite. */
ALWAYS_INLINE float poison(const vf values[GROUP_VECTORS])
{
    vf zero = values[0] * 0.0f;
    UNROLL for (int i = 1; i < GROUP_VECTORS; i++)
        zero += values[i] * 0.0f;
    return vf_sum(zero);
}

ALWAYS_INLINE float largest(const vf values[GROUP_VECTORS])
{
    vf most = (vf){0};
    UNROLL for (int i = 0; i < GROUP_VECTORS; i++) {
        vi bits = (vi)values[i] & 0x7fffffff;
        most = vf_max((vf)bits, most);
    }
    return vf_largest(most);
}

ALWAYS_INLINE int32_t sum_of(vi v)
{
    int32_t sum = 0;
    for (int lane = 0; lane < LANES; lane++)
        sum += v[lane];
    return sum;
}

static act_group quantize_group(const float *x, int8_t *bytes)
{
    vf values[GROUP_VECTORS];
    UNROLL for (int i = 0; i < GROUP_VECTORS; i++)
        values[i] = vf_load(x + i * LANES);
    float most = largest(values), inverse = most >= LEAST ? 127.0f / most : 0.0f;
    act_group group = {.scale = most >= LEAST ? most / 127.0f : 0.0f};
    group.scale += poison(values);
    vi sums[2] = {{0}, {0}};
    UNROLL for (int i = 0; i < GROUP_VECTORS; i++) {
        vi q = rounded(values[i] * inverse);
        byte_lanes narrow = __builtin_convertvector(q, byte_lanes);
        memcpy(bytes + i * LANES, &narrow, sizeof narrow);
        sums[i * 2 / GROUP_VECTORS] += q;
    }
    group.halves[0] = (int16_t)sum_of(sums[0]);
    group.halves[1] = (int16_t)sum_of(sums[1]);
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
