#include "attention_parts.h"

#include "attention_weights.h"
#include "bf16_parts.h"

#if AMX

enum {
    SPLIT_STEPS = SPLIT / PAIRED,
    ROW_TILE_BYTES = SPLIT * AMX_ROWS * 4, /* of scores, or of weights in two parts */
    TILES_AHEAD = 2,                       /* of K, asked for before their use */
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
} parts_split;

/* ---- memory ---------------------------------------------------------------------------------- */

static int32_t query_steps(const oct_kv *kv)
{
    return ceil_div(kv->head_dim, PAIRED);
}

static size_t query_bytes(const oct_kv *kv)
{
    return (size_t)query_steps(kv) * PARTS_BYTES;
}

size_t parts_bytes(const oct_kv *kv, int32_t rows)
{
    return (size_t)ceil_div(rows, AMX_ROWS) * (query_bytes(kv) + ROW_TILE_BYTES) +
           query_bytes(kv) + SPLIT_STEPS * PARTS_BYTES + 2 * SPLIT * sizeof(float);
}

static parts_split split_at(const attention_unit *unit, const kv_view *view, int32_t group,
                            int32_t first, parts_scratch scratch)
{
    parts_split s = {.unit = unit, .view = view, .group = group, .first = first};
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

static void *gathered_at(const parts_split *s, int32_t slot)
{
    return s->gathered + (size_t)(slot / TILE) * kv_tile_bytes(s->view->kv);
}

void parts_begin(const oct_kv *kv, const float *queries, int32_t rows, parts_scratch scratch)
{
    const int32_t head_dim = kv->head_dim;
    for (int32_t row = 0; row < rows; row++, queries += head_dim) {
        uint8_t *to = scratch.tiles + (size_t)(row / AMX_ROWS) * query_bytes(kv) +
                      row % AMX_ROWS * AMX_ROW_BYTES;
        for (int32_t d = 0; d < head_dim; d += PAIRED, to += PARTS_BYTES) {
            const __mmask16 left = lanes_below(head_dim - d);
            const __mmask16 right = lanes_below(head_dim - d - TILE);
            store_float_parts(to, _mm512_maskz_loadu_ps(left, queries + d),
                              _mm512_maskz_loadu_ps(right, queries + d + TILE));
        }
    }
    begin_products(least(rows, AMX_ROWS));
}

void parts_end(const oct_kv *kv)
{
    if (in_parts(kv))
        amx_end();
}

/* ---- scores ---------------------------------------------------------------------------------- */

/* K of TILE slots in the pool. */
typedef struct {
    const uint8_t *now;   /* NULL: there is none */
    const uint8_t *ahead; /* of slots to come, or NULL */
} parts_keys;

static parts_keys keys_at(const parts_split *s, int32_t slot)
{
    parts_keys found = {NULL, NULL};
    if (slot >= s->slots)
        return found;
    kv_tile keys = oct_kv_keys(s->view, s->first + slot, gathered_at(s, slot));
    if (keys.scales)
        memcpy(s->scales + slot, keys.scales, TILE * sizeof(float));
    found.now = keys.elements;
    found.ahead = oct_kv_keys_ahead(s->view, s->first + slot + TILES_AHEAD * TILE);
    return found;
}

/* PAIRED dimensions of them. */
ALWAYS_INLINE parts_source keys_of(const int kind, const parts_split *s, parts_keys keys,
                                   int32_t step)
{
    const int32_t bytes = TILE * TILE * element_bytes_of(kind);
    const uint8_t *left = keys.now + 2 * step * bytes;
    return (parts_source){left, left + bytes, TILE, s->view->kv->head_dim - step * PAIRED,
                          s->keys + step * parts_of(kind) * AMX_BYTES,
                          keys.ahead ? keys.ahead + 2 * step * bytes : NULL};
}

/* Of some tiles of rows with the TILE slots from `slot` on. */
ALWAYS_INLINE void score_tiles(const int kind, const int tiles, const parts_split *s, int32_t tile,
                               int32_t slot, parts_keys next)
{
    const size_t query = query_bytes(s->view->kv);
    const uint8_t *left = s->queries + (size_t)tile * query, *right = s->keys;
    zero_sums();
    for (int32_t i = 0; i < query_steps(s->view->kv); i++) {
        parts_source source = keys_of(kind, s, next, i);
        multiply_step(kind, tiles, left, query, right, next.now ? &source : NULL);
        left += PARTS_BYTES;
        right += parts_of(kind) * AMX_BYTES;
    }
    store_sums(tiles, (float *)(s->weights + tile * ROW_TILE_BYTES) + slot * AMX_ROWS,
               ROW_TILE_BYTES / sizeof(float), TILE);
}

/* The first tile of rows that sees a slot. */
static int32_t tile_seeing(const parts_split *s, int32_t slot)
{
    return first_seeing(s->unit, s->group, s->first + slot) / AMX_ROWS;
}

ALWAYS_INLINE void score_parts(const int kind, const parts_split *s)
{
    parts_keys keys = keys_at(s, 0);
    for (int32_t i = 0; i < query_steps(s->view->kv); i++)
        convert_rows(kind, 0, TILE, keys_of(kind, s, keys, i));
    for (int32_t slot = 0; slot < s->slots; slot += TILE) {
        keys = keys_at(s, slot + TILE);
        for (int32_t i = tile_seeing(s, slot); i < s->row_tiles; i += MAX_ROW_TILES) {
            const int is_last = i + MAX_ROW_TILES >= s->row_tiles;
            const parts_keys none = {NULL, NULL}, next = is_last ? keys : none;
            PRODUCT_CASES(s->row_tiles - i, score_tiles(kind, NUM_TILES, s, i, slot, next))
        }
    }
}

/* ---- weights --------------------------------------------------------------------------------- */

ALWAYS_INLINE score_row row_at(const parts_split *s, int32_t row)
{
    float *tile = (float *)(s->weights + row / AMX_ROWS * ROW_TILE_BYTES);
    return (score_row){tile + row % AMX_ROWS * TILE, seen(s->unit, s->group, row, s->first),
                       s->scales, s->scales + SPLIT};
}

/* Of one tile of rows. Maxima come first: waiting for one takes as long as weighing a row. */
ALWAYS_INLINE void weigh_tile(const int kind, const int whole, const parts_split *s, int32_t first,
                              partial_result result)
{
    const int32_t end = least(first + AMX_ROWS, s->rows);
    for (int32_t row = first; row < end; row++)
        result.maxima[row] = row_maximum(kind, whole, row_at(s, row));
    for (int32_t row = first; row < end; row++)
        result.sums[row] = row_weights(kind, whole, row_at(s, row), result.maxima[row]);
}

/* ---- values ---------------------------------------------------------------------------------- */

static kv_tile values_at(const parts_split *s, int32_t slot)
{
    return oct_kv_values(s->view, s->first + slot, gathered_at(s, slot));
}

static void find_values(const parts_split *s, kv_tile *tiles)
{
    for (int32_t slot = 0; slot < s->slots; slot += TILE) {
        kv_tile *tile = tiles + slot / TILE;
        *tile = values_at(s, slot);
        if (tile->scales)
            memcpy(s->scales + SPLIT + slot, tile->scales, TILE * sizeof(float));
    }
}

/* TILE columns of V, of PAIRED slots. */
ALWAYS_INLINE parts_source values_of(const int kind, const parts_split *s, const kv_tile *tiles,
                                     int32_t column, int32_t step)
{
    const int32_t count = s->slots - step * PAIRED, at = column * element_bytes_of(kind);
    const uint8_t *left = tiles[2 * step].elements;
    const uint8_t *right = count > TILE ? tiles[2 * step + 1].elements : left;
    return (parts_source){left + at, right + at, kv_width(s->view->kv), count,
                          s->values + step * parts_of(kind) * AMX_BYTES, NULL};
}

/* TILE columns from `column` on of some tiles of rows. */
ALWAYS_INLINE void mix_tiles(const int kind, const int tiles, const parts_split *s, int32_t tile,
                             const kv_tile *slots, int32_t column, int has_next, float *mixed)
{
    const size_t width = (size_t)kv_width(s->view->kv);
    const uint8_t *left = s->weights + tile * ROW_TILE_BYTES, *right = s->values;
    zero_sums();
    for (int32_t i = 0; i * PAIRED < s->slots; i++) {
        parts_source source = values_of(kind, s, slots, column + TILE, i);
        multiply_step(kind, tiles, left, ROW_TILE_BYTES, right, has_next ? &source : NULL);
        left += PARTS_BYTES;
        right += parts_of(kind) * AMX_BYTES;
    }
    store_sums(tiles, mixed + (size_t)(tile * AMX_ROWS) * width + column, AMX_ROWS * width, width);
}

ALWAYS_INLINE void mix_parts(const int kind, const parts_split *s, const kv_tile *slots,
                             float *mixed)
{
    const int32_t width = kv_width(s->view->kv);
    for (int32_t i = 0; i * PAIRED < s->slots; i++)
        convert_rows(kind, 0, TILE, values_of(kind, s, slots, 0, i));
    for (int32_t column = 0; column < width; column += TILE)
        for (int32_t i = s->first_row / AMX_ROWS; i < s->row_tiles; i += MAX_ROW_TILES) {
            const int is_last = i + MAX_ROW_TILES >= s->row_tiles;
            PRODUCT_CASES(s->row_tiles - i, mix_tiles(kind, NUM_TILES, s, i, slots, column,
                                                      is_last && column + TILE < width, mixed))
        }
}

/* ---- values that are not finite -------------------------------------------------------------- */

static int all_finite(const parts_split *s, const float *mixed)
{
    const int nan_or_infinity = 0x99, width = kv_width(s->view->kv);
    __mmask16 found = 0;
    for (int32_t i = s->first_row * width; i < s->rows * width; i += TILE)
        found |= _mm512_fpclass_ps_mask(_mm512_loadu_ps(mixed + i), nan_or_infinity);
    return !found;
}

static int is_finite_half(uint16_t bits)
{
    return (bits & 0x7c00) != 0x7c00;
}

/* Zeros for what is not finite. */
static kv_tile finite_copy(kv_tile from, int32_t count, uint16_t *to)
{
    const uint16_t *elements = from.elements;
    for (int32_t i = 0; i < count; i++)
        to[i] = is_finite_half(elements[i]) ? elements[i] : 0;
    return (kv_tile){to, NULL};
}

static void spoil_seeing(const parts_split *s, int32_t slot, int32_t column, float *mixed)
{
    for (int32_t row = first_seeing(s->unit, s->group, s->first + slot); row < s->rows; row++)
        mixed[row * kv_width(s->view->kv) + column] = NAN;
}

/* Of float16 where some V is not finite, and 0 times it is not 0: it reaches the rows that see it,
 * and the others are what they would have been without it. */
static void mix_apart(const parts_split *s, float *mixed)
{
    const int32_t width = kv_width(s->view->kv);
    kv_tile tiles[SPLIT_TILES];
    for (int32_t slot = 0; slot < s->slots; slot += TILE)
        tiles[slot / TILE] = finite_copy(values_at(s, slot), TILE * width, gathered_at(s, slot));
    mix_parts(OCT_KV_FLOAT16, s, tiles, mixed);
    for (int32_t slot = 0; slot < s->slots; slot++) {
        const uint16_t *values = values_at(s, slot / TILE * TILE).elements;
        for (int32_t d = 0; d < width; d++)
            if (!is_finite_half(values[slot % TILE * width + d]))
                spoil_seeing(s, slot, d, mixed);
    }
}

/* ---- one split ------------------------------------------------------------------------------- */

ALWAYS_INLINE void attend(const int kind, const parts_split *s, partial_result result)
{
    kv_tile tiles[SPLIT_TILES];
    score_parts(kind, s);
    find_values(s, tiles);
    for (int32_t row = s->first_row / AMX_ROWS * AMX_ROWS; row < s->rows; row += AMX_ROWS) {
        if (seen(s->unit, s->group, row, s->first) == SPLIT)
            weigh_tile(kind, 1, s, row, result);
        else
            weigh_tile(kind, 0, s, row, result);
    }
    mix_parts(kind, s, tiles, result.mixed);
    const int all_see_all = seen(s->unit, s->group, 0, s->first) == s->slots;
    if (kind == OCT_KV_FLOAT16 && !all_see_all && !all_finite(s, result.mixed))
        mix_apart(s, result.mixed);
}

void parts_attend(const attention_unit *unit, const kv_view *view, int32_t group, int32_t split,
                  parts_scratch scratch, partial_result result)
{
    const parts_split s = split_at(unit, view, group, split * SPLIT, scratch);
    if (view->kv->dtype == OCT_KV_INT8)
        attend(OCT_KV_INT8, &s, result);
    else
        attend(OCT_KV_FLOAT16, &s, result);
}

#else

size_t parts_bytes(const oct_kv *kv, int32_t rows)
{
    (void)kv, (void)rows;
    return 0;
}

void parts_begin(const oct_kv *kv, const float *queries, int32_t rows, parts_scratch scratch)
{
    (void)kv, (void)queries, (void)rows, (void)scratch;
}

void parts_attend(const attention_unit *unit, const kv_view *view, int32_t group, int32_t split,
                  parts_scratch scratch, partial_result result)
{
    (void)unit, (void)view, (void)group, (void)split, (void)scratch, (void)result;
}

void parts_end(const oct_kv *kv)
{
    (void)kv;
}

#endif
