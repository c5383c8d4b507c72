#!/usr/bin/env python3
"""Changes one piece of metadata after another and compares what becomes of it here and in llama.cpp.

Needs: Python 3.11, `pip install numpy gguf`, and without --stored `pip install llama-cpp-python`

Every golden of tests/goldens is made, and each change of scripts/metadata_changes.py is applied to its
file. What llama.cpp makes of it is stored in tests/goldens/metadata: `refused` (or nothing finite), the `same` logits as
without the change, or `other` logits, of which a row of digests.npy is kept (see `digest`). With --stored
what is there is compared and llama.cpp is not needed. tests/it/metadata.rs compares a part of it in
`make test`.

A change is then one of
  equal        both compute the same, which is not what they compute without it
  indifferent  both compute what they compute without it
  refused      one of them refuses the file, or both
  warned       the results differ, and our warnings name a key of the change
  listed       the results differ, and tests/goldens/metadata/differences.toml says why ours are kept
  silent       the results differ: the run fails
"""

import collections
import fnmatch
import json
import os
import pickle
import re
import subprocess
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import goldens
import metadata_changes
from bench_server import Failure, options, program
from gguf_file import Gguf, add_unread
from goldens import nmse

STORE = goldens.GOLDENS / "metadata"
DIFFERENCES = STORE / "differences.toml"

# What is stored of ours: refused although llama.cpp computes it, another result (warned or listed), and
# what `make test` compares whatever its sample is, because it once was silently different.
OURS = ["ours_refused", "ours_other", "mended"]
CLASSES = ["equal", "indifferent", "refused", "warned", "listed", "silent"]

# Two results are the same below this NMSE, or where it is no more than the model's own distance
# without a change (tables of GELU in half precision) or a small part of what the change does.
SAME = 1e-9
LIMIT = 1e-6
N_DIGEST = 8

# ---------------------------------------------------------------- digests


def digest(logits):
    """float64 [N_DIGEST]: sums of the logits with signs of their own, which keep the NMSE of two results.

    Value `i` has in sum `k` the sign of bit `k` of splitmix64(i), positive if it is set.
    """
    flat = logits.astype(np.float64).ravel()
    with np.errstate(over="ignore"):
        z = goldens.splitmix((np.arange(flat.size, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15))
    sums = [(np.where((z >> np.uint64(k)) & np.uint64(1), flat, -flat)).sum() for k in range(N_DIGEST)]
    return np.array(sums) / max(flat.size, 1) ** 0.5


# ---------------------------------------------------------------- the two programs


def llama_results(lib, gguf, model, changes, folder):
    """What llama.cpp makes of each change: logits, or None if it refuses. An abort ends only a child."""
    results = []
    while len(results) < len(changes):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            answer_all(lib, gguf, model, changes[len(results) :], folder, os.fdopen(writer, "wb"))
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            while len(results) < len(changes):
                try:
                    results.append(pickle.load(pipe))
                except (EOFError, pickle.UnpicklingError):
                    results.append(None)
                    break
        os.waitpid(child, 0)
    return results


def answer_all(lib, gguf, model, changes, folder, pipe):
    """The child: sends one result per change and ends without cleaning up."""
    os.environ["GGML_NO_BACKTRACE"] = "1"
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    path = Path(folder) / f"llama-{os.getpid()}.gguf"
    for change in changes:
        gguf.write(path, change)
        try:
            reference = goldens.Reference(lib, path, model["vectors"])
            # llama.cpp takes some encoders for causal, and their files have no key that says otherwise.
            causal = None if model["causal"] or "attention.causal" in change else False
            logits = reference.logits(model["tokens"], causal)
            reference.close()
        except Failure:
            logits = None
        pickle.dump(logits, pipe)
        pipe.flush()
        path.unlink()
    os._exit(0)


def our_result(bench, gguf, model, change, folder):
    """What ours makes of a change: (logits or None, what it wrote to stderr)."""
    base = Path(folder) / f"ours-{abs(hash(metadata_changes.name(change)))}"
    path, out = base.with_suffix(".gguf"), base.with_suffix(".npy")
    gguf.write(path, change)
    args = [bench, "logits", "-m", path, "--tokens", ",".join(map(str, model["tokens"])), "-o", out, "--threads", "1"]
    done = subprocess.run(args, capture_output=True, text=True)
    path.unlink()
    if done.returncode != 0:
        return None, done.stderr
    logits = np.load(out)
    out.unlink()
    return logits, done.stderr


# ---------------------------------------------------------------- models


def golden_models(only, bench, folder):
    """The goldens in f32, each with its file. Quantised ones have the metadata of one of these."""
    cases = {case["name"]: case for case in goldens.read_cases()}
    for entry in goldens.read_index().values():
        if entry["type"] != "f32" or (only and entry["name"] not in only):
            continue
        path = Path(folder) / f"{entry['name']}.gguf"
        subprocess.run([bench, "synth", *entry["synth"], "-o", path], check=True, capture_output=True)
        case = cases[entry["name"]]
        if case["unread"]:
            add_unread(path, case["unread"])
        yield {"name": entry["name"], "tokens": entry["tokens"], "vectors": case["vectors"], "causal": case["causal"]}, Gguf(path)
        path.unlink()


def changes_of(gguf):
    own = gguf.own()
    heads = own.get("attention.head_count", 1)
    heads = heads if isinstance(heads, int) else max(heads)
    dims = own.get("attention.key_length", own["embedding_length"] // max(heads, 1))
    return [{}, *metadata_changes.all_changes(own, own.get("rope.dimension_count", dims))]


# ---------------------------------------------------------------- results


def summarise(changes, results):
    """What is stored of a model: by change `same`, `refused` or the digest of other logits."""
    plain = results[0]
    if plain is None:
        raise Failure("llama.cpp refuses the unchanged model")
    summary = {"": digest(plain)}
    for change, logits in list(zip(changes, results))[1:]:
        if logits is None or not np.isfinite(logits).all():
            word = "refused"
        elif logits.shape == plain.shape and nmse(logits, plain) <= 1e-15:
            word = "same"
        else:
            word = digest(logits)
        summary[metadata_changes.name(change)] = word
    return summary


def read_results():
    """(summaries by model, what was ours of each, the version of llama.cpp) as `write_results` stored them."""
    if not (STORE / "results.json").exists():
        return {}, {}, None
    stored = json.loads((STORE / "results.json").read_text())
    digests = np.load(STORE / "digests.npy").astype(np.float64)
    names, summaries, ours = stored["changes"], {}, {}
    for model, kept in stored["models"].items():
        rows = iter(digests[kept["row"] :])
        summary = {"": next(rows)} | {names[i]: "same" for i in kept["same"]} | {names[i]: "refused" for i in kept["refused"]}
        summaries[model] = summary | {names[i]: next(rows) for i in kept["other"]}
        ours[model] = {kind: [names[i] for i in kept[kind]] for kind in OURS}
    return summaries, ours, stored["reference"]


def write_results(summaries, ours, version):
    """results.json with one line per change and a few per model, and digests.npy: the rows of a model from
    `row` on are those of its plain logits and of `other`."""
    names = sorted({name for summary in summaries.values() for name in summary if name})
    number = {name: i for i, name in enumerate(names)}
    models, rows = [], []
    for model, summary in sorted(summaries.items()):
        kept = {"row": len(rows), "same": [], "refused": [], "other": []}
        rows.append(summary[""])
        for name, word in sorted(summary.items()):
            if name and isinstance(word, str):
                kept[word].append(number[name])
            elif name:
                kept["other"].append(number[name])
                rows.append(word)
        kept |= {kind: sorted(number[name] for name in ours.get(model, {}).get(kind, []) if name in number) for kind in OURS}
        compact = [f"      {json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in kept.items()]
        models.append(f"    {json.dumps(model)}: {{\n" + ",\n".join(compact) + "\n    }")
    lines = ",\n".join(f"    {json.dumps(name)}" for name in names)
    np.save(STORE / "digests.npy", np.array(rows, "<f4"))
    head = f'{{\n  "reference": {json.dumps(version)},\n  "changes": [\n{lines}\n  ],\n  "models": {{\n'
    (STORE / "results.json").write_text(head + ",\n".join(models) + "\n  }\n}\n")


def read_differences():
    """Entries of differences.toml with a count of what each explains."""
    entries = tomllib.loads(DIFFERENCES.read_text())["difference"]
    for entry in entries:
        if unknown := set(entry) - {"archs", "changes", "reason"}:
            raise Failure(f"{DIFFERENCES.name}: unknown key `{min(unknown)}`")
        entry["used"] = 0
    return entries


def reason(entries, arch, change):
    """The entry that lists a difference."""
    for entry in entries:
        of_arch = any(fnmatch.fnmatchcase(arch, p) for p in entry["archs"])
        if of_arch and any(fnmatch.fnmatchcase(change, p.replace("[", "[[]")) for p in entry["changes"]):
            entry["used"] += 1
            return entry
    return None


def classify(change, word, plain, ours, our_plain, warnings):
    """The class of a change but for `listed`, and a measure to print."""
    is_refused = isinstance(word, str) and word == "refused"
    if is_refused or ours is None:
        return "refused", "ours" if not is_refused else "both" if ours is None else "llama.cpp"
    is_same = isinstance(word, str)
    reference = plain if is_same else word
    found, our_plain = digest(ours), digest(our_plain)
    reaction = nmse(reference, plain)
    error, own = nmse(found, reference), nmse(our_plain, plain)
    if error <= LIMIT and (error <= max(SAME, 20 * own) or error <= 1e-3 * reaction):
        return ("indifferent" if is_same else "equal"), f"{error:.0e}"
    text = f"{error:.1e}, llama.cpp's reaction {reaction:.1e}, ours {nmse(found, our_plain):.1e}"
    if any(f"`{key}`" in warnings or f".{key}`" in warnings for key in change):
        return "warned", text
    return "silent", text


# ---------------------------------------------------------------- runs


def compare(bench, model, gguf, summary, entries, folder, threads):
    """Rows (class, change, measure) of a model."""
    changes = {name: metadata_changes.parse(name) if name else {} for name in summary}
    with ThreadPoolExecutor(threads) as pool:
        found = dict(zip(changes, pool.map(lambda c: our_result(bench, gguf, model, c, folder), changes.values())))
    our_plain, _ = found[""]
    if our_plain is None:
        raise Failure(f"ours refuses the unchanged model: {found[''][1]}")
    if (error := nmse(digest(our_plain), summary[""])) > LIMIT:
        raise Failure(f"the unchanged model differs by an NMSE of {error:.1e}")
    rows = []
    for name, word in summary.items():
        if not name:
            continue
        ours, warnings = found[name]
        kind, measure = classify(changes[name], word, summary[""], ours, our_plain, warnings)
        if kind == "silent" and reason(entries, gguf.arch, name):
            kind = "listed"
        rows.append((kind, name, measure if kind != "refused" or measure != "ours" else f"ours: {last_line(warnings)}"))
    return rows


def last_line(text):
    lines = [line for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines() if line.strip()]
    return lines[-1] if lines else ""


def kept_of_ours(rows, before):
    """What is stored of ours: see `OURS`."""
    other = [name for kind, name, _ in rows if kind in ("warned", "listed", "silent")]
    silent = [name for kind, name, _ in rows if kind == "silent"]
    return {
        "ours_refused": [name for kind, name, measure in rows if kind == "refused" and measure.startswith("ours")],
        "ours_other": other,
        "mended": sorted({*before.get("mended", []), *silent}),
    }


def run(args):
    bench = args.bench
    lib = None if args.stored else goldens.load_llama_cpp()
    summaries, ours, version = read_results()
    version = goldens.reference_version(lib) if lib else version
    entries, counts, failed = read_differences(), collections.Counter(), []
    with tempfile.TemporaryDirectory() as folder:
        for model, gguf in golden_models(args.only, bench, folder):
            name = model["name"]
            try:
                if lib:
                    changes = changes_of(gguf)
                    summaries[name] = summarise(changes, llama_results(lib, gguf, model, changes, folder))
                if name not in summaries:
                    raise Failure("no results are stored")
                rows = compare(bench, model, gguf, summaries[name], entries, folder, args.threads)
            except Failure as failure:
                failed.append(f"{name}: {failure}")
                continue
            ours[name] = kept_of_ours(rows, ours.get(name, {}))
            of_model = collections.Counter(kind for kind, _, _ in rows)
            counts += of_model
            print(f"{name:28s} " + "  ".join(f"{kind} {of_model[kind]}" for kind in CLASSES), flush=True)
            for kind, change, measure in rows:
                if kind == "silent" or kind in args.list:
                    print(f"  {kind}  {change}  ({measure})")
            failed += [f"{name}: {change}" for kind, change, _ in rows if kind == "silent"]
    write_results(summaries, ours, version)
    print(f"{counts.total()} changes: " + ", ".join(f"{counts[kind]} {kind}" for kind in CLASSES))
    if not args.only:
        failed += [f"differences.toml: nothing is left of {e['archs']} {e['changes']}" for e in entries if not e["used"]]
    for line in failed:
        print(f"FAILED {line}")
    return 1 if failed else 0


def main():
    parser = options(__doc__, None)
    parser.add_argument("--stored", action="store_true", help="compare with the stored results; llama.cpp is not run")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[], metavar="NAME,NAME", help="these models alone")
    parser.add_argument("--list", type=lambda text: text.split(","), default=[], metavar="CLASS", help="print the changes of these classes")
    parser.add_argument("--threads", type=int, default=2, help="how many of ours run at a time")
    return run(parser.parse_args())


if __name__ == "__main__":
    program(main)
