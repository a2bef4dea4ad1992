"""A command list as the driver takes it: steps over one array of words, and a graph of them."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from baregrad.runtime.buffers import Buffer
from baregrad.runtime.commands import Command, CommandList, Copy, Exec, Operand, Slot
from baregrad.runtime.cuda.driver import Driver
from baregrad.runtime.cuda.event_clock import TimedEvents
from baregrad.runtime.cuda.progress import Names
from baregrad.runtime.cuda.steps import CopyStep, FillStep, KernelStep, StreamStep, handles_of
from baregrad.runtime.slot_table import SlotTable
from baregrad.runtime.tensor_map import NBYTES as MAP_NBYTES
from baregrad.runtime.tensor_map import map_of

_MASK = (1 << 64) - 1
# A word to patch: where it lies, what is added to the slot's address, and the step that reads it.
_Use = tuple[int, int, int]


class _SlotUses(NamedTuple):
    """All uses of a slot: words, what is added to its address there, and the steps."""

    slot: int
    places: np.ndarray[Any, np.dtype[np.int64]]
    offsets: np.ndarray[Any, np.dtype[np.uint64]]
    steps: frozenset[int]


class CudaBoundList:
    """The steps of a list and the words that they read.

    `prepare` fills in buffers and variables; `stale` are the steps whose words or grid differ
    from what the graph's nodes hold. `dead_graphs` collects graphs of lists that are gone.
    """

    def __init__(
        self, commands: CommandList, dead_graphs: deque[tuple[int, int]]
    ) -> None:
        recorded = commands.commands
        self.labels = tuple(command.label for command in recorded)
        self.submits = 0
        self.stale: set[int] = set()
        self.graph: ListGraph | None = None
        # Graphs with events between the steps.
        self.timed_graphs: list[TimedGraph] = []
        self.dead_graphs = dead_graphs
        self._table = SlotTable(commands)
        self._slot_uses: dict[int, list[_Use]] = {}
        self._variable_uses: dict[str, list[tuple[int, int]]] = {}
        places: list[tuple[int, int]] = []
        draft: list[int] = []
        for index, command in enumerate(recorded):
            places.append((len(draft), self._add(draft, command, index)))
        self._words = np.array(draft, np.uint64)
        self.steps = tuple(
            self._step(command, *place) for command, place in zip(recorded, places, strict=True)
        )
        self.names: Names = tuple(step.labelled_name for step in self.steps)
        self._grids = tuple(
            (index, step)
            for index, step in enumerate(self.steps)
            if isinstance(step, KernelStep) and not step.fixed
        )
        # Whether a step does nothing this time, which a node of a graph cannot.
        self.has_empty = any(step.empty for step in self.steps)
        self._addresses: tuple[int, ...] = ()
        self._variables = commands.variables
        self._values: tuple[int, ...] | None = None
        self._slots = tuple(
            _SlotUses(
                slot,
                np.array([use[0] for use in uses], np.int64),
                np.array([use[1] for use in uses], np.uint64),
                frozenset(use[2] for use in uses),
            )
            for slot, uses in self._slot_uses.items()
        )

    def _add(self, draft: list[int], command: Command, index: int) -> int:
        """Append the words of a command and return how many they are."""
        start = len(draft)
        for operand in _operands(command):
            if isinstance(operand, Slot):
                use = (len(draft), operand.offset, index)
                self._slot_uses.setdefault(operand.index, []).append(use)
            draft.append(0 if isinstance(operand, Slot) else operand.address)
        if isinstance(command, Exec):
            for name in command.kernel.program.variables:
                value = command.variables.get(name)
                if value is None:
                    self._variable_uses.setdefault(name, []).append((len(draft), index))
                draft.append((value or 0) & _MASK)
            for spec in command.kernel.program.maps:
                # A map begins with its array's address, 64 bits.
                operand = command.buffers[spec.param]
                if isinstance(operand, Slot):
                    use = (len(draft), operand.offset, index)
                    self._slot_uses.setdefault(operand.index, []).append(use)
                address = 0 if isinstance(operand, Slot) else operand.address
                draft += struct.unpack(f"<{MAP_NBYTES // 8}Q", map_of(spec, address))
        return len(draft) - start

    def _step(self, command: Command, start: int, count: int) -> StreamStep:
        words = self._words[start : start + count]
        if isinstance(command, Exec):
            function = command.kernel.handle.function  # type: ignore[attr-defined]
            step = KernelStep(command, function)
            step.bind(int(words.ctypes.data))
            return step
        if isinstance(command, Copy):
            return CopyStep(command.label, words, command.nbytes)
        return FillStep(command.label, words, command.nbytes, command.byte)

    def prepare(self, buffers: Sequence[Buffer], variables: Mapping[str, int]) -> None:
        """Fill the slots and set the variables; raise DeviceError if they do not fit."""
        addresses, values = self._table.fill(buffers, variables)
        if values != self._values:
            self._set_variables(values, variables)
        if addresses == self._addresses:
            return
        before = self._addresses
        for slot, places, offsets, steps in self._slots:
            address = addresses[slot]
            if not before or before[slot] != address:
                self._words[places] = np.uint64(address) + offsets
                self.stale |= steps
        self._addresses = addresses

    def _set_variables(self, values: tuple[int, ...], variables: Mapping[str, int]) -> None:
        self._values = None
        for name, value in zip(self._variables, values, strict=True):
            for place, step in self._variable_uses.get(name, ()):
                self._words[place] = value & _MASK
                self.stale.add(step)
        for index, kernel in self._grids:
            if kernel.set_grid(variables):
                self.stale.add(index)
        if self._grids:
            self.has_empty = any(step.empty for step in self.steps)
        self._values = values

    def set_steps(self, graph: ListGraph) -> None:
        """Bring the graph that runs untimed up to date; those with events are so when they run."""
        for one in self.timed_graphs:
            one.stale |= self.stale
        graph.set_steps(self.stale)

    def __del__(self) -> None:
        timed = self.__dict__.get("timed_graphs", ())
        for graph in (self.__dict__.get("graph"), *timed):
            if graph is not None:
                self.dead_graphs.append((graph.graph, graph.executable))
        for one in timed:
            if one.user is not None:
                one.user.give_back(one.events)


class ListGraph:
    """A list as a CUDA graph: one node a step, each after the one before.

    `events`, one more than steps, are recorded before the first and after each. A node's operands
    are copied when it is made or set, so that a launch that was enqueued keeps those it was
    enqueued with (cuGraphExecKernelNodeSetParams, CUDA Driver API).
    """

    def __init__(
        self, driver: Driver, context: int, steps: Sequence[StreamStep], events: Sequence[int] = ()
    ) -> None:
        self._driver = driver
        self._context = context
        self._steps = steps
        self.graph = driver.handle("cuGraphCreate", 0)
        try:
            self._nodes: list[int] = []
            before = self._recorded(events[0], []) if events else []
            for index, step in enumerate(steps):
                self._nodes.append(step.add_node(driver, self.graph, before, context))
                before = self._nodes[-1:]
                if events:
                    before = self._recorded(events[index + 1], before)
            self.executable = driver.handle("cuGraphInstantiateWithFlags", self.graph, 0)
        except BaseException:
            # What is wrong with the driver was said already.
            driver.functions["cuGraphDestroy"](self.graph)
            raise

    def _recorded(self, event: int, before: list[int]) -> list[int]:
        """Add a node that records an event, and return what comes after it comes after."""
        name = "cuGraphAddEventRecordNode"
        after = handles_of(before)
        return [self._driver.handle(name, self.graph, after, len(before), event)]

    def set_steps(self, stale: set[int]) -> None:
        """Bring the nodes of steps up to date; those that were are taken out of `stale`."""
        for index in sorted(stale):
            node = self._nodes[index]
            self._steps[index].set_node(self._driver, self.executable, node, self._context)
            stale.discard(index)


class TimedGraph(ListGraph):
    """A list as a graph with events between its steps: `runs` so far, `user` is the last.

    `stale` are the steps whose nodes differ, beside those that differ from the untimed graph's.
    """

    def __init__(
        self, driver: Driver, context: int, steps: Sequence[StreamStep], events: Sequence[int]
    ) -> None:
        super().__init__(driver, context, steps, events)
        self.events = tuple(events)
        self.stale: set[int] = set()
        self.runs = 0
        self.user: TimedEvents | None = None

    @property
    def is_free(self) -> bool:
        """Whether its last run was read."""
        return self.user is None or self.user.times is not None


def _operands(command: Command) -> Sequence[Operand]:
    if isinstance(command, Exec):
        return command.buffers
    if isinstance(command, Copy):
        return (command.target, command.source)
    return (command.target,)
