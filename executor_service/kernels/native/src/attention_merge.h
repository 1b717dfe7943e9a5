/* Results of splits to that of a unit, for attention.c.
 */
#ifndef OCTAVO_ATTENTION_MERGE_H
#define OCTAVO_ATTENTION_MERGE_H

#include "attention_plan.h"

/* The result of a split, or of several, that begins at `floats`. */
static partial_result result_at(const oct_kv *kv, float *floats, int32_t rows)
{
    partial_result result;
    result.mixed = floats;
    result.maxima = floats + (size_t)stored_rows(kv, rows) * (size_t)kv_width(kv);
    result.sums = result.maxima + in_lanes(rows);
    return result;
}

/* Of LANES rows: what the results so far and another split's are to be multiplied by. */
static void merge_sums(float *maxima, float *sums, const float *other_maxima,
                       const float *other_sums, float *keep, float *take)
{
    const vf maximum = vf_load(maxima), other = vf_load(other_maxima);
    const vf largest = vf_max(other, maximum);
    vf_store(keep, vf_exp(maximum - largest));
    vf_store(take, vf_exp(other - largest));
    vf_store(maxima, largest);
    vf_store(sums, vf_load(sums) * vf_load(keep) + vf_load(other_sums) * vf_load(take));
}

static void merge_row(float *total, const float *mixed, float keep, float take, int32_t width)
{
    for (int32_t i = 0; i < width; i += LANES)
        vf_store(total + i, vf_load(total + i) * keep + vf_load(mixed + i) * take);
}

/* Adds a split to `total`; splits come in order. */
static void merge(const attention_unit *unit, const oct_kv *kv, int32_t group, int32_t split,
                  partial_result total, partial_result result)
{
    const int32_t rows = unit->num_tokens * group, width = kv_width(kv);
    if (split == 0) {
        memcpy(total.mixed, result.mixed, sizeof(float) * (size_t)(rows * width));
        memcpy(total.maxima, result.maxima, sizeof(float) * (size_t)rows);
        memcpy(total.sums, result.sums, sizeof(float) * (size_t)rows);
        return;
    }
    for (int32_t row = first_seeing(unit, group, split * SPLIT); row < rows; row += LANES) {
        float keep[LANES], take[LANES];
        merge_sums(total.maxima + row, total.sums + row, result.maxima + row, result.sums + row,
                   keep, take);
        for (int32_t i = 0; i < LANES && row + i < rows; i++)
            merge_row(total.mixed + (row + i) * width, result.mixed + (row + i) * width, keep[i],
                      take[i], width);
    }
}

static void finish(const attention_plan *plan, const attention_unit *unit, int32_t head,
                   partial_result total, float *out)
{
    const int32_t group = group_size(plan), head_dim = plan->kv->head_dim;
    const int32_t width = kv_width(plan->kv);
    const float *from = total.mixed, *sum = total.sums;
    for (int32_t token = 0; token < unit->num_tokens; token++) {
        int64_t first = (int64_t)(unit->token + token) * plan->num_heads + head * group;
        for (int32_t i = 0; i < group; i++, from += width, sum++) {
            float *to = out + (first + i) * head_dim;
            const float factor = 1.0f / *sum;
            for (int32_t d = 0; d < head_dim; d++)
                to[d] = from[d] * factor;
        }
    }
}

#endif
