// What programs that run llama.cpp share: they print its errors alone, and end with a message.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "llama.h"

static void quiet(ggml_log_level level, const char * text, void *) {
    if (level == GGML_LOG_LEVEL_ERROR) {
        fputs(text, stderr);
    }
}

static void require(bool holds, const char * what) {
    if (!holds) {
        fprintf(stderr, "error: %s\n", what);
        exit(1);
    }
}
