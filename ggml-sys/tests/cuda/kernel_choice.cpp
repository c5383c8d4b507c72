// The table of kernel_choice.h, and what its variable changes.
#include <initializer_list>

#include "kernel_choice.h"

#include "check.h"

using namespace kernel_choice;

static bool is(const limits & of, int64_t vector, int64_t quantised) {
    return of.vector == vector && of.quantised == quantised;
}

int main() {
    // A card that the table does not name, and types that it does not name.
    CHECK(is(of(800, "q4_K", nullptr), OF_GGML, OF_GGML));
    CHECK(is(of(900, "iq1_s", nullptr), OF_GGML, OF_GGML));
    for (const bool ggml : { false, true }) {
        for (int64_t columns : { 1, 5, 8, 9, 512, 4096 }) {
            CHECK(uses_vector(of(800, "q4_K", nullptr), columns, ggml) == ggml);
            CHECK(uses_quantised(of(800, "q4_K", nullptr), columns, 0, ggml) == ggml);
        }
    }
    for (const row & row : TABLE) {
        const limits found = of(row.cc, row.type, nullptr);
        CHECK(is(found, row.of.vector, row.of.quantised));
        CHECK(found.vector <= MOST_OF_VECTOR && found.quantised > MOST_OF_VECTOR);
        // The kernels follow each other: none comes back for more columns.
        int before = 0;
        for (int64_t columns = 1; columns <= 4096; columns++) {
            const bool vector = uses_vector(found, columns, columns <= MOST_OF_VECTOR);
            const int kernel = vector ? 0 : uses_quantised(found, columns, 0, true) ? 1 : 2;
            CHECK(kernel >= before);
            before = kernel;
        }
        CHECK(before == 2);
        // Experts and types without a kernel are left to ggml.
        CHECK(uses_quantised(found, 4096, 128, true) && !uses_quantised(found, 16, 0, false));
    }

    // The variable counts before the table, for all cards; its last entry for a type counts.
    const char * text = "q4_k:3:64,Q8_0:-:128";
    CHECK(is(of(900, "q4_K", text), 3, 64) && is(of(750, "q4_K", text), 3, 64));
    CHECK(is(of(900, "q8_0", text), OF_GGML, 128) && is(of(900, "q6_K", text), 7, 192));
    CHECK(is(of(900, "q5_0", "*:8:-"), 8, OF_GGML) && is(of(900, "q5_0", "*:8:-,q5_0:1:9"), 1, 9));
    CHECK(!uses_vector({ 0, 0 }, 1, true) && !uses_quantised({ 0, 0 }, 1, 0, true));
    CHECK(uses_vector({ 8, OF_GGML }, 8, false) && !uses_vector({ 8, OF_GGML }, 9, false));
    limits found = {};
    bool is_sound = false;
    CHECK(!of_variable("", "q4_K", found, is_sound) && is_sound);
    CHECK(!of_variable(nullptr, "q4_K", found, is_sound) && is_sound);
    for (const char * wrong : { "q4_K", "q4_K:3", ":3:4", "q4_K:x:4", "q4_K:3:4;q5_K:3:4", "q4_K:3:4:5", "q4_K::4", "q4_K:3:", "q4_K:-3:4" }) {
        of_variable(wrong, "q6_K", found, is_sound);
        if (is_sound) {
            printf("`%s` is accepted\n", wrong);
        }
        CHECK(!is_sound);
    }
    return report();
}
