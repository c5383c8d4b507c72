// ggml's dispatcher of operations, whose barrier is replaced (barrier.c). build.rs compiles this file with the names of
// more of its functions replaced (matmul/, sort.c).

#include "barrier.h"
#include "shim.h"

// Weak: the linker takes the other definition.
void ggml_barrier(struct ggml_threadpool * pool) __attribute__((weak));

#include "ggml-cpu.c"

struct barrier barrier_of(struct ggml_threadpool * pool) {
    return (struct barrier) {
        .n_threads = atomic_load_explicit(&pool->n_graph, memory_order_relaxed) & GGML_THREADPOOL_N_THREADS_MASK,
        .arrived   = &pool->n_barrier,
        .passed    = &pool->n_barrier_passed,
    };
}

void shim_threadpool_set_poll(struct ggml_threadpool * pool, uint32_t poll) {
    ggml_mutex_lock(&pool->mutex);
    pool->poll = poll;
    ggml_mutex_unlock(&pool->mutex);
}
