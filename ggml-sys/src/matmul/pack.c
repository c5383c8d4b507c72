// From ggml's blocks of 256 weights, and of 8 bits each, to lanes: one function for each type. The
// layouts are ggml's (ggml-common.h); what is computed from a packed tile is in quant.c.

#include "packed.h"

#ifdef MATMUL_LANES

MATMUL_INLINE void unpack_q8_0(const struct source s, int n, const struct target t) {
    struct packed * out = t.out;
    const lanes flip = lanes_bytes(s.is_interleaved ? 0 : layout_q8_0.flip);
    for (int b = 0; b < n / QK8_0; b += 2) {
        const int last = b + 1 < n / QK8_0 ? b + 1 : b;
        lanes v[16];
        load_word_pairs(s, b, last, offsetof(block_q8_0, qs), v);
        for (int i = b; i <= last; i++) {
            UNROLL for (int g = 0; g < 8; g++) {
                store_codes(t, i * 8 + g, lanes_xor(v[(i - b) * 8 + g], flip));
            }
            vec_store(out->scales[i], load_halves(s, i, 0));
        }
    }
}

// The eight 6-bit scales and mins of q4_K and q5_K, with the two half floats before them.
MATMUL_INLINE void pack_scales_k4(const struct source s, int b, struct packed * out) {
    const int group = b * 8;
    lanes v[4];
    load_words(s, b, 0, 4, v);
    const vec  d    = lanes_half(v[0]);
    const vec  dmin = lanes_half(lanes_right(v[0], 16));
    const vec  neg  = vec_sub(vec_set(0.0f), dmin);
    const lanes six  = lanes_bytes(0x3f);
    const lanes four = lanes_bytes(0x0f);
    const lanes top  = lanes_bytes(0x30);
    const lanes scales[2] = {
        lanes_and(v[1], six),
        lanes_or(lanes_and(v[3], four),
                        lanes_and(lanes_right16(v[1], 2), top)),
    };
    const lanes mins[2] = {
        lanes_and(v[2], six),
        lanes_or(lanes_and(lanes_right16(v[3], 4), four),
                        lanes_and(lanes_right16(v[2], 2), top)),
    };
    UNROLL for (int j = 0; j < 8; j++) {
        vec_store(out->scales[group + j], vec_mul(byte_of(scales[j / 4], j % 4), d));
        vec_store(out->mins[group + j], vec_mul(byte_of(mins[j / 4], j % 4), neg));
    }
}

MATMUL_INLINE void unpack_q4_K(const struct source s, int n, const struct target t) {
    struct packed * out = t.out;
    const lanes low = lanes_bytes(15);
    for (int b = 0; b < n / QK_K; b++) {
        pack_scales_k4(s, b, out);
        UNROLL for (int half = 0; half < 2; half++) {
            lanes v[16];
            load_words(s, b, offsetof(block_q4_K, qs) + 64 * half, 16, v);
            UNROLL for (int g = 0; g < 16; g++) {
                // 32 bytes hold two groups of 32: low nibbles, then high nibbles.
                const int at = b * 64 + half * 32 + g / 8 * 16 + g % 8;
                store_codes(t, at, lanes_and(v[g], low));
                store_codes(t, at + 8, lanes_and(lanes_right16(v[g], 4), low));
            }
        }
    }
}

MATMUL_INLINE void unpack_q5_K(const struct source s, int n, const struct target t) {
    struct packed * out = t.out;
    const lanes low = lanes_bytes(15);
    const lanes bit = lanes_bytes(1);
    for (int b = 0; b < n / QK_K; b++) {
        pack_scales_k4(s, b, out);
        lanes high[8];
        load_words(s, b, offsetof(block_q5_K, qh), 8, high);
        UNROLL for (int pair = 0; pair < 4; pair++) {
            lanes v[8];
            load_words(s, b, offsetof(block_q5_K, qs) + 32 * pair, 8, v);
            UNROLL for (int g = 0; g < 8; g++) {
                // Bit j of a byte of `qh` is the fifth bit of group j.
                const lanes h0 = lanes_and(lanes_right16(high[g], 2 * pair), bit);
                const lanes h1 = lanes_and(lanes_right16(high[g], 2 * pair + 1), bit);
                const lanes lo = lanes_and(v[g], low);
                const lanes hi = lanes_and(lanes_right16(v[g], 4), low);
                const int at = b * 64 + pair * 16 + g;
                store_codes(t, at, lanes_or(lo, lanes_left16(h0, 4)));
                store_codes(t, at + 8, lanes_or(hi, lanes_left16(h1, 4)));
            }
        }
    }
}

// Byte `i` of each lane, signed, as a float.
MATMUL_INLINE vec signed_byte_of(lanes v, int i) {
    return lanes_float(lanes_right_signed(lanes_left(v, 24 - 8 * i), 24));
}

MATMUL_INLINE void unpack_q6_K(const struct source s, int n, const struct target t) {
    struct packed * out = t.out;
    const lanes low = lanes_bytes(0x0f);
    const lanes top = lanes_bytes(0x30);
    for (int b = 0; b < n / QK_K; b++) {
        const vec d = load_halves(s, b, offsetof(block_q6_K, d));
        lanes scales[4];
        load_words(s, b, offsetof(block_q6_K, scales), 4, scales);
        UNROLL for (int j = 0; j < 16; j++) {
            const vec scale = signed_byte_of(scales[j / 4], j % 4);
            vec_store(out->scales[b * 16 + j], vec_mul(scale, d));
        }
        UNROLL for (int half = 0; half < 2; half++) {
            lanes v[16], high[8];
            load_words(s, b, offsetof(block_q6_K, ql) + 64 * half, 16, v);
            load_words(s, b, offsetof(block_q6_K, qh) + 32 * half, 8, high);
            UNROLL for (int g = 0; g < 8; g++) {
                // Two bits of a byte of `qh` for each of the four runs of 32 terms.
                const lanes h = high[g];
                const lanes h0 = lanes_and(lanes_left16(h, 4), top);
                const lanes h1 = lanes_and(lanes_left16(h, 2), top);
                const lanes h2 = lanes_and(h, top);
                const lanes h3 = lanes_and(lanes_right16(h, 2), top);
                const lanes a = v[g], c = v[g + 8];
                const int at = b * 64 + half * 32 + g;
                store_codes(t, at, lanes_or(lanes_and(a, low), h0));
                store_codes(t, at + 8, lanes_or(lanes_and(c, low), h1));
                store_codes(t, at + 16,
                            lanes_or(lanes_and(lanes_right16(a, 4), low), h2));
                store_codes(t, at + 24,
                            lanes_or(lanes_and(lanes_right16(c, 4), low), h3));
            }
        }
    }
}

UNPACK(q8_0)
UNPACK(q4_K)
UNPACK(q5_K)
UNPACK(q6_K)

#endif
