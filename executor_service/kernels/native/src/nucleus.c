#include "nucleus.h"

#include <math.h>
#include <string.h>

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

/* Of halvings, each of which reads the list; one that is short is not worth it. */
enum { FLOOR_HALVINGS = 8, MAX_HALVINGS = 6, FEW_CANDIDATES = 512 };

/* What weights below the bound hold together is no more than this: in a block that reaches it, what
 * is beside the largest, and less than so many times the bound. */
static float mass_below(const token_weights *w, float bound)
{
    const vf most = vf_set((WEIGHT_BLOCK - 1) * bound);
    vf total = {0};
    for (int32_t block = 0; block < num_weight_blocks(w->logits.count); block += LANES) {
        const vf top = vf_load(w->tops + block), rest = vf_load(w->rests + block);
        total += vf_select(top < vf_set(bound), rest + top, vf_min(rest, most));
    }
    return vf_sum(total);
}

/* Of `mass_below`, as a share of all: more than adding up in float loses, 3e-5 over 262,144 tokens
 * in vectors of 4. */
#define BLOCKS_ERROR 1e-4

/* A weight such that all below it are less than 1 - top_p together. */
static float floor_of(const token_weights *w, double top_p)
{
    const double mass = (1.0 - top_p) * w->total;
    const double even = mass / w->logits.count;
    float low = (float)(even < 1 ? even : 1), high = 1;
    low = low > 0 ? nextafterf(low, 0) : low;
    for (int halvings = 0; halvings < FLOOR_HALVINGS; halvings++) {
        const float middle = between(low, high);
        if (mass_below(w, middle) + BLOCKS_ERROR * w->total < mass)
            low = middle;
        else
            high = middle;
    }
    return low;
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

/* A little below the logit of a weight. */
static float logit_of(const token_weights *w, float weight)
{
    const float lost = 1e-3f; /* more than what a weight's computation rounds, of its logarithm */
    return w->logits.largest + (log2f(weight) - lost) / w->per_logit;
}

int32_t take_nucleus(const token_weights *w, double top_p, candidate *found, candidate *spare)
{
    const double mass = top_p * w->total;
    band edge = {floor_of(w, top_p), INFINITY};
    const logit_list list = logits_from(w->logits, logit_of(w, edge.lower), spare);
    weigh_logits(w, list.values, list.count);
    for (int i = 0, goes_on = 1; i < MAX_HALVINGS && goes_on && list.count > FEW_CANDIDATES; i++)
        goes_on = halve(&edge, list.values, list.count, mass);
    const int32_t num_found = candidates_from(&list, edge.lower, found);
    return keep_nucleus(found, num_found, mass, edge.upper, spare);
}
