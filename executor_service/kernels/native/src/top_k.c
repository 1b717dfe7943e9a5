#include "top_k.h"

#include <math.h>

#include "maxima.h"

static int32_t count_from(const float *x, int32_t count, float bound)
{
    vi hits = {0};
    int32_t i = 0;
    for (; i + LANES <= count; i += LANES)
        hits -= (vi)(vf_load(x + i) >= vf_set(bound));
    int32_t total = vi_sum(hits);
    for (; i < count; i++)
        total += x[i] >= bound;
    return total;
}

/* Of what holds no NaN. */
static float smallest_of(const float *x, int32_t count)
{
    vf best = vf_set(INFINITY);
    int32_t i = 0;
    for (; i + LANES <= count; i += LANES)
        best = vf_min(vf_load(x + i), best);
    float smallest = -vf_largest(-best);
    for (; i < count; i++)
        smallest = x[i] < smallest ? x[i] : smallest;
    return smallest;
}

/* What is no more than the top_k-th largest, and little less: not far below so many blocks' maxima.
 * -inf if there are not as many, or one of them is that. */
static float bound_of(vocabulary logits, int32_t top_k)
{
    const int32_t num_maxima = oct_num_maxima(logits.count);
    float low = smallest_of(logits.maxima, num_maxima), high = logits.largest;
    if (top_k > num_maxima || low == -INFINITY)
        return -INFINITY;
    for (int halvings = 0; halvings < 24; halvings++) {
        float middle = low + (high - low) * 0.5f;
        int32_t reached = count_from(logits.maxima, num_maxima, middle);
        if (reached < top_k) {
            high = middle;
            continue;
        }
        low = middle;
        if (reached <= top_k + top_k / 4)
            break;
    }
    return low;
}

int32_t take_top_k(vocabulary logits, int32_t top_k, candidate *found, candidate *spare)
{
    const logit_list list = logits_from(logits, bound_of(logits, top_k), spare);
    const int32_t num_found = candidates_from(&list, -INFINITY, found);
    return num_found > top_k ? keep_best(found, num_found, top_k, spare) : num_found;
}
