/* The two products of attention over a few query rows and tiles of 16 slots.
 *
 * A row's result does not depend on how many rows are computed together, so callers take as many
 * as fit the registers of the machine level.
 */
#ifndef OCTAVO_ATTENTION_TILES_H
#define OCTAVO_ATTENTION_TILES_H

#include "kv.h"
#include "simd.h"

/* Rows of the score product, and sums of the other one: beside either, a tile's vectors and one
 * element of a query must fit the vector registers. */
#if LANES == 16
#define MAX_ROWS 12
#define MAX_SUMS 24
#elif LANES == 8
#define MAX_ROWS 6
#define MAX_SUMS 12
#elif defined(__aarch64__)
#define MAX_ROWS 4
#define MAX_SUMS 16
#else
#define MAX_ROWS 2
#define MAX_SUMS 8
#endif

ALWAYS_INLINE int32_t rows_at_once(int32_t num_rows)
{
    /* Few sizes, as each is compiled for each dtype. */
    static const int8_t sizes[13] = {0, 1, MAX_ROWS == 2 ? 2 : 1, 3, 4, 4, 6, 6, 6, 6, 6, 6, 12};
    int32_t rows = num_rows < MAX_ROWS ? num_rows : MAX_ROWS;
    return sizes[rows];
}

/* LANES elements of the pool as float, the `half`s of LANES pairs; kind is that of oct_kv. */
ALWAYS_INLINE vf load_elements(const int kind, const int half, const void *elements, int64_t index)
{
    if (kind == OCT_KV_BFLOAT16)
        return vf_load_bfloat16((const uint16_t *)elements + index, half);
    if (kind == OCT_KV_FLOAT16)
        return vf_load_half((const uint16_t *)elements + index);
    if (kind == OCT_KV_INT8)
        return vf_load_int8((const int8_t *)elements + index);
    return vf_load((const float *)elements + index);
}

/* scores[row][0..TILE) = q[row] . keys; keys: [head_dim / pair][TILE][pair]. Asks on the way for as
 * much memory from `ahead` on. */
ALWAYS_INLINE void score_tile(const int kind, const int rows, const float *q, int32_t head_dim,
                              kv_tile keys, const uint8_t *ahead, float *scores, int32_t stride)
{
    vf sums[MAX_ROWS][TILE_VECTORS];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int i = 0; i < TILE_VECTORS; i++)
            sums[r][i] = (vf){0};
    const int pair = kv_pair(kind);
    for (int32_t d = 0; d < head_dim; d += pair) {
        kv_ask_line(ahead, d * TILE * kv_element_bytes(kind));
        UNROLL for (int half = 0; half < pair; half++) {
            vf k[TILE_VECTORS];
            UNROLL for (int i = 0; i < TILE_VECTORS; i++)
                k[i] = load_elements(kind, half, keys.elements, d * TILE + i * LANES * pair);
            UNROLL for (int r = 0; r < rows; r++) {
                vf element = vf_set(q[r * head_dim + d + half]);
                UNROLL for (int i = 0; i < TILE_VECTORS; i++)
                    sums[r][i] = vf_fma(element, k[i], sums[r][i]);
            }
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int i = 0; i < TILE_VECTORS; i++) {
            if (kind == OCT_KV_INT8)
                sums[r][i] *= vf_load(keys.scales + i * LANES);
            vf_store(scores + r * stride + i * LANES, sums[r][i]);
        }
}

/* sums[row] += weights[row][slot] * LANES columns each, from `at` on, of the `half` of a pair. */
ALWAYS_INLINE void mix_slot(const int kind, const int rows, const int vectors, const int half,
                            const void *values, int64_t at, const float *weights, int32_t stride,
                            vf (*sums)[4])
{
    vf v[4];
    UNROLL for (int i = 0; i < vectors; i++)
        v[i] = load_elements(kind, half, values, at + i * LANES * kv_pair(kind));
    UNROLL for (int r = 0; r < rows; r++) {
        vf weight = vf_set(weights[r * stride]);
        UNROLL for (int i = 0; i < vectors; i++)
            sums[r][i] = vf_fma(weight, v[i], sums[r][i]);
    }
}

/* mixed[row][0..vectors * LANES) += weights[row][first..end) . values; tiles of
 * [TILE / pair][width][pair]. Scales are in the weights already. */
ALWAYS_INLINE void mix_columns(const int kind, const int rows, const int vectors,
                               const kv_tile *tiles, kv_ahead *ahead, int32_t column, int32_t width,
                               int32_t first, int32_t end, const float *weights, int32_t stride,
                               float *mixed)
{
    vf sums[MAX_ROWS][4];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int i = 0; i < vectors; i++)
            sums[r][i] = vf_load(mixed + r * width + column + i * LANES);
    const int pair = kv_pair(kind);
    for (int32_t slot = first; slot < end;) {
        int32_t tile_end = (slot / TILE + 1) * TILE;
        const void *values = tiles[slot / TILE].elements;
        const uint8_t *lines = kv_ask(ahead, TILE * vectors * LANES * kv_element_bytes(kind));
        int64_t at = slot % TILE / pair * pair * width + column * pair;
        tile_end = tile_end < end ? tile_end : end;
        if (slot % pair) {
            mix_slot(kind, rows, vectors, 1, values, at, weights + slot, stride, sums);
            slot++, at += pair * width;
        }
        for (; slot + pair <= tile_end; slot += pair, at += pair * width)
            UNROLL for (int half = 0; half < pair; half++) {
                UNROLL for (int i = 0; i < vectors; i++)
                    kv_ask_line(lines, ((slot % TILE + half) * vectors + i) * LANES *
                                       kv_element_bytes(kind));
                mix_slot(kind, rows, vectors, half, values, at, weights + slot + half, stride, sums);
            }
        if (slot < tile_end) {
            mix_slot(kind, rows, vectors, 0, values, at, weights + slot, stride, sums);
            slot++;
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int i = 0; i < vectors; i++)
            vf_store(mixed + r * width + column + i * LANES, sums[r][i]);
}

ALWAYS_INLINE void mix_tile(const int kind, const int rows, const kv_tile *tiles, kv_ahead *ahead,
                            int32_t width, int32_t first, int32_t end, const float *weights,
                            int32_t stride, float *mixed)
{
    /* As many columns at once as leave the accumulators in registers. */
    const int most = MAX_SUMS / rows;
    const int vectors = most >= 4 ? 4 : most >= 2 ? 2 : 1;
    int32_t column = 0;
    for (; column + vectors * LANES <= width; column += vectors * LANES)
        mix_columns(kind, rows, vectors, tiles, ahead, column, width, first, end, weights, stride,
                    mixed);
    if (vectors > TILE_VECTORS) /* width is a multiple of TILE */
        for (; column < width; column += TILE)
            mix_columns(kind, rows, TILE_VECTORS, tiles, ahead, column, width, first, end, weights,
                        stride, mixed);
}

/* One case per number of rows, so that the loops over rows are unrolled. */
#define CASE(N, CALL)                                                                              \
    case N: {                                                                                      \
        enum { ROWS = N };                                                                         \
        CALL;                                                                                      \
        break;                                                                                     \
    }
#if MAX_ROWS >= 12
#define CASES(CALL)                                                                                \
    CASE(12, CALL) CASE(6, CALL) CASE(4, CALL) CASE(3, CALL) CASE(1, CALL)
#elif MAX_ROWS >= 6
#define CASES(CALL) CASE(6, CALL) CASE(4, CALL) CASE(3, CALL) CASE(1, CALL)
#elif MAX_ROWS >= 4
#define CASES(CALL) CASE(4, CALL) CASE(3, CALL) CASE(1, CALL)
#else
#define CASES(CALL) CASE(2, CALL) CASE(1, CALL)
#endif

ALWAYS_INLINE void score_rows_of(const int kind, int32_t rows, const float *q, int32_t head_dim,
                                 kv_tile keys, const uint8_t *ahead, float *scores, int32_t stride)
{
    switch (rows) {
        CASES(score_tile(kind, ROWS, q, head_dim, keys, ahead, scores, stride))
    }
}

ALWAYS_INLINE void mix_rows_of(const int kind, int32_t rows, const kv_tile *tiles, kv_ahead *ahead,
                               int32_t width, int32_t first, int32_t end, const float *weights,
                               int32_t stride, float *mixed)
{
    switch (rows) {
        CASES(mix_tile(kind, ROWS, tiles, ahead, width, first, end, weights, stride, mixed))
    }
}

/* Kinds in parts do not come here, so no machine level compiles these products for them. */
static inline void score_rows(int32_t kind, int32_t rows, const float *q, int32_t head_dim,
                              kv_tile keys, const uint8_t *ahead, float *scores, int32_t stride)
{
    if (kind == OCT_KV_FLOAT32 || kv_in_parts(kind))
        score_rows_of(OCT_KV_FLOAT32, rows, q, head_dim, keys, ahead, scores, stride);
    else if (kind == OCT_KV_BFLOAT16)
        score_rows_of(OCT_KV_BFLOAT16, rows, q, head_dim, keys, ahead, scores, stride);
    else if (kind == OCT_KV_FLOAT16)
        score_rows_of(OCT_KV_FLOAT16, rows, q, head_dim, keys, ahead, scores, stride);
    else
        score_rows_of(OCT_KV_INT8, rows, q, head_dim, keys, ahead, scores, stride);
}

static inline void mix_rows(int32_t kind, int32_t rows, const kv_tile *tiles, kv_ahead *ahead,
                            int32_t width, int32_t first, int32_t end, const float *weights,
                            int32_t stride, float *mixed)
{
    if (kind == OCT_KV_FLOAT32 || kv_in_parts(kind))
        mix_rows_of(OCT_KV_FLOAT32, rows, tiles, ahead, width, first, end, weights, stride, mixed);
    else if (kind == OCT_KV_BFLOAT16)
        mix_rows_of(OCT_KV_BFLOAT16, rows, tiles, ahead, width, first, end, weights, stride, mixed);
    else if (kind == OCT_KV_FLOAT16)
        mix_rows_of(OCT_KV_FLOAT16, rows, tiles, ahead, width, first, end, weights, stride, mixed);
    else
        mix_rows_of(OCT_KV_INT8, rows, tiles, ahead, width, first, end, weights, stride, mixed);
}

#endif
