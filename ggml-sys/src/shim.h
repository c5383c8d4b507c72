// Parts of ggml's interface that an opaque binding cannot express: accessors for fields and wrappers for
// calls that take a struct by value.
#pragma once

#include "ggml.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml-rpc.h"
#include "attention.h"
#include "convolve.h"
#include "gelu.h"
#include "select.h"
#include "sort.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_context * shim_context_new(size_t mem_size);

// The instruction set that the code which computes was compiled for, as the compiler names it; of several (variants.c), the chosen one.
const char * shim_march(void);

// The instruction sets that it was compiled for, of those that `src/base/ggml/build_info.rs` knows, with spaces between.
const char * shim_instruction_sets(void);

int64_t shim_tensor_ne(const struct ggml_tensor * t, int dim);
size_t  shim_tensor_nb(const struct ggml_tensor * t, int dim);
int     shim_tensor_type(const struct ggml_tensor * t);
int     shim_tensor_op(const struct ggml_tensor * t);
bool    shim_tensor_is_input(const struct ggml_tensor * t);
// What the operation that makes a tensor is called: by ggml, or, of one that ggml does not have, here.
const char * shim_tensor_op_name(const struct ggml_tensor * t);
// A parameter of the operation that makes a tensor, read as a float; index below 16.
float   shim_tensor_op_param(const struct ggml_tensor * t, int index);
bool    shim_tensor_is_allocated(const struct ggml_tensor * t);
struct ggml_tensor * shim_tensor_src(const struct ggml_tensor * t, int index);
struct ggml_tensor * shim_tensor_view_src(const struct ggml_tensor * t);
// The buffer of a tensor that lies in one before any graph is allocated, or of what it is a view of; or null.
ggml_backend_buffer_t shim_tensor_buffer(const struct ggml_tensor * t);
// Notes the buffer that a tensor will lie in, without a place in it.
void    shim_tensor_set_buffer(struct ggml_tensor * t, ggml_backend_buffer_t buffer);
// Moves the start of a view within the tensor of which it is one, by a number of bytes.
void    shim_view_move(struct ggml_tensor * t, int64_t bytes);
// The first byte of a view in the tensor of which it is one.
size_t  shim_view_offset(const struct ggml_tensor * t);
// Has a view of a tensor in a buffer of weights, or of stored rows or states, know that buffer: ggml's scheduler looks at no
// more.
void    shim_view_in_buffer(struct ggml_tensor * t);
bool    shim_tensor_in_host_memory(const struct ggml_tensor * t);
void *  shim_tensor_data(const struct ggml_tensor * t);
int     shim_max_src(void);

struct ggml_threadpool * shim_threadpool_new(int n_threads, uint32_t poll);
// How long an idle thread of a pool polls for work from now on, as in shim_threadpool_new. No graph runs. In dispatch.c.
void shim_threadpool_set_poll(struct ggml_threadpool * pool, uint32_t poll);

// Sets the thread count of a backend that has one; false if it has none.
bool shim_backend_set_n_threads(ggml_backend_t backend, int n_threads);

// Writes the buffers of the rows and states that a graph reads and writes, each once, and at most `max`; returns their
// number. They are in memory of devices other than the processor's, and neither for weights nor for results of graphs.
int shim_graph_stored(struct ggml_cgraph * graph, ggml_backend_buffer_t * buffers, int max);

// Computes the nodes of an allocated graph from one place up to another, on a backend whose memory they use.
enum ggml_status shim_graph_compute_range(ggml_backend_t backend, struct ggml_cgraph * graph, int from, int to);

// Allocates a graph on a scheduler that has none, in the memory of another scheduler of the same backends. That memory
// grows where it is too small; graphs that had places in it then have none. False if there is not enough.
bool shim_sched_alloc_graph_in(ggml_backend_sched_t sched, ggml_backend_sched_t memory, struct ggml_cgraph * graph);
// The backends with inputs of the graph on a scheduler that another backend reads too, a bit for each in the order of the scheduler.
// The scheduler copies such an input at once, whether or not its own backend has what was sent to it.
uint64_t shim_sched_inputs_read_elsewhere(ggml_backend_sched_t sched);
// Has backends compare the nodes of the graph on a scheduler with what they know of it: some have changed.
void shim_sched_renew(ggml_backend_sched_t sched);

// Whether a device can use memory of the host in place.
bool shim_device_takes_host_ptr(ggml_backend_dev_t device);
// Whether a device copies from its own kind of host memory while the host goes on, and says when it is done.
bool shim_device_copies_async(ggml_backend_dev_t device);
// Whether a backend copies between its own tensors in the order of what it computes, while the host goes on.
bool shim_backend_copies_async(ggml_backend_t backend);

// From now on an access to a mapped file that is not there any more writes a message to standard error and ends the process
// with exit code 1.
void shim_report_bus_errors(void);

// Has a device of another machine, which claims to compute every operation, refuse those that are
// addresses of functions of this process.
void shim_device_refuse_own_ops(ggml_backend_dev_t device);

// Has a device report at most this much memory, and refuse buffers beyond it; false if it is limited
// already, or too many are. Counts the buffers of the device's own type that are made from now on.
bool shim_device_limit_memory(ggml_backend_dev_t device, size_t limit);

// Version of the interface between a backend and ggml's core: of a backend, and of this core.
int shim_backend_api_version(ggml_backend_reg_t reg);
int shim_core_api_version(void);

// Makes all bytes of a new buffer zero, on Linux without touching its pages: memory becomes
// resident as it is used.
void shim_buffer_zero(ggml_backend_buffer_t buffer);

// Converts n elements of a type to floats, n a multiple of the type's block length; false if the
// type has no such conversion.
bool shim_dequantize(int type, const void * from, float * to, int64_t n);

// The bits of the columns of the graph's matrix products do not depend on how many there are, nor on the number of
// threads. Costs speed for some types (src/matmul).
void shim_graph_set_invariant(struct ggml_cgraph * graph);

// The number of rows of `k` elements of a type that are interleaved for products on the processor, so that vectors are
// loaded in place of gathered: a tile, which takes as many bytes as its rows do. 0: none are.
int shim_interleaved_rows(int type, int64_t k);

// Interleaves `n_rows` rows of k elements; those after the last whole tile are copied.
void shim_interleave(int type, int64_t k, const void * rows, int64_t n_rows, void * out);

// Has products on the processor read the rows of a weight at `rows`, where they are interleaved: matrices of whole tiles, or one
// whose last rows are copied. Other operations read the tensor's own data.
void shim_tensor_set_interleaved(struct ggml_tensor * weight, const void * rows);

// Whether products on the processor use its tile registers (AMX). `how`: -1 as it is, 0 no, 1 where the processor has them, 2 always,
// for tests that emulate them.
int shim_use_tiles(int how);

// Has the product of a matrix in a buffer of a CUDA device computed in bf16 with sums in f32, where ggml would compute in f16 with
// sums in f16: such sums lose digits, and overflow. Nothing changes where a GPU that the backend was built for has no products in bf16.
void shim_product_in_bf16(struct ggml_tensor * product);

#ifdef __cplusplus
}
#endif
