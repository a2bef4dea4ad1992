"""Loops and choices of a graph as programs: a body is planned once and run once a step.

A loop's carried values alternate between two places, the last of which is the result's, or stay
where they are if the plan of the body may write over them. Rows of what is stacked are read and
written where they lie. Where all steps are the same commands they can be recorded as one list;
else, as where the number of steps is symbolic or a condition is read, the host submits the body's
list once a step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from baregrad.base.bits import round_up
from baregrad.dtypes import dtypes
from baregrad.engine.canonical import Canonical
from baregrad.engine.control.texts import call_work
from baregrad.engine.control.works import (
    NOTHING,
    AtOnce,
    BodyWork,
    IntoList,
    Places,
    Player,
    Staged,
    part_of,
    plain_work,
)
from baregrad.engine.executor import Executable, Resolve, Where
from baregrad.engine.launch import launch_expr
from baregrad.ir.analysis.liveness import ALIGNMENT
from baregrad.ir.core.attrs import Choose, Param, Repeat, TextKernel
from baregrad.ir.core.control import no_gradient
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import CONTROL_MASK, Ops
from baregrad.program import LaunchExpr, evaluate
from baregrad.runtime.buffers import Buffer
from baregrad.runtime.commands import CommandList, Operand
from baregrad.schedule import Plan, PlannedBuffer
from baregrad.schedule.memory import nbytes_of

# A loop of more commands than this is not recorded: the list would take longer to make and more
# memory than its body's, submitted once a step.
MOST_COMMANDS = 1 << 14


def work_of(backend: Any, results: Sequence[Node]) -> BodyWork:
    """The work of a loop, a choice or a kernel of text, of which some results are wanted."""
    form = results[0].arg
    if isinstance(form, TextKernel):
        return call_work(backend, results)
    return ChoiceWork(backend, results) if isinstance(form, Choose) else LoopWork(backend, results)


def body_work(
    backend: Any, sink: Node, inputs: int, donated: Collection[int] = NOTHING
) -> BodyWork:
    """The work of a body, which may have loops in it."""
    if sink.mask & CONTROL_MASK:
        return Staged(backend, sink, inputs, work_of)
    return plain_work(backend, sink, donated)


class LoopWork:
    """A body that runs once a step."""

    over: frozenset[int] = frozenset()

    def __init__(self, backend: Any, results: Sequence[Node]) -> None:
        form: Repeat = results[0].arg
        if form.adjoint is not None:
            raise no_gradient()
        self.form, self.results = form, results
        self.count = len(results)
        values = results[0].src
        # Stacked are the results of steps that are wanted alone.
        roots, first = form.body.src, form.carried
        self._stacked = [node.arg.part for node in results
                         if first <= node.arg.part < len(roots)]
        wanted = [*roots[:first], *[roots[part] for part in self._stacked]]
        sink = Node(Ops.SINK, dtypes.token, tuple(wanted))
        self.body = body_work(backend, sink, len(values), range(first))
        self.length = None if form.length is None else launch_expr(form.length)
        self._rows = [_row_nbytes(x) for x in values[first : first + form.read]]
        self._made = [_nbytes(roots[part]) for part in self._stacked]
        self._carried = [_nbytes(root) for root in roots[:first]]
        self.is_fixed = (
            self.body.is_fixed and isinstance(self.length, int) and not form.conditional
            and all(isinstance(n, int) for n in (*self._rows, *self._made, *self._carried))
        )
        steps = self.length if isinstance(self.length, int) else 1
        copies = 2 * (len(self._rows) + len(self._made) + first)
        self.commands = steps * (self.body.commands + copies)
        self.leaves = self.body.leaves
        self._passed = [self.body.passed(part) for part in range(self.body.count)]
        read = {slot for part, slot in enumerate(self._passed) if slot is not None}
        self._in_place = frozenset(self.body.over - read)
        self._still = frozenset(i for i in range(first) if self._passed[i] == i)

    def passed(self, part: int) -> int | None:
        """Every result has memory of its own."""
        return None

    def _layout(self, variables: Mapping[str, int]) -> tuple[list[int | None], int]:
        """Where what a loop keeps for itself lies, and the end of it; the body's memory is first.

        That is the second place of carried values, the first of those that nobody wants, and rows
        that cannot be read or written where they lie.
        """
        at = round_up(self.body.scratch(variables), ALIGNMENT)
        offsets: list[int | None] = []
        home = {node.arg.part for node in self.results}
        sizes: list[LaunchExpr] = []
        for i, size in enumerate(self._carried):
            sizes.append(0 if i in home or i in self._still else size)
            sizes.append(0 if i in self._in_place or i in self._still else size)
        for size in (*self._rows, *self._made):
            nbytes = evaluate(size, variables)
            sizes.append(nbytes if nbytes % ALIGNMENT else 0)
        for size in sizes:
            nbytes = evaluate(size, variables)
            offsets.append(at if nbytes else None)
            at = round_up(at + nbytes, ALIGNMENT)
        return offsets, at

    def scratch(self, variables: Mapping[str, int]) -> int:
        """The bytes of the body's memory, and of what lies beside results."""
        return self._layout(variables)[1]

    def play(
        self, player: Player, params: Places, wanted: Sequence[Operand | None],
        scratch: Operand | None, over: Collection[int] = NOTHING,
    ) -> list[Operand]:
        """Run all steps."""
        return _LoopRun(self, player, params, wanted, scratch).all_steps()


class _LoopRun:
    """One run of a loop over places."""

    def __init__(
        self, loop: LoopWork, player: Player, params: Places, wanted: Sequence[Operand | None],
        scratch: Operand | None,
    ) -> None:
        self.loop, self.player = loop, player
        variables = player.variables
        form = loop.form
        first, last = form.carried, form.carried + form.read
        self.carry = list(params[:first])
        self.stacks, self.shared = params[first:last], params[last : len(loop.results[0].src)]
        self.length = None if loop.length is None else evaluate(loop.length, variables)
        self.sizes = [evaluate(size, variables) for size in loop._carried]
        self.rows = [evaluate(size, variables) for size in loop._rows]
        self.made = [evaluate(size, variables) for size in loop._made]
        offsets, _ = loop._layout(variables)
        self.by_part = {node.arg.part: place for node, place
                        in zip(loop.results, wanted, strict=True)}

        def own(number: int, nbytes: int) -> Any:
            at = offsets[number]
            return None if at is None or scratch is None else part_of(scratch, at, nbytes)

        # The two places of each carried value: the result's, and one beside it. Nothing can lie
        # where it was given.
        self.places = [
            (self.by_part.get(i) or own(2 * i, size), own(2 * i + 1, size)) if size
            else (self.by_part.get(i) or self.carry[i], self.carry[i])
            for i, size in enumerate(self.sizes)
        ]
        self.spare = [own(2 * first + j, n) for j, n in enumerate((*self.rows, *self.made))]
        nbytes = loop.body.scratch(variables)
        self.body_scratch = part_of(scratch, 0, nbytes) if scratch is not None and nbytes else None
        # Which of its places each carried value is in, -1 for that of what the loop was given.
        self.which = [-1] * first

    def all_steps(self) -> list[Operand]:
        """Run them; where the results lie, which is where they were wanted."""
        form, taken = self.loop.form, 0
        while self.length is None or taken < self.length:
            if form.conditional and not self.player.holds(self.carry[-1]):
                break
            self._step(taken, taken if not form.backwards else self._last() - taken)
            taken += 1
        found: list[Any] = []
        for node in self.loop.results:
            part = node.arg.part
            place: Any = self.by_part[part]
            if part < form.carried and self.which[part] != 0:
                self.player.copy(place, self.carry[part], self.sizes[part])
            found.append(place)
        return found

    def _last(self) -> int:
        """The last step of a loop of known length."""
        assert self.length is not None
        return self.length - 1

    def _step(self, taken: int, step: int) -> None:
        loop, player = self.loop, self.player
        first, results = loop.form.carried, len(loop.form.body.src)
        for part, place in self.by_part.items():
            if part >= results:
                size = self.sizes[part - results]
                assert place is not None
                row = part_of(place, step * size, size)
                player.copy(row, self.carry[part - results], size)
        rows = [self._read(j, step) for j in range(len(self.rows))]
        over = loop._in_place if taken else NOTHING
        targets: list[Any] = []
        next_place = []
        for i in range(first):
            which = self._next(i, taken)
            next_place.append(which)
            targets.append(None if which < 0 else self.places[i][which])
        stacks = [self._written(j, part, step) for j, part in enumerate(loop._stacked)]
        targets += [direct for direct, _ in stacks]
        params = [*self.carry, *rows, *self.shared]
        found = loop.body.play(player, params, targets, self.body_scratch, over)
        for i, which in enumerate(next_place):
            if which < 0:
                continue
            if found[i] is not targets[i] and i not in over:
                player.copy(targets[i], found[i], self.sizes[i])
            self.carry[i], self.which[i] = targets[i], which
        for j, (_, row) in enumerate(stacks):
            if found[first + j] is not row:
                player.copy(row, found[first + j], self.made[j])

    def _next(self, i: int, taken: int) -> int:
        """Which of its places a carried value is written to; -1 where it stays what it was."""
        loop = self.loop
        if i in loop._still:
            return -1
        if i in loop._in_place:
            return 0
        if self.length is not None and not loop.form.conditional:
            # The last step writes the result.
            return (self._last() - taken) % 2
        return 1 if self.which[i] == 0 else 0

    def _read(self, j: int, step: int) -> Operand:
        """A step's row of a stack, where it lies or copied to where an array may lie."""
        size = self.rows[j]
        row = part_of(self.stacks[j], step * size, size)
        if size % ALIGNMENT == 0:
            return row
        spare: Operand = self.spare[j]
        self.player.copy(spare, row, size)
        return spare

    def _written(self, j: int, part: int, step: int) -> tuple[Any, Any]:
        """Where a step's result is to be written, and where it is to lie then."""
        size = self.made[j]
        place: Any = self.by_part[part]
        row = part_of(place, step * size, size)
        return (row, row) if size % ALIGNMENT == 0 else (self.spare[len(self.rows) + j], row)


class ChoiceWork:
    """One of two bodies, as a value says that is read when it runs."""

    is_fixed = False
    over: frozenset[int] = frozenset()

    def __init__(self, backend: Any, results: Sequence[Node]) -> None:
        form: Choose = results[0].arg
        self.count = len(results)
        self._results = results
        parts = [node.arg.part for node in results]
        self._works = []
        for body in (form.body, form.other):
            sink = Node(Ops.SINK, dtypes.token, tuple([body.src[part] for part in parts]))
            self._works.append(body_work(backend, sink, len(results[0].src)))
        self._sizes = [launch_expr(nbytes_of(node)) for node in results]
        self.commands = max(work.commands for work in self._works)
        self.leaves = [leaf for work in self._works for leaf in work.leaves]

    def scratch(self, variables: Mapping[str, int]) -> int:
        """The bytes that either body needs."""
        return max(work.scratch(variables) for work in self._works)

    def passed(self, part: int) -> int | None:
        """Every result has memory of its own."""
        return None

    def play(
        self, player: Player, params: Places, wanted: Sequence[Operand | None],
        scratch: Operand | None, over: Collection[int] = NOTHING,
    ) -> list[Operand]:
        """Run the body that the first argument says."""
        work = self._works[0 if player.holds(params[0]) else 1]
        found = work.play(player, params, wanted, scratch)
        targets: list[Any] = list(wanted)
        for place, target, size in zip(found, targets, self._sizes, strict=True):
            if place is not target:
                player.copy(target, place, evaluate(size, player.variables))
        return targets


def _nbytes(value: Node) -> LaunchExpr:
    return launch_expr(nbytes_of(value))


def _row_nbytes(stack: Node) -> LaunchExpr:
    return _nbytes(Node(Ops.PARAM, stack.dtype, (), Param(0, stack.shape[1:])))


class ControlExecutable(Executable):
    """A loop, a choice or a kernel of text, ready to run any number of times."""

    def __init__(self, program: Canonical, backend: Any) -> None:
        results = program.sink.src
        values = [one for one in results[0].src if one.op is Ops.PARAM]
        self._slots = [one.arg.slot for one in values]
        self.work = work_of(backend, results)
        self._backend = backend
        params = {one.arg.slot: one for one in values}
        buffers = [
            PlannedBuffer("param", one.dtype, one.shape, nbytes_of(one), slot=slot)
            for slot, one in sorted(params.items())
        ]
        self._first = len(buffers)
        buffers += [
            PlannedBuffer("output", one.dtype, one.shape, nbytes_of(one), slot=slot)
            for slot, one in enumerate(results)
        ]
        self.is_recordable = self.work.is_fixed and self.work.commands <= MOST_COMMANDS
        nbytes = self.work.scratch({}) if self.work.is_fixed else 0
        outputs = tuple(range(self._first, len(buffers)))
        buffers.append(PlannedBuffer("temp", dtypes.uint8, (nbytes,), nbytes))
        plan = Plan(tuple(buffers), (), outputs, nbytes)
        # There are no kernels beside the body's: nothing is compiled, and REF has no compiler.
        compiler: Any = getattr(backend, "compiler", None)
        super().__init__(plan, backend.device, compiler)

    def _load(self) -> tuple[Any, ...]:
        return ()

    def written_over(self, slots: Mapping[int, int]) -> Executable:
        """Itself: what a loop reads is not written over."""
        return self

    def arena_nbytes(self, variables: Mapping[str, int]) -> int:
        """The bytes of scratch memory of a run."""
        return self.work.scratch(variables)

    def record(
        self, commands: CommandList, resolve: Resolve, variables: Mapping[str, int],
        where: Where | None = None,
    ) -> None:
        """Append all steps to a command list."""
        params = [resolve(slot) for slot in self._slots]
        wanted = [resolve(index) for index in self.plan.outputs]
        last = len(self.plan.buffers) - 1
        scratch = resolve(last) if self.plan.buffers[last].nbytes else None
        self.work.play(IntoList(commands, variables, None), params, wanted, scratch)

    def run(
        self, inputs: Sequence[Buffer], variables: Mapping[str, int], *, timed: bool = False,
        where: Where | None = None,
    ) -> tuple[list[Buffer], Any]:
        """Run it once: its results, each in memory of its own."""
        made = self.allocate_outputs(variables)
        nbytes = self.work.scratch(variables)
        scratch = self.device.allocate(nbytes) if nbytes else None
        params = [inputs[slot] for slot in self._slots]
        self.work.play(AtOnce(self._backend, variables, None), params, made, scratch)
        return made, None
