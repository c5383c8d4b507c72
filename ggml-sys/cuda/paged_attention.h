// Attention over KV blocks (src/attention.h has the operation): kernels, and the plan by which they are called.
//
// A block of threads computes some rows, each a head of a query: the heads that share a key head, of one query or of some that follow each
// other. It goes through the positions that they attend to, TILE at a time, with the online softmax (Milakov and Gimelshein 2018): keys are
// gathered by the block table into shared memory, a thread multiplies one key with half of the rows, and for the values a thread sums two
// elements of all rows. Positions are split among several blocks where there would be too few; a second kernel joins what they found. All is
// computed in f32. What is launched depends on the number of queries and the shapes alone, so a captured graph serves every pass.
//
// Compiled by nvcc for the backend, and as C++ for the tests.
#pragma once

#ifdef __CUDACC__
#    include <cuda_fp16.h>
#    include <cuda_runtime.h>
#else
#    include "on_host.h"
extern "C" float ggml_fp16_to_fp32(uint16_t bits);
#endif

#include <math.h>
#include <stdint.h>
#include <string.h>

namespace paged_attention {

constexpr int THREADS = 128;
constexpr int TILE = 64;       // positions
constexpr int CHUNK = 32;      // elements of keys in shared memory
constexpr int STRIDE = CHUNK + 1;
constexpr int WARP = 32;
constexpr int MOST_SPLITS = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

enum class kind { f32, f16, bf16, q8_0 };

struct problem {
    const char * q; // f32 [dk, heads, n]
    const char * k; // [dk, kv_heads, slots]
    const char * v; // [dv, kv_heads, slots]
    size_t q_head, q_query, k_head, k_slot, v_head, v_slot; // bytes from one to the next
    const int32_t * queries; // [4, n]: start in the table, position, first and end of the positions that it attends to
    const int32_t * table;
    const float * sinks; // [heads], or null
    float * out;         // [dv, heads, n]
    float * sums;        // [splits][n][heads][dv], if there are several splits
    float * tops;        // [splits][n][heads][2]: the highest score and the sum of weights
    int n, heads, kv_heads, n_table, n_slots, block;
    float scale, softcap, max_bias;
    int of_tile;   // queries of a tile
    int n_heads;   // heads of a tile, of those that share a key head
    int n_parts;   // tiles of heads of a key head
    int n_splits;
};

static __device__ __forceinline__ float of_f16(uint16_t bits) {
#ifdef __CUDACC__
    return __half2float(__ushort_as_half(bits));
#else
    return ggml_fp16_to_fp32(bits);
#endif
}

static __device__ __forceinline__ float of_bf16(uint16_t bits) {
    const uint32_t wide = (uint32_t) bits << 16;
    float value;
    memcpy(&value, &wide, sizeof(value));
    return value;
}

struct pair {
    float x, y;
};

struct alignas(16) quad {
    float x, y, z, w;
};

// Elements `at` and `at + 1` of a row, `at` even.
template <kind type> static __device__ __forceinline__ pair load(const char * row, int at) {
    if (type == kind::f32) {
        const float * from = (const float *) row + at;
        return { from[0], from[1] };
    }
    if (type == kind::q8_0) {
        // Blocks of 32: a factor in f16, then the numbers. Two bytes at a time: more are not aligned.
        const char * from = row + (at / 32) * 34;
        const float factor = of_f16(*(const uint16_t *) from);
        const uint16_t both = *(const uint16_t *) (from + 2 + at % 32);
        return { factor * (float) (int8_t) (both & 0xff), factor * (float) (int8_t) (both >> 8) };
    }
    // Rows begin at multiples of four bytes.
    const uint32_t both = *(const uint32_t *) (row + (size_t) at * 2);
    if (type == kind::f16) {
        return { of_f16((uint16_t) (both & 0xffff)), of_f16((uint16_t) (both >> 16)) };
    }
    return { of_bf16((uint16_t) (both & 0xffff)), of_bf16((uint16_t) (both >> 16)) };
}

// The factor of a head's distances, as ggml's softmax has it.
static __device__ __forceinline__ float slope_of(const problem & a, int head) {
    if (a.max_bias <= 0.0f) {
        return 0.0f;
    }
    int power = 1;
    while (2 * power <= a.heads) {
        power *= 2;
    }
    const float exponent = head < power ? -a.max_bias / (float) power * (float) (head + 1)
                                        : -(a.max_bias / 2.0f) / (float) power * (float) (2 * (head - power) + 1);
    return exp2f(exponent);
}

// The slot of a position of a sequence; -1 if the table has none.
static __device__ __forceinline__ int slot_of(const problem & a, int begin, int position) {
    const int64_t at = (int64_t) begin + position / a.block;
    if (at < 0 || at >= a.n_table || a.table[at] < 0) {
        return -1;
    }
    const int64_t slot = (int64_t) a.table[at] * a.block + position % a.block;
    return slot < a.n_slots ? (int) slot : -1;
}

// A query of the lists; one with an invalid interval attends to nothing.
struct query {
    int begin, position, first, end;
};

static __device__ __forceinline__ query query_of(const problem & a, int at) {
    query found = { a.queries[4 * at], a.queries[4 * at + 1], a.queries[4 * at + 2], a.queries[4 * at + 3] };
    const bool is_sound = found.begin >= 0 && found.first >= 0 && found.first < found.end && found.end <= INT32_MAX - 2 * TILE &&
        (int64_t) found.begin + (found.end - 1) / a.block < a.n_table;
    if (!is_sound) {
        found.first = found.end = 0;
    }
    return found;
}

static __device__ __forceinline__ float highest_of_warp(float x) {
    for (int mask = WARP / 2; mask > 0; mask /= 2) {
        x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, mask));
    }
    return x;
}

static __device__ __forceinline__ float sum_of_warp(float x) {
    for (int mask = WARP / 2; mask > 0; mask /= 2) {
        x += __shfl_xor_sync(ALL_LANES, x, mask);
    }
    return x;
}

// The highest score of a row so far, below all scores; not infinite: that less itself is no number.
constexpr float NEVER = -1e30f;

// Grid: tiles of queries, key heads times parts of their heads, splits. `D` elements of a head; up to `ROWS` rows.
template <int D, int ROWS, kind type> static __global__ void __launch_bounds__(THREADS) attend(problem a) {
    constexpr int PAIRS = D / 2;                // threads of a value row
    constexpr int GROUPS = THREADS / PAIRS;     // value rows at a time
    constexpr int HALF = ROWS / 2;
    constexpr int OF_GROUP = TILE / GROUPS;     // adjacent positions of a tile, which a group sums
    __shared__ __align__(16) float queries[ROWS * D]; // later the sums of the groups
    __shared__ __align__(16) float scores[ROWS * TILE];
    __shared__ float keys[TILE * STRIDE];
    __shared__ int slots[TILE];
    __shared__ float tops[ROWS], weights[ROWS], shrinks[ROWS], slopes[ROWS];
    __shared__ int begins[ROWS], positions[ROWS], firsts[ROWS], ends[ROWS];
    static_assert(D % CHUNK == 0 && GROUPS >= 1 && OF_GROUP % 4 == 0 && ROWS % 2 == 0 && TILE * 2 == THREADS, "threads do not fit");

    const int thread = threadIdx.x, warp = thread / WARP, lane = thread % WARP;
    const int kv_head = blockIdx.y / a.n_parts, part = blockIdx.y % a.n_parts, split = blockIdx.z;
    const int group = a.heads / a.kv_heads;
    const int head = kv_head * group + part * a.n_heads;
    const int n_heads = group - part * a.n_heads < a.n_heads ? group - part * a.n_heads : a.n_heads;
    const int from = blockIdx.x * a.of_tile;
    const int n_queries = a.n - from < a.of_tile ? a.n - from : a.of_tile;
    const int n_rows = n_queries * n_heads;

    for (int r = thread; r < ROWS; r += THREADS) {
        query of = { 0, 0, 0, 0 };
        if (r < n_rows) {
            of = query_of(a, from + r / n_heads);
        }
        begins[r] = of.begin;
        positions[r] = of.position;
        firsts[r] = of.first;
        ends[r] = of.end;
        tops[r] = NEVER;
        weights[r] = 0.0f;
        shrinks[r] = 1.0f;
        slopes[r] = r < n_rows ? slope_of(a, head + r % n_heads) : 0.0f;
    }
    for (int i = thread; i < ROWS * D; i += THREADS) {
        const int r = i / D;
        queries[i] = 0.0f;
        if (r < n_rows) {
            const char * row = a.q + (size_t) (from + r / n_heads) * a.q_query + (size_t) (head + r % n_heads) * a.q_head;
            queries[i] = ((const float *) row)[i % D] * a.scale;
        }
    }
    __syncthreads();

    // The elements 2 * pair_at and 2 * pair_at + 1 of the values are this thread's, of the positions of its group.
    const int turn = thread / PAIRS, pair_at = thread % PAIRS;
    float sums[ROWS][2];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        sums[r][0] = sums[r][1] = 0.0f;
    }

    // Rows [start, end) belong to one sequence and share what is read.
    for (int start = 0; start < n_rows;) {
        int end = start, lo = INT32_MAX, hi = 0;
        for (; end < n_rows && begins[end] == begins[start]; end++) {
            if (firsts[end] < ends[end]) {
                lo = firsts[end] < lo ? firsts[end] : lo;
                hi = ends[end] > hi ? ends[end] : hi;
            }
        }
        const int begin = begins[start];
        const int base_of_all = hi > 0 ? lo / TILE * TILE : 0;
        const int n_tiles = hi > 0 ? (hi - base_of_all + TILE - 1) / TILE : 0;
        const int of_split = (n_tiles + a.n_splits - 1) / a.n_splits;
        const int last = (split + 1) * of_split < n_tiles ? (split + 1) * of_split : n_tiles;
        for (int tile = split * of_split; tile < last; tile++) {
            const int base = base_of_all + tile * TILE;
            for (int j = thread; j < TILE; j += THREADS) {
                const int position = base + j;
                slots[j] = position >= lo && position < hi ? slot_of(a, begin, position) : -1;
            }
            // Scores: a thread has one key and half of the rows.
            const int key = thread % TILE, half = thread / TILE;
            float products[HALF];
#pragma unroll
            for (int r = 0; r < HALF; r++) {
                products[r] = 0.0f;
            }
            for (int chunk = 0; chunk < D; chunk += CHUNK) {
                // The slots are there, and nobody reads the keys of before.
                __syncthreads();
#pragma unroll 8
                for (int i = thread; i < TILE * CHUNK / 2; i += THREADS) {
                    const int j = i / (CHUNK / 2), at = i % (CHUNK / 2) * 2;
                    pair two = { 0.0f, 0.0f };
                    if (slots[j] >= 0) {
                        two = load<type>(a.k + (size_t) kv_head * a.k_head + (size_t) slots[j] * a.k_slot, chunk + at);
                    }
                    keys[j * STRIDE + at] = two.x;
                    keys[j * STRIDE + at + 1] = two.y;
                }
                __syncthreads();
#pragma unroll 2
                for (int i = 0; i < CHUNK; i += 4) {
                    const float k0 = keys[key * STRIDE + i], k1 = keys[key * STRIDE + i + 1];
                    const float k2 = keys[key * STRIDE + i + 2], k3 = keys[key * STRIDE + i + 3];
#pragma unroll
                    for (int r = 0; r < HALF; r++) {
                        const quad q = *(const quad *) (queries + (half * HALF + r) * D + chunk + i);
                        products[r] += q.x * k0 + q.y * k1 + q.z * k2 + q.w * k3;
                    }
                }
            }
            const bool is_there = slots[key] >= 0;
#pragma unroll
            for (int r = 0; r < HALF; r++) {
                const int row = half * HALF + r, position = base + key;
                float x = products[r];
                if (a.softcap > 0.0f) {
                    // The hyperbolic tangent: compilers that are told to hurry take one with four digits.
                    x = a.softcap * (1.0f - 2.0f / (expf(2.0f * x / a.softcap) + 1.0f));
                }
                x -= slopes[row] * fabsf((float) (positions[row] - position));
                const bool sees = is_there && row >= start && row < end && position >= firsts[row] && position < ends[row];
                scores[row * TILE + key] = sees ? x : -INFINITY;
            }
            __syncthreads();
            // Weights: a warp has every fourth row.
            for (int row = warp; row < ROWS; row += THREADS / WARP) {
                const float x = scores[row * TILE + lane], y = scores[row * TILE + WARP + lane];
                const float top = tops[row], higher = fmaxf(top, highest_of_warp(fmaxf(x, y)));
                const float wx = x == -INFINITY ? 0.0f : expf(x - higher), wy = y == -INFINITY ? 0.0f : expf(y - higher);
                const float sum = sum_of_warp(wx + wy);
                scores[row * TILE + lane] = wx;
                scores[row * TILE + WARP + lane] = wy;
                // All lanes have read the highest score before.
                __syncwarp();
                if (lane == 0) {
                    const float shrink = expf(top - higher);
                    shrinks[row] = shrink;
                    weights[row] = weights[row] * shrink + sum;
                    tops[row] = higher;
                }
            }
            __syncthreads();
            if (turn < GROUPS) {
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    sums[r][0] *= shrinks[r];
                    sums[r][1] *= shrinks[r];
                }
#pragma unroll 2
                for (int j = turn * OF_GROUP; j < (turn + 1) * OF_GROUP; j += 4) {
                    pair two[4];
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        two[i] = { 0.0f, 0.0f };
                        if (slots[j + i] >= 0) {
                            two[i] = load<type>(a.v + (size_t) kv_head * a.v_head + (size_t) slots[j + i] * a.v_slot, 2 * pair_at);
                        }
                    }
#pragma unroll
                    for (int r = 0; r < ROWS; r++) {
                        const quad weight = *(const quad *) (scores + r * TILE + j);
                        sums[r][0] += weight.x * two[0].x + weight.y * two[1].x + weight.z * two[2].x + weight.w * two[3].x;
                        sums[r][1] += weight.x * two[0].y + weight.y * two[1].y + weight.z * two[2].y + weight.w * two[3].y;
                    }
                }
            }
            // Before slots and scores are written again.
            __syncthreads();
        }
        start = end;
    }

    // The sums of the groups, one group after another.
    for (int g = 1; g < GROUPS; g++) {
        __syncthreads();
        if (turn == g) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                queries[r * D + 2 * pair_at] = sums[r][0];
                queries[r * D + 2 * pair_at + 1] = sums[r][1];
            }
        }
        __syncthreads();
        if (turn == 0) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                sums[r][0] += queries[r * D + 2 * pair_at];
                sums[r][1] += queries[r * D + 2 * pair_at + 1];
            }
        }
    }
    if (turn != 0) {
        return;
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (r < n_rows) {
            const int64_t row = (int64_t) (from + r / n_heads) * a.heads + head + r % n_heads;
            if (a.n_splits > 1) {
                const int64_t at = (int64_t) split * a.n * a.heads + row;
                a.sums[at * D + 2 * pair_at] = sums[r][0];
                a.sums[at * D + 2 * pair_at + 1] = sums[r][1];
                if (pair_at == 0) {
                    a.tops[2 * at] = tops[r];
                    a.tops[2 * at + 1] = weights[r];
                }
            } else {
                float total = weights[r], factor = 1.0f;
                if (a.sinks != nullptr && total > 0.0f) {
                    const float sink = a.sinks[row % a.heads], top = fmaxf(tops[r], sink);
                    factor = expf(tops[r] - top);
                    total = total * factor + expf(sink - top);
                }
                factor = total > 0.0f ? factor / total : 0.0f;
                a.out[row * D + 2 * pair_at] = sums[r][0] * factor;
                a.out[row * D + 2 * pair_at + 1] = sums[r][1] * factor;
            }
        }
    }
}

// Joins the splits of a row: one block for each head (x) of each query (y), a thread for each element.
static __global__ void __launch_bounds__(256) join(problem a, int d) {
    const int64_t row = (int64_t) blockIdx.y * a.heads + blockIdx.x, rows = (int64_t) a.n * a.heads;
    float top = NEVER;
    for (int s = 0; s < a.n_splits; s++) {
        top = fmaxf(top, a.tops[2 * (s * rows + row)]);
    }
    const bool has_sink = a.sinks != nullptr;
    const float sink = has_sink ? a.sinks[blockIdx.x] : NEVER;
    const float highest = has_sink ? fmaxf(top, sink) : top;
    float sum = 0.0f, total = 0.0f;
    for (int s = 0; s < a.n_splits; s++) {
        const float factor = expf(a.tops[2 * (s * rows + row)] - highest);
        total += factor * a.tops[2 * (s * rows + row) + 1];
        sum += factor * a.sums[(s * rows + row) * d + threadIdx.x];
    }
    if (total > 0.0f) {
        total += has_sink ? expf(sink - highest) : 0.0f;
    }
    a.out[row * d + threadIdx.x] = total > 0.0f ? sum / total : 0.0f;
}

// Rows of a block: what fits into its shared memory.
constexpr int most_rows(int d) { return d > 128 ? 16 : 32; }

// Whether there is a kernel for heads of `d` elements.
static inline bool has_kernel(int d) { return d == 64 || d == 96 || d == 128 || d == 256; }

// Above so many queries a tile has several. Fewer queries are those of as many sequences.
constexpr int ALONE = 64;

// Sets how the work is cut, for a device that runs `n_blocks` blocks at a time. Depends on shapes alone.
static inline int cut(problem & a, int d, int n_blocks) {
    const int group = a.heads / a.kv_heads, most = most_rows(d);
    a.n_heads = group < most ? group : most;
    a.n_parts = (group + a.n_heads - 1) / a.n_heads;
    a.of_tile = a.n > ALONE ? most / a.n_heads : 1;
    const int tiles = (a.n + a.of_tile - 1) / a.of_tile * a.kv_heads * a.n_parts;
    a.n_splits = tiles < n_blocks ? (n_blocks + tiles - 1) / tiles : 1;
    a.n_splits = a.n_splits < MOST_SPLITS ? a.n_splits : MOST_SPLITS;
    return a.n_heads * a.of_tile;
}

// Elements of `sums` and `tops`.
static inline size_t n_sums(const problem & a, int d) { return a.n_splits > 1 ? (size_t) a.n_splits * a.n * a.heads * d : 0; }
static inline size_t n_tops(const problem & a) { return a.n_splits > 1 ? (size_t) a.n_splits * a.n * a.heads * 2 : 0; }

// Calls `launch(kernel, grid, threads, arguments...)` for the kernels of a problem that is cut. False if there is none.
template <int D, kind type, class Launch> static bool run_rows(const problem & a, int rows, Launch launch) {
    const dim3 grid((a.n + a.of_tile - 1) / a.of_tile, a.kv_heads * a.n_parts, a.n_splits);
    if (rows <= 4) {
        launch(attend<D, 4, type>, grid, THREADS, a);
    } else if (rows <= 8) {
        launch(attend<D, 8, type>, grid, THREADS, a);
    } else if (rows <= 16) {
        launch(attend<D, 16, type>, grid, THREADS, a);
    } else {
        launch(attend<D, most_rows(D), type>, grid, THREADS, a);
    }
    if (a.n_splits > 1) {
        launch(join, dim3(a.heads, a.n), D, a, D);
    }
    return true;
}

template <int D, class Launch> static bool run_type(const problem & a, int rows, kind type, Launch launch) {
    switch (type) {
        case kind::f32: return run_rows<D, kind::f32>(a, rows, launch);
        case kind::f16: return run_rows<D, kind::f16>(a, rows, launch);
        case kind::bf16: return run_rows<D, kind::bf16>(a, rows, launch);
        case kind::q8_0: return run_rows<D, kind::q8_0>(a, rows, launch);
    }
    return false;
}

template <class Launch> static bool run(const problem & a, int d, int rows, kind type, Launch launch) {
    switch (d) {
        case 64: return run_type<64>(a, rows, type, launch);
        case 96: return run_type<96>(a, rows, type, launch);
        case 128: return run_type<128>(a, rows, type, launch);
        case 256: return run_type<256>(a, rows, type, launch);
        default: return false;
    }
}

} // namespace paged_attention
