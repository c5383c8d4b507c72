#!/usr/bin/env python3
"""Measures what an engine process costs per token: two servers of the same model, one of them with `--in-process`; and
what HTTP costs: throughput beside that of `bench perf`, and the time to the first byte beside the engine's own.

Needs: nothing besides Python's standard library.

Without --model, a llama of 135 million random weights is made by `bench synth`. Both servers are up all the
time and are asked in turns, in the order A B B A, greedy and with the end of text ignored. Printed for
each number of clients: the median time per token (from the first request to the last token) and the CPU
time per token of all processes of a server, each with the ratio of the medians and of the pairs; and the CPU time
of the process that only passes requests on, which a busy machine disturbs least. For the most clients: tokens per
second while all of them have answers, against those of `bench perf --requests`, which has no HTTP, for as many sequences
with as many tokens before them, in turns (to be within 3 % of the engine). For one client: the time from the request to
the first byte of text, less the time that the engine took for the prompt, as the answer's `timings` have it, and less the
time from there to the first token of `bench perf --requests` (to be under 1 ms; tokenizing and the template count as
HTTP's here). One core is left to the clients, which would take part of the engine's otherwise. Run it on a machine that
does nothing else.
"""

import json
import os
import re
import statistics
import tempfile
from pathlib import Path

from bench_server import BUILT_IN, Failure, options, processes, program, run, synth_options
from perf_vs_llama_server import Bench, Server, Texts

# Layers, widths and heads of a small model that people serve.
MODEL = {"block_count": 30, "n_embd": 576, "n_ff": 1536, "n_head": 9, "n_head_kv": 3, "vocab_size": 49152,
         "n_ctx_train": 4096}
KINDS = ["in process", "own process"]


def cpu_seconds(pids):
    """CPU time of all threads that these processes have."""
    found = 0
    for pid in pids:
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            found += int(path.read_text().split()[0])
    return found / 1e9


def once(server, prompts, n_tokens):
    """Time, CPU time of all processes and that of the server's own process, per token in ms."""
    pids = processes(server.process.pid)
    before, own_before = cpu_seconds(pids), cpu_seconds(pids[:1])
    answers = [server.answer(prompt, n_tokens) for prompt in prompts]
    for answer in answers:
        answer.finish().check(n_tokens)
    n = n_tokens * len(prompts)
    time = max(answer.stamps[-1] for answer in answers) - min(answer.sent for answer in answers)
    cpu, own = cpu_seconds(pids) - before, cpu_seconds(pids[:1]) - own_before
    return 1e3 * time / n, 1e3 * cpu / n, 1e3 * own / n


def shown(what, found):
    medians = [statistics.median(found[kind]) for kind in KINDS]
    pairs = statistics.median(b / a for a, b in zip(found[KINDS[0]], found[KINDS[1]]))
    print(f"  {what}: {medians[0]:.4f} ms in process, {medians[1]:.4f} ms in a process of its own; "
          f"ratio of medians {medians[1] / medians[0]:.4f}, median of ratios {pairs:.4f}", flush=True)


def throughput(server, prompts, n_tokens):
    """Tokens per second while all clients get text."""
    answers = [server.answer(prompt, n_tokens) for prompt in prompts]
    for answer in answers:
        answer.finish().check(n_tokens)
    start, end = max(a.stamps[0] for a in answers), min(a.stamps[-1] for a in answers)
    # Some tokens have no text of their own.
    within = [sum(start < stamp <= end for stamp in a.stamps) * n_tokens / len(a.stamps) for a in answers]
    return sum(within) / (end - start)


def of_engine(args, model, n_sequences, depth, n_tokens):
    """The passes alone, and the engine without HTTP, as `bench perf` reports them."""
    command = [args.bench, "perf", "-m", model, "--threads", args.threads, "-s", n_sequences, "-d", depth,
               "-n", n_tokens, "-p", 16, "-r", 1, "--ctx", args.ctx, "--requests", "--json"]
    found = json.loads(run(command))["runs"][0]
    return found["decode"][0], found["requests"][0]


def added(server, prompt):
    """Time to the first byte of text, and the part of it that is not the engine's reading of the prompt, in ms."""
    answer = server.ready(prompt, 4)
    answer.body["timings_per_token"] = True
    answer.start()
    answer.finish()
    own = re.search(rb'"prompt_ms":\s*([0-9.eE+-]+)', b"".join(answer.parts))
    if not own:
        raise Failure("the answer has no timings")
    return 1e3 * answer.first, 1e3 * answer.first - float(own[1])


def beside_engine(args, model, texts, servers):
    """Prints what HTTP costs."""
    n_clients = max(args.clients)
    prompts = [texts.of(16) for _ in range(n_clients)]
    rates, firsts = {kind: [] for kind in [*KINDS, "passes", "engine"]}, {kind: [] for kind in KINDS}
    depth, own_firsts = None, []
    for _ in range(args.repeats):
        for kind, server in servers.items():
            rates[kind].append(throughput(server, prompts, args.tokens))
        if depth is None:
            answer = servers[KINDS[0]].answer(prompts[0], 2).finish()
            depth = answer.usage["prompt_tokens"]
        for kind, found in zip(["passes", "engine"], of_engine(args, model, n_clients, depth, args.tokens)):
            rates[kind].append(found["tokens_per_second"])
        own_firsts.append(1e3 * of_engine(args, model, 1, depth, 4)[1]["first_token_seconds"])
        for kind, server in servers.items():
            # Another text each time: the prefix cache has none of them.
            firsts[kind].append(added(server, texts.of(16)))
    passes, engine = (statistics.median(rates[kind]) for kind in ["passes", "engine"])
    print(f"{n_clients} clients, decoding: the passes alone {passes:.1f} tokens/s, the engine with sampling and text "
          f"{engine:.1f} tokens/s, {engine / passes - 1:+.1%}", flush=True)
    for kind in KINDS:
        own = statistics.median(rates[kind])
        print(f"  through HTTP, {kind}: {own:.1f} tokens/s, {own / engine - 1:+.1%}", flush=True)
    own = statistics.median(own_firsts)
    print(f"1 client, time to the first byte of text; the engine's own after the prompt {own:.3f} ms", flush=True)
    for kind in KINDS:
        first, more = (statistics.median(column) for column in zip(*firsts[kind]))
        print(f"  {kind}: {first:.2f} ms, of which {more - own:.3f} ms are not the engine's", flush=True)


def make_model(bench, folder):
    path = folder / "small.gguf"
    run([bench, "synth", "llama", "-o", path, "--type", "q8_0", "--vocab", BUILT_IN, *synth_options(MODEL)])
    return path


def measure(args, folder):
    model = Path(args.model) if args.model else make_model(args.bench, folder)
    texts = Texts(Bench(args.bench, None, args.threads, folder), model, 1)
    command = [args.bench, "serve", "-m", model, "--threads", args.threads, "--parallel", 8, "--ctx", args.ctx]
    with Server("in-process", [*command, "--in-process"], model, folder) as here, \
            Server("own-process", command, model, folder) as own:
        servers = dict(zip(KINDS, [here, own]))
        for n_clients in args.clients:
            prompts = [texts.of(16) for _ in range(n_clients)]
            time, cpu, hop = {kind: [] for kind in KINDS}, {kind: [] for kind in KINDS}, []
            for server in servers.values():
                once(server, prompts, args.tokens)
            for repeat in range(args.repeats):
                for kind in KINDS if repeat % 2 == 0 else reversed(KINDS):
                    found = once(servers[kind], prompts, args.tokens)
                    time[kind].append(found[0])
                    cpu[kind].append(found[1])
                    if kind == KINDS[1]:
                        hop.append(found[2])
            print(f"{n_clients} clients, {args.repeats} times {args.tokens} tokens each", flush=True)
            shown("time per token", time)
            shown("CPU time per token", cpu)
            hop, whole = statistics.median(hop), statistics.median(cpu[KINDS[0]])
            print(f"  CPU time per token of the process that passes requests on: {hop:.4f} ms, "
                  f"{hop / whole:.2%} of a token's", flush=True)
        beside_engine(args, model, texts, servers)


def main():
    parser = options(__doc__, model="the model (default: one that is made)")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--threads", type=int, default=max(1, (os.cpu_count() or 1) - 1))
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--ctx", type=int, default=4096)
    parser.add_argument("--clients", type=lambda text: [int(n) for n in text.split(",")], default=[1, 8])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(args, Path(folder))


if __name__ == "__main__":
    program(main)
