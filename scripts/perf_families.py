#!/usr/bin/env python3
"""Measures prefill and decode of one sequence against llama-bench, alternating, for models of many kinds: docs/performance-families.md.

The models are made by `bench synth` with random weights, as f16, and quantised by llama-quantize, so that both programs read the
files that users have. Both use as many threads as the machine has cores, flash attention and an f16 KV cache. `--busy` measures
decoding while another process uses one core all the time, too. Each ratio is the median of those of the repeats, of which
each has both programs run once. llama-bench does not encode, so that models with an encoder are measured with
`scripts/llama_speed`, and only if --llama-speed names that program: both read a source of 64 tokens, in the time of the
prefill. Rows of models and types that are not measured stay as they are. Standard library only.
"""

import datetime
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench_server import Failure, options, run, synth_options

N_PROMPT, N_ANSWER = 512, 64
COMMON = {"n_ctx_train": 32768, "vocab_size": 32768, "rms_eps": 1e-6, "rope_base": 1e6}
RWKV = "token_embd_norm.bias,attn_norm.bias,attn_norm_2.bias,output_norm.bias,output"
# By name: what is special, definition, parameters, optional tensors, keys that llama.cpp alone reads. A few hundred megabytes as Q4_K_M.
MODELS = {
    "dense": ("attention and MLP", "qwen3", {
        "block_count": 28, "n_embd": 1024, "n_ff": 3072, "n_head": 16, "n_head_kv": 8, "d_head": 128, "d_head_v": 128, "n_rot": 128}, ""),
    "experts": ("64 experts, 8 used", "qwen3moe", {
        "block_count": 12, "n_embd": 1024, "n_head": 16, "n_head_kv": 4, "d_head": 128, "d_head_v": 128, "n_rot": 128,
        "n_expert": 64, "n_expert_used": 8, "n_ff_exp": 512}, ""),
    "windows": ("sliding windows in five of six layers", "gemma3", {
        "block_count": 18, "n_embd": 1152, "n_ff": 6912, "n_head": 4, "n_head_kv": 1, "d_head": 256, "d_head_v": 256, "n_rot": 256,
        "n_swa": 512}, ""),
    "latent": ("latent attention, 32 experts", "deepseek2", {
        "block_count": 8, "n_embd": 1024, "n_head": 16, "d_head_mla": 192, "d_head_v_mla": 128, "n_rot": 64, "kv_lora_rank": 512,
        "q_lora_rank": 384, "n_expert": 32, "n_expert_used": 4, "n_ff_exp": 704, "n_ff": 4096, "n_shared": 2, "n_lead": 1,
        "expert_norm": "true", "expert_gating": 2}, "attn_q_a,attn_q_a_norm,attn_q_b,exp_probs_b.bias,ffn_gate_shexp,output",
        {"attention.key_length": 576, "attention.value_length": 512, "attention.head_count_kv": 1}),
    "delta": ("gated delta rule in three of four layers", "qwen35", {
        "block_count": 24, "n_embd": 1024, "n_ff": 3584, "n_head": 8, "n_head_kv": 2, "d_head": 256, "d_head_v": 256, "n_rot": 64,
        "rope_sections": [11, 11, 10, 0], "ssm_inner": 2048, "ssm_state": 128, "ssm_kernel": 4, "ssm_dt_rank": 16, "ssm_groups": 16}, ""),
    "scan": ("state space", "mamba2", {
        "block_count": 24, "n_embd": 1024, "ssm_inner": 2048, "ssm_state": 128, "ssm_kernel": 4, "ssm_dt_rank": 32, "ssm_groups": 1,
        "rope_base": None}, "output,ssm_conv1d.bias,ssm_norm"),
    "sinks": ("attention sinks, windows, experts with biases", "gpt-oss", {
        "block_count": 8, "n_embd": 1024, "n_head": 16, "n_head_kv": 4, "d_head": 64, "d_head_v": 64, "n_rot": 64, "n_expert": 16,
        "n_expert_used": 4, "n_ff_exp": 1024, "n_swa": 128}, "attn_k.bias,attn_output.bias,attn_q.bias,attn_v.bias,ffn_down_exps.bias,ffn_gate_exps.bias,ffn_gate_inp.bias,"
        "ffn_up_exps.bias,output"),
    "indexer": ("keys selected by an indexer, latent attention", "deepseek32", {
        "block_count": 8, "n_embd": 1024, "n_head": 16, "d_head_mla": 192, "d_head_v_mla": 128, "n_rot": 64, "kv_lora_rank": 512,
        "q_lora_rank": 384, "n_expert": 32, "n_expert_used": 4, "n_ff_exp": 704, "n_ff": 4096, "n_shared": 1, "n_lead": 1,
        "expert_norm": "true", "expert_gating": 2, "n_head_index": 8, "d_head_index": 128, "index_top": 256},
        "attn_q_a,attn_q_a_norm,attn_q_b,exp_probs_b.bias,ffn_gate_shexp,output",
        {"attention.key_length": 576, "attention.value_length": 512, "attention.head_count_kv": 1}),
    "blocks": ("blocks of keys selected by an indexer", "minimax-m3", {
        "block_count": 8, "n_embd": 1024, "n_head": 16, "n_head_kv": 4, "d_head": 128, "d_head_v": 128, "n_rot": 64, "n_expert": 16,
        "n_expert_used": 4, "n_ff_exp": 512, "d_head_index": 128, "n_head_index": 4, "expert_gating": 2},
        "attn_q_norm,attn_k_norm,output,exp_probs_b.bias,ffn_gate_shexp"),
    "wide": ("four hidden states of a token", "gemma3n", {
        "block_count": 20, "n_embd": 768, "n_ff": 3072, "n_head": 4, "n_head_kv": 2, "d_head": 256, "d_head_v": 256, "n_rot": 256,
        "n_swa": 512}, ""),
    "decay": ("linear attention with decay", "minimax-01", {
        "block_count": 16, "n_embd": 1024, "n_head": 16, "n_head_kv": 4, "d_head": 64, "d_head_v": 64, "n_rot": 32, "n_expert": 16,
        "n_expert_used": 2, "n_ff": 1024}, ""),
    "kda": ("delta rule with a decay of each element", "kimi-linear", {
        "block_count": 12, "n_embd": 1024, "n_head": 16, "n_head_kv": [0, 0, 0, 1] * 3, "n_ff": 3072, "d_kda": 64, "ssm_kernel": 4,
        "d_head_mla": 96, "d_head_v_mla": 64, "n_rot": 32, "kv_lora_rank": 256, "n_expert": 16, "n_expert_used": 4, "n_ff_exp": 512,
        "n_shared": 1, "n_lead": 1, "rope_base": None}, "output,exp_probs_b.bias,ffn_gate_shexp",
        {"attention.key_length": 288, "attention.value_length": 256}),
    "wkv6": ("time mixing, sixth version", "rwkv6", {
        "block_count": 12, "n_embd": 1024, "n_ff": 3584, "wkv_d": 64, "shift_rank": 32, "decay_extra": 64, "rope_base": None,
        "rms_eps": None}, f"{RWKV},time_mix_ln.bias,time_mix_w1,time_mix_w2,time_mix_lerp_x,time_mix_lerp_fused"),
    "wkv7": ("time mixing, seventh version", "rwkv7", {
        "block_count": 12, "n_embd": 1024, "n_ff": 4096, "wkv_d": 64, "decay_rank": 64, "rate_rank": 64, "first_rank": 32,
        "gate_rank": 128, "rope_base": None, "rms_eps": None}, f"{RWKV},time_mix_*,channel_mix_*"),
    "heads": ("state space by heads, attention", "plamo2", {
        "block_count": 16, "n_embd": 1024, "n_ff": 4096, "n_head": 16, "n_head_kv": [0, 4] * 8, "d_head": 64, "d_head_v": 64,
        "ssm_inner": 2048, "ssm_state": 64, "ssm_dt_rank": 32, "ssm_kernel": 4}, "output", {"ssm.group_count": 0}),
    "loops": ("layers that run twice", "nanbeige", {
        "block_count": 12, "n_embd": 1024, "n_ff": 3072, "n_head": 16, "n_head_kv": 4, "n_loops": 2}, ""),
    "groups": ("experts that share smaller experts", "grovemoe", {
        "block_count": 10, "n_embd": 1024, "n_head": 16, "n_head_kv": 4, "d_head": 128, "d_head_v": 128, "n_rot": 128, "n_expert": 64,
        "n_expert_used": 8, "n_ff_exp": 512, "group_size": 2, "n_ff_group": 128}, ""),
    "hyper": ("four hidden states of a token that a doubly stochastic matrix mixes, attention to blocks of tokens", "deepseek4", {
        "block_count": 8, "n_embd": 768, "n_head": 16, "d_head": 128, "n_rot": 64, "q_lora_rank": 384, "o_rank": 256, "o_groups": 4,
        "span": [0, 0, 4, 128, 4, 128, 4, 128], "n_swa": 128, "n_expert": 32, "n_expert_used": 4, "n_ff_exp": 512, "n_shared": 1,
        "n_head_index": 8, "d_head_index": 128, "index_top": 64, "n_hashed": 0, "n_streams": 4, "hc_rounds": 20, "hc_eps": 1e-6,
        "expert_gating": 4, "expert_norm": "true", "expert_scale": 1.0, "rope_base": 1e4}, "output,exp_probs_b.bias",
        {"attention.value_length": 128, "attention.head_count_kv": 1, "embedding_length_out": 3072, "feed_forward_length": 512,
         "swiglu_clamp_exp": [10.0] * 8, "swiglu_clamp_shexp": [10.0] * 8}),
    "encoder": ("an encoder and a decoder", "t5", {
        "block_count": 12, "n_embd": 768, "n_ff": 2048, "n_head": 12, "n_head_kv": 12, "n_decoder": 12, "d_head": 64, "d_head_v": 64,
        "rope_base": None}, ""),
}
# Models that have an encoder.
ENCODERS = ["encoder"]
TYPES = ["f16", "Q8_0", "Q4_K_M"]


def parse():
    parser = options(__doc__)
    parser.add_argument("--llama-bench", required=True)
    parser.add_argument("--llama-quantize", required=True)
    parser.add_argument("--llama-speed")
    parser.add_argument("--types", default="Q4_K_M,Q8_0", help="of f16, Q8_0, Q4_K_M; default: Q4_K_M,Q8_0")
    parser.add_argument("--models", default=",".join(MODELS), help="default: all")
    parser.add_argument("--repeats", type=int, default=5, help="default: 5")
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--keep", metavar="FOLDER", help="where models are left for the next run; default: they are removed")
    parser.add_argument("--out", default="docs", help="folder of the page; default: docs")
    args = parser.parse_args()
    for name in args.models.split(","):
        if name not in MODELS:
            parser.error(f"there is no model `{name}`; found {', '.join(MODELS)}")
    return args


def made(args, folder, name, ty, more=()):
    """The path of a model of a type. More options of `bench synth` may follow."""
    _, arch, values, optional, *meta = MODELS[name]
    plain = os.path.join(folder, f"{name}.gguf")
    if not os.path.exists(plain):
        values = {key: value for key, value in {**COMMON, **values}.items() if value is not None}
        sets = synth_options(values, {f"{arch}.{key}": value for keys in meta for key, value in keys.items()})
        run([args.bench, "synth", arch, "--type", "f16", *sets, *(["--with", optional] if optional else []), *more, "-o", plain], timeout=None)
    if ty == "f16":
        return plain
    path = os.path.join(folder, f"{name}-{ty}.gguf")
    if not os.path.exists(path):
        run([args.llama_quantize, plain, path + ".new", ty], timeout=None)
        os.replace(path + ".new", path)
    return path


def ours(args, model, prompt):
    found = json.loads(run([args.bench, "perf", "-m", model, "-p", prompt, "-n", N_ANSWER, "-s", 1, "-r", 2, "--json"], timeout=None))["runs"][0]
    return found["prefill"][0]["tokens_per_second"], found["decode"][0]["tokens_per_second"]


def theirs_encoded(args, model, prompt):
    cases = [f"prefill:1x{prompt}", "decode:1@0"]
    found = json.loads(run([args.llama_speed, model, "-", 0, N_ANSWER, *cases], timeout=None))
    return tuple(found[case] for case in cases)


def theirs(args, model, prompt):
    command = [args.llama_bench, "-m", model, "-p", prompt, "-n", N_ANSWER, "-r", 2, "-t", os.cpu_count(), "-fa", "on", "-o", "json"]
    found = json.loads(run(command, timeout=None))
    speeds = {bool(row["n_gen"]): row["avg_ts"] for row in found}
    return speeds[False], speeds[True]


def measured(args, name, model, prompt):
    """Medians of both programs and of their ratio, with its range: for prefill and for decode."""
    other = theirs_encoded if name in ENCODERS else theirs
    pairs = []
    for i in range(args.repeats):
        # Who is first changes.
        order = [ours, other] if i % 2 else [other, ours]
        speeds = {program: program(args, model, prompt) for program in order}
        pairs.append((speeds[ours], speeds[other]))
    out = []
    for at in range(2):
        ratios = [mine[at] / other[at] for mine, other in pairs]
        out.append((statistics.median(mine[at] for mine, _ in pairs), statistics.median(other[at] for _, other in pairs),
                    statistics.median(ratios), min(ratios), max(ratios)))
    return out


def cells(found):
    mine, other, ratio, low, high = found
    return f"{mine:.4g} | {other:.4g} | {ratio:.2f} ({low:.2f}–{high:.2f})"


def processor():
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    sets = [name for name in ["avx512_vnni", "avx512f", "avx2"] if name in flags]
    return f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores, {sets[0] if sets else 'no avx2'}"


QUIET = "| model | type | prefill {}, tokens/s | llama-bench | ratio | decode, tokens/s | llama-bench | ratio | measured |".format(N_PROMPT)
BUSY = "| model | type | decode, tokens/s | llama-bench | ratio | measured |"


def rows_of(lines, head):
    """The rows of the page's table with this head, by model and type."""
    table = lines[lines.index(head) + 2:] if head in lines else []
    rows = itertools.takewhile(lambda line: line.startswith("| "), table)
    return {tuple(cell.strip() for cell in line.split("|")[1:3]): line for line in rows}


def version_of(lines):
    """The version of llama-bench that the page names."""
    versions = [line.split("|")[2].strip() for line in lines if line.startswith("| llama-bench | ")]
    return versions[0] if versions else "unknown"


def table(head, rows):
    order = [(name, ty) for name in MODELS for ty in TYPES]
    line = "|---|---|" + "--:|" * (head.count("|") - 4) + "---|"
    return "\n".join([head, line] + [rows[key] for key in order if key in rows])


def page(args, quiet, busy, failed):
    parts = [f"""# Kinds of models against llama-bench

Written by `scripts/perf_families.py` (`make perf-families`); do not edit. One sequence, without HTTP: `bench perf` and llama-bench in turn, {args.repeats} times in
the latest run. Speeds and ratios are medians; the range of the ratios is in brackets. The ratio is `bench` over llama-bench. The models have random
weights and a few hundred megabytes. llama-quantize made the files. Both programs use flash attention, an f16 KV cache and one thread for each core.
llama-bench does not encode: `scripts/llama_speed` measures llama.cpp on the model with an encoder, and the time of a source of 64
tokens is part of the prefill. The last column has the day and the commit. [performance.md](performance.md) measures servers.

{table(QUIET, quiet)}"""]
    if busy:
        parts.append(f"""## Decode while another process runs

The same while another process uses one core all the time.

{table(BUSY, busy)}""")
    if failed:
        parts.append("## Failed\n\n" + "\n".join(f"- {line}" for line in failed))
    definitions = [f"| {name} | {what} | `{arch}` |" for name, (what, arch, *_) in MODELS.items()]
    parts.append("## Models\n\n| model | what is special | definition |\n|---|---|---|\n" + "\n".join(definitions))
    version = run([args.bench, "--version"]).strip()
    parts.append(f"## How\n\n| | |\n|---|---|\n| machine | {processor()} |\n| bench | {version} |\n| llama-bench | {args.llama} |")
    return "\n\n".join(parts) + "\n"


def main():
    args = parse()
    path = Path(args.out, "performance-families.md")
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    quiet, busy, failed = rows_of(lines, QUIET), rows_of(lines, BUSY), []
    commit = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True).stdout.strip()
    when = f"{datetime.date.today().isoformat()}, {commit}"
    args.llama = version_of(lines)
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.keep or scratch
        os.makedirs(folder, exist_ok=True)
        for name in args.models.split(","):
            if name in ENCODERS and not args.llama_speed:
                print(f"{name} is left out: it needs --llama-speed", flush=True)
                continue
            for ty in args.types.split(","):
                try:
                    model = made(args, folder, name, ty)
                    if name not in ENCODERS:
                        about = json.loads(run([args.llama_bench, "-m", model, "-p", 0, "-n", 1, "-r", 1, "-o", "json"]))[0]
                        args.llama = f"build {about['build_number']}, commit {about['build_commit']}"
                    prefill, decode = measured(args, name, model, N_PROMPT)
                    quiet[name, ty] = f"| {name} | {ty} | {cells(prefill)} | {cells(decode)} | {when} |"
                    print(quiet[name, ty], flush=True)
                    if args.busy:
                        other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
                        try:
                            _, decode = measured(args, name, model, 16)
                        finally:
                            other.kill()
                            other.wait()
                        busy[name, ty] = f"| {name} | {ty} | {cells(decode)} | {when} |"
                        print(f"busy {busy[name, ty]}", flush=True)
                except (Failure, KeyError, ValueError) as error:
                    failed.append(f"{name}, {ty}: {error}")
                    print(failed[-1], flush=True)
            if not args.keep:
                for file in os.listdir(scratch):
                    os.remove(os.path.join(scratch, file))
    path.write_text(page(args, quiet, busy, failed), "utf-8")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
