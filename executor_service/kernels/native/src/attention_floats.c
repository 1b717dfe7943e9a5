#include "attention_floats.h"

#include <math.h>

#include "attention_tiles.h"

static void score(const attention_unit *unit, const kv_view *view, int32_t group, int32_t first,
                  kv_ahead *ahead, floats_scratch scratch)
{
    const oct_kv *kv = view->kv;
    const int32_t head_dim = kv->head_dim, rows = unit->num_tokens * group;
    const int32_t tiles = split_tiles(view, first);
    kv_tile keys[SPLIT_TILES];
    oct_kv_keys(view, first, tiles, scratch.slots, keys);
    for (int32_t tile = 0; tile < tiles; tile++) {
        const uint8_t *lines = kv_ask(ahead, TILE * head_dim * kv_element_bytes(kv->dtype));
        for (int32_t row = 0, count; row < rows; row += count) {
            count = rows_at_once(rows - row);
            if (seen(unit, group, row + count - 1, first) <= tile * TILE)
                continue;
            score_rows(kv->dtype, count, scratch.queries + row * head_dim, head_dim, keys[tile], lines,
                       scratch.scores + row * SPLIT + tile * TILE, SPLIT);
            lines = keys[tile].elements; /* others need not ask again */
        }
    }
}

/* Scores to weights, in place. */
static void weigh(float *scores, int32_t count, float *maximum, float *sum)
{
    const int32_t padded = ceil_div(count, TILE) * TILE;
    for (int32_t i = count; i < padded; i++)
        scores[i] = -INFINITY;
    vf largest = vf_set(-INFINITY), sums[TILE_VECTORS] = {{0}};
    for (int32_t i = 0; i < padded; i += LANES)
        largest = vf_max(vf_load(scores + i), largest);
    *maximum = vf_largest(largest);
    for (int32_t i = 0; i < padded; i += TILE)
        UNROLL for (int part = 0; part < TILE_VECTORS; part++) {
            float *at = scores + i + part * LANES;
            vf weight = vf_exp_falling(vf_load(at) - *maximum);
            vf_store(at, weight);
            sums[part] += weight;
        }
    float total = 0;
    for (int part = 0; part < TILE_VECTORS; part++)
        total += vf_sum(sums[part]);
    *sum = total;
}

static void scale_weights(float *weights, int32_t rows, const float *scales)
{
    for (int32_t row = 0; row < rows; row++)
        for (int32_t i = 0; i < TILE; i += LANES) {
            float *at = weights + row * SPLIT + i;
            vf_store(at, vf_load(at) * vf_load(scales + i));
        }
}

static void mix(const attention_unit *unit, const kv_view *view, int32_t group, int32_t first,
                kv_ahead *ahead, floats_scratch scratch, float *mixed)
{
    const int32_t width = kv_width(view->kv), rows = unit->num_tokens * group;
    const int32_t count = split_tiles(view, first);
    kv_tile tiles[SPLIT_TILES];
    oct_kv_values(view, first, count, scratch.slots, tiles);
    for (int32_t i = 0; i < count; i++)
        if (tiles[i].scales)
            scale_weights(scratch.scores + i * TILE, rows, tiles[i].scales);
    memset(mixed, 0, sizeof(float) * (size_t)rows * (size_t)width);
    for (int32_t row = 0, at_once; row < rows; row += at_once) {
        at_once = rows_at_once(rows - row);
        /* What a row must not see is not multiplied by 0 either: it may be NaN. */
        int32_t common = seen(unit, group, row, first);
        mix_rows(view->kv->dtype, at_once, tiles, ahead, width, 0, common, scratch.scores + row * SPLIT,
                 SPLIT, mixed + row * width);
        for (int32_t other = row + 1; other < row + at_once; other++)
            mix_rows(view->kv->dtype, 1, tiles, ahead, width, common, seen(unit, group, other, first),
                     scratch.scores + other * SPLIT, SPLIT, mixed + other * width);
    }
}

void floats_attend(const attention_unit *unit, const kv_view *view, int32_t group, int32_t split,
                   kv_ahead *ahead, floats_scratch scratch, partial_result result)
{
    const int32_t first = split * SPLIT, rows = unit->num_tokens * group;
    score(unit, view, group, first, ahead, scratch);
    for (int32_t row = 0; row < rows; row++)
        weigh(scratch.scores + row * SPLIT, seen(unit, group, row, first), result.maxima + row,
              result.sums + row);
    mix(unit, view, group, first, ahead, scratch, result.mixed);
}
