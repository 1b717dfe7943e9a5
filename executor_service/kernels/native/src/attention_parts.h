/* Attention of one split on matrix tiles, where the machine level has them and the pool's elements
 * are sums of few bfloat16: float16, int8 and bfloat16 itself. Reference: attention in reference.py.
 *
 * Both products are made of parts (parts_source.h), summed in float32 in one order whatever is beside
 * a row. Queries and weights keep 16 bits: less is lost than float16 loses of K and V.
 */
#ifndef OCTAVO_ATTENTION_PARTS_H
#define OCTAVO_ATTENTION_PARTS_H

#include "attention_split.h"

/* Rows that results need room for: of more than one tile all are whole. */
ALWAYS_INLINE int32_t stored_rows(const oct_kv *kv, int32_t rows)
{
    return kv_in_parts(kv->dtype) && rows > 16 ? ceil_div(rows, 16) * 16 : rows;
}

/* Memory that a thread lends, 64-byte aligned. */
typedef struct {
    uint8_t *slots; /* [SPLIT_TILES] of gathered slots */
    uint8_t *tiles; /* parts_bytes of them */
} parts_scratch;

size_t parts_bytes(const oct_kv *kv, int32_t rows);

/* Before the splits of a task. queries: [rows, head_dim], scaled. */
void parts_begin(const oct_kv *kv, const float *queries, int32_t rows, parts_scratch scratch);

void parts_attend(const attention_unit *unit, const kv_view *view, int32_t group, int32_t split,
                  kv_ahead *ahead, parts_scratch scratch, partial_result result);

/* When a thread has no more tasks. */
void parts_end(const oct_kv *kv);

#endif
