"""Published classes whose layers run several times, or whose parts are shared, by their formulas."""

from torch.nn import functional as F

from .base import remote
from .plain import GATED, QKVO, Formulas, Plain, attend, mlp, projections, rotate


class Usual(Formulas):
    """Attention with rotated halves of heads, and a gated MLP."""

    def attention(self, y, at):
        c = self.c
        h, kv = c["num_attention_heads"], c["num_key_value_heads"]
        q, k, v = (self.heads(y, f"{at}{part}_proj", n) for part, n in (("q", h), ("k", kv), ("v", kv)))
        q, k = (rotate(self.normed(x, at + name), c["rope_theta"]) for x, name in ((q, "q_norm"), (k, "k_norm")))
        k, v = (x.repeat_interleave(h // kv, 0) for x in (k, v))
        return self.linear(attend(q, k, v, q.shape[-1] ** -0.5), at + "o_proj")

    def normed(self, heads, name):
        return self.rms(heads, name + ".weight") if name + ".weight" in self else heads

    def gated(self, y, at):
        return self.linear(F.silu(self.linear(y, at + "gate_proj")) * self.linear(y, at + "up_proj"), at + "down_proj")

    def layer(self, x, at):
        x = x + self.attention(self.rms(x, at + "input_layernorm.weight"), at + "self_attn.")
        return x + self.gated(self.rms(x, at + "post_attention_layernorm.weight"), at + "mlp.")

    def logits(self, x):
        return self.linear(x, "lm_head")


class UsualShapes(Plain):
    """Names and shapes around what a layer has of its own."""

    def shapes(self):
        c = self.c
        n = c["hidden_size"]
        out = {"model.embed_tokens.weight": [c["vocab_size"], n], "model.norm.weight": [n], "lm_head.weight": [c["vocab_size"], n]}
        for il in range(c["num_hidden_layers"]):
            at = f"model.layers.{il}."
            out |= {at + "input_layernorm.weight": [n], at + "post_attention_layernorm.weight": [n]}
            out |= self.layer(at, n)
        return out

    def attention(self, at, n):
        c = self.c
        wide = [c[key] * c["head_dim"] for key in ("num_attention_heads", "num_key_value_heads")]
        return projections(at + "self_attn.", QKVO, n, wide)


@remote("nanbeige")
class Nanbeige(UsualShapes):
    """As llama; all layers run `num_loops` times, with the final norm after each time."""

    class Model(Usual):
        def states(self, ids):
            c = self.c
            x = self["model.embed_tokens.weight"][ids]
            for loop in range(c["num_loops"]):
                for il in range(c["num_hidden_layers"]):
                    x = self.layer(x, f"model.layers.{il}.")
                if loop == c["num_loops"] - 1 or not c["skip_loop_final_norm"]:
                    x = self.rms(x, "model.norm.weight")
            return x

    def layer(self, at, n):
        return self.attention(at, n) | mlp(at + "mlp.", GATED, n, self.c["intermediate_size"])


@remote("grovemoe")
class GroveMoe(UsualShapes):
    """As Qwen3's experts; each group of two has a small one in addition, which has the weight of the selected one."""

    GROUP, SCALE, WIDTH = 2, 0.05, 128
    unused = ("expert_bias",)

    class Model(Usual):
        def states(self, ids):
            c = self.c
            x = self["model.embed_tokens.weight"][ids]
            for il in range(c["num_hidden_layers"]):
                at = f"model.layers.{il}."
                x = x + self.attention(self.rms(x, at + "input_layernorm.weight"), at + "self_attn.")
                x = x + self.experts(self.rms(x, at + "post_attention_layernorm.weight"), at + "mlp.")
            return self.rms(x, "model.norm.weight")

        def experts(self, y, at):
            logits = self.linear(y, at + "gate")
            index = logits.sigmoid().topk(self.c["num_experts_per_tok"], -1).indices
            weights = logits.softmax(-1).gather(-1, index)
            weights = weights / weights.sum(-1, keepdim=True)
            large = self.chosen(y, weights, index, lambda row, e: self.gated(row, f"{at}experts.{e}."))
            small = self.chosen(y, weights, index // GroveMoe.GROUP, lambda row, e: self.gated(row, f"{at}chunk_experts.{e}."))
            return large + GroveMoe.SCALE * small

    def layer(self, at, n):
        c = self.c
        out = self.attention(at, n)
        out |= {f"{at}self_attn.{name}_norm.weight": [c["head_dim"]] for name in "qk"}
        out |= {at + "mlp.gate.weight": [c["num_experts"], n], at + "mlp.expert_bias": [c["num_experts"]]}
        for e in range(c["num_experts"]):
            out |= mlp(f"{at}mlp.experts.{e}.", GATED, n, c["moe_intermediate_size"])
        for e in range(c["num_experts"] // self.GROUP):
            out |= mlp(f"{at}mlp.chunk_experts.{e}.", GATED, n, self.WIDTH)
        return out
