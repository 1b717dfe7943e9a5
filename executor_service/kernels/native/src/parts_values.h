/* The second product of attention_parts.c: weights with TILE columns of V at a time. */
#ifndef OCTAVO_PARTS_VALUES_H
#define OCTAVO_PARTS_VALUES_H

#include <math.h>

#include "parts_split.h"

#if AMX

static void find_values(const parts_split *s, kv_tile *tiles)
{
    const int32_t count = ceil_div(s->slots, TILE);
    oct_kv_values(s->view, s->first, count, s->gathered, tiles);
    for (int32_t i = 0; tiles->scales && i < count; i++)
        memcpy(s->scales + SPLIT + i * TILE, tiles[i].scales, TILE * sizeof(float));
}

/* TILE columns of V, of PAIRED slots. */
ALWAYS_INLINE parts_source values_of(const int kind, const parts_split *s, const kv_tile *tiles,
                                     int32_t column, int32_t step)
{
    const int32_t count = s->slots - step * PAIRED, at = column * kv_pair(kind) * kv_element_bytes(kind);
    const uint8_t *left = tiles[2 * step].elements;
    const uint8_t *right = count > TILE ? tiles[2 * step + 1].elements : left;
    return (parts_source){left + at, right + at, kv_width(s->view->kv) * kv_pair(kind), count,
                          s->values + step * parts_of(kind) * AMX_BYTES, kv_ask(s->ahead, ASKED)};
}

/* TILE columns from `column` on of some tiles of rows. */
ALWAYS_INLINE void mix_tiles(const int kind, const int tiles, const parts_split *s, int32_t tile,
                             const kv_tile *slots, int32_t column, int has_next, float *mixed)
{
    const size_t width = (size_t)kv_width(s->view->kv);
    const uint8_t *left = s->weights + tile * ROW_TILE_BYTES, *right = s->values;
    zero_sums();
    for (int32_t i = 0; i * PAIRED < s->slots; i++) {
        parts_source source =
            has_next ? values_of(kind, s, slots, column + TILE, i) : (parts_source){0};
        multiply_step(kind, tiles, left, ROW_TILE_BYTES, right, has_next ? &source : NULL);
        left += PARTS_BYTES;
        right += parts_of(kind) * AMX_BYTES;
    }
    store_sums(tiles, mixed + (size_t)(tile * AMX_ROWS) * width + column, AMX_ROWS * width, width);
}

/* With up to `most` tiles of rows at once. */
ALWAYS_INLINE void mix_parts(const int kind, const int most, const parts_split *s,
                             const kv_tile *slots, float *mixed)
{
    const int32_t width = kv_width(s->view->kv);
    for (int32_t i = 0; i * PAIRED < s->slots; i++)
        convert_rows(kind, 0, TILE, values_of(kind, s, slots, 0, i));
    for (int32_t column = 0; column < width; column += TILE)
        for (int32_t i = s->first_row / AMX_ROWS; i < s->row_tiles; i += most) {
            const int has_next = i + most >= s->row_tiles && column + TILE < width;
            PRODUCT_CASES(least(most, s->row_tiles - i),
                          mix_tiles(kind, NUM_TILES, s, i, slots, column, has_next, mixed))
        }
}

/* ---- values that are not finite -------------------------------------------------------------- */

static int all_finite(const parts_split *s, const float *mixed)
{
    const int nan_or_infinity = 0x99, width = kv_width(s->view->kv);
    __mmask16 found = 0;
    for (int32_t i = s->first_row * width; i < s->rows * width; i += TILE)
        found |= _mm512_fpclass_ps_mask(_mm512_loadu_ps(mixed + i), nan_or_infinity);
    return !found;
}

/* Of an element of two bytes. */
ALWAYS_INLINE int is_finite_element(const int kind, uint16_t bits)
{
    const uint16_t exponent = kind == OCT_KV_BFLOAT16 ? 0x7f80 : 0x7c00;
    return (bits & exponent) != exponent;
}

/* Zeros for what is not finite. */
ALWAYS_INLINE kv_tile finite_copy(const int kind, kv_tile from, int32_t count, uint16_t *to)
{
    const uint16_t *elements = from.elements;
    for (int32_t i = 0; i < count; i++)
        to[i] = is_finite_element(kind, elements[i]) ? elements[i] : 0;
    return (kv_tile){to, NULL};
}

static void spoil_seeing(const parts_split *s, int32_t slot, int32_t column, float *mixed)
{
    for (int32_t row = first_seeing(s->unit, s->group, s->first + slot); row < s->rows; row++)
        mixed[row * kv_width(s->view->kv) + column] = NAN;
}

/* Where some V is not finite, and 0 times it is not 0: it reaches the rows that see it, and the
 * others are what they would have been without it. */
RARE void mix_apart(const parts_split *s, float *mixed)
{
    const int kind = s->view->kv->dtype;
    const int32_t width = kv_width(s->view->kv), pair = kv_pair(kind);
    kv_tile tiles[SPLIT_TILES];
    find_values(s, tiles);
    for (int32_t i = 0; i * TILE < s->slots; i++)
        tiles[i] = finite_copy(kind, tiles[i], TILE * width,
                               (uint16_t *)(s->gathered + (size_t)i * kv_tile_bytes(s->view->kv)));
    mix_parts(kind, 1, s, tiles, mixed);
    find_values(s, tiles);
    for (int32_t slot = 0; slot < s->slots; slot++) {
        const uint16_t *values = tiles[slot / TILE].elements;
        values += slot % TILE / pair * pair * width + slot % pair;
        for (int32_t d = 0; d < width; d++)
            if (!is_finite_element(kind, values[d * pair]))
                spoil_seeing(s, slot, d, mixed);
    }
}

#endif
#endif
