/* Linears of every kind: preparing activations, sharing panels among threads. */
#include "linear_amx.h"

#include <omp.h>

/* What is prepared for grouped kinds: where the rows themselves are, for parts in float32. */
typedef struct {
    const float *x;
    int32_t num_rows;
} act_header;

#define HEADER_BYTES 64

size_t oct_linear_scratch(const oct_weight *w, int32_t max_rows)
{
    if (w->kind == OCT_FLOAT32)
        return 0;
#if AMX
    return HEADER_BYTES + tiled_bytes(w->in_features, max_rows);
#else
    return HEADER_BYTES + (size_t)max_rows * act_stride(w->in_features);
#endif
}

static act_rows rows_at(const void *prepared, int32_t in_features, int32_t num_rows)
{
    return (act_rows){.base = (const uint8_t *)prepared + HEADER_BYTES,
                      .stride = act_stride(in_features),
                      .in_features = in_features,
                      .num_rows = num_rows};
}

#if AMX
static act_rows rows_from(act_rows x, int32_t first)
{
    x.base += (size_t)first * x.stride;
    x.num_rows -= first;
    return x;
}
#endif

const void *oct_prepare_rows(const oct_weight *w, const float *x, int32_t num_rows, void *scratch,
                             int32_t thread, int32_t num_threads)
{
    if (w->kind == OCT_FLOAT32)
        return x;
    if (thread == 0)
        *(act_header *)scratch = (act_header){.x = x, .num_rows = num_rows};
    size_t in = (size_t)w->in_features, stride = act_stride(w->in_features);
    int64_t first = (int64_t)num_rows * thread / num_threads;
    int64_t last = (int64_t)num_rows * (thread + 1) / num_threads;
    for (int64_t row = first; row < last; row++)
        quantize_row(x + (size_t)row * in, w->in_features,
                     (uint8_t *)scratch + HEADER_BYTES + (size_t)row * stride);
#if AMX
    if (amx_rows(w->kind, num_rows))
        fill_tiles(rows_at(scratch, w->in_features, num_rows), (int32_t)first, (int32_t)last);
#endif
    return scratch;
}

static void multiply(panel_share share, const void *prepared, int32_t num_rows)
{
    const oct_weight *w = share.weight;
    act_rows x = rows_at(prepared, w->in_features, num_rows);
#if AMX
    int32_t tiled = amx_rows(w->kind, num_rows);
    if (tiled)
        multiply_amx(share, x, tiled);
    if (tiled == num_rows)
        return;
    share.y += (size_t)tiled * share.stride;
    x = rows_from(x, tiled);
#endif
    switch (w->kind) {
    case OCT_FLOAT32:
        multiply_float32(share, prepared, num_rows);
        break;
    case OCT_INT8:
    case OCT_Q8_0:
        multiply_int8(share, x);
        break;
    case OCT_Q4_0:
    case OCT_Q4_1:
    case OCT_Q4_K:
        multiply_q4(share, x);
        break;
    case OCT_Q6_K:
        multiply_q6(share, x);
        break;
    }
}

void oct_linear_panels(const oct_weight *w, const void *x_prepared, int32_t num_rows, float *y,
                       int32_t first, int32_t last)
{
    panel_share share = {.weight = w, .y = y, .stride = (size_t)w->out_features,
                         .first = first, .last = last};
    multiply(share, x_prepared, num_rows);
}

void oct_linear_part(const oct_weight *w, const void *x_prepared, int32_t num_rows, float *y,
                     int32_t thread, int32_t num_threads)
{
    const oct_weight *part = w->kind == OCT_PARTS ? w->data : w;
    const act_header *header = x_prepared;
    for (int32_t column = 0; column < w->out_features; column += part++->out_features) {
        int64_t panels = num_panels(part);
        panel_share share = {.weight = part,
                             .y = y + column,
                             .stride = (size_t)w->out_features,
                             .first = (int32_t)(panels * thread / num_threads),
                             .last = (int32_t)(panels * (thread + 1) / num_threads)};
        int raw = w->kind == OCT_PARTS && part->kind == OCT_FLOAT32;
        multiply(share, raw ? header->x : x_prepared, num_rows);
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
