/* A split: SPLIT positions of a sequence, which the rows of a unit attend to at a time. Rows are
 * (token, query head of the group), token by token.
 */
#ifndef OCTAVO_ATTENTION_SPLIT_H
#define OCTAVO_ATTENTION_SPLIT_H

#include "attention.h"
#include "kv.h"

enum { SPLIT = 128, SPLIT_TILES = SPLIT / TILE };
_Static_assert((int)SPLIT_TILES == (int)KV_TILES_AHEAD, "a split is what is asked for ahead");

/* What one split gives for the rows of a unit. */
typedef struct {
    float *mixed;  /* [rows, width] values, weighted by exp(score - maximum) */
    float *maxima; /* [rows] */
    float *sums;   /* [rows] of the weights */
} partial_result;

ALWAYS_INLINE int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

ALWAYS_INLINE int32_t ceil_div(int32_t a, int32_t b)
{
    return (a + b - 1) / b;
}

/* Of the split at `first`. */
ALWAYS_INLINE int32_t split_tiles(const kv_view *view, int32_t first)
{
    return ceil_div(least(SPLIT, view->end - first), TILE);
}

/* Positions of the split that a row sees. */
ALWAYS_INLINE int32_t seen(const attention_unit *unit, int32_t group, int32_t row, int32_t first)
{
    int32_t count = unit->position + row / group + 1 - first;
    return count < 0 ? 0 : least(count, SPLIT);
}

/* The first row that sees a position; `unit` has one. */
ALWAYS_INLINE int32_t first_seeing(const attention_unit *unit, int32_t group, int32_t position)
{
    return position > unit->position ? (position - unit->position) * group : 0;
}

#endif
