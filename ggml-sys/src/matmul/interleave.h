// Quantised weights whose 16 rows of a tile are interleaved, so that a vector of lanes is one load: first, for each
// block, the scales of the 16 rows where these are not in a word, loose; then each block's words of four
// bytes, each of the 16 rows side by side. A tile takes as many bytes as its rows do.
#pragma once

#include "matmul.h"

// A block as words.
struct word_layout {
    size_t bytes; // of a block
    size_t loose; // bytes of the scale that is not in a word; of blocks that are whole words 0
    size_t at;    // its offset
    int    flip;  // what the bits of each byte of the words are changed by
};

// Bytes of the loose scales of a block of 16 rows.
MATMUL_INLINE size_t loose_bytes(struct word_layout layout) { return 16 * layout.loose; }

// Words of a block.
MATMUL_INLINE size_t words_of(struct word_layout layout) { return layout.bytes / 4; }

// The word that begins at `offset` of a block.
MATMUL_INLINE size_t word_at(struct word_layout layout, size_t offset) {
    return (offset - (offset > layout.at ? layout.loose : 0)) / 4;
}
