#!/usr/bin/env python3
"""Makes tests/zoo/qwen4exp-topk8-moe.npy: logits of a model of the zoo whose attention selects whole blocks of keys.

Usage: scripts/make_zoo_blocks.py ../shared/zoo/dev/qwen4exp-topk8-moe
Needs: Python 3.11, `pip install llama-cpp-python numpy gguf`

The llama.cpp of the references selects parts of a block, in an order of its own. All that its attention is made of is its
own: queries, keys, values and the scores of the indexer. From there on this is a plain loop. With llama.cpp's choice the
loop must give llama.cpp's logits, or nothing is written.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np

from bench_server import ROOT
from goldens import nmse

SPAN, TOP, LAYER = 4, 2, "blk.1."
EPS = 1e-5


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def rms(x):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Model:
    """The last layer, from what llama.cpp computed before its attention."""

    def __init__(self, stem, values):
        tensors = gguf.GGUFReader(f"{stem}.gguf").tensors
        self.weights = {t.name: t.data.astype(np.float64) for t in tensors}
        self.values = values
        self.n = len(self.value("Kcur-1"))

    def value(self, name):
        return np.load(self.values / f"{name}.npy").astype(np.float64)

    def times(self, name, x):
        return x @ self.weights[f"{name}.weight"].T

    def mix(self, states, name):
        normed = (rms(states) * self.weights[f"{name}_norm.weight"]).reshape(self.n, -1)
        part = 1 / states.shape[1]
        gates = self.times(f"{name}_up", silu(part * self.times(f"{name}_down", normed)))
        return normed, (normed * sigmoid(gates)).reshape(states.shape).mean(1)

    def written(self, states, name, y):
        normed, _ = self.mix(states, name)
        factors = 2 * sigmoid(self.times(f"{name}_inject", normed) / states.shape[1])
        return states + factors[:, :, None] * y[:, None, :]

    def attention(self, selected):
        q, k, v = (self.value(name) for name in ["Qcur-1", "Kcur-1", "Vcur-1"])
        group = q.shape[1] // k.shape[1]
        y = np.zeros_like(q)
        for t in range(self.n):
            keys = sorted(selected(t))
            for head in range(q.shape[1]):
                scores = k[keys, head // group] @ q[t, head] / np.sqrt(q.shape[2])
                y[t, head] = softmax(scores) @ v[keys, head // group]
        gate = self.value("gate_reshaped-1").reshape(self.n, -1)
        return self.times(f"{LAYER}attn_output", y.reshape(self.n, -1) * sigmoid(gate))

    def experts(self, x):
        probabilities = softmax(self.times(f"{LAYER}ffn_gate_inp", x))
        gate_up = self.weights[f"{LAYER}ffn_gate_up_exps.weight"]
        down = self.weights[f"{LAYER}ffn_down_exps.weight"]
        y = np.zeros_like(x)
        for t, shares in enumerate(probabilities):
            picked = np.argsort(-shares)[:2]
            for expert in picked:
                gate, up = np.split(gate_up[expert] @ x[t], 2)
                y[t] += shares[expert] / shares[picked].sum() * (down[expert] @ (silu(gate) * up))
        hidden = silu(self.times(f"{LAYER}ffn_gate_shexp", x)) * self.times(f"{LAYER}ffn_up_shexp", x)
        share = sigmoid(self.times(f"{LAYER}ffn_gate_inp_shexp", x)).reshape(-1, 1)
        return y + share * self.times(f"{LAYER}ffn_down_shexp", hidden)

    def logits(self, selected):
        states = self.value("l_last-0").reshape(self.n, 4, -1)
        states = self.written(states, f"{LAYER}hc_attn", self.attention(selected))
        _, x = self.mix(states, f"{LAYER}hc_ffn")
        states = self.written(states, f"{LAYER}hc_ffn", self.experts(x))
        _, x = self.mix(states, "output_hc")
        return self.times("output", x)


def main():
    stem = Path(sys.argv[1])
    reference = np.load(f"{stem}.ref.npz")
    tokens = ",".join(map(str, reference["tokens"]))
    with tempfile.TemporaryDirectory() as folder:
        dump = [sys.executable, ROOT / "scripts/dump_values.py", "--gguf", f"{stem}.gguf"]
        subprocess.run([*dump, "--tokens", tokens, "--output", folder], check=True)
        model = Model(stem, Path(folder))
        top_k, scores = model.value("indexer_top_k-1").astype(int), model.value("indexer_score-1")

        def whole_blocks(t):
            n_whole = (t + 1) // SPAN
            best = np.argsort(-scores[t, :n_whole], kind="stable")[:TOP]
            keys = [SPAN * block + i for block in best for i in range(SPAN)]
            return keys + list(range(SPAN * n_whole, t + 1))

        error = nmse(model.logits(lambda t: [key for key in top_k[t] if key <= t]), reference["logits"])
        if error > 1e-10:
            sys.exit(f"the loop differs from llama.cpp: NMSE {error:.1e}")
        out = ROOT / "tests/zoo" / f"{stem.name}.npy"
        np.save(out, model.logits(whole_blocks).astype(np.float32))
        print(f"{out.name}: written; with llama.cpp's choice NMSE {error:.1e}")


if __name__ == "__main__":
    main()
