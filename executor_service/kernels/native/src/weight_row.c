/* A row back from its panel, as an embedding has it. */
#include "layouts.h"

ALWAYS_INLINE float half_of_lane(const uint8_t *place, int n)
{
    uint16_t half;
    memcpy(&half, place + n * 2, sizeof half);
    return float_of_half(half);
}

static void read_float32(const uint8_t *panel, int n, int32_t in_features, float *y)
{
    const float *lanes = (const float *)panel;
    for (int32_t k = 0; k < in_features; k++)
        y[k] = lanes[(size_t)k * PANEL + (size_t)n];
}

static void read_int8(const uint8_t *panel, int n, int32_t in_features, float *y)
{
    float factor = ((const float *)panel)[n];
    for (int32_t g = 0; g < in_features / GROUP; g++) {
        const uint8_t *group = panel + INT8_FACTOR_BYTES + (size_t)g * INT8_GROUP_BYTES;
        float scale = half_of_lane(group, n) * factor;
        for (int k = 0; k < GROUP; k++) {
            int byte = group[PANEL * 2 + signed_place(k, n)] - SIGNED_OFFSET;
            y[g * GROUP + k] = (float)(int8_t)byte * scale;
        }
    }
}

static void read_nibbles(const uint8_t *place, int n, float scale, float minimum, float *y)
{
    for (int j = 0; j < GROUP / 2; j++) {
        uint8_t byte = place[nibble_place(j, n)];
        y[j] = (float)(byte & 15) * scale + minimum;
        y[j + GROUP / 2] = (float)(byte >> 4) * scale + minimum;
    }
}

static void read_q4(int32_t kind, const uint8_t *group, int n, int32_t in_features, float *y)
{
    for (int32_t g = 0; g < in_features / GROUP; g++, y += GROUP, group += NIBBLE_BYTES) {
        float scale = half_of_lane(group, n), minimum = -8.0f * scale;
        group += PANEL * 2;
        if (kind == OCT_Q4_1) {
            minimum = half_of_lane(group, n);
            group += PANEL * 2;
        }
        read_nibbles(group, n, scale, minimum, y);
    }
}

static void read_q4_k(const uint8_t *place, int n, int32_t in_features, float *y)
{
    for (int32_t s = 0; s < in_features / SUPER; s++) {
        float scale = half_of_lane(place, n), minimum = half_of_lane(place + PANEL * 2, n);
        place += PANEL * 4;
        for (int g = 0; g < SUPER / GROUP; g++, y += GROUP, place += Q4_K_GROUP_BYTES)
            read_nibbles(place + PANEL * 2, n, scale * (float)place[n],
                         -(minimum * (float)place[PANEL + n]), y);
    }
}

static void read_q6_k(const uint8_t *place, int n, int32_t in_features, float *y)
{
    for (int32_t s = 0; s < in_features / SUPER; s++) {
        float scale = half_of_lane(place, n);
        place += PANEL * 2;
        for (int g = 0; g < SUPER / GROUP; g++, y += GROUP, place += Q6_K_GROUP_BYTES) {
            const uint8_t *nibbles = place + PANEL * 2, *pairs = nibbles + NIBBLE_BYTES;
            for (int k = 0; k < GROUP; k++) {
                int code = nibbles[nibble_place(k % 16, n)] >> (k / 16 * 4) & 15;
                code |= (pairs[nibble_place(k % 8, n)] >> pair_shift(k) & 3) << 4;
                y[k] = scale * (float)(int8_t)place[n * 2 + k / 16] * (float)(code - 32);
            }
        }
    }
}

void oct_weight_row(const oct_weight *w, int32_t row, float *y)
{
    const uint8_t *panel = (const uint8_t *)w->data
                           + (size_t)(row / PANEL) * panel_bytes(w->kind, w->in_features);
    int n = row % PANEL;
    switch (w->kind) {
    case OCT_FLOAT32:
        read_float32(panel, n, w->in_features, y);
        break;
    case OCT_INT8:
    case OCT_Q8_0:
        read_int8(panel, n, w->in_features, y);
        break;
    case OCT_Q4_0:
    case OCT_Q4_1:
        read_q4(w->kind, panel, n, w->in_features, y);
        break;
    case OCT_Q4_K:
        read_q4_k(panel, n, w->in_features, y);
        break;
    case OCT_Q6_K:
        read_q6_k(panel, n, w->in_features, y);
        break;
    }
}

void oct_embed(const oct_weight *w, const int64_t *ids, int32_t num_rows, float *y)
{
#pragma omp parallel for schedule(static)
    for (int32_t i = 0; i < num_rows; i++)
        oct_weight_row(w, (int32_t)ids[i], y + (size_t)i * (size_t)w->in_features);
}
