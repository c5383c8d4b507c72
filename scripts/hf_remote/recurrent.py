"""Published classes that carry states along time and that no class of transformers equals: their formulas in
PyTorch, one position after another."""

import torch
from torch.nn import functional as F

from .base import Same, build, remote
from .plain import Formulas, Plain, attend, mlp


def before(x):
    """Rows [n, d] each one later, zeros first."""
    return torch.cat([torch.zeros_like(x[:1]), x[:-1]])


class Recurrent(Formulas):
    """What these formulas share."""

    def group_norm(self, y, name, heads, eps):
        y = F.layer_norm(y.unflatten(-1, (heads, -1)), (y.shape[-1] // heads,), None, None, eps)
        return y.flatten(-2) * self[name + ".weight"] + self[name + ".bias"]


@remote("minimax-01")
class MiniMax01(Plain):
    """Linear attention whose heads fade, attention in some layers, experts; residuals from the normed input."""

    class Model(Recurrent):
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

        def attention(self, y, at):
            c = self.c
            h, kv, r = c["num_attention_heads"], c["num_key_value_heads"], c["rotary_dim"]
            q, k, v = (self.heads(y, f"{at}{part}_proj", n) for part, n in (("q", h), ("k", kv), ("v", kv)))
            angle = torch.arange(len(y), dtype=y.dtype)[:, None] * c["rope_theta"] ** (-torch.arange(0, r, 2, dtype=y.dtype) / r)

            def rotated(x):
                a, b = x[..., :r].chunk(2, -1)
                pair = [a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()]
                return torch.cat([*pair, x[..., r:]], -1)

            k, v = (x.repeat_interleave(h // kv, 0) for x in (rotated(k), v))
            return self.linear(attend(rotated(q), k, v, c["head_dim"] ** -0.5), at + "o_proj")

        def states(self, ids):
            c = self.c
            alpha = c["layernorm_mlp_alpha"]
            x = self["model.embed_tokens.weight"][ids]
            for il in range(c["num_hidden_layers"]):
                at = f"model.layers.{il}."
                y = self.rms(x, at + "input_layernorm.weight")
                is_full = c["attn_type_list"][il]
                mixed = self.attention(y, at + "self_attn.") if is_full else self.linear_attention(y, at + "self_attn.", il)
                y = self.rms(alpha * y + mixed, at + "post_attention_layernorm.weight")
                at += "block_sparse_moe."
                weights, index = self.linear(y, at + "gate").softmax(-1).topk(c["num_experts_per_tok"], -1)

                def expert(row, e, at=at):
                    w1, w3, w2 = (f"{at}experts.{e}.{w}" for w in ("w1", "w3", "w2"))
                    return self.linear(F.silu(self.linear(row, w1)) * self.linear(row, w3), w2)

                x = alpha * y + self.chosen(y, weights / weights.sum(-1, True), index, expert)
            return self.rms(x, "model.norm.weight")

        def logits(self, x):
            return self.linear(x, "lm_head")

    def shapes(self):
        c = self.c
        n, wide = c["hidden_size"], c["num_attention_heads"] * c["head_dim"]
        few = c["num_key_value_heads"] * c["head_dim"]
        out = {"model.embed_tokens.weight": [c["vocab_size"], n], "model.norm.weight": [n], "lm_head.weight": [c["vocab_size"], n]}
        for il in range(c["num_hidden_layers"]):
            at = f"model.layers.{il}."
            out |= {at + "input_layernorm.weight": [n], at + "post_attention_layernorm.weight": [n]}
            full = {"q_proj.weight": [wide, n], "k_proj.weight": [few, n], "v_proj.weight": [few, n], "o_proj.weight": [n, wide]}
            fading = {"qkv_proj.weight": [3 * wide, n], "output_gate.weight": [wide, n], "norm.weight": [wide], "out_proj.weight": [n, wide]}
            kind = full if c["attn_type_list"][il] else fading
            out |= {at + "self_attn." + name: shape for name, shape in kind.items()}
            out[at + "block_sparse_moe.gate.weight"] = [c["num_local_experts"], n]
            for e in range(c["num_local_experts"]):
                out |= mlp(f"{at}block_sparse_moe.experts.{e}.", ("w1", "w3", "w2"), n, c["intermediate_size"])
        return out


@remote("rwkv6")
class Rwkv6(Plain):
    """Time mixing with a decay of each element and a bonus; channel mixing with a gate."""

    class Model(Recurrent):
        def time_mix(self, x, at, halvings):
            c = self.c
            n, d = c["hidden_size"], c["head_size"]
            change = before(x) - x
            low = torch.tanh((x + change * self[at + "time_maa_x"][0]) @ self[at + "time_maa_w1"])
            by = torch.einsum("tir,irn->itn", low.unflatten(-1, (5, -1)), self[at + "time_maa_w2"])
            w, k, v, r, g = (x + change * (self[f"{at}time_maa_{name}"][0] + by[i]) for i, name in enumerate("wkvrg"))
            decay = self[at + "time_decay"][0] + torch.tanh(w @ self[at + "time_decay_w1"]) @ self[at + "time_decay_w2"]
            w = torch.exp(-torch.exp(decay)).unflatten(-1, (-1, d))
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

        def states(self, ids):
            c = self.c
            eps, every = c["layer_norm_epsilon"], c["rescale_every"]
            x = self["rwkv.embeddings.weight"][ids]
            for il in range(c["num_hidden_layers"]):
                at = f"rwkv.blocks.{il}."
                x = self.layer_norm(x, at + "pre_ln", eps) if il == 0 else x
                x = x + self.time_mix(self.layer_norm(x, at + "ln1", eps), at + "attention.", 2 ** (il // every))
                x = x + self.channel_mix(self.layer_norm(x, at + "ln2", eps), at + "feed_forward.", 2 ** (il // every))
                x = x / 2 if (il + 1) % every == 0 else x
            return self.layer_norm(x, "rwkv.ln_out", eps)

        def logits(self, x):
            return self.linear(x, "head")

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
        return out | {f"{name}.{part}": [n] for name in norms for part in ("weight", "bias")}


@remote("rwkv7")
class Rwkv7(Plain):
    """Time mixing with a generalised delta rule; channel mixing without a gate."""

    unused = ("layers.0.attn.v_lora",)

    class Model(Recurrent):
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
            state, out = torch.zeros(n // d, d, d, dtype=x.dtype), []
            for t in range(len(x)):
                taken = state @ removed[t, :, :, None]
                state = state * w[t, :, None] - taken * (a * removed)[t, :, None] + v[t, :, :, None] * k[t, :, None]
                out.append((state @ r[t, :, :, None]).flatten())
            y = self.group_norm(torch.stack(out), at + "g_norm", n // d, c["norm_eps"] * d)
            own = (r * k * self[at + "r_k"]).sum(-1, keepdim=True) * v
            return self.linear((y + own.flatten(-2)) * g, at + "o_proj"), first

        def states(self, ids):
            c = self.c
            eps, first = c["norm_eps"], None
            x = self["model.embeddings.weight"][ids]
            x = self.layer_norm(x, "model.layers.0.pre_norm", eps)
            for il in range(c["num_hidden_layers"]):
                at = f"model.layers.{il}."
                y, first = self.time_mix(self.layer_norm(x, at + "attn_norm", eps), at + "attn.", first)
                x = x + y
                y = self.layer_norm(x, at + "ffn_norm", eps)
                y = y + (before(y) - y) * self[at + "ffn.x_k"]
                x = x + self.linear(F.relu(self.linear(y, at + "ffn.key")) ** 2, at + "ffn.value")
            return self.layer_norm(x, "model.norm", eps)

        def logits(self, x):
            return self.linear(x, "lm_head")

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
        return out | {f"{name}.{part}": [n] for name in norms for part in ("weight", "bias")}


@remote("plamo2")
class Plamo2(Plain):
    """A selective scan by heads in layers between those with attention, each with norms before and after."""

    class Model(Recurrent):
        def rms_more(self, x, name, more):
            return F.rms_norm(x, x.shape[-1:], self[name] + more, self.c["rms_norm_eps"])

        def attention(self, y, at):
            c = self.c
            h, kv, d = c["num_attention_heads"], c["num_key_value_heads"], c["hidden_size_per_head"]
            q, k, v = self.linear(y, at + "qkv_proj").split([h * d, kv * d, kv * d], -1)
            q, k, v = (x.unflatten(-1, (-1, d)) for x in (q, k, v))
            q, k = self.rms_of(q, at + "q_weight"), self.rms_of(k, at + "k_weight")
            angle = torch.arange(len(y), dtype=y.dtype)[:, None] * 10000.0 ** (-torch.arange(0, d, 2, dtype=y.dtype) / d)

            def rotated(x):
                a, b = x.transpose(0, 1).chunk(2, -1)
                return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

            k, v = (x.repeat_interleave(h // kv, 0) for x in (rotated(k), v.transpose(0, 1)))
            return self.linear(attend(rotated(q), k, v, d**-0.5), at + "o_proj")

        def rms_of(self, x, name):
            return F.rms_norm(x, x.shape[-1:], None, self.c["rms_norm_eps"]) * self[name]

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

        def states(self, ids):
            c = self.c
            x = self["model.embed_tokens.weight"][ids]
            for il in range(c["num_hidden_layers"]):
                at = f"model.layers.layers.{il}."
                y = self.rms_more(x, at + "pre_mixer_norm.weight", 1.0)
                y = self.scan(y, at + "mixer.") if il % 2 == 0 else self.attention(y, at + "mixer.")
                x = x + self.rms_more(y, at + "post_mixer_norm.weight", 1 / 5)
                y = self.rms_more(x, at + "pre_mlp_norm.weight", 1.0)
                gate, up = self.linear(y, at + "mlp.gate_up_proj").chunk(2, -1)
                y = self.linear(F.silu(gate) * up, at + "mlp.down_proj")
                x = x + self.rms_more(y, at + "post_mlp_norm.weight", 1 / 5**1.5)
            return self.rms_more(x, "model.norm.weight", 1.0)

        def logits(self, x):
            return F.linear(x, self["model.embed_tokens.weight"])

    def shapes(self):
        c = self.c
        n, d, wide, heads, n_state = (c[key] for key in ("hidden_size", "hidden_size_per_head", "intermediate_size", "mamba_num_heads", "mamba_d_state"))
        h, kv, inner, steps = c["num_attention_heads"], c["num_key_value_heads"], heads * d, max(64, n // 16)
        out = {"model.embed_tokens.weight": [c["vocab_size"], n], "model.norm.weight": [n]}
        scan = {
            "in_proj.weight": [2 * inner, n], "conv1d.weight": [inner, 1, c["mamba_d_conv"]], "bcdt_proj.weight": [steps + 2 * n_state, inner],
            "dt_proj.weight": [heads, steps], "dt_bias": [heads], "A_log": [heads], "D": [heads], "dt_norm_weight": [steps],
            "B_norm_weight": [n_state], "C_norm_weight": [n_state], "out_proj.weight": [n, inner],
        }
        attention = {"qkv_proj.weight": [(h + 2 * kv) * d, n], "q_weight": [h, d], "k_weight": [kv, d], "o_proj.weight": [n, h * d]}
        for il in range(c["num_hidden_layers"]):
            at = f"model.layers.layers.{il}."
            out |= {f"{at}mixer.{name}": shape for name, shape in (scan if il % 2 == 0 else attention).items()}
            out |= {f"{at}{name}_norm.weight": [n] for name in ("pre_mixer", "post_mixer", "pre_mlp", "post_mlp")}
            out |= {at + "mlp.gate_up_proj.weight": [2 * wide, n], at + "mlp.down_proj.weight": [n, wide]}
        return out


@remote("mamba-ssm")
class MambaSsm(Same):
    """Mamba as first released: keys and a table of embeddings of its own, padded to a multiple."""

    TABLE = "backbone.embeddings.weight"

    def new(self):
        c, ssm = self.c, self.c["ssm_cfg"]
        step = c["pad_vocab_size_multiple"]
        return build(
            "MambaForCausalLM", "MambaConfig", vocab_size=-(-c["vocab_size"] // step) * step, hidden_size=c["d_model"],
            num_hidden_layers=c["n_layer"], state_size=ssm.get("d_state", 16), conv_kernel=ssm.get("d_conv", 4), expand=ssm.get("expand", 2),
            tie_word_embeddings=c["tie_embeddings"], layer_norm_epsilon=c.get("norm_epsilon", 1e-5), pad_token_id=None,
        )  # fmt: skip

    def tied(self):
        return self.c["tie_embeddings"]

    def stored(self, name):
        return "backbone.embedding.weight" if name == self.TABLE else name
