#!/usr/bin/env python3
"""KV events of `bench serve`, read as a router reads those of vLLM: with libzmq, and with msgspec and classes that have vLLM's fields.

What is told of prompts, their continuations, an adapter and evicted blocks is what the requests make of the cache; hashes are computed again with
another CBOR; a subscriber gets past batches that it missed; a subscriber that listens is found again after it was away; the end of a model is told.

Needs scripts/requirements-kv-events.txt, and a program with the feature `kv-events`.
"""

import contextlib
import hashlib
import tempfile
import time
from pathlib import Path

import cbor2
import msgspec
import zmq

from bench_server import Failure, Server, free_port, options, program

BLOCK = 16
TOPIC = b"kv@127.0.0.1@tiny-chat"
WAIT_MS = 20_000


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list["BlockStored | BlockRemoved | AllBlocksCleared"]
    data_parallel_rank: int | None = None


class BlockStored(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[str, ...] | None]


class BlockRemoved(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    pass


DECODER = msgspec.msgpack.Decoder(EventBatch)


def sha256(value):
    return hashlib.sha256(cbor2.dumps(value, canonical=True)).digest()


def hashes(tokens, extra_keys=None):
    """The hashes of the full blocks of a text, as vLLM computes them with sha256_cbor and PYTHONHASHSEED=0."""
    parent, found = sha256("0"), []
    for at in range(0, len(tokens) - BLOCK + 1, BLOCK):
        parent = sha256((parent, tuple(tokens[at : at + BLOCK]), extra_keys))
        found.append(int.from_bytes(parent[-8:], "big"))
    return found


def check(is_right, what):
    if not is_right:
        raise Failure(what)


class Subscriber:
    """A subscriber of all events with the topic. `address`: that of the server, or the own one, if it listens."""

    def __init__(self, address, listens=False):
        self.socket = zmq.Context.instance().socket(zmq.SUB)
        self.socket.setsockopt(zmq.RCVTIMEO, WAIT_MS)
        self.socket.subscribe(TOPIC)
        (self.socket.bind if listens else self.socket.connect)(address)
        # The number of the last batch.
        self.last = None

    def batch(self):
        try:
            topic, number, payload = self.socket.recv_multipart()
        except zmq.Again as error:
            raise Failure(f"no events within {WAIT_MS} ms") from error
        number, batch = int.from_bytes(number, "big"), DECODER.decode(payload)
        check(topic == TOPIC, f"topic {topic}")
        check(self.last is None or number == self.last + 1, f"batch {number} after {self.last}")
        check(abs(batch.ts - time.time()) < 60 and batch.data_parallel_rank == 0, f"{batch.ts} {batch.data_parallel_rank}")
        self.last = number
        return batch.events

    def until(self, is_last):
        """The events up to the first one that is such."""
        events = []
        while True:
            for event in self.batch():
                events.append(event)
                if is_last(event):
                    return events

    def stored(self, n):
        """The events until `n` blocks are stored."""
        left = n

        def is_last(event):
            nonlocal left
            left -= len(event.block_hashes) if isinstance(event, BlockStored) else 0
            return left <= 0

        return self.until(is_last)

    def close(self):
        self.socket.close(linger=0)


def complete(server, tokens, **more):
    """The tokens of a prompt and of its completion."""
    body = {"prompt": tokens, "max_tokens": 1, "temperature": 0, "ignore_eos": True, **more}
    server.json("/v1/completions", body)


def joined(events):
    """What is stored, as one text: hashes, parent, tokens. An engine that has just started may have said so."""
    events = [event for event in events if not isinstance(event, AllBlocksCleared)]
    check(all(isinstance(event, BlockStored) for event in events), f"{events}")
    for event in events:
        n = len(event.block_hashes)
        check(event.block_size == BLOCK and event.medium == "GPU" and len(event.token_ids) == n * BLOCK, f"{event}")
        check(event.extra_keys == [event.lora_name and (event.lora_name,)] * n, f"{event}")
    for before, event in zip(events, events[1:]):
        check(event.parent_block_hash == before.block_hashes[-1], f"{before} {event}")
    return [h for event in events for h in event.block_hashes], events[0].parent_block_hash, [t for event in events for t in event.token_ids]


def replayed(address, first, kind):
    """The batches from one on, as a server sends them again."""
    with contextlib.closing(zmq.Context.instance().socket(kind)) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVTIMEO, WAIT_MS)
        socket.connect(address)
        request = [first.to_bytes(8, "big")]
        socket.send_multipart(request if kind == zmq.REQ else [b"", *request])
        batches = []
        while True:
            number, payload = socket.recv_multipart()[-2:]
            if not payload:
                check(int.from_bytes(number, "big", signed=True) == -1, f"the end is {number}")
                return batches
            batches.append((int.from_bytes(number, "big"), DECODER.decode(payload).events))
            if kind == zmq.REQ:
                # Such a socket takes one answer.
                return batches


def prompt(n, first=20):
    return [first + i * i % 97 for i in range(n)]


def connected(bench, folder):
    """A server that listens."""
    port, past = free_port(), free_port()
    address, replay = f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.1:{past}"
    own = ["--kv-events", f"@{address}", "--kv-events-replay", f"@{replay}", "--kv-events-topic", TOPIC.decode()]
    # 32 blocks in all.
    words = ["--threads", "1", "--ctx", "512", "--parallel", "1"]
    subscriber = Subscriber(address)
    with Server.ours(bench, *words, *own, folder=folder) as server:
        # The subscription is on its way.
        time.sleep(1)
        text = prompt(100)
        complete(server, text)
        told = joined(subscriber.stored(6))
        check(told == (hashes(text), None, text[:96]), f"a prompt: {told}")
        # What is cached already is not told again.
        complete(server, text)
        longer = text + prompt(60, 30)
        complete(server, longer)
        found, parent, tokens = joined(subscriber.stored(4))
        check((found, parent) == (hashes(longer)[6:], hashes(longer)[5]) and tokens == longer[96:160], f"a continuation: {tokens}")
        # Texts that need all blocks: those of the first ones go.
        known = set(hashes(longer))
        for i in range(3):
            complete(server, prompt(300, 40 + i))
        events = subscriber.until(lambda event: isinstance(event, BlockRemoved))
        check(set(events[-1].block_hashes) & known, f"evicted: {events[-1]}")
        check(events[-1].medium == "GPU", f"{events[-1]}")
        n = subscriber.last
        past_batches = replayed(replay, 0, zmq.DEALER)
        check([number for number, _ in past_batches][: n + 1] == list(range(n + 1)), f"past batches {[number for number, _ in past_batches]}")
        check(isinstance(past_batches[0][1][0], AllBlocksCleared), f"the first batch is {past_batches[0]}")
        check([number for number, _ in replayed(replay, n, zmq.DEALER)][0] == n, "a part of the past batches")
        check(replayed(replay, n, zmq.REQ)[0][0] == n, "a socket of requests")
        # What is no request is passed over.
        with contextlib.closing(zmq.Context.instance().socket(zmq.DEALER)) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(replay)
            for frames in [[b"x"], [b"", b"1"], [b"1", bytes(8)], [b"", bytes(8), b""]]:
                socket.send_multipart(frames)
            time.sleep(0.2)
        check(replayed(replay, n, zmq.DEALER), "after what is no request")
        # A load of the model forgets all, and begins to count again.
        server.json("/models/unload", {"model": "tiny-chat"})
        subscriber.until(lambda event: isinstance(event, AllBlocksCleared))
        subscriber.last = None
        complete(server, text)
        # libzmq subscribes again while somebody waits for events.
        subscriber.socket.poll(1500)
        complete(server, prompt(200, 50))
        subscriber.stored(12)
    subscriber.close()
    print(f"a server that listens: {n} batches")


def listening(bench, folder):
    """Subscribers that listen."""
    address = f"tcp://127.0.0.1:{free_port()}"
    own = ["--kv-events", address, "--kv-events-topic", TOPIC.decode()]
    with Server.ours(bench, "--threads", "1", *own, folder=folder) as server:
        complete(server, prompt(100))
        for i in range(2):
            subscriber = Subscriber(address, listens=True)
            text, until = None, time.monotonic() + WAIT_MS / 1e3
            while text is None or not subscriber.socket.poll(500):
                check(time.monotonic() < until, "the server did not connect")
                text = prompt(64, 21 + int(1000 * time.monotonic()) % 150)
                complete(server, text)
            check(joined(subscriber.batch())[1] is None, "a prompt")
            subscriber.close()
            # Where nobody listens, requests are served.
            complete(server, prompt(64, 200 + i))
        subscriber = Subscriber(address, listens=True)
        subscriber.socket.poll(4000)
        server.process.terminate()
        subscriber.until(lambda event: isinstance(event, AllBlocksCleared))
        subscriber.close()
    print("a server that connects")


def main():
    args = options(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        connected(args.bench, Path(folder))
        listening(args.bench, Path(folder))
    print("good")


if __name__ == "__main__":
    program(main)
