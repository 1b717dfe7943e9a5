/* One split for the rows of a unit as attention_parts.c computes it, and the memory that it takes. */
#ifndef OCTAVO_PARTS_SPLIT_H
#define OCTAVO_PARTS_SPLIT_H

#include "attention_parts.h"
#include "parts_product.h"

#if AMX

enum {
    SPLIT_STEPS = SPLIT / PAIRED,
    ROW_TILE_BYTES = SPLIT * AMX_ROWS * 4, /* of scores, or of weights in two parts */
};

/* One split for the rows of a unit, and what is made of a thread's memory. */
typedef struct {
    const attention_unit *unit;
    const kv_view *view;
    int32_t group;
    int32_t first; /* position */
    int32_t slots; /* of the split, that any row sees */
    int32_t rows;
    int32_t row_tiles;
    int32_t first_row; /* that sees any of them */
    uint8_t *queries;  /* [row tiles][query steps][2] tiles */
    /* [row tiles]: scores, [SPLIT_TILES] tiles; in their place weights, [SPLIT_STEPS][2] */
    uint8_t *weights;
    uint8_t *keys;     /* [query steps][parts], of TILE slots */
    uint8_t *values;   /* [SPLIT_STEPS][parts], of TILE columns */
    float *scales;     /* [2][SPLIT] of K and of V */
    uint8_t *gathered; /* slots */
    kv_ahead *ahead;
} parts_split;

static int32_t query_steps(const oct_kv *kv)
{
    return ceil_div(kv->head_dim, PAIRED);
}

static size_t query_bytes(const oct_kv *kv)
{
    return (size_t)query_steps(kv) * PARTS_BYTES;
}

static parts_split split_at(const attention_unit *unit, const kv_view *view, int32_t group,
                            int32_t first, kv_ahead *ahead, parts_scratch scratch)
{
    parts_split s = {.unit = unit, .view = view, .group = group, .first = first, .ahead = ahead};
    const size_t query = query_bytes(view->kv);
    s.slots = least(SPLIT, view->end - first);
    s.rows = unit->num_tokens * group;
    s.row_tiles = ceil_div(s.rows, AMX_ROWS);
    s.first_row = first_seeing(unit, group, first);
    s.queries = scratch.tiles;
    s.weights = s.queries + (size_t)s.row_tiles * query;
    s.keys = s.weights + s.row_tiles * ROW_TILE_BYTES;
    s.values = s.keys + query;
    s.scales = (float *)(s.values + SPLIT_STEPS * PARTS_BYTES);
    s.gathered = scratch.slots;
    return s;
}

#endif
#endif
