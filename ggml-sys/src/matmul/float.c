// Products of f32, f16 and bf16 weights: one accumulator of 16 lanes for each element, along k,
// summed at the end. f16 columns are rounded to f16 as ggml rounds them, and multiplied in f32.

#include "matmul.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)

#include <immintrin.h>

// How elements of a type are read and multiplied, `step` at a time.
struct format {
    int step, size; // elements of a vector, bytes of an element
    __m512 (*load)(const char * x);
    __m512 (*load_some)(const char * x, __mmask32 mask);
    __m512 (*add_product)(__m512 sum, __m512 a, __m512 b);
};

MATMUL_INLINE __m512 fma_f32(__m512 sum, __m512 a, __m512 b) { return _mm512_fmadd_ps(a, b, sum); }

MATMUL_INLINE __m512 load_f32(const char * x) { return _mm512_loadu_ps(x); }

MATMUL_INLINE __m512 load_some_f32(const char * x, __mmask32 mask) {
    return _mm512_maskz_loadu_ps((__mmask16) mask, x);
}

MATMUL_INLINE __m512 load_f16(const char * x) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) x));
}

MATMUL_INLINE __m512 load_some_f16(const char * x, __mmask32 mask) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16((__mmask16) mask, x));
}

static const struct format format_f32 = { 16, 4, load_f32, load_some_f32, fma_f32 };
static const struct format format_f16 = { 16, 2, load_f16, load_some_f16, fma_f32 };

#ifdef __AVX512BF16__
MATMUL_INLINE __m512 fma_bf16(__m512 sum, __m512 a, __m512 b) {
    return _mm512_dpbf16_ps(sum, (__m512bh) a, (__m512bh) b);
}

MATMUL_INLINE __m512 load_bf16(const char * x) {
    return _mm512_castsi512_ps(_mm512_loadu_si512((const void *) x));
}

MATMUL_INLINE __m512 load_some_bf16(const char * x, __mmask32 mask) {
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(mask, x));
}

static const struct format format_bf16 = { 32, 2, load_bf16, load_some_bf16, fma_bf16 };
#else
MATMUL_INLINE __m512 widen_bf16(__m256i v) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}

MATMUL_INLINE __m512 load_bf16(const char * x) {
    return widen_bf16(_mm256_loadu_si256((const __m256i *) x));
}

MATMUL_INLINE __m512 load_some_bf16(const char * x, __mmask32 mask) {
    return widen_bf16(_mm256_maskz_loadu_epi16((__mmask16) mask, x));
}

static const struct format format_bf16 = { 16, 2, load_bf16, load_some_bf16, fma_f32 };
#endif

// How far ahead a single row prefetches weights, in bytes.
#define ROW_AHEAD 4096

// R rows times C columns. Meanwhile prefetches the weights from `next` on, `bytes` with each step, at
// most `lines` cache lines: the rows of a tile are read side by side, a pattern that the hardware
// prefetcher does not detect, nor does it cross pages.
MATMUL_INLINE void multiply_tile(const int R, const int C, const struct format f,
                                 const struct matmul_job * job, int row, int column,
                                 const char * next, int bytes, const int lines) {
    const char * x = job->rows + (size_t) row * job->row_stride;
    const char * y[4];
    __m512 acc[8][4];
    UNROLL for (int c = 0; c < C; c++) {
        y[c] = job->columns[column + c];
        UNROLL for (int r = 0; r < R; r++) {
            acc[r][c] = _mm512_setzero_ps();
        }
    }
    const int64_t whole = job->k / f.step * f.step;
    for (int64_t i = 0; i < whole; i += f.step) {
        UNROLL for (int line = 0; line < lines; line++) {
            _mm_prefetch(next + 64 * line, _MM_HINT_T0);
        }
        next += bytes;
        __m512 b[4];
        UNROLL for (int c = 0; c < C; c++) {
            b[c] = f.load(y[c] + i * f.size);
        }
        UNROLL for (int r = 0; r < R; r++) {
            const __m512 a = f.load(x + (size_t) r * job->row_stride + i * f.size);
            UNROLL for (int c = 0; c < C; c++) {
                acc[r][c] = f.add_product(acc[r][c], a, b[c]);
            }
        }
    }
    if (whole < job->k) {
        const __mmask32 mask = (1u << (job->k - whole)) - 1;
        UNROLL for (int r = 0; r < R; r++) {
            const __m512 a = f.load_some(x + (size_t) r * job->row_stride + whole * f.size, mask);
            UNROLL for (int c = 0; c < C; c++) {
                acc[r][c] = f.add_product(acc[r][c], a, f.load_some(y[c] + whole * f.size, mask));
            }
        }
    }
    UNROLL for (int r = 0; r < R; r++) {
        UNROLL for (int c = 0; c < C; c++) {
            job->out[column + c][row + r] = _mm512_reduce_add_ps(acc[r][c]);
        }
    }
}

// Cache lines that hold so many bytes.
MATMUL_INLINE int lines_of(int bytes) { return (bytes + 63) / 64; }

// R rows times one of `groups` groups of columns, which prefetches its part of the next weights.
MATMUL_INLINE void multiply_group(const int R, const int C, const struct format f,
                                  const struct matmul_job * job, int row, int column,
                                  const char * next, int groups) {
    const int step = R * f.step * f.size;
    switch (groups) {
        case 1:  multiply_tile(R, C, f, job, row, column, next, step, lines_of(step)); break;
        case 2:  multiply_tile(R, C, f, job, row, column, next, step / 2, lines_of(step / 2)); break;
        default: multiply_tile(R, C, f, job, row, column, next, step / groups, lines_of(step / 3)); break;
    }
}

// R rows times all columns, in groups of about equal size.
MATMUL_INLINE void multiply_rows(const int R, const struct format f, const struct matmul_job * job, int row) {
    const int groups = (job->n_columns + 3) / 4;
    const char * next = job->rows + (size_t) (row + R) * job->row_stride;
    for (int g = 0; g < groups; g++, next += R * job->row_stride / groups) {
        const int c = job->n_columns * g / groups;
        switch (job->n_columns * (g + 1) / groups - c) {
            case 1:  multiply_group(R, 1, f, job, row, c, next, groups); break;
            case 2:  multiply_group(R, 2, f, job, row, c, next, groups); break;
            case 3:  multiply_group(R, 3, f, job, row, c, next, groups); break;
            default: multiply_group(R, 4, f, job, row, c, next, groups); break;
        }
    }
}

MATMUL_INLINE void multiply(const struct format f, const struct matmul_job * job) {
    int row = 0;
    if (job->n_columns == 1 && job->streamed) {
        // Memory reads one row after another fastest.
        for (; row < job->n_rows; row++) {
            multiply_tile(1, 1, f, job, row, 0, job->rows + (size_t) row * job->row_stride + ROW_AHEAD,
                          f.step * f.size, 1);
        }
    }
    if (job->n_columns == 1) {
        for (; row + 8 <= job->n_rows; row += 8) {
            multiply_tile(8, 1, f, job, row, 0, job->rows + (size_t) (row + 8) * job->row_stride,
                          8 * f.step * f.size, lines_of(8 * f.step * f.size));
        }
    }
    for (; row + 6 <= job->n_rows; row += 6) {
        multiply_rows(6, f, job, row);
    }
    for (; row + 2 <= job->n_rows; row += 2) {
        multiply_rows(2, f, job, row);
    }
    for (; row < job->n_rows; row++) {
        multiply_rows(1, f, job, row);
    }
}

static void multiply_f32(const struct matmul_job * job) { multiply(format_f32, job); }
static void multiply_f16(const struct matmul_job * job) { multiply(format_f16, job); }
static void multiply_bf16(const struct matmul_job * job) { multiply(format_bf16, job); }

#define TILE_STEP 24

static const struct matmul_kernel kernel_f32  = { GGML_TYPE_F32,  TILE_STEP, NULL, NULL, multiply_f32 };
static const struct matmul_kernel kernel_f16  = { GGML_TYPE_F16,  TILE_STEP, NULL, NULL, multiply_f16 };
static const struct matmul_kernel kernel_bf16 = { GGML_TYPE_BF16, TILE_STEP, NULL, NULL, multiply_bf16 };

const struct matmul_kernel * matmul_float_kernel(enum ggml_type type) {
    switch (type) {
        case GGML_TYPE_F32:  return &kernel_f32;
        case GGML_TYPE_F16:  return &kernel_f16;
        case GGML_TYPE_BF16: return &kernel_bf16;
        default:             return NULL;
    }
}

#else

const struct matmul_kernel * matmul_float_kernel(enum ggml_type type) {
    (void) type;
    return NULL;
}

#endif
