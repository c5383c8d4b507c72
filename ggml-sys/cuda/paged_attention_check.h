// Small made problems for the kernels of paged_attention.h, and what plain loops compute of them: a device on which they have never run is
// checked before it is trusted.
#pragma once

#include "paged_attention.h"

#include <algorithm>
#include <string>
#include <vector>

namespace paged_attention {

struct made {
    std::vector<float> q;
    std::vector<char> k, v;
    std::vector<int32_t> queries, table;
    std::vector<float> sinks, out;
    paged_attention::problem problem; // its pointers are those of the vectors
    int n_blocks;
};

// Numbers from -1 to 1 in no order.
struct numbers {
    uint32_t state;
    float next() {
        state = state * 1664525u + 1013904223u;
        return (float) (state >> 8) / 8388608.0f - 1.0f;
    }
};

// Bytes of an element of a row, or of a block of 32.
static inline size_t row_bytes(kind type, int d) {
    return type == kind::f32 ? (size_t) d * 4 : type == kind::q8_0 ? (size_t) d / 32 * 34 : (size_t) d * 2;
}

// A row of a type: the upper bits of numbers in bf16, halves of small whole numbers, which f16 and q8_0 hold exactly.
static inline void put_row(kind type, int d, char * row, numbers & from) {
    for (int i = 0; i < d; i++) {
        const float x = from.next();
        uint32_t bits;
        memcpy(&bits, &x, sizeof(bits));
        const uint16_t high = (uint16_t) (bits >> 16);
        // x in 16ths as f16: sign, exponent and the bits of 1 to 15.
        const int whole = (int) (x * 15.0f);
        int size = whole < 0 ? -whole : whole, exponent = 15 - 4;
        uint16_t half = 0;
        if (size > 0) {
            int bit = 0;
            while (size >> (bit + 1) != 0) {
                bit++;
            }
            half = (uint16_t) ((whole < 0 ? 0x8000 : 0) | (exponent + bit) << 10 | (size << (10 - bit) & 0x3ff));
        }
        switch (type) {
            case kind::f32: memcpy(row + i * 4, &x, 4); break;
            case kind::bf16: memcpy(row + i * 2, &high, 2); break;
            case kind::f16: memcpy(row + i * 2, &half, 2); break;
            case kind::q8_0: {
                const uint16_t factor = 0x2800; // 1/32
                memcpy(row + i / 32 * 34, &factor, 2);
                row[i / 32 * 34 + 2 + i % 32] = (char) (int8_t) (x * 31.0f);
                break;
            }
        }
    }
}

// The elements of a row, as nothing of paged_attention.h reads them.
static inline double element(kind type, const char * row, int i) {
    const auto of_half = [](uint16_t half) {
        const int exponent = half >> 10 & 0x1f;
        const double size = exponent == 0 ? 0.0 : ldexp(1.0 + (half & 0x3ff) / 1024.0, exponent - 15);
        return (half & 0x8000) != 0 ? -size : size;
    };
    uint16_t half;
    switch (type) {
        case kind::f32: {
            float x;
            memcpy(&x, row + i * 4, 4);
            return x;
        }
        case kind::bf16: {
            memcpy(&half, row + i * 2, 2);
            const uint32_t bits = (uint32_t) half << 16;
            float x;
            memcpy(&x, &bits, 4);
            return x;
        }
        case kind::f16:
            memcpy(&half, row + i * 2, 2);
            return of_half(half);
        default:
            memcpy(&half, row + i / 32 * 34, 2);
            return of_half(half) * (double) (int8_t) row[i / 32 * 34 + 2 + i % 32];
    }
}

// Three sequences in blocks in no order, of which the second has a prompt of some tokens and the others one each.
static inline made make(int d, kind type, int heads, int kv_heads, int n_prompt, bool has_rules, int n_blocks) {
    constexpr int BLOCK = 16;
    const int lengths[] = { 1, 83, 130 }, order[] = { 7, 2, 11, 0, 9, 4, 13, 1, 15, 6, 10, 3, 12, 5, 14, 8 };
    made all;
    numbers from = { (uint32_t) (d * 31 + heads) };
    int begin = 0;
    for (int s = 0; s < 3; s++) {
        for (int p = lengths[s] - (s == 1 ? n_prompt : 1); p < lengths[s]; p++) {
            const int first = has_rules ? std::max(0, p - 69) : 0;
            all.queries.insert(all.queries.end(), { begin, p, first, p + 1 });
        }
        begin += (lengths[s] + BLOCK - 1) / BLOCK;
    }
    all.table.assign(order, order + begin);
    const int n = (int) all.queries.size() / 4, n_slots = 16 * BLOCK;
    const size_t row = row_bytes(type, d);
    for (std::vector<char> * pool : { &all.k, &all.v }) {
        pool->resize((size_t) n_slots * kv_heads * row);
        for (int i = 0; i < n_slots * kv_heads; i++) {
            put_row(type, d, pool->data() + i * row, from);
        }
    }
    for (int i = 0; i < n * heads * d; i++) {
        all.q.push_back(4.0f * from.next());
    }
    for (int i = 0; i < heads; i++) {
        all.sinks.push_back(from.next());
    }
    all.out.resize((size_t) n * heads * d);
    all.n_blocks = n_blocks;
    problem & a = all.problem;
    a = {};
    a.q = (const char *) all.q.data();
    a.k = all.k.data();
    a.v = all.v.data();
    a.q_head = (size_t) d * sizeof(float);
    a.q_query = a.q_head * heads;
    a.k_head = a.v_head = row;
    a.k_slot = a.v_slot = row * kv_heads;
    a.queries = all.queries.data();
    a.table = all.table.data();
    a.sinks = has_rules ? all.sinks.data() : nullptr;
    a.n = n;
    a.heads = heads;
    a.kv_heads = kv_heads;
    a.n_table = begin;
    a.n_slots = n_slots;
    a.block = BLOCK;
    a.scale = 1.0f / sqrtf((float) d);
    a.softcap = has_rules ? 3.0f : 0.0f;
    a.max_bias = has_rules ? 8.0f : 0.0f;
    return all;
}

// The attention of every row in double precision, one after another.
static inline std::vector<double> plainly(const made & all, int d, kind type) {
    const problem & a = all.problem;
    std::vector<double> out;
    for (int i = 0; i < a.n; i++) {
        const int32_t * query = all.queries.data() + 4 * i;
        for (int head = 0; head < a.heads; head++) {
            const int kv_head = head / (a.heads / a.kv_heads);
            int power = 1;
            while (2 * power <= a.heads) {
                power *= 2;
            }
            const double exponent = head < power ? -a.max_bias / power * (head + 1) : -a.max_bias / 2 / power * (2 * (head - power) + 1);
            const double slope = a.max_bias > 0 ? pow(2.0, exponent) : 0;
            std::vector<double> sums((size_t) d);
            double total = a.sinks != nullptr ? exp((double) all.sinks[(size_t) head]) : 0;
            for (int p = query[2]; p < query[3]; p++) {
                const size_t slot = (size_t) all.table[(size_t) (query[0] + p / a.block)] * a.block + p % a.block;
                const char * k = all.k.data() + slot * a.k_slot + kv_head * a.k_head, * v = all.v.data() + slot * a.v_slot + kv_head * a.v_head;
                double x = 0;
                for (int e = 0; e < d; e++) {
                    x += element(type, k, e) * all.q[((size_t) i * a.heads + head) * d + e];
                }
                x *= a.scale;
                x = a.softcap > 0 ? a.softcap * tanh(x / a.softcap) : x;
                const double weight = exp(x - slope * abs(query[1] - p));
                total += weight;
                for (int e = 0; e < d; e++) {
                    sums[(size_t) e] += weight * element(type, v, e);
                }
            }
            for (double sum : sums) {
                out.push_back(sum / total);
            }
        }
    }
    return out;
}

// What differs, in words; nothing if all is as it should be. `run(made, d, kind)` computes `out`, and is false if it could not.
template <class Run> static std::string check(Run run) {
    for (int d : { 64, 96, 128, 256 }) {
        for (kind type : { kind::f32, kind::f16, kind::bf16, kind::q8_0 }) {
            // Each number of rows, with and without splits; many tokens of a prompt take tiles of several queries.
            for (int i = 0; i < 4; i++) {
                const int groups[] = { 4, 7, 16, 4 };
                made all = make(d, type, groups[i] * 2, 2, i == 3 ? ALONE + 3 : 2, i % 2 == 1, i < 2 ? 132 : 1);
                if (!run(all, d, type)) {
                    return "the kernels do not start";
                }
                const std::vector<double> expected = plainly(all, d, type);
                double difference = 0, size = 0;
                for (size_t at = 0; at < expected.size(); at++) {
                    difference += (all.out[at] - expected[at]) * (all.out[at] - expected[at]);
                    size += expected[at] * expected[at];
                }
                if (!(difference <= 1e-7 * size)) {
                    return "heads of " + std::to_string(d) + ", type " + std::to_string((int) type) + ", problem " + std::to_string(i) +
                        ": results differ from those of the processor, NMSE " + std::to_string(difference / size);
                }
            }
        }
    }
    return {};
}

} // namespace paged_attention
