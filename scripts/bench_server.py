"""A running server for the scripts that test or measure one: its start on a free port, requests, its processes, its end.

Also what these scripts have in common: options, failures in one line, threads, ranks. Standard library only.
"""

import argparse
import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILT_IN = ROOT / "models" / "tiny-chat.gguf"
TIMEOUT = 600


class Failure(Exception):
    """A problem to report in one line."""


def program(main):
    """Runs the function of a script: exits with what it returns, or with its failure in one line."""
    try:
        sys.exit(main())
    except Failure as failure:
        sys.exit(f"error: {failure}")
    except KeyboardInterrupt:
        sys.exit(130)


def options(about, bench=ROOT / "target/release/bench", model=None):
    """A parser of what scripts about a server have in common: the program and, if there is a text about it, the model."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default=bench, required=bench is None, type=lambda path: Path(path).absolute(), help="the program")
    if model:
        parser.add_argument("--model", help=model)
    return parser


def run(command, text=None, timeout=TIMEOUT, **more):
    """What a program writes; its last line of complaint is the failure."""
    done = subprocess.run([str(word) for word in command], input=text, capture_output=True, text=True, timeout=timeout, **more)
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()
        raise Failure(f"{Path(command[0]).name} {command[1]}: {lines[-1].removeprefix('error: ')[:300]}")
    return done.stdout


def llama_server(named):
    """The path of llama-server: the named one, LLAMA_SERVER, or the one on the PATH."""
    program = named or os.environ.get("LLAMA_SERVER") or "llama-server"
    found = shutil.which(program)
    if not found:
        raise Failure(f"`{program}` is not a program; name a llama-server with --llama-server or LLAMA_SERVER")
    return found


def synth_options(values, meta=()):
    """Parameters and metadata as options of `bench synth`."""
    pairs = [("--set", pair) for pair in values.items()] + [("--meta", pair) for pair in dict(meta).items()]
    text = lambda value: str(value).lower() if isinstance(value, bool) else value  # noqa: E731
    return [word for option, (key, value) in pairs for word in (option, f"{key}={text(value)}")]


def read_npy(path):
    """The values of a float32 NPY file in one list, and the length of its last axis."""
    raw = Path(path).read_bytes()
    start = 10 + int.from_bytes(raw[8:10], "little")
    shape = raw[10:start].decode().split("'shape': (")[1].split(")")[0]
    return memoryview(raw)[start:].cast("f").tolist(), int(shape.strip(", ").split(",")[-1])


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def found(name, package=None):
    """The path of another program: the one that a variable of its name in capitals names, else the one on the PATH."""
    path = os.environ.get(name.upper()) or shutil.which(name) or shutil.which(f"/usr/sbin/{name}")
    if not path:
        raise Failure(f"{name} is not there; install {package or name}, or name it with {name.upper()}")
    return path


def wait(what, is_so, seconds=60):
    """Waits until something is so."""
    until = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > until:
            raise Failure(f"{what}: not within {seconds} s")
        time.sleep(0.05)


def is_good(port, path):
    """Whether a program on this port answers to a path with status 200."""
    with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=1)) as connection:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    return False


@contextlib.contextmanager
def running(words, log, port, path, **more):
    """A program that runs within the block, which it enters when the program answers on its port. What it prints goes to a file."""
    log, name = Path(log), Path(words[0]).name
    with open(log, "ab") as file:
        process = subprocess.Popen([*map(str, words)], stdout=file, stderr=file, **more)
    try:
        wait(name, lambda: process.poll() is not None or is_good(port, path))
        if process.poll() is not None:
            raise Failure(f"{name} ended with {process.returncode}: {log.read_text('utf-8', 'replace')[-500:]}")
        yield process
    finally:
        process.terminate()
        process.wait(20)


def request(method, path, body, content_type="application/json", length=None, extra=()):
    """The bytes of a request."""
    head = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close"]
    if content_type is not None:
        head.append(f"Content-Type: {content_type}")
    head.append(f"Content-Length: {len(body) if length is None else length}")
    return ("\r\n".join([*head, *extra]) + "\r\n\r\n").encode("latin-1") + body


def percentile(values, percent):
    """The least value that at least so many of 100 are at most (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(-(-len(ordered) * percent // 100), 1) - 1]


def report(faults):
    """Ends the script: with the first faults, if there are any."""
    for fault in faults[:40]:
        print(fault)
    if faults:
        sys.exit(f"{len(faults)} faults")
    print("content")


def processes(pid):
    """A process and those that it started."""
    found = [int(pid)]
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [one for child in path.read_text().split() for one in processes(child)]
    return found


def memory_of(pid, field="VmRSS", file="status"):
    """Bytes of a process in a line of its status; 0 if it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    return 0


class Server:
    """A server, which runs until `end`, or within a `with` block. `words` are its command, to which a free port is added.

    What it prints goes to the file `output`; `log` is the file of its log, if it writes one. `seconds` is how long it took until it was healthy.
    """

    def __init__(self, *words, output=None, log=None):
        self.log, self.output, self.port = log and Path(log), output, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.name = Path(words[0]).name
        begin = time.perf_counter()
        with open(output or os.devnull, "ab") as file:
            self.process = subprocess.Popen([*map(str, words), "--port", str(self.port)], stdout=file, stderr=file if output else None)
        try:
            while not self.is_healthy():
                if self.process.poll() is not None:
                    raise Failure(f"{self.name} ended with {self.process.returncode}: {self.tail()}")
                if time.perf_counter() - begin > TIMEOUT:
                    raise Failure(f"{self.name} does not answer: {self.tail()}")
                time.sleep(0.002)
        except BaseException:
            self.end()
            raise
        self.seconds = time.perf_counter() - begin

    @classmethod
    def ours(cls, bench, *words, folder, model=None, name="log"):
        """A `bench serve` with its warnings in a file of the folder."""
        log = Path(folder) / name
        return cls(bench, "--log", log, "--log-level", "warn", "serve", *(["-m", model] if model else []), *words, log=log)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def end(self):
        """Ends it. Returns the errors of its log as faults."""
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        lines = self.log.read_text("utf-8", "replace").splitlines() if self.log and self.log.exists() else []
        return [f"the log: {line[:300]}" for line in lines if "ERROR" in line or "panic" in line]

    def tail(self):
        return " | ".join(Path(self.output).read_text("utf-8", "replace").splitlines()[-3:]) if self.output else ""

    def is_healthy(self):
        try:
            return self.ask("/health", timeout=1)[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def is_alive(self):
        return self.process.poll() is None

    def connect(self, timeout=10.0):
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    def send(self, data, timeout=10.0):
        """The status and the body of an answer to these bytes; status 0: the connection was closed without one."""
        until = time.monotonic() + timeout
        with self.connect(timeout) as connection:
            received = bytearray()
            # It may answer and close before it has read all.
            with contextlib.suppress(OSError):
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionError):
                connection.settimeout(max(until - time.monotonic(), 0.001))
                while chunk := connection.recv(65536):
                    received += chunk
                    connection.settimeout(max(until - time.monotonic(), 0.001))
        received = bytes(received)
        # A client that sends no more may be asked whether it is still there.
        while received.startswith(b"HTTP/1.1 1"):
            received = received.partition(b"\r\n\r\n")[2]
        head, _, body = received.partition(b"\r\n\r\n")
        words = head.split(b" ", 2)
        return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0, body

    @contextlib.contextmanager
    def response(self, path, body=None, method=None, timeout=120):
        """An answer that is read within the block."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)) as connection:
            data = None if body is None else json.dumps(body)
            connection.request(method or ("GET" if body is None else "POST"), path, data, {"Content-Type": "application/json"})
            yield connection.getresponse()

    def ask(self, path, body=None, method=None, timeout=120):
        """Status and bytes of an answer."""
        with self.response(path, body, method, timeout) as response:
            return response.status, response.read()

    def json(self, path, body=None):
        """The value of an answer; a refusal is a failure."""
        try:
            status, text = self.ask(path, body, timeout=TIMEOUT)
            if status != 200:
                raise Failure(f"{path}: {status} {text.decode('utf-8', 'replace')[:300]}")
            return json.loads(text)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Failure(f"{path}: {error}") from error

    def resident(self):
        """Resident bytes of the server and its engine processes."""
        return sum(memory_of(pid) for pid in processes(self.process.pid))


class Health(threading.Thread):
    """Asks a server for `/health` all the while."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.times, self.faults, self.is_over = server, [], [], False

    def run(self):
        while not self.is_over:
            start = time.monotonic()
            try:
                status, _ = self.server.ask("/health", timeout=10)
                if status != 200:
                    self.faults.append(f"/health: status {status}")
            except (OSError, http.client.HTTPException) as error:
                self.faults.append(f"/health: {error}")
            self.times.append(time.monotonic() - start)
            time.sleep(0.02)

    def close(self, most_ms):
        """Ends it and tells what it found; returns the faults, of which one is that an answer took longer than `most_ms` (0: any time)."""
        self.is_over = True
        self.join()
        middle, late, slowest = (1e3 * percentile(self.times, percent) for percent in (50, 99, 100))
        print(f"/health, {len(self.times)} times: median {middle:.1f} ms, 99 % {late:.1f} ms, slowest {slowest:.1f} ms")
        return self.faults + [f"/health took {slowest:.0f} ms"] * (0 < most_ms < slowest)
