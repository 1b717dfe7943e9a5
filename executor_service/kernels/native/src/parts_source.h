/* Numbers as sums of bfloat16, for products on matrix tiles.
 *
 * The upper half of a float is a bfloat16. What that leaves out is a float again, its second part.
 * A float16 or a byte is the sum of its parts exactly; of a float two parts keep 16 bits at least.
 *
 * Pairs of a tile are neighbours where the pool has them (bfloat16), else elements that are 16 apart:
 * so they are made of two vectors lane by lane. Which elements meet is the same on both sides of a
 * product.
 */
#ifndef OCTAVO_PARTS_SOURCE_H
#define OCTAVO_PARTS_SOURCE_H

#include "amx.h"
#include "kv.h"

#if AMX

enum {
    PAIRED = 32,                /* elements in a row of a tile */
    PARTS_BYTES = 2 * AMX_BYTES, /* of a tile in two parts */
    MAX_ROW_TILES = 3,          /* of one product */
    ASKED = TILE * CACHE_LINE, /* while one tile is converted */
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

/* The same with neighbours in pairs. */
ALWAYS_INLINE void store_neighbours(uint8_t *to, __m512 a, __m512 b)
{
    __m256i first = _mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)a, 16));
    __m256i second = _mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)b, 16));
    _mm512_store_si512(to, _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1));
}

ALWAYS_INLINE void store_paired(const int kind, uint8_t *to, __m512 a, __m512 b)
{
    if (kv_pair(kind) == 2)
        store_neighbours(to, a, b);
    else
        store_pairs(to, a, b);
}

/* One row of a tile in two parts. */
ALWAYS_INLINE void store_float_parts(const int kind, uint8_t *to, __m512 a, __m512 b)
{
    const __m512 c = to_round(a), d = to_round(b);
    store_paired(kind, to, c, d);
    store_paired(kind, to + AMX_BYTES, to_round(a - first_part(c)), to_round(b - first_part(d)));
}

/* Of float16 two, of the others one. */
ALWAYS_INLINE int parts_of(const int kind)
{
    return kind == OCT_KV_FLOAT16 ? 2 : 1;
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
    /* Of the tile's first row, TILE of them; the next row's are `stride` on. Of pairs in the pool:
     * TILE of these, up to the tile's first half. */
    const void *left;
    const void *right; /* those that they are paired with; or the second half's */
    int64_t stride;
    int32_t count; /* of the PAIRED that are there: zeros stand for the others */
    uint8_t *to;
    const uint8_t *ahead; /* ASKED bytes that are read soon */
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

/* TILE pairs of a row that are pairs in the pool. */
ALWAYS_INLINE const uint16_t *pairs_at(parts_source s, int row)
{
    return row < TILE / 2 ? (const uint16_t *)s.left + row * s.stride
                          : (const uint16_t *)s.right + (row - TILE / 2) * s.stride;
}

ALWAYS_INLINE void convert_row(const int kind, parts_source s, int row)
{
    uint8_t *to = s.to + row * AMX_ROW_BYTES;
    if (kv_pair(kind) == 2)
        memcpy(to, pairs_at(s, row), AMX_ROW_BYTES);
    else
        store_exact_parts(kind, to, elements_at(kind, s.left, row * s.stride),
                          elements_at(kind, s.right, row * s.stride));
}

/* Where only s.count elements are there, whose neighbours may be anything. */
ALWAYS_INLINE void convert_row_below(const int kind, parts_source s, int row)
{
    uint8_t *to = s.to + row * AMX_ROW_BYTES;
    if (kv_pair(kind) == 2) {
        const __mmask32 there = 2 * row + 1 < s.count ? 0xffffffff
                                : 2 * row < s.count   ? 0x55555555
                                                      : 0;
        const void *from = there ? pairs_at(s, row) : s.left;
        _mm512_store_si512(to, _mm512_maskz_loadu_epi16(there, from));
    } else {
        store_exact_parts(kind, to, elements_if(row < s.count, kind, s.left, row * s.stride),
                          elements_if(row + TILE < s.count, kind, s.right, row * s.stride));
    }
}

/* Rows [first, first + rows) of the tiles, up to TILE. */
ALWAYS_INLINE void convert_rows(const int kind, const int first, const int rows, parts_source s)
{
    const int end = first + rows < TILE ? first + rows : TILE;
    if (s.count >= PAIRED) {
        UNROLL for (int i = first; i < end; i++) {
            kv_ask_line(s.ahead, i * CACHE_LINE);
            convert_row(kind, s, i);
        }
        return;
    }
    NOT_UNROLLED for (int i = first; i < end; i++)
        convert_row_below(kind, s, i);
}

#endif
#endif
