"""Published classes with one MLP in each layer, all layers of the same size."""

import torch

from .base import QKV, Remote, Same, build, llama_keys, remote, rows, without


@remote("internlm2")
class InternLM2(Remote):
    """Each key head with its queries, its key and its value in one matrix."""

    LLAMA = {
        "model.embed_tokens.weight": "model.tok_embeddings.weight",
        "model.norm.weight": "model.norm.weight",
        "lm_head.weight": "output.weight",
    }
    NAMES = {
        "input_layernorm.weight": "attention_norm.weight",
        "post_attention_layernorm.weight": "ffn_norm.weight",
        "self_attn.o_proj.weight": "attention.wo.weight",
        "mlp.gate_proj.weight": "feed_forward.w1.weight",
        "mlp.up_proj.weight": "feed_forward.w3.weight",
        "mlp.down_proj.weight": "feed_forward.w2.weight",
    }

    def fused(self):
        c = self.c
        d = c["hidden_size"] // c["num_attention_heads"]
        return {"attention.wqkv.weight": [(c["num_attention_heads"] + 2 * c["num_key_value_heads"]) * d, c["hidden_size"]]}

    def split(self, w, at):
        c = self.c
        d = c["hidden_size"] // c["num_attention_heads"]
        groups = w[at + "attention.wqkv.weight"].reshape(c["num_key_value_heads"], -1, d, c["hidden_size"])
        parts = groups[:, :-2], groups[:, -2], groups[:, -1]
        return {f"self_attn.{n}.weight": p.reshape(-1, c["hidden_size"]) for n, p in zip(QKV, parts)}


@remote("chatglm")
class ChatGLM(Remote):
    """One projection for queries, keys and values, with a bias; gate and up in one."""

    LLAMA = {
        "model.embed_tokens.weight": "transformer.embedding.word_embeddings.weight",
        "model.norm.weight": "transformer.encoder.final_layernorm.weight",
        "lm_head.weight": "transformer.output_layer.weight",
    }
    LAYER = "transformer.encoder.layers.{}."
    NAMES = {
        "input_layernorm.weight": "input_layernorm.weight",
        "post_attention_layernorm.weight": "post_attention_layernorm.weight",
        "self_attn.o_proj.weight": "self_attention.dense.weight",
        "mlp.gate_up_proj.weight": "mlp.dense_h_to_4h.weight",
        "mlp.down_proj.weight": "mlp.dense_4h_to_h.weight",
    }
    n_layers = "num_layers"

    def new(self):
        c = self.c
        return build(
            "GlmForCausalLM", "GlmConfig", vocab_size=c["padded_vocab_size"], hidden_size=c["hidden_size"],
            intermediate_size=c["ffn_hidden_size"], num_hidden_layers=c["num_layers"],
            num_attention_heads=c["num_attention_heads"], num_key_value_heads=c["multi_query_group_num"],
            head_dim=c["kv_channels"], rms_norm_eps=c["layernorm_epsilon"], attention_bias=True,
            tie_word_embeddings=False, pad_token_id=None, max_position_embeddings=c["seq_length"],
            rope_parameters={
                "rope_type": "default", "rope_theta": 10000.0 * c.get("rope_ratio", 1), "partial_rotary_factor": 0.5,
            },
        )  # fmt: skip

    def sizes(self):
        c = self.c
        return [n * c["kv_channels"] for n in (c["num_attention_heads"], *[c["multi_query_group_num"]] * 2)]

    def fused(self):
        n = sum(self.sizes())
        name = "self_attention.query_key_value."
        return {name + "weight": [n, self.c["hidden_size"]], name + "bias": [n]}

    def split(self, w, at):
        out = {}
        for ending in ("weight", "bias"):
            parts = rows(w[f"{at}self_attention.query_key_value.{ending}"], *self.sizes())
            out |= {f"self_attn.{n}.{ending}": p for n, p in zip(QKV, parts)}
        return out

    def extra(self):
        return {"transformer.rotary_pos_emb.inv_freq": [self.c["kv_channels"] // 4]}


@remote("baichuan")
class Baichuan(Remote):
    """Thirds of one projection; from the second generation on, rows of the head have length one."""

    NAMES = without(Remote.NAMES, *QKV)

    def fused(self):
        n = self.c["hidden_size"]
        return {"self_attn.W_pack.weight": [3 * n, n]}

    def split(self, w, at):
        parts = w[at + "self_attn.W_pack.weight"].chunk(3)
        return {f"self_attn.{n}.weight": p for n, p in zip(QKV, parts)}

    def head(self, weight):
        return weight if self.c["vocab_size"] == 64000 else torch.nn.functional.normalize(weight)


@remote("exaone")
class Exaone(Remote):
    LLAMA = {
        "model.embed_tokens.weight": "transformer.wte.weight",
        "model.norm.weight": "transformer.ln_f.weight",
        "lm_head.weight": "lm_head.weight",
    }
    LAYER = "transformer.h.{}."
    NAMES = {
        "input_layernorm.weight": "ln_1.weight",
        "post_attention_layernorm.weight": "ln_2.weight",
        "self_attn.q_proj.weight": "attn.attention.q_proj.weight",
        "self_attn.k_proj.weight": "attn.attention.k_proj.weight",
        "self_attn.v_proj.weight": "attn.attention.v_proj.weight",
        "self_attn.o_proj.weight": "attn.attention.out_proj.weight",
        "mlp.gate_proj.weight": "mlp.c_fc_0.weight",
        "mlp.up_proj.weight": "mlp.c_fc_1.weight",
        "mlp.down_proj.weight": "mlp.c_proj.weight",
    }
    n_layers = "num_layers"

    def new(self):
        c = self.c | {"num_hidden_layers": self.c["num_layers"], "rms_norm_eps": self.c["layer_norm_epsilon"]}
        return build("LlamaForCausalLM", "LlamaConfig", **llama_keys(c, head_dim=c.get("head_dim")))


@remote("llama")
class Plain(Remote):
    """As llama, biases by `attention_bias` or `qkv_bias`."""

    def new(self):
        bias = self.c.get("attention_bias", False)
        return build("LlamaForCausalLM", "LlamaConfig", **llama_keys(self.c, attention_bias=bias, head_dim=self.c.get("head_dim")))


@remote("biased")
class Biased(Remote):
    """As llama, with biases of all projections of attention by `bias`."""

    NAMES = Remote.NAMES | {f"self_attn.{n}.bias": f"self_attn.{n}.bias" for n in (*QKV, "o_proj")}

    def new(self):
        return build("LlamaForCausalLM", "LlamaConfig", **llama_keys(self.c, attention_bias=self.c["bias"]))


@remote("qwen2")
class Qwen2(Remote):
    """As qwen2; further tensors by the case."""

    NAMES = Remote.NAMES | {f"self_attn.{n}.bias": f"self_attn.{n}.bias" for n in QKV}

    def new(self):
        return build("Qwen2ForCausalLM", "Qwen2Config", **llama_keys(self.c))


@remote("qwen")
class Qwen(Remote):
    """Thirds of one projection with a bias; `intermediate_size` counts gate and up."""

    LLAMA = {
        "model.embed_tokens.weight": "transformer.wte.weight",
        "model.norm.weight": "transformer.ln_f.weight",
        "lm_head.weight": "lm_head.weight",
    }
    LAYER = "transformer.h.{}."
    NAMES = {
        "input_layernorm.weight": "ln_1.weight",
        "post_attention_layernorm.weight": "ln_2.weight",
        "self_attn.o_proj.weight": "attn.c_proj.weight",
        "mlp.up_proj.weight": "mlp.w1.weight",
        "mlp.gate_proj.weight": "mlp.w2.weight",
        "mlp.down_proj.weight": "mlp.c_proj.weight",
    }

    def new(self):
        c = self.c | {"rms_norm_eps": self.c["layer_norm_epsilon"], "rope_theta": self.c["rotary_emb_base"]}
        return build("Qwen2ForCausalLM", "Qwen2Config", **llama_keys(c) | {"intermediate_size": c["intermediate_size"] // 2})

    def fused(self):
        n = self.c["hidden_size"]
        return {"attn.c_attn.weight": [3 * n, n], "attn.c_attn.bias": [3 * n]}

    def split(self, w, at):
        out = {}
        for ending in ("weight", "bias"):
            parts = w[f"{at}attn.c_attn.{ending}"].chunk(3)
            out |= {f"self_attn.{n}.{ending}": p for n, p in zip(QKV, parts)}
        return out


@remote("orion")
class Orion(Remote):
    """As llama with layer norms."""

    LLAMA = Remote.LLAMA | {"model.norm.bias": "model.norm.bias"}
    NAMES = Remote.NAMES | {f"{n}.bias": f"{n}.bias" for n in ("input_layernorm", "post_attention_layernorm")}

    def new(self):
        keys = llama_keys(self.c)
        keys |= {"layer_norm_eps": keys.pop("rms_norm_eps"), "use_qkv_bias": False}
        keys["rope_parameters"] |= {"partial_rotary_factor": 1.0}
        return build("StableLmForCausalLM", "StableLmConfig", **keys)


@remote("minicpm")
class MiniCPM(Remote):
    """As llama with factors on embeddings, layers and logits."""

    def new(self):
        c = self.c
        keys = llama_keys({"tie_word_embeddings": True} | c)
        return build(
            "GraniteForCausalLM", "GraniteConfig", **keys, embedding_multiplier=float(c["scale_emb"]),
            residual_multiplier=c["scale_depth"] / c["num_hidden_layers"] ** 0.5,
            logits_scaling=c["hidden_size"] / c["dim_model_base"],
            attention_multiplier=(c["hidden_size"] // c["num_attention_heads"]) ** -0.5,
        )  # fmt: skip

    def layout(self):
        tied = {"tie_word_embeddings": True} | self.c
        self.c = self.c | {"tie_word_embeddings": tied["tie_word_embeddings"]}
        return super().layout()


@remote("molmo")
class Molmo(Remote):
    """Rows of further tokens after the embeddings, which have no logits; up before gate."""

    LLAMA = {
        "model.norm.weight": "model.transformer.ln_f.weight",
        "lm_head.weight": "model.transformer.ff_out.weight",
        "model.embed_tokens.weight": "model.transformer.wte.embedding",
    }
    LAYER = "model.transformer.blocks.{}."
    NAMES = {
        "input_layernorm.weight": "attn_norm.weight",
        "post_attention_layernorm.weight": "ff_norm.weight",
        "self_attn.o_proj.weight": "attn_out.weight",
        "mlp.down_proj.weight": "ff_out.weight",
    }

    def new(self):
        c = self.c | {"rms_norm_eps": self.c["layer_norm_eps"]}
        return build("Qwen2ForCausalLM", "Qwen2Config", **llama_keys(c) | {"intermediate_size": c["intermediate_size"] // 2})

    def sizes(self):
        c = self.c
        d = c["hidden_size"] // c["num_attention_heads"]
        return [n * d for n in (c["num_attention_heads"], c["num_key_value_heads"], c["num_key_value_heads"])]

    def fused(self):
        n = self.c["hidden_size"]
        all_rows = sum(self.sizes())
        return {"att_proj.weight": [all_rows, n], "att_proj.bias": [all_rows], "ff_proj.weight": [self.c["intermediate_size"], n]}

    def split(self, w, at):
        out = {}
        for ending in ("weight", "bias"):
            parts = rows(w[f"{at}att_proj.{ending}"], *self.sizes())
            out |= {f"self_attn.{n}.{ending}": p for n, p in zip(QKV, parts)}
        up, gate = w[at + "ff_proj.weight"].chunk(2)
        return out | {"mlp.gate_proj.weight": gate, "mlp.up_proj.weight": up}

    def extra(self):
        return {
            "model.transformer.wte.new_embedding": [8, self.c["hidden_size"]],
            "model.vision_backbone.image_projector.w1.weight": [4, 4],
        }


@remote("hf-olmo")
class HfOlmo(Remote):
    """Norms that store nothing; one projection; up before gate; the rows of the table are not the vocabulary."""

    LLAMA = {"lm_head.weight": "model.transformer.ff_out.weight", "model.embed_tokens.weight": "model.transformer.wte.weight"}
    LAYER = "model.transformer.blocks.{}."
    NAMES = {"self_attn.o_proj.weight": "attn_out.weight", "mlp.down_proj.weight": "ff_out.weight"}
    n_layers = "n_layers"

    def __init__(self, c):
        super().__init__(c | {"tie_word_embeddings": c["weight_tying"]})

    def n_kv(self):
        c = self.c
        return c.get("n_kv_heads", 1 if c["multi_query_attention"] else c["n_heads"])

    def wide(self):
        return self.c.get("mlp_hidden_size", self.c["mlp_ratio"] * self.c["d_model"])

    def new(self):
        c = self.c
        return build(
            "OlmoForCausalLM", "OlmoConfig", vocab_size=c["embedding_size"], hidden_size=c["d_model"], intermediate_size=self.wide() // 2,
            num_hidden_layers=c["n_layers"], num_attention_heads=c["n_heads"], num_key_value_heads=self.n_kv(),
            max_position_embeddings=c["max_sequence_length"], clip_qkv=c.get("clip_qkv"), tie_word_embeddings=c["weight_tying"],
            rope_parameters={"rope_type": "default", "rope_theta": c.get("rope_theta", 10000.0)}, pad_token_id=None,
        )  # fmt: skip

    def sizes(self):
        d = self.c["d_model"] // self.c["n_heads"]
        return [n * d for n in (self.c["n_heads"], self.n_kv(), self.n_kv())]

    def fused(self):
        return {"att_proj.weight": [sum(self.sizes()), self.c["d_model"]], "ff_proj.weight": [self.wide(), self.c["d_model"]]}

    def split(self, w, at):
        parts = rows(w[at + "att_proj.weight"], *self.sizes())
        up, gate = w[at + "ff_proj.weight"].chunk(2)
        return {f"self_attn.{n}.weight": p for n, p in zip(QKV, parts)} | {"mlp.gate_proj.weight": gate, "mlp.up_proj.weight": up}


@remote("lfm2")
class Lfm2(Same):
    """A class of transformers under another name, with keys of the first configurations."""

    def new(self):
        c = self.c
        kinds = ["full_attention" if il in c["full_attn_idxs"] else "conv" for il in range(c["num_hidden_layers"])]
        keys = ("block_auto_adjust_ff_dim", "block_ffn_dim_multiplier", "block_multiple_of", "conv_L_cache", "conv_bias", "norm_eps")
        keys = {key: c[key] for key in keys}
        return build("Lfm2ForCausalLM", "Lfm2Config", **llama_keys(c) | keys | {"layer_types": kinds, "tie_word_embeddings": True})

    def tied(self):
        return True


@remote("refined-web")
class RefinedWeb(Same):
    """Falcon before transformers had it: keys of its own."""

    TABLE = "transformer.word_embeddings.weight"

    def new(self):
        c = self.c
        return build(
            "FalconForCausalLM", "FalconConfig", vocab_size=c["vocab_size"], hidden_size=c["hidden_size"], num_hidden_layers=c["n_layer"],
            num_attention_heads=c["n_head"], num_kv_heads=c.get("n_head_kv"), layer_norm_epsilon=c["layer_norm_epsilon"],
            multi_query=c.get("multi_query", False), parallel_attn=c["parallel_attn"], bias=c["bias"], alibi=c["alibi"],
            new_decoder_architecture="n_head_kv" in c, tie_word_embeddings=True, pad_token_id=None,
        )  # fmt: skip

    def tied(self):
        return True


@remote("kormo")
class Kormo(Remote):
    """Llama with other names of the norms."""

    NAMES = Remote.NAMES | {
        "input_layernorm.weight": "pre_attention_layernorm.weight",
        "post_attention_layernorm.weight": "pre_mlp_layernorm.weight",
    }


@remote("llama")
class Llama(Same):
    """Llama under another name."""

    def new(self):
        more = {"head_dim": self.c["head_dim"]} if "head_dim" in self.c else {}
        return build("LlamaForCausalLM", "LlamaConfig", **llama_keys(self.c, **more))


@remote("phi3")
class Phi3(Same):
    """Phi3 under another name."""

    def new(self):
        return build("Phi3ForCausalLM", "Phi3Config", **llama_keys(self.c))


@remote("youtu")
class Youtu(Same):
    """Youtu under another name."""

    def new(self):
        c = self.c
        latent = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        more = {k: c[k] for k in latent if k in c}
        return build("YoutuForCausalLM", "YoutuConfig", **llama_keys(c) | more, initializer_range=0.02, embedding_initializer_range=0.04)


@remote("inside")
class Inside(Same):
    """A text model of transformers within another one: the case's `text` names the class, its configuration,
    the object of the configuration and the prefix of the names."""

    def __init__(self, c, text):
        self.text = text
        super().__init__(c)

    def new(self):
        keys = self.c
        for part in filter(None, self.text["object"].split(".")):
            keys = keys[part]
        more = ("head_dim", "attention_bias", "query_pre_attn_scalar", "sliding_window", "attn_logit_softcapping", "final_logit_softcapping")
        keys = llama_keys(keys) | {k: keys[k] for k in more if k in keys}
        return build(self.text["class"], self.text["config"], **keys)

    def tied(self):
        return self.text.get("tied", False)

    def stored(self, name):
        return self.text["prefix"] + name


@remote("codeshell")
class CodeShell(Remote):
    """As starcoder2 with one projection and names of gpt2."""

    LLAMA = {
        "model.embed_tokens.weight": "transformer.wte.weight",
        "model.norm.weight": "transformer.ln_f.weight",
        "model.norm.bias": "transformer.ln_f.bias",
        "lm_head.weight": "lm_head.weight",
    }
    LAYER = "transformer.h.{}."
    PAIRS = {
        "input_layernorm": "ln_1",
        "post_attention_layernorm": "ln_2",
        "self_attn.o_proj": "attn.c_proj",
        "mlp.c_fc": "mlp.c_fc",
        "mlp.c_proj": "mlp.c_proj",
    }
    NAMES = {f"{own}.{e}": f"{stored}.{e}" for own, stored in PAIRS.items() for e in ("weight", "bias")}
    n_layers = "n_layer"

    def new(self):
        c = self.c
        return build(
            "Starcoder2ForCausalLM", "Starcoder2Config", vocab_size=c["vocab_size"], hidden_size=c["n_embd"],
            intermediate_size=4 * c["n_embd"], num_hidden_layers=c["n_layer"], num_attention_heads=c["n_head"],
            num_key_value_heads=c["num_query_groups"], hidden_act=c["activation_function"], norm_epsilon=c["layer_norm_epsilon"],
            use_bias=True, tie_word_embeddings=False, pad_token_id=None, sliding_window=None,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, max_position_embeddings=c["n_positions"],
        )  # fmt: skip

    def sizes(self):
        d = self.c["n_embd"] // self.c["n_head"]
        return [n * d for n in (self.c["n_head"], self.c["num_query_groups"], self.c["num_query_groups"])]

    def fused(self):
        n = sum(self.sizes())
        return {"attn.c_attn.weight": [n, self.c["n_embd"]], "attn.c_attn.bias": [n]}

    def split(self, w, at):
        out = {}
        for ending in ("weight", "bias"):
            parts = rows(w[f"{at}attn.c_attn.{ending}"], *self.sizes())
            out |= {f"self_attn.{n}.{ending}": p for n, p in zip(QKV, parts)}
        return out


@remote("phi4mm")
class Phi4MM(Remote):
    """As phi3, whose matrices are called a base of adapters."""

    NAMES = {f"{n}.weight": f"{n}.weight" for n in ("input_layernorm", "post_attention_layernorm")} | {
        f"{n}.weight": f"{n}.base_layer.weight"
        for n in ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")
    }

    def new(self):
        keys = llama_keys(self.c)
        keys["rope_parameters"] |= {"partial_rotary_factor": self.c["partial_rotary_factor"]}
        keys["original_max_position_embeddings"] = self.c["original_max_position_embeddings"]
        keys["rope_parameters"]["original_max_position_embeddings"] = self.c["original_max_position_embeddings"]
        return build("Phi3ForCausalLM", "Phi3Config", **keys, bos_token_id=1, eos_token_id=2)


@remote("cogvlm")
class CogVlm(Remote):
    """Without images: llama with one projection for queries, keys and values. Each layer has further weights, for rows of images."""

    NAMES = without(Remote.NAMES, *QKV, "o_proj", "mlp") | {
        "self_attn.o_proj.weight": "self_attn.language_expert_dense.weight",
        "mlp.gate_proj.weight": "mlp.language_mlp.gate_proj.weight",
        "mlp.up_proj.weight": "mlp.language_mlp.up_proj.weight",
        "mlp.down_proj.weight": "mlp.language_mlp.down_proj.weight",
    }

    def sizes(self):
        c = self.c
        n, d = c["hidden_size"], c["hidden_size"] // c["num_attention_heads"]
        few = d * c.get("num_multi_query_heads", c["num_attention_heads"])
        return [n, few, few]

    def new(self):
        c = self.c
        base = 500000.0 if "num_multi_query_heads" in c else 10000.0
        heads = c.get("num_multi_query_heads", c["num_attention_heads"])
        return build("LlamaForCausalLM", "LlamaConfig", **llama_keys(c | {"rope_theta": base, "num_key_value_heads": heads}))

    def fused(self):
        return {"self_attn.language_expert_query_key_value.weight": [sum(self.sizes()), self.c["hidden_size"]]}

    def split(self, w, at):
        parts = rows(w[at + "self_attn.language_expert_query_key_value.weight"], *self.sizes())
        return {f"self_attn.{n}.weight": p for n, p in zip(QKV, parts)}

    def extra(self):
        n, wide, qkv = self.c["hidden_size"], self.c["intermediate_size"], sum(self.sizes())
        out = {"model.vision.boi": [1, 1, n], "model.vision.linear_proj.linear_proj.weight": [n, 4]}
        for il in range(self.c["num_hidden_layers"]):
            at = self.LAYER.format(il)
            out |= {at + "self_attn.vision_expert_dense.weight": [n, n], at + "self_attn.vision_expert_query_key_value.weight": [qkv, n]}
            out |= {at + "self_attn.vision_expert_query_key_value.bias": [qkv]} if "num_multi_query_heads" in self.c else {}
            out |= {f"{at}mlp.vision_mlp.{name}_proj.weight": [n, wide] if name == "down" else [wide, n] for name in ("gate", "up", "down")}
        return out
