/* The logits of a vocabulary that are no less than a bound, with their ids. */
#ifndef OCTAVO_LOGIT_LIST_H
#define OCTAVO_LOGIT_LIST_H

#include "candidates.h"
#include "maxima.h"

/* A vocabulary's logits. */
typedef struct {
    const float *row;
    int32_t count;
    const float *maxima; /* [oct_num_maxima(count)] */
    float largest;       /* of all; NaN if there is one */
} vocabulary;

/* By rising id, apart. */
typedef struct {
    float *values;
    int32_t *ids;
    int32_t count;
} logit_list;

/* Over memory with room for the vocabulary + TILE candidates. Leaves out what is -inf. */
logit_list logits_from(vocabulary logits, float bound, candidate *room);

/* Those of the list whose values are no less than a bound; returns how many. `found` has room for one
 * more. */
int32_t candidates_from(const logit_list *list, float bound, candidate *found);

#endif
