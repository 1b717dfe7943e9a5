/* The largest of each block of a row of logits. The head leaves them beside the logits, found while
 * those were at hand, so draws need not read every logit again for them. */
#ifndef OCTAVO_MAXIMA_H
#define OCTAVO_MAXIMA_H

#include <stdint.h>

#include "simd.h"

#define MAXIMA_BLOCK (2 * LANES)

int32_t oct_num_maxima(int32_t count);

/* x: [count] -> maxima: [oct_num_maxima(count)], NaN for a block that has one. */
void put_maxima(const float *x, int32_t count, float *maxima);

/* NaN if there is one. */
float largest_of(const float *x, int32_t count);

/* The first place of x that is `value`, one of its maxima. */
int32_t first_equal(const float *x, const float *maxima, float value);

#endif
