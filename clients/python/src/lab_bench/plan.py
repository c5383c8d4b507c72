"""What a request reads and changes: the objects of `lab` as the server has them (docs/lab.md), as typed dictionaries.

A plain dictionary with the same keys is as good. Arrays may stand wherever the server takes numbers. What is wrong
with a plan the server says.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, TypedDict, Union

from .arrays import Array

#: `last`, `all`, `prompt`, `answer`, or positions; below 0 from the end of the prompt.
Positions = Union[str, Sequence[int], Array]
#: Id of a stored vector, a row of numbers, or rows of them, one for each position.
Vector = Union[str, Sequence[float], Sequence[Sequence[float]], Array]
#: Id or text of a token.
TokenName = Union[int, str]


class Capture(TypedDict, total=False):
    """A value that is read."""

    point: str
    positions: Positions
    #: `none`, `mean`, `max`, `norm` or `top_k`.
    reduce: str
    k: int
    #: `f32` or `f16`.
    dtype: str
    #: Id of a stored sparse autoencoder whose features are wanted.
    sae: str


class Edit(TypedDict, total=False):
    """A value that is changed. `lab_bench.edits` has a function for each `op`."""

    point: str
    op: str
    positions: Positions
    #: `prompt`, `answer` or `always`.
    when: str
    #: Only where one of these tokens is read.
    tokens: Sequence[TokenName]
    vector: Vector
    heads: Sequence[int]
    neurons: Sequence[int]
    experts: Sequence[int]
    scale: float
    low: float
    high: float
    norm_match: bool
    sae: str
    feature: int


class Lens(TypedDict, total=False):
    """Next-token predictions from the hidden state after layers (logit lens)."""

    layers: Sequence[int]
    positions: Positions
    top_k: int
    targets: Sequence[TokenName]
    #: Id of the stored translators of a tuned lens.
    translator: str


class AttributionPlan(TypedDict, total=False):
    """The token whose logit is split among `layers`, `slots` or `heads` (direct logit attribution)."""

    of: TokenName
    to: str
    positions: Positions


class Lab(TypedDict, total=False):
    """All that a request reads and changes. `output` (`inline`, `artifact`) and `format` (`safetensors`, `npz`) say
    how values come; the client reads each of them."""

    captures: Sequence[Capture]
    edits: Sequence[Edit]
    lens: Lens
    attribution: AttributionPlan
    output: str
    format: str


def capture(
    point: str,
    positions: Optional[Positions] = None,
    *,
    reduce: Optional[str] = None,
    k: Optional[int] = None,
    dtype: Optional[str] = None,
    sae: Optional[str] = None,
) -> Capture:
    """A value that is read, by its point or a pattern of points. Without `positions` it is read at the last token of the
    prompt."""
    own = {"point": point, "positions": positions, "reduce": reduce, "k": k, "dtype": dtype, "sae": sae}
    return stated(own)  # type: ignore[return-value]


def stated(fields: Dict[str, Any]) -> Dict[str, Any]:
    """The fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


def lab_of(
    captures: Sequence[Union[str, Capture]],
    edits: Sequence[Edit],
    lens: Union[Lens, bool, None],
    attribution: Union[AttributionPlan, TokenName, None],
    lab: Optional[Lab],
) -> Lab:
    """The object of a request: `lab`, with what the other arguments state in place of what it has."""
    read: List[Capture] = [capture(one) if isinstance(one, str) else one for one in captures]
    if isinstance(attribution, (int, str)):
        attribution = {"of": attribution}
    if isinstance(lens, bool):
        lens = {} if lens else None
    own = {"captures": read or None, "edits": list(edits) or None, "lens": lens, "attribution": attribution}
    return {**(lab or {}), **stated(own)}  # type: ignore[typeddict-item]
