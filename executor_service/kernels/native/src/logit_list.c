#include "logit_list.h"

#include <float.h>

/* Blocks at a time. So many are asked for ahead: another core may have written them. */
enum { STRETCH = 256, BLOCKS_AHEAD = 16 };

/* Appends those of LANES logits from `first` on that are no less than the bound. */
ALWAYS_INLINE void append_vector(logit_list *list, const float *row, int32_t first, float bound)
{
#if LANES == 16
    const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512 v = _mm512_loadu_ps(row + first);
    const __mmask16 hits = _mm512_cmp_ps_mask(v, _mm512_set1_ps(bound), _CMP_GE_OQ);
    const __m512i ids = _mm512_add_epi32(lanes, _mm512_set1_epi32(first));
    _mm512_storeu_ps(list->values + list->count, _mm512_maskz_compress_ps(hits, v));
    _mm512_storeu_si512(list->ids + list->count, _mm512_maskz_compress_epi32(hits, ids));
    list->count += __builtin_popcount(hits);
#else
    for (int32_t id = first; id < first + LANES; id++) {
        list->values[list->count] = row[id];
        list->ids[list->count] = id;
        list->count += row[id] >= bound;
    }
#endif
}

static void append_rest(logit_list *list, vocabulary logits, int32_t first, float bound)
{
    for (int32_t id = first; id < logits.count; id++)
        if (logits.row[id] >= bound) {
            list->values[list->count] = logits.row[id];
            list->ids[list->count++] = id;
        }
}

static void append_block(logit_list *list, vocabulary logits, int32_t first, float bound)
{
    if (first + MAXIMA_BLOCK > logits.count) {
        append_rest(list, logits, first, bound);
        return;
    }
    append_vector(list, logits.row, first, bound);
    append_vector(list, logits.row, first + LANES, bound);
}

ALWAYS_INLINE void ask_for_block(vocabulary logits, int32_t first)
{
    __builtin_prefetch(logits.row + first);
    __builtin_prefetch(logits.row + first + MAXIMA_BLOCK - 1);
}

/* First ids of the blocks [first, end) that reach the bound; returns how many. */
static int32_t blocks_from(const float *maxima, int32_t first, int32_t end, float bound,
                           int32_t *found)
{
    int32_t num_found = 0;
    for (int32_t block = first; block < end; block++) {
        found[num_found] = block * MAXIMA_BLOCK;
        num_found += maxima[block] >= bound;
    }
    return num_found;
}

logit_list logits_from(vocabulary logits, float bound, candidate *room)
{
    const int32_t num_maxima = oct_num_maxima(logits.count);
    logit_list list = {(float *)room, (int32_t *)room + logits.count + TILE, 0};
    int32_t blocks[STRETCH];
    bound = bound > -FLT_MAX ? bound : -FLT_MAX;
    for (int32_t first = 0, end; first < num_maxima; first = end) {
        end = first + STRETCH < num_maxima ? first + STRETCH : num_maxima;
        const int32_t num_blocks = blocks_from(logits.maxima, first, end, bound, blocks);
        for (int32_t i = 0; i < BLOCKS_AHEAD && i < num_blocks; i++)
            ask_for_block(logits, blocks[i]);
        for (int32_t i = 0; i < num_blocks; i++) {
            if (i + BLOCKS_AHEAD < num_blocks)
                ask_for_block(logits, blocks[i + BLOCKS_AHEAD]);
            append_block(&list, logits, blocks[i], bound);
        }
    }
    return list;
}

int32_t candidates_from(const logit_list *list, float bound, candidate *found)
{
    int32_t num_found = 0;
    for (int32_t i = 0; i < list->count; i++) {
        found[num_found] = (candidate){list->values[i], list->ids[i]};
        num_found += list->values[i] >= bound;
    }
    return num_found;
}
