"""The passes over tensor-level graphs, in order."""

from __future__ import annotations

from collections.abc import Iterator

from baregrad.base.options import options
from baregrad.graph.cleanup import CLEANUP
from baregrad.graph.constants import CONSTANTS
from baregrad.graph.folds import FOLDS, FOLDS_ON_GPU
from baregrad.graph.group_factors import (
    GROUP_FACTORS,
    OCTET_WARP_FACTORS,
    WARP_FACTORS,
    has_group_factors,
    has_octet_factors,
    has_warp_factors,
)
from baregrad.graph.onehot import ONE_HOT
from baregrad.graph.packed_windows import PACKED_WINDOWS, WALKED_WINDOWS, has_walks
from baregrad.graph.partials import PARTIALS
from baregrad.graph.partials_gpu import PARTIALS_ON_GPU
from baregrad.graph.reductions import REDUCTIONS
from baregrad.graph.scans import SCANS, SCANS_ON_GPU
from baregrad.graph.scatter_rows import SCATTER_ROWS
from baregrad.graph.scatters import SCATTER_PARTS, SCATTERS
from baregrad.graph.sorts import SORTS, SORTS_ON_GPU
from baregrad.graph.streams.passes import STREAMS, has_streams
from baregrad.graph.sums import SUMS
from baregrad.graph.taps.tap_columns import TAP_COLUMNS
from baregrad.graph.traced import Joined, Traced
from baregrad.graph.views import VIEWS
from baregrad.ir.algebra.passes import Pass
from baregrad.ir.core.node import Node, toposort
from baregrad.target import AnyTarget

_STEPS: tuple[Traced | Joined, ...] = (
    SORTS,
    CLEANUP,
    VIEWS,
    CONSTANTS,
    REDUCTIONS,
    SCATTERS,
    FOLDS,
    Joined((SUMS, ONE_HOT, PARTIALS)),
    SCANS,
)
_FIRST_OF_GPUS = (SORTS_ON_GPU, *_STEPS[1:-3], TAP_COLUMNS, FOLDS_ON_GPU)
_AFTER_SUMS = (SCATTER_ROWS, SCATTER_PARTS, SCANS_ON_GPU)
_LAST_OF_GPUS = (Joined((SUMS, ONE_HOT, PACKED_WINDOWS, PARTIALS_ON_GPU)), *_AFTER_SUMS)
_STEPS_OF_GPUS = (*_FIRST_OF_GPUS, *_LAST_OF_GPUS)
_STEPS_WITH_STREAMS = (*_FIRST_OF_GPUS, STREAMS, *_LAST_OF_GPUS)
_WITH_FACTORS = (*_FIRST_OF_GPUS, GROUP_FACTORS, STREAMS, *_LAST_OF_GPUS)
_WITH_WARP_FACTORS = (*_FIRST_OF_GPUS, WARP_FACTORS, STREAMS, *_LAST_OF_GPUS)
_WITH_OCTETS = (*_FIRST_OF_GPUS, OCTET_WARP_FACTORS, STREAMS, *_LAST_OF_GPUS)
_WITH_WALKS = (
    *_FIRST_OF_GPUS, GROUP_FACTORS, STREAMS,
    Joined((SUMS, ONE_HOT, WALKED_WINDOWS, PARTIALS_ON_GPU)), *_AFTER_SUMS,
)  # fmt: skip
# What is shown before the first pass.
INPUT = ("input", "what the user's code built")
passes: tuple[Pass, ...] = tuple(one.as_pass() for step in _STEPS for one in step.shown)


def _steps_for(target: AnyTarget | None) -> tuple[Traced | Joined, ...]:
    if target is None or target.kind != "gpu":
        return _STEPS
    steps = _STEPS_WITH_STREAMS if has_streams(target) else _STEPS_OF_GPUS
    if steps is not _STEPS_WITH_STREAMS:
        return steps
    if not has_group_factors(target):
        if has_octet_factors(target):
            return _WITH_OCTETS
        return _WITH_WARP_FACTORS if has_warp_factors(target) else steps
    return _WITH_WALKS if has_walks(target) else _WITH_FACTORS


def canonicalise(
    sink: Node,
    origins: dict[Node, Node] | None = None,
    target: AnyTarget | None = None,
    known: list[Node] | None = None,
) -> Node:
    """`sink` after every pass of this room; values and shapes stay the same.

    origins: receives, for each node that was rewritten on the way, the node of `sink` it stands
    for. target: the machine's row, a CPU's by default. known: what `toposort` says of `sink`, where
    the caller has that.
    """
    order: list[Node] = known or []
    for step in _steps_for(target):
        if not order or order[-1] is not sink:
            order = toposort(sink)
        changed: dict[Node, Node] = {}
        sink = step.walk(order, changed)
        if origins is not None:
            for old, made in changed.items():
                if made is not old and made not in origins:
                    origins[made] = origins.get(old, old)
            if options.notes_lines:
                _note_between(changed, origins, set(order))
    return sink


def _note_between(
    changed: dict[Node, Node], origins: dict[Node, Node], known: set[Node]
) -> None:
    """Let what lies below a changed node, and was not in the graph, stand for the same node."""
    for old, made in changed.items():
        for one in toposort(*made.src, enter=lambda below: below not in known):
            if one not in known:
                origins.setdefault(one, origins.get(old, old))
        known.add(made)


def replaced(sink: Node, target: AnyTarget | None = None) -> Iterator[tuple[str, Node, Node]]:
    """(pass, old, new) of each node that a pass replaces by another, to be shown.

    Nodes that only follow what their sources became are left out.
    """
    for step in _steps_for(target):
        for shown in step.shown:
            changed: dict[Node, Node] = {}
            sink = shown.rewrite(sink, changed)
            for old, new in changed.items():
                if (new.op, new.arg, len(new.src)) != (old.op, old.arg, len(old.src)):
                    yield shown.name, old, new


def stages(sink: Node, target: AnyTarget | None = None) -> Iterator[tuple[str, str, Node]]:
    """(name, why, result) of the graph that enters and of each pass, to be shown."""
    yield *INPUT, sink
    for step in _steps_for(target):
        for shown in step.shown:
            made = shown.as_pass()
            sink = made.run(sink)
            yield made.name, made.why, sink
