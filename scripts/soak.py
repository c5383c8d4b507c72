#!/usr/bin/env python3
"""Clients of all kinds that come and go, some in the middle of an answer, while a second model is loaded and unloaded.

Each client draws what it asks: conversations, texts, calls of tools, answers by a schema, values of the lab, inline and as files. Once a
minute all pause. A plain request is then sent in turn to this server and to a quiet one, which gets no other requests: what else the
machine does delays both. Plain requests during the load are measured too; they share the processor, so no bound is set for them.

Fails if a server dies, an answer that was waited for is wrong, the log holds a warning or an error, the resident memory of the last third
of the pauses is on average more than 2 % above that of the first third, the 99th percentile of plain requests is more than 1.3 times the quiet server's, or
a kind of request was never answered. Standard library only.
"""

import collections
import contextlib
import http.client
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time

import bench_server
from bench_server import BUILT_IN, percentile

# The model that stays loaded, and the one that comes and goes.
STAYS, COMES = "stays", "comes"
# Seconds between two pauses, and plain requests to each server in a pause.
BETWEEN, PLAIN = 60, 100
# Fewer requests have no 99th percentile.
LEAST_PLAIN = 200
MOST_GROWTH, MOST_SLOWER = 0.02, 1.3
WEATHER = {"type": "function", "function": {"name": "weather", "description": "The weather of a city.", "parameters": {
    "type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer"}}, "required": ["city"]}}}
ANSWER = {"type": "object", "properties": {"sum": {"type": "integer"}, "is_odd": {"type": "boolean"}}, "required": ["sum"]}


def parse():
    parser = bench_server.options(__doc__, None)
    parser.add_argument("--model", default=BUILT_IN, help="a model that has a chat template; default: the built-in one")
    parser.add_argument("--seconds", type=float, default=600, help="default: 600")
    parser.add_argument("--warm-up", type=float, default=600, help="seconds before memory counts, at most half of all; default: 600")
    parser.add_argument("--clients", type=int, default=8, help="default: 8")
    parser.add_argument("--seed", type=int, default=1, help="default: 1")
    return parser.parse_args()


class Server(bench_server.Server):
    """A running `bench serve` with its log in a file. One thread computes: two would wait for each other where the machine is busy."""

    def __init__(self, args, folder, name):
        models = os.path.join(folder, "models")
        if not os.path.isdir(models):
            os.mkdir(models)
            for model in [STAYS, COMES]:
                ending = "" if os.path.isdir(args.model) else ".gguf"
                os.symlink(os.path.abspath(args.model), os.path.join(models, model + ending))
        super().__init__(
            args.bench, "--log", os.path.join(folder, f"{name}.log"), "--log-level", "warn", "serve", "--models", models,
            "--threads", "1", "--parallel", "4", "--queue", "64", "--draft", "4", "--lab-bytes", "8M", "--lab-artifacts", "8M",
            # So little that the cache is full, and resident, before the memory counts.
            "--ctx", "512", "--cache", "2M", log=os.path.join(folder, f"{name}.log"),
        )  # fmt: skip

    def plain(self, number):
        """The text of a short answer, and the seconds it took."""
        content = f"what is {number % 10}+{number // 10 % 10}=? {number:06}"
        body = {"model": STAYS, "messages": [{"role": "user", "content": content}], "max_tokens": 16, "temperature": 0, "ignore_eos": True}
        begin = time.monotonic()
        status, text = self.ask("/v1/chat/completions", body)
        seconds = time.monotonic() - begin
        if status != 200:
            raise ValueError(f"plain: status {status}: {text[:200]!r}")
        return json.loads(text)["choices"][0]["message"]["content"], seconds

    def is_idle(self):
        """Whether no completion is computed or waits, of clients that left among them."""
        _, text = self.ask("/metrics")
        values = [line.rsplit(" ", 1)[1] for line in text.decode().splitlines()
                  if line.startswith(("bench_active_sequences{", "bench_queue_length{"))]
        return all(float(value) == 0 for value in values)


class Gate:
    """Lets clients ask, or has them pause. `with gate:` is around a request."""

    def __init__(self):
        self.changed, self.is_open, self.inside = threading.Condition(), True, 0

    def __enter__(self):
        with self.changed:
            self.changed.wait_for(lambda: self.is_open)
            self.inside += 1

    def __exit__(self, *_):
        with self.changed:
            self.inside -= 1
            self.changed.notify_all()

    def shut(self):
        """Returns when nobody is inside."""
        with self.changed:
            self.is_open = False
            self.changed.wait_for(lambda: self.inside == 0)

    def open(self):
        with self.changed:
            self.is_open = True
            self.changed.notify_all()


class Asking(threading.Thread):
    """Asks until the time is over, or something is wrong."""

    def __init__(self, server, gate, seed, until):
        super().__init__(daemon=True)
        self.server, self.gate, self.until, self.random = server, gate, until, random.Random(seed)
        self.answered, self.left, self.faults = collections.Counter(), 0, []

    def run(self):
        while time.monotonic() < self.until and not self.faults:
            try:
                with self.gate:
                    self.once()
            # Of answers that are not what they should be, too.
            except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError) as error:
                self.faults.append(f"{type(error).__name__}: {error}")

    def sound(self, kind, answer):
        """The text of an answer with status 200, which counts."""
        status, text = answer
        if status != 200:
            raise ValueError(f"{kind}: status {status}: {text[:200]!r}")
        self.answered[kind] += 1
        return text


class Client(Asking):
    """A client of all kinds; leaves some answers before their end."""

    def once(self):
        kinds = [self.chat] * 4 + [self.text] * 2 + [self.tools, self.schema, self.lab, self.artifact]
        self.random.choice(kinds)()

    def words(self):
        words = ["one", "two", "three", "12+7=?", "the sum is", "what is 3+4=?"]
        return " ".join(self.random.choices(words, k=self.random.randrange(1, 20)))

    def body(self, most):
        """What the bodies of completions have in common. One of eight is for the model that comes and goes."""
        return {
            "model": COMES if self.random.random() < 0.125 else STAYS,
            "max_tokens": self.random.randrange(1, most),
            "temperature": self.random.choice([0, 0.7, 1.5]),
        }

    def chat(self):
        turns = self.random.randrange(1, 4)
        messages = [{"role": "user" if (turns - turn) % 2 else "assistant", "content": self.words()} for turn in range(turns)]
        body = {**self.body(64), "messages": messages, "n": self.random.choice([1, 1, 1, 3]), "logprobs": self.random.random() < 0.3,
                "stream": self.random.random() < 0.7}
        leaves = self.random.random() < 0.3
        if leaves and self.random.random() < 0.3:
            with self.server.connect() as connection:
                connection.sendall(bench_server.request("POST", "/v1/chat/completions", json.dumps(body).encode()))
            self.left += 1
            return
        with self.server.response("/v1/chat/completions", body) as response:
            if leaves and body["stream"] and response.status == 200:
                response.read(self.random.randrange(1, 400))
                self.left += 1
                return
            text = self.sound("chat", (response.status, response.read()))
            if body["stream"]:
                if not text.rstrip().endswith(b"data: [DONE]"):
                    self.faults.append(f"a stream without its end: {text[-200:]!r}")
            elif len(json.loads(text)["choices"]) != body["n"]:
                self.faults.append("choices are missing")

    def text(self):
        prompts = [self.words() for _ in range(self.random.choice([1, 1, 3]))]
        body = {**self.body(64), "prompt": prompts, "echo": self.random.random() < 0.3, "logprobs": self.random.choice([None, 3])}
        choices = json.loads(self.sound("completions", self.server.ask("/v1/completions", body)))["choices"]
        for prompt, choice in zip(prompts, choices, strict=True):
            if body["echo"] and not choice["text"].startswith(prompt):
                self.faults.append(f"not the prompt: {choice['text'][:100]!r} for {prompt!r}")

    def tools(self):
        messages = [{"role": "user", "content": self.words()}]
        body = {**self.body(100), "messages": messages, "tools": [WEATHER], "tool_choice": self.random.choice(["auto", "required"])}
        choice = json.loads(self.sound("tools", self.server.ask("/v1/chat/completions", body)))["choices"][0]
        for call in choice["message"].get("tool_calls") or []:
            if call["function"]["name"] != "weather":
                self.faults.append(f"an unknown tool: {call}")
            if choice["finish_reason"] == "tool_calls" and json.loads(call["function"]["arguments"])["city"] not in ["Oslo", "Rome"]:
                self.faults.append(f"not by the schema: {call}")

    def schema(self):
        by = {"type": "json_schema", "json_schema": {"name": "answer", "schema": ANSWER, "strict": True}}
        body = {**self.body(64), "messages": [{"role": "user", "content": self.words()}], "response_format": by}
        choice = json.loads(self.sound("schema", self.server.ask("/v1/chat/completions", body)))["choices"][0]
        if choice["finish_reason"] == "stop" and not isinstance(json.loads(choice["message"]["content"])["sum"], int):
            self.faults.append(f"not by the schema: {choice}")

    def lab(self):
        plan = {"captures": [{"point": "layers.*.out", "positions": "all"}, {"point": "layers.0.attn.weights", "positions": "last"}]}
        if self.random.random() < 0.5:
            plan["edits"] = [{"point": "layers.1.attn.heads", "op": "zero", "heads": [2]}]
        body = {**self.body(16), "prompt": self.words(), "lab": plan}
        results = json.loads(self.sound("lab", self.server.ask("/v1/lab/run", body)))["results"]
        if not all(captured["data"] for captured in results[0]["lab"]["captures"]):
            self.faults.append("values are missing")

    def artifact(self):
        plan = {"captures": [{"point": "layers.*.out", "positions": "all"}], "output": "artifact"}
        body = {**self.body(16), "model": STAYS, "prompt": self.words(), "lab": plan}
        text = self.sound("artifact", self.server.ask("/v1/lab/run", body))
        artifact = json.loads(text)["results"][0]["lab"]["artifact"]
        data = self.sound("artifact", self.server.ask(artifact["url"]))
        if len(data) != artifact["bytes"]:
            self.faults.append(f"{len(data)} bytes of {artifact}")
        # The others go when they take too much room.
        if self.random.random() < 0.5:
            self.sound("artifact", self.server.ask(artifact["url"], method="DELETE"))


class Loader(Asking):
    """Loads and unloads a model, of which others may have requests."""

    def once(self):
        self.sound("load", self.server.ask("/models/load", {"model": COMES}))
        time.sleep(self.random.random() * 3)
        self.sound("unload", self.server.ask("/models/unload", {"model": COMES}))


class Plain(Asking):
    """Measures plain requests during the load."""

    def __init__(self, *args):
        super().__init__(*args)
        self.seconds = []

    def once(self):
        _, seconds = self.server.plain(self.random.randrange(10**6))
        self.seconds.append(seconds)
        self.answered["plain"] += 1
        time.sleep(0.5)


def told(seconds):
    if not seconds:
        return "none"
    return f"p50 {statistics.median(seconds)*1e3:.1f} ms, p99 {percentile(seconds, 99)*1e3:.1f} ms of {len(seconds)}"


def pause(server, quiet, gate, number):
    """What is measured while no client asks: resident bytes, and seconds of plain requests to the server and to the quiet one."""
    gate.shut()
    try:
        server.ask("/models/unload", {"model": COMES})
        until = time.monotonic() + 60
        while not server.is_idle():
            if time.monotonic() > until:
                raise ValueError("completions of clients that left did not end")
            time.sleep(0.1)
        mine, others = [], []
        for i in range(number, number + PLAIN):
            # Who is asked first changes: the second one finds the processor awake.
            pair = [(server, mine), (quiet, others)]
            texts = []
            for asked, seconds in pair if i % 2 else pair[::-1]:
                text, took = asked.plain(i)
                seconds.append(took)
                texts.append(text)
            if texts[0] != texts[1]:
                raise ValueError(f"other answers than a quiet server: {texts}")
        return server.resident(), mine, others
    finally:
        gate.open()


def soak(args, server, quiet):
    """Runs the clients. Returns them, the resident bytes in each pause, and the seconds of plain requests."""
    gate, begin = Gate(), time.monotonic()
    until = begin + args.seconds
    warm = begin + min(args.warm_up, args.seconds / 2)
    for each in [server, quiet]:
        each.plain(0)
    clients = [Client(server, gate, args.seed * 1000 + i, until) for i in range(args.clients)]
    clients += [Loader(server, gate, args.seed * 1000 + 998, until), Plain(server, gate, args.seed * 1000 + 999, until)]
    for client in clients:
        client.start()
    sizes, mine, others, number, faults = [], [], [], 1, []
    upcoming = warm
    while not faults:
        time.sleep(max(0, min(upcoming, until) - time.monotonic()))
        is_last = time.monotonic() >= until
        if not (server.is_alive() and quiet.is_alive()):
            faults.append("a server died")
            break
        try:
            size, here, there = pause(server, quiet, gate, number)
        except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
            faults.append(f"in a pause: {type(error).__name__}: {error}")
            break
        number += PLAIN
        sizes.append(size)
        mine += here
        others += there
        print(f"{time.monotonic() - begin:5.0f} s: {size/2**20:.1f} MiB; plain requests: {told(here)}; quiet server: {told(there)}", flush=True)
        if is_last or any(client.faults for client in clients):
            break
        upcoming = time.monotonic() + BETWEEN
    for client in clients:
        client.until = 0
    for client in clients:
        client.join(timeout=130)
        faults += client.faults + ["a client hangs"] * client.is_alive()
    return clients, sizes, mine, others, faults


def main():
    args = parse()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        servers = []
        for name in ["server", "quiet"]:
            servers.append(stack.enter_context(Server(args, folder, name)))
        clients, sizes, mine, others, faults = soak(args, *servers)
        for server in servers:
            server.end()
            with open(server.log, encoding="utf-8") as log:
                faults += [f"{os.path.basename(server.log)}: {line}" for line in log.read().splitlines()]
    answered = sum((client.answered for client in clients), collections.Counter())
    left = sum(getattr(client, "left", 0) for client in clients)
    print("answers: " + ", ".join(f"{n} {kind}" for kind, n in sorted(answered.items())) + f"; {left} left early; {args.seconds:.0f} s")
    print(f"plain requests during the load: {told(clients[-1].seconds)}")
    if len(sizes) > 1:
        # Graphs that are kept differ in size from pause to pause.
        third = max(1, len(sizes) // 3)
        before, after = statistics.mean(sizes[:third]), statistics.mean(sizes[-third:])
        growth = after / before - 1
        print(f"resident {before/2**20:.1f} MiB -> {after/2**20:.1f} MiB ({growth:+.2%}); means of {third} pauses")
        if growth > MOST_GROWTH:
            faults.append("the memory grew")
    else:
        faults.append("too short: the memory was measured once")
    if len(mine) >= LEAST_PLAIN:
        slower = percentile(mine, 99) / percentile(others, 99)
        print(f"plain requests in pauses: {told(mine)}; of the quiet server: {told(others)}; p99 {slower:.2f} times")
        if slower > MOST_SLOWER:
            faults.append("plain requests became slower")
    else:
        faults.append("too short: too few plain requests in pauses")
    missing = {"chat", "completions", "tools", "schema", "lab", "artifact", "load", "unload", "plain"} - set(answered)
    faults += [f"no answers of {kind}" for kind in sorted(missing)] + ["no client left early"] * (left == 0)
    for fault in faults[:20]:
        print("FAULT", fault)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
