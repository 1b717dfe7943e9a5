/* Top-p over a whole vocabulary: which weights hold a share of their sum. */
#ifndef OCTAVO_NUCLEUS_H
#define OCTAVO_NUCLEUS_H

#include "candidates.h"
#include "token_weights.h"

/* The fewest largest weights that hold top_p of their sum, at least one; equal ones by rising id.
 * Ids rise. `found` and `spare` have room for the vocabulary + TILE each. Returns how many are
 * found. */
int32_t take_nucleus(const token_weights *w, double top_p, candidate *found, candidate *spare);

#endif
