// Rounds columns of floats to q8_K, in place of ggml's function for it (build.rs): the same bits. Its loops are such that compilers
// make vectors of them, which they do not of ggml's.

#define GGML_COMMON_DECL_C
#include "ggml-common.h"

#include <stdint.h>
#include <string.h>

#define SIZE     0x7fffffff // the bits of a float but its sign
#define INFINITE 0x7f800000

// The bits of an absolute value; 0 for NaN.
static inline int32_t size_of(int32_t bits) {
    const int32_t size = bits & SIZE;
    return size > INFINITE ? 0 : size;
}

// The index of the first element with the highest absolute value.
static int extreme_of(const int32_t * restrict bits) {
    int32_t highest = 0;
    for (int i = 0; i < QK_K; i++) {
        const int32_t size = size_of(bits[i]);
        highest = size > highest ? size : highest;
    }
    int first = QK_K - 1;
    for (int i = 0; i < QK_K; i++) {
        const int at = size_of(bits[i]) == highest ? i : QK_K - 1;
        first = at < first ? at : first;
    }
    return first;
}

void round_to_q8_K(const float * restrict x, void * restrict blocks, int64_t k) {
    block_q8_K * restrict out = blocks;
    for (; k >= QK_K; k -= QK_K, x += QK_K, out++) {
        int32_t bits[QK_K];
        memcpy(bits, x, sizeof(bits));
        const int at = extreme_of(bits);
        if (size_of(bits[at]) == 0) {
            memset(out, 0, sizeof(*out));
            continue;
        }
        const float factor = -127.0f / x[at];
        // A float of this size has no fraction: the nearest integer, to even.
        float shifted[QK_K];
        for (int i = 0; i < QK_K; i++) {
            const float product = x[i] * factor;
            shifted[i] = product + 12582912.0f;
        }
        memcpy(bits, shifted, sizeof(bits));
        for (int i = 0; i < QK_K; i++) {
            const int32_t code = (bits[i] & 0x007fffff) - 0x00400000;
            out->qs[i] = (int8_t) (code < 127 ? code : 127);
        }
        for (int i = 0; i < QK_K / 16; i++) {
            int sum = 0;
            for (int j = 0; j < 16; j++) {
                sum += out->qs[16 * i + j];
            }
            out->bsums[i] = (int16_t) sum;
        }
        out->d = 1.0f / factor;
    }
}
