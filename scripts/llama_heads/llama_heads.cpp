// What llama.cpp computes with the prediction heads of a model. The model reads the tokens in one pass. The heads read each token but
// the first with the model's hidden state at the token before; the first one gives the logits. Then they go on alone, token by token: each
// is the one with the highest logit, and its hidden state is that of the head that drafted it. The token after k others is drafted by
// head k, or by the last one.
// Usage: llama-heads MODEL OUT STEPS TOKEN...
// Writes OUT: float32 hidden states of the model [n, n_embd], then logits of the head [n - 1 + STEPS - 1, n_vocab]. Prints one JSON object
// with the sizes and versions. The cache is f32, without flash attention, on one thread.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "ggml.h"
#include "llama-ext.h"
#include "llama.h"
#include "llama_program.h"

static llama_context * context_of(llama_model * model, llama_context * target) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 0;
    params.n_batch = params.n_ubatch = 64;
    params.n_threads = params.n_threads_batch = 1;
    params.type_k = params.type_v = GGML_TYPE_F32;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.offload_kqv = params.op_offload = false;
    if (target) {
        params.ctx_type = LLAMA_CONTEXT_TYPE_MTP;
        params.ctx_other = target;
    }
    llama_context * context = llama_init_from_model(model, params);
    require(context, "llama.cpp cannot create a context");
    return context;
}

// Runs tokens with the rows of `width` elements that go with them, if there are any.
static void pass(llama_context * context, const std::vector<llama_token> & tokens, const float * rows, size_t width, llama_pos first) {
    llama_batch_ext * batch = llama_batch_ext_init(context);
    for (size_t i = 0; i < tokens.size(); i++) {
        const int32_t at = llama_batch_ext_add_token(batch, 0, tokens[i]);
        const llama_pos position = first + (llama_pos) i;
        require(at >= 0 && llama_batch_ext_set_pos(batch, at, &position), "the batch takes no more tokens");
        require(llama_batch_ext_set_output_logits(batch, at, true), "no output can be asked for");
        if (rows) {
            require(llama_batch_ext_set_embd_token(batch, at, { rows + i * width, 1, width }), "the batch takes no hidden state");
        }
    }
    require(llama_process(context, LLAMA_PROCESS_TYPE_DECODE, batch) == 0, "a pass failed");
    llama_batch_ext_free(batch);
}

int main(int argc, char ** argv) {
    require(argc > 5, "usage: llama-heads MODEL OUT STEPS TOKEN...");
    const int steps = atoi(argv[3]);
    std::vector<llama_token> tokens;
    for (int i = 4; i < argc; i++) {
        tokens.push_back(atoi(argv[i]));
    }
    const size_t n = tokens.size();
    require(steps > 0 && n <= 64, "at least one step and at most 64 tokens");

    llama_log_set(quiet, nullptr);
    llama_backend_init();
    llama_model_params params = llama_model_default_params();
    ggml_backend_dev_t no_devices[] = { nullptr };
    params.devices = no_devices;
    params.n_gpu_layers = 0;
    params.use_extra_bufts = false;  // repacked weights are summed in another order
    params.load_mtp = true;
    llama_model * model = llama_model_load_from_file(argv[1], params);
    require(model, "llama.cpp cannot load the model");
    require(llama_model_n_layer_nextn(model) > 0, "the model has no prediction head");
    const size_t n_embd = llama_model_n_embd_out(model);
    const size_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));

    llama_context * target = context_of(model, nullptr);
    llama_set_embeddings_nextn(target, true, /*masked*/ false);
    pass(target, tokens, nullptr, 0, 0);
    const float * found = llama_get_embeddings_nextn(target);
    require(found, "the model gives no hidden states");
    const std::vector<float> hidden(found, found + n * n_embd);

    llama_context * head = context_of(model, target);
    llama_set_embeddings_nextn(head, true, /*masked*/ true);
    const int n_heads = llama_model_n_layer_nextn(model);
    // Each head has keys and values of its own, at the same places.
    const auto select = [&](int at, size_t from) {
        llama_memory_seq_rm(llama_get_memory(head), 0, (llama_pos) from, -1);
        llama_set_nextn_layer_offset(head, at);
    };
    const std::vector<llama_token> read(tokens.begin() + 1, tokens.end());
    for (int at = n_heads - 1; at >= 0; at--) {
        select(at, 0);
        pass(head, read, hidden.data(), n_embd, 0);
    }
    std::vector<float> logits, rows;
    std::vector<llama_token> drafted;
    size_t n_new = read.size();  // rows of the last pass whose logits are wanted
    for (int step = 1;; step++) {
        const size_t n_rows = drafted.empty() ? read.size() : drafted.size();
        const float * out = llama_get_logits(head);
        require(out, "the head gives no logits");
        logits.insert(logits.end(), out + (n_rows - n_new) * n_vocab, out + n_rows * n_vocab);
        if (step == steps) {
            break;
        }
        const float * own = llama_get_embeddings_nextn_ith(head, (int32_t) n_rows - 1);
        require(own, "the head gives no hidden state");
        rows.insert(rows.end(), own, own + n_embd);
        const float * last = logits.data() + logits.size() - n_vocab;
        llama_token best = 0;
        for (size_t token = 1; token < n_vocab; token++) {
            best = last[token] > last[best] ? (llama_token) token : best;
        }
        drafted.push_back(best);
        n_new = 1;
        // A head that has not read the tokens of the draft before reads them now.
        select(step < n_heads ? step : n_heads - 1, read.size());
        pass(head, drafted, rows.data(), n_embd, (llama_pos) read.size());
    }

    FILE * file = fopen(argv[2], "wb");
    require(file, "OUT cannot be written");
    fwrite(hidden.data(), sizeof(float), hidden.size(), file);
    fwrite(logits.data(), sizeof(float), logits.size(), file);
    require(fclose(file) == 0, "OUT cannot be written");
    printf("{\"n_embd\": %zu, \"n_vocab\": %zu, \"rows\": %zu, \"llama_cpp\": \"%s\", \"ggml\": \"%s\"}\n", n_embd, n_vocab,
           logits.size() / n_vocab, llama_version(), ggml_version());
    llama_free(head);
    llama_free(target);
    llama_model_free(model);
    return 0;
}
