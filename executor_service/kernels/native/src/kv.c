#include "kv.h"

#include <math.h>

#include "kv_layout.h"

size_t oct_kv_record_bytes(const oct_kv *kv)
{
    size_t bytes = 2 * side_elements(kv) * element_bytes(kv);
    if (kv->dtype == OCT_KV_INT8)
        bytes += 2 * (size_t)kv->block_size * sizeof(float);
    return (bytes + 63) / 64 * 64;
}

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

static void put_side(const oct_kv *kv, uint8_t *side, slot_elements to, float *scale,
                     const float *x)
{
    const size_t head_dim = (size_t)kv->head_dim;
    if (kv->dtype == OCT_KV_FLOAT32) {
        for (size_t d = 0; d < head_dim; d++)
            ((float *)side)[element_index(to, d)] = x[d];
    } else if (kv->dtype == OCT_KV_FLOAT16) {
        for (size_t d = 0; d < head_dim; d++)
            ((uint16_t *)side)[element_index(to, d)] = half_of(x[d]);
    } else if (kv->dtype == OCT_KV_BFLOAT16) {
        for (size_t d = 0; d < head_dim; d++)
            ((uint16_t *)side)[element_index(to, d)] = bfloat16_of(x[d]);
    } else {
        *scale = int8_scale(x, kv->head_dim);
        float inverse = *scale > 0 ? 1.0f / *scale : 0.0f;
        for (size_t d = 0; d < head_dim; d++) {
            /* A scale near the least subnormal has an inverse of inf. */
            float level = fminf(fmaxf(rintf(x[d] * inverse), -127.0f), 127.0f);
            ((int8_t *)side)[element_index(to, d)] = (int8_t)level;
        }
    }
}

void oct_kv_put(const oct_kv *kv, int32_t layer, int64_t slot, const float *k, const float *v)
{
    const int32_t offset = (int32_t)(slot % kv->block_size);
    const size_t side_bytes = side_elements(kv) * element_bytes(kv);
    const slot_elements key = pool_elements(kv, 0, offset), value = pool_elements(kv, 1, offset);
    for (int32_t head = 0; head < kv->num_kv_heads; head++) {
        uint8_t *to = record_of(kv, layer, slot / kv->block_size, head);
        float *scales = scales_of(kv, to);
        int64_t from = (int64_t)head * kv->head_dim;
        put_side(kv, to, key, scales + offset, k + from);
        put_side(kv, to + side_bytes, value, scales + kv->block_size + offset, v + from);
    }
}
