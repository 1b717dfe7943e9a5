#include "maxima.h"

#include <math.h>

int32_t oct_num_maxima(int32_t count)
{
    return (count + MAXIMA_BLOCK - 1) / MAXIMA_BLOCK;
}

/* Anything where one is NaN. */
ALWAYS_INLINE float largest_lane(vf v)
{
#if LANES == 16
    return _mm512_reduce_max_ps((__m512)v);
#else
    return vf_largest(v);
#endif
}

static float largest_of_few(const float *x, int32_t count)
{
    float largest = -INFINITY;
    for (int32_t i = 0; i < count; i++) {
        if (x[i] != x[i])
            return NAN;
        largest = x[i] > largest ? x[i] : largest;
    }
    return largest;
}

void put_maxima(const float *x, int32_t count, float *maxima)
{
    int32_t i = 0;
    for (; i + MAXIMA_BLOCK <= count; i += MAXIMA_BLOCK) {
        const vf left = vf_load(x + i), right = vf_load(x + i + LANES);
        const float largest = largest_lane(vf_max(left, right));
        *maxima++ = vi_any((left != left) | (right != right)) ? NAN : largest;
    }
    if (i < count)
        *maxima = largest_of_few(x + i, count - i);
}

float largest_of(const float *x, int32_t count)
{
    vf best = vf_set(-INFINITY);
    vi strange = {0};
    int32_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        const vf v = vf_load(x + i);
        strange |= v != v;
        best = vf_max(v, best);
    }
    const float rest = largest_of_few(x + i, count - i), largest = largest_lane(best);
    if (vi_any(strange) || rest != rest)
        return NAN;
    return rest > largest ? rest : largest;
}

int32_t first_equal(const float *x, const float *maxima, float value)
{
    int32_t block = 0;
    while (maxima[block] != value)
        block++;
    int32_t i = block * MAXIMA_BLOCK;
    while (x[i] != value)
        i++;
    return i;
}
