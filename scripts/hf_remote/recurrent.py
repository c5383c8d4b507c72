"""Published classes that carry states along time and that no class of transformers equals: their formulas in
PyTorch, one position after another."""

import torch
from torch.nn import functional as F

from .base import Same, build, remote
from .decoders import Around
from .formulas import GATED, W132, Decoder, Formulas, Layers, Plain, attend, mlp, mlps, pairs, rotate, turn, weights


def before(x):
    """Rows [n, d] each one later, zeros first."""
    return torch.cat([torch.zeros_like(x[:1]), x[:-1]])


class Recurrent(Formulas):
    """What these formulas share."""

    def group_norm(self, y, name, heads, eps):
        y = F.layer_norm(y.unflatten(-1, (heads, -1)), (y.shape[-1] // heads,), None, None, eps)
        return y.flatten(-2) * self[name + ".weight"] + self[name + ".bias"]

    def shifted(self, x, at, names):
        """Inputs of the sixth version's time mixing: shares of what changed, which depend on the token."""
        change = before(x) - x
        low = torch.tanh((x + change * self[at + "time_maa_x"][0]) @ self[at + "time_maa_w1"]).unflatten(-1, (5, -1))
        shares = torch.einsum("tir,irn->itn", low, self[at + "time_maa_w2"])
        return (x + change * (self[f"{at}time_maa_{name}"][0] + shares[i]) for i, name in enumerate(names))

    def decay(self, w, at):
        return self[at + "time_decay"][0] + torch.tanh(w @ self[at + "time_decay_w1"]) @ self[at + "time_decay_w2"]

    def delta_rule(self, r, kept, k, v, removed, rate):
        """Rows of the seventh version's states, which are read by `r`; all [n, heads, d]."""
        state, out = torch.zeros(*r.shape[1:], r.shape[-1], dtype=r.dtype), []
        for t in range(len(r)):
            taken = state @ removed[t, :, :, None]
            state = state * kept[t, :, None] - taken * (rate * removed)[t, :, None] + v[t, :, :, None] * k[t, :, None]
            out.append((state @ r[t, :, :, None]).flatten())
        return torch.stack(out)


@remote("minimax-01")
class MiniMax01(Layers):
    """Linear attention whose heads fade, attention in some layers, experts; residuals from the normed input."""

    class Model(Decoder):
        def linear_attention(self, y, at, il):
            c = self.c
            h, d = c["num_attention_heads"], c["head_dim"]
            q, k, v = F.silu(self.linear(y, at + "qkv_proj")).unflatten(-1, (h, 3 * d)).split(d, -1)
            share = 1 - il / (c["num_hidden_layers"] - 1) + 1e-5
            slope = torch.tensor([2 ** (-8 * (i + 1) / h) for i in range(h)], dtype=y.dtype) * share
            state, out = torch.zeros(h, d, d, dtype=y.dtype), []
            for t in range(len(y)):
                state = state * torch.exp(-slope)[:, None, None] + k[t, :, :, None] * v[t, :, None]
                out.append((q[t, :, None] @ state).flatten())
            mixed = self.rms(torch.stack(out), at + "norm.weight")
            return self.linear(self.linear(y, at + "output_gate").sigmoid() * mixed, at + "out_proj")

        def positioned(self, x, norm, il):
            return turn(x, self.c["rope_theta"], self.c["rotary_dim"])

        def layer(self, x, at, il):
            c = self.c
            alpha = c["layernorm_mlp_alpha"]
            y = self.norm(x, at + "input_layernorm")
            mix = self.attention if c["attn_type_list"][il] else self.linear_attention
            y = self.norm(alpha * y + mix(y, at + "self_attn.", il), at + "post_attention_layernorm")
            at += "block_sparse_moe."
            expert = lambda row, e: self.gated(row, f"{at}experts.{e}.", W132)  # noqa: E731
            return alpha * y + self.routed(y, at + "gate", c["num_experts_per_tok"], expert)

    def layer(self, n, il):
        c = self.c
        wide = c["num_attention_heads"] * c["head_dim"]
        fading = {"qkv_proj.weight": [3 * wide, n], "output_gate.weight": [wide, n], "norm.weight": [wide], "out_proj.weight": [n, wide]}
        out = self.norms(n) | (self.attention() if c["attn_type_list"][il] else {"self_attn." + name: shape for name, shape in fading.items()})
        out["block_sparse_moe.gate.weight"] = [c["num_local_experts"], n]
        return out | mlps("block_sparse_moe.experts.{}.", W132, n, c["intermediate_size"], c["num_local_experts"])


@remote("rwkv6")
class Rwkv6(Plain):
    """Time mixing with a decay of each element and a bonus; channel mixing with a gate."""

    class Model(Recurrent, Decoder):
        EMBED, LAYER, NORM, HEAD = "rwkv.embeddings", "rwkv.blocks.{}.", "rwkv.ln_out", "head"
        EPS = "layer_norm_epsilon"

        def time_mix(self, x, at, halvings):
            c = self.c
            n, d = c["hidden_size"], c["head_size"]
            w, k, v, r, g = self.shifted(x, at, "wkvrg")
            w = torch.exp(-torch.exp(self.decay(w, at))).unflatten(-1, (-1, d))
            r, k, v = (self.linear(y, at + name).unflatten(-1, (-1, d)) for y, name in ((r, "receptance"), (k, "key"), (v, "value")))
            state, out = torch.zeros(n // d, d, d, dtype=x.dtype), []
            for t in range(len(x)):
                kv = k[t, :, :, None] * v[t, :, None]
                out.append((r[t, :, None] @ (state + self[at + "time_faaaa"][:, :, None] * kv)).flatten())
                state = state * w[t, :, :, None] + kv
            y = self.group_norm(torch.stack(out), at + "ln_x", n // d, 1e-5 * c["head_size_divisor"] ** 2)
            return self.linear(y * F.silu(self.linear(g, at + "gate")), at + "output") / halvings

        def channel_mix(self, x, at, halvings):
            change = before(x) - x
            k, r = (x + change * self[f"{at}time_maa_{name}"][0] for name in "kr")
            y = self.linear(F.relu(self.linear(k, at + "key")) ** 2, at + "value") / halvings
            return self.linear(r, at + "receptance").sigmoid() * y

        def layer(self, x, at, il):
            every = self.c["rescale_every"]
            x = self.norm(x, at + "pre_ln") if il == 0 else x
            x = x + self.time_mix(self.norm(x, at + "ln1"), at + "attention.", 2 ** (il // every))
            x = x + self.channel_mix(self.norm(x, at + "ln2"), at + "feed_forward.", 2 ** (il // every))
            return x / 2 if (il + 1) % every == 0 else x

    def shapes(self):
        c = self.c
        n, d, r = c["hidden_size"], c["head_size"], 8
        wide = int(n * 3.5) // 32 * 32
        out = {"rwkv.embeddings.weight": [c["vocab_size"], n], "head.weight": [c["vocab_size"], n]}
        norms = ["rwkv.ln_out", "rwkv.blocks.0.pre_ln"]
        for il in range(c["num_hidden_layers"]):
            at = f"rwkv.blocks.{il}."
            norms += [at + "ln1", at + "ln2", at + "attention.ln_x"]
            out |= {f"{at}attention.time_maa_{name}": [1, 1, n] for name in "xwkvrg"}
            out |= {at + "attention.time_maa_w1": [n, 5 * r], at + "attention.time_maa_w2": [5, r, n]}
            out |= {at + "attention.time_decay": [1, 1, n], at + "attention.time_decay_w1": [n, 12], at + "attention.time_decay_w2": [12, n]}
            out |= {at + "attention.time_faaaa": [n // d, d]}
            out |= {f"{at}attention.{name}.weight": [n, n] for name in ("receptance", "key", "value", "gate", "output")}
            out |= {f"{at}feed_forward.time_maa_{name}": [1, 1, n] for name in "kr"}
            out |= {at + "feed_forward.key.weight": [wide, n], at + "feed_forward.value.weight": [n, wide]}
            out[at + "feed_forward.receptance.weight"] = [n, n]
        return out | pairs({name: [n] for name in norms})


@remote("rwkv7")
class Rwkv7(Plain):
    """Time mixing with a generalised delta rule; channel mixing without a gate."""

    unused = ("layers.0.attn.v_lora",)

    class Model(Recurrent, Decoder):
        EMBED, EPS = "model.embeddings", "norm_eps"

        def low_rank(self, x, name, act=lambda y: y):
            return self.linear(act(self.linear(x, name + "_lora.lora.0")), name + "_lora.lora.2")

        def time_mix(self, x, at, first):
            c = self.c
            n, d = c["hidden_size"], c["head_dim"]
            change = before(x) - x
            r, w, k, v, a, g = (x + change * self[f"{at}x_{name}"][0] for name in "rwkvag")
            w = torch.exp(-0.6065306597126334 * self.low_rank(w, at + "w", torch.tanh).sigmoid())
            r, k, value = (self.linear(y, f"{at}{name}_proj") for y, name in ((r, "r"), (k, "k"), (v, "v")))
            if first is None:
                first = value
            else:
                value = value + (first - value) * self.low_rank(v, at + "v").sigmoid()
            a = self.low_rank(a, at + "a").sigmoid()
            g = self.low_rank(g, at + "g", torch.sigmoid)
            removed = F.normalize((k * self[at + "k_k"]).unflatten(-1, (-1, d)), dim=-1)
            k = k * (1 + (a - 1) * self[at + "k_a"])
            r, w, k, v, a = (y.unflatten(-1, (-1, d)) for y in (r, w, k, value, a))
            y = self.group_norm(self.delta_rule(r, w, k, v, removed, a), at + "g_norm", n // d, c["norm_eps"] * d)
            own = (r * k * self[at + "r_k"]).sum(-1, keepdim=True) * v
            return self.linear((y + own.flatten(-2)) * g, at + "o_proj"), first

        def begin(self, ids):
            self.first = None
            return self.norm(super().begin(ids), "model.layers.0.pre_norm")

        def layer(self, x, at, il):
            y, self.first = self.time_mix(self.norm(x, at + "attn_norm"), at + "attn.", self.first)
            x = x + y
            y = self.norm(x, at + "ffn_norm")
            y = y + (before(y) - y) * self[at + "ffn.x_k"]
            return x + self.linear(F.relu(self.linear(y, at + "ffn.key")) ** 2, at + "ffn.value")

    def shapes(self):
        c = self.c
        n, d, wide = c["hidden_size"], c["head_dim"], c["intermediate_size"]
        out = {"model.embeddings.weight": [c["vocab_size"], n], "lm_head.weight": [c["vocab_size"], n]}
        norms = ["model.norm", "model.layers.0.pre_norm"]
        ranks = {"w": c["decay_low_rank_dim"], "a": c["a_low_rank_dim"], "v": c["v_low_rank_dim"], "g": c["gate_low_rank_dim"]}
        for il in range(c["num_hidden_layers"]):
            at = f"model.layers.{il}."
            norms += [at + "attn_norm", at + "ffn_norm", at + "attn.g_norm"]
            out |= {f"{at}attn.x_{name}": [1, 1, n] for name in "rwkvag"}
            out |= {at + "attn.k_k": [n], at + "attn.k_a": [n], at + "attn.r_k": [n // d, d]}
            out |= {f"{at}attn.{name}_proj.weight": [n, n] for name in "rkvo"}
            for name, rank in ranks.items():
                if name == "v" and il == 0:
                    continue
                part = f"{at}attn.{name}_lora.lora."
                out |= {part + "0.weight": [rank, n], part + "2.weight": [n, rank]} | ({} if name == "g" else {part + "2.bias": [n]})
            out |= {at + "ffn.x_k": [n], at + "ffn.key.weight": [wide, n], at + "ffn.value.weight": [n, wide]}
        return out | pairs({name: [n] for name in norms})


@remote("plamo2")
class Plamo2(Layers):
    """A selective scan by heads in layers between those with attention, each with norms before and after."""

    IS_TIED = True

    class Model(Around):
        def attention(self, y, at, il):
            if il % 2 == 0:
                return self.scan(y, at)
            q, k, v = self.fused(y, at + "qkv_proj")
            q, k = (rotate(self.rms_of(x, at + name), 10000.0) for x, name in ((q, "q_weight"), (k, "k_weight")))
            return self.linear(attend(q, k, v), at + "o_proj")

        def rms_of(self, x, name):
            return F.rms_norm(x, x.shape[-1:], None, self.c["rms_norm_eps"]) * self[name][:, None]

        def scan(self, y, at):
            c = self.c
            heads, d, n_state, kernel = c["mamba_num_heads"], c["hidden_size_per_head"], c["mamba_d_state"], c["mamba_d_conv"]
            z, x = self.linear(y, at + "in_proj").unflatten(-1, (heads, 2 * d)).split(d, -1)
            x = F.pad(x.flatten(-2).T, (kernel - 1, 0))
            x = F.silu(F.conv1d(x, self[at + "conv1d.weight"], groups=heads * d)).T
            steps = max(64, c["hidden_size"] // 16)
            b, out, dt = self.linear(x, at + "bcdt_proj").split([n_state, n_state, steps], -1)
            b, out, dt = (self.rms(part, f"{at}{name}_norm_weight") for part, name in ((b, "B"), (out, "C"), (dt, "dt")))
            dt = F.softplus(self.linear(dt, at + "dt_proj") + self[at + "dt_bias"])
            x = x.unflatten(-1, (heads, d))
            a, state, rows = -torch.exp(self[at + "A_log"]), torch.zeros(heads, d, n_state, dtype=y.dtype), []
            for t in range(len(y)):
                state = torch.exp(dt[t] * a)[:, None, None] * state + (dt[t][:, None] * x[t])[..., None] * b[t]
                rows.append(state @ out[t])
            mixed = (torch.stack(rows) + self[at + "D"][:, None] * x) * F.silu(z)
            return self.linear(mixed.flatten(-2), at + "out_proj")

    def layer(self, n, il):
        c = self.c
        d, wide, heads, n_state = (c[key] for key in ("hidden_size_per_head", "intermediate_size", "mamba_num_heads", "mamba_d_state"))
        h, kv, inner, steps = c["num_attention_heads"], c["num_key_value_heads"], heads * d, max(64, n // 16)
        scan = {
            "in_proj.weight": [2 * inner, n], "conv1d.weight": [inner, 1, c["mamba_d_conv"]], "bcdt_proj.weight": [steps + 2 * n_state, inner],
            "dt_proj.weight": [heads, steps], "dt_bias": [heads], "A_log": [heads], "D": [heads], "dt_norm_weight": [steps],
            "B_norm_weight": [n_state], "C_norm_weight": [n_state], "out_proj.weight": [n, inner],
        }
        attention = {"qkv_proj.weight": [(h + 2 * kv) * d, n], "q_weight": [h, d], "k_weight": [kv, d], "o_proj.weight": [n, h * d]}
        out = {f"mixer.{name}": shape for name, shape in (scan if il % 2 == 0 else attention).items()}
        out |= weights(n, *(f"{place}_norm" for place in Around.LESS))
        return out | {"mlp.gate_up_proj.weight": [2 * wide, n], "mlp.down_proj.weight": [n, wide]}


@remote("mamba-ssm")
class MambaSsm(Same):
    """Mamba as first released: keys and a table of embeddings of its own, padded to a multiple."""

    TABLE = "backbone.embeddings.weight"
    KEYS = {"tie_word_embeddings": "tie_embeddings"}

    def new(self):
        c, ssm = self.c, self.c["ssm_cfg"]
        step = c["pad_vocab_size_multiple"]
        return build(
            "Mamba", vocab_size=-(-c["vocab_size"] // step) * step, hidden_size=c["d_model"],
            num_hidden_layers=c["n_layer"], state_size=ssm.get("d_state", 16), conv_kernel=ssm.get("d_conv", 4), expand=ssm.get("expand", 2),
            tie_word_embeddings=c["tie_embeddings"], layer_norm_epsilon=c.get("norm_epsilon", 1e-5), pad_token_id=None,
        )  # fmt: skip

    def stored(self, name):
        return "backbone.embedding.weight" if name == self.TABLE else name


class Gated(Recurrent, Decoder):
    """A class of transformers whose attention was replaced by time mixing."""

    def begin(self, ids):
        self.first = None
        return super().begin(ids)

    def attention(self, y, at, il):
        y, self.first = self.time_mix(y, at, self.first)
        return y


class GatedLayers(Layers):
    """Its tensors, around those of time mixing."""

    def layer(self, n, il):
        out = self.norms(n) | mlp("mlp.", GATED, n, self.c["intermediate_size"])
        return out | {f"self_attn.{name}": shape for name, shape in self.mixing(n).items()}


@remote("rwkv6qwen2")
class Rwkv6Qwen2(GatedLayers):
    """Gated linear attention with the shifts and decays of rwkv6; keys are less by what fades."""

    class Model(Gated):
        def time_mix(self, x, at, first):
            c = self.c
            h, kv = c["num_attention_heads"], c["num_key_value_heads"]
            d = c["hidden_size"] // h
            r, k, v, w, g = self.shifted(x, at, "rkvwg")
            q, k, v = (self.heads(y, f"{at}{name}_proj", n).transpose(0, 1) for y, name, n in ((r, "q", h), (k, "k", kv), (v, "v", kv)))
            k, v = (y.repeat_interleave(h // kv, 1) for y in (k, v))
            kept = (-self.decay(w, at).exp()).clamp(min=-5).exp().unflatten(-1, (h, d))
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
class Arwkv7(GatedLayers):
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
            y = self.delta_rule(r, torch.exp(-torch.exp(w)), k, value, removed, a)
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
