// From ggml's blocks of 32 weights to lanes (see pack.c): types other than plain 8 bits.

#include "packed.h"

#ifdef MATMUL_PACKED

#define GGML_COMMON_DECL_C
#include "ggml-common.h"

// The nibbles of 16 bytes of each row: low ones are the first half of a block.
MATMUL_INLINE void split_nibbles(const __m512i v[4], __m512i codes[8]) {
    const __m512i low = _mm512_set1_epi8(15);
    UNROLL for (int g = 0; g < 4; g++) {
        codes[g]     = _mm512_and_si512(v[g], low);
        codes[4 + g] = _mm512_and_si512(_mm512_srli_epi16(v[g], 4), low);
    }
}

// Adds bit i of a row's lane of `bits` to code i of the row, as its fifth bit.
MATMUL_INLINE void add_fifth_bits(__m512i bits, __m512i codes[8]) {
    // Four neighbouring bits to four bytes: copies of them, seven bits apart.
    const __m512i spread = _mm512_set1_epi32(0x00204081);
    const __m512i four   = _mm512_set1_epi32(15);
    const __m512i lowest = _mm512_set1_epi8(1);
    UNROLL for (int g = 0; g < 8; g++) {
        const __m512i some  = _mm512_and_si512(_mm512_srli_epi32(bits, 4 * g), four);
        const __m512i bytes = _mm512_and_si512(_mm512_mullo_epi32(some, spread), lowest);
        codes[g] = _mm512_or_si512(codes[g], _mm512_slli_epi16(bytes, 4));
    }
}

MATMUL_INLINE void store_block(const struct target t, int block, const __m512i codes[8]) {
    UNROLL for (int g = 0; g < 8; g++) {
        store_codes(t, block * 8 + g, codes[g]);
    }
}

// The lower and the upper half float of each lane.
MATMUL_INLINE __m512 lower_half(__m512i v) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v)); }

MATMUL_INLINE __m512 upper_half(__m512i v) { return lower_half(_mm512_srli_epi32(v, 16)); }

void pack_q4_0(const char * const rows[PACK_ROWS], int n, struct coming coming, struct packed * out) {
    const struct target t = { out, coming, QK4_0 / 4, PACK_ROWS * sizeof(block_q4_0) };
    for (int b = 0; b < n / QK4_0; b++) {
        const size_t offset = (size_t) b * sizeof(block_q4_0);
        __m512i v[4], codes[8];
        load_quads(rows, offset + offsetof(block_q4_0, qs), v);
        split_nibbles(v, codes);
        store_block(t, b, codes);
        _mm512_store_ps(out->scales[b], load_halves(rows, offset));
    }
}

void pack_q4_1(const char * const rows[PACK_ROWS], int n, struct coming coming, struct packed * out) {
    const struct target t = { out, coming, QK4_1 / 4, PACK_ROWS * sizeof(block_q4_1) };
    for (int b = 0; b < n / QK4_1; b++) {
        const size_t offset = (size_t) b * sizeof(block_q4_1);
        __m512i head[4], v[4], codes[8];
        load_quads(rows, offset, head);
        load_quads(rows, offset + offsetof(block_q4_1, qs), v);
        split_nibbles(v, codes);
        store_block(t, b, codes);
        _mm512_store_ps(out->scales[b], lower_half(head[0]));
        _mm512_store_ps(out->mins[b], upper_half(head[0]));
    }
}

void pack_q5_0(const char * const rows[PACK_ROWS], int n, struct coming coming, struct packed * out) {
    const struct target t = { out, coming, QK5_0 / 4, PACK_ROWS * sizeof(block_q5_0) };
    for (int b = 0; b < n / QK5_0; b++) {
        const size_t offset = (size_t) b * sizeof(block_q5_0);
        __m512i head[4], v[4], codes[8];
        load_quads(rows, offset, head);
        load_quads(rows, offset + offsetof(block_q5_0, qs), v);
        split_nibbles(v, codes);
        // The scale and the first half of `qh` share a lane.
        add_fifth_bits(_mm512_or_si512(_mm512_srli_epi32(head[0], 16), _mm512_slli_epi32(head[1], 16)), codes);
        store_block(t, b, codes);
        _mm512_store_ps(out->scales[b], lower_half(head[0]));
    }
}

void pack_q5_1(const char * const rows[PACK_ROWS], int n, struct coming coming, struct packed * out) {
    const struct target t = { out, coming, QK5_1 / 4, PACK_ROWS * sizeof(block_q5_1) };
    for (int b = 0; b < n / QK5_1; b++) {
        const size_t offset = (size_t) b * sizeof(block_q5_1);
        __m512i head[4], v[4], codes[8];
        load_quads(rows, offset, head);
        load_quads(rows, offset + offsetof(block_q5_1, qs), v);
        split_nibbles(v, codes);
        add_fifth_bits(head[1], codes);
        store_block(t, b, codes);
        _mm512_store_ps(out->scales[b], lower_half(head[0]));
        _mm512_store_ps(out->mins[b], upper_half(head[0]));
    }
}

// A code's place in the table to its value, 128 being zero.
MATMUL_INLINE void look_up(__m512i codes[8]) {
    const __m128i table = _mm_setr_epi8(1, 24, 45, 63, 79, 93, 106, 118, (char) 129, (char) 141, (char) 153,
                                        (char) 166, (char) 181, (char) 197, (char) 217, (char) 241);
    const __m512i tables = _mm512_broadcast_i32x4(table);
    UNROLL for (int g = 0; g < 8; g++) {
        codes[g] = _mm512_shuffle_epi8(tables, codes[g]);
    }
}

void pack_iq4_nl(const char * const rows[PACK_ROWS], int n, struct coming coming, struct packed * out) {
    const struct target t = { out, coming, QK4_NL / 4, PACK_ROWS * sizeof(block_iq4_nl) };
    for (int b = 0; b < n / QK4_NL; b++) {
        const size_t offset = (size_t) b * sizeof(block_iq4_nl);
        __m512i v[4], codes[8];
        load_quads(rows, offset + offsetof(block_iq4_nl, qs), v);
        split_nibbles(v, codes);
        look_up(codes);
        store_block(t, b, codes);
        _mm512_store_ps(out->scales[b], load_halves(rows, offset));
    }
}

// The eight 6-bit scales, 32 being zero, times the scale of the block: the low four bits in one
// word, the high two in another.
MATMUL_INLINE void scales_iq4_xs(const __m512i head[2], float scales[][PACK_ROWS]) {
    const __m512 d = lower_half(head[0]);
    const __m512i high = _mm512_srli_epi32(head[0], 16);
    UNROLL for (int j = 0; j < 8; j++) {
        const __m512i lo = _mm512_and_si512(_mm512_srli_epi32(head[1], 4 * j), _mm512_set1_epi32(15));
        const __m512i hi = _mm512_and_si512(_mm512_srli_epi32(high, 2 * j), _mm512_set1_epi32(3));
        const __m512i scale = _mm512_or_si512(lo, _mm512_slli_epi32(hi, 4));
        const __m512i centred = _mm512_sub_epi32(scale, _mm512_set1_epi32(32));
        _mm512_store_ps(scales[j], _mm512_mul_ps(_mm512_cvtepi32_ps(centred), d));
    }
}

void pack_iq4_xs(const char * const rows[PACK_ROWS], int n, struct coming coming, struct packed * out) {
    const struct target t = { out, coming, QK_K / 4, PACK_ROWS * sizeof(block_iq4_xs) };
    for (int b = 0; b < n / QK_K; b++) {
        const size_t offset = (size_t) b * sizeof(block_iq4_xs);
        __m512i head[4];
        load_quads(rows, offset, head);
        scales_iq4_xs(head, out->scales + b * 8);
        UNROLL for (int j = 0; j < 8; j++) {
            __m512i v[4], codes[8];
            load_quads(rows, offset + offsetof(block_iq4_xs, qs) + 16 * j, v);
            split_nibbles(v, codes);
            look_up(codes);
            UNROLL for (int g = 0; g < 8; g++) {
                store_codes(t, b * 64 + j * 8 + g, codes[g]);
            }
        }
    }
}

#endif
