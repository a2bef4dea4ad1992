"""What of a command list may overlap, and what has to wait for what.

Kernels go to the computing channel, copies and fills to the copying one, each in the list's order.
Two commands conflict where one writes bytes that the other reads or writes, and where they run one
kernel whose module has variables. Slots are taken for different memory: whoever submits looks
whether they are (`serial` plans assume nothing).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from baregrad.program import substitute
from baregrad.runtime.commands import Command, Exec, Fill, Operand, Slot

_EVERYWHERE = 1 << 64


@dataclass(frozen=True, slots=True)
class ChannelStep:
    """One thing that a channel does.

    `run`: command number `value`. `idle`: wait for the kernels so far. `signal`: let the other
    channel past `value`, once all so far is done. `wait`: until the other has signalled `value`.
    `stamp`: write the time, once all so far is done, to place `value`.
    """

    kind: Literal["run", "idle", "signal", "wait", "stamp"]
    value: int = 0


# Whose bytes (a slot's index, or -1 for those at an address), from, to, and whether they change.
_Access = tuple[int, int, int, bool]


class _Window:
    """What commands touched that others may have to wait for."""

    def __init__(self) -> None:
        self._ranges: dict[int, list[tuple[int, int, bool]]] = {}

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def add(self, accesses: Sequence[_Access]) -> None:
        for key, begin, end, writes in accesses:
            self._ranges.setdefault(key, []).append((begin, end, writes))
        # A command that touches nothing is there all the same.
        self._ranges.setdefault(-2, [])

    def conflicts(self, accesses: Sequence[_Access]) -> bool:
        for key, begin, end, writes in accesses:
            for first, last, written in self._ranges.get(key, ()):
                if (writes or written) and begin < last and first < end:
                    return True
        return False

    def clear(self) -> None:
        self._ranges.clear()


@dataclass(slots=True)
class ListPlan:
    """The steps of both channels.

    `relaxed` says whether some command does not wait for what was recorded before it.
    """

    compute: list[ChannelStep] = field(default_factory=list)
    copies: list[ChannelStep] = field(default_factory=list)
    relaxed: bool = False

    @property
    def overlaps(self) -> bool:
        """Whether two kernels may run at once."""
        return any(a.kind == b.kind == "run" for a, b in itertools.pairwise(self.compute))


def plan_list(
    commands: Sequence[Command],
    *,
    serial: bool = False,
    timed: bool = False,
    stamped: bool = False,
    skipped: frozenset[int] = frozenset(),
) -> ListPlan:
    """Return the steps of a list.

    With `timed` it is serial too, and every command is between two stamps: 2*i and 2*i + 1. With
    `stamped`, copies and fills are; launches write their stamps themselves.
    """
    return _Planner(commands, serial or timed, timed, timed or stamped).plan(skipped)


class _Planner:
    def __init__(
        self, commands: Sequence[Command], serial: bool, timed: bool, copies_timed: bool
    ) -> None:
        self._commands = commands
        self._serial = serial
        self._timed = timed
        self._copies_timed = copies_timed
        self._steps = ListPlan()
        self._running = _Window()
        self._unseen_kernels = _Window()
        self._unseen_copies = _Window()
        self._signals = self._answers = 0

    def plan(self, skipped: frozenset[int]) -> ListPlan:
        if any(not isinstance(command, Exec) for command in self._commands):
            # Copies come after all that was submitted before.
            self._call_copies()
        for number, command in enumerate(self._commands):
            if number in skipped:
                continue
            if isinstance(command, Exec):
                self._kernel(number, _accesses(command))
            else:
                self._copy(number, _accesses(command))
        if self._unseen_copies:
            self._await_copies()
        return self._steps

    def _kernel(self, number: int, accesses: Sequence[_Access]) -> None:
        if self._has_to_wait(self._unseen_copies, accesses):
            self._await_copies()
        if self._has_to_wait(self._running, accesses):
            self._steps.compute.append(ChannelStep("idle"))
            self._running.clear()
        self._run(self._steps.compute, number, self._timed)
        self._running.add(accesses)
        self._unseen_kernels.add(accesses)

    def _copy(self, number: int, accesses: Sequence[_Access]) -> None:
        if self._has_to_wait(self._unseen_kernels, accesses):
            self._call_copies()
        self._run(self._steps.copies, number, self._copies_timed)
        self._unseen_copies.add(accesses)

    def _has_to_wait(self, others: _Window, accesses: Sequence[_Access]) -> bool:
        if others and not self._serial and not others.conflicts(accesses):
            self._steps.relaxed = True
            return False
        return bool(others)

    def _run(self, steps: list[ChannelStep], number: int, timed: bool) -> None:
        if timed:
            steps.append(ChannelStep("stamp", 2 * number))
        steps.append(ChannelStep("run", number))
        if timed:
            steps.append(ChannelStep("stamp", 2 * number + 1))

    def _call_copies(self) -> None:
        self._signals += 1
        self._steps.compute.append(ChannelStep("signal", self._signals))
        self._steps.copies.append(ChannelStep("wait", self._signals))
        self._unseen_kernels.clear()
        self._running.clear()

    def _await_copies(self) -> None:
        self._answers += 1
        self._steps.copies.append(ChannelStep("signal", self._answers))
        self._steps.compute.append(ChannelStep("wait", self._answers))
        self._unseen_copies.clear()


def reads_early(command: Command) -> bool:
    """Whether a command is a launch that reads something before it waits for the one in front."""
    launch = command.kernel.program.launch if isinstance(command, Exec) else None
    return launch is not None and bool(launch.early)


def written_before(commands: Sequence[Command]) -> frozenset[int]:
    """The launches that read early what some command ahead of them in a list may write.

    Slots are taken for different memory here too.
    """
    found: set[int] = set()
    if not any(map(reads_early, commands)):
        return frozenset()
    written: set[_Access] = set()
    window = _Window()
    for number, command in enumerate(commands):
        accesses = _accesses(command)
        if reads_early(command):
            assert isinstance(command, Exec) and command.kernel.program.launch is not None
            # Of one whose module has variables, these come first.
            own = accesses[len(accesses) - len(command.buffers) :]
            if window.conflicts([own[place] for place in command.kernel.program.launch.early]):
                found.add(number)
        # Kernels write over the same memory again and again: each place is looked at once.
        fresh = {one for one in accesses if one[3]} - written
        written |= fresh
        window.add(list(fresh))
    return frozenset(found)


def _accesses(command: Command) -> list[_Access]:
    if isinstance(command, Exec):
        found = []
        program = command.kernel.program
        if program.keeps_variables:
            found.append((-1, command.kernel.address, command.kernel.address + 1, True))
        for operand, param in zip(command.buffers, program.params, strict=True):
            size = None if param.nbytes is None else substitute(param.nbytes, command.variables)
            found.append(_access(operand, size if isinstance(size, int) else None, param.writes))
        return found
    target = _access(command.target, command.nbytes, True)
    if isinstance(command, Fill):
        return [target]
    return [target, _access(command.source, command.nbytes, False)]


def _access(operand: Operand, nbytes: int | None, writes: bool) -> _Access:
    if isinstance(operand, Slot):
        end = _EVERYWHERE if nbytes is None else operand.offset + nbytes
        return operand.index, operand.offset, end, writes
    size = operand.nbytes if nbytes is None else nbytes
    return -1, operand.address, operand.address + size, writes
