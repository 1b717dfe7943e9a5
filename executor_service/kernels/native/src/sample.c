#include "sample.h"

#include <math.h>
#include <omp.h>
#include <string.h>

#include "candidates.h"
#include "nucleus.h"
#include "simd.h"

/* Weights are summed in lanes of float over so many at a time, and those sums in double. */
enum { SUM_BLOCK = 8 * LANES, MAXIMUM_BLOCK = 4 * LANES };

typedef struct {
    float *weights;         /* [vocab] */
    float *maxima;          /* [vocab / MAXIMUM_BLOCK] */
    double *sums;           /* [vocab / SUM_BLOCK] */
    candidate *candidates;  /* [vocab] */
    candidate *selection;   /* [vocab] */
    float *adjusted;        /* [vocab] */
    int32_t *counts;        /* [vocab] all 0 between draws */
} scratch;

static size_t to_whole_lines(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static size_t thread_bytes(int32_t vocab_size)
{
    const size_t vocab = (size_t)vocab_size + TILE;
    return 3 * to_whole_lines(vocab * 4) + to_whole_lines((vocab / MAXIMUM_BLOCK + 1) * 4) +
           to_whole_lines((vocab / SUM_BLOCK + 1) * 8) +
           2 * to_whole_lines(vocab * sizeof(candidate));
}

size_t oct_sample_workspace(int32_t vocab_size, int32_t num_threads)
{
    return thread_bytes(vocab_size) * (size_t)num_threads;
}

static scratch scratch_of(void *workspace, int32_t vocab_size, int32_t thread)
{
    const size_t vocab = (size_t)vocab_size + TILE;
    uint8_t *at = (uint8_t *)workspace + thread_bytes(vocab_size) * (size_t)thread;
    scratch s;
    s.counts = (int32_t *)at;
    at += to_whole_lines(vocab * 4);
    s.weights = (float *)at;
    at += to_whole_lines(vocab * 4);
    s.adjusted = (float *)at;
    at += to_whole_lines(vocab * 4);
    s.maxima = (float *)at;
    at += to_whole_lines((vocab / MAXIMUM_BLOCK + 1) * 4);
    s.sums = (double *)at;
    at += to_whole_lines((vocab / SUM_BLOCK + 1) * 8);
    s.candidates = (candidate *)at;
    at += to_whole_lines(vocab * sizeof(candidate));
    s.selection = (candidate *)at;
    return s;
}

/* ---- random numbers -------------------------------------------------------------------------- */

/* Philox4x32-10, the first word of its block as a number in [0, 1). */
static float uniform(const oct_draw *draw)
{
    uint32_t x[4] = {(uint32_t)draw->position, (uint32_t)draw->index, 0, 0};
    uint32_t key[2] = {(uint32_t)draw->seed, (uint32_t)(draw->seed >> 32)};
    for (int i = 0; i < 10; i++) {
        uint64_t a = 0xD2511F53ull * x[0], b = 0xCD9E8D57ull * x[2];
        x[0] = (uint32_t)(b >> 32) ^ x[1] ^ key[0];
        x[2] = (uint32_t)(a >> 32) ^ x[3] ^ key[1];
        x[1] = (uint32_t)b;
        x[3] = (uint32_t)a;
        key[0] += 0x9E3779B9u;
        key[1] += 0xBB67AE85u;
    }
    return (float)(x[0] >> 8) * 0x1p-24f;
}

/* ---- penalties ------------------------------------------------------------------------------- */

static int adjusts(const oct_draw *draw)
{
    return draw->num_biases || draw->num_banned || draw->repetition != 1.0f ||
           draw->presence != 0.0f || draw->frequency != 0.0f;
}

static void penalize(float *logits, const oct_draw *draw, int32_t *counts)
{
    const int32_t *history = draw->history, length = draw->history_length;
    if (draw->repetition != 1.0f) {
        for (int32_t i = 0; i < length; i++) {
            float *logit = logits + history[i];
            if (counts[history[i]]++ == 0)
                *logit = *logit > 0 ? *logit / draw->repetition : *logit * draw->repetition;
        }
        for (int32_t i = 0; i < length; i++)
            counts[history[i]] = 0;
    }
    if (draw->presence != 0.0f || draw->frequency != 0.0f) {
        for (int32_t i = draw->num_prompt; i < length; i++)
            counts[history[i]]++;
        for (int32_t i = draw->num_prompt; i < length; i++) {
            int32_t *count = counts + history[i];
            if (!*count)
                continue;
            logits[history[i]] -= draw->presence;
            logits[history[i]] -= draw->frequency * (float)*count;
            *count = 0;
        }
    }
}

static void adjust(float *logits, const oct_draw *draw, int32_t *counts)
{
    for (int32_t i = 0; i < draw->num_biases; i++)
        logits[draw->bias_tokens[i]] += draw->bias_values[i];
    penalize(logits, draw, counts);
    for (int32_t i = 0; i < draw->num_banned; i++)
        logits[draw->banned[i]] = -INFINITY;
}

/* ---- the best -------------------------------------------------------------------------------- */

static int32_t first_equal(const float *x, float value, const float *maxima)
{
    int32_t block = 0;
    while (maxima[block] != value)
        block++;
    int32_t i = block * MAXIMUM_BLOCK;
    while (x[i] != value)
        i++;
    return i;
}

/* Anything where one is NaN. */
ALWAYS_INLINE float largest_lane(vf v)
{
#if LANES == 16
    return _mm512_reduce_max_ps((__m512)v);
#else
    return vf_largest(v);
#endif
}

/* NaN if there is one; and the largest of each MAXIMUM_BLOCK. */
static float largest_of(const float *x, int32_t count, float *maxima)
{
    vf best = vf_set(-INFINITY);
    vi strange = {0};
    int32_t i = 0;
    for (; i + MAXIMUM_BLOCK <= count; i += MAXIMUM_BLOCK) {
        vf v[4];
        UNROLL for (int part = 0; part < 4; part++) {
            v[part] = vf_load(x + i + part * LANES);
            strange |= v[part] != v[part];
        }
        vf block = vf_max(vf_max(v[0], v[1]), vf_max(v[2], v[3]));
        maxima[i / MAXIMUM_BLOCK] = largest_lane(block);
        best = vf_max(block, best);
    }
    float largest = vf_largest(best), last = -INFINITY;
    int is_strange = vi_any(strange);
    for (int32_t k = i; k < count; k++) {
        is_strange |= x[k] != x[k];
        last = x[k] > last ? x[k] : last;
    }
    if (i < count)
        maxima[i / MAXIMUM_BLOCK] = last;
    largest = last > largest ? last : largest;
    return is_strange ? NAN : largest;
}

static int32_t count_from(const float *x, int32_t count, float bound)
{
    vi hits = {0};
    int32_t i = 0, total = 0;
    for (; i + LANES <= count; i += LANES)
        hits -= (vi)(vf_load(x + i) >= vf_set(bound));
    for (int lane = 0; lane < LANES; lane++)
        total += hits[lane];
    for (; i < count; i++)
        total += x[i] >= bound;
    return total;
}

/* What is no more than the top_k-th largest, and little less: not far below so many blocks' maxima.
 * -inf if there are not as many, or one of them is that. */
static float bound_of(const float *maxima, int32_t num_blocks, int32_t top_k, float largest)
{
    float low = largest, high = largest;
    for (int32_t i = 0; i < num_blocks; i++)
        low = maxima[i] < low ? maxima[i] : low;
    if (top_k > num_blocks || low == -INFINITY)
        return -INFINITY;
    for (int halvings = 0; halvings < 24; halvings++) {
        float middle = low + (high - low) * 0.5f;
        int32_t reached = count_from(maxima, num_blocks, middle);
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

/* The top_k largest, ids ascending; equal ones by rising id. Leaves out what is -inf. */
static int32_t take_top_k(const float *logits, int32_t count, int32_t top_k, float largest,
                          const scratch *s)
{
    const int32_t num_blocks = (count + MAXIMUM_BLOCK - 1) / MAXIMUM_BLOCK;
    const float bound = bound_of(s->maxima, num_blocks, top_k, largest);
    candidate *found = s->candidates;
    int32_t num_found = 0;
    for (int32_t block = 0; block < num_blocks; block++) {
        if (s->maxima[block] < bound)
            continue;
        int32_t first = block * MAXIMUM_BLOCK, end = first + MAXIMUM_BLOCK;
        for (int32_t id = first; id < end && id < count; id++) {
            found[num_found] = (candidate){logits[id], id};
            num_found += logits[id] >= bound && logits[id] > -INFINITY;
        }
    }
    return num_found > top_k ? keep_best(found, num_found, top_k, s->selection) : num_found;
}

/* ---- weights --------------------------------------------------------------------------------- */

static double double_sum(vf v)
{
#if LANES == 16
    const __m256 high = (__m256)_mm512_extractf64x4_pd((__m512d)v, 1);
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256((__m512)v));
    return _mm512_reduce_add_pd(_mm512_add_pd(low, _mm512_cvtps_pd(high)));
#else
    double even = 0, odd = 0;
    for (int lane = 0; lane < LANES; lane += 2) {
        even += v[lane];
        odd += v[lane + 1];
    }
    return even + odd;
#endif
}

typedef struct {
    float largest;
    float per_logit; /* what a logit adds to a weight's logarithm to base 2 */
    float least;     /* weights below it are 0 */
} weigher;

/* Where top_p leaves tokens out, min_p is applied to those it keeps. */
static weigher weigher_of(float largest, const oct_draw *draw)
{
    return (weigher){largest, 1.44269504088896341f / draw->temperature,
                     draw->top_p >= 1 ? draw->min_p : 0};
}

ALWAYS_INLINE vf weights_of(vf logits, weigher by)
{
    vf w = vf_exp2_falling((logits - by.largest) * by.per_logit);
    return vf_select(w < vf_set(by.least), (vf){0}, w);
}

/* Fewer than SUM_BLOCK; the last vector is padded with -inf. */
static vf weigh_rest(float *weights, const float *logits, int32_t count, weigher by)
{
    vf sum = {0};
    for (int32_t i = 0; i < count; i += LANES) {
        vf x = vf_set(-INFINITY);
        for (int32_t lane = 0; lane < LANES && i + lane < count; lane++)
            x[lane] = logits[i + lane];
        vf w = weights_of(x, by);
        vf_store(weights + i, w);
        sum += w;
    }
    return sum;
}

/* exp((logits - largest) / temperature), with the sum of each SUM_BLOCK; returns the whole sum. */
static double weigh_logits(float *weights, const float *logits, int32_t count, weigher by,
                           double *sums)
{
    double total = 0;
    for (int32_t first = 0; first < count; first += SUM_BLOCK) {
        vf sum = {0};
        if (first + SUM_BLOCK <= count)
            UNROLL for (int32_t i = 0; i < SUM_BLOCK; i += LANES) {
                vf w = weights_of(vf_load(logits + first + i), by);
                vf_store(weights + first + i, w);
                sum += w;
            }
        else
            sum = weigh_rest(weights + first, logits + first, count - first, by);
        const double block = double_sum(sum);
        sums[first / SUM_BLOCK] = block;
        total += block;
    }
    return total;
}

/* ---- drawing --------------------------------------------------------------------------------- */

static float as_drawn(float u)
{
    /* A uniform of 0 must not draw what stands, with no weight, before the first kept token. */
    return u > 0 ? u : 0x1p-149f;
}

/* The first place whose share of the sum up to it reaches u. */
static int32_t place_among(const candidate *kept, int32_t count, float u)
{
    double total = 0, sum = 0;
    int32_t last = 0;
    for (int32_t i = 0; i < count; i++)
        total += kept[i].value;
    for (int32_t i = 0; i < count; i++) {
        sum += kept[i].value;
        if ((float)(sum / total) >= u)
            return i;
        last = kept[i].value > 0 ? i : last;
    }
    return last;
}

/* The same over all weights; blocks that end below u are passed over by their sums. */
static int32_t place_of_all(const float *weights, const double *sums, int32_t count, double total,
                            float u)
{
    double before = 0;
    int32_t last = 0;
    for (int32_t first = 0; first < count; first += SUM_BLOCK) {
        double after = before + sums[first / SUM_BLOCK];
        int32_t end = first + SUM_BLOCK < count ? first + SUM_BLOCK : count;
        if (sums[first / SUM_BLOCK] > 0)
            last = first;
        if ((float)(after / total) >= u) {
            double sum = before;
            /* Where a block's sum was rounded up, u may be left to the next one's first weight. */
            for (int32_t i = first; i < end; i++) {
                sum += weights[i];
                if (weights[i] > 0 && (float)(sum / total) >= u)
                    return i;
            }
        }
        before = after;
    }
    int32_t place = last;
    for (int32_t i = last; i < last + SUM_BLOCK && i < count; i++)
        place = weights[i] > 0 ? i : place;
    return place;
}

static int32_t apply_min_p(candidate *kept, int32_t count, float min_p)
{
    int32_t num_kept = 0;
    for (int32_t i = 0; i < count; i++)
        if (kept[i].value >= min_p)
            kept[num_kept++] = kept[i];
    return num_kept;
}

/* logits: with a finite maximum. */
static int32_t draw_token(const float *logits, int32_t count, float largest, const oct_draw *draw,
                          const scratch *s)
{
    const float u = as_drawn(uniform(draw));
    if (draw->top_k > 0 && draw->top_k < count) {
        candidate *kept = s->candidates;
        int32_t num_kept = take_top_k(logits, count, draw->top_k, largest, s);
        double total = 0;
        for (int32_t i = 0; i < num_kept; i++) {
            kept[i].value = float_exp((kept[i].value - largest) / draw->temperature);
            total += kept[i].value;
        }
        if (draw->top_p < 1)
            num_kept = keep_nucleus(kept, num_kept, draw->top_p * total, INFINITY, s->selection);
        return kept[place_among(kept, apply_min_p(kept, num_kept, draw->min_p), u)].id;
    }
    const weigher by = weigher_of(largest, draw);
    const double total = weigh_logits(s->weights, logits, count, by, s->sums);
    if (draw->top_p >= 1)
        return place_of_all(s->weights, s->sums, count, total, u);
    candidate *kept = s->candidates;
    const int32_t num_kept = take_nucleus(s->weights, count, total, draw->top_p, kept, s->selection);
    return kept[place_among(kept, apply_min_p(kept, num_kept, draw->min_p), u)].id;
}

static void draw_one(const float *logits, int32_t count, oct_draw *draw, const scratch *s)
{
    float largest = largest_of(logits, count, s->maxima);
    draw->status = OCT_NOT_FINITE;
    if (!isfinite(largest))
        return;
    if (adjusts(draw)) {
        memcpy(s->adjusted, logits, sizeof(float) * (size_t)count);
        adjust(s->adjusted, draw, s->counts);
        logits = s->adjusted;
        largest = largest_of(logits, count, s->maxima);
        draw->status = largest == -INFINITY ? OCT_NO_CANDIDATE : OCT_NOT_FINITE;
        if (!isfinite(largest))
            return;
    }
    draw->status = OCT_DRAWN;
    draw->token = draw->temperature > 0 ? draw_token(logits, count, largest, draw, s)
                                        : first_equal(logits, largest, s->maxima);
}

void oct_sample(const float *logits, int32_t vocab_size, oct_draw *draws, int32_t num_draws,
                int32_t num_threads, void *workspace)
{
#pragma omp parallel num_threads(num_threads) if (num_draws > 1)
    {
        const scratch s = scratch_of(workspace, vocab_size, omp_get_thread_num());
#pragma omp for schedule(dynamic, 1)
        for (int32_t i = 0; i < num_draws; i++)
            draw_one(logits + (int64_t)draws[i].row * vocab_size, vocab_size, draws + i, &s);
    }
}
