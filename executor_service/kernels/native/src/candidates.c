#include "candidates.h"

#include "sort.h"

#include <string.h>

static int better(candidate a, candidate b)
{
    return a.value > b.value || (a.value == b.value && a.id < b.id);
}

static void swap(candidate *a, candidate *b)
{
    candidate c = *a;
    *a = *b;
    *b = c;
}

/* Of the first, the middle and the last: falling and rising runs are not slow then. */
static candidate pivot_of(const candidate *all, int32_t first, int32_t end)
{
    candidate a = all[first], b = all[first + (end - first) / 2], c = all[end - 1];
    if (better(b, a)) {
        candidate d = a;
        a = b;
        b = d;
    }
    if (better(c, a))
        return a;
    return better(c, b) ? c : b;
}

/* The worst of the `count` best, whose order it changes. */
static candidate last_of_best(candidate *all, int32_t total, int32_t count)
{
    int32_t first = 0, end = total;
    while (end - first > 1) {
        /* Hoare's partition: [first, j] are no worse than the pivot, [i, end) no better. */
        candidate pivot = pivot_of(all, first, end);
        int32_t i = first, j = end - 1;
        while (i <= j) {
            while (better(all[i], pivot))
                i++;
            while (better(pivot, all[j]))
                j--;
            if (i <= j)
                swap(all + i++, all + j--);
        }
        if (count <= j + 1)
            end = j + 1;
        else if (count > i)
            first = i;
        else
            return pivot;
    }
    return all[first];
}

int32_t keep_best(candidate *all, int32_t total, int32_t count, candidate *scratch)
{
    memcpy(scratch, all, sizeof *all * (size_t)total);
    const candidate last = last_of_best(scratch, total, count);
    int32_t num_kept = 0;
    for (int32_t i = 0; i < total; i++)
        if (!better(last, all[i]))
            all[num_kept++] = all[i];
    return num_kept;
}

static int has_lower_id(const candidate *a, const candidate *b)
{
    return a->id < b->id;
}

DEFINE_SORT(sort_by_id, candidate, has_lower_id)

/* Where the nucleus ends: weights above `value`, and of those equal to it the ids up to `last_id`. */
typedef struct {
    float value;
    int32_t last_id;
} edge;

typedef struct {
    int32_t above;
    int32_t equal;
    double mass_above;
} parts;

/* Moves what is above the pivot to the front, what equals it behind that in its order of ids. */
static parts split(candidate *all, int32_t count, float pivot)
{
    parts p = {0, 0, 0};
    for (int32_t i = 0; i < count; i++)
        if (all[i].value > pivot) {
            p.mass_above += all[i].value;
            swap(all + p.above++, all + i);
        }
    for (int32_t i = p.above; i < count; i++)
        if (all[i].value == pivot)
            swap(all + p.above + p.equal++, all + i);
    return p;
}

/* `before` is the mass of what is above all of these, and `last` where that ends. */
static edge edge_of(candidate *all, int32_t count, double mass, double before, edge last)
{
    while (count > 0) {
        float pivot = pivot_of(all, 0, count).value;
        parts p = split(all, count, pivot);
        if (before + p.mass_above >= mass && p.above) {
            count = p.above;
            continue;
        }
        before += p.mass_above;
        candidate *equal = all + p.above;
        sort_by_id(equal, p.equal);
        for (int32_t i = 0; i < p.equal; i++) {
            /* The first of all is kept whatever the mass. */
            if (before >= mass && before > 0)
                return last;
            last = (edge){pivot, equal[i].id};
            before += pivot;
        }
        if (before >= mass)
            return last;
        all = equal + p.equal;
        count -= p.above + p.equal;
    }
    return last;
}

int32_t keep_nucleus(candidate *all, int32_t count, double mass, float upper, candidate *scratch)
{
    double mass_above = 0;
    int32_t num_below = 0;
    for (int32_t i = 0; i < count; i++) {
        if (all[i].value >= upper)
            mass_above += all[i].value;
        else
            scratch[num_below++] = all[i];
    }
    const edge last =
        edge_of(scratch, num_below, mass, mass_above, (edge){upper, INT32_MAX});
    int32_t num_kept = 0;
    for (int32_t i = 0; i < count; i++)
        if (all[i].value > last.value || (all[i].value == last.value && all[i].id <= last.last_id))
            all[num_kept++] = all[i];
    return num_kept;
}
