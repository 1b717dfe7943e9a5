/* One vector type, as wide as the machine level that this is compiled for.
 *
 * Kernels are written over `vf`, so that every level runs the same logic; what a level does in its
 * own instructions stands beside the same for all others. No contraction is left to the compiler: `vf_fma` is the machine's fused
 * operation where it has one, and two roundings where not, always.
 */
#ifndef OCTAVO_SIMD_H
#define OCTAVO_SIMD_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define LANES 8
#else
#define LANES 4
#endif

/* Whether there are matrix tiles, of bytes and of bfloat16. */
#if defined(__AMX_INT8__) && defined(__AMX_BF16__)
#define AMX 1
#else
#define AMX 0
#endif

/* Arrays that kernels read in whole vectors are padded to this many floats at every level. */
#define TILE 16
#define TILE_VECTORS (TILE / LANES)

#define UNROLL _Pragma("GCC unroll 16")
/* For loops whose bounds are known and that run seldom: their copies would take long to compile. */
#define NOT_UNROLLED _Pragma("GCC unroll 1")
#define ALWAYS_INLINE static inline __attribute__((always_inline))
/* For what hardly ever runs: one copy, small and quick to compile. */
#define RARE static __attribute__((noinline, cold))

typedef float vf __attribute__((vector_size(LANES * 4)));
typedef int32_t vi __attribute__((vector_size(LANES * 4)));

ALWAYS_INLINE vf vf_load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

ALWAYS_INLINE void vf_store(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}

ALWAYS_INLINE vf vf_set(float x)
{
    return x - (vf){0};
}

ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c)
{
#if LANES == 16
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif LANES == 8
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

/* LANES float16 in memory, as their bits. */
ALWAYS_INLINE vf vf_load_half(const uint16_t *p)
{
#if LANES == 16
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#elif LANES == 8
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
#else
    typedef uint16_t half_lanes __attribute__((vector_size(LANES * 2)));
    typedef uint32_t vu __attribute__((vector_size(LANES * 4)));
    half_lanes halves;
    memcpy(&halves, p, sizeof halves);
    vu bits = __builtin_convertvector(halves, vu);
    vu magnitude = (bits & 0x7fffu) << 13;
    /* Multiplying by 2^112 puts the exponent right, of subnormal numbers too. */
    vf value = (vf)magnitude * 0x1p112f;
    vu special = (vu)(magnitude >= 0x0f800000u); /* inf and NaN */
    vu found = (special & (magnitude | 0x7f800000u)) | (~special & (vu)value);
    return (vf)(found | (bits & 0x8000u) << 16);
#endif
}

/* To the nearest, ties to even. */
ALWAYS_INLINE uint16_t half_of(float x)
{
#if LANES >= 8
    return (uint16_t)_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
#else
    uint32_t bits;
    memcpy(&bits, &x, 4);
    uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x477ff000) /* 65520 and beyond */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) { /* subnormal: adding 0.5 leaves it in the lowest bits */
        float absolute, shifted;
        memcpy(&absolute, &magnitude, 4);
        shifted = absolute + 0.5f;
        memcpy(&magnitude, &shifted, 4);
        return (uint16_t)(sign | (magnitude - 0x3f000000));
    }
    magnitude += 0xfff + (magnitude >> 13 & 1);
    return (uint16_t)(sign | ((magnitude - 0x38000000) >> 13));
#endif
}

/* The `half`s of LANES pairs of bfloat16 in memory. */
ALWAYS_INLINE vf vf_load_bfloat16(const uint16_t *p, const int half)
{
    vi pairs;
    memcpy(&pairs, p, sizeof pairs);
    return (vf)(half ? pairs & (int32_t)0xffff0000 : pairs << 16);
}

/* To the nearest, ties to even. */
ALWAYS_INLINE uint16_t bfloat16_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

ALWAYS_INLINE vf vf_load_int8(const int8_t *p)
{
#if LANES == 16
    return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
#elif LANES == 8
    return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
#else
    typedef int8_t byte_lanes __attribute__((vector_size(LANES)));
    byte_lanes bytes;
    memcpy(&bytes, p, sizeof bytes);
    return __builtin_convertvector(bytes, vf);
#endif
}

ALWAYS_INLINE vf vf_select(vi mask, vf a, vf b)
{
    return (vf)((mask & (vi)a) | (~mask & (vi)b));
}

/* b where either is NaN. */
ALWAYS_INLINE vf vf_max(vf a, vf b)
{
#if LANES == 16
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif LANES == 8
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return vf_select(a > b, a, b);
#endif
}

/* b where either is NaN. */
ALWAYS_INLINE vf vf_min(vf a, vf b)
{
#if LANES == 16
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif LANES == 8
    return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return vf_select(a < b, a, b);
#endif
}

ALWAYS_INLINE vi vi_max(vi a, vi b)
{
#if LANES == 16
    return (vi)_mm512_max_epi32((__m512i)a, (__m512i)b);
#elif LANES == 8
    return (vi)_mm256_max_epi32((__m256i)a, (__m256i)b);
#else
    vi mask = a > b;
    return (mask & a) | (~mask & b);
#endif
}

ALWAYS_INLINE int32_t vi_largest(vi v)
{
#if LANES == 16
    return _mm512_reduce_max_epi32((__m512i)v);
#elif LANES == 8
    __m128i half = _mm_max_epi32(_mm256_castsi256_si128((__m256i)v),
                                 _mm256_extracti128_si256((__m256i)v, 1));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(half, _mm_shuffle_epi32(half, 0xb1)));
#else
    int32_t largest = v[0];
    for (int i = 1; i < LANES; i++)
        largest = v[i] > largest ? v[i] : largest;
    return largest;
#endif
}

ALWAYS_INLINE int32_t vi_sum(vi v)
{
#if LANES == 16
    return _mm512_reduce_add_epi32((__m512i)v);
#elif LANES == 8
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128((__m256i)v),
                                 _mm256_extracti128_si256((__m256i)v, 1));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1)));
#else
    int32_t sum = 0;
    for (int i = 0; i < LANES; i++)
        sum += v[i];
    return sum;
#endif
}

/* Whether a lane has a bit. */
ALWAYS_INLINE int vi_any(vi mask)
{
#if LANES == 16
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif LANES == 8
    return !_mm256_testz_si256((__m256i)mask, (__m256i)mask);
#else
    return (mask[0] | mask[1] | mask[2] | mask[3]) != 0;
#endif
}

/* The lanes in an order that is the same whatever was summed. */
ALWAYS_INLINE float vf_sum(vf v)
{
    float lanes[LANES];
    vf_store(lanes, v);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++)
            lanes[i] += lanes[i + width];
    return lanes[0];
}

ALWAYS_INLINE float vf_largest(vf v)
{
    float lanes[LANES];
    vf_store(lanes, v);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++)
            lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
    return lanes[0];
}

/* e^x as p * 2^n: x = n ln 2 + r with |r| <= ln 2 / 2, p the Taylor series of e^r to the 7th power. */
ALWAYS_INLINE vf vf_exp_parts(vf x, vi *n)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */
    vf shifted = vf_fma(x, vf_set(1.44269504088896341f), vf_set(magic));
    *n = (vi)shifted - (vi)vf_set(magic);
    vf whole = shifted - magic;
    vf r = vf_fma(whole, vf_set(-0.693145751953125f), x);
    r = vf_fma(whole, vf_set(-1.42860677e-6f), r);
    vf p = vf_set(1.98412698e-4f);
    p = vf_fma(p, r, vf_set(1.38888889e-3f));
    p = vf_fma(p, r, vf_set(8.33333333e-3f));
    p = vf_fma(p, r, vf_set(4.16666667e-2f));
    p = vf_fma(p, r, vf_set(1.66666667e-1f));
    p = vf_fma(p, r, vf_set(0.5f));
    p = vf_fma(p, r, vf_set(1.0f));
    return vf_fma(p, r, vf_set(1.0f));
}

/* e^x within 2 ulp; NaN stays NaN, 0 below the least subnormal, inf where it overflows. */
ALWAYS_INLINE vf vf_exp(vf x)
{
    vi n;
    vf p = vf_exp_parts(vf_min(vf_set(130.0f), vf_max(vf_set(-110.0f), x)), &n);
    /* 2^n in two factors, as n may be beyond the exponents of normal numbers. */
    vi half = n >> 1;
    return p * (vf)((half + 127) << 23) * (vf)((n - half + 127) << 23);
}

/* The same for x <= 0 in fewer instructions; 0 already where a result would be subnormal. */
ALWAYS_INLINE vf vf_exp_falling(vf x)
{
    vi n;
    vf p = vf_exp_parts(vf_max(vf_set(-87.3f), x), &n);
    return vf_select(x < -87.3f, (vf){0}, p * (vf)((n + 127) << 23));
}

/* 2^x for x <= 0 within 2 ulp, 1 for 0; 0 where a result would be subnormal. */
ALWAYS_INLINE vf vf_exp2_falling(vf x)
{
#if LANES == 16
    const int to_nearest = 8;
    const __mmask16 normal = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-126.0f), _CMP_GE_OQ);
    vf r = (vf)_mm512_reduce_ps((__m512)x, to_nearest);
#else
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */
    vf bounded = vf_max(vf_set(-127.0f), x);
    vf shifted = bounded + magic, r = bounded - (shifted - magic);
#endif
    vf p = vf_set(1.5337577497120947e-4f);
    p = vf_fma(p, r, vf_set(1.3399859890341759e-3f));
    p = vf_fma(p, r, vf_set(9.618519805371761e-3f));
    p = vf_fma(p, r, vf_set(5.550329014658928e-2f));
    p = vf_fma(p, r, vf_set(2.4022646248340607e-1f));
    p = vf_fma(p, r, vf_set(6.931471824645996e-1f));
    p = vf_fma(p, r, vf_set(1.0f));
#if LANES == 16
    return (vf)_mm512_maskz_scalef_ps(normal, (__m512)p, _mm512_sub_ps((__m512)x, (__m512)r));
#else
    vi n = (vi)shifted - (vi)vf_set(magic);
    return vf_select(x < -126.0f, (vf){0}, p * (vf)((n + 127) << 23));
#endif
}

ALWAYS_INLINE float float_exp(float x)
{
    return vf_exp(vf_set(x))[0];
}

#endif
