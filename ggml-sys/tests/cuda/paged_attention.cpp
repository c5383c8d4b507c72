// The kernels of paged_attention.h on the processor against this project's operation of the CPU backend, over the same pools and lists.
#include "paged_attention.h"
#include "paged_attention_check.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "attention.h"
#include "ggml-cpu.h"
#include "ggml.h"

#include "check.h"

using namespace paged_attention;

static std::mt19937 random_bits(3);

static float some() {
    return std::normal_distribution<float>(0, 1)(random_bits);
}

struct rule {
    float softcap = 0, max_bias = 0;
    bool sinks = false;
};

struct shape {
    int d, heads, kv_heads;
    ggml_type type;
};

static kind kind_of(ggml_type type) {
    return type == GGML_TYPE_F32 ? kind::f32 : type == GGML_TYPE_F16 ? kind::f16 : type == GGML_TYPE_BF16 ? kind::bf16 : kind::q8_0;
}

// Sequences of these lengths in blocks in any order; queries are rows of the lists.
struct cache {
    int block = 16, n_slots = 0;
    std::vector<int> begins;
    std::vector<int32_t> table;

    explicit cache(const std::vector<int> & lengths) {
        for (int length : lengths) {
            begins.push_back((int) table.size());
            table.resize(table.size() + (size_t) ((length + block - 1) / block));
        }
        std::vector<int32_t> places(table.size() + 3);
        for (size_t i = 0; i < places.size(); i++) {
            places[i] = (int32_t) i;
        }
        std::shuffle(places.begin(), places.end(), random_bits);
        std::copy(places.begin(), places.begin() + (long) table.size(), table.begin());
        n_slots = (int) places.size() * block;
    }
};

static void check(const shape & of, const rule & rule, const cache & cache, const std::vector<int32_t> & queries, int n_blocks, on_host::order order, const char * what) {
    const int n = (int) queries.size() / 4;
    ggml_context * ctx = ggml_init({ (size_t) 1 << 28, nullptr, false });
    ggml_tensor * q = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, of.d, of.heads, n);
    ggml_tensor * k = ggml_new_tensor_3d(ctx, of.type, of.d, of.kv_heads, cache.n_slots);
    ggml_tensor * v = ggml_new_tensor_3d(ctx, of.type, of.d, of.kv_heads, cache.n_slots);
    ggml_tensor * lists = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, 4, n);
    ggml_tensor * table = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, (int64_t) cache.table.size());
    ggml_tensor * sinks = rule.sinks ? ggml_new_tensor_1d(ctx, GGML_TYPE_F32, of.heads) : nullptr;
    for (int64_t i = 0; i < ggml_nelements(q); i++) {
        ((float *) q->data)[i] = some();
    }
    for (ggml_tensor * pool : { k, v }) {
        std::vector<float> values((size_t) ggml_nelements(pool));
        for (float & value : values) {
            value = some();
        }
        ggml_quantize_chunk(of.type, values.data(), pool->data, 0, (int64_t) cache.n_slots * of.kv_heads, of.d, nullptr);
    }
    memcpy(lists->data, queries.data(), queries.size() * sizeof(int32_t));
    memcpy(table->data, cache.table.data(), cache.table.size() * sizeof(int32_t));
    for (int i = 0; sinks && i < of.heads; i++) {
        ((float *) sinks->data)[i] = 3 * some();
    }
    const float scale = 1 / std::sqrt((float) of.d);
    ggml_tensor * expected = shim_paged_attention(ctx, q, k, v, lists, table, nullptr, nullptr, sinks, scale, rule.softcap, rule.max_bias, cache.block, 0, 0);
    ggml_cgraph * graph = ggml_new_graph(ctx);
    ggml_build_forward_expand(graph, expected);
    ggml_graph_compute_with_ctx(ctx, graph, 2);

    problem a = {};
    a.q = (const char *) q->data;
    a.k = (const char *) k->data;
    a.v = (const char *) v->data;
    a.q_head = q->nb[1];
    a.q_query = q->nb[2];
    a.k_head = k->nb[1];
    a.k_slot = k->nb[2];
    a.v_head = v->nb[1];
    a.v_slot = v->nb[2];
    a.queries = (const int32_t *) lists->data;
    a.table = (const int32_t *) table->data;
    a.sinks = sinks ? (const float *) sinks->data : nullptr;
    std::vector<float> out((size_t) of.d * of.heads * n, NAN);
    a.out = out.data();
    a.n = n;
    a.heads = of.heads;
    a.kv_heads = of.kv_heads;
    a.n_table = (int) cache.table.size();
    a.n_slots = cache.n_slots;
    a.block = cache.block;
    a.scale = scale;
    a.softcap = rule.softcap;
    a.max_bias = rule.max_bias;
    const int rows = cut(a, of.d, n_blocks);
    std::vector<float> sums(n_sums(a, of.d), NAN), tops(n_tops(a), NAN);
    a.sums = sums.data();
    a.tops = tops.data();
    const bool ran = run(a, of.d, rows, kind_of(of.type), [&](auto kernel, dim3 grid, int threads, auto... arguments) {
        on_host::launch(grid, dim3(threads), 0, order, [=] { kernel(arguments...); });
    });
    CHECK(ran);
    double difference = 0, all = 0;
    for (size_t i = 0; i < out.size(); i++) {
        const double one = out[i] - ((const float *) expected->data)[i];
        difference += one * one;
        all += (double) ((const float *) expected->data)[i] * ((const float *) expected->data)[i];
    }
    // Both sum in f32, in other orders.
    const bool near = difference <= 1e-11 * all && std::isfinite(difference);
    if (!near) {
        printf("%s: heads of %d, %d of %d, %s, %d queries, %d splits, %d rows: NMSE %g\n", what, of.d, of.kv_heads, of.heads, ggml_type_name(of.type), n, a.n_splits, rows, difference / all);
    }
    CHECK(near);
    ggml_free(ctx);
}

// One query at the end of each sequence.
static std::vector<int32_t> decode(const cache & cache, const std::vector<int> & lengths, int window) {
    std::vector<int32_t> queries;
    for (size_t i = 0; i < lengths.size(); i++) {
        queries.insert(queries.end(), { cache.begins[i], lengths[i] - 1, std::max(0, lengths[i] - window), lengths[i] });
    }
    return queries;
}

// The last `n` positions of each sequence.
static std::vector<int32_t> prompts(const cache & cache, const std::vector<int> & lengths, int n, int window) {
    std::vector<int32_t> queries;
    for (size_t i = 0; i < lengths.size(); i++) {
        for (int p = std::max(0, lengths[i] - n); p < lengths[i]; p++) {
            queries.insert(queries.end(), { cache.begins[i], p, std::max(0, p + 1 - window), p + 1 });
        }
    }
    return queries;
}

int main() {
    ggml_cpu_init();
    const std::vector<int> lengths = { 1, 15, 16, 17, 63, 64, 65, 200, 333 };
    const cache some_cache(lengths);
    constexpr int ALL = 1 << 20;
    using on_host::order;
    int turn = 0;
    const auto next = [&] { return turn++ % 2 == 0 ? order::rising : order::falling; };
    for (int d : { 64, 96, 128, 256 }) {
        for (ggml_type type : { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0 }) {
            check({ d, 4, 2, type }, {}, some_cache, decode(some_cache, lengths, ALL), 132, next(), "decode");
        }
        check({ d, 6, 2, GGML_TYPE_F16 }, {}, some_cache, decode(some_cache, lengths, 40), 1, next(), "decode in a window");
        check({ d, 8, 2, GGML_TYPE_F16 }, {}, some_cache, prompts(some_cache, lengths, 20, ALL), 1, next(), "prompts");
    }
    // Groups of heads, whole and in parts.
    for (int group : { 1, 2, 3, 5, 7, 8, 12, 16, 20, 32, 40 }) {
        check({ 64, group * 2, 2, GGML_TYPE_F16 }, {}, some_cache, decode(some_cache, lengths, ALL), group % 2 == 0 ? 500 : 1, next(), "groups");
    }
    // Several prompts in a pass, with decoding sequences beside: tiles hold the end of one and the start of the next.
    const cache both({ 30, 100, 7, 90 });
    for (int window : { ALL, 24 }) {
        std::vector<int32_t> queries = prompts(both, { 30, 100, 7, 90 }, 45, window);
        for (int group : { 1, 4, 8 }) {
            check({ 64, group * 2, 2, GGML_TYPE_F16 }, {}, both, queries, 1, next(), "mixed");
            check({ 128, group * 2, 2, GGML_TYPE_Q8_0 }, { 0, 0, true }, both, queries, 300, next(), "mixed and split");
        }
    }
    // Rules.
    for (const int n_blocks : { 1, 132 }) {
        for (const rule & rule : { rule { 5, 0, false }, rule { 0, 8, false }, rule { 0, 0, true }, rule { 2, 4, true } }) {
            check({ 64, 12, 4, GGML_TYPE_F16 }, rule, some_cache, decode(some_cache, lengths, ALL), n_blocks, next(), "rules");
            check({ 64, 12, 4, GGML_TYPE_F32 }, rule, both, prompts(both, { 30, 100, 7, 90 }, 33, 50), n_blocks, next(), "rules of prompts");
        }
        // Queries that attend to nothing, or whose lists are wrong, are zeros; those beside them are not touched.
        std::vector<int32_t> wrong = decode(some_cache, lengths, ALL);
        wrong[4 * 1 + 0] = -1;
        wrong[4 * 2 + 3] = 0;
        wrong[4 * 3 + 0] = 1 << 30;
        wrong[4 * 5 + 3] = INT32_MAX;
        wrong[4 * 6 + 2] = -5;
        check({ 64, 4, 2, GGML_TYPE_F16 }, { 0, 0, true }, some_cache, wrong, n_blocks, next(), "wrong lists");
    }
    // The check that a device runs before it is trusted, which finds what is wrong.
    for (const bool is_wrong : { false, true }) {
        const std::string fault = check([&](made & made, int d, kind type) {
            problem a = made.problem;
            a.out = made.out.data();
            const int rows = cut(a, d, made.n_blocks);
            std::vector<float> sums(n_sums(a, d), NAN), tops(n_tops(a), NAN);
            a.sums = sums.data();
            a.tops = tops.data();
            a.softcap *= is_wrong ? 1.01f : 1.0f;
            return run(a, d, rows, type, [&](auto kernel, dim3 grid, int threads, auto... arguments) {
                on_host::launch(grid, dim3(threads), 0, next(), [=] { kernel(arguments...); });
            });
        });
        if (fault.empty() == is_wrong) {
            printf("the check of a device: `%s`\n", fault.c_str());
        }
        CHECK(fault.empty() != is_wrong);
    }
    return report();
}
