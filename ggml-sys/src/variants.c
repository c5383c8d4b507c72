// Part of programs with the code that computes for several instruction sets (variants.rs): chooses one of them before main, and
// defines its functions under their own names. Compiled for what every x86-64 processor has.

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

// VARIANTS: the name and the suffix of each instruction set, the least first. FUNCTIONS: the number and the name of each function.
#include "variants.h"

#define HIDDEN __attribute__((visibility("hidden")))

typedef void (*function)(void);

// Those of the chosen set.
HIDDEN __attribute__((used)) function chosen_functions[N_FUNCTIONS];

#define DECLARE(i, name, suffix) HIDDEN void name##__##suffix(void);
#define ADDRESS(i, name, suffix) name##__##suffix,
#define VARIANT(march, suffix) \
    FUNCTIONS(DECLARE, suffix) \
    static const function functions_##suffix[N_FUNCTIONS] = { FUNCTIONS(ADDRESS, suffix) };
VARIANTS(VARIANT)

#define JUMP(i, name, suffix)                                      \
    __asm__(".pushsection .text." #name ", \"ax\", @progbits\n"    \
            ".globl " #name "\n"                                   \
            ".type " #name ", @function\n" #name ":\n"             \
            "    endbr64\n"                                        \
            "    jmp *chosen_functions + 8 * " #i "(%rip)\n"       \
            ".size " #name ", . - " #name "\n"                     \
            ".popsection\n");
FUNCTIONS(JUMP, )

struct variant {
    const char *     march;
    const function * functions;
    // As shim_instruction_sets. Runs on every processor: it only returns an address.
    const char * (*instruction_sets)(void);
};

#define ENTRY(march, suffix) { march, functions_##suffix, (const char * (*) (void)) shim_instruction_sets__##suffix },
static const struct variant variants[] = { VARIANTS(ENTRY) };

#define N_VARIANTS (sizeof(variants) / sizeof(variants[0]))

// Whether the processor, and the system, have an instruction set with a name of shim_instruction_sets.
static bool has(const char * name, size_t length) {
#define SET(ours, theirs)                                                      \
    if (length == sizeof(ours) - 1 && memcmp(name, ours, length) == 0) {       \
        return __builtin_cpu_supports(theirs) != 0;                            \
    }
    SET("sse3", "sse3")
    SET("ssse3", "ssse3")
    SET("sse4.1", "sse4.1")
    SET("sse4.2", "sse4.2")
    SET("avx", "avx")
    SET("avx2", "avx2")
    SET("bmi1", "bmi")
    SET("bmi2", "bmi2")
    SET("f16c", "f16c")
    SET("fma", "fma")
    SET("lzcnt", "lzcnt")
    SET("movbe", "movbe")
    SET("avxvnni", "avxvnni")
    SET("avx512f", "avx512f")
    SET("avx512bw", "avx512bw")
    SET("avx512cd", "avx512cd")
    SET("avx512dq", "avx512dq")
    SET("avx512vl", "avx512vl")
    SET("avx512vbmi", "avx512vbmi")
    SET("avx512vnni", "avx512vnni")
    SET("avx512bf16", "avx512bf16")
#undef SET
    return false;
}

static bool runs(const struct variant * variant) {
    const char * sets = variant->instruction_sets();
    while (*sets != '\0') {
        const size_t length = strcspn(sets, " ");
        if (length > 0 && !has(sets, length)) {
            return false;
        }
        sets += length;
        sets += *sets == ' ';
    }
    return true;
}

// The last that runs here, or the one that BENCH_MARCH names if it runs; else the first, which the program then refuses to run.
__attribute__((constructor(101))) static void choose(void) {
    __builtin_cpu_init();
    const char * named = getenv("BENCH_MARCH");
    size_t best = 0;
    for (size_t i = 0; i < N_VARIANTS; i++) {
        if (!runs(&variants[i])) {
            continue;
        }
        best = i;
        if (named != NULL && strcmp(named, variants[i].march) == 0) {
            break;
        }
    }
    memcpy(chosen_functions, variants[best].functions, sizeof(chosen_functions));
}
