#include "kv.h"

#include <math.h>

static size_t element_bytes(const oct_kv *kv)
{
    return (size_t)kv_element_bytes(kv->dtype);
}

static int in_tiles(const oct_kv *kv)
{
    return kv->block_size % TILE == 0;
}

static size_t side_elements(const oct_kv *kv)
{
    return (size_t)kv->block_size * (size_t)kv_width(kv);
}

size_t oct_kv_record_bytes(const oct_kv *kv)
{
    size_t bytes = 2 * side_elements(kv) * element_bytes(kv);
    if (kv->dtype == OCT_KV_INT8)
        bytes += 2 * (size_t)kv->block_size * sizeof(float);
    return (bytes + 63) / 64 * 64;
}

static uint8_t *record(const oct_kv *kv, int32_t layer, int64_t block, int32_t head)
{
    int64_t index = ((int64_t)layer * kv->num_blocks + block) * kv->num_kv_heads + head;
    return kv->data + (size_t)index * oct_kv_record_bytes(kv);
}

static float *scales_of(const oct_kv *kv, uint8_t *record)
{
    return (float *)(record + 2 * side_elements(kv));
}

/* Of element d of the K of a slot; the next d is `lane_slots` further. */
static size_t key_index(const oct_kv *kv, int32_t offset)
{
    int32_t lane_slots = in_tiles(kv) ? TILE : kv->block_size;
    return (size_t)(offset / lane_slots * lane_slots * kv_width(kv) + offset % lane_slots);
}

/* ---- writing --------------------------------------------------------------------------------- */

/* NaN if any element is not finite, so that what is read back is not finite either. */
static float int8_scale(const float *x, int32_t count)
{
    float largest = 0;
    int finite = 1;
    for (int32_t i = 0; i < count; i++) {
        float magnitude = fabsf(x[i]);
        largest = magnitude > largest ? magnitude : largest;
        finite &= magnitude < INFINITY;
    }
    return finite ? largest / 127.0f : NAN;
}

static void put_side(const oct_kv *kv, uint8_t *side, size_t first, size_t stride, float *scale,
                     const float *x)
{
    const int32_t head_dim = kv->head_dim;
    if (kv->dtype == OCT_KV_FLOAT32) {
        float *out = (float *)side + first;
        for (int32_t d = 0; d < head_dim; d++)
            out[(size_t)d * stride] = x[d];
    } else if (kv->dtype == OCT_KV_FLOAT16) {
        uint16_t *out = (uint16_t *)side + first;
        for (int32_t d = 0; d < head_dim; d++)
            out[(size_t)d * stride] = half_of(x[d]);
    } else {
        int8_t *out = (int8_t *)side + first;
        *scale = int8_scale(x, head_dim);
        float inverse = *scale > 0 ? 1.0f / *scale : 0.0f;
        for (int32_t d = 0; d < head_dim; d++) {
            /* A scale near the least subnormal has an inverse of inf. */
            float level = fminf(fmaxf(rintf(x[d] * inverse), -127.0f), 127.0f);
            out[(size_t)d * stride] = (int8_t)level;
        }
    }
}

void oct_kv_put(const oct_kv *kv, int32_t layer, int64_t slot, const float *k, const float *v)
{
    const int32_t offset = (int32_t)(slot % kv->block_size);
    const size_t side_bytes = side_elements(kv) * element_bytes(kv);
    const size_t width = (size_t)kv_width(kv);
    const size_t key_stride = in_tiles(kv) ? TILE : (size_t)kv->block_size;
    for (int32_t head = 0; head < kv->num_kv_heads; head++) {
        uint8_t *to = record(kv, layer, slot / kv->block_size, head);
        float *scales = scales_of(kv, to);
        int64_t from = (int64_t)head * kv->head_dim;
        put_side(kv, to, key_index(kv, offset), key_stride, scales + offset, k + from);
        put_side(kv, to + side_bytes, (size_t)offset * width, 1, scales + kv->block_size + offset,
                 v + from);
    }
}

/* ---- reading --------------------------------------------------------------------------------- */

static const float *scales_at(const oct_kv *kv, uint8_t *from, int32_t index)
{
    return kv->dtype == OCT_KV_INT8 ? scales_of(kv, from) + index : NULL;
}

/* Element d of a slot, from `first + d * from_stride` to `to + d * to_stride`. */
static void copy_slot(const oct_kv *kv, uint8_t *to, size_t to_first, size_t to_stride,
                      const uint8_t *from, size_t first, size_t from_stride)
{
    const size_t bytes = element_bytes(kv);
    for (size_t d = 0; d < (size_t)kv->head_dim; d++)
        memcpy(to + (to_first + d * to_stride) * bytes, from + (first + d * from_stride) * bytes,
               bytes);
}

/* Slot by slot, for block sizes that tiles do not divide. */
static kv_tile gathered(const kv_view *view, int32_t position, int is_value, void *scratch)
{
    const oct_kv *kv = view->kv;
    const int32_t size = kv->block_size;
    const size_t width = (size_t)kv_width(kv);
    uint8_t *to = scratch;
    float *scales = (float *)(to + TILE * width * sizeof(float));
    for (int32_t i = 0; i < TILE && position + i < view->end; i++) {
        const int32_t at = position + i, offset = at % size;
        uint8_t *from = record(kv, view->layer, view->table[at / size], view->head);
        const float *scale = scales_at(kv, from, is_value * size + offset);
        scales[i] = scale ? *scale : 1.0f;
        if (is_value)
            copy_slot(kv, to, (size_t)i * width, 1, from + side_elements(kv) * element_bytes(kv),
                      (size_t)offset * width, 1);
        else
            copy_slot(kv, to, (size_t)i, TILE, from, key_index(kv, offset), (size_t)size);
    }
    return (kv_tile){to, kv->dtype == OCT_KV_INT8 ? scales : NULL};
}

static uint8_t *record_at(const kv_view *view, int32_t position)
{
    const oct_kv *kv = view->kv;
    return record(kv, view->layer, view->table[position / kv->block_size], view->head);
}

/* Bytes from the start of a side to the tile of a position. */
static size_t tile_offset(const oct_kv *kv, int32_t position)
{
    return (size_t)(position % kv->block_size) * (size_t)kv_width(kv) * element_bytes(kv);
}

static uint8_t *key_tile_at(const kv_view *view, int32_t position)
{
    return record_at(view, position) + tile_offset(view->kv, position);
}

static uint8_t *value_tile_at(const kv_view *view, int32_t position)
{
    return key_tile_at(view, position) + side_elements(view->kv) * element_bytes(view->kv);
}

kv_tile oct_kv_keys(const kv_view *view, int32_t position, void *scratch)
{
    const oct_kv *kv = view->kv;
    if (!in_tiles(kv))
        return gathered(view, position, 0, scratch);
    return (kv_tile){key_tile_at(view, position),
                     scales_at(kv, record_at(view, position), position % kv->block_size)};
}

kv_tile oct_kv_values(const kv_view *view, int32_t position, void *scratch)
{
    const oct_kv *kv = view->kv;
    if (!in_tiles(kv))
        return gathered(view, position, 1, scratch);
    return (kv_tile){value_tile_at(view, position),
                     scales_at(kv, record_at(view, position),
                               kv->block_size + position % kv->block_size)};
}

kv_ahead oct_kv_ahead(const kv_view *view, int32_t position, int32_t tiles, kv_tile keys)
{
    const int32_t later = position + tiles * TILE;
    if (!in_tiles(view->kv))
        return (kv_ahead){keys.elements, keys.elements};
    return (kv_ahead){later < view->end ? key_tile_at(view, later) : keys.elements,
                      value_tile_at(view, position)};
}
