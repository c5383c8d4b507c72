# Writes the tokenizers and forms of the tiny models: Hugging Face folders, and of the chat model a GGUF file.
# Used by train_tiny.py and train_tiny_diffusion.py; all f16.

import json

import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import data
import gguf_file
import model
from bench_server import run

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PAD, START, END = range(3)
MASK = "<|mask|>"
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
    write_files(folder, {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": PAD, "eos_token_id": END, "pad_token_id": PAD, "head_dim": model.HEAD, "hidden_act": "silu",
        "hidden_size": model.WIDTH, "initializer_range": 0.02, "intermediate_size": model.HIDDEN,
        "max_position_embeddings": model.CONTEXT, "mlp_bias": False, "num_attention_heads": model.HEADS,
        "num_hidden_layers": model.LAYERS, "num_key_value_heads": model.KV_HEADS, "rms_norm_eps": model.EPS,
        "rope_scaling": None, "rope_theta": model.THETA, "tie_word_embeddings": False, "torch_dtype": "float16",
        "use_cache": True, "vocab_size": tokenizer.get_vocab_size(),
    }, half(params), tokenizer)


LLADA = {
    "self_attn.q_proj": "q_proj", "self_attn.k_proj": "k_proj", "self_attn.v_proj": "v_proj", "self_attn.o_proj": "attn_out",
    "mlp.gate_proj": "ff_proj", "mlp.up_proj": "up_proj", "mlp.down_proj": "ff_out",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ff_norm",
}


def llada_names(params):
    """The same parameters by the names that LLaDA's files give them."""
    out = {"model.transformer.wte.weight": params["model.embed_tokens.weight"],
           "model.transformer.ln_f.weight": params["model.norm.weight"],
           "model.transformer.ff_out.weight": params["lm_head.weight"]}
    for i in range(model.LAYERS):
        for ours, theirs in LLADA.items():
            out[f"model.transformer.blocks.{i}.{theirs}.weight"] = params[f"model.layers.{i}.{ours}.weight"]
    return out


def write_diffusion_folder(folder, params, tokenizer):
    """The tokenizer's last token is the mask. Completions are padded with end tokens."""
    vocab = tokenizer.get_vocab_size()
    write_files(folder, {
        "architectures": ["LLaDAModelLM"], "model_type": "llada", "activation_type": "silu", "alibi": False,
        "attention_dropout": 0.0, "attention_layer_norm": False, "block_group_size": 1, "block_type": "llama",
        "d_model": model.WIDTH, "embedding_size": vocab, "eos_token_id": END, "include_bias": False,
        "include_qkv_bias": False, "input_emb_norm": False, "layer_norm_type": "rms", "mask_token_id": vocab - 1,
        "max_sequence_length": model.CONTEXT, "mlp_hidden_size": model.HIDDEN, "multi_query_attention": None,
        "n_heads": model.HEADS, "n_kv_heads": model.KV_HEADS, "n_layers": model.LAYERS, "pad_token_id": END,
        "rms_norm_eps": model.EPS, "rope": True, "rope_full_precision": True, "rope_theta": model.THETA,
        "scale_logits": False, "torch_dtype": "float16", "use_cache": False, "vocab_size": vocab, "weight_tying": False,
    }, half(llada_names(params)), tokenizer)


def write_files(folder, config, weights, tokenizer):
    """The special tokens the configuration does not speak of are the same for all."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    specials = {i: token.content for i, token in sorted(tokenizer.get_added_tokens_decoder().items())}
    pad = config["pad_token_id"]
    def write(name, value):
        (folder / name).write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
    write("config.json", config)
    begin = {"bos_token_id": config["bos_token_id"]} if "bos_token_id" in config else {}
    write("generation_config.json", begin | {"eos_token_id": [END], "pad_token_id": pad, "do_sample": False})
    write("tokenizer_config.json", {
        "add_bos_token": False, "add_prefix_space": False,
        "added_tokens_decoder": {
            str(i): {"content": s, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
                     "special": True} for i, s in specials.items()},
        "additional_special_tokens": SPECIALS[1:], "bos_token": None, "chat_template": data.CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False, "eos_token": SPECIALS[END],
        **({"mask_token": specials[config["mask_token_id"]]} if "mask_token_id" in config else {}),
        "model_max_length": model.CONTEXT,
        "pad_token": specials[pad], "tokenizer_class": "PreTrainedTokenizerFast", "unk_token": None,
    })
    (folder / "chat_template.jinja").write_text(data.CHAT_TEMPLATE)
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)


def read_folder(folder):
    """The tokenizer and the parameters, as float32, of a folder written before."""
    weights = load_file(str(folder / "model.safetensors"))
    return Tokenizer.from_file(str(folder / "tokenizer.json")), {n: jnp.asarray(w, jnp.float32) for n, w in weights.items()}


def write_gguf(bench, folder, path):
    """The folder of the chat model as `bench convert` writes it, with what says whose model it is."""
    run([bench, "convert", folder, path, "--force"])
    file, weights = gguf_file.Gguf(path), load_file(str(folder / "model.safetensors"))
    about = {
        "general.type": "model", "general.name": "Inference Lab Bench Tiny Chat", "general.basename": "tiny-chat",
        "general.size_label": f"{sum(w.size for w in weights.values()) / 1e6:.1f}M", "general.languages": ["en"],
        "general.license": "mit or apache-2.0", "general.quantization_version": 2, "tokenizer.ggml.eot_token_id": END,
    }  # fmt: skip
    file.values |= {key: (value, *gguf_file.types_of(value)) for key, value in about.items()}
    file.write(path, {})
