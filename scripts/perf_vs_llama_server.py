#!/usr/bin/env python3
"""Measures this server against llama-server, alternating, on the same files, threads and context.

Needs: a llama-server (named, LLAMA_SERVER, or on the PATH; `make perf-vs-llama` sees to it). Nothing
       besides Python's standard library.

The models are made by `bench synth`: a qwen3 of 0.6 billion random weights for each type, with the
shipped model's vocabulary filled up to the width of the real one. Both servers get the same requests
over the same HTTP API, greedy and with the end of text ignored, so that both write as many tokens.
Each figure is the median over the repeats. What failed is in the table as failed and makes the exit
code 1. Run it on a machine that does nothing else.
"""

import bisect
import http.client
import itertools
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import bench_server
import perf_page
from bench_server import BUILT_IN, ROOT, TIMEOUT, Failure, memory_of, percentile, processes, synth_options

# 0.6 billion weights: layers, widths and heads of the smallest model of its family.
MODEL = {
    "block_count": 28,
    "n_embd": 1024,
    "n_ff": 3072,
    "n_head": 16,
    "n_head_kv": 8,
    "d_head": 128,
    "d_head_v": 128,
    "n_rot": 128,
    "n_ctx_train": 40960,
    "vocab_size": 151936,
    "rms_eps": 0.000001,
    "rope_base": 1000000.0,
}
# A hundredth of that, to try the script itself.
SMALL = {"block_count": 2, "n_embd": 256, "n_ff": 768, "n_head": 4, "n_head_kv": 2, "vocab_size": 8192}

CLIENTS = [1, 2, 4, 8]
N_ANSWER = 64
N_PROMPT = 512
N_PREFIX = 500
N_LONG = 2000

WORDS = (
    "apple river stone garden winter morning yellow window paper horse music ocean silver bridge letter forest "
    "market candle summer shadow engine bottle island copper meadow station"
).split()


# ---------------------------------------------------------------- one streamed answer


class Answer(threading.Thread):
    """Sends a chat request and keeps when which bytes of the answer came; looks at them afterwards."""

    def __init__(self, port, model, text, n_tokens, system=None):
        super().__init__(daemon=True)
        messages = [{"role": "system", "content": system}] if system else []
        self.body = {
            "model": model, "messages": [*messages, {"role": "user", "content": text}], "stream": True,
            "stream_options": {"include_usage": True}, "max_tokens": n_tokens, "temperature": 0, "ignore_eos": True,
        }  # fmt: skip
        self.port, self.parts, self.times, self.events, self.error = port, [], [], 0, None
        self.is_stopped = threading.Event()

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        try:
            connection.connect()
            self.sent = time.perf_counter()
            head = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/chat/completions", json.dumps(self.body), head)
            response = connection.getresponse()
            if response.status != 200:
                self.error = f"refused: {response.read(400).decode('utf-8', 'replace')}"
            while not self.error and not self.is_stopped.is_set() and (data := response.read1(1 << 16)):
                self.times.append(time.perf_counter())
                self.parts.append(data)
                self.events += data.count(b"data: ")
        except (OSError, http.client.HTTPException) as error:
            if not self.is_stopped.is_set():
                self.error = f"the connection failed: {error}"
        finally:
            connection.close()

    def stop(self):
        """Hangs up at the next bytes."""
        self.is_stopped.set()

    def finish(self):
        """Waits for the end and splits the bytes into events, each with the time of its last byte."""
        self.join(TIMEOUT)
        if self.is_alive():
            raise Failure("an answer did not end in time")
        if self.error:
            raise Failure(self.error)
        ends = list(itertools.accumulate(map(len, self.parts)))
        self.stamps, self.usage = [], None
        for found in re.finditer(rb"data: (.*?)\r?\n", b"".join(self.parts)):
            if found.group(1) == b"[DONE]":
                continue
            event = json.loads(found.group(1))
            if "error" in event:
                raise Failure(f"the stream failed: {event['error']}")
            self.usage = event.get("usage") or self.usage
            deltas = [choice.get("delta") or {} for choice in event.get("choices") or []]
            texts = [delta for delta in deltas if delta.get("content") or delta.get("reasoning_content")]
            self.stamps += [self.times[bisect.bisect_left(ends, found.end())]] * len(texts)
        return self

    def check(self, n_tokens):
        """Whether as many tokens came as were asked for."""
        if not self.usage:
            raise Failure("the answer has no usage")
        found = self.usage["completion_tokens"]
        if found != n_tokens:
            raise Failure(f"the answer has {found} tokens, expected {n_tokens}")
        # Some tokens have no text of their own; the clock is of little worth if many do.
        if len(self.stamps) < 0.8 * n_tokens:
            raise Failure(f"{n_tokens} tokens came in {len(self.stamps)} events")
        return self

    @property
    def first(self):
        if not self.stamps:
            raise Failure("no text came")
        return self.stamps[0] - self.sent

    @property
    def gaps(self):
        return [b - a for a, b in zip(self.stamps, self.stamps[1:])]

    @property
    def speed(self):
        """Tokens per second after the first."""
        return (self.usage["completion_tokens"] - 1) / (self.stamps[-1] - self.stamps[0])


# ---------------------------------------------------------------- servers


class Server(bench_server.Server):
    """A server that is measured; `name` is its kind."""

    def __init__(self, kind, command, model, scratch):
        super().__init__(*command, output=Path(scratch) / f"{kind}.log")
        self.kind, self.model = kind, model

    def answer(self, text, n_tokens, system=None):
        """A request that is on its way."""
        answer = self.ready(text, n_tokens, system)
        answer.start()
        return answer

    def ready(self, text, n_tokens, system=None):
        """A request that is not sent yet."""
        return Answer(self.port, self.model.stem, text, n_tokens, system)

    def peak_bytes(self):
        """The most memory that each process of the server had resident, in all.

        What processes share now, such as the pages of the program, counts once.
        """
        pids = processes(self.process.pid)
        shared = (memory_of(pid, "Rss", "smaps_rollup") - memory_of(pid, "Pss", "smaps_rollup") for pid in pids)
        return sum(memory_of(pid, "VmHWM") for pid in pids) - sum(shared)


class Bench:
    """Both programs, and how each gets the same settings."""

    def __init__(self, ours, theirs, threads, scratch):
        self.ours, self.theirs, self.threads, self.scratch = ours, theirs, threads, scratch

    def server(self, kind, model, slots, context):
        if kind == "ours":
            command = [self.ours, "serve", "-m", model, "--parallel", slots, "--ctx", context]
            command += ["--threads", self.threads]
        else:
            command = [self.theirs, "-m", model, "-np", slots, "-c", slots * context, "-t", self.threads]
            command += ["-tb", self.threads, "--no-webui"]
        return Server(kind, command, model, self.scratch)

    def tokens(self, model, texts):
        """Tokens of each text."""
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        found = bench_server.run([self.ours, "tokenize", "-m", model, "--jsonl"], lines)
        return [len(json.loads(line)["ids"]) for line in found.splitlines()]


class Texts:
    """Texts of a number of tokens, no two alike."""

    def __init__(self, bench, model, seed):
        self.bench, self.model, self.random = bench, model, random.Random(seed)
        sample = " ".join(self.random.choice(WORDS) for _ in range(2000))
        self.per_word = bench.tokens(model, [sample])[0] / 2000

    def of(self, n_tokens):
        """A text of about so many tokens, and never more."""
        words = [self.random.choice(WORDS) for _ in range(int(1.2 * n_tokens / self.per_word) + 2)]
        # The first words are never the same twice, so that no server has them already.
        words[0] = f"{self.random.randrange(10**8)}"
        lengths = sorted({max(1, int(len(words) * part / 64)) for part in range(24, 65)})
        counts = self.bench.tokens(self.model, [" ".join(words[:n]) for n in lengths])
        fitting = [n for n, count in zip(lengths, counts) if count <= n_tokens]
        return " ".join(words[: fitting[-1] if fitting else 1])


# ---------------------------------------------------------------- what is measured


def load(server, _texts):
    return {"load": server.seconds}


def prompt(server, texts):
    """Time to the first token of a prompt that nobody sent before."""
    answer = server.answer(texts.of(N_PROMPT), 4).finish()
    return {"first_cold": answer.first, "prefill": answer.usage["prompt_tokens"] / answer.first}


def shared(server, texts):
    """Time to the first token for a second client with the same long beginning."""
    system = texts.of(N_PREFIX)
    server.answer(texts.of(8), 4, system).finish()
    found = {"first_shared": server.answer(texts.of(8), 4, system).finish().first}
    # The same while the client that brought the beginning still gets its answer.
    system = texts.of(N_PREFIX)
    running = server.answer(texts.of(8), 256, system)
    wait_for(lambda: running.events > 8 or not running.is_alive())
    found["first_shared_busy"] = server.answer(texts.of(8), 4, system).finish().first
    running.stop()
    running.join(TIMEOUT)
    return found


def decode(server, texts):
    """The flow of a single answer."""
    answer = server.answer(texts.of(16), 2 * N_ANSWER).finish().check(2 * N_ANSWER)
    gaps = [1e3 * gap for gap in answer.gaps]
    return {"decode": answer.speed, "gap_p50": percentile(gaps, 50), "gap_p99": percentile(gaps, 99)}


def clients(server, texts):
    """Tokens of all clients over the time from the first request to the last token."""
    found = {}
    for n in CLIENTS:
        prompts = [texts.of(16) for _ in range(n)]
        answers = [server.answer(text, N_ANSWER) for text in prompts]
        for answer in answers:
            answer.finish().check(N_ANSWER)
        first = min(answer.sent for answer in answers)
        last = max(answer.stamps[-1] for answer in answers)
        found[f"total_{n}"] = n * N_ANSWER / (last - first)
    return found


def memory(server, _texts):
    return {"peak": server.peak_bytes() / 1e6}


def stall(server, texts):
    """What running answers feel of two long prompts."""
    running = [server.answer(texts.of(64), 3000) for _ in range(4)]
    longs = [texts.of(N_LONG) for _ in range(2)]
    wait_for(lambda: all(a.events > 12 for a in running) or not all(a.is_alive() for a in running))
    answers = [server.answer(text, 2) for text in longs]
    for answer in answers:
        answer.finish()
    begin = min(answer.sent for answer in answers)
    end = max(answer.stamps[0] for answer in answers)
    for answer in running:
        answer.stop()
    gaps = []
    for answer in running:
        answer.finish()
        inside = [t for t in answer.stamps if t <= end]
        if not inside or answer.stamps[-1] < begin:
            raise Failure("an answer ended before the long prompts came")
        gaps += [b - a for a, b in zip(inside, inside[1:]) if b > begin]
        gaps.append(end - max(inside[-1], begin))
    first = statistics.mean(answer.first for answer in answers)
    return {"stall_p99": 1e3 * percentile(gaps, 99), "stall_max": 1e3 * max(gaps), "first_long": first}


def tiny(server, texts):
    """Speed of a completion of a model so small that it costs almost nothing."""
    speeds = [server.answer(texts.of(8), 400).finish().check(400).speed for _ in range(5)]
    return {"tiny_decode": statistics.median(speeds)}


def wait_for(condition):
    deadline = time.perf_counter() + TIMEOUT
    while not condition():
        if time.perf_counter() > deadline:
            raise Failure("a server does not go on")
        time.sleep(0.005)


# Which phases share a start of the server, with how many slots of which context.
STARTS = [
    (8, 1024, [load, prompt, shared, decode, clients, memory]),
    (6, 4096, [stall]),
]
TINY_STARTS = [(1, 512, [tiny])]


class Results:
    """Values of each figure by model and server, and what failed."""

    def __init__(self):
        self.values, self.failures = {}, []

    def add(self, model, kind, found):
        for figure, value in found.items():
            self.values.setdefault(model, {}).setdefault(figure, {}).setdefault(kind, []).append(value)

    def fail(self, model, kind, phase, reason):
        self.failures.append({"model": model, "server": kind, "phase": phase, "reason": str(reason)})
        print(f"  FAILED {model} {kind} {phase}: {reason}", flush=True)


def measure(bench, name, model, starts, repeats, results):
    texts = Texts(bench, model, name)
    for _ in range(2):  # The file is in memory before the first start.
        model.read_bytes()
    for repeat in range(repeats):
        order = ["ours", "llama-server"]
        for kind in order if repeat % 2 == 0 else order[::-1]:
            for slots, context, phases in starts:
                run_phases(kind, lambda: bench.server(kind, model, slots, context), phases, texts, name, results)  # noqa: B023
            print(f"  {name} {kind} {repeat + 1}/{repeats}", flush=True)


def run_phases(kind, start, phases, texts, name, results):
    done = None
    try:
        with start() as server:
            for phase in phases:
                done = phase.__name__
                try:
                    results.add(name, kind, phase(server, texts))
                except (Failure, OSError, ValueError, KeyError) as failure:
                    results.fail(name, kind, done, repr(failure))
                    if not server.is_alive():
                        raise Failure(f"{kind} ended: {server.tail()}") from None
    except Failure as failure:
        results.fail(name, kind, done or "start", failure)


def bandwidth(bench, name, model, results):
    """The speed of the engine alone, and the bandwidth of the memory."""
    command = [bench.ours, "perf", "-m", model, "-p", 512, "-n", 64, "-r", 3, "--threads", bench.threads, "--json"]
    try:
        report = json.loads(bench_server.run(command))
    except Failure as failure:
        results.fail(name, "ours", "bench perf", failure)
        return
    results.add(name, "ours", {
        "engine_decode": report["decode"]["tokens_per_second"],
        "engine_prefill": report["prefill"][0]["tokens_per_second"],
        "bandwidth": report["bandwidth_bytes_per_second"] / 1e9,
        "share": report["decode_share_of_bandwidth"],
    })


# ---------------------------------------------------------------- models and programs


def make_model(ours, ty, vocab, folder, is_small):
    """The random model of a type; made once."""
    path = folder / f"{'small' if is_small else 'q06'}-{vocab.stem}-{ty}.gguf"
    if not path.exists():
        command = [ours, "synth", "qwen3", "-o", path.with_suffix(".part"), "--force", "--type", ty, "--seed", 1, "--vocab", vocab]
        print(f"making {path}", flush=True)
        bench_server.run(command + synth_options(MODEL | SMALL if is_small else MODEL))
        path.with_suffix(".part").rename(path)
    return path


def first_line(command):
    try:
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=60)
    except OSError as error:
        return str(error)
    return ((done.stdout + done.stderr).strip().splitlines() or ["?"])[0]


def machine():
    """What the figures were measured on."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    found = re.search(r"model name\s*: (.*)", text)
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": found.group(1) if found else "?",
        "cores": os.cpu_count(),
        "memory_gb": round(pages / 1e9, 1),
        "system": " ".join(os.uname()[i] for i in (0, 2, 4)),
        "load_before": os.getloadavg()[0],
    }


def run(args):
    theirs = bench_server.llama_server(args.llama_server)
    if not shutil.which(args.bench):
        raise Failure(f"`{args.bench}` is not a program; build it with `cargo build --release`")
    args.work.mkdir(parents=True, exist_ok=True)
    results = Results()
    about = machine()
    about["ours"] = first_line([args.bench, "--version"])
    about["commit"] = first_line(["git", "-C", ROOT, "describe", "--always", "--dirty"])
    versions = subprocess.run([theirs, "--version"], capture_output=True, text=True, timeout=60)
    about["llama_server"] = " ".join((versions.stdout + versions.stderr).split())[:200]
    about["command"] = " ".join(["scripts/perf_vs_llama_server.py", *sys.argv[1:]])
    about["model"] = "qwen3 of random weights, " + ("a small one to try the script" if args.small else "0.6 billion")
    about["threads"], about["repeats"] = args.threads, args.repeats
    about["date"] = time.strftime("%Y-%m-%d")
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(args.bench, theirs, args.threads, scratch)
        for ty in args.types.split(","):
            model = make_model(args.bench, ty, args.vocab, args.work, args.small)
            bandwidth(bench, ty, model, results)
            measure(bench, ty, model, STARTS, args.repeats, results)
        measure(bench, "tiny", BUILT_IN, TINY_STARTS, args.repeats, results)
    about["load_after"] = os.getloadavg()[0]
    return {"about": about, "values": results.values, "failures": results.failures}


def main():
    parser = bench_server.options(__doc__.split("\n")[0])
    parser.add_argument("--llama-server", metavar="PROGRAM")
    parser.add_argument("--types", default="f16,q8_0,q4_k", help="of the weights")
    parser.add_argument("--small", action="store_true", help="a small model, to try this script: no figure counts")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--vocab", type=Path, default=BUILT_IN, help="whose vocabulary is used")
    parser.add_argument("--work", type=Path, default=ROOT / "target/perf", help="where models are made and kept")
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="where performance.md and .svg go")
    parser.add_argument("--results", type=Path, help="write the raw figures there, as JSON")
    parser.add_argument("--from", dest="stored", type=Path, help="write the page of stored raw figures")
    args = parser.parse_args()
    if args.stored:
        report = json.loads(args.stored.read_text())
    else:
        report = run(args)
        stored = args.results or args.work / "results.json"
        stored.write_text(json.dumps(report, indent=1))
    table = perf_page.write(report, args.out)
    print(table)
    return 1 if report["failures"] else 0


if __name__ == "__main__":
    bench_server.program(main)
