// The choice of kernels for quantised weights, in the place of ggml's functions of the same names, which are compiled under other
// names (backend/CMakeLists.txt) and called for what the table does not say.
#include "common.cuh"
#include "mmq.cuh"
#include "mmvq.cuh"

#include "kernel_choice.h"

bool ggml_cuda_should_use_mmvq_of_ggml(enum ggml_type type, int cc, int64_t ne11);
bool ggml_cuda_should_use_mmq_of_ggml(enum ggml_type type, int cc, int64_t ne11, int64_t n_experts);

static_assert(kernel_choice::MOST_OF_VECTOR == MMVQ_MAX_BATCH_SIZE, "ggml's vector kernel has another limit");

static const char * variable() {
    static const char * const text = [] {
        const char * text = getenv(kernel_choice::VARIABLE);
        kernel_choice::limits found;
        bool is_sound;
        kernel_choice::of_variable(text, "", found, is_sound);
        if (!is_sound) {
            GGML_LOG_WARN("%s: expected TYPE:VECTOR:QUANTISED with commas between, found `%s`\n", kernel_choice::VARIABLE, text);
        }
        return text;
    }();
    return text;
}

static kernel_choice::limits limits_of(enum ggml_type type, int cc) {
    return kernel_choice::of(cc, ggml_type_name(type), variable());
}

bool ggml_cuda_should_use_mmvq(enum ggml_type type, int cc, int64_t ne11) {
    const bool ggml = ggml_cuda_should_use_mmvq_of_ggml(type, cc, ne11);
    return ggml_is_quantized(type) ? kernel_choice::uses_vector(limits_of(type, cc), ne11, ggml) : ggml;
}

bool ggml_cuda_should_use_mmq(enum ggml_type type, int cc, int64_t ne11, int64_t n_experts) {
    const bool ggml = ggml_cuda_should_use_mmq_of_ggml(type, cc, ne11, n_experts);
    return kernel_choice::uses_quantised(limits_of(type, cc), ne11, n_experts, ggml);
}
