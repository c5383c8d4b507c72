// Speed of llama.cpp on a model: prefill of one sequence, decode of several. Prints one JSON object. A model with an encoder
// reads a source of 64 tokens first, as in `bench perf`; its time is part of the prefill. Such a model has one sequence. There is a
// thread for each processor.
// Usage: llama-speed MODEL LIBRARY|- LAYERS PROMPT N SEQUENCES...
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "ggml-backend.h"
#include "llama.h"

using Clock = std::chrono::steady_clock;

static void quiet(ggml_log_level level, const char * text, void *) {
    if (level == GGML_LOG_LEVEL_ERROR) {
        fputs(text, stderr);
    }
}

static void fail(const char * what) {
    fprintf(stderr, "error: %s\n", what);
    exit(1);
}

// Tokens that the encoder of a model reads.
static const int N_SOURCE = 64;

static void encode(llama_context * ctx) {
    std::vector<llama_token> source(N_SOURCE, 1);
    if (llama_encode(ctx, llama_batch_get_one(source.data(), N_SOURCE)) != 0) {
        fail("llama_encode");
    }
    llama_synchronize(ctx);
}

// One pass: `n` tokens of each sequence from position `at` on, with logits of the last.
static void pass(llama_context * ctx, int n_seqs, int at, int n) {
    llama_batch batch = llama_batch_init(n * n_seqs, 0, 1);
    for (int s = 0; s < n_seqs; s++) {
        for (int i = 0; i < n; i++) {
            const int k = batch.n_tokens++;
            batch.token[k] = (7 * (at + i) + s) % 90 + 1;
            batch.pos[k] = at + i;
            batch.n_seq_id[k] = 1;
            batch.seq_id[k][0] = s;
            batch.logits[k] = i == n - 1;
        }
    }
    if (at == 0 && llama_model_has_encoder(llama_get_model(ctx))) {
        encode(ctx);
    }
    if (llama_decode(ctx, batch) != 0) {
        fail("llama_decode");
    }
    llama_synchronize(ctx);
    llama_batch_free(batch);
}

// The median of three runs, after one that warms up, in tokens per second.
template <class F> static double speed(llama_context * ctx, int tokens, F run) {
    std::vector<double> seconds;
    for (int i = 0; i < 4; i++) {
        llama_memory_clear(llama_get_memory(ctx), true);
        seconds.push_back(run());
    }
    std::sort(seconds.begin() + 1, seconds.end());
    return tokens / seconds[2];
}

int main(int argc, char ** argv) {
    if (argc < 7) {
        fail("usage: llama-speed MODEL LIBRARY|- LAYERS PROMPT N SEQUENCES...");
    }
    llama_log_set(quiet, nullptr);
    if (std::string(argv[2]) != "-" && ggml_backend_load(argv[2]) == nullptr) {
        fail("the backend library cannot be loaded");
    }
    const int prompt = atoi(argv[4]), n = atoi(argv[5]);
    llama_model_params mp = llama_model_default_params();
    mp.n_gpu_layers = atoi(argv[3]);
    llama_model * model = llama_model_load_from_file(argv[1], mp);
    if (model == nullptr) {
        fail("the model cannot be loaded");
    }
    printf("{");
    for (int k = 6; k < argc; k++) {
        const int n_seqs = atoi(argv[k]);
        llama_context_params cp = llama_context_default_params();
        cp.n_seq_max = n_seqs;
        cp.n_ctx = n_seqs * 256 + prompt;
        cp.n_ctx = (cp.n_ctx + 255) / 256 * 256 * (n_seqs > 1 ? 2 : 1);
        cp.n_batch = cp.n_ubatch = std::max(512, n_seqs);
        cp.n_threads = cp.n_threads_batch = std::thread::hardware_concurrency();
        cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
        llama_context * ctx = llama_init_from_model(model, cp);
        if (ctx == nullptr) {
            fail("no context");
        }
        auto timed = [&](auto run) {
            return [=] {
                const auto start = Clock::now();
                run();
                return std::chrono::duration<double>(Clock::now() - start).count();
            };
        };
        if (k == 6) {
            printf("\"prefill\": %.3f, ", speed(ctx, prompt, timed([=] { pass(ctx, 1, 0, prompt); })));
        }
        const double decode = speed(ctx, n * n_seqs, [&] {
            pass(ctx, n_seqs, 0, 1);
            return timed([=] {
                for (int i = 0; i < n; i++) {
                    pass(ctx, n_seqs, 1 + i, 1);
                }
            })();
        });
        printf("%s\"decode %d\": %.3f", k > 6 ? ", " : "", n_seqs, decode);
        llama_free(ctx);
    }
    printf("}\n");
    llama_model_free(model);
}
