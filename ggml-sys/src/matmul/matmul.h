// Matrix products on the CPU that replace ggml's own: declarations that the files of this folder share.
//
// ggml-cpu.c is compiled with the names of three of its helpers replaced (build.rs), so that it
// asks here first (matmul.c). A product is cut into tiles of rows; a tile's weights are read once, brought
// into the layout of the vector instructions, and multiplied with all columns. The order in which
// the terms of one element of the result are added does not depend on the other columns, the
// other rows or the number of threads: the same bits, whatever else is in the batch.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ggml.h"

// Maximum number of columns of one call of a kernel.
#define MATMUL_COLUMNS 128

// A block of rows times some columns.
struct matmul_job {
    int64_t              k;          // terms of each element
    const char *         rows;       // weights, in ggml's layout of their type or interleaved
    bool                 is_interleaved;
    size_t               row_stride; // bytes
    int                  n_rows;
    const char * const * columns;    // each in the kernel's own layout
    float * const *      out;        // n_rows floats for each column
    int                  n_columns;  // 1 to MATMUL_COLUMNS
    enum ggml_type       type;       // of the weights
    bool                 streamed;   // the matrix is too large to be in a cache
    int                  n_coming;   // n_rows, and those after them that this thread multiplies next
    const char *         then;       // where its weights are after those; NULL: unknown
};

struct word_layout;

typedef void (*multiply_fn)(const struct matmul_job * job);

// How one type of weights is multiplied.
struct matmul_kernel {
    // What ggml rounds columns to for these weights. Kernels do the same.
    enum ggml_type column_type;
    // Rows of a tile: work is cut at multiples of it.
    int tile_rows;
    // Bytes of a column in the kernel's layout; NULL: the layout is that of `column_type`.
    size_t (*column_size)(int64_t k);
    // Brings blocks [first, last) of a column from `column_type` into the kernel's layout.
    // `blocks` points at block `first`.
    void (*arrange)(const void * blocks, int64_t first, int64_t last, int64_t k, void * column);
    multiply_fn multiply;
    // Faster for one column, with other bits; NULL: there is none.
    multiply_fn multiply_alone;
    // How rows of these weights are interleaved (interleave.h); NULL: they are not.
    const struct word_layout * layout;
    // Whether ggml's function for one element is faster for one column of rows that are not interleaved, with other bits.
    bool alone_by_ggml;
};

// The kernel for a type of weights; NULL where there is none.
const struct matmul_kernel * matmul_float_kernel(enum ggml_type type);
const struct matmul_kernel * matmul_quant_kernel(enum ggml_type type);

// Unrolls loops of at most 16 steps. Longer ones are nested: in a loop that stays, arrays are in memory, not in registers.
#define UNROLL _Pragma("GCC unroll 16")

#define MATMUL_INLINE static inline __attribute__((always_inline))
