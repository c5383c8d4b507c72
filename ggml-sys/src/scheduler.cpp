// ggml's backends and their scheduler, whose graphs get a further way to their memory. build.rs compiles this file in
// the place of ggml-backend.cpp.

#include "ggml-backend.cpp"

#include "shim.h"

bool shim_sched_alloc_graph_in(ggml_backend_sched_t sched, ggml_backend_sched_t memory, struct ggml_cgraph * graph) {
    GGML_ASSERT((int) sched->hash_set.size >= graph->n_nodes + graph->n_leafs);
    GGML_ASSERT(!sched->is_alloc);
    for (int i = 0; i < sched->n_backends; i++) {
        GGML_ASSERT(sched->bufts[i] == memory->bufts[i]);
    }
    ggml_backend_sched_split_graph(sched, graph);
    // The values of other graphs may still be read.
    for (int i = 0; i < sched->n_backends; i++) {
        ggml_backend_synchronize(sched->backends[i]);
    }
    // Reserved anew: the last graph of this memory may have had its nodes on other backends, which the allocator does not compare.
    sched->is_alloc =
        ggml_gallocr_reserve_n(memory->galloc, &sched->graph, sched->node_backend_ids, sched->leaf_backend_ids) &&
        ggml_gallocr_alloc_graph(memory->galloc, &sched->graph);
    return sched->is_alloc;
}

void shim_sched_renew(ggml_backend_sched_t sched) {
    for (int i = 0; i < sched->n_splits; i++) {
        sched->splits[i].graph.uid = ggml_graph_next_uid();
    }
}

uint64_t shim_sched_inputs_read_elsewhere(ggml_backend_sched_t sched) {
    uint64_t backends = 0;
    for (int i = 0; i < sched->n_splits; i++) {
        const struct ggml_backend_sched_split * split = &sched->splits[i];
        for (int j = 0; j < split->n_inputs; j++) {
            const int id = (split->inputs[j]->flags & GGML_TENSOR_FLAG_INPUT) ? tensor_backend_id(split->inputs[j]) : -1;
            if (id >= 0 && id != split->backend_id) {
                backends |= UINT64_C(1) << id;
            }
        }
    }
    return backends;
}
