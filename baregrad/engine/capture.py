"""Capture and replay: the runs of a function as one command list, submitted once a call.

Capture watches a session. Every run inside it is executed as usual and noted; `build` then records
all of them into one list. A buffer of the list is one of four things: an argument (patched at each
call), a result (allocated fresh at each call), state that the function keeps (fixed, updated in
place), or an intermediate (fixed, kept by the replay).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from baregrad.base.errors import JitError
from baregrad.base.options import options
from baregrad.engine.canonical import unbound_requirements
from baregrad.engine.executor import Executable
from baregrad.engine.launch import launch_expr
from baregrad.engine.report import print_commands
from baregrad.engine.session import Run, Session, current_session
from baregrad.ir.core.attrs import BufferRef
from baregrad.ir.core.node import Node
from baregrad.ir.core.requirements import Requirement, noting
from baregrad.program import evaluate
from baregrad.runtime.buffers import Buffer
from baregrad.runtime.commands import CommandList, Operand, Slot
from baregrad.runtime.interface import Device
from baregrad.schedule import Plan


class Capture:
    """Notes what a session runs, uploads and downloads inside a `with` block.

    What was realised before is computed anew if it is asked for: a replay reads arrays, not the
    values that expressions happened to have.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.runs: list[Run] = []
        self.uploads: list[tuple[BufferRef, bytes]] = []
        self._asked: dict[Node, None] = {}

    def __enter__(self) -> Capture:
        self.session.watching.uploads.append(self._uploaded)
        self.session.watching.downloads.append(self._downloaded)
        self._held = ExitStack()
        self._held.enter_context(self.session.watching.observing(self.runs.append))
        self._held.enter_context(self.session.isolated())
        self._held.enter_context(noting(self._asked))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._held.__exit__(kind, error, trace)
        self.session.watching.uploads.remove(self._uploaded)
        self.session.watching.downloads.remove(self._downloaded)

    def _uploaded(self, ref: BufferRef, data: np.ndarray[Any, Any]) -> None:
        self.uploads.append((ref, data.tobytes()))

    def _downloaded(self, ref: BufferRef) -> None:
        raise JitError(
            "a jitted function read a tensor's values (numpy(), item(), print, or an if on one): "
            "a replay would use the old ones",
            hint="return the tensor and read it outside, or use where()",
        )

    def requirements(self, variables: Collection[str]) -> list[Requirement]:
        """What values of these variables must satisfy for the function to run as it did.

        That is of all that it made, not of what was computed alone: what is refused where nobody
        reads it, or where it has no elements, is refused in a replay too.
        """
        made = [one for node in self._asked for one in unbound_requirements(node)]
        run = [one for run in self.runs for one in run.program.requirements]
        return [one for one in dict.fromkeys((*made, *run)) if one.variables() <= {*variables}]

    def reads(self) -> list[BufferRef]:
        """The arrays that the runs read and none of them wrote before, in first-use order."""
        written: set[int] = set()
        found: dict[int, BufferRef] = {}
        for run in self.runs:
            for ref in run.program.inputs:
                if id(ref.handle) not in written:
                    found.setdefault(id(ref.handle), ref)
            written.update(id(ref.handle) for ref in run.outputs)
        return list(found.values())

    def own(self) -> set[int]:
        """The ids of the handles of what was made inside: by a run, or from host data."""
        return made_by(self.runs) | {id(ref.handle) for ref, _ in self.uploads}


def made_by(capture_runs: Sequence[Run]) -> set[int]:
    """The ids of the handles that the runs allocated, or wrote in place."""
    found: set[int] = set()
    for run in capture_runs:
        plan = run.executable.plan if isinstance(run.executable, Executable) else None
        written = set() if plan is None else _written(plan)
        for position, ref in enumerate(run.outputs):
            if plan is None or plan.outputs[position] in written:
                found.add(id(ref.handle))
    return found


def _written(plan: Plan) -> set[int]:
    """The plan's buffers that hold something new after a run; empty ones count as such."""
    found = {i for i, buffer in enumerate(plan.buffers) if buffer.kind == "output"}
    for step in plan.steps:
        found.update(step.buffers[place] for place in step.writes)
    return found


def copies_of_others(
    capture: Capture, refs: Sequence[BufferRef], kept: Collection[int]
) -> dict[int, Buffer]:
    """Fresh copies, by the id of their handle, of those among `refs` that are another's.

    That is what no run made, and what lies where state is kept (ids of handles).
    """
    own = made_by(capture.runs).difference(kept)
    return {id(ref.handle): _twin(ref.handle) for ref in refs if id(ref.handle) not in own}


def _twin(source: Buffer) -> Buffer:
    return source.device.duplicate(source)


class ReplayWork(NamedTuple):
    """What a replay does, as `Replay` has it, once it is known what is written where state lies.

    in_place: by the id of a new value's handle where it is written. asked: what values of the
    variables have to satisfy.
    """

    runs: Sequence[Run]
    in_place: Mapping[int, Buffer]
    inputs: Sequence[BufferRef]
    outputs: Sequence[BufferRef]
    updates: Sequence[tuple[Buffer, Buffer]]
    kept: Collection[int]
    shapes: Sequence[tuple[Any, ...]]
    asked: Sequence[Requirement]
    variables: Collection[str]


class Replay:
    """The captured runs over other arguments.

    inputs: the arrays that were arguments at capture. outputs: those that must be fresh at each
    call. updates: (new, kept) pairs of handles; after each call `kept` has what was `new` in the
    captured one. kept: the ids of the handles of all state, be it updated so or in place. seen:
    those of arrays that something else reads, which replays keep up to date. shapes: those of the
    outputs, symbolic where the captured call's were. variables: what calls give values.
    """

    def __init__(
        self,
        capture: Capture,
        inputs: Sequence[BufferRef],
        outputs: Sequence[BufferRef],
        updates: Sequence[tuple[Buffer, Buffer]],
        kept: Collection[int],
        seen: Collection[int],
        shapes: Sequence[tuple[Any, ...]],
        variables: Collection[str],
    ) -> None:
        from baregrad.engine.in_place import written_in_place

        result = {id(ref.handle) for ref in outputs}
        # By the ids of their handles, where new values of state are written at once.
        runs, in_place = written_in_place(capture.runs, updates, result, seen)
        asked = capture.requirements(variables)
        self._prepare(
            capture.session,
            ReplayWork(runs, in_place, inputs, outputs, updates, kept, shapes, asked, variables),
        )

    @classmethod
    def of(cls, session: Session, work: ReplayWork) -> Replay:
        """The replay of work that was captured before, perhaps by another process."""
        self = object.__new__(cls)
        self._prepare(session, work)
        return self

    def _prepare(self, session: Session, work: ReplayWork) -> None:
        """Sort the buffers of the work, and record it."""
        self.work = work
        self.runs, self.in_place = work.runs, work.in_place
        self.inputs = tuple(work.inputs)
        self.outputs = tuple(work.outputs)
        self.updates = tuple(work.updates)
        self._position = {id(ref.handle): i for i, ref in enumerate(self.inputs)}
        self._fresh: list[tuple[Run, int, int]] = []  # run, plan buffer, id of captured handle
        self._result = {id(ref.handle) for ref in self.outputs}
        made = made_by(self.runs)
        # Results that no run makes: copies of what was read, taken before anything is changed.
        unmade = (ref.handle for ref in self.outputs if id(ref.handle) not in made)
        self._unmade = list(dict.fromkeys(unmade))
        # Results that lie where state is: copies taken last, before other state is updated.
        late = (ref.handle for ref in self.outputs if id(ref.handle) in made)
        self._late = [handle for handle in dict.fromkeys(late) if id(handle) in work.kept]
        devices = [ref.device for ref in self.outputs]
        self._forms = list(zip(work.shapes, devices, strict=True))
        self._is_symbolic = any(not is_plain(shape) for shape, _ in self._forms)
        # Whether DEBUG asks for a line a kernel; what is not run takes no time.
        self._is_reported = bool(
            self.runs and options.debug >= 1 and self.runs[0].backend.device.name != "NULL"
        )
        self._variables = frozenset(work.variables)
        self._requirements = [
            (one, launch_expr(one.left), launch_expr(one.right)) for one in work.asked
        ]
        self._list: CommandList | None = None
        self._arena: Buffer | None = None
        # Those of the unmade that the list copies.
        self._copied: list[Buffer] = []
        # Who copies on a device where runs are no lists.
        self._players: dict[str, Any] = {}
        device = self._recording_device(session)
        if device is not None:
            self._record(device)

    # --- recording
    # -----------------------------------------------------------------------------------

    def _recording_device(self, session: Session) -> Device | None:
        """The device whose list a call submits, None where runs are no lists."""
        if self.runs:
            programs = [run.executable for run in self.runs]
            recorded = all(isinstance(one, Executable) and one.is_recordable for one in programs)
            return self.runs[0].backend.device if recorded else None
        devices = {ref.device for ref in self.outputs}
        if len(devices) != 1:
            return None
        backend = session.backend(devices.pop())
        return backend.device if backend.compiles else None

    def _record(self, device: Device) -> None:
        commands = device.command_list()
        self._number_fresh()
        nbytes = max(
            (run.executable.arena_nbytes(run.program.variables) for run in self.runs), default=0
        )
        self._arena = device.allocate(nbytes) if nbytes else None
        if not self._is_symbolic:
            # They have one size, and nothing was changed yet.
            self._copied = [
                one for one in self._unmade if one.device is device and one.nbytes
            ]
            self._unmade = [one for one in self._unmade if one not in self._copied]
        first = len(self.inputs) + len(self._fresh) + len(self._late)
        for slot, handle in enumerate(self._copied, first):
            commands.copy(Slot(slot), self._place(handle), handle.nbytes)
        for run in self.runs:
            where = partial(current_session().where, run.program)
            run.executable.record(commands, self._resolver(run), self._bound(run), where)
        for slot, handle in enumerate(self._late, len(self.inputs) + len(self._fresh)):
            commands.copy(Slot(slot), self._place(handle), handle.nbytes)
        self._record_updates(commands)
        self._list = commands
        self._has_work = len(commands) > 0
        self._used = len(commands.slot_nbytes)
        self._lay_out_table()

    def _lay_out_table(self) -> None:
        """Say what follows the inputs in a call's table of buffers, and where results lie in it.

        That is fresh memory, the first of it in slots of the list, of the sizes in `_sizes`; then
        copies of what no run makes; then what is the same at every call.
        """
        self._sizes = [run.executable.size(index) for run, index, _ in self._fresh]
        self._sizes += [handle.nbytes for handle in (*self._late, *self._copied)]
        places = self._slots | self._position
        end = len(self.inputs) + len(self._fresh)
        copies = (*self._late, *self._copied, *self._unmade)
        places |= {id(handle): i for i, handle in enumerate(copies, end)}
        end += len(copies)
        self._same: list[Buffer] = []
        for ref in self.outputs:
            if places.setdefault(id(ref.handle), end) == end:
                self._same.append(ref.handle)
                end += 1
        self._places = [places[id(ref.handle)] for ref in self.outputs]

    def _number_fresh(self) -> None:
        """Give a slot to each array that every call must allocate: results and symbolic sizes."""
        self._slots: dict[int, int] = {}
        for run in self.runs:
            plan = run.executable.plan
            for index, ref in zip(plan.outputs, run.outputs, strict=True):
                buffer = plan.buffers[index]
                key = id(ref.handle)
                if buffer.kind != "output" or key in self._slots or key in self._position:
                    continue
                symbolic = not isinstance(buffer.nbytes, int)
                if key in self._result or symbolic:
                    self._slots[key] = len(self.inputs) + len(self._fresh)
                    self._fresh.append((run, index, key))

    def _bound(self, run: Run) -> dict[str, int]:
        """The variables that the function bound itself: they are the same at every call."""
        given = self._variables
        return {k: value for k, value in run.program.variables.items() if k not in given}

    def _resolver(self, run: Run) -> Any:
        plan = run.executable.plan
        written = dict(zip(plan.outputs, run.outputs, strict=True))

        def resolve(index: int) -> Operand:
            buffer = plan.buffers[index]
            if buffer.kind == "temp":
                assert self._arena is not None
                return self._arena.view(buffer.offset, self._arena.nbytes - buffer.offset)
            ref = run.program.inputs[buffer.slot] if buffer.kind == "param" else written[index]
            return self._place(ref.handle)

        return resolve

    def _place(self, handle: Buffer) -> Operand:
        handle = self.in_place.get(id(handle), handle)
        key = id(handle)
        if key in self._position:
            return Slot(self._position[key])
        if key in self._slots:
            return Slot(self._slots[key])
        return handle

    def _record_updates(self, commands: CommandList) -> None:
        """Copy changed state back; through temporaries where a source is itself overwritten."""
        targets = {id(kept) for _, kept in self.updates}
        sources: list[Operand] = []
        # Several states may become one new value, which lies where one of them does.
        updates = [
            (changed, kept) for changed, kept in self.updates
            if self.in_place.get(id(changed)) is not kept
        ]
        for changed, kept in updates:
            source: Operand = self._place(changed)
            if id(changed) in targets:
                held = changed.device.allocate(kept.nbytes)
                commands.copy(held, source, kept.nbytes)
                source = held
            sources.append(source)
        for source, (_, kept) in zip(sources, updates, strict=True):
            commands.copy(self._place(kept), source, kept.nbytes)

    # --- replaying
    # -----------------------------------------------------------------------------------

    def __call__(
        self,
        inputs: Sequence[Buffer],
        variables: Mapping[str, int],
        spare: Mapping[int, Buffer],
    ) -> list[Buffer]:
        """Run over other arguments: where each result lies now, in the order of `outputs`.

        `spare` gives memory, by the number that `slot_of` says, for results that are not to get
        fresh memory. Raises ShapeError for values of variables that do not fit.
        """
        for asked, left, right in self._requirements:
            asked.check(evaluate(left, variables), evaluate(right, variables))
        copies: list[Buffer] = []
        if self._unmade:
            copies = [_twin(self._now(handle, inputs)) for handle in self._unmade]
        commands = self._list
        if commands is None:
            return self._reexecute(inputs, variables, copies)
        device = commands.device
        table = [*inputs]
        for slot, size in enumerate(self._sizes):
            buffer = spare.get(slot)
            if buffer is None:
                nbytes = size if isinstance(size, int) else evaluate(size, variables)
                buffer = device.allocate(nbytes)
            table.append(buffer)
        if self._has_work:
            self._submit(commands, table[: self._used], variables)
        table += copies
        table += self._same
        return list(map(table.__getitem__, self._places))

    def takes_buffers_alone(self, count: int) -> bool:
        """Whether all that a call does is to submit the list over `count` buffers."""
        if self._list is None or self._unmade or self._same or not self._has_work:
            return False
        return self._used == count == len(self.inputs) + len(self._sizes)

    def submit(self, table: list[Buffer]) -> None:
        """Run over the inputs and the fresh results in `table`, where that is all."""
        commands = self._list
        assert commands is not None
        if self._is_reported:
            self._submit(commands, table, {})
        else:
            commands.device.submit(commands, table)

    def _submit(
        self, commands: CommandList, table: list[Buffer], variables: Mapping[str, int]
    ) -> None:
        timeline = commands.device.submit(commands, table, variables, timed=self._is_reported)
        if self._is_reported:
            print_commands(commands, timeline, variables)

    def fresh(self, position: int) -> BufferRef:
        """New memory for a result whose number is its position's, to be given to `submit`."""
        commands = self._list
        assert commands is not None
        handle = commands.device.allocate(self._sizes[position])
        shape, device = self._forms[position]
        return BufferRef(handle, shape, device)

    def slot_of(self, position: int) -> int:
        """The number of a result's fresh memory, -1 for one without memory of one size."""
        if self._list is not None:
            slot = self._places[position] - len(self.inputs)
            if 0 <= slot < len(self._sizes) and isinstance(self._sizes[slot], int):
                return slot
        return -1

    def ref(self, position: int, handle: Buffer, variables: Mapping[str, int]) -> BufferRef:
        """A call's result, which lies in `handle`."""
        shape, device = self._forms[position]
        if self._is_symbolic:
            shape = Session.concrete(shape, variables)
        return BufferRef(handle, shape, device)

    def _now(self, handle: Buffer, inputs: Sequence[Buffer]) -> Buffer:
        place = self._position.get(id(handle))
        return handle if place is None else inputs[place]

    def _reexecute(
        self,
        inputs: Sequence[Buffer],
        variables: Mapping[str, int],
        copies: list[Buffer],
    ) -> list[Buffer]:
        """Replay where runs are no command lists: one after the other, as they were captured."""
        from baregrad.engine.control.works import AtOnce

        copied = {id(handle): copy for handle, copy in zip(self._unmade, copies, strict=True)}
        table: dict[int, Buffer] = {key: inputs[place] for key, place in self._position.items()}
        for run in self.runs:
            refs = tuple(
                ref._replace(handle=table.get(id(ref.handle), ref.handle))
                for ref in run.program.inputs
            )
            bound = {**self._bound(run), **variables}
            program = replace(run.program, inputs=refs, variables=bound)
            results = run.backend.execute(run.executable, program, None)
            player = self._players.setdefault(run.backend.name, AtOnce(run.backend, {}, None))
            for ref, buffer in zip(run.outputs, results, strict=True):
                fixed = id(ref.handle) not in self._result and id(ref.handle) not in self._position
                if fixed and buffer.nbytes == ref.handle.nbytes:
                    # Others may hold this array (a gradient, say): it keeps its place.
                    player.copy(ref.handle, buffer, buffer.nbytes)
                else:
                    table[id(ref.handle)] = buffer
        for handle in self._late:
            copied[id(handle)] = _twin(table.get(id(handle), handle))
        updates = [
            (table.get(id(changed), changed).contents(), table.get(id(kept), kept))
            for changed, kept in self.updates
        ]
        for data, kept in updates:
            kept.device.copy_in(kept, data)
        table |= copied
        return [table.get(id(ref.handle), ref.handle) for ref in self.outputs]


def is_plain(shape: tuple[Any, ...]) -> bool:
    """Whether no extent is symbolic."""
    return all(isinstance(extent, int) for extent in shape)
