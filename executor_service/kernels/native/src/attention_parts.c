#include "attention_parts.h"

#include "attention_weights.h"
#include "parts_product.h"
#include "parts_scores.h"
#include "parts_split.h"
#include "parts_values.h"

#if AMX

size_t parts_bytes(const oct_kv *kv, int32_t rows)
{
    return (size_t)ceil_div(rows, AMX_ROWS) * (query_bytes(kv) + ROW_TILE_BYTES) +
           query_bytes(kv) + SPLIT_STEPS * PARTS_BYTES + 2 * SPLIT * sizeof(float);
}

void parts_begin(const oct_kv *kv, const float *queries, int32_t rows, parts_scratch scratch)
{
    const int32_t head_dim = kv->head_dim;
    for (int32_t row = 0; row < rows; row++, queries += head_dim) {
        uint8_t *to = scratch.tiles + (size_t)(row / AMX_ROWS) * query_bytes(kv) +
                      row % AMX_ROWS * AMX_ROW_BYTES;
        for (int32_t d = 0; d < head_dim; d += PAIRED, to += PARTS_BYTES) {
            const __mmask16 left = lanes_below(head_dim - d);
            const __mmask16 right = lanes_below(head_dim - d - TILE);
            const __m512 a = _mm512_maskz_loadu_ps(left, queries + d);
            const __m512 b = _mm512_maskz_loadu_ps(right, queries + d + TILE);
            if (kv->dtype == OCT_KV_BFLOAT16)
                store_float_parts(OCT_KV_BFLOAT16, to, a, b);
            else
                store_float_parts(OCT_KV_FLOAT16, to, a, b);
        }
    }
    begin_products(least(rows, AMX_ROWS));
}

void parts_end(const oct_kv *kv)
{
    if (kv_in_parts(kv->dtype))
        amx_end();
}

ALWAYS_INLINE score_row row_at(const parts_split *s, int32_t row)
{
    float *tile = (float *)(s->weights + row / AMX_ROWS * ROW_TILE_BYTES);
    return (score_row){tile + row % AMX_ROWS * TILE, seen(s->unit, s->group, row, s->first),
                       s->scales, s->scales + SPLIT};
}

/* Of one tile of rows. Maxima come first: waiting for one takes as long as weighing a row. */
ALWAYS_INLINE void weigh_tile(const int kind, const int whole, const parts_split *s, int32_t first,
                              partial_result result)
{
    const int32_t end = least(first + AMX_ROWS, s->rows);
    for (int32_t row = first; row < end; row++)
        result.maxima[row] = row_maximum(kind, whole, row_at(s, row));
    for (int32_t row = first; row < end; row++)
        result.sums[row] = row_weights(kind, whole, row_at(s, row), result.maxima[row],
                                       kv_ask(s->ahead, SPLIT_TILES * CACHE_LINE));
}

ALWAYS_INLINE void attend(const int kind, const parts_split *s, partial_result result)
{
    kv_tile tiles[SPLIT_TILES];
    score_parts(kind, s);
    find_values(s, tiles);
    for (int32_t row = s->first_row / AMX_ROWS * AMX_ROWS; row < s->rows; row += AMX_ROWS) {
        if (seen(s->unit, s->group, row, s->first) == SPLIT)
            weigh_tile(kind, 1, s, row, result);
        else
            weigh_tile(kind, 0, s, row, result);
    }
    mix_parts(kind, MAX_ROW_TILES, s, tiles, result.mixed);
    const int all_see_all = seen(s->unit, s->group, 0, s->first) == s->slots;
    if (kind != OCT_KV_INT8 && !all_see_all && !all_finite(s, result.mixed))
        mix_apart(s, result.mixed);
}

void parts_attend(const attention_unit *unit, const kv_view *view, int32_t group, int32_t split,
                  kv_ahead *ahead, parts_scratch scratch, partial_result result)
{
    const parts_split s = split_at(unit, view, group, split * SPLIT, ahead, scratch);
    if (view->kv->dtype == OCT_KV_INT8)
        attend(OCT_KV_INT8, &s, result);
    else if (view->kv->dtype == OCT_KV_BFLOAT16)
        attend(OCT_KV_BFLOAT16, &s, result);
    else
        attend(OCT_KV_FLOAT16, &s, result);
}

#else

size_t parts_bytes(const oct_kv *kv, int32_t rows)
{
    (void)kv, (void)rows;
    return 0;
}

void parts_begin(const oct_kv *kv, const float *queries, int32_t rows, parts_scratch scratch)
{
    (void)kv, (void)queries, (void)rows, (void)scratch;
}

void parts_attend(const attention_unit *unit, const kv_view *view, int32_t group, int32_t split,
                  kv_ahead *ahead, parts_scratch scratch, partial_result result)
{
    (void)unit, (void)view, (void)group, (void)split, (void)ahead, (void)scratch, (void)result;
}

void parts_end(const oct_kv *kv)
{
    (void)kv;
}

#endif
