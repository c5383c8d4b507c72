#!/usr/bin/env python3
"""Makes tests/goldens: the logits that llama.cpp computes for tiny random models.

Usage: scripts/make_goldens.py --bench target/release/bench [--only NAME] [--check]
       scripts/make_goldens.py --gguf FILE... [--tokens 1,2,3] [--out FILE.npy]
Needs: Python 3.11, `pip install llama-cpp-python numpy`

tests/goldens/cases.toml lists the models. For each, `bench synth` writes the model file from a
seed and llama.cpp computes the logits of every position over the whole vocabulary. Stored are
NAME.npy (float32 [n_tokens, n_vocab]) and an entry in goldens.json: how the model file is made,
its SHA-256, the tokens, what computed the logits, and its `noise`: the NMSE between them and what
llama.cpp itself computes one token at a time, and with a half-precision cache. The model file is
thrown away. A golden that comes out as it was is left untouched, to the byte.

With --check nothing is written, and any difference between stored and recomputed fails.
With --gguf any model file is run; if there is a FILE.ref.npz (arrays `tokens`, `causal`,
`logits`) its tokens are used and the two results are compared.
"""

import argparse
import ctypes
import hashlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import numpy as np

GOLDENS = Path(__file__).resolve().parent.parent / "tests" / "goldens"
INDEX = GOLDENS / "goldens.json"

LOG_ERROR = 4  # GGML_LOG_LEVEL_ERROR, which the bindings do not name

# Two machines may sum in another order; a change of meaning is far above this. Where activations
# are rounded to the type of the weights, one that falls to the other side costs more: see `noise`.
SAME_NMSE = 1e-10
# Logits outside say that the random model is too flat or too wild to tell right from wrong.
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


class Failure(Exception):
    """A problem to report in one line."""


# ---------------------------------------------------------------- llama.cpp


def load_llama_cpp():
    """The low-level bindings, quiet unless something is wrong."""
    import llama_cpp.llama_cpp as lib

    @lib.llama_log_callback
    def on_log(level, text, _):
        if level == LOG_ERROR:
            sys.stderr.write(text.decode("utf-8", "replace"))

    lib.llama_log_set(on_log, None)
    lib.on_log = on_log  # ctypes keeps no reference of its own
    lib.llama_backend_init()
    return lib


def reference_version(lib):
    """Names the program that computes the logits."""
    import llama_cpp

    def text(name):
        function = getattr(lib._lib, name, None)
        if function is None:
            return None
        function.restype = ctypes.c_char_p
        return function().decode()

    return {
        "program": "llama.cpp through llama-cpp-python",
        "llama_cpp_python": llama_cpp.__version__,
        "llama_cpp": text("llama_version"),
        "commit": text("ggml_commit"),
        "ggml": text("ggml_version"),
    }


class Reference:
    """One model file in llama.cpp."""

    def __init__(self, lib, path, vectors=False, scores=False):
        self.lib = lib
        self.vectors = vectors
        self.scores = scores
        params = lib.llama_model_default_params()
        no_devices = (ctypes.c_void_p * 1)(None)
        params.devices = ctypes.cast(no_devices, ctypes.c_void_p)
        params.n_gpu_layers = 0
        params.use_extra_bufts = False  # repacked weights are summed in another order
        self.model = lib.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            raise Failure(f"llama.cpp cannot load {path}")
        self.n_vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))
        self.width = lib.llama_model_n_embd(self.model) if vectors else self.n_vocab

    def close(self):
        self.lib.llama_model_free(self.model)

    def logits(self, tokens, causal, chunk=None, kv_type="f32", on_value=None, source=()):
        """float32 [n_tokens, n_vocab], vectors [n_tokens, n_embd] or scores of classes [1, n_classes], computed `chunk` tokens at a
        time (all) from an empty cache.

        A model with an encoder reads `source` with it first.

        `causal` is None if the model's file decides whether a token attends to later ones.
        `on_value(tensor, ask, data)` is called for every value: whether it is wanted, then with it.
        """
        bad = [t for t in [*source, *tokens] if not 0 <= t < self.n_vocab]
        if bad:
            raise Failure(f"token {bad[0]} is outside the vocabulary of {self.n_vocab}")
        lib = self.lib
        chunk = chunk or len(tokens)
        params = lib.llama_context_default_params()
        params.n_ctx = 0
        params.n_batch = params.n_ubatch = max(len(tokens), len(source), 32)
        params.n_threads = params.n_threads_batch = 1
        params.type_k = params.type_v = {"f32": lib.GGML_TYPE_F32, "f16": lib.GGML_TYPE_F16}[kv_type]
        params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.offload_kqv = params.op_offload = False
        params.embeddings = self.vectors or self.scores
        if on_value:
            watcher = lib.ggml_backend_sched_eval_callback(on_value)  # alive until the context is freed
            params.cb_eval = watcher
        if self.vectors:
            params.pooling_type = lib.LLAMA_POOLING_TYPE_NONE
        if self.scores:
            params.pooling_type = lib.LLAMA_POOLING_TYPE_RANK
        context = lib.llama_init_from_model(self.model, params)
        if not context:
            raise Failure("llama.cpp cannot create a context")
        try:
            if len(tokens) > lib.llama_n_ctx(context):
                raise Failure(f"{len(tokens)} tokens do not fit in a context of {lib.llama_n_ctx(context)}")
            if causal is not None:
                lib.llama_set_causal_attn(context, causal)
            if source:
                self._pass(context, source, 0, encode=True)
            starts = range(0, len(tokens), chunk)
            return np.concatenate([self._pass(context, tokens[i : i + chunk], i) for i in starts])
        finally:
            lib.llama_free(context)

    def _pass(self, context, tokens, first, encode=False):
        lib = self.lib
        batch = lib.llama_batch_init(len(tokens), 0, 1)
        try:
            batch.n_tokens = len(tokens)
            for i, token in enumerate(tokens):
                batch.token[i] = token
                batch.pos[i] = first + i
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = 0
                batch.logits[i] = 1
            if (lib.llama_encode if encode else lib.llama_decode)(context, batch) != 0:
                raise Failure(f"llama_{'encode' if encode else 'decode'} failed")
            if encode:
                return None
            if self.scores:
                values, shape = lib.llama_get_embeddings_seq(context, 0), (1, lib.llama_model_n_cls_out(self.model))
            else:
                values, shape = (lib.llama_get_embeddings if self.vectors else lib.llama_get_logits)(context), (len(tokens), self.width)
            if not values:
                raise Failure("the model has no such result")
            return np.ctypeslib.as_array(values, shape).copy()
        finally:
            lib.llama_batch_free(batch)


def nmse(found, expected):
    """Squared error relative to the expected power, in double precision."""
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    return float(((found - expected) ** 2).sum() / max((expected**2).sum(), 1e-300))


# ---------------------------------------------------------------- cases


def read_cases():
    """cases.toml as a list of complete cases: with defaults."""
    table = tomllib.loads((GOLDENS / "cases.toml").read_text())
    known = {"name", "arch", "about", "seed", "type", "with", "set", "meta", "vectors", "tokens", "source", "causal", "unread"}
    cases = []
    for case in table["case"]:
        if unknown := set(case) - known:
            raise Failure(f"cases.toml: {case.get('name')}: unknown key `{min(unknown)}`")
        cases.append({
            "name": case["name"],
            "arch": case["arch"],
            "seed": case["seed"],
            "type": case.get("type", "f32"),
            "with": case.get("with", []),
            "set": {
                key: value
                for key, value in (table.get("set", {}) | case.get("set", {})).items()
                if value != ""
            },
            "meta": case.get("meta", {}),
            "tokens": case.get("tokens", table["tokens"]),
            "source": case.get("source", []),
            "causal": case.get("causal", True),
            "vectors": case.get("vectors", False),
            "unread": case.get("unread", {}),
        })
    names = [case["name"] for case in cases]
    if twice := {name for name in names if names.count(name) > 1}:
        raise Failure(f"cases.toml: two cases are called `{min(twice)}`")
    return cases


def synth_args(case):
    """What follows `bench synth` to make the model of a case; the output path is not among it."""
    args = [case["arch"], "--seed", str(case["seed"]), "--type", case["type"]]
    for key, value in case["set"].items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        args += ["--set", f"{key}={text}"]
    for key, value in case["meta"].items():
        args += ["--meta", f"{case['arch']}.{key}={value}"]
    if case["with"]:
        args += ["--with", ",".join(case["with"])]
    return args


def add_unread(path, tensors):
    """Adds tensors to every layer that llama.cpp insists on and does not compute with."""
    from metadata_vs_llama import Gguf  # which imports this file

    gguf = Gguf(path)
    layers = range(gguf.own()["block_count"])
    name = "blk.{}.{}.weight".format
    gguf.write(path, {}, [(name(il, of), name(il, like)) for il in layers for of, like in tensors.items()])


def compute(lib, bench, case, folder):
    """Makes the model file of a case and runs it: its entry for goldens.json, and the logits."""
    path = Path(folder) / f"{case['name']}.gguf"
    args = synth_args(case)
    done = subprocess.run([*bench, "synth", *args, "-o", str(path)], capture_output=True, text=True)
    if done.returncode != 0:
        raise Failure(f"`bench synth {shlex.join(args)}` failed: {done.stderr.strip()}")
    data = path.read_bytes()
    if case["unread"]:
        add_unread(path, case["unread"])

    reference = Reference(lib, path, case["vectors"])
    try:
        tokens, causal, source = case["tokens"], case["causal"], case["source"]
        logits = reference.logits(tokens, causal, source=source)
        # How far llama.cpp is from itself; no implementation can be required to be nearer.
        noise = {"kv_f16": nmse(reference.logits(tokens, causal, kv_type="f16", source=source), logits)}
        if causal:
            noise["stepwise"] = nmse(reference.logits(tokens, causal, chunk=1, source=source), logits)
    finally:
        reference.close()
        path.unlink()
    if not np.isfinite(logits).all():
        raise Failure("the logits are not finite")
    spread = float(logits.std())
    if not SPREAD[0] <= spread <= SPREAD[1]:
        raise Failure(f"the logits have a standard deviation of {spread:.3g}, expected {SPREAD[0]} to {SPREAD[1]}")

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
        "logits_std": float(f"{spread:.3g}"),
        "noise": {key: float(f"{value:.1e}") for key, value in noise.items()},
        "settings": SETTINGS,
        "reference": reference_version(lib),
    }
    return entry, logits


# ---------------------------------------------------------------- goldens


def read_index():
    """goldens.json as entries by name; empty before the first run."""
    if not INDEX.exists():
        return {}
    return {entry["name"]: entry for entry in json.loads(INDEX.read_text())["goldens"]}


def write_index(entries):
    """One line per field and per list, so that a diff names what changed."""
    lines = []
    for entry in entries:
        fields = [f"      {json.dumps(k)}: {json.dumps(v)}" for k, v in entry.items()]
        lines.append("    {\n" + ",\n".join(fields) + "\n    }")
    INDEX.write_text('{\n  "goldens": [\n' + ",\n".join(lines) + "\n  ]\n}\n")


def difference(stored, entry, logits):
    """Why a stored golden is not the recomputed one; None if it is."""
    if stored is None:
        return "not stored"
    # Measures differ in the last digit between machines, and the same result from another version
    # is still the same golden.
    free = {"logits_std", "noise", "reference"}
    changed = [k for k in entry if k not in free and stored.get(k) != entry[k]]
    if changed:
        return "changed: " + ", ".join(changed)
    path = GOLDENS / stored["logits"]
    if not path.exists():
        return f"{path.name} is missing"
    old = np.load(path)
    if old.dtype != np.float32 or old.shape != logits.shape:
        return f"{path.name} holds {old.dtype} {list(old.shape)}, expected float32 {list(logits.shape)}"
    error = nmse(logits, old)
    limit = SAME_NMSE if entry["type"] == "f32" else entry["noise"]["kv_f16"]
    return None if error <= limit else f"the logits differ by an NMSE of {error:.1e}"


def strays(cases):
    """Stored goldens that no case names."""
    names = {case["name"] for case in cases}
    stored = {path.stem for path in GOLDENS.glob("*.npy")} | set(read_index())
    return sorted(stored - names)


def make(bench, only, check):
    cases = read_cases()
    chosen = [case for case in cases if only in (None, case["name"])]
    if not chosen:
        raise Failure(f"no case is called `{only}`; there are: {', '.join(c['name'] for c in cases)}")
    lib = load_llama_cpp()
    index = read_index()
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        for case in chosen:
            name = case["name"]
            print(f"{name:28s}", end=" ", flush=True)
            try:
                entry, logits = compute(lib, bench, case, folder)
            except Failure as failure:
                print(f"FAILED: {failure}")
                failed.append(name)
                continue
            why = difference(index.get(name), entry, logits)
            measures = f"std {entry['logits_std']:<5} noise {json.dumps(entry['noise'])}"
            if why is None:
                print(f"same      {measures}")
            elif check:
                print(f"DIFFERENT {measures}: {why}")
                failed.append(name)
            else:
                np.save(GOLDENS / entry["logits"], logits)
                index[name] = entry
                print(f"written   {measures}: {why}")
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
    print(f"{len(chosen)} cases, {len(failed)} failed")
    return 1 if failed else 0


# ---------------------------------------------------------------- single files


def run_files(paths, tokens, out):
    if out and len(paths) > 1:
        raise Failure("--out takes the logits of one --gguf file")
    lib = load_llama_cpp()
    print(json.dumps(reference_version(lib)))
    failed = 0
    for path in map(Path, paths):
        print(f"{path.stem:28s}", end=" ", flush=True)
        stored = path.with_suffix(".ref.npz")
        expected = np.load(stored) if stored.exists() else {}
        ids = tokens or [int(t) for t in expected.get("tokens", [])]
        if not ids:
            raise Failure("no tokens: give --tokens")
        causal = bool(expected.get("causal", 1))
        reference = Reference(lib, path)
        try:
            logits = reference.logits(ids, causal)
        finally:
            reference.close()
        if out:
            np.save(out, logits)
        line = f"{list(logits.shape)} std {logits.std():.3g}"
        if not tokens and "logits" in expected:
            error = nmse(logits, expected["logits"])
            ok = error <= SAME_NMSE
            failed += not ok
            line += f" NMSE {error:.2e} {'same' if ok else 'DIFFERENT'}"
        print(line)
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", help="the bench binary, e.g. target/release/bench")
    parser.add_argument("--only", metavar="NAME", help="this case alone")
    parser.add_argument("--check", action="store_true", help="compare with what is stored and write nothing")
    parser.add_argument("--gguf", nargs="+", metavar="FILE", help="run these model files instead of the cases")
    parser.add_argument("--tokens", type=lambda text: [int(t) for t in text.split(",")], help="token ids for --gguf")
    parser.add_argument("--out", metavar="FILE.npy", help="with --gguf: write the logits")
    args = parser.parse_args()
    if bool(args.bench) == bool(args.gguf):
        parser.error("give either --bench or --gguf")
    try:
        if args.gguf:
            return run_files(args.gguf, args.tokens, args.out)
        return make([os.path.abspath(args.bench)], args.only, args.check)
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
