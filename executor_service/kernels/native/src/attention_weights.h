/* Scores to weights, a row of a split at a time, for attention_parts.c. Both are on tiles: a row's
 * vectors are a tile apart.
 */
#ifndef OCTAVO_ATTENTION_WEIGHTS_H
#define OCTAVO_ATTENTION_WEIGHTS_H

#include <math.h>

#include "attention_split.h"
#include "parts_product.h"

#if AMX

/* A row of scores: [SPLIT_TILES] vectors, AMX_ROWS vectors apart. */
typedef struct {
    float *scores;
    int32_t count;             /* of slots that the row sees */
    const float *key_scales;   /* [SPLIT], for int8 */
    const float *value_scales; /* likewise */
} score_row;

ALWAYS_INLINE __mmask16 lanes_below(int32_t count)
{
    return count >= TILE ? 0xffff : count > 0 ? (__mmask16)((1 << count) - 1) : 0;
}

/* 2^x within 2^-18 of it for x <= 0, by a polynomial for the fraction; 0 below 2^-126. */
ALWAYS_INLINE __m512 power_of_two(__m512 x)
{
    const int round_down = 9;
    vf r = (vf)_mm512_reduce_ps(x, round_down);
    vf p = vf_set(1.3534166850149632e-2f);
    p = vf_fma(p, r, vf_set(5.2011460065841675e-2f));
    p = vf_fma(p, r, vf_set(2.4144275486469269e-1f));
    p = vf_fma(p, r, vf_set(6.930038332939148e-1f));
    p = vf_fma(p, r, vf_set(1.0000026226043701f));
    __mmask16 normal = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ); /* or NaN */
    return _mm512_maskz_scalef_ps(normal, (__m512)p, x); /* which rounds x down itself */
}

/* TILE scores, -inf for what is not seen; `whole`: all of the split is. */
ALWAYS_INLINE __m512 scores_at(const int kind, const int whole, score_row row, int i)
{
    __m512 x = _mm512_load_ps(row.scores + i * AMX_ROWS * TILE);
    if (kind == OCT_KV_INT8)
        x *= _mm512_loadu_ps(row.key_scales + i * TILE);
    if (whole)
        return x;
    return _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), lanes_below(row.count - i * TILE), x);
}

ALWAYS_INLINE float row_maximum(const int kind, const int whole, score_row row)
{
    __m512 largest[2] = {_mm512_set1_ps(-INFINITY), _mm512_set1_ps(-INFINITY)};
    UNROLL for (int i = 0; i < SPLIT_TILES; i++) /* the second operand where either is NaN */
        largest[i % 2] = _mm512_max_ps(scores_at(kind, whole, row, i), largest[i % 2]);
    return _mm512_reduce_max_ps(_mm512_max_ps(largest[0], largest[1]));
}

/* Weights in two parts take the place of the scores. Asks for SPLIT_TILES lines from `ahead` on.
 * Returns the sum of the weights. */
ALWAYS_INLINE float row_weights(const int kind, const int whole, score_row row, float maximum,
                                const uint8_t *ahead)
{
    const vf log2e = vf_set(1.44269504088896341f);
    __m512 x[SPLIT_TILES];
    UNROLL for (int i = 0; i < SPLIT_TILES; i++) {
        kv_ask_line(ahead, i * CACHE_LINE);
        /* Lowered before anything is rounded: the largest becomes 0 however large it is. */
        x[i] = power_of_two((__m512)(((vf)scores_at(kind, whole, row, i) - maximum) * log2e));
    }
    __m512 sum = ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
    if (kind == OCT_KV_INT8)
        UNROLL for (int i = 0; i < SPLIT_TILES; i++) {
            /* The scale of a slot that is not seen may be NaN. */
            __mmask16 mask = whole ? 0xffff : lanes_below(row.count - i * TILE);
            x[i] = _mm512_maskz_mul_ps(mask, x[i], _mm512_loadu_ps(row.value_scales + i * TILE));
        }
    UNROLL for (int i = 0; i < SPLIT_TILES; i += 2)
        store_float_parts(kind, (uint8_t *)row.scores + i * AMX_BYTES, x[i], x[i + 1]);
    return _mm512_reduce_add_ps(sum);
}

#endif
#endif
