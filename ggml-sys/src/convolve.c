// Convolution over time with the columns that earlier passes left, as a custom operation of the CPU backend.
//
// ggml's own operation wants channels in rows, so that the columns before and those of the pass have to be transposed, joined
// and cut again around it. Here a thread takes some channels at a time and reads the columns where they lie.

#include "convolve.h"

#include <stdbool.h>
#include <string.h>

#include "ggml-impl.h"
#include "kv.h"

// Channels that are computed at a time: always as many, so that the same operations make every element.
#define LANES 64
#define MAX_LENGTH 64
#define MAX_KEPT 128

// Index of the parameter, after those of every custom operation.
enum { AT_STEP = 8 };
_Static_assert(sizeof(struct ggml_custom_op_params) <= sizeof(int32_t)*AT_STEP, "parameters overlap");

typedef float lanes[LANES];

// Channels of a thread.
struct scratch {
    _Alignas(64) lanes weight[MAX_LENGTH], before[MAX_KEPT];
};

// Rows of `n` elements, one for each lane, as columns; those beyond `width` are zeros. With n known, compilers transpose in registers.
static inline void columns_of_rows(const float * rows, int n, int width, lanes * out) {
    if (width < LANES) {
        memset(out, 0, sizeof(lanes)*n);
    }
    for (int lane = 0; lane < width; lane++) {
        for (int i = 0; i < n; i++) {
            out[i][lane] = rows[n*lane + i];
        }
    }
}

static void columns_of(const float * rows, int n, int width, lanes * out) {
    if (width == LANES && n == 3) {
        columns_of_rows(rows, 3, LANES, out);
    } else if (width == LANES && n == 4) {
        columns_of_rows(rows, 4, LANES, out);
    } else {
        columns_of_rows(rows, n, width, out);
    }
}

// Sums one column: `terms` are the columns that its elements are multiplied with.
static void sum_of(const lanes * weight, const float * const * terms, int n, float * out) {
    lanes sum = { 0 };
    for (int j = 0; j < n; j++) {
        for (int lane = 0; lane < LANES; lane++) {
            sum[lane] += weight[j][lane]*terms[j][lane];
        }
    }
    memcpy(out, sum, sizeof(sum));
}

static void convolve(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    (void) userdata;
    const struct ggml_tensor * x = dst->src[0], * states = dst->src[1], * weight = dst->src[3];
    const int32_t * ids = dst->src[2]->data;
    const int64_t channels = x->ne[0], n = x->ne[1], seqs = x->ne[2];
    const int length = (int) weight->ne[0], step = dst->op_params[AT_STEP], kept = (length - 1)*step;
    const int64_t n_parts = (channels + LANES - 1) / LANES;
    float * const y = dst->data, * const left = y + channels*n*seqs;
    struct scratch s;

    for (int64_t part = n_parts*ith/nth; part < n_parts*(ith + 1)/nth; part++) {
        const int64_t first = part*LANES;
        const int width = (int) (channels - first < LANES ? channels - first : LANES);
        const size_t bytes = sizeof(float)*width;
        columns_of((const float *) weight->data + length*first, length, width, s.weight);
        for (int64_t seq = 0; seq < seqs; seq++) {
            const float * before = (const float *) states->data + kept*(channels*ids[seq] + first);
            columns_of(before, kept, width, s.before);
            const float * columns = (const float *) x->data + channels*n*seq + first;
            for (int64_t t = 0; t < n; t++) {
                const float * terms[MAX_LENGTH];
                for (int j = 0; j < length; j++) {
                    const int64_t at = t - (int64_t) step*(length - 1 - j);
                    terms[j] = at < 0 ? s.before[kept + at] : columns + channels*at;
                }
                float * const out = y + channels*(n*seq + t) + first;
                if (width == LANES) {
                    sum_of(s.weight, terms, length, out);
                } else {
                    // Columns of the pass end within the lanes.
                    lanes sum, ends[MAX_LENGTH];
                    memset(ends, 0, sizeof(ends[0])*length);
                    for (int j = 0; j < length; j++) {
                        memcpy(ends[j], terms[j], bytes);
                        terms[j] = ends[j];
                    }
                    sum_of(s.weight, terms, length, sum);
                    memcpy(out, sum, bytes);
                }
            }
            float * const row = left + kept*(channels*seq + first);
            for (int i = 0; i < kept; i++) {
                const int64_t at = n - kept + i;
                const float * column = at < 0 ? s.before[kept + at] : columns + channels*at;
                for (int lane = 0; lane < width; lane++) {
                    row[kept*lane + i] = column[lane];
                }
            }
        }
    }
}

struct ggml_tensor * shim_convolve(
        struct ggml_context * ctx, struct ggml_tensor * x, struct ggml_tensor * states, struct ggml_tensor * ids,
        struct ggml_tensor * weight, int32_t step) {
    struct ggml_tensor * sources[] = { x, states, ids, weight };
    const int64_t kept = (weight->ne[0] - 1)*step, n = x->ne[0]*(x->ne[1] + kept)*x->ne[2];
    struct ggml_tensor * dst = ggml_custom_4d(ctx, GGML_TYPE_F32, n, 1, 1, 1, sources, 4, convolve, GGML_N_TASKS_MAX, NULL);
    dst->op_params[AT_STEP] = step;
    return dst;
}

bool shim_is_convolve(const struct ggml_tensor * t) {
    return is_custom(t, convolve);
}

int32_t shim_convolve_max_length(void) {
    return MAX_LENGTH;
}

int32_t shim_convolve_max_kept(void) {
    return MAX_KEPT;
}
