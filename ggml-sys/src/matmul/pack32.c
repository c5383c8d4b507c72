// From ggml's blocks of 32 weights to lanes (see pack.c): types other than plain 8 bits.

#include "packed.h"

#ifdef MATMUL_LANES

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
    UNROLL for (int g = 0; g < 8; g++) {
        codes[g] = lanes_add_where(codes[g], lanes_spread(bits, g / 2), g % 2 ? (int32_t) 0x80402010 : 0x08040201, 16);
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

MATMUL_INLINE void unpack_q4_0(const struct source s, int n, const struct target t) {
    struct packed * out = t.out;
    for (int b = 0; b < n / QK4_0; b++) {
        lanes v[4], codes[8];
        load_words(s, b, offsetof(block_q4_0, qs), 4, v);
        split_nibbles(v, codes);
        store_block(t, b, codes);
        vec_store(out->scales[b], load_halves(s, b, 0));
    }
}

MATMUL_INLINE void unpack_q4_1(const struct source s, int n, const struct target t) {
    struct packed * out = t.out;
    for (int b = 0; b < n / QK4_1; b++) {
        lanes head[4], v[4], codes[8];
        load_words(s, b, 0, 4, head);
        load_words(s, b, offsetof(block_q4_1, qs), 4, v);
        split_nibbles(v, codes);
        store_block(t, b, codes);
        vec_store(out->scales[b], lower_half(head[0]));
        vec_store(out->mins[b], upper_half(head[0]));
    }
}

MATMUL_INLINE void unpack_q5_0(const struct source s, int n, const struct target t) {
    struct packed * out = t.out;
    for (int b = 0; b < n / QK5_0; b++) {
        lanes head[4], v[4], codes[8];
        load_words(s, b, offsetof(block_q5_0, qs), 4, v);
        split_nibbles(v, codes);
        if (s.is_interleaved) {
            load_words(s, b, offsetof(block_q5_0, qh), 1, head);
            vec_store(out->scales[b], load_halves(s, b, 0));
        } else {
            // The scale and the first half of `qh` share a lane.
            load_words(s, b, 0, 4, head);
            vec_store(out->scales[b], lower_half(head[0]));
            head[0] = lanes_or(lanes_right(head[0], 16), lanes_left(head[1], 16));
        }
        add_fifth_bits(head[0], codes);
        store_block(t, b, codes);
    }
}

MATMUL_INLINE void unpack_q5_1(const struct source s, int n, const struct target t) {
    struct packed * out = t.out;
    for (int b = 0; b < n / QK5_1; b++) {
        lanes head[4], v[4], codes[8];
        load_words(s, b, 0, 4, head);
        load_words(s, b, offsetof(block_q5_1, qs), 4, v);
        split_nibbles(v, codes);
        add_fifth_bits(head[1], codes);
        store_block(t, b, codes);
        vec_store(out->scales[b], lower_half(head[0]));
        vec_store(out->mins[b], upper_half(head[0]));
    }
}

// A code's place in the table to its value plus LANES_ZERO.
MATMUL_INLINE void look_up(__m128i values, lanes codes[8]) {
    const __m128i table = _mm_add_epi8(values, _mm_set1_epi8((char) LANES_ZERO));
    UNROLL for (int g = 0; g < 8; g++) {
        codes[g] = lanes_look_up(table, codes[g]);
    }
}

MATMUL_INLINE void unpack_iq4_nl(const struct source s, int n, const struct target t) {
    struct packed * out = t.out;
    for (int b = 0; b < n / QK4_NL; b++) {
        lanes v[4], codes[8];
        load_words(s, b, offsetof(block_iq4_nl, qs), 4, v);
        split_nibbles(v, codes);
        look_up(iq4_values(), codes);
        store_block(t, b, codes);
        vec_store(out->scales[b], load_halves(s, b, 0));
    }
}

// Twice the values of four bits as a sign, two bits of an exponent and one of a fraction.
MATMUL_INLINE __m128i fp4_values(void) { return _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12); }

// 2^(e - 128) for a byte e in each lane: half of what an exponent of 8 bits means, since the values are doubled.
MATMUL_INLINE vec half_of_exponent(lanes e) {
    const lanes is_small = lanes_right_signed(lanes_sub(e, lanes_set(2)), 31);
    // 2^-128 and 2^-127 have no exponent of their own as floats.
    const lanes small = lanes_left(lanes_sub(e, lanes_set(-1)), 21);
    const lanes other = lanes_left(lanes_sub(e, lanes_set(1)), 23);
    return lanes_as_floats(lanes_xor(other, lanes_and(is_small, lanes_xor(other, small))));
}

MATMUL_INLINE void unpack_mxfp4(const struct source s, int n, const struct target t) {
    struct packed * out = t.out;
    for (int b = 0; b < n / QK_MXFP4; b++) {
        lanes v[4], codes[8];
        load_words(s, b, offsetof(block_mxfp4, qs), 4, v);
        split_nibbles(v, codes);
        look_up(fp4_values(), codes);
        store_block(t, b, codes);
        vec_store(out->scales[b], half_of_exponent(load_bytes(s, b, offsetof(block_mxfp4, e))));
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

MATMUL_INLINE void unpack_iq4_xs(const struct source s, int n, const struct target t) {
    struct packed * out = t.out;
    for (int b = 0; b < n / QK_K; b++) {
        lanes head[4];
        load_words(s, b, 0, 4, head);
        scales_iq4_xs(head, out->scales + b * 8);
        UNROLL for (int j = 0; j < 8; j++) {
            lanes v[4], codes[8];
            load_words(s, b, offsetof(block_iq4_xs, qs) + 16 * j, 4, v);
            split_nibbles(v, codes);
            look_up(iq4_values(), codes);
            UNROLL for (int g = 0; g < 8; g++) {
                store_codes(t, b * 64 + j * 8 + g, codes[g]);
            }
        }
    }
}

UNPACK(q4_0)
UNPACK(q4_1)
UNPACK(q5_0)
UNPACK(q5_1)
UNPACK(iq4_nl)
UNPACK(iq4_xs)
UNPACK(mxfp4)

#endif
