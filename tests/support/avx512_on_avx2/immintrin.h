/* The AVX-512 instructions that the kernels use, done by AVX2 in halves, so that machines without
 * them run the very code of that level. Found before the compiler's own header of this name. */
#ifndef AVX512_ON_AVX2_H
#define AVX512_ON_AVX2_H

#undef __AVX512F__
#undef __AVX512VNNI__
#include_next <immintrin.h>
#define __AVX512F__ 1
#define __AVX512VNNI__ 1

typedef union {
    __m512 floats;
    __m512i whole;
    __m256 float_halves[2];
    __m256i halves[2];
    int32_t lanes[16];
} m512_parts;

#define HALVES_OF_FLOATS(name, half)                                                               \
    static inline __m512 name(__m512 a, __m512 b)                                                  \
    {                                                                                              \
        m512_parts x = {.floats = a}, y = {.floats = b};                                           \
        for (int i = 0; i < 2; i++)                                                                \
            x.float_halves[i] = half(x.float_halves[i], y.float_halves[i]);                        \
        return x.floats;                                                                           \
    }

HALVES_OF_FLOATS(two_min_ps, _mm256_min_ps)
HALVES_OF_FLOATS(two_max_ps, _mm256_max_ps)

static inline __m512i two_max_epi32(__m512i a, __m512i b)
{
    m512_parts x = {.whole = a}, y = {.whole = b};
    for (int i = 0; i < 2; i++)
        x.halves[i] = _mm256_max_epi32(x.halves[i], y.halves[i]);
    return x.whole;
}

static inline int32_t two_reduce_max_epi32(__m512i a)
{
    m512_parts x = {.whole = a};
    int32_t largest = x.lanes[0];
    for (int i = 1; i < 16; i++)
        largest = x.lanes[i] > largest ? x.lanes[i] : largest;
    return largest;
}

static inline int32_t two_reduce_add_epi32(__m512i a)
{
    m512_parts x = {.whole = a};
    int32_t sum = 0;
    for (int i = 0; i < 16; i++)
        sum += x.lanes[i];
    return sum;
}

static inline __m512 two_fmadd_ps(__m512 a, __m512 b, __m512 c)
{
    m512_parts x = {.floats = a}, y = {.floats = b}, z = {.floats = c};
    for (int i = 0; i < 2; i++)
        x.float_halves[i] =
            _mm256_fmadd_ps(x.float_halves[i], y.float_halves[i], z.float_halves[i]);
    return x.floats;
}

static inline __m512 two_cvtph_ps(__m256i halves)
{
    m512_parts y;
    y.float_halves[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
    y.float_halves[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
    return y.floats;
}

static inline __m512i two_cvtepi8_epi32(__m128i bytes)
{
    m512_parts y = {.halves = {_mm256_cvtepi8_epi32(bytes),
                               _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))}};
    return y.whole;
}

static inline __m512i two_cvtepu8_epi32(__m128i bytes)
{
    m512_parts y = {.halves = {_mm256_cvtepu8_epi32(bytes),
                               _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))}};
    return y.whole;
}

static inline __m512i two_cvtepi8_epi16(__m256i bytes)
{
    m512_parts y = {.halves = {_mm256_cvtepi8_epi16(_mm256_castsi256_si128(bytes)),
                               _mm256_cvtepi8_epi16(_mm256_extracti128_si256(bytes, 1))}};
    return y.whole;
}

static inline __m512 two_cvtepi32_ps(__m512i whole)
{
    m512_parts x = {.whole = whole};
    for (int i = 0; i < 2; i++)
        x.float_halves[i] = _mm256_cvtepi32_ps(x.halves[i]);
    return x.floats;
}

static inline __m512i two_madd_epi16(__m512i a, __m512i b)
{
    m512_parts x = {.whole = a}, y = {.whole = b};
    for (int i = 0; i < 2; i++)
        x.halves[i] = _mm256_madd_epi16(x.halves[i], y.halves[i]);
    return x.whole;
}

static inline __mmask16 two_test_epi32_mask(__m512i a, __m512i b)
{
    m512_parts x = {.whole = a}, y = {.whole = b};
    unsigned mask = 0;
    for (int i = 0; i < 16; i++)
        mask |= (unsigned)((x.lanes[i] & y.lanes[i]) != 0) << i;
    return (__mmask16)mask;
}

/* Four products of an unsigned byte of a and a signed one of b to each lane. */
static inline __m512i two_dpbusd_epi32(__m512i sums, __m512i a, __m512i b)
{
    m512_parts x = {.whole = a}, y = {.whole = b}, z = {.whole = sums};
    const __m256i even = _mm256_set1_epi16(0xff);
    for (int i = 0; i < 2; i++) {
        __m256i low = _mm256_and_si256(x.halves[i], even), high = _mm256_srli_epi16(x.halves[i], 8);
        __m256i signed_low = _mm256_srai_epi16(_mm256_slli_epi16(y.halves[i], 8), 8);
        __m256i signed_high = _mm256_srai_epi16(y.halves[i], 8);
        z.halves[i] = _mm256_add_epi32(z.halves[i], _mm256_madd_epi16(low, signed_low));
        z.halves[i] = _mm256_add_epi32(z.halves[i], _mm256_madd_epi16(high, signed_high));
    }
    return z.whole;
}

#define _mm512_min_ps two_min_ps
#define _mm512_max_ps two_max_ps
#define _mm512_max_epi32 two_max_epi32
#define _mm512_reduce_max_epi32 two_reduce_max_epi32
#define _mm512_reduce_add_epi32 two_reduce_add_epi32
#define _mm512_fmadd_ps two_fmadd_ps
#define _mm512_cvtph_ps two_cvtph_ps
#define _mm512_cvtepi8_epi32 two_cvtepi8_epi32
#define _mm512_cvtepu8_epi32 two_cvtepu8_epi32
#define _mm512_cvtepi8_epi16 two_cvtepi8_epi16
#define _mm512_cvtepi32_ps two_cvtepi32_ps
#define _mm512_madd_epi16 two_madd_epi16
#define _mm512_test_epi32_mask two_test_epi32_mask
#define _mm512_dpbusd_epi32 two_dpbusd_epi32

#endif
