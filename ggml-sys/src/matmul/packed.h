// Quantised weights of 16 rows, unpacked: one 32-bit lane for each row, four codes in a lane.
#pragma once

#include "matmul.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && \
    defined(__AVX512DQ__) && defined(__AVX512VNNI__)
#define MATMUL_PACKED 1

#include <immintrin.h>

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
};

// Weights that are prefetched while others are unpacked, as many bytes as those: the next ones, and
// ones that are needed much later.
struct coming {
    const char * next;
    const char * later;
};

// Unpacks `n` terms (a multiple of the block) of 16 rows.
typedef void (*pack_fn)(const char * const rows[PACK_ROWS], int n, struct coming coming,
                        struct packed * out);

#define PACK(name) \
    void pack_##name(const char * const rows[PACK_ROWS], int n, struct coming coming, struct packed * out)

PACK(q8_0);
PACK(q4_0);
PACK(q4_1);
PACK(q5_0);
PACK(q5_1);
PACK(iq4_nl);
PACK(iq4_xs);
PACK(q4_K);
PACK(q5_K);
PACK(q6_K);

// A 16 x 16 matrix of 32-bit lanes, transposed.
MATMUL_INLINE void transpose16(__m512i v[16]) {
    __m512i a[16], b[16];
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

// 16 bytes at `offset` of each of 16 rows as four vectors of 32-bit lanes, one lane for each row.
MATMUL_INLINE void load_quads(const char * const rows[PACK_ROWS], size_t offset, __m512i out[4]) {
    __m512i v[4];
    for (int i = 0; i < 4; i++) {
        __m512i x = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *) (rows[i] + offset)));
        x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *) (rows[i + 4] + offset)), 1);
        x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *) (rows[i + 8] + offset)), 2);
        v[i] = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *) (rows[i + 12] + offset)), 3);
    }
    const __m512i a = _mm512_unpacklo_epi32(v[0], v[1]);
    const __m512i b = _mm512_unpackhi_epi32(v[0], v[1]);
    const __m512i c = _mm512_unpacklo_epi32(v[2], v[3]);
    const __m512i d = _mm512_unpackhi_epi32(v[2], v[3]);
    out[0] = _mm512_unpacklo_epi64(a, c);
    out[1] = _mm512_unpackhi_epi64(a, c);
    out[2] = _mm512_unpacklo_epi64(b, d);
    out[3] = _mm512_unpackhi_epi64(b, d);
}

// The half float at `offset` of each of 16 rows.
MATMUL_INLINE __m512 load_halves(const char * const rows[PACK_ROWS], size_t offset) {
    short h[16];
    for (int r = 0; r < 16; r++) {
        __builtin_memcpy(&h[r], rows[r] + offset, 2);
    }
    const __m128i lo = _mm_set_epi16(h[7], h[6], h[5], h[4], h[3], h[2], h[1], h[0]);
    const __m128i hi = _mm_set_epi16(h[15], h[14], h[13], h[12], h[11], h[10], h[9], h[8]);
    return _mm512_cvtph_ps(_mm256_set_m128i(hi, lo));
}

// The destination of unpacked codes, and the weights to prefetch meanwhile.
struct target {
    struct packed * out;
    struct coming   coming;
    int             block_codes; // lanes of codes in a block
    int             block_bytes; // of 16 rows
};

// Stores one vector of codes, and prefetches its share of the next weights. The rows of a tile are read
// side by side, a pattern that the hardware prefetcher does not detect (nor does it cross pages). Many
// prefetches at once would stall, hence the fence: compilers would gather them.
MATMUL_INLINE void store_codes(const struct target t, int at, __m512i v) {
    _mm512_store_si512((void *) t.out->codes[at], v);
    const int block = at / t.block_codes, part = at % t.block_codes;
    const int from = (t.block_bytes * part / t.block_codes + 63) / 64;
    const int to   = (t.block_bytes * (part + 1) / t.block_codes + 63) / 64;
    UNROLL for (int line = from; line < to; line++) {
        const size_t offset = (size_t) block * t.block_bytes + 64 * line;
        _mm_prefetch(t.coming.next + offset, _MM_HINT_T0);
        _mm_prefetch(t.coming.later + offset, _MM_HINT_T1);
    }
    __asm__ volatile("" ::: "memory");
}

#endif
