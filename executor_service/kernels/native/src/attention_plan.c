#include "attention_plan.h"

#include "sort.h"

#define MAX_PARTIAL_FLOATS (1 << 23) /* of splits; what shared prefixes need comes on top */

/* Chunks of one token that begin with the same blocks. */
typedef struct {
    int32_t leader; /* a chunk, whose table stands for all */
    int32_t splits; /* that all share and see the whole of */
    int32_t count;
    int32_t first_unit;
    int32_t per_unit; /* chunks */
    int32_t placed;   /* of count */
} prefix_group;

/* ---- memory ---------------------------------------------------------------------------------- */

static int32_t max_units(const oct_kv *kv, int32_t num_heads, const oct_limits *limits)
{
    return limits->max_tokens / unit_tokens(num_heads / kv->num_kv_heads) + 2 * limits->max_chunks;
}

/* Splits of the long units, and beside them units that are not split. */
static int32_t max_tasks(const oct_kv *kv, int32_t num_heads, const oct_limits *limits)
{
    int32_t split = TASKS_PER_THREAD * limits->num_threads * ceil_div(limits->max_context, SPLIT);
    return split + max_units(kv, num_heads, limits);
}

/* Of the splits of long units, of which there are few. */
static size_t max_split_floats(const oct_kv *kv, int32_t num_heads, const oct_limits *limits)
{
    size_t needed = (size_t)TASKS_PER_THREAD * (size_t)limits->num_threads *
                    (size_t)ceil_div(limits->max_context, SPLIT) *
                    partial_floats(kv, unit_rows(kv, num_heads));
    return needed < MAX_PARTIAL_FLOATS ? needed : MAX_PARTIAL_FLOATS;
}

/* Of the merged splits of shared prefixes, where these are many. Rows of a unit may be padded to
 * whole tiles of 16. */
static size_t max_shared_floats(const oct_kv *kv, int32_t num_heads, const oct_limits *limits)
{
    size_t token = partial_floats(kv, num_heads / kv->num_kv_heads);
    return (size_t)limits->max_chunks * (size_t)kv->num_kv_heads *
           (token + 16 * (size_t)kv_width(kv));
}

static size_t lines(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Lays the arrays out from `memory` on; returns where they end. */
static uint8_t *lay_out_plan(attention_plan *plan, prefix_group **groups, int32_t **group_of,
                             const oct_limits *limits, uint8_t *memory)
{
    const oct_kv *kv = plan->kv;
    const int32_t heads = plan->num_heads;
    const size_t units = (size_t)max_units(kv, heads, limits), chunks = (size_t)limits->max_chunks;
    uint8_t *at = memory;
    plan->units = (attention_unit *)at;
    at += lines(units * sizeof(attention_unit));
    plan->tasks = (attention_task *)at;
    at += lines((size_t)max_tasks(kv, heads, limits) * sizeof(attention_task));
    plan->last_tasks = (attention_task *)at;
    at += lines(units * sizeof(attention_task));
    plan->members = (int32_t *)at;
    at += lines(chunks * sizeof(int32_t));
    *groups = (prefix_group *)at;
    at += lines(chunks * sizeof(prefix_group));
    *group_of = (int32_t *)at;
    at += lines(chunks * sizeof(int32_t));
    plan->partials = (float *)at;
    at += lines((max_split_floats(kv, heads, limits) + max_shared_floats(kv, heads, limits)) *
                sizeof(float));
    plan->scratch = (float *)at;
    plan->scratch_floats = attention_thread_floats(kv, heads);
    return at + (size_t)limits->num_threads * plan->scratch_floats * sizeof(float);
}

size_t attention_bytes(const oct_kv *kv, int32_t num_heads, const oct_limits *limits)
{
    attention_plan sizes = {.kv = kv, .num_heads = num_heads};
    prefix_group *groups;
    int32_t *group_of;
    return (size_t)(uintptr_t)lay_out_plan(&sizes, &groups, &group_of, limits, NULL);
}

/* ---- shared prefixes ------------------------------------------------------------------------- */

static const int32_t *table_of(const oct_batch *batch, int32_t chunk)
{
    return batch->block_tables + (int64_t)chunk * batch->table_width;
}

/* Whole splits that both chunks see and keep in the same blocks. */
static int32_t common_splits(const attention_plan *plan, int32_t chunk, int32_t other)
{
    const oct_batch *batch = plan->batch;
    const int32_t *mine = table_of(batch, chunk), *theirs = table_of(batch, other);
    const int32_t seen = least(batch->starts[chunk], batch->starts[other]) + 1;
    int32_t blocks = 0;
    while (blocks * plan->kv->block_size < seen && mine[blocks] == theirs[blocks])
        blocks++;
    return least(blocks * plan->kv->block_size, seen) / SPLIT;
}

/* Whether a group of `count` chunks reads less with one that shares `common` of its splits. */
static int pays(const prefix_group *group, int32_t common)
{
    return common && group->count * least(common, group->splits) >= (group->count - 1) * group->splits;
}

/* Gives each chunk of one token its group, or -1; returns how many groups there are. */
static int32_t find_groups(const attention_plan *plan, prefix_group *groups, int32_t *group_of)
{
    const oct_batch *batch = plan->batch;
    int32_t count = 0;
    for (int32_t chunk = 0; chunk < batch->num_chunks; chunk++) {
        group_of[chunk] = -1;
        if (batch->lengths[chunk] != 1 || batch->starts[chunk] + 1 < SPLIT)
            continue;
        int32_t i = 0, common = 0;
        for (; i < count; i++) {
            common = common_splits(plan, chunk, groups[i].leader);
            if (pays(groups + i, common))
                break;
        }
        if (i == count)
            groups[count++] =
                (prefix_group){.leader = chunk, .splits = (batch->starts[chunk] + 1) / SPLIT};
        else
            groups[i].splits = least(groups[i].splits, common);
        groups[i].count++;
        group_of[chunk] = i;
    }
    return count;
}

/* Units of the prefixes that at least two chunks share. Their tokens are filled in later. */
static void add_shared_units(attention_plan *plan, prefix_group *groups, int32_t count)
{
    const int32_t most = unit_tokens(group_size(plan));
    int32_t *members = plan->members;
    for (prefix_group *group = groups; group < groups + count; group++) {
        if (group->count < 2)
            continue;
        int32_t units = ceil_div(group->count, most);
        group->first_unit = plan->num_units;
        group->per_unit = ceil_div(group->count, units);
        for (int32_t left = group->count; left > 0; left -= group->per_unit) {
            const int32_t tokens = least(left, group->per_unit), end = group->splits * SPLIT;
            plan->units[plan->num_units++] = (attention_unit){
                .chunk = group->leader, .members = members, .num_tokens = tokens,
                .position = end - 1, .end = end, .shared = -1};
            members += tokens;
        }
    }
}

/* Makes the unit of a chunk of one token begin where its group's ends. */
static void join_group(attention_plan *plan, attention_unit *unit, prefix_group *group)
{
    if (group->count < 2)
        return;
    int32_t place = group->placed++;
    unit->shared = group->first_unit + place / group->per_unit;
    unit->shared_token = place % group->per_unit;
    unit->first_split = group->splits;
    plan->units[unit->shared].members[unit->shared_token] = unit->token;
}

/* ---- units and tasks ------------------------------------------------------------------------- */

static void add_units(attention_plan *plan, prefix_group *groups, const int32_t *group_of)
{
    const oct_batch *batch = plan->batch;
    const int32_t most = unit_tokens(group_size(plan));
    for (int32_t chunk = 0, first = 0; chunk < batch->num_chunks; chunk++) {
        const int32_t length = batch->lengths[chunk];
        for (int32_t i = 0; i < ceil_div(length, most); i++) {
            attention_unit *unit = plan->units + plan->num_units++;
            const int32_t offset = i * most, tokens = least(most, length - offset);
            const int32_t position = batch->starts[chunk] + offset;
            *unit = (attention_unit){.chunk = chunk, .token = first + offset, .num_tokens = tokens,
                                     .position = position, .end = position + tokens, .shared = -1};
            if (group_of[chunk] >= 0)
                join_group(plan, unit, groups + group_of[chunk]);
        }
        first += length;
    }
}

/* Of one KV head: each position is read once and meets every row. */
static int64_t unit_cost(const attention_plan *plan, const attention_unit *unit)
{
    const int64_t reading = 8;
    return unit->end * (reading + unit->num_tokens * group_size(plan));
}

/* The units of the first pass that are at least this long are split, as a thread that gets one last
 * would keep the others waiting. */
static int64_t split_cost(const attention_plan *plan, const oct_limits *limits)
{
    int64_t all = 0;
    for (int32_t i = 0; i < plan->num_units; i++)
        if (plan->units[i].shared < 0)
            all += unit_cost(plan, plan->units + i) * plan->kv->num_kv_heads;
    return all / (TASKS_PER_THREAD * limits->num_threads) + 1;
}

static int is_longer(const attention_task *a, const attention_task *b)
{
    if (a->cost != b->cost)
        return a->cost > b->cost;
    return a->unit < b->unit || (a->unit == b->unit && a->first < b->first);
}

DEFINE_SORT(sort_longest_first, attention_task, is_longer)

static void add_task(attention_plan *plan, int32_t unit, int32_t first, int32_t end, int completes)
{
    const int32_t splits = num_splits(plan->units + unit);
    const int64_t cost = unit_cost(plan, plan->units + unit) * (end - first) / splits;
    plan->tasks[plan->num_tasks++] = (attention_task){unit, first, end, completes, cost};
}

/* Tasks of a unit of the first pass, split if it costs `length` and `floats` more results have
 * room. */
static void add_unit_tasks(attention_plan *plan, int32_t index, int64_t length, int64_t floats)
{
    attention_unit *unit = plan->units + index;
    const int64_t cost = unit_cost(plan, unit);
    const int32_t splits = num_splits(unit);
    const int64_t of_split = plan->kv->num_kv_heads *
                             (int64_t)partial_floats(plan->kv, unit->num_tokens * group_size(plan));
    const int is_split = cost >= length && splits > 1 && splits * of_split <= floats;
    unit->num_partials = is_split ? splits : unit->members ? 1 : 0;
    unit->partial = plan->partial_floats;
    plan->partial_floats += unit->num_partials * of_split;
    if (!is_split) {
        add_task(plan, index, 0, splits, !unit->num_partials);
        return;
    }
    const int64_t most = length * splits / (PIECES_PER_TASK * cost);
    const int32_t piece = most < 1 ? 1 : most < MAX_PIECE ? (int32_t)most : MAX_PIECE;
    for (int32_t split = 0; split < splits; split += piece)
        add_task(plan, index, split, least(split + piece, splits), 0);
}

static void add_tasks(attention_plan *plan, const oct_limits *limits)
{
    const int64_t length = split_cost(plan, limits);
    const int64_t room = (int64_t)max_split_floats(plan->kv, plan->num_heads, limits);
    for (int32_t i = 0; i < plan->num_units; i++) {
        const attention_unit *unit = plan->units + i;
        if (unit->shared < 0)
            add_unit_tasks(plan, i, length, room - plan->partial_floats);
        const int32_t splits = unit->shared >= 0 ? num_splits(unit) : 0;
        if (unit->shared >= 0 || (unit->num_partials && !unit->members))
            plan->last_tasks[plan->num_last++] =
                (attention_task){i, splits ? unit->first_split : 0, splits, 1, 0};
    }
    sort_longest_first(plan->tasks, plan->num_tasks);
}

void attention_begin(attention_plan *plan, const oct_kv *kv, const oct_batch *batch,
                     const oct_limits *limits, int32_t num_heads, float scale, void *memory)
{
    prefix_group *groups;
    int32_t *group_of;
    *plan = (attention_plan){.kv = kv, .batch = batch, .num_heads = num_heads, .scale = scale};
    lay_out_plan(plan, &groups, &group_of, limits, memory);
    int32_t count = find_groups(plan, groups, group_of);
    add_shared_units(plan, groups, count);
    add_units(plan, groups, group_of);
    add_tasks(plan, limits);
}
