#!/usr/bin/env python3
"""Clients that come and go, some in the middle of an answer.

Fails if the server dies, an answer that was waited for is wrong, the log holds a warning or an error,
or the resident memory has grown by more than 2 % since the end of the warm-up. Standard library only.
"""

import argparse
import glob
import http.client
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bench", required=True, help="the program")
    parser.add_argument("--model", help="the model (default: the built-in one)")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--warm-up", type=float, default=30, help="seconds before memory counts")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


class Server:
    """A running `bench serve` with its log in a file."""

    def __init__(self, args, folder):
        self.log = os.path.join(folder, "log")
        model = ["-m", args.model] if args.model else []
        command = [args.bench, "--log", self.log, "--log-level", "warn", "serve", "--port", "0"]
        command += model + ["--parallel", "4", "--queue", "64", "--draft", "4"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        self.port = int(line.rsplit(":", 1)[1])

    def resident(self):
        """Resident bytes of the server and its engine processes."""
        pids = [self.process.pid]
        # Of every thread.
        for path in glob.glob(f"/proc/{self.process.pid}/task/*/children"):
            with open(path, encoding="utf-8") as children:
                pids += children.read().split()
        return sum(self.resident_of(pid) for pid in pids)

    @staticmethod
    def resident_of(pid):
        with open(f"/proc/{pid}/status", encoding="utf-8") as status:
            for line in status:
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) * 1024
        raise RuntimeError("no VmRSS")

    def models(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/v1/models")
        data = json.load(connection.getresponse())["data"]
        connection.close()
        return [model["id"] for model in data]


class Client(threading.Thread):
    """Asks until the time is over; leaves some answers before their end."""

    def __init__(self, server, model, seed, until):
        super().__init__()
        self.server, self.model, self.until = server, model, until
        self.random = random.Random(seed)
        self.answered, self.left, self.faults = 0, 0, []

    def run(self):
        while time.monotonic() < self.until and not self.faults:
            try:
                self.ask()
            except OSError as error:
                self.faults.append(f"{type(error).__name__}: {error}")

    def ask(self):
        words = ["one", "two", "three", "12+7=?", "the sum is", "what is 3+4=?"]
        turns = self.random.randrange(1, 4)
        messages = []
        for turn in range(turns):
            text = " ".join(self.random.choices(words, k=self.random.randrange(1, 20)))
            role = "user" if (turns - turn) % 2 else "assistant"
            messages.append({"role": role, "content": text})
        body = {
            "model": self.model,
            "messages": messages,
            "max_tokens": self.random.randrange(1, 64),
            "n": self.random.choice([1, 1, 1, 3]),
            "temperature": self.random.choice([0, 0.7, 1.5]),
            "logprobs": self.random.random() < 0.3,
            "stream": self.random.random() < 0.7,
        }
        leaves = self.random.random() < 0.3
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body),
                               {"content-type": "application/json"})
            if leaves and self.random.random() < 0.3:
                self.left += 1
                return
            response = connection.getresponse()
            if response.status != 200:
                self.faults.append(f"status {response.status}: {response.read()[:200]!r}")
                return
            if leaves and body["stream"]:
                response.read(self.random.randrange(1, 400))
                self.left += 1
                return
            data = response.read()
            if body["stream"]:
                if not data.rstrip().endswith(b"data: [DONE]"):
                    self.faults.append(f"a stream without its end: {data[-200:]!r}")
            elif len(json.loads(data)["choices"]) != body["n"]:
                self.faults.append("choices are missing")
            self.answered += 1
        finally:
            connection.close()


def main():
    args = parse()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(args, folder)
        try:
            model = server.models()[0]
            begin = time.monotonic()
            until = begin + args.seconds
            clients = [Client(server, model, args.seed * 1000 + i, until)
                       for i in range(args.clients)]
            for client in clients:
                client.start()
            time.sleep(min(args.warm_up, args.seconds / 2))
            before = server.resident()
            while any(client.is_alive() for client in clients):
                time.sleep(1)
                if server.process.poll() is not None:
                    break
            for client in clients:
                client.join()
            time.sleep(1)
            after = server.resident() if server.process.poll() is None else 0
        finally:
            server.process.terminate()
            server.process.wait()
        with open(server.log, encoding="utf-8") as log:
            lines = log.read().splitlines()
    answered = sum(client.answered for client in clients)
    left = sum(client.left for client in clients)
    growth = after / before - 1
    print(f"{answered} answers, {left} left early, {args.seconds:.0f} s")
    print(f"resident {before / 2**20:.1f} MiB -> {after / 2**20:.1f} MiB ({growth:+.2%})")
    faults = [fault for client in clients for fault in client.faults]
    faults += [f"log: {line}" for line in lines]
    if after == 0:
        faults.append("the server died")
    if growth > 0.02:
        faults.append("the memory grew")
    if answered == 0 or left == 0:
        faults.append("nothing was tried")
    for fault in faults[:20]:
        print("FAULT", fault)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
