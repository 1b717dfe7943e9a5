/* What the native kernels offer each other and the Python side. Plain C11, prefix oct_.
 *
 * Every function computes the same bits for a row (token) whatever is computed beside it, in
 * however many threads. Nothing here allocates, and nothing is checked: the caller keeps to valid
 * indices and sizes.
 */
#ifndef OCTAVO_H
#define OCTAVO_H

#include <stddef.h>
#include <stdint.h>

/* ---- linears --------------------------------------------------------------------------------- */

enum {
    OCT_FLOAT32 = 0,
    OCT_INT8 = 1, /* groups of 32 along in_features */
    OCT_Q4_0 = 2,
    OCT_Q4_1 = 3,
    OCT_Q8_0 = 4,
    OCT_Q4_K = 5,
    OCT_Q6_K = 6,
    OCT_PARTS = 7, /* data: oct_weight[], of any other kinds, whose rows follow each other */
};

/* A weight [out_features, in_features], packed for this machine. */
typedef struct {
    int32_t kind;
    int32_t out_features;
    int32_t in_features;
    const void *data;
    const float *bias; /* [out_features] or NULL */
} oct_weight;

/* Bytes that `oct_linear` needs as scratch for up to max_rows rows; also of `oct_prepare_rows`. */
size_t oct_linear_scratch(const oct_weight *w, int32_t max_rows);

/* y[rows, out] = x[rows, in] w^T + bias. Called from one thread; opens a parallel region. */
void oct_linear(const oct_weight *w, const float *x, int32_t num_rows, float *y, void *scratch);

/* The same in pieces, for callers already inside a parallel region. All threads call
 * `oct_prepare_rows` (each does its share: quantizes activations or reorders them; it reads no rows
 * of x but [num_rows * thread / num_threads, num_rows * (thread + 1) / num_threads)), meet at a
 * barrier, then all call `oct_linear_part`. Weights of one in_features and one kind may share what
 * was prepared. Returns what oct_linear_part takes as x_prepared: x itself or scratch. */
const void *oct_prepare_rows(const oct_weight *w, const float *x, int32_t num_rows, void *scratch,
                             int32_t thread, int32_t num_threads);
void oct_linear_part(const oct_weight *w, const void *x_prepared, int32_t num_rows, float *y,
                     int32_t thread, int32_t num_threads);
/* Panels [first, last) alone, of a weight that is not OCT_PARTS. */
void oct_linear_panels(const oct_weight *w, const void *x_prepared, int32_t num_rows, float *y,
                       int32_t first, int32_t last);

/* One row of the weight as float32 [in_features], without bias: the embedding of a tied model. */
void oct_weight_row(const oct_weight *w, int32_t row, float *y);

/* y[num_rows, in]: rows `ids` of the weight. Opens a parallel region. */
void oct_embed(const oct_weight *w, const int64_t *ids, int32_t num_rows, float *y);

/* Bytes of a packed weight; to be zeroed before rows are packed, and 64-byte aligned. */
size_t oct_packed_bytes(int32_t kind, int32_t out_features, int32_t in_features);
/* Bytes of one row as `oct_pack` reads it: blocks as a GGUF file has them, or floats for float32 and
 * int8. */
size_t oct_source_bytes(int32_t kind, int32_t in_features);
/* Floats to blocks of a GGUF kind, of which in_features is a whole number. Opens a parallel region. */
void oct_quantize(int32_t kind, const float *rows, int32_t num_rows, int32_t in_features,
                  void *blocks);
/* Packs rows as output features [first, first + num_rows). Opens a parallel region. */
void oct_pack(int32_t kind, int32_t in_features, void *data, int32_t first, int32_t num_rows,
              const void *rows);

/* ---- KV pool --------------------------------------------------------------------------------- */

enum { OCT_KV_FLOAT32 = 0, OCT_KV_FLOAT16 = 1, OCT_KV_INT8 = 2, OCT_KV_BFLOAT16 = 3 };

/* The layout is in kv.h. */
typedef struct {
    uint8_t *data;
    int32_t dtype;
    int32_t num_layers;
    int32_t num_blocks;
    int32_t block_size;
    int32_t num_kv_heads;
    int32_t head_dim;
} oct_kv;

size_t oct_kv_record_bytes(const oct_kv *kv);

/* ---- one step -------------------------------------------------------------------------------- */

/* The tokens of all chunks, one after the other. Chunk i computes positions
 * [starts[i], starts[i] + lengths[i]), which its first num_blocks[i] blocks reach to. */
typedef struct {
    int32_t num_chunks;
    int32_t num_tokens;
    const int32_t *starts;     /* [num_chunks] */
    const int32_t *lengths;    /* [num_chunks] */
    const int32_t *num_blocks; /* [num_chunks] */
    const int32_t *blocks;     /* of all chunks, one after the other */
    const int32_t *token_ids;  /* [num_tokens] */
} oct_chunks;

/* The same for attention alone. */
typedef struct {
    int32_t num_chunks;
    int32_t num_tokens;
    int32_t table_width;
    const int32_t *starts;       /* [num_chunks] */
    const int32_t *lengths;      /* [num_chunks] */
    const int32_t *block_tables; /* [num_chunks, table_width] */
} oct_batch;

/* The largest step, and the threads that share it. */
typedef struct {
    int32_t max_tokens;
    int32_t max_chunks;
    int32_t max_rows; /* of logits */
    int32_t max_context;
    int32_t num_threads;
} oct_limits;

typedef struct {
    oct_weight qkv;     /* [(num_heads + 2 * num_kv_heads) * head_dim, hidden] */
    oct_weight output;  /* [hidden, num_heads * head_dim] */
    oct_weight gate_up; /* [2 * intermediate, hidden] */
    oct_weight down;    /* [hidden, intermediate] */
    const float *attention_norm;
    const float *feed_forward_norm;
    const float *q_norm; /* [head_dim], or NULL */
    const float *k_norm;
} oct_layer;

typedef struct {
    int32_t num_layers;
    int32_t hidden;
    int32_t intermediate;
    int32_t num_heads;
    int32_t num_kv_heads;
    int32_t head_dim;
    float eps;
    float scale;            /* of scores */
    const float *embedding; /* [vocab, hidden], or NULL: rows of embedding_weight */
    const float *cos;       /* [max_context, head_dim / 2] */
    const float *sin;
    const float *norm;
    oct_weight embedding_weight;
    oct_weight head; /* not OCT_PARTS */
    const oct_layer *layers;
} oct_model;

/* Bytes of workspace for steps within the limits. Its contents mean nothing between calls. */
size_t oct_step_workspace(const oct_model *model, const oct_kv *kv, const oct_limits *limits);

/* Runs the model: writes K and V, then normed hidden states [num_tokens, hidden] and logits
 * [num_rows, vocab] of the chunks' tokens in `rows`, and their maxima [num_rows, oct_num_maxima(vocab)].
 */
void oct_step(const oct_model *model, const oct_kv *kv, const oct_chunks *chunks,
              const oct_limits *limits, const int32_t *rows, int32_t num_rows, void *workspace,
              float *hidden, float *logits, float *maxima);

/* ---- single operations ----------------------------------------------------------------------- */

/* Of every later parallel region that this thread opens. */
void oct_use_threads(int32_t num_threads);

/* x: rows of [heads, width], row_stride floats apart -> y: [rows, heads, width] */
void oct_rms_norm(const float *x, int64_t rows, int64_t heads, int64_t row_stride, int32_t width,
                  const float *weight, float eps, float *y);

void oct_add_rms_norm(const float *x, float *residual, int64_t rows, int32_t width,
                      const float *weight, float eps, float *y);

/* In place. x: [rows, heads, head_dim]; cos, sin: [rows, head_dim / 2] */
void oct_rotary(float *x, int64_t rows, int64_t heads, int32_t head_dim, const float *cos,
                const float *sin);

void oct_silu_mul(const float *gate_up, int64_t rows, int32_t width, float *y);

/* k, v: rows of [num_kv_heads, head_dim], row_stride floats apart */
void oct_write_kv(const oct_kv *kv, int32_t layer, const float *k, const float *v, int64_t rows,
                  int64_t row_stride, const int64_t *slots);

size_t oct_attention_workspace(const oct_kv *kv, int32_t num_heads, const oct_limits *limits);

/* q: rows of [num_heads, head_dim], row_stride floats apart -> out: [rows, num_heads, head_dim] */
void oct_attention(const oct_kv *kv, const oct_batch *batch, const oct_limits *limits,
                   int32_t layer, int32_t num_heads, float scale, const float *q,
                   int64_t row_stride, float *out, void *workspace);

#endif
