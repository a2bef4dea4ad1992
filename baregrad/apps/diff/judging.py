"""What is looked at in a graph, and when two arrays differ by more than their dtype lets them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from baregrad.dtypes import DType, decode, dtypes, finfo
from baregrad.engine.reference import storage_of
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import MOVEMENT, Ops

Array = np.ndarray[Any, Any]
# A sum of many products may differ by so many units in the last place of its largest result, as it
# is added up; one that is rounded to a narrower float by one more of those, and by one for each
# such operation that it is made of, up to so many.
_UNITS = 1024
_MOST_ROUNDINGS = 16
# Values that only sums read, and that are larger than that, are looked at as the sum alone.
_LARGEST = 1 << 22
LEAVES = frozenset({
    Ops.PARAM, Ops.CONST, Ops.IOTA, Ops.VAR, Ops.SINK, Ops.CONTIGUOUS, Ops.COPY, *MOVEMENT,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class OpDifference:
    """An operation whose result differs, or is not finite: the op, the user's line, statistics.

    `within`: whether that is so only where it is computed in one kernel with what reads it.
    `script`: a program that shows it, "" where none does. `which`: which of the line's operations
    that look the same it is, counted from 1, and how many these are: a loop over layers has many.
    """

    op: str
    where: str
    told: str
    within: bool = False
    script: str = ""
    which: tuple[int, int] = (1, 1)

    def __str__(self) -> str:
        fused = "\n  only where it is computed together with what reads it" * self.within
        where = self.where or "a line that is not known"
        number, count = self.which
        if count > 1:
            where += f", number {number} of {count} such operations"
        return f"{self.op}\n  asked for at {where}\n  {self.told}{fused}"


def candidates(sink: Node) -> list[Node]:
    """Return the operations of a graph whose results are looked at, sources first."""
    order = toposort(sink)
    readers: dict[Node, list[Node]] = {}
    for node in order:
        for source in node.src:
            readers.setdefault(source, []).append(node)
    return [
        node for node in order
        if node.op not in LEAVES and node.shape is not None and node.dtype.storage is not None
        and not _only_summed(node, readers.get(node, [])) and not _is_tuple(node)
    ]  # fmt: skip


def _is_tuple(node: Node) -> bool:
    """Whether a node is several arrays, of which others are one each."""
    return node.op in (Ops.REDUCE, Ops.SCAN) and node.arg.monoid.arity > 1


def _only_summed(node: Node, readers: Sequence[Node]) -> bool:
    size = 1
    for extent in node.shape:
        size *= extent if isinstance(extent, int) else 1
    sums = bool(readers) and all(reader.op is Ops.REDUCE for reader in readers)
    return sums and size > _LARGEST


def nearest(node: Node, known: set[Node], leaves: frozenset[Any] = frozenset()) -> list[Node]:
    """Return the nearest of `known` that a node is made of, and the nearest of the ops `leaves`.

    Views, and what is not known, are looked through.
    """
    found: dict[Node, None] = {}
    open_ = list(node.src)
    while open_:
        one = open_.pop()
        if one in known or one.op in leaves:
            found[one] = None
        else:
            open_ += one.src
    return list(found)


def values_of(raw: Array, node: Node) -> Array:
    """Return a result's values as float64, or as the integers that they are."""
    data = decode(raw.view(np.uint8).view(storage_of(node.dtype)), node.dtype)
    return data.astype(np.float64) if node.dtype.is_float else data


def tolerances(sink: Node) -> Mapping[Node, float]:
    """Return how far results of a graph's nodes may be apart, by the largest magnitude of each.

    That is by what the dtypes of the operations between the parameters and a node let them differ.
    """
    found: dict[Node, float] = {}
    units: dict[Node, tuple[float, float, int]] = {}
    for node in toposort(sink):
        below = [units[one] for one in node.src]
        wide, narrow, count = (max(values, default=0) for values in zip(*below, strict=True)) if (
            below) else (0.0, 0.0, 0)  # fmt: skip
        if node.dtype.is_float and node.op not in LEAVES:
            own = float(finfo(node.dtype).eps)
            accumulated = min(own, float(finfo(dtypes.float32).eps))
            wide = max(wide, accumulated)
            if own > accumulated:
                narrow, count = max(narrow, own), count + 1
        units[node] = (wide, narrow, count)
        found[node] = _UNITS * wide + (1 + min(count, _MOST_ROUNDINGS)) * narrow
    return found


def magnitude(node: Node) -> Node | None:
    """Return the sum of the magnitudes that a node adds up, None for what adds up no floats.

    A sum is rounded by the size of what is added, however little is left of it.
    """
    is_sum = node.op in (Ops.REDUCE, Ops.SCAN) and node.arg.monoid.primitive is Ops.ADD
    if not is_sum or not node.dtype.is_float:
        return None
    return Node(node.op, node.dtype, (_abs(node.src[0]), *node.src[1:]), node.arg)


def _abs(node: Node) -> Node:
    return Node(Ops.ABS, node.dtype, (node,))


def largest(values: Array) -> float:
    """Return the largest magnitude among values, those that are not finite aside."""
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))


def difference(
    dtype: DType, found: Array, wanted: Array, tolerance: float, scale: float = 0.0
) -> str:
    """Say how two arrays of a dtype differ, "" where they do not by more than the tolerance.

    tolerance: by the largest magnitude of the array, or by `scale` where that is larger. Integers
    must be equal, and what is not finite must be so in both.
    """
    count = found.size
    if wanted.size != count:
        return f"{count} values here, {wanted.size} there"
    found, wanted = found.reshape(-1), wanted.reshape(-1)
    if not count or not dtype.is_float:
        bad = found != wanted
        bound: float = 0
    else:
        finite = np.isfinite(wanted) & np.isfinite(found)
        bound = max(float(np.abs(wanted[finite]).max(initial=0.0)), scale) * tolerance
        with np.errstate(invalid="ignore"):
            far = np.abs(found - wanted) > bound
        same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
        bad = np.where(finite, far, ~same)
    if not bad.any():
        return ""
    with np.errstate(invalid="ignore"):
        apart = np.where(bad, np.abs(found.astype(np.float64) - wanted.astype(np.float64)), -1.0)
    worst = int(np.nanargmax(np.where(np.isnan(apart), np.inf, apart)))
    return (
        f"{int(bad.sum())} of {count} differ by more than {bound:.3g}, most at {worst}: "
        f"{found[worst]} here, {wanted[worst]} there"
    )
