// What the code that computes was compiled for. Compiled as that is (build.rs).
#include "shim.h"

const char * shim_march(void) { return GGML_MARCH_NAME; }

const char * shim_instruction_sets(void) {
    return ""
#ifdef __SSE3__
        " sse3"
#endif
#ifdef __SSSE3__
        " ssse3"
#endif
#ifdef __SSE4_1__
        " sse4.1"
#endif
#ifdef __SSE4_2__
        " sse4.2"
#endif
#ifdef __AVX__
        " avx"
#endif
#ifdef __AVX2__
        " avx2"
#endif
#ifdef __BMI__
        " bmi1"
#endif
#ifdef __BMI2__
        " bmi2"
#endif
#ifdef __F16C__
        " f16c"
#endif
#ifdef __FMA__
        " fma"
#endif
#ifdef __LZCNT__
        " lzcnt"
#endif
#ifdef __MOVBE__
        " movbe"
#endif
#ifdef __AVXVNNI__
        " avxvnni"
#endif
#ifdef __AVX512F__
        " avx512f"
#endif
#ifdef __AVX512BW__
        " avx512bw"
#endif
#ifdef __AVX512CD__
        " avx512cd"
#endif
#ifdef __AVX512DQ__
        " avx512dq"
#endif
#ifdef __AVX512VL__
        " avx512vl"
#endif
#ifdef __AVX512VBMI__
        " avx512vbmi"
#endif
#ifdef __AVX512VNNI__
        " avx512vnni"
#endif
#ifdef __AVX512BF16__
        " avx512bf16"
#endif
#ifdef __ARM_NEON
        " neon"
#endif
#ifdef __ARM_FEATURE_DOTPROD
        " dotprod"
#endif
#ifdef __ARM_FEATURE_FP16_VECTOR_ARITHMETIC
        " fp16"
#endif
#ifdef __ARM_FEATURE_MATMUL_INT8
        " i8mm"
#endif
#ifdef __ARM_FEATURE_BF16
        " bf16"
#endif
#ifdef __ARM_FEATURE_SVE
        " sve"
#endif
    ;
}
