// Counts what is wrong, for the tests in this folder: each is a program that exits with 1 if anything was.
#pragma once

#include <stdio.h>

static int n_wrong = 0;

// Says where a condition does not hold; the first few times.
#define CHECK(condition)                                                  \
    do {                                                                  \
        if (!(condition) && n_wrong++ < 20) {                             \
            printf("%s:%d: not %s\n", __FILE__, __LINE__, #condition);    \
        }                                                                 \
    } while (0)

static inline int report() {
    printf("%d wrong\n", n_wrong);
    return n_wrong != 0;
}
