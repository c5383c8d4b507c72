#!/usr/bin/env python3
"""Speed of synthesised models on a device, against llama.cpp's library with the same kernels: a table in Markdown.

Called by scripts/gpu_check.sh, which builds what is compared. For each model: prefill of one prompt and of several together,
decode of some sequences at some depths, the engine's own speed, and requests of mixed lengths that come and end, through the HTTP server
(llama.cpp: in a loop of its library, without HTTP). What there is no time or no disk for is said, and makes the exit code 1.

  --make         only makes the files of the models, as many as the disk has room for
  --sweep        measures which of ggml's kernels is fastest for each number of columns, for ggml-sys/cuda/kernel_choice.h
"""
import argparse, concurrent.futures, json, os, random, shlex, shutil, sys, tempfile, time

from bench_server import BUILT_IN, Failure, Server, run, synth_options

MODELS = {
    "dense": ("llama", {"n_embd": 4096, "n_head": 32, "n_head_kv": 8, "n_ff": 14336, "vocab_size": 128256, "rope_base": 500000.0}, 32),
    "moe": ("qwen3moe", {"n_embd": 2048, "n_head": 32, "n_head_kv": 4, "d_head": 128, "d_head_v": 128, "n_rot": 128,
                         "n_expert": 128, "n_expert_used": 8, "n_ff_exp": 768, "vocab_size": 151936, "rope_base": 1000000.0}, 48),
    "tiny": ("llama", {"n_embd": 256, "n_head": 4, "n_head_kv": 2, "n_ff": 512, "vocab_size": 4096, "rope_base": 10000.0}, 2),
    "tiny-moe": ("qwen3moe", {"n_embd": 256, "n_head": 4, "n_head_kv": 2, "d_head": 64, "d_head_v": 64, "n_rot": 64,
                              "n_expert": 8, "n_expert_used": 2, "n_ff_exp": 256, "vocab_size": 4096, "rope_base": 10000.0}, 2),
}
# Bytes of a weight.
BYTES = {"q4_k": 0.5625, "q8_0": 1.0625, "f16": 2, "bf16": 2, "f32": 4}
# Numbers of prompts and their lengths; sequences and depths; slots and requests.
FULL = {"prefill": [(1, 512), (1, 2048), (4, 2048)],
        "decode": [(1, 0), (8, 0), (64, 0), (256, 0), (1, 1024), (8, 1024), (64, 1024), (256, 1024), (1, 8192), (8, 8192)],
        "engine": [(64, 0)], "churn": (64, 192), "n": 32, "prompts": (50, 1500), "answers": (20, 200)}
SMALL = {"prefill": [(1, 32), (2, 64)], "decode": [(1, 0), (4, 0), (1, 64), (4, 64)], "engine": [(4, 0)], "churn": (4, 12), "n": 4,
         "prompts": (5, 60), "answers": (2, 12)}
# Disk that is left free, and what a file may take of the rest.
SPARE = 6 << 30
SWEEP = {"columns": [1, 2, 3, 4, 5, 6, 7, 8], "prompts": [16, 32, 48, 64, 96, 128, 160, 192, 256, 384, 512]}
# All weights by one kernel.
KERNELS = {"vector": "*:8:-", "quantised": "*:0:-", "cuBLAS": "*:0:0"}


class Late(Exception):
    """There is no time left."""


class Measurements:
    def __init__(self, args):
        self.args, self.began, self.wrong = args, time.monotonic(), []
        self.cases = SMALL if args.small else FULL
        self.bench = shlex.split(args.bench)
        self.placed = ["--device", args.device, *(["--backend", args.library] if args.library != "-" else [])]
        self.layers_there = 0 if args.device == "none" else 999

    def left(self, what):
        """Seconds that are left; none is the end."""
        left = self.args.until - (time.monotonic() - self.began)
        if left <= 0:
            raise Late(f"{what}: no time left")
        return left

    def say(self, text):
        print(f"   {text} ({time.monotonic() - self.began:.0f} s)", file=sys.stderr, flush=True)

    def models(self):
        for kind in self.args.models.split():
            whole = MODELS[kind][2]
            for ty in self.args.types.split():
                yield kind, ty, min(self.args.layers, whole), whole

    def make(self, kind, ty, layers):
        """The file of a model, made unless it is there; its size is known before."""
        path = os.path.join(self.args.work, f"{kind}-{ty}-{layers}.gguf")
        if os.path.exists(path):
            return path
        arch, values, _ = MODELS[kind]
        values = {**values, "block_count": layers, "n_ctx_train": 32768, "rms_eps": 1e-5}
        needed, free = size_of(values, ty), shutil.disk_usage(self.args.work).free
        if needed + SPARE > free:
            raise Failure(f"{needed / 1e9:.1f} GB of a file do not fit into {free / 1e9:.1f} GB of disk with {SPARE / 1e9:.1f} GB to spare")
        words = [*self.bench, "synth", arch, "--type", ty, "--with", "output", "--vocab", BUILT_IN, *synth_options(values)]
        run([*words, "-o", path + ".part", "--force"], timeout=None)
        os.replace(path + ".part", path)
        return path

    def perf(self, model, *words, env=None):
        env = {**os.environ, **env} if env else None
        command = [*self.bench, "perf", "-m", model, "--json", *self.placed, *words]
        return json.loads(run(command, timeout=self.left("bench perf") + 60, env=env))["runs"][0]

    def ours(self, model):
        """Tokens per second of each case, and the bytes that decoding reads."""
        cases, speeds, read = self.cases, {}, {}
        n = ["-n", cases["n"], "-r", 3]
        depths = sorted({depth for _, depth in cases["decode"]})
        for prompts in sorted({prompts for prompts, _ in cases["prefill"]}):
            lengths = ",".join(str(n) for several, n in cases["prefill"] if several == prompts)
            found = self.perf(model, "-p", lengths, "--prompts", prompts, "-n", 1, "-r", 3)
            for row in found["prefill"]:
                speeds[f"prefill:{prompts}x{row['tokens']}"] = row["tokens_per_second"]
        for depth in depths:
            sequences = ",".join(str(s) for s, d in cases["decode"] if d == depth)
            found = self.perf(model, "-p", 1, *n, "-d", depth, "-s", sequences)
            for row in found["decode"]:
                key = f"decode:{row['sequences']}@{depth}"
                speeds[key], read[key] = row["tokens_per_second"], row["bytes_per_second"]
        for requests, depth in cases["engine"]:
            found = self.perf(model, "-p", 1, *n, "-d", depth, "-s", requests, "--requests")
            speeds[f"engine:{requests}@{depth}"] = found["requests"][0]["tokens_per_second"]
        return speeds, read

    def requests(self):
        """Lengths of prompts and answers, the same for both programs."""
        chance = random.Random(7)
        return [(chance.randint(*self.cases["prompts"]), chance.randint(*self.cases["answers"])) for _ in range(self.cases["churn"][1])]

    def churn(self, model):
        """Tokens of answers per second through the server, with as many clients as slots."""
        slots, requests = self.cases["churn"][0], self.requests()
        ctx = -(-sum(max(column) for column in zip(*requests)) // 256) * 256 + 256
        limit = self.left("the server")
        with tempfile.TemporaryDirectory(dir=self.args.work) as folder:
            words = ["--parallel", slots, "--ctx", ctx, *self.placed]
            with Server(*self.bench, "--log", os.path.join(folder, "log"), "serve", "-m", model, *words, output=os.path.join(folder, "output")) as server:
                def ask(request):
                    (prompt, answer), i = request
                    ids = [(7 * at + i) % 90 + 1 for at in range(prompt)]
                    body = {"prompt": ids, "n_predict": answer, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
                    said = server.json("/completion", body)
                    if said["tokens_predicted"] != answer:
                        raise Failure(f"/completion: {said['tokens_predicted']} tokens of {answer}")
                    return answer

                with concurrent.futures.ThreadPoolExecutor(slots) as pool:
                    ask(((8, 4), 0))
                    start = time.monotonic()
                    answers = list(pool.map(ask, zip(requests, range(len(requests))), timeout=limit + 60))
                    return sum(answers) / (time.monotonic() - start)

    def theirs(self, model):
        cases = [f"prefill:{prompts}x{n}" for prompts, n in self.cases["prefill"]]
        cases += [f"decode:{sequences}@{depth}" for sequences, depth in self.cases["decode"]]
        cases += [f"churn:{self.cases['churn'][0]}:" + ",".join(f"{prompt}+{answer}" for prompt, answer in self.requests())]
        command = [*shlex.split(self.args.llama), model, self.args.library, self.layers_there, self.cases["n"], *cases]
        return json.loads(run(command, timeout=self.left("llama-speed") + 60))

    def compare(self):
        print("| model | measured | tokens/s | llama.cpp | ratio | share of bandwidth |\n|---|---|--:|--:|--:|--:|")
        for kind, ty, layers, whole in self.models():
            name = f"{kind} {ty}, {layers} of {whole} layers"
            try:
                self.left(name)
                model = self.make(kind, ty, layers)
                self.say(f"{name} is made")
                ours, read = self.ours(model)
                self.say(f"{name}: passes are measured")
                slots = self.cases["churn"][0]
                ours[f"churn:{slots}"] = self.churn(model)
                self.say(f"{name}: the server is measured")
                theirs = self.theirs(model)
                self.say(f"{name}: llama.cpp is measured")
                for requests, depth in self.cases["engine"]:
                    theirs[f"engine:{requests}@{depth}"] = theirs[f"decode:{requests}@{depth}"]
            except Late as late:
                self.wrong.append(str(late))
                continue
            except (Failure, KeyError, ValueError, OSError, TimeoutError) as error:
                self.wrong.append(f"{name}: {error!r}")
                continue
            finally:
                self.remove(kind, ty, layers)
            for key, mine in ours.items():
                share = f"{read[key] / self.args.bandwidth / 1e7:.0f} %" if key in read and self.args.bandwidth else "-"
                print(f"| {name} | {words_of(key)} | {mine:.1f} | {theirs[key]:.1f} | {mine / theirs[key]:.2f} | {share} |", flush=True)

    def remove(self, kind, ty, layers):
        if not self.args.keep:
            path = os.path.join(self.args.work, f"{kind}-{ty}-{layers}.gguf")
            for name in [path, path + ".part"]:
                if os.path.exists(name):
                    os.remove(name)

    def sweep(self):
        """Which kernel is fastest, and the limits that follow: those of a row of ggml-sys/cuda/kernel_choice.h."""
        columns, prompts = (SWEEP["columns"], SWEEP["prompts"]) if not self.args.small else ([1, 2], [16, 32])
        print("| model | columns | " + " | ".join(KERNELS) + " | best |\n|---|--:|" + "--:|" * len(KERNELS) + "---|")
        for kind, ty, layers, whole in self.models():
            name = f"{kind} {ty}, {layers} of {whole} layers"
            try:
                self.left(name)
                model = self.make(kind, ty, layers)
                speeds = {}
                for kernel, value in KERNELS.items():
                    found = self.perf(
                        model, "-p", ",".join(map(str, prompts)), "-s", ",".join(map(str, columns)), "-n", 8, "-r", 3,
                        env={"BENCH_CUDA_KERNELS": value})
                    for row in found["decode"]:
                        speeds.setdefault(row["sequences"], {})[kernel] = row["tokens_per_second"]
                    for row in found["prefill"]:
                        # More than eight columns are none of the vector kernel's.
                        if kernel != "vector":
                            speeds.setdefault(row["tokens"], {})[kernel] = row["tokens_per_second"]
            except Late as late:
                self.wrong.append(str(late))
                continue
            except (Failure, KeyError, ValueError, OSError) as error:
                self.wrong.append(f"{name}: {error!r}")
                continue
            finally:
                self.remove(kind, ty, layers)
            for n, found in sorted(speeds.items()):
                cells = " | ".join(f"{found[kernel]:.1f}" if kernel in found else "-" for kernel in KERNELS)
                print(f"| {name} | {n} | {cells} | {max(found, key=found.get)} |", flush=True)
            faster = lambda n, a, b: a in speeds[n] and speeds[n][a] >= speeds[n][b]  # noqa: E731
            vector = max((n for n in columns if faster(n, "vector", "quantised")), default=0)
            quantised = max((n for n in speeds if faster(n, "quantised", "cuBLAS")), default=0)
            print(f"| {name} | limits | {vector} | {quantised} | | `BENCH_CUDA_KERNELS={ty}:{vector}:{quantised}` |", flush=True)


def words_of(key):
    what, _, of = key.partition(":")
    if what == "prefill":
        several, _, n = of.partition("x")
        return f"prefill of {n}" if several == "1" else f"prefill of {several} x {n}"
    if what == "churn":
        return f"answers of the server, {of} clients, mixed lengths"
    several, _, depth = of.partition("@")
    return f"{what}, {several} at {depth}"


def size_of(values, ty):
    """Bytes of the weights of a model, about."""
    embd, heads, kv = values["n_embd"], values["n_head"], values["n_head_kv"]
    head = values.get("d_head", embd // heads)
    attention = embd * head * (2 * heads + 2 * kv)
    ffn = 3 * embd * (values["n_expert"] * values["n_ff_exp"] if "n_expert" in values else values["n_ff"])
    n = values["block_count"] * (attention + ffn) + 2 * values["vocab_size"] * embd
    return int(1.1 * n * BYTES[ty])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ["bench", "work", "types", "models"]:
        parser.add_argument(f"--{name}", required=True)
    for name in ["llama", "library", "device"]:
        parser.add_argument(f"--{name}", default="-")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--bandwidth", type=float, default=0, help="of the card's memory, GB/s")
    parser.add_argument("--until", type=float, default=1e9, help="seconds after which nothing is started")
    parser.add_argument("--small", action="store_true", help="few short cases, to try the script itself")
    parser.add_argument("--keep", action="store_true", help="keep the files of the models")
    parser.add_argument("--make", action="store_true")
    parser.add_argument("--sweep", action="store_true")
    args = parser.parse_args()
    of = Measurements(args)
    if args.make:
        for kind, ty, layers, _ in of.models():
            try:
                of.make(kind, ty, layers)
            except Failure as failure:
                print(f"{kind} {ty}: {failure}", file=sys.stderr)
        return
    of.sweep() if args.sweep else of.compare()
    print("\n".join(of.wrong), file=sys.stderr)
    sys.exit(bool(of.wrong))


main()
