#!/usr/bin/env python3
"""The cost of a quantised KV cache: KL divergence of the next token from an f16 cache.

For every model of tests/goldens and the built-in one, the distribution of the next token with each pair
of cache types is compared with that of f16, position by position (`bench compare --kl`). Golden models
have heads too small for a quantised cache, so they are made again with heads of 32 elements. The page lists
the models that cannot have such a cache with the reason.
"""

import json
import tempfile
from pathlib import Path

from bench_server import BUILT_IN, ROOT, Failure, options, program, run, synth_options

# Types of keys and values.
PAIRS = ["q8_0/q8_0", "f16/q8_0", "q8_0/f16", "f16/q4_0", "q8_0/q4_0", "q4_0/q8_0", "q4_0/q4_0"]
PROBE = "q8_0/q4_0"

# What makes the heads of a model wide enough, the first that does.
WIDER = [
    {},
    {"d_head": 32, "d_head_v": 32, "n_rot": 32},
    {"d_head": 32, "d_head_v": 32},
    {"n_head": 2, "n_head_kv": 1},
    {"n_head": 2, "n_head_kv": 2},
    {"n_head": 2},
    {"n_embd": 128},
    {"n_embd": 128, "n_rot": 32},
    {"n_embd": 128, "d_head": 32, "d_head_v": 32, "n_rot": 32},
    {"n_rot": 32},
    {"kv_lora_rank": 32, "n_rot": 32},
    {"kv_lora_rank": 32, "n_rot": 32, "d_head_mla": 48},
    {"d_head": 32, "d_head_v": 32, "n_rot": 32, "d_head_swa": 32, "d_head_v_swa": 32, "n_rot_swa": 32},
]

# A text for the shipped model; the goldens have their own tokens.
TEXT = (
    "<|im_start|>user\nWhat is 17 plus 5?<|im_end|>\n<|im_start|>assistant\n17+5=22<|im_end|>\n"
    "<|im_start|>user\nSpell the word garden.<|im_end|>\n<|im_start|>assistant\ng-a-r-d-e-n<|im_end|>\n"
    "<|im_start|>user\nWhat colour is the sky?<|im_end|>\n<|im_start|>assistant\nThe sky is blue.<|im_end|>\n"
    "<|im_start|>user\nWrite the word stone backwards.<|im_end|>\n<|im_start|>assistant\nenots<|im_end|>\n"
    "<|im_start|>user\nWhat is 90 minus 34?<|im_end|>\n<|im_start|>assistant\n90-34=56<|im_end|>\n"
)


def cost(bench, model, tokens, pair):
    """Mean and largest divergence of a pair of cache types."""
    ids = ",".join(map(str, tokens))
    command = [bench, "compare", model, "--tokens", ids, "--kv-type", "f16", "--flash-attn", "on"]
    found = json.loads(run([*command, "--path", f"cache={pair}", "--kl", "--json"]))
    return found


def golden(bench, entry, folder):
    """The model of a golden with heads wide enough, and what was changed."""
    path = folder / f"{entry['name']}.gguf"
    args, reason = entry["synth"], None
    for wider in WIDER:
        try:
            run([bench, "synth", *args, *synth_options(wider), "-o", path, "--force"])
            cost(bench, path, entry["tokens"][:4], PROBE)
        except Failure as failure:
            # What keeps the model as it is from having such a cache says most, unless it has no
            # distribution at all.
            if reason is None or "no logits" in str(failure):
                reason = failure
            continue
        return path, ", ".join(f"{key}={value}" for key, value in wider.items())
    raise Failure(reason)


def cell(found):
    show = lambda value: "∞" if value is None else f"{value:.1e}"  # noqa: E731
    return f"{show(found['mean'])} / {show(found['max'])}"


def measure(bench, name, path, tokens, note):
    cells = []
    for pair in PAIRS:
        try:
            cells.append(cell(cost(bench, path, tokens, pair)))
        except Failure as failure:
            cells.append(f"failed: {failure}")
    return f"| {name} | {note} | {len(tokens)} | " + " | ".join(cells) + " |"


PAGE = """# The cost of a quantised KV cache

Written by `scripts/cache_cost.py`; do not edit. Each cell is the Kullback-Leibler divergence of the distribution of the next token from that with an
f16 KV cache, in nats: mean / maximum over all positions. The head of a column is the type of keys / the type of values. Flash attention is on.

Before keys and values are quantised, each head is rotated by a Hadamard matrix, as the queries are, and results are rotated back. Scores are the same. Without a
cache of a quantised type nothing is rotated.

Compare cache types within a row, not rows with each other: golden models have random weights, flat distributions and small heads. Only the built-in
model is trained. Quantised types need heads of 32 elements or more, so the random models are made with the sizes of the second column. A 0 means that the
model has no rows of that kind in its KV cache.

| model | sizes set | positions | {head} |
|---|---|---|{rule}|
{rows}
"""


def main():
    parser = options(__doc__.split("\n")[0])
    parser.add_argument("--out", default=ROOT / "docs/cache-cost.md", type=Path)
    parser.add_argument("--only", action="append", help="these models alone; then nothing is written")
    args = parser.parse_args()
    rows, none, failed = [], [], 0
    if not args.only or "tiny-chat" in args.only:
        tokens = json.loads(run([args.bench, "tokenize", "-m", BUILT_IN, TEXT]))
        rows.append(measure(args.bench, "**tiny-chat** (built in, trained)", BUILT_IN, tokens, ""))
        print(rows[-1], flush=True)
    entries = json.loads((ROOT / "tests/goldens/goldens.json").read_text())["goldens"]
    with tempfile.TemporaryDirectory() as folder:
        for entry in entries:
            if args.only and entry["name"] not in args.only:
                continue
            try:
                path, note = golden(args.bench, entry, Path(folder))
            except Failure as failure:
                reason = "an encoder, which has no KV cache" if "no logits" in str(failure) else failure
                none.append(f"- {entry['name']}: {reason}")
                print(none[-1], flush=True)
                continue
            rows.append(measure(args.bench, entry["name"], path, entry["tokens"], note))
            failed += "failed" in rows[-1]
            print(rows[-1], flush=True)
            path.unlink()
    text = PAGE.format(head=" | ".join(PAIRS), rule="|".join("---" for _ in PAIRS), rows="\n".join(rows))
    if none:
        text += "\n## Models without a quantised KV cache\n\n" + "\n".join(none) + "\n"
    if not args.only:
        args.out.write_text(text)
    print(f"{len(rows)} models measured, {len(none)} without a quantised cache, {failed} with failures")
    return 1 if failed or not rows else 0


if __name__ == "__main__":
    program(main)
