// From ggml's blocks of 32 weights to lanes (see pack.c): types other than plain 8 bits.

#include "packed.h"

#ifdef MATMUL_LANES

#define GGML_COMMON_DECL_C
#include "ggml-common.h"

// The nibbles of 16 bytes of each row: low ones are the first half of a block.
MATMUL_INLINE void split_nibbles(const lanes v[4], lanes codes[8]) {
    const lanes low = lanes_bytes(15);
    UNROLL for (int g = 0; g < 4; g++) {
        codes[g]     = lanes_and(v[g], low);
        codes[4 + g] = lanes_and(lanes_right16(v[g], 4), low);
    }
}

// Adds bit i of a row's lane of `bits` to code i of the row, as its fifth bit.
MATMUL_INLINE void add_fifth_bits(lanes bits, lanes codes[8]) {
    // Four neighbouring bits to four bytes: copies of them, seven bits apart.
    const lanes spread = lanes_set(0x00204081);
    const lanes four   = lanes_set(15);
    const lanes lowest = lanes_bytes(1);
    UNROLL for (int g = 0; g < 8; g++) {
        const lanes some  = lanes_and(lanes_right(bits, 4 * g), four);
        const lanes bytes = lanes_and(lanes_mul(some, spread), lowest);
        codes[g] = lanes_or(codes[g], lanes_left16(bytes, 4));
    }
}

MATMUL_INLINE void store_block(const struct target t, int block, const lanes codes[8]) {
    UNROLL for (int g = 0; g < 8; g++) {
        store_codes(t, block * 8 + g, codes[g]);
    }
}

// The lower and the upper half float of each lane.
MATMUL_INLINE vec lower_half(lanes v) { return lanes_half(v); }

MATMUL_INLINE vec upper_half(lanes v) { return lower_half(lanes_right(v, 16)); }

void pack_q4_0(const char * const rows[PACK_ROWS], int n, struct coming coming, struct packed * out) {
    const struct target t = { out, coming, QK4_0 / 4, PACK_ROWS * sizeof(block_q4_0) };
    for (int b = 0; b < n / QK4_0; b++) {
        const size_t offset = (size_t) b * sizeof(block_q4_0);
        lanes v[4], codes[8];
        lanes_gather16(rows, offset + offsetof(block_q4_0, qs), v);
        split_nibbles(v, codes);
        store_block(t, b, codes);
        vec_store(out->scales[b], load_halves(rows, offset));
    }
}

void pack_q4_1(const char * const rows[PACK_ROWS], int n, struct coming coming, struct packed * out) {
    const struct target t = { out, coming, QK4_1 / 4, PACK_ROWS * sizeof(block_q4_1) };
    for (int b = 0; b < n / QK4_1; b++) {
        const size_t offset = (size_t) b * sizeof(block_q4_1);
        lanes head[4], v[4], codes[8];
        lanes_gather16(rows, offset, head);
        lanes_gather16(rows, offset + offsetof(block_q4_1, qs), v);
        split_nibbles(v, codes);
        store_block(t, b, codes);
        vec_store(out->scales[b], lower_half(head[0]));
        vec_store(out->mins[b], upper_half(head[0]));
    }
}

void pack_q5_0(const char * const rows[PACK_ROWS], int n, struct coming coming, struct packed * out) {
    const struct target t = { out, coming, QK5_0 / 4, PACK_ROWS * sizeof(block_q5_0) };
    for (int b = 0; b < n / QK5_0; b++) {
        const size_t offset = (size_t) b * sizeof(block_q5_0);
        lanes head[4], v[4], codes[8];
        lanes_gather16(rows, offset, head);
        lanes_gather16(rows, offset + offsetof(block_q5_0, qs), v);
        split_nibbles(v, codes);
        // The scale and the first half of `qh` share a lane.
        add_fifth_bits(lanes_or(lanes_right(head[0], 16), lanes_left(head[1], 16)), codes);
        store_block(t, b, codes);
        vec_store(out->scales[b], lower_half(head[0]));
    }
}

void pack_q5_1(const char * const rows[PACK_ROWS], int n, struct coming coming, struct packed * out) {
    const struct target t = { out, coming, QK5_1 / 4, PACK_ROWS * sizeof(block_q5_1) };
    for (int b = 0; b < n / QK5_1; b++) {
        const size_t offset = (size_t) b * sizeof(block_q5_1);
        lanes head[4], v[4], codes[8];
        lanes_gather16(rows, offset, head);
        lanes_gather16(rows, offset + offsetof(block_q5_1, qs), v);
        split_nibbles(v, codes);
        add_fifth_bits(head[1], codes);
        store_block(t, b, codes);
        vec_store(out->scales[b], lower_half(head[0]));
        vec_store(out->mins[b], upper_half(head[0]));
    }
}

// A code's place in the table to its value plus LANES_ZERO.
MATMUL_INLINE void look_up(lanes codes[8]) {
    const __m128i table = _mm_add_epi8(iq4_values(), _mm_set1_epi8((char) LANES_ZERO));
    UNROLL for (int g = 0; g < 8; g++) {
        codes[g] = lanes_look_up(table, codes[g]);
    }
}

void pack_iq4_nl(const char * const rows[PACK_ROWS], int n, struct coming coming, struct packed * out) {
    const struct target t = { out, coming, QK4_NL / 4, PACK_ROWS * sizeof(block_iq4_nl) };
    for (int b = 0; b < n / QK4_NL; b++) {
        const size_t offset = (size_t) b * sizeof(block_iq4_nl);
        lanes v[4], codes[8];
        lanes_gather16(rows, offset + offsetof(block_iq4_nl, qs), v);
        split_nibbles(v, codes);
        look_up(codes);
        store_block(t, b, codes);
        vec_store(out->scales[b], load_halves(rows, offset));
    }
}

// The eight 6-bit scales, 32 being zero, times the scale of the block: the low four bits in one
// word, the high two in another.
MATMUL_INLINE void scales_iq4_xs(const lanes head[2], float scales[][PACK_ROWS]) {
    const vec d = lower_half(head[0]);
    const lanes high = lanes_right(head[0], 16);
    UNROLL for (int j = 0; j < 8; j++) {
        const lanes lo = lanes_and(lanes_right(head[1], 4 * j), lanes_set(15));
        const lanes hi = lanes_and(lanes_right(high, 2 * j), lanes_set(3));
        const lanes scale = lanes_or(lo, lanes_left(hi, 4));
        const lanes centred = lanes_sub(scale, lanes_set(32));
        vec_store(scales[j], vec_mul(lanes_float(centred), d));
    }
}

void pack_iq4_xs(const char * const rows[PACK_ROWS], int n, struct coming coming, struct packed * out) {
    const struct target t = { out, coming, QK_K / 4, PACK_ROWS * sizeof(block_iq4_xs) };
    for (int b = 0; b < n / QK_K; b++) {
        const size_t offset = (size_t) b * sizeof(block_iq4_xs);
        lanes head[4];
        lanes_gather16(rows, offset, head);
        scales_iq4_xs(head, out->scales + b * 8);
        UNROLL for (int j = 0; j < 8; j++) {
            lanes v[4], codes[8];
            lanes_gather16(rows, offset + offsetof(block_iq4_xs, qs) + 16 * j, v);
            split_nibbles(v, codes);
            look_up(codes);
            UNROLL for (int g = 0; g < 8; g++) {
                store_codes(t, b * 64 + j * 8 + g, codes[g]);
            }
        }
    }
}

#endif
