/* Where records, sides and elements of the KV pool lie (kv.h), for what writes and what reads them. */
#ifndef OCTAVO_KV_LAYOUT_H
#define OCTAVO_KV_LAYOUT_H

#include "kv.h"

ALWAYS_INLINE size_t element_bytes(const oct_kv *kv)
{
    return (size_t)kv_element_bytes(kv->dtype);
}

ALWAYS_INLINE int in_tiles(const oct_kv *kv)
{
    return kv->block_size % TILE == 0;
}

ALWAYS_INLINE size_t side_elements(const oct_kv *kv)
{
    return (size_t)kv->block_size * (size_t)kv_width(kv);
}

ALWAYS_INLINE uint8_t *record_of(const oct_kv *kv, int32_t layer, int64_t block, int32_t head)
{
    int64_t index = ((int64_t)layer * kv->num_blocks + block) * kv->num_kv_heads + head;
    return kv->data + (size_t)index * oct_kv_record_bytes(kv);
}

ALWAYS_INLINE float *scales_of(const oct_kv *kv, uint8_t *record)
{
    return (float *)(record + 2 * side_elements(kv));
}

/* Where the K or V of a slot lies: element d is at first + d / pair * stride + d % pair. */
typedef struct {
    size_t first, stride;
    int32_t pair; /* 1 or 2 */
} slot_elements;

ALWAYS_INLINE size_t element_index(slot_elements slot, size_t d)
{
    const size_t odd = (size_t)slot.pair - 1;
    return slot.first + (d >> odd) * slot.stride + (d & odd);
}

ALWAYS_INLINE slot_elements key_elements(int32_t width, int32_t lane_slots, int32_t pair,
                                         int32_t offset)
{
    const int32_t lanes = offset / lane_slots * lane_slots * width;
    return (slot_elements){(size_t)(lanes + offset % lane_slots * pair), (size_t)(lane_slots * pair),
                           pair};
}

ALWAYS_INLINE slot_elements value_elements(int32_t width, int32_t pair, int32_t offset)
{
    return (slot_elements){(size_t)(offset / pair * pair * width + offset % pair), (size_t)pair, 1};
}

/* In the pool. */
ALWAYS_INLINE slot_elements pool_elements(const oct_kv *kv, int is_value, int32_t offset)
{
    const int32_t width = kv_width(kv), pair = in_tiles(kv) ? kv_pair(kv->dtype) : 1;
    return is_value ? value_elements(width, pair, offset)
                    : key_elements(width, in_tiles(kv) ? TILE : kv->block_size, pair, offset);
}

#endif
