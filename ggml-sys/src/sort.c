// Sorts the elements of rows, or selects the best of them: a heap of the best ones so far, with the last of these at its
// root. Numbers that are not before the root, most of a long row, are looked at a block at a time.

#include "sort.h"

#include <math.h>
#include <string.h>

#include "ggml-cpu-impl.h"
#include "ggml-impl.h"

// Elements that are compared at a time.
#define BLOCK 16

// Index of the parameter of a sort with the number of places that count; 0: all.
#define AT_BEST 1

struct row {
    const float * values;
    bool descending;
};

// A number with the order of the floats in a direction, and above all others for what is no number.
static inline uint32_t rank_of(const struct row * row, int32_t at) {
    const float value = row->values[at] + 0.0f; // one zero
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    if (isnan(value)) {
        return UINT32_MAX;
    }
    const uint32_t key = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return row->descending ? ~key : key;
}

static inline bool is_before(const struct row * row, int32_t a, int32_t b) {
    const uint32_t of_a = rank_of(row, a), of_b = rank_of(row, b);
    return of_a < of_b || (of_a == of_b && a < b);
}

// Lets the element at `root` sink to its place among the `n` of a heap whose root is the last.
static void sift(const struct row * row, int32_t * heap, int64_t n, int64_t root) {
    const int32_t sinking = heap[root];
    int64_t child;
    while ((child = 2*root + 1) < n) {
        if (child + 1 < n && is_before(row, heap[child], heap[child + 1])) {
            child++;
        }
        if (is_before(row, heap[child], sinking)) {
            break;
        }
        heap[root] = heap[child];
        root = child;
    }
    heap[root] = sinking;
}

// Whether a number of a block is before `last`, which is a number.
static inline bool has_before(const float * block, float last, bool descending) {
    int found = 0;
    if (descending) {
        for (int i = 0; i < BLOCK; i++) {
            found |= block[i] > last;
        }
    } else {
        for (int i = 0; i < BLOCK; i++) {
            found |= block[i] < last;
        }
    }
    return found;
}

// The indices of the `k` first elements of a row of `n`, in order. With `keeps_all` the `n - k` others follow, in no
// order.
static void first_of(const struct row * row, int64_t n, int64_t k, int32_t * out, bool keeps_all) {
    for (int64_t i = 0; i < (keeps_all ? n : k); i++) {
        out[i] = (int32_t) i;
    }
    for (int64_t i = k / 2 - 1; i >= 0; i--) {
        sift(row, out, k, i);
    }
    for (int64_t at = k; at < n; at++) {
        const float last = row->values[out[0]];
        // Of equal elements the later one is after the root.
        if (n - at >= BLOCK && !isnan(last) && !has_before(row->values + at, last, row->descending)) {
            at += BLOCK - 1;
            continue;
        }
        if (is_before(row, (int32_t) at, out[0])) {
            if (keeps_all) {
                out[at] = out[0];
            }
            out[0] = (int32_t) at;
            sift(row, out, k, 0);
        }
    }
    for (int64_t end = k - 1; end > 0; end--) {
        const int32_t last = out[0];
        out[0] = out[end];
        out[end] = last;
        sift(row, out, end, 0);
    }
}

static void first_of_rows(const struct ggml_compute_params * params, struct ggml_tensor * dst, bool descending, int64_t k) {
    const struct ggml_tensor * src = dst->src[0];
    GGML_ASSERT(src->type == GGML_TYPE_F32 && src->nb[0] == sizeof(float));
    const int64_t n = src->ne[0], n_rows = ggml_nrows(src);
    for (int64_t i = params->ith; i < n_rows; i += params->nth) {
        const struct row row = { (const float *) ((const char *) src->data + i*src->nb[1]), descending };
        first_of(&row, n, k, (int32_t *) ((char *) dst->data + i*dst->nb[1]), dst->ne[0] == n);
    }
}

void sort_rows(const struct ggml_compute_params * params, struct ggml_tensor * dst) {
    const int64_t best = dst->op_params[AT_BEST];
    const bool descending = dst->op_params[0] == GGML_SORT_ORDER_DESC;
    first_of_rows(params, dst, descending, best > 0 && best < dst->ne[0] ? best : dst->ne[0]);
}

// Lets `item` take the place of the root of a heap whose root is the last, as `sift` of select.c does: which of equal ones is
// where, and so which one is given up for a better one, is as in ggml's selection.
static void sift_equal(const struct row * row, int32_t * heap, int64_t n, int64_t root, int32_t item) {
    int64_t at = root, child;
    while ((child = 2*at + 1) < n) {
        if (child + 1 < n && rank_of(row, heap[child + 1]) >= rank_of(row, heap[child])) {
            child++;
        }
        heap[at] = heap[child];
        at = child;
    }
    const uint32_t rank = rank_of(row, item);
    while (at > root && rank_of(row, heap[(at - 1) / 2]) < rank) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = item;
}

void select_rows(const struct ggml_compute_params * params, struct ggml_tensor * dst) {
    const struct ggml_tensor * src = dst->src[0];
    GGML_ASSERT(src->type == GGML_TYPE_F32 && src->nb[0] == sizeof(float));
    const int64_t n = src->ne[0], k = dst->ne[0], n_rows = ggml_nrows(src);
    for (int64_t i = params->ith; i < n_rows; i += params->nth) {
        const struct row row = { (const float *) ((const char *) src->data + i*src->nb[1]), true };
        int32_t * out = (int32_t *) ((char *) dst->data + i*dst->nb[1]);
        for (int64_t at = 0; at < k; at++) {
            out[at] = (int32_t) at;
        }
        for (int64_t root = k / 2 - 1; root >= 0; root--) {
            sift_equal(&row, out, k, root, out[root]);
        }
        for (int64_t at = k; at < n; at++) {
            const float last = row.values[out[0]];
            if (n - at >= BLOCK && !isnan(last) && !has_before(row.values + at, last, true)) {
                at += BLOCK - 1;
                continue;
            }
            if (rank_of(&row, (int32_t) at) < rank_of(&row, out[0])) {
                sift_equal(&row, out, k, 0, (int32_t) at);
            }
        }
    }
}

struct ggml_tensor * shim_best(struct ggml_context * ctx, struct ggml_tensor * a, int k) {
    struct ggml_tensor * best = ggml_argsort_top_k(ctx, a, k);
    // Other backends read the direction alone.
    best->src[0]->op_params[AT_BEST] = k;
    return best;
}
