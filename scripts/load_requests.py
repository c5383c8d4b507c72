#!/usr/bin/env python3
"""What many idle connections, slow ones and large bodies do to a server and its other clients.

First two floods of bodies of 10 MB. Then 1 000 connections say nothing and 200 send a request at a byte a second, while
`/health` is asked all the time and a completion is streamed; the stream's rate is compared with that of streams before
and after, in turns. Fails if `/health` takes more than 100 ms, if the rate falls by more than the noise, that is by more
than the rates without load differ among themselves and 3 %, or if the memory of all processes of the server is more
than 5 % above that before the second flood ten seconds after it. Standard library only; Linux.
"""

import json
import resource
import statistics
import tempfile
import threading
import time

from bench_server import Health, Server, at_once, options, report, request
from malformed_requests import CHAT

STREAM = {**CHAT, "stream": True, "ignore_eos": True, "temperature": 0}
SLOW_HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def streamed(server, n_tokens):
    """Number of chunks of a stream after the first, and the time from the first to the last."""
    stamps = []
    with server.connect(60) as connection:
        connection.sendall(request("POST", "/v1/chat/completions",
                                   json.dumps({**STREAM, "max_tokens": n_tokens}).encode()))
        rest = b""
        while chunk := connection.recv(65536):
            now = time.perf_counter()
            lines = (rest + chunk).split(b"\n")
            rest = lines.pop()
            stamps += [now] * sum(line.startswith(b"data: {") for line in lines)
    if len(stamps) < n_tokens / 2:
        raise RuntimeError(f"{len(stamps)} chunks of {n_tokens} tokens")
    return len(stamps) - 1, stamps[-1] - stamps[0]


def rate(server, args):
    """Chunks per second of streams, one after the other."""
    found = [streamed(server, args.tokens) for _ in range(args.streams)]
    return sum(n for n, _ in found) / sum(seconds for _, seconds in found)


class Load:
    """Idle and slow connections, as long as it is open."""

    def __init__(self, server, n_idle, n_slow):
        self.server, self.is_over, self.n_sent, self.n_renewed = server, False, 0, 0
        self.idle = [server.connect() for _ in range(n_idle)]
        self.slow = [self.begun(i) for i in range(n_slow)]
        self.thread = threading.Thread(target=self.drip)
        self.thread.start()

    def begun(self, i):
        """A request that is not complete: half of them within the head, half within the body."""
        connection = self.server.connect()
        connection.sendall(SLOW_HEAD + (b"X-Slow: " if i % 2 else b"Content-Length: 100000\r\n\r\n"))
        return connection

    def drip(self):
        while not self.is_over:
            start = time.monotonic()
            for i, connection in enumerate(self.slow):
                try:
                    connection.send(b" ")
                    self.n_sent += 1
                except OSError:
                    # The server has closed it, as it does with requests that take too long.
                    self.slow[i] = self.begun(i)
                    self.n_renewed += 1
            time.sleep(max(0.0, 1 - (time.monotonic() - start)))

    def close(self):
        self.is_over = True
        self.thread.join()
        for connection in self.idle + self.slow:
            connection.close()


def flood(server, count, clients):
    """Large bodies, several at once; the statuses of the answers."""
    part = {"role": "user", "content": "some words and 123 " * 131}
    body = request("POST", "/v1/chat/completions", json.dumps({**CHAT, "messages": [part] * 4000}).encode())
    statuses, lock = [], threading.Lock()

    def work():
        for _ in range(count // clients):
            status, _ = server.send(body, 60)
            with lock:
                statuses.append(status)

    at_once([work] * clients)
    return len(body), statuses


def connections(server, args, faults):
    """Rates of streams without and with the connections, in turns."""
    alone, loaded = [], []
    health = Health(server)
    rate(server, args)
    # Without a break, so that opening and closing connections counts too.
    health.start()
    for _ in range(args.repeats):
        alone.append(rate(server, args))
        load = Load(server, args.idle, args.slow)
        loaded.append(rate(server, args))
        time.sleep(1.5)
        load.close()
        if load.n_sent < args.slow:
            faults.append(f"{load.n_sent} bytes were sent slowly, expected at least {args.slow}")
    alone.append(rate(server, args))
    middle = statistics.median(alone)
    loss = 1 - statistics.median(loaded) / middle
    noise = (max(alone) - min(alone)) / middle
    print(f"stream alone {middle:.1f} chunks/s ({min(alone):.1f} to {max(alone):.1f}), beside {args.idle} idle and "
          f"{args.slow} slow connections {statistics.median(loaded):.1f} ({min(loaded):.1f} to {max(loaded):.1f}): "
          f"{loss:+.1%} slower, noise {noise:.1%}")
    faults += health.close(args.health_ms)
    if loss > noise + 0.03:
        faults.append(f"the stream is {loss:.1%} slower")


def memory(server, args, faults):
    """Memory before and after a flood of large bodies."""
    fresh = server.resident() / 2**20
    # What stays are tables that each thread makes for itself: more clients than later, so that all threads have theirs.
    flood(server, 2 * args.bodies, 3 * args.clients)
    time.sleep(10)
    before = server.resident() / 2**20
    start = time.monotonic()
    size, statuses = flood(server, args.bodies, args.clients)
    took, at_end = time.monotonic() - start, server.resident() / 2**20
    time.sleep(10)
    after = server.resident() / 2**20
    print(f"{len(statuses)} bodies of {size / 1e6:.1f} MB in {took:.0f} s, statuses {sorted(set(statuses))}: "
          f"{fresh:.1f} MB at first, {before:.1f} MB ten seconds after a first flood, {at_end:.1f} MB at the end "
          f"of another, {after:.1f} MB ten seconds later ({after / before - 1:+.1%})")
    if set(statuses) != {400}:
        faults.append(f"statuses {sorted(set(statuses))}, expected 400")
    if after > before * 1.05:
        faults.append(f"{after - before:.1f} MB stay after the flood")


def main():
    parser = options(__doc__, None, "the model (default: the built-in one)")
    parser.add_argument("--idle", type=int, default=1000)
    parser.add_argument("--slow", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=450, help="tokens of a stream")
    parser.add_argument("--streams", type=int, default=8, help="streams of each measurement")
    parser.add_argument("--bodies", type=int, default=24)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--health-ms", type=float, default=100, help="longest time of /health")
    args = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    faults = []
    with tempfile.TemporaryDirectory() as folder:
        server = Server.ours(args.bench, folder=folder, model=args.model)
        try:
            memory(server, args, faults)
            connections(server, args, faults)
            if not server.is_alive():
                faults.append(f"the server ended with {server.process.returncode}")
        finally:
            faults += server.end()
    report(faults)


if __name__ == "__main__":
    main()
