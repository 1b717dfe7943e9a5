/* What the kinds of weights share: panels, shares of the work, quantized activations.
 *
 * A packed weight is a run of panels of PANEL output features (the last one padded with zeros),
 * each panel a run of steps along in_features. One output feature is one lane and its sum runs over
 * in_features in order: the same bits for a row whatever the tile it falls into.
 */
#ifndef OCTAVO_LINEAR_H
#define OCTAVO_LINEAR_H

#include "bytes.h"
#include "octavo.h"

#define PANEL (2 * LANES)
#define GROUP 32  /* in_features that share a scale, of weights and of activations */
#define SUPER 256 /* in_features of one block of Q4_K and Q6_K */

/* Rows that one pass over a panel multiplies; their sums fill the registers. */
#define TILE_ROWS (LANES == 16 ? 6 : LANES == 8 ? 4 : 2)

#define RUN_GROUPS 24  /* groups at a time when rows are many; whole blocks of 256 */
#define BLOCK_ROWS 96  /* rows at a time */
#define FEW_ROWS 16    /* up to here a panel is read once, as it comes from memory */

ALWAYS_INLINE int32_t num_panels(const oct_weight *w)
{
    return (w->out_features + PANEL - 1) / PANEL;
}

/* ---- quantized activations ------------------------------------------------------------------- */

/* A group of activations x = scale * q with q in [-127, 127]. The scale is NaN where an activation
 * of the group is not finite. */
typedef struct {
    float scale;
    float scaled_sum;  /* scale * sum */
    int32_t sum;       /* of q */
    int16_t halves[2]; /* sums of the first 16 and the last 16 */
} act_group;

/* Rows of quantized activations. A row is its groups, its q as bytes, and with AVX2 its q in 16 bits
 * as well: there signed bytes cannot be multiplied by signed bytes. */
typedef struct {
    const uint8_t *base;
    size_t stride;
    int32_t in_features;
    int32_t num_rows;
} act_rows;

ALWAYS_INLINE size_t act_stride(int32_t in_features)
{
    size_t k = (size_t)in_features, bytes = k / GROUP * sizeof(act_group) + k;
    if (LANES == 8)
        bytes += 2 * k;
    return (bytes + 63) / 64 * 64;
}

ALWAYS_INLINE const act_group *act_groups(act_rows x, int32_t row)
{
    return (const act_group *)(x.base + (size_t)row * x.stride);
}

ALWAYS_INLINE const int8_t *act_bytes(act_rows x, int32_t row)
{
    return (const int8_t *)(act_groups(x, row) + x.in_features / GROUP);
}

ALWAYS_INLINE const int16_t *act_shorts(act_rows x, int32_t row)
{
    return (const int16_t *)(act_bytes(x, row) + x.in_features);
}

void quantize_row(const float *x, int32_t in_features, uint8_t *row);

/* ---- shares ---------------------------------------------------------------------------------- */

/* Panels [first, last) of a weight; y points at its first column, rows of y are `stride` apart. */
typedef struct {
    const oct_weight *weight;
    float *y;
    size_t stride;
    int32_t first, last;
} panel_share;

void multiply_float32(panel_share share, const float *x, int32_t num_rows);
void multiply_int8(panel_share share, act_rows x);
void multiply_q4(panel_share share, act_rows x);
void multiply_q6(panel_share share, act_rows x);

/* Columns that the panel has in y. */
ALWAYS_INLINE int32_t panel_width(panel_share share, int32_t panel)
{
    int32_t width = share.weight->out_features - panel * PANEL;
    return width < PANEL ? width : PANEL;
}

ALWAYS_INLINE float *panel_row(panel_share share, int32_t panel, int32_t row)
{
    return share.y + (size_t)row * share.stride + (size_t)panel * PANEL;
}

/* One row's sums of one panel to y. */
ALWAYS_INLINE void keep_sums(panel_share share, int32_t panel, int32_t row, const vf sums[2])
{
    int32_t width = panel_width(share, panel);
    float *y = panel_row(share, panel, row), lanes[PANEL];
    float *target = width == PANEL ? y : lanes;
    vf_store(target, sums[0]);
    vf_store(target + LANES, sums[1]);
    if (width < PANEL)
        memcpy(y, lanes, (size_t)width * sizeof *y);
}

/* What `keep_sums` put there. */
ALWAYS_INLINE void kept_sums(panel_share share, int32_t panel, int32_t row, vf sums[2])
{
    int32_t width = panel_width(share, panel);
    const float *y = panel_row(share, panel, row);
    float lanes[PANEL] = {0};
    if (width < PANEL) {
        memcpy(lanes, y, (size_t)width * sizeof *y);
        y = lanes;
    }
    sums[0] = vf_load(y);
    sums[1] = vf_load(y + LANES);
}

/* `keep_sums` of sums that are complete: adds the bias. */
ALWAYS_INLINE void put_sums(panel_share share, int32_t panel, int32_t row, vf sums[2])
{
    if (share.weight->bias) {
        float lanes[PANEL] = {0};
        memcpy(lanes, share.weight->bias + (size_t)panel * PANEL,
               (size_t)panel_width(share, panel) * sizeof *lanes);
        sums[0] += vf_load(lanes);
        sums[1] += vf_load(lanes + LANES);
    }
    keep_sums(share, panel, row, sums);
}

/* Rows of the next tile when `rows` are left. There are fewer heights where registers are few. */
ALWAYS_INLINE int32_t tile_height(int32_t rows)
{
    return rows >= TILE_ROWS ? TILE_ROWS : LANES == 16 || rows < 3 ? rows : 2;
}

/* The cases of a switch over a tile's rows: tile(rows, ...) with `rows` a constant. */
#define TILE_CASE(n, tile, ...)                                                                    \
    case n:                                                                                        \
        tile(n, __VA_ARGS__);                                                                      \
        break;
#define TILE_CASES_2(...) TILE_CASE(1, __VA_ARGS__) TILE_CASE(2, __VA_ARGS__)
#define TILE_CASES_4(...) TILE_CASES_2(__VA_ARGS__) TILE_CASE(4, __VA_ARGS__)
#if LANES == 16
#define TILE_CASES(...)                                                                            \
    TILE_CASES_4(__VA_ARGS__)                                                                      \
    TILE_CASE(3, __VA_ARGS__) TILE_CASE(5, __VA_ARGS__) TILE_CASE(6, __VA_ARGS__)
#elif LANES == 8
#define TILE_CASES TILE_CASES_4
#else
#define TILE_CASES TILE_CASES_2
#endif

/* A run of groups [start, end) of one tile. */
typedef struct {
    panel_share share;
    act_rows x;
    int32_t panel, row, start, end;
} tile_run;

ALWAYS_INLINE const act_group *run_groups(tile_run r, int i)
{
    return act_groups(r.x, r.row + i);
}

/* Sums of the runs before this one. */
ALWAYS_INLINE void begin_run(const int rows, tile_run r, vf totals[][2])
{
    if (r.start == 0) {
        UNROLL for (int i = 0; i < rows; i++)
            totals[i][0] = totals[i][1] = (vf){0};
        return;
    }
    UNROLL for (int i = 0; i < rows; i++)
        kept_sums(r.share, r.panel, r.row + i, totals[i]);
}

ALWAYS_INLINE void end_run(const int rows, tile_run r, vf totals[][2])
{
    UNROLL for (int i = 0; i < rows; i++) {
        if (r.end == r.x.in_features / GROUP)
            put_sums(r.share, r.panel, r.row + i, totals[i]);
        else
            keep_sums(r.share, r.panel, r.row + i, totals[i]);
    }
}

/* Asks for what a tile reads a little later. The machine's own guesses end with each page, and start
 * too late for panels that are read once. */
ALWAYS_INLINE void prefetch_ahead(const uint8_t *data, const int bytes)
{
    const int ahead = 8192;
    UNROLL for (int i = 0; i < bytes; i += 64)
        __builtin_prefetch(data + ahead + i, 0, 2);
}

/* The same for what is unpacked, faster than it is multiplied. */
ALWAYS_INLINE void prefetch_unpacked(const uint8_t *data, const int bytes)
{
    const int ahead = 4096;
    UNROLL for (int i = 0; i < bytes; i += 64)
        __builtin_prefetch(data + ahead + i);
}

typedef void run_kernel(int32_t rows, tile_run r);

/* All tiles of a share: groups in runs whose part of a panel stays in the first-level cache, unless
 * rows are so few that a panel is best read once in order; rows in blocks that stay in the second. */
ALWAYS_INLINE void for_tiles(panel_share share, act_rows x, run_kernel *multiply)
{
    const int32_t groups = x.in_features / GROUP;
    const int32_t length = x.num_rows <= FEW_ROWS ? groups : RUN_GROUPS;
    tile_run r = {.share = share, .x = x};
    for (int32_t first = 0, last; first < x.num_rows; first = last) {
        last = first + BLOCK_ROWS < x.num_rows ? first + BLOCK_ROWS : x.num_rows;
        for (r.start = 0; r.start < groups; r.start = r.end) {
            r.end = r.start + length < groups ? r.start + length : groups;
            for (r.panel = share.first; r.panel < share.last; r.panel++)
                for (int32_t rows = r.row = first; r.row < last; r.row += rows) {
                    rows = tile_height(last - r.row);
                    multiply(rows, r);
                }
        }
    }
}

/* ---- reading packed weights ------------------------------------------------------------------- */

ALWAYS_INLINE float float_of_half(uint16_t half)
{
    uint32_t bits = (uint32_t)(half & 0x7fff) << 13;
    float value;
    memcpy(&value, &bits, sizeof value);
    value *= 0x1p112f; /* puts the exponent right, of subnormal numbers too */
    memcpy(&bits, &value, sizeof bits);
    if ((half & 0x7c00) == 0x7c00)
        bits = 0x7f800000 | (uint32_t)(half & 0x03ff) << 13;
    bits |= (uint32_t)(half & 0x8000) << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

ALWAYS_INLINE vf load_unsigned_bytes(const uint8_t *p)
{
#if LANES == 16
    return (vf)_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
#elif LANES == 8
    return (vf)_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)));
#else
    vf v;
    for (int i = 0; i < LANES; i++)
        v[i] = p[i];
    return v;
#endif
}

/* To the nearest, ties to even, for |x| < 2^22. */
ALWAYS_INLINE vi rounded(vf x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23 */
    return (vi)(x + magic) - (vi)vf_set(magic);
}

ALWAYS_INLINE vf floats_of(vi v)
{
    return __builtin_convertvector(v, vf);
}

#endif
