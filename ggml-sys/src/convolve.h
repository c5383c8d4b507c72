// Convolution over time: a custom operation that ggml itself does not have.
#pragma once

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

// Each channel convolved over time by itself, with the columns that earlier passes left before it:
// y[c, t] = sum over j of weight[j, c] * x[c, t - step * (k - 1 - j)].
//   x        f32 [channels, n, seqs], contiguous
//   states   f32 [kept * channels, rows], contiguous, kept = (k - 1) * step: the last columns of a sequence, oldest first, one
//            channel after another
//   ids      i32 [seqs], contiguous: the row of each sequence; the caller keeps the numbers below `rows`
//   weight   f32 [k, channels], contiguous; k is at most shim_convolve_max_length, kept at most shim_convolve_max_kept
// -> f32 [channels * n * seqs + kept * channels * seqs]: y [channels, n, seqs], then the last columns [kept, channels, seqs].
// The operations for an element do not depend on n, seqs or the thread.
struct ggml_tensor * shim_convolve(
        struct ggml_context * ctx, struct ggml_tensor * x, struct ggml_tensor * states, struct ggml_tensor * ids,
        struct ggml_tensor * weight, int32_t step);

// Whether a tensor is the result of shim_convolve.
bool shim_is_convolve(const struct ggml_tensor * t);

int32_t shim_convolve_max_length(void);
int32_t shim_convolve_max_kept(void);

#ifdef __cplusplus
}
#endif
