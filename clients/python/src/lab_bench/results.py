"""What the server gives, with arrays in place of base64. Shapes have the slowest dimension first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import numpy as np

from .arrays import Array, Arrays, unpack


@dataclass(frozen=True)
class Point:
    """A value of the model that has a name."""

    #: Its name, such as `layers.3.attn.heads`.
    path: str
    #: Its other names, with those of TransformerLens.
    aliases: List[str]
    #: Dimensions for one token, the slowest first; `None` is one that grows with the text.
    shape: Tuple[Optional[int], ...]
    dtype: str
    meaning: str
    #: What an edit may select of a row: `heads`, `neurons`, `experts` or nothing.
    parts: Optional[str]
    editable: bool
    capturable: bool
    #: `image` or `audio` of a value of a tower.
    tower: Optional[str] = None


@dataclass(frozen=True)
class Captured:
    """A value that was read."""

    #: The name by which it was asked for; of a pattern that of the point.
    point: str
    #: Positions of the tokens, one for each row. None of a value of a tower, which has the rows of a medium.
    positions: Array
    #: [positions, dimensions of the point]; without the first dimension for `mean` and `max`.
    values: Array
    #: How rows were reduced: `none`, `mean`, `max`, `norm`, `top_k`.
    reduce: str
    #: With `top_k` and for features: the places of `values` in their row, of the same shape.
    indices: Optional[Array] = None
    #: Id of the sparse autoencoder, if these are features.
    sae: Optional[str] = None
    #: Of a value of a tower: the index of the picture or sound among those of the prompt.
    medium: Optional[int] = None


@dataclass(frozen=True)
class Token:
    """A token with its natural log-probability."""

    id: int
    text: str
    logprob: float


@dataclass(frozen=True)
class Target(Token):
    """A token that was asked for. The most probable one has rank 1."""

    rank: int


@dataclass(frozen=True)
class LensRow:
    """What the hidden state after a layer predicts at a position."""

    point: str
    position: int
    #: Most probable tokens, in descending order.
    top: List[Token]
    targets: List[Target]


@dataclass(frozen=True)
class Attribution:
    """The logit of a token, split. `values.sum(1) + constants` is `logits`."""

    #: The token: its id and text.
    id: int
    text: str
    #: Names of the parts.
    parts: List[str]
    #: Positions after which the token would come.
    positions: Array
    #: [positions, parts]
    values: Array
    #: [positions]
    constants: Array
    #: [positions]
    logits: Array


@dataclass(frozen=True)
class Artifact:
    """A file of values on the server."""

    id: str
    #: `safetensors` or `npz`.
    format: str
    bytes: int
    #: Seconds since 1970.
    created: int
    expires: int


@dataclass(frozen=True)
class Stored:
    """Vectors on the server."""

    id: str
    #: `directions`, `sae` or `translators`.
    kind: str
    bytes: int
    tensors: int
    #: Whether they come from `bench serve --lab-vectors`.
    given: bool


@dataclass(frozen=True)
class Result:
    """What a request gave: text, and the values that it asked for."""

    text: str
    finish_reason: Optional[str]
    captures: List[Captured] = field(default_factory=list)
    lens: List[LensRow] = field(default_factory=list)
    attribution: Optional[Attribution] = None
    #: The file that had the values, if they did not come within the response.
    artifact: Optional[Artifact] = None
    #: Token ids of the prompt; of `Client.run` only.
    tokens: List[int] = field(default_factory=list)
    #: The response as it came.
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __getitem__(self, point: str) -> Array:
        """Values that were captured at a point, by the name by which it was asked for; the first of several."""
        for captured in self.captures:
            if captured.point == point:
                return captured.values
        raise KeyError(f"{point}; captured: {', '.join(one.point for one in self.captures) or 'nothing'}")


@dataclass(frozen=True)
class Grid:
    """Runs of one prompt, each with a value of another (causal tracing)."""

    #: Names of the rows.
    points: List[str]
    #: The positions of each column.
    positions: List[List[int]]
    #: The measure of each run: [points, columns].
    values: Array
    #: The same with 0 for the corrupt prompt and 1 for the clean one; NaN where both have the same measure.
    effects: Array
    #: The measure of the clean prompt.
    clean: float
    #: The measure of the corrupt prompt.
    corrupt: float
    clean_tokens: List[int]
    corrupt_tokens: List[int]


def _known(kind: Any, found: Mapping[str, Any]) -> Any:
    """The fields of a class that a response has: later servers may add others."""
    return kind(**{name: found[name] for name in kind.__dataclass_fields__ if name in found})


def point(found: Mapping[str, Any]) -> Point:
    shape = tuple(reversed(found["shape"]))
    made: Point = _known(Point, {**found, "shape": shape})
    return made


def artifact(found: Mapping[str, Any]) -> Artifact:
    made: Artifact = _known(Artifact, found)
    return made


def stored(found: Mapping[str, Any]) -> Stored:
    made: Stored = _known(Stored, found)
    return made


def grid(found: Mapping[str, Any]) -> Grid:
    return Grid(
        points=found["points"],
        positions=found["positions"],
        values=np.asarray(found["values"], np.float64),
        effects=np.asarray(found["effects"], np.float64),
        clean=found["clean"],
        corrupt=found["corrupt"],
        clean_tokens=found["tokens"]["clean"],
        corrupt_tokens=found["tokens"]["corrupt"],
    )


def result(
    choice: Mapping[str, Any],
    text: str,
    raw: Mapping[str, Any],
    fetch: Callable[[str], Arrays],
) -> Result:
    """The result of a choice. `fetch` reads the artifact of an id."""
    lab = choice.get("lab") or {}
    # A file that could not be written has an error in place of an id; the values are in the response then.
    kept = artifact(lab["artifact"]) if "id" in lab.get("artifact", {}) else None
    arrays: Dict[str, Array] = fetch(kept.id) if kept else {}
    return Result(
        text=text,
        finish_reason=choice.get("finish_reason"),
        captures=[_captured(one, arrays) for one in lab.get("captures", [])],
        lens=[row for one in lab.get("lens", []) for row in _lens_rows(one)],
        attribution=_attribution(lab["attribution"]) if lab.get("attribution") else None,
        artifact=kept,
        tokens=raw.get("tokens", []),
        raw=raw,
    )


def _captured(found: Mapping[str, Any], arrays: Mapping[str, Array]) -> Captured:
    if "tensor" in found:
        values = arrays[found["tensor"]]
        indices = arrays[found["indices_tensor"]] if "indices_tensor" in found else None
    else:
        values = unpack(found)
        indices = np.asarray(found["indices"], np.int32).reshape(values.shape) if "indices" in found else None
    return Captured(
        point=found["point"],
        positions=np.asarray(found.get("positions", []), np.int64),
        values=values,
        reduce=found["reduce"],
        indices=indices,
        sae=found.get("sae"),
        medium=found.get("medium"),
    )


def _token(found: Mapping[str, Any]) -> Dict[str, Any]:
    # A probability of 0 has no logarithm that JSON could write.
    logprob = found["logprob"]
    return {"id": found["id"], "text": found["token"], "logprob": -np.inf if logprob is None else logprob}


def _lens_rows(found: Mapping[str, Any]) -> List[LensRow]:
    return [
        LensRow(
            point=found["point"],
            position=row["position"],
            top=[Token(**_token(one)) for one in row["top"]],
            targets=[Target(rank=one["rank"], **_token(one)) for one in row["targets"]],
        )
        for row in found["rows"]
    ]


def _attribution(found: Mapping[str, Any]) -> Attribution:
    rows = found["rows"]
    return Attribution(
        id=found["of"]["id"],
        text=found["of"]["token"],
        parts=found["parts"],
        positions=np.asarray([row["position"] for row in rows], np.int64),
        values=np.asarray([row["values"] for row in rows], np.float64).reshape(len(rows), len(found["parts"])),
        constants=np.asarray([row["constant"] for row in rows], np.float64),
        logits=np.asarray([row["logit"] for row in rows], np.float64),
    )
