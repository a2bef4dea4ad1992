"""The candidates of a kernel as lines: what each is likely to take, and what a search measured."""

from __future__ import annotations

from collections.abc import Iterable

from baregrad.base.bits import human_seconds
from baregrad.engine.search.records import SearchRecord, row_digest
from baregrad.ir.core.digest import digest
from baregrad.ir.core.node import Node
from baregrad.kernel.search import candidates
from baregrad.target import AnyTarget

SHOWN = 12


def candidate_lines(
    kernel: Node, target: AnyTarget, threads: int, records: Iterable[SearchRecord]
) -> list[str]:
    """The likely best candidates of a kernel, the first schedule first, and what others took.

    records: of searches, whichever compiler they were made with; the last one of this kernel on
    this target, with so many threads, is shown.
    """
    key = digest(kernel), row_digest(target, threads)
    measured: dict[str, float] = {}
    for record in records:
        if (record.kernel, record.target) == key:
            measured = dict(record.measured)
    found = candidates(kernel, target)
    lines = ["candidates", f"  {'predicted':>9}  {'measured':>9}"]
    for each in found[:SHOWN]:
        lines.append(_line(each.predicted_ns, measured.pop(each.what, None), each.what))
    lines += [_line(None, ns, what) for what, ns in measured.items()]
    if len(found) > SHOWN:
        lines.append(f"  and {len(found) - SHOWN} more")
    return lines


def _line(predicted_ns: float | None, measured_ns: float | None, what: str) -> str:
    shown = ["" if ns is None else human_seconds(ns / 1e9) for ns in (predicted_ns, measured_ns)]
    return f"  {shown[0]:>9}  {shown[1]:>9}  {what}"
