"""Published classes of transformers whose attention was replaced by the time mixing of RWKV: their formulas in PyTorch,
one position after another."""

import torch
from torch.nn import functional as F

from .base import remote
from .plain import GATED, Plain, mlp
from .recurrent import Recurrent, before


class Gated(Recurrent):
    """Layers with RMS norms, time mixing and a gated MLP."""

    def states(self, ids):
        c = self.c
        x, first = self["model.embed_tokens.weight"][ids], None
        for il in range(c["num_hidden_layers"]):
            at = f"model.layers.{il}."
            y, first = self.time_mix(self.rms(x, at + "input_layernorm.weight"), at + "self_attn.", first)
            x = x + y
            y = self.rms(x, at + "post_attention_layernorm.weight")
            x = x + self.linear(F.silu(self.linear(y, at + "mlp.gate_proj")) * self.linear(y, at + "mlp.up_proj"), at + "mlp.down_proj")
        return self.rms(x, "model.norm.weight")

    def logits(self, x):
        return F.linear(x, self["model.embed_tokens.weight" if self.c["tie_word_embeddings"] else "lm_head.weight"])


class GatedShapes(Plain):
    """Their tensors, around those of time mixing."""

    def shapes(self):
        c = self.c
        n = c["hidden_size"]
        out = {"model.embed_tokens.weight": [c["vocab_size"], n], "model.norm.weight": [n]}
        if not c["tie_word_embeddings"]:
            out["lm_head.weight"] = [c["vocab_size"], n]
        for il in range(c["num_hidden_layers"]):
            at = f"model.layers.{il}."
            out |= {at + "input_layernorm.weight": [n], at + "post_attention_layernorm.weight": [n]}
            out |= mlp(at + "mlp.", GATED, n, c["intermediate_size"]) | {f"{at}self_attn.{name}": shape for name, shape in self.mixing(n).items()}
        return out


@remote("rwkv6qwen2")
class Rwkv6Qwen2(GatedShapes):
    """Gated linear attention with the shifts and decays of rwkv6; keys are less by what fades."""

    class Model(Gated):
        def time_mix(self, x, at, first):
            c = self.c
            h, kv = c["num_attention_heads"], c["num_key_value_heads"]
            d = c["hidden_size"] // h
            change = before(x) - x
            low = torch.tanh((x + change * self[at + "time_maa_x"][0]) @ self[at + "time_maa_w1"]).unflatten(-1, (5, -1))
            shares = torch.einsum("tir,irn->itn", low, self[at + "time_maa_w2"])
            r, k, v, w, g = (x + change * (self[f"{at}time_maa_{name}"][0] + shares[i]) for i, name in enumerate("rkvwg"))
            q, k, v = (self.heads(y, f"{at}{name}_proj", n).transpose(0, 1) for y, name, n in ((r, "q", h), (k, "k", kv), (v, "v", kv)))
            k, v = (y.repeat_interleave(h // kv, 1) for y in (k, v))
            decay = self[at + "time_decay"][0] + torch.tanh(w @ self[at + "time_decay_w1"]) @ self[at + "time_decay_w2"]
            kept = (-decay.exp()).clamp(min=-5).exp().unflatten(-1, (h, d))
            k = k * (1 - kept)
            state, out = torch.zeros(h, d, d, dtype=x.dtype), []
            for t in range(len(x)):
                state = state * kept[t, :, :, None] + k[t, :, :, None] * v[t, :, None]
                out.append((q[t, :, None] * d**-0.5 @ state).flatten())
            return self.linear(torch.stack(out) * self.linear(g, at + "gate").sigmoid(), at + "o_proj"), first

    def mixing(self, n):
        c = self.c
        few, r, rank = n // c["num_attention_heads"] * c["num_key_value_heads"], c["lora_rank_tokenshift"], c["lora_rank_decay"]
        out = {f"time_maa_{name}": [1, 1, n] for name in "xrkvwg"} | {"time_maa_w1": [n, 5 * r], "time_maa_w2": [5, r, n]}
        out |= {"time_decay": [1, 1, n], "time_decay_w1": [n, rank], "time_decay_w2": [rank, n], "gate.weight": [n, n]}
        for name, wide in (("q", n), ("k", few), ("v", few), ("o", n)):
            out[name + "_proj.weight"] = [wide, n]
            if c["attention_output_bias" if name == "o" else "attention_bias"]:
                out[name + "_proj.bias"] = [wide]
        return out


@remote("arwkv7")
class Arwkv7(GatedShapes):
    """The time mixing of rwkv7, with or without a gate and a norm of the heads. Shares of the gate and, in the first layer, of
    its values are stored and not used."""

    @property
    def unused(self):
        return ("layers.0.self_attn.time_mixer.v0", "layers.0.self_attn.time_mixer.v1", "layers.0.self_attn.time_mixer.v2") + (
            () if self.c["wkv_has_gate"] else ("time_mixer.x_g",)
        )

    class Model(Gated):
        def time_mix(self, x, at, first):
            c, at = self.c, at + "time_mixer."
            n, d = c["hidden_size"], c["head_size"]
            change = before(x) - x

            def mixed(name):
                return x + change * self[f"{at}x_{name}"][0]

            def low_rank(y, name, act=lambda z: z):
                return act(y @ self[f"{at}{name}1"]) @ self[f"{at}{name}2"]

            r, k, v = (self.linear(mixed(name), at + whole) for name, whole in (("r", "receptance"), ("k", "key"), ("v", "value")))
            w = -F.softplus(-(self[at + "w0"][0] + low_rank(mixed("w"), "w", torch.tanh))) - 0.5
            if first is None:
                first = v
            else:
                v = v + (first - v) * (self[at + "v0"][0] + low_rank(mixed("v"), "v")).sigmoid()
            a = (self[at + "a0"][0] + low_rank(mixed("a"), "a")).sigmoid()
            removed = F.normalize((k * self[at + "k_k"][0]).unflatten(-1, (-1, d)), dim=-1)
            k = k * (1 + (a - 1) * self[at + "k_a"][0])
            r, w, k, value, a = (y.unflatten(-1, (-1, d)) for y in (r, w, k, v, a))
            kept, state, out = torch.exp(-torch.exp(w)), torch.zeros(n // d, d, d, dtype=x.dtype), []
            for t in range(len(x)):
                taken = state @ removed[t, :, :, None]
                state = state * kept[t, :, None] - taken * (a * removed)[t, :, None] + value[t, :, :, None] * k[t, :, None]
                out.append((state @ r[t, :, :, None]).flatten())
            y = torch.stack(out)
            if c["wkv_has_group_norm"]:
                y = self.group_norm(y, at + "ln_x", n // d, 1e-5 * c["head_size_divisor"] ** 2)
            y = y + ((r * k * self[at + "r_k"]).sum(-1, keepdim=True) * value).flatten(-2)
            y = y * low_rank(mixed("g"), "g", torch.sigmoid) if c["wkv_has_gate"] else y
            return self.linear(y, at + "output"), first

    def mixing(self, n):
        c = self.c
        d = c["head_size"]
        out = {f"x_{name}": [1, 1, n] for name in "rwkvag"} | {"k_k": [1, 1, n], "k_a": [1, 1, n], "r_k": [n // d, d]}
        for name, rank in (("w", 64), ("a", 64), ("v", 32)):
            out |= {name + "0": [1, 1, n], name + "1": [n, rank], name + "2": [rank, n]}
        out |= {"g1": [n, 128], "g2": [128, n]} if c["wkv_has_gate"] else {}
        out |= {f"{name}.weight": [n, n] for name in ("receptance", "key", "value", "output")}
        out |= {"ln_x.weight": [n], "ln_x.bias": [n]} if c["wkv_has_group_norm"] else {}
        return {"time_mixer." + name: shape for name, shape in out.items()}
