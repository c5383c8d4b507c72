#!/usr/bin/env python3
"""Makes tests/goldens: the logits that llama.cpp computes for tiny random models.

Needs: Python 3.11, `pip install llama-cpp-python numpy gguf`

tests/goldens/cases.toml lists the models. For each, `bench synth` writes the model file from a
seed and llama.cpp computes the logits of every position over the whole vocabulary. Stored are
NAME.npy (float32 [n_tokens, n_vocab]) and an entry in goldens.json: how the model file is made,
its SHA-256, the tokens, what computed the logits, and its `noise`: the NMSE between them and what
llama.cpp itself computes one token at a time, and with a half-precision cache. The model file is
thrown away. A golden that comes out as it was is left untouched, to the byte.

With --check nothing is written, and any difference between stored and recomputed fails.
"""

import contextlib
import hashlib
import json
import tempfile
from pathlib import Path

import numpy as np

from bench_server import Failure, options, program, run
from gguf_file import add_unread
from goldens import GOLDENS, SAME_NMSE, Reference, check_spread, difference_of, each, load_llama_cpp
from goldens import nmse, read_cases, read_index, reference_version, strays, synth_args, write_index

# Spread of logits that can tell right from wrong.
SPREAD = (0.2, 20.0)

# The reference is plain: one thread, one sequence, no rounding but that of the weights.
SETTINGS = {
    "backend": "cpu",
    "kv_type": "f32",
    "flash_attn": False,
    "n_threads": 1,
    "n_ctx": "context_length",
    "pass": "all tokens at once",
}


def compute(lib, bench, case, folder):
    """Makes the model file of a case and runs it: its entry for goldens.json, and the logits."""
    path = Path(folder) / f"{case['name']}.gguf"
    args = synth_args(case)
    run([bench, "synth", *args, "-o", path])
    data = path.read_bytes()
    if case["unread"]:
        add_unread(path, case["unread"])

    with contextlib.closing(Reference(lib, path, case["vectors"])) as reference:
        tokens, causal, source = case["tokens"], case["causal"], case["source"]
        logits = reference.logits(tokens, causal, source=source)
        # How far llama.cpp is from itself; no implementation can be required to be nearer.
        noise = {"kv_f16": nmse(reference.logits(tokens, causal, kv_type="f16", source=source), logits)}
        if causal:
            noise["stepwise"] = nmse(reference.logits(tokens, causal, chunk=1, source=source), logits)
    check_spread(logits, SPREAD)
    entry = {
        "name": case["name"],
        "arch": case["arch"],
        "type": case["type"],
        "synth": args,
        "gguf_bytes": len(data),
        "gguf_sha256": hashlib.sha256(data).hexdigest(),
        "tokens": case["tokens"],
        **({"source": source} if source else {}),
        "causal": case["causal"],
        "logits": f"{case['name']}.npy",
        "shape": list(logits.shape),
        "logits_std": float(f"{logits.std():.3g}"),
        "noise": {key: float(f"{value:.1e}") for key, value in noise.items()},
        "settings": SETTINGS,
        "reference": reference_version(lib),
    }
    return entry, logits


# ---------------------------------------------------------------- goldens


def make(bench, only, check):
    cases = read_cases()
    lib, index = load_llama_cpp(), read_index()

    def one(case):
        with tempfile.TemporaryDirectory() as folder:
            entry, logits = compute(lib, bench, case, folder)
        limit = SAME_NMSE if entry["type"] == "f32" else entry["noise"]["kv_f16"]
        why = difference_of(index.get(case["name"]), entry, GOLDENS / entry["logits"], logits, limit)
        measures = f"std {entry['logits_std']:<5} noise {json.dumps(entry['noise'])}"
        if why is None:
            return f"same      {measures}"
        if check:
            raise Failure(f"{measures}: {why}")
        np.save(GOLDENS / entry["logits"], logits)
        index[case["name"]] = entry
        return f"written   {measures}: {why}"

    failed = each(cases, [only] if only else [], one)
    for name in strays(cases) if only is None else []:
        if check:
            print(f"{name:28s} STRAY: stored, but not in cases.toml")
            failed.append(name)
        else:
            index.pop(name, None)
            (GOLDENS / f"{name}.npy").unlink(missing_ok=True)
            print(f"{name:28s} removed: not in cases.toml")
    if not check:
        write_index([index[case["name"]] for case in cases if case["name"] in index])
    return 1 if failed else 0


def main():
    parser = options(__doc__)
    parser.add_argument("--only", metavar="NAME", help="this case alone")
    parser.add_argument("--check", action="store_true", help="compare with what is stored and write nothing")
    args = parser.parse_args()
    return make(args.bench, args.only, args.check)


if __name__ == "__main__":
    program(main)
