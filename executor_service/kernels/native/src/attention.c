#include "attention.h"

#include <math.h>
#include <omp.h>

#include "attention_merge.h"
#include "attention_parts.h"
#include "attention_plan.h"
#include "attention_split.h"
#include "attention_tiles.h"

typedef struct {
    float *queries; /* [rows, head_dim], scaled */
    float *scores;  /* [rows, SPLIT] */
    uint8_t *tiles; /* [SPLIT_TILES] of gathered slots */
    uint8_t *parts; /* for attention_parts.h */
    float *split;   /* a partial result: [rows, width], then maxima, then sums */
    float *total;   /* likewise */
} scratch_arrays;

static size_t in_lines(size_t floats)
{
    return (floats + 15) / 16 * 16;
}

size_t attention_thread_floats(const oct_kv *kv, int32_t num_heads)
{
    size_t rows = (size_t)unit_rows(kv, num_heads);
    return in_lines(rows * (size_t)kv->head_dim) + rows * SPLIT +
           (SPLIT_TILES * kv_tile_bytes(kv) + parts_bytes(kv, (int32_t)rows)) / sizeof(float) +
           2 * in_lines(partial_floats(kv, (int32_t)rows));
}

static scratch_arrays arrays_of(const attention_plan *plan, int32_t thread)
{
    const oct_kv *kv = plan->kv;
    size_t rows = (size_t)unit_rows(kv, plan->num_heads);
    scratch_arrays a;
    a.queries = plan->scratch + (size_t)thread * plan->scratch_floats;
    a.scores = a.queries + in_lines(rows * (size_t)kv->head_dim);
    a.tiles = (uint8_t *)(a.scores + rows * SPLIT);
    a.parts = a.tiles + SPLIT_TILES * kv_tile_bytes(kv);
    a.split = (float *)(a.parts + parts_bytes(kv, (int32_t)rows));
    a.total = a.split + in_lines(partial_floats(kv, (int32_t)rows));
    return a;
}

/* ---- one split ------------------------------------------------------------------------------- */

static void score(const attention_unit *unit, const kv_view *view, int32_t group, int32_t first,
                  const scratch_arrays *a)
{
    const int32_t head_dim = view->kv->head_dim, rows = unit->num_tokens * group;
    const int32_t end = least(first + SPLIT, view->end);
    for (int32_t position = first; position < end; position += TILE) {
        const kv_tile keys = oct_kv_keys(view, position, a->tiles);
        const kv_ahead ahead = oct_kv_ahead(view, position, 1, keys);
        for (int32_t row = 0, count; row < rows; row += count) {
            count = rows_at_once(rows - row);
            if (seen(unit, group, row + count - 1, first) <= position - first)
                continue;
            score_rows(view->kv->dtype, count, a->queries + row * head_dim, head_dim, keys, ahead,
                       a->scores + row * SPLIT + position - first, SPLIT);
        }
    }
}

/* Scores to weights, in place. */
static void weigh(float *scores, int32_t count, float *maximum, float *sum)
{
    const int32_t padded = ceil_div(count, TILE) * TILE;
    for (int32_t i = count; i < padded; i++)
        scores[i] = -INFINITY;
    vf largest = vf_set(-INFINITY), sums[TILE_VECTORS] = {{0}};
    for (int32_t i = 0; i < padded; i += LANES)
        largest = vf_max(vf_load(scores + i), largest);
    *maximum = vf_largest(largest);
    for (int32_t i = 0; i < padded; i += TILE)
        UNROLL for (int part = 0; part < TILE_VECTORS; part++) {
            float *at = scores + i + part * LANES;
            vf weight = vf_exp_falling(vf_load(at) - *maximum);
            vf_store(at, weight);
            sums[part] += weight;
        }
    float total = 0;
    for (int part = 0; part < TILE_VECTORS; part++)
        total += vf_sum(sums[part]);
    *sum = total;
}

static void scale_weights(float *weights, int32_t rows, const float *scales)
{
    for (int32_t row = 0; row < rows; row++)
        for (int32_t i = 0; i < TILE; i += LANES) {
            float *at = weights + row * SPLIT + i;
            vf_store(at, vf_load(at) * vf_load(scales + i));
        }
}

static void mix(const attention_unit *unit, const kv_view *view, int32_t group, int32_t first,
                const scratch_arrays *a, float *mixed)
{
    const int32_t width = kv_width(view->kv), rows = unit->num_tokens * group;
    const int32_t end = least(first + SPLIT, view->end);
    kv_tile tiles[SPLIT_TILES];
    for (int32_t i = 0; first + i * TILE < end; i++) {
        void *scratch = a->tiles + (size_t)i * kv_tile_bytes(view->kv);
        tiles[i] = oct_kv_values(view, first + i * TILE, scratch);
        if (tiles[i].scales)
            scale_weights(a->scores + i * TILE, rows, tiles[i].scales);
    }
    memset(mixed, 0, sizeof(float) * (size_t)rows * (size_t)width);
    for (int32_t row = 0, count; row < rows; row += count) {
        count = rows_at_once(rows - row);
        /* What a row must not see is not multiplied by 0 either: it may be NaN. */
        int32_t common = seen(unit, group, row, first);
        mix_rows(view->kv->dtype, count, tiles, width, 0, common, a->scores + row * SPLIT, SPLIT,
                 mixed + row * width);
        for (int32_t other = row + 1; other < row + count; other++)
            mix_rows(view->kv->dtype, 1, tiles, width, common, seen(unit, group, other, first),
                     a->scores + other * SPLIT, SPLIT, mixed + other * width);
    }
}

static void attend_split(const attention_unit *unit, const kv_view *view, int32_t group,
                         int32_t split, const scratch_arrays *a, partial_result result)
{
    const int32_t first = split * SPLIT, rows = unit->num_tokens * group;
    if (in_parts(view->kv)) {
        parts_attend(unit, view, group, split, (parts_scratch){a->tiles, a->parts}, result);
        return;
    }
    score(unit, view, group, first, a);
    for (int32_t row = 0; row < rows; row++)
        weigh(a->scores + row * SPLIT, seen(unit, group, row, first), result.maxima + row,
              result.sums + row);
    mix(unit, view, group, first, a, result.mixed);
}

/* ---- tasks ----------------------------------------------------------------------------------- */

static void load_queries(const attention_plan *plan, const attention_unit *unit, int32_t head,
                         const float *q, int64_t q_stride, const scratch_arrays *a)
{
    const int32_t count = group_size(plan) * plan->kv->head_dim;
    for (int32_t i = 0; i < unit->num_tokens; i++) {
        const float *from = q + unit_token(unit, i) * q_stride + (int64_t)head * count;
        for (int32_t d = 0; d < count; d++)
            a->queries[i * count + d] = from[d] * plan->scale;
    }
    if (in_parts(plan->kv))
        parts_begin(plan->kv, a->queries, unit->num_tokens * group_size(plan),
                    (parts_scratch){a->tiles, a->parts});
}

static kv_view view_of(const attention_plan *plan, const attention_unit *unit, int32_t layer,
                       int32_t head)
{
    const int32_t *table = plan->batch->block_tables;
    kv_view view = {plan->kv, table + (int64_t)unit->chunk * plan->batch->table_width, layer, head,
                    unit->end};
    return view;
}

/* Splits [first, the last one], each merged into `total`. */
static void attend_splits(const attention_plan *plan, const attention_unit *unit,
                          const kv_view *view, int32_t first, const scratch_arrays *a,
                          partial_result total)
{
    const int32_t group = group_size(plan);
    partial_result result = result_at(plan->kv, a->split, unit->num_tokens * group);
    for (int32_t split = first; split < num_splits(unit); split++) {
        attend_split(unit, view, group, split, a, result);
        merge(unit, plan->kv, group, split, total, result);
    }
}

static void run_task(const attention_plan *plan, const attention_task *task, int32_t layer,
                     int32_t head, const float *q, int64_t q_stride, float *out,
                     const scratch_arrays *a)
{
    const attention_unit *unit = plan->units + task->unit;
    const int32_t group = group_size(plan), rows = unit->num_tokens * group;
    const int32_t first = task->split == ALL_SPLITS ? 0 : task->split;
    const kv_view view = view_of(plan, unit, layer, head);
    load_queries(plan, unit, head, q, q_stride, a);
    partial_result result =
        result_at(plan->kv, unit->num_partials ? partial_at(plan, unit, first, head) : a->total, rows);
    if (task->split != ALL_SPLITS)
        attend_split(unit, &view, group, task->split, a, result);
    else
        attend_splits(plan, unit, &view, 0, a, result);
    if (!unit->num_partials)
        finish(plan, unit, head, result, out);
}

/* ---- the second pass ------------------------------------------------------------------------- */

/* Takes over what a shared unit found for the only token of this one. */
static void merge_shared(const attention_plan *plan, const attention_unit *unit, int32_t head,
                         partial_result total)
{
    const attention_unit *shared = plan->units + unit->shared;
    const int32_t group = group_size(plan), row = unit->shared_token * group;
    for (int32_t split = 0; split < shared->num_partials; split++) {
        partial_result result = result_at(plan->kv, partial_at(plan, shared, split, head),
                                          shared->num_tokens * group);
        result.mixed += row * kv_width(plan->kv);
        result.maxima += row;
        result.sums += row;
        merge(unit, plan->kv, group, split, total, result);
    }
}

static void complete_unit(const attention_plan *plan, const attention_unit *unit, int32_t layer,
                          int32_t head, const float *q, int64_t q_stride, float *out,
                          const scratch_arrays *a)
{
    const int32_t group = group_size(plan), rows = unit->num_tokens * group;
    const kv_view view = view_of(plan, unit, layer, head);
    partial_result total = result_at(plan->kv, a->total, rows);
    if (unit->shared >= 0) {
        load_queries(plan, unit, head, q, q_stride, a);
        merge_shared(plan, unit, head, total);
        attend_splits(plan, unit, &view, unit->first_split, a, total);
    }
    for (int32_t split = 0; split < unit->num_partials; split++)
        merge(unit, plan->kv, group, split, total,
              result_at(plan->kv, partial_at(plan, unit, split, head), rows));
    finish(plan, unit, head, total, out);
}

void attention_run(const attention_plan *plan, int32_t layer, const float *q, int64_t q_stride,
                   float *out, int32_t *counters, int32_t thread)
{
    const int32_t heads = plan->kv->num_kv_heads;
    const scratch_arrays a = arrays_of(plan, thread);
    int32_t i;
    while ((i = __atomic_fetch_add(counters, 1, __ATOMIC_RELAXED)) < plan->num_tasks * heads)
        run_task(plan, plan->tasks + i / heads, layer, i % heads, q, q_stride, out, &a);
    parts_end(plan->kv);
    if (!plan->num_last)
        return;
#pragma omp barrier
    while ((i = __atomic_fetch_add(counters + 1, 1, __ATOMIC_RELAXED)) < plan->num_last * heads)
        complete_unit(plan, plan->units + plan->last_units[i / heads], layer, i % heads, q, q_stride,
                      out, &a);
    parts_end(plan->kv);
}
