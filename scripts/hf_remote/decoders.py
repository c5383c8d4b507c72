"""Published decoders whose code lies in their folders or was never released in transformers: their formulas."""

import torch
from torch.nn import functional as F

from .base import remote
from .plain import GATED, QKVO, Formulas, Plain, attend, distance, mlp, projections, rotate, slopes


def turn(x, base, n=None):
    """Heads [h, n, d] of which the first `n` elements of each are rotated, paired in halves."""
    n = n or x.shape[-1]
    return torch.cat([rotate(x[..., :n], base), x[..., n:]], -1)


def turn_neighbours(x, base):
    """Heads whose elements are rotated in pairs of neighbours."""
    halves = x.unflatten(-1, (-1, 2)).mT.flatten(-2)
    return rotate(halves, base).unflatten(-1, (2, -1)).mT.flatten(-2)


def windowed(n, keys):
    """Positions [n, n] outside of a window of so many keys, which includes the query's own position."""
    return distance(n) >= keys


class Decoder(Formulas):
    """A stack of `layer`, a norm, and a head that may be the embeddings."""

    EMBED, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"

    def states(self, ids):
        x = self[self.EMBED][ids]
        for il in range(self.c["num_hidden_layers"]):
            x = self.layer(x, f"model.layers.{il}.", il)
        return self.rms(x, self.NORM)

    def logits(self, x):
        return x @ self[self.HEAD if self.HEAD in self else self.EMBED].T

    def projected(self, y, at, names=("q_proj", "k_proj", "v_proj")):
        """Queries, keys and values by heads."""
        c = self.c
        counts = (c["num_attention_heads"], c["num_key_value_heads"], c["num_key_value_heads"])
        return [self.heads(y, at + name, n) for name, n in zip(names, counts)]

    def fused(self, y, name):
        """The same of one matrix with the rows of all queries, then all keys, then all values."""
        c = self.c
        counts = [c["num_attention_heads"], c["num_key_value_heads"], c["num_key_value_heads"]]
        rows = self.linear(y, name).unflatten(-1, (sum(counts), -1)).transpose(0, 1)
        return rows.split(counts)

    def mixed(self, q, k, v, hidden=None, bias=0.0):
        few = q.shape[0] // k.shape[0]
        k, v = k.repeat_interleave(few, 0), v.repeat_interleave(few, 0)
        return attend(q, k, v, q.shape[-1] ** -0.5, bias, hidden=hidden)

    def gated(self, y, at, names=GATED, act=F.silu):
        gate, up, down = (at + name for name in names)
        return self.linear(act(self.linear(y, gate)) * self.linear(y, up), down)


class Layers(Plain):
    """Names and shapes of the embeddings, the last norm, the head, and what `layer` says of each layer."""

    LAYER = "model.layers.{}."

    def shapes(self):
        c, names = self.c, self.Model
        n = c["hidden_size"]
        out = {names.EMBED: [c["vocab_size"], n], names.NORM: [n]}
        if not c.get("tie_word_embeddings"):
            out[names.HEAD] = [c["vocab_size"], n]
        for il in range(c["num_hidden_layers"]):
            out |= {self.LAYER.format(il) + name: shape for name, shape in self.layer(n, il).items()}
        return out

    def attention(self, at="self_attn."):
        c = self.c
        d = c["head_dim"]
        return projections(at, QKVO, c["hidden_size"], (d * c["num_attention_heads"], d * c["num_key_value_heads"]))


@remote("maincoder")
class Maincoder(Layers):
    """Norms of queries and keys after their rotation, which is of neighbours."""

    class Model(Decoder):
        def layer(self, x, at, il):
            q, k, v = self.projected(self.rms(x, at + "input_layernorm.weight"), at + "self_attn.")
            q, k = (
                self.rms(turn_neighbours(heads, self.c["rope_theta"]), f"{at}self_attn.{name}_norm.weight")
                for heads, name in ((q, "q"), (k, "k"))
            )
            x = x + self.linear(self.mixed(q, k, v), at + "self_attn.o_proj")
            return x + self.gated(self.rms(x, at + "post_attention_layernorm.weight"), at + "feed_forward.")

    def layer(self, n, il):
        d = self.c["head_dim"]
        norms = {"input_layernorm": n, "post_attention_layernorm": n, "self_attn.q_norm": d, "self_attn.k_norm": d}
        out = {name + ".weight": [size] for name, size in norms.items()}
        return out | self.attention() | mlp("feed_forward.", GATED, n, self.c["intermediate_size_mlp"])


@remote("plm")
class Plm(Layers):
    """Latent keys and values, neighbours of the ends of heads rotated, an MLP with squared ReLU and no gate."""

    class Model(Decoder):
        def attention(self, y, at):
            c = self.c
            h, nope, rope = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"]
            q = self.heads(y, at + "q_proj", h)
            latent, end = self.linear(y, at + "kv_a_proj_with_mqa").split([c["kv_lora_rank"], rope], -1)
            latent = F.rms_norm(latent, latent.shape[-1:], self[at + "kv_a_layernorm.weight"], 1e-6)
            k, v = self.heads(latent, at + "kv_b_proj", h).split([nope, c["v_head_dim"]], -1)
            end = turn_neighbours(end[None], c["rope_theta"]).expand(h, -1, -1)
            q = torch.cat([q[..., :nope], turn_neighbours(q[..., nope:], c["rope_theta"])], -1)
            return self.linear(self.mixed(q, torch.cat([k, end], -1), v), at + "o_proj")

        def layer(self, x, at, il):
            x = x + self.attention(self.rms(x, at + "input_layernorm.weight"), at + "self_attn.")
            y = self.linear(self.rms(x, at + "post_attention_layernorm.weight"), at + "mlp.up_proj")
            return x + self.linear(F.relu(y) ** 2, at + "mlp.down_proj")

    def layer(self, n, il):
        c = self.c
        h, rank, nope, rope, v = (
            c[key] for key in ("num_attention_heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        )
        return {
            "input_layernorm.weight": [n], "post_attention_layernorm.weight": [n],
            "self_attn.q_proj.weight": [h * (nope + rope), n], "self_attn.kv_a_proj_with_mqa.weight": [rank + rope, n],
            "self_attn.kv_a_layernorm.weight": [rank], "self_attn.kv_b_proj.weight": [h * (nope + v), rank],
            "self_attn.o_proj.weight": [n, h * v],
            "mlp.up_proj.weight": [c["intermediate_size"], n], "mlp.down_proj.weight": [n, c["intermediate_size"]],
        }  # fmt: skip


@remote("plamo3")
class Plamo3(Layers):
    """Norms around both sublayers, whose weights are stored less a constant of their place; windows with a base of
    their own. A configuration without a factor of its positions counts the keys before the query's own."""

    LAYER = "model.layers.layers.{}."
    LESS = {"pre_mixer": 1.0, "post_mixer": 1 / 5, "pre_mlp": 1.0, "post_mlp": 5**-1.5}

    class Model(Decoder):
        def more(self, x, name, constant=1.0):
            return F.rms_norm(x, x.shape[-1:], self[name] + constant, self.c["rms_norm_eps"])

        def states(self, ids):
            x = self[self.EMBED][ids]
            for il in range(self.c["num_hidden_layers"]):
                x = self.layer(x, f"model.layers.layers.{il}.", il)
            return self.more(x, self.NORM)

        def rotated(self, x, is_full):
            c, n = self.c, x.shape[1]
            factor = c.get("rope_scaling_factor", 1)
            if not is_full or factor == 1:
                return rotate(x, c["rope_theta"] if is_full else c["rope_local_theta"])
            from transformers import LlamaConfig
            from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

            yarn = {"rope_type": "yarn", "rope_theta": c["rope_theta"], "factor": factor, "beta_fast": 32.0, "beta_slow": 1.0}
            yarn |= {"original_max_position_embeddings": c["initial_context_length"], "truncate": False}
            limits = {"head_dim": c["head_dim"], "max_position_embeddings": c["max_position_embeddings"]}
            frequencies, magnitude = ROPE_INIT_FUNCTIONS["yarn"](LlamaConfig(**limits, rope_parameters=yarn), "cpu")
            angle = torch.arange(n, dtype=x.dtype)[:, None] * frequencies.to(x.dtype)
            a, b = x.chunk(2, -1)
            cos, sin = angle.cos() * magnitude, angle.sin() * magnitude
            return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

        def layer(self, x, at, il):
            c, n = self.c, len(x)
            norm = lambda x, place: self.more(x, f"{at}{place}_norm.weight", Plamo3.LESS[place])  # noqa: E731
            q, k, v = self.fused(norm(x, "pre_mixer"), at + "mixer.qkv_proj")
            is_full = (il + 1) % c["sliding_window_pattern"] == 0
            q, k = (
                self.rotated(self.more(heads, f"{at}mixer.{name}_norm.weight"), is_full) for heads, name in ((q, "q"), (k, "k"))
            )
            keys = c["window_size"] + ("rope_scaling_factor" not in c)
            mixed = self.mixed(q, k, v, None if is_full else windowed(n, keys))
            x = x + norm(self.linear(mixed, at + "mixer.o_proj"), "post_mixer")
            gate, up = self.linear(norm(x, "pre_mlp"), at + "mlp.gate_up_proj").chunk(2, -1)
            return x + norm(self.linear(F.silu(gate) * up, at + "mlp.down_proj"), "post_mlp")

    def layer(self, n, il):
        c = self.c
        d, h, few, wide = c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"], c["intermediate_size"]
        return {f"{place}_norm.weight": [n] for place in self.LESS} | {
            "mixer.qkv_proj.weight": [(h + 2 * few) * d, n], "mixer.o_proj.weight": [n, h * d],
            "mixer.q_norm.weight": [d], "mixer.k_norm.weight": [d],
            "mlp.gate_up_proj.weight": [2 * wide, n], "mlp.down_proj.weight": [n, wide],
        }  # fmt: skip


@remote("refact")
class Refact(Plain):
    """Layer norms without biases, ALiBi, one head of keys and values, gate and up in one matrix."""

    class Model(Decoder):
        EMBED = "transformer.wte.weight"

        def norm(self, x, name):
            return F.layer_norm(x, x.shape[-1:], self[name + ".weight"], None, self.c["layer_norm_epsilon"])

        def states(self, ids):
            c = self.c
            h, n = c["n_head"], len(ids)
            x = self[self.EMBED][ids]
            bias = -distance(n) * slopes(h, x.dtype)
            for il in range(c["n_layer"]):
                at = f"transformer.h.{il}."
                y = self.norm(x, at + "ln_1")
                k, v = self.linear(y, at + "attn.kv").chunk(2, -1)
                mixed = self.mixed(self.heads(y, at + "attn.q", h), k[None], v[None], bias=bias)
                x = x + self.linear(mixed, at + "attn.c_proj")
                gate, up = self.linear(self.norm(x, at + "ln_2"), at + "mlp.gate_up_proj").chunk(2, -1)
                x = x + self.linear(F.silu(gate) * up, at + "mlp.c_proj")
            return self.norm(x, "ln_f")

    def shapes(self):
        c = self.c
        n, d = c["n_embd"], c["n_embd"] // c["n_head"]
        wide = 256 * -(-int(2 * 4 * n / 3) // 256)
        out = {"transformer.wte.weight": [c["vocab_size"], n], "ln_f.weight": [n], "lm_head.weight": [c["vocab_size"], n]}
        for il in range(c["n_layer"]):
            at = f"transformer.h.{il}."
            out |= {at + "ln_1.weight": [n], at + "ln_2.weight": [n], at + "attn.q.weight": [n, n], at + "attn.kv.weight": [2 * d, n]}
            out |= {at + "attn.c_proj.weight": [n, n], at + "mlp.gate_up_proj.weight": [2 * wide, n], at + "mlp.c_proj.weight": [n, wide]}
        return out


@remote("spark2_5")
class Spark(Layers):
    """A gate for each head, an MLP gated by the exact GELU; the share of a head that is rotated and the base by kind of layer."""

    class Model(Decoder):
        EMBED = "model.embedding.weight"

        def layer(self, x, at, il):
            c = self.c
            kind = c["layer_types"][il]
            rope = c["rope_parameters"][kind]
            y = self.rms(x, at + "input_layernorm.weight")
            q, k, v = self.fused(y, at + "self_attn.q_k_v_proj")
            q, k = (turn(heads, rope["rope_theta"], int(c["head_dim"] * rope["partial_rotary_factor"])) for heads in (q, k))
            hidden = windowed(len(x), c["sliding_window"]) if kind == "sliding_attention" else None
            mixed = self.mixed(q, k, v, hidden).unflatten(-1, (c["num_attention_heads"], -1))
            mixed = (mixed * self.linear(y, at + "self_attn.g_proj").sigmoid()[..., None]).flatten(-2)
            x = x + self.linear(mixed, at + "self_attn.out_proj")
            return x + self.gated(self.rms(x, at + "post_attention_layernorm.weight"), at + "mlp.", act=F.gelu)

    def layer(self, n, il):
        c = self.c
        d, h, few = c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"]
        return {
            "input_layernorm.weight": [n], "post_attention_layernorm.weight": [n],
            "self_attn.q_k_v_proj.weight": [(h + 2 * few) * d, n], "self_attn.g_proj.weight": [h, n], "self_attn.out_proj.weight": [n, h * d],
        } | mlp("mlp.", GATED, n, c["intermediate_size"])  # fmt: skip


@remote("talkie")
class Talkie(Plain):
    """No norm has a weight. The normed embedding is added after each layer, times a factor, as the sublayers have one.
    Heads are rotated the other way round, then normed, and queries have a factor for each head."""

    class Model(Decoder):
        EMBED = "model.embed.weight"

        def norm(self, x):
            return F.rms_norm(x, x.shape[-1:], eps=torch.finfo(torch.float32).eps)

        def states(self, ids):
            c = self.c
            first = x = self.norm(self[self.EMBED][ids])
            for il in range(c["num_hidden_layers"]):
                at = f"model.blocks.{il}."
                y = self.norm(x)
                q, k, v = (self.heads(y, f"{at}attn.attn_{name}", c["num_attention_heads"]) for name in ("query", "key", "value"))
                q, k = (self.norm(self.back(heads, c["rope_theta"])) for heads in (q, k))
                mixed = self.mixed(q * self[at + "attn.head_gain.head_g"][:, None, None], k, v)
                x = x + self[at + "attn_gain.a_g"] * self.linear(mixed, at + "attn.attn_resid")
                y = self.gated(self.norm(x), at + "mlp.mlp_", ("gate", "linear", "resid"))
                x = x + self[at + "mlp_gain.a_g"] * y + self[at + "embed_skip.a_g"] * first
            return self.norm(x)

        def back(self, x, base):
            a, b = x.chunk(2, -1)
            b, a = rotate(torch.cat([b, a], -1), base).chunk(2, -1)
            return torch.cat([a, b], -1)

        def logits(self, x):
            if "lm_head_gain.w_g" in self:
                return x @ (self["lm_head"] * self["lm_head_gain.w_g"]).T
            return super().logits(x)

    def shapes(self):
        c = self.c
        n, d = c["hidden_size"], c["head_dim"] * c["num_attention_heads"]
        out = {"model.embed.weight": [c["vocab_size"], n]} | self.head([c["vocab_size"], n])
        for il in range(c["num_hidden_layers"]):
            at = f"model.blocks.{il}."
            names = ("attn_query", "attn_key", "attn_value", "attn_resid")
            out |= projections(at + "attn.", names, n, (d, d)) | {at + "attn.head_gain.head_g": [c["num_attention_heads"]]}
            out |= mlp(at + "mlp.", ("mlp_gate", "mlp_linear", "mlp_resid"), n, c["intermediate_size"])
            out |= {f"{at}{name}.a_g": [1] for name in ("attn_gain", "mlp_gain", "embed_skip")}
        return out

    def head(self, shape):
        return {"lm_head": shape, "lm_head_gain.w_g": [1]}


@remote("talkie-folded")
class TalkieFolded(Talkie):
    """With the factor of the logits in the head."""

    def head(self, shape):
        return {"lm_head.weight": shape}


@remote("maple")
class Maple(Layers):
    """Experts with a bounded gate; half of each head is rotated, in windowed layers alone."""

    BOUND = 7.0

    class Model(Decoder):
        EMBED = "model.word_embeddings.weight"

        def expert(self, row, at):
            gate = self.linear(row, at + "gate_proj").clamp(max=Maple.BOUND)
            up = self.linear(row, at + "up_proj").clamp(-Maple.BOUND, Maple.BOUND)
            return self.linear(F.silu(gate) * up, at + "down_proj")

        def layer(self, x, at, il):
            c = self.c
            q, k, v = self.projected(self.rms(x, at + "input_layernorm.weight"), at + "self_attn.")
            q, k = (self.rms(heads, f"{at}self_attn.{name}_norm.weight") for heads, name in ((q, "q"), (k, "k")))
            hidden = None
            if c["layer_types"][il] == "sliding_attention":
                q, k = (turn(heads, c["rope_theta"], int(c["head_dim"] * c["partial_rotary_factor"])) for heads in (q, k))
                hidden = windowed(len(x), c["sliding_window"])
            x = x + self.linear(self.mixed(q, k, v, hidden), at + "self_attn.o_proj")
            y = self.rms(x, at + "post_attention_layernorm.weight")
            weights, index = self.linear(y, at + "mlp.gate").softmax(-1).topk(c["num_experts_per_tok"], -1)
            weights = weights / weights.sum(-1, keepdim=True)
            return x + self.chosen(y, weights, index, lambda row, e: self.expert(row, f"{at}mlp.experts.{e}."))

    def layer(self, n, il):
        c = self.c
        d = c["head_dim"]
        norms = {"input_layernorm": n, "post_attention_layernorm": n, "self_attn.q_norm": d, "self_attn.k_norm": d}
        out = {name + ".weight": [size] for name, size in norms.items()} | self.attention()
        for e in range(c["num_experts"]):
            out |= mlp(f"mlp.experts.{e}.", GATED, n, c["moe_intermediate_size"])
        return out | {"mlp.gate.weight": [c["num_experts"], n]}
