"""What is looked at in a graph, and when two arrays differ by more than their dtype lets them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from baregrad.dtypes import DType, decode, finfo
from baregrad.engine.reference import storage_of
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import MOVEMENT, Ops

Array = np.ndarray[Any, Any]
# A sum of many products may differ by so many units in the last place of its largest result.
_UNITS = 1024
# Values that only sums read, and that are larger than that, are looked at as the sum alone.
_LARGEST = 1 << 22
LEAVES = frozenset({
    Ops.PARAM, Ops.CONST, Ops.IOTA, Ops.VAR, Ops.SINK, Ops.CONTIGUOUS, Ops.COPY, *MOVEMENT,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class OpDifference:
    """An operation whose result differs, or is not finite: the op, the user's line, statistics.

    `within`: whether that is so only where it is computed in one kernel with what reads it.
    `script`: a program that shows it, "" where none does.
    """

    op: str
    where: str
    told: str
    within: bool = False
    script: str = ""

    def __str__(self) -> str:
        fused = "\n  only where it is computed together with what reads it" * self.within
        where = self.where or "a line that is not known"
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
        and not _only_summed(node, readers.get(node, []))
    ]  # fmt: skip


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


def difference(dtype: DType, found: Array, wanted: Array, tolerance: float | None) -> str:
    """Say how two arrays of a dtype differ, "" where they do not by more than the tolerance.

    Integers must be equal, and what is not finite must be so in both.
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
        scale = float(np.abs(wanted[finite]).max(initial=0.0))
        bound = scale * (_UNITS * float(finfo(dtype).eps) if tolerance is None else tolerance)
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
