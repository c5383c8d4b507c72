"""Published encoders by their formulas: every token attends to every other."""

from types import SimpleNamespace

import torch
from torch.nn import functional as F

from .base import Remote, remote
from .formulas import Decoder, Formulas, Plain, attend, distance, pairs, slopes, turn, turn_neighbours


@remote("neo-bert")
class NeoBert(Plain):
    """RMS norms before the sublayers. One matrix holds, head by head, the rows of its query, its key and its value."""

    class Model(Decoder):
        def __init__(self, c, w):
            super().__init__(c, w)
            root = "model." if "model.encoder.weight" in self else ""
            self.EMBED, self.LAYER, self.NORM = root + "encoder", root + "transformer_encoder.{}.", root + "layer_norm"

        def norm(self, x, name):
            return self.rms(x, name + ".weight", self.c["norm_eps"])

        def layer(self, x, at, il):
            q, k, v = self.heads(self.norm(x, at + "attention_norm"), at + "qkv", self.c["num_attention_heads"]).chunk(3, -1)
            q, k = turn_neighbours(q, 10000.0), turn_neighbours(k, 10000.0)
            x = x + self.linear(attend(q, k, v, causal=False), at + "wo")
            return x + self.gated_pair(self.norm(x, at + "ffn_norm"), at + "ffn.w12", at + "ffn.w3")

        def forward(self, input_ids, **_):
            states = self.states(input_ids[0])
            scores = states
            if "classifier.weight" in self:
                scores = self.linear(torch.tanh(self.linear(states[:1], "dense")), "classifier")
            return SimpleNamespace(last_hidden_state=states[None], logits=scores[None])

    unused = ("decoder.",)

    def shapes(self):
        c = self.c
        n = c["hidden_size"]
        wide = 8 * -(-int(2 * c["intermediate_size"] / 3) // 8)
        kind = c["architectures"][0]
        root = "" if kind == "NeoBERT" else "model."
        out = {root + "encoder.weight": [c["vocab_size"], n], root + "layer_norm.weight": [n]}
        heads = {"NeoBERTLMHead": {"decoder": c["vocab_size"]}, "NeoBERTForSequenceClassification": {"dense": n, "classifier": 3}}
        out |= pairs({name: [rows, n] for name, rows in heads.get(kind, {}).items()})
        for il in range(c["num_hidden_layers"]):
            at = f"{root}transformer_encoder.{il}."
            out |= {at + "attention_norm.weight": [n], at + "ffn_norm.weight": [n], at + "qkv.weight": [3 * n, n], at + "wo.weight": [n, n]}
            out |= {at + "ffn.w12.weight": [2 * wide, n], at + "ffn.w3.weight": [n, wide]}
        return out


@remote("nomic-bert-moe")
class NomicBertMoe(Plain):
    """Plain MLPs with the exact GELU; experts in some layers, whose weights are not normalised, and which have one bias
    in common."""

    class Model(Formulas):
        EPS = "layer_norm_epsilon"

        def experts(self, x, at):
            c = self.c
            w1, w2 = (self[f"{at}experts.mlp.{name}"].unflatten(0, (c["num_experts"], -1)) for name in ("w1", "w2"))
            weights, index = self.linear(x, at + "router.layer").softmax(-1).topk(c["moe_top_k"], -1)
            return self.chosen(x, weights, index, lambda row, e: F.gelu(w1[e] @ row) @ w2[e]) + self[at + "experts.bias"]

        def states(self, ids):
            c, h = self.c, self.c["n_head"]
            x = self["embeddings.word_embeddings.weight"][ids] + self["embeddings.token_type_embeddings.weight"][0]
            x = self.norm(x, "emb_ln")
            for il in range(c["n_layer"]):
                at = f"encoder.layers.{il}."
                q, k, v = (part.unflatten(-1, (h, -1)).transpose(0, 1) for part in self.linear(x, at + "attn.Wqkv").chunk(3, -1))
                q, k = turn(q, c["rotary_emb_base"]), turn(k, c["rotary_emb_base"])
                mixed = attend(q, k, v, causal=False)
                x = self.norm(x + self.linear(mixed, at + "attn.out_proj"), at + "norm1")
                if il % c["moe_every_n_layers"] == 1:
                    y = self.experts(x, at + "mlp.")
                else:
                    y = self.linear(F.gelu(self.linear(x, at + "mlp.fc1")), at + "mlp.fc2")
                x = self.norm(x + y, at + "norm2")
            return x

    def shapes(self):
        c = self.c
        n, wide, experts = c["n_embd"], c["n_inner"], c["num_experts"]
        out = {"embeddings.word_embeddings.weight": [c["vocab_size"], n], "embeddings.token_type_embeddings.weight": [c["type_vocab_size"], n]}
        norms, lines = ["emb_ln"], {}
        for il in range(c["n_layer"]):
            at = f"encoder.layers.{il}."
            norms += [at + "norm1", at + "norm2"]
            lines |= {at + "attn.Wqkv": [3 * n, n], at + "attn.out_proj": [n, n]}
            if il % c["moe_every_n_layers"] == 1:
                out |= {at + "mlp.router.layer.weight": [experts, n], at + "mlp.experts.bias": [n]}
                out |= {f"{at}mlp.experts.mlp.{name}": [experts * wide, n] for name in ("w1", "w2")}
            else:
                lines |= {at + "mlp.fc1": [wide, n], at + "mlp.fc2": [n, wide]}
        return out | pairs(lines) | pairs({name: [n] for name in norms})


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
    LAYER, IS_TIED = "layers.{}.", True

    def reference(self, w):
        return self.Model(super().reference(w).model)


@remote("jina-bert-v2")
class JinaBert(Plain):
    """As bert, with ALiBi and a gated MLP."""

    class Model(Formulas):
        EPS = "layer_norm_eps"

        def states(self, ids):
            c, n, h = self.c, len(ids), self.c["num_attention_heads"]
            x = self["embeddings.word_embeddings.weight"][ids] + self["embeddings.token_type_embeddings.weight"][0]
            x = self.norm(x, "embeddings.LayerNorm")
            bias = -distance(n).abs() * slopes(h, x.dtype)
            for il in range(c["num_hidden_layers"]):
                at = f"encoder.layer.{il}."
                q, k, v = (self.heads(x, f"{at}attention.self.{part}", h) for part in ("query", "key", "value"))
                mixed = attend(q, k, v, bias=bias, causal=False)
                x = self.norm(x + self.linear(mixed, at + "attention.output.dense"), at + "attention.output.LayerNorm")
                x = self.norm(x + self.gated_pair(x, at + "mlp.gated_layers", at + "mlp.wo", F.gelu), at + "mlp.layernorm")
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
        out |= pairs(lines) | pairs({name: [n] for name in norms})
        return out | {"pooler.dense.weight": [n, n], "pooler.dense.bias": [n]}
