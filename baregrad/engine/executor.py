"""Plans made runnable: programs compiled and loaded, work recorded as one command list."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from baregrad.base.progress import ProgressBar
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
PROGRESS_FROM = 32  # kernels to compile before a progress bar is worth its line


@dataclass(frozen=True, slots=True)
class Loaded:
    """One launch of a plan: the kernel on its device and the plan's buffers in argument order."""

    kernel: Kernel
    buffers: tuple[int, ...]
    origins: tuple[Node, ...]


class Executable:
    """A plan with its programs, ready to run any number of times.

    `memory` may be None for a device that only compiles.
    """

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
            made = Executable(plan.written_over(chosen), self.device, self._compiler)
            found = self._in_place[chosen] = made
        return found

    def _load(self) -> tuple[Loaded, ...]:
        distinct = dict.fromkeys(self.plan.kernels)
        count = len(distinct) if len(distinct) >= PROGRESS_FROM else 0
        with ProgressBar(count, "compile") as bar:
            loaded = self._compiler.load(distinct, self.device, bar.advance)
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

    @cached_property
    def _static_sizes(self) -> tuple[tuple[int, ...], int] | None:
        """The bytes of each output and of the arena, None where they hang on a variable."""
        sizes = (*(self._sizes[index] for index in self.output_indices), self._arena_nbytes)
        if not all(isinstance(size, int) for size in sizes):
            return None
        *outputs, arena = (evaluate(size, {}) for size in sizes)
        return tuple(outputs), arena

    @cached_property
    def _results_in_order(self) -> bool:
        """Whether the results are the outputs, in the order of their slots."""
        return tuple(self.plan.outputs) == self.output_indices

    def size(self, index: int) -> LaunchExpr:
        """The size in bytes of a buffer of the plan."""
        return self._sizes[index]

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
        if self._list is None:
            self._list = self.device.command_list()
            self.record(self._list, self._places.__getitem__, {}, where)
        static = self._static_sizes
        if static is None:
            outputs, nbytes = self.allocate_outputs(variables), self.arena_nbytes(variables)
        else:
            sizes, nbytes = static
            outputs = [self.device.allocate(size) for size in sizes]
        # Arguments after the last one that a kernel reads have no slot.
        table = [*inputs[: self.input_count], *outputs]
        if nbytes:
            table.append(self.device.allocate(nbytes))
        timeline = None
        if self.launches:
            used = self._list.slot_count
            timeline = self.device.submit(self._list, table[:used], variables, timed=timed)
        return (outputs if self._results_in_order else self.gather(inputs, outputs)), timeline

    def gather(self, inputs: Sequence[Buffer], written: Sequence[Buffer]) -> list[Buffer]:
        """The plan's results, in order, from its inputs and the memory it wrote."""
        by_index = dict(zip(self.output_indices, written, strict=True))
        results = []
        for index in self.plan.outputs:
            buffer = self.plan.buffers[index]
            results.append(inputs[buffer.slot] if buffer.kind == "param" else by_index[index])
        return results
