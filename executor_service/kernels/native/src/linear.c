/* Float32 linears, a plain loop. */
#include <omp.h>
#include <string.h>

#include "octavo.h"

size_t oct_linear_scratch(const oct_weight *w, int32_t max_rows)
{
    (void)w;
    (void)max_rows;
    return 0;
}

const void *oct_prepare_rows(const oct_weight *w, const float *x, int32_t num_rows, void *scratch,
                             int32_t thread, int32_t num_threads)
{
    (void)w;
    (void)num_rows;
    (void)scratch;
    (void)thread;
    (void)num_threads;
    return x;
}

void oct_linear_part(const oct_weight *w, const void *x_prepared, int32_t num_rows, float *y,
                     int32_t thread, int32_t num_threads)
{
    const float *x = x_prepared, *data = w->data;
    const int64_t in = w->in_features, out = w->out_features;
    for (int64_t n = out * thread / num_threads; n < out * (thread + 1) / num_threads; n++)
        for (int64_t row = 0; row < num_rows; row++) {
            float sums[16] = {0}, sum = 0;
            for (int64_t k = 0; k < in; k++)
                sums[k & 15] += x[row * in + k] * data[n * in + k];
            for (int i = 0; i < 16; i++)
                sum += sums[i];
            y[row * out + n] = sum + (w->bias ? w->bias[n] : 0.0f);
        }
}

void oct_linear(const oct_weight *w, const float *x, int32_t num_rows, float *y, void *scratch)
{
#pragma omp parallel
    {
        int32_t thread = omp_get_thread_num(), num_threads = omp_get_num_threads();
        const void *prepared = oct_prepare_rows(w, x, num_rows, scratch, thread, num_threads);
#pragma omp barrier
        oct_linear_part(w, prepared, num_rows, y, thread, num_threads);
    }
}

void oct_weight_row(const oct_weight *w, int32_t row, float *y)
{
    memcpy(y, (const float *)w->data + (int64_t)row * w->in_features,
           sizeof(float) * (size_t)w->in_features);
}
