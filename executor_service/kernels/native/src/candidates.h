/* Small selections among tokens, each with a value: a logit or a weight. */
#ifndef OCTAVO_CANDIDATES_H
#define OCTAVO_CANDIDATES_H

#include <stdint.h>

typedef struct {
    float value;
    int32_t id;
} candidate;

/* Brings the `count` best of `total` to the front, in any order, and returns the least value among
 * them. Equal ones are better by lower id. 0 < count < total. */
float keep_best(candidate *all, int32_t total, int32_t count);

void sort_by_id(candidate *all, int32_t count);

/* Keeps the fewest largest weights that hold `mass`, at least one; equal ones by rising id. Ids rise
 * before and after. `scratch` is as long. Returns how many stay. */
int32_t keep_nucleus(candidate *all, int32_t count, double mass, candidate *scratch);

#endif
