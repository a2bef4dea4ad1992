"""First schedules for machines somewhat unlike the one at hand: where a search starts from.

The heuristics are functions of the machine's row. A row with narrower vectors, fewer registers,
other caches or more cores makes them decide otherwise, in ways that fit together as single changes
of a schedule seldom do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from baregrad.base.errors import BaregradError
from baregrad.ir.core.node import Node
from baregrad.kernel.facts.analysis import facts_of
from baregrad.kernel.language.schedule import Schedule
from baregrad.kernel.loops.sharing import prepare
from baregrad.kernel.planning.first_schedule import choose_schedule
from baregrad.kernel.search.mutate import Move, is_legal
from baregrad.target import AnyTarget


def seeds(kernel: Node, target: AnyTarget) -> Iterator[Move]:
    """Schedules of the heuristics, the target's own first; each once, all legal on the target."""
    facts = facts_of(prepare(kernel, target))
    seen: set[Schedule] = set()
    for row, what in ((target, "the first schedule"), *_rows(target)):
        try:
            schedule = choose_schedule(kernel, row)
        except BaregradError:
            continue
        if schedule not in seen and is_legal(facts, schedule, target):
            seen.add(schedule)
            yield Move(schedule, what)


def _rows(target: AnyTarget) -> Iterator[tuple[AnyTarget, str]]:
    if target.kind == "gpu":
        return
    for share in (2, 4):
        if target.vector_bytes // share >= 16:
            yield replace(target, vector_bytes=target.vector_bytes // share), f"vectors 1/{share}"
    few = max(target.vector_registers // 2, 8)
    yield replace(target, vector_registers=few), "half the registers"
    yield replace(target, vector_registers=target.vector_registers * 3 // 4), "fewer registers"
    yield replace(target, vector_registers=target.vector_registers + 4), "more registers"
    for factor in (0.25, 0.5, 2.0, 4.0):
        yield replace(target, l2_bytes=int(target.l2_bytes * factor)), f"{factor} of the L2 cache"
    for factor in (0.5, 2.0):
        yield replace(target, l1_bytes=int(target.l1_bytes * factor)), f"{factor} of the L1 cache"
    for cores in (1, 4 * target.cores, 16 * target.cores):
        if cores != target.cores:
            yield replace(target, cores=cores), f"{cores} cores"
    yield replace(target, fma_latency=target.fma_latency * 2), "a slow sum"
    narrow = replace(target, vector_bytes=max(target.vector_bytes // 2, 16), vector_registers=16)
    yield replace(narrow, masks=False), "another machine"
