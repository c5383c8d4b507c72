// Products of f32, f16 and bf16 weights: one accumulator of 16 lanes (AVX2: 8) for each element, along k,
// summed at the end. f16 columns are rounded to f16 as ggml rounds them, and multiplied in f32.

#include "matmul.h"

#include <string.h>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define MATMUL_WIDE 1

#include <immintrin.h>

#define WIDE_ROWS    6
#define WIDE_COLUMNS 4
// Rows of a matrix that one column is multiplied with at a time: memory reads one after another fastest.
#define WIDE_STREAMS 1

typedef __m512 wide;

MATMUL_INLINE wide  wide_zero(void) { return _mm512_setzero_ps(); }
MATMUL_INLINE float wide_sum(wide a) { return _mm512_reduce_add_ps(a); }
MATMUL_INLINE wide  fma_f32(wide sum, wide a, wide b) { return _mm512_fmadd_ps(a, b, sum); }
MATMUL_INLINE wide  load_f32(const char * x) { return _mm512_loadu_ps(x); }
MATMUL_INLINE wide  load_f16(const char * x) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) x)); }

#define FORMAT_F32 { 16, 4, load_f32, fma_f32 }
#define FORMAT_F16 { 16, 2, load_f16, fma_f32 }

#ifdef __AVX512BF16__
MATMUL_INLINE wide fma_bf16(wide sum, wide a, wide b) { return _mm512_dpbf16_ps(sum, (__m512bh) a, (__m512bh) b); }
MATMUL_INLINE wide load_bf16(const char * x) { return _mm512_castsi512_ps(_mm512_loadu_si512((const void *) x)); }

#define FORMAT_BF16 { 32, 2, load_bf16, fma_bf16 }
#else
MATMUL_INLINE wide load_bf16(const char * x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *) x)), 16));
}

#define FORMAT_BF16 { 16, 2, load_bf16, fma_f32 }
#endif

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define MATMUL_WIDE 1

#include <immintrin.h>

#define WIDE_ROWS    4
#define WIDE_COLUMNS 3
// One row alone would wait for its sum.
#define WIDE_STREAMS 4

typedef __m256 wide;

MATMUL_INLINE wide  wide_zero(void) { return _mm256_setzero_ps(); }
MATMUL_INLINE float wide_sum(wide a) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
MATMUL_INLINE wide  fma_f32(wide sum, wide a, wide b) { return _mm256_fmadd_ps(a, b, sum); }
MATMUL_INLINE wide  load_f32(const char * x) { return _mm256_loadu_ps((const float *) (const void *) x); }
MATMUL_INLINE wide  load_f16(const char * x) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) x)); }
MATMUL_INLINE wide  load_bf16(const char * x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *) x)), 16));
}

#define FORMAT_F32  { 8, 4, load_f32, fma_f32 }
#define FORMAT_F16  { 8, 2, load_f16, fma_f32 }
#define FORMAT_BF16 { 8, 2, load_bf16, fma_f32 }

#endif

#ifdef MATMUL_WIDE

// How elements of a type are read and multiplied, `step` at a time.
struct format {
    int step, size; // elements of a vector, bytes of an element
    wide (*load)(const char * x);
    wide (*add_product)(wide sum, wide a, wide b);
};

static const struct format format_f32  = FORMAT_F32;
static const struct format format_f16  = FORMAT_F16;
static const struct format format_bf16 = FORMAT_BF16;

// The first `n` elements, zeros after them.
MATMUL_INLINE wide load_some(const struct format f, const char * x, int64_t n) {
    char all[sizeof(wide)] = { 0 };
    memcpy(all, x, (size_t) n * f.size);
    return f.load(all);
}

// How far ahead a single row prefetches weights, in bytes.
#define ROW_AHEAD 4096

// R rows times C columns. Meanwhile prefetches the weights from `next` on, `bytes` with each step, at
// most `lines` cache lines: the rows of a tile are read side by side, a pattern that the hardware
// prefetcher does not detect, nor does it cross pages. They come into the second cache: the first one waits
// for few lines at a time.
MATMUL_INLINE void multiply_tile(const int R, const int C, const struct format f,
                                 const struct matmul_job * job, int row, int column,
                                 const char * next, int bytes, const int lines) {
    const char * x = job->rows + (size_t) row * job->row_stride;
    const char * y[WIDE_COLUMNS];
    wide acc[8][WIDE_COLUMNS];
    UNROLL for (int c = 0; c < C; c++) {
        y[c] = job->columns[column + c];
        UNROLL for (int r = 0; r < R; r++) {
            acc[r][c] = wide_zero();
        }
    }
    const int64_t whole = job->k / f.step * f.step;
    for (int64_t i = 0; i < whole; i += f.step) {
        UNROLL for (int line = 0; line < lines; line++) {
            _mm_prefetch(next + 64 * line, _MM_HINT_T1);
        }
        next += bytes;
        wide b[WIDE_COLUMNS];
        UNROLL for (int c = 0; c < C; c++) {
            b[c] = f.load(y[c] + i * f.size);
        }
        UNROLL for (int r = 0; r < R; r++) {
            const wide a = f.load(x + (size_t) r * job->row_stride + i * f.size);
            UNROLL for (int c = 0; c < C; c++) {
                acc[r][c] = f.add_product(acc[r][c], a, b[c]);
            }
        }
    }
    if (whole < job->k) {
        const int64_t rest = job->k - whole;
        UNROLL for (int r = 0; r < R; r++) {
            const wide a = load_some(f, x + (size_t) r * job->row_stride + whole * f.size, rest);
            UNROLL for (int c = 0; c < C; c++) {
                acc[r][c] = f.add_product(acc[r][c], a, load_some(f, y[c] + whole * f.size, rest));
            }
        }
    }
    UNROLL for (int r = 0; r < R; r++) {
        UNROLL for (int c = 0; c < C; c++) {
            job->out[column + c][row + r] = wide_sum(acc[r][c]);
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
    // The rows that remain after the large tiles are few: groups prefetch some lines twice.
    switch (R < WIDE_ROWS ? 1 : groups) {
        case 1:  multiply_tile(R, C, f, job, row, column, next, step / groups, lines_of(step)); break;
        case 2:  multiply_tile(R, C, f, job, row, column, next, step / 2, lines_of(step / 2)); break;
        default: multiply_tile(R, C, f, job, row, column, next, step / groups, lines_of(step / 3)); break;
    }
}

// R rows times all columns, in groups of about equal size.
MATMUL_INLINE void multiply_rows(const int R, const struct format f, const struct matmul_job * job, int row) {
    const int groups = (job->n_columns + WIDE_COLUMNS - 1) / WIDE_COLUMNS;
    const char * next = job->rows + (size_t) (row + R) * job->row_stride;
    for (int g = 0; g < groups; g++, next += R * job->row_stride / groups) {
        const int c = job->n_columns * g / groups;
        switch (job->n_columns * (g + 1) / groups - c) {
            case 1:  multiply_group(R, 1, f, job, row, c, next, groups); break;
            case 2:  multiply_group(R, 2, f, job, row, c, next, groups); break;
#if WIDE_COLUMNS > 3
            case 4:  multiply_group(R, 4, f, job, row, c, next, groups); break;
#endif
            default: multiply_group(R, 3, f, job, row, c, next, groups); break;
        }
    }
}

MATMUL_INLINE void multiply(const struct format f, const struct matmul_job * job) {
    int row = 0;
    if (job->n_columns == 1 && job->streamed) {
        const size_t ahead = WIDE_STREAMS == 1 ? ROW_AHEAD : WIDE_STREAMS * job->row_stride;
        const int    step  = WIDE_STREAMS * f.step * f.size;
        for (; row + WIDE_STREAMS <= job->n_rows; row += WIDE_STREAMS) {
            const char * next = job->rows + (size_t) row * job->row_stride + ahead;
            multiply_tile(WIDE_STREAMS, 1, f, job, row, 0, next, step, lines_of(step));
        }
    }
    if (job->n_columns == 1) {
        for (; row + 8 <= job->n_rows; row += 8) {
            multiply_tile(8, 1, f, job, row, 0, job->rows + (size_t) (row + 8) * job->row_stride,
                          8 * f.step * f.size, lines_of(8 * f.step * f.size));
        }
    }
    for (; row + WIDE_ROWS <= job->n_rows; row += WIDE_ROWS) {
        multiply_rows(WIDE_ROWS, f, job, row);
    }
    for (; row + 2 <= job->n_rows; row += 2) {
        multiply_rows(2, f, job, row);
    }
    for (; row < job->n_rows; row++) {
        multiply_rows(1, f, job, row);
    }
}

#if WIDE_STREAMS > 1
#define SUMS 4

// One column times rows that come from memory: row after row, as memory is read fastest, with several sums, so that no addition
// waits for the one before.
MATMUL_INLINE void multiply_row_by_row(const struct format f, const struct matmul_job * job) {
    const char * y = job->columns[0];
    const int64_t whole = job->k / (SUMS * f.step) * (SUMS * f.step);
    for (int row = 0; row < job->n_rows; row++) {
        const char * x = job->rows + (size_t) row * job->row_stride;
        wide acc[SUMS];
        UNROLL for (int s = 0; s < SUMS; s++) {
            acc[s] = wide_zero();
        }
        int64_t i = 0;
        for (; i < whole; i += SUMS * f.step) {
            UNROLL for (int line = 0; line < lines_of(SUMS * f.step * f.size); line++) {
                _mm_prefetch(x + i * f.size + ROW_AHEAD + 64 * line, _MM_HINT_T1);
            }
            UNROLL for (int s = 0; s < SUMS; s++) {
                const int64_t at = (i + s * f.step) * f.size;
                acc[s] = f.add_product(acc[s], f.load(x + at), f.load(y + at));
            }
        }
        for (; i < job->k; i += f.step) {
            const int64_t rest = job->k - i < f.step ? job->k - i : f.step;
            acc[0] = f.add_product(acc[0], load_some(f, x + i * f.size, rest), load_some(f, y + i * f.size, rest));
        }
        for (int s = 1; s < SUMS; s++) {
            acc[0] = _mm256_add_ps(acc[0], acc[s]);
        }
        job->out[0][row] = wide_sum(acc[0]);
    }
}

MATMUL_INLINE void multiply_alone(const struct format f, const struct matmul_job * job) {
    if (job->streamed) {
        multiply_row_by_row(f, job);
    } else {
        multiply(f, job);
    }
}

#define FLOAT_ALONE(name) multiply_alone_##name
#define ALONE_FUNCTION(name) \
    static void multiply_alone_##name(const struct matmul_job * job) { multiply_alone(format_##name, job); }
#else
#define FLOAT_ALONE(name) NULL
#define ALONE_FUNCTION(name)
#endif

#define TILE_STEP 24

#define KERNEL(name, type)                                                                                    \
    static void multiply_##name(const struct matmul_job * job) { multiply(format_##name, job); }              \
    ALONE_FUNCTION(name)                                                                                      \
    static const struct matmul_kernel kernel_##name = {                                                       \
        .column_type    = type,                                                                               \
        .tile_rows      = TILE_STEP,                                                                          \
        .multiply       = multiply_##name,                                                                    \
        .multiply_alone = FLOAT_ALONE(name),                                                                  \
    };

KERNEL(f32, GGML_TYPE_F32)
KERNEL(f16, GGML_TYPE_F16)
KERNEL(bf16, GGML_TYPE_BF16)

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
