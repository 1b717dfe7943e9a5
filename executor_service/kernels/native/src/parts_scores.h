/* The first product of attention_parts.c: queries with the K of TILE slots at a time. */
#ifndef OCTAVO_PARTS_SCORES_H
#define OCTAVO_PARTS_SCORES_H

#include "parts_split.h"

#if AMX

static void find_keys(const parts_split *s, kv_tile *tiles)
{
    const int32_t count = ceil_div(s->slots, TILE);
    oct_kv_keys(s->view, s->first, count, s->gathered, tiles);
    for (int32_t i = 0; tiles->scales && i < count; i++)
        memcpy(s->scales + i * TILE, tiles[i].scales, TILE * sizeof(float));
}

/* PAIRED dimensions of the K of TILE slots. */
ALWAYS_INLINE parts_source keys_of(const int kind, const parts_split *s, const kv_tile *keys,
                                   int32_t step)
{
    const int32_t bytes = TILE * TILE * kv_element_bytes(kind);
    const uint8_t *left = (const uint8_t *)keys->elements + 2 * step * bytes;
    return (parts_source){left, left + bytes, TILE * kv_pair(kind),
                          s->view->kv->head_dim - step * PAIRED,
                          s->keys + step * parts_of(kind) * AMX_BYTES,
                          kv_ask(s->ahead, ASKED)};
}

/* Of some tiles of rows with the TILE slots from `slot` on. */
ALWAYS_INLINE void score_tiles(const int kind, const int tiles, const parts_split *s, int32_t tile,
                               int32_t slot, const kv_tile *next)
{
    const size_t query = query_bytes(s->view->kv);
    const uint8_t *left = s->queries + (size_t)tile * query, *right = s->keys;
    zero_sums();
    for (int32_t i = 0; i < query_steps(s->view->kv); i++) {
        parts_source source = next ? keys_of(kind, s, next, i) : (parts_source){0};
        multiply_step(kind, tiles, left, query, right, next ? &source : NULL);
        left += PARTS_BYTES;
        right += parts_of(kind) * AMX_BYTES;
    }
    store_sums(tiles, (float *)(s->weights + tile * ROW_TILE_BYTES) + slot * AMX_ROWS,
               ROW_TILE_BYTES / sizeof(float), TILE);
}

/* The first tile of rows that sees a slot. */
static int32_t tile_seeing(const parts_split *s, int32_t slot)
{
    return first_seeing(s->unit, s->group, s->first + slot) / AMX_ROWS;
}

ALWAYS_INLINE void score_parts(const int kind, const parts_split *s)
{
    kv_tile keys[SPLIT_TILES];
    find_keys(s, keys);
    for (int32_t i = 0; i < query_steps(s->view->kv); i++)
        convert_rows(kind, 0, TILE, keys_of(kind, s, keys, i));
    for (int32_t slot = 0; slot < s->slots; slot += TILE) {
        const kv_tile *following = slot + TILE < s->slots ? keys + slot / TILE + 1 : NULL;
        for (int32_t i = tile_seeing(s, slot); i < s->row_tiles; i += MAX_ROW_TILES) {
            const kv_tile *next = i + MAX_ROW_TILES >= s->row_tiles ? following : NULL;
            PRODUCT_CASES(s->row_tiles - i, score_tiles(kind, NUM_TILES, s, i, slot, next))
        }
    }
}

#endif
#endif
