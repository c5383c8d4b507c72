// RMS norms of the CPU backend, in place of ggml's (build.rs). ggml adds the squares of a row one after another, which waits for
// each addition; here they are added in lanes.

#include <math.h>

#include "ggml-cpu-impl.h"
#include "ggml-impl.h"

#define LANES 16

// Squares are rounded to float, as ggml's are. The order of the terms follows from `n` alone.
static double sum_of_squares(const float * x, int64_t n) {
    double sums[LANES] = { 0 };
    const int64_t whole = n / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES) {
        for (int l = 0; l < LANES; l++) {
            const float square = x[i + l] * x[i + l];
            sums[l] += (double) square;
        }
    }
    double sum = 0.0;
    for (int l = 0; l < LANES; l++) {
        sum += sums[l];
    }
    for (int64_t i = whole; i < n; i++) {
        const float square = x[i] * x[i];
        sum += (double) square;
    }
    return sum;
}

static const float * row_at(const struct ggml_tensor * t, int64_t i1, int64_t i2, int64_t i3) {
    return (const float *) ((const char *) t->data + i1 * t->nb[1] + i2 * t->nb[2] + i3 * t->nb[3]);
}

// `norm` of its source, to `dst`; times `weights`, whose rows are repeated, if there are any.
static void norm_rows(const struct ggml_compute_params * params, const struct ggml_tensor * norm, const struct ggml_tensor * weights, struct ggml_tensor * dst) {
    const struct ggml_tensor * a = norm->src[0];
    GGML_ASSERT(ggml_are_same_shape(a, dst) && a->type == GGML_TYPE_F32 && a->nb[0] == sizeof(float) && dst->nb[0] == sizeof(float));
    float epsilon;
    memcpy(&epsilon, norm->op_params, sizeof(epsilon));
    const int64_t n_rows = ggml_nrows(a), n = a->ne[0];
    for (int64_t row = n_rows * params->ith / params->nth; row < n_rows * (params->ith + 1) / params->nth; row++) {
        const int64_t i1 = row % a->ne[1], i2 = row / a->ne[1] % a->ne[2], i3 = row / a->ne[1] / a->ne[2];
        const float * x = row_at(a, i1, i2, i3);
        float * y = (float *) ((char *) dst->data + i1 * dst->nb[1] + i2 * dst->nb[2] + i3 * dst->nb[3]);
        const float mean  = (float) (sum_of_squares(x, n) / (double) n);
        const float scale = 1.0f / sqrtf(mean + epsilon);
        if (weights) {
            const float * w = row_at(weights, i1 % weights->ne[1], i2 % weights->ne[2], i3 % weights->ne[3]);
            for (int64_t i = 0; i < n; i++) {
                y[i] = x[i] * scale * w[i];
            }
        } else {
            for (int64_t i = 0; i < n; i++) {
                y[i] = x[i] * scale;
            }
        }
    }
}

// GGML_OP_RMS_NORM.
void norm_rms(const struct ggml_compute_params * params, struct ggml_tensor * dst) {
    norm_rows(params, dst, NULL, dst);
}

// GGML_OP_RMS_NORM and the GGML_OP_MUL of its result, `product`.
void norm_rms_times(const struct ggml_compute_params * params, struct ggml_tensor * norm, struct ggml_tensor * product) {
    norm_rows(params, norm, product->src[0] == norm ? product->src[1] : product->src[0], product);
}
