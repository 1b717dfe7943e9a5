/* Drawing tokens from logits. Reference: runner/sampler.py and runner/penalties.py. */
#ifndef OCTAVO_SAMPLE_H
#define OCTAVO_SAMPLE_H

#include <stddef.h>
#include <stdint.h>

enum { OCT_DRAWN = 0, OCT_NOT_FINITE = 1, OCT_NO_CANDIDATE = 2 };

/* One token to draw; several may share a row. */
typedef struct {
    uint64_t seed; /* Philox key; the counter is (position, index, 0, 0) */
    double top_p;
    const int32_t *history; /* prompt, then outputs */
    const int32_t *bias_tokens;
    const float *bias_values;
    const int32_t *banned;
    int32_t history_length;
    int32_t num_prompt;
    int32_t num_biases;
    int32_t num_banned;
    int32_t row;
    int32_t position;
    int32_t index;
    int32_t top_k;     /* 0: off */
    float temperature; /* 0: the best token */
    float min_p;
    float repetition;
    float presence;
    float frequency;
    int32_t token;  /* what is drawn */
    int32_t status; /* one of the above */
} oct_draw;

size_t oct_sample_workspace(int32_t vocab_size, int32_t num_threads);

/* logits: [num_rows, vocab_size], not changed; maxima: of each row's blocks, as the head leaves them, or
 * NULL. The workspace must be zeroed before its first use and is left so that it need not be again. */
void oct_sample(const float *logits, const float *maxima, int32_t vocab_size, oct_draw *draws,
                int32_t num_draws, int32_t num_threads, void *workspace);

#endif
