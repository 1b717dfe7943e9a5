#include "kv_layout.h"

/* In a tile of its own. */
static slot_elements tile_elements(const oct_kv *kv, int is_value, int32_t offset)
{
    const int32_t width = kv_width(kv), pair = kv_pair(kv->dtype);
    return is_value ? value_elements(width, pair, offset)
                    : key_elements(width, TILE, pair, offset);
}

static const float *scales_at(const oct_kv *kv, uint8_t *from, int32_t index)
{
    return kv->dtype == OCT_KV_INT8 ? scales_of(kv, from) + index : NULL;
}

static void copy_slot(const oct_kv *kv, uint8_t *to, slot_elements to_elements,
                      const uint8_t *from, slot_elements from_elements)
{
    const size_t bytes = element_bytes(kv);
    for (size_t d = 0; d < (size_t)kv->head_dim; d++)
        memcpy(to + element_index(to_elements, d) * bytes,
               from + element_index(from_elements, d) * bytes, bytes);
}

/* Slot by slot, for block sizes that tiles do not divide. */
static kv_tile gathered(const kv_view *view, int32_t position, int is_value, void *scratch)
{
    const oct_kv *kv = view->kv;
    const int32_t size = kv->block_size;
    uint8_t *to = scratch;
    float *scales = (float *)(to + TILE * (size_t)kv_width(kv) * sizeof(float));
    for (int32_t i = 0; i < TILE && position + i < view->end; i++) {
        const int32_t at = position + i, offset = at % size;
        uint8_t *from = record_of(kv, view->layer, view->table[at / size], view->head);
        const float *scale = scales_at(kv, from, is_value * size + offset);
        scales[i] = scale ? *scale : 1.0f;
        copy_slot(kv, to, tile_elements(kv, is_value, i),
                  is_value ? from + side_elements(kv) * element_bytes(kv) : from,
                  pool_elements(kv, is_value, offset));
    }
    return (kv_tile){to, kv->dtype == OCT_KV_INT8 ? scales : NULL};
}

/* Walks through the tiles of a view where they lie. */
typedef struct {
    const int32_t *block;
    uint8_t *records; /* of the view's head, those of other blocks block_bytes apart */
    size_t block_bytes, tile_bytes;
    int32_t offset, block_size; /* slots */
} tile_walk;

static tile_walk walk_from(const kv_view *view, int32_t position)
{
    const oct_kv *kv = view->kv;
    const size_t heads = (size_t)kv->num_kv_heads;
    return (tile_walk){view->table + position / kv->block_size,
                       record_of(kv, view->layer, 0, view->head), heads * oct_kv_record_bytes(kv),
                       (size_t)(TILE * kv_width(kv)) * element_bytes(kv),
                       position % kv->block_size, kv->block_size};
}

static uint8_t *walk_record(const tile_walk *walk)
{
    return walk->records + (size_t)*walk->block * walk->block_bytes;
}

/* The tile's K from a record's start, and its V from that of the record's V. */
static size_t walk_bytes(const tile_walk *walk)
{
    return (size_t)(walk->offset / TILE) * walk->tile_bytes;
}

static void walk_on(tile_walk *walk)
{
    walk->offset += TILE;
    if (walk->offset == walk->block_size)
        walk->offset = 0, walk->block++;
}

static void find_tiles(const kv_view *view, int32_t position, int32_t count, int is_value,
                       uint8_t *scratch, kv_tile *tiles)
{
    const oct_kv *kv = view->kv;
    if (!in_tiles(kv)) {
        for (int32_t i = 0; i < count; i++)
            tiles[i] = gathered(view, position + i * TILE, is_value,
                                scratch + (size_t)i * kv_tile_bytes(kv));
        return;
    }
    const size_t side = is_value ? side_elements(kv) * element_bytes(kv) : 0;
    const int32_t scales = is_value ? kv->block_size : 0;
    tile_walk walk = walk_from(view, position);
    for (int32_t i = 0; i < count; i++, walk_on(&walk)) {
        uint8_t *from = walk_record(&walk);
        tiles[i] = (kv_tile){from + side + walk_bytes(&walk),
                             scales_at(kv, from, scales + walk.offset)};
    }
}

void oct_kv_keys(const kv_view *view, int32_t position, int32_t count, uint8_t *scratch,
                 kv_tile *tiles)
{
    find_tiles(view, position, count, 0, scratch, tiles);
}

void oct_kv_values(const kv_view *view, int32_t position, int32_t count, uint8_t *scratch,
                   kv_tile *tiles)
{
    find_tiles(view, position, count, 1, scratch, tiles);
}

void oct_kv_ahead(const kv_view *view, int32_t position, kv_ahead *ahead)
{
    const oct_kv *kv = view->kv;
    const size_t side = side_elements(kv) * element_bytes(kv);
    int32_t count = in_tiles(kv) ? (view->end - position + TILE - 1) / TILE : 0;
    count = count < KV_TILES_AHEAD ? count : KV_TILES_AHEAD;
    ahead->at = (const uint8_t *)ahead;
    ahead->side = ahead->num_sides = 0;
    if (count <= 0)
        return;
    tile_walk walk = walk_from(view, position);
    for (int32_t i = 0; i < count; i++, walk_on(&walk)) {
        uint8_t *keys = walk_record(&walk) + walk_bytes(&walk);
        ahead->sides[ahead->num_sides++] = keys;
        ahead->sides[ahead->num_sides++] = keys + side;
    }
    ahead->at = ahead->sides[0];
    ahead->left = ahead->side_bytes = (int32_t)walk.tile_bytes;
}
