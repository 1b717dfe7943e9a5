/* Products of numbers that are sums of bfloat16 (parts_source.h) on matrix tiles.
 *
 * Of a product of sums all is kept but that of the two second parts: 2^-15 of it at most.
 */
#ifndef OCTAVO_PARTS_PRODUCT_H
#define OCTAVO_PARTS_PRODUCT_H

#include "parts_source.h"

#if AMX

/* For products whose left tiles have this many rows, 16 at most. */
ALWAYS_INLINE void begin_products(int32_t rows)
{
    amx_shapes shapes = {0};
    amx_shape(&shapes, 0, 5, rows, AMX_ROW_BYTES);
    amx_shape(&shapes, 5, 7, AMX_ROWS, AMX_ROW_BYTES);
    amx_begin(&shapes);
}

ALWAYS_INLINE void zero_sums(void)
{
    amx_now();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
}

/* Rows that are converted after each half of a left tile. */
#define CONVERTED ((TILE + 2 * tiles - 1) / (2 * tiles))
#define CONVERT_NEXT(HALF)                                                                         \
    if (next)                                                                                      \
        convert_rows(kind, (HALF) * CONVERTED, CONVERTED, *next);

/* Tiles 0, 1, 2 are sums, 3 and 4 a left tile's parts, 5 and 6 those of the right one. */
#define MULTIPLY_TILE(N)                                                                           \
    if (tiles > N) {                                                                               \
        _tile_loadd(3, left + N * left_bytes, AMX_ROW_BYTES);                                      \
        _tile_dpbf16ps(N, 3, 5);                                                                   \
        CONVERT_NEXT(2 * N)                                                                        \
        if (parts_of(kind) == 2)                                                                   \
            _tile_dpbf16ps(N, 3, 6);                                                               \
        _tile_loadd(4, left + N * left_bytes + AMX_BYTES, AMX_ROW_BYTES);                          \
        CONVERT_NEXT(2 * N + 1)                                                                    \
        _tile_dpbf16ps(N, 4, 5);                                                                   \
    }
#define STORE_SUMS(N)                                                                              \
    if (tiles > N)                                                                                 \
        _tile_stored(N, sums + N * tile_stride, row_stride * sizeof(float));

/* Adds left . right over PAIRED elements to each of `tiles` sums: left tiles, in two parts, are
 * left_bytes apart. Converts what comes `next` on the way: matrix and vector instructions overlap
 * when they are mixed, and hardly where one stretch follows another. */
ALWAYS_INLINE void multiply_step(const int kind, const int tiles, const uint8_t *left,
                                 size_t left_bytes, const uint8_t *right, const parts_source *next)
{
    _tile_loadd(5, right, AMX_ROW_BYTES);
    if (parts_of(kind) == 2)
        _tile_loadd(6, right + AMX_BYTES, AMX_ROW_BYTES);
    amx_now(); /* `next` may take the place of what has been loaded */
    MULTIPLY_TILE(0)
    MULTIPLY_TILE(1)
    MULTIPLY_TILE(2)
}

/* Strides in floats. */
ALWAYS_INLINE void store_sums(const int tiles, float *sums, size_t tile_stride, size_t row_stride)
{
    STORE_SUMS(0)
    STORE_SUMS(1)
    STORE_SUMS(2)
    amx_now();
}

/* One case per number of tiles at once. */
#define PRODUCT_CASES(TILES, CALL)                                                                 \
    switch (TILES) {                                                                               \
    case 1: {                                                                                      \
        enum { NUM_TILES = 1 };                                                                    \
        CALL;                                                                                      \
        break;                                                                                     \
    }                                                                                              \
    case 2: {                                                                                      \
        enum { NUM_TILES = 2 };                                                                    \
        CALL;                                                                                      \
        break;                                                                                     \
    }                                                                                              \
    default: {                                                                                     \
        enum { NUM_TILES = MAX_ROW_TILES };                                                        \
        CALL;                                                                                      \
    }                                                                                              \
    }

#endif
#endif
