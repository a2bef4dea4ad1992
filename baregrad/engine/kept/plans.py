"""Plans on disk: what a program was planned as, for processes that come after.

A plan is saved as the text of its nodes and a table of numbers, never as a pickle: a broken file
raises FileFormatError and runs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from baregrad.assemble.cache import DiskCache, key_of, source_fingerprint
from baregrad.base.errors import FileFormatError, ShapeError
from baregrad.dtypes import dtypes
from baregrad.engine.canonical import Canonical
from baregrad.engine.compiler import Compiler
from baregrad.ir.core.digest import whole_digest
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.ir.text.dump import dump
from baregrad.ir.text.parse import dtype_name, dtypes_by_name, parse
from baregrad.schedule import Launch, Plan, PlannedBuffer

# Nodes of a program whose plan is worth a file: any, as a process whose plans all lie there need
# not import what plans.
KEPT_FROM = 1
# What makes plans, beside what compiles their kernels.
_PLANNING = ("graph", "schedule", "engine/plans", "engine/kept")


class KeptPlans:
    """The plans of one compiler's programs in its cache on disk, if it has one."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler

    @property
    def _cache(self) -> DiskCache | None:
        return self._compiler.cache

    def key(self, program: Canonical, donated: Mapping[int, int]) -> str | None:
        """The key of a program's plan, None where none is kept."""
        if self._cache is None or len(program.made) < KEPT_FROM:
            return None
        taken = json.dumps(sorted(donated.items()))
        return key_of("plan-2", self.environment, whole_digest(program.order()), taken)

    def find(self, key: str) -> Plan | None:
        """The plan of a key, without what explains it."""
        assert self._cache is not None
        saved = self._cache.get(key)
        try:
            return None if saved is None else plan_from_bytes(saved)
        except FileFormatError:
            # Whole, as its checksum says, but not ours: it is made anew.
            return None

    def keep(self, key: str, plan: Plan) -> None:
        """Save a plan under its key."""
        assert self._cache is not None
        self._cache.put(key, plan_to_bytes(plan))

    @cached_property
    def environment(self) -> str:
        """Everything but the program that decides what a plan is."""
        return f"{self._compiler.environment}|{source_fingerprint(_PLANNING)}"


def plan_to_bytes(plan: Plan) -> bytes:
    """The saved form of a plan, without its decisions and origins."""
    nodes: dict[Node, int] = {}

    def put(item: Dim) -> int | list[int]:
        return [nodes.setdefault(item, len(nodes))] if isinstance(item, Node) else item

    steps = [
        (
            put(step.kernel), step.buffers, step.writes,
            None if step.part is None else (put(step.part[0]), step.part[1]),
        )
        for step in plan.steps
    ]  # fmt: skip
    buffers = [
        (
            one.kind, dtype_name(one.dtype), [put(extent) for extent in one.shape],
            put(one.nbytes), one.slot, one.offset,
        )
        for one in plan.buffers
    ]  # fmt: skip
    table = {
        "steps": steps, "buffers": buffers, "outputs": plan.outputs,
        "arena": put(plan.arena_nbytes), "over": plan.over,
    }  # fmt: skip
    text = dump(Node(Ops.SINK, dtypes.token, tuple(nodes)))
    return json.dumps([text, table], separators=(",", ":")).encode()


def plan_from_bytes(data: bytes) -> Plan:
    """The plan that `plan_to_bytes` saved. Raises FileFormatError for anything else."""
    try:
        text, table = json.loads(data)
        nodes = parse(text).src
        kinds = dtypes_by_name()

        def take(item: Any) -> Any:
            return nodes[item[0]] if isinstance(item, list) else int(item)

        buffers = tuple([
            PlannedBuffer(
                str(kind), kinds[dtype], tuple(map(take, shape)), take(nbytes), int(slot), int(at)
            )
            for kind, dtype, shape, nbytes, slot, at in table["buffers"]
        ])  # fmt: skip
        steps = tuple([
            Launch(
                take(kernel), _ints(places), _ints(writes), (),
                None if part is None else (take(part[0]), _ints(part[1])),
            )
            for kernel, places, writes, part in table["steps"]
        ])  # fmt: skip
        over = tuple([(int(output), int(param)) for output, param in table["over"]])
        return Plan(buffers, steps, _ints(table["outputs"]), take(table["arena"]), over)
    except (ValueError, TypeError, KeyError, IndexError, RecursionError, ShapeError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(
            f"a saved plan is malformed ({error})", hint="delete it; it will be made again"
        ) from error


def _ints(items: Iterable[Any]) -> tuple[int, ...]:
    return tuple([int(item) for item in items])
