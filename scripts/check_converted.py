#!/usr/bin/env python3
"""Converts the folders of tests/hf with `bench convert` and has llama.cpp compute the results.

Needs: Python 3.11, `pip install llama-cpp-python numpy`

For each folder: the NMSE between llama.cpp's logits (vectors, scores of classes) of the converted file and those that
transformers computed for the folder. Exit code 1 if one is above the bound and not among those below,
where llama.cpp computes something else or refuses what the class allows; if one of those below is
equal after all; or if nothing was equal. llama.cpp ends the process where it finds a fault, so that
each folder has a process of its own.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import goldens
from bench_server import Failure, options
from hf_folder import write_folder

HF = Path(__file__).resolve().parent.parent / "tests" / "hf"
# Bounds of tests/it/folders.rs: products of half-precision and of 4-bit weights round their columns.
EXACT, HALF, Q8 = 1e-6, 1e-4, 1e-3

# Seconds after which the process of a folder is ended: some files send llama.cpp into a loop without an end.
MAX_SECONDS = 60
# What llama.cpp says of an architecture that it does not have.
NO_ARCHITECTURE = ("unknown model architecture", "unsupported model architecture")

# Folders whose logits llama.cpp cannot give, and what in its source is the reason.
HADAMARD = "llama.cpp rotates the indexer's rows by a Hadamard matrix, so that they have a multiple of 64 elements"
NEEDS_FLASH = "llama.cpp selects blocks with flash attention alone, and attends to all keys without it"
NEEDS_HEAD = "llama.cpp requires a head of its own, here it is the token table"
NEEDS_V0 = "llama.cpp requires the value residual's matrices in the first layer, where nothing uses them"
GEMMA2_SCALE = "llama.cpp's scale of scores follows the width of a head, not query_pre_attn_scalar"
NO_WINDOWS = "llama.cpp has no windows in `{}`; contexts up to the window agree"
DIFFERENT = {
    "afmoe-six": "llama.cpp has RoPE in three of four layers, whatever their types",
    "arwkv7": NEEDS_V0,
    "arwkv7-gated": NEEDS_HEAD,
    "bailingmoe2": "llama.cpp requires heads that are together as wide as the hidden state",
    "bitnet": "llama.cpp's activation is SiLU, here it is the square of ReLU, as published",
    "bitnet-three": "llama.cpp's activation is SiLU, here it is the square of ReLU, as published",
    "cohere2": "llama.cpp requires heads that are together as wide as the hidden state",
    "command-r-norms": "llama.cpp reads norms of heads from 64 layers on",
    "cwm": NO_WINDOWS.format("llama"),
    "deci-blocks": "llama.cpp ends with an assertion about a buffer of its cache",
    "deepseek-v2-grouped": "llama.cpp scores a group by its two best experts, transformers by the best",
    "deepseek-v32": HADAMARD,
    "deepseek2-ocr-six": "llama.cpp requires as many heads of keys as of queries",
    "deepseek4": "llama.cpp has blocks of 4 and of 128 tokens only",
    "deepseek4-packed": HADAMARD,
    "deepseek4-published": HADAMARD,
    "distilbert-classifier": "llama.cpp's activation before the classes is tanh, here it is ReLU",
    "dots1-six": "llama.cpp requires as many heads of keys as of queries",
    "dots3note": HADAMARD,
    "ernie": "llama.cpp's activation is GELU, here it is ReLU",
    "ernie4_5-bias": "llama.cpp has no biases in the MLP",
    "exaone4": "llama.cpp has windows in stacks of 64 layers only",
    "exaone4.5": "llama.cpp has windows in stacks of 64 layers only",
    "gemma2": GEMMA2_SCALE,
    "gemma3": GEMMA2_SCALE,
    "glm-moe-dsa": HADAMARD,
    "glm4moe": "the multi-token prediction layer has no attention here, which llama.cpp requires with eh_proj",
    "glm5-next": "llama.cpp requires as many heads in layers of the delta rule as in the others",
    "gpt-oss": "llama.cpp rounds the bounds of YaRN to whole pairs, in published ones too",
    "gpt-oss-mxfp4": "llama.cpp rounds the bounds of YaRN to whole pairs, in published ones too",
    "grovemoe": "llama.cpp takes the weight of a shared expert by another number (docs/lone-options.md)",
    "kimi-linear": "llama.cpp requires as many heads in layers of the delta rule as in the others",
    "kimi-linear-base": NEEDS_HEAD,
    "kimi-linear-six": "llama.cpp requires as many heads in layers of the delta rule as in the others",
    "llama-classifier": "llama.cpp has no scores of classes here",
    "llama-yarn-scales": "llama.cpp reads the bounds of YaRN in `mistral3` and `grok`; elsewhere they are 32 and 1",
    "llama4": "llama.cpp attends to chunks of 8192 and scales queries by 0.1 for each 8192 positions",
    "llama4-vision": "llama.cpp fails if no layer has full attention, which it expects of every fourth",
    "mellum": "llama.cpp rotates windowed layers with the base of the others",
    "meralion2": GEMMA2_SCALE,
    "minicpm3": "llama.cpp has the factors of the published one: 12, 1.4 and 256",
    "minicpm3-longrope": "llama.cpp has the factors of the published one: 12, 1.4 and 256",
    "minimax-m3": NEEDS_FLASH,
    "minimax-m3-text": NEEDS_FLASH,
    "ministral": NO_WINDOWS.format("llama"),
    "mistral": NO_WINDOWS.format("llama"),
    "mistral-base": NO_WINDOWS.format("llama"),
    "mllama": "llama.cpp reads the width of heads from the first layer, which has none here",
    "muse-glimmer": "llama.cpp has RoPE in the layers with a window, not in those with a base",
    "muse-glimmer-four": "llama.cpp has RoPE in the layers with a window, not in those with a base",
    "nemotron-wide": "llama.cpp requires heads that are together as wide as the hidden state",
    "neo-bert-classifier": "llama.cpp counts classes by their labels, and the configuration has none",
    "nomic-bert-moe": "llama.cpp has no bias after the experts",
    "nomic-bert-moe-third": "llama.cpp has no bias after the experts",
    "olmo2-grouped": NEEDS_HEAD,
    "olmoe-six": "llama.cpp requires as many heads of keys as of queries, and never divides weights by their sum",
    "phi3": NO_WINDOWS.format("phi3"),
    "phi3-longrope": "llama.cpp's shortest context is 256, beyond the original one, so that it takes the long factors",
    "phi3-partial": "llama.cpp's shortest context is 256, beyond the original one, so that it takes the long factors",
    "phi4-mm": "llama.cpp takes the context of the file for the length, and the long factors; `transformers` counts tokens (longrope_frequency_update)",
    "phimoe": "llama.cpp takes layer norms for RMS norms, and softmax for the sparse mixer",
    "phimoe-six": "llama.cpp requires a bias of the head; layer norms and the sparse mixer as above",
    "plamo2": "llama.cpp reads the width of heads from the first layer, which has none, and rotates without an end",
    "plamo3-yarn": "llama.cpp rounds the bounds of YaRN to whole pairs",
    "pockettts-speech": "llama.cpp has no bias of the attention's output here",
    "qwen2-window": NO_WINDOWS.format("qwen2"),
    "qwen2moe-norm": "llama.cpp never divides the weights of experts by their sum here",
    "qwen3-classifier": "llama.cpp gives the softmax of the scores",
    "qwen3-tied": "llama.cpp has no bias after attention here",
    "qwen3moe-dense": "llama.cpp requires experts in all layers",
    "qwen3moe-eight": "llama.cpp always divides the weights of experts by their sum here",
    "qwen4exp": "llama.cpp selects parts of blocks in an order of its own",
    "qwen4exp-memory": "llama.cpp requires rows of n-grams that are together as wide as the hidden state",
    "qwen4exp-vision": "llama.cpp selects parts of blocks in an order of its own",
    "refact": "llama.cpp has RMS norms, here they are layer norms",
    "refact-three": "llama.cpp has RMS norms, here they are layer norms",
    "rwkv6qwen2-tied": NEEDS_HEAD,
    "rwkv7": NEEDS_V0,
    "sarvam-moe": "llama.cpp requires heads that are together as wide as the hidden state",
    "smallthinker": "llama.cpp's windows have 4096 tokens, whatever the file says",
    "smollm3-two": "llama.cpp has RoPE in three of four layers, whatever the configuration says",
    "starcoder2": NO_WINDOWS.format("starcoder2"),
    "starcoder2-plain": "llama.cpp requires biases",
    "t5-decoder": "llama.cpp does not load a decoder with more layers than the encoder",
    "talkie-folded": "llama.cpp requires a scale of the logits",
}


def bound(about):
    """The largest NMSE that rounding explains."""
    dtypes = {tensor["dtype"] for part in about["files"] for tensor in part["tensors"]}
    return Q8 if dtypes & {"U8", "F8_E4M3"} else HALF if dtypes & {"F16", "BF16"} else EXACT


def compare(lib, bench, case, scratch):
    """The NMSE of a case."""
    about = json.loads((HF / case / "tensors.json").read_text())
    folder, path = scratch / case, scratch / f"{case}.gguf"
    write_folder(about, (HF / case / "config.json").read_bytes(), folder)
    done = subprocess.run([*bench("convert"), folder, path], capture_output=True, text=True)
    if done.returncode != 0:
        raise Failure(f"not converted: {done.stderr.strip()}")
    plan = subprocess.run([*bench("plan"), "-m", path, "--json"], capture_output=True, text=True, check=True)
    is_causal = json.loads(plan.stdout)["mode"] == "causal"
    expected = np.load(HF / case / "logits.npy")
    output = about["output"]
    reference = goldens.Reference(lib, path, vectors=output == "hidden", scores=output == "scores")
    try:
        found = reference.logits(about["tokens"], is_causal, source=about.get("source", ()))
    finally:
        reference.close()
    if found.shape != expected.shape:
        raise Failure(f"shape {found.shape}, expected {expected.shape}")
    return goldens.nmse(found, expected)


def run_one(bench, case):
    """What the process of one case does: its NMSE, or why there is none, as the last line."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            print(compare(goldens.load_llama_cpp(), bench, case, Path(scratch)))
        except Failure as failure:
            sys.exit(str(failure).replace(scratch, ""))


def last_words(text):
    """The first error that a process wrote, in one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line or "ASSERT" in line), (lines or ["no reason given"])[-1])


def run_case(case, options):
    """The NMSE of a case, or why there is none."""
    quiet = os.environ | {"GGML_NO_BACKTRACE": "1"}
    command = [sys.executable, __file__, *options, "--one", case]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=quiet, timeout=MAX_SECONDS)
    except subprocess.TimeoutExpired:
        return f"no end within {MAX_SECONDS} s"
    return float(done.stdout.split()[-1]) if done.returncode == 0 else last_words(done.stderr)


def run_all(prefixes, options):
    cases = sorted(path.parent.name for path in HF.glob("*/tensors.json"))
    cases = [case for case in cases if not prefixes or case.startswith(tuple(prefixes))]
    n_equal, faults = 0, []
    for case in cases:
        found = run_case(case, options)
        is_equal = isinstance(found, float) and found <= bound(json.loads((HF / case / "tensors.json").read_text()))
        has_none = isinstance(found, str) and any(words in found for words in NO_ARCHITECTURE)
        reason = DIFFERENT.get(case, "llama.cpp has no such architecture" if has_none else None)
        n_equal += is_equal
        shown = f"{found:.1e}" if isinstance(found, float) else found
        print(f"{case:28} {shown}" + (f"   ({reason})" if reason else ""), flush=True)
        if is_equal == (reason is not None):
            faults.append(case)
    print(f"{len(cases)} folders, {n_equal} equal, {len(faults)} unexplained: {' '.join(faults)}")
    return 1 if faults or not n_equal else 0


def main():
    parser = options(__doc__.split("\n")[0], None)
    parser.add_argument("--archs", metavar="DIR", help="further definitions and maps")
    parser.add_argument("--one", metavar="CASE", help=argparse.SUPPRESS)
    parser.add_argument("prefixes", nargs="*", metavar="PREFIX")
    args = parser.parse_args()
    more = ["--archs", args.archs] if args.archs else []
    if args.one:
        return run_one(lambda verb: [args.bench, verb, *more], args.one)
    return run_all(args.prefixes, ["--bench", str(args.bench), *more])


if __name__ == "__main__":
    sys.exit(main())
