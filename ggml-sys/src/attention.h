// Attention over KV blocks: a custom operation that ggml itself does not have.
#pragma once

#include "ggml.h"

// Maximum number of elements of a head.
#define PAGED_ATTENTION_MAX_HEAD 1024

#ifdef __cplusplus
extern "C" {
#endif

// Softmax of q . k over an interval of positions of each query's sequence, times v: f32 [dv, heads, n].
//   q        f32 [dk, heads, n], rows dense
//   k, v     [dk or dv, kv_heads, slots], rows dense; f32, f16, bf16, q8_0 or q4_0, each its own
//   queries  i32 [4, n]: where the KV blocks of its sequence begin in `table`, its position, and the
//            first and the end of the positions that it attends to
//   table    i32 [m]: position p is in slot table[begin + p / block] * block + p % block
//   selected i32 [m, 1 or kv_heads, n], rows dense, or NULL: for each query, and each key head or all, the blocks of
//            `span` positions that it attends to of its interval, up to the first negative one; if that is the first, it attends
//            to all of its interval
//   bias     f32 [heads, 2*far + 1], dense, or NULL: what is added to the scores of a head for each distance from -far to far, where
//            the distance is the position of the key minus that of the query; farther ones count as -far or far
//   sinks    f32 [heads] or NULL
// With `near` above 0 each KV block has further rows after those of its positions, one for each whole block of `span` positions that
// ends in it, or one in all if none or a whole one ends there: position p is in row table[begin + p / block] * (block + further) +
// p % block. A query attends to the last `near` positions of its interval, and to the further row of each whole block of
// `span` positions that ends in it, or of those that `selected` lists; `span` is a divisor or a multiple of `block`.
// Scores are multiplied by `scale`, capped by `softcap` (0: not) and lowered by the distance times a
// slope that follows from `max_bias` (0: not), as in ggml_soft_max_ext. `queries` and `table`
// are checked when they are read: a query with an invalid interval gets zeros, as one that attends to
// nothing. With `selected` or `near` there is no `max_bias` and no `bias`. The caller checks shapes and types: `block` is a multiple of shim_paged_attention_block_step.
struct ggml_tensor * shim_paged_attention(
        struct ggml_context * ctx, struct ggml_tensor * q, struct ggml_tensor * k, struct ggml_tensor * v,
        struct ggml_tensor * queries, struct ggml_tensor * table, struct ggml_tensor * selected, struct ggml_tensor * bias,
        struct ggml_tensor * sinks, float scale, float softcap, float max_bias, int32_t block, int32_t span, int32_t near);

// The same without `selected`, `bias` and further rows, as an operation of a device: GGML_OP_FLASH_ATTN_EXT with `queries` and `table` as sources 5
// and 6 and `block` as parameter 4. Only a device that was asked for it may compute it: others ignore the table, the CPU backend too.
// q f32 [dk, n, heads], k and v [dk or dv, slots, kv_heads].
struct ggml_tensor * shim_device_attention(
        struct ggml_context * ctx, struct ggml_tensor * q, struct ggml_tensor * k, struct ggml_tensor * v,
        struct ggml_tensor * queries, struct ggml_tensor * table, struct ggml_tensor * sinks,
        float scale, float softcap, float max_bias, int32_t block);

// Whether a tensor is the result of shim_device_attention.
bool shim_is_device_attention(const struct ggml_tensor * t);

// Whether a tensor is the result of shim_paged_attention.
bool shim_is_paged_attention(const struct ggml_tensor * t);

// Maximum number of elements of a head.
int32_t shim_paged_attention_max_head(void);

// The length of a KV block is a multiple of this.
int32_t shim_paged_attention_block_step(void);

#ifdef __cplusplus
}
#endif
