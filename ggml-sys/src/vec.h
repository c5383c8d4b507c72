// Sixteen floats at a time, on what the instruction set offers: AVX-512, AVX2 with FMA, or vectors of
// the compiler (GCC or Clang). Every operation rounds as its scalar form does, and sums have
// one fixed order, so that a result does not depend on how a caller groups its work.
#pragma once

#include <stdint.h>
#include <string.h>

#include "ggml.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define ALWAYS_INLINE static inline __attribute__((always_inline, unused))

// A fused multiplication is written as one, never made by the compiler's choice.
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

#define VEC_LEN 16

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

// Sums that fit into the registers together with the operands, and rows that share them.
#define VEC_SUMS 16
#define VEC_MAX_ROWS 4

typedef __m512 vec;

ALWAYS_INLINE vec  vec_set(float x) { return _mm512_set1_ps(x); }
ALWAYS_INLINE vec  vec_load(const float * p) { return _mm512_loadu_ps(p); }
ALWAYS_INLINE void vec_store(float * p, vec a) { _mm512_storeu_ps(p, a); }
ALWAYS_INLINE vec  vec_add(vec a, vec b) { return _mm512_add_ps(a, b); }
ALWAYS_INLINE vec  vec_sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
ALWAYS_INLINE vec  vec_mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
ALWAYS_INLINE vec  vec_div(vec a, vec b) { return _mm512_div_ps(a, b); }
ALWAYS_INLINE vec  vec_fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
// The larger; `b` if one is NaN.
ALWAYS_INLINE vec  vec_max(vec a, vec b) { return _mm512_max_ps(a, b); }
ALWAYS_INLINE vec  vec_abs(vec a) { return _mm512_abs_ps(a); }
ALWAYS_INLINE vec  vec_round(vec a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

// The same, in a register: a compiler that folds a load into each of its uses loads too often.
ALWAYS_INLINE vec vec_held(vec a) {
    __asm__("" : "+v"(a));
    return a;
}

// `y` where a < b, else `n`.
ALWAYS_INLINE vec vec_if_less(vec a, vec b, vec y, vec n) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), n, y);
}

// a * 2^n for a whole n of -126 to 127.
ALWAYS_INLINE vec vec_scale(vec a, vec n) { return _mm512_scalef_ps(a, n); }

ALWAYS_INLINE vec vec_f16(const void * p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) p)); }

ALWAYS_INLINE vec vec_bf16(const void * p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *) p)), 16));
}

ALWAYS_INLINE vec vec_i8(const void * p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *) p)));
}

// One half of each of 16 bytes, less 8.
ALWAYS_INLINE vec vec_nibbles(const void * p, int high) {
    __m128i bytes = _mm_loadu_si128((const __m128i *) p);
    bytes = _mm_and_si128(high ? _mm_srli_epi16(bytes, 4) : bytes, _mm_set1_epi8(15));
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_sub_epi8(bytes, _mm_set1_epi8(8))));
}

// One half-precision number, in all places.
ALWAYS_INLINE vec vec_f16_set(const void * p) {
    uint16_t bits;
    memcpy(&bits, p, sizeof(bits));
    return _mm512_cvtph_ps(_mm256_set1_epi16((short) bits));
}

ALWAYS_INLINE float vec_sum(vec a) {
    a = _mm512_add_ps(a, _mm512_permute_ps(a, 0x4E));
    a = _mm512_add_ps(a, _mm512_permute_ps(a, 0xB1));
    a = _mm512_add_ps(a, _mm512_shuffle_f32x4(a, a, 0x4E));
    a = _mm512_add_ps(a, _mm512_shuffle_f32x4(a, a, 0xB1));
    return _mm512_cvtss_f32(a);
}

ALWAYS_INLINE float vec_highest(vec a) { return _mm512_reduce_max_ps(a); }

// The sums of sixteen, each as `vec_sum` has it: element i is that of s[i].
ALWAYS_INLINE vec vec_sums(const vec * s) {
    vec t[8], u[4], w[2];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        t[i] = _mm512_add_ps(_mm512_unpacklo_ps(s[2*i], s[2*i + 1]), _mm512_unpackhi_ps(s[2*i], s[2*i + 1]));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m512d a = _mm512_castps_pd(t[2*i]), b = _mm512_castps_pd(t[2*i + 1]);
        u[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        w[i] = _mm512_add_ps(_mm512_shuffle_f32x4(u[2*i], u[2*i + 1], 0x44), _mm512_shuffle_f32x4(u[2*i], u[2*i + 1], 0xEE));
    }
    return _mm512_add_ps(_mm512_shuffle_f32x4(w[0], w[1], 0x88), _mm512_shuffle_f32x4(w[0], w[1], 0xDD));
}

// Stores the sums of VEC_SUMS vectors, as many to each row of `out`.
ALWAYS_INLINE void vec_store_sums(const vec * s, float * out, int rows, int stride) {
    vec sums = vec_sums(s);
    if (rows == 1) {
        vec_store(out, sums);
    } else if (rows == 2) {
        _mm256_storeu_ps(out, _mm512_castps512_ps256(sums));
        _mm256_storeu_ps(out + stride, _mm512_extractf32x8_ps(sums, 1));
    } else {
        _mm_storeu_ps(out, _mm512_castps512_ps128(sums));
        _mm_storeu_ps(out + stride, _mm512_extractf32x4_ps(sums, 1));
        _mm_storeu_ps(out + 2*stride, _mm512_extractf32x4_ps(sums, 2));
        _mm_storeu_ps(out + 3*stride, _mm512_extractf32x4_ps(sums, 3));
    }
}

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#define VEC_SUMS 4
#define VEC_MAX_ROWS 2

typedef struct { __m256 lo, hi; } vec;

ALWAYS_INLINE vec  vec_pair(__m256 lo, __m256 hi) { vec v = { lo, hi }; return v; }
ALWAYS_INLINE vec  vec_set(float x) { return vec_pair(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
ALWAYS_INLINE vec  vec_load(const float * p) { return vec_pair(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
ALWAYS_INLINE void vec_store(float * p, vec a) { _mm256_storeu_ps(p, a.lo); _mm256_storeu_ps(p + 8, a.hi); }
ALWAYS_INLINE vec  vec_add(vec a, vec b) { return vec_pair(_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)); }
ALWAYS_INLINE vec  vec_sub(vec a, vec b) { return vec_pair(_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)); }
ALWAYS_INLINE vec  vec_mul(vec a, vec b) { return vec_pair(_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)); }
ALWAYS_INLINE vec  vec_div(vec a, vec b) { return vec_pair(_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)); }
ALWAYS_INLINE vec  vec_max(vec a, vec b) { return vec_pair(_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)); }

ALWAYS_INLINE vec vec_fma(vec a, vec b, vec c) {
    return vec_pair(_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi));
}

ALWAYS_INLINE vec vec_abs(vec a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return vec_pair(_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi));
}

ALWAYS_INLINE vec vec_round(vec a) {
    const int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return vec_pair(_mm256_round_ps(a.lo, mode), _mm256_round_ps(a.hi, mode));
}

ALWAYS_INLINE vec vec_if_less(vec a, vec b, vec y, vec n) {
    return vec_pair(_mm256_blendv_ps(n.lo, y.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
                    _mm256_blendv_ps(n.hi, y.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)));
}

ALWAYS_INLINE __m256 vec_power(__m256 n) {
    const __m256i bias = _mm256_set1_epi32(127);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), bias), 23));
}

ALWAYS_INLINE vec vec_scale(vec a, vec n) { return vec_mul(a, vec_pair(vec_power(n.lo), vec_power(n.hi))); }

ALWAYS_INLINE vec vec_f16(const void * p) {
    const __m128i * h = (const __m128i *) p;
    return vec_pair(_mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_cvtph_ps(_mm_loadu_si128(h + 1)));
}

ALWAYS_INLINE __m256 vec_bf16_half(const __m128i * p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16));
}

ALWAYS_INLINE vec vec_bf16(const void * p) {
    return vec_pair(vec_bf16_half((const __m128i *) p), vec_bf16_half((const __m128i *) p + 1));
}

ALWAYS_INLINE vec vec_bytes(__m128i bytes) {
    return vec_pair(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
                    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))));
}

ALWAYS_INLINE vec vec_i8(const void * p) { return vec_bytes(_mm_loadu_si128((const __m128i *) p)); }

ALWAYS_INLINE vec vec_nibbles(const void * p, int high) {
    __m128i bytes = _mm_loadu_si128((const __m128i *) p);
    bytes = _mm_and_si128(high ? _mm_srli_epi16(bytes, 4) : bytes, _mm_set1_epi8(15));
    return vec_bytes(_mm_sub_epi8(bytes, _mm_set1_epi8(8)));
}

ALWAYS_INLINE vec vec_f16_set(const void * p) {
    uint16_t bits;
    memcpy(&bits, p, sizeof(bits));
    __m256 x = _mm256_cvtph_ps(_mm_set1_epi16((short) bits));
    return vec_pair(x, x);
}

ALWAYS_INLINE float vec_sum(vec a) {
    __m256 x = a.lo, y = a.hi;
    x = _mm256_add_ps(x, _mm256_permute_ps(x, 0x4E));
    y = _mm256_add_ps(y, _mm256_permute_ps(y, 0x4E));
    x = _mm256_add_ps(x, _mm256_permute_ps(x, 0xB1));
    y = _mm256_add_ps(y, _mm256_permute_ps(y, 0xB1));
    x = _mm256_add_ps(x, y);
    return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)));
}

ALWAYS_INLINE float vec_highest(vec a) {
    __m256 x = _mm256_max_ps(a.lo, a.hi);
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_permute_ps(y, 0x4E));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_permute_ps(y, 0xB1)));
}

#else

// Four quads, which the compiler maps to the instruction set.
typedef float    quad  __attribute__((vector_size(16)));
typedef int32_t  quad_i __attribute__((vector_size(16)));
typedef uint32_t quad_u __attribute__((vector_size(16)));

#if defined(__aarch64__)
#include <arm_neon.h>
#define VEC_SUMS 4
ALWAYS_INLINE quad quad_fma(quad a, quad b, quad c) { return (quad) vfmaq_f32((float32x4_t) c, (float32x4_t) a, (float32x4_t) b); }
#else
#define VEC_SUMS 2
ALWAYS_INLINE quad quad_fma(quad a, quad b, quad c) { return a * b + c; }
#endif
#define VEC_MAX_ROWS 2

typedef struct { quad q[4]; } vec;

#define VEC_EACH(expression) \
    vec r; { const int i = 0; r.q[i] = expression; } { const int i = 1; r.q[i] = expression; } \
           { const int i = 2; r.q[i] = expression; } { const int i = 3; r.q[i] = expression; } return r

ALWAYS_INLINE quad quad_set(float x) { return (quad) { x, x, x, x }; }
ALWAYS_INLINE quad quad_load(const float * p) { quad x; memcpy(&x, p, sizeof(x)); return x; }
ALWAYS_INLINE quad quad_pick(quad_i mask, quad y, quad n) { return (quad) ((mask & (quad_i) y) | (~mask & (quad_i) n)); }

ALWAYS_INLINE vec  vec_set(float x) { VEC_EACH(quad_set(x)); }
ALWAYS_INLINE vec  vec_load(const float * p) { VEC_EACH(quad_load(p + 4*i)); }
ALWAYS_INLINE void vec_store(float * p, vec a) { memcpy(p, a.q, sizeof(a.q)); }
ALWAYS_INLINE vec  vec_add(vec a, vec b) { VEC_EACH(a.q[i] + b.q[i]); }
ALWAYS_INLINE vec  vec_sub(vec a, vec b) { VEC_EACH(a.q[i] - b.q[i]); }
ALWAYS_INLINE vec  vec_mul(vec a, vec b) { VEC_EACH(a.q[i] * b.q[i]); }
ALWAYS_INLINE vec  vec_div(vec a, vec b) { VEC_EACH(a.q[i] / b.q[i]); }
ALWAYS_INLINE vec  vec_fma(vec a, vec b, vec c) { VEC_EACH(quad_fma(a.q[i], b.q[i], c.q[i])); }
ALWAYS_INLINE vec  vec_max(vec a, vec b) { VEC_EACH(quad_pick(a.q[i] > b.q[i], a.q[i], b.q[i])); }
ALWAYS_INLINE vec  vec_abs(vec a) { VEC_EACH((quad) ((quad_u) a.q[i] & 0x7fffffffu)); }
// Of numbers below 2^22: what is added leaves no room for a fraction.
ALWAYS_INLINE vec  vec_round(vec a) { VEC_EACH((a.q[i] + quad_set(0x1.8p23f)) - quad_set(0x1.8p23f)); }
ALWAYS_INLINE vec  vec_if_less(vec a, vec b, vec y, vec n) { VEC_EACH(quad_pick(a.q[i] < b.q[i], y.q[i], n.q[i])); }

ALWAYS_INLINE quad quad_power(quad n) { return (quad) ((__builtin_convertvector(n, quad_i) + 127) << 23); }
ALWAYS_INLINE vec  vec_scale(vec a, vec n) { VEC_EACH(a.q[i] * quad_power(n.q[i])); }

// Four 16-bit or 8-bit numbers.
ALWAYS_INLINE quad_u quad_u16(const void * p) {
    typedef uint16_t four __attribute__((vector_size(8)));
    four x;
    memcpy(&x, p, sizeof(x));
    return __builtin_convertvector(x, quad_u);
}

ALWAYS_INLINE quad quad_i8(const void * p) {
    const int8_t * x = p;
    return (quad) { x[0], x[1], x[2], x[3] };
}

ALWAYS_INLINE quad quad_nibbles(const void * p, int shift) {
    const uint8_t * x = p;
    return (quad) { (float) (x[0] >> shift & 15), (float) (x[1] >> shift & 15), (float) (x[2] >> shift & 15), (float) (x[3] >> shift & 15) } - quad_set(8.0f);
}

// Half precision: the exponent is moved by a product, which is exact; where all its bits are set they
// stay set.
ALWAYS_INLINE quad quad_f16(quad_u half) {
    const quad_u size = (half & 0x7fff) << 13;
    const quad_u special = (quad_u) (size >= 0x0f800000u) & 0x7f800000u;
    const quad_u number = (quad_u) ((quad) size * quad_set(0x1p112f));
    return (quad) (number | special | (half & 0x8000) << 16);
}

ALWAYS_INLINE vec vec_f16(const void * p) { VEC_EACH(quad_f16(quad_u16((const char *) p + 8*i))); }
ALWAYS_INLINE vec vec_bf16(const void * p) { VEC_EACH((quad) (quad_u16((const char *) p + 8*i) << 16)); }
ALWAYS_INLINE vec vec_i8(const void * p) { VEC_EACH(quad_i8((const char *) p + 4*i)); }
ALWAYS_INLINE vec vec_nibbles(const void * p, int high) { VEC_EACH(quad_nibbles((const char *) p + 4*i, high ? 4 : 0)); }

ALWAYS_INLINE vec vec_f16_set(const void * p) {
    uint16_t half;
    memcpy(&half, p, sizeof(half));
    VEC_EACH(quad_f16((quad_u) { half, half, half, half }));
}

ALWAYS_INLINE float quad_sum(quad a) { return (a[0] + a[2]) + (a[1] + a[3]); }
ALWAYS_INLINE float vec_sum(vec a) {
    return (quad_sum(a.q[0]) + quad_sum(a.q[2])) + (quad_sum(a.q[1]) + quad_sum(a.q[3]));
}

ALWAYS_INLINE float vec_highest(vec a) {
    float x = a.q[0][0];
    for (int i = 1; i < VEC_LEN; i++) x = a.q[i/4][i%4] > x ? a.q[i/4][i%4] : x;
    return x;
}

#undef VEC_EACH
#endif

#if VEC_SUMS != 16
// As many registers as this need not be held by hand.
ALWAYS_INLINE vec vec_held(vec a) { return a; }

ALWAYS_INLINE void vec_store_sums(const vec * s, float * out, int rows, int stride) {
    const int columns = VEC_SUMS / rows;
    for (int i = 0; i < VEC_SUMS; i++) {
        out[i / columns * stride + i % columns] = vec_sum(s[i]);
    }
}
#endif

// Sixteen elements from `16 * c` on of a row of type `type`, as floats.
ALWAYS_INLINE vec vec_row(int type, const char * row, int c) {
    switch (type) {
        case GGML_TYPE_F16:  return vec_f16(row + 32*c);
        case GGML_TYPE_BF16: return vec_bf16(row + 32*c);
        case GGML_TYPE_Q8_0: {
            const char * block = row + c/2*34;
            return vec_mul(vec_f16_set(block), vec_i8(block + 2 + c%2*16));
        }
        case GGML_TYPE_Q4_0: {
            const char * block = row + c/2*18;
            return vec_mul(vec_f16_set(block), vec_nibbles(block + 2, c%2));
        }
        default: return vec_load((const float *) (const void *) row + 16*c);
    }
}

// The last `n` < 16 elements of a row from `16 * c` on, zeros after them; types without blocks.
ALWAYS_INLINE vec vec_row_end(int type, const char * row, int c, int n) {
    const int size = type == GGML_TYPE_F32 ? 4 : 2;
    char elements[4*VEC_LEN] = { 0 };
    memcpy(elements, row + c*VEC_LEN*size, (size_t) (n*size));
    return vec_row(type, elements, 0);
}

// e^x for x <= 0, within 2 ulp; 0 below -87.
ALWAYS_INLINE vec vec_exp(vec x) {
    const vec low = vec_set(-87.0f);
    const vec y = vec_max(low, x);
    const vec n = vec_round(vec_mul(y, vec_set(0x1.715476p+0f)));
    vec r = vec_fma(n, vec_set(-0x1.62e400p-1f), y);
    r = vec_fma(n, vec_set(-0x1.7f7d1cp-20f), r);
    vec p = vec_set(0.0013814466074109077f);
    p = vec_fma(p, r, vec_set(0.008368780836462975f));
    p = vec_fma(p, r, vec_set(0.04166839271783829f));
    p = vec_fma(p, r, vec_set(0.1666651964187622f));
    p = vec_fma(p, r, vec_set(0.4999999403953552f));
    p = vec_fma(vec_mul(r, r), p, r);
    p = vec_scale(vec_add(p, vec_set(1.0f)), n);
    return vec_if_less(x, low, vec_set(0.0f), p);
}

// The hyperbolic tangent: a polynomial near 0, where the quotient would lose digits.
ALWAYS_INLINE vec vec_tanh(vec x) {
    const vec one = vec_set(1.0f), size = vec_abs(x), z = vec_mul(x, x);
    vec near = vec_set(-0.005717043299227953f);
    near = vec_fma(near, z, vec_set(0.020650586113333702f));
    near = vec_fma(near, z, vec_set(-0.05374349653720856f));
    near = vec_fma(near, z, vec_set(0.13331490755081177f));
    near = vec_fma(near, z, vec_set(-0.3333328366279602f));
    near = vec_fma(vec_mul(near, z), x, x);
    const vec e = vec_exp(vec_mul(size, vec_set(-2.0f)));
    const vec far = vec_div(vec_sub(one, e), vec_add(one, e));
    const vec zero = vec_set(0.0f);
    const vec sign = vec_if_less(x, zero, vec_sub(zero, far), far);
    return vec_if_less(size, vec_set(0.625f), near, sign);
}
