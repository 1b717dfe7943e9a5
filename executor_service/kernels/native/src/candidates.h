/* Small selections among tokens, each with a value: a logit or a weight. */
#ifndef OCTAVO_CANDIDATES_H
#define OCTAVO_CANDIDATES_H

#include <stdint.h>

typedef struct {
    float value;
    int32_t id;
} candidate;

/* Keeps the `count` best of `total`; equal ones are better by lower id. Ids rise before and after.
 * 0 < count < total; `scratch` is as long as `all`. Returns `count`. */
int32_t keep_best(candidate *all, int32_t total, int32_t count, candidate *scratch);

/* Keeps the fewest largest weights that hold `mass`, at least one; equal ones by rising id. Ids rise
 * before and after. Those from `upper` on are known to hold less: it only saves time. `scratch` is as
 * long. Returns how many stay. */
int32_t keep_nucleus(candidate *all, int32_t count, double mass, float upper, candidate *scratch);

#endif
