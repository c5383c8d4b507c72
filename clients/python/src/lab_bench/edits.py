"""One function for each way of changing a value (`op`). Each gives an `Edit`, a dictionary as the server has it.

All take `positions` (default: all of them), `when` (`prompt`, `answer` or `always`) and `tokens` (ids or texts of
tokens: only where one of them is read). `heads`, `neurons` or `experts` select parts of a row; its other elements
stay as they are.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence

from .plan import Edit, Positions, TokenName, Vector, stated

_Parts = Optional[Sequence[int]]
_Tokens = Optional[Sequence[TokenName]]


def _edit(op: str, point: str, **fields: Any) -> Edit:
    return stated({"point": point, "op": op, **fields})  # type: ignore[return-value]


def add(
    point: str,
    vector: Vector,
    scale: Optional[float] = None,
    *,
    norm_match: Optional[bool] = None,
    positions: Optional[Positions] = None,
    when: Optional[str] = None,
    tokens: _Tokens = None,
    heads: _Parts = None,
    neurons: _Parts = None,
) -> Edit:
    """Adds `scale * vector` (steering). With `norm_match` the vector is first made as long as the row."""
    return _edit(
        "add",
        point,
        vector=vector,
        scale=scale,
        norm_match=norm_match,
        positions=positions,
        when=when,
        tokens=tokens,
        heads=heads,
        neurons=neurons,
    )


def set_to(
    point: str,
    vector: Vector,
    *,
    positions: Optional[Positions] = None,
    when: Optional[str] = None,
    tokens: _Tokens = None,
    heads: _Parts = None,
    neurons: _Parts = None,
) -> Edit:
    """Replaces the row by `vector`: a mean (mean ablation), or rows of another run with their positions (patching)."""
    return _edit(
        "set",
        point,
        vector=vector,
        positions=positions,
        when=when,
        tokens=tokens,
        heads=heads,
        neurons=neurons,
    )


def scale(
    point: str,
    factor: float,
    *,
    positions: Optional[Positions] = None,
    when: Optional[str] = None,
    tokens: _Tokens = None,
    heads: _Parts = None,
    neurons: _Parts = None,
    experts: _Parts = None,
) -> Edit:
    """Multiplies the row by `factor`."""
    return _edit(
        "scale",
        point,
        scale=factor,
        positions=positions,
        when=when,
        tokens=tokens,
        heads=heads,
        neurons=neurons,
        experts=experts,
    )


def zero(
    point: str,
    *,
    positions: Optional[Positions] = None,
    when: Optional[str] = None,
    tokens: _Tokens = None,
    heads: _Parts = None,
    neurons: _Parts = None,
    experts: _Parts = None,
) -> Edit:
    """Sets the row, or the selected parts of it, to 0 (ablation)."""
    return _edit(
        "zero",
        point,
        positions=positions,
        when=when,
        tokens=tokens,
        heads=heads,
        neurons=neurons,
        experts=experts,
    )


def project_out(
    point: str,
    vector: Vector,
    scale: Optional[float] = None,
    *,
    positions: Optional[Positions] = None,
    when: Optional[str] = None,
    tokens: _Tokens = None,
    heads: _Parts = None,
    neurons: _Parts = None,
) -> Edit:
    """Removes the share `scale` (default: all) of what lies along `vector`."""
    return _edit(
        "project_out",
        point,
        vector=vector,
        scale=scale,
        positions=positions,
        when=when,
        tokens=tokens,
        heads=heads,
        neurons=neurons,
    )


def clamp(
    point: str,
    low: Optional[float] = None,
    high: Optional[float] = None,
    *,
    positions: Optional[Positions] = None,
    when: Optional[str] = None,
    tokens: _Tokens = None,
    heads: _Parts = None,
    neurons: _Parts = None,
) -> Edit:
    """Bounds each element by `low` and `high`."""
    return _edit(
        "clamp",
        point,
        low=low,
        high=high,
        positions=positions,
        when=when,
        tokens=tokens,
        heads=heads,
        neurons=neurons,
    )


def add_feature(
    point: str,
    sae: str,
    feature: int,
    scale: Optional[float] = None,
    *,
    positions: Optional[Positions] = None,
    when: Optional[str] = None,
    tokens: _Tokens = None,
) -> Edit:
    """Adds the direction of a feature of a stored sparse autoencoder, times `scale`."""
    return _edit("add", point, sae=sae, feature=feature, scale=scale, positions=positions, when=when, tokens=tokens)


def clamp_feature(
    point: str,
    sae: str,
    feature: int,
    low: Optional[float] = None,
    high: Optional[float] = None,
    *,
    positions: Optional[Positions] = None,
    when: Optional[str] = None,
    tokens: _Tokens = None,
) -> Edit:
    """Bounds a feature of a stored sparse autoencoder; the same number twice sets it."""
    return _edit(
        "clamp",
        point,
        sae=sae,
        feature=feature,
        low=low,
        high=high,
        positions=positions,
        when=when,
        tokens=tokens,
    )


def skip(
    point: str,
    *,
    positions: Optional[Positions] = None,
    when: Optional[str] = None,
    tokens: _Tokens = None,
) -> Edit:
    """Leaves a layer out. `point` is the hidden state after it, such as `layers.3.out`."""
    return _edit("skip", point, positions=positions, when=when, tokens=tokens)


def exclude(
    point: str,
    experts: Sequence[int],
    *,
    positions: Optional[Positions] = None,
    when: Optional[str] = None,
    tokens: _Tokens = None,
) -> Edit:
    """Experts that are never picked. `point` is a ranking, such as `layers.*.ffn.ranking`."""
    return _edit("exclude", point, experts=experts, positions=positions, when=when, tokens=tokens)


def force(
    point: str,
    experts: Sequence[int],
    *,
    positions: Optional[Positions] = None,
    when: Optional[str] = None,
    tokens: _Tokens = None,
) -> Edit:
    """Experts that are always picked. `point` is a ranking, such as `layers.*.ffn.ranking`."""
    return _edit("force", point, experts=experts, positions=positions, when=when, tokens=tokens)
