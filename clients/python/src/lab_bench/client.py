"""The client: one HTTP request for each call, by Python's own `http.client`. Threads may share a client."""

from __future__ import annotations

import base64
import http.client
import json
import os
from collections.abc import Sequence as SequenceABC
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union
from urllib.parse import quote, urlencode, urlsplit

import numpy as np

from . import results
from .arrays import Array, Arrays, load, pack
from .errors import APIError, BenchError, TransportError
from .plan import AttributionPlan, Capture, Edit, Lab, Lens, Positions, TokenName, Vector, lab_of, stated
from .results import Artifact, Grid, Point, Result, Stored

#: Where `bench serve` listens.
DEFAULT_URL = "http://127.0.0.1:11116"

#: A text or token ids.
Prompt = Union[str, Sequence[int], Array]
#: Messages of a conversation, or the text of one user message.
Messages = Union[str, Sequence[Mapping[str, Any]]]


class Client:
    """A server (`bench serve`), and a model of it."""

    def __init__(
        self,
        url: Optional[str] = None,
        *,
        api_key: Optional[str] = None,
        model: Optional[str] = None,
        timeout: float = 600.0,
    ) -> None:
        """
        Args:
            url: Address of the server; default: the variable BENCH_URL of the environment, or that of `bench serve`.
            api_key: One of its keys, if it has any; default: the variable BENCH_API_KEY.
            model: Name of the model; default: the one that the server gives to requests without a name.
            timeout: Seconds that the server may send nothing.
        """
        self.url = (url or os.environ.get("BENCH_URL") or DEFAULT_URL).rstrip("/")
        self.api_key = api_key or os.environ.get("BENCH_API_KEY")
        self.model = model
        self.timeout = timeout
        self._address = urlsplit(self.url)
        # Reading the port checks it.
        _ = self._address.port
        if self._address.scheme not in ("http", "https") or not self._address.hostname:
            raise ValueError(f"url: found {self.url!r}, expected http://HOST:PORT or https://HOST:PORT")
        self.artifacts = Artifacts(self)
        self.vectors = Vectors(self)

    # What a model has.

    def points(self) -> List[Point]:
        """The values of the model that have a name."""
        query = f"?{urlencode({'model': self.model})}" if self.model else ""
        return [results.point(one) for one in self.request("GET", f"/v1/lab/points{query}")["data"]]

    def tokenize(self, text: str, *, add_special_tokens: bool = True) -> Tuple[List[int], List[str]]:
        """Ids and texts of the tokens of a prompt."""
        body = {"prompt": text, "add_special_tokens": add_special_tokens, "return_token_strs": True}
        found = self._post("/tokenize", body)
        return found["tokens"], found["token_strs"]

    # What a request reads and changes.

    def run(
        self,
        prompt: Prompt,
        *,
        captures: Sequence[Union[str, Capture]] = (),
        edits: Sequence[Edit] = (),
        lens: Union[Lens, bool, None] = None,
        attribution: Union[AttributionPlan, TokenName, None] = None,
        lab: Optional[Lab] = None,
        **parameters: Any,
    ) -> Result:
        """Reads a prompt and generates nothing, unless `max_tokens` is given.

        Args:
            prompt: A text or token ids.
            captures: Points or patterns of points that are read at the last token, or what `capture` gives.
            edits: What is changed; `lab_bench.edits` has a function for each operation.
            lens: The logit lens; `True` for all layers at the last token.
            attribution: The token whose logit is split, by its id or text, or the whole object.
            lab: The object as the server has it, with further fields (`output`, `format`).
            parameters: Further fields of the request, such as `max_tokens` and `temperature`.
        """
        plan = lab_of(captures, edits, lens, attribution, lab)
        found = self._post("/v1/lab/run", {"prompt": prompt, "lab": plan, **_one(parameters)})
        choice = found["results"][0]
        return results.result(choice, choice["text"], found, self.artifacts.load)

    def complete(
        self,
        prompt: Prompt,
        *,
        captures: Sequence[Union[str, Capture]] = (),
        edits: Sequence[Edit] = (),
        lens: Union[Lens, bool, None] = None,
        attribution: Union[AttributionPlan, TokenName, None] = None,
        lab: Optional[Lab] = None,
        **parameters: Any,
    ) -> Result:
        """Continues a text (`/v1/completions`). Arguments are those of `run`."""
        body = {"prompt": prompt, **_one(parameters)}
        plan = lab_of(captures, edits, lens, attribution, lab)
        found = self._post("/v1/completions", {**body, "lab": plan} if plan else body)
        choice = found["choices"][0]
        return results.result(choice, choice["text"], found, self.artifacts.load)

    def chat(
        self,
        messages: Messages,
        *,
        captures: Sequence[Union[str, Capture]] = (),
        edits: Sequence[Edit] = (),
        lens: Union[Lens, bool, None] = None,
        attribution: Union[AttributionPlan, TokenName, None] = None,
        lab: Optional[Lab] = None,
        **parameters: Any,
    ) -> Result:
        """Answers a conversation (`/v1/chat/completions`). Further arguments are those of `run`.

        `Result.raw` has the whole message, with calls of tools and reasoning.
        """
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        body = {"messages": list(messages), **_one(parameters)}
        plan = lab_of(captures, edits, lens, attribution, lab)
        found = self._post("/v1/chat/completions", {**body, "lab": plan} if plan else body)
        choice = found["choices"][0]
        return results.result(choice, choice["message"].get("content") or "", found, self.artifacts.load)

    def patch(
        self,
        clean: Prompt,
        corrupt: Prompt,
        *,
        token: TokenName,
        against: Optional[TokenName] = None,
        points: Optional[Sequence[str]] = None,
        positions: Optional[Positions] = None,
    ) -> Grid:
        """Runs `corrupt` once for each point and position with the value that `clean` has there (causal tracing).

        Args:
            clean: The prompt from which values come.
            corrupt: The prompt that is run, of as many tokens.
            token: The token that is measured after the last one: its log-probability.
            against: With it the measure is the logit of `token` less that of `against`.
            points: Points or patterns of points; default: the hidden state after every layer.
            positions: Positions, each a column of the grid, or `all` for one column; default: those of the prompt.
        """
        metric = stated({"token": token, "against": against})
        body = {"clean": clean, "corrupt": corrupt, "metric": metric, "points": points, "positions": positions}
        return results.grid(self._post("/v1/lab/patch", stated(body)))

    # The protocol.

    def request(self, method: str, path: str, body: Optional[Mapping[str, Any]] = None) -> Any:
        """Any other request of the API: the JSON that the server answers. Arrays in `body` may stand for numbers."""
        answer = self._bytes(method, path, body)
        try:
            return json.loads(answer)
        except ValueError as error:
            raise TransportError(f"{method} {self.url}{path}: the answer is not JSON: {error}") from error

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[Dict[str, Any]]:
        """The events of a request with `"stream": true`, such as to `/v1/chat/completions`, as they come."""
        place = f"POST {self.url}{path}"
        with self._answer("POST", path, {**self._named(body), "stream": True}) as response:
            for line in response:
                if not line.startswith(b"data:"):
                    continue
                data = line[len(b"data:") :].strip()
                if data == b"[DONE]":
                    return
                try:
                    event = json.loads(data)
                except ValueError as error:
                    raise TransportError(f"{place}: an event is not JSON: {error}") from error
                if isinstance(event, dict) and isinstance(event.get("error"), dict):
                    raise _refusal(0, event["error"])
                yield event
        raise TransportError(f"{place}: the stream ended too early")

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        return self.request("POST", path, self._named(body))

    def _named(self, body: Mapping[str, Any]) -> Dict[str, Any]:
        """The body, with the model's name unless it has one."""
        return {"model": self.model, **body} if self.model else dict(body)

    def _bytes(self, method: str, path: str, body: Optional[Mapping[str, Any]] = None) -> bytes:
        with self._answer(method, path, body) as response:
            return response.read()

    @contextmanager
    def _answer(
        self, method: str, path: str, body: Optional[Mapping[str, Any]]
    ) -> Iterator[http.client.HTTPResponse]:
        """Sends a request and gives its response. What fails while it is read is an error of this package too."""
        address, place = self._address, f"{method} {self.url}{path}"
        headers = {"Accept": "application/json"}
        data = None
        if body is not None:
            data = json.dumps(body, default=_plain).encode()
            headers["Content-Type"] = "application/json"
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        secure = address.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(address.hostname or "", address.port, timeout=self.timeout)
        try:
            cut: Optional[OSError] = None
            try:
                connection.request(method, address.path + path, data, headers)
            except (BrokenPipeError, ConnectionResetError) as error:
                # A body that is refused is not read to its end, and the answer says why.
                cut = error
            try:
                answer = connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                raise cut or error
            with answer as response:
                if not 200 <= response.status < 300:
                    raise _fault(response, place)
                yield response
        except (OSError, http.client.HTTPException) as error:
            raise TransportError(f"{place}: {str(error) or type(error).__name__}") from error
        finally:
            connection.close()


class Artifacts:
    """Files of values that the server keeps for a time. Results that come as a file are read without a call."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def list(self) -> List[Artifact]:
        """All of them."""
        return [results.artifact(one) for one in self._client.request("GET", "/v1/lab/artifacts")["data"]]

    def read(self, id: str) -> bytes:
        """The file itself."""
        return self._client._bytes("GET", f"/v1/lab/artifacts/{quote(id, safe='')}")

    def load(self, id: str) -> Arrays:
        """The arrays of a file, with its metadata."""
        return load(self.read(id))

    def remove(self, id: str) -> None:
        """Removes a file."""
        self._client.request("DELETE", f"/v1/lab/artifacts/{quote(id, safe='')}")


class Vectors:
    """Vectors that the server keeps until it ends: edits, captures and lenses name them by their id."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def list(self) -> List[Stored]:
        """All of them."""
        return [results.stored(one) for one in self._client.request("GET", "/v1/lab/vectors")["data"]]

    def add(
        self,
        id: str,
        vectors: Union[Vector, Mapping[int, Vector], Mapping[str, Vector], bytes, str, "os.PathLike[str]"],
    ) -> Stored:
        """Keeps vectors under an id of letters, digits, `-` and `_`.

        Args:
            id: Their id; what it named before is replaced.
            vectors: One vector for every point, a dictionary of vectors by layers or points, or a file: its bytes or
                its path (control vector, directions, sparse autoencoder or translators).
        """
        body: Dict[str, Any] = {"id": id}
        if isinstance(vectors, (str, os.PathLike)):
            with open(vectors, "rb") as file:
                vectors = file.read()
        if isinstance(vectors, bytes):
            body["file"] = base64.b64encode(vectors).decode("ascii")
        elif isinstance(vectors, Mapping):
            body["vectors"] = {str(name): np.asarray(one, np.float32) for name, one in vectors.items()}
        else:
            body["vector"] = np.asarray(vectors, np.float32)
        return results.stored(self._client.request("POST", "/v1/lab/vectors", body))

    def remove(self, id: str) -> None:
        """Removes what a request has sent."""
        self._client.request("DELETE", f"/v1/lab/vectors/{quote(id, safe='')}")


def _one(parameters: Dict[str, Any]) -> Dict[str, Any]:
    """Parameters of a request for one result."""
    if parameters.get("stream"):
        raise ValueError("stream: use Client.stream")
    if parameters.get("n") not in (None, 1):
        raise ValueError("n: found more than 1; use Client.request for several results")
    return parameters


def _plain(value: Any) -> Any:
    """What JSON has in place of NumPy's objects: whole numbers as lists, others as an object with base64."""
    if isinstance(value, np.ndarray):
        return value.tolist() if value.dtype.kind in "iu" else pack(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, SequenceABC):
        return list(value)
    raise TypeError(f"found {type(value).__name__}, expected what JSON has or a NumPy array")


def _fault(response: http.client.HTTPResponse, place: str) -> BenchError:
    """The error of a response whose status says that there is one."""
    try:
        fault = json.loads(response.read())["error"]
    except (ValueError, LookupError, TypeError):
        fault = None
    if isinstance(fault, dict):
        return _refusal(response.status, fault)
    return TransportError(f"{place}: status {response.status} {response.reason}")


def _refusal(status: int, fault: Mapping[str, Any]) -> APIError:
    message = str(fault.get("message") or "no message")
    return APIError(status, message, fault.get("type"), fault.get("code"), fault.get("param"))
