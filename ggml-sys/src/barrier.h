// What the barrier of a thread pool needs of it.
#pragma once

#include <stdatomic.h>

struct ggml_threadpool;

struct barrier {
    int          n_threads; // that compute the graph
    atomic_int * arrived;   // at the barrier
    atomic_int * passed;    // barriers so far
};

struct barrier barrier_of(struct ggml_threadpool * pool);
