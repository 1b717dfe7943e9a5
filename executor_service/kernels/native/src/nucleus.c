#include "nucleus.h"

#include <math.h>
#include <string.h>

#include "simd.h"

/* Weights and their ids, apart. */
typedef struct {
    float *values;
    int32_t *ids;
    int32_t count;
} weight_list;

static void append_from(weight_list *list, const float *weights, int32_t first, int32_t end,
                        float floor)
{
    for (int32_t id = first; id < end; id++) {
        list->values[list->count] = weights[id];
        list->ids[list->count] = id;
        list->count += weights[id] >= floor;
    }
}

/* Of LANES weights. */
static void append_vector(weight_list *list, const float *weights, int32_t first, float floor)
{
#if LANES == 16
    const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512 w = _mm512_loadu_ps(weights + first);
    const __mmask16 hits = _mm512_cmp_ps_mask(w, _mm512_set1_ps(floor), _CMP_GE_OQ);
    const __m512i ids = _mm512_add_epi32(lanes, _mm512_set1_epi32(first));
    _mm512_storeu_ps(list->values + list->count, _mm512_maskz_compress_ps(hits, w));
    _mm512_storeu_si512(list->ids + list->count, _mm512_maskz_compress_epi32(hits, ids));
    list->count += __builtin_popcount(hits);
#else
    append_from(list, weights, first, first + LANES, floor);
#endif
}

/* Candidates of top-p: what is below the floor is not among them. The list has room for all. */
static void list_from(weight_list *list, const float *weights, int32_t count, float floor)
{
    int32_t i = 0;
    for (; i + LANES <= count; i += LANES)
        if (vi_any(vf_load(weights + i) >= vf_set(floor)))
            append_vector(list, weights, i, floor);
    append_from(list, weights, i, count, floor);
}

static int32_t candidates_from(const weight_list *list, float floor, candidate *found)
{
    int32_t num_found = 0;
    for (int32_t i = 0; i < list->count; i++) {
        found[num_found] = (candidate){list->values[i], list->ids[i]};
        num_found += list->values[i] >= floor;
    }
    return num_found;
}

/* The sum of the weights from `bound` on, within MASS_ERROR of it. */
#define MASS_ERROR 1e-5
static double mass_from(const float *weights, int32_t count, float bound)
{
    enum { PARTS = 4, STRETCH = 32 * PARTS * LANES };
    double total = 0;
    for (int32_t first = 0; first < count; first += STRETCH) {
        vf sums[PARTS] = {{0}};
        int32_t end = first + STRETCH < count ? first + STRETCH : count, i = first;
        for (; i + PARTS * LANES <= end; i += PARTS * LANES)
            UNROLL for (int part = 0; part < PARTS; part++) {
                vf w = vf_load(weights + i + part * LANES);
                sums[part] += vf_select(w >= vf_set(bound), w, (vf){0});
            }
        total += vf_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
        for (; i < end; i++)
            total += weights[i] >= bound ? weights[i] : 0;
    }
    return total;
}

/* Weights from `upper` on hold less than the nucleus, those from `lower` on no less. */
typedef struct {
    float lower;
    float upper;
} band;

static float between(float a, float b)
{
    uint32_t low, high;
    memcpy(&low, &a, sizeof low);
    memcpy(&high, &b, sizeof high);
    low += (high - low) / 2; /* in steps of the format: about their geometric mean */
    memcpy(&a, &low, sizeof a);
    return a;
}

/* Of halvings, which each read all weights or, once it is made, the list; a list that is short is
 * not worth one. */
enum { MAX_HALVINGS = 6, FEW_CANDIDATES = 512 };

/* All weights below it are less than 1 - top_p together. */
static float floor_of(int32_t count, double total, double top_p)
{
    const double floor = (1.0 - top_p) * total / count;
    const float found = (float)(floor < 1 ? floor : 1);
    return found > 0 ? nextafterf(found, 0) : found;
}

/* Halves the band that holds the edge of a nucleus of `mass`; returns whether it could. */
static int halve(band *found, const float *weights, int32_t count, double mass)
{
    const float middle = between(found->lower, found->upper < 1 ? found->upper : 1);
    const double reached = mass_from(weights, count, middle);
    if (reached * (1 - MASS_ERROR) >= mass)
        found->lower = middle;
    else if (reached * (1 + MASS_ERROR) < mass)
        found->upper = middle;
    else
        return 0;
    return 1;
}

int32_t take_nucleus(const float *weights, int32_t count, double total, double top_p,
                     candidate *found, candidate *spare)
{
    const double mass = top_p * total;
    band edge = {floor_of(count, total, top_p), INFINITY};
    int goes_on = halve(&edge, weights, count, mass); /* one at first, which shortens most lists */
    weight_list list = {(float *)spare, (int32_t *)spare + count + TILE, 0};
    list_from(&list, weights, count, edge.lower);
    for (int i = 1; i < MAX_HALVINGS && goes_on && list.count > FEW_CANDIDATES; i++)
        goes_on = halve(&edge, list.values, list.count, mass);
    const int32_t num_found = candidates_from(&list, edge.lower, found);
    return keep_nucleus(found, num_found, mass, edge.upper, spare);
}
