// From ggml's blocks of 256 weights of 2 to 3 bits to lanes (see pack.c). Most are indices of points of a grid: four or eight codes
// with absolute values, whose signs are bits of their own. Looking points up takes longer than reading them: rows of these types are
// not interleaved, and one column is multiplied by ggml's functions.

#define GGML_COMMON_IMPL_C
#include "packed.h"

#ifdef MATMUL_LANES

// The sixteen groups of 16 of a block: two bits of 128 terms lie in 32 bytes.
MATMUL_INLINE lanes two_bits(lanes v, int run) { return lanes_and(lanes_right16(v, 2 * run), lanes_bytes(3)); }

MATMUL_INLINE void unpack_q2_K(const struct source s, int n, const struct target t) {
    struct packed * out = t.out;
    const lanes four = lanes_bytes(15);
    for (int b = 0; b < n / QK_K; b++) {
        // The last of the four words has the two half floats.
        lanes tail[4], scales[4];
        load_words(s, b, sizeof(block_q2_K) - 16, 4, tail);
        load_words(s, b, offsetof(block_q2_K, scales), 4, scales);
        const vec d   = lanes_half(tail[3]);
        const vec neg = vec_sub(vec_set(0.0f), lanes_half(lanes_right(tail[3], 16)));
        UNROLL for (int j = 0; j < 16; j++) {
            const lanes low = lanes_and(scales[j / 4], four), high = lanes_and(lanes_right16(scales[j / 4], 4), four);
            vec_store(out->scales[b * 16 + j], vec_mul(byte_of(low, j % 4), d));
            vec_store(out->mins[b * 16 + j], vec_mul(byte_of(high, j % 4), neg));
        }
        UNROLL for (int half = 0; half < 2; half++) {
            lanes v[8];
            load_words(s, b, offsetof(block_q2_K, qs) + 32 * half, 8, v);
            UNROLL for (int run = 0; run < 4; run++) {
                UNROLL for (int i = 0; i < 8; i++) {
                    store_codes(t, b * 64 + half * 32 + run * 8 + i, two_bits(v[i], run));
                }
            }
        }
    }
}

MATMUL_INLINE void unpack_q3_K(const struct source s, int n, const struct target t) {
    struct packed * out = t.out;
    for (int b = 0; b < n / QK_K; b++) {
        const vec d = load_halves(s, b, offsetof(block_q3_K, d));
        // Sixteen scales of 6 bits, 32 being zero: the low four bits in two words, the high two in a third. The first of the four
        // words that are read is none of these.
        lanes v[4], scales[4];
        load_words(s, b, offsetof(block_q3_K, scales) - 4, 4, v);
        UNROLL for (int i = 0; i < 4; i++) {
            const lanes low = lanes_and(lanes_right16(v[1 + i % 2], i / 2 * 4), lanes_bytes(15));
            scales[i] = lanes_or(low, lanes_left16(two_bits(v[3], i), 4));
        }
        UNROLL for (int j = 0; j < 16; j++) {
            const vec centred = vec_sub(byte_of(scales[j / 4], j % 4), vec_set(32.0f));
            vec_store(out->scales[b * 16 + j], vec_mul(centred, d));
        }
        lanes high[8];
        load_words(s, b, offsetof(block_q3_K, hmask), 8, high);
        UNROLL for (int half = 0; half < 2; half++) {
            lanes low[8];
            load_words(s, b, offsetof(block_q3_K, qs) + 32 * half, 8, low);
            UNROLL for (int run = 0; run < 4; run++) {
                UNROLL for (int i = 0; i < 8; i++) {
                    const lanes bit = lanes_and(lanes_right16(high[i], 4 * half + run), lanes_bytes(1));
                    store_codes(t, b * 64 + half * 32 + run * 8 + i, lanes_or(two_bits(low[i], run), lanes_left16(bit, 2)));
                }
            }
        }
    }
}

// Bits [from, from + n) of each lane.
MATMUL_INLINE lanes bits_of(lanes v, int from, int n) { return lanes_and(lanes_right(v, from), lanes_set((1 << n) - 1)); }

// Seven signs, and an eighth that makes the number of negative ones even.
MATMUL_INLINE lanes with_parity(lanes signs) {
    lanes x = lanes_xor(signs, lanes_right(signs, 4));
    x = lanes_xor(x, lanes_right(x, 2));
    x = lanes_xor(x, lanes_right(x, 1));
    return lanes_or(signs, lanes_left(lanes_and(x, lanes_set(1)), 7));
}

// Four codes of a point with four of its eight signs, the lower or the upper ones.
MATMUL_INLINE lanes with_signs(lanes codes, lanes signs, bool upper) {
    const lanes x = lanes_negate_where(codes, lanes_spread(signs, 0), upper ? (int32_t) 0x80402010 : 0x08040201);
    return lanes_xor(x, lanes_bytes(LANES_ZERO));
}

// Stores the eight codes of point `index` of a grid of points of eight.
MATMUL_INLINE void store_point(const struct target t, int at, const uint64_t * grid, lanes index, lanes signs) {
    UNROLL for (int i = 0; i < 2; i++) {
        const lanes codes = lanes_table((const uint32_t *) grid + i, lanes_left(index, 1));
        store_codes(t, at + i, with_signs(codes, signs, i == 1));
    }
}

// The same of two points of four.
MATMUL_INLINE void store_points(const struct target t, int at, const uint32_t * grid, const lanes index[2], lanes signs) {
    UNROLL for (int i = 0; i < 2; i++) {
        store_codes(t, at + i, with_signs(lanes_table(grid, index[i]), signs, i == 1));
    }
}

// An odd scale, 2 n + 1, times a float.
MATMUL_INLINE vec odd_scale(lanes n, vec d) {
    return vec_mul(lanes_float(lanes_or(lanes_left(n, 1), lanes_set(1))), d);
}

MATMUL_INLINE void unpack_iq2_xxs(const struct source s, int n, const struct target t) {
    for (int b = 0; b < n / QK_K; b++) {
        const vec d = vec_mul(load_halves(s, b, 0), vec_set(0.125f));
        lanes v[16];
        load_words(s, b, offsetof(block_iq2_xxs, qs), 16, v);
        UNROLL for (int g = 0; g < 8; g++) {
            const lanes indices = v[2 * g], rest = v[2 * g + 1];
            vec_store(t.out->scales[b * 8 + g], odd_scale(lanes_right(rest, 28), d));
            UNROLL for (int i = 0; i < 4; i++) {
                store_point(t, b * 64 + 8 * g + 2 * i, iq2xxs_grid, byte_at(indices, i), with_parity(bits_of(rest, 7 * i, 7)));
            }
        }
    }
}

// Two scales of a byte for the halves of group `g` of 32.
MATMUL_INLINE void store_halves(const struct target t, int b, int g, lanes word, vec d) {
    UNROLL for (int i = 0; i < 2; i++) {
        vec_store(t.out->scales[b * 16 + 2 * g + i], odd_scale(bits_of(word, g % 4 * 8 + 4 * i, 4), d));
    }
}

MATMUL_INLINE void unpack_iq2_xs(const struct source s, int n, const struct target t) {
    for (int b = 0; b < n / QK_K; b++) {
        const vec d = vec_mul(load_halves(s, b, 0), vec_set(0.125f));
        lanes v[16], tail[4];
        load_words(s, b, offsetof(block_iq2_xs, qs), 16, v);
        load_words(s, b, sizeof(block_iq2_xs) - 16, 4, tail);
        UNROLL for (int g = 0; g < 8; g++) {
            store_halves(t, b, g, tail[2 + g / 4], d);
            UNROLL for (int i = 0; i < 4; i++) {
                const lanes pair = v[2 * g + i / 2];
                const int from = i % 2 * 16;
                store_point(t, b * 64 + 8 * g + 2 * i, iq2xs_grid, bits_of(pair, from, 9), with_parity(bits_of(pair, from + 9, 7)));
            }
        }
    }
}

MATMUL_INLINE void unpack_iq2_s(const struct source s, int n, const struct target t) {
    for (int b = 0; b < n / QK_K; b++) {
        const vec d = vec_mul(load_halves(s, b, 0), vec_set(0.125f));
        // Indices and signs of eight groups; then the high bits of the indices, and scales.
        lanes v[16], tail[4];
        load_words(s, b, offsetof(block_iq2_s, qs), 16, v);
        load_words(s, b, offsetof(block_iq2_s, qh), 4, tail);
        UNROLL for (int g = 0; g < 8; g++) {
            store_halves(t, b, g, tail[2 + g / 4], d);
            UNROLL for (int i = 0; i < 4; i++) {
                const lanes high = bits_of(tail[g / 4], g % 4 * 8 + 2 * i, 2);
                const lanes index = lanes_or(byte_at(v[g], i), lanes_left(high, 8));
                store_point(t, b * 64 + 8 * g + 2 * i, iq2s_grid, index, byte_at(v[8 + g], i));
            }
        }
    }
}

MATMUL_INLINE void unpack_iq3_xxs(const struct source s, int n, const struct target t) {
    for (int b = 0; b < n / QK_K; b++) {
        const vec d = vec_mul(load_halves(s, b, 0), vec_set(0.25f));
        lanes v[16], rest[8];
        load_words(s, b, offsetof(block_iq3_xxs, qs), 16, v);
        load_words(s, b, offsetof(block_iq3_xxs, qs) + QK_K / 4, 8, rest);
        UNROLL for (int g = 0; g < 8; g++) {
            vec_store(t.out->scales[b * 8 + g], odd_scale(lanes_right(rest[g], 28), d));
            UNROLL for (int i = 0; i < 4; i++) {
                const lanes four = v[2 * g + i / 2];
                const lanes index[2] = { byte_at(four, i % 2 * 2), byte_at(four, i % 2 * 2 + 1) };
                store_points(t, b * 64 + 8 * g + 2 * i, iq3xxs_grid, index, with_parity(bits_of(rest[g], 7 * i, 7)));
            }
        }
    }
}

MATMUL_INLINE void unpack_iq3_s(const struct source s, int n, const struct target t) {
    for (int b = 0; b < n / QK_K; b++) {
        const vec d = load_halves(s, b, 0);
        lanes v[16], high[4], signs[8], tail[4];
        load_words(s, b, offsetof(block_iq3_s, qs), 16, v);
        load_words(s, b, offsetof(block_iq3_s, qh), 4, high);
        load_words(s, b, offsetof(block_iq3_s, signs), 8, signs);
        load_words(s, b, sizeof(block_iq3_s) - 16, 4, tail);
        UNROLL for (int g = 0; g < 8; g++) {
            vec_store(t.out->scales[b * 8 + g], odd_scale(bits_of(tail[3], 4 * g, 4), d));
            UNROLL for (int i = 0; i < 4; i++) {
                lanes index[2];
                UNROLL for (int j = 0; j < 2; j++) {
                    const lanes bit = bits_of(high[g / 4], g % 4 * 8 + 2 * i + j, 1);
                    index[j] = lanes_or(byte_at(v[2 * g + i / 2], i % 2 * 2 + j), lanes_left(bit, 8));
                }
                store_points(t, b * 64 + 8 * g + 2 * i, iq3s_grid, index, byte_at(signs[g], i));
            }
        }
    }
}

UNPACK(q2_K)
UNPACK(q3_K)
UNPACK_ROWS(iq2_xxs)
UNPACK_ROWS(iq2_xs)
UNPACK_ROWS(iq2_s)
UNPACK_ROWS(iq3_xxs)
UNPACK_ROWS(iq3_s)

#endif
