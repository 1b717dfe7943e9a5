/* Linears by matrix tiles: sums of products of bytes, group by group, then scaled as without tiles.
 *
 * The sums are whole numbers and what is done with them is the same, so a row has the same bits
 * whether tiles multiplied it or not. A tile's sums can only be scaled from memory; they go through
 * the first-level cache.
 */
#include "linear_amx.h"

#if AMX

#include "layouts.h"

enum {
    AMX_FROM_ROWS = 28, /* fewer are faster without: tiles always have 16 */
    AMX_MOST_REST = 6,  /* so many beyond whole tiles are faster without, too */
    AMX_BLOCK = 512,    /* rows for which a run is unpacked once; they stay in the second-level cache */
    AMX_RING = 4,       /* tiles of sums on their way */
};

int32_t amx_rows(int32_t kind, int32_t num_rows)
{
    if (num_rows < AMX_FROM_ROWS || kind == OCT_FLOAT32 || kind == OCT_Q6_K)
        return 0;
    const int32_t rest = num_rows % AMX_ROWS;
    return rest <= AMX_MOST_REST ? num_rows - rest : num_rows;
}

/* ---- activations ----------------------------------------------------------------------------- */

static float *scales_of_row(act_rows x, int32_t row, int32_t g)
{
    return (float *)act_tile_scales(x, row, g) + row % AMX_ROWS;
}

/* The last one also clears the scales of what fills up its tile: what is there by chance may be
 * subnormal, and such products take a hundred times as long. */
void fill_tiles(act_rows x, int32_t first, int32_t last)
{
    const int32_t groups = x.in_features / GROUP;
    for (int32_t row = first; row < last; row++)
        for (int32_t g = 0; g < groups; g++) {
            float *scales = scales_of_row(x, row, g);
            scales[0] = act_groups(x, row)[g].scale;
            scales[AMX_ROWS] = act_groups(x, row)[g].scaled_sum;
            memcpy((uint8_t *)act_tile(x, row, g) + row % AMX_ROWS * GROUP,
                   act_bytes(x, row) + g * GROUP, GROUP);
        }
    for (int32_t row = last; last == x.num_rows && row % AMX_ROWS; row++)
        for (int32_t g = 0; g < groups; g++)
            scales_of_row(x, row, g)[0] = scales_of_row(x, row, g)[AMX_ROWS] = 0;
}

/* ---- one strip ------------------------------------------------------------------------------- */

/* Up to 16 rows times one vector of output features. */
typedef struct {
    panel_share share;
    act_rows x;
    int32_t row, rows;
} amx_strip;

typedef int32_t tile_sums[AMX_ROWS][LANES];

/* Tile 0 is sums, 1 rows, 2 weights. */
static void configure(void)
{
    amx_shapes shapes = {0};
    amx_shape(&shapes, 0, 1, AMX_ROWS, AMX_ROW_BYTES);
    amx_shape(&shapes, 1, 2, AMX_ROWS, GROUP);
    amx_shape(&shapes, 2, 3, WEIGHT_ROWS, AMX_ROW_BYTES);
    amx_begin(&shapes);
}

ALWAYS_INLINE void sum_group(const uint8_t *x, const uint8_t *weights, tile_sums sums)
{
    _tile_loadd(1, x, GROUP);
    _tile_loadd(2, weights, AMX_ROW_BYTES);
    _tile_zero(0);
    _tile_dpbssd(0, 1, 2);
    _tile_stored(0, sums, AMX_ROW_BYTES);
}

ALWAYS_INLINE void scale_group(const int has_minimum, const amx_run *run, int32_t g,
                               const float *row_scales, const tile_sums sums, vf totals[])
{
    UNROLL for (int i = 0; i < AMX_ROWS; i++) {
        vi whole;
        memcpy(&whole, sums[i], sizeof whole);
        totals[i] = vf_fma(floats_of(whole), run->scale[g] * row_scales[i], totals[i]);
        if (has_minimum)
            totals[i] = vf_fma(run->minimum[g], vf_set(row_scales[AMX_ROWS + i]), totals[i]);
    }
}

/* Columns of y that the run's vector has. */
static int32_t run_width(amx_strip s, const amx_run *run)
{
    int32_t width = panel_width(s.share, run->panel) - run->vector * LANES;
    return width < LANES ? width : LANES;
}

/* Where totals are between runs and at the end: in y, or in `spare` where 16 rows of a whole vector
 * would reach beyond it. */
typedef struct {
    float *totals;
    size_t stride;
} totals_place;

/* LANES floats, or as many as y has of them. */
static void copy_columns(float *to, const float *from, int32_t width)
{
    if (width == LANES)
        vf_store(to, vf_load(from));
    else
        memcpy(to, from, (size_t)width * sizeof *to);
}

static totals_place place_of(amx_strip s, const amx_run *run, float *spare)
{
    float *y = panel_row(s.share, run->panel, s.row) + run->vector * LANES;
    if (s.rows == AMX_ROWS && run_width(s, run) == LANES)
        return (totals_place){y, s.share.stride};
    for (int32_t i = 0; run->start && i < s.rows; i++)
        copy_columns(spare + i * LANES, y + (size_t)i * s.share.stride, run_width(s, run));
    return (totals_place){spare, LANES};
}

static void copy_spare(amx_strip s, const amx_run *run, const float *spare)
{
    float *y = panel_row(s.share, run->panel, s.row) + run->vector * LANES;
    for (int32_t i = 0; i < s.rows; i++)
        copy_columns(y + (size_t)i * s.share.stride, spare + i * LANES, run_width(s, run));
}

static vf bias_of(amx_strip s, const amx_run *run)
{
    float lanes[LANES] = {0};
    int32_t column = run->panel * PANEL + run->vector * LANES;
    memcpy(lanes, s.share.weight->bias + column, (size_t)run_width(s, run) * sizeof *lanes);
    return vf_load(lanes);
}

ALWAYS_INLINE void add_groups(const int has_minimum, amx_strip s, amx_run *run, vf totals[])
{
    const int32_t count = run->end - run->start;
    const uint8_t *x = act_tile(s.x, s.row, run->start);
    const float *scales = act_tile_scales(s.x, s.row, run->start);
    tile_sums sums[AMX_RING] __attribute__((aligned(64)));
    for (int32_t g = 0; g < AMX_RING - 1 && g < count; g++)
        sum_group(x + g * ACT_TILE_BYTES, run->bytes[g], sums[g]);
    for (int32_t g = 0, next = AMX_RING - 1; g < count; g++, next++) {
        if (next < count)
            sum_group(x + next * ACT_TILE_BYTES, run->bytes[next], sums[next % AMX_RING]);
        for (int32_t i = 0; i < run->ahead_lines; i++, run->ahead += 64)
            __builtin_prefetch(run->ahead, 0, 2);
        amx_now();
        scale_group(has_minimum, run, g, scales + g * ACT_TILE_SCALES, sums[g % AMX_RING], totals);
    }
}

/* The address of `totals` may go to nothing that is not inlined: they are to stay in registers. */
ALWAYS_INLINE void add_run(const int has_minimum, amx_strip s, amx_run *run, totals_place to)
{
    vf totals[AMX_ROWS];
    for (int i = 0; i < AMX_ROWS; i++)
        __builtin_prefetch(to.totals + (size_t)i * to.stride, 1);
    UNROLL for (int i = 0; i < AMX_ROWS; i++)
        totals[i] = run->start ? vf_load(to.totals + (size_t)i * to.stride) : (vf){0};
    add_groups(has_minimum, s, run, totals);
    if (run->end == s.x.in_features / GROUP) {
        vf bias = s.share.weight->bias ? bias_of(s, run) : vf_set(0.0f);
        UNROLL for (int i = 0; i < AMX_ROWS; i++)
            totals[i] = totals[i] * run->factor + bias;
    }
    UNROLL for (int i = 0; i < AMX_ROWS; i++)
        vf_store(to.totals + (size_t)i * to.stride, totals[i]);
}

ALWAYS_INLINE void multiply_strip(const int has_minimum, amx_strip s, amx_run *run)
{
    float spare[AMX_ROWS * LANES] __attribute__((aligned(64)));
    const totals_place place = place_of(s, run, spare);
    add_run(has_minimum, s, run, place);
    if (place.totals == spare)
        copy_spare(s, run, spare);
}

/* ---- all strips ------------------------------------------------------------------------------ */

/* Groups of a run: as even as runs can be, and whole blocks of 256 where these have scales. */
static int32_t run_length(int32_t kind, int32_t groups)
{
    int32_t runs = (groups + AMX_RUN - 1) / AMX_RUN;
    return kind == OCT_Q4_K ? AMX_RUN : (groups + runs - 1) / runs;
}

/* Rows [s.row, last). */
static void multiply_rows(amx_strip s, int32_t last, amx_run *run)
{
    const int32_t kind = s.share.weight->kind;
    for (; s.row < last; s.row += AMX_ROWS) {
        s.rows = last - s.row < AMX_ROWS ? last - s.row : AMX_ROWS;
        if (kind == OCT_Q4_1 || kind == OCT_Q4_K)
            multiply_strip(1, s, run);
        else
            multiply_strip(0, s, run);
    }
}

/* One panel times rows [s.row, last). */
static void multiply_panel(amx_strip s, int32_t last, amx_run *run)
{
    const oct_weight *w = s.share.weight;
    const int32_t groups = s.x.in_features / GROUP, length = run_length(w->kind, groups);
    const int is_bytes = w->kind == OCT_INT8 || w->kind == OCT_Q8_0;
    for (run->vector = 0; run->vector * LANES < panel_width(s.share, run->panel); run->vector++)
        for (run->start = 0; run->start < groups; run->start = run->end) {
            run->end = run->start + length < groups ? run->start + length : groups;
            (is_bytes ? unpack_int8 : unpack_q4)(w, run);
            multiply_rows(s, last, run);
        }
}

void multiply_amx(panel_share share, act_rows x, int32_t num_rows)
{
    const oct_weight *w = share.weight;
    const size_t bytes = panel_bytes(w->kind, x.in_features);
    amx_strip s = {.share = share, .x = x};
    amx_run run;
    configure();
    for (; s.row < num_rows; s.row += AMX_BLOCK) {
        const int32_t last = s.row + AMX_BLOCK < num_rows ? s.row + AMX_BLOCK : num_rows;
        const int32_t strips = (last - s.row + AMX_ROWS - 1) / AMX_ROWS;
        const size_t times = (size_t)(2 * strips * (x.in_features / GROUP));
        for (run.panel = share.first; run.panel < share.last; run.panel++) {
            run.ahead = (const uint8_t *)w->data + (size_t)(run.panel + 1) * bytes;
            run.ahead_lines = (int32_t)((bytes / 64 + times - 1) / times);
            multiply_panel(s, last, &run);
        }
    }
    amx_end();
}

#endif
