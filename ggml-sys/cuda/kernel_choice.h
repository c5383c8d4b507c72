// Which kernel of ggml's CUDA backend multiplies quantised weights with a matrix, by the number of its columns: its vector
// kernel up to one limit, its quantised kernel up to another, and above both cuBLAS with weights that are dequantised first.
// No CUDA in this file: its tests run without a GPU.
#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

namespace kernel_choice {

// What ggml itself chooses.
constexpr int64_t OF_GGML = -1;

// The most columns of the vector kernel of ggml.
constexpr int64_t MOST_OF_VECTOR = 8;

struct limits {
    int64_t vector, quantised; // the largest number of columns of the kernel; OF_GGML: as ggml has it
};

struct row {
    int cc; // compute capability of the card, 100 * major + 10 * minor
    const char * type; // of the weights, as ggml names it
    limits of;
};

// Cards that no row names do as ggml has it.
//
// 900 (H100, H200): ggml has no numbers of its own for it. These are ESTIMATES THAT WERE NOT MEASURED: of the vector kernel, the
// limits that ggml has measured for k-quants on cards beside it (Volta, Ada, Blackwell); of the quantised kernel, the number of
// columns from which on the tensor cores' time at bf16, with the time that dequantising takes, is below that of int8 products that do not use
// wgmma. scripts/gpu_speed.py --sweep measures them.
constexpr row TABLE[] = {
    { 900, "q2_K", { 4, 192 } },
    { 900, "q3_K", { 4, 192 } },
    { 900, "q4_K", { 5, 192 } },
    { 900, "q5_K", { 6, 192 } },
    { 900, "q6_K", { 7, 192 } },
    { 900, "q4_0", { OF_GGML, 192 } },
    { 900, "q4_1", { OF_GGML, 192 } },
    { 900, "q5_0", { OF_GGML, 192 } },
    { 900, "q5_1", { OF_GGML, 192 } },
    { 900, "q8_0", { OF_GGML, 192 } },
    { 900, "iq4_nl", { OF_GGML, 192 } },
    { 900, "iq4_xs", { OF_GGML, 192 } },
    { 900, "mxfp4", { OF_GGML, 192 } },
};

// Of the variable BENCH_CUDA_KERNELS: `TYPE:VECTOR:QUANTISED`, several of them with commas between. TYPE is a type as ggml names it, or
// `*` for all; VECTOR and QUANTISED are numbers of columns, or `-` for what ggml chooses.
constexpr const char * VARIABLE = "BENCH_CUDA_KERNELS";

// Whether a type is called what `length` characters say, in capitals or not.
inline bool is_called(const char * type, const char * name, size_t length) {
    const auto small = [](char c) { return c >= 'A' && c <= 'Z' ? (char) (c - 'A' + 'a') : c; };
    for (size_t i = 0; i < length; i++) {
        if (type[i] == '\0' || small(type[i]) != small(name[i])) {
            return false;
        }
    }
    return type[length] == '\0';
}

// Reads one number or `-` up to `end`; false if it is neither.
inline bool read_limit(const char *& at, char end, int64_t & value) {
    if (*at == '-') {
        value = OF_GGML;
        at++;
    } else {
        char * after = nullptr;
        if (*at < '0' || *at > '9') {
            return false;
        }
        value = strtoll(at, &after, 10);
        at = after;
    }
    const bool ends = *at == end || (end == ',' && *at == '\0');
    at += ends && *at != '\0';
    return ends;
}

// What the variable says of a type: the last of its entries that names it counts. False if there is none; `is_sound` is whether all of the
// text could be read, and nothing after an entry that could not is.
inline bool of_variable(const char * text, const char * type, limits & found, bool & is_sound) {
    bool any = false;
    is_sound = true;
    for (const char * at = text; at != nullptr && *at != '\0';) {
        const char * colon = strchr(at, ':');
        if (colon == nullptr || colon == at) {
            is_sound = false;
            break;
        }
        const size_t length = (size_t) (colon - at);
        const bool named = (length == 1 && *at == '*') || is_called(type, at, length);
        limits of;
        at = colon + 1;
        if (!read_limit(at, ':', of.vector) || !read_limit(at, ',', of.quantised)) {
            is_sound = false;
            break;
        }
        if (named) {
            found = of;
            any = true;
        }
    }
    return any;
}

// The limits of a card for a type of weights.
inline limits of(int cc, const char * type, const char * variable) {
    limits found = { OF_GGML, OF_GGML };
    bool is_sound = true;
    if (of_variable(variable, type, found, is_sound)) {
        return found;
    }
    for (const row & row : TABLE) {
        if (row.cc == cc && is_called(type, row.type, strlen(row.type))) {
            return row.of;
        }
    }
    return found;
}

// Whether the vector kernel is used, where `ggml` is what ggml would do. Where ggml has no kernel, there is none.
inline bool uses_vector(const limits & of, int64_t columns, bool ggml) {
    if (of.vector == OF_GGML || columns > MOST_OF_VECTOR) {
        return ggml;
    }
    return columns <= of.vector;
}

// Whether the quantised kernel is used. Products of experts always are as ggml has it: those of cuBLAS wait for the device once for
// every expert.
inline bool uses_quantised(const limits & of, int64_t columns, int64_t n_experts, bool ggml) {
    if (!ggml || of.quantised == OF_GGML || n_experts > 0) {
        return ggml;
    }
    return columns <= of.quantised;
}

} // namespace kernel_choice
