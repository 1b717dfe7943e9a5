/* What acts on one row at a time. Reference: kernels/reference.py, functions of the same names. */
#ifndef OCTAVO_ELEMENTWISE_H
#define OCTAVO_ELEMENTWISE_H

#include <stdint.h>

/* y = rms_norm(x) * weight; y may be x. */
void oct_row_rms_norm(const float *x, const float *weight, float eps, int32_t width, float *y);

/* residual += x, then the norm of residual. */
void oct_row_add_rms_norm(const float *x, float *residual, const float *weight, float eps,
                          int32_t width, float *y);

/* One head, in place. cos, sin: [head_dim / 2] */
void oct_head_rotary(float *x, const float *cos, const float *sin, int32_t head_dim);

/* gate_up: [2 * width] -> y: [width] */
void oct_row_silu_mul(const float *gate_up, int32_t width, float *y);

#endif
