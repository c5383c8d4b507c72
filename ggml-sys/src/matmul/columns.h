// The layout of a column that is multiplied with quantised weights: k codes of 8 bits; one float for each block of the
// column; one value for each group of the weights: -zero * (sum of the group's codes) as an integer where the weights
// have a zero, the sum itself (or ggml's own, of q8_1) as a float where they have mins.
#pragma once

#include "lanes.h"

#ifdef MATMUL_LANES

MATMUL_INLINE int64_t align64(int64_t n) { return (n + 63) / 64 * 64; }

MATMUL_INLINE size_t scales_at(int64_t k) { return align64(k); }

MATMUL_INLINE size_t sums_at(int64_t k, int column_block) {
    return scales_at(k) + align64(k / column_block * 4);
}

MATMUL_INLINE size_t column_size(int64_t k, int column_block, int group) {
    return sums_at(k, column_block) + align64(k / group * 4);
}

// A column, and where its results go.
struct column_view {
    const int8_t *  codes;
    const float *   scales;
    const int32_t * sums;
    float *         out;
};

// A column of a job without its first `done` terms.
MATMUL_INLINE struct column_view view_column(const struct matmul_job * job, int column, int64_t done, int column_block,
                                             int group) {
    const char * base = job->columns[column];
    return (struct column_view) {
        .codes  = (const int8_t *) base + done,
        .scales = (const float *) (base + scales_at(job->k)) + done / column_block,
        .sums   = (const int32_t *) (base + sums_at(job->k, column_block)) + done / group,
        .out    = job->out[column],
    };
}

#endif

#ifdef MATMUL_ALONE

// Products with one column: alone.c.
#define ALONE(name) void multiply_alone_##name(const struct matmul_job * job);

ALONE(q8_0)
ALONE(q4_0)
ALONE(q4_1)
ALONE(q5_0)
ALONE(q5_1)
ALONE(iq4_nl)
ALONE(iq4_xs)
ALONE(q4_K)
ALONE(q5_K)
ALONE(q6_K)

#endif
