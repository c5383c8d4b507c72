#!/usr/bin/env python3
"""Malformed requests over all routes of a server, and clients that leave at random moments.

Fails if an answer is 5xx, a refusal is not JSON with an error, a request hangs, the server ends, `/health`
is slow, or sequences stay active after their clients left. The requests follow from the seed and from the
server's own `/openapi.json`. Standard library only.
"""

import collections
import contextlib
import json
import random
import socket
import struct
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

from bench_server import Health, Server, options, report, request

# Routes that end or change what the others need, and are asked with wrong bodies only.
MANAGING = {"/models/load", "/models/unload", "/models/rescan", "/quit"}
CHAT = {"model": "default", "messages": [{"role": "user", "content": "2+2=?"}], "max_tokens": 3}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}}}}}
# Sound bodies, from which wrong ones are made. Routes that are not here start from their schema.
SOUND = {
    "/v1/chat/completions": [
        CHAT,
        {**CHAT, "stream": True, "logprobs": True, "top_logprobs": 2, "n": 2, "stop": ["x"],
         "temperature": 0.5, "seed": 1, "stream_options": {"include_usage": True}},
        {**CHAT, "tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": True},
        {**CHAT, "response_format": {"type": "json_schema", "json_schema": {
            "name": "n", "schema": {"type": "object", "properties": {"a": {"type": "string"}}}}}},
        {**CHAT, "messages": CHAT["messages"] + [
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c", "content": "4"}]},
        {**CHAT, "logit_bias": {"5": -100}, "grammar": "root ::= \"a\"", "samplers": ["top_k"]},
    ],
    "/v1/completions": [
        {"model": "default", "prompt": "2+2=", "max_tokens": 3},
        {"model": "default", "prompt": [5, 6, 7], "max_tokens": 1, "logprobs": 1, "echo": True},
        {"model": "default", "prompt": ["a", "b"], "max_tokens": 2, "n": 2, "best_of": 3},
        {"model": "default", "prompt": "a", "suffix": "b", "max_tokens": 2, "stream": True},
    ],
    "/completion": [
        {"prompt": ["a", [5, "b", 6], {"prompt_string": "c"}], "n_predict": 2, "n_probs": 3, "return_tokens": True},
        {"prompt": [5, "b", 6], "n_predict": 2, "n_probs": 3, "post_sampling_probs": True, "temperature": 2,
         "top_k": 5, "stream": True, "return_progress": True, "logit_bias": [[5, -100], ["ab", 1.5], [6, False]]},
        {"prompt": "a", "n_predict": 2, "response_fields": ["content", "generation_settings/seed"], "n_cmpl": 2},
    ],
    "/infill": [
        {"input_prefix": "a", "input_suffix": "b", "prompt": "c", "n_predict": 2,
         "input_extra": [{"filename": "f", "text": "d"}, {"text": "e"}]},
    ],
    "/v1/chat/completions/input_tokens": [CHAT],
    "/v1/responses/input_tokens": [{"model": "default", "input": "2+2=?"}],
    "/v1/responses": [
        {"model": "default", "input": "2+2=?", "max_output_tokens": 3},
        {"model": "default", "max_output_tokens": 3, "stream": True, "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "4"}]},
    ],
    "/v1/messages": [
        {"model": "default", "max_tokens": 3, "system": "s", "messages": CHAT["messages"]},
        {"model": "default", "max_tokens": 3, "stream": True, "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c", "content": "4"}]}]},
    ],
    "/v1/messages/count_tokens": [{"model": "default", "messages": CHAT["messages"]}],
    "/api/chat": [
        {"model": "default", "options": {"num_predict": 3, "num_ctx": 64}, "messages": CHAT["messages"]},
        {"model": "default", "options": {"num_predict": 3}, "stream": False, "format": "json", "keep_alive": "5m", "messages": [
            {"role": "user", "content": "hi", "images": []},
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
            {"role": "tool", "tool_name": "f", "content": "4"}]},
    ],
    "/api/generate": [
        {"model": "default", "prompt": "2+2=?", "system": "s", "options": {"num_predict": 3}},
        {"model": "default", "prompt": "2+2=", "raw": True, "stream": False, "options": {"num_predict": 3, "stop": ["5"]}},
    ],
    "/api/embed": [{"model": "default", "input": ["a", "b"], "truncate": True, "dimensions": 2}],
    "/api/embeddings": [{"model": "default", "prompt": "a"}],
    "/api/show": [{"model": "default", "verbose": True}],
    "/tokenize": [{"content": "a b", "with_pieces": True}, {"messages": CHAT["messages"]}],
    "/detokenize": [{"tokens": [5, 6, 7]}],
    "/apply-template": [{"messages": CHAT["messages"]}],
    "/v1/embeddings": [{"model": "default", "input": ["a", "b"], "encoding_format": "base64"}],
    "/v1/rerank": [{"model": "default", "query": "a", "documents": ["b", "c"], "top_n": 1}],
    "/lora-adapters": [[{"id": 0, "scale": 0.5}]],
}
METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "NONSENSE"]
CONTENT_TYPES = [None, "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data",
                 "application/json; charset=latin-1", "application/jsonx", "json", "\x80\xff", "a" * 4000]
PATHS = ["/", "/v1", "/v1/", "//", "/v1/chat/completions/", "/v1/models/%ff%fe", "/v1/models/../../etc/passwd",
         "/v1/models/" + "m" * 4000, "/%00", "/v1/models/a%2fb", "/slots?model=%ff", "/props?model=",
         "/slots?" + "a=b&" * 500, "/lora-adapters?model=none", "/V1/MODELS", "/v1/models?limit=x"]


def nested(depth, kind):
    """JSON text of this depth."""
    return "[" * depth + "]" * depth if kind == "array" else '{"a":' * depth + "1" + "}" * depth


class Raw:
    """JSON text that is no Python value."""

    def __init__(self, text):
        self.text = text


def values(rng):
    """A value that few fields expect."""
    return rng.choice([
        None, True, False, 0, 1, -1, 1.5, -0.0, 2**31, 2**32, 2**53 + 1, 2**63, 2**64, -2**63, -2**64,
        Raw("1e308"), Raw("-1e308"), Raw("1e999"), Raw("1e-999"), Raw("0" * 2000), Raw("9" * 400),
        Raw("NaN"), Raw("-Infinity"), Raw("0x10"), Raw("'a'"), Raw(""), Raw("undefined"),
        "", "a", "\0", "\u202e\ufeff", "\U0001f600" * 50, "x" * rng.choice([100, 5000, 60000]),
        Raw('"\\ud800"'), Raw('"\\u0000"'), Raw('"\\x41"'), Raw('"\n"'),
        [], [[]], [None], [True, "a", 1], list(range(300)), ["a"] * 200, [[[[[1]]]]],
        {}, {"": ""}, {"a": {"b": {"c": None}}}, {"k" * 3000: 1}, {str(i): i for i in range(300)},
        Raw(nested(rng.choice([50, 130, 5000]), "array")), Raw(nested(rng.choice([50, 130, 5000]), "object")),
        {"type": "text"}, {"type": "json_schema"}, {"type": "object", "$ref": "#"},
        {"$ref": "#/definitions/a", "definitions": {"a": {"$ref": "#/definitions/a"}}},
        "root ::= root", "(a*)*b", "[", "{{ 7*7 }}", "{% for i in range(100000000) %}x{% endfor %}",
    ])


def text_of(value):
    """JSON text of a value that may hold raw text."""
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, dict):
        return "{" + ",".join(json.dumps(k) + ":" + text_of(v) for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(text_of, value)) + "]"
    return json.dumps(value)


def places(value, path=()):
    """The paths of all parts of a value."""
    found = [path]
    if isinstance(value, dict):
        for key, inner in value.items():
            found += places(inner, path + (key,))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            found += places(inner, path + (i,))
    return found


def replaced(value, path, new):
    """The value with another part at a path."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


def from_schema(schema):
    """A value of a schema's type."""
    kinds = schema.get("type", "string")
    kind = kinds[0] if isinstance(kinds, list) else kinds
    if kind == "object":
        fields = schema.get("properties", {})
        return {name: from_schema(fields[name]) for name in schema.get("required", []) if name in fields}
    if kind == "array":
        return [from_schema(schema.get("items", {}))]
    return {"integer": 1, "number": 0.5, "boolean": True}.get(kind, "a")


# One request: its bytes and what may come back.
Case = collections.namedtuple("Case", "kind route data is_http", defaults=[True])


def mutated(rng, route, fields, sound):
    """A wrong body, by one of many ways to be wrong."""
    body = rng.choice(sound)
    way = rng.choice(["value", "value", "value", "value", "field", "field", "field", "drop", "unknown",
                      "truncated", "bytes", "utf8", "whole", "twice", "long key", "deep", "garbage"])
    if way == "value":
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            body = replaced(body, rng.choice(places(body)), values(rng))
            if isinstance(body, Raw):
                break
    elif way == "field" and fields and isinstance(body, dict):
        body = {**body, rng.choice(fields): values(rng)}
    elif way == "drop" and isinstance(body, dict) and body:
        body = dict(body)
        del body[rng.choice(list(body))]
    elif way == "unknown" and isinstance(body, dict):
        body = {**body, rng.choice(["temprature", "", "a.b", "__proto__", "x" * 200, "\0"]): values(rng)}
    elif way == "whole":
        body = values(rng)
    elif way == "long key" and isinstance(body, dict):
        body = {**body, "k" * rng.choice([1000, 100000, 1000000]): 1}
    elif way == "deep" and isinstance(body, dict):
        body = {**body, rng.choice(fields or ["a"]): Raw(nested(rng.choice([100, 127, 128, 20000]), "array"))}
    data = text_of(body).encode("utf-8", "surrogatepass")
    if way == "truncated":
        data = data[:rng.randrange(len(data) + 1)]
    elif way == "bytes" and data:
        data = bytearray(data)
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        data = bytes(data)
    elif way == "utf8":
        at = rng.randrange(len(data) + 1)
        data = data[:at] + rng.choice([b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"]) + data[at:]
    elif way == "twice":
        data = data + data
    elif way == "garbage":
        data = rng.randbytes(rng.randrange(200))
    return way, data


def cases(rng, document, count):
    """The requests, in the order in which they are sent."""
    operations = [(path, method.upper(), operation) for path, methods in document["paths"].items()
                  for method, operation in methods.items()]
    posts = [(path, operation) for path, method, operation in operations if method == "POST"]
    out = []
    while len(out) < count:
        draw = rng.random()
        if draw < 0.80:
            path, operation = rng.choice(posts)
            content = operation.get("requestBody", {}).get("content", {})
            schema = content.get("application/json", {}).get("schema", {})
            fields = sorted(schema.get("properties", {}))
            key = path if path in SOUND or not path.startswith("/") else f"/v1{path}"
            sound = SOUND.get(path) or SOUND.get(key) or [from_schema(schema) if schema else {}]
            way, data = mutated(rng, path, fields, sound)
            if path in MANAGING:
                data = b"[" + data
            out.append(Case(way, path, request("POST", path, data)))
        elif draw < 0.86:
            path, _, _ = rng.choice(operations)
            path = path.replace("{id}", "tiny-chat")
            data = json.dumps(rng.choice(SOUND.get(path, [{}]))).encode()
            method = rng.choice(METHODS)
            if path in MANAGING and method == "POST":
                continue
            out.append(Case("method", path, request(method, path, data), method != "HEAD"))
        elif draw < 0.91:
            path, _ = rng.choice(posts)
            if path not in MANAGING:
                data = json.dumps(rng.choice(SOUND.get(path, [{}]))).encode()
                out.append(Case("content type", path, request("POST", path, data, rng.choice(CONTENT_TYPES))))
        elif draw < 0.95:
            path = rng.choice(PATHS)
            out.append(Case("path", path[:40], request(rng.choice(["GET", "POST"]), path, b"{}"), False))
        else:
            path, _ = rng.choice(posts)
            if path not in MANAGING:
                out.append(Case("head", path, broken_head(rng, path), False))
    return out


def broken_head(rng, path):
    """A request that HTTP itself forbids, or that ends too soon."""
    body = json.dumps(SOUND.get(path, [{}])[0]).encode()
    whole = request("POST", path, body)
    return rng.choice([
        request("POST", path, body, length=len(body) + 10),
        request("POST", path, body, length=-1),
        request("POST", path, body, length="x"),
        request("POST", path, body, extra=["Transfer-Encoding: chunked"]),
        request("POST", path, b"zz\r\n" + body, length=0, extra=["Transfer-Encoding: chunked"]),
        request("POST", path, body, extra=["Host: a", "Host: b"]),
        request("POST", path, body, extra=["X: " + "y" * 200000]),
        request("POST", path, body, extra=[f"X-{i}: y" for i in range(300)]),
        request("POST", path, body, extra=["Expect: 100-continue"]),
        request("POST", path, body, extra=["Content-Encoding: gzip"]),
        request("POST", path, body, extra=["X-Request-Id: " + "i" * 5000]),
        request("POST", path, body, extra=["Origin: http://evil.example"]),
        whole[:rng.randrange(1, len(whole))],
        whole.replace(b"HTTP/1.1", b"HTTP/9.9"),
        whole.replace(b"\r\n", b"\n"),
        b"\0" * 100, b"\x16\x03\x01\x02\x00" + rng.randbytes(100), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ])


def judged(case, status, body):
    """What is wrong with an answer, if anything."""
    if status >= 500:
        return f"status {status}: {body[:300]!r}"
    if case.is_http and status == 0:
        return "no answer"
    if case.is_http and status >= 400:
        try:
            error = json.loads(body)["error"]
            if not isinstance(error["message"], str) or not isinstance(error["type"], str):
                return f"status {status}, an error without its words: {body[:300]!r}"
            if len(error["message"]) > 2000:
                return f"status {status}, a message of {len(error['message'])} characters"
        except (ValueError, KeyError, TypeError):
            return f"status {status}, no error as JSON: {body[:300]!r}"
    return None


def flood(server, todo, clients, faults, statuses):
    """Sends the requests."""

    def ask(case):
        start = time.monotonic()
        try:
            status, body = server.send(case.data)
            fault = judged(case, status, body)
        except TimeoutError:
            status, fault = 0, "hangs"
        except OSError as error:
            status, fault = 0, f"{type(error).__name__}: {error}"
        return case, status, fault, time.monotonic() - start

    with ThreadPoolExecutor(clients) as pool:
        for case, status, fault, took in pool.map(ask, todo):
            statuses[status] += 1
            if fault:
                faults.append(f"{case.kind} {case.route} after {took:.1f} s: {fault}\n    {case.data[:700]!r}")


def leave(server, rng, count, clients):
    """Clients that leave at random moments."""
    def one(seed):
        own = random.Random(seed)
        body = {**CHAT, "max_tokens": 400, "stream": own.random() < 0.6, "ignore_eos": True,
                "n": own.choice([1, 1, 3])}
        data = request("POST", "/v1/chat/completions", json.dumps(body).encode())
        part = own.random()
        with server.connect() as connection:
            if part < 0.5:
                # A reset in place of an orderly end.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with contextlib.suppress(OSError):
                connection.sendall(data[:own.randrange(1, len(data))] if part < 0.2 else data)
                time.sleep(own.random() ** 2 * 0.3)
                if own.random() < 0.3:
                    connection.settimeout(0.05)
                    connection.recv(own.randrange(1, 2000))

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(one, [rng.randrange(2**32) for _ in range(count)]))


def n_active(server):
    return sum(slot["is_processing"] for slot in server.json("/slots"))


def main():
    parser = options(__doc__, None, "the model (default: the built-in one)")
    parser.add_argument("--requests", type=int, default=3200)
    parser.add_argument("--disconnects", type=int, default=500)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seed", type=int, default=21)
    parser.add_argument("--health-ms", type=float, default=100, help="longest time of /health; 0 = any")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    faults, statuses = [], collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        server = Server.ours(args.bench, folder=folder, model=args.model)
        try:
            document = server.json("/openapi.json")
            server.send(request("POST", "/v1/completions", json.dumps(SOUND["/v1/completions"][0]).encode()))
            todo = cases(rng, document, args.requests)
            health = Health(server)
            health.start()
            start = time.monotonic()
            flood(server, todo, args.clients, faults, statuses)
            print(f"{len(todo)} requests over {len({case.route for case in todo})} routes and paths in "
                  f"{time.monotonic() - start:.0f} s; answers by status: {dict(sorted(statuses.items()))}")
            leave(server, rng, args.disconnects, 8)
            gone = time.monotonic()
            while n_active(server) and time.monotonic() - gone < 5:
                time.sleep(0.02)
            if n_active(server):
                faults.append(f"{n_active(server)} sequences are active 5 s after their clients left")
            print(f"{args.disconnects} clients left; no sequence active after {time.monotonic() - gone:.2f} s")
            faults += health.close(args.health_ms)
            status, body = server.send(request("POST", "/v1/chat/completions", json.dumps(CHAT).encode()))
            if status != 200:
                faults.append(f"after it all: status {status}: {body[:300]!r}")
            if not server.is_alive():
                faults.append(f"the server ended with {server.process.returncode}")
        finally:
            faults += server.end()
    report(faults)


if __name__ == "__main__":
    main()
