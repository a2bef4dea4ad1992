"""Where the first NaN or infinity is born.

An infinity that the program itself gives, as masks do, is none that was born: it is told of only
where a NaN comes of it, or where arithmetic carries it into a result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from baregrad.apps.diff.judging import Array, nearest
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops

_GIVEN = frozenset({Ops.CONST, Ops.PARAM})
# What hands values on as they are.
_CHOICES = frozenset({Ops.WHERE, Ops.CAST, Ops.GATHER, Ops.SCATTER, Ops.MAX, Ops.MIN})


@dataclass(frozen=True, slots=True)
class _Broken:
    """Whether an array has a NaN, and whether it has an infinity."""

    nan: bool
    infinite: bool


def is_broken(values: Array) -> bool:
    """Whether an array has values that are not finite."""
    return values.dtype.kind == "f" and not np.isfinite(values).all()


def broken_text(values: Array) -> str:
    """Say what an array has that is not finite."""
    nan, infinite = int(np.isnan(values).sum()), int(np.isinf(values).sum())
    first = int(np.argmin(np.isfinite(values)))
    return f"{nan} NaN and {infinite} infinite of {values.size}, the first at {first}"


def birth(
    order: Sequence[Node], values: Mapping[Node, Array], results: Sequence[Node]
) -> tuple[Node, str] | None:
    """Return the node at which the first NaN or infinity is born, and what is to be said of it.

    order: the operations that were looked at, sources first. values: of them, and of the PARAMs and
    CONSTs that they read. results: what the program asks for.
    """
    known = set(order)
    broken = {
        node: _Broken(bool(np.isnan(data).any()), bool(np.isinf(data).any()))
        for node, data in values.items() if data.dtype.kind == "f"
    }  # fmt: skip
    fine = _Broken(nan=False, infinite=False)
    carried: set[Node] = set()
    entry: dict[Node, Node] = {}
    for node in order:
        own = broken.get(node, fine)
        sources = nearest(node, known, _GIVEN)
        below = [broken.get(one, fine) for one in sources]
        from_nan, from_infinite = any(one.nan for one in below), any(one.infinite for one in below)
        if own.nan and not from_nan:
            return node, broken_text(values[node]) + _given(from_infinite)
        if own.nan and any(one.op in _GIVEN and broken.get(one, fine).nan for one in sources):
            return node, broken_text(values[node]) + ", from an array that it was given"
        if own.infinite and not from_infinite and not from_nan:
            return node, broken_text(values[node])
        if own.infinite:
            first = next((entry[one] for one in sources if one in entry), node)
            entry[node] = first
            if node.op not in _CHOICES or any(one in carried for one in sources):
                carried.add(node)
    for result in results:
        for node in [result] if result in known else nearest(result, known):
            if node in carried and broken.get(node, fine).infinite:
                told = broken_text(values[entry[node]])
                return entry[node], f"{told}, given by the program, and a result has it"
    return None


def _given(infinite: bool) -> str:
    return ", of an infinity that the program gives" * infinite
