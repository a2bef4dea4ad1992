"""Plans made runnable: programs compiled and loaded, work recorded as one command list.

What was computed before is found by a key too. Whoever gives a key answers for it: equal keys are
equal graphs over arrays of equal shapes and dtypes, which are numbered alike.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from baregrad.base.options import options
from baregrad.base.progress import ProgressBar
from baregrad.engine.canonical import Canonical
from baregrad.engine.compiler import Compiler
from baregrad.engine.launch import launch_expr
from baregrad.ir.core.node import Node
from baregrad.program import LaunchExpr, evaluate
from baregrad.runtime.buffers import Buffer
from baregrad.runtime.commands import CommandList, Kernel, Operand, Slot
from baregrad.runtime.interface import Device
from baregrad.schedule import Plan

Resolve = Callable[[int], Operand]
Where = Callable[["Loaded"], str]
KEYS_KEPT = 512
# Results together as small as this are used again: a loop makes no objects, and patches no address.
# It has one result in hand while it asks for the next.
_REUSED_NBYTES, _REUSED = 1 << 16, 2
_count = sys.getrefcount
PROGRESS_FROM = 32  # kernels to compile before a progress bar is worth its line


@dataclass(frozen=True, slots=True)
class Loaded:
    """One launch of a plan: the kernel on its device and the plan's buffers in argument order."""

    kernel: Kernel
    buffers: tuple[int, ...]
    origins: tuple[Node, ...]


class FixedWork(NamedTuple):
    """A recorded plan of which each run is alike.

    sizes: the bytes of each result, and of the arena after them, where there is one. The table that
    `submit` is given has arguments first: results are what lies in it from `begin` to `end`.
    """

    commands: CommandList
    sizes: tuple[int, ...]
    begin: int
    end: int


class Executable:
    """A plan with its programs, ready to run any number of times.

    `memory` may be None for a device that only compiles.
    """

    # Whether a command list can hold the work.
    is_recordable = True

    def __init__(self, plan: Plan, device: Device, compiler: Compiler) -> None:
        self.plan = plan
        self.device = device
        self._compiler = compiler
        self._in_place: dict[frozenset[int], Executable] = {}
        self.launches = self._load()
        self._sizes: tuple[LaunchExpr, ...] = tuple(
            launch_expr(buffer.nbytes) for buffer in plan.buffers
        )
        self._arena_nbytes = launch_expr(plan.arena_nbytes)
        self._places = self._assign_slots()
        self._list: CommandList | None = None
        self._fixed: FixedWork | None = None
        # What the last runs wrote, the next one's if nobody else has it then.
        self._made: tuple[list[Buffer], ...] = ()

    def written_over(self, slots: Mapping[int, int]) -> Executable:
        """The same work with outputs written over arguments, where the plan allows that.

        slots: of an output, by its position, the argument. See `Plan.written_over`.
        """
        plan = self.plan
        allowed = {(output, plan.buffers[param].slot) for output, param in plan.over}
        wanted = [(plan.outputs[position], slot) for position, slot in slots.items()]
        chosen = frozenset([pair[0] for pair in wanted if pair in allowed])
        if not chosen:
            return self
        found = self._in_place.get(chosen)
        if found is None:
            # The kernels are known already, but for those that write parts alone.
            moved = plan.written_over(chosen)
            if self._compiler.target.kind == "gpu" and moved.kernels != plan.kernels:
                from baregrad.engine.plans.groups import grouped

                # What writes a part of an array alone is small, and may be one of a group.
                moved = grouped(moved)
            made = Executable(moved, self.device, self._compiler)
            found = self._in_place[chosen] = made
        return found

    def _load(self) -> tuple[Loaded, ...]:
        kernels = self.plan.kernels
        distinct = len(set(kernels))
        with ProgressBar(distinct if distinct >= PROGRESS_FROM else 0, "compile") as bar:
            loaded = self._compiler.load(kernels, self.device, bar.advance)
        return tuple(
            Loaded(loaded[step.kernel], step.buffers, step.origins) for step in self.plan.steps
        )

    def _assign_slots(self) -> dict[int, Operand]:
        """Where each buffer of the plan is found in the table that `submit` is given."""
        places: dict[int, Operand] = {}
        position = 0
        for index, buffer in enumerate(self.plan.buffers):
            if buffer.kind == "param":
                places[index] = Slot(buffer.slot)
                position = max(position, buffer.slot + 1)
        self.input_count = position
        written = 0
        for index, buffer in enumerate(self.plan.buffers):
            if buffer.kind == "output":
                places[index] = Slot(self.input_count + buffer.slot)
                written += 1
        for index, buffer in enumerate(self.plan.buffers):
            if buffer.kind == "temp":
                places[index] = Slot(self.input_count + written, buffer.offset)
        return places

    @cached_property
    def output_indices(self) -> tuple[int, ...]:
        """The plan's buffers that a run allocates, in slot order."""
        found = [i for i, buffer in enumerate(self.plan.buffers) if buffer.kind == "output"]
        return tuple(sorted(found, key=lambda i: self.plan.buffers[i].slot))

    @cached_property
    def has_own_results(self) -> bool:
        """Whether each result has memory of its own: none is an argument, or another result."""
        outputs = self.plan.outputs
        kinds = {self.plan.buffers[index].kind for index in outputs}
        return kinds <= {"output"} and len(set(outputs)) == len(outputs)

    def _fixed_work(self) -> FixedWork | None:
        """The work that is the same in each run but for addresses and values of variables.

        None before the first run, where sizes hang on variables, and where a result has no memory
        of its own or arguments are not all that a kernel reads.
        """
        commands, arena = self._list, self._arena_nbytes
        sizes = [self._sizes[index] for index in self.plan.outputs]
        if commands is None or not self.launches or not self.has_own_results:
            return None
        if tuple(self.plan.outputs) != self.output_indices or not isinstance(arena, int):
            return None
        known = tuple([size for size in sizes if isinstance(size, int)])
        used = self.input_count + len(sizes) + bool(arena)
        if len(known) < len(sizes) or used != len(commands.slot_nbytes):
            return None
        count = self.input_count
        return FixedWork(
            commands, (*known, arena) if arena else known, count, count + len(known)
        )

    def size(self, index: int) -> LaunchExpr:
        """The size in bytes of a buffer of the plan."""
        return self._sizes[index]

    def place(self, index: int) -> Operand:
        """Where a buffer of the plan is found in the table that `submit` is given."""
        return self._places[index]

    def arena_nbytes(self, variables: Mapping[str, int]) -> int:
        """The size in bytes of the memory that a run's temporaries share."""
        return evaluate(self._arena_nbytes, variables)

    def record(
        self,
        commands: CommandList,
        resolve: Resolve,
        variables: Mapping[str, int],
        where: Where | None = None,
    ) -> None:
        """Append the plan's work to a command list; `resolve` places each buffer of the plan.

        `where` gives the user's file:line of a launch, "" where it is not known, for reports.
        """
        for launch in self.launches:
            known = {
                name: value
                for name, value in variables.items()
                if name in launch.kernel.program.variables
            }
            operands = [resolve(index) for index in launch.buffers]
            label = launch.kernel.program.name
            place = where(launch) if where is not None else ""
            if place:
                label = f"{label} {place}"
            commands.exec(launch.kernel, operands, known, label=label)

    def submit(
        self, table: Sequence[Buffer], variables: Mapping[str, int], where: Where | None = None
    ) -> None:
        """Run the plan over a table of arguments, results and the arena, whoever has them."""
        if self._list is None:
            self._list = self.device.command_list()
            self.record(self._list, self._places.__getitem__, {}, where)
            self._fixed = self._fixed_work()
        self.device.submit(self._list, table[: len(self._list.slot_nbytes)], variables)

    def allocate_outputs(self, variables: Mapping[str, int]) -> list[Buffer]:
        """Fresh memory for every output of a run."""
        sizes = (self._sizes[index] for index in self.output_indices)
        return [self.device.allocate(evaluate(size, variables)) for size in sizes]

    def run(
        self,
        inputs: Sequence[Buffer],
        variables: Mapping[str, int],
        *,
        timed: bool = False,
        where: Where | None = None,
    ) -> tuple[list[Buffer], Any]:
        """Run the plan once: its outputs in order, and the timeline when `timed`."""
        if self._fixed is not None and not timed:
            commands, sizes, count, end = self._fixed
            for made in self._made:
                if _are_free(made):
                    break
            else:
                made = list(map(self.device.allocate, sizes))
                if sum(sizes) <= _REUSED_NBYTES:
                    self._made = (made, *self._made[: _REUSED - 1])
            table = [*inputs[:count], *made]
            self.device.submit(commands, table, variables)
            return table[count:end], None
        if self._list is None:
            self._list = self.device.command_list()
            self.record(self._list, self._places.__getitem__, {}, where)
            self._fixed = self._fixed_work()
        outputs, nbytes = self.allocate_outputs(variables), self.arena_nbytes(variables)
        # Arguments after the last one that a kernel reads have no slot.
        table = [*inputs[: self.input_count], *outputs]
        if nbytes:
            table.append(self.device.allocate(nbytes))
        timeline = None
        if self.launches:
            used = len(self._list.slot_nbytes)
            timeline = self.device.submit(self._list, table[:used], variables, timed=timed)
        return self.gather(inputs, outputs), timeline

    def gather(self, inputs: Sequence[Buffer], written: Sequence[Buffer]) -> list[Buffer]:
        """The plan's results, in order, from its inputs and the memory it wrote."""
        by_index = dict(zip(self.output_indices, written, strict=True))
        results = []
        for index in self.plan.outputs:
            buffer = self.plan.buffers[index]
            results.append(inputs[buffer.slot] if buffer.kind == "param" else by_index[index])
        return results


def mark_shared(results: Sequence[Buffer], others: Iterable[Buffer]) -> None:
    """Mark results that are one of the other buffers, or one another."""
    seen = set(map(id, others))
    for buffer in results:
        if id(buffer) in seen:
            buffer.shared = True
        seen.add(id(buffer))


def _are_free(buffers: Sequence[Buffer]) -> bool:
    """Whether nobody has any of these buffers, but for a list of them, nor their memory."""
    for buffer in buffers:
        # The list's, the name's and the call's; of the memory, the buffer's and the call's.
        if _count(buffer) != 3 or buffer.shared or _count(buffer._memory) != 2:
            return False
    return True


# --- programs by keys -----------------------------------------------------------------------------


class KeyedProgram:
    """An executable, and which leaf each of its arguments is."""

    __slots__ = ("arguments", "executable", "variables")

    def __init__(
        self, executable: Executable, arguments: Sequence[int], variables: Mapping[str, int]
    ) -> None:
        self.executable = executable
        self.arguments = tuple(arguments)
        self.variables = variables

    def run(self, leaves: Sequence[Buffer]) -> list[Buffer] | None:
        """Compute the results over other arrays: where each lies.

        Memory that is an argument, or several results, is marked as shared.
        """
        table = list(map(leaves.__getitem__, self.arguments))
        results, _ = self.executable.run(table, self.variables)
        if not self.executable.has_own_results:
            mark_shared(results, table)
        return results


class NoProgram(KeyedProgram):
    """What is known of a key under which nothing can be computed."""

    __slots__ = ()

    def __init__(self) -> None:
        """There is nothing to keep."""

    def run(self, leaves: Sequence[Buffer]) -> list[Buffer] | None:
        """Compute nothing."""
        return None


class KeyedPrograms:
    """The last `KEYS_KEPT` programs that were asked for, by their keys."""

    def __init__(self) -> None:
        self._programs: OrderedDict[Any, KeyedProgram] = OrderedDict()
        # Each setting that plans of a device depended on has a number; those of the options that
        # were in force last by device.
        self._settings: dict[Any, int] = {}
        self._last: tuple[Any, dict[str, int]] = (None, {})

    def setting(self, device: str, backend: Callable[[str], Any]) -> int:
        """The number of a device with the options that its plans depend on, a part of keys."""
        values = options.values()
        last, numbers = self._last
        if values is not last:
            numbers = {}
            self._last = values, numbers
        found = numbers.get(device)
        if found is None:
            setting = (device, backend(device).setting())
            found = numbers[device] = self._settings.setdefault(setting, len(self._settings))
        return found

    def get(self, key: Any) -> KeyedProgram | None:
        """The program of a key, None where it is new."""
        found = self._programs.get(key)
        if found is not None:
            self._programs.move_to_end(key)
        return found

    def add(self, key: Any, program: KeyedProgram | None) -> KeyedProgram:
        """Note the program of a key, or that there is none."""
        found = self._programs[key] = program or NoProgram()
        if len(self._programs) > KEYS_KEPT:
            self._programs.popitem(last=False)
        return found

    def clear(self) -> None:
        """Forget every program."""
        self._programs.clear()


def keyed_program(
    executable: Executable, program: Canonical, leaves: Sequence[Buffer]
) -> KeyedProgram | None:
    """What runs `executable`, made for `program`, over other leaves; None where it reads others."""
    places = {leaf: place for place, leaf in enumerate(leaves)}
    handles = [ref.handle for ref in program.inputs]
    if not all(handle in places for handle in handles):
        return None
    return KeyedProgram(executable, [places[handle] for handle in handles], program.variables)
