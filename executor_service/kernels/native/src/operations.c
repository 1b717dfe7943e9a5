/* Single operations, each a parallel region of its own, for callers that run a model piece by
 * piece. They compute the same bits as the whole step. */
#include <omp.h>

#include "attention.h"
#include "elementwise.h"
#include "kv.h"
#include "octavo.h"

void oct_use_threads(int32_t num_threads)
{
    omp_set_num_threads(num_threads);
}

void oct_rms_norm(const float *x, int64_t rows, int64_t heads, int64_t row_stride, int32_t width,
                  const float *weight, float eps, float *y)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t head = 0; head < heads; head++)
            oct_row_rms_norm(x + i * row_stride + head * width, weight, eps, width,
                             y + (i * heads + head) * width);
}

void oct_add_rms_norm(const float *x, float *residual, int64_t rows, int32_t width,
                      const float *weight, float eps, float *y)
{
#pragma omp parallel for if (rows > 8)
    for (int64_t i = 0; i < rows; i++)
        oct_row_add_rms_norm(x + i * width, residual + i * width, weight, eps, width,
                             y + i * width);
}

void oct_rotary(float *x, int64_t rows, int64_t heads, int32_t head_dim, const float *cos,
                const float *sin)
{
    const int64_t half = head_dim / 2;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t head = 0; head < heads; head++)
            oct_head_rotary(x + (i * heads + head) * head_dim, cos + i * half, sin + i * half,
                            head_dim);
}

void oct_silu_mul(const float *gate_up, int64_t rows, int32_t width, float *y)
{
#pragma omp parallel for if (rows > 8)
    for (int64_t i = 0; i < rows; i++)
        oct_row_silu_mul(gate_up + i * 2 * width, width, y + i * width);
}

void oct_write_kv(const oct_kv *kv, int32_t layer, const float *k, const float *v, int64_t rows,
                  int64_t row_stride, const int64_t *slots)
{
    for (int64_t i = 0; i < rows; i++)
        oct_kv_put(kv, layer, slots[i], k + i * row_stride, v + i * row_stride);
}

size_t oct_attention_workspace(const oct_kv *kv, int32_t num_heads, const oct_limits *limits)
{
    return attention_bytes(kv, num_heads, limits);
}

void oct_attention(const oct_kv *kv, const oct_batch *batch, const oct_limits *limits,
                   int32_t layer, int32_t num_heads, float scale, const float *q,
                   int64_t row_stride, float *out, void *workspace)
{
    attention_plan plan;
    int32_t counters[2] = {0};
    attention_begin(&plan, kv, batch, limits, num_heads, scale, workspace);
#pragma omp parallel num_threads(limits->num_threads)
    attention_run(&plan, layer, q, row_stride, out, counters, omp_get_thread_num());
}
