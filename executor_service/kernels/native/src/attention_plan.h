/* What attention.c computes in which pieces. Nothing of it changes a bit of the results.
 *
 * Sequences that decode on the same prefix read its K and V together, once for as many of them as
 * make a unit (Hydragen; cascade attention in FlashInfer): their memory is what a decode waits for.
 */
#ifndef OCTAVO_ATTENTION_PLAN_H
#define OCTAVO_ATTENTION_PLAN_H

#include "attention_parts.h"
#include "attention_split.h"

enum {
    UNIT_ROWS = 48,       /* whose queries, scores and results stay in the second-level cache */
    TASKS_PER_THREAD = 4, /* below this, units are split so that threads end together */
    PIECES_PER_TASK = 4,  /* a split unit is cut into so many times as many tasks as that needs, */
    MAX_PIECE = 4,        /* each of up to so many splits in a row, whose queries are laid out once */
};

ALWAYS_INLINE int32_t group_size(const attention_plan *plan)
{
    return plan->num_heads / plan->kv->num_kv_heads;
}

ALWAYS_INLINE int32_t unit_tokens(int32_t group)
{
    return group >= UNIT_ROWS ? 1 : UNIT_ROWS / group;
}

/* Of the largest unit. */
ALWAYS_INLINE int32_t unit_rows(const oct_kv *kv, int32_t num_heads)
{
    int32_t group = num_heads / kv->num_kv_heads;
    return stored_rows(kv, unit_tokens(group) * group);
}

ALWAYS_INLINE int32_t num_splits(const attention_unit *unit)
{
    return ceil_div(unit->end, SPLIT);
}

/* One number per row, whole vectors from any row on. */
ALWAYS_INLINE size_t in_lanes(int32_t rows)
{
    return (size_t)rows + LANES;
}

/* Of the results of one split and KV head: values, maxima and sums of each row. */
ALWAYS_INLINE size_t partial_floats(const oct_kv *kv, int32_t rows)
{
    return (size_t)stored_rows(kv, rows) * (size_t)kv_width(kv) + 2 * in_lanes(rows);
}

/* Where a unit keeps the results of a split. */
ALWAYS_INLINE float *partial_at(const attention_plan *plan, const attention_unit *unit,
                                int32_t split, int32_t head)
{
    int64_t floats = (int64_t)partial_floats(plan->kv, unit->num_tokens * group_size(plan));
    return plan->partials + unit->partial + (split * plan->kv->num_kv_heads + head) * floats;
}

/* Token i of a unit, in the batch. */
ALWAYS_INLINE int64_t unit_token(const attention_unit *unit, int32_t i)
{
    return unit->members ? unit->members[i] : unit->token + i;
}

/* Scratch of one thread; defined where it is used. */
size_t attention_thread_floats(const oct_kv *kv, int32_t num_heads);

#endif
