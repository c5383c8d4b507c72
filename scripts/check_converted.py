#!/usr/bin/env python3
"""Converts the folders of tests/hf with `bench convert` and has llama.cpp compute the results.

Usage: scripts/check_converted.py --bench target/release/bench [PREFIX...]
Needs: Python 3.11, `pip install llama-cpp-python numpy`

For each folder: the NMSE between llama.cpp's logits (or vectors) of the converted file and those that
transformers computed for the folder. Exit code 1 if one is above the bound and not among those below,
where llama.cpp computes something else or refuses what the class allows, or if nothing was compared.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import make_goldens
from hf_folder import write_folder

HF = Path(__file__).resolve().parent.parent / "tests" / "hf"
BOUND = 1e-6
HALF = 1e-4  # where the folder's own numbers are of half precision

# Folders whose logits llama.cpp cannot give, and why.
DIFFERENT = {}


def compare(lib, bench, case, scratch):
    """The NMSE, or why there is none."""
    about = json.loads((HF / case / "tensors.json").read_text())
    folder, path = scratch / case, scratch / f"{case}.gguf"
    write_folder(about, (HF / case / "config.json").read_bytes(), folder)
    done = subprocess.run([bench, "convert", folder, path], capture_output=True, text=True)
    if done.returncode != 0:
        return f"not converted: {done.stderr.strip().splitlines()[-1:]}"
    expected = np.load(HF / case / "logits.npy")
    vectors = about["output"] == "hidden"
    try:
        reference = make_goldens.Reference(lib, path, vectors)
    except make_goldens.Failure as failure:
        return f"refused: {failure}"
    try:
        metadata = json.loads(subprocess.run([bench, "plan", "-m", path, "--json"], capture_output=True, text=True).stdout)
        found = reference.logits(about["tokens"], metadata["mode"] == "causal")
    except make_goldens.Failure as failure:
        return f"failed: {failure}"
    finally:
        reference.close()
        path.unlink()
    if found.shape != expected.shape:
        return f"shape {found.shape}, expected {expected.shape}"
    return make_goldens.nmse(found, expected)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bench", type=Path, required=True)
    parser.add_argument("prefixes", nargs="*", metavar="PREFIX")
    args = parser.parse_args()
    lib = make_goldens.load_llama_cpp()
    cases = sorted(path.parent.name for path in HF.glob("*/tensors.json"))
    cases = [c for c in cases if not args.prefixes or c.startswith(tuple(args.prefixes))]
    n_equal, faults = 0, []
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            result = compare(lib, args.bench, case, Path(folder))
            reason = next((why for name, why in DIFFERENT.items() if case == name or case.startswith(name + "-")), None)
            is_equal = not isinstance(result, str) and result <= BOUND
            n_equal += is_equal
            shown = result if isinstance(result, str) else f"{result:.1e}"
            print(f"{case:28} {shown}" + (f"   ({reason})" if reason else ""), flush=True)
            if not is_equal and not reason:
                faults.append(case)
    print(f"{len(cases)} folders, {n_equal} equal, {len(faults)} unexplained: {' '.join(faults)}")
    return 1 if faults or not n_equal else 0


if __name__ == "__main__":
    sys.exit(main())
