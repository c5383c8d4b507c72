// The tanh approximation of GELU in f32: a custom operation that ggml itself does not have.
#pragma once

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

// x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))), times `up` if it is not null.
//   x   f32, contiguous
//   up  f32 of the shape of x, contiguous; or null
// -> f32 of the shape of x. The operations for an element do not depend on the others or the thread.
struct ggml_tensor * shim_gelu(struct ggml_context * ctx, struct ggml_tensor * x, struct ggml_tensor * up);

// Whether a tensor is the result of shim_gelu.
bool shim_is_gelu(const struct ggml_tensor * t);

#ifdef __cplusplus
}
#endif
