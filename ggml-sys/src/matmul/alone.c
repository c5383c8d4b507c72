// Products of quantised weights with one column, on AVX2. Four rows are read side by side, straight from ggml's blocks:
// unpacking sixteen of them into lanes (quant.c) pays off only where other columns use the result.
//
// The terms of an element are added in another order than by quant.c: its bits are others.

#include "columns.h"

#ifdef MATMUL_ALONE

#define GGML_COMMON_DECL_C
#include "ggml-common.h"

#include <stddef.h>

// Rows that are multiplied together.
#define ROWS 4

MATMUL_INLINE __m256i load(const void * p) { return _mm256_loadu_si256((const __m256i *) p); }

MATMUL_INLINE __m256i both(__m128i x) { return _mm256_broadcastsi128_si256(x); }

// The same, at this place: compilers that add in another order keep all terms, more than there are registers.
MATMUL_INLINE __m256i held(__m256i x) {
    __asm__("" : "+x"(x));
    return x;
}

MATMUL_INLINE float sum_of_4(__m128 x) {
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

MATMUL_INLINE float sum_of(__m256 x) {
    return sum_of_4(_mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)));
}

// Products of 32 codes with 32 bytes of the column, added in pairs. Signed codes: the sign goes to the second factor.
MATMUL_INLINE __m256i pairs(bool is_signed, __m256i codes, __m256i y) {
    return is_signed ? _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(y, codes))
                     : _mm256_maddubs_epi16(codes, y);
}

// 32 nibbles of 16 bytes: the low ones first.
MATMUL_INLINE __m256i nibbles(const void * p) {
    const __m128i x = _mm_loadu_si128((const __m128i *) p);
    const __m256i v = _mm256_inserti128_si256(_mm256_castsi128_si256(x), _mm_srli_epi16(x, 4), 1);
    return _mm256_and_si256(v, _mm256_set1_epi8(15));
}

// Bit i as the fifth bit of byte i.
MATMUL_INLINE __m256i fifth_bits(const void * p) {
    int32_t bits;
    memcpy(&bits, p, 4);
    const __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32(bits), _mm256_set_epi64x(
        0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0));
    const __m256i one_bit = _mm256_set1_epi64x(0x8040201008040201);
    const __m256i is_set  = _mm256_cmpeq_epi8(_mm256_and_si256(spread, one_bit), one_bit);
    return _mm256_and_si256(is_set, _mm256_set1_epi8(16));
}

MATMUL_INLINE __m256i look_up(__m256i codes) {
    return _mm256_shuffle_epi8(both(iq4_values()), codes);
}

// The block of each of the rows, of which some may be the same, and the weights that come after them.
struct blocks {
    const char * of[ROWS];
    const char * next;
};

// Goes to the next blocks, and prefetches as many bytes of the next weights: rows that are read side by side are a
// pattern that the hardware prefetcher does not detect.
MATMUL_INLINE void step(struct blocks * x, size_t bytes) {
    UNROLL for (int r = 0; r < ROWS; r++) {
        x->of[r] += bytes;
    }
    UNROLL for (size_t at = 0; at < ROWS * bytes; at += 64) {
        _mm_prefetch(x->next + at, _MM_HINT_T0);
    }
    x->next += ROWS * bytes;
}

// Four halves at an offset of the blocks.
MATMUL_INLINE __m128 halves(struct blocks x, size_t offset) {
    short h[ROWS];
    UNROLL for (int r = 0; r < ROWS; r++) {
        memcpy(&h[r], x.of[r] + offset, 2);
    }
    return _mm_cvtph_ps(_mm_setr_epi16(h[0], h[1], h[2], h[3], 0, 0, 0, 0));
}

// Adds the terms of a block to the sums of its row: products of codes times the row's scale.
MATMUL_INLINE void add_block(__m256 acc[ROWS], const __m256i products[ROWS], __m128 scales) {
    float each[ROWS];
    _mm_storeu_ps(each, scales);
    UNROLL for (int r = 0; r < ROWS; r++) {
        acc[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(products[r]), _mm256_set1_ps(each[r]), acc[r]);
    }
}

// ---------------------------------------------------------------- blocks of 32

// How a block of 32 looks.
struct small_format {
    size_t bytes;
    size_t min; // offset of the min; 0: there is none
    bool   is_signed;
};

typedef __m256i (*codes_fn)(const char * block);

MATMUL_INLINE __m256i codes_q8_0(const char * x) { return load(x + offsetof(block_q8_0, qs)); }
MATMUL_INLINE __m256i codes_q4_0(const char * x) { return nibbles(x + offsetof(block_q4_0, qs)); }
MATMUL_INLINE __m256i codes_q4_1(const char * x) { return nibbles(x + offsetof(block_q4_1, qs)); }
MATMUL_INLINE __m256i codes_q5_0(const char * x) {
    return _mm256_or_si256(nibbles(x + offsetof(block_q5_0, qs)), fifth_bits(x + offsetof(block_q5_0, qh)));
}
MATMUL_INLINE __m256i codes_q5_1(const char * x) {
    return _mm256_or_si256(nibbles(x + offsetof(block_q5_1, qs)), fifth_bits(x + offsetof(block_q5_1, qh)));
}
MATMUL_INLINE __m256i codes_iq4_nl(const char * x) { return look_up(nibbles(x + offsetof(block_iq4_nl, qs))); }

MATMUL_INLINE void multiply_small(const struct small_format f, codes_fn codes, const struct column_view * c, int64_t k,
                                  struct blocks x, float out[ROWS]) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m128 rest = _mm_setzero_ps();
    __m256 acc[ROWS];
    UNROLL for (int r = 0; r < ROWS; r++) {
        acc[r] = _mm256_setzero_ps();
    }
    for (int64_t b = 0; b < k / 32; b++) {
        const __m256i y      = load(c->codes + 32 * b);
        const __m128  scales = _mm_mul_ps(halves(x, 0), _mm_set1_ps(c->scales[b]));
        __m256i products[ROWS];
        UNROLL for (int r = 0; r < ROWS; r++) {
            products[r] = _mm256_madd_epi16(pairs(f.is_signed, codes(x.of[r]), y), ones);
        }
        add_block(acc, products, scales);
        if (f.min) {
            float sum;
            memcpy(&sum, &c->sums[b], 4);
            rest = _mm_fmadd_ps(halves(x, f.min), _mm_set1_ps(sum), rest);
        } else if (!f.is_signed) {
            rest = _mm_fmadd_ps(scales, _mm_set1_ps((float) c->sums[b]), rest);
        }
        step(&x, f.bytes);
    }
    float each[ROWS];
    _mm_storeu_ps(each, rest);
    UNROLL for (int r = 0; r < ROWS; r++) {
        out[r] = sum_of(acc[r]) + each[r];
    }
}

// ---------------------------------------------------------------- blocks of 256

// What the blocks have beside their codes. Scales: 16 bits for each of 16 groups, of which half h of the vector has that
// of group 2 i + h at i; of types with 8 groups each one in both halves.
struct heads {
    __m256i scales[ROWS];
    __m128  d;
    // Two rows each: products of mins with sums of the column, and what they are multiplied with.
    __m256i mins[ROWS / 2];
    __m256  d_mins[ROWS / 2];
};

MATMUL_INLINE __m256i scale_at(__m256i scales, int i) {
    return _mm256_shuffle_epi8(scales, _mm256_set1_epi16((short) (0x0100 + 0x0202 * i)));
}

// Sums of the 8 groups of a block as 16 bits, in both halves.
MATMUL_INLINE __m256i sums_of_8(const int32_t * sums) {
    const __m256i v = _mm256_cvtps_epi32(_mm256_loadu_ps((const float *) sums));
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(v, v), 0x88);
}

// Sums of the 16 groups of a block, each times -32, as sums of 16 bits in the order of scales.
MATMUL_INLINE __m256i sums_of_16(const int32_t * sums) {
    const __m256i a = _mm256_srai_epi32(load(sums), 5), b = _mm256_srai_epi32(load(sums + 8), 5);
    const __m256i v = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
    const __m128i order = _mm_set_epi64x(0x0f0e0b0a07060302, 0x0d0c090805040100);
    return _mm256_permute4x64_epi64(_mm256_shuffle_epi8(v, both(order)), 0xd8);
}

// Six bits for each of 8 scales and 8 mins: blocks begin with two halves and twelve bytes of them.
MATMUL_INLINE struct heads heads_of_mins(struct blocks x, __m256i sums) {
    __m128i v[ROWS];
    UNROLL for (int r = 0; r < ROWS; r++) {
        v[r] = _mm_loadu_si128((const __m128i *) x.of[r]);
    }
    const __m128i ab = _mm_unpacklo_epi32(v[0], v[1]), cd = _mm_unpacklo_epi32(v[2], v[3]);
    const __m128i ef = _mm_unpackhi_epi32(v[0], v[1]), gh = _mm_unpackhi_epi32(v[2], v[3]);
    // Four bytes of each row.
    const __m128i a = _mm_unpackhi_epi64(ab, cd), b = _mm_unpacklo_epi64(ef, gh), c = _mm_unpackhi_epi64(ef, gh);
    const __m128i low = _mm_set1_epi8(15), six = _mm_set1_epi8(63), top = _mm_set1_epi8(0x30);
    const __m128i scales_4 = _mm_and_si128(a, six), mins_4 = _mm_and_si128(b, six);
    const __m128i scales_8 = _mm_or_si128(_mm_and_si128(c, low), _mm_and_si128(_mm_srli_epi16(a, 2), top));
    const __m128i mins_8   = _mm_or_si128(_mm_and_si128(_mm_srli_epi16(c, 4), low),
                                          _mm_and_si128(_mm_srli_epi16(b, 2), top));
    // d and min of each row in turn.
    const __m256 d = _mm256_cvtph_ps(_mm_unpacklo_epi64(ab, cd));
    struct heads h;
    UNROLL for (int i = 0; i < 2; i++) {
        const __m128i scales = i ? _mm_unpackhi_epi32(scales_4, scales_8) : _mm_unpacklo_epi32(scales_4, scales_8);
        const __m128i mins   = i ? _mm_unpackhi_epi32(mins_4, mins_8) : _mm_unpacklo_epi32(mins_4, mins_8);
        const __m256i two    = _mm256_cvtepu8_epi16(scales);
        h.scales[2 * i]     = _mm256_permute2x128_si256(two, two, 0x00);
        h.scales[2 * i + 1] = _mm256_permute2x128_si256(two, two, 0x11);
        h.mins[i]   = _mm256_madd_epi16(_mm256_cvtepu8_epi16(mins), sums);
        h.d_mins[i] = _mm256_permutevar8x32_ps(d, i ? _mm256_setr_epi32(5, 5, 5, 5, 7, 7, 7, 7)
                                                    : _mm256_setr_epi32(1, 1, 1, 1, 3, 3, 3, 3));
    }
    h.d = _mm_shuffle_ps(_mm256_castps256_ps128(d), _mm256_extractf128_ps(d, 1), 0x88);
    return h;
}

MATMUL_INLINE struct heads heads_q6_K(struct blocks x, __m256i sums) {
    (void) sums;
    const __m128i order = _mm_set_epi64x(0x0f0d0b0907050301, 0x0e0c0a0806040200);
    struct heads h = { .d = halves(x, offsetof(block_q6_K, d)) };
    UNROLL for (int r = 0; r < ROWS; r++) {
        const __m128i all = _mm_loadu_si128((const __m128i *) (x.of[r] + offsetof(block_q6_K, scales)));
        h.scales[r] = _mm256_cvtepi8_epi16(_mm_shuffle_epi8(all, order));
    }
    return h;
}

MATMUL_INLINE struct heads heads_iq4_xs(struct blocks x, __m256i sums) {
    (void) sums;
    struct heads h = { .d = halves(x, 0) };
    UNROLL for (int r = 0; r < ROWS; r++) {
        uint32_t low;
        uint16_t high;
        memcpy(&low, x.of[r] + offsetof(block_iq4_xs, scales_l), 4);
        memcpy(&high, x.of[r] + offsetof(block_iq4_xs, scales_h), 2);
        const __m256i a = _mm256_srlv_epi32(_mm256_set1_epi32((int) low), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
        const __m256i b = _mm256_srlv_epi32(_mm256_set1_epi32(high), _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
        const __m256i six = _mm256_or_si256(_mm256_and_si256(a, _mm256_set1_epi32(15)),
                                            _mm256_slli_epi32(_mm256_and_si256(b, _mm256_set1_epi32(3)), 4));
        const __m256i scales = _mm256_sub_epi32(six, _mm256_set1_epi32(32));
        h.scales[r] = _mm256_permute4x64_epi64(_mm256_packs_epi32(scales, scales), 0x88);
    }
    return h;
}

// Codes 32 i to 32 i + 31 of a block.

MATMUL_INLINE __m256i codes_q4_K(const char * x, int i) {
    const __m256i v = load(x + offsetof(block_q4_K, qs) + 32 * (i / 2));
    return _mm256_and_si256(i % 2 ? _mm256_srli_epi16(v, 4) : v, _mm256_set1_epi8(15));
}

MATMUL_INLINE __m256i codes_q5_K(const char * x, int i) {
    const __m256i v    = load(x + offsetof(block_q5_K, qs) + 32 * (i / 2));
    const __m256i bits = _mm256_and_si256(load(x + offsetof(block_q5_K, qh)), _mm256_set1_epi8((char) (1 << i)));
    const __m256i low  = _mm256_and_si256(i % 2 ? _mm256_srli_epi16(v, 4) : v, _mm256_set1_epi8(15));
    return _mm256_or_si256(low, i < 4 ? _mm256_slli_epi16(bits, 4 - i) : _mm256_srli_epi16(bits, i - 4));
}

MATMUL_INLINE __m256i codes_q6_K(const char * x, int i) {
    const __m256i v    = load(x + offsetof(block_q6_K, ql) + 64 * (i / 4) + 32 * (i % 2));
    const __m256i high = load(x + offsetof(block_q6_K, qh) + 32 * (i / 4));
    const __m256i low  = _mm256_and_si256(i % 4 > 1 ? _mm256_srli_epi16(v, 4) : v, _mm256_set1_epi8(15));
    const int     up   = 4 - 2 * (i % 4);
    const __m256i bits = up >= 0 ? _mm256_slli_epi16(high, up) : _mm256_srli_epi16(high, -up);
    return _mm256_or_si256(low, _mm256_and_si256(bits, _mm256_set1_epi8(0x30)));
}

MATMUL_INLINE __m256i codes_iq4_xs(const char * x, int i) { return look_up(nibbles(x + offsetof(block_iq4_xs, qs) + 16 * i)); }

// How a block of 256 looks.
struct large_format {
    size_t bytes;
    int    group;
    bool   mins;
    bool   is_signed;
};

MATMUL_INLINE void multiply_large(const struct large_format f, struct heads (*heads)(struct blocks, __m256i),
                                  __m256i (*codes)(const char *, int), const struct column_view * c, int64_t k,
                                  struct blocks x, float out[ROWS]) {
    __m256 acc[ROWS], mins[ROWS / 2] = { _mm256_setzero_ps(), _mm256_setzero_ps() };
    UNROLL for (int r = 0; r < ROWS; r++) {
        acc[r] = _mm256_setzero_ps();
    }
    for (int64_t b = 0; b < k / QK_K; b++) {
        const int8_t *  y      = c->codes + QK_K * b;
        const int32_t * groups = c->sums + QK_K / f.group * b;
        const __m256i   sums   = f.mins ? sums_of_8(groups) : f.group == 16 ? sums_of_16(groups) : _mm256_setzero_si256();
        const struct heads h   = heads(x, sums);
        __m256i products[ROWS];
        UNROLL for (int r = 0; r < ROWS; r++) {
            // The code 32 means 0.
            __m256i sum = f.group == 16 ? _mm256_slli_epi32(_mm256_madd_epi16(h.scales[r], sums), 5) : _mm256_setzero_si256();
            UNROLL for (int i = 0; i < 8; i++) {
                const __m256i p = pairs(f.is_signed, codes(x.of[r], i), load(y + 32 * i));
                sum = held(_mm256_add_epi32(sum, _mm256_madd_epi16(p, scale_at(h.scales[r], i))));
            }
            products[r] = sum;
        }
        add_block(acc, products, _mm_mul_ps(h.d, _mm_set1_ps(c->scales[b])));
        if (f.mins) {
            UNROLL for (int i = 0; i < ROWS / 2; i++) {
                const __m256 d = _mm256_mul_ps(h.d_mins[i], _mm256_set1_ps(c->scales[b]));
                mins[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(h.mins[i]), d, mins[i]);
            }
        }
        step(&x, f.bytes);
    }
    UNROLL for (int r = 0; r < ROWS; r++) {
        const __m128 rest = r % 2 ? _mm256_extractf128_ps(mins[r / 2], 1) : _mm256_castps256_ps128(mins[r / 2]);
        out[r] = sum_of(acc[r]) - sum_of_4(rest);
    }
}

#define MULTIPLY(name, column_block, group, multiply, ...)                                                                 \
    void multiply_alone_##name(const struct matmul_job * job) {                                       \
        const struct column_view c = view_column(job, 0, 0, column_block, group); \
        for (int row = 0; row < job->n_rows; row += ROWS) {                                           \
            const int n = job->n_rows - row < ROWS ? job->n_rows - row : ROWS;                        \
            const char * first = job->rows + (size_t) row * job->row_stride;                          \
            struct blocks x = { .next = first + ROWS * job->row_stride };                              \
            for (int r = 0; r < ROWS; r++) {                                                          \
                x.of[r] = first + (size_t) (r < n ? r : 0) * job->row_stride;                         \
            }                                                                                         \
            float out[ROWS];                                                                          \
            multiply(format_##name, __VA_ARGS__, &c, job->k, x, out);                                 \
            memcpy(c.out + row, out, (size_t) n * sizeof(float));                                     \
        }                                                                                             \
    }

#define SMALL(name, min, is_signed)                                                                   \
    static const struct small_format format_##name = { sizeof(block_##name), min, is_signed };        \
    MULTIPLY(name, 32, 32, multiply_small, codes_##name)

#define LARGE(name, heads, group, mins, is_signed)                                                    \
    static const struct large_format format_##name = { sizeof(block_##name), group, mins, is_signed }; \
    MULTIPLY(name, QK_K, group, multiply_large, heads, codes_##name)

SMALL(q8_0, 0, true)
SMALL(q4_0, 0, false)
SMALL(q5_0, 0, false)
SMALL(iq4_nl, 0, true)
SMALL(q4_1, offsetof(block_q4_1, m), false)
SMALL(q5_1, offsetof(block_q5_1, m), false)
LARGE(q4_K, heads_of_mins, 32, true, false)
LARGE(q5_K, heads_of_mins, 32, true, false)
LARGE(q6_K, heads_q6_K, 16, false, false)
LARGE(iq4_xs, heads_iq4_xs, 32, false, true)

#endif
