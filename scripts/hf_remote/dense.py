"""Published classes with one MLP in each layer, all layers of the same size."""

import torch

from .base import ATTENTION, MLP, NORMS, QKV, WHOLE, Remote, Same, build, layer, llama_keys, named, remote, without

ALL = " ".join(ATTENTION)
GPT2 = named(WHOLE, "transformer.wte transformer.ln_f lm_head")


@remote("internlm2")
class InternLM2(Remote):
    """Each key head with its queries, its key and its value in one matrix."""

    LLAMA = named(WHOLE, "model.tok_embeddings model.norm output")
    NAMES = layer("attention_norm ffn_norm", "- - - attention.wo", "feed_forward.w1 feed_forward.w3 feed_forward.w2")
    FUSED = "attention.wqkv"

    def parts(self, rows, il):
        c = self.c
        groups = rows.reshape(c["num_key_value_heads"], -1, c["hidden_size"] // c["num_attention_heads"], c["hidden_size"])
        return [part.reshape(-1, c["hidden_size"]) for part in (groups[:, :-2], groups[:, -2], groups[:, -1])]


@remote("chatglm")
class ChatGLM(Remote):
    """One projection for queries, keys and values, with a bias; gate and up in one."""

    LLAMA = named(WHOLE, "transformer.embedding.word_embeddings transformer.encoder.final_layernorm transformer.output_layer")
    LAYER = "transformer.encoder.layers.{}."
    NAMES = layer(" ".join(NORMS), "- - - self_attention.dense", "- - mlp.dense_4h_to_h") | {"mlp.gate_up_proj.weight": "mlp.dense_h_to_4h.weight"}
    KEYS = {
        "vocab_size": "padded_vocab_size", "intermediate_size": "ffn_hidden_size", "num_hidden_layers": "num_layers", "head_dim": "kv_channels",
        "num_key_value_heads": "multi_query_group_num", "rms_norm_eps": "layernorm_epsilon", "max_position_embeddings": "seq_length",
    }  # fmt: skip
    FUSED, IS_BIASED = "self_attention.query_key_value", True
    KIND = "Glm"

    def keys(self):
        rope = {"rope_type": "default", "rope_theta": 10000.0 * self.c.get("rope_ratio", 1), "partial_rotary_factor": 0.5}
        more = {"head_dim": self.c["head_dim"], "attention_bias": True, "rope_parameters": rope, "tie_word_embeddings": False}
        return super().keys() | more

    def extra(self):
        return {"transformer.rotary_pos_emb.inv_freq": [self.c["kv_channels"] // 4]}


@remote("baichuan")
class Baichuan(Remote):
    """Thirds of one projection; from the second generation on, rows of the head have length one."""

    NAMES = without(Remote.NAMES, *QKV)
    FUSED = "self_attn.W_pack"

    def head(self, weight):
        return weight if self.c["vocab_size"] == 64000 else torch.nn.functional.normalize(weight)


@remote("exaone")
class Exaone(Remote):
    LLAMA = GPT2
    LAYER = "transformer.h.{}."
    NAMES = layer("ln_1 ln_2", " ".join(f"attn.attention.{name}" for name in (*QKV, "out_proj")), "mlp.c_fc_0 mlp.c_fc_1 mlp.c_proj")
    KEYS = {"num_hidden_layers": "num_layers", "rms_norm_eps": "layer_norm_epsilon"}
    MORE = ("head_dim",)


@remote("biased")
class Biased(Remote):
    """As llama, with biases of all projections of attention by `bias`."""

    NAMES = Remote.NAMES | named(ATTENTION, ALL, "bias")
    KEYS, MORE = {"attention_bias": "bias"}, ("attention_bias",)


@remote("qwen2")
class Qwen2(Remote):
    """As qwen2; further tensors by the case."""

    NAMES = Remote.NAMES | named(ATTENTION[:3], " ".join(ATTENTION[:3]), "bias")
    KIND = "Qwen2"


class OfTwo(Remote):
    """As qwen2; `intermediate_size` counts gate and up."""

    IS_BIASED, KIND = True, "Qwen2"

    def keys(self):
        return super().keys() | {"intermediate_size": self.wide(0)}

    def wide(self, il):
        return self.c["intermediate_size"] // 2


@remote("qwen")
class Qwen(OfTwo):
    """Thirds of one projection with a bias."""

    LLAMA = GPT2
    LAYER = "transformer.h.{}."
    NAMES = layer("ln_1 ln_2", "- - - attn.c_proj", "mlp.w2 mlp.w1 mlp.c_proj")
    KEYS = {"rms_norm_eps": "layer_norm_epsilon", "rope_theta": "rotary_emb_base"}
    FUSED = "attn.c_attn"


@remote("molmo")
class Molmo(OfTwo):
    """Rows of further tokens after the embeddings, which have no logits; up before gate."""

    LLAMA = named(WHOLE[1:], "model.transformer.ln_f model.transformer.ff_out") | {"model.embed_tokens.weight": "model.transformer.wte.embedding"}
    LAYER = "model.transformer.blocks.{}."
    NAMES = layer("attn_norm ff_norm", "- - - attn_out", "- - ff_out")
    KEYS = {"rms_norm_eps": "layer_norm_eps"}
    FUSED, UP_GATE = "att_proj", "ff_proj"

    def extra(self):
        return {
            "model.transformer.wte.new_embedding": [8, self.c["hidden_size"]],
            "model.vision_backbone.image_projector.w1.weight": [4, 4],
        }


@remote("orion")
class Orion(Remote):
    """As llama with layer norms."""

    LLAMA = Remote.LLAMA | {"model.norm.bias": "model.norm.bias"}
    NAMES = Remote.NAMES | named(NORMS, " ".join(NORMS), "bias")
    KIND = "StableLm"

    def keys(self):
        keys = super().keys()
        keys |= {"layer_norm_eps": keys.pop("rms_norm_eps"), "use_qkv_bias": False}
        keys["rope_parameters"] |= {"partial_rotary_factor": 1.0}
        return keys


@remote("minicpm")
class MiniCPM(Remote):
    """As llama with factors on embeddings, layers and logits."""

    KIND = "Granite"

    def __init__(self, c):
        super().__init__({"tie_word_embeddings": True} | c)

    def keys(self):
        c = self.c
        return super().keys() | {
            "embedding_multiplier": float(c["scale_emb"]), "logits_scaling": c["hidden_size"] / c["dim_model_base"],
            "residual_multiplier": c["scale_depth"] / c["num_hidden_layers"] ** 0.5,
            "attention_multiplier": (c["hidden_size"] // c["num_attention_heads"]) ** -0.5,
        }  # fmt: skip


@remote("hf-olmo")
class HfOlmo(Remote):
    """Norms that store nothing; one projection; up before gate; the rows of the table are not the vocabulary."""

    LLAMA = {"lm_head.weight": "model.transformer.ff_out.weight", "model.embed_tokens.weight": "model.transformer.wte.weight"}
    LAYER = "model.transformer.blocks.{}."
    NAMES = layer("- -", "- - - attn_out", "- - ff_out")
    KEYS = {
        "vocab_size": "embedding_size", "hidden_size": "d_model", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
        "max_position_embeddings": "max_sequence_length", "tie_word_embeddings": "weight_tying",
    }  # fmt: skip
    FUSED, UP_GATE = "att_proj", "ff_proj"
    KIND, MORE = "Olmo", ("clip_qkv",)

    def __init__(self, c):
        both = c.get("mlp_hidden_size", c["mlp_ratio"] * c["d_model"])
        few = c.get("n_kv_heads", 1 if c["multi_query_attention"] else c["n_heads"])
        super().__init__(c | {"intermediate_size": both // 2, "num_key_value_heads": few})

    def keys(self):
        return without(super().keys(), "rms_norm_eps")


@remote("lfm2")
class Lfm2(Same):
    """A class of transformers under another name, with keys of the first configurations."""

    KIND, IS_TIED = "Lfm2", True
    MORE = ("block_auto_adjust_ff_dim", "block_ffn_dim_multiplier", "block_multiple_of", "conv_L_cache", "conv_bias")
    MORE += ("norm_eps",)

    def keys(self):
        c = self.c
        kinds = ["full_attention" if il in c["full_attn_idxs"] else "conv" for il in range(c["num_hidden_layers"])]
        return super().keys() | {"layer_types": kinds, "tie_word_embeddings": True}


@remote("refined-web")
class RefinedWeb(Same):
    """Falcon before transformers had it: keys of its own."""

    TABLE, IS_TIED = "transformer.word_embeddings.weight", True
    KEYS = {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "num_kv_heads": "n_head_kv"}
    KIND = "Falcon"
    MORE = (
        "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_kv_heads", "layer_norm_epsilon",
        "multi_query", "parallel_attn", "bias", "alibi",
    )  # fmt: skip

    def keys(self):
        more = {"new_decoder_architecture": "n_head_kv" in self.c, "tie_word_embeddings": True, "pad_token_id": None}
        return {"multi_query": False} | {key: self.c[key] for key in self.MORE if key in self.c} | more


@remote("kormo")
class Kormo(Remote):
    """Llama with other names of the norms."""

    NAMES = Remote.NAMES | named(NORMS, "pre_attention_layernorm pre_mlp_layernorm")


@remote("llama")
class Llama(Same):
    MORE = ("head_dim",)


@remote("phi3")
class Phi3(Same):
    KIND = "Phi3"


@remote("youtu")
class Youtu(Same):
    KIND, MORE = "Youtu", ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


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
        return build("", self.text["class"], self.text["config"], **keys)

    def tied(self):
        return self.text.get("tied", False)

    def stored(self, name):
        return self.text["prefix"] + name


@remote("codeshell")
class CodeShell(Remote):
    """As starcoder2 with one projection and names of gpt2."""

    LLAMA = GPT2 | {"model.norm.bias": "transformer.ln_f.bias"}
    LAYER = "transformer.h.{}."
    NAMES = named((*NORMS, "self_attn.o_proj", "mlp.c_fc", "mlp.c_proj"), "ln_1 ln_2 attn.c_proj mlp.c_fc mlp.c_proj", "weight", "bias")
    KEYS = {
        "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "num_key_value_heads": "num_query_groups",
        "hidden_act": "activation_function", "norm_epsilon": "layer_norm_epsilon", "max_position_embeddings": "n_positions",
    }  # fmt: skip
    FUSED, IS_BIASED = "attn.c_attn", True
    KIND, MORE = "Starcoder2", ("hidden_act", "norm_epsilon")

    def __init__(self, c):
        super().__init__(c | {"intermediate_size": 4 * c["n_embd"], "tie_word_embeddings": False})

    def keys(self):
        return without(super().keys(), "rms_norm_eps") | {"use_bias": True, "sliding_window": None}


@remote("phi4mm")
class Phi4MM(Remote):
    """As phi3, whose matrices are called a base of adapters."""

    MATRICES = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")
    NAMES = named(NORMS, " ".join(NORMS)) | {f"{name}.weight": f"{name}.base_layer.weight" for name in MATRICES}

    KIND = "Phi3"

    def keys(self):
        keys = super().keys()
        original = {"original_max_position_embeddings": self.c["original_max_position_embeddings"]}
        keys["rope_parameters"] |= {"partial_rotary_factor": self.c["partial_rotary_factor"]} | original
        return keys | original | {"bos_token_id": 1, "eos_token_id": 2}


@remote("cogvlm")
class CogVlm(Remote):
    """Without images: llama with one projection for queries, keys and values. Each layer has further weights, for rows of images."""

    NAMES = layer(" ".join(NORMS), "- - - self_attn.language_expert_dense", " ".join(name.replace(".", ".language_mlp.") for name in MLP))
    KEYS = {"num_key_value_heads": "num_multi_query_heads"}
    FUSED = "self_attn.language_expert_query_key_value"

    def __init__(self, c):
        super().__init__(c | {"rope_theta": 500000.0 if "num_multi_query_heads" in c else 10000.0})

    def extra(self):
        n, wide, qkv = self.c["hidden_size"], self.c["intermediate_size"], sum(self.sizes(0))
        out = {"model.vision.boi": [1, 1, n], "model.vision.linear_proj.linear_proj.weight": [n, 4]}
        for il in range(self.c["num_hidden_layers"]):
            at = self.LAYER.format(il)
            out |= {at + "self_attn.vision_expert_dense.weight": [n, n], at + "self_attn.vision_expert_query_key_value.weight": [qkv, n]}
            out |= {at + "self_attn.vision_expert_query_key_value.bias": [qkv]} if "num_multi_query_heads" in self.c else {}
            out |= {f"{at}mlp.vision_mlp.{name}_proj.weight": [n, wide] if name == "down" else [wide, n] for name in ("gate", "up", "down")}
        return out


@remote("t5")
class T5(Same):
    """The class of transformers with a head of its own, which transformers reads and does not save."""

    TABLE = "shared.weight"

    def new(self):
        model = build("T5", "T5ForConditionalGeneration", **without(self.c, "architectures", "model_type"))
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.shared.weight))
        return model

    def stored(self, name):
        return None if name.endswith("coder.embed_tokens.weight") else name
