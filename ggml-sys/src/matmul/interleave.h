// Quantised weights whose 16 rows of a tile are interleaved, so that a vector of lanes is one load: first, for each
// block, the half floats of the 16 rows that are not in a word, where a block has one; then each block's words of four
// bytes, each of the 16 rows side by side. A tile takes as many bytes as its rows do.
#pragma once

#include "matmul.h"

// A block as words.
struct word_layout {
    size_t bytes; // of a block
    size_t half;  // offset of the half float that is not in a word; of blocks that are whole words `bytes`
    int    flip;  // what the bits of each byte of the words are changed by
};

MATMUL_INLINE bool has_half(struct word_layout layout) { return layout.half < layout.bytes; }

// Words of a block.
MATMUL_INLINE size_t words_of(struct word_layout layout) { return layout.bytes / 4; }

// The word that begins at `offset` of a block.
MATMUL_INLINE size_t word_at(struct word_layout layout, size_t offset) {
    return (offset - (offset > layout.half ? 2 : 0)) / 4;
}
