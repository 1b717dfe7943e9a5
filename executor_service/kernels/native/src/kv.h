/* The KV pool in memory: [num_layers][num_blocks][num_kv_heads] records of one block and head.
 *
 * A record holds K, then V, then (int8) the scales of both:
 *   K [block_size / lane_slots][width][lane_slots]: lane_slots slots side by side, as the scores of
 *     neighbouring slots are computed in neighbouring lanes;
 *   V [block_size][width];
 *   scales [2][block_size] float32, one per token and head.
 * width is head_dim rounded up to 16; lane_slots is 16 where that divides block_size, else
 * block_size: then slots do not come in sixteens and are gathered one by one before use.
 */
#ifndef OCTAVO_KV_H
#define OCTAVO_KV_H

#include "octavo.h"
#include "simd.h"

ALWAYS_INLINE int32_t kv_width(const oct_kv *kv)
{
    return (kv->head_dim + TILE - 1) / TILE * TILE;
}

/* Of one element of K or V in the pool; kind is that of oct_kv. */
ALWAYS_INLINE int32_t kv_element_bytes(const int32_t kind)
{
    return kind == OCT_KV_FLOAT32 ? 4 : kind == OCT_KV_FLOAT16 ? 2 : 1;
}

/* One token's K and V of all heads, each [num_kv_heads, head_dim], into its slot. */
void oct_kv_put(const oct_kv *kv, int32_t layer, int64_t slot, const float *k, const float *v);

/* One head of one sequence. */
typedef struct {
    const oct_kv *kv;
    const int32_t *table;
    int32_t layer;
    int32_t head;
    int32_t end; /* no slot of a position from here on is read, but as a lane beside others */
} kv_view;

/* TILE slots in the pool's dtype, in the pool itself or gathered into a scratch. */
typedef struct {
    const void *elements;
    const float *scales; /* [TILE], or NULL; each slot's elements are meant times its scale */
} kv_tile;

/* Bytes of a scratch for one tile. */
ALWAYS_INLINE size_t kv_tile_bytes(const oct_kv *kv)
{
    return TILE * ((size_t)kv_width(kv) + 1) * sizeof(float);
}

/* K of positions [position, position + TILE), [width][TILE]; position is a multiple of TILE. */
kv_tile oct_kv_keys(const kv_view *view, int32_t position, void *scratch);

/* V of the same, [TILE][width]. */
kv_tile oct_kv_values(const kv_view *view, int32_t position, void *scratch);

/* Memory that is used soon: K of a tile to come and V of this one. It is asked for a line at a time
 * while others are multiplied: machines take few requests at once, and a loop that waits for room
 * does nothing else. */
typedef struct {
    const uint8_t *keys, *values;
} kv_ahead;

/* For the tile at `position`, whose K is `keys`: that of the tile so many `tiles` on, and its V. Past
 * the end, and where tiles are gathered, there is `keys` again. */
kv_ahead oct_kv_ahead(const kv_view *view, int32_t position, int32_t tiles, kv_tile keys);

#endif
