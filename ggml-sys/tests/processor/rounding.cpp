// Columns that are rounded to q8_K against ggml's reference, bit for bit: with ties, zeros, subnormal numbers, infinities and what
// is no number.
#include <math.h>

#include <random>
#include <vector>

#include "check.h"
#include "ggml-cpu.h"

extern "C" void quantize_row_q8_K_ref(const float * x, void * y, int64_t k);

int main() {
    const int n = 8 * (int) ggml_blck_size(GGML_TYPE_Q8_K);
    std::mt19937 random(1);
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    const auto round = ggml_get_type_traits_cpu(GGML_TYPE_Q8_K)->from_float;
    for (int kind = 0; kind < 8; kind++) {
        for (int repeat = 0; repeat < 50; repeat++) {
            std::vector<float> x(n);
            for (float & value : x) {
                const unsigned one_in_100 = random() % 100 == 0;
                value = uniform(random) * powf(10.0f, (float) (random() % 6) - 3.0f);
                switch (kind) {
                    case 1: value = (float) ((int) (random() % 7) - 3) * 0.25f; break;
                    case 2: value = one_in_100 ? NAN : value; break;
                    case 3: value = one_in_100 ? (value < 0.0f ? -INFINITY : INFINITY) : value; break;
                    case 4: value = value < 0.0f ? -0.0f : 0.0f; break;
                    case 5: value *= 1e-38f; break;
                    case 6: value = one_in_100 ? value : 0.0f; break;
                    case 7: value = NAN; break;
                }
            }
            // ggml leaves the sums of blocks of zeros as they are.
            std::vector<char> ours(ggml_row_size(GGML_TYPE_Q8_K, n)), theirs(ours.size());
            round(x.data(), ours.data(), n);
            quantize_row_q8_K_ref(x.data(), theirs.data(), n);
            CHECK(ours == theirs);
        }
    }
    return report();
}
