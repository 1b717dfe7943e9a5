/* Float32 weights: a panel is [in_features][PANEL].
 *
 * Rows are taken in blocks, and in_features in runs, so that the activations of a run stay in the
 * second-level cache and its part of a panel in the first. Between runs the sums wait in y. A sum
 * is one chain of fused multiply-adds over in_features, however it was cut.
 */
#include "linear.h"

#define ROWS (LANES == 16 ? 12 : 6) /* of a tile */
#define RUN 256                     /* in_features at a time when rows are many */
#define BLOCK 192                   /* rows at a time */
#define FEW 24                      /* up to here a panel is read once, as it comes from memory */

/* A tile's part of one run: rows [row, row + rows) times in_features [start, end). */
typedef struct {
    panel_share share;
    const float *x;
    int32_t row, start, end;
} run;

ALWAYS_INLINE void add_products(const int rows, run r, const float *panel, vf sums[][2])
{
    size_t in = (size_t)r.share.weight->in_features;
    const float *x = r.x + (size_t)r.row * in;
    for (int32_t k = r.start; k < r.end; k++) {
        const float *w = panel + (size_t)k * PANEL;
        prefetch_ahead((const uint8_t *)w, PANEL * 4);
        vf left = vf_load(w), right = vf_load(w + LANES);
        UNROLL for (int i = 0; i < rows; i++) {
            vf value = vf_set(x[(size_t)i * in + (size_t)k]);
            sums[i][0] = vf_fma(value, left, sums[i][0]);
            sums[i][1] = vf_fma(value, right, sums[i][1]);
        }
    }
}

ALWAYS_INLINE void multiply_tile(const int rows, run r, int32_t panel)
{
    int32_t in = r.share.weight->in_features;
    const float *data = r.share.weight->data;
    vf sums[ROWS][2];
    if (r.start == 0) {
        UNROLL for (int i = 0; i < rows; i++)
            sums[i][0] = sums[i][1] = (vf){0};
    } else {
        UNROLL for (int i = 0; i < rows; i++)
            kept_sums(r.share, panel, r.row + i, sums[i]);
    }
    add_products(rows, r, data + (size_t)panel * PANEL * (size_t)in, sums);
    UNROLL for (int i = 0; i < rows; i++) {
        if (r.end == in)
            put_sums(r.share, panel, r.row + i, sums[i]);
        else
            keep_sums(r.share, panel, r.row + i, sums[i]);
    }
}

static void multiply_rows(int32_t rows, run r, int32_t panel)
{
    switch (rows) {
        TILE_CASES_6(multiply_tile, r, panel)
#if LANES == 16
        TILE_CASE(7, multiply_tile, r, panel)
        TILE_CASE(8, multiply_tile, r, panel)
        TILE_CASE(9, multiply_tile, r, panel)
        TILE_CASE(10, multiply_tile, r, panel)
        TILE_CASE(11, multiply_tile, r, panel)
        TILE_CASE(12, multiply_tile, r, panel)
#endif
    }
}

/* Rows [first, last) times in_features [start, end), panel after panel. */
static void multiply_run(run r, int32_t first, int32_t last)
{
    for (int32_t panel = r.share.first; panel < r.share.last; panel++)
        for (int32_t row = first, rows; row < last; row += rows) {
            rows = tile_rows(last - row, ROWS);
            r.row = row;
            multiply_rows(rows, r, panel);
        }
}

void multiply_float32(panel_share share, const float *x, int32_t num_rows)
{
    int32_t in = share.weight->in_features, length = num_rows <= FEW ? in : RUN;
    for (int32_t first = 0; first < num_rows; first += BLOCK) {
        int32_t last = first + BLOCK < num_rows ? first + BLOCK : num_rows;
        for (int32_t start = 0; start < in; start += length) {
            int32_t end = start + length < in ? start + length : in;
            run r = {.share = share, .x = x, .start = start, .end = end};
            multiply_run(r, first, last);
        }
    }
}
