/* Top-k over a whole vocabulary. */
#ifndef OCTAVO_TOP_K_H
#define OCTAVO_TOP_K_H

#include "logit_list.h"

/* The top_k largest logits, ids rising; of equal ones those with lower ids. Leaves out what is -inf.
 * `found` and `spare` have room for the vocabulary + TILE each. Returns how many are found. */
int32_t take_top_k(vocabulary logits, int32_t top_k, candidate *found, candidate *spare);

#endif
