# Writes the tokenizer and both shipped forms of the tiny model: a Hugging Face folder and a GGUF file.
# Used by scripts/train_tiny.py; both hold the same f16 values, in the GGUF the rows of Q and K permuted.

import json

import gguf
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import data
import model

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PAD, START, END = range(3)
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")


def train_tokenizer(texts, vocab):
    """Byte-level BPE: three special tokens, the 256 bytes, then merges; every digit stays alone."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=SPECIALS, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False))
    return tokenizer


def half(params):
    return {name: np.asarray(w).astype(np.float16) for name, w in params.items()}


def write_folder(folder, params, tokenizer):
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    vocab = tokenizer.get_vocab_size()
    def write(name, value):
        (folder / name).write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
    write("config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": PAD, "eos_token_id": END, "pad_token_id": PAD, "head_dim": model.HEAD, "hidden_act": "silu",
        "hidden_size": model.WIDTH, "initializer_range": 0.02, "intermediate_size": model.HIDDEN,
        "max_position_embeddings": model.CONTEXT, "mlp_bias": False, "num_attention_heads": model.HEADS,
        "num_hidden_layers": model.LAYERS, "num_key_value_heads": model.KV_HEADS, "rms_norm_eps": model.EPS,
        "rope_scaling": None, "rope_theta": model.THETA, "tie_word_embeddings": False, "torch_dtype": "float16",
        "use_cache": True, "vocab_size": vocab,
    })
    write("generation_config.json", {"bos_token_id": PAD, "eos_token_id": [END], "pad_token_id": PAD, "do_sample": False})
    write("tokenizer_config.json", {
        "add_bos_token": False, "add_prefix_space": False,
        "added_tokens_decoder": {
            str(i): {"content": s, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
                     "special": True} for i, s in enumerate(SPECIALS)},
        "additional_special_tokens": SPECIALS[1:], "bos_token": None, "chat_template": data.CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False, "eos_token": SPECIALS[END], "model_max_length": model.CONTEXT,
        "pad_token": SPECIALS[PAD], "tokenizer_class": "PreTrainedTokenizerFast", "unk_token": None,
    })
    (folder / "chat_template.jinja").write_text(data.CHAT_TEMPLATE)
    save_file(half(params), str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)


def read_folder(folder):
    """The tokenizer and the parameters, as float32, of a folder written before."""
    weights = load_file(str(folder / "model.safetensors"))
    return Tokenizer.from_file(str(folder / "tokenizer.json")), {n: jnp.asarray(w, jnp.float32) for n, w in weights.items()}


def interleave(w, heads):
    """Hugging Face's half-split rotary rows to interleaved pairs, as llama.cpp's converter does."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}


def write_gguf(path, params, tokenizer):
    out = gguf.GGUFWriter(path, "llama")
    out.add_type("model")
    out.add_name("Inference Lab Bench Tiny Chat")
    out.add_basename("tiny-chat")
    out.add_size_label(f"{sum(w.size for w in params.values()) / 1e6:.1f}M")
    out.add_license("mit or apache-2.0")
    out.add_languages(["en"])
    out.add_block_count(model.LAYERS)
    out.add_context_length(model.CONTEXT)
    out.add_embedding_length(model.WIDTH)
    out.add_feed_forward_length(model.HIDDEN)
    out.add_head_count(model.HEADS)
    out.add_head_count_kv(model.KV_HEADS)
    out.add_rope_freq_base(model.THETA)
    out.add_layer_norm_rms_eps(model.EPS)
    out.add_key_length(model.HEAD)
    out.add_value_length(model.HEAD)
    out.add_rope_dimension_count(model.HEAD)
    out.add_vocab_size(tokenizer.get_vocab_size())
    out.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    out.add_quantization_version(gguf.GGML_QUANT_VERSION)

    description = json.loads(tokenizer.to_str())
    by_id = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("qwen2")
    out.add_token_list([token for token, _ in by_id])
    out.add_token_types([gguf.TokenType.CONTROL if t in SPECIALS else gguf.TokenType.NORMAL for t, _ in by_id])
    out.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in description["model"]["merges"]])
    out.add_bos_token_id(PAD)
    out.add_eos_token_id(END)
    out.add_eot_token_id(END)
    out.add_pad_token_id(PAD)
    out.add_add_bos_token(False)
    out.add_chat_template(data.CHAT_TEMPLATE)

    weights = half(params)
    out.add_tensor("token_embd.weight", weights["model.embed_tokens.weight"])
    for i in range(model.LAYERS):
        for theirs, ours in NAMES.items():
            w = weights[f"model.layers.{i}.{theirs}.weight"]
            if ours in ("attn_q", "attn_k"):
                w = interleave(w, model.HEADS if ours == "attn_q" else model.KV_HEADS)
            out.add_tensor(f"blk.{i}.{ours}.weight", w.astype(np.float32) if w.ndim == 1 else np.ascontiguousarray(w))
    out.add_tensor("output_norm.weight", weights["model.norm.weight"].astype(np.float32))
    out.add_tensor("output.weight", weights["lm_head.weight"])
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
