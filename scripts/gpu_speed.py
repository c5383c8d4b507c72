#!/usr/bin/env python3
"""Decode and prefill speed of synthesised models on a device, against llama.cpp's library: a table in Markdown.
Called by scripts/gpu_check.sh, which builds what is compared."""
import argparse, json, os, shlex, sys, time

from bench_server import Failure, run, synth_options

MODELS = {
    "dense": ("llama", {"n_embd": 4096, "n_head": 32, "n_head_kv": 8, "n_ff": 14336, "vocab_size": 128256, "rope_base": 500000.0}, 32),
    "moe": ("qwen3moe", {"n_embd": 2048, "n_head": 32, "n_head_kv": 4, "d_head": 128, "d_head_v": 128, "n_rot": 128,
                         "n_expert": 128, "n_expert_used": 8, "n_ff_exp": 768, "vocab_size": 151936, "rope_base": 1000000.0}, 48),
    "tiny": ("llama", {"n_embd": 256, "n_head": 4, "n_head_kv": 2, "n_ff": 512, "vocab_size": 512, "rope_base": 10000.0}, 2),
}
SEQUENCES = [1, 8, 64]
PROMPT, N = 512, 32


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ["bench", "llama", "library", "device", "work", "types", "models"]:
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--bandwidth", type=float, default=0, help="of the card's memory, GB/s")
    parser.add_argument("--until", type=float, default=1e9, help="seconds after which no model is started")
    args = parser.parse_args()
    began = time.monotonic()

    print("| model | pass | tokens/s | llama.cpp | ratio | share of bandwidth |\n|---|---|--:|--:|--:|--:|")
    wrong = []
    for kind in args.models.split():
        arch, values, whole = MODELS[kind]
        layers = min(args.layers, whole) if args.layers < 32 else whole
        for ty in args.types.split():
            name = f"{kind} {ty}, {layers} of {whole} layers"
            if time.monotonic() - began > args.until:
                wrong.append(f"{name}: not started for lack of time")
                continue
            model = os.path.join(args.work, "speed.gguf")
            try:
                values = {**values, "block_count": layers, "n_ctx_train": 32768, "rms_eps": 1e-5}
                bench = shlex.split(args.bench)
                run([*bench, "synth", arch, "--type", ty, "--with", "output", *synth_options(values), "-o", model, "--force"], timeout=None)
                placed = ["--backend", args.library] if args.library != "-" else []
                ours = json.loads(run([*bench, "perf", "-m", model, "--json", "--device", args.device, *placed, "-p", PROMPT,
                                      "-n", N, "-s", ",".join(map(str, SEQUENCES)), "-r", 3], timeout=None))["runs"][0]
                layers_there = 0 if args.device == "none" else 999
                theirs = json.loads(run([*shlex.split(args.llama), model, args.library, layers_there, PROMPT, N, *SEQUENCES], timeout=None))
            except (Failure, KeyError, ValueError) as error:
                wrong.append(f"{name}: {error}")
                continue
            rows = [("prefill", ours["prefill"][0]["tokens_per_second"], theirs["prefill"], None)]
            for found in ours["decode"]:
                n = found["sequences"]
                rows.append((f"decode, {n} sequences", found["tokens_per_second"], theirs[f"decode {n}"], found["bytes_per_second"]))
            for what, mine, other, read in rows:
                share = f"{read / args.bandwidth / 1e7:.0f} %" if read and args.bandwidth else "-"
                print(f"| {name} | {what} | {mine:.1f} | {other:.1f} | {mine / other:.2f} | {share} |", flush=True)
    print("\n".join(wrong), file=sys.stderr)
    sys.exit(bool(wrong))


main()
