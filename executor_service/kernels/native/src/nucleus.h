/* Top-p over a whole vocabulary: which weights hold a share of their sum. */
#ifndef OCTAVO_NUCLEUS_H
#define OCTAVO_NUCLEUS_H

#include "candidates.h"

/* The fewest largest of `count` weights, 1 the largest, that hold top_p of `total`, their sum, at
 * least one; equal ones by rising id. Ids rise. `found` and `spare` have room for count + TILE each.
 * Returns how many are found. */
int32_t take_nucleus(const float *weights, int32_t count, double total, double top_p,
                     candidate *found, candidate *spare);

#endif
