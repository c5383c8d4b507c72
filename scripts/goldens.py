"""What scripts that make goldens and compare with them share: models in llama.cpp, cases of tests/goldens, measures.

Needs numpy, and llama-cpp-python where a model is computed.
"""

import ctypes
import json
import sys
import tomllib
from pathlib import Path

import numpy as np

from bench_server import ROOT, Failure, synth_options

GOLDENS = ROOT / "tests" / "goldens"
INDEX = GOLDENS / "goldens.json"

LOG_ERROR = 4  # GGML_LOG_LEVEL_ERROR, which the bindings do not name

# Two machines may sum in another order; a change of meaning is far above this. Where activations
# are rounded to the type of the weights, one that falls to the other side costs more: see `noise`.
SAME_NMSE = 1e-10


# ---------------------------------------------------------------- measures


def nmse(found, expected):
    """Squared error relative to the expected power, in double precision."""
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    return float(((found - expected) ** 2).sum() / max((expected**2).sum(), 1e-300))


def check_spread(logits, spread):
    """Logits outside say that a random model is too flat or too wild to tell right from wrong."""
    if not np.isfinite(logits).all():
        raise Failure("the logits are not finite")
    if not spread[0] <= logits.std() <= spread[1]:
        raise Failure(f"the logits have a standard deviation of {logits.std():.3g}, expected {spread[0]} to {spread[1]}")


def difference_of(stored, entry, path, logits, limit=SAME_NMSE):
    """Why a stored golden and its logits are not the recomputed ones; None if they are."""
    if stored is None:
        return "not stored"
    # Measures differ in the last digit between machines, and the same result from another version
    # is still the same golden.
    free = {"logits_std", "std", "noise", "reference", "made_with"}
    if changed := [key for key in entry if key not in free and stored.get(key) != entry[key]]:
        return "changed: " + ", ".join(changed)
    if not path.exists():
        return f"{path.name} is missing"
    old = np.load(path)
    if old.dtype != np.float32 or old.shape != logits.shape:
        return f"{path.name} holds {old.dtype} {list(old.shape)}, expected float32 {list(logits.shape)}"
    error = nmse(logits, old)
    return None if error <= limit else f"the logits differ by an NMSE of {error:.1e}"


def each(cases, chosen, one):
    """Prints what `one` makes of each case, some of which are chosen by name; returns the names of those that failed."""
    if unknown := set(chosen) - {case["name"] for case in cases}:
        raise Failure(f"no case is called `{min(unknown)}`; there are: {', '.join(case['name'] for case in cases)}")
    failed, cases = [], [case for case in cases if not chosen or case["name"] in chosen]
    for case in cases:
        print(f"{case['name']:28s}", end=" ", flush=True)
        try:
            print(one(case), flush=True)
        except Exception as problem:  # what a library refuses is for the reader too
            kind = "" if isinstance(problem, Failure) else f"{type(problem).__name__}: "
            print(f"FAILED: {kind}{str(problem)[:600]}", flush=True)
            failed.append(case["name"])
    print(f"{len(cases)} cases, {len(failed)} failed{': ' + ' '.join(failed) if failed else ''}")
    return failed


def splitmix(z):
    """uint64 of splitmix64 at states [n]."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


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


# ---------------------------------------------------------------- cases of tests/goldens


# What a case has if it does not say otherwise.
DEFAULTS = {"type": "f32", "with": [], "set": {}, "meta": {}, "source": [], "causal": True, "vectors": False}
DEFAULTS |= {"unread": {}}


def read_cases(folder=GOLDENS):
    """cases.toml of a folder as a list of complete cases: with defaults."""
    table = tomllib.loads((folder / "cases.toml").read_text())
    cases = []
    for case in table["case"]:
        if unknown := set(case) - set(DEFAULTS) - {"name", "arch", "about", "seed", "tokens"}:
            raise Failure(f"cases.toml: {case.get('name')}: unknown key `{min(unknown)}`")
        case = DEFAULTS | {"tokens": table["tokens"]} | case
        case["set"] = {key: value for key, value in (table.get("set", {}) | case["set"]).items() if value != ""}
        cases.append(case)
    return without_duplicates(cases)


def without_duplicates(cases):
    names = [case["name"] for case in cases]
    if twice := {name for name in names if names.count(name) > 1}:
        raise Failure(f"cases.toml: two cases are called `{min(twice)}`")
    return cases


def synth_args(case):
    """What follows `bench synth` to make the model of a case; the output path is not among it."""
    args = [case["arch"], "--seed", str(case["seed"]), "--type", case["type"]]
    args += synth_options(case["set"], {f"{case['arch']}.{key}": value for key, value in case["meta"].items()})
    return args + (["--with", ",".join(case["with"])] if case["with"] else [])


def read_index(path=INDEX):
    """goldens.json as entries by name; empty before the first run."""
    if not path.exists():
        return {}
    return {entry["name"]: entry for entry in json.loads(path.read_text())["goldens"]}


def write_index(entries, path=INDEX):
    """One line per field and per list, so that a diff names what changed."""
    lines = []
    for entry in entries:
        fields = [f"      {json.dumps(k)}: {json.dumps(v)}" for k, v in entry.items()]
        lines.append("    {\n" + ",\n".join(fields) + "\n    }")
    path.write_text('{\n  "goldens": [\n' + ",\n".join(lines) + "\n  ]\n}\n")


def strays(cases, folder=GOLDENS):
    """Stored goldens that no case names."""
    names = {case["name"] for case in cases}
    stored = {path.stem for path in folder.glob("*.npy")} | set(read_index(folder / INDEX.name))
    return sorted(stored - names)
