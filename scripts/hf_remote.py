"""Classes whose code lies in published folders and not in transformers: what their tensors are called, and
the class of transformers that computes the same from those tensors in another order.

Used by scripts/make_hf_goldens.py for cases with `remote`. `layout` gives names and shapes of the stored
tensors for a published configuration, `reference` a model of transformers with the tensors moved there.
Both follow the code that the publishers ship with their folders. Needs torch and transformers.
"""

import re

import torch

CLASSES = {}


def remote(name):
    """Registers a class by the name that cases give as `remote`."""

    def register(cls):
        CLASSES[name] = cls
        return cls

    return register


def rope4(c):
    """Rotation of a published configuration, for a configuration of transformers 5."""
    rope = dict(c.get("rope_scaling") or {})
    kind = rope.pop("type", None) or rope.get("rope_type", "default")
    # What grows with the length alone changes nothing within the trained length.
    rope = {} if kind == "dynamic" else rope | {"rope_type": kind}
    return {"rope_type": "default"} | rope | {"rope_theta": c.get("rope_theta", 10000.0)}


def llama_keys(c, **more):
    """Keys of transformers that most configurations share."""
    n_head = c["num_attention_heads"]
    return {
        "vocab_size": c["vocab_size"],
        "hidden_size": c["hidden_size"],
        "intermediate_size": c["intermediate_size"],
        "num_hidden_layers": c["num_hidden_layers"],
        "num_attention_heads": n_head,
        "num_key_value_heads": c.get("num_key_value_heads", n_head),
        "max_position_embeddings": c.get("max_position_embeddings", 256),
        "rms_norm_eps": c.get("rms_norm_eps", 1e-6),
        "rope_parameters": rope4(c),
        "tie_word_embeddings": c.get("tie_word_embeddings", False),
        "pad_token_id": None,
        **more,
    }


def build(model, config, **keys):
    """A model of transformers in float32 with plain attention."""
    import transformers

    config = getattr(transformers, config)(**keys)
    config._attn_implementation = "eager"
    return getattr(transformers, model)(config).eval()


def rows(tensor, *sizes):
    """A matrix or vector in parts of so many rows."""
    return tensor.split(list(sizes), dim=0)


class Remote:
    """A published class. `c` is its configuration, `w` its tensors by stored names."""

    LLAMA = {  # a name in transformers: the stored one
        "model.embed_tokens.weight": "model.embed_tokens.weight",
        "model.norm.weight": "model.norm.weight",
        "lm_head.weight": "lm_head.weight",
    }
    LAYER = "model.layers.{}."
    NAMES = {
        "input_layernorm.weight": "input_layernorm.weight",
        "post_attention_layernorm.weight": "post_attention_layernorm.weight",
        "self_attn.q_proj.weight": "self_attn.q_proj.weight",
        "self_attn.k_proj.weight": "self_attn.k_proj.weight",
        "self_attn.v_proj.weight": "self_attn.v_proj.weight",
        "self_attn.o_proj.weight": "self_attn.o_proj.weight",
        "mlp.gate_proj.weight": "mlp.gate_proj.weight",
        "mlp.up_proj.weight": "mlp.up_proj.weight",
        "mlp.down_proj.weight": "mlp.down_proj.weight",
    }
    # Stored tensors of a layer that become several: shape, and what they become.
    n_layers = "num_hidden_layers"

    def __init__(self, c):
        self.c = c
        self.model = self.new()

    def new(self):
        return build("LlamaForCausalLM", "LlamaConfig", **llama_keys(self.c))

    def stored(self, name):
        """The stored name and layer of a parameter of the reference; None if it is made otherwise."""
        if name in self.LLAMA:
            return self.LLAMA[name]
        found = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", name)
        if found and found[2] in self.NAMES:
            return self.LAYER.format(found[1]) + self.NAMES[found[2]]
        return None

    def fused(self):
        """Shapes of the stored tensors of one layer that are not those of the reference."""
        return {}

    def split(self, w, at):
        """Parameters of one layer of the reference from the tensors that `fused` names; `at` is their prefix."""
        return {}

    def head(self, weight):
        return weight

    def layout(self):
        """Names and shapes as they are stored."""
        out = {}
        for name, value in self.model.state_dict().items():
            if self.c.get("tie_word_embeddings") and name == "lm_head.weight":
                continue
            if stored := self.stored(name):
                out[stored] = list(value.shape)
        for il in range(self.c[self.n_layers]):
            for name, shape in self.fused().items():
                out[self.LAYER.format(il) + name] = shape
        return out | self.extra()

    def extra(self):
        """Further stored tensors and their shapes."""
        return {}

    def reference(self, w):
        """The model of transformers with the stored tensors in their places."""
        state = {}
        for name in self.model.state_dict():
            stored = self.stored(name)
            if stored in w:
                state[name] = w[stored]
        for il in range(self.c[self.n_layers]):
            made = self.split(w, self.LAYER.format(il))
            state |= {f"model.layers.{il}.{name}": value for name, value in made.items()}
        if "lm_head.weight" in state:
            state["lm_head.weight"] = self.head(state["lm_head.weight"])
        elif "lm_head.weight" in self.model.state_dict():
            state["lm_head.weight"] = state["model.embed_tokens.weight"]
        self.model.load_state_dict(state, strict=True)
        return self.model


def without(names, *gone):
    return {key: value for key, value in names.items() if not any(part in key for part in gone)}


QKV = ("q_proj", "k_proj", "v_proj")
GATE_UP = ("gate_proj", "up_proj")


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
    """Rows of further tokens behind the embeddings, which have no logits; up before gate."""

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


@remote("inside")
class Inside(Remote):
    """A text model of transformers within another one: the case's `text` names the class, its configuration,
    the object of the configuration and the prefix of the names."""

    def __init__(self, c, text):
        self.text = text
        super().__init__(c)

    def new(self):
        keys = self.c
        for part in filter(None, self.text["object"].split(".")):
            keys = keys[part]
        keys = llama_keys(keys) | {k: keys[k] for k in ("head_dim", "attention_bias") if k in keys}
        return build(self.text["class"], self.text["config"], **keys)

    def layout(self):
        state = self.model.state_dict()
        return {self.text["prefix"] + name: list(value.shape) for name, value in state.items()}

    def reference(self, w):
        own = {name: w[self.text["prefix"] + name] for name in self.model.state_dict()}
        self.model.load_state_dict(own, strict=True)
        return self.model


@remote("deepseek")
class DeepSeek(Remote):
    """Experts beside shared ones, whose gate is always open: qwen2moe with a gate of one half and twice
    the shared network."""

    EXPERTS = "mlp."
    SHARED = "mlp.shared_experts."
    renormalises = False

    def new(self):
        c = self.c
        names = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
        n, shared = (c.get(old, c.get(new)) for old, new in names.items())
        return build(
            "Qwen2MoeForCausalLM", "Qwen2MoeConfig", **llama_keys(c), num_experts=n, qkv_bias=False,
            num_experts_per_tok=c["num_experts_per_tok"], moe_intermediate_size=c["moe_intermediate_size"],
            shared_expert_intermediate_size=shared * c["moe_intermediate_size"],
            norm_topk_prob=c.get("norm_topk_prob", False), decoder_sparse_step=1,
            mlp_only_layers=list(range(c.get("first_k_dense_replace", 0))),
        )  # fmt: skip

    def n_experts(self):
        return self.c.get("n_routed_experts", self.c.get("num_experts"))

    def stored(self, name):
        if found := re.fullmatch(r"model\.layers\.(\d+)\.mlp\.shared_expert\.(.*)", name):
            return self.LAYER.format(found[1]) + self.SHARED + found[2]
        if found := re.fullmatch(r"model\.layers\.(\d+)\.mlp\.gate\.weight", name):
            return self.LAYER.format(found[1]) + self.EXPERTS + "gate.weight"
        return super().stored(name)

    def layout(self):
        c, out = self.c, super().layout()
        wide, n = c["moe_intermediate_size"], c["hidden_size"]
        for il in range(c.get("first_k_dense_replace", 0), c["num_hidden_layers"]):
            for e in range(self.n_experts()):
                at = f"{self.LAYER.format(il)}{self.EXPERTS}experts.{e}."
                out |= {at + "gate_proj.weight": [wide, n], at + "up_proj.weight": [wide, n], at + "down_proj.weight": [n, wide]}
        return out

    def split(self, w, at):
        if f"{at}{self.EXPERTS}gate.weight" not in w:
            return {}
        part = lambda e, name: w[f"{at}{self.EXPERTS}experts.{e}.{name}.weight"]  # noqa: E731
        n = range(self.n_experts())
        return {
            "mlp.experts.gate_up_proj": torch.stack([torch.cat([part(e, "gate_proj"), part(e, "up_proj")]) for e in n]),
            "mlp.experts.down_proj": torch.stack([part(e, "down_proj") for e in n]),
            "mlp.shared_expert.down_proj.weight": 2 * w[at + self.SHARED + "down_proj.weight"],
            "mlp.shared_expert_gate.weight": torch.zeros(1, self.c["hidden_size"]),
        }


@remote("bailingmoe")
class BailingMoe(DeepSeek):
    """The same with one projection for queries, keys and values."""

    LLAMA = DeepSeek.LLAMA | {"model.embed_tokens.weight": "model.word_embeddings.weight"}
    NAMES = without(DeepSeek.NAMES, *QKV) | {"self_attn.o_proj.weight": "attention.dense.weight"}

    def sizes(self):
        c = self.c
        return [n * c["head_dim"] for n in (c["num_attention_heads"], c["num_key_value_heads"], c["num_key_value_heads"])]

    def fused(self):
        return {"attention.query_key_value.weight": [sum(self.sizes()), self.c["hidden_size"]]}

    def split(self, w, at):
        parts = rows(w[at + "attention.query_key_value.weight"], *self.sizes())
        return super().split(w, at) | {f"self_attn.{n}.weight": p for n, p in zip(QKV, parts)}


@remote("bailingmoe2")
class BailingMoe2(BailingMoe):
    """As glm4moe with norms of heads, in which a part of each head turns."""

    NAMES = BailingMoe.NAMES | {
        "self_attn.q_norm.weight": "attention.query_layernorm.weight",
        "self_attn.k_norm.weight": "attention.key_layernorm.weight",
    }

    def new(self):
        c = self.c
        keys = llama_keys(c)
        keys["rope_parameters"] |= {"partial_rotary_factor": c["partial_rotary_factor"]}
        return build(
            "Glm4MoeForCausalLM", "Glm4MoeConfig", **keys, head_dim=c["head_dim"], use_qk_norm=True, attention_bias=False,
            n_routed_experts=c["num_experts"], n_shared_experts=c["num_shared_experts"],
            num_experts_per_tok=c["num_experts_per_tok"], moe_intermediate_size=c["moe_intermediate_size"],
            n_group=c["n_group"], topk_group=c["topk_group"], norm_topk_prob=c["norm_topk_prob"],
            routed_scaling_factor=c["routed_scaling_factor"], first_k_dense_replace=c["first_k_dense_replace"],
        )  # fmt: skip

    def stored(self, name):
        if found := re.fullmatch(r"model\.layers\.(\d+)\.mlp\.shared_experts\.(.*)", name):
            return self.LAYER.format(found[1]) + self.SHARED + found[2]
        if found := re.fullmatch(r"model\.layers\.(\d+)\.mlp\.gate\.e_score_correction_bias", name):
            return self.LAYER.format(found[1]) + "mlp.gate.expert_bias"
        return super().stored(name)

    def split(self, w, at):
        gone = ("shared_expert.down_proj", "shared_expert_gate")
        return without(super().split(w, at), *gone)


@remote("deci")
class Deci(Remote):
    """Layers with their own number of key heads, or a matrix or nothing in the place of attention, or a
    width of their own or nothing in the place of the network: llama, of which modules are replaced."""

    class Zero(torch.nn.Module):
        def forward(self, *args, **more):
            hidden = args[0] if args else more["hidden_states"]
            return (torch.zeros_like(hidden), None) if "hidden_states" in more else torch.zeros_like(hidden)

    class Matrix(torch.nn.Module):
        def __init__(self, n):
            super().__init__()
            self.linear_attn = torch.nn.Linear(n, n, bias=False)

        def forward(self, hidden_states, **_):
            return self.linear_attn(hidden_states), None

    NAMES = Remote.NAMES | {"self_attn.linear_attn.weight": "self_attn.linear_attn.weight"}

    def new(self):
        from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP

        c = self.c
        model = build("LlamaForCausalLM", "LlamaConfig", **llama_keys(c | {"intermediate_size": c["intermediate_size"] or 8, "num_key_value_heads": 1}))
        blank = torch.nn.Identity()
        for il, layer in enumerate(model.model.layers):
            config = type(model.config)(**model.config.to_dict())
            config._attn_implementation = "eager"
            if "block_configs" not in c:
                config.num_key_value_heads = c["num_key_value_heads_per_layer"][il]
                layer.self_attn = LlamaAttention(config, il)
                continue
            attention, network = (c["block_configs"][il][key] for key in ("attention", "ffn"))
            if attention["n_heads_in_group"]:
                config.num_key_value_heads = c["num_attention_heads"] // attention["n_heads_in_group"]
                layer.self_attn = LlamaAttention(config, il)
            elif attention["replace_with_linear"]:
                layer.self_attn = self.Matrix(c["hidden_size"])
            else:
                layer.self_attn, layer.input_layernorm = self.Zero(), blank
            if network["ffn_mult"]:
                # The published width is a multiple of 256.
                config.intermediate_size = -(-int(2 * network["ffn_mult"] * c["hidden_size"] / 3) // 256) * 256
                layer.mlp = LlamaMLP(config)
            else:
                layer.mlp, layer.post_attention_layernorm = self.Zero(), blank
        return model.eval()


@remote("openelm")
class OpenElm(Remote):
    """Each layer with its number of heads and its width: qwen3 with modules of their own sizes."""

    LLAMA = {
        "model.embed_tokens.weight": "transformer.token_embeddings.weight",
        "model.norm.weight": "transformer.norm.weight",
    }
    LAYER = "transformer.layers.{}."
    NAMES = {
        "input_layernorm.weight": "attn_norm.weight",
        "post_attention_layernorm.weight": "ffn_norm.weight",
        "self_attn.q_norm.weight": "attn.q_norm.weight",
        "self_attn.k_norm.weight": "attn.k_norm.weight",
        "self_attn.o_proj.weight": "attn.out_proj.weight",
        "mlp.down_proj.weight": "ffn.proj_2.weight",
    }
    n_layers = "num_transformer_layers"

    def new(self):
        from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3MLP

        c = self.c
        model = build(
            "Qwen3ForCausalLM", "Qwen3Config", vocab_size=c["vocab_size"], hidden_size=c["model_dim"], intermediate_size=8,
            num_hidden_layers=c["num_transformer_layers"], num_attention_heads=1, num_key_value_heads=1, head_dim=c["head_dim"],
            rms_norm_eps=1e-6, tie_word_embeddings=True, pad_token_id=None, max_position_embeddings=c["max_context_length"],
            rope_parameters={"rope_type": "default", "rope_theta": float(c["rope_freq_constant"])},
        )  # fmt: skip
        for il, layer in enumerate(model.model.layers):
            config = type(model.config)(**model.config.to_dict())
            config._attn_implementation = "eager"
            config.num_attention_heads, config.num_key_value_heads = c["num_query_heads"][il], c["num_kv_heads"][il]
            config.intermediate_size = self.width(il)
            layer.self_attn, layer.mlp = Qwen3Attention(config, il), Qwen3MLP(config)
        return model.eval()

    def width(self, il):
        """Rounded to the divisor, but not down by more than a tenth."""
        exact, divisor = self.c["ffn_multipliers"][il] * self.c["model_dim"], self.c["ffn_dim_divisor"]
        near = max(divisor, int(exact + divisor / 2) // divisor * divisor)
        return near + divisor if near < 0.9 * exact else near

    def sizes(self, il):
        c = self.c
        return [n[il] * c["head_dim"] for n in (c["num_query_heads"], c["num_kv_heads"], c["num_kv_heads"])]

    def layout(self):
        out, n = super().layout(), self.c["model_dim"]
        for il in range(self.c["num_transformer_layers"]):
            at = self.LAYER.format(il)
            out[at + "attn.qkv_proj.weight"] = [sum(self.sizes(il)), n]
            out[at + "ffn.proj_1.weight"] = [2 * self.width(il), n]
        return out

    def split(self, w, at):
        il = int(at.split(".")[2])
        parts = rows(w[at + "attn.qkv_proj.weight"], *self.sizes(il))
        gate, up = w[at + "ffn.proj_1.weight"].chunk(2)
        out = {f"self_attn.{n}.weight": p for n, p in zip(QKV, parts)}
        return out | {"mlp.gate_proj.weight": gate, "mlp.up_proj.weight": up}


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


class Encoder(torch.nn.Module):
    """What the goldens ask of a model that gives states."""

    def forward(self, input_ids, **_):
        from types import SimpleNamespace

        return SimpleNamespace(last_hidden_state=self.states(input_ids))


@remote("llama-both-ways")
class LlamaBothWays(Remote):
    """As llama, where every token sees every other; states, not logits."""

    class Model(Encoder):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def states(self, ids):
            mask = torch.zeros(1, 1, ids.shape[1], ids.shape[1], dtype=self.model.dtype)
            return self.model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state

    LLAMA = {"model.embed_tokens.weight": "embed_tokens.weight", "model.norm.weight": "norm.weight"}
    LAYER = "layers.{}."

    def new(self):
        return build("LlamaForCausalLM", "LlamaConfig", **llama_keys(self.c) | {"tie_word_embeddings": True})

    def layout(self):
        self.c = self.c | {"tie_word_embeddings": True}
        return super().layout()

    def reference(self, w):
        return self.Model(super().reference(w).model)


@remote("jina-bert-v2")
class JinaBert(Remote):
    """As bert, with scores biased by distance and a gated network."""

    class Model(Encoder):
        def __init__(self, c, w):
            super().__init__()
            self.c = c
            self.w = torch.nn.ParameterDict({name.replace(".", "/"): torch.nn.Parameter(value) for name, value in w.items()})

        def __getitem__(self, name):
            return self.w[name.replace(".", "/")]

        def linear(self, x, name):
            bias = name + ".bias"
            return torch.nn.functional.linear(x, self[name + ".weight"], self[bias] if bias.replace(".", "/") in self.w else None)

        def norm(self, x, name):
            return torch.nn.functional.layer_norm(x, x.shape[-1:], self[name + ".weight"], self[name + ".bias"], self.c["layer_norm_eps"])

        def bias(self, n, dtype):
            """One slope for each head, of a power of two; between them those of twice as many."""
            h = self.c["num_attention_heads"]
            low = 1 << (h.bit_length() - 1)
            slopes = [2 ** (-8 * (i + 1) / low) for i in range(low)]
            slopes += [2 ** (-4 * (2 * i + 1) / low) for i in range(h - low)]
            at = torch.arange(n)
            return -(at[None] - at[:, None]).abs()[None] * torch.tensor(slopes, dtype=dtype)[:, None, None]

        def states(self, ids):
            c, n = self.c, ids.shape[1]
            x = self["embeddings.word_embeddings.weight"][ids[0]] + self["embeddings.token_type_embeddings.weight"][0]
            x = self.norm(x, "embeddings.LayerNorm")
            h, d = c["num_attention_heads"], c["hidden_size"] // c["num_attention_heads"]
            for il in range(c["num_hidden_layers"]):
                at = f"encoder.layer.{il}."
                q, k, v = (self.linear(x, f"{at}attention.self.{p}").view(n, h, d).transpose(0, 1) for p in ("query", "key", "value"))
                scores = q @ k.transpose(1, 2) / d**0.5 + self.bias(n, x.dtype)
                mixed = (scores.softmax(-1) @ v).transpose(0, 1).reshape(n, -1)
                x = self.norm(x + self.linear(mixed, at + "attention.output.dense"), at + "attention.output.LayerNorm")
                gate, up = self.linear(x, at + "mlp.gated_layers").chunk(2, -1)
                y = self.linear(torch.nn.functional.gelu(gate) * up, at + "mlp.wo")
                x = self.norm(x + y, at + "mlp.layernorm")
            return x[None]

    def new(self):
        return None

    def layout(self):
        c = self.c
        n, wide = c["hidden_size"], c["intermediate_size"]
        out = {"embeddings.word_embeddings.weight": [c["vocab_size"], n], "embeddings.token_type_embeddings.weight": [c["type_vocab_size"], n]}
        norms, lines = ["embeddings.LayerNorm"], {}
        for il in range(c["num_hidden_layers"]):
            at = f"encoder.layer.{il}."
            norms += [at + "attention.output.LayerNorm", at + "mlp.layernorm"]
            lines |= {f"{at}attention.{p}": [n, n] for p in ("self.query", "self.key", "self.value", "output.dense")}
            lines |= {at + "mlp.wo": [n, wide]}
            out[at + "mlp.gated_layers.weight"] = [2 * wide, n]
        for name, shape in lines.items():
            out |= {name + ".weight": shape, name + ".bias": shape[:1]}
        for name in norms:
            out |= {name + ".weight": [n], name + ".bias": [n]}
        return out | {"pooler.dense.weight": [n, n], "pooler.dense.bias": [n]}

    def reference(self, w):
        return self.Model(self.c, {name: value for name, value in w.items() if "pooler" not in name})


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
