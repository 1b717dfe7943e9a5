#include "kv.h"

#include <math.h>

static size_t element_bytes(const oct_kv *kv)
{
    return kv->dtype == OCT_KV_FLOAT32 ? 4 : kv->dtype == OCT_KV_FLOAT16 ? 2 : 1;
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

static void widen(const oct_kv *kv, const uint8_t *side, size_t first, int32_t count, float *out)
{
    if (kv->dtype == OCT_KV_FLOAT16) {
        const uint16_t *from = (const uint16_t *)side + first;
        for (int32_t i = 0; i < count; i += LANES)
            vf_store(out + i, vf_load_half(from + i));
    } else {
        const int8_t *from = (const int8_t *)side + first;
        for (int32_t i = 0; i < count; i += LANES)
            vf_store(out + i, vf_load_int8(from + i));
    }
}

static float element(const oct_kv *kv, const uint8_t *side, size_t index)
{
    if (kv->dtype == OCT_KV_FLOAT32)
        return ((const float *)side)[index];
    if (kv->dtype == OCT_KV_INT8)
        return ((const int8_t *)side)[index];
    uint16_t halves[LANES] = {((const uint16_t *)side)[index]};
    return vf_load_half(halves)[0];
}

static const float *gathered_keys(const kv_view *view, int32_t position, float *scratch)
{
    const oct_kv *kv = view->kv;
    const int32_t block_size = kv->block_size;
    for (int32_t i = 0; i < TILE; i++) {
        int32_t at = position + i;
        if (at >= view->end)
            break;
        uint8_t *from = record(kv, view->layer, view->table[at / block_size], view->head);
        size_t first = key_index(kv, at % block_size);
        float scale = kv->dtype == OCT_KV_INT8 ? scales_of(kv, from)[at % block_size] : 1.0f;
        for (int32_t d = 0; d < kv->head_dim; d++)
            scratch[d * TILE + i] = scale * element(kv, from, first + (size_t)(d * block_size));
    }
    return scratch;
}

static const float *gathered_values(const kv_view *view, int32_t position, float *scratch)
{
    const oct_kv *kv = view->kv;
    const int32_t block_size = kv->block_size, width = kv_width(kv);
    const size_t side_bytes = side_elements(kv) * element_bytes(kv);
    for (int32_t i = 0; i < TILE; i++) {
        int32_t at = position + i, offset = at % block_size;
        if (at >= view->end)
            break;
        uint8_t *from = record(kv, view->layer, view->table[at / block_size], view->head);
        float scale = kv->dtype == OCT_KV_INT8 ? scales_of(kv, from)[block_size + offset] : 1.0f;
        for (int32_t d = 0; d < width; d++)
            scratch[i * width + d] =
                scale * element(kv, from + side_bytes, (size_t)(offset * width + d));
    }
    return scratch;
}

const float *oct_kv_keys(const kv_view *view, int32_t position, float *scratch)
{
    const oct_kv *kv = view->kv;
    if (!in_tiles(kv))
        return gathered_keys(view, position, scratch);
    const int32_t width = kv_width(kv), offset = position % kv->block_size;
    uint8_t *from = record(kv, view->layer, view->table[position / kv->block_size], view->head);
    const size_t first = (size_t)(offset * width);
    if (kv->dtype == OCT_KV_FLOAT32)
        return (const float *)from + first;
    widen(kv, from, first, width * TILE, scratch);
    if (kv->dtype == OCT_KV_INT8) {
        const float *scales = scales_of(kv, from) + offset;
        for (int32_t i = 0; i < width * TILE; i += LANES)
            vf_store(scratch + i, vf_load(scratch + i) * vf_load(scales + i % TILE));
    }
    return scratch;
}

const float *oct_kv_values(const kv_view *view, int32_t position, float *scratch)
{
    const oct_kv *kv = view->kv;
    if (!in_tiles(kv))
        return gathered_values(view, position, scratch);
    const int32_t width = kv_width(kv), offset = position % kv->block_size;
    uint8_t *from = record(kv, view->layer, view->table[position / kv->block_size], view->head);
    const size_t first = (size_t)(offset * width);
    const uint8_t *side = from + side_elements(kv) * element_bytes(kv);
    if (kv->dtype == OCT_KV_FLOAT32)
        return (const float *)side + first;
    widen(kv, side, first, width * TILE, scratch);
    if (kv->dtype == OCT_KV_INT8) {
        const float *scales = scales_of(kv, from) + kv->block_size + offset;
        for (int32_t i = 0; i < width * TILE; i += LANES)
            vf_store(scratch + i, vf_load(scratch + i) * scales[i / width]);
    }
    return scratch;
}

void oct_kv_prefetch(const kv_view *view, int32_t position)
{
    const oct_kv *kv = view->kv;
    if (position >= view->end || !in_tiles(kv))
        return;
    const size_t bytes = TILE * (size_t)kv_width(kv) * element_bytes(kv);
    const uint8_t *from = record(kv, view->layer, view->table[position / kv->block_size], view->head);
    from += (size_t)(position % kv->block_size) * (size_t)kv_width(kv) * element_bytes(kv);
    const uint8_t *values = from + side_elements(kv) * element_bytes(kv);
    for (size_t i = 0; i < bytes; i += 64) {
        __builtin_prefetch(from + i);
        __builtin_prefetch(values + i);
    }
}
