/* What the kinds of weights unpack for products by matrix tiles.
 */
#ifndef OCTAVO_LINEAR_AMX_H
#define OCTAVO_LINEAR_AMX_H

#include "amx.h"
#include "linear.h"

#if AMX

#define AMX_RUN 48              /* groups at a time, at most: they stay in the first-level cache */
#define WEIGHT_ROWS (GROUP / 4) /* of a tile: four in_features of 16 output features each */
#define WEIGHT_BYTES (WEIGHT_ROWS * AMX_ROW_BYTES)

/* ---- activations ----------------------------------------------------------------------------- */

/* Behind quantized rows, padded to whole tiles, they are once more as tiles: for 16 rows at a time
 * and each group [16][GROUP] bytes, and behind all of these the scales of the 16 rows, then their
 * scaled sums. */
#define ACT_TILE_BYTES (AMX_ROWS * GROUP)
#define ACT_TILE_SCALES (2 * AMX_ROWS)

ALWAYS_INLINE size_t padded_rows(int32_t num_rows)
{
    return ((size_t)num_rows + AMX_ROWS - 1) / AMX_ROWS * AMX_ROWS;
}

ALWAYS_INLINE size_t act_tile_index(act_rows x, int32_t row, int32_t g)
{
    return (size_t)(row / AMX_ROWS) * (size_t)(x.in_features / GROUP) + (size_t)g;
}

ALWAYS_INLINE const uint8_t *act_tile(act_rows x, int32_t row, int32_t g)
{
    return x.base + padded_rows(x.num_rows) * x.stride + act_tile_index(x, row, g) * ACT_TILE_BYTES;
}

ALWAYS_INLINE const float *act_tile_scales(act_rows x, int32_t row, int32_t g)
{
    size_t of_rows = padded_rows(x.num_rows) * (x.stride + (size_t)x.in_features);
    return (const float *)(x.base + of_rows) + act_tile_index(x, row, g) * ACT_TILE_SCALES;
}

/* Bytes of all of it. */
ALWAYS_INLINE size_t tiled_bytes(int32_t in_features, int32_t num_rows)
{
    size_t k = (size_t)in_features, scales = k / GROUP * 2 * sizeof(float);
    return padded_rows(num_rows) * (act_stride(in_features) + k + scales);
}

/* Puts quantized rows [first, last) into their tiles. */
void fill_tiles(act_rows x, int32_t first, int32_t last);

/* ---- weights --------------------------------------------------------------------------------- */

/* Groups [start, end) of one vector of a panel's output features. */
typedef struct {
    uint8_t bytes[AMX_RUN][WEIGHT_BYTES]; /* signed; first, as tiles are slow where rows are not lines */
    vf scale[AMX_RUN];
    vf minimum[AMX_RUN]; /* of kinds that have some */
    vf factor;           /* of complete sums */
    int32_t panel, vector;
    int32_t start, end;
    const uint8_t *ahead; /* weights to ask memory for meanwhile */
    int32_t ahead_lines;  /* of 64 bytes, at each group */
} amx_run;

/* Fill in `bytes` to `factor`. */
void unpack_int8(const oct_weight *w, amx_run *run);
void unpack_q4(const oct_weight *w, amx_run *run);

/* Of num_rows rows the first ones that tiles multiply faster; of several kinds at once, those that
 * they may for one. */
int32_t amx_rows(int32_t kind, int32_t num_rows);
void multiply_amx(panel_share share, act_rows x, int32_t num_rows);

#endif
#endif
