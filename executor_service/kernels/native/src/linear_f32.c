/* Float32 weights: a panel is [in_features][PANEL].
 *
 * Some rows take about as long to multiply as their weights take to come from memory, so neither may
 * wait for the other. A share's panels are read in order, a run of in_features at a time. The rows
 * are cut into tiles, and each tile asks for its part of the run that comes next: one tile of 12
 * rows was measured to take the sum of both times, two of 6 little more than the longer. Between
 * runs the sums wait in y. A sum is one chain of fused multiply-adds over in_features, however it
 * was cut.
 */
#include "linear.h"

enum {
    ROWS = LANES == 16 ? 12 : 6,       /* of a tile, at most */
    ALONE = LANES == 16 ? 3 : ROWS,    /* rows that are one tile */
    RUN = 64,                          /* in_features at a time */
    BLOCK = 96,                        /* rows at a time, which the second-level cache holds */
    WIDTH = PANEL * (int)sizeof(float), /* bytes of a panel for one of in_features */
    AHEAD_ALONE = 2048,                /* bytes: how far ahead one tile asks */
};

/* A tile's part of one run: `rows` from `row` on times in_features [start, end) of a panel. */
typedef struct {
    panel_share share;
    const float *x;
    int32_t panel, row, start, end;
    const uint8_t *ahead; /* what it asks for, `pace` bytes with each of in_features */
    int32_t pace;
} float32_run;

/* Where the panel's weights for r.start are. */
ALWAYS_INLINE const float *run_weights(float32_run r)
{
    size_t in = (size_t)r.share.weight->in_features;
    return (const float *)r.share.weight->data + ((size_t)r.panel * in + (size_t)r.start) * PANEL;
}

/* Into the second-level cache. In the first, requests that wait for memory keep others out. */
ALWAYS_INLINE void ask_for(const uint8_t *ahead, int32_t bytes)
{
    __builtin_prefetch(ahead, 0, 2);
    if (bytes > 64)
        __builtin_prefetch(ahead + 64, 0, 2);
}

ALWAYS_INLINE void add_products(const int rows, float32_run r, vf sums[][2])
{
    size_t in = (size_t)r.share.weight->in_features;
    const float *w = run_weights(r), *x = r.x + (size_t)r.row * in;
    const uint8_t *ahead = r.ahead;
    for (int32_t k = r.start; k < r.end; k++) {
        ask_for(ahead, r.pace);
        vf left = vf_load(w), right = vf_load(w + LANES);
        UNROLL for (int i = 0; i < rows; i++) {
            vf value = vf_set(x[(size_t)i * in + (size_t)k]);
            sums[i][0] = vf_fma(value, left, sums[i][0]);
            sums[i][1] = vf_fma(value, right, sums[i][1]);
        }
        w += PANEL;
        ahead += r.pace;
    }
}

ALWAYS_INLINE void float32_tile(const int rows, float32_run r)
{
    vf sums[ROWS][2];
    if (r.start == 0) {
        UNROLL for (int i = 0; i < rows; i++)
            sums[i][0] = sums[i][1] = (vf){0};
    } else {
        UNROLL for (int i = 0; i < rows; i++)
            kept_sums(r.share, r.panel, r.row + i, sums[i]);
    }
    add_products(rows, r, sums);
    UNROLL for (int i = 0; i < rows; i++) {
        if (r.end == r.share.weight->in_features)
            put_sums(r.share, r.panel, r.row + i, sums[i]);
        else
            keep_sums(r.share, r.panel, r.row + i, sums[i]);
    }
}

static void float32_rows(int32_t rows, float32_run r)
{
    switch (rows) {
        TILE_CASES_4(float32_tile, r)
        TILE_CASE(3, float32_tile, r)
        TILE_CASE(5, float32_tile, r)
        TILE_CASE(6, float32_tile, r)
#if LANES == 16
        TILE_CASE(7, float32_tile, r)
        TILE_CASE(8, float32_tile, r)
        TILE_CASE(9, float32_tile, r)
        TILE_CASE(10, float32_tile, r)
        TILE_CASE(11, float32_tile, r)
        TILE_CASE(12, float32_tile, r)
#endif
    }
}

static int32_t num_tiles(int32_t rows)
{
    if (rows <= 2 * ROWS)
        return rows <= ALONE ? 1 : 2;
    return (rows + ROWS - 1) / ROWS;
}

/* Rows [first, first + rows), in tiles as even as can be: low ones do not fill the registers. */
static void multiply_run(float32_run r, int32_t first, int32_t rows)
{
    int32_t tiles = num_tiles(rows), length = r.end - r.start;
    r.pace = (WIDTH + tiles - 1) / tiles;
    r.ahead = (const uint8_t *)run_weights(r) + (tiles == 1 ? AHEAD_ALONE : length * WIDTH);
    for (int32_t tile = 0; tile < tiles; tile++) {
        int32_t low = rows * tile / tiles, high = rows * (tile + 1) / tiles;
        r.row = first + low;
        float32_rows(high - low, r);
        r.ahead += length * r.pace;
    }
}

void multiply_float32(panel_share share, const float *x, int32_t num_rows)
{
    const int32_t in = share.weight->in_features;
    float32_run r = {.share = share, .x = x};
    for (int32_t first = 0, last; first < num_rows; first = last) {
        last = first + BLOCK < num_rows ? first + BLOCK : num_rows;
        for (r.panel = share.first; r.panel < share.last; r.panel++)
            for (r.start = 0; r.start < in; r.start = r.end) {
                r.end = r.start + RUN < in ? r.start + RUN : in;
                multiply_run(r, first, last - first);
            }
    }
}
