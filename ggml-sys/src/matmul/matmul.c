// The entry to the matrix products: the functions that ggml-cpu.c calls in place of its helpers, the
// supported types and shapes, and the division of the work. Every thread of the pool calls every function
// here with the same arguments except its number; the decisions depend on nothing else.

#include "matmul.h"
#include "shim.h"

#include <stdatomic.h>

#include "ggml-cpu.h"
#include "ggml-impl.h"
#include "ggml-cpu-impl.h"
#if __has_include("tiled/tiled.h")
#include "tiled/tiled.h"
#define MATMUL_HOOKED 1
#endif

// The last parameter of a product, which ggml does not use: whether its bits must not depend on the batch.
#define INVARIANT (GGML_MAX_OP_PARAMS / sizeof(int32_t) - 1)

void shim_graph_set_invariant(struct ggml_cgraph * graph) {
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
        struct ggml_tensor * node = ggml_graph_node(graph, i);
        if (node->op == GGML_OP_MUL_MAT || node->op == GGML_OP_MUL_MAT_ID) {
            node->op_params[INVARIANT] = 1;
        }
    }
}

// The flag of tensors whose `extra` points to their interleaved rows; ggml uses lower bits.
#define INTERLEAVED (1 << 30)

void shim_tensor_set_interleaved(struct ggml_tensor * weight, const void * rows) {
    weight->extra = (void *) rows;
    weight->flags |= INTERLEAVED;
}

// A ggml without these helpers calls nothing here.
#ifdef MATMUL_HOOKED

// What ggml-cpu.c calls under the names of its own helpers.
size_t matmul_work_size(int n_tasks, struct ggml_tensor * dst);
bool   matmul_product(const struct ggml_compute_params * params, struct ggml_tensor * dst);
bool   matmul_expert(const struct ggml_compute_params * params, struct ggml_tensor * dst, int64_t expert,
                     int64_t n_routed, const int32_t * routed, char * scratch);

// Weights of one piece of work.
#define PIECE_BYTES (128 * 1024)

// Up to here a product of one column is so little work that every thread prepares the column for
// itself: waiting for the others would cost more.
#define ALONE_BYTES (512 * 1024)

// The kernel for a product with any number of columns; NULL if there is none.
static const struct matmul_kernel * kernel_of(const struct ggml_tensor * dst) {
    const struct ggml_tensor * a = dst->src[0];
    const struct ggml_tensor * b = dst->src[1];
    if (b->type != GGML_TYPE_F32 || b->nb[0] != sizeof(float) || ggml_is_empty(dst) || a->ne[0] == 0) {
        return NULL;
    }
    const struct matmul_kernel * kernel = matmul_quant_kernel(a->type);
    return kernel ? kernel : matmul_float_kernel(a->type);
}

static bool is_invariant(const struct ggml_tensor * dst) { return dst->op_params[INVARIANT] != 0; }

// The interleaved rows of weights, or of a view of whole tiles of them, or of all from such a one on; NULL: they have none.
static const char * interleaved_rows(const struct matmul_kernel * kernel, const struct ggml_tensor * a) {
    const struct ggml_tensor * of = a->view_src ? a->view_src : a;
    if (!(of->flags & INTERLEAVED) || !kernel->layout) {
        return NULL;
    }
    const size_t offset = a->view_src ? a->view_offs : 0;
    const size_t tile   = (size_t) kernel->tile_rows * of->nb[1];
    const bool has_tiles = offset % tile == 0 && (a->ne[2] == 1 || a->nb[2] % tile == 0) &&
                           (a->ne[3] == 1 || a->nb[3] % tile == 0);
    const bool has_end   = a->ne[1] % kernel->tile_rows == 0 || offset + a->ne[1] * of->nb[1] == ggml_nbytes(of);
    const bool has_rows  = a->type == of->type && a->ne[0] == of->ne[0] && a->nb[1] == of->nb[1];
    return has_tiles && has_end && has_rows ? (const char *) of->extra + offset : NULL;
}

// Whether ggml's function for one element multiplies the `n` columns of the product `dst` faster than their kernel.
static bool is_by_ggml(const struct matmul_kernel * kernel, const struct ggml_tensor * dst, int64_t n,
                       bool is_interleaved) {
    return kernel->alone_by_ggml && n == 1 && !is_interleaved && !is_invariant(dst);
}

// The function for the product `dst` of `n` columns in all.
static multiply_fn function_for(const struct matmul_kernel * kernel, const struct ggml_tensor * dst, int64_t n,
                                bool is_interleaved) {
    const bool is_alone = n == 1 && !is_interleaved && kernel->multiply_alone && !is_invariant(dst);
    return is_alone ? kernel->multiply_alone : kernel->multiply;
}

// ggml's function for one element, so that it is called in the same way for every element.
static void multiply_one_by_one(const struct matmul_job * job) {
    const ggml_vec_dot_t vec_dot = ggml_get_type_traits_cpu(job->type)->vec_dot;
    for (int c = 0; c < job->n_columns; c++) {
        for (int r = 0; r < job->n_rows; r++) {
            const char * row = job->rows + (size_t) r * job->row_stride;
            vec_dot((int) job->k, &job->out[c][r], 0, row, 0, job->columns[c], 0, 1);
        }
    }
}

// The kernel of types without one of their own, for bits that do not depend on the batch.
static struct matmul_kernel plain_kernel(enum ggml_type type) {
    return (struct matmul_kernel) {
        .column_type = ggml_get_type_traits_cpu(type)->vec_dot_type,
        .tile_rows   = 16,
        .multiply    = multiply_one_by_one,
    };
}

static size_t aligned(size_t n) { return (n + 63) / 64 * 64; }

static char * aligned_pointer(void * p) { return (char *) aligned((size_t) p); }

// Bytes of a column in the kernel's layout.
static size_t column_bytes(const struct matmul_kernel * kernel, int64_t k) {
    return kernel->column_size ? kernel->column_size(k) : ggml_row_size(kernel->column_type, k);
}

// One product, as every thread computes it for itself.
struct product {
    const struct matmul_kernel * kernel;
    multiply_fn                  multiply;
    const struct ggml_tensor *   dst;
    const char *                 rows; // of src0, in ggml's layout or interleaved
    bool                         is_interleaved;
    int64_t                      k;
    size_t                       column_bytes;
    char *                       columns; // prepared; NULL: src1 as it is
};

#define BLOCKS_BYTES 4096

// Prepares blocks [first, last) of a column of floats; blocks of the column type.
static void prepare(const struct product * p, const float * x, int64_t first, int64_t last, char * column) {
    const enum ggml_type    type  = p->kernel->column_type;
    const ggml_from_float_t from  = ggml_get_type_traits_cpu(type)->from_float;
    const int64_t           block = ggml_blck_size(type);
    if (!p->kernel->arrange) {
        from(x + first * block, column + first * ggml_type_size(type), (last - first) * block);
        return;
    }
    _Alignas(64) char blocks[BLOCKS_BYTES];
    const int64_t step = BLOCKS_BYTES / (int64_t) ggml_type_size(type);
    for (int64_t at = first; at < last; at += step) {
        const int64_t end = at + step < last ? at + step : last;
        from(x + at * block, blocks, (end - at) * block);
        p->kernel->arrange(blocks, at, end, p->k, column);
    }
}

// Column `i` of src1, counted over all its batches.
static const float * column_of(const struct ggml_tensor * b, int64_t i) {
    const int64_t i1 = i % b->ne[1], i2 = i / b->ne[1] % b->ne[2], i3 = i / b->ne[1] / b->ne[2];
    return (const float *) ((const char *) b->data + i1 * b->nb[1] + i2 * b->nb[2] + i3 * b->nb[3]);
}

// Prepares this thread's part of all columns.
static void prepare_all(const struct product * p, int ith, int nth) {
    const struct ggml_tensor * b = p->dst->src[1];
    const int64_t n      = ggml_nrows(b);
    const int64_t blocks = p->k / ggml_blck_size(p->kernel->column_type);
    if (n >= 4 * nth) {
        for (int64_t i = n * ith / nth; i < n * (ith + 1) / nth; i++) {
            prepare(p, column_of(b, i), 0, blocks, p->columns + i * p->column_bytes);
        }
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        prepare(p, column_of(b, i), blocks * ith / nth, blocks * (ith + 1) / nth,
                p->columns + i * p->column_bytes);
    }
}

static bool is_large(const struct ggml_tensor * a) {
    return (size_t) a->ne[1] * ggml_row_size(a->type, a->ne[0]) > ALONE_BYTES;
}

// Rows [row, end) times columns [column, last) of batch (i2, i3). This thread multiplies rows up to `coming` after them.
static void multiply(const struct product * p, int64_t i2, int64_t i3, int64_t row, int64_t end, int64_t coming,
                     int64_t column, int64_t last) {
    const struct ggml_tensor * a = p->dst->src[0];
    const struct ggml_tensor * b = p->dst->src[1];
    // Those after the last whole tile are not interleaved.
    const int64_t whole = a->ne[1] / p->kernel->tile_rows * p->kernel->tile_rows;
    if (p->is_interleaved && row < whole && whole < end) {
        multiply(p, i2, i3, row, whole, coming, column, last);
        multiply(p, i2, i3, whole, end, coming, column, last);
        return;
    }
    const char * columns[MATMUL_COLUMNS];
    float *      out[MATMUL_COLUMNS];
    for (int64_t i = column; i < last; i++) {
        const int64_t flat = (i3 * b->ne[2] + i2) * b->ne[1] + i;
        columns[i - column] = p->columns ? p->columns + flat * p->column_bytes
                                         : (const char *) column_of(b, flat);
        out[i - column] = (float *) ((char *) p->dst->data + i * p->dst->nb[1] + i2 * p->dst->nb[2] +
                                     i3 * p->dst->nb[3]) + row;
    }
    const int64_t a2 = i2 / (b->ne[2] / a->ne[2]), a3 = i3 / (b->ne[3] / a->ne[3]);
    const struct matmul_job job = {
        .k          = p->k,
        .rows       = p->rows + row * a->nb[1] + a2 * a->nb[2] + a3 * a->nb[3],
        .is_interleaved = p->is_interleaved && row < whole,
        .row_stride = a->nb[1],
        .n_rows     = (int) (end - row),
        .columns    = columns,
        .out        = out,
        .n_columns  = (int) (last - column),
        .type       = a->type,
        .streamed   = is_large(a),
        .n_coming   = (int) (coming - row),
    };
    p->multiply(&job);
}

static int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t pieces_of(int64_t n, int64_t size) { return (n + size - 1) / size; }

// A product cut into pieces of rows and columns.
struct pieces {
    int64_t rows, columns; // of one piece
    int64_t n_rows, n_columns, n;
};

static struct pieces cut(const struct product * p, int nth) {
    const struct ggml_tensor * a = p->dst->src[0];
    const struct ggml_tensor * b = p->dst->src[1];
    const int64_t tile = p->kernel->tile_rows;
    struct pieces s;
    s.columns   = at_most(b->ne[1], MATMUL_COLUMNS);
    s.n_columns = pieces_of(b->ne[1], s.columns);
    const int64_t batches = b->ne[2] * b->ne[3];
    // At least four pieces for each thread, if there are as many tiles.
    const int64_t wanted = pieces_of(4 * nth, s.n_columns * batches);
    int64_t rows = pieces_of(a->ne[1], wanted);
    rows = at_most(rows, PIECE_BYTES / (int64_t) ggml_row_size(a->type, p->k));
    s.rows   = pieces_of(rows > 0 ? rows : 1, tile) * tile;
    s.n_rows = pieces_of(a->ne[1], s.rows);
    s.n      = s.n_rows * s.n_columns * batches;
    return s;
}

// Pieces [piece, end) are this thread's.
static void multiply_piece(const struct product * p, const struct pieces * s, int64_t piece, int64_t end) {
    const struct ggml_tensor * a = p->dst->src[0];
    const struct ggml_tensor * b = p->dst->src[1];
    const int64_t row    = piece % s->n_rows * s->rows;
    const int64_t column = piece / s->n_rows % s->n_columns * s->columns;
    const int64_t batch  = piece / s->n_rows / s->n_columns;
    multiply(p, batch % b->ne[2], batch / b->ne[2], row, at_most(row + s->rows, a->ne[1]),
             at_most(row + s->rows * (end - piece), a->ne[1]), column, at_most(column + s->columns, b->ne[1]));
}

// Pieces [next, end) of one thread, which others take when they have none left. Consecutive pieces for each thread:
// what it prefetches beyond a piece is its own.
struct share {
    _Alignas(64) _Atomic int64_t next;
    int64_t end;
};

// The shares of all threads, at the end of the scratch memory.
static struct share * shares_of(const struct ggml_compute_params * params) {
    const size_t end = ((size_t) params->wdata + params->wsize) / 64 * 64;
    return (struct share *) end - params->nth;
}

// The next piece of a share; -1: there is none.
static int64_t take(struct share * share) {
    if (atomic_load_explicit(&share->next, memory_order_relaxed) >= share->end) {
        return -1;
    }
    const int64_t piece = atomic_fetch_add_explicit(&share->next, 1, memory_order_relaxed);
    return piece < share->end ? piece : -1;
}

// Each thread prepares the one column for itself and multiplies its share of the rows.
static void multiply_alone(struct product * p, int ith, int nth) {
    const int64_t tile  = p->kernel->tile_rows;
    const int64_t rows  = p->dst->src[0]->ne[1];
    const int64_t tiles = pieces_of(rows, tile);
    const int64_t first = tiles * ith / nth * tile;
    const int64_t last  = at_most(tiles * (ith + 1) / nth * tile, rows);
    if (first >= last) {
        return;
    }
    if (p->columns) {
        p->columns += ith * p->column_bytes;
        prepare(p, column_of(p->dst->src[1], 0), 0, p->k / ggml_blck_size(p->kernel->column_type), p->columns);
    }
    multiply(p, 0, 0, first, last, last, 0, 1);
}

static bool multiply_together(struct product * p, const struct ggml_compute_params * params) {
    if (p->columns) {
        prepare_all(p, params->ith, params->nth);
    }
    const int ith = params->ith, nth = params->nth;
    const struct pieces s = cut(p, nth);
    struct share * shares = shares_of(params);
    shares[ith].next = s.n * ith / nth;
    shares[ith].end  = s.n * (ith + 1) / nth;
    ggml_barrier(params->threadpool);
    for (int i = 0; i < nth; i++) {
        struct share * share = &shares[(ith + i) % nth];
        for (int64_t piece; (piece = take(share)) >= 0;) {
            multiply_piece(p, &s, piece, share->end);
        }
    }
    return true;
}

// In place of `ggml_compute_forward_mul_mat_tiled`: the whole product, or false.
bool matmul_product(const struct ggml_compute_params * params, struct ggml_tensor * dst) {
    const int64_t n = ggml_nrows(dst->src[1]);
    const struct matmul_kernel * kernel = params->use_ref ? NULL : kernel_of(dst);
    const char * interleaved = kernel ? interleaved_rows(kernel, dst->src[0]) : NULL;
    struct matmul_kernel plain;
    if (!kernel || is_by_ggml(kernel, dst, n, interleaved != NULL)) {
        // One column is faster here too: threads share the rows better.
        const bool is_ours = is_invariant(dst) || n == 1;
        if (!is_ours || dst->src[1]->type != GGML_TYPE_F32 || ggml_is_empty(dst)) {
            return ggml_compute_forward_mul_mat_tiled(params, dst);
        }
        plain  = plain_kernel(dst->src[0]->type);
        kernel = &plain;
    }
    const int64_t k = dst->src[0]->ne[0];
    struct product p = {
        .kernel         = kernel,
        .multiply       = function_for(kernel, dst, n, interleaved != NULL),
        .dst            = dst,
        .rows           = interleaved ? interleaved : (const char *) dst->src[0]->data,
        .is_interleaved = interleaved != NULL,
        .k              = k,
        .column_bytes   = column_bytes(kernel, k),
    };
    if (kernel->column_type != GGML_TYPE_F32) {
        p.columns = kernel->column_size ? aligned_pointer(params->wdata) : params->wdata;
    }
    if (n == 1 && !is_large(dst->src[0]) && kernel != &plain) {
        multiply_alone(&p, params->ith, params->nth);
        return true;
    }
    return multiply_together(&p, params);
}

// Columns of an expert that a thread prepares at a time.
#define EXPERT_COLUMNS 32

// Experts of tokens up to which the next one is searched.
#define EXPERTS_SEARCHED 256

// The expert after this one that a product needs; -1: there is none, or the search would take long.
static int64_t next_expert(const struct ggml_tensor * ids, int64_t expert) {
    int64_t next = INT64_MAX;
    for (int64_t token = 0; token < ids->ne[1] && ggml_nelements(ids) <= EXPERTS_SEARCHED; token++) {
        for (int64_t i = 0; i < ids->ne[0]; i++) {
            const int64_t id = *(const int32_t *) ((const char *) ids->data + i * ids->nb[0] + token * ids->nb[1]);
            next = id > expert ? at_most(id, next) : next;
        }
    }
    return next < INT64_MAX ? next : -1;
}

// In place of `ggml_compute_forward_mul_mat_id_tiled`: one expert's product, or false. `routed`
// holds pairs: the slot among the experts of a token, and the token. src1 is rounded already.
bool matmul_expert(const struct ggml_compute_params * params, struct ggml_tensor * dst, int64_t expert,
                   int64_t n_routed, const int32_t * routed, char * scratch) {
    const struct matmul_kernel * kernel = params->use_ref ? NULL : kernel_of(dst);
    const struct ggml_tensor * a = dst->src[0];
    if (!kernel) {
        return !is_invariant(dst) &&
               ggml_compute_forward_mul_mat_id_tiled(params, dst, expert, n_routed, routed, scratch);
    }
    // Of one expert, rows after the last whole tile are not interleaved.
    const char * interleaved = a->ne[1] % kernel->tile_rows == 0 ? interleaved_rows(kernel, a) : NULL;
    if (is_by_ggml(kernel, dst, n_routed, interleaved != NULL)) {
        return false;
    }
    const struct ggml_tensor * b = dst->src[1];
    const int64_t k     = a->ne[0];
    const int64_t tiles = pieces_of(a->ne[1], kernel->tile_rows);
    const int64_t first = tiles * params->ith / params->nth * kernel->tile_rows;
    const int64_t last  = at_most(tiles * (params->ith + 1) / params->nth * kernel->tile_rows, a->ne[1]);
    const bool    plain = kernel->column_type == GGML_TYPE_F32;
    const size_t  bytes = column_bytes(kernel, k);
    const char * experts = interleaved ? interleaved : (const char *) a->data;
    const int64_t next = next_expert(dst->src[2], expert);
    char * own = aligned_pointer(scratch) + (size_t) params->ith * EXPERT_COLUMNS * bytes;
    for (int64_t done = 0; done < n_routed && first < last; done += EXPERT_COLUMNS) {
        const int n = (int) at_most(n_routed - done, EXPERT_COLUMNS);
        const char * columns[EXPERT_COLUMNS];
        float *      out[EXPERT_COLUMNS];
        for (int i = 0; i < n; i++) {
            const int64_t slot = routed[2 * (done + i)], token = routed[2 * (done + i) + 1];
            const int64_t i1 = slot % b->ne[1];
            columns[i] = plain ? (const char *) b->data + i1 * b->nb[1] + token * b->nb[2]
                               : (const char *) params->wdata +
                                     (i1 + token * b->ne[1]) * ggml_row_size(kernel->column_type, k);
            if (kernel->arrange) {
                char * column = own + i * bytes;
                kernel->arrange(columns[i], 0, k / ggml_blck_size(kernel->column_type), k, column);
                columns[i] = column;
            }
            out[i] = (float *) ((char *) dst->data + slot * dst->nb[1] + token * dst->nb[2]) + first;
        }
        const struct matmul_job job = {
            .k          = k,
            .rows       = experts + expert * a->nb[2] + first * a->nb[1],
            .is_interleaved = interleaved != NULL,
            .row_stride = a->nb[1],
            .n_rows     = (int) (last - first),
            .columns    = columns,
            .out        = out,
            .n_columns  = n,
            .type       = a->type,
            .streamed   = is_large(a),
            .n_coming   = (int) (last - first),
            .then       = next < 0 ? NULL : experts + next * a->nb[2] + first * a->nb[1],
        };
        function_for(kernel, dst, n_routed, interleaved != NULL)(&job);
    }
    return true;
}

// In place of `ggml_tiled_wdata_size`: scratch bytes of a product, beyond those for src1 in the
// type that ggml rounds it to.
size_t matmul_work_size(int n_tasks, struct ggml_tensor * dst) {
    const struct matmul_kernel * kernel = kernel_of(dst);
    const size_t shares = (size_t) (n_tasks + 1) * sizeof(struct share);
    if (!kernel) {
        return ggml_tiled_wdata_size(n_tasks, dst) + shares;
    }
    const size_t columns = dst->op == GGML_OP_MUL_MAT ? (size_t) (ggml_nrows(dst->src[1]) + n_tasks)
                                                      : (size_t) (n_tasks * EXPERT_COLUMNS);
    return column_bytes(kernel, dst->src[0]->ne[0]) * columns + 64 + shares;
}

#endif
