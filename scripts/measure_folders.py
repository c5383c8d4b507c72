#!/usr/bin/env python3
"""Measures how long a large folder takes to load and to convert, and how much memory.

Usage: scripts/measure_folders.py [--bench target/release/bench] [--gb 2] [--types f16,q8_0,q4_k]
Needs: Python 3.11, numpy; disk space for three times the size, by default under target/.

A folder of a llama of random f16 weights is made in shards of 500 MB: rows of queries and keys must be
reordered, the rest can be copied. Then `cp` and `sync`, `bench convert` to each type, and a load with each type
(`bench logits` of one token), each once before and once under the clock. `anonymous` is the largest
amount of memory that is the process's own; `resident` counts mapped pages of the files too.
"""

import argparse
import json
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
WIDTH, HIDDEN, HEADS, VOCAB = 2048, 5632, 16, 32000
SHARD = 500_000_000


def tensors(n_layers):
    """Names and shapes in the order of the file."""
    yield "model.embed_tokens.weight", (VOCAB, WIDTH)
    for i in range(n_layers):
        at = f"model.layers.{i}."
        for name in "qkvo":
            yield f"{at}self_attn.{name}_proj.weight", (WIDTH, WIDTH)
        yield f"{at}mlp.gate_proj.weight", (HIDDEN, WIDTH)
        yield f"{at}mlp.up_proj.weight", (HIDDEN, WIDTH)
        yield f"{at}mlp.down_proj.weight", (WIDTH, HIDDEN)
        yield f"{at}input_layernorm.weight", (WIDTH,)
        yield f"{at}post_attention_layernorm.weight", (WIDTH,)
    yield "model.norm.weight", (WIDTH,)
    yield "lm_head.weight", (VOCAB, WIDTH)


def size(shape):
    return 2 * int(np.prod(shape))


def make_folder(folder, n_layers):
    """Writes the folder; returns its bytes and those of its largest tensor."""
    folder.mkdir(parents=True)
    shards, used = [[]], 0
    for name, shape in tensors(n_layers):
        if used + size(shape) > SHARD and shards[-1]:
            shards.append([])
            used = 0
        shards[-1].append((name, shape))
        used += size(shape)
    rng = np.random.default_rng(1)
    noise = (rng.standard_normal(VOCAB * WIDTH) * 0.02).astype(np.float16)
    index, total = {}, 0
    for i, shard in enumerate(shards):
        file = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        header, at = {}, 0
        for name, shape in shard:
            header[name] = {"dtype": "F16", "shape": list(shape), "data_offsets": [at, at + size(shape)]}
            at += size(shape)
            index[name] = file
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(folder / file, "wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for _, shape in shard:
                out.write(noise[: size(shape) // 2].tobytes())
        total += at
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH, "vocab_size": VOCAB,
        "intermediate_size": HIDDEN, "num_hidden_layers": n_layers, "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "float16",
    }))
    return total, size((VOCAB, WIDTH))


def measure(command):
    """Seconds, and the largest anonymous and resident memory in bytes."""
    began = time.monotonic()
    process = subprocess.Popen([str(c) for c in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    peak = {"RssAnon": 0, "VmRSS": 0}

    def watch():
        while process.poll() is None:
            try:
                status = Path(f"/proc/{process.pid}/status").read_text()
            except OSError:
                return
            for line in status.splitlines():
                key, _, value = line.partition(":")
                if key in peak:
                    peak[key] = max(peak[key], int(value.split()[0]) * 1024)
            time.sleep(0.005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    errors = process.stderr.read()
    process.wait()
    watcher.join()
    if process.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: {errors.strip()[-300:]}")
    return time.monotonic() - began, peak["RssAnon"], peak["VmRSS"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bench", type=Path, default=ROOT / "target/release/bench")
    parser.add_argument("--gb", type=float, default=2)
    parser.add_argument("--types", default="f16,q8_0,q4_k")
    parser.add_argument("--work", type=Path, default=ROOT / "target/folders")
    args = parser.parse_args()
    shutil.rmtree(args.work, ignore_errors=True)
    per_layer = sum(size(s) for n, s in tensors(1) if ".layers." in n)
    rest = sum(size(s) for n, s in tensors(0))
    total, largest = make_folder(args.work / "folder", max(1, round((args.gb * 1e9 - rest) / per_layer)))
    print(f"{total / 1e9:.2f} GB in f16, the largest tensor {largest / 1e6:.0f} MB")
    print(f"{'what':24} {'seconds':>8} {'anonymous, MB':>14} {'resident, MB':>13} {'result, MB':>11}")

    def row(what, command, result):
        for _ in range(2):
            if result and result.exists():
                shutil.rmtree(result) if result.is_dir() else result.unlink()
            os.sync()
            seconds, anonymous, resident = measure(command)
        made = result.stat().st_size / 1e6 if result and result.is_file() else 0
        print(f"{what:24} {seconds:8.1f} {anonymous / 1e6:14.0f} {resident / 1e6:13.0f} {made:11.0f}", flush=True)

    folder, out = args.work / "folder", args.work / "out.gguf"
    copy = args.work / "copy"
    row("cp and sync", ["sh", "-c", f"cp -r '{folder}' '{copy}' && sync -f '{copy}'"], copy)
    shutil.rmtree(copy)
    for ty in args.types.split(","):
        row(f"convert to {ty}", [args.bench, "convert", folder, out, "--type", ty], out)
        flags = [] if ty == "f16" else ["--type", ty]
        logits = args.work / "logits.npy"
        row(f"load as {ty}", [args.bench, "logits", "-m", folder, "--tokens", 1, "-o", logits, "--force", "--ctx", 16, *flags], None)
    shutil.rmtree(args.work)


if __name__ == "__main__":
    main()
