#include "sample.h"

#include <math.h>
#include <omp.h>
#include <string.h>

#include "arena.h"
#include "nucleus.h"
#include "penalties.h"
#include "top_k.h"

/* Of one thread. */
typedef struct {
    float *adjusted;        /* [vocab] */
    float *maxima;          /* [oct_num_maxima(vocab)] */
    float *tops;            /* [num_weight_blocks(vocab) + TILE] */
    float *rests;           /* the same */
    double *sums;           /* [num_weight_blocks(vocab)] */
    candidate *candidates;  /* [vocab] */
    candidate *spare;       /* [vocab] */
    int32_t *counts;        /* [vocab] all 0 between draws */
} scratch;

static void lay_out_scratch(scratch *s, arena *from, int32_t vocab_size)
{
    const size_t vocab = (size_t)vocab_size + TILE;
    const size_t blocks = (size_t)num_weight_blocks(vocab_size) + TILE;
    s->counts = arena_take(from, vocab * sizeof(int32_t));
    s->adjusted = arena_take(from, vocab * sizeof(float));
    s->maxima = arena_take(from, (size_t)oct_num_maxima(vocab_size) * sizeof(float));
    s->tops = arena_take(from, blocks * sizeof(float));
    s->rests = arena_take(from, blocks * sizeof(float));
    s->sums = arena_take(from, blocks * sizeof(double));
    s->candidates = arena_take(from, vocab * sizeof(candidate));
    s->spare = arena_take(from, vocab * sizeof(candidate));
}

static size_t thread_bytes(int32_t vocab_size)
{
    scratch sizes;
    arena none = {NULL, 0};
    lay_out_scratch(&sizes, &none, vocab_size);
    return none.used;
}

size_t oct_sample_workspace(int32_t vocab_size, int32_t num_threads)
{
    return thread_bytes(vocab_size) * (size_t)num_threads;
}

static scratch scratch_of(void *workspace, int32_t vocab_size, int32_t thread)
{
    scratch s;
    arena memory = {(uint8_t *)workspace + thread_bytes(vocab_size) * (size_t)thread, 0};
    lay_out_scratch(&s, &memory, vocab_size);
    return s;
}

static vocabulary with_known_maxima(const float *row, int32_t count, const float *maxima)
{
    return (vocabulary){row, count, maxima, largest_of(maxima, oct_num_maxima(count))};
}

static vocabulary with_maxima(const float *row, int32_t count, float *maxima)
{
    put_maxima(row, count, maxima);
    return with_known_maxima(row, count, maxima);
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

/* ---- drawing --------------------------------------------------------------------------------- */

static float as_drawn(float u)
{
    /* A uniform of 0 must not draw what stands, with no weight, before the first kept token. */
    return u > 0 ? u : 0x1p-149f;
}

/* A share u of all that is summed up. */
typedef struct {
    double total;
    float u;
    double almost; /* sums below it are less than that share; dividing takes longer than comparing */
} quantile;

static quantile quantile_of(double total, float u)
{
    return (quantile){total, u, total * u * (1 - 1e-6)};
}

ALWAYS_INLINE int is_reached(quantile q, double sum)
{
    return sum >= q.almost && (float)(sum / q.total) >= q.u;
}

/* The first place whose share of the sum up to it reaches u. */
static int32_t place_among(const candidate *kept, int32_t count, float u)
{
    double total = 0, sum = 0;
    int32_t last = 0;
    for (int32_t i = 0; i < count; i++)
        total += kept[i].value;
    const quantile q = quantile_of(total, u);
    for (int32_t i = 0; i < count; i++) {
        sum += kept[i].value;
        if (is_reached(q, sum))
            return i;
        last = kept[i].value > 0 ? i : last;
    }
    return last;
}

/* The first place of a block where the sum, `before` in front of it, reaches the quantile; -1 where
 * only the block's own sum, which is rounded in another way, does. */
static int32_t place_in_block(const token_weights *w, int32_t block, double before, quantile q)
{
    float weights[WEIGHT_BLOCK];
    block_weights(w, block, weights);
    for (int32_t i = 0; i < WEIGHT_BLOCK; i++) {
        before += weights[i];
        if (weights[i] > 0 && is_reached(q, before))
            return block * WEIGHT_BLOCK + i;
    }
    return -1;
}

static int32_t last_of_block(const token_weights *w, int32_t block)
{
    float weights[WEIGHT_BLOCK];
    block_weights(w, block, weights);
    int32_t last = WEIGHT_BLOCK - 1;
    while (!(weights[last] > 0))
        last--;
    return block * WEIGHT_BLOCK + last;
}

/* `place_among` over all weights; blocks that end below u are passed over by their sums. */
static int32_t place_of_all(const token_weights *w, float u)
{
    const quantile q = quantile_of(w->total, u);
    double before = 0;
    int32_t last = 0;
    for (int32_t block = 0; block < num_weight_blocks(w->logits.count); block++) {
        const double after = before + w->sums[block];
        if (w->sums[block] > 0)
            last = block;
        if (is_reached(q, after)) {
            const int32_t place = place_in_block(w, block, before, q);
            if (place >= 0)
                return place;
        }
        before = after;
    }
    return last_of_block(w, last);
}

static int32_t apply_min_p(candidate *kept, int32_t count, float min_p)
{
    int32_t num_kept = 0;
    for (int32_t i = 0; i < count; i++)
        if (kept[i].value >= min_p)
            kept[num_kept++] = kept[i];
    return num_kept;
}

/* Among the top_k largest. */
static int32_t draw_of_top_k(const oct_draw *draw, vocabulary logits, float u, const scratch *s)
{
    candidate *kept = s->candidates;
    int32_t num_kept = take_top_k(logits, draw->top_k, kept, s->spare);
    double total = 0;
    for (int32_t i = 0; i < num_kept; i++) {
        kept[i].value = float_exp((kept[i].value - logits.largest) / draw->temperature);
        total += kept[i].value;
    }
    if (draw->top_p < 1)
        num_kept = keep_nucleus(kept, num_kept, draw->top_p * total, INFINITY, s->spare);
    return kept[place_among(kept, apply_min_p(kept, num_kept, draw->min_p), u)].id;
}

static int32_t draw_token(const oct_draw *draw, vocabulary logits, const scratch *s)
{
    const float u = as_drawn(uniform(draw));
    if (draw->top_k > 0 && draw->top_k < logits.count)
        return draw_of_top_k(draw, logits, u, s);
    token_weights w = {.logits = logits,
                       .per_logit = 1.44269504088896341f / draw->temperature,
                       /* Where top_p leaves tokens out, min_p is applied to those it keeps. */
                       .least = draw->top_p >= 1 ? draw->min_p : 0,
                       .tops = s->tops, .rests = s->rests, .sums = s->sums};
    sum_weights(&w);
    if (draw->top_p >= 1)
        return place_of_all(&w, u);
    candidate *kept = s->candidates;
    const int32_t num_kept = take_nucleus(&w, draw->top_p, kept, s->spare);
    return kept[place_among(kept, apply_min_p(kept, num_kept, draw->min_p), u)].id;
}

static vocabulary adjusted_logits(const oct_draw *draw, const float *logits, int32_t count,
                                  const scratch *s)
{
    memcpy(s->adjusted, logits, sizeof(float) * (size_t)count);
    adjust(s->adjusted, draw, s->counts);
    return with_maxima(s->adjusted, count, s->maxima);
}

/* maxima: of the row, or NULL. */
static void draw_one(oct_draw *draw, const float *row, int32_t count, const float *maxima,
                     const scratch *s)
{
    vocabulary logits = maxima ? with_known_maxima(row, count, maxima)
                               : with_maxima(row, count, s->maxima);
    draw->status = OCT_NOT_FINITE;
    if (!isfinite(logits.largest))
        return;
    if (adjusts(draw)) {
        logits = adjusted_logits(draw, row, count, s);
        draw->status = logits.largest == -INFINITY ? OCT_NO_CANDIDATE : OCT_NOT_FINITE;
        if (!isfinite(logits.largest))
            return;
    }
    draw->status = OCT_DRAWN;
    draw->token = draw->temperature > 0 ? draw_token(draw, logits, s)
                                        : first_equal(logits.row, logits.maxima, logits.largest);
}

void oct_sample(const float *logits, const float *maxima, int32_t vocab_size, oct_draw *draws,
                int32_t num_draws, int32_t num_threads, void *workspace)
{
    const int64_t width = oct_num_maxima(vocab_size);
#pragma omp parallel num_threads(num_threads) if (num_draws > 1)
    {
        const scratch s = scratch_of(workspace, vocab_size, omp_get_thread_num());
#pragma omp for schedule(dynamic, 1)
        for (int32_t i = 0; i < num_draws; i++) {
            const int64_t row = draws[i].row;
            draw_one(draws + i, logits + row * vocab_size, vocab_size,
                     maxima ? maxima + row * width : NULL, &s);
        }
    }
}
