// GGML_OP_FLASH_ATTN_EXT with a block table (shim_device_attention of src/attention.h), in the place of ggml's functions of the same names, which are
// compiled under other names (backend/CMakeLists.txt) and called for what has no table.
#include "common.cuh"
#include "fattn.cuh"

#include "paged_attention.h"
#include "paged_attention_check.h"

#include <array>
#include <mutex>

void ggml_cuda_flash_attn_ext_of_ggml(ggml_backend_cuda_context & ctx, ggml_tensor * dst);
bool ggml_cuda_flash_attn_ext_supported_of_ggml(int device, const ggml_tensor * dst);
size_t ggml_cuda_flash_attn_ext_get_alloc_size_of_ggml(int device, const ggml_tensor * dst);

// As in src/attention.h.
enum { LISTS = 5, TABLE = 6, BLOCK_PARAMETER = 4 };

static bool kind_of(ggml_type type, paged_attention::kind & kind) {
    switch (type) {
        case GGML_TYPE_F32: kind = paged_attention::kind::f32; return true;
        case GGML_TYPE_F16: kind = paged_attention::kind::f16; return true;
        case GGML_TYPE_BF16: kind = paged_attention::kind::bf16; return true;
        case GGML_TYPE_Q8_0: kind = paged_attention::kind::q8_0; return true;
        default: return false;
    }
}

static bool has_table(const ggml_tensor * dst) {
    return dst->src[LISTS] != nullptr;
}

// Launches the kernels of a problem whose work is cut.
static bool launch(const paged_attention::problem & a, int d, int rows, paged_attention::kind kind, cudaStream_t stream) {
    return paged_attention::run(a, d, rows, kind, [&](auto kernel, dim3 grid, int threads, auto... arguments) {
        kernel<<<grid, threads, 0, stream>>>(arguments...);
    });
}

// Whether the kernels compute on a device what plain loops do on the processor: they run there before they are used. A device on
// which they do not gets no table.
static bool is_sound(int device) {
    static std::mutex mutex;
    static std::array<int, GGML_CUDA_MAX_DEVICES> known = {}; // 1: sound, -1: not
    std::lock_guard<std::mutex> held(mutex);
    if (known[device] == 0) {
        ggml_cuda_set_device(device);
        const std::string fault = paged_attention::check([&](paged_attention::made & made, int d, paged_attention::kind kind) {
            cudaStream_t stream;
            if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) {
                return false;
            }
            std::vector<void *> copies;
            bool ran = true;
            const auto room = [&](size_t bytes) -> void * {
                void * copy = nullptr;
                ran = ran && cudaMalloc(&copy, bytes + 1) == cudaSuccess;
                if (ran) {
                    copies.push_back(copy);
                }
                return copy;
            };
            const auto copied = [&](const auto & values) {
                using value = typename std::decay_t<decltype(values)>::value_type;
                void * copy = room(values.size() * sizeof(value));
                ran = ran && cudaMemcpyAsync(copy, values.data(), values.size() * sizeof(value), cudaMemcpyHostToDevice, stream) == cudaSuccess;
                return (const value *) copy;
            };
            paged_attention::problem a = made.problem;
            a.q = (const char *) copied(made.q);
            a.k = copied(made.k);
            a.v = copied(made.v);
            a.queries = copied(made.queries);
            a.table = copied(made.table);
            a.sinks = a.sinks != nullptr ? copied(made.sinks) : nullptr;
            const int rows = paged_attention::cut(a, d, made.n_blocks);
            a.sums = (float *) room(paged_attention::n_sums(a, d) * sizeof(float));
            a.tops = (float *) room(paged_attention::n_tops(a) * sizeof(float));
            a.out = (float *) room(made.out.size() * sizeof(float));
            ran = ran && launch(a, d, rows, kind, stream) && cudaGetLastError() == cudaSuccess;
            ran = ran && cudaMemcpyAsync(made.out.data(), a.out, made.out.size() * sizeof(float), cudaMemcpyDeviceToHost, stream) == cudaSuccess;
            ran = cudaStreamSynchronize(stream) == cudaSuccess && ran;
            for (void * copy : copies) {
                cudaFree(copy);
            }
            cudaStreamDestroy(stream);
            // An error that is left would be found by the next call of ggml's.
            (void) cudaGetLastError();
            return ran;
        });
        known[device] = fault.empty() ? 1 : -1;
        if (!fault.empty()) {
            GGML_LOG_WARN("CUDA%d: attention over KV blocks is not used: %s\n", device, fault.c_str());
        }
    }
    return known[device] > 0;
}

static paged_attention::problem problem_of(const ggml_tensor * dst) {
    const ggml_tensor * q = dst->src[0], * k = dst->src[1], * v = dst->src[2], * sinks = dst->src[4];
    paged_attention::problem a = {};
    a.q = (const char *) q->data;
    a.k = (const char *) k->data;
    a.v = (const char *) v->data;
    // q [dk, n, heads], k and v [d, slots, kv_heads]
    a.q_query = q->nb[1];
    a.q_head = q->nb[2];
    a.k_slot = k->nb[1];
    a.k_head = k->nb[2];
    a.v_slot = v->nb[1];
    a.v_head = v->nb[2];
    a.queries = (const int32_t *) dst->src[LISTS]->data;
    a.table = (const int32_t *) dst->src[TABLE]->data;
    a.sinks = sinks != nullptr ? (const float *) sinks->data : nullptr;
    a.out = (float *) dst->data;
    a.n = (int) q->ne[1];
    a.heads = (int) q->ne[2];
    a.kv_heads = (int) k->ne[2];
    a.n_table = (int) dst->src[TABLE]->ne[0];
    a.n_slots = (int) k->ne[1];
    a.block = ggml_get_op_params_i32(dst, BLOCK_PARAMETER);
    memcpy(&a.scale, dst->op_params, sizeof(float));
    memcpy(&a.max_bias, dst->op_params + 1, sizeof(float));
    memcpy(&a.softcap, dst->op_params + 2, sizeof(float));
    return a;
}

bool ggml_cuda_flash_attn_ext_supported(int device, const ggml_tensor * dst) {
    if (!has_table(dst)) {
        return ggml_cuda_flash_attn_ext_supported_of_ggml(device, dst);
    }
    const ggml_tensor * q = dst->src[0], * k = dst->src[1], * v = dst->src[2];
    paged_attention::kind kind;
    bool aligned = true;
    for (const ggml_tensor * pool : { k, v }) {
        for (int i = 1; i < 3; i++) {
            aligned = aligned && (pool->nb[i] % 4 == 0 || (pool->type == GGML_TYPE_Q8_0 && pool->nb[i] % 2 == 0));
        }
    }
    const bool fits = k->ne[0] == v->ne[0] && paged_attention::has_kernel((int) k->ne[0]) && k->type == v->type && kind_of(k->type, kind) &&
        q->type == GGML_TYPE_F32 && q->ne[2] % k->ne[2] == 0 && q->ne[2] <= 65535 && q->ne[1] <= 65535 && q->ne[3] == 1 && dst->src[3] == nullptr;
    return fits && aligned && is_sound(device);
}

size_t ggml_cuda_flash_attn_ext_get_alloc_size(int device, const ggml_tensor * dst) {
    return has_table(dst) ? ggml_nbytes(dst) : ggml_cuda_flash_attn_ext_get_alloc_size_of_ggml(device, dst);
}

void ggml_cuda_flash_attn_ext(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    if (!has_table(dst)) {
        ggml_cuda_flash_attn_ext_of_ggml(ctx, dst);
        return;
    }
    ggml_cuda_set_device(ctx.device);
    paged_attention::kind kind;
    GGML_ASSERT(kind_of(dst->src[1]->type, kind));
    paged_attention::problem a = problem_of(dst);
    const int d = (int) dst->src[1]->ne[0];
    // Four blocks of threads fit into a multiprocessor.
    const int rows = paged_attention::cut(a, d, 4 * ggml_cuda_info().devices[ctx.device].nsm);
    ggml_cuda_pool_alloc<float> sums(ctx.pool(), std::max<size_t>(1, paged_attention::n_sums(a, d)));
    ggml_cuda_pool_alloc<float> tops(ctx.pool(), std::max<size_t>(1, paged_attention::n_tops(a)));
    a.sums = sums.get();
    a.tops = tops.get();
    GGML_ASSERT(launch(a, d, rows, kind, ctx.stream()));
    CUDA_CHECK(cudaGetLastError());
}
