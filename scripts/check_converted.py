#!/usr/bin/env python3
"""Converts the folders of tests/hf with `bench convert` and has llama.cpp compute the results.

Needs: Python 3.11, `pip install llama-cpp-python numpy`

For each folder: the NMSE between llama.cpp's logits (vectors, scores of classes) of the converted file and those that
transformers computed for the folder. Exit code 1 if one is above the bound and not in tests/hf/llama_cpp.toml,
which lists where llama.cpp computes something else or refuses what the class allows; if one of these is
equal after all; or if nothing was equal. llama.cpp ends the process where it finds a fault, so that
each folder has a process of its own.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import numpy as np

import goldens
from bench_server import Failure, options, run
from hf_folder import write_folder

HF = Path(__file__).resolve().parent.parent / "tests" / "hf"
# Bounds of tests/it/folders.rs: products of half-precision and of 4-bit weights round their columns.
EXACT, HALF, Q8 = 1e-6, 1e-4, 1e-3

# Seconds after which the process of a folder is ended: some files send llama.cpp into a loop without an end.
MAX_SECONDS = 60
# What llama.cpp says of an architecture that it does not have.
NO_ARCHITECTURE = ("unknown model architecture", "unsupported model architecture")

# Folders whose logits llama.cpp cannot give, and what in its source is the reason.
DIFFERENT = {case: reason for reason, cases in tomllib.loads((HF / "llama_cpp.toml").read_text()).items() for case in cases}


def bound(about):
    """The largest NMSE that rounding explains."""
    dtypes = {tensor["dtype"] for part in about["files"] for tensor in part["tensors"]}
    return Q8 if dtypes & {"U8", "F8_E4M3"} else HALF if dtypes & {"F16", "BF16"} else EXACT


def compare(lib, bench, case, scratch):
    """The NMSE of a case."""
    about = json.loads((HF / case / "tensors.json").read_text())
    folder, path = scratch / case, scratch / f"{case}.gguf"
    write_folder(about, (HF / case / "config.json").read_bytes(), folder)
    run([*bench("convert"), folder, path])
    is_causal = json.loads(run([*bench("plan"), "-m", path, "--json"]))["mode"] == "causal"
    expected = np.load(HF / case / "logits.npy")
    output = about["output"]
    model = goldens.Reference(lib, path, vectors=output == "hidden", scores=output == "scores")
    with contextlib.closing(model) as reference:
        found = reference.logits(about["tokens"], is_causal, source=about.get("source", ()))
    if found.shape != expected.shape:
        raise Failure(f"shape {found.shape}, expected {expected.shape}")
    return goldens.nmse(found, expected)


def run_one(bench, case):
    """What the process of one case does: its NMSE, or why there is none, as the last line."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            print(compare(goldens.load_llama_cpp(), bench, case, Path(scratch)))
        except Failure as failure:
            sys.exit(str(failure).replace(scratch, ""))


def last_words(text):
    """The first error that a process wrote, in one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line or "ASSERT" in line), (lines or ["no reason given"])[-1])


def run_case(case, options):
    """The NMSE of a case, or why there is none."""
    quiet = os.environ | {"GGML_NO_BACKTRACE": "1"}
    command = [sys.executable, __file__, *options, "--one", case]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=quiet, timeout=MAX_SECONDS)
    except subprocess.TimeoutExpired:
        return f"no end within {MAX_SECONDS} s"
    return float(done.stdout.split()[-1]) if done.returncode == 0 else last_words(done.stderr)


def run_all(prefixes, options):
    cases = sorted(path.parent.name for path in HF.glob("*/tensors.json"))
    cases = [case for case in cases if not prefixes or case.startswith(tuple(prefixes))]
    n_equal, faults = 0, []
    for case in cases:
        found = run_case(case, options)
        is_equal = isinstance(found, float) and found <= bound(json.loads((HF / case / "tensors.json").read_text()))
        has_none = isinstance(found, str) and any(words in found for words in NO_ARCHITECTURE)
        reason = DIFFERENT.get(case, "llama.cpp has no such architecture" if has_none else None)
        n_equal += is_equal
        shown = f"{found:.1e}" if isinstance(found, float) else found
        print(f"{case:28} {shown}" + (f"   ({reason})" if reason else ""), flush=True)
        if is_equal == (reason is not None):
            faults.append(case)
    print(f"{len(cases)} folders, {n_equal} equal, {len(faults)} unexplained: {' '.join(faults)}")
    return 1 if faults or not n_equal else 0


def main():
    parser = options(__doc__.split("\n")[0], None)
    parser.add_argument("--archs", metavar="DIR", help="further definitions and maps")
    parser.add_argument("--one", metavar="CASE", help=argparse.SUPPRESS)
    parser.add_argument("prefixes", nargs="*", metavar="PREFIX")
    args = parser.parse_args()
    more = ["--archs", args.archs] if args.archs else []
    if args.one:
        return run_one(lambda verb: [args.bench, verb, *more], args.one)
    return run_all(args.prefixes, ["--bench", str(args.bench), *more])


if __name__ == "__main__":
    sys.exit(main())
