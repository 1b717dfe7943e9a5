/* Four bits in groups of 32: Q4_0, Q4_1 and Q4_K, which differ in where scales and minimums are. */
#include "layouts.h"
#include "linear_amx.h"

/* Of both vectors of a panel. The weight is scale * nibble + minimum. */
typedef struct {
    vf scale[2], minimum[2];
} group_scales;

ALWAYS_INLINE void nibble_sums(const int rows, const uint8_t *bytes, act_rows x, int32_t row,
                               int32_t g, vi sums[][2])
{
    /* A half of a lane sums 16 products of at most 15 * 127. */
    UNROLL for (int i = 0; i < rows; i++)
        sums[i][0] = sums[i][1] = (vi){0};
    UNROLL for (int t = 0; t < 8; t++) {
        const uint8_t *place = bytes + t % 4 * PANEL * 4;
        vb left = vb_shift(vb_load(place), t / 4 * 4) & 15;
        vb right = vb_shift(vb_load(place + LANES * 4), t / 4 * 4) & 15;
        UNROLL for (int i = 0; i < rows; i++) {
            vi q = splat_four(act_bytes(x, row + i) + g * GROUP + t * 4);
            sums[i][0] = add_four(sums[i][0], left, q);
            sums[i][1] = add_four(sums[i][1], right, q);
        }
    }
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int c = 0; c < 2; c++)
        sums[i][c] = whole_sums(sums[i][c]);
}

ALWAYS_INLINE group_scales half_scales(const int kind, const uint8_t *data)
{
    const uint16_t *scales = (const uint16_t *)data, *minimums = scales + PANEL;
    group_scales s = {{vf_load_half(scales), vf_load_half(scales + LANES)}, {{0}, {0}}};
    if (kind == OCT_Q4_1) {
        s.minimum[0] = vf_load_half(minimums);
        s.minimum[1] = vf_load_half(minimums + LANES);
    }
    return s;
}

/* `outer` are those of the block of 256. */
ALWAYS_INLINE group_scales byte_scales(group_scales outer, const uint8_t *data)
{
    group_scales s;
    UNROLL for (int c = 0; c < 2; c++) {
        s.scale[c] = outer.scale[c] * load_unsigned_bytes(data + c * LANES);
        s.minimum[c] = -(outer.minimum[c] * load_unsigned_bytes(data + PANEL + c * LANES));
    }
    return s;
}

ALWAYS_INLINE void add_group(const int rows, const int kind, group_scales s, const uint8_t *nibbles,
                             tile_run r, int32_t g, vf totals[][2])
{
    vi sums[TILE_ROWS][2];
    nibble_sums(rows, nibbles, r.x, r.row, g, sums);
    UNROLL for (int i = 0; i < rows; i++) {
        act_group q = run_groups(r, i)[g];
        UNROLL for (int c = 0; c < 2; c++) {
            if (kind == OCT_Q4_0)
                sums[i][c] -= 8 * q.sum;
            totals[i][c] = vf_fma(floats_of(sums[i][c]), s.scale[c] * q.scale, totals[i][c]);
            if (kind != OCT_Q4_0)
                totals[i][c] = vf_fma(s.minimum[c], vf_set(q.scaled_sum), totals[i][c]);
        }
    }
}

/* Bytes of a panel before group g; with Q4_K a whole number of blocks of 256 is before it. */
ALWAYS_INLINE size_t bytes_before(const int kind, int32_t g)
{
    switch (kind) {
    case OCT_Q4_0:
        return (size_t)g * Q4_0_GROUP_BYTES;
    case OCT_Q4_1:
        return (size_t)g * Q4_1_GROUP_BYTES;
    default:
        return (size_t)(g / (SUPER / GROUP)) * Q4_K_SUPER_BYTES;
    }
}

/* Those of group g, which begins at *data or, with Q4_K, whose block does; moves *data to its
 * nibbles. */
ALWAYS_INLINE group_scales next_scales(const int kind, int32_t g, group_scales *outer,
                                       const uint8_t **data)
{
    const uint8_t *scales = *data;
    if (kind != OCT_Q4_K) {
        *data += kind == OCT_Q4_1 ? PANEL * 4 : PANEL * 2;
        return half_scales(kind, scales);
    }
    if (g % (SUPER / GROUP) == 0) {
        *outer = half_scales(OCT_Q4_1, scales);
        scales += PANEL * 4;
    }
    *data = scales + PANEL * 2;
    return byte_scales(*outer, scales);
}

ALWAYS_INLINE void q4_tile(const int rows, const int kind, tile_run r)
{
    const uint8_t *data = (const uint8_t *)r.share.weight->data
                          + (size_t)r.panel * panel_bytes(kind, r.x.in_features)
                          + bytes_before(kind, r.start);
    vf totals[TILE_ROWS][2];
    group_scales outer = {{{0}, {0}}, {{0}, {0}}};
    begin_run(rows, r, totals);
    for (int32_t g = r.start; g < r.end; g++) {
        group_scales scales = next_scales(kind, g, &outer, &data);
        prefetch_ahead(data, NIBBLE_BYTES + 64);
        add_group(rows, kind, scales, data, r, g, totals);
        data += NIBBLE_BYTES;
    }
    end_run(rows, r, totals);
}

#define MULTIPLY(name, kind)                                                                       \
    static void name(int32_t rows, tile_run r)                                                     \
    {                                                                                              \
        switch (rows) {                                                                            \
            TILE_CASES(q4_tile, kind, r)                                                           \
        }                                                                                          \
    }

MULTIPLY(multiply_q4_0, OCT_Q4_0)
MULTIPLY(multiply_q4_1, OCT_Q4_1)
MULTIPLY(multiply_q4_k, OCT_Q4_K)

void multiply_q4(panel_share share, act_rows x)
{
    switch (share.weight->kind) {
    case OCT_Q4_0:
        for_tiles(share, x, multiply_q4_0);
        break;
    case OCT_Q4_1:
        for_tiles(share, x, multiply_q4_1);
        break;
    case OCT_Q4_K:
        for_tiles(share, x, multiply_q4_k);
        break;
    }
}

#if AMX

ALWAYS_INLINE void unpack_nibbles(const int kind, const uint8_t *nibbles, uint8_t *bytes)
{
    UNROLL for (int t = 0; t < WEIGHT_ROWS; t++) {
        vb codes = vb_shift(vb_load(nibbles + t % 4 * 2 * AMX_ROW_BYTES), t / 4 * 4) & 15;
        vb_store(bytes + t * AMX_ROW_BYTES, kind == OCT_Q4_0 ? codes - 8 : codes);
    }
}

/* Of vector c alone. */
ALWAYS_INLINE void unpack_scales(const int kind, const group_scales *scales, const uint8_t *data,
                                 const int c, int32_t g, amx_run *run)
{
    const uint16_t *halves = (const uint16_t *)data + c * LANES;
    run->scale[g] = kind == OCT_Q4_K ? scales->scale[c] : vf_load_half(halves);
    if (kind != OCT_Q4_0)
        run->minimum[g] = kind == OCT_Q4_K ? scales->minimum[c] : vf_load_half(halves + PANEL);
}

ALWAYS_INLINE void unpack_vector(const int kind, const uint8_t *data, const int c, amx_run *run)
{
    group_scales outer = {{{0}, {0}}, {{0}, {0}}};
    for (int32_t g = 0; g < run->end - run->start; g++) {
        const uint8_t *start = data;
        group_scales scales = next_scales(kind, run->start + g, &outer, &data);
        unpack_scales(kind, &scales, start, c, g, run);
        prefetch_unpacked(data, NIBBLE_BYTES + 64);
        unpack_nibbles(kind, data + c * AMX_ROW_BYTES, run->bytes[g]);
        data += NIBBLE_BYTES;
    }
}

ALWAYS_INLINE void unpack_run(const int kind, const uint8_t *data, amx_run *run)
{
    if (run->vector)
        unpack_vector(kind, data, 1, run);
    else
        unpack_vector(kind, data, 0, run);
}

void unpack_q4(const oct_weight *w, amx_run *run)
{
    const uint8_t *data = (const uint8_t *)w->data
                          + (size_t)run->panel * panel_bytes(w->kind, w->in_features)
                          + bytes_before(w->kind, run->start);
    run->factor = vf_set(1.0f);
    switch (w->kind) {
    case OCT_Q4_0:
        unpack_run(OCT_Q4_0, data, run);
        break;
    case OCT_Q4_1:
        unpack_run(OCT_Q4_1, data, run);
        break;
    case OCT_Q4_K:
        unpack_run(OCT_Q4_K, data, run);
        break;
    }
}

#endif
