/* The first product of attention_parts.c: queries with the K of TILE slots at a time. */
#ifndef OCTAVO_PARTS_SCORES_H
#define OCTAVO_PARTS_SCORES_H

#include "parts_split.h"

#if AMX

enum { TILES_AHEAD = 2 }; /* of K, asked for before their use */

/* K of TILE slots in the pool. */
typedef struct {
    const uint8_t *now; /* NULL: there is none */
    kv_ahead ahead;
} parts_keys;

static parts_keys keys_at(const parts_split *s, int32_t slot)
{
    parts_keys found = {NULL, {NULL, NULL}};
    if (slot >= s->slots)
        return found;
    kv_tile keys = oct_kv_keys(s->view, s->first + slot, gathered_at(s, slot));
    if (keys.scales)
        memcpy(s->scales + slot, keys.scales, TILE * sizeof(float));
    found.now = keys.elements;
    found.ahead = oct_kv_ahead(s->view, s->first + slot, TILES_AHEAD, keys);
    return found;
}

/* PAIRED dimensions of them. */
ALWAYS_INLINE parts_source keys_of(const int kind, const parts_split *s, parts_keys keys,
                                   int32_t step)
{
    const int32_t bytes = TILE * TILE * kv_element_bytes(kind);
    const uint8_t *left = keys.now + 2 * step * bytes;
    return (parts_source){left, left + bytes, TILE, s->view->kv->head_dim - step * PAIRED,
                          s->keys + step * parts_of(kind) * AMX_BYTES,
                          {keys.ahead.keys + 2 * step * bytes,
                           keys.ahead.values + 2 * step * bytes}};
}

/* Of some tiles of rows with the TILE slots from `slot` on. */
ALWAYS_INLINE void score_tiles(const int kind, const int tiles, const parts_split *s, int32_t tile,
                               int32_t slot, parts_keys next)
{
    const size_t query = query_bytes(s->view->kv);
    const uint8_t *left = s->queries + (size_t)tile * query, *right = s->keys;
    zero_sums();
    for (int32_t i = 0; i < query_steps(s->view->kv); i++) {
        parts_source source = keys_of(kind, s, next, i);
        multiply_step(kind, tiles, left, query, right, next.now ? &source : NULL);
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
    parts_keys keys = keys_at(s, 0);
    for (int32_t i = 0; i < query_steps(s->view->kv); i++)
        convert_rows(kind, 0, TILE, keys_of(kind, s, keys, i));
    for (int32_t slot = 0; slot < s->slots; slot += TILE) {
        keys = keys_at(s, slot + TILE);
        for (int32_t i = tile_seeing(s, slot); i < s->row_tiles; i += MAX_ROW_TILES) {
            const int is_last = i + MAX_ROW_TILES >= s->row_tiles;
            const parts_keys none = {NULL, {NULL, NULL}}, next = is_last ? keys : none;
            PRODUCT_CASES(s->row_tiles - i, score_tiles(kind, NUM_TILES, s, i, slot, next))
        }
    }
}

#endif
#endif
