#!/usr/bin/env python3
"""Four servers behind HAProxy with deploy/haproxy/haproxy.cfg: conversations under load, with and without their beginning deciding which server answers,
and with a server that is killed.

Clients hold conversations, each of which begins with the same instructions and grows by its answers. The first two rounds compare
`balance hash` of the configuration with `roundrobin`: throughput, time to the first token, and how much of the prompts was cached. In the third one of
the servers is killed with all its processes, and started again later. Only streams that this server had begun may end early; everything else has its answer.

Needs HAProxy 2.6 or newer (HAPROXY, else the PATH).
"""

import contextlib
import http.client
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import threading
import time

from bench_server import BUILT_IN, ROOT, Failure, found, free_port, is_good, options, percentile, processes, program, running, wait

CONFIG = ROOT / "deploy/haproxy/haproxy.cfg"
INSTRUCTIONS = "You are a helpful assistant. " * 12


class Replica:
    """A server on a port of its own, which can be killed and started again."""

    def __init__(self, bench, model, port, log):
        self.words = [bench, "--log", log, "--log-level", "warn", "serve", "-m", model, "--threads", "1", "--ctx", "2048", "--parallel", "4"]
        self.words += ["--port", port, "--trusted-proxy", "127.0.0.1"]
        self.port, self.process = port, None

    def start(self):
        self.process = subprocess.Popen([*map(str, self.words)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self):
        """Ends it as a crash of its machine does."""
        for pid in processes(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def end(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(30)

    def metric(self, name):
        """The sum of a metric."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)) as connection:
            connection.request("GET", "/metrics")
            lines = connection.getresponse().read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name + "{"))


def is_ready(port):
    return is_good(port, "/readyz")


@contextlib.contextmanager
def haproxy(replicas, folder, balance=None):
    """The port of an HAProxy with the configuration, whose addresses are those of the servers."""
    text, port = CONFIG.read_text(), free_port()
    for name, at in [("11117", port), *zip(["11121", "11122", "11123", "11124"], [replica.port for replica in replicas])]:
        text = text.replace(f"127.0.0.1:{name}", f"127.0.0.1:{at}")
    if balance:
        lines = [line for line in text.splitlines() if not line.strip().startswith("hash-")]
        text = "\n".join(f"    balance {balance}" if line.strip().startswith("balance ") else line for line in lines) + "\n"
    path = folder / "haproxy.cfg"
    path.write_text(text)
    with running([found("haproxy"), "-db", "-f", path], folder / "haproxy.log", port, "/readyz"):
        # All servers were looked at.
        time.sleep(1.5)
        yield port


class Clients:
    """Clients that hold conversations until they are stopped."""

    def __init__(self, port, n):
        self.port, self.is_over, self.lock = port, False, threading.Lock()
        # The servers of streams that ended early, of complete answers, and what went wrong otherwise.
        self.broken, self.complete, self.faults = [], [], []
        self.n_tokens, self.n_prompt, self.n_cached, self.firsts = 0, 0, 0, []
        self.threads = [threading.Thread(target=self.run, args=(i,), daemon=True) for i in range(n)]
        self.begin = time.monotonic()
        for thread in self.threads:
            thread.start()

    def run(self, i):
        n = 0
        while not self.is_over:
            n += 1
            messages = [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": f"Client {i}, conversation {n}: {i}+{n}=?"}]
            for turn in range(4):
                answer = self.ask(messages) if not self.is_over else None
                if answer is None:
                    break
                messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": f"And {i + turn}+{n}=?"}]

    def ask(self, messages):
        """The answer to a conversation; none if its stream ended early."""
        body = {"model": "default", "messages": messages, "max_tokens": 48, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
        begin, text, first, usage, replica = time.monotonic(), [], None, None, None
        try:
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)) as connection:
                connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
                response = connection.getresponse()
                replica = response.headers.get("x-replica")
                if response.status != 200:
                    with self.lock:
                        self.faults.append(f"status {response.status}: {response.read()[:200]}")
                    return None
                is_whole = False
                for line in response:
                    if line.startswith(b"data: [DONE]"):
                        is_whole = True
                    elif line.startswith(b"data: "):
                        event = json.loads(line[6:])
                        if "error" in event:
                            break
                        first = first or time.monotonic() - begin
                        usage = event.get("usage") or usage
                        text += [choice["delta"].get("content") or "" for choice in event["choices"]]
        except (OSError, http.client.HTTPException, ValueError) as error:
            is_whole = False
            if replica is None:
                with self.lock:
                    self.faults.append(f"no answer: {error!r}")
                return None
        with self.lock:
            if not is_whole:
                self.broken.append(replica)
                return None
            self.complete.append(replica)
            self.firsts.append(first)
            self.n_tokens += usage["completion_tokens"]
            self.n_prompt += usage["prompt_tokens"]
            self.n_cached += usage["prompt_tokens_details"]["cached_tokens"]
        return "".join(text)

    def stop(self):
        """Lets all end. Returns the seconds since the begin."""
        self.is_over = True
        seconds = time.monotonic() - self.begin
        for thread in self.threads:
            thread.join(150)
        return seconds

    def tell(self, name, seconds):
        by = {one: self.complete.count(one) for one in sorted(set(self.complete))}
        print(f"{name}: {len(self.complete)} answers, {self.n_tokens / seconds:.0f} tokens/s, first token after "
              f"{1e3 * percentile(self.firsts, 50):.0f} ms (99 %: {1e3 * percentile(self.firsts, 99):.0f} ms), "
              f"{100 * self.n_cached / self.n_prompt:.0f} % of the prompts cached, by server {by}", flush=True)


def main():
    parser = options(__doc__, model="the model (default: the built-in one)")
    parser.add_argument("--seconds", type=float, default=20, help="for each round")
    parser.add_argument("--clients", type=int, default=12)
    args = parser.parse_args()
    names = ["one", "two", "three", "four"]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        folder = pathlib.Path(folder)
        replicas = [Replica(args.bench, args.model or BUILT_IN, free_port(), folder / f"{name}.log") for name in names]
        for replica in replicas:
            stack.callback(replica.end)
            replica.start()
        for replica in replicas:
            wait("a server", lambda replica=replica: is_ready(replica.port))
        shares = {}
        for name, balance in [("in turn", "roundrobin"), ("by beginning", None)]:
            with haproxy(replicas, folder, balance) as port:
                clients = Clients(port, args.clients)
                time.sleep(args.seconds)
                clients.tell(name, clients.stop())
                if clients.faults or clients.broken:
                    raise Failure(f"{name}: {clients.faults[:3]}, streams of {clients.broken}")
                shares[name] = clients.n_cached / clients.n_prompt
        if shares["by beginning"] <= shares["in turn"]:
            raise Failure(f"the beginning of requests is worth nothing: {shares}")
        with haproxy(replicas, folder) as port:
            clients = Clients(port, args.clients)
            time.sleep(args.seconds / 3)
            replicas[1].kill()
            killed = time.monotonic()
            time.sleep(args.seconds / 3)
            n = clients.complete.count("two")
            replicas[1].start()
            wait("the server that was killed", lambda: is_ready(replicas[1].port))
            wait("requests for it", lambda: clients.complete.count("two") > n)
            back = time.monotonic() - killed
            time.sleep(args.seconds / 3)
            clients.tell("with one killed", clients.stop())
            print(f"{len(clients.broken)} streams ended early, of {sorted(set(clients.broken))}; it answers again {back:.0f} s after its end")
            if clients.faults or set(clients.broken) - {"two"}:
                raise Failure(f"lost: {clients.faults[:5]}, streams of {sorted(set(clients.broken))}")
            if len(clients.broken) > args.clients:
                raise Failure(f"more streams ended early than there are clients: {len(clients.broken)}")
        waiting = sum(replica.metric("vllm:num_requests_waiting") + replica.metric("vllm:num_requests_running") for replica in replicas)
        print(f"requests that are left: {waiting:.0f}")
        if waiting:
            raise Failure("requests of clients that are gone are still computed")
    print("good")


if __name__ == "__main__":
    program(main)
