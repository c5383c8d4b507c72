#!/usr/bin/env python3
"""Compares captured values with those of TransformerLens, point by point, on tiny folders of tests/hf.

Needs: `pip install -r scripts/requirements-transformerlens.txt`

Each folder is written as tests/it/hf.rs writes it. TransformerLens loads it unmodified (`TransformerBridge`, without
processing of weights) and reads its tokens with `run_with_cache`; `bench lab run` captures every point that has a name of
TransformerLens, with an f32 cache and without flash attention. A name that only one of them has is listed. Fails if a value
differs by more than 1e-5 of the largest of its point, or of models with GELU by more than 1e-3.
"""

import json
import pathlib
import sys
import tempfile

import numpy as np
import torch
from tokenizers import Tokenizer, models
from transformer_lens.model_bridge import TransformerBridge
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from bench_server import ROOT, options, run
from hf_folder import write_folder

NAMES = ["gpt2", "gptneox", "llama", "qwen2", "qwen3", "gemma2", "phi3"]
TOLERANCE = 1e-5
# ggml reads GELU from a table of numbers in half precision, as llama.cpp does.
TOLERANCE_OF_GELU = 1e-3
# Folders whose rotation pairs halves of a head, where files of their architecture pair neighbours: rows of queries and keys
# are permuted as in every GGUF file.
PERMUTED = {"llama"}
ROTATED = ("hook_q", "hook_k", "hook_rot_q", "hook_rot_k")


def theirs(folder, tokens):
    """What TransformerLens computes: arrays by name, without the dimension of the batch."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    # Both want a tokenizer, and read ids.
    vocabulary = {f"t{i}": i for i in range(model.config.vocab_size)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="t0")),
        unk_token="t0", bos_token="t1", eos_token="t2", pad_token="t0",
    )
    tokenizer.save_pretrained(folder)
    bridge = TransformerBridge.boot_transformers(str(folder), hf_model=model, device="cpu")
    bridge.enable_compatibility_mode(no_processing=True)
    with torch.no_grad():
        logits, cache = bridge.run_with_cache(torch.tensor([tokens]))
    out = {name: value[0].numpy() for name, value in cache.items() if isinstance(value, torch.Tensor)}
    # Queries are a dimension of attention weights, heads another: ours has the queries first.
    for name in out:
        if name.endswith("hook_pattern"):
            out[name] = out[name].transpose(1, 0, 2)
    return out, logits[0].numpy()


def ours(bench, folder, tokens):
    """What `bench lab run` captures: arrays by all names of TransformerLens that a point has."""
    points = json.loads(run([bench, "points", folder, "--json"]))
    points = points if isinstance(points, list) else points["data"]
    named = {point["path"]: [name for name in point["aliases"] if "hook_" in name] for point in points if point["capturable"]}
    named = {path: names for path, names in named.items() if names}
    out = {}
    paths = [*named, "head.logits"]
    # A request has at most 64 captures.
    for at in range(0, len(paths), 60):
        plan, values = folder.with_name("plan.json"), folder.with_name("values.npz")
        plan.write_text(json.dumps({"captures": [{"point": path, "positions": "prompt"} for path in paths[at : at + 60]]}))
        command = [bench, "lab", "run", folder, "--tokens", ",".join(map(str, tokens)), "--plan", plan, "-o", values, "--force"]
        exact = ["--kv-type", "f32", "--flash-attn", "off", "--threads", "1"]
        run([*command, *exact])
        with np.load(values) as arrays:
            for path in paths[at : at + 60]:
                for name in named.get(path, [path]):
                    out[name] = arrays[path]
    return out


def neighbours(rows):
    """Rows [.., d] whose halves are paired, in the order in which neighbours are."""
    half = rows.shape[-1] // 2
    return np.stack([rows[..., :half], rows[..., half:]], axis=-1).reshape(rows.shape)


def compare(bench, name, scratch):
    """Whether a folder's values agree; prints what does not, and the largest difference."""
    folder = scratch / name
    golden = json.loads((ROOT / "tests/hf" / name / "tensors.json").read_text())
    write_folder(golden, (ROOT / "tests/hf" / name / "config.json").read_bytes(), folder)
    tokens = golden["tokens"]
    expected, logits = theirs(folder, tokens)
    found = ours(bench, folder, tokens)
    expected["head.logits"] = logits
    config = json.loads((folder / "config.json").read_text())
    acts = [str(value) for key, value in config.items() if "act" in key]
    tolerance = TOLERANCE_OF_GELU if any("gelu" in act for act in acts) else TOLERANCE
    worst, wrong = 0.0, []
    both = [key for key in found if key in expected]
    for key in both:
        own, other = found[key], expected[key]
        if name in PERMUTED and key.endswith(ROTATED):
            other = neighbours(other)
        if own.size != other.size:
            wrong.append(f"{key}: shape {own.shape}, expected {other.shape}")
            continue
        difference = float(np.abs(own - other.reshape(own.shape)).max() / max(1.0, np.abs(other).max()))
        worst = max(worst, difference)
        if not difference <= tolerance:
            wrong.append(f"{key}: differs by {difference:.1e}")
    alone = sorted({key.split(".", 2)[-1] for key in found if key not in expected})
    print(f"{name}: {len(both)} names, largest difference {worst:.1e}" + (f"; only here: {', '.join(alone)}" if alone else ""))
    for line in wrong:
        print(f"  {line}")
    return not wrong


def main():
    parser = options(__doc__, None)
    parser.add_argument("names", nargs="*", default=NAMES, help="folders of tests/hf")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        good = [compare(args.bench, name, pathlib.Path(scratch)) for name in args.names]
    sys.exit(not all(good))


if __name__ == "__main__":
    main()
