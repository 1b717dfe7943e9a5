/* Rows of floats to the blocks of the GGUF kinds. */
#include <math.h>

#include "layouts.h"

ALWAYS_INLINE float clamped(float x, float least, float most)
{
    return fminf(fmaxf(x, least), most);
}

ALWAYS_INLINE float inverse_of(float x)
{
    return x != 0.0f ? 1.0f / x : 0.0f;
}

ALWAYS_INLINE float float_at(const uint8_t *place)
{
    uint16_t half;
    memcpy(&half, place, sizeof half);
    return float_of_half(half);
}

ALWAYS_INLINE void store_half(uint8_t *place, float x)
{
    uint16_t half = half_of(x);
    memcpy(place, &half, sizeof half);
}

/* Of Q8_0, Q4_0 and Q4_1: codes are chosen for the step before it is rounded to a half, so they are
 * those of other writers of these kinds. */
static void to_q8_0(const float *x, uint8_t *block)
{
    float most = 0.0f;
    for (int k = 0; k < GROUP; k++)
        most = fmaxf(most, fabsf(x[k]));
    float step = most / 127.0f, inverse = inverse_of(step);
    store_half(block, step);
    for (int k = 0; k < GROUP; k++)
        block[2 + k] = (uint8_t)(int8_t)roundf(x[k] * inverse);
}

static void put_codes(const uint8_t codes[GROUP], uint8_t *bytes)
{
    for (int j = 0; j < GROUP / 2; j++)
        bytes[j] = (uint8_t)(codes[j] | codes[j + GROUP / 2] << 4);
}

/* The value of the largest magnitude becomes code 0, whose weight is -8 steps. */
static void to_q4_0(const float *x, uint8_t *block)
{
    float most = x[0];
    for (int k = 1; k < GROUP; k++)
        most = fabsf(x[k]) > fabsf(most) ? x[k] : most;
    float step = most / -8.0f, inverse = inverse_of(step);
    uint8_t codes[GROUP];
    for (int k = 0; k < GROUP; k++)
        codes[k] = (uint8_t)fmin((double)x[k] * (double)inverse + 8.5, 15.0);
    store_half(block, step);
    put_codes(codes, block + 2);
}

static void to_q4_1(const float *x, uint8_t *block)
{
    float least = x[0], most = x[0];
    for (int k = 1; k < GROUP; k++) {
        least = fminf(least, x[k]);
        most = fmaxf(most, x[k]);
    }
    float step = (most - least) / 15.0f, inverse = inverse_of(step);
    uint8_t codes[GROUP];
    for (int k = 0; k < GROUP; k++)
        codes[k] = (uint8_t)fminf((x[k] - least) * inverse + 0.5f, 15.0f);
    store_half(block, step);
    store_half(block + 2, least);
    put_codes(codes, block + 4);
}

/* ---- blocks of 256 --------------------------------------------------------------------------- */

/* Plain products and sums in an order that does not depend on the number of lanes, so that all
 * levels choose the same codes. */
#define VECTORS (GROUP / LANES)

typedef struct {
    vf v[VECTORS];
} group_values;

ALWAYS_INLINE group_values load_group(const float *x)
{
    group_values values;
    UNROLL for (int i = 0; i < VECTORS; i++)
        values.v[i] = vf_load(x + i * LANES);
    return values;
}

ALWAYS_INLINE float group_sum(group_values values)
{
    UNROLL for (int width = VECTORS / 2; width; width /= 2)
        UNROLL for (int i = 0; i < width; i++)
            values.v[i] += values.v[i + width];
    return vf_sum(values.v[0]);
}

/* To the nearest whole number within [least, most]. */
ALWAYS_INLINE vf whole(vf x, float least, float most)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds */
    x = vf_min(vf_set(most), vf_max(vf_set(least), x));
    return (x + magic) - magic;
}

/* x is about step * code - minimum. */
typedef struct {
    float step, minimum;
} line;

ALWAYS_INLINE group_values choose_codes(group_values x, line fit)
{
    float inverse = inverse_of(fit.step);
    UNROLL for (int i = 0; i < VECTORS; i++)
        x.v[i] = whole((x.v[i] + fit.minimum) * inverse, 0.0f, 15.0f);
    return x;
}

ALWAYS_INLINE float squared_error(group_values x, line fit, group_values codes)
{
    UNROLL for (int i = 0; i < VECTORS; i++) {
        vf error = codes.v[i] * fit.step - fit.minimum - x.v[i];
        x.v[i] = error * error;
    }
    return group_sum(x);
}

ALWAYS_INLINE float sum_of_products(group_values a, group_values b)
{
    UNROLL for (int i = 0; i < VECTORS; i++)
        a.v[i] *= b.v[i];
    return group_sum(a);
}

/* The line through (code, x) of least squares whose minimum is not below 0. */
ALWAYS_INLINE line least_squares(group_values x, group_values codes)
{
    float sum_q = group_sum(codes), sum_x = group_sum(x);
    float sum_qq = sum_of_products(codes, codes), sum_qx = sum_of_products(codes, x);
    float spread = GROUP * sum_qq - sum_q * sum_q;
    line fit = {0.0f, -sum_x / GROUP};
    if (spread > 0.0f) {
        fit.step = (GROUP * sum_qx - sum_q * sum_x) / spread;
        fit.minimum = (fit.step * sum_q - sum_x) / GROUP;
    }
    if (fit.minimum < 0.0f) {
        fit.minimum = 0.0f;
        fit.step = sum_qq > 0.0f ? sum_qx / sum_qq : 0.0f;
    }
    fit.step = fmaxf(fit.step, 0.0f);
    return fit;
}

/* Starts from lines over more or less than the range of x, and betters each in turn. */
static line fit_group(const float *floats)
{
    float least = 0.0f, most = 0.0f;
    for (int k = 0; k < GROUP; k++) {
        least = floats[k] < least ? floats[k] : least;
        most = floats[k] > most ? floats[k] : most;
    }
    group_values x = load_group(floats);
    line best = {(most - least) / 15.0f, -least};
    float best_error = squared_error(x, best, choose_codes(x, best));
    for (int try = 0; try < 6; try++) {
        line fit = {(most - least) / (13.0f + 0.5f * (float)try), -least};
        for (int turn = 0; turn < 2; turn++) {
            fit = least_squares(x, choose_codes(x, fit));
            float error = squared_error(x, fit, choose_codes(x, fit));
            if (error < best_error) {
                best_error = error;
                best = fit;
            }
        }
    }
    return best;
}

/* Pair g of eight in 12 bytes: the upper two bits of the last four pairs are in the first four's. */
static void put_pair(uint8_t *bytes, int g, uint8_t step, uint8_t minimum)
{
    if (g < 4) {
        bytes[g] |= step;
        bytes[g + 4] |= minimum;
        return;
    }
    bytes[g + 4] = (uint8_t)((step & 15) | minimum << 4);
    bytes[g - 4] |= (uint8_t)(step >> 4 << 6);
    bytes[g] |= (uint8_t)(minimum >> 4 << 6);
}

static void to_q4_k(const float *x, uint8_t *block)
{
    line fits[SUPER / GROUP];
    float most_step = 0.0f, most_minimum = 0.0f;
    for (int g = 0; g < SUPER / GROUP; g++) {
        fits[g] = fit_group(x + g * GROUP);
        most_step = fmaxf(most_step, fits[g].step);
        most_minimum = fmaxf(most_minimum, fits[g].minimum);
    }
    memset(block, 0, Q4_K_BLOCK_BYTES);
    store_half(block, most_step / 63.0f);
    store_half(block + 2, most_minimum / 63.0f);
    float step = float_at(block), minimum = float_at(block + 2);
    for (int g = 0; g < SUPER / GROUP; g++) {
        float six = clamped(rintf(fits[g].step * inverse_of(step)), 0.0f, 63.0f);
        float other = clamped(rintf(fits[g].minimum * inverse_of(minimum)), 0.0f, 63.0f);
        put_pair(block + 4, g, (uint8_t)six, (uint8_t)other);
        line fit = {step * six, minimum * other};
        group_values codes = choose_codes(load_group(x + g * GROUP), fit);
        for (int k = 0; k < GROUP; k++) {
            int code = (int)codes.v[k / LANES][k % LANES];
            block[16 + g / 2 * GROUP + k] |= (uint8_t)(code << g % 2 * 4);
        }
    }
}

#define SIXTEEN 16 /* weights of Q6_K that share a scale */

/* The step, of either sign, whose codes of 6 bits err least. */
static float fit_step(const float *x)
{
    float most = 0.0f, best = 0.0f, best_error = INFINITY;
    for (int k = 0; k < SIXTEEN; k++)
        most = fabsf(x[k]) > fabsf(most) ? x[k] : most;
    for (int try = -8; try <= 8 && most != 0.0f; try++) {
        float step = most / (-32.0f + 0.25f * (float)try), inverse = 1.0f / step;
        vf sum = {0};
        UNROLL for (int k = 0; k < SIXTEEN; k += LANES) {
            vf miss = whole(vf_load(x + k) * inverse, -32.0f, 31.0f) * step - vf_load(x + k);
            sum += miss * miss;
        }
        float error = vf_sum(sum);
        if (error < best_error) {
            best_error = error;
            best = step;
        }
    }
    return best;
}

static void put_q6_code(uint8_t *block, int k, int code)
{
    int half = k / 128, i = k % 128;
    block[half * 64 + i % 64] |= (uint8_t)((code & 15) << i / 64 * 4);
    block[128 + half * 32 + i % 32] |= (uint8_t)(code >> 4 << i / 32 * 2);
}

static void to_q6_k(const float *x, uint8_t *block)
{
    float steps[SUPER / SIXTEEN], most = 0.0f;
    for (int i = 0; i < SUPER / SIXTEEN; i++) {
        steps[i] = fit_step(x + i * SIXTEEN);
        most = fabsf(steps[i]) > fabsf(most) ? steps[i] : most;
    }
    memset(block, 0, Q6_K_BLOCK_BYTES);
    store_half(block + 208, most / -128.0f);
    float outer = float_at(block + 208);
    for (int i = 0; i < SUPER / SIXTEEN; i++) {
        float scale = clamped(rintf(steps[i] * inverse_of(outer)), -128.0f, 127.0f);
        float inverse = inverse_of(outer * scale);
        block[192 + i] = (uint8_t)(int8_t)scale;
        for (int k = i * SIXTEEN; k < (i + 1) * SIXTEEN; k++)
            put_q6_code(block, k, (int)clamped(rintf(x[k] * inverse), -32.0f, 31.0f) + 32);
    }
}

static void quantize_blocks(int32_t kind, const float *x, int32_t in_features, uint8_t *blocks)
{
    const int32_t length = kind == OCT_Q4_K || kind == OCT_Q6_K ? SUPER : GROUP;
    const size_t bytes = oct_source_bytes(kind, length);
    for (int32_t k = 0; k < in_features; k += length, blocks += bytes) {
        switch (kind) {
        case OCT_Q4_0:
            to_q4_0(x + k, blocks);
            break;
        case OCT_Q4_1:
            to_q4_1(x + k, blocks);
            break;
        case OCT_Q8_0:
            to_q8_0(x + k, blocks);
            break;
        case OCT_Q4_K:
            to_q4_k(x + k, blocks);
            break;
        case OCT_Q6_K:
            to_q6_k(x + k, blocks);
            break;
        }
    }
}

void oct_quantize(int32_t kind, const float *rows, int32_t num_rows, int32_t in_features,
                  void *blocks)
{
    const size_t bytes = oct_source_bytes(kind, in_features);
#pragma omp parallel for schedule(static)
    for (int32_t i = 0; i < num_rows; i++)
        quantize_blocks(kind, rows + (size_t)i * (size_t)in_features, in_features,
                        (uint8_t *)blocks + (size_t)i * bytes);
}
