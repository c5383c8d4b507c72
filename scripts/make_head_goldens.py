#!/usr/bin/env python3
"""Makes tests/drafters/heads: the logits that llama.cpp computes with the prediction heads of tiny random models.

Needs: Python 3.11, `pip install numpy gguf`, and the program of scripts/llama_heads (--llama-heads)

tests/drafters/heads/cases.toml lists the models. For each, `bench synth` writes the model file from a seed. llama.cpp computes the hidden
states of the model, the logits of its head after each token but the first, and those after each token of a draft but the last. Stored are
NAME.npy (float32 [n_tokens - 1 + steps - 1, n_vocab]) and an entry in goldens.json. The model file is thrown away. A golden that
comes out as it was is left untouched, to the byte.

For some cases the head is computed here too, in double precision, from the formula of DeepSeek-AI 2024 (section 2.2), the weights of the
file and the hidden states of the model: `formula` is the NMSE between it and llama.cpp.

With --check nothing is written, and any difference between stored and recomputed fails.
"""

import hashlib
import json
import tempfile
from pathlib import Path

import numpy as np

from bench_server import ROOT, Failure, options, program, run
from head_formula import FORMULAS
from goldens import SAME_NMSE, check_spread, difference_of, each, nmse, read_cases, read_index, strays, synth_args, write_index

FOLDER = ROOT / "tests" / "drafters" / "heads"
INDEX = FOLDER / "goldens.json"
SPREAD = (0.2, 20.0)
STEPS = 4  # tokens of a draft


def compute(llama_heads, bench, case, folder):
    """Makes the model file of a case and runs it: its entry for goldens.json, and the logits."""
    path, out = Path(folder) / f"{case['name']}.gguf", Path(folder) / "out"
    args = synth_args(case)
    run([bench, "synth", *args, "-o", path])
    data, tokens = path.read_bytes(), case["tokens"]
    found = json.loads(run([llama_heads, path, out, STEPS, *tokens]))
    values = np.fromfile(out, np.float32)
    n_hidden = len(tokens) * found["n_embd"]
    hidden, logits = values[:n_hidden].reshape(len(tokens), -1), values[n_hidden:].reshape(found["rows"], -1)
    check_spread(logits, SPREAD)
    entry = {
        "name": case["name"],
        "arch": case["arch"],
        "synth": args,
        "gguf_sha256": hashlib.sha256(data).hexdigest(),
        "tokens": tokens,
        "steps": STEPS,
        "logits": f"{case['name']}.npy",
        "shape": list(logits.shape),
        "logits_std": float(f"{logits.std():.3g}"),
        "reference": {"program": "llama.cpp", "llama_cpp": found["llama_cpp"], "ggml": found["ggml"]},
    }
    if formula := FORMULAS.get(case["name"]):
        apart = nmse(logits, formula(path, tokens, hidden, STEPS))
        if apart > SAME_NMSE:
            raise Failure(f"the formula and llama.cpp differ by an NMSE of {apart:.1e}")
        entry["noise"] = {"formula": float(f"{apart:.1e}")}
    return entry, logits


def make(llama_heads, bench, only, check):
    cases, index = read_cases(FOLDER), read_index(INDEX)

    def one(case):
        with tempfile.TemporaryDirectory() as folder:
            entry, logits = compute(llama_heads, bench, case, folder)
        why = difference_of(index.get(case["name"]), entry, FOLDER / entry["logits"], logits)
        measures = f"std {entry['logits_std']:<5} {json.dumps(entry.get('noise', {}))}"
        if why is None:
            return f"same      {measures}"
        if check:
            raise Failure(f"{measures}: {why}")
        np.save(FOLDER / entry["logits"], logits)
        index[case["name"]] = entry
        return f"written   {measures}: {why}"

    failed = each(cases, [only] if only else [], one)
    for name in strays(cases, FOLDER) if only is None else []:
        if check:
            print(f"{name:28s} STRAY: stored, but not in cases.toml")
            failed.append(name)
        else:
            index.pop(name, None)
            (FOLDER / f"{name}.npy").unlink(missing_ok=True)
            print(f"{name:28s} removed: not in cases.toml")
    if not check:
        write_index([index[case["name"]] for case in cases if case["name"] in index], INDEX)
    return 1 if failed else 0


def main():
    parser = options(__doc__)
    parser.add_argument("--llama-heads", required=True, type=lambda path: Path(path).absolute(), help="the program of scripts/llama_heads")
    parser.add_argument("--only", metavar="NAME", help="this case alone")
    parser.add_argument("--check", action="store_true", help="compare with what is stored and write nothing")
    args = parser.parse_args()
    return make(args.llama_heads, args.bench, args.only, args.check)


if __name__ == "__main__":
    program(main)
