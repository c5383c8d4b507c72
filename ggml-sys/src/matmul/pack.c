// From ggml's blocks of 256 weights, and of 8 bits each, to lanes: one function for each type. The
// layouts are ggml's (ggml-common.h); what is computed from a packed tile is in quant.c.

#include "packed.h"

#ifdef MATMUL_PACKED

#define GGML_COMMON_DECL_C
#include "ggml-common.h"

void pack_q8_0(const char * const rows[PACK_ROWS], int n, struct coming coming, struct packed * out) {
    const struct target t = { out, coming, QK8_0 / 4, PACK_ROWS * sizeof(block_q8_0) };
    const __m512i flip = _mm512_set1_epi8((char) 0x80);
    for (int b = 0; b < n / QK8_0; b += 2) {
        const size_t offset = (size_t) b * sizeof(block_q8_0);
        const bool   pair   = b + 1 < n / QK8_0;
        __m512i v[16];
        UNROLL for (int r = 0; r < 16; r++) {
            const block_q8_0 * x = (const block_q8_0 *) (rows[r] + offset);
            const __m256i lo = _mm256_loadu_si256((const __m256i *) x[0].qs);
            const __m256i hi = pair ? _mm256_loadu_si256((const __m256i *) x[1].qs) : lo;
            v[r] = _mm512_inserti64x4(_mm512_castsi256_si512(lo), hi, 1);
        }
        transpose16(v);
        UNROLL for (int g = 0; g < 8; g++) {
            store_codes(t, b * 8 + g, _mm512_xor_si512(v[g], flip));
        }
        _mm512_store_ps(out->scales[b], load_halves(rows, offset));
        if (pair) {
            UNROLL for (int g = 8; g < 16; g++) {
                store_codes(t, b * 8 + g, _mm512_xor_si512(v[g], flip));
            }
            _mm512_store_ps(out->scales[b + 1], load_halves(rows, offset + sizeof(block_q8_0)));
        }
    }
}

// Byte `i` of each lane as a float.
MATMUL_INLINE __m512 byte_of(__m512i v, int i) {
    const __m512i x = _mm512_and_si512(_mm512_srli_epi32(v, 8 * i), _mm512_set1_epi32(255));
    return _mm512_cvtepi32_ps(x);
}

// The eight 6-bit scales and mins of q4_K and q5_K, with the two half floats before them.
MATMUL_INLINE void pack_scales_k4(const char * const rows[PACK_ROWS], size_t offset, int group,
                                  struct packed * out) {
    __m512i v[4];
    load_quads(rows, offset, v);
    const __m512  d    = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v[0]));
    const __m512  dmin = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(v[0], 16)));
    const __m512  neg  = _mm512_sub_ps(_mm512_setzero_ps(), dmin);
    const __m512i six  = _mm512_set1_epi8(0x3f);
    const __m512i four = _mm512_set1_epi8(0x0f);
    const __m512i top  = _mm512_set1_epi8(0x30);
    const __m512i scales[2] = {
        _mm512_and_si512(v[1], six),
        _mm512_or_si512(_mm512_and_si512(v[3], four),
                        _mm512_and_si512(_mm512_srli_epi16(v[1], 2), top)),
    };
    const __m512i mins[2] = {
        _mm512_and_si512(v[2], six),
        _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16(v[3], 4), four),
                        _mm512_and_si512(_mm512_srli_epi16(v[2], 2), top)),
    };
    UNROLL for (int j = 0; j < 8; j++) {
        _mm512_store_ps(out->scales[group + j], _mm512_mul_ps(byte_of(scales[j / 4], j % 4), d));
        _mm512_store_ps(out->mins[group + j], _mm512_mul_ps(byte_of(mins[j / 4], j % 4), neg));
    }
}

// 64 bytes at `offset` of each row, transposed.
MATMUL_INLINE void load_transposed(const char * const rows[PACK_ROWS], size_t offset, __m512i v[16]) {
    for (int r = 0; r < 16; r++) {
        v[r] = _mm512_loadu_si512((const void *) (rows[r] + offset));
    }
    transpose16(v);
}

void pack_q4_K(const char * const rows[PACK_ROWS], int n, struct coming coming, struct packed * out) {
    const struct target t = { out, coming, QK_K / 4, PACK_ROWS * sizeof(block_q4_K) };
    const __m512i low = _mm512_set1_epi8(15);
    for (int b = 0; b < n / QK_K; b++) {
        const size_t offset = (size_t) b * sizeof(block_q4_K);
        pack_scales_k4(rows, offset, b * 8, out);
        UNROLL for (int half = 0; half < 2; half++) {
            __m512i v[16];
            load_transposed(rows, offset + offsetof(block_q4_K, qs) + 64 * half, v);
            UNROLL for (int g = 0; g < 16; g++) {
                // 32 bytes hold two groups of 32: low nibbles, then high nibbles.
                const int at = b * 64 + half * 32 + g / 8 * 16 + g % 8;
                store_codes(t, at, _mm512_and_si512(v[g], low));
                store_codes(t, at + 8, _mm512_and_si512(_mm512_srli_epi16(v[g], 4), low));
            }
        }
    }
}

// 32 bytes at `offset` of each row, transposed: 8 vectors.
MATMUL_INLINE void load_transposed_half(const char * const rows[PACK_ROWS], size_t offset, __m512i v[8]) {
    load_quads(rows, offset, v);
    load_quads(rows, offset + 16, v + 4);
}

void pack_q5_K(const char * const rows[PACK_ROWS], int n, struct coming coming, struct packed * out) {
    const struct target t = { out, coming, QK_K / 4, PACK_ROWS * sizeof(block_q5_K) };
    const __m512i low = _mm512_set1_epi8(15);
    const __m512i bit = _mm512_set1_epi8(1);
    for (int b = 0; b < n / QK_K; b++) {
        const size_t offset = (size_t) b * sizeof(block_q5_K);
        pack_scales_k4(rows, offset, b * 8, out);
        __m512i high[8];
        load_transposed_half(rows, offset + offsetof(block_q5_K, qh), high);
        UNROLL for (int pair = 0; pair < 4; pair++) {
            __m512i v[8];
            load_transposed_half(rows, offset + offsetof(block_q5_K, qs) + 32 * pair, v);
            UNROLL for (int g = 0; g < 8; g++) {
                // Bit j of a byte of `qh` is the fifth bit of group j.
                const __m512i h0 = _mm512_and_si512(_mm512_srli_epi16(high[g], 2 * pair), bit);
                const __m512i h1 = _mm512_and_si512(_mm512_srli_epi16(high[g], 2 * pair + 1), bit);
                const __m512i lo = _mm512_and_si512(v[g], low);
                const __m512i hi = _mm512_and_si512(_mm512_srli_epi16(v[g], 4), low);
                const int at = b * 64 + pair * 16 + g;
                store_codes(t, at, _mm512_or_si512(lo, _mm512_slli_epi16(h0, 4)));
                store_codes(t, at + 8, _mm512_or_si512(hi, _mm512_slli_epi16(h1, 4)));
            }
        }
    }
}

// Byte `i` of each lane, signed, as a float.
MATMUL_INLINE __m512 signed_byte_of(__m512i v, int i) {
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(v, 24 - 8 * i), 24));
}

void pack_q6_K(const char * const rows[PACK_ROWS], int n, struct coming coming, struct packed * out) {
    const struct target t = { out, coming, QK_K / 4, PACK_ROWS * sizeof(block_q6_K) };
    const __m512i low = _mm512_set1_epi8(0x0f);
    const __m512i top = _mm512_set1_epi8(0x30);
    for (int b = 0; b < n / QK_K; b++) {
        const size_t offset = (size_t) b * sizeof(block_q6_K);
        const __m512 d = load_halves(rows, offset + offsetof(block_q6_K, d));
        __m512i scales[4];
        load_quads(rows, offset + offsetof(block_q6_K, scales), scales);
        UNROLL for (int j = 0; j < 16; j++) {
            const __m512 scale = signed_byte_of(scales[j / 4], j % 4);
            _mm512_store_ps(out->scales[b * 16 + j], _mm512_mul_ps(scale, d));
        }
        UNROLL for (int half = 0; half < 2; half++) {
            __m512i v[16], high[8];
            load_transposed(rows, offset + offsetof(block_q6_K, ql) + 64 * half, v);
            load_transposed_half(rows, offset + offsetof(block_q6_K, qh) + 32 * half, high);
            UNROLL for (int g = 0; g < 8; g++) {
                // Two bits of a byte of `qh` for each of the four runs of 32 terms.
                const __m512i h = high[g];
                const __m512i h0 = _mm512_and_si512(_mm512_slli_epi16(h, 4), top);
                const __m512i h1 = _mm512_and_si512(_mm512_slli_epi16(h, 2), top);
                const __m512i h2 = _mm512_and_si512(h, top);
                const __m512i h3 = _mm512_and_si512(_mm512_srli_epi16(h, 2), top);
                const __m512i a = v[g], c = v[g + 8];
                const int at = b * 64 + half * 32 + g;
                store_codes(t, at, _mm512_or_si512(_mm512_and_si512(a, low), h0));
                store_codes(t, at + 8, _mm512_or_si512(_mm512_and_si512(c, low), h1));
                store_codes(t, at + 16,
                            _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16(a, 4), low), h2));
                store_codes(t, at + 24,
                            _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16(c, 4), low), h3));
            }
        }
    }
}

#endif
