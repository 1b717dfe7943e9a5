/* Signed bytes in groups of 32: int8 and Q8_0. */
#include "layouts.h"
#include "linear_amx.h"

ALWAYS_INLINE void int8_sums(const int rows, const uint8_t *bytes, act_rows x, int32_t row,
                             int32_t g, vi sums[][2])
{
    UNROLL for (int i = 0; i < rows; i++)
        sums[i][0] = sums[i][1] = (vi){0} - SIGNED_OFFSET * act_groups(x, row + i)[g].sum;
    UNROLL for (int k = 0; k < GROUP; k += SIGNED_TOGETHER) {
        const uint8_t *left = bytes + k * PANEL, *right = left + LANES * SIGNED_TOGETHER;
        UNROLL for (int i = 0; i < rows; i++) {
            vi q = LANES == 8 ? splat_four(act_shorts(x, row + i) + g * GROUP + k)
                              : splat_four(act_bytes(x, row + i) + g * GROUP + k);
            sums[i][0] = add_signed(sums[i][0], left, q);
            sums[i][1] = add_signed(sums[i][1], right, q);
        }
    }
}

ALWAYS_INLINE void int8_tile(const int rows, tile_run r)
{
    const uint8_t *panel = (const uint8_t *)r.share.weight->data
                           + (size_t)r.panel * panel_bytes(OCT_INT8, r.x.in_features);
    const float *factors = (const float *)panel;
    const uint8_t *data = panel + INT8_FACTOR_BYTES + (size_t)r.start * INT8_GROUP_BYTES;
    vf totals[TILE_ROWS][2];
    begin_run(rows, r, totals);
    for (int32_t g = r.start; g < r.end; g++, data += INT8_GROUP_BYTES) {
        const uint16_t *scales = (const uint16_t *)data;
        vi sums[TILE_ROWS][2];
        prefetch_ahead(data, INT8_GROUP_BYTES);
        int8_sums(rows, data + PANEL * sizeof *scales, r.x, r.row, g, sums);
        vf left = vf_load_half(scales), right = vf_load_half(scales + LANES);
        UNROLL for (int i = 0; i < rows; i++) {
            float scale = run_groups(r, i)[g].scale;
            totals[i][0] = vf_fma(floats_of(sums[i][0]), left * scale, totals[i][0]);
            totals[i][1] = vf_fma(floats_of(sums[i][1]), right * scale, totals[i][1]);
        }
    }
    if (r.end == r.x.in_features / GROUP) {
        UNROLL for (int i = 0; i < rows; i++) {
            totals[i][0] *= vf_load(factors);
            totals[i][1] *= vf_load(factors + LANES);
        }
    }
    end_run(rows, r, totals);
}

static void int8_rows(int32_t rows, tile_run r)
{
    switch (rows) {
        TILE_CASES(int8_tile, r)
    }
}

void multiply_int8(panel_share share, act_rows x)
{
    for_tiles(share, x, int8_rows);
}

#if AMX

void unpack_int8(const oct_weight *w, amx_run *run)
{
    const uint8_t *data =
        (const uint8_t *)w->data + (size_t)run->panel * panel_bytes(OCT_INT8, w->in_features);
    run->factor = vf_load((const float *)data + run->vector * LANES);
    data += INT8_FACTOR_BYTES + (size_t)run->start * INT8_GROUP_BYTES;
    for (int32_t g = 0; g < run->end - run->start; g++, data += INT8_GROUP_BYTES) {
        const uint8_t *bytes = data + PANEL * 2 + run->vector * AMX_ROW_BYTES;
        prefetch_unpacked(data, INT8_GROUP_BYTES);
        run->scale[g] = vf_load_half((const uint16_t *)data + run->vector * LANES);
        UNROLL for (int t = 0; t < WEIGHT_ROWS; t++)
            vb_store(run->bytes[g] + t * AMX_ROW_BYTES,
                     vb_load(bytes + t * 2 * AMX_ROW_BYTES) ^ SIGNED_OFFSET);
    }
}

#endif
