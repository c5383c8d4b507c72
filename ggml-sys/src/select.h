// Selection of keys by an indexer: a custom operation that ggml itself does not have.
#pragma once

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

// For each query the `top` blocks of `span` positions with the highest index scores, of those that its interval
// reaches into, in ascending order; a negative number ends the list. A list that begins with one stands for all
// blocks: there are no more than `top`.
//   q        f32 [d, heads, n], contiguous
//   weights  f32 [heads, n], contiguous, or NULL
//   k        [d, 1, slots], rows dense; f32, f16, bf16, q8_0 or q4_0
//   queries, table, block   as in attention.h
// -> i32 [room + blocks of the longest sequence, 1 or heads, n]: the first `room` are the list, others scratch memory;
//    room: `top`, and one more if `local` is negative
// The score of a key is the sum over the heads of weight * max(q . k, 0), one list for all; without weights it is
// q . k, a list for each head. The score of a block is the highest of its positions' in the interval. The `local` last
// blocks are always selected; if it is negative, `top` whole blocks are, and the last one if it is not whole. Of equal scores those are that ggml's top_k selects of them. A query with an invalid interval gets
// the list of all blocks, of which it attends to nothing.
struct ggml_tensor * shim_select(
        struct ggml_context * ctx, struct ggml_tensor * q, struct ggml_tensor * weights, struct ggml_tensor * k,
        struct ggml_tensor * queries, struct ggml_tensor * table, int32_t top, int32_t span, int32_t local, int32_t block);

// Whether a tensor is the result of shim_select.
bool shim_is_select(const struct ggml_tensor * t);

#ifdef __cplusplus
}
#endif
