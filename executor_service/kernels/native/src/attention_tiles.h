/* The two products of attention over a few query rows and tiles of 16 slots.
 *
 * A row's result does not depend on how many rows are computed together, so callers take as many
 * as fit the registers of the machine level.
 */
#ifndef OCTAVO_ATTENTION_TILES_H
#define OCTAVO_ATTENTION_TILES_H

#include "simd.h"

/* Accumulators, a tile of K and one query element must fit the vector registers. */
#if LANES == 16
#define MAX_ROWS 12
#elif LANES == 8
#define MAX_ROWS 6
#elif defined(__aarch64__)
#define MAX_ROWS 4
#else
#define MAX_ROWS 2
#endif

ALWAYS_INLINE int32_t rows_at_once(int32_t num_rows)
{
    static const int8_t sizes[13] = {0, 1, 2, 3, 4, 4, 6, 6, 6, 6, 6, 6, 12};
    int32_t rows = num_rows < MAX_ROWS ? num_rows : MAX_ROWS;
    return sizes[rows];
}

/* scores[row][0..TILE) = q[row] . keys; keys: [head_dim][TILE] */
ALWAYS_INLINE void score_tile(const int rows, const float *q, int32_t head_dim, const float *keys,
                              float *scores, int32_t stride)
{
    vf sums[MAX_ROWS][TILE_VECTORS];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int i = 0; i < TILE_VECTORS; i++)
            sums[r][i] = (vf){0};
    for (int32_t d = 0; d < head_dim; d++) {
        vf k[TILE_VECTORS];
        UNROLL for (int i = 0; i < TILE_VECTORS; i++)
            k[i] = vf_load(keys + d * TILE + i * LANES);
        UNROLL for (int r = 0; r < rows; r++) {
            vf element = vf_set(q[r * head_dim + d]);
            UNROLL for (int i = 0; i < TILE_VECTORS; i++)
                sums[r][i] = vf_fma(element, k[i], sums[r][i]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int i = 0; i < TILE_VECTORS; i++)
            vf_store(scores + r * stride + i * LANES, sums[r][i]);
}

static inline void score_rows(int32_t rows, const float *q, int32_t head_dim, const float *keys,
                              float *scores, int32_t stride)
{
    switch (rows) {
#define CASE(N)                                                                                    \
    case N:                                                                                        \
        score_tile(N, q, head_dim, keys, scores, stride);                                          \
        break;
#if MAX_ROWS >= 12
        CASE(12)
#endif
#if MAX_ROWS >= 6
        CASE(6)
#endif
#if MAX_ROWS >= 4
        CASE(4)
        CASE(3)
#endif
        CASE(2)
        CASE(1)
#undef CASE
    }
}

/* mixed[row][0..vectors * LANES) += weights[row][first..end) . values; tiles of [TILE][width] */
ALWAYS_INLINE void mix_columns(const int rows, const int vectors, const float *const *tiles,
                               int32_t column, int32_t width, int32_t first, int32_t end,
                               const float *weights, int32_t stride, float *mixed)
{
    vf sums[MAX_ROWS][4];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int i = 0; i < vectors; i++)
            sums[r][i] = vf_load(mixed + r * width + column + i * LANES);
    for (int32_t slot = first; slot < end;) {
        int32_t tile_end = (slot / TILE + 1) * TILE;
        const float *values = tiles[slot / TILE] + slot % TILE * width + column;
        for (tile_end = tile_end < end ? tile_end : end; slot < tile_end; slot++) {
            vf v[4];
            UNROLL for (int i = 0; i < vectors; i++)
                v[i] = vf_load(values + i * LANES);
            UNROLL for (int r = 0; r < rows; r++) {
                vf weight = vf_set(weights[r * stride + slot]);
                UNROLL for (int i = 0; i < vectors; i++)
                    sums[r][i] = vf_fma(weight, v[i], sums[r][i]);
            }
            values += width;
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int i = 0; i < vectors; i++)
            vf_store(mixed + r * width + column + i * LANES, sums[r][i]);
}

ALWAYS_INLINE void mix_tile(const int rows, const float *const *tiles, int32_t width, int32_t first,
                            int32_t end, const float *weights, int32_t stride, float *mixed)
{
    /* As many columns at once as leave the accumulators in registers. */
    const int most = MAX_ROWS * TILE_VECTORS / rows >= 4 ? 4 : MAX_ROWS * TILE_VECTORS / rows;
    const int vectors = most >= 4 ? 4 : most >= 2 ? 2 : 1;
    int32_t column = 0;
    for (; column + vectors * LANES <= width; column += vectors * LANES)
        mix_columns(rows, vectors, tiles, column, width, first, end, weights, stride, mixed);
    for (; column < width; column += LANES)
        mix_columns(rows, 1, tiles, column, width, first, end, weights, stride, mixed);
}

static inline void mix_rows(int32_t rows, const float *const *tiles, int32_t width, int32_t first,
                            int32_t end, const float *weights, int32_t stride, float *mixed)
{
    switch (rows) {
#define CASE(N)                                                                                    \
    case N:                                                                                        \
        mix_tile(N, tiles, width, first, end, weights, stride, mixed);                             \
        break;
#if MAX_ROWS >= 12
        CASE(12)
#endif
#if MAX_ROWS >= 6
        CASE(6)
#endif
#if MAX_ROWS >= 4
        CASE(4)
        CASE(3)
#endif
        CASE(2)
        CASE(1)
#undef CASE
    }
}

#endif
