// The elementwise product of the CPU backend, in place of ggml's (build.rs): rows that are multiplied with one number each, as the
// results of experts are, for which ggml calls a function for each element. Other products are ggml's.

#include "binary-ops.h"
#include "ggml-cpu-impl.h"
#include "ggml-impl.h"

// GGML_OP_MUL: the same bits as ggml's.
void multiply_elements(const struct ggml_compute_params * params, struct ggml_tensor * dst) {
    const struct ggml_tensor * a = dst->src[0];
    const struct ggml_tensor * b = dst->src[1];
    const bool is_ours = b->ne[0] == 1 && a->ne[0] > 1 && a->type == GGML_TYPE_F32 && b->type == GGML_TYPE_F32 &&
                         dst->type == GGML_TYPE_F32 && a->nb[0] == sizeof(float) && dst->nb[0] == sizeof(float);
    if (!is_ours) {
        ggml_compute_forward_mul(params, dst);
        return;
    }
    const int64_t n_rows = ggml_nrows(a), n = a->ne[0];
    for (int64_t row = n_rows * params->ith / params->nth; row < n_rows * (params->ith + 1) / params->nth; row++) {
        const int64_t i1 = row % a->ne[1], i2 = row / a->ne[1] % a->ne[2], i3 = row / a->ne[1] / a->ne[2];
        const char * place = (const char *) b->data + i1 % b->ne[1] * b->nb[1] + i2 % b->ne[2] * b->nb[2] + i3 % b->ne[3] * b->nb[3];
        const float factor = *(const float *) place;
        const float * x = (const float *) ((const char *) a->data + i1 * a->nb[1] + i2 * a->nb[2] + i3 * a->nb[3]);
        float * out = (float *) ((char *) dst->data + i1 * dst->nb[1] + i2 * dst->nb[2] + i3 * dst->nb[3]);
        for (int64_t i = 0; i < n; i++) {
            out[i] = x[i] * factor;
        }
    }
}
