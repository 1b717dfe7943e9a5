/* A whole step in one parallel region: every thread runs `run_layers`, and barriers stand where one
 * part reads what other threads wrote. Rows are shared out evenly by `share`, as
 * `oct_prepare_rows` does, so that what works on rows needs no barrier between.
 */
#include <omp.h>
#include <string.h>

#include "arena.h"
#include "attention.h"
#include "elementwise.h"
#include "kv.h"
#include "linear.h"
#include "maxima.h"
#include "octavo.h"

typedef struct {
    const oct_model *model;
    const oct_kv *kv;
    const oct_chunks *chunks;
    const int32_t *rows;
    int32_t num_rows;
    float *hidden;
    float *logits;
    float *maxima;
    oct_batch batch;
    attention_plan attention;
    int32_t *block_tables; /* [max_chunks, the blocks of max_context] */
    int32_t *positions;    /* [max_tokens] */
    int64_t *slots;        /* [max_tokens] block_id * block_size + offset */
    int32_t *counters; /* [num_layers, 2], of attention's tasks */
    void *prepared;    /* what oct_prepare_rows makes for the linear that comes next */
    float *residual;   /* [max_tokens, hidden] */
    float *normed;     /* [max_tokens, hidden] */
    float *delta;      /* [max_tokens, hidden] what a layer's half adds to the residual */
    float *qkv;        /* [max_tokens, heads of q, k and v, head_dim] */
    float *mixed;      /* [max_tokens, heads of q, head_dim] */
    float *gate_up;    /* [max_tokens, 2 * intermediate] */
    float *gated;      /* [max_tokens, intermediate] */
    float *head_rows;  /* [max_rows, hidden] */
} step;

typedef struct {
    int32_t first;
    int32_t end;
} range;

static range share(int32_t count, int32_t thread, int32_t num_threads)
{
    range part;
    part.first = (int32_t)((int64_t)count * thread / num_threads);
    part.end = (int32_t)((int64_t)count * (thread + 1) / num_threads);
    return part;
}

/* ---- workspace ------------------------------------------------------------------------------- */

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t prepared_bytes(const oct_model *model, const oct_limits *limits)
{
    size_t most = oct_linear_scratch(&model->head, limits->max_rows);
    for (int32_t i = 0; i < model->num_layers; i++) {
        const oct_layer *layer = model->layers + i;
        most = larger(most, oct_linear_scratch(&layer->qkv, limits->max_tokens));
        most = larger(most, oct_linear_scratch(&layer->output, limits->max_tokens));
        most = larger(most, oct_linear_scratch(&layer->gate_up, limits->max_tokens));
        most = larger(most, oct_linear_scratch(&layer->down, limits->max_tokens));
    }
    return most;
}

static void *lay_out(step *s, arena *from, const oct_model *model, const oct_kv *kv,
                     const oct_limits *limits)
{
    const size_t tokens = (size_t)limits->max_tokens * sizeof(float);
    const size_t hidden = (size_t)model->hidden, intermediate = (size_t)model->intermediate;
    const size_t heads = (size_t)model->num_heads, kv_heads = (size_t)model->num_kv_heads;
    const size_t head_dim = (size_t)model->head_dim;
    const size_t blocks = (size_t)((limits->max_context + kv->block_size - 1) / kv->block_size);
    s->block_tables = arena_take(from, (size_t)limits->max_chunks * blocks * sizeof(int32_t));
    s->positions = arena_take(from, (size_t)limits->max_tokens * sizeof(int32_t));
    s->slots = arena_take(from, (size_t)limits->max_tokens * sizeof(int64_t));
    s->counters = arena_take(from, (size_t)model->num_layers * 2 * sizeof(int32_t));
    s->prepared = arena_take(from, prepared_bytes(model, limits));
    s->residual = arena_take(from, tokens * hidden);
    s->normed = arena_take(from, tokens * hidden);
    s->delta = arena_take(from, tokens * hidden);
    s->qkv = arena_take(from, tokens * (heads + 2 * kv_heads) * head_dim);
    s->mixed = arena_take(from, tokens * heads * head_dim);
    s->gate_up = arena_take(from, tokens * 2 * intermediate);
    s->gated = arena_take(from, tokens * intermediate);
    s->head_rows = arena_take(from, (size_t)limits->max_rows * sizeof(float) * hidden);
    return arena_take(from, attention_bytes(kv, model->num_heads, limits));
}

size_t oct_step_workspace(const oct_model *model, const oct_kv *kv, const oct_limits *limits)
{
    step sizes;
    arena none = {NULL, 0};
    lay_out(&sizes, &none, model, kv, limits);
    return none.used;
}

/* ---- chunks ---------------------------------------------------------------------------------- */

static int32_t widest_table(const oct_chunks *chunks)
{
    int32_t width = 0;
    for (int32_t i = 0; i < chunks->num_chunks; i++)
        width = chunks->num_blocks[i] > width ? chunks->num_blocks[i] : width;
    return width;
}

/* Where each token is, and where its K and V belong. */
static void place_tokens(step *s, int32_t block_size)
{
    const oct_chunks *chunks = s->chunks;
    const int32_t width = widest_table(chunks);
    const int32_t *blocks = chunks->blocks;
    for (int32_t i = 0, token = 0; i < chunks->num_chunks; i++) {
        memcpy(s->block_tables + (size_t)i * (size_t)width, blocks,
               (size_t)chunks->num_blocks[i] * sizeof *blocks);
        for (int32_t j = 0; j < chunks->lengths[i]; j++, token++) {
            const int32_t position = chunks->starts[i] + j;
            s->positions[token] = position;
            s->slots[token] =
                (int64_t)blocks[position / block_size] * block_size + position % block_size;
        }
        blocks += chunks->num_blocks[i];
    }
    s->batch = (oct_batch){.num_chunks = chunks->num_chunks, .num_tokens = chunks->num_tokens,
                           .table_width = width, .starts = chunks->starts,
                           .lengths = chunks->lengths, .block_tables = s->block_tables};
}

/* ---- parts ----------------------------------------------------------------------------------- */

static void embed(const step *s, range tokens)
{
    const oct_model *model = s->model;
    const int64_t hidden = model->hidden;
    for (int64_t i = tokens.first; i < tokens.end; i++) {
        float *row = s->residual + i * hidden;
        int64_t token_id = s->chunks->token_ids[i];
        if (model->embedding)
            memcpy(row, model->embedding + token_id * hidden, (size_t)hidden * sizeof(float));
        else
            oct_weight_row(&model->embedding_weight, (int32_t)token_id, row);
    }
}

static void add_and_norm(const step *s, const float *weight, range tokens, float *normed)
{
    const int32_t hidden = s->model->hidden;
    for (int64_t i = tokens.first; i < tokens.end; i++)
        oct_row_add_rms_norm(s->delta + i * hidden, s->residual + i * hidden, weight,
                             s->model->eps, hidden, normed + i * hidden);
}

static void first_norm(const step *s, const float *weight, range tokens)
{
    const int32_t hidden = s->model->hidden;
    for (int64_t i = tokens.first; i < tokens.end; i++)
        oct_row_rms_norm(s->residual + i * hidden, weight, s->model->eps, hidden,
                         s->normed + i * hidden);
}

/* Norms and rotates the heads of q and k in place, and puts K and V into the pool. */
static void rotate_and_put(const step *s, int32_t index, range tokens)
{
    const oct_model *model = s->model;
    const oct_layer *layer = model->layers + index;
    const int32_t head_dim = model->head_dim, heads = model->num_heads;
    const int32_t kv_heads = model->num_kv_heads;
    for (int64_t i = tokens.first; i < tokens.end; i++) {
        float *row = s->qkv + i * (heads + 2 * kv_heads) * head_dim;
        const int64_t angles = (int64_t)s->positions[i] * (head_dim / 2);
        for (int32_t head = 0; head < heads + kv_heads; head++) {
            float *x = row + (int64_t)head * head_dim;
            if (layer->q_norm)
                oct_row_rms_norm(x, head < heads ? layer->q_norm : layer->k_norm, model->eps,
                                 head_dim, x);
            oct_head_rotary(x, model->cos + angles, model->sin + angles, head_dim);
        }
        const float *k = row + (int64_t)heads * head_dim;
        oct_kv_put(s->kv, index, s->slots[i], k, k + (int64_t)kv_heads * head_dim);
    }
}

static void activate(const step *s, range tokens)
{
    const int64_t width = s->model->intermediate;
    for (int64_t i = tokens.first; i < tokens.end; i++)
        oct_row_silu_mul(s->gate_up + i * 2 * width, s->model->intermediate, s->gated + i * width);
}

static void gather_head_rows(const step *s, range rows)
{
    const int64_t hidden = s->model->hidden;
    for (int64_t i = rows.first; i < rows.end; i++)
        memcpy(s->head_rows + i * hidden, s->hidden + s->rows[i] * hidden,
               (size_t)hidden * sizeof(float));
}

/* Ends with a barrier: all of y is there. Every thread's rows of x must be its own or behind one. */
static void project(const step *s, const oct_weight *weight, const float *x, int32_t num_rows,
                    float *y, int32_t thread, int32_t num_threads)
{
    const void *prepared = oct_prepare_rows(weight, x, num_rows, s->prepared, thread, num_threads);
#pragma omp barrier
    oct_linear_part(weight, prepared, num_rows, y, thread, num_threads);
#pragma omp barrier
}

_Static_assert(MAXIMA_BLOCK == PANEL, "a slice of panels has whole blocks");

/* As `project`, with its barriers, a slice of panels at a time: the maxima of each are found while it
 * is in the cache. It takes a draw longer to have all logits come there again. */
static void project_head(const step *s, int32_t thread, int32_t num_threads)
{
    enum { SLICE = 16 };
    const oct_weight *head = &s->model->head;
    const int64_t vocab = head->out_features, num_maxima = oct_num_maxima(head->out_features);
    const void *prepared =
        oct_prepare_rows(head, s->head_rows, s->num_rows, s->prepared, thread, num_threads);
#pragma omp barrier
    const range mine = share(num_panels(head), thread, num_threads);
    for (int32_t first = mine.first, end; first < mine.end; first = end) {
        end = first + SLICE < mine.end ? first + SLICE : mine.end;
        oct_linear_panels(head, prepared, s->num_rows, s->logits, first, end);
        const int64_t start = first * PANEL, stop = (int64_t)end * PANEL;
        const int64_t width = (stop < vocab ? stop : vocab) - start;
        for (int64_t row = 0; row < s->num_rows; row++)
            put_maxima(s->logits + row * vocab + start, (int32_t)width,
                       s->maxima + row * num_maxima + first);
    }
#pragma omp barrier
}

/* ---- the step -------------------------------------------------------------------------------- */

static void run_layer(const step *s, int32_t index, range tokens, int32_t thread,
                      int32_t num_threads)
{
    const oct_layer *layer = s->model->layers + index;
    const int32_t num_tokens = s->chunks->num_tokens;
    const int64_t row = (s->model->num_heads + 2 * s->model->num_kv_heads) * s->model->head_dim;
    if (index == 0)
        first_norm(s, layer->attention_norm, tokens);
    else
        add_and_norm(s, layer->attention_norm, tokens, s->normed);
    project(s, &layer->qkv, s->normed, num_tokens, s->qkv, thread, num_threads);
    rotate_and_put(s, index, tokens);
#pragma omp barrier
    attention_run(&s->attention, index, s->qkv, row, s->mixed, s->counters + 2 * index, thread);
#pragma omp barrier
    project(s, &layer->output, s->mixed, num_tokens, s->delta, thread, num_threads);
    add_and_norm(s, layer->feed_forward_norm, tokens, s->normed);
    project(s, &layer->gate_up, s->normed, num_tokens, s->gate_up, thread, num_threads);
    activate(s, tokens);
    project(s, &layer->down, s->gated, num_tokens, s->delta, thread, num_threads);
}

static void run(const step *s, int32_t thread, int32_t num_threads)
{
    const range tokens = share(s->chunks->num_tokens, thread, num_threads);
    embed(s, tokens);
    for (int32_t i = 0; i < s->model->num_layers; i++)
        run_layer(s, i, tokens, thread, num_threads);
    add_and_norm(s, s->model->norm, tokens, s->hidden);
    if (!s->num_rows)
        return;
#pragma omp barrier
    gather_head_rows(s, share(s->num_rows, thread, num_threads));
    project_head(s, thread, num_threads);
}

void oct_step(const oct_model *model, const oct_kv *kv, const oct_chunks *chunks,
              const oct_limits *limits, const int32_t *rows, int32_t num_rows, void *workspace,
              float *hidden, float *logits, float *maxima)
{
    step s = {.model = model, .kv = kv, .chunks = chunks, .rows = rows, .num_rows = num_rows,
              .hidden = hidden, .logits = logits, .maxima = maxima};
    arena memory = {workspace, 0};
    void *attention = lay_out(&s, &memory, model, kv, limits);
    place_tokens(&s, kv->block_size);
    attention_begin(&s.attention, kv, &s.batch, limits, model->num_heads, model->scale, attention);
    memset(s.counters, 0, (size_t)model->num_layers * 2 * sizeof(int32_t));
#pragma omp parallel num_threads(limits->num_threads)
    run(&s, omp_get_thread_num(), omp_get_num_threads());
}
