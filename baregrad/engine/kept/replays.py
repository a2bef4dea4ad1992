"""Replays on disk: the captured work of a function, for processes that come after.

What is saved are plans, and which of a replay's arrays each of their buffers is: one of its inputs,
which a later process has of its own, or what the work itself makes. Like a plan it is text, never a
pickle: a broken file raises FileFormatError and runs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from baregrad.base.errors import FileFormatError, ShapeError
from baregrad.dtypes import dtypes
from baregrad.engine.backends import CompiledBackend
from baregrad.engine.canonical import Canonical, unbind
from baregrad.engine.capture import Replay, ReplayWork, is_plain
from baregrad.engine.executor import Executable
from baregrad.engine.kept.plans import plan_from_bytes, plan_to_bytes
from baregrad.engine.session import Run, Session
from baregrad.ir.core.attrs import BufferRef
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.ir.core.requirements import Requirement
from baregrad.ir.text.dump import dump
from baregrad.ir.text.parse import parse
from baregrad.runtime.buffers import Buffer
from baregrad.schedule import Plan


class Wanted(NamedTuple):
    """Who wants a saved replay: where, and the inputs that it is to have, in their order."""

    session: Session
    backend: CompiledBackend
    inputs: Sequence[BufferRef]


def replay_to_text(replay: Replay) -> str | None:
    """The saved form of a replay, None for one that only this process can run.

    That is one whose work lies on several devices, is no command list, or reads arrays that are
    neither inputs nor its own.
    """
    work = replay.work
    backends = {run.backend.name for run in work.runs}
    if len(backends) != 1 or not all(isinstance(run.executable, Executable) for run in work.runs):
        return None
    numbers: dict[int, int] = {}
    for ref in work.inputs:
        numbers.setdefault(id(ref.handle), len(numbers))
    if len(numbers) < len(work.inputs):
        return None
    made: list[tuple[int, Any]] = []
    nodes: dict[Node, int] = {}

    def put(item: Dim) -> int | list[int]:
        return [nodes.setdefault(item, len(nodes))] if isinstance(item, Node) else item

    runs = []
    for run in work.runs:
        program = run.program
        if any(id(ref.handle) not in numbers for ref in program.inputs):
            return None
        for ref in run.outputs:
            if id(ref.handle) not in numbers:
                numbers[id(ref.handle)] = len(numbers)
                made.append((ref.handle.nbytes, list(ref.shape)))
        runs.append({
            "plan": plan_to_bytes(run.executable.plan).decode(),
            "inputs": [numbers[id(ref.handle)] for ref in program.inputs],
            "outputs": [numbers[id(ref.handle)] for ref in run.outputs],
            "variables": {
                name: value for name, value in program.variables.items()
                if name not in work.variables
            },
        })  # fmt: skip
    used = [each for pair in work.updates for each in pair]
    used += [ref.handle for ref in work.outputs]
    if any(id(handle) not in numbers for handle in used):
        return None
    table = {
        "runs": runs, "made": made,
        "in_place": [(numbers[new], numbers[id(old)]) for new, old in work.in_place.items()],
        "outputs": [numbers[id(ref.handle)] for ref in work.outputs],
        "updates": [(numbers[id(new)], numbers[id(old)]) for new, old in work.updates],
        "kept": sorted(numbers[place] for place in work.kept if place in numbers),
        "shapes": [[put(extent) for extent in unbind(shape, {})] for shape in work.shapes],
        "asked": [(one.what, put(one.left), put(one.right), one.equal) for one in work.asked],
        "variables": sorted(work.variables),
    }  # fmt: skip
    text = dump(Node(Ops.SINK, dtypes.token, tuple(nodes)))
    return json.dumps([text, table], separators=(",", ":"))


def replay_from_text(text: str, wanted: Wanted) -> Replay:
    """The replay that `replay_to_text` saved. Raises FileFormatError for anything else."""
    try:
        dims, table = json.loads(text)
        return Replay.of(wanted.session, _work(wanted, parse(dims).src, table))
    except (ValueError, TypeError, KeyError, IndexError, RecursionError, ShapeError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(
            f"a saved replay is malformed ({error})", hint="delete it; it will be made again"
        ) from error


def _work(wanted: Wanted, nodes: Sequence[Node], table: dict[str, Any]) -> ReplayWork:
    """The work that a table describes, over the inputs that somebody wants it for."""
    device = wanted.backend.name

    def take(item: Any) -> Any:
        return nodes[item[0]] if isinstance(item, list) else int(item)

    plans = [plan_from_bytes(run["plan"].encode()) for run in table["runs"]]
    stays = _staying(plans, table)
    refs = list(wanted.inputs)
    for nbytes, shape in table["made"]:
        # What each call makes anew has no memory yet: it only has to be told from the others.
        size = int(nbytes) if len(refs) in stays else 0
        handle = wanted.backend.device.allocate(size)
        refs.append(BufferRef(handle, tuple(map(int, shape)), device))
    handles: list[Buffer] = [ref.handle for ref in refs]
    runs = []
    for plan, run in zip(plans, table["runs"], strict=True):
        inputs = tuple([refs[place] for place in run["inputs"]])
        if len(plan.outputs) != len(run["outputs"]):
            raise ValueError("a run has other results than its plan")
        if any(one.kind == "param" and one.slot >= len(inputs) for one in plan.buffers):
            raise ValueError("a run has fewer inputs than its plan")
        values = {str(name): int(value) for name, value in run["variables"].items()}
        sink = Node(Ops.SINK, dtypes.token, ())
        executable = Executable(plan, wanted.backend.device, wanted.backend.compiler)
        outputs = tuple([refs[place] for place in run["outputs"]])
        runs.append(Run(wanted.backend, executable, Canonical(sink, inputs, values, {}), outputs))
    return ReplayWork(
        runs, {id(handles[new]): handles[old] for new, old in table["in_place"]},
        wanted.inputs, [refs[place] for place in table["outputs"]],
        [(handles[new], handles[old]) for new, old in table["updates"]],
        {id(handles[place]) for place in table["kept"]},
        [tuple(map(take, shape)) for shape in table["shapes"]],
        [Requirement(str(what), take(left), take(right), bool(equal))
         for what, left, right, equal in table["asked"]],
        [str(name) for name in table["variables"]],
    )  # fmt: skip


def _staying(plans: Sequence[Plan], table: dict[str, Any]) -> set[int]:
    """The numbers of arrays that the work makes and that stay in one place from call to call."""
    results, moved = {*table["outputs"]}, {new for new, _ in table["in_place"]}
    found: set[int] = set()
    for plan, run in zip(plans, table["runs"], strict=True):
        for index, place in zip(plan.outputs, run["outputs"], strict=True):
            nbytes = plan.buffers[index].nbytes
            if place not in results and place not in moved and is_plain((nbytes,)):
                found.add(place)
    return found
