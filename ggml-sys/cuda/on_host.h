// Runs CUDA kernels on the processor, so that tests see what they compute without a GPU. Included by a file with kernels where nvcc
// does not compile it; the file itself is written as any other.
//
// A block runs after another, its threads as coroutines that take turns at barriers: __syncthreads, __syncwarp and the exchanges between
// the lanes of a warp. Threads run in rising or falling order (`order`), so a kernel that lacks a barrier computes something else in one
// of them. A thread that ends or waits elsewhere while others of its block wait at a barrier is an error. Numbers are those of C++: no fused
// multiplications, no flushed denormals.
#pragma once

#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <functional>
#include <vector>

namespace on_host {

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

constexpr unsigned LANES = 32;

enum class order { rising, falling };

struct thread {
    ucontext_t start;
    jmp_buf at; // where it waits
    bool has_started = false;
    std::vector<char> stack;
    unsigned index = 0;
    bool is_over = false;
    const char * waits = nullptr; // the barrier it waits at
    uint64_t exchanged = 0;       // what it offers to its warp
};

struct block {
    dim3 grid, size, at;
    jmp_buf host;
    std::vector<thread> threads;
    thread * now = nullptr;
    std::function<void()> body;
    std::vector<char> shared;
};

inline block & current() {
    static block b;
    return b;
}

[[noreturn]] inline void fail(const char * what) {
    fprintf(stderr, "kernel: thread %u of block (%u, %u, %u): %s\n", current().now ? current().now->index : 0, current().at.x, current().at.y, current().at.z, what);
    exit(3);
}

// Back from a thread to the loop over threads. No system call, as swapcontext would make.
inline void leave() {
    block & b = current();
    if (_setjmp(b.now->at) == 0) {
        _longjmp(b.host, 1);
    }
}

inline void run_body() {
    block & b = current();
    b.body();
    b.now->is_over = true;
    leave();
}

inline void wait_at(const char * barrier) {
    current().now->waits = barrier;
    leave();
}

__attribute__((noinline)) inline void resume(thread & t) {
    block & b = current();
    b.now = &t;
    if (_setjmp(b.host) != 0) {
        return;
    }
    if (t.has_started) {
        _longjmp(t.at, 1);
    }
    t.has_started = true;
    setcontext(&t.start);
}

// Whether all threads from `first` on, `n` of them, wait at the same kind of barrier; they go on.
inline bool release(block & b, size_t first, size_t n, const char * barrier) {
    for (size_t i = first; i < first + n; i++) {
        if (b.threads[i].is_over || b.threads[i].waits != barrier) {
            return false;
        }
    }
    for (size_t i = first; i < first + n; i++) {
        b.threads[i].waits = nullptr;
    }
    return true;
}

inline const char BLOCK[] = "__syncthreads", WARP[] = "a barrier of a warp";

inline void run_block(order of) {
    block & b = current();
    const size_t n = b.threads.size();
    for (size_t i = 0; i < n; i++) {
        thread & t = b.threads[i];
        t.index = (unsigned) i;
        t.is_over = t.has_started = false;
        t.waits = nullptr;
        t.stack.resize(64 << 10);
        getcontext(&t.start);
        t.start.uc_stack.ss_sp = t.stack.data();
        t.start.uc_stack.ss_size = t.stack.size();
        t.start.uc_link = nullptr;
        makecontext(&t.start, run_body, 0);
    }
    for (;;) {
        bool moved = false, left = false;
        for (size_t k = 0; k < n; k++) {
            thread & t = b.threads[of == order::rising ? k : n - 1 - k];
            if (!t.is_over && t.waits == nullptr) {
                resume(t);
                moved = true;
            }
            left |= !t.is_over;
        }
        if (!left) {
            return;
        }
        moved |= release(b, 0, n, BLOCK);
        for (size_t first = 0; first < n; first += LANES) {
            moved |= release(b, first, n - first < LANES ? n - first : LANES, WARP);
        }
        if (!moved) {
            for (thread & t : b.threads) {
                if (!t.is_over) {
                    b.now = &t;
                    fail(t.waits);
                }
            }
        }
    }
}

// Runs a kernel; `shared` bytes of memory of the block are filled with what is no number.
template <class F> void launch(dim3 grid, dim3 size, size_t shared, order of, F kernel) {
    block & b = current();
    b.grid = grid;
    b.size = size;
    b.body = kernel;
    b.threads.resize((size_t) size.x * size.y * size.z);
    for (unsigned z = 0; z < grid.z; z++) {
        for (unsigned y = 0; y < grid.y; y++) {
            for (unsigned x = 0; x < grid.x; x++) {
                b.at = dim3(x, y, z);
                b.shared.assign(shared + 16, (char) 0xff);
                run_block(of);
            }
        }
    }
}

inline void * shared_memory() {
    return (void *) (((uintptr_t) current().shared.data() + 15) / 16 * 16);
}

// What lane `lane` of the caller's warp offers; all lanes of the warp call this.
template <class T> T exchange(T value, unsigned lane) {
    static_assert(sizeof(T) <= sizeof(uint64_t), "too large for a lane");
    block & b = current();
    memcpy(&b.now->exchanged, &value, sizeof(T));
    wait_at(WARP);
    const size_t first = b.now->index / LANES * LANES, at = first + lane % LANES;
    T got = value;
    if (at < b.threads.size()) {
        memcpy(&got, &b.threads[at].exchanged, sizeof(T));
    }
    wait_at(WARP);
    return got;
}

} // namespace on_host

using on_host::dim3;

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define threadIdx on_host::dim3(on_host::current().now->index)
#define blockIdx on_host::current().at
#define blockDim on_host::current().size
#define gridDim on_host::current().grid

inline void __syncthreads() { on_host::wait_at(on_host::BLOCK); }
inline void __syncwarp(unsigned = ~0u) { on_host::wait_at(on_host::WARP); }

template <class T> T __shfl_sync(unsigned, T value, int lane) { return on_host::exchange(value, (unsigned) lane); }
template <class T> T __shfl_xor_sync(unsigned, T value, int mask) {
    return on_host::exchange(value, (on_host::current().now->index % on_host::LANES) ^ (unsigned) mask);
}
inline unsigned __ballot_sync(unsigned, bool predicate) {
    unsigned all = 0;
    on_host::block & b = on_host::current();
    memcpy(&b.now->exchanged, &predicate, sizeof(predicate));
    on_host::wait_at(on_host::WARP);
    const size_t first = b.now->index / on_host::LANES * on_host::LANES;
    for (size_t i = 0; i < on_host::LANES && first + i < b.threads.size(); i++) {
        all |= (unsigned) (*(const char *) &b.threads[first + i].exchanged != 0) << i;
    }
    on_host::wait_at(on_host::WARP);
    return all;
}
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
