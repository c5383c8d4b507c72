#!/usr/bin/env python3
"""Runs every golden architecture on a device, in a size that devices have kernels for, and compares with the processor.

The models are those of tests/goldens/cases.toml with heads of 64 elements or more: all widths are multiplied. Each runs
on the processor with an f32 cache, and on the device with all layers and half of them there, in one pass without flash
attention and in pieces with it. Prints a table and the operations that the device lacks; fails if a result differs by
more than the bound. With quantised weights it may differ by one and a half times what the processor's own rounding of
activations costs: devices that round do it in other blocks. Where experts are chosen by values that agree within the
bound and others are chosen, this is said and not a failure: `bench compare --path devices` finds the first value that
differs. A run that takes longer than --limit is a failure, and its cell says so. The page is written after every model.
"""
import argparse, json, os, shlex, subprocess, sys, threading, time, tomllib
from concurrent.futures import ThreadPoolExecutor

from bench_server import read_npy, synth_options

# Parameters that are widths, and grow with the heads.
WIDTHS = {
    "n_embd", "d_head", "d_head_v", "n_rot", "n_ff", "n_ff_exp", "n_ff_shexp", "d_head_swa", "d_head_v_swa", "n_rot_swa",
    "kv_lora_rank", "q_lora_rank", "d_head_mla", "d_head_v_mla", "n_ple", "ssm_inner", "d_kda", "rope_sections",
    "rank_full", "rank_swa", "d_full", "d_swa", "d_value_full", "d_value_swa", "wkv_d",
}
# State space models: kernels exist for states of 128 (16 in those of one group of weights), delta nets for 128.
STATES = {"mamba": 16, "jamba": 16}
# Name, share of the layers, options, and the same as an execution path.
MODES = [
    ("all", None, [], ["devices"]),
    ("all, flash, pieces", None, ["--flash-attn", "on", "--chunk", "5"], ["devices", "flash", "chunk=5"]),
    ("half, flash", 0.5, ["--flash-attn", "on"], ["devices", "flash"]),
]
# The value that says which experts were chosen.
CHOICE = ".picked"


class Late(RuntimeError):
    """A run that took longer than it may."""


def cases(folder):
    with open(os.path.join(folder, "cases.toml"), "rb") as file:
        table = tomllib.load(file)
    for case in table["case"]:
        values = {k: v for k, v in {**table["set"], **case.get("set", {})}.items() if v != ""}
        yield case, values, case.get("tokens", table["tokens"])


def grown(case, values):
    """The parameters with heads of at least 64 elements."""
    numbers = lambda v: [int(x) for x in str(v).split(",")]
    heads = [h for h in numbers(values.get("n_head", 1)) if h] or [1]
    head = values.get("d_head") or values.get("d_head_v_mla") or values.get("wkv_d") or values["n_embd"] // max(heads)
    if "d_head_mla" in values or "d_full" in values:
        head = max(int(values["n_rot"]), 8)
    factor = max(1, -(-64 // int(head)))
    out = dict(values)
    for key in WIDTHS & values.keys():
        value = values[key]
        out[key] = ",".join(str(n * factor) for n in numbers(value)) if isinstance(value, str) else value * factor
    if "ssm_state" in values:
        out["ssm_state"] = STATES.get(case["arch"], 128)
    if "d_kda" in values:  # CUDA's kernels of the gated delta rule end there
        out["d_kda"] = min(out["d_kda"], 128)
    if "d_head_index" in values:  # as wide as its rotated part
        out["d_head_index"] = max(64, values["d_head_index"])
    return out


def nmse(found, expected):
    if len(found) != len(expected):
        return float("inf")
    square = sum(e * e for e in expected)
    return sum((f - e) ** 2 for f, e in zip(found, expected)) / square if square else float("inf")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default="target/release/bench", help="the program, with what runs it elsewhere")
    parser.add_argument("--device", default="Vulkan0")
    parser.add_argument("--backend", help="backend library")
    parser.add_argument("--work", default="target/device-check")
    parser.add_argument("--goldens", default="tests/goldens")
    parser.add_argument("--only", help="names of cases")
    parser.add_argument("--jobs", type=int, default=1, help="cases that run at the same time")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no case after this time")
    parser.add_argument("--bound", type=float, default=1e-4, help="NMSE that is allowed; the default is that of products in f16")
    parser.add_argument("--limit", type=float, default=120, help="seconds that one run may take")
    parser.add_argument("--page", help="file for the tables in Markdown")
    args = parser.parse_args()
    bench = shlex.split(args.bench)
    backend = ["--backend", args.backend] if args.backend else []

    def start(*line):
        try:
            return subprocess.run([*bench, *line], capture_output=True, text=True, timeout=args.limit)
        except subprocess.TimeoutExpired:
            raise Late(f"bench {line[0]} took longer than {args.limit:.0f} s") from None

    def run(*line):
        done = start(*line)
        if done.returncode != 0:
            said = [l for l in (done.stderr + done.stdout).splitlines() if l.strip()]
            wrong = [l for l in said if "error" in l.lower() or "assert" in l.lower() or "gives up" in l]
            raise RuntimeError(f"exit {done.returncode}: {(wrong or said or ['no message'])[0][:300]}")
        return done.stdout

    def first_difference(logits, options):
        """The first value that differs by more than the bound from the processor's, or the choice of experts in the
        same layer, if that differs: of the numbers of experts the least difference counts. And the first choice that
        differs in any layer."""
        model, tokens = logits[logits.index("-m") + 1], logits[logits.index("--tokens") + 1]
        done = start("compare", model, "--tokens", tokens, "--json", "--all", "--tolerance", str(args.bound), *options)
        if not done.stdout:
            raise RuntimeError(f"bench compare: {done.stderr.strip()[:300]}")
        values = json.loads(done.stdout)["values"]
        differs = lambda value: value["nmse"] is None or value["nmse"] > args.bound
        at = next((at for at, value in enumerate(values) if differs(value)), None)
        if at is None:
            return "nothing", None
        layer = ".".join(values[at]["path"].split(".")[:2]) + "."
        choices = [(i, v["path"]) for i, v in enumerate(values) if v["path"].endswith(CHOICE) and v["nmse"] != 0]
        here = (path for i, path in choices if i <= at and path.startswith(layer))
        return next(here, values[at]["path"]), next((path for _, path in choices), None)

    rows, lacks, failures, skipped, chosen = [], {}, [], [], []
    writing = threading.Lock()

    def fails(what):
        failures.append(what)
        print(f"  {what}", flush=True)

    def tables():
        page = [f"| model | {' | '.join(m for m, *_ in MODES)} | lacking in decode |", "|---|" + "--:|" * (len(MODES) + 1)]
        page += ["| " + " | ".join(row) + " |" for row in sorted(rows)]
        page += ["", "| operation that the device lacks | result | first source | models |", "|---|---|---|---|"]
        for key, where in sorted(lacks.items()):
            one = next(iter(where.values()))
            some = ", ".join(list(where)[:4]) + (f" and {len(where) - 4} more" if len(where) > 4 else "")
            page.append(f"| {key} | {one['shape']} | {one['first_source']} | {some} |")
        return "\n".join([*page, "", *(f"\\* {line}" for line in chosen), *(f"- {line}" for line in failures)])

    def check(case, values, tokens):
        """The cells of one case's row; none where there is no reference."""
        name = case["name"]
        folder = os.path.join(args.work, name)
        os.makedirs(folder, exist_ok=True)
        model, out = os.path.join(folder, "model.gguf"), os.path.join(folder, "out.npy")
        row = [name]
        try:
            sets = synth_options(grown(case, values), case.get("meta", {}))
            sets += ["--with", ",".join(case["with"])] if case.get("with") else []
            run("synth", case["arch"], "--seed", str(case["seed"]), "--type", case.get("type", "f32"), *sets, "-o", model, "--force")
            n_layers = int(str(grown(case, values)["block_count"]))
            logits = ["logits", "-m", model, "--tokens", ",".join(map(str, tokens)), "-o", out, "--force"]
            source = ["--source", ",".join(map(str, case["source"]))] if case.get("source") else []
            logits += ["--non-causal"] if case.get("causal") is False else source
            # The processor rounds what it multiplies with quantised weights to 8 bits, devices do not all: the reference
            # is the product of the same weights in f32.
            exact = ["--type", "f32"] if case.get("type", "f32") not in ("f32", "f16", "bf16") else []
            run(*logits, "--device", "none", *exact)
            expected = read_npy(out)[0]
            rounding = 0.0
            if exact:
                run(*logits, "--device", "none")
                rounding = nmse(read_npy(out)[0], expected)
        except RuntimeError as error:
            fails(f"{name}: no reference: {error}")
            return None
        for mode, share, options, path in MODES:
            if case.get("causal") is False:
                options = [o for o in options if o not in ("--chunk", "5")]
                path = [step for step in path if step != "chunk=5"]
            n = "all" if share is None else str(max(1, int((n_layers + 1) * share)))
            cell = "fails"
            try:
                run(*logits, *backend, "--device", args.device, "--gpu-layers", n, *options)
                error = nmse(read_npy(out)[0], expected)
                cell = f"{error:.1e}"
                if not error <= max(args.bound, 1.5 * rounding):
                    places = [*source, "--device", args.device, "--gpu-layers", n, "--path", ",".join(path)]
                    first, choice = first_difference(logits, [*backend, *places])
                    if first.endswith(CHOICE):
                        cell += " *"
                        chosen.append(f"{name}, {mode}: other experts from `{first}` on")
                    else:
                        later = f", other experts from `{choice}` on" if choice else ""
                        fails(f"{name}, {mode}: NMSE {error:.1e}, first in `{first}`{later}")
            except RuntimeError as error:
                cell = f"> {args.limit:.0f} s" if isinstance(error, Late) and cell == "fails" else cell
                fails(f"{name}, {mode}: {error}")
            row.append(cell)
        try:
            listed = json.loads(run("devices", "-m", model, "--kv-type", "f32", "--json", *backend))
            found = next(d for d in listed if d["name"] == args.device).get("lacks", [])
            with writing:
                for lack in found:
                    key = f'{lack["operation"]} of {lack["block"]}, {lack["types"][0]} from {", ".join(lack["types"][1:])}'
                    lacks.setdefault(key, {})[name] = lack
            row.append(str(sum(l["uses_in_decode"] for l in found)))
        except (RuntimeError, StopIteration) as error:
            row.append("?")
            fails(f"{name}: bench devices: {error}")
        os.remove(model)
        return row

    began = time.monotonic()

    def take(one):
        if time.monotonic() - began > args.seconds:
            skipped.append(one[0]["name"])
            return
        row = check(*one)
        if row is None:
            return
        with writing:
            rows.append(row)
            print("  ".join(f"{cell:>{w}}" for cell, w in zip(row, [24, 9, 9, 9, 4])), flush=True)
            if args.page:
                with open(args.page, "w") as file:
                    file.write(tables() + "\n")

    wanted = [one for one in cases(args.goldens) if not args.only or one[0]["name"] in args.only.split(",")]
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(take, wanted))

    print(tables().split("\n\n")[1] if lacks else "no operation is lacking")
    print("\n".join([*chosen, *failures]))
    print(f"{len(rows)} models on {args.device}, {len(failures)} failures, {len(skipped)} not started for lack of time"
          f" {' '.join(skipped)}, {time.monotonic() - began:.0f} s")
    sys.exit(bool(failures or skipped or not rows))


main()
