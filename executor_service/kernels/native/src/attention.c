#include "attention.h"

#include <omp.h>

#include "attention_floats.h"
#include "attention_merge.h"
#include "attention_parts.h"
#include "attention_plan.h"
#include "attention_split.h"

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
    if (kv_in_parts(plan->kv->dtype))
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

/* Those of one pass, each for every KV head. */
typedef struct {
    const attention_task *first;
    int32_t count;
    int32_t *counter; /* how many have been taken */
} task_list;

/* One split of a task, for one KV head. */
typedef struct {
    const attention_task *task; /* NULL: there is none */
    kv_view view;
    int32_t head, split;
} attention_place;

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

/* The split after `at`, of the same task or of one that no thread has taken. */
static attention_place place_after(const attention_plan *plan, const task_list *tasks,
                                   int32_t layer, const attention_place *at)
{
    attention_place next = *at;
    if (at->task && ++next.split < at->task->end)
        return next;
    const int32_t heads = plan->kv->num_kv_heads;
    const int32_t i = __atomic_fetch_add(tasks->counter, 1, __ATOMIC_RELAXED);
    next.task = i < tasks->count * heads ? tasks->first + i / heads : NULL;
    if (!next.task)
        return next;
    next.head = i % heads;
    next.split = next.task->first;
    next.view = view_of(plan, plan->units + next.task->unit, layer, next.head);
    return next;
}

static void attend_split(const attention_unit *unit, const kv_view *view, int32_t group,
                         int32_t split, kv_ahead *ahead, const scratch_arrays *a,
                         partial_result result)
{
    const parts_scratch parts = {a->tiles, a->parts};
    const floats_scratch floats = {a->queries, a->scores, a->tiles};
    if (kv_in_parts(view->kv->dtype))
        parts_attend(unit, view, group, split, ahead, parts, result);
    else
        floats_attend(unit, view, group, split, ahead, floats, result);
}

/* Into what the unit keeps of the split, or of all so far. */
static void attend_place(const attention_plan *plan, const attention_place *at, kv_ahead *ahead,
                         const scratch_arrays *a)
{
    const attention_unit *unit = plan->units + at->task->unit;
    const int32_t group = group_size(plan), rows = unit->num_tokens * group;
    const int is_kept = unit->num_partials > 1; /* beside those of other splits */
    partial_result total = result_at(plan->kv, a->total, rows);
    if (unit->num_partials)
        total = result_at(plan->kv, partial_at(plan, unit, is_kept ? at->split : 0, at->head), rows);
    if (is_kept || at->split == 0) {
        attend_split(unit, &at->view, group, at->split, ahead, a, total);
        return;
    }
    const partial_result result = result_at(plan->kv, a->split, rows);
    attend_split(unit, &at->view, group, at->split, ahead, a, result);
    merge(unit, plan->kv, group, at->split, total, result);
}

/* Merges what tasks before this one have kept. */
static void complete_unit(const attention_plan *plan, const attention_unit *unit, int32_t head,
                          float *out, const scratch_arrays *a)
{
    const int32_t group = group_size(plan), rows = unit->num_tokens * group;
    const partial_result total = result_at(plan->kv, a->total, rows);
    for (int32_t split = 0; split < unit->num_partials; split++)
        merge(unit, plan->kv, group, split, total,
              result_at(plan->kv, partial_at(plan, unit, split, head), rows));
    finish(plan, unit, head, total, out);
}

static void run_place(const attention_plan *plan, const attention_place *at, kv_ahead *ahead,
                      const float *q, int64_t q_stride, float *out, const scratch_arrays *a)
{
    const attention_task *task = at->task;
    const attention_unit *unit = plan->units + task->unit;
    if (at->split == task->first && task->first < task->end)
        load_queries(plan, unit, at->head, q, q_stride, a);
    if (at->split == task->first && unit->shared >= 0)
        merge_shared(plan, unit, at->head,
                     result_at(plan->kv, a->total, unit->num_tokens * group_size(plan)));
    if (at->split < task->end)
        attend_place(plan, at, ahead, a);
    if (at->split + 1 >= task->end && task->completes)
        complete_unit(plan, unit, at->head, out, a);
}

static void run_tasks(const attention_plan *plan, task_list tasks, int32_t layer, const float *q,
                      int64_t q_stride, float *out, const scratch_arrays *a)
{
    const attention_place none = {NULL, {0}, 0, 0};
    attention_place at = place_after(plan, &tasks, layer, &none);
    while (at.task) {
        const attention_place next = place_after(plan, &tasks, layer, &at);
        const int is_read = next.task && next.split < next.task->end;
        kv_ahead ahead;
        oct_kv_ahead(&next.view, is_read ? next.split * SPLIT : next.view.end, &ahead);
        run_place(plan, &at, &ahead, q, q_stride, out, a);
        at = next;
    }
    parts_end(plan->kv);
}

void attention_run(const attention_plan *plan, int32_t layer, const float *q, int64_t q_stride,
                   float *out, int32_t *counters, int32_t thread)
{
    const scratch_arrays a = arrays_of(plan, thread);
    const task_list tasks = {plan->tasks, plan->num_tasks, counters};
    run_tasks(plan, tasks, layer, q, q_stride, out, &a);
    if (!plan->num_last)
        return;
#pragma omp barrier
    const task_list last = {plan->last_tasks, plan->num_last, counters + 1};
    run_tasks(plan, last, layer, q, q_stride, out, &a);
}
