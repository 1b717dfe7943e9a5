#include "elementwise.h"

#include <math.h>

#include "simd.h"

static float sum_of_squares(const float *x, int32_t width)
{
    vf sums[4] = {{0}};
    int32_t i = 0;
    for (; i + 4 * LANES <= width; i += 4 * LANES)
        for (int part = 0; part < 4; part++) {
            vf v = vf_load(x + i + part * LANES);
            sums[part] = vf_fma(v, v, sums[part]);
        }
    for (; i + LANES <= width; i += LANES) {
        vf v = vf_load(x + i);
        sums[0] = vf_fma(v, v, sums[0]);
    }
    float sum = vf_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (; i < width; i++)
        sum += x[i] * x[i];
    return sum;
}

void oct_row_rms_norm(const float *x, const float *weight, float eps, int32_t width, float *y)
{
    float factor = 1.0f / sqrtf(sum_of_squares(x, width) / (float)width + eps);
    int32_t i = 0;
    for (; i + LANES <= width; i += LANES)
        vf_store(y + i, vf_load(x + i) * factor * vf_load(weight + i));
    for (; i < width; i++)
        y[i] = x[i] * factor * weight[i];
}

void oct_row_add_rms_norm(const float *x, float *residual, const float *weight, float eps,
                          int32_t width, float *y)
{
    int32_t i = 0;
    for (; i + LANES <= width; i += LANES)
        vf_store(residual + i, vf_load(residual + i) + vf_load(x + i));
    for (; i < width; i++)
        residual[i] += x[i];
    oct_row_rms_norm(residual, weight, eps, width, y);
}

void oct_head_rotary(float *x, const float *cos, const float *sin, int32_t head_dim)
{
    const int32_t half = head_dim / 2;
    int32_t i = 0;
    for (; i + LANES <= half; i += LANES) {
        vf first = vf_load(x + i), second = vf_load(x + half + i);
        vf c = vf_load(cos + i), s = vf_load(sin + i);
        vf_store(x + i, first * c - second * s);
        vf_store(x + half + i, second * c + first * s);
    }
    for (; i < half; i++) {
        float first = x[i], second = x[half + i];
        x[i] = first * cos[i] - second * sin[i];
        x[half + i] = second * cos[i] + first * sin[i];
    }
}

void oct_row_silu_mul(const float *gate_up, int32_t width, float *y)
{
    const float *up = gate_up + width;
    int32_t i = 0;
    for (; i + LANES <= width; i += LANES) {
        vf gate = vf_load(gate_up + i);
        vf_store(y + i, gate / (1.0f + vf_exp(-gate)) * vf_load(up + i));
    }
    for (; i < width; i++)
        y[i] = gate_up[i] / (1.0f + float_exp(-gate_up[i])) * up[i];
}
