"""Published classes that no class of transformers equals: their formulas in PyTorch, for one sequence."""

from types import SimpleNamespace

import torch
from torch.nn import functional as F

from .base import Remote, build, llama_keys, remote


def slopes(n_head, dtype):
    """The slope of each head, of a power of two; between them those of twice as many."""
    low = 1 << (n_head.bit_length() - 1)
    values = [2 ** (-8 * (i + 1) / low) for i in range(low)]
    values += [2 ** (-4 * (2 * i + 1) / low) for i in range(n_head - low)]
    return torch.tensor(values, dtype=dtype)[:, None, None]


def distance(n):
    """Distance from each key [1, n] to each query [n, 1]."""
    at = torch.arange(n)
    return at[:, None] - at[None]


def rotate(x, base):
    """Heads [h, n, d] with each element rotated against the one half a head away."""
    n, d = x.shape[1:]
    angle = torch.arange(n, dtype=x.dtype)[:, None] * base ** (-torch.arange(0, d, 2, dtype=x.dtype) / d)
    a, b = x.chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def attend(q, k, v, scale, bias=0.0, cap=None, hidden=None, causal=True):
    """Mixed values [n, h * d] of heads [h, n, d]; positions in `hidden` [n, n] are masked, and so are later
    ones if `causal`."""
    scores = q @ k.mT * scale
    scores = cap * (scores / cap).tanh() if cap else scores
    later = (distance(q.shape[1]) < 0) & causal
    scores = (scores + bias).masked_fill(later if hidden is None else later | hidden, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)


class Formulas(torch.nn.Module):
    """Stored tensors by name, and what most formulas share. `states` gives those of every token, `logits` what
    follows from them."""

    def __init__(self, c, w):
        super().__init__()
        self.c = c
        self.w = torch.nn.ParameterDict({name.replace(".", "/"): torch.nn.Parameter(value) for name, value in w.items()})

    def __getitem__(self, name):
        return self.w[name.replace(".", "/")]

    def __contains__(self, name):
        return name.replace(".", "/") in self.w

    def linear(self, x, name):
        bias = name + ".bias"
        return F.linear(x, self[name + ".weight"], self[bias] if bias in self else None)

    def heads(self, x, name, n_head):
        """A projection [h, n, d]."""
        return self.linear(x, name).unflatten(-1, (n_head, -1)).transpose(0, 1)

    def rms(self, x, name):
        return F.rms_norm(x, x.shape[-1:], self[name], self.c["rms_norm_eps"])

    def layer_norm(self, x, name, eps):
        return F.layer_norm(x, x.shape[-1:], self[name + ".weight"], self[name + ".bias"], eps)

    def chosen(self, x, weights, index, expert):
        """The sum of the chosen experts [n, k], each with its weight."""
        rows = [sum(w * expert(row, int(e)) for w, e in zip(ws, es)) for row, ws, es in zip(x, weights, index)]
        return torch.stack(rows)

    def logits(self, x):
        return x

    def forward(self, input_ids, **_):
        states = self.states(input_ids[0])
        return SimpleNamespace(last_hidden_state=states[None], logits=self.logits(states)[None])


class Plain(Remote):
    """A class by its formulas. `shapes` gives its tensors, `Model` what they compute, `unused` those that nothing reads."""

    unused = ()

    def new(self):
        return None

    def layout(self):
        return self.shapes()

    def reference(self, w):
        return self.Model(self.c, {name: value for name, value in w.items() if not any(part in name for part in self.unused)})


def projections(at, names, n, wide):
    """Shapes of `q`, `k`, `v` and `o` of one layer; `wide` is the width of queries and of keys."""
    q, k, v, o = (f"{at}{name}.weight" for name in names)
    return {q: [wide[0], n], k: [wide[1], n], v: [wide[1], n], o: [n, wide[0]]}


def mlp(at, names, n, wide):
    """Shapes of gate, up and down."""
    gate, up, down = (f"{at}{name}.weight" for name in names)
    return {gate: [wide, n], up: [wide, n], down: [n, wide]}


QKVO = ("q_proj", "k_proj", "v_proj", "o_proj")
GATED = ("gate_proj", "up_proj", "down_proj")
W132 = ("w1", "w3", "w2")


@remote("jais")
class Jais(Plain):
    """Names and matrices [in, out] of gpt2; ALiBi; the gate second; factors of embeddings and logits."""

    class Model(Formulas):
        def conv(self, x, name):
            return x @ self[name + ".weight"] + self[name + ".bias"]

        def states(self, ids):
            c, n = self.c, len(ids)
            x = self["transformer.wte.weight"][ids] * c["mup_embeddings_scale"]
            d = c["n_embd"] // c["n_head"]
            scale = 1 / d if c["mup_scale_qk_dot_by_d"] else d**-0.5
            for il in range(c["n_layer"]):
                at = f"transformer.h.{il}."
                qkv = self.conv(self.norm(x, at + "ln_1"), at + "attn.c_attn")
                q, k, v = (part.unflatten(-1, (c["n_head"], d)).transpose(0, 1) for part in qkv.chunk(3, -1))
                mixed = attend(q, k, v, scale, -distance(n) * slopes(c["n_head"], x.dtype))
                x = x + self.conv(mixed, at + "attn.c_proj")
                y = self.norm(x, at + "ln_2")
                y = self.conv(y, at + "mlp.c_fc") * F.silu(self.conv(y, at + "mlp.c_fc2"))
                x = x + self.conv(y, at + "mlp.c_proj")
            return self.norm(x, "transformer.ln_f")

        def norm(self, x, name):
            return self.layer_norm(x, name, self.c["layer_norm_epsilon"])

        def logits(self, x):
            return self.c["mup_output_alpha"] * self.c["mup_width_scale"] * (x @ self["transformer.wte.weight"].T)

    unused = ("relative_pe", ".attn.bias")

    def shapes(self):
        c = self.c
        n, wide = c["n_embd"], c["n_inner"]
        out = {"transformer.wte.weight": [c["vocab_size"], n], "transformer.relative_pe.slopes": [c["n_head"], 1, 1]}
        pairs, norms = {}, ["transformer.ln_f"]
        for il in range(c["n_layer"]):
            at = f"transformer.h.{il}."
            norms += [at + "ln_1", at + "ln_2"]
            pairs |= {at + "attn.c_attn": [n, 3 * n], at + "attn.c_proj": [n, n]}
            pairs |= {at + "mlp.c_fc": [n, wide], at + "mlp.c_fc2": [n, wide], at + "mlp.c_proj": [wide, n]}
        for name, shape in (pairs | {name: [n] for name in norms}).items():
            out |= {name + ".weight": shape, name + ".bias": shape[-1:]}
        return out


@remote("plamo")
class Plamo(Plain):
    """Attention and MLP on one norm; query heads alternate between the key heads."""

    class Model(Formulas):
        def states(self, ids):
            c = self.c
            h, n_shared = c["num_attention_heads"], c["n_shared_head"]
            x = self["model.embed_tokens.weight"][ids]
            for il in range(c["num_hidden_layers"]):
                at = f"model.layers.layers.{il}."
                y = self.rms(x, at + "norm.weight")
                q = rotate(self.heads(y, at + "self_attn.q_proj", h), 10000.0)
                k = rotate(self.heads(y, at + "self_attn.k_proj", h // n_shared), 10000.0)
                v = self.heads(y, at + "self_attn.v_proj", h // n_shared)
                mixed = attend(q, k.repeat(n_shared, 1, 1), v.repeat(n_shared, 1, 1), q.shape[-1] ** -0.5)
                gate, up = self.linear(y, at + "mlp.gate_proj"), self.linear(y, at + "mlp.up_proj")
                x = x + self.linear(mixed, at + "self_attn.o_proj") + self.linear(F.silu(gate) * up, at + "mlp.down_proj")
            return self.rms(x, "model.norm.weight")

        def logits(self, x):
            return self.linear(x, "lm_head")

    def shapes(self):
        c = self.c
        n, d = c["hidden_size"], c["hidden_size"] // c["num_attention_heads"]
        out = {"model.embed_tokens.weight": [c["vocab_size"], n], "model.norm.weight": [n], "lm_head.weight": [c["vocab_size"], n]}
        for il in range(c["num_hidden_layers"]):
            at = f"model.layers.layers.{il}."
            out |= projections(at + "self_attn.", QKVO, n, (n, d * c["num_attention_heads"] // c["n_shared_head"]))
            out |= mlp(at + "mlp.", GATED, n, c["intermediate_size"]) | {at + "norm.weight": [n]}
        return out


class Sparse(Plain):
    """A class with experts in every layer and projections of queries, keys and values apart."""

    class Model(Formulas):
        def attention(self, y, at, il):
            c = self.c
            h, kv = c["num_attention_heads"], c["num_key_value_heads"]
            q, k, v = (self.heads(y, f"{at}{part}_proj", n) for part, n in (("q", h), ("k", kv), ("v", kv)))
            if self.is_rotated(il):
                base = c.get("rope_theta", 10000.0)
                q, k = rotate(q, base), rotate(k, base)
            k, v = (x.repeat_interleave(h // kv, 0) for x in (k, v))
            return self.linear(self.mix(q, k, v, il), at + "o_proj")

        def is_rotated(self, il):
            return True

        def mix(self, q, k, v, il):
            return attend(q, k, v, q.shape[-1] ** -0.5)

        def gated(self, x, at, names, act):
            gate, up, down = (at + name for name in names)
            return self.linear(act(self.linear(x, gate)) * self.linear(x, up), down)

        def logits(self, x):
            head = "lm_head.weight" if "lm_head.weight" in self else "model.embed_tokens.weight"
            return x @ self[head].T

    def common(self, layer):
        """Shapes of the tensors of a class with so many in each layer."""
        c = self.c
        n = c["hidden_size"]
        out = {"model.embed_tokens.weight": [c["vocab_size"], n], self.NORM: [n]}
        if not c.get("tie_word_embeddings"):
            out["lm_head.weight"] = [c["vocab_size"], n]
        d = c.get("head_dim", n // c["num_attention_heads"])
        for il in range(c["num_hidden_layers"]):
            at = f"model.layers.{il}."
            out |= projections(at + self.ATTENTION, QKVO, n, (d * c["num_attention_heads"], d * c["num_key_value_heads"]))
            out |= layer(at, n)
        return out

    NORM = "model.norm.weight"
    ATTENTION = "self_attn."


@remote("grok-1")
class Grok1(Sparse):
    """Norms before and after attention and experts, scores within a bound, factors of embeddings and logits.
    The weights of the chosen experts are not normalised, which the norm after them undoes."""

    NORM = "model.norm.scale"
    ATTENTION = "attn."
    NAMES = ("linear", "linear_v", "linear_1")

    class Model(Sparse.Model):
        def mix(self, q, k, v, il):
            return attend(q, k, v, self.c["attn_output_multiplier"], cap=self.c["max_attn_value"])

        def states(self, ids):
            c = self.c
            x = self["model.embed_tokens.weight"][ids] * c["embedding_multiplier_scale"]
            for il in range(c["num_hidden_layers"]):
                at = f"model.layers.{il}."
                y = self.attention(self.rms(x, at + "pre_attn_norm.scale"), at + "attn.", il)
                x = x + self.rms(y, at + "post_attn_norm.scale")
                y = self.rms(x, at + "pre_moe_norm.scale")
                weights, index = self.linear(y, at + "moe_block.gate").softmax(-1).topk(c["num_experts_per_tok"], -1)
                act = lambda x: F.gelu(x, approximate="tanh")  # noqa: E731
                expert = lambda row, e: self.gated(row, f"{at}moe_block.experts.{e}.", Grok1.NAMES, act)  # noqa: E731, B023
                x = x + self.rms(self.chosen(y, weights, index, expert), at + "post_moe_norm.scale")
            return self.rms(x, "model.norm.scale")

        def logits(self, x):
            return super().logits(x) * self.c["output_multiplier_scale"]

    def shapes(self):
        def layer(at, n):
            out = {f"{at}{when}_{what}_norm.scale": [n] for when in ("pre", "post") for what in ("attn", "moe")}
            for e in range(self.c["num_experts"]):
                out |= mlp(f"{at}moe_block.experts.{e}.", self.NAMES, n, self.c["intermediate_size"])
            return out | {at + "moe_block.gate.weight": [self.c["num_experts"], n]}

        return self.common(layer)


@remote("arctic")
class Arctic(Sparse):
    """A dense MLP after attention, and experts that read the input of the layer."""

    class Model(Sparse.Model):
        def states(self, ids):
            c = self.c
            x = self["model.embed_tokens.weight"][ids]
            for il in range(c["num_hidden_layers"]):
                at = f"model.layers.{il}."
                after = x + self.attention(self.rms(x, at + "input_layernorm.weight"), at + "self_attn.", il)
                dense = self.gated(self.rms(after, at + "residual_layernorm.weight"), at + "residual_mlp.", W132, F.silu)
                y = self.rms(x, at + "post_attention_layernorm.weight")
                weights, index = self.linear(y, at + "block_sparse_moe.gate").softmax(-1).topk(c["num_experts_per_tok"], -1)
                weights = weights / weights.sum(-1, keepdim=True)
                expert = lambda row, e: self.gated(row, f"{at}block_sparse_moe.experts.{e}.", W132, F.silu)  # noqa: E731, B023
                x = after + dense + self.chosen(y, weights, index, expert)
            return self.rms(x, "model.norm.weight")

    def shapes(self):
        def layer(at, n):
            norms = ("input_layernorm", "residual_layernorm", "post_attention_layernorm")
            out = {f"{at}{name}.weight": [n] for name in norms} | mlp(at + "residual_mlp.", W132, n, n)
            for e in range(self.c["num_local_experts"]):
                out |= mlp(f"{at}block_sparse_moe.experts.{e}.", W132, n, self.c["intermediate_size"])
            return out | {at + "block_sparse_moe.gate.weight": [self.c["num_local_experts"], n]}

        return self.common(layer)


@remote("smallthinker")
class SmallThinker(Sparse):
    """A router that reads what the layer reads, MLPs with ReLU; layers with windows, layers that rotate."""

    NAMES = ("gate", "up", "down")

    class Model(Sparse.Model):
        def is_rotated(self, il):
            return self.c["rope_layout"][il] == 1

        def mix(self, q, k, v, il):
            hidden = distance(q.shape[1]) >= self.c["sliding_window_size"]
            return attend(q, k, v, q.shape[-1] ** -0.5, hidden=hidden if self.c["sliding_window_layout"][il] else None)

        def states(self, ids):
            c = self.c
            x = self["model.embed_tokens.weight"][ids]
            for il in range(c["num_hidden_layers"]):
                at = f"model.layers.{il}."
                scores, index = self.linear(x, at + "block_sparse_moe.primary_router").topk(c["moe_num_active_primary_experts"], -1)
                if c["moe_primary_router_apply_softmax"]:
                    weights = scores.softmax(-1)
                else:
                    weights = scores.sigmoid() / scores.sigmoid().sum(-1, keepdim=True)
                x = x + self.attention(self.rms(x, at + "input_layernorm.weight"), at + "self_attn.", il)
                y = self.rms(x, at + "post_attention_layernorm.weight")
                expert = lambda row, e: self.gated(row, f"{at}block_sparse_moe.experts.{e}.", SmallThinker.NAMES, F.relu)  # noqa: E731, B023
                x = x + self.chosen(y, weights, index, expert)
            return self.rms(x, "model.norm.weight")

    def shapes(self):
        def layer(at, n):
            out = {at + "input_layernorm.weight": [n], at + "post_attention_layernorm.weight": [n]}
            for e in range(self.c["moe_num_primary_experts"]):
                out |= mlp(f"{at}block_sparse_moe.experts.{e}.", self.NAMES, n, self.c["moe_ffn_hidden_size"])
            return out | {at + "block_sparse_moe.primary_router.weight": [self.c["moe_num_primary_experts"], n]}

        return self.common(layer)


@remote("llama-both-ways")
class LlamaBothWays(Remote):
    """As llama, where every token attends to every other; hidden states, not logits."""

    class Model(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, input_ids, **_):
            n = input_ids.shape[1]
            mask = torch.zeros(1, 1, n, n, dtype=self.model.dtype)
            return self.model(input_ids=input_ids, attention_mask=mask, use_cache=False)

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
class JinaBert(Plain):
    """As bert, with ALiBi and a gated MLP."""

    class Model(Formulas):
        def norm(self, x, name):
            return self.layer_norm(x, name, self.c["layer_norm_eps"])

        def states(self, ids):
            c, n, h = self.c, len(ids), self.c["num_attention_heads"]
            x = self["embeddings.word_embeddings.weight"][ids] + self["embeddings.token_type_embeddings.weight"][0]
            x = self.norm(x, "embeddings.LayerNorm")
            bias = -distance(n).abs() * slopes(h, x.dtype)
            for il in range(c["num_hidden_layers"]):
                at = f"encoder.layer.{il}."
                q, k, v = (self.heads(x, f"{at}attention.self.{part}", h) for part in ("query", "key", "value"))
                mixed = attend(q, k, v, q.shape[-1] ** -0.5, bias, causal=False)
                x = self.norm(x + self.linear(mixed, at + "attention.output.dense"), at + "attention.output.LayerNorm")
                gate, up = self.linear(x, at + "mlp.gated_layers").chunk(2, -1)
                x = self.norm(x + self.linear(F.gelu(gate) * up, at + "mlp.wo"), at + "mlp.layernorm")
            return x

    unused = ("pooler",)

    def shapes(self):
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
