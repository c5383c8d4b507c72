// Products by tile registers (AMX), which some processors with AVX-512 have: 16 rows of weights times 16 columns at once. Sums of
// integers are exact, so the results have the bits of multiply_tile (quant.c). Whether there are tiles is asked when the
// program runs: these functions are compiled for them, whatever the others are compiled for.
#pragma once

#include "packed.h"

#if defined(MATMUL_LANES) && LANES_ZERO == 128 && defined(__x86_64__) && defined(__linux__)
#define MATMUL_TILES 1

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TILE_COLUMNS 16
#define TILE_GROUPS 16 // of which the sums are kept at a time; a multiple of those of a block

#define TILES_CODE __attribute__((target("amx-tile,amx-int8"), noinline)) static

// By group, column and row.
typedef int32_t tile_sums[TILE_GROUPS][TILE_COLUMNS][PACK_ROWS];

enum { TILES_UNKNOWN, TILES_USED, TILES_UNUSED };
static _Atomic int tiles_state = TILES_UNKNOWN;

// Whether the processor has tiles with products of bytes, and the system lets this process use them.
static bool tiles_are_there(void) {
    if (tiles_state == TILES_UNKNOWN) {
        unsigned a, b, c, d;
        const unsigned tiles = 1u << 24 | 1u << 25;
        const bool has = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & tiles) == tiles;
        // ARCH_REQ_XCOMP_PERM of XTILEDATA: Linux keeps the registers of processes that asked for them.
        tiles_state = has && syscall(SYS_arch_prctl, 0x1023, 18) == 0 ? TILES_USED : TILES_UNUSED;
    }
    return tiles_state == TILES_USED;
}

// Tiles 0 to 3 are sums, 4 and 5 groups of columns, 6 and 7 groups of weights.
TILES_CODE void tiles_begin(int group) {
    struct {
        uint8_t  palette, start, none[14];
        uint16_t bytes[16];
        uint8_t  rows[16];
    } config = { .palette = 1 };
    for (int i = 0; i < 8; i++) {
        config.bytes[i] = (uint16_t) (i == 4 || i == 5 ? group : 64);
        config.rows[i]  = (uint8_t) (i >= 6 ? group / 4 : 16);
    }
    __asm__ volatile("" ::: "memory");
    _tile_loadconfig(&config);
}

// Without tiles in use, a thread is suspended faster.
TILES_CODE void tiles_end(void) { _tile_release(); }

// The products of `n` groups of codes with those of 16 columns, `stride` bytes apart.
TILES_CODE void tiles_multiply(int group, int n, const uint8_t (*codes)[PACK_ROWS][4], const int8_t * columns, size_t stride,
                               tile_sums sums) {
    __asm__ volatile("" ::: "memory");
    for (int g = 0; g < n; g += 4) {
#define TILE(i, column, weights)                                           \
        if (g + i < n) {                                                   \
            _tile_zero(i);                                                 \
            _tile_loadd(column, columns + (g + i) * group, stride);        \
            _tile_loadd(weights, codes[(g + i) * (group / 4)], 64);        \
            _tile_dpbsud(i, column, weights);                              \
        }
#define STORE(i)                                                           \
        if (g + i < n) {                                                   \
            _tile_stored(i, sums[g + i], 64);                              \
        }
        TILE(0, 4, 6) TILE(1, 5, 7) TILE(2, 4, 6) TILE(3, 5, 7)
        STORE(0) STORE(1) STORE(2) STORE(3)
#undef TILE
#undef STORE
    }
    __asm__ volatile("" ::: "memory");
}

#endif
