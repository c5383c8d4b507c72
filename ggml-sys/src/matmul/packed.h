// Quantised weights of 16 rows, unpacked: one 32-bit lane for each row, four codes in a lane.
#pragma once

#include "lanes.h"

#ifdef MATMUL_LANES

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

// The half float at `offset` of each of 16 rows.
MATMUL_INLINE vec load_halves(const char * const rows[PACK_ROWS], size_t offset) {
    short h[PACK_ROWS];
    for (int r = 0; r < PACK_ROWS; r++) {
        memcpy(&h[r], rows[r] + offset, 2);
    }
    return lanes_halves(_mm_set_epi16(h[7], h[6], h[5], h[4], h[3], h[2], h[1], h[0]),
                        _mm_set_epi16(h[15], h[14], h[13], h[12], h[11], h[10], h[9], h[8]));
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
MATMUL_INLINE void store_codes(const struct target t, int at, lanes v) {
    lanes_store(t.out->codes[at], v);
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
