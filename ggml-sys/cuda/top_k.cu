// GGML_OP_TOP_K for up to top_k::MOST numbers of a row, in the place of ggml's function of the same name, which is compiled under
// another name (backend/CMakeLists.txt) and called for more.
#include "common.cuh"
#include "top-k.cuh"

#include "top_k.h"

void ggml_cuda_op_top_k_of_ggml(ggml_backend_cuda_context & ctx, ggml_tensor * dst);

void ggml_cuda_op_top_k(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    const ggml_tensor * src = dst->src[0];
    const int64_t n = src->ne[0], rows = ggml_nrows(src), k = dst->ne[0];
    // The second dimension of a grid.
    constexpr int64_t most_rows = 65535;
    const bool fits = k > 0 && k <= top_k::MOST && n <= INT32_MAX / 2 && rows > 0 && rows <= most_rows;
    const bool typed = src->type == GGML_TYPE_F32 && dst->type == GGML_TYPE_I32;
    if (!fits || !typed || !ggml_is_contiguous(src) || !ggml_is_contiguous(dst)) {
        ggml_cuda_op_top_k_of_ggml(ctx, dst);
        return;
    }
    // An empty piece of the pool has no place.
    const size_t kept = (size_t) std::max<int64_t>(1, 2 * rows * top_k::kept((int) n, (int) k));
    ggml_cuda_pool_alloc<uint32_t> keys(ctx.pool(), kept);
    ggml_cuda_pool_alloc<int32_t> places(ctx.pool(), kept);
    cudaStream_t stream = ctx.stream();
    top_k::plan(
        (const uint32_t *) src->data, (int) n, rows, (int) k, keys.get(), places.get(), (int32_t *) dst->data,
        [&](top_k::source from, int slices, uint32_t * keys, int32_t * places, int32_t * out) {
            top_k::select<<<dim3(slices, rows), top_k::THREADS, 0, stream>>>(from, (int) k, keys, places, out);
            CUDA_CHECK(cudaGetLastError());
        });
}
