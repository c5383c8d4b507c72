// Sixteen 32-bit lanes of integers, one for each row of a tile of quantised weights, on what the instruction set
// offers: AVX-512 with VNNI, or AVX2. Sixteen floats are a `vec` (vec.h). Elsewhere there are no lanes.
#pragma once

#include "matmul.h"
#include "../vec.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && \
    defined(__AVX512DQ__) && defined(__AVX512VNNI__)
#define MATMUL_LANES 1

// Columns whose sums fit into the registers together.
#define LANES_COLUMNS 8

// Columns at most that are multiplied with codes as these are unpacked.
#define LANES_DIRECT 4

// Codes of 8 bits are unsigned, 128 being zero.
#define LANES_ZERO 128

typedef __m512i lanes;

MATMUL_INLINE lanes lanes_set(int32_t x) { return _mm512_set1_epi32(x); }
MATMUL_INLINE lanes lanes_bytes(int x) { return _mm512_set1_epi8((char) x); }
MATMUL_INLINE lanes lanes_load(const void * p) { return _mm512_load_si512(p); }
// From any address.
MATMUL_INLINE lanes lanes_load_any(const void * p) { return _mm512_loadu_si512(p); }
MATMUL_INLINE void  lanes_store(void * p, lanes a) { _mm512_store_si512(p, a); }
MATMUL_INLINE void  lanes_store_any(void * p, lanes a) { _mm512_storeu_si512(p, a); }
MATMUL_INLINE lanes lanes_and(lanes a, lanes b) { return _mm512_and_si512(a, b); }
MATMUL_INLINE lanes lanes_or(lanes a, lanes b) { return _mm512_or_si512(a, b); }
MATMUL_INLINE lanes lanes_xor(lanes a, lanes b) { return _mm512_xor_si512(a, b); }
MATMUL_INLINE lanes lanes_add(lanes a, lanes b) { return _mm512_add_epi32(a, b); }
MATMUL_INLINE lanes lanes_sub(lanes a, lanes b) { return _mm512_sub_epi32(a, b); }
MATMUL_INLINE lanes lanes_left(lanes a, int n) { return _mm512_slli_epi32(a, n); }
MATMUL_INLINE lanes lanes_right(lanes a, int n) { return _mm512_srli_epi32(a, n); }
// Keeps the sign.
MATMUL_INLINE lanes lanes_right_signed(lanes a, int n) { return _mm512_srai_epi32(a, n); }
// Within each half of a lane.
MATMUL_INLINE lanes lanes_left16(lanes a, int n) { return _mm512_slli_epi16(a, n); }
MATMUL_INLINE lanes lanes_right16(lanes a, int n) { return _mm512_srli_epi16(a, n); }
// Byte i becomes the table's entry that it names.
MATMUL_INLINE lanes lanes_look_up(__m128i table, lanes a) { return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), a); }
MATMUL_INLINE vec   lanes_float(lanes a) { return _mm512_cvtepi32_ps(a); }
// Lanes as the bits of floats.
MATMUL_INLINE vec   lanes_as_floats(lanes a) { return _mm512_castsi512_ps(a); }
MATMUL_INLINE lanes lanes_of_bytes(__m128i a) { return _mm512_cvtepu8_epi32(a); }
// The lower half of each lane, a half float.
MATMUL_INLINE vec   lanes_half(lanes a) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(a)); }
// Two times eight half floats.
MATMUL_INLINE vec   lanes_halves(__m128i lo, __m128i hi) { return _mm512_cvtph_ps(_mm256_set_m128i(hi, lo)); }

// A 16 x 16 matrix, transposed.
MATMUL_INLINE void lanes_transpose(lanes v[16]) {
    lanes a[16], b[16];
    for (int i = 0; i < 8; i++) {
        a[2 * i]     = _mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
        a[2 * i + 1] = _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++) {
        b[4 * i]     = _mm512_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 1] = _mm512_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 2] = _mm512_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
        b[4 * i + 3] = _mm512_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
    }
    // b[4 i + j], 128-bit lane l: column 4 l + j of rows 4 i .. 4 i + 3.
    for (int j = 0; j < 4; j++) {
        a[j]      = _mm512_shuffle_i32x4(b[j], b[4 + j], 0x88);
        a[4 + j]  = _mm512_shuffle_i32x4(b[j], b[4 + j], 0xdd);
        a[8 + j]  = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0x88);
        a[12 + j] = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0xdd);
    }
    for (int j = 0; j < 4; j++) {
        v[j]      = _mm512_shuffle_i32x4(a[j], a[8 + j], 0x88);
        v[8 + j]  = _mm512_shuffle_i32x4(a[j], a[8 + j], 0xdd);
        v[4 + j]  = _mm512_shuffle_i32x4(a[4 + j], a[12 + j], 0x88);
        v[12 + j] = _mm512_shuffle_i32x4(a[4 + j], a[12 + j], 0xdd);
    }
}

// 16 bytes at `offset` of each of 16 rows as four vectors.
MATMUL_INLINE void lanes_gather16(const char * const rows[16], size_t offset, lanes out[4]) {
    lanes v[4];
    for (int i = 0; i < 4; i++) {
        lanes x = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *) (rows[i] + offset)));
        x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *) (rows[i + 4] + offset)), 1);
        x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *) (rows[i + 8] + offset)), 2);
        v[i] = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *) (rows[i + 12] + offset)), 3);
    }
    const lanes a = _mm512_unpacklo_epi32(v[0], v[1]);
    const lanes b = _mm512_unpackhi_epi32(v[0], v[1]);
    const lanes c = _mm512_unpacklo_epi32(v[2], v[3]);
    const lanes d = _mm512_unpackhi_epi32(v[2], v[3]);
    out[0] = _mm512_unpacklo_epi64(a, c);
    out[1] = _mm512_unpackhi_epi64(a, c);
    out[2] = _mm512_unpacklo_epi64(b, d);
    out[3] = _mm512_unpackhi_epi64(b, d);
}

// 32 bytes at `low` and 32 at `high` of each row as sixteen vectors.
MATMUL_INLINE void lanes_gather32(const char * const rows[16], size_t low, size_t high, lanes v[16]) {
    UNROLL for (int r = 0; r < 16; r++) {
        const __m256i lo = _mm256_loadu_si256((const __m256i *) (rows[r] + low));
        v[r] = _mm512_inserti64x4(_mm512_castsi256_si512(lo), _mm256_loadu_si256((const __m256i *) (rows[r] + high)), 1);
    }
    lanes_transpose(v);
}

// 64 bytes at `offset` of each row as sixteen vectors.
MATMUL_INLINE void lanes_gather64(const char * const rows[16], size_t offset, lanes v[16]) {
    UNROLL for (int r = 0; r < 16; r++) {
        v[r] = _mm512_loadu_si512((const void *) (rows[r] + offset));
    }
    lanes_transpose(v);
}

// Adds the products of `quads` lanes of codes, which are below 2^bits, with the bytes of C columns.
MATMUL_INLINE void lanes_add_products(const int C, const int quads, const int bits, const uint8_t (*codes)[16][4],
                                      const int8_t * const columns[], lanes sums[]) {
    (void) bits;
    for (int q = 0; q < quads; q++) {
        const lanes x = lanes_load(codes[q]);
        for (int i = 0; i < C; i++) {
            int32_t y;
            memcpy(&y, columns[i] + 4 * q, 4);
            sums[i] = _mm512_dpbusd_epi32(sums[i], x, _mm512_set1_epi32(y));
        }
    }
}

// Byte `i` of each lane in all four bytes.
MATMUL_INLINE lanes lanes_spread(lanes a, int i) {
    const __m128i four = _mm_add_epi8(_mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12), _mm_set1_epi8((char) i));
    return _mm512_shuffle_epi8(a, _mm512_broadcast_i32x4(four));
}

// `a` plus `y` in the bytes of which `x` has the bit that `bits` has there.
MATMUL_INLINE lanes lanes_add_where(lanes a, lanes x, int32_t bits, int y) {
    return _mm512_mask_add_epi8(a, _mm512_test_epi8_mask(x, lanes_set(bits)), a, lanes_bytes(y));
}

// `a` with the opposite sign in the bytes of which `x` has the bit that `bits` has there.
MATMUL_INLINE lanes lanes_negate_where(lanes a, lanes x, int32_t bits) {
    return _mm512_mask_sub_epi8(a, _mm512_test_epi8_mask(x, lanes_set(bits)), _mm512_setzero_si512(), a);
}

// The words of a table at the indices.
MATMUL_INLINE lanes lanes_table(const uint32_t * table, lanes at) { return _mm512_i32gather_epi32(at, (const int *) table, 4); }

// A sum of products, as it grows.
struct lanes_sum {
    lanes all;
};

// Adds the products of lanes of four codes, below 2^bits, with four bytes of a column. `at`: how many were added before.
MATMUL_INLINE void lanes_add_product(const int bits, const int at, struct lanes_sum * sum, lanes codes, const int8_t * y) {
    (void) bits, (void) at;
    int32_t four;
    memcpy(&four, y, 4);
    sum->all = _mm512_dpbusd_epi32(sum->all, codes, _mm512_set1_epi32(four));
}

// The first `n` floats, zeros after them.
MATMUL_INLINE vec lanes_load_some(const float * p, int n) {
    return _mm512_maskz_loadu_ps((__mmask16) ((1u << n) - 1), p);
}

MATMUL_INLINE void lanes_store_some(float * p, vec a, int n) {
    _mm512_mask_storeu_ps(p, (__mmask16) ((1u << n) - 1), a);
}

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && !defined(__AVX512F__)
#define MATMUL_LANES 1

#define LANES_COLUMNS 4

#define LANES_DIRECT 2

// There are functions of their own for products with one column.
#define MATMUL_ALONE 1

// Codes of 8 bits are signed.
#define LANES_ZERO 0

typedef struct { __m256i lo, hi; } lanes;

MATMUL_INLINE lanes lanes_pair(__m256i lo, __m256i hi) { return (lanes) { lo, hi }; }

#define LANES_BOTH(f) lanes_pair(f(a.lo, b.lo), f(a.hi, b.hi))
#define LANES_SHIFT(f) lanes_pair(f(a.lo, n), f(a.hi, n))

MATMUL_INLINE lanes lanes_set(int32_t x) { return lanes_pair(_mm256_set1_epi32(x), _mm256_set1_epi32(x)); }
MATMUL_INLINE lanes lanes_bytes(int x) { return lanes_pair(_mm256_set1_epi8((char) x), _mm256_set1_epi8((char) x)); }
MATMUL_INLINE lanes lanes_load(const void * p) {
    return lanes_pair(_mm256_load_si256((const __m256i *) p), _mm256_load_si256((const __m256i *) p + 1));
}
MATMUL_INLINE lanes lanes_load_any(const void * p) {
    return lanes_pair(_mm256_loadu_si256((const __m256i *) p), _mm256_loadu_si256((const __m256i *) p + 1));
}
MATMUL_INLINE void  lanes_store(void * p, lanes a) {
    _mm256_store_si256((__m256i *) p, a.lo);
    _mm256_store_si256((__m256i *) p + 1, a.hi);
}
MATMUL_INLINE void  lanes_store_any(void * p, lanes a) {
    _mm256_storeu_si256((__m256i *) p, a.lo);
    _mm256_storeu_si256((__m256i *) p + 1, a.hi);
}
MATMUL_INLINE lanes lanes_and(lanes a, lanes b) { return LANES_BOTH(_mm256_and_si256); }
MATMUL_INLINE lanes lanes_or(lanes a, lanes b) { return LANES_BOTH(_mm256_or_si256); }
MATMUL_INLINE lanes lanes_xor(lanes a, lanes b) { return LANES_BOTH(_mm256_xor_si256); }
MATMUL_INLINE lanes lanes_sub(lanes a, lanes b) { return LANES_BOTH(_mm256_sub_epi32); }
MATMUL_INLINE lanes lanes_left(lanes a, int n) { return LANES_SHIFT(_mm256_slli_epi32); }
MATMUL_INLINE lanes lanes_right(lanes a, int n) { return LANES_SHIFT(_mm256_srli_epi32); }
MATMUL_INLINE lanes lanes_right_signed(lanes a, int n) { return LANES_SHIFT(_mm256_srai_epi32); }
MATMUL_INLINE lanes lanes_left16(lanes a, int n) { return LANES_SHIFT(_mm256_slli_epi16); }
MATMUL_INLINE lanes lanes_right16(lanes a, int n) { return LANES_SHIFT(_mm256_srli_epi16); }
MATMUL_INLINE lanes lanes_look_up(__m128i table, lanes a) {
    const __m256i both = _mm256_broadcastsi128_si256(table);
    return lanes_pair(_mm256_shuffle_epi8(both, a.lo), _mm256_shuffle_epi8(both, a.hi));
}
MATMUL_INLINE vec   lanes_float(lanes a) { return vec_pair(_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)); }
MATMUL_INLINE vec   lanes_as_floats(lanes a) { return vec_pair(_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)); }
MATMUL_INLINE lanes lanes_of_bytes(__m128i a) {
    return lanes_pair(_mm256_cvtepu8_epi32(a), _mm256_cvtepu8_epi32(_mm_srli_si128(a, 8)));
}
MATMUL_INLINE vec   lanes_half(lanes a) {
    a = lanes_and(a, lanes_set(0xffff));
    const __m256i h = _mm256_permute4x64_epi64(_mm256_packus_epi32(a.lo, a.hi), 0xd8);
    return vec_pair(_mm256_cvtph_ps(_mm256_castsi256_si128(h)), _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1)));
}
MATMUL_INLINE vec   lanes_halves(__m128i lo, __m128i hi) { return vec_pair(_mm256_cvtph_ps(lo), _mm256_cvtph_ps(hi)); }

// 16 bytes at `offset` of each of 8 rows as four vectors.
MATMUL_INLINE void lanes_gather16_half(const char * const rows[8], size_t offset, __m256i out[4]) {
    __m256i v[4];
    for (int i = 0; i < 4; i++) {
        const __m128i * low  = (const __m128i *) (rows[i] + offset);
        const __m128i * high = (const __m128i *) (rows[i + 4] + offset);
        v[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(low)), _mm_loadu_si128(high), 1);
    }
    const __m256i a = _mm256_unpacklo_epi32(v[0], v[1]);
    const __m256i b = _mm256_unpackhi_epi32(v[0], v[1]);
    const __m256i c = _mm256_unpacklo_epi32(v[2], v[3]);
    const __m256i d = _mm256_unpackhi_epi32(v[2], v[3]);
    out[0] = _mm256_unpacklo_epi64(a, c);
    out[1] = _mm256_unpackhi_epi64(a, c);
    out[2] = _mm256_unpacklo_epi64(b, d);
    out[3] = _mm256_unpackhi_epi64(b, d);
}

MATMUL_INLINE void lanes_gather16(const char * const rows[16], size_t offset, lanes out[4]) {
    __m256i lo[4], hi[4];
    lanes_gather16_half(rows, offset, lo);
    lanes_gather16_half(rows + 8, offset, hi);
    for (int i = 0; i < 4; i++) {
        out[i] = lanes_pair(lo[i], hi[i]);
    }
}

MATMUL_INLINE void lanes_gather32(const char * const rows[16], size_t low, size_t high, lanes v[16]) {
    lanes_gather16(rows, low, v);
    lanes_gather16(rows, low + 16, v + 4);
    lanes_gather16(rows, high, v + 8);
    lanes_gather16(rows, high + 16, v + 12);
}

MATMUL_INLINE void lanes_gather64(const char * const rows[16], size_t offset, lanes v[16]) {
    lanes_gather32(rows, offset, offset + 32, v);
}

// Products of a lane's four codes with four bytes of a column, added in pairs. The first factor is unsigned: the sign of
// a signed code goes to the second one.
MATMUL_INLINE lanes lanes_pairs(const int bits, lanes codes, const int8_t * four) {
    int32_t bytes;
    memcpy(&bytes, four, 4);
    const __m256i y = _mm256_set1_epi32(bytes);
    return bits == 8 ? lanes_pair(_mm256_maddubs_epi16(_mm256_abs_epi8(codes.lo), _mm256_sign_epi8(y, codes.lo)),
                                  _mm256_maddubs_epi16(_mm256_abs_epi8(codes.hi), _mm256_sign_epi8(y, codes.hi)))
                     : lanes_pair(_mm256_maddubs_epi16(codes.lo, y), _mm256_maddubs_epi16(codes.hi, y));
}

// Byte `i` of each lane in all four bytes.
MATMUL_INLINE lanes lanes_spread(lanes a, int i) {
    const __m128i four = _mm_add_epi8(_mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12), _mm_set1_epi8((char) i));
    const __m256i both = _mm256_broadcastsi128_si256(four);
    return lanes_pair(_mm256_shuffle_epi8(a.lo, both), _mm256_shuffle_epi8(a.hi, both));
}

MATMUL_INLINE __m256i lanes_add_where_half(__m256i a, __m256i x, __m256i bits, int y) {
    const __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(x, bits), bits);
    return _mm256_add_epi8(a, _mm256_and_si256(is_set, _mm256_set1_epi8((char) y)));
}

// `a` plus `y` in the bytes of which `x` has the bit that `bits` has there.
MATMUL_INLINE lanes lanes_add_where(lanes a, lanes x, int32_t bits, int y) {
    const __m256i b = _mm256_set1_epi32(bits);
    return lanes_pair(lanes_add_where_half(a.lo, x.lo, b, y), lanes_add_where_half(a.hi, x.hi, b, y));
}

MATMUL_INLINE __m256i lanes_negate_where_half(__m256i a, __m256i x, __m256i bits) {
    const __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(x, bits), bits);
    return _mm256_sub_epi8(_mm256_xor_si256(a, is_set), is_set);
}

// `a` with the opposite sign in the bytes of which `x` has the bit that `bits` has there.
MATMUL_INLINE lanes lanes_negate_where(lanes a, lanes x, int32_t bits) {
    const __m256i b = _mm256_set1_epi32(bits);
    return lanes_pair(lanes_negate_where_half(a.lo, x.lo, b), lanes_negate_where_half(a.hi, x.hi, b));
}

// The words of a table at the indices.
MATMUL_INLINE lanes lanes_table(const uint32_t * table, lanes at) {
    return lanes_pair(_mm256_i32gather_epi32((const int *) table, at.lo, 4), _mm256_i32gather_epi32((const int *) table, at.hi, 4));
}

// Lanes of products that may be added in 16 bits: 2 * 127 * (2^bits - 1) * run < 2^15. Groups have a multiple of so many.
MATMUL_INLINE int lanes_run(const int bits) { return bits == 4 ? 8 : bits <= 5 ? 4 : bits == 6 ? 2 : 1; }

struct lanes_sum {
    lanes all, run;
};

MATMUL_INLINE void lanes_add_product(const int bits, const int at, struct lanes_sum * sum, lanes codes, const int8_t * y) {
    const __m256i ones = _mm256_set1_epi16(1);
    const int run = lanes_run(bits);
    const lanes p = lanes_pairs(bits, codes, y);
    sum->run = at % run == 0 ? p : lanes_pair(_mm256_add_epi16(sum->run.lo, p.lo), _mm256_add_epi16(sum->run.hi, p.hi));
    if (at % run == run - 1) {
        sum->all = lanes_pair(_mm256_add_epi32(sum->all.lo, _mm256_madd_epi16(sum->run.lo, ones)),
                              _mm256_add_epi32(sum->all.hi, _mm256_madd_epi16(sum->run.hi, ones)));
    }
}

// The products of pairs are added in 16 bits, as many as cannot exceed them, then in 32 bits: exact.
MATMUL_INLINE void lanes_add_products(const int C, const int quads, const int bits, const uint8_t (*codes)[16][4],
                                      const int8_t * const columns[], lanes sums[]) {
    const __m256i ones = _mm256_set1_epi16(1);
    const int run = lanes_run(bits);
    for (int first = 0; first < quads; first += run) {
        lanes part[LANES_COLUMNS];
        UNROLL for (int q = 0; q < run; q++) {
            const lanes x = lanes_load(codes[first + q]);
            UNROLL for (int i = 0; i < C; i++) {
                const lanes p = lanes_pairs(bits, x, columns[i] + 4 * (first + q));
                part[i] = q == 0 ? p : lanes_pair(_mm256_add_epi16(part[i].lo, p.lo), _mm256_add_epi16(part[i].hi, p.hi));
            }
        }
        UNROLL for (int i = 0; i < C; i++) {
            sums[i].lo = _mm256_add_epi32(sums[i].lo, _mm256_madd_epi16(part[i].lo, ones));
            sums[i].hi = _mm256_add_epi32(sums[i].hi, _mm256_madd_epi16(part[i].hi, ones));
        }
    }
}

MATMUL_INLINE vec lanes_load_some(const float * p, int n) {
    float all[16] = { 0 };
    memcpy(all, p, (size_t) n * sizeof(float));
    return vec_load(all);
}

MATMUL_INLINE void lanes_store_some(float * p, vec a, int n) {
    float all[16];
    vec_store(all, a);
    memcpy(p, all, (size_t) n * sizeof(float));
}

#endif

#ifdef MATMUL_LANES
// What the codes of iq4_nl and iq4_xs mean.
MATMUL_INLINE __m128i iq4_values(void) {
    return _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
}
#endif
