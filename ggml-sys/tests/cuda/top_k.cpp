// The kernels of top_k.h on the processor against a sort, over rows with ties, infinities and what is no number.
#include "top_k.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <vector>

#include "check.h"

static std::vector<int32_t> by_kernels(const std::vector<float> & numbers, int n, int64_t rows, int k, on_host::order order) {
    std::vector<uint32_t> bits(numbers.size());
    memcpy(bits.data(), numbers.data(), numbers.size() * sizeof(float));
    const size_t kept = (size_t) (2 * rows * top_k::kept(n, k));
    std::vector<uint32_t> keys(kept, 0xdeadbeef);
    std::vector<int32_t> places(kept, 1 << 30), out((size_t) rows * k, -7);
    top_k::plan(
        bits.data(), n, rows, k, keys.data(), places.data(), out.data(),
        [&](top_k::source from, int slices, uint32_t * to_keys, int32_t * to_places, int32_t * to_out) {
            on_host::launch(dim3(slices, (unsigned) rows), dim3(top_k::THREADS), 0, order, [=] { top_k::select(from, k, to_keys, to_places, to_out); });
        });
    return out;
}

static std::vector<int32_t> by_sort(const std::vector<float> & numbers, int n, int64_t rows, int k) {
    std::vector<int32_t> out;
    for (int64_t row = 0; row < rows; row++) {
        const float * of = numbers.data() + row * n;
        std::vector<int32_t> order(n);
        for (int i = 0; i < n; i++) {
            order[i] = i;
        }
        std::partial_sort(order.begin(), order.begin() + k, order.end(), [&](int32_t a, int32_t b) {
            const bool a_is = !std::isnan(of[a]), b_is = !std::isnan(of[b]);
            if (a_is != b_is) {
                return a_is;
            }
            return a_is && of[a] != of[b] ? of[a] > of[b] : a < b;
        });
        out.insert(out.end(), order.begin(), order.begin() + k);
    }
    return out;
}

static const char * const KINDS[] = { "spread", "few values", "equal", "infinities", "mostly no numbers", "no numbers", "zeros and small", "falling", "rising" };

static std::vector<float> row_of(size_t kind, int n, std::mt19937 & random) {
    std::normal_distribution<float> spread(0, 8);
    std::vector<float> row(n);
    for (int i = 0; i < n; i++) {
        const unsigned r = random();
        switch (kind) {
            case 0: row[i] = spread(random); break;
            case 1: row[i] = (float) (r % 5) - 2; break;
            case 2: row[i] = -3.5f; break;
            case 3: row[i] = r % 3 == 0 ? INFINITY : r % 3 == 1 ? -INFINITY : spread(random); break;
            case 4: row[i] = r % 100 == 0 ? spread(random) : r % 2 == 0 ? NAN : -NAN; break;
            case 5: row[i] = NAN; break;
            case 6: row[i] = r % 4 == 0 ? 0.0f : r % 4 == 1 ? -0.0f : r % 4 == 2 ? 1e-42f : -1e-42f; break;
            case 7: row[i] = (float) -i; break;
            default: row[i] = (float) i; break;
        }
    }
    return row;
}

static void check(int n, int64_t rows, int k, size_t first_kind, on_host::order order, std::mt19937 & random) {
    std::vector<float> numbers;
    for (int64_t row = 0; row < rows; row++) {
        const std::vector<float> of = row_of((first_kind + row) % 9, n, random);
        numbers.insert(numbers.end(), of.begin(), of.end());
    }
    const auto found = by_kernels(numbers, n, rows, k, order), expected = by_sort(numbers, n, rows, k);
    if (found != expected) {
        const size_t at = std::mismatch(found.begin(), found.end(), expected.begin()).first - found.begin();
        printf("n %d, k %d, row of %s: at %zu found %d, expected %d\n", n, k, KINDS[(first_kind + at / k) % 9], at % k, found[at], expected[at]);
    }
    CHECK(found == expected);
}

int main() {
    std::mt19937 random(1);
    const auto start = std::chrono::steady_clock::now();
    using on_host::order;
    // Every kind of row, with rows next to each other.
    for (int n : { 1, 31, 33, 300, 1000 }) {
        for (int k : { 1, 2, 40, 64, 256 }) {
            check(n, 9, std::min(k, n), 0, k % 2 == 0 ? order::rising : order::falling, random);
        }
    }
    // Rows of one slice, of a slice and a little, and of vocabularies.
    for (int n : { top_k::SLICE - 1, top_k::SLICE, top_k::SLICE + 1, top_k::SLICE + 255 }) {
        for (size_t kind = 0; kind < 9; kind++) {
            check(n, 1, kind % 2 == 0 ? 64 : 256, kind, order::rising, random);
        }
    }
    check(32000, 2, 64, 0, order::falling, random);
    check(128256, 1, 64, 0, order::rising, random);
    check(151936, 1, 40, 3, order::rising, random);
    check(262144, 1, 256, 1, order::rising, random);
    // A third round.
    static_assert(32 * 256 == top_k::SLICE, "the next row has one slice more");
    check(33 * top_k::SLICE + 5, 1, 256, 4, order::rising, random);
    printf("%.1f s\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    return report();
}
