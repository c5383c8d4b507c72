// Quantised weights of 16 rows, unpacked: one 32-bit lane for each row, four codes in a lane.
#pragma once

#include "columns.h"
#include "interleave.h"

#ifdef MATMUL_LANES

#define GGML_COMMON_DECL_C
#include "ggml-common.h"

#include <stddef.h>
#include <string.h>

#define AHEAD     32768 // bytes at least from weights to those that are prefetched meanwhile
#define PACK_ROWS 16
#define PACK_K    1024 // terms that are unpacked at a time; a multiple of every block

struct packed {
    uint8_t codes[PACK_K / 4][PACK_ROWS][4];   // w = scale * (code - zero) + min
    float   scales[PACK_K / 16][PACK_ROWS];    // one for each group
    float   mins[PACK_K / 16][PACK_ROWS];      // only of types that have them
};

// What a type's codes look like.
struct pack_format {
    int  block;  // terms in one block of the file
    int  group;  // terms with one scale: 16 or 32
    int  groups; // groups with one scale of the column: 1 (q8_0, q8_1) or block / group (q8_K)
    bool mins;   // whether there are mins; otherwise `zero` counts
    int  zero;   // the code that means 0
    int  bits;   // of a code
};

// A type: bytes and offset of the scale that is not in a word, what bits are changed where rows are interleaved, and its
// codes.
#define FORMAT(name, loose, at, flip, ...)                                                                            \
    static const struct word_layout layout_##name = { sizeof(block_##name), loose, at, flip };                        \
    static const struct pack_format format_##name = { __VA_ARGS__ };

FORMAT(q8_0, 2, 0, LANES_ZERO, 32, 32, 1, false, LANES_ZERO, 8)
FORMAT(q4_0, 2, 0, 0, 32, 32, 1, false, 8, 4)
FORMAT(q5_0, 2, 0, 0, 32, 32, 1, false, 16, 5)
FORMAT(iq4_nl, 2, 0, 0, 32, 32, 1, false, LANES_ZERO, 8)
FORMAT(mxfp4, 1, 0, 0, 32, 32, 1, false, LANES_ZERO, 8)
FORMAT(q4_1, 0, 0, 0, 32, 32, 1, true, 0, 4)
FORMAT(q5_1, 0, 0, 0, 32, 32, 1, true, 0, 5)
FORMAT(iq4_xs, 0, 0, 0, QK_K, 32, QK_K / 32, false, LANES_ZERO, 8)
FORMAT(q4_K, 0, 0, 0, QK_K, 32, QK_K / 32, true, 0, 4)
FORMAT(q5_K, 0, 0, 0, QK_K, 32, QK_K / 32, true, 0, 5)
FORMAT(q2_K, 0, 0, 0, QK_K, 16, QK_K / 16, true, 0, 2)
FORMAT(q3_K, 2, offsetof(block_q3_K, d), 0, QK_K, 16, QK_K / 16, false, 4, 3)
FORMAT(iq2_xxs, 2, 0, 0, QK_K, 32, QK_K / 32, false, LANES_ZERO, 8)
FORMAT(iq2_xs, 2, 0, 0, QK_K, 16, QK_K / 16, false, LANES_ZERO, 8)
FORMAT(iq2_s, 2, 0, 0, QK_K, 16, QK_K / 16, false, LANES_ZERO, 8)
FORMAT(iq3_xxs, 2, 0, 0, QK_K, 32, QK_K / 32, false, LANES_ZERO, 8)
FORMAT(iq3_s, 2, 0, 0, QK_K, 32, QK_K / 32, false, LANES_ZERO, 8)
FORMAT(q6_K, 2, offsetof(block_q6_K, d), 0, QK_K, 16, QK_K / 16, false, 32, 6)

// Blocks of 16 rows, each as ggml has it or all interleaved (interleave.h).
struct source {
    bool                 is_interleaved;
    struct word_layout   layout;
    const char * const * rows;   // 16 of them
    const char *         loose;  // interleaved
    const char *         words;
};

// Unpacks `n` terms (a multiple of the block) of 16 rows, and prefetches as many bytes from `coming` on.
typedef void (*pack_fn)(const char * const rows[PACK_ROWS], int n, const char * coming, struct packed * out);

// The same of interleaved rows.
typedef void (*pack_interleaved_fn)(const char * loose, const char * words, int n, const char * coming,
                                    struct packed * out);

#define PACK_ROWS_OF(name)                                                                                            \
    void pack_##name(const char * const rows[PACK_ROWS], int n, const char * coming, struct packed * out);

#define PACK(name)                                                                                                    \
    PACK_ROWS_OF(name)                                                                                                \
    void pack_interleaved_##name(const char * loose, const char * words, int n, const char * coming,                  \
                                 struct packed * out);                                                                \
    void multiply_interleaved_##name(const struct matmul_job * job);

PACK(q8_0)
PACK(q4_0)
PACK(q4_1)
PACK(q5_0)
PACK(q5_1)
PACK(iq4_nl)
PACK(iq4_xs)
PACK(mxfp4)
PACK(q2_K)
PACK(q3_K)
PACK(q4_K)
PACK(q5_K)
PACK(q6_K)
PACK_ROWS_OF(iq2_xxs)
PACK_ROWS_OF(iq2_xs)
PACK_ROWS_OF(iq2_s)
PACK_ROWS_OF(iq3_xxs)
PACK_ROWS_OF(iq3_s)

// Bytes of block `b` from `offset` on, `n` words of each of 16 rows.
MATMUL_INLINE void load_words(const struct source s, int b, size_t offset, int n, lanes * v) {
    if (s.is_interleaved) {
        const size_t first = (size_t) b * words_of(s.layout) + word_at(s.layout, offset);
        UNROLL for (int i = 0; i < n; i++) {
            v[i] = lanes_load_any(s.words + (first + i) * 4 * PACK_ROWS);
        }
        return;
    }
    const size_t at = (size_t) b * s.layout.bytes + offset;
    UNROLL for (int i = 0; i < n; i += 4) {
        if (n - i >= 16) {
            lanes_gather64(s.rows, at + 4 * i, v + i);
            i += 12;
        } else {
            lanes_gather16(s.rows, at + 4 * i, v + i);
        }
    }
}

// Eight words from `offset` on of block `b`, and of block `last`, of each of 16 rows.
MATMUL_INLINE void load_word_pairs(const struct source s, int b, int last, size_t offset, lanes v[16]) {
    if (s.is_interleaved) {
        load_words(s, b, offset, 8, v);
        load_words(s, last, offset, 8, v + 8);
    } else {
        lanes_gather32(s.rows, b * s.layout.bytes + offset, last * s.layout.bytes + offset, v);
    }
}

// Byte `i` of each lane, and as a float.
MATMUL_INLINE lanes byte_at(lanes v, int i) { return lanes_and(lanes_right(v, 8 * i), lanes_set(255)); }
MATMUL_INLINE vec   byte_of(lanes v, int i) { return lanes_float(byte_at(v, i)); }

// The half float at `offset` of block `b` of each of 16 rows; the one that is not in a word.
MATMUL_INLINE vec load_halves(const struct source s, int b, size_t offset) {
    if (s.is_interleaved) {
        return vec_f16(s.loose + (size_t) b * loose_bytes(s.layout));
    }
    short h[PACK_ROWS];
    for (int r = 0; r < PACK_ROWS; r++) {
        memcpy(&h[r], s.rows[r] + (size_t) b * s.layout.bytes + offset, 2);
    }
    return lanes_halves(_mm_set_epi16(h[7], h[6], h[5], h[4], h[3], h[2], h[1], h[0]),
                        _mm_set_epi16(h[15], h[14], h[13], h[12], h[11], h[10], h[9], h[8]));
}

// The byte at `offset` of block `b` of each of 16 rows, the one that is not in a word, as lanes.
MATMUL_INLINE lanes load_bytes(const struct source s, int b, size_t offset) {
    if (s.is_interleaved) {
        return lanes_of_bytes(_mm_loadu_si128((const __m128i *) (s.loose + (size_t) b * loose_bytes(s.layout))));
    }
    uint8_t bytes[PACK_ROWS];
    for (int r = 0; r < PACK_ROWS; r++) {
        bytes[r] = (uint8_t) s.rows[r][(size_t) b * s.layout.bytes + offset];
    }
    return lanes_of_bytes(_mm_loadu_si128((const __m128i *) bytes));
}

// The destination of unpacked codes, and the weights to prefetch meanwhile.
struct target {
    struct packed * out;
    const char *    coming;
    int             block_codes; // lanes of codes in a block
    int             block_bytes; // of 16 rows
    // Where codes of one block are multiplied with columns in place of being stored: the sums of their groups for each
    // column, lanes of a group, and the columns.
    struct lanes_sum (*dots)[QK_K / 16];
    int             quads, bits;
    int             n_columns;
    const int8_t * const * columns;
    const int32_t * const * sums; // with which those of the groups begin; NULL: with 0
};

// Stores or multiplies one vector of codes, and prefetches its share of the next weights. The codes of a group come in order: its
// sum begins with the first. The rows of a tile are read
// side by side, a pattern that the hardware prefetcher does not detect (nor does it cross pages). They come into the second
// cache: the first one waits for few lines at a time, too few for the latency of memory. Many prefetches at once would
// stall, hence the fence: compilers would gather them.
MATMUL_INLINE void store_codes(const struct target t, int at, lanes v) {
    const int block = at / t.block_codes, part = at % t.block_codes;
    if (t.dots) {
        UNROLL for (int i = 0; i < t.n_columns; i++) {
            struct lanes_sum * sum = &t.dots[i][part / t.quads];
            if (part % t.quads == 0) {
                sum->all = lanes_set(t.sums ? t.sums[i][part / t.quads] : 0);
            }
            lanes_add_product(t.bits, part % t.quads, sum, v, t.columns[i] + 4 * part);
        }
    } else {
        lanes_store(t.out->codes[at], v);
    }
    const int from = (t.block_bytes * part / t.block_codes + 63) / 64;
    const int to   = (t.block_bytes * (part + 1) / t.block_codes + 63) / 64;
    UNROLL for (int line = from; line < to; line++) {
        const size_t offset = (size_t) block * t.block_bytes + 64 * line;
        _mm_prefetch(t.coming + offset, _MM_HINT_T1);
    }
    if (!t.dots) {
        __asm__ volatile("" ::: "memory");
    }
}

// The weights to prefetch while those at `at` are read: at least a tile after them, so that no row of one is missing when it
// begins. Where no more of them are known, those themselves, to no effect.
MATMUL_INLINE const char * coming_after(const struct matmul_job * job, const char * at) {
    const size_t tile  = PACK_ROWS * job->row_stride;
    const char * after = at + (tile > AHEAD ? tile : AHEAD);
    const char * end   = job->rows + (size_t) job->n_coming * job->row_stride;
    return after < end ? after : job->then ? job->then + (after - end) : at;
}

typedef void (*unpack_fn)(const struct source s, int n, const struct target t);

MATMUL_INLINE struct target target_of(const struct pack_format f, const struct word_layout layout, const char * coming,
                                      struct packed * out) {
    return (struct target) { out, coming, f.block / 4, PACK_ROWS * (int) layout.bytes, NULL, f.group / 4, f.bits, 0, NULL, NULL };
}

// Adds to a column's sums the products of group `g` of the weights with it: `acc` is the sum, `part` that of the block of the
// column before its scale.
MATMUL_INLINE void add_group(const struct pack_format f, const struct packed * w, int g, const struct column_view * c, lanes dot,
                             vec * acc, vec * part) {
    const vec value = lanes_float(dot), scale = vec_load(w->scales[g]);
    vec * to = f.groups == 1 ? acc : part;
    *to = vec_fma(value, f.groups == 1 ? vec_mul(scale, vec_set(c->scales[g])) : scale, *to);
    if (f.mins) {
        float sum;
        memcpy(&sum, &c->sums[g], 4);
        *to = vec_fma(vec_load(w->mins[g]), vec_set(sum), *to);
    }
    if (f.groups > 1 && g % f.groups == f.groups - 1) {
        *acc  = vec_fma(*part, vec_set(c->scales[g / f.groups]), *acc);
        *part = vec_set(0.0f);
    }
}

// Interleaved rows times C columns, with the bits of multiply_tile (quant.c): codes are multiplied as they are unpacked.
MATMUL_INLINE void multiply_unpacked(const int C, const struct matmul_job * job, const struct pack_format f,
                                     const struct word_layout layout, unpack_fn unpack) {
    const int64_t blocks = job->k / f.block;
    const size_t  bytes  = words_of(layout) * 4 * PACK_ROWS;
    const int     groups = f.block / f.group;
    for (int row = 0; row < job->n_rows; row += PACK_ROWS) {
        const char * loose = job->rows + (size_t) row * job->row_stride;
        const char * words = loose + (size_t) blocks * loose_bytes(layout);
        struct column_view c[LANES_DIRECT];
        vec sum[LANES_DIRECT];
        UNROLL for (int i = 0; i < C; i++) {
            c[i]   = view_column(job, i, 0, f.groups * f.group, f.group);
            sum[i] = vec_set(0.0f);
        }
        for (int64_t b = 0; b < blocks; b++) {
            struct packed w;
            struct lanes_sum dots[LANES_DIRECT][QK_K / 16];
            const int8_t * columns[LANES_DIRECT];
            const int32_t * sums[LANES_DIRECT];
            UNROLL for (int i = 0; i < C; i++) {
                columns[i] = c[i].codes;
                sums[i]    = c[i].sums;
            }
            struct target t = target_of(f, layout, coming_after(job, words), &w);
            t.dots      = dots;
            t.n_columns = C;
            t.columns   = columns;
            t.sums      = f.mins ? NULL : sums;
            unpack((struct source) { true, layout, NULL, loose, words }, f.block, t);
            UNROLL for (int i = 0; i < C; i++) {
                vec part = vec_set(0.0f);
                UNROLL for (int g = 0; g < groups; g++) {
                    add_group(f, &w, g, &c[i], dots[i][g].all, &sum[i], &part);
                }
                c[i].codes  += f.block;
                c[i].scales += f.groups == 1 ? groups : 1;
                c[i].sums   += groups;
            }
            loose += loose_bytes(layout);
            words += bytes;
        }
        UNROLL for (int i = 0; i < C; i++) {
            vec_store(c[i].out + row, sum[i]);
        }
    }
}

// Interleaved rows times at most LANES_DIRECT columns.
MATMUL_INLINE void multiply_interleaved(const struct matmul_job * job, const struct pack_format f,
                                        const struct word_layout layout, unpack_fn unpack) {
    switch (job->n_columns) {
        case 1: multiply_unpacked(1, job, f, layout, unpack); break;
        case 2: multiply_unpacked(2, job, f, layout, unpack); break;
#if LANES_DIRECT > 2
        case 3: multiply_unpacked(3, job, f, layout, unpack); break;
        default: multiply_unpacked(4, job, f, layout, unpack); break;
#endif
    }
}

// The functions of a type whose rows are not interleaved, by `unpack_NAME`.
#define UNPACK_ROWS(name)                                                                                             \
    void pack_##name(const char * const rows[PACK_ROWS], int n, const char * coming, struct packed * out) {           \
        unpack_##name((struct source) { false, layout_##name, rows, NULL, NULL }, n,                                  \
                      target_of(format_##name, layout_##name, coming, out));                                          \
    }

// Those of other types.
#define UNPACK(name)                                                                                                  \
    UNPACK_ROWS(name)                                                                                                 \
    void pack_interleaved_##name(const char * loose, const char * words, int n, const char * coming,                  \
                                 struct packed * out) {                                                               \
        unpack_##name((struct source) { true, layout_##name, NULL, loose, words }, n,                                 \
                      target_of(format_##name, layout_##name, coming, out));                                          \
    }                                                                                                                 \
    void multiply_interleaved_##name(const struct matmul_job * job) {                                                 \
        multiply_interleaved(job, format_##name, layout_##name, unpack_##name);                                       \
    }

#endif
