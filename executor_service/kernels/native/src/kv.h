/* The KV pool in memory: [num_layers][num_blocks][num_kv_heads] records of one block and head.
 *
 * A record holds K, then V, then (int8) the scales of both:
 *   K [block_size / lane_slots][width / pair][lane_slots][pair]: lane_slots slots side by side, as
 *     the scores of neighbouring slots are computed in neighbouring lanes;
 *   V [block_size / pair][width][pair];
 *   scales [2][block_size] float32, one per token and head.
 * width is head_dim rounded up to 16; lane_slots is 16 where that divides block_size, else
 * block_size: then slots do not come in sixteens and are gathered one by one before use. pair is 2
 * for bfloat16 in lanes of 16, else 1: two of what a product adds up are neighbours, as matrix tiles
 * take them, and a shift makes floats of a vector of either.
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
    return kind == OCT_KV_FLOAT32 ? 4 : kind == OCT_KV_INT8 ? 1 : 2;
}

/* Whether attention over this kind is on matrix tiles, of attention_parts.c. */
ALWAYS_INLINE int kv_in_parts(const int32_t kind)
{
    return AMX && kind != OCT_KV_FLOAT32;
}

/* Of elements in a tile: dimensions of K, slots of V. */
ALWAYS_INLINE int32_t kv_pair(const int32_t kind)
{
    return kind == OCT_KV_BFLOAT16 ? 2 : 1;
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

/* TILE slots in the pool's dtype, in pairs if it has them, in the pool itself or gathered into a
 * scratch. */
typedef struct {
    const void *elements;
    const float *scales; /* [TILE], or NULL; each slot's elements are meant times its scale */
} kv_tile;

/* Bytes of a scratch for one tile. */
ALWAYS_INLINE size_t kv_tile_bytes(const oct_kv *kv)
{
    return TILE * ((size_t)kv_width(kv) + 1) * sizeof(float);
}

/* K of `count` times TILE positions from `position` on, a multiple of TILE, in tiles of
 * [width / pair][TILE][pair]. scratch: kv_tile_bytes for each, for slots that are gathered. */
void oct_kv_keys(const kv_view *view, int32_t position, int32_t count, uint8_t *scratch,
                 kv_tile *tiles);

/* V of the same, in tiles of [TILE / pair][width][pair]. */
void oct_kv_values(const kv_view *view, int32_t position, int32_t count, uint8_t *scratch,
                   kv_tile *tiles);

enum { KV_TILES_AHEAD = 8, CACHE_LINE = 64 };

/* Memory of tiles that are read next, K and V as they lie. It is asked for a few lines at a time
 * while others are multiplied: machines take few requests at once, and a loop that waits for room
 * does nothing else. */
typedef struct {
    const uint8_t *at; /* the next line to ask for */
    int32_t left;      /* bytes of its side */
    int32_t side_bytes;
    int32_t side, num_sides;
    const uint8_t *sides[2 * KV_TILES_AHEAD];
} kv_ahead;

/* Of up to KV_TILES_AHEAD tiles from `position` on; none where slots are gathered. */
void oct_kv_ahead(const kv_view *view, int32_t position, kv_ahead *ahead);

/* Asks the second-level cache for a line, where `offset` begins one. */
ALWAYS_INLINE void kv_ask_line(const uint8_t *from, int64_t offset)
{
    if (offset % CACHE_LINE == 0)
        __builtin_prefetch(from + offset, 0, 2);
}

/* From where on to ask for so many bytes; once all are, where some have been asked for. */
ALWAYS_INLINE const uint8_t *kv_ask(kv_ahead *ahead, int32_t bytes)
{
    const uint8_t *at = ahead->at;
    if (ahead->side == ahead->num_sides)
        return at;
    ahead->at += bytes;
    for (ahead->left -= bytes; ahead->left <= 0; ahead->left += ahead->side_bytes) {
        ahead->side++;
        if (ahead->side == ahead->num_sides) {
            ahead->at = at;
            break;
        }
        ahead->at = ahead->sides[ahead->side];
    }
    return at;
}

#endif
