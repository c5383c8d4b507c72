"""The formula of a prediction head in NumPy, in double precision: DeepSeek-AI 2024, section 2.2.

    h'  = M [norm(embedding of the token); norm(hidden state of the token before it)]
    h'' = layer(h')
    logits = head(norm(h''))

The layer is one of the model's kind. Two kinds are here: attention with rotated pairs (i, i + d / 2), then an MLP of SwiGLU or experts.
Not here: how the hidden states of the model are computed.
"""

import numpy as np
from gguf import GGUFReader


def silu(x):
    return x / (1 + np.exp(-x))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


class File:
    """Weights [outputs, inputs] and metadata of a GGUF file, and the layer of its head."""

    def __init__(self, path):
        reader = GGUFReader(path)
        self.tensors = {tensor.name: np.asarray(tensor.data, np.float64) for tensor in reader.tensors}
        self.values = {key: field.contents() for key, field in reader.fields.items()}
        self.arch = self.values["general.architecture"]
        self.layer = self["block_count"] - self["nextn_predict_layers"]

    def __getitem__(self, key):
        return self.values[f"{self.arch}.{key}"]

    def get(self, key, default):
        return self.values.get(f"{self.arch}.{key}", default)

    def own(self, name):
        """A tensor of the head; none if it has no such tensor."""
        return self.tensors.get(f"blk.{self.layer}.{name}")

    def norm(self, x, weight):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + self["attention.layer_norm_rms_epsilon"]) * weight

    def linear(self, x, name):
        bias = self.own(f"{name}.bias")
        return x @ self.own(f"{name}.weight").T + (0 if bias is None else bias)


def rotated(file, x, positions):
    """x [n, heads, d], of which the first n_rot elements are rotated."""
    n_rot = file["rope.dimension_count"]
    angles = positions[:, None, None] * file["rope.freq_base"] ** (-np.arange(0, n_rot, 2) / n_rot)
    a, b, rest = x[..., : n_rot // 2], x[..., n_rot // 2 : n_rot], x[..., n_rot:]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([a * cos - b * sin, a * sin + b * cos, rest], -1)


def attention(file, x, gated):
    """x [n, n_embd], each with all before it. `gated`: the projection of each head is its query and a gate of its result."""
    n, n_head, n_head_kv, d = len(x), file["attention.head_count"], file["attention.head_count_kv"], file["attention.key_length"]
    q = file.linear(x, "attn_q").reshape(n, n_head, -1)
    q, gate = (q[..., :d], q[..., d:]) if gated else (q, None)
    k, v = (file.linear(x, name).reshape(n, n_head_kv, d) for name in ("attn_k", "attn_v"))
    positions = np.arange(n)
    q = rotated(file, file.norm(q, file.own("attn_q_norm.weight")), positions)
    k = rotated(file, file.norm(k, file.own("attn_k_norm.weight")), positions)
    k, v = (np.repeat(rows, n_head // n_head_kv, 1) for rows in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(d)
    scores[:, positions[:, None] < positions] = -np.inf
    out = np.einsum("hqk,khd->qhd", softmax(scores), v)
    out = out if gate is None else out * sigmoid(gate)
    return file.linear(out.reshape(n, -1), "attn_output")


def mlp(file, x, ending=""):
    return file.linear(silu(file.linear(x, f"ffn_gate{ending}")) * file.linear(x, f"ffn_up{ending}"), f"ffn_down{ending}")


def experts(file, x):
    """Experts chosen by sigmoid scores and a stored bias, weighted by the scores alone, and a shared MLP."""
    scores = sigmoid(file.linear(x, "ffn_gate_inp"))
    chosen = np.argsort(-(scores + file.own("exp_probs_b.bias")), -1)[:, : file["expert_used_count"]]
    gates, ups, downs = (file.own(f"ffn_{name}_exps.weight") for name in ("gate", "up", "down"))
    out = np.zeros_like(x)
    for i, those in enumerate(chosen):
        weights = scores[i, those]
        weights = weights / weights.sum() if file["expert_weights_norm"] else weights
        for expert, weight in zip(those, weights * file["expert_weights_scale"], strict=True):
            out[i] += weight * (downs[expert] @ (silu(gates[expert] @ x[i]) * (ups[expert] @ x[i])))
    return out + mlp(file, x, "_shexp")


def head_of(layer_mlp, gated):
    def logits(path, tokens, hidden, steps):
        """The logits after each token but the first with the hidden states of the model [n, n_embd], then after each token of a draft."""
        file = File(path)
        table = file.tensors["token_embd.weight"]
        output = file.tensors.get("output.weight", table)
        own = file.own("nextn.shared_head_norm.weight")
        last = file.tensors["output_norm.weight"] if own is None else own
        read, rows = list(tokens[1:]), [row.astype(np.float64) for row in hidden[:-1]]
        while True:
            embedding = file.norm(table[read], file.own("nextn.enorm.weight"))
            x = np.concatenate([embedding, file.norm(np.array(rows), file.own("nextn.hnorm.weight"))], -1)
            x = file.linear(x, "nextn.eh_proj")
            x = x + attention(file, file.norm(x, file.own("attn_norm.weight")), gated)
            x = x + layer_mlp(file, file.norm(x, file.own("post_attention_norm.weight")))
            x = file.norm(x, last)
            if len(read) == len(tokens) - 2 + steps:
                return x @ output.T
            rows.append(x[-1])
            read.append(int((output @ x[-1]).argmax()))

    return logits


# By the names of cases in tests/drafters/heads.
FORMULAS = {"glm4moe": head_of(experts, gated=False), "qwen35": head_of(mlp, gated=True)}
