// The tanh approximation of GELU in f32, as a custom operation of the CPU backend.
//
// ggml's own looks its results up in a table of half-precision numbers, which leaves three digits of them.

#include "gelu.h"

#include <string.h>

#include "ggml-impl.h"
#include "kv.h"
#include "vec.h"

// Elements that a thread takes at a time.
#define PART 1024

// x * sigmoid(2u) with u = sqrt(2/pi) * (x + 0.044715 x^3), which is x/2 * (1 + tanh(u)) without the sum that loses digits
// where tanh(u) is near -1.
ALWAYS_INLINE vec gelu(vec x) {
    const vec zero = vec_set(0.0f), one = vec_set(1.0f);
    const vec slope = vec_set(1.5957691216057308f), cubic = vec_set(0.07135481627260025f);
    const vec twice = vec_mul(x, vec_fma(vec_mul(x, x), cubic, slope));
    const vec e = vec_exp(vec_sub(zero, vec_abs(twice)));
    const vec share = vec_div(vec_if_less(x, zero, e, one), vec_add(one, e));
    return vec_mul(x, share);
}

// `n` elements, at most VEC_LEN. Those of a vector that is not full are computed as the others are.
ALWAYS_INLINE void few(float * y, const float * x, const float * up, int n) {
    float in[VEC_LEN] = { 0 }, factor[VEC_LEN] = { 0 }, out[VEC_LEN];
    const size_t bytes = sizeof(float)*(size_t) n;
    memcpy(in, x, bytes);
    vec result = gelu(vec_load(in));
    if (up != NULL) {
        memcpy(factor, up, bytes);
        result = vec_mul(result, vec_load(factor));
    }
    vec_store(out, result);
    memcpy(y, out, bytes);
}

static void compute(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    (void) userdata;
    const float * x = dst->src[0]->data, * up = dst->src[1] != NULL ? dst->src[1]->data : NULL;
    float * y = dst->data;
    const int64_t n = ggml_nelements(dst), n_parts = (n + PART - 1)/PART;
    const int64_t begin = n_parts*ith/nth*PART, whole = n_parts*(ith + 1)/nth*PART, end = whole < n ? whole : n;

    int64_t i = begin;
    for (; i + VEC_LEN <= end; i += VEC_LEN) {
        const vec result = gelu(vec_load(x + i));
        vec_store(y + i, up != NULL ? vec_mul(result, vec_load(up + i)) : result);
    }
    if (i < end) {
        few(y + i, x + i, up != NULL ? up + i : NULL, (int) (end - i));
    }
}

struct ggml_tensor * shim_gelu(struct ggml_context * ctx, struct ggml_tensor * x, struct ggml_tensor * up) {
    struct ggml_tensor * sources[] = { x, up };
    return ggml_custom_4d(
        ctx, GGML_TYPE_F32, x->ne[0], x->ne[1], x->ne[2], x->ne[3], sources, up != NULL ? 2 : 1, compute, GGML_N_TASKS_MAX, NULL);
}

bool shim_is_gelu(const struct ggml_tensor * t) {
    return is_custom(t, compute);
}
