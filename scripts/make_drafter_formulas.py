#!/usr/bin/env python3
"""Makes tests/drafters/*.npy: what drafters over hidden states compute, by their published formulas in float64.

Needs: Python 3.11, `pip install numpy gguf`

Two random models are made by `bench synth`: a target with four layers, and a drafter that reads its hidden
states after layers 1, 2 and 4. Of EAGLE-3 (Li et al. 2025, section 3) the logits float32 [n, n_vocab] are
stored after each token but the first, then after each token of a draft of four but the last; of DFlash
(block diffusion over the target's hidden states) those of the masks of a block, also with a layer that has a window, or of all
tokens of a block, and of DSpark those of all tokens of a block, to which the token before adds something. NAME.json says how the
files are made, with their SHA-256 and the tokens. With --check nothing is written, and a difference fails.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "drafters"
TOKENS = [3, 17, 5, 99, 64, 2, 41, 8, 77, 23, 50, 11]
DRAFTED = 4
LAYERS = [1, 2, 4]
TARGET = ["llama", "--seed", "5", "--set", "block_count=4"]
EAGLE = ["eagle3", "--seed", "6", "--set", "block_count=1", "--set", "target_layers=1,2,4", "--with", "output"]
BLOCKS = ["dflash", "--seed", "8", "--set", "block_count=2", "--set", "target_layers=1,2,4", "--set", "block_size=6", "--with", "output"]
WINDOWS = ["dflash", "--seed", "9", *BLOCKS[3:-2], "--set", "n_swa=5", "--set", "swa_pattern=1,0", *BLOCKS[-2:]]
CHAINS = [*BLOCKS[:-1], "output,markov_w1,markov_w2,conf_proj"]
FIRSTS = ["dflash", "--seed", "10", *BLOCKS[3:-2], "--set", "drafts_first=true", *BLOCKS[-2:]]
NORMED = ["eagle3", "--seed", "11", *EAGLE[3:-1], "output,attn_q_norm,attn_k_norm"]
MASK = 7


class Model:
    """The weights and sizes of a file."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.weights = {t.name: np.array(t.data, np.float64) for t in reader.tensors}
        value = {name: field.contents() for name, field in reader.fields.items()}
        arch = value["general.architecture"]
        self.n_head = value[f"{arch}.attention.head_count"]
        self.n_head_kv = value[f"{arch}.attention.head_count_kv"]
        self.eps = value[f"{arch}.attention.layer_norm_rms_epsilon"]
        self.base = value.get(f"{arch}.rope.freq_base", 10000.0)
        self.halves = arch == "dflash"
        self.window = value.get(f"{arch}.attention.sliding_window", 0)
        self.windowed = value.get(f"{arch}.attention.sliding_window_pattern", [])
        self.chained = "markov_w1.weight" in self.weights
        self.drafts_first = value.get(f"{arch}.sample_from_anchor", self.chained)

    def norm(self, name, x):
        return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + self.eps) * self.weights[f"{name}.weight"]

    def times(self, name, x):
        return x @ self.weights[f"{name}.weight"].T

    def rotate(self, x, positions):
        """Rotates pairs of elements of each head `[n, heads, d]`: neighbours, or those half a head apart."""
        d = x.shape[-1]
        angles = positions[:, None] * self.base ** (-np.arange(0, d, 2) / d)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        one, other = (slice(0, d // 2), slice(d // 2, d)) if self.halves else (slice(0, d, 2), slice(1, d, 2))
        a, b = x[..., one], x[..., other]
        out = np.empty_like(x)
        out[..., one], out[..., other] = a * cos - b * sin, a * sin + b * cos
        return out

    def keys(self, prefix, x, store):
        """Adds the keys and values of new rows `[n, width]` to `store`. Returns the positions of the rows."""
        n, first = len(x), len(store[0]) if store[0] is not None else 0
        positions = np.arange(first, first + n)
        k = self.times(f"{prefix}.attn_k", x).reshape(n, self.n_head_kv, -1)
        v = self.times(f"{prefix}.attn_v", x).reshape(n, self.n_head_kv, -1)
        if f"{prefix}.attn_k_norm.weight" in self.weights:
            k = self.norm(f"{prefix}.attn_k_norm", k)
        k = self.rotate(k, positions)
        keys = k if store[0] is None else np.concatenate([store[0], k])
        values = v if store[1] is None else np.concatenate([store[1], v])
        store[:] = [keys, values]
        return positions

    def attention(self, prefix, x, store, causal=True, window=None):
        """Attention of new rows `[n, width]`, whose keys and values are added to `store`, to the last `window` positions."""
        n, positions = len(x), self.keys(prefix, x, store)
        keys, values = store
        q = self.times(f"{prefix}.attn_q", x).reshape(n, self.n_head, -1)
        if f"{prefix}.attn_q_norm.weight" in self.weights:
            q = self.norm(f"{prefix}.attn_q_norm", q)
        q = self.rotate(q, positions)
        group = self.n_head // self.n_head_kv
        keys, values = np.repeat(keys, group, 1), np.repeat(values, group, 1)
        scores = np.einsum("qhd,khd->hqk", q, keys) / np.sqrt(q.shape[-1])
        seen = np.arange(len(keys))[None] <= (positions[:, None] if causal else len(keys))
        seen = seen & (positions[:, None] - np.arange(len(keys))[None] < (window or len(keys)))
        scores = np.where(seen[None], scores, -np.inf)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        out = np.einsum("hqk,khd->qhd", scores, values).reshape(n, -1)
        return self.times(f"{prefix}.attn_output", out)

    def mlp(self, prefix, x):
        gate = self.times(f"{prefix}.ffn_gate", x)
        return self.times(f"{prefix}.ffn_down", gate / (1 + np.exp(-gate)) * self.times(f"{prefix}.ffn_up", x))


def hidden_states(target, tokens):
    """The hidden states after each number of layers, `[n_layers + 1, n, n_embd]`."""
    x = target.weights["token_embd.weight"][tokens]
    states, layer = [x], 0
    while f"blk.{layer}.attn_q.weight" in target.weights:
        prefix = f"blk.{layer}"
        x = x + target.attention(prefix, target.norm(f"{prefix}.attn_norm", x), [None, None])
        x = x + target.mlp(prefix, target.norm(f"{prefix}.ffn_norm", x))
        states.append(x)
        layer += 1
    return states


def head_pass(head, table, tokens, g, store):
    """Logits of new rows, and the hidden states that stand for the target's next ones."""
    prefix = "blk.0"
    embedded = head.norm(f"{prefix}.attn_norm", table[tokens])
    pair = np.concatenate([embedded, head.norm(f"{prefix}.attn_norm_2", g)], -1)
    x = g + head.attention(prefix, pair, store)
    x = x + head.mlp(prefix, head.norm(f"{prefix}.ffn_norm", x))
    return head.times("output", head.norm("output_norm", x)), x


def of_blocks(target, drafter):
    """The logits of the masks of a block after all tokens, and of the last token before them if it drafts too."""
    states = hidden_states(target, TOKENS)
    features = np.concatenate([states[n] for n in LAYERS], -1)[:-1]
    rows = drafter.norm("enc.output_norm", drafter.times("fc", features))
    table = drafter.weights.get("token_embd.weight", target.weights["token_embd.weight"])
    x, layer = table[[TOKENS[-1]] + [MASK] * (DRAFTED - drafter.drafts_first)], 0
    while f"blk.{layer}.attn_q.weight" in drafter.weights:
        prefix, store = f"blk.{layer}", [None, None]
        drafter.keys(prefix, rows, store)
        window = drafter.window if layer < len(drafter.windowed) and drafter.windowed[layer] else None
        x = x + drafter.attention(prefix, drafter.norm(f"{prefix}.attn_norm", x), store, window is not None, window)
        x = x + drafter.mlp(prefix, drafter.norm(f"{prefix}.ffn_norm", x))
        layer += 1
    logits = drafter.times("output", drafter.norm("output_norm", x))
    logits = logits if drafter.drafts_first else logits[1:]
    if not drafter.chained:
        return logits.astype(np.float32)
    before = TOKENS[-1]
    for row in logits:
        row += drafter.times("markov_w2", drafter.weights["markov_w1.weight"][before])
        before = int(row.argmax())
    return logits.astype(np.float32)


def of_head(target, head):
    states = hidden_states(target, TOKENS)
    features = np.concatenate([states[n] for n in LAYERS], -1)
    table = head.weights.get("token_embd.weight", target.weights["token_embd.weight"])
    store = [None, None]
    # A row goes with the token after it.
    logits, x = head_pass(head, table, TOKENS[1:], head.times("fc", features[:-1]), store)
    rows = [logits]
    for _ in range(DRAFTED - 1):
        logits, x = head_pass(head, table, [int(rows[-1][-1].argmax())], x[-1:], store)
        rows.append(logits)
    return np.concatenate(rows).astype(np.float32)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bench", default="target/release/bench")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    cases = [
        ("eagle3", EAGLE, of_head), ("eagle3-norms", NORMED, of_head), ("dflash", BLOCKS, of_blocks), ("dflash-windows", WINDOWS, of_blocks),
        ("dflash-first", FIRSTS, of_blocks), ("dspark", CHAINS, of_blocks),
    ]
    for case, how, compute in cases:
        entry = {"tokens": TOKENS, "drafted": DRAFTED}
        with tempfile.TemporaryDirectory() as folder:
            models = {}
            for name, made in [("target", TARGET), ("drafter", how)]:
                path = Path(folder) / f"{name}.gguf"
                subprocess.run([args.bench, "synth", *made, "-o", path], check=True, stdout=subprocess.DEVNULL)
                entry[name] = {"synth": made, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
                models[name] = Model(path)
            logits = compute(models["target"], models["drafter"])
        if args.check:
            stored = np.load(FOLDER / f"{case}.npy")
            known = json.loads((FOLDER / f"{case}.json").read_text())
            if known != entry or not np.allclose(stored, logits, rtol=1e-5, atol=1e-6):
                sys.exit(f"the stored golden {case} differs")
            continue
        np.save(FOLDER / f"{case}.npy", logits)
        (FOLDER / f"{case}.json").write_text(json.dumps(entry, indent=1) + "\n")


if __name__ == "__main__":
    main()
