/* Weights of tokens, unnormalized probabilities: exp((logit - largest) / temperature), 1 the largest.
 *
 * They are summed in blocks and computed anew where one is looked at: a vocabulary of them takes
 * longer to write and to read than the few blocks of it that a draw reads. */
#ifndef OCTAVO_TOKEN_WEIGHTS_H
#define OCTAVO_TOKEN_WEIGHTS_H

#include "logit_list.h"

/* Summed in lanes of float; the blocks' sums in double. */
enum { MAXIMA_PER_SUM = 4, WEIGHT_BLOCK = MAXIMA_PER_SUM * MAXIMA_BLOCK };

typedef struct {
    vocabulary logits;
    float per_logit; /* what a logit adds to a weight's logarithm to base 2 */
    float least;     /* weights below it are 0 */
    double total;
    float *tops;  /* [num_weight_blocks + TILE] the largest weight of a block */
    float *rests; /* [num_weight_blocks + TILE] what the others of it add up to */
    double *sums; /* [num_weight_blocks] */
} token_weights;

ALWAYS_INLINE int32_t num_weight_blocks(int32_t count)
{
    return (count + WEIGHT_BLOCK - 1) / WEIGHT_BLOCK;
}

/* Fills in total, tops, rests and sums from all else; tops and rests are 0 up to a whole vector. */
void sum_weights(token_weights *w);

/* Logits to their weights, in place; there is room for TILE more. */
void weigh_logits(const token_weights *w, float *logits, int32_t count);

/* A block's weights [WEIGHT_BLOCK], 0 beyond the last. */
void block_weights(const token_weights *w, int32_t block, float *weights);

#endif
