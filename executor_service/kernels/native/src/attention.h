/* Paged attention of one layer over all chunks of a step. Reference: attention in reference.py.
 *
 * The same arithmetic, in the same order, whatever else is in the step: a score is one chain of
 * fused additions over head_dim; softmax runs over splits of SPLIT positions counted from the
 * sequence's start, each with its own maximum (FlashAttention-2, section 3.1; Flash-Decoding);
 * splits are merged in their order. Which thread computes what changes nothing.
 */
#ifndef OCTAVO_ATTENTION_H
#define OCTAVO_ATTENTION_H

#include "octavo.h"

/* Queries of neighbouring tokens, or of tokens of several chunks that begin with the same blocks,
 * which share a KV head: what one thread computes at a time. */
typedef struct {
    int32_t chunk; /* whose block table is read */
    int32_t token; /* the first one, in the batch, if there are no members */
    int32_t num_tokens;
    int32_t position;     /* of the first token */
    int32_t end;          /* of the positions that are read */
    int32_t *members;     /* [num_tokens] of several chunks, which see all of these positions */
    int32_t shared;       /* the unit that computes the splits before first_split, or -1 */
    int32_t shared_token; /* which of its tokens is this unit's one */
    int32_t first_split;
    int32_t num_partials; /* 0: merged on the way and complete */
    int64_t partial;      /* the first one, in the plan's partials */
} attention_unit;

typedef struct {
    int32_t unit;
    int32_t first, end; /* splits */
    int32_t completes;  /* the unit: others have ended */
    int64_t cost;       /* against that of others */
} attention_task;

/* What all layers of a step share. */
typedef struct {
    const oct_kv *kv;
    const oct_batch *batch;
    int32_t num_heads;
    float scale;
    int32_t num_units;
    int32_t num_tasks;
    int32_t num_last;
    attention_unit *units;
    attention_task *tasks;      /* the longest first, so that threads end together */
    attention_task *last_tasks; /* of a second pass: of what shares a prefix, and of merging alone */
    int32_t *members;
    float *partials;
    int64_t partial_floats; /* of it that units have */
    float *scratch; /* [num_threads] */
    size_t scratch_floats;
} attention_plan;

/* Bytes that hold a plan's arrays for steps within the limits. */
size_t attention_bytes(const oct_kv *kv, int32_t num_heads, const oct_limits *limits);

/* Lays out the tasks of a step in `memory`. */
void attention_begin(attention_plan *plan, const oct_kv *kv, const oct_batch *batch,
                     const oct_limits *limits, int32_t num_heads, float scale, void *memory);

/* Called by every thread of a team. q and out: [num_tokens] rows of num_heads * head_dim floats.
 * `counters`: two integers that are 0, for this call alone. Ends without a barrier. */
void attention_run(const attention_plan *plan, int32_t layer, const float *q, int64_t q_stride,
                   float *out, int32_t *counters, int32_t thread);

#endif
