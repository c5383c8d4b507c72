#!/usr/bin/env python3
"""Makes tests/goldens/diffusion: completions by text diffusion, step by step, with logits that llama.cpp computes.

Needs: Python 3.11, `pip install llama-cpp-python numpy`

The models are those of tests/goldens. The loop is written down here once more, plainly and in double
precision, after the paper (arXiv 2502.09992) and with whole logits; the server's own must fix the
same tokens at the same places in the same steps. Stored are the steps, and in NAME.npy the logits of
the masked positions of each step's block, one row for each (float32 [n_rows, n_vocab]).
"""

import contextlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import goldens
from bench_server import options

FOLDER = goldens.GOLDENS / "diffusion"
MASK = 95
ENDS = [0, 2]  # the tokens that end a text in the vocabulary of the shipped model
PROMPT = [17, 63, 5, 88, 42, 10]
PROMPT_2 = [7, 8, 9, 10, 12]
# Nearer than this, another order of summation could choose differently.
SMALLEST_GAP = 2e-5

CASES = [
    {"name": "one-by-one", "model": "llada", "length": 12, "steps": 12, "block_length": 12},
    {"name": "all-at-once", "model": "llada", "length": 12, "steps": 1, "block_length": 12},
    {"name": "blocks", "model": "llada", "length": 14, "steps": 7, "block_length": 4},
    {"name": "left-to-right", "model": "llada-moe", "length": 8, "steps": 8, "block_length": 1},
    {"name": "margin", "model": "llada-moe", "length": 12, "steps": 5, "block_length": 12, "remasking": "margin"},
    {"name": "shifted", "model": "dream", "length": 12, "steps": 5, "block_length": 6, "remasking": "entropy", "prompt": PROMPT_2},
    {"name": "shifted-experts", "model": "rnd1", "length": 12, "steps": 4, "block_length": 12, "remasking": "entropy"},
    {"name": "guided", "model": "llada", "length": 10, "steps": 5, "block_length": 5, "cfg_scale": 1.5},
    {"name": "guided-shifted", "model": "dream", "length": 10, "steps": 5, "block_length": 5, "cfg_scale": 0.5, "prompt": PROMPT_2},
]
SHIFTED = {"dream", "rnd1"}


def probabilities(row):
    row = row.astype(np.float64)
    row[MASK] = -np.inf
    e = np.exp(row - row.max())
    return e / e.sum()


def confidence(p, rule):
    if rule == "low_confidence":
        return p.max()
    if rule == "margin":
        second, first = np.sort(p)[-2:]
        return first - second
    p = p[p > 0]
    return float((p * np.log(p)).sum())


def fill_in(reference, case):
    """The steps, the rows of logits and the smallest difference that decided anything."""
    prompt = case.get("prompt", PROMPT)
    n_prompt, n = len(prompt), case["length"]
    shift = int(case["model"] in SHIFTED)
    rule, scale = case.get("remasking", "low_confidence"), case.get("cfg_scale", 0.0)
    text = prompt + [MASK] * n
    steps, rows, gap = [], [], np.inf
    for begin in range(0, n, case["block_length"]):
        end = min(begin + case["block_length"], n)
        n_steps = case["steps"] * end // n - case["steps"] * begin // n
        n_steps = min(max(n_steps, 1), end - begin)
        for step in range(n_steps):
            logits = reference.logits(text, False)
            if scale:
                blind = reference.logits([MASK] * n_prompt + text[n_prompt:], False)
                logits = blind + (scale + 1) * (logits - blind)
            masked = [i for i in range(begin, end) if text[n_prompt + i] == MASK]
            found = []
            for i in masked:
                row = logits[n_prompt + i - shift]
                rows.append(row.copy())
                p = probabilities(row)
                second, first = np.sort(p)[-2:]
                gap = min(gap, first - second)
                found.append((confidence(p, rule), -i, int(p.argmax())))
            found.sort(reverse=True)
            n_fixed = -(-len(masked) // (n_steps - step))
            if n_fixed < len(found):
                gap = min(gap, found[n_fixed - 1][0] - found[n_fixed][0])
            fixed = [[-i, token] for _, i, token in found[:n_fixed]]
            for i, token in fixed:
                text[n_prompt + i] = token
            steps.append({"masked": masked, "fixed": fixed})
            answer = text[n_prompt:]
            known = answer[: answer.index(MASK)] if MASK in answer else answer
            if any(token in ENDS for token in known):
                return steps, rows, gap
    return steps, rows, gap


def main():
    args = options(__doc__, None).parse_args()
    FOLDER.mkdir(exist_ok=True)
    lib = goldens.load_llama_cpp()
    models = {case["name"]: case for case in goldens.read_cases()}
    entries = []
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            path = Path(folder) / "model.gguf"
            synth = goldens.synth_args(models[case["model"]])
            subprocess.run([args.bench, "synth", *synth, "-o", path, "--force"], check=True)
            with contextlib.closing(goldens.Reference(lib, path)) as reference:
                steps, rows, gap = fill_in(reference, case)
            if gap < SMALLEST_GAP:
                sys.exit(f"{case['name']}: a difference of {gap:.1e} decides, which is too small")
            np.save(FOLDER / f"{case['name']}.npy", np.array(rows, np.float32))
            entries.append({"prompt": PROMPT} | case | {"mask": MASK, "gap": float(f"{gap:.1e}"), "filled": steps})
            print(f"{case['name']:16s} {len(steps)} steps, {len(rows)} rows, gap {gap:.1e}")
    lines = ",\n".join(" " + json.dumps(entry) for entry in entries)
    (FOLDER / "diffusion.json").write_text("[\n" + lines + "\n]\n")


if __name__ == "__main__":
    main()
