// The sort and the selection of the CPU backend, in place of ggml's (build.rs), and a sort whose first places alone count.
#pragma once

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_compute_params;

// The order of the elements of a row is total: by value, equal ones by index, and what is no number last, whichever way
// numbers are sorted. Ggml's own comparison has no order for what is no number, with which a sort of C++ may read
// beyond the row.

// GGML_OP_ARGSORT.
void sort_rows(const struct ggml_compute_params * params, struct ggml_tensor * dst);
// GGML_OP_TOP_K, in no order; of equal elements those that ggml's selects, as select.c does.
void select_rows(const struct ggml_compute_params * params, struct ggml_tensor * dst);

// The indices of the `k` largest elements of each row, largest first: a view of all indices, of which the CPU backend
// sorts no others.
//   a   f32 [n, m], contiguous
// -> i32 [k, m]
struct ggml_tensor * shim_best(struct ggml_context * ctx, struct ggml_tensor * a, int k);

#ifdef __cplusplus
}
#endif
