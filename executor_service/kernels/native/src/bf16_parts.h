/* Numbers as sums of bfloat16, for products on matrix tiles.
 *
 * The upper half of a float is a bfloat16. What that leaves out is a float again, its second part.
 * A float16 or a byte is the sum of its parts exactly; of a float two parts keep 16 bits at least.
 * Of a product of sums all is kept but that of the two second parts: 2^-15 of it at most.
 *
 * Tiles pair elements that are 16 apart, not neighbours: so pairs are made of two vectors lane by
 * lane. Which elements meet is the same on both sides of a product.
 */
#ifndef OCTAVO_BF16_PARTS_H
#define OCTAVO_BF16_PARTS_H

#include "amx.h"
#include "kv.h"

#if AMX

enum {
    PAIRED = 32,                /* elements in a row of a tile */
    PARTS_BYTES = 2 * AMX_BYTES, /* of a tile in two parts */
    MAX_ROW_TILES = 3,          /* of one product */
    CACHE_LINE = 64,
};

ALWAYS_INLINE __m512 first_part(__m512 x)
{
    return (__m512)_mm512_and_si512((__m512i)x, _mm512_set1_epi32((int32_t)0xffff0000));
}

ALWAYS_INLINE __m512 second_part(__m512 x)
{
    return x - first_part(x);
}

/* To be cut to a bfloat16: rounded so that what is left has no sign of its own. */
ALWAYS_INLINE __m512 to_round(__m512 x)
{
    return (__m512)_mm512_add_epi32((__m512i)x, _mm512_set1_epi32(0x8000));
}

/* Cuts floats to bfloat16. */
ALWAYS_INLINE void store_pairs(uint8_t *to, __m512 a, __m512 b)
{
    __m512i low = _mm512_srli_epi32((__m512i)a, 16);
    _mm512_store_si512(to, _mm512_mask_blend_epi16(0xaaaaaaaa, low, (__m512i)b));
}

/* One row of a tile in two parts. */
ALWAYS_INLINE void store_float_parts(uint8_t *to, __m512 a, __m512 b)
{
    const __m512 c = to_round(a), d = to_round(b);
    store_pairs(to, c, d);
    store_pairs(to + AMX_BYTES, to_round(a - first_part(c)), to_round(b - first_part(d)));
}

/* Of float16 two, of int8 one. */
ALWAYS_INLINE int parts_of(const int kind)
{
    return kind == OCT_KV_INT8 ? 1 : 2;
}

ALWAYS_INLINE void store_exact_parts(const int kind, uint8_t *to, __m512 a, __m512 b)
{
    store_pairs(to, a, b);
    if (parts_of(kind) == 2)
        store_pairs(to + AMX_BYTES, second_part(a), second_part(b));
}

/* ---- from the pool --------------------------------------------------------------------------- */

/* Elements of the pool that become a tile of each part. */
typedef struct {
    const void *left; /* of the tile's first row, TILE of them; the next row's are `stride` on */
    const void *right; /* those that they are paired with */
    int64_t stride;
    int32_t count; /* of the PAIRED that are there: zeros stand for the others */
    uint8_t *to;
    kv_ahead ahead; /* what is read soon, a line of each for each row; or NULL */
} parts_source;

/* TILE elements as floats. */
ALWAYS_INLINE __m512 elements_at(const int kind, const void *elements, int64_t index)
{
    return (__m512)(kind == OCT_KV_INT8 ? vf_load_int8((const int8_t *)elements + index)
                                        : vf_load_half((const uint16_t *)elements + index));
}

ALWAYS_INLINE __m512 elements_if(int there, const int kind, const void *elements, int64_t index)
{
    return there ? elements_at(kind, elements, index) : _mm512_setzero_ps();
}

/* Rows [first, first + rows) of the tiles, up to TILE. */
ALWAYS_INLINE void convert_rows(const int kind, const int first, const int rows, parts_source s)
{
    const int end = first + rows < TILE ? first + rows : TILE;
    if (s.count >= PAIRED) {
        UNROLL for (int i = first; i < end; i++) {
            if (s.ahead.keys) {
                __builtin_prefetch(s.ahead.keys + i * CACHE_LINE);
                __builtin_prefetch(s.ahead.values + i * CACHE_LINE);
            }
            store_exact_parts(kind, s.to + i * AMX_ROW_BYTES,
                              elements_at(kind, s.left, i * s.stride),
                              elements_at(kind, s.right, i * s.stride));
        }
        return;
    }
    for (int i = first; i < end; i++)
        store_exact_parts(kind, s.to + i * AMX_ROW_BYTES,
                          elements_if(i < s.count, kind, s.left, i * s.stride),
                          elements_if(i + TILE < s.count, kind, s.right, i * s.stride));
}

/* ---- products -------------------------------------------------------------------------------- */

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
