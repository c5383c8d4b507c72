// Keys and values in KV blocks, as the operations over them read them: lists of queries and blocks, strips of
// rows, and products of queries with the keys of a strip.
#pragma once

#include <stdbool.h>

#include "ggml-impl.h"
#include "vec.h"

// Positions between two updates of the highest score.
#define TILE 64
// Positions that are contiguous in a KV block: a divisor of every block length.
#define STRIP 16
#define STRIPS (TILE / STRIP)

struct pool {
    const char * data;
    size_t head, slot; // bytes from one to the next
    enum ggml_type type;
    int width, padded; // elements of a head
};

// What the queries of a pass attend to: see attention.h.
struct kv_lists {
    const int32_t * queries;
    const int32_t * table;
    int64_t n_table, n_slots;
    int block, rows; // positions of a KV block, and its rows in the pool: further ones follow those of its positions
};

// STRIP positions of a tile, as rows of floats or of the pool's type.
struct strip {
    const char * data;
    size_t stride;
    int type;
    int width; // elements to read of a row
    ptrdiff_t ahead; // bytes from a row to the one that is prefetched meanwhile; 0: itself, to no effect
};

// Whether `fun` computes a tensor. Its parameters lie where integers may, which is not everywhere that pointers may.
static inline bool is_custom(const struct ggml_tensor * t, ggml_custom_op_t fun) {
    struct ggml_custom_op_params params;
    memcpy(&params, t->op_params, sizeof(params));
    return t->op == GGML_OP_CUSTOM && params.fun == fun;
}

static inline int padded(int64_t width) { return (int) ((width + VEC_LEN - 1) / VEC_LEN * VEC_LEN); }
static inline int least(int a, int b) { return a < b ? a : b; }
static inline int most(int a, int b) { return a > b ? a : b; }

static inline struct pool pool_of(const struct ggml_tensor * t) {
    return (struct pool) { t->data, t->nb[1], t->nb[2], t->type, (int) t->ne[0], padded(t->ne[0]) };
}

// The slot at which the strip at position `base` begins, or -1 if the block table is invalid there.
static inline int64_t strip_slot(const struct kv_lists * a, int64_t begin, int base) {
    const int64_t at = begin + base / a->block;
    if (at < 0 || at >= a->n_table || a->table[at] < 0) {
        return -1;
    }
    const int64_t slot = (int64_t) a->table[at] * a->rows + base % a->block;
    return slot < a->n_slots ? slot : -1;
}

// Whether a query's interval and all of its KV blocks lie inside the block table and the pool.
static inline bool is_sound(const struct kv_lists * a, const int32_t * query) {
    const int64_t begin = query[0];
    const int first = query[2], end = query[3];
    if (begin < 0 || first < 0 || first >= end || end > INT32_MAX - 2*TILE) {
        return false;
    }
    if (begin + (end - 1) / a->block >= a->n_table) {
        return false;
    }
    for (int64_t b = first / a->block; b <= (end - 1) / a->block; b++) {
        const int64_t from = (int64_t) a->table[begin + b] * a->rows;
        const int64_t last = a->rows > a->block ? a->rows - 1 : b == (end - 1) / a->block ? (end - 1) % a->block : a->block - 1;
        if (from < 0 || from + last >= a->n_slots) {
            return false;
        }
    }
    return true;
}

// Whether rows of a type are prefetched while others are computed with, and not before that.
#define IS_PREFETCHED_MEANWHILE(type) ((type) != GGML_TYPE_F32)

// Prefetches what lies in a coming row where chunk `c` lies in this one: a line for each 32 elements, which occupy no more.
// It comes into the second cache. The first one waits for few lines at a time, and rows at large strides share few of its sets.
ALWAYS_INLINE void prefetch_chunk(int type, const char * coming, int c) {
    if (IS_PREFETCHED_MEANWHILE(type) && c % (32 / VEC_LEN) == 0) {
        const int bytes = type == GGML_TYPE_Q8_0 ? 34 : type == GGML_TYPE_Q4_0 ? 18 : 64;
        __builtin_prefetch(coming + c / (32 / VEC_LEN) * bytes, 0, 2);
    }
}

// Sums of products of `rows` queries with the keys of a strip, to `out` [rows][TILE]. Each sum runs
// over its elements in one order, however many rows there are.
ALWAYS_INLINE void score(int type, int rows, const float * q, int q_stride, const struct strip * k, float * out) {
    const int columns = VEC_SUMS / rows;
    const int chunks = k->width / VEC_LEN, rest = k->width % VEC_LEN;
    for (int j = 0; j < STRIP; j += columns) {
        const char * keys = k->data + (size_t) j*k->stride;
        vec sums[VEC_SUMS];
#pragma GCC unroll 16
        for (int i = 0; i < VEC_SUMS; i++) {
            sums[i] = vec_set(0.0f);
        }
        int c = 0;
        // In pairs, so that the half of a block of 32 is a constant.
        for (; c + 1 < chunks; c += 2) {
#pragma GCC unroll 2
            for (int half = 0; half < 2; half++) {
                const char * at = type == GGML_TYPE_Q8_0 ? keys + c/2*34 : type == GGML_TYPE_Q4_0 ? keys + c/2*18 : keys;
                const int chunk = type == GGML_TYPE_Q8_0 || type == GGML_TYPE_Q4_0 ? half : c + half;
                vec queries[VEC_MAX_ROWS];
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++) {
                    queries[r] = vec_held(vec_load(q + r*q_stride + (c + half)*VEC_LEN));
                }
#pragma GCC unroll 16
                for (int i = 0; i < columns; i++) {
                    const vec key = vec_held(vec_row(type, at + (size_t) i*k->stride, chunk));
                    if (half == 0) {
                        prefetch_chunk(type, keys + (size_t) i*k->stride + k->ahead, c);
                    }
#pragma GCC unroll 4
                    for (int r = 0; r < rows; r++) {
                        sums[r*columns + i] = vec_fma(queries[r], key, sums[r*columns + i]);
                    }
                }
            }
        }
        if (type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16) {
            for (; c*VEC_LEN < k->width; c++) {
#pragma GCC unroll 16
                for (int i = 0; i < columns; i++) {
                    const char * row = keys + (size_t) i*k->stride;
                    const vec key = c < chunks ? vec_row(type, row, c) : vec_row_end(type, row, c, rest);
#pragma GCC unroll 4
                    for (int r = 0; r < rows; r++) {
                        sums[r*columns + i] = vec_fma(vec_load(q + r*q_stride + c*VEC_LEN), key, sums[r*columns + i]);
                    }
                }
            }
        }
        vec_store_sums(sums, out + j, rows, TILE);
    }
}

// A case for each type, and in it one for each number of rows that share what is read.
#if VEC_MAX_ROWS == 4
#define ROWS_OF(type, call) (rows == 4 ? call(type, 4) : rows == 2 ? call(type, 2) : call(type, 1))
#else
#define ROWS_OF(type, call) (rows == 2 ? call(type, 2) : call(type, 1))
#endif
#define DISPATCH(type, call)                                              \
    switch (type) {                                                       \
        case GGML_TYPE_F16:  ROWS_OF(GGML_TYPE_F16, call); break;         \
        case GGML_TYPE_BF16: ROWS_OF(GGML_TYPE_BF16, call); break;        \
        case GGML_TYPE_Q8_0: ROWS_OF(GGML_TYPE_Q8_0, call); break;        \
        case GGML_TYPE_Q4_0: ROWS_OF(GGML_TYPE_Q4_0, call); break;        \
        default:             ROWS_OF(GGML_TYPE_F32, call); break;         \
    }

static inline void score_strip(int rows, const float * q, int q_stride, const struct strip * k, float * out) {
#define CALL(type, n) score(type, n, q, q_stride, k, out)
    DISPATCH(k->type, CALL)
#undef CALL
}

// A row as floats; none: zeros.
static inline void convert_row(const struct pool * pool, const char * row, float * to) {
    const int chunks = pool->width / VEC_LEN, rest = pool->width % VEC_LEN;
    if (!row) {
        memset(to, 0, sizeof(float)*(size_t) pool->padded);
        return;
    }
    for (int c = 0; c < chunks; c++) {
        vec_store(to + c*VEC_LEN, vec_row(pool->type, row, c));
    }
    if (rest) {
        vec_store(to + chunks*VEC_LEN, vec_row_end(pool->type, row, chunks, rest));
    }
}

// The strip of rows that were converted to `out`.
static inline struct strip converted(const struct pool * pool, const float * out) {
    return (struct strip) { (const char *) out, sizeof(float)*(size_t) pool->padded, GGML_TYPE_F32, pool->padded, 0 };
}

static inline const char * row_of(const struct pool * pool, int head, int64_t slot) {
    return pool->data + (size_t) head*pool->head + (size_t) slot*pool->slot;
}

// A strip from `slot` on: in place, or a copy as floats, zeros after the last slot, if many rows read it or it is
// cut short.
static inline struct strip strip_of(const struct pool * pool, int64_t n_slots, int head, int64_t slot, bool copy, float * out) {
    const char * data = row_of(pool, head, slot);
    const int64_t available = n_slots - slot;
    if (copy || available < STRIP) {
        for (int j = 0; j < STRIP; j++) {
            convert_row(pool, j < available ? data + (size_t) j*pool->slot : NULL, out + (size_t) j*pool->padded);
        }
        return converted(pool, out);
    }
    return (struct strip) { data, pool->slot, pool->type, pool->width, 0 };
}

// Number of rows that are computed together from row `r` on.
static inline int step_from(int r, int n_rows) {
    const int left = n_rows - r;
    return VEC_MAX_ROWS == 4 && left >= 4 ? 4 : left >= 2 ? 2 : 1;
}
