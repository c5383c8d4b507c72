// The K largest numbers of each row, K up to 256: kernels, and the plan by which they are called.
//
// A row is cut into slices that a block holds in registers. Each slice gives its K best, which are the next row, until one slice is
// left: the numbers are read from memory once. Within a slice the K-th best is found from its highest bits on, two bits at a time, by
// counting; the best are then collected in the order of their places, so that of equal numbers those with the lowest places are
// taken. What is no number comes after all numbers. The result is ordered: the largest number first, of equal ones the lowest place.
//
// Compiled by nvcc for the backend, and as C++ for the tests.
#pragma once

#ifndef __CUDACC__
#    include "on_host.h"
#endif

#include <stdint.h>

namespace top_k {

constexpr int MOST = 256;               // K
constexpr int THREADS = 512;
constexpr int OF_THREAD = 16;           // numbers in the registers of a thread
constexpr int SLICE = THREADS * OF_THREAD;
constexpr int WARP = 32;
constexpr int WARPS = THREADS / WARP;
constexpr unsigned ALL_LANES = 0xffffffffu;

// Numbers as integers in the same order, 0 for what is no number. The zeros are equal. No arithmetic: it may flush small numbers.
static __device__ __forceinline__ uint32_t key_of(uint32_t bits) {
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return 0;
    }
    if (bits == 0x80000000u) {
        bits = 0;
    }
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// A row before a round: the numbers themselves, or the keys and places that the round before left.
struct source {
    const uint32_t * numbers; // [rows][n]; null after the first round
    const uint32_t * keys;    // [rows][n]
    const int32_t * places;   // [rows][n]
    int n;
};

// Adds up four counts of 16 bits each over the block. `slot` alternates between calls.
static __device__ __forceinline__ uint64_t sum_of_block(uint64_t counts, uint64_t (*sums)[WARPS], int slot) {
    for (int mask = WARP / 2; mask > 0; mask /= 2) {
        counts += __shfl_xor_sync(ALL_LANES, counts, mask);
    }
    const int thread = threadIdx.x;
    if (thread % WARP == 0) {
        sums[slot][thread / WARP] = counts;
    }
    __syncthreads();
    uint64_t all = 0;
    for (int w = 0; w < WARPS; w++) {
        all += sums[slot][w];
    }
    return all;
}

// One block for each slice and row: the K best of the slice, K at most its length. To `keys` and `places` [rows][slices][K] in the order of places,
// or in the last round to `out` [rows][K], ordered.
static __global__ void __launch_bounds__(THREADS) select(source from, int k, uint32_t * keys, int32_t * places, int32_t * out) {
    __shared__ uint64_t sums[2][WARPS];
    __shared__ int above[WARPS], equal[WARPS];
    __shared__ uint32_t best_keys[MOST];
    __shared__ int32_t best_places[MOST];

    const int thread = threadIdx.x, warp = thread / WARP, lane = thread % WARP;
    const int64_t row = blockIdx.y;
    const int slices = gridDim.x, slice = blockIdx.x;
    const int begin = slice * SLICE;
    const int length = from.n - begin < SLICE ? from.n - begin : SLICE;
    // The last slice may be shorter than K: all of it is taken then, and the rest are empty.
    const int wanted = k < length ? k : length;

    // A warp holds adjacent numbers, of which each of its lanes has every 32nd.
    uint32_t own[OF_THREAD];
    uint32_t present = 0;
#pragma unroll
    for (int i = 0; i < OF_THREAD; i++) {
        const int at = warp * WARP * OF_THREAD + i * WARP + lane;
        own[i] = 0;
        if (at < length) {
            const int64_t place = row * from.n + begin + at;
            own[i] = from.numbers != nullptr ? key_of(from.numbers[place]) : from.keys[place];
            // An empty place of the round before.
            if (from.numbers != nullptr || from.places[place] >= 0) {
                present |= 1u << i;
            }
        }
    }

    // The highest bits of the K-th best key, and how many of the keys with these bits are among the best.
    uint32_t prefix = 0, mask = 0;
    int needed = wanted;
    int slot = 0;
    for (int shift = 30; shift >= 0; shift -= 2) {
        uint64_t counts = 0;
#pragma unroll
        for (int i = 0; i < OF_THREAD; i++) {
            if ((present >> i & 1) != 0 && (own[i] & mask) == prefix) {
                counts += (uint64_t) 1 << (16 * (own[i] >> shift & 3));
            }
        }
        counts = sum_of_block(counts, sums, slot);
        slot ^= 1;
        uint32_t digit = 3;
        int with = (int) (counts >> 48 & 0xffff);
        while (digit > 0 && with < needed) {
            needed -= with;
            digit--;
            with = (int) (counts >> (16 * digit) & 0xffff);
        }
        prefix |= digit << shift;
        mask |= 3u << shift;
        if (with <= needed) {
            needed = with;
            break; // All of them.
        }
    }

    // Places among the best: first those of the warps before, then those of the lanes before.
    int n_above = 0, n_equal = 0;
#pragma unroll
    for (int i = 0; i < OF_THREAD; i++) {
        const bool there = (present >> i & 1) != 0;
        n_above += __popc(__ballot_sync(ALL_LANES, there && (own[i] & mask) > prefix));
        n_equal += __popc(__ballot_sync(ALL_LANES, there && (own[i] & mask) == prefix));
    }
    if (lane == 0) {
        above[warp] = n_above;
        equal[warp] = n_equal;
    }
    __syncthreads();
    int above_before = 0, equal_before = 0, n_best = 0;
    for (int w = 0; w < WARPS; w++) {
        above_before += w < warp ? above[w] : 0;
        equal_before += w < warp ? equal[w] : 0;
        n_best += above[w];
    }
    n_best += needed;
#pragma unroll
    for (int i = 0; i < OF_THREAD; i++) {
        const bool there = (present >> i & 1) != 0;
        const bool is_above = there && (own[i] & mask) > prefix, is_equal = there && (own[i] & mask) == prefix;
        const unsigned aboves = __ballot_sync(ALL_LANES, is_above), equals = __ballot_sync(ALL_LANES, is_equal);
        const unsigned before = (1u << lane) - 1;
        const int my_above = above_before + __popc(aboves & before), my_equal = equal_before + __popc(equals & before);
        // Equal ones after `needed` of them are not taken, so they take no place.
        if (is_above || (is_equal && my_equal < needed)) {
            const int at = my_above + (my_equal < needed ? my_equal : needed);
            const int place = begin + warp * WARP * OF_THREAD + i * WARP + lane;
            best_keys[at] = own[i];
            best_places[at] = from.numbers != nullptr ? place : from.places[row * from.n + place];
        }
        above_before += __popc(aboves);
        equal_before += __popc(equals);
    }
    __syncthreads();

    if (out == nullptr) {
        for (int i = thread; i < k; i += THREADS) {
            const int64_t at = (row * slices + slice) * k + i;
            keys[at] = i < n_best ? best_keys[i] : 0;
            places[at] = i < n_best ? best_places[i] : -1;
        }
        return;
    }
    for (int i = thread; i < n_best; i += THREADS) {
        int rank = 0;
        for (int j = 0; j < n_best; j++) {
            rank += best_keys[j] > best_keys[i] || (best_keys[j] == best_keys[i] && j < i);
        }
        out[row * k + rank] = best_places[i];
    }
}

static inline int n_slices(int n) { return (n + SLICE - 1) / SLICE; }

// Elements of a row's keys and places after the first round, of which there are two sets; 0 if there is one round.
static inline int64_t kept(int n, int k) { return n > SLICE ? (int64_t) n_slices(n) * k : 0; }

// Calls `round(source, slices, keys, places, out)` for each round. `keys` and `places` have room for two sets of `rows * kept`
// elements.
template <class Round>
static inline void plan(const uint32_t * numbers, int n, int64_t rows, int k, uint32_t * keys, int32_t * places, int32_t * out, Round round) {
    const int64_t set = rows * kept(n, k);
    source from = { numbers, nullptr, nullptr, n };
    for (int i = 0; ; i ^= 1) {
        const int slices = n_slices(from.n);
        if (slices == 1) {
            round(from, slices, nullptr, nullptr, out);
            return;
        }
        round(from, slices, keys + i * set, places + i * set, nullptr);
        from = { nullptr, keys + i * set, places + i * set, slices * k };
    }
}

} // namespace top_k
