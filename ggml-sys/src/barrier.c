// Where the threads of a pool wait for each other after each operation.
//
// ggml's threads wait without giving up their processor. On a machine with other work that keeps the thread
// that is waited for from running. These wait so for a short time, as long as operations usually differ. Then they offer
// their processor to others. If one takes it, they sleep. As long as none does they stay: an idle processor attracts
// the thread that is waited for. Two threads of a pool that share a processor take turns; the system leaves them there
// even if another is idle, since both have just run. So one of them sleeps: it is woken on an idle one.

#include "barrier.h"

#if defined(__linux__)
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

// Tens of microseconds.
#define SPINS 2000

// Nanoseconds after which another thread had the processor, for a turn or to keep it, and after which a thread sleeps in
// any case.
#define TURN    4000
#define TAKEN   100000
#define AT_MOST 20000000

// Turns after which a thread sleeps.
#define TURNS 4

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield" ::: "memory");
#endif
}

// Threads that sleep at a barrier, of all pools.
static atomic_int sleeping;

static void sleep_at(atomic_int * passed, int before) {
#if defined(__linux__)
    syscall(SYS_futex, passed, FUTEX_WAIT_PRIVATE, before, NULL, NULL, 0);
#else
    (void) passed;
    (void) before;
    sched_yield();
#endif
}

static void wake_all(atomic_int * passed) {
#if defined(__linux__)
    syscall(SYS_futex, passed, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
#else
    (void) passed;
#endif
}

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t) t.tv_sec * 1000000000 + t.tv_nsec;
}

// Barriers in a row at which other threads, such as those of the pool, had a turn on this thread's processor.
static _Thread_local int n_turns;

// Offers the processor to others until the barrier is passed, which is true, or one took it.
static bool passed_while_alone(atomic_int * passed, int before) {
    if (n_turns == TURNS) {
        n_turns = 0;
        return false;
    }
    const int64_t begin = now();
    int64_t last = begin;
    bool turn = false;
    while (atomic_load_explicit(passed, memory_order_relaxed) == before) {
        sched_yield();
        const int64_t time = now();
        if (time - last > TAKEN || time - begin > AT_MOST) {
            return false;
        }
        turn = turn || time - last > TURN;
        last = time;
    }
    n_turns = turn ? n_turns + 1 : 0;
    return true;
}

static void wait_for(atomic_int * passed, int before) {
    // A thread on the processor of the one that it waits for keeps that from running.
    const int spins = n_turns > 0 ? 1 : SPINS;
    for (int i = 0; i < spins; i++) {
        if (atomic_load_explicit(passed, memory_order_relaxed) != before) {
            n_turns = 0;
            return;
        }
        relax();
    }
    if (passed_while_alone(passed, before)) {
        return;
    }
    // Counted before `passed` is looked at again: the last thread looks at the count after it has changed `passed`.
    atomic_fetch_add(&sleeping, 1);
    while (atomic_load(passed) == before) {
        sleep_at(passed, before);
    }
    atomic_fetch_sub(&sleeping, 1);
}

void ggml_barrier(struct ggml_threadpool * pool) {
    const struct barrier b = barrier_of(pool);
    if (b.n_threads == 1) {
        return;
    }
    const int before = atomic_load_explicit(b.passed, memory_order_relaxed);
    if (atomic_fetch_add(b.arrived, 1) == b.n_threads - 1) {
        atomic_store_explicit(b.arrived, 0, memory_order_relaxed);
        atomic_fetch_add(b.passed, 1);
        if (atomic_load(&sleeping) > 0) {
            wake_all(b.passed);
        }
        return;
    }
    wait_for(b.passed, before);
    atomic_thread_fence(memory_order_seq_cst);
}
