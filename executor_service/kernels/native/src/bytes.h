/* Products of bytes, summed four to a lane: where the levels of machines differ most.
 *
 * The sums are whole numbers and exact, so every level has the same. Nothing saturates as long as
 * the callers keep to the bounds that are said here.
 */
#ifndef OCTAVO_BYTES_H
#define OCTAVO_BYTES_H

#include "simd.h"

#if LANES == 16 && !defined(__AVX512VNNI__)
#error "with AVX-512 the kernels also need VNNI"
#endif

typedef uint8_t vb __attribute__((vector_size(LANES * 4)));
typedef uint16_t vs __attribute__((vector_size(LANES * 4)));

ALWAYS_INLINE vb vb_load(const uint8_t *p)
{
    vb v;
    memcpy(&v, p, sizeof v);
    return v;
}

ALWAYS_INLINE void vb_store(uint8_t *p, vb v)
{
    memcpy(p, &v, sizeof v);
}

/* Bits of 16-bit lanes moved down, or up where `shift` is negative. */
ALWAYS_INLINE vb vb_shift(vb v, const int shift)
{
    return (vb)(shift >= 0 ? (vs)v >> shift : (vs)v << -shift);
}

/* The same four bytes in each lane. */
ALWAYS_INLINE vi splat_four(const void *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return four - (vi){0};
}

/* Byte b of each lane, and half h, with their signs. */
ALWAYS_INLINE vi byte_of(vi v, const int b)
{
    return v << (24 - 8 * b) >> 24;
}

ALWAYS_INLINE vi half_lane(vi v, const int h)
{
    return v << (16 - 16 * h) >> 16;
}

/* Keeps sums in the order they are written in: a compiler that gathers all products first, to add
 * them as a tree, has registers for a tenth of them. */
ALWAYS_INLINE vi vi_now(vi sums)
{
#if LANES == 8 || defined(__AVX512BW__)
    __asm__("" : "+x"(sums));
#endif
    return sums;
}

/* Sums that may still be in 16 bits, two to a lane. */
typedef vi partial_sums;

/* Adds codes[i] * x[i] for the four unsigned codes and signed x of each lane. The largest magnitude
 * of all that is added before `whole_sums` must be below 2^15 for each half of a lane. */
ALWAYS_INLINE partial_sums add_four(partial_sums sums, vb codes, vi x)
{
#if LANES == 16
    return vi_now((vi)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)codes, (__m512i)x));
#elif LANES == 8
    __m256i products = _mm256_maddubs_epi16((__m256i)codes, (__m256i)x);
    return vi_now((vi)_mm256_add_epi16((__m256i)sums, products));
#else
    UNROLL for (int b = 0; b < 4; b++)
        sums += (byte_of((vi)codes, b) & 255) * byte_of(x, b);
    return sums;
#endif
}

ALWAYS_INLINE vi whole_sums(partial_sums sums)
{
#if LANES == 8
    return (vi)_mm256_madd_epi16((__m256i)sums, _mm256_set1_epi16(1));
#else
    return sums;
#endif
}

/* The factor of `scaled_sums` from half h of each lane, a signed 16-bit number. */
ALWAYS_INLINE vi scale_of(vi pairs, const int h)
{
    vi scale = half_lane(pairs, h);
    return LANES == 8 ? (scale & 0xffff) | scale << 16 : scale;
}

ALWAYS_INLINE vi scaled_sums(partial_sums sums, vi scale)
{
#if LANES == 8
    return (vi)_mm256_madd_epi16((__m256i)sums, (__m256i)scale);
#else
    return sums * scale;
#endif
}

/* Pairs of signed bytes as pairs of 16-bit numbers, one to a lane. */
ALWAYS_INLINE vi load_pairs(const uint8_t *p)
{
#if LANES == 16
    return (vi)_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p));
#elif LANES == 8
    return (vi)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p));
#else
    int16_t shorts[LANES * 2];
    for (int i = 0; i < LANES * 2; i++)
        shorts[i] = (int8_t)p[i];
    vi pairs;
    memcpy(&pairs, shorts, sizeof pairs);
    return pairs;
#endif
}

/* Sums of the two products in each lane. */
ALWAYS_INLINE vi multiply_pairs(vi a, vi b)
{
#if LANES == 16
    return (vi)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif LANES == 8
    return (vi)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#else
    return half_lane(a, 0) * half_lane(b, 0) + half_lane(a, 1) * half_lane(b, 1);
#endif
}

/* Signed bytes lie SIGNED_TOGETHER to a lane. VNNI multiplies only unsigned bytes by signed ones, so
 * there they are stored with SIGNED_OFFSET added; AVX2 would saturate on such bytes, and multiplies
 * pairs of 16-bit numbers instead. */
#define SIGNED_TOGETHER (LANES == 8 ? 2 : 4)
#define SIGNED_OFFSET (LANES == 16 ? 128 : 0)

/* Adds bytes[i] * x[i]; x is two 16-bit numbers with AVX2, else four bytes. */
ALWAYS_INLINE vi add_signed(vi sums, const uint8_t *bytes, vi x)
{
#if LANES == 16
    return add_four(sums, vb_load(bytes), x);
#elif LANES == 8
    return vi_now(sums + multiply_pairs(load_pairs(bytes), x));
#else
    vi lanes = (vi)vb_load(bytes);
    UNROLL for (int b = 0; b < 4; b++)
        sums += byte_of(lanes, b) * byte_of(x, b);
    return sums;
#endif
}

#endif
