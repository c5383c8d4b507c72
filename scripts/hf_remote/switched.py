"""Published classes with adapters in the folder, which tokens of a text switch between."""

import torch
from torch.nn import functional as F

from .base import remote
from .plain import Formulas, Plain, attend, rotate


@remote("graniteswitch")
class GraniteSwitch(Plain):
    """Granite with shared MLPs alone. The adapter of a position is the rounded mean of those that tokens up to it switch to; such
    a token has the embedding of another one. The first of the layers that the configuration counts is the switch."""

    unused = ("model.switch.", "model.adapter_token_ids")

    class Model(Formulas):
        def adapters(self, ids):
            c = self.c
            switches, gain = torch.tensor(c["adapter_token_ids"]), c["control_token_gain"]
            hit = ids[:, None] == switches
            key = torch.where(hit.any(-1), gain, -gain).double()
            value = (hit * torch.arange(1, len(switches) + 1)).sum(-1).double()
            scores = key[None].expand(len(ids), -1).masked_fill(torch.ones(len(ids), len(ids)).triu(1) > 0, -torch.inf)
            stand_ins = torch.tensor(c["adapter_substitute_token_ids"])
            replaced = torch.where(hit.any(-1), (hit * stand_ins).sum(-1), ids)
            return (scores.softmax(-1) @ value).round().long().clamp(0, len(switches)), replaced

        def adapted(self, x, name, of, part=""):
            """The change of a projection by the adapter of each position; `part` names one of those of a fused one."""
            a, b = (self[f"{name}.lora_{kind}{part}"][:, 0] for kind in "AB")
            a, b = (torch.cat([torch.zeros_like(y[:1]), y]) for y in (a, b))
            return torch.einsum("tor,tri,ti->to", b[of], a[of], x)

        def fused(self, x, name, of, sizes):
            base = self.linear(x, name + ".base_layer").split(sizes, -1)
            return [y + self.adapted(x, name, of, f"_slices.{i}") for i, y in enumerate(base)]

        def single(self, x, name, of):
            return self.linear(x, name + ".base_layer") + self.adapted(x, name, of)

        def states(self, ids):
            c = self.c
            h, kv, wide, d = c["num_attention_heads"], c["num_key_value_heads"], c["shared_intermediate_size"], c["projection_head_dim"]
            of, ids = self.adapters(ids)
            x = self["model.embed_tokens.weight"][ids] * c["embedding_multiplier"]
            for il in range(c["num_hidden_layers"] - 1):
                at = f"model.layers.{il}."
                y = self.rms(x, at + "input_layernorm.weight")
                q, k, v = (z.unflatten(-1, (-1, d)).transpose(0, 1) for z in self.fused(y, at + "self_attn.qkv_proj", of, [h * d, kv * d, kv * d]))
                if c["position_embedding_type"] == "rope":
                    q, k = (rotate(z, c["rope_theta"]) for z in (q, k))
                k, v = (z.repeat_interleave(h // kv, 0) for z in (k, v))
                y = self.single(attend(q, k, v, c["attention_multiplier"]), at + "self_attn.o_proj", of)
                x = x + y * c["residual_multiplier"]
                y = self.rms(x, at + "post_attention_layernorm.weight")
                gate, up = self.fused(y, at + "shared_mlp.input_linear", of, [wide, wide])
                x = x + self.single(F.silu(gate) * up, at + "shared_mlp.output_linear", of) * c["residual_multiplier"]
            return self.rms(x, "model.norm.weight")

        def logits(self, x):
            head = "model.embed_tokens.weight" if self.c["tie_word_embeddings"] else "lm_head.weight"
            return F.linear(x, self[head]) / self.c["logits_scaling"]

    def shapes(self):
        c = self.c
        n, d, wide, count, rank = c["hidden_size"], c["projection_head_dim"], c["shared_intermediate_size"], c["num_adapters"], c["max_lora_rank"]
        q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
        out = {"model.embed_tokens.weight": [c["vocab_size"], n], "model.norm.weight": [n]}
        if not c["tie_word_embeddings"]:
            out["lm_head.weight"] = [c["vocab_size"], n]
        for il in range(c["num_hidden_layers"] - 1):
            at = f"model.layers.{il}."
            out |= {at + "input_layernorm.weight": [n], at + "post_attention_layernorm.weight": [n]}
            for name, sizes in (("self_attn.qkv_proj", [q, kv, kv]), ("shared_mlp.input_linear", [wide, wide])):
                out[f"{at}{name}.base_layer.weight"] = [sum(sizes), n]
                for i, size in enumerate(sizes):
                    out |= {f"{at}{name}.lora_A_slices.{i}": [count, 1, rank, n], f"{at}{name}.lora_B_slices.{i}": [count, 1, size, rank]}
            for name, wide_in in (("self_attn.o_proj", q), ("shared_mlp.output_linear", wide)):
                out[f"{at}{name}.base_layer.weight"] = [n, wide_in]
                out |= {f"{at}{name}.lora_A": [count, 1, rank, wide_in], f"{at}{name}.lora_B": [count, 1, n, rank]}
        return out
