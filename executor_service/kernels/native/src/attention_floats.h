/* Attention of one split on vectors of floats, at every machine level and for every pool. Reference:
 * attention in reference.py.
 */
#ifndef OCTAVO_ATTENTION_FLOATS_H
#define OCTAVO_ATTENTION_FLOATS_H

#include "attention_split.h"

/* Memory that a thread lends. */
typedef struct {
    const float *queries; /* [rows, head_dim], scaled */
    float *scores;        /* [rows, SPLIT] */
    uint8_t *slots;       /* [SPLIT_TILES] of gathered slots */
} floats_scratch;

/* `ahead`: what is read next, asked for meanwhile. */
void floats_attend(const attention_unit *unit, const kv_view *view, int32_t group, int32_t split,
                   kv_ahead *ahead, floats_scratch scratch, partial_result result);

#endif
