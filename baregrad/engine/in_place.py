"""State that runs write where it lies: which new values need no memory of their own in a replay.

A captured call computes a new value beside the old one, since something outside of it may still
read that. In a replay only the runs read it, and those are known.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from baregrad.engine.executor import Executable
from baregrad.engine.session import Run
from baregrad.ir.core.attrs import BufferRef
from baregrad.runtime.buffers import Buffer

Update = tuple[Buffer, Buffer]  # a new value, and where the old one lies


def written_in_place(
    runs: Sequence[Run], updates: Sequence[Update], results: set[int], seen: Collection[int]
) -> tuple[tuple[Run, ...], dict[int, Buffer]]:
    """The runs as a replay has them, and by the id of a new value's handle where it is written.

    That is where the old value lies, if nothing reads it after the new one was written, and if the
    same kernel may read the one and write the other. results: the ids of the handles of what is
    read after the runs. seen: those of new values that something else reads where they are.
    """
    made: dict[int, tuple[int, int]] = {}  # run and position
    last: dict[int, int] = {}  # the last run that reads or writes it
    for number, run in enumerate(runs):
        for position, ref in enumerate(run.outputs):
            if _is_fresh(run, position, ref):
                made.setdefault(id(ref.handle), (number, position))
            last[id(ref.handle)] = number
        for ref in run.program.inputs:
            last[id(ref.handle)] = number
    found: dict[int, Buffer] = {}
    slots: list[dict[int, int]] = [{} for _ in runs]
    old = {id(kept) for _, kept in updates}
    # Where an old value becomes that of other state, at the end.
    moved = {id(changed) for changed, _ in updates}
    for changed, kept in updates:
        key = id(changed)
        if key not in made or key in found or key in old or key in seen:
            continue
        if key in results or id(kept) in results or id(kept) in moved:
            continue
        number, position = made[key]
        latest = last.get(id(kept), -1)
        if latest > number or changed.nbytes != kept.nbytes:
            continue
        if latest == number:
            slot = _slot_written_over(runs[number], position, kept)
            if slot is None:
                continue
            slots[number][position] = slot
        found[key] = kept
    return tuple(map(_rewritten, runs, slots)), found


def _is_fresh(run: Run, position: int, ref: BufferRef) -> bool:
    """Whether a run wrote a result into memory of its own, of a size that is always the same."""
    if not isinstance(run.executable, Executable):
        return False
    plan = run.executable.plan
    buffer = plan.buffers[plan.outputs[position]]
    return buffer.kind == "output" and isinstance(buffer.nbytes, int)


def _slot_written_over(run: Run, position: int, kept: Buffer) -> int | None:
    """The argument over which a run may write a result, if that is what lies in `kept`."""
    plan = run.executable.plan
    places = [slot for slot, ref in enumerate(run.program.inputs) if ref.handle is kept]
    for output, param in plan.over:
        if output == plan.outputs[position] and [plan.buffers[param].slot] == places:
            return places[0]
    return None


def _rewritten(run: Run, slots: dict[int, int]) -> Run:
    if not slots:
        return run
    executable: Any = run.executable.written_over(slots)
    return Run(run.backend, executable, run.program, run.outputs)
