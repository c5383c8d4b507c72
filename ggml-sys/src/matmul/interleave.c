// Interleaves rows of quantised weights.

#include "packed.h"
#include "shim.h"

#ifdef MATMUL_LANES

static const struct word_layout * layout_of(int type) {
    const struct matmul_kernel * kernel = matmul_quant_kernel((enum ggml_type) type);
    return kernel ? kernel->layout : NULL;
}

int shim_interleaved_rows(int type, int64_t k) {
    return layout_of(type) && k % ggml_blck_size((enum ggml_type) type) == 0 ? PACK_ROWS : 0;
}

// Words [first, first + 4 or fewer) of a block of 16 rows, which lie side by side.
MATMUL_INLINE void interleave_words(const struct word_layout layout, const char * const rows[PACK_ROWS], size_t first,
                                    size_t n, char * out) {
    const size_t at = 4 * first + (4 * first >= layout.at ? layout.loose : 0);
    if (n == 4) {
        lanes v[4];
        lanes_gather16(rows, at, v);
        for (int i = 0; i < 4; i++) {
            lanes_store_any(out + i * 4 * PACK_ROWS, lanes_xor(v[i], lanes_bytes(layout.flip)));
        }
        return;
    }
    for (size_t i = 0; i < n; i++) {
        for (int r = 0; r < PACK_ROWS; r++) {
            uint32_t word;
            memcpy(&word, rows[r] + at + 4 * i, 4);
            word ^= 0x01010101u * (uint32_t) layout.flip;
            memcpy(out + (i * PACK_ROWS + r) * 4, &word, 4);
        }
    }
}

void shim_interleave(int type, int64_t k, const void * rows, int64_t n_rows, void * out) {
    const struct word_layout layout = *layout_of(type);
    const size_t row    = ggml_row_size((enum ggml_type) type, k);
    const size_t blocks = row / layout.bytes, words = words_of(layout);
    const int64_t whole = n_rows / PACK_ROWS * PACK_ROWS;
    memcpy((char *) out + whole * row, (const char *) rows + whole * row, (n_rows - whole) * row);
    for (int64_t first = 0; first < whole; first += PACK_ROWS) {
        const char * tile   = (const char *) rows + (size_t) first * row;
        char *       loose  = (char *) out + (size_t) first * row;
        char *       to     = loose + blocks * loose_bytes(layout);
        for (size_t b = 0; b < blocks; b++) {
            const char * block[PACK_ROWS];
            for (int r = 0; r < PACK_ROWS; r++) {
                block[r] = tile + r * row + b * layout.bytes;
                memcpy(loose + (b * PACK_ROWS + r) * layout.loose, block[r] + layout.at, layout.loose);
            }
            for (size_t w = 0; w < words; w += 4) {
                interleave_words(layout, block, w, words - w < 4 ? words - w : 4, to + w * 4 * PACK_ROWS);
            }
            to += words * 4 * PACK_ROWS;
        }
    }
}

#else

int shim_interleaved_rows(int type, int64_t k) {
    (void) type, (void) k;
    return 0;
}

void shim_interleave(int type, int64_t k, const void * rows, int64_t n_rows, void * out) {
    (void) type, (void) k, (void) rows, (void) n_rows, (void) out;
}

#endif
