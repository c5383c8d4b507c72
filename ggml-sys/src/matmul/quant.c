// Products of quantised weights: integer dot products of groups, exact, then one fused
// multiply-add in f32 for each group, in the order of the groups.

#include "columns.h"
#include "packed.h"
#include "shim.h"
#include "tiles.h"

#include <string.h>

#ifdef MATMUL_LANES

// Sum of 32 or 16 signed bytes.
MATMUL_INLINE int sum_codes(const int8_t * q, int n) {
    int sum = 0;
    for (int i = 0; i < n; i++) {
        sum += q[i];
    }
    return sum;
}

MATMUL_INLINE void from_q8_0(const void * blocks, int64_t first, int64_t last, int64_t k,
                                void * column, int zero) {
    const block_q8_0 * x = (const block_q8_0 *) blocks;
    int8_t *  codes  = (int8_t *) column;
    float *   scales = (float *) ((char *) column + scales_at(k));
    int32_t * sums   = (int32_t *) ((char *) column + sums_at(k, QK8_0));
    for (int64_t b = first; b < last; b++, x++) {
        memcpy(codes + b * QK8_0, x->qs, QK8_0);
        scales[b] = _cvtsh_ss(x->d);
        sums[b]   = -zero * sum_codes(x->qs, QK8_0);
    }
}

// ggml keeps the sum of a block's values with it, rounded.
MATMUL_INLINE void from_q8_1(const void * blocks, int64_t first, int64_t last, int64_t k, void * column) {
    const block_q8_1 * x = (const block_q8_1 *) blocks;
    int8_t * codes  = (int8_t *) column;
    float *  scales = (float *) ((char *) column + scales_at(k));
    float *  sums   = (float *) ((char *) column + sums_at(k, QK8_1));
    for (int64_t b = first; b < last; b++, x++) {
        memcpy(codes + b * QK8_1, x->qs, QK8_1);
        scales[b] = _cvtsh_ss(x->d);
        sums[b]   = _cvtsh_ss(x->s);
    }
}

MATMUL_INLINE void from_q8_K(const void * blocks, int64_t first, int64_t last, int64_t k,
                                void * column, int group, bool mins, int zero) {
    const block_q8_K * x = (const block_q8_K *) blocks;
    int8_t * codes  = (int8_t *) column;
    float *  scales = (float *) ((char *) column + scales_at(k));
    char *   sums   = (char *) column + sums_at(k, QK_K);
    for (int64_t b = first; b < last; b++, x++) {
        memcpy(codes + b * QK_K, x->qs, QK_K);
        scales[b] = x->d;
        for (int j = 0; j < QK_K / group; j++) {
            const int sum = group == 32 ? x->bsums[2 * j] + x->bsums[2 * j + 1] : x->bsums[j];
            const int64_t at = b * (QK_K / group) + j;
            if (mins) {
                ((float *) sums)[at] = (float) sum;
            } else {
                ((int32_t *) sums)[at] = -zero * sum;
            }
        }
    }
}

// 16 rows times C columns, `n` terms; adds to what `n_rows` rows of the columns hold.
MATMUL_INLINE void multiply_tile(const int C, const struct pack_format f, const struct packed * w,
                                 int n, const struct column_view * c, int n_rows, bool fresh) {
    vec acc[LANES_COLUMNS], part[LANES_COLUMNS];
    for (int i = 0; i < C; i++) {
        acc[i]  = fresh ? vec_set(0.0f) : lanes_load_some(c[i].out, n_rows);
        part[i] = vec_set(0.0f);
    }
    for (int g = 0; g < n / f.group; g++) {
        lanes dot[LANES_COLUMNS];
        const int8_t * y[LANES_COLUMNS];
        for (int i = 0; i < C; i++) {
            dot[i] = lanes_set(f.mins ? 0 : c[i].sums[g]);
            y[i]   = c[i].codes + g * f.group;
        }
        lanes_add_products(C, f.group / 4, f.bits, w->codes + g * (f.group / 4), y, dot);
        for (int i = 0; i < C; i++) {
            add_group(f, w, g, &c[i], dot[i], &acc[i], &part[i]);
        }
    }
    for (int i = 0; i < C; i++) {
        lanes_store_some(c[i].out, acc[i], n_rows);
    }
}

#ifdef MATMUL_TILES
// The same of 16 columns, whose codes are `stride` bytes apart.
MATMUL_INLINE void multiply_tiles(const struct pack_format f, const struct packed * w, int n, const struct column_view * c,
                                  size_t stride, int n_rows, bool fresh) {
    _Alignas(64) tile_sums sums;
    const int groups = n / f.group;
    for (int first = 0; first < groups; first += TILE_GROUPS) {
        const int run = groups - first < TILE_GROUPS ? groups - first : TILE_GROUPS;
        tiles_multiply(f.group, run, w->codes + first * (f.group / 4), c[0].codes + first * f.group, stride, sums);
        for (int i = 0; i < TILE_COLUMNS; i++) {
            vec acc  = fresh && first == 0 ? vec_set(0.0f) : lanes_load_some(c[i].out, n_rows);
            vec part = vec_set(0.0f);
            for (int g = 0; g < run; g++) {
                lanes dot = lanes_load(sums[g][i]);
                if (!f.mins) {
                    dot = lanes_add(dot, lanes_set(c[i].sums[first + g]));
                }
                add_group(f, w, first + g, &c[i], dot, &acc, &part);
            }
            lanes_store_some(c[i].out, acc, n_rows);
        }
    }
}

// Bytes from each column to the next, if that is the same for all; else 0.
MATMUL_INLINE size_t stride_of(const struct matmul_job * job) {
    const size_t stride = (size_t) (job->columns[1] - job->columns[0]);
    for (int i = 2; i < job->n_columns; i++) {
        if ((size_t) (job->columns[i] - job->columns[i - 1]) != stride) {
            return 0;
        }
    }
    return stride;
}
#endif

// `stride`: bytes from each column to the next, where tiles multiply; else 0.
MATMUL_INLINE void multiply_columns(const struct matmul_job * job, const struct pack_format f,
                                    const struct packed * w, int row, int64_t done, int n, size_t stride) {
    const int left = job->n_rows - row;
    const int rows = left < PACK_ROWS ? left : PACK_ROWS;
    int first = 0;
#ifdef MATMUL_TILES
    for (; stride && job->n_columns - first >= TILE_COLUMNS; first += TILE_COLUMNS) {
        struct column_view c[TILE_COLUMNS];
        for (int i = 0; i < TILE_COLUMNS; i++) {
            c[i] = view_column(job, first + i, done, f.groups * f.group, f.group);
            c[i].out += row;
        }
        multiply_tiles(f, w, n, c, stride, rows, done == 0);
    }
#else
    (void) stride;
#endif
    for (; first < job->n_columns; first += LANES_COLUMNS) {
        const int rest  = job->n_columns - first;
        const int count = rest < LANES_COLUMNS ? rest : LANES_COLUMNS;
        struct column_view c[LANES_COLUMNS];
        for (int i = 0; i < count; i++) {
            c[i] = view_column(job, first + i, done, f.groups * f.group, f.group);
            c[i].out += row;
        }
        const bool fresh = done == 0;
        switch (count) {
            case 1: multiply_tile(1, f, w, n, c, rows, fresh); break;
            case 2: multiply_tile(2, f, w, n, c, rows, fresh); break;
            case 3: multiply_tile(3, f, w, n, c, rows, fresh); break;
            case 4: multiply_tile(4, f, w, n, c, rows, fresh); break;
#if LANES_COLUMNS > 4
            case 5: multiply_tile(5, f, w, n, c, rows, fresh); break;
            case 6: multiply_tile(6, f, w, n, c, rows, fresh); break;
            case 7: multiply_tile(7, f, w, n, c, rows, fresh); break;
            default: multiply_tile(8, f, w, n, c, rows, fresh); break;
#endif
        }
    }
}

// Few columns are multiplied faster than their weights arrive: small parts then overlap both.
MATMUL_INLINE int part_of(const struct matmul_job * job) { return job->n_columns <= 8 ? 256 : PACK_K; }

MATMUL_INLINE void multiply_packed(const struct matmul_job * job, const struct pack_format f,
                                   const struct word_layout layout, pack_fn pack, pack_interleaved_fn pack_interleaved,
                                   multiply_fn multiply_interleaved) {
    if (job->is_interleaved && job->n_columns <= LANES_DIRECT) {
        multiply_interleaved(job);
        return;
    }
    _Alignas(64) struct packed w;
    const int part = part_of(job);
    size_t stride = 0; // of columns that tiles multiply
#ifdef MATMUL_TILES
    if (job->n_columns >= TILE_COLUMNS && tiles_are_there() && (stride = stride_of(job)) != 0) {
        tiles_begin(f.group);
    }
#endif
    for (int row = 0; row < job->n_rows; row += PACK_ROWS) {
        const char * base = job->rows + (size_t) row * job->row_stride;
        const char * words = base + (size_t) (job->k / f.block) * loose_bytes(layout);
        for (int64_t done = 0; done < job->k; done += part) {
            const int n = job->k - done < part ? (int) (job->k - done) : part;
            const size_t block  = (size_t) (done / f.block);
            const size_t offset = block * layout.bytes;
            const char * coming = coming_after(job, base + PACK_ROWS * offset);
            if (job->is_interleaved) {
                pack_interleaved(base + block * loose_bytes(layout), words + block * words_of(layout) * 4 * PACK_ROWS, n, coming, &w);
            } else {
                const char * rows[PACK_ROWS];
                for (int r = 0; r < PACK_ROWS; r++) {
                    const int at = row + r < job->n_rows ? r : job->n_rows - 1 - row;
                    rows[r] = base + (size_t) at * job->row_stride + offset;
                }
                pack(rows, n, coming, &w);
            }
            multiply_columns(job, f, &w, row, done, n, stride);
        }
    }
#ifdef MATMUL_TILES
    if (stride) {
        tiles_end();
    }
#endif
}

#ifdef MATMUL_ALONE
#define LANES_ALONE(name) multiply_alone_##name
#else
#define LANES_ALONE(name) NULL
#endif

// A type of weights: its format, its columns, its functions.
#define KERNEL_Q8_0(name, alone)                                               \
    static size_t size_##name(int64_t k) { return column_size(k, QK8_0, 32); }                       \
    static void arrange_##name(const void * x, int64_t first, int64_t last, int64_t k, void * y) {   \
        from_q8_0(x, first, last, k, y, format_##name.zero);                                                  \
    }                                                                                                \
    static void multiply_##name(const struct matmul_job * job) {                                     \
        multiply_packed(job, format_##name, layout_##name, pack_##name, pack_interleaved_##name,                      \
                        multiply_interleaved_##name);                                                                \
    }                                                                                                \
    static const struct matmul_kernel kernel_##name = {                                              \
        GGML_TYPE_Q8_0, PACK_ROWS, size_##name, arrange_##name, multiply_##name, alone, &layout_##name \
    };

#define KERNEL_Q8_1(name)                                                          \
    static size_t size_##name(int64_t k) { return column_size(k, QK8_1, 32); }                       \
    static void arrange_##name(const void * x, int64_t first, int64_t last, int64_t k, void * y) {   \
        from_q8_1(x, first, last, k, y);                                                             \
    }                                                                                                \
    static void multiply_##name(const struct matmul_job * job) {                                     \
        multiply_packed(job, format_##name, layout_##name, pack_##name, pack_interleaved_##name,                      \
                        multiply_interleaved_##name);                                                                \
    }                                                                                                \
    static const struct matmul_kernel kernel_##name = {                                              \
        GGML_TYPE_Q8_1, PACK_ROWS, size_##name, arrange_##name, multiply_##name, LANES_ALONE(name), &layout_##name \
    };

#define COLUMNS_Q8_K(name)                                                                           \
    static size_t size_##name(int64_t k) { return column_size(k, QK_K, format_##name.group); }       \
    static void arrange_##name(const void * x, int64_t first, int64_t last, int64_t k, void * y) {   \
        from_q8_K(x, first, last, k, y, format_##name.group, format_##name.mins, format_##name.zero); \
    }

#define KERNEL_Q8_K(name, alone, by_ggml)                                                            \
    COLUMNS_Q8_K(name)                                                                               \
    static void multiply_##name(const struct matmul_job * job) {                                     \
        multiply_packed(job, format_##name, layout_##name, pack_##name, pack_interleaved_##name,     \
                        multiply_interleaved_##name);                                                \
    }                                                                                                \
    static const struct matmul_kernel kernel_##name = {                                              \
        GGML_TYPE_Q8_K, PACK_ROWS, size_##name, arrange_##name, multiply_##name, alone, &layout_##name, by_ggml \
    };

// Types whose rows are not interleaved.
#define KERNEL_LOW(name)                                                                             \
    COLUMNS_Q8_K(name)                                                                               \
    static void multiply_##name(const struct matmul_job * job) {                                     \
        multiply_packed(job, format_##name, layout_##name, pack_##name, NULL, NULL);                 \
    }                                                                                                \
    static const struct matmul_kernel kernel_##name = {                                              \
        GGML_TYPE_Q8_K, PACK_ROWS, size_##name, arrange_##name, multiply_##name, NULL, NULL, .alone_by_ggml = true \
    };

KERNEL_Q8_0(q8_0, LANES_ALONE(q8_0))
KERNEL_Q8_0(q4_0, LANES_ALONE(q4_0))
KERNEL_Q8_0(q5_0, LANES_ALONE(q5_0))
KERNEL_Q8_0(iq4_nl, LANES_ALONE(iq4_nl))
KERNEL_Q8_0(mxfp4, NULL)
KERNEL_Q8_1(q4_1)
KERNEL_Q8_1(q5_1)
KERNEL_Q8_K(iq4_xs, LANES_ALONE(iq4_xs), false)
KERNEL_Q8_K(q4_K, LANES_ALONE(q4_K), false)
KERNEL_Q8_K(q5_K, LANES_ALONE(q5_K), false)
KERNEL_Q8_K(q6_K, LANES_ALONE(q6_K), false)
KERNEL_Q8_K(q2_K, NULL, true)
KERNEL_Q8_K(q3_K, NULL, true)
KERNEL_LOW(iq2_xxs)
KERNEL_LOW(iq2_xs)
KERNEL_LOW(iq2_s)
KERNEL_LOW(iq3_xxs)
KERNEL_LOW(iq3_s)

const struct matmul_kernel * matmul_quant_kernel(enum ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q8_0: return &kernel_q8_0;
        case GGML_TYPE_Q4_0: return &kernel_q4_0;
        case GGML_TYPE_Q4_1: return &kernel_q4_1;
        case GGML_TYPE_Q5_0: return &kernel_q5_0;
        case GGML_TYPE_Q5_1: return &kernel_q5_1;
        case GGML_TYPE_IQ4_NL: return &kernel_iq4_nl;
        case GGML_TYPE_MXFP4: return &kernel_mxfp4;
        case GGML_TYPE_IQ4_XS: return &kernel_iq4_xs;
        case GGML_TYPE_Q4_K: return &kernel_q4_K;
        case GGML_TYPE_Q5_K: return &kernel_q5_K;
        case GGML_TYPE_Q6_K: return &kernel_q6_K;
        case GGML_TYPE_Q2_K: return &kernel_q2_K;
        case GGML_TYPE_Q3_K: return &kernel_q3_K;
        case GGML_TYPE_IQ2_XXS: return &kernel_iq2_xxs;
        case GGML_TYPE_IQ2_XS: return &kernel_iq2_xs;
        case GGML_TYPE_IQ2_S: return &kernel_iq2_s;
        case GGML_TYPE_IQ3_XXS: return &kernel_iq3_xxs;
        case GGML_TYPE_IQ3_S: return &kernel_iq3_s;
        default:             return NULL;
    }
}

#else

const struct matmul_kernel * matmul_quant_kernel(enum ggml_type type) {
    (void) type;
    return NULL;
}

#endif

#ifdef MATMUL_TILES
int shim_use_tiles(int how) {
    if (how == 0) {
        tiles_state = TILES_UNUSED;
    } else if (how > 0) {
        tiles_state = TILES_UNKNOWN;
    }
    const bool has = tiles_are_there();
    if (how == 2) {
        tiles_state = TILES_USED;
    }
    return has || how == 2;
}
#else
int shim_use_tiles(int how) {
    (void) how;
    return 0;
}
#endif
