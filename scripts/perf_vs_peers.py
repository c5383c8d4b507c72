#!/usr/bin/env python3
"""Measures prefill and decode on processors against other programs that read the same files: docs/performance-peers.md.

A peer is a `llama-batched-bench`, of llama.cpp or of a program that has it from there: its prompt of N tokens is our prefill of N,
and what it decodes after that is our decode at that depth. The models are made by `bench synth` with random weights, as f16, and
quantised by llama-quantize. All programs use as many threads as the machine has cores, flash attention and an f16 KV cache. The
programs take turns; each ratio is the median of those of the rounds, ours over theirs. Rows that are not measured stay as they are.
Standard library only.
"""

import datetime
import itertools
import json
import os
import re
import statistics
import subprocess
import tempfile
from pathlib import Path

from bench_server import BUILT_IN, Failure, options, program, run
from perf_families import MODELS, made, processor

# The first layers of `dense`, so that a prompt of 16 384 tokens takes less than a minute.
MODELS["shallow"] = (MODELS["dense"][0], "qwen3", MODELS["dense"][2] | {"block_count": 6}, "")
# By model: types, depths that one sequence is decoded at, and whether many sequences are.
CASES = {
    "dense": (["Q4_K_M", "Q8_0", "IQ4_XS", "Q2_K", "Q3_K_M"], [512, 4096], True),
    "shallow": (["Q4_K_M", "Q8_0"], [16384], False),
    "experts": (["Q4_K_M", "Q8_0"], [512, 4096], True),
    "windows": (["Q4_K_M"], [512], False),
    "latent": (["Q4_K_M"], [512], False),
    "sinks": (["Q4_K_M"], [512], False),
}
N_ANSWER, N_SEQUENCES = 48, 8
# One round is enough of depths that take minutes.
DEEP, DEEP_ROUNDS = 16384, 1
ROW = re.compile(r"^\|" + r"\s*([\d.]+)\s*\|" * 10 + r"\s*$", re.MULTILINE)


def parse():
    parser = options(__doc__)
    parser.add_argument("--peer", action="append", required=True, metavar="NAME=PROGRAM [OPTIONS]", help="a llama-batched-bench; may be repeated")
    parser.add_argument("--llama-quantize", required=True)
    parser.add_argument("--models", default=",".join(CASES), help="default: all")
    parser.add_argument("--types", help="default: those of each model")
    parser.add_argument("--depths", help="of those of each model; default: all")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--keep", metavar="FOLDER", help="where models are left for the next run; default: they are removed")
    parser.add_argument("--out", default="docs", help="folder of the page; default: docs")
    args = parser.parse_args()
    args.peers = {}
    for peer in args.peer:
        name, equals, command = peer.partition("=")
        if not equals or not command:
            parser.error(f"--peer {peer}: expected NAME=PROGRAM")
        words = command.split()
        args.peers[name] = [str(Path(words[0]).absolute()), *words[1:]]
    for name in args.models.split(","):
        if name not in CASES:
            parser.error(f"there is no model `{name}`; found {', '.join(CASES)}")
    return args


def ours(bench, model, depth, sequences):
    """Tokens per second of prefill and of decode."""
    words = ["-p", depth, "-n", N_ANSWER, "-d", depth, "-s", sequences, "-r", 1, "--threads", os.cpu_count(), "--json"]
    found = json.loads(run([bench, "perf", "-m", model, *words], timeout=None))["runs"][0]
    return found["prefill"][0]["tokens_per_second"], found["decode"][0]["tokens_per_second"]


def theirs(command, model, depth, sequences, folder):
    """Tokens per second of prefill and of decode. The sequences share their prompt, so that each is decoded at this depth. Logs go into the folder."""
    positions = depth + N_ANSWER * sequences + 64
    words = ["-c", positions * (sequences if sequences > 1 else 1), "-npp", depth, "-ntg", N_ANSWER, "-npl", sequences, "-pps", "-fa", "on",
             "-t", os.cpu_count(), "-b", 2048, "-ub", 512]
    done = subprocess.run([*command, "-m", model, *map(str, words)], capture_output=True, text=True, cwd=folder)
    rows = ROW.findall(done.stdout + done.stderr)
    if not rows:
        lines = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()
        raise Failure(f"{Path(command[0]).name}: exit code {done.returncode}, {lines[-1][:200]}")
    return float(rows[-1][5]), float(rows[-1][7])


def measured(args, model, depth, sequences):
    """By peer: medians of both programs and of their ratio with its range, for prefill and for decode; or its failure."""
    speeds = {name: [] for name in ["", *args.peers]}
    failed = {}
    for i in range(min(args.rounds, DEEP_ROUNDS) if depth >= DEEP else args.rounds):
        # Who is first changes.
        order = list(speeds)[i % len(speeds):] + list(speeds)[:i % len(speeds)]
        for name in order:
            if name in failed:
                continue
            try:
                found = theirs(args.peers[name], model, depth, sequences, Path(model).parent) if name else ours(args.bench, model, depth, sequences)
                speeds[name].append(found)
            except Failure as failure:
                if not name:
                    raise
                failed[name] = str(failure)
    out = {}
    for name in args.peers:
        if name in failed:
            out[name] = failed[name]
            continue
        pairs = list(zip(speeds[""], speeds[name]))
        cells = []
        for at in range(2):
            ratios = [mine[at] / other[at] for mine, other in pairs]
            cells.append((statistics.median(mine[at] for mine, _ in pairs), statistics.median(other[at] for _, other in pairs),
                          statistics.median(ratios), min(ratios), max(ratios)))
        out[name] = cells
    return out


HEAD = "| model | type | case | other | bench, tokens/s | other, tokens/s | ratio | measured | machine |"


def key(line):
    """What a row is about: model, type, case, program, machine."""
    cells = [cell.strip() for cell in line.split("|")]
    return (*cells[1:5], cells[-2])


def page(args, rows, versions):
    return f"""# Against other programs on a processor

Written by `scripts/perf_vs_peers.py` (`make perf-vs-peers`); do not edit. `bench perf` and the `llama-batched-bench` of the others take turns.
Speeds and ratios are medians; the range of the ratios is in brackets. The ratio is `bench` over the other. The models have random weights;
llama-quantize made the files. All use flash attention, an f16 KV cache and one thread for each core. "Decode at 4096" is one sequence with 4096
tokens in the cache; "8 sequences" have 512 tokens each. The models are those of [performance-families.md](performance-families.md); `shallow` is
`dense` with 6 layers.
"Measured" has the day and the commit. Rows of other machines stay as they are.

`llama-batched-bench` of ik_llama.cpp reads token 0 everywhere, so that all tokens of a batch need the same experts; that of llama.cpp reads random
tokens, and so does `bench perf`. Since 2026-12-01 it is built with random tokens (`std::rand() % llama_n_vocab(model)` in the two calls of
`common_batch_add` that had 0).

{HEAD}
|---|---|---|---|--:|--:|--:|---|---|
{chr(10).join(rows.values())}

## How

The programs of the last measurement, on {processor()}:

| | |
|---|---|
{chr(10).join(f"| {name} | {version} |" for name, version in versions.items())}
"""


def version_of(command):
    done = subprocess.run([command[0], "--version"], capture_output=True, text=True)
    found = re.search(r"version: .*", done.stdout + done.stderr)
    options = " ".join(command[1:])
    return (found.group(0).removeprefix("version: ") if found else "unknown") + (f", `{options}`" if options else "")


def main():
    args = parse()
    path = Path(args.out, "performance-peers.md")
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    table = lines[lines.index(HEAD) + 2:] if HEAD in lines else []
    rows = {key(line): line for line in itertools.takewhile(lambda line: line.startswith("| "), table)}
    about = run([args.bench, "--version"])
    commit = re.search(r"^commit *(\S{1,8})", about, re.MULTILINE)
    computes = re.search(r"^computes *([^:]*)", about, re.MULTILINE)
    versions = {"bench": f"{about.splitlines()[0]}, computes with {computes.group(1)}"}
    versions |= {name: version_of(command) for name, command in args.peers.items()}
    when = f"{datetime.date.today().isoformat()}, {commit.group(1) if commit else 'unknown'}"
    with tempfile.TemporaryDirectory() as scratch:
        folder = os.path.abspath(args.keep or scratch)
        os.makedirs(folder, exist_ok=True)
        for name in args.models.split(","):
            types, depths, many = CASES[name]
            for ty in args.types.split(",") if args.types else types:
                model = made(args, folder, name, ty, ["--vocab", BUILT_IN])
                asked = [int(depth) for depth in args.depths.split(",")] if args.depths else depths
                cases = [(depth, 1) for depth in depths if depth in asked] + ([(512, N_SEQUENCES)] if many else [])
                for depth, sequences in cases:
                    for peer, found in measured(args, model, depth, sequences).items():
                        decode = f"decode, {sequences} sequences" if sequences > 1 else f"decode at {depth}"
                        names = [f"prefill {depth}", decode] if sequences == 1 else [None, decode]
                        for what, cell in zip(names, found if isinstance(found, list) else [found] * 2):
                            if what is None:
                                continue
                            text = cell if isinstance(cell, str) else "{:.4g} | {:.4g} | {:.2f} ({:.2f}–{:.2f})".format(*cell)
                            text = f"| | fails: {text}" if isinstance(cell, str) else text
                            line = f"| {name} | {ty} | {what} | {peer} | {text} | {when} | {processor()} |"
                            rows[key(line)] = line
                            print(line, flush=True)
                    path.write_text(page(args, rows, versions), "utf-8")


if __name__ == "__main__":
    program(main)
