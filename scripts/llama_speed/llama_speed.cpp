// Speed of llama.cpp on a model. Prints one JSON object: tokens per second of each case, by its text. A model with an encoder
// reads a source of 64 tokens first, as in `bench perf`; its time is part of the prefill. Such a model has one sequence. There is a
// thread for each processor.
// Usage: llama-speed MODEL LIBRARY|- LAYERS N CASES...
//   prefill:4x2048          4 prompts of 2048 tokens, read together
//   decode:64@1024          N tokens of each of 64 sequences that have 1024 tokens already
//   churn:64:300+50,20+90   requests of 300 and 20 prompt tokens and 50 and 90 tokens of answer, in turn, at most 64 at a time: the best token
//                           of each row is the next; tokens of answers per second
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "ggml-backend.h"
#include "llama.h"
#include "llama_program.h"

using Clock = std::chrono::steady_clock;

static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

// Tokens that the encoder of a model reads.
static const int N_SOURCE = 64;
// Tokens of a pass over prompts, as llama-server has it.
static const int N_BATCH = 2048, N_UBATCH = 512;
// Prompt tokens beside decode.
static const int N_BESIDE = 512;
static const int REPEATS = 3;

static void encode(llama_context * ctx) {
    std::vector<llama_token> source(N_SOURCE, 1);
    require(llama_encode(ctx, llama_batch_get_one(source.data(), N_SOURCE)) == 0, "llama_encode");
    llama_synchronize(ctx);
}

// Tokens that are read together.
struct Batch {
    llama_batch of;

    explicit Batch(int most) : of(llama_batch_init(most, 0, 1)) {}
    ~Batch() { llama_batch_free(of); }

    void add(llama_token token, int at, int sequence, bool logits) {
        const int k = of.n_tokens++;
        of.token[k] = token;
        of.pos[k] = at;
        of.n_seq_id[k] = 1;
        of.seq_id[k][0] = sequence;
        of.logits[k] = logits;
    }

    void run(llama_context * ctx) {
        require(of.n_tokens == 0 || llama_decode(ctx, of) == 0, "llama_decode");
        llama_synchronize(ctx);
        of.n_tokens = 0;
    }
};

static llama_token token_of(int at, int sequence) {
    return (7 * at + sequence) % 90 + 1;
}

static llama_context * context(llama_model * model, int n_seqs, int length) {
    llama_context_params cp = llama_context_default_params();
    cp.n_seq_max = n_seqs;
    cp.n_ctx = n_seqs * ((length + 255) / 256 * 256);
    cp.n_batch = N_BATCH;
    cp.n_ubatch = N_UBATCH;
    cp.n_threads = cp.n_threads_batch = std::thread::hardware_concurrency();
    cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    llama_context * ctx = llama_init_from_model(model, cp);
    require(ctx, "no context");
    return ctx;
}

// Reads prompts of `n` tokens one after another, in passes that hold the end of one and the start of the next.
static void read(llama_context * ctx, Batch & batch, int n_seqs, int n) {
    if (llama_model_has_encoder(llama_get_model(ctx))) {
        encode(ctx);
    }
    for (int s = 0; s < n_seqs; s++) {
        for (int i = 0; i < n; i++) {
            batch.add(token_of(i, s), i, s, i == n - 1);
            if (batch.of.n_tokens == N_BATCH) {
                batch.run(ctx);
            }
        }
    }
    batch.run(ctx);
}

static double median(std::vector<double> seconds) {
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
}

static double prefill(llama_model * model, int n_seqs, int n) {
    llama_context * ctx = context(model, n_seqs, n);
    Batch batch(N_BATCH);
    std::vector<double> seconds;
    for (int i = 0; i <= REPEATS; i++) {
        llama_memory_clear(llama_get_memory(ctx), true);
        const auto start = Clock::now();
        read(ctx, batch, n_seqs, n);
        // The first warms up.
        if (i > 0) {
            seconds.push_back(seconds_since(start));
        }
    }
    llama_free(ctx);
    return (double) n_seqs * n / median(seconds);
}

static double decode(llama_model * model, int n_seqs, int depth, int n) {
    llama_context * ctx = context(model, n_seqs, depth + n + 1);
    Batch batch(std::max(N_BATCH, n_seqs));
    // A model with an encoder has read its source then.
    read(ctx, batch, n_seqs, depth);
    std::vector<double> seconds;
    for (int i = 0; i <= REPEATS; i++) {
        if (depth == 0) {
            llama_memory_clear(llama_get_memory(ctx), true);
        }
        for (int s = 0; s < n_seqs && depth > 0; s++) {
            llama_memory_seq_rm(llama_get_memory(ctx), s, depth, -1);
        }
        const auto start = Clock::now();
        for (int k = 0; k < n; k++) {
            for (int s = 0; s < n_seqs; s++) {
                batch.add(token_of(depth + k, s), depth + k, s, true);
            }
            batch.run(ctx);
        }
        if (i > 0) {
            seconds.push_back(seconds_since(start));
        }
    }
    llama_free(ctx);
    return (double) n_seqs * n / median(seconds);
}

struct Request {
    int prompt, answer;
};

struct Slot {
    int sequence, length, prompt, end; // `length` tokens of `prompt` and its answer, up to `end`, are read
    llama_token next;
    int row; // of its logits in the batch; -1: none
};

static double churn(llama_model * model, int n_slots, const std::vector<Request> & requests) {
    int longest = 0, answers = 0;
    for (const Request & request : requests) {
        longest = std::max(longest, request.prompt + request.answer);
        answers += request.answer;
    }
    llama_context * ctx = context(model, n_slots, longest);
    const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    Batch batch(n_slots + N_BESIDE);
    std::vector<Slot> slots;
    std::deque<int> unused;
    for (int i = 0; i < n_slots; i++) {
        unused.push_back(i);
    }
    size_t next = 0;
    const auto start = Clock::now();
    while (next < requests.size() || !slots.empty()) {
        while (next < requests.size() && !unused.empty()) {
            const Request & request = requests[next++];
            slots.push_back({ unused.front(), 0, request.prompt, request.prompt + request.answer - 1, 0, -1 });
            unused.pop_front();
        }
        int beside = N_BESIDE;
        for (Slot & slot : slots) {
            slot.row = -1;
            if (slot.length >= slot.prompt) {
                slot.row = batch.of.n_tokens;
                batch.add(slot.next, slot.length++, slot.sequence, true);
            }
            for (; slot.length < slot.prompt && beside > 0; beside--) {
                const bool is_last = slot.length + 1 == slot.prompt;
                slot.row = is_last ? batch.of.n_tokens : -1;
                batch.add(token_of(slot.length, slot.sequence), slot.length, slot.sequence, is_last);
                slot.length++;
            }
        }
        const int n = batch.of.n_tokens;
        batch.run(ctx);
        require(n > 0, "a step without tokens");
        std::vector<Slot> left;
        for (Slot & slot : slots) {
            if (slot.row >= 0) {
                const float * logits = llama_get_logits_ith(ctx, slot.row);
                slot.next = (llama_token) (std::max_element(logits, logits + n_vocab) - logits);
            }
            if (slot.row >= 0 && slot.length >= slot.end) {
                llama_memory_seq_rm(llama_get_memory(ctx), slot.sequence, -1, -1);
                unused.push_back(slot.sequence);
            } else {
                left.push_back(slot);
            }
        }
        slots = left;
    }
    const double seconds = seconds_since(start);
    llama_free(ctx);
    return answers / seconds;
}

static double measure(llama_model * model, const std::string & text, int n) {
    int a = 0, b = 0, read = 0;
    if (sscanf(text.c_str(), "prefill:%dx%d", &a, &b) == 2 && a > 0 && b > 0) {
        return prefill(model, a, b);
    }
    if (sscanf(text.c_str(), "decode:%d@%d", &a, &b) == 2 && a > 0 && b >= 0) {
        return decode(model, a, b, n);
    }
    if (sscanf(text.c_str(), "churn:%d:%n", &a, &read) == 1 && a > 0 && read > 0) {
        std::vector<Request> requests;
        const char * at = text.c_str() + read;
        for (Request request; sscanf(at, "%d+%d%n", &request.prompt, &request.answer, &read) == 2 && request.prompt > 0 && request.answer > 0;) {
            requests.push_back(request);
            at += read + (at[read] == ',');
        }
        if (*at == '\0' && !requests.empty()) {
            return churn(model, a, requests);
        }
    }
    require(false, ("no case: " + text).c_str());
    return 0;
}

int main(int argc, char ** argv) {
    const int n = argc < 6 ? 0 : atoi(argv[4]);
    require(n > 0, "usage: llama-speed MODEL LIBRARY|- LAYERS N CASES...");
    llama_log_set(quiet, nullptr);
    require(std::string(argv[2]) == "-" || ggml_backend_load(argv[2]), "the backend library cannot be loaded");
    llama_model_params mp = llama_model_default_params();
    mp.n_gpu_layers = atoi(argv[3]);
    llama_model * model = llama_model_load_from_file(argv[1], mp);
    require(model, "the model cannot be loaded");
    printf("{");
    for (int k = 5; k < argc; k++) {
        const std::string text = argv[k];
        const double speed = measure(model, text, n);
        // Without the list of requests.
        const std::string key = text.compare(0, 6, "churn:") == 0 ? text.substr(0, text.find(':', 6)) : text;
        printf("%s\"%s\": %.3f", k > 5 ? ", " : "", key.c_str(), speed);
        fflush(stdout);
    }
    printf("}\n");
    llama_model_free(model);
}
