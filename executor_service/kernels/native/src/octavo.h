/* What the native kernels offer each other and the Python side. Plain C11, prefix oct_.
 *
 * Every function computes the same bits for a row (token) whatever is computed beside it, in
 * however many threads. Nothing here allocates, and nothing is checked: the caller keeps to valid
 * indices and sizes.
 */
#ifndef OCTAVO_H
#define OCTAVO_H

#include <stddef.h>
#include <stdint.h>

/* ---- linears --------------------------------------------------------------------------------- */

enum {
    OCT_FLOAT32 = 0,
    OCT_INT8 = 1, /* groups of 32 along in_features */
    OCT_Q4_0 = 2,
    OCT_Q4_1 = 3,
    OCT_Q8_0 = 4,
    OCT_Q4_K = 5,
    OCT_Q6_K = 6,
};

/* A weight [out_features, in_features], packed for this machine. */
typedef struct {
    int32_t kind;
    int32_t out_features;
    int32_t in_features;
    const void *data;
    const float *bias; /* [out_features] or NULL */
} oct_weight;

/* Bytes that `oct_linear` needs as scratch for up to max_rows rows; also of `oct_prepare_rows`. */
size_t oct_linear_scratch(const oct_weight *w, int32_t max_rows);

/* y[rows, out] = x[rows, in] w^T + bias. Called from one thread; opens a parallel region. */
void oct_linear(const oct_weight *w, const float *x, int32_t num_rows, float *y, void *scratch);

/* The same in pieces, for callers already inside a parallel region. All threads call
 * `oct_prepare_rows` (each does its share: quantizes activations or reorders them), meet at a
 * barrier, then all call `oct_linear_part`. Weights of one in_features and one kind may share what
 * was prepared. Returns what oct_linear_part takes as x_prepared: x itself or scratch. */
const void *oct_prepare_rows(const oct_weight *w, const float *x, int32_t num_rows, void *scratch,
                             int32_t thread, int32_t num_threads);
void oct_linear_part(const oct_weight *w, const void *x_prepared, int32_t num_rows, float *y,
                     int32_t thread, int32_t num_threads);

#endif
