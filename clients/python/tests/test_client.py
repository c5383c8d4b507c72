"""The client against a server with the built-in model."""

from __future__ import annotations

import re
import socket
import tempfile
import threading
import unittest
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, Iterator, List, Union

import numpy as np
from support import Server, bench, safetensors

import lab_bench
from lab_bench import APIError, BenchError, Client, TransportError, capture, edits, load
from lab_bench.arrays import Array

PROMPT = "The sea is"
POINT = "layers.1.out"
WIDTH = 128

server: Server
client: Client


def setUpModule() -> None:
    global server, client
    # Values of more than 2000 bytes become a file.
    server = Server("--lab-inline", "2000", "--deterministic")
    client = Client(server.url, timeout=60)


def tearDownModule() -> None:
    server.close()


def rows(*changes: lab_bench.Edit, point: str = POINT) -> Array:
    """The rows of all tokens, as they are after edits."""
    return client.run(PROMPT, edits=changes, captures=[capture(point, "all")])[point]


class Package(unittest.TestCase):
    def test_the_version_is_that_of_the_program(self) -> None:
        self.assertEqual(bench("--version").split()[1], lab_bench.__version__)

    def test_the_example_of_the_readme_runs(self) -> None:
        readme = (Path(__file__).parents[1] / "README.md").read_text()
        (example,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
        output = StringIO()
        with redirect_stdout(output):
            exec(example.replace("Client()", f"Client({server.url!r})"), {})
        self.assertEqual(output.getvalue(), f"(1, {WIDTH})\n5\n")


class Reading(unittest.TestCase):
    def test_points_have_shapes_and_names(self) -> None:
        points = {point.path: point for point in client.points()}
        heads = points["layers.1.attn.heads"]
        self.assertEqual(heads.shape, (4, 32))
        self.assertEqual((heads.parts, heads.editable, heads.capturable), ("heads", True, True))
        self.assertIn("blocks.1.attn.hook_z", heads.aliases)
        self.assertEqual(points["layers.1.attn.weights"].shape, (4, None))

    def test_captures_are_arrays(self) -> None:
        ids, texts = client.tokenize(PROMPT)
        self.assertEqual("".join(texts), PROMPT)
        wanted: List[Union[str, lab_bench.Capture]] = [
            "blocks.1.hook_resid_post",
            capture("layers.{1,2}.out", "all"),
            capture("layers.1.attn.heads", [0, -1], dtype="f16"),
        ]
        result = client.run(PROMPT, captures=wanted)
        self.assertEqual(result.tokens, ids)
        self.assertEqual([one.point for one in result.captures][1:3], ["layers.1.out", "layers.2.out"])
        every = result["layers.1.out"]
        self.assertEqual((every.shape, every.dtype), ((len(ids), WIDTH), np.float32))
        np.testing.assert_array_equal(result["blocks.1.hook_resid_post"], every[-1:])
        heads = result.captures[3]
        self.assertEqual((heads.values.shape, heads.values.dtype), ((2, 4, 32), np.float16))
        np.testing.assert_array_equal(heads.positions, [0, len(ids) - 1])
        with self.assertRaisesRegex(KeyError, "layers.0.out; captured: blocks.1"):
            result["layers.0.out"]

    def test_token_ids_are_a_prompt(self) -> None:
        ids, _ = client.tokenize(PROMPT)
        prompts: List[Union[List[int], Array]] = [ids, np.array(ids)]
        for prompt in prompts:
            found = client.run(prompt, captures=[capture(POINT, np.arange(len(ids)))])
            np.testing.assert_array_equal(found[POINT], rows())

    def test_reductions_are_those_of_numpy(self) -> None:
        every = rows()
        reduce = ["norm", "mean", "max"]
        found = client.run(PROMPT, captures=[capture(POINT, "all", reduce=one) for one in reduce])
        wanted = [np.linalg.norm(every, axis=1), every.mean(0), every.max(0)]
        for one, array, name in zip(found.captures, wanted, reduce):
            self.assertEqual(one.reduce, name)
            np.testing.assert_allclose(one.values, array, rtol=1e-5, atol=1e-5)
        outputs: List[lab_bench.Lab] = [{}, {"output": "artifact"}]
        for lab in outputs:
            one = client.run(PROMPT, captures=[capture(POINT, "all", reduce="top_k", k=3)], lab=lab).captures[0]
            assert one.indices is not None
            np.testing.assert_array_equal(np.take_along_axis(every, one.indices, 1), one.values)
            np.testing.assert_array_equal(one.values, -np.sort(-every, axis=1)[:, :3])

    def test_large_values_come_as_a_file(self) -> None:
        captures = [capture("layers.*.out", "all"), capture("layers.0.attn.heads", "all", dtype="f16")]
        inline = client.run(PROMPT, captures=captures, lab={"output": "inline"})
        self.assertIsNone(inline.artifact)
        formats: List[lab_bench.Lab] = [{}, {"format": "npz"}]
        for lab, form in zip(formats, ["safetensors", "npz"]):
            kept = client.run(PROMPT, captures=captures, lab=lab)
            assert kept.artifact is not None
            self.assertEqual(kept.artifact.format, form)
            for one, other in zip(kept.captures, inline.captures):
                self.assertEqual((one.point, one.values.dtype), (other.point, other.values.dtype))
                np.testing.assert_array_equal(one.values, other.values)
            self.assertIn(kept.artifact, client.artifacts.list())
            content = client.artifacts.read(kept.artifact.id)
            self.assertEqual(len(content), kept.artifact.bytes)
            self.assertEqual(load(content).metadata["tokens"].replace(" ", ""), str(kept.tokens).replace(" ", ""))
            client.artifacts.remove(kept.artifact.id)
            with self.assertRaises(APIError) as caught:
                client.artifacts.load(kept.artifact.id)
            self.assertEqual((caught.exception.status, caught.exception.code), (404, "not_found"))

    def test_the_lens_after_the_last_layer_shows_the_logits(self) -> None:
        result = client.run(PROMPT, lens={"top_k": 4, "targets": [" the", 0]}, captures=["head.logits"])
        logits = result["head.logits"][0].astype(np.float64)
        logprobs = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        last = result.lens[-1]
        self.assertEqual((len(result.lens), last.point, last.position), (5, "layers.4.out", len(result.tokens) - 1))
        self.assertEqual([one.id for one in last.top], list(np.argsort(-logits, kind="stable")[:4]))
        for one in [*last.top, *last.targets]:
            self.assertAlmostEqual(one.logprob, logprobs[one.id], places=4)
        self.assertEqual(last.targets[0].text, " the")
        self.assertEqual(last.targets[0].rank, 1 + int((logits > logits[last.targets[0].id]).sum()))
        self.assertEqual(len(client.run(PROMPT, lens=True).lens), 5)

    def test_the_parts_of_a_logit_sum_to_it(self) -> None:
        result = client.run(PROMPT, captures=["head.logits"], attribution={"of": " the", "to": "slots", "positions": "all"})
        split = result.attribution
        assert split is not None
        self.assertEqual((split.text, split.values.shape), (" the", (len(result.tokens), len(split.parts))))
        np.testing.assert_allclose(split.values.sum(1) + split.constants, split.logits, rtol=1e-3, atol=1e-3)
        self.assertAlmostEqual(split.logits[-1], result["head.logits"][0, split.id], places=2)
        by_head = client.run(PROMPT, attribution={"of": split.id, "to": "heads"}).attribution
        assert by_head is not None
        own = [value for part, value in zip(by_head.parts, by_head.values[0]) if part.startswith("layers.1.attn.")]
        self.assertEqual(len(own), 5)
        self.assertAlmostEqual(sum(own), split.values[-1, split.parts.index("layers.1.attn")], places=4)
        by_layer = client.run(PROMPT, attribution=split.id).attribution
        assert by_layer is not None
        self.assertEqual(by_layer.parts[:2], ["embed", "layers.0"])


class Changing(unittest.TestCase):
    def test_each_edit_does_what_it_says(self) -> None:
        plain = rows()
        vector = np.linspace(-1, 1, WIDTH)
        along = np.outer(plain @ vector / (vector @ vector), vector)
        first = np.concatenate([plain[:1] * 2, plain[1:]])
        some = plain.copy()
        some[:, [3, 5]] = 0
        long = np.linalg.norm(plain, axis=1, keepdims=True) / np.linalg.norm(vector)
        cases = [
            (edits.add(POINT, vector, 2), plain + 2 * vector),
            (edits.add(POINT, vector, norm_match=True), plain + long * vector),
            (edits.set_to(POINT, vector), np.tile(vector, (len(plain), 1))),
            (edits.set_to(POINT, plain[::-1], positions=range(len(plain))), plain[::-1]),
            (edits.scale(POINT, 2, positions=[0]), first),
            (edits.zero(POINT), 0 * plain),
            (edits.zero(POINT, neurons=list(np.array([3, 5]))), some),
            (edits.zero(POINT, when="answer"), plain),
            (edits.zero(POINT, tokens=[]), plain),
            (edits.project_out(POINT, list(vector)), plain - along),
            (edits.clamp(POINT, -1, 0.5), plain.clip(-1, 0.5)),
            (edits.skip(POINT), rows(point="layers.0.out")),
        ]
        for edit, wanted in cases:
            with self.subTest(edit["op"]):
                np.testing.assert_allclose(rows(edit), wanted, rtol=1e-4, atol=1e-4)
        heads = rows(edits.zero("layers.1.attn.heads", heads=[2]), point="layers.1.attn.heads")
        np.testing.assert_array_equal(heads[:, 2], 0)
        self.assertTrue((heads[:, 1] != 0).all())

    def test_stored_vectors_are_those_of_the_request(self) -> None:
        vector = np.linspace(-1, 1, WIDTH)
        wanted = rows(edits.add(POINT, vector))
        content = safetensors({"layers.1": vector.astype(np.float32)})
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        file = Path(folder.name, "some.safetensors")
        file.write_bytes(content)
        for vectors in [vector, {1: vector}, {POINT: list(vector)}, content, file, str(file)]:
            stored = client.vectors.add("some", vectors)  # type: ignore[arg-type]
            self.assertEqual((stored.id, stored.kind, stored.given), ("some", "directions", False))
            self.assertIn(stored, client.vectors.list())
            np.testing.assert_array_equal(rows(edits.add(POINT, "some")), wanted)
        client.vectors.remove("some")
        self.assertEqual(client.vectors.list(), [])
        with self.assertRaisesRegex(APIError, "some"):
            rows(edits.add(POINT, "some"))

    def test_features_of_an_autoencoder(self) -> None:
        random = np.random.default_rng(1)
        encoder = random.normal(size=(WIDTH, 16)).astype(np.float32)
        decoder = random.normal(size=(16, WIDTH)).astype(np.float32)
        biases = {"b_enc": np.zeros(16, np.float32), "b_dec": np.zeros(WIDTH, np.float32)}
        client.vectors.add("sae", safetensors({"W_enc": encoder, "W_dec": decoder, **biases}))
        plain = rows()
        features = np.maximum(plain @ encoder, 0)
        found = client.run(PROMPT, captures=[capture(POINT, "all", sae="sae", k=2)]).captures[0]
        assert found.indices is not None
        self.assertEqual(found.sae, "sae")
        np.testing.assert_allclose(found.values, -np.sort(-features, axis=1)[:, :2], rtol=1e-3)
        np.testing.assert_array_equal(found.indices, np.argsort(-features, axis=1)[:, :2])
        added = rows(edits.add_feature(POINT, "sae", 3, 2))
        np.testing.assert_allclose(added, plain + 2 * decoder[3], rtol=1e-4, atol=1e-4)
        bounded = rows(edits.clamp_feature(POINT, "sae", 3, 5, 5))
        wanted = plain + (5 - features[:, 3:4]) * decoder[3]
        np.testing.assert_allclose(bounded, wanted, rtol=1e-3, atol=1e-3)
        client.vectors.remove("sae")

    def test_patching_brings_the_answer_back(self) -> None:
        grid = client.patch("2+2=", "2+3=", token="4", against="5")
        n = len(grid.clean_tokens)
        self.assertEqual((len(grid.points), grid.positions), (5, [[at] for at in range(n)]))
        self.assertEqual((grid.values.shape, grid.effects.shape), ((5, n), (5, n)))
        self.assertEqual(grid.corrupt_tokens, client.tokenize("2+3=")[0])
        np.testing.assert_allclose(grid.effects, (grid.values - grid.corrupt) / (grid.clean - grid.corrupt))
        self.assertAlmostEqual(grid.effects[-1, -1], 1, places=3)
        whole = client.patch(grid.clean_tokens, "2+3=", token="4", points=[POINT], positions="all")
        np.testing.assert_allclose(whole.values, [[whole.clean]], atol=1e-3)


class Generating(unittest.TestCase):
    def test_completions_and_answers_have_values(self) -> None:
        plain = client.complete("2+2=", max_tokens=4, temperature=0)
        self.assertEqual((plain.text, plain.finish_reason, plain.captures), ("4", "stop", []))
        ran = client.run("2+2=", captures=[POINT], max_tokens=4, temperature=0)
        self.assertEqual(ran.text, "4")
        read = client.complete("2+2=", captures=[POINT], max_tokens=4, temperature=0)
        np.testing.assert_allclose(read[POINT], ran[POINT], rtol=1e-3, atol=1e-3)
        chat = client.chat("What is 2+3?", captures=[capture(POINT, "answer")], max_tokens=20, temperature=0)
        n = chat.raw["usage"]["completion_tokens"]
        self.assertIn(len(chat[POINT]), [n, n - 1])
        self.assertIn("5", chat.text)
        same = client.chat([{"role": "user", "content": "What is 2+3?"}], max_tokens=20, temperature=0)
        self.assertEqual((same.text, same.captures), (chat.text, []))
        edited = client.chat("What is 2+3?", edits=[edits.zero("layers.*.attn.out")], max_tokens=20, temperature=0)
        self.assertNotEqual(edited.text, chat.text)

    def test_streams_have_the_same_text(self) -> None:
        body = {"messages": [{"role": "user", "content": "What is 2+3?"}], "max_tokens": 20, "temperature": 0}
        events = client.stream("/v1/chat/completions", {**body, "lab": {"captures": [{"point": POINT}]}})
        choices = [event["choices"][0] for event in events]
        text = "".join(choice["delta"].get("content") or "" for choice in choices)
        self.assertEqual(text, client.chat("What is 2+3?", max_tokens=20, temperature=0).text)
        self.assertEqual(sum("lab" in choice for choice in choices), 1)

    def test_threads_share_a_client(self) -> None:
        texts: List[str] = []

        def ask(digit: int) -> None:
            texts.append(client.complete(f"2+{digit}=", max_tokens=2, temperature=0).text)

        threads = [threading.Thread(target=ask, args=(2 + i % 2,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(sorted(texts), ["4"] * 4 + ["5"] * 4)


class Answering:
    """A socket that sends the same bytes to whoever connects, or nothing."""

    def __init__(self, answer: bytes, ends: bool = True) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._open: List[socket.socket] = []
        self._answer, self._ends = answer, ends
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection.makefile("rb") as request:
                head = b"".join(iter(request.readline, b"\r\n"))
                length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
                request.read(int(length[1]) if length else 0)
            connection.sendall(self._answer)
            if self._ends:
                connection.close()
            else:
                self._open.append(connection)

    def close(self) -> None:
        for one in [*self._open, self._socket]:
            one.close()


class Failing(unittest.TestCase):
    def answering(self, answer: bytes, ends: bool = True) -> Client:
        there = Answering(answer, ends)
        self.addCleanup(there.close)
        return Client(there.url, timeout=0.5)

    def test_refusals_have_the_fields_of_the_server(self) -> None:
        with self.assertRaises(APIError) as caught:
            client.run(PROMPT, captures=[{"point": POINT, "reduce": "middle"}])
        error = caught.exception
        self.assertEqual((error.status, error.type), (400, "invalid_request_error"))
        self.assertIn("middle", error.message)
        self.assertTrue((error.param or "").startswith("lab"), error.param)
        # The only model of a server answers to every name.
        self.assertTrue(Client(server.url, model="other").points())
        with self.assertRaises(APIError):
            list(client.stream("/v1/completions", {"prompt": PROMPT, "max_tokens": "many"}))
        with self.assertRaisesRegex(TypeError, "found object"):
            client.run(PROMPT, edits=[edits.add(POINT, object())])  # type: ignore[arg-type]

    def test_keys_are_sent(self) -> None:
        guarded = Server("--api-key", "secret")
        self.addCleanup(guarded.close)
        self.assertTrue(Client(guarded.url, api_key="secret").points())
        with self.assertRaises(APIError) as caught:
            Client(guarded.url).points()
        self.assertEqual((caught.exception.status, caught.exception.code), (401, "invalid_api_key"))

    def test_a_server_that_is_not_there(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        with self.assertRaisesRegex(TransportError, f"GET http://127.0.0.1:{port}/v1/lab/points: .*refused"):
            Client(f"http://127.0.0.1:{port}").points()

    def test_a_server_that_says_nothing(self) -> None:
        with self.assertRaisesRegex(TransportError, "timed out"):
            self.answering(b"", ends=False).points()
        head = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"
        with self.assertRaisesRegex(TransportError, "timed out"):
            self.answering(head, ends=False).points()
        with self.assertRaisesRegex(TransportError, "timed out"):
            list(self.answering(head, ends=False).stream("/v1/completions", {}))

    def test_answers_that_are_none(self) -> None:
        def answer(status: str, body: bytes) -> bytes:
            return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body

        cases = [
            (b"", "points"),
            (b"nonsense\r\n\r\n", "nonsense"),
            (answer("200 OK", b"{"), "not JSON"),
            (answer("502 Bad Gateway", b"<html>"), "status 502 Bad Gateway"),
            (answer("500 Oh", b'{"error": 3}'), "status 500 Oh"),
            (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{", "IncompleteRead"),
        ]
        for content, wanted in cases:
            with self.subTest(content), self.assertRaisesRegex(TransportError, wanted):
                self.answering(content).points()

    def test_a_body_that_is_refused_before_it_is_read(self) -> None:
        fault = b'{"error": {"message": "too large", "code": "body_too_large"}}'
        head = f"HTTP/1.1 413 Payload Too Large\r\ncontent-length: {len(fault)}\r\nconnection: close\r\n\r\n".encode()
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(100)
                connection.sendall(head + fault)

        thread = threading.Thread(target=serve)
        thread.start()
        with self.assertRaisesRegex(APIError, "too large") as caught:
            Client(f"http://127.0.0.1:{listener.getsockname()[1]}").run("a" * (64 << 20))
        thread.join()
        self.assertEqual(caught.exception.status, 413)

    def test_streams_that_fail(self) -> None:
        def stream(events: bytes) -> Iterator[Any]:
            head = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"
            return self.answering(head + events).stream("/v1/completions", {})

        good = b'data: {"choices": []}\n\n'
        self.assertEqual(list(stream(b": ping\n\n" + good + b"data: [DONE]\n\n")), [{"choices": []}])
        with self.assertRaisesRegex(TransportError, "ended too early"):
            list(stream(good))
        with self.assertRaisesRegex(TransportError, "not JSON"):
            list(stream(b"data: {\n\n"))
        with self.assertRaisesRegex(APIError, "all is lost") as caught:
            list(stream(b'data: {"error": {"message": "all is lost", "code": "engine_died"}}\n\n'))
        self.assertEqual((caught.exception.status, caught.exception.code), (0, "engine_died"))

    def test_arguments_that_cannot_be(self) -> None:
        for url in ["localhost:11116", "ftp://localhost", "http://", "http://localhost:99999"]:
            with self.subTest(url), self.assertRaises(ValueError):
                Client(url)
        for parameters in [{"n": 2}, {"stream": True}]:
            with self.subTest(parameters), self.assertRaisesRegex(ValueError, "Client"):
                client.complete(PROMPT, **parameters)  # type: ignore[arg-type]
        self.assertTrue(issubclass(APIError, BenchError) and issubclass(TransportError, BenchError))


if __name__ == "__main__":
    unittest.main()
