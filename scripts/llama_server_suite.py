#!/usr/bin/env python3
"""llama-server's own tests, unmodified, against `bench serve`.

Needs scripts/requirements-llama-server-suite.txt; `make llama-server-suite` installs it. Fetches the sources that
llama-cpp-python carries, of which nothing is stored in this repository, makes random models of small size, and runs the tests
with scripts/llama_server_suite/conftest.py in place of the suite's. scripts/llama_server_suite.toml lists the tests that are not
run and those that fail, with reasons. A failure that is not listed, a listed one that passes, and an entry that no test matches
are errors.
"""

import collections
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib

from bench_server import free_port, options

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
WORK = os.path.join(ROOT, "target", "llama-server-suite")
PACKAGE = "llama-cpp-python==0.3.36"
PARTS = ["tools/server/tests", "models"]


def run(command, **kwargs):
    return subprocess.run([str(word) for word in command], check=True, **kwargs)


def fetch():
    """The folder of llama.cpp's sources with the tests."""
    out = os.path.join(WORK, PACKAGE.replace("==", "-"))
    if os.path.isdir(out):
        return out
    print(f"fetching {PACKAGE}")
    with tempfile.TemporaryDirectory(dir=WORK) as folder:
        # Without isolation the build backend is missing, so pip ends once it has unpacked the sources, and it is told to
        # leave them. Building them would take long.
        ended = subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--no-build-isolation",
             "--no-clean", "--dest", folder, PACKAGE],
            env={**os.environ, "TMPDIR": folder}, capture_output=True, text=True)
        found = [at for at, folders, _ in os.walk(folder) if at.endswith("vendor/llama.cpp") and "tools" in folders]
        if not found:
            sys.exit(f"{PACKAGE} could not be fetched:\n{ended.stderr[-2000:]}")
        part = out + ".part"
        shutil.rmtree(part, ignore_errors=True)
        for name in PARTS:
            shutil.copytree(os.path.join(found[0], name), os.path.join(part, name))
        os.rename(part, out)
    return out


def make_models(bench, source, folder):
    """The models that stand in for those of the suite; architecture and options of each."""
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    vocabulary = os.path.join(ROOT, "models", "tiny-chat.gguf")
    # Flat logits, so that texts vary with the seed.
    size = ["context_length=8192", "block_count=8", "embedding_length=128", "feed_forward_length=512", "logit_scale=50"]
    size = [word for pair in size for word in ("--set", pair)]
    gap = zip(("pre", "suf", "mid", "rep", "sep"), range(700, 705))
    gap = [word for name, token in gap for word in ("--meta", f"tokenizer.ggml.fim_{name}_token_id={token}")]
    bert = os.path.join(source, "models", "ggml-vocab-bert-bge.gguf")
    models = {
        "text": ["granite", "--vocab", vocabulary, *size],
        "infill": ["granite", "--vocab", vocabulary, *size, *gap],
        "vectors": ["bert", "--vocab", bert, "--set", "context_length=512"],
    }
    for name, (arch, *options) in models.items():
        run([bench, "synth", arch, "-o", os.path.join(folder, name + ".gguf"), *options], stdout=subprocess.DEVNULL)
    return models


def model_names(tests):
    """The names of models that the tests send, whatever is served."""
    names = set()
    for file in os.listdir(tests):
        if file.endswith(".py"):
            with open(os.path.join(tests, file), encoding="utf-8") as text:
                names.update(re.findall(r'\bmodel(?:=|": )"([^"]+)"', text.read()))
    return sorted(names)


def run_tests(bench, source, folder, models, only, absent):
    """The outcomes by test."""
    tests = os.path.join(source, "tools", "server", "tests")
    shutil.copy(os.path.join(HERE, "llama_server_suite", "conftest.py"), os.path.join(tests, "conftest.py"))
    results = os.path.join(folder, "results.jsonl")
    files = [name for name in sorted(os.listdir(os.path.join(tests, "unit"))) if name.startswith("test_")]
    files = [os.path.join("unit", name) for name in files if name not in absent and only in name]
    if not files:
        sys.exit(f"no file of tests has `{only}` in its name")
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", "--no-header", "-m", "not slow", *files],
        cwd=tests, stdout=open(os.path.join(folder, "pytest.log"), "w"), stderr=subprocess.STDOUT,
        env={**os.environ, "SUITE_BENCH": bench, "SUITE_MODELS": folder, "SUITE_RESULTS": results,
             "SUITE_STAND_INS": json.dumps(models),
             "SUITE_NAMES": "\n".join(model_names(os.path.join(tests, "unit"))),
             "PORT": str(free_port()), "NO_PROXY": "127.0.0.1,localhost", "PYTHONDONTWRITEBYTECODE": "1"})
    outcomes = {}
    if os.path.exists(results):
        with open(results, encoding="utf-8") as file:
            for line in map(json.loads, file):
                outcomes[line["test"]] = (line["outcome"], line["why"])
    if not outcomes:
        sys.exit(f"no test ran: see {folder}/pytest.log")
    return outcomes


def matches(pattern, test):
    """`*` stands for any characters."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), test) is not None


def main():
    parser = options(__doc__)
    parser.add_argument("--only", default="", help="run the files with this in their name; entries of others are not checked")
    args = parser.parse_args()
    bench = str(args.bench)
    os.makedirs(WORK, exist_ok=True)
    with open(os.path.join(HERE, "llama_server_suite.toml"), "rb") as file:
        listed = tomllib.load(file)
    source = fetch()
    folder = os.path.join(WORK, "run")
    models = make_models(bench, source, folder)
    outcomes = run_tests(bench, source, folder, models, args.only, listed["absent"])

    faults, used = [], set()
    counts = collections.defaultdict(collections.Counter)
    for test, (outcome, why) in outcomes.items():
        own = [pattern for pattern in listed["differs"] if matches(pattern, test)]
        used.update(own)
        kind = "listed" if outcome == "failed" and own else outcome
        counts[test.split("::")[0]][kind] += 1
        if kind == "failed":
            faults.append(f"failed and is not listed: {test}\n    {why.strip().splitlines()[-1] if why.strip() else ''}")
        elif outcome == "passed" and own:
            faults.append(f"passed although it is listed: {test}")
    for pattern in listed["differs"]:
        if pattern not in used and args.only in pattern.split("::")[0]:
            faults.append(f"no test that ran matches the entry {pattern}")
    kinds = ("passed", "listed", "skipped", "failed")
    print(f"{'':32}" + "".join(f"{kind:>9}" for kind in kinds))
    for file, of_file in sorted(counts.items()):
        print(f"{file:32}" + "".join(f"{of_file[kind]:9}" for kind in kinds))
    total = sum(counts.values(), collections.Counter())
    print(f"{'all':32}" + "".join(f"{total[kind]:9}" for kind in kinds))
    print(f"not run, as scripts/llama_server_suite.toml says: {', '.join(sorted(listed['absent']))}")
    for fault in faults:
        print(fault)
    sys.exit(1 if faults else 0)


main()
