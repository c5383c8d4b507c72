#!/usr/bin/env python3
"""Measures how much of the memory's bandwidth decoding reads, by type of weights: docs/performance-types.md.

Models of random weights are made by `bench synth` and `bench convert`. A token reads all weights of `dense`, and those of the experts that
it uses of `experts`. The bandwidth is what `bench perf` measures. The instruction
sets of a program that has several (`GGML_MARCH=all`) are measured one after another with --march. Each figure is the median of the rounds.
Rows that are not measured stay as they are. Standard library only.
"""

import datetime
import itertools
import json
import os
import statistics
import tempfile
from pathlib import Path

from bench_server import BUILT_IN, options, program, run
from perf_families import made, processor

TYPES = "f16,bf16,q8_0,q6_k,q5_k_s,q4_k_s,q4_0,iq4_xs,iq4_nl,mxfp4"
N_ANSWER = 32
HEAD = "| model | type | computes with | decode, tokens/s | read, GB/s | share of the bandwidth | measured | machine |"


def parse():
    parser = options(__doc__)
    parser.add_argument("--models", default="dense,experts", help="default: dense,experts")
    parser.add_argument("--types", default=TYPES, help=f"default: {TYPES}")
    parser.add_argument("--march", default="", help="instruction sets, as BENCH_MARCH names them; default: the one that the program chooses")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--keep", metavar="FOLDER", help="where models are left for the next run; default: they are removed")
    parser.add_argument("--out", default="docs", help="folder of the page; default: docs")
    return parser.parse_args()


def of_type(args, folder, name, ty):
    plain = made(args, folder, name, "f16", ["--vocab", BUILT_IN])
    path = os.path.join(folder, f"{name}-{ty}.gguf")
    if ty == "f16":
        return plain
    if not os.path.exists(path):
        run([args.bench, "convert", plain, path, "--type", ty], timeout=None)
    return path


def measured(args, model, march):
    """Tokens and bytes per second, and their share of the bandwidth; and what computed."""
    environment = os.environ | ({"BENCH_MARCH": march} if march else {})
    words = ["-p", 16, "-n", N_ANSWER, "-d", 64, "-r", 2, "--threads", os.cpu_count(), "--json"]
    found = json.loads(run([args.bench, "perf", "-m", model, *words], timeout=None, env=environment))["runs"][0]["decode"][0]
    about = run([args.bench, "--version"], env=environment)
    computes = next(line for line in about.splitlines() if line.startswith("computes")).split()[1].rstrip(":")
    return found["tokens_per_second"], found["bytes_per_second"] / 1e9, found["share_of_bandwidth"], computes


def page(rows):
    return f"""# Decoding and the bandwidth of memory

Written by `scripts/perf_types.py` (`make perf-types`); do not edit. One sequence is decoded at a depth of 64 tokens. "Share" is the bytes of
weights and of the KV cache that it reads per second, over what as many threads read when they do nothing else (`bench perf`). Above 1, the
processor's caches hold a part of the weights. The types are those of `bench convert --type`; the models are those of
[performance-families.md](performance-families.md), with random weights. "Native" is a program for the instructions of the machine alone, others
are sets of a program that has several. The bandwidth of a shared machine can change between its measurement and that of decoding.

{HEAD}
|---|---|---|--:|--:|--:|---|---|
{chr(10).join(rows.values())}
"""


def key(line):
    """What a row is about: model, type, instruction set, machine."""
    cells = [cell.strip() for cell in line.split("|")]
    return (*cells[1:4], cells[-2])


def main():
    args = parse()
    path = Path(args.out, "performance-types.md")
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    table = lines[lines.index(HEAD) + 2:] if HEAD in lines else []
    rows = {key(line): line for line in itertools.takewhile(lambda line: line.startswith("| "), table)}
    with tempfile.TemporaryDirectory() as scratch:
        folder = os.path.abspath(args.keep or scratch)
        os.makedirs(folder, exist_ok=True)
        for name, ty in itertools.product(args.models.split(","), args.types.split(",")):
            model = of_type(args, folder, name, ty)
            for march in args.march.split(","):
                found = [measured(args, model, march) for _ in range(args.rounds)]
                speed, read, share = (statistics.median(values) for values in list(zip(*found))[:3])
                line = f"| {name} | {ty} | {found[0][3]} | {speed:.4g} | {read:.3g} | {share:.2f} | {datetime.date.today().isoformat()} | {processor()} |"
                rows[key(line)] = line
                print(line, flush=True)
                path.write_text(page(rows), "utf-8")
            if not args.keep and ty != "f16":
                os.remove(model)


if __name__ == "__main__":
    program(main)
