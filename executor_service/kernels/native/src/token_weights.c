#include "token_weights.h"

#include <math.h>

static double double_sum(vf v)
{
#if LANES == 16
    const __m256 high = (__m256)_mm512_extractf64x4_pd((__m512d)v, 1);
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256((__m512)v));
    return _mm512_reduce_add_pd(_mm512_add_pd(low, _mm512_cvtps_pd(high)));
#else
    double even = 0, odd = 0;
    for (int lane = 0; lane < LANES; lane += 2) {
        even += v[lane];
        odd += v[lane + 1];
    }
    return even + odd;
#endif
}

ALWAYS_INLINE vf weights_of(const token_weights *w, vf logits)
{
    vf weights = vf_exp2_falling((logits - w->logits.largest) * w->per_logit);
    return vf_select(weights < vf_set(w->least), (vf){0}, weights);
}

void weigh_logits(const token_weights *w, float *logits, int32_t count)
{
    for (int32_t i = 0; i < count; i += LANES)
        vf_store(logits + i, weights_of(w, vf_load(logits + i)));
}

/* LANES logits; -inf beyond the last. */
ALWAYS_INLINE vf vector_from(const token_weights *w, int32_t first)
{
    if (first + LANES <= w->logits.count)
        return vf_load(w->logits.row + first);
    vf v = vf_set(-INFINITY);
    for (int32_t lane = 0; first + lane < w->logits.count; lane++)
        v[lane] = w->logits.row[first + lane];
    return v;
}

/* In floats: how far ahead logits are asked for, which another core may have written. */
enum { LOGITS_AHEAD = 1024 };

static float largest_in_block(const token_weights *w, int32_t block)
{
    const int32_t first = MAXIMA_PER_SUM * block, num_maxima = oct_num_maxima(w->logits.count);
    const float *maxima = w->logits.maxima;
    float largest = maxima[first];
    for (int32_t i = first + 1; i < first + MAXIMA_PER_SUM && i < num_maxima; i++)
        largest = maxima[i] > largest ? maxima[i] : largest;
    return largest;
}

static void put_tops(const token_weights *w)
{
    const int32_t num_blocks = num_weight_blocks(w->logits.count);
    for (int32_t block = 0; block < num_blocks; block++)
        w->tops[block] = largest_in_block(w, block);
    vf_store(w->tops + num_blocks, vf_set(-INFINITY));
    vf_store(w->rests + num_blocks, (vf){0});
    weigh_logits(w, w->tops, num_blocks);
}

static double block_sum(const token_weights *w, int32_t first)
{
    vf sum = {0};
    UNROLL for (int32_t i = 0; i < WEIGHT_BLOCK; i += 16)
        __builtin_prefetch(w->logits.row + first + LOGITS_AHEAD + i, 0, 2);
    if (first + WEIGHT_BLOCK <= w->logits.count)
        UNROLL for (int32_t i = 0; i < WEIGHT_BLOCK; i += LANES)
            sum += weights_of(w, vf_load(w->logits.row + first + i));
    else
        for (int32_t i = first; i < w->logits.count; i += LANES)
            sum += weights_of(w, vector_from(w, i));
    return double_sum(sum);
}

void sum_weights(token_weights *w)
{
    put_tops(w);
    w->total = 0;
    for (int32_t block = 0; block < num_weight_blocks(w->logits.count); block++) {
        w->sums[block] = w->tops[block] > 0 ? block_sum(w, block * WEIGHT_BLOCK) : 0;
        w->rests[block] = (float)w->sums[block] - w->tops[block];
        w->total += w->sums[block];
    }
}

void block_weights(const token_weights *w, int32_t block, float *weights)
{
    for (int32_t i = 0; i < WEIGHT_BLOCK; i += LANES)
        vf_store(weights + i, weights_of(w, vector_from(w, block * WEIGHT_BLOCK + i)));
}
