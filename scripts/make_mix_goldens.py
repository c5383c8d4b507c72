#!/usr/bin/env python3
"""Makes tests/quant/mixes.json: the types that llama-quantize gives to the tensors of models, and what it makes of them.

Needs: Python 3.11, `pip install llama-cpp-python numpy gguf`

CASES lists models, which `bench synth` writes: for each mix of mixes/named.toml that llama-quantize has, the types of all
tensors, without and with an importance matrix where that makes a difference. Of the cases of tests/goldens a few mixes follow. Of the case in ROWS also the SHA-256 of what each tensor becomes in each mix, with an
importance of columns that `importance` makes and the test repeats. The model files are thrown away.

With --check nothing is written, and any difference between stored and recomputed fails.
"""

import ctypes
import hashlib
import json
import re
import string
import tempfile
import tomllib
from pathlib import Path

import numpy as np
from gguf import GGUFReader

from bench_server import ROOT, Failure, options, program, run, synth_options
from gguf_file import add_unread
from goldens import GOLDENS, load_llama_cpp, read_cases, reference_version, synth_args

INDEX = ROOT / "tests" / "quant" / "mixes.json"
# Models with enough layers that eighths and sixteenths of them differ, and with rows of whole blocks of all types.
WIDE = {"n_embd": 256, "block_count": 17}
CASES = {
    "dense": ("llama", WIDE | {"n_ff": 256, "n_head": 8, "n_head_kv": 2}),
    "tied": ("llama-rope-freqs", WIDE | {"n_ff": 256, "n_head": 4, "n_head_kv": 4}),
    "deep": ("llama", {"block_count": 80, "n_embd": 256, "n_ff": 256, "n_head": 8, "n_head_kv": 2}),
    "fused": ("falcon", WIDE),
    "fused-tied": ("phi3", WIDE),
    "experts-8": ("qwen3moe", WIDE | {"n_expert": 8}),
    "experts-16": ("qwen3moe", WIDE | {"n_expert": 16}),
    "latent": ("deepseek2", WIDE | {"n_expert": 8}),
}
# Mixes that tell all classes of tensors apart, for the cases of tests/goldens as they are.
FEW = ("Q4_K_M", "Q3_K_L", "IQ2_M", "MXFP4_MOE")
# Mixes of one type that llama-quantize does not know.
LACKING = ("F32", "F16", "BF16", "MXFP4", "NVFP4")
ROWS = "rows"
LETTERS = string.ascii_letters


def named_mixes():
    """Name and `general.file_type` of the mixes that llama-quantize has."""
    mixes = tomllib.loads((ROOT / "mixes" / "named.toml").read_text())["mix"]
    return {name: row["file_type"] for name, row in mixes.items() if name not in LACKING}


def importance(tensors):
    """An importance for the columns of each matrix: 1 to 4 in steps that differ between tensors and columns."""
    made = {}
    for name, shape in tensors.items():
        if len(shape) < 2:
            continue
        n = shape[0] * (shape[2] if len(shape) > 2 else 1)
        salt = sum(name.encode())
        made[name] = 1.0 + ((np.arange(n) * 7 + salt) % 25).astype(np.float32) / np.float32(8.0)
    return made


class Quantiser:
    """llama_model_quantize, and what it logs."""

    LINE = re.compile(r"^\[ *\d+/ *\d+\] +(\S+) +- \[([^\]]*)\], type = +(\S+), (?:.*\((\S+)\))?")

    def __init__(self, lib):
        self.lib, self.lines = lib, []

        @lib.llama_log_callback
        def on_log(_, text, __):
            self.lines.append(text.decode("utf-8", "replace"))

        self.on_log = on_log
        lib.llama_log_set(on_log, None)

    def run(self, model, out, file_type, by_tensor=None, dry=True):
        params = self.lib.llama_model_quantize_default_params()
        params.ftype, params.dry_run, params.nthread = file_type, dry, 1
        entries = None
        if by_tensor is not None:
            entry = self.lib.llama_model_imatrix_data
            entries = (entry * (len(by_tensor) + 1))()
            for at, (name, values) in enumerate(by_tensor.items()):
                pointer = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
                entries[at] = entry(name.encode(), pointer, len(values))
            params.imatrix = ctypes.cast(entries, ctypes.POINTER(entry))
        self.lines.clear()
        failed = self.lib.llama_model_quantize(str(model).encode(), str(out).encode(), ctypes.byref(params))
        text = "".join(self.lines)
        if failed:
            raise Failure(f"llama.cpp cannot quantise {model.name}: {text[-400:]}")
        return text

    def types(self, model, file_type, by_tensor):
        """Type of each tensor after a dry run."""
        found = {}
        for line in self.run(model, model.with_suffix(".out"), file_type, by_tensor).splitlines():
            if match := self.LINE.match(line):
                name, _, before, after = match.groups()
                found[name] = (after or before).lower()
        return found


def shapes(path):
    return {t.name: [int(n) for n in t.shape] for t in GGUFReader(path).tensors}


def entry_of(bench, quantiser, case, mixes, letters, folder):
    """The types of a model's tensors: one list of names, and for each mix a letter for the type of each."""
    path, args = Path(folder) / "model.gguf", synth_args(case)
    run([bench, "synth", *args, "--force", "-o", path])
    if case["unread"]:
        add_unread(path, case["unread"])
    found, own = {"synth": args, "tensors": [], "mixes": {}}, importance(shapes(path))
    for mix, file_type in mixes.items():
        for key, by_tensor in ((mix, None), (f"{mix}+imatrix", own)):
            try:
                types = quantiser.types(path, file_type, by_tensor)
            except Failure as failure:
                # What it lacks is a type in place of one whose blocks do not fit.
                if "no tensor type fallback" not in str(failure):
                    raise
                continue
            found["tensors"] = sorted(types)
            listed = "".join(letters.setdefault(types[name], LETTERS[len(letters)]) for name in found["tensors"])
            if key == mix or listed != found["mixes"].get(mix):
                found["mixes"][key] = listed
    return found


def rows_of(bench, quantiser, folder):
    path, out = Path(folder) / "rows.gguf", Path(folder) / "rows-out.gguf"
    values = {"n_embd": 256, "block_count": 2, "vocab_size": 32, "n_expert": 4, "n_ff_exp": 256}
    args = ["qwen3moe", "--seed", "5", "--with", "output", *synth_options(values)]
    run([bench, "synth", *args, "--force", "-o", path])
    own = importance(shapes(path))
    found = {"synth": args, "mixes": {}}
    for mix, file_type in named_mixes().items():
        for key, by_tensor in ((mix, None), (f"{mix}+imatrix", own)):
            try:
                quantiser.run(path, out, file_type, by_tensor, dry=False)
            except Failure:
                if by_tensor is not None:
                    raise
                continue
            try:
                tensors = sorted(GGUFReader(out).tensors, key=lambda t: t.name)
            except ValueError:  # a type that the reader does not know
                continue
            whole = hashlib.sha256()
            for tensor in tensors:
                whole.update(tensor.name.encode())
                whole.update(np.ascontiguousarray(tensor.data).tobytes())
            found["mixes"][key] = whole.hexdigest()
    return found


def main():
    parser = options(__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail on differences")
    args = parser.parse_args()
    bench, lib = args.bench, load_llama_cpp()
    quantiser = Quantiser(lib)
    letters, cases, skipped = {}, {}, []
    known = {case["name"]: case for case in read_cases(GOLDENS)}
    wanted = {name: (known[base] | {"set": known[base]["set"] | values}, None) for name, (base, values) in CASES.items()}
    wanted |= {name: (case, FEW) for name, case in known.items()}
    with tempfile.TemporaryDirectory() as folder:
        for name, (case, few) in wanted.items():
            mixes = {mix: number for mix, number in named_mixes().items() if few is None or mix in few}
            try:
                cases[name] = entry_of(bench, quantiser, case, mixes, letters, folder)
            except Failure as failure:
                skipped.append(name)
                print(f"{name}: {str(failure)[-200:]}", flush=True)
        rows = rows_of(bench, quantiser, folder)
    print(f"{len(cases)} models, without {skipped}")
    made = {"reference": reference_version(lib), "types": {letter: ty for ty, letter in letters.items()}, "cases": cases, ROWS: rows}
    if args.check:
        stored = json.loads(INDEX.read_text())
        if any(stored[key] != made[key] for key in ("types", "cases", ROWS)):
            raise SystemExit("tests/quant/mixes.json is not what llama.cpp gives")
    else:
        INDEX.write_text(json.dumps(made, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    program(main)
