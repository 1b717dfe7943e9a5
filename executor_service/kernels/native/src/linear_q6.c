/* Six bits in blocks of 256 with a scale for each 16: Q6_K. */
#include "layouts.h"

/* The codes of in_features [16 * h + 4 * t, ... + 4) of vector c of the panel. */
ALWAYS_INLINE vb codes_at(const uint8_t *nibbles, const int h, const int t, const int c)
{
    const uint8_t *pairs = nibbles + NIBBLE_BYTES + (t % 2 * PANEL + c * LANES) * 4;
    vb nibble = vb_load(nibbles + (t * PANEL + c * LANES) * 4);
    vb pair = vb_shift(vb_load(pairs), pair_shift(h * 16 + t * 4) - 4);
    return (vb_shift(nibble, h * 4) & 0x0f) | (pair & 0x30);
}

/* Sums over a group of byte scale * (code - 32) * q. `scales` begins the group. */
ALWAYS_INLINE void code_sums(const int rows, const uint8_t *scales, act_rows x, int32_t row,
                             int32_t g, const int c, vi sums[])
{
    vi both = load_pairs(scales + c * LANES * 2);
    UNROLL for (int i = 0; i < rows; i++)
        sums[i] = -32 * multiply_pairs(both, splat_four(act_groups(x, row + i)[g].halves));
    UNROLL for (int h = 0; h < 2; h++) {
        vi scale = scale_of(both, h);
        UNROLL for (int t = 0; t < 4; t += 2) {
            vb first = codes_at(scales + PANEL * 2, h, t, c);
            vb second = codes_at(scales + PANEL * 2, h, t + 1, c);
            UNROLL for (int i = 0; i < rows; i++) {
                const int8_t *q = act_bytes(x, row + i) + g * GROUP + h * 16 + t * 4;
                /* A half of a lane sums four products of at most 63 * 127. */
                partial_sums products = add_four((vi){0}, first, splat_four(q));
                products = add_four(products, second, splat_four(q + 4));
                sums[i] = vi_now(sums[i] + scaled_sums(products, scale));
            }
        }
    }
}

ALWAYS_INLINE void multiply_tile(const int rows, tile_run r)
{
    const uint8_t *data = (const uint8_t *)r.share.weight->data
                          + (size_t)r.panel * panel_bytes(OCT_Q6_K, r.x.in_features)
                          + (size_t)(r.start / (SUPER / GROUP)) * Q6_K_SUPER_BYTES;
    vf totals[TILE_ROWS][2], scales[2] = {{0}, {0}};
    begin_run(rows, r, totals);
    for (int32_t g = r.start; g < r.end; g++, data += Q6_K_GROUP_BYTES) {
        if (g % (SUPER / GROUP) == 0) {
            scales[0] = vf_load_half((const uint16_t *)data);
            scales[1] = vf_load_half((const uint16_t *)data + LANES);
            data += PANEL * 2;
        }
        prefetch_ahead(data, Q6_K_GROUP_BYTES);
        UNROLL for (int c = 0; c < 2; c++) {
            vi sums[TILE_ROWS];
            code_sums(rows, data, r.x, r.row, g, c, sums);
            UNROLL for (int i = 0; i < rows; i++)
                totals[i][c] = vf_fma(floats_of(sums[i]), scales[c] * run_groups(r, i)[g].scale,
                                      totals[i][c]);
        }
    }
    end_run(rows, r, totals);
}

static void multiply_rows(int32_t rows, tile_run r)
{
    switch (rows) {
        TILE_CASES(multiply_tile, r)
    }
}

void multiply_q6(panel_share share, act_rows x)
{
    for_tiles(share, x, multiply_rows);
}
