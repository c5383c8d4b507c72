#!/usr/bin/env python3
"""Measures speculative decoding of this server and of llama-server, on the same files and prompts: the table of docs/speculation.md.

The model is a qwen3 of random weights in q4_k, with a second one that has its token table, its first layer and its head: a draft
model. In the model itself the matrices that end the other layers are scaled down: `--scale` sets how often the draft model is right.
Sampled texts of random weights are nearly random, repeated ones are of one token that a bias makes the likeliest. The servers take
turns; ratios are those of each to itself without drafts. Needs numpy and gguf.
"""

import os
import statistics
import tempfile
from pathlib import Path

from bench_server import BUILT_IN, Failure, Server, llama_server, options, program, run, synth_options

from gguf_file import Gguf

SIZES = {
    "0.5 billion": {"block_count": 28, "n_embd": 1024, "n_ff": 3072, "n_head": 16, "n_head_kv": 8, "d_head": 128, "d_head_v": 128, "n_rot": 128},
    "10 million": {"block_count": 6, "n_embd": 256, "n_ff": 1024, "n_head": 4, "n_head_kv": 2, "d_head": 64, "d_head_v": 64, "n_rot": 64},
}
COMMON = {"n_ctx_train": 4096, "vocab_size": 16384, "rms_eps": 1e-6, "rope_base": 1e6}
ENDS = ("attn_output.weight", "ffn_down.weight")
TEXTS = {"greedy": {"temperature": 0}, "sampled": {"temperature": 1}, "repeated": {"temperature": 0, "logit_bias": [[100, 100]]}}
# What ours and what llama-server gets for each kind of drafts.
KINDS = {
    "look-ups": (["--draft", "lookup"], {kind: ["--spec-type", kind] for kind in ["ngram-simple", "ngram-map-k", "ngram-mod", "ngram-cache"]}),
    "draft model": (["--draft", "model,4", "--draft-model"], {"draft model": ["--spec-type", "draft-simple", "--spec-draft-n-max", "4", "--spec-draft-p-min", "0", "-md"]}),
}


def parse():
    parser = options(__doc__)
    parser.add_argument("--llama-server", metavar="PROGRAM", help="default: LLAMA_SERVER, or llama-server on the PATH")
    parser.add_argument("--sizes", default=",".join(SIZES), help="default: all")
    parser.add_argument("--texts", default=",".join(TEXTS), help="default: all")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--tokens", type=int, default=128, help="of each answer; default: 128")
    parser.add_argument("--scale", type=float, default=0.02, help="of what layers after the first one add; default: 0.02")
    return parser.parse_args()


def made(args, folder, size):
    """The paths of a model and of its draft model."""
    plain, target, draft = (folder / f"{name}.gguf" for name in ["plain", "target", "draft"])
    run([args.bench, "synth", "qwen3", "--type", "f16", "--vocab", BUILT_IN, *synth_options(COMMON | SIZES[size]), "--with", "output", "--force", "-o", plain], timeout=None)
    file = Gguf(plain)
    for name, tensor in file.tensors.items():
        if name.endswith(ENDS) and not name.startswith("blk.0."):
            file.tensors[name] = tensor._replace(data=(tensor.data.astype("f4") * args.scale).astype("f2"))
    file.write(target, {})
    file.tensors = {name: tensor for name, tensor in file.tensors.items() if not name.startswith("blk.") or name.startswith("blk.0.")}
    file.write(draft, {"block_count": 1})
    for path in (target, draft):
        run([args.bench, "convert", path, path.with_suffix(".q4.gguf"), "--type", "q4_k", "--force"], timeout=None)
    return target.with_suffix(".q4.gguf"), draft.with_suffix(".q4.gguf")


def answer(args, server, prompt, how):
    """Milliseconds per token of an answer, and the draft tokens that were read and accepted."""
    body = {"prompt": prompt, "n_predict": args.tokens, "ignore_eos": True, "seed": 1, "cache_prompt": False,
            "top_k": 0, "top_p": 1, "min_p": 0, **how}
    timings = server.json("/completion", body)["timings"]
    return timings["predicted_ms"] / timings["predicted_n"], timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)


def main():
    args = parse()
    threads, peer = str(os.cpu_count()), llama_server(args.llama_server)
    prompts = [f"{n} apples and {n + 17} rivers are in the garden of the {n + 5}th winter" for n in range(1, 7)]
    print("| model | text | drafts | ms per token | speed over without drafts | accepted of read |\n|---|---|---|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as scratch:
        for size in args.sizes.split(","):
            target, draft = made(args, Path(scratch), size)
            plain = {"bench": [args.bench, "serve", "-m", target, "--parallel", "1", "--ctx", "2048", "--threads", threads],
                     "llama-server": [peer, "-m", target, "-np", "1", "-c", "2048", "-t", threads, "-tb", threads, "--no-webui"]}
            for kind, (ours, theirs) in KINDS.items():
                last = [draft] if "model" in kind else []
                commands = {("bench", "none"): [*plain["bench"], "--draft", "off"], ("bench", kind): [*plain["bench"], *ours, *last]}
                commands[("llama-server", "none")] = plain["llama-server"]
                for name, words in theirs.items():
                    commands[("llama-server", name)] = [*plain["llama-server"], *words, *last]
                for text in [text for text in args.texts.split(",") if text == "greedy" or not last]:
                    how = TEXTS[text]
                    found = {name: [] for name in commands}
                    failed = {}
                    for _ in range(args.rounds):
                        for name, words in commands.items():
                            log = Path(scratch) / "output"
                            try:
                                with Server(*words, output=log) as server:
                                    answer(args, server, prompts[0], how)
                                    found[name] += [answer(args, server, prompt, how) for prompt in prompts]
                            except Failure as failure:
                                failed[name] = failure
                    medians = {name: statistics.median(time for time, *_ in answers) for name, answers in found.items() if answers}
                    for name in commands:
                        if name in failed:
                            print(f"| {size} | {text} | {' '.join(name)} | fails: {failed[name]} | | |", flush=True)
                            continue
                        read, accepted = (sum(part) for part in list(zip(*found[name]))[1:])
                        share = f"{accepted / read:.0%} of {read}" if read else "0"
                        ratio = medians[name[0], "none"] / medians[name]
                        print(f"| {size} | {text} | {', '.join(name)} | {medians[name]:.2f} | {ratio:.2f} | {share} |", flush=True)


if __name__ == "__main__":
    program(main)
