"""A command list in native form: one array of machine words, patched in place between submits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from struct import Struct
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from baregrad.base.errors import DeviceError
from baregrad.program import LaunchExpr, evaluate, substitute
from baregrad.runtime.buffers import Buffer
from baregrad.runtime.commands import (
    Command,
    CommandList,
    Copy,
    Exec,
    Operand,
    Slot,
    needed_nbytes,
)
from baregrad.runtime.cpu.executor import COMMAND_WORDS, COPY_CHUNK_NBYTES, LIST_WORDS

Words: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

# A kernel that moves and computes less than this (bytes plus operations) takes about a
# microsecond: sharing it among threads would cost as much as it saves.
SERIAL_WORK = 16384
MAX_CHUNKS = (1 << 31) - 1
_WORD_NBYTES = 8
_INT64 = range(-(1 << 63), 1 << 63)
# Words of a command (see executor.py).
_CHUNKS, _SERIAL = 3, 4
_serial_of = attrgetter("serial")


@dataclass(frozen=True, slots=True)
class _Launch:
    """How much there is to do: chunks, bytes and operations, and whether one thread is to do it."""

    chunks: LaunchExpr
    work: tuple[LaunchExpr, ...]
    serial: bool

    def words(self, variables: Mapping[str, int]) -> tuple[int, int]:
        """Return the chunks and the serial flag."""
        chunks = evaluate(self.chunks, variables)
        if chunks > MAX_CHUNKS:
            raise DeviceError("a kernel has too many chunks", found=chunks, wanted=MAX_CHUNKS)
        work = sum(evaluate(part, variables) for part in self.work)
        # No work at all means that nobody said how much.
        return chunks, int(self.serial or 0 < work < SERIAL_WORK)


class Entries(NamedTuple):
    """Where the functions are that copy and fill, 0 for an executor that does so itself.

    Copies of `streamed_nbytes` and more pass the caches by; None if none does.
    """

    copy: int
    fill: int
    streamed_nbytes: int | None


class _Kind(NamedTuple):
    """What runs of one kernel have in common, which a list may hold in hundreds.

    `waiting` takes rows whose chunks are not known before the variables are; `sizes` are those of
    operands, by place, with what they are sizes of.
    """

    group: tuple[int | str, ...]
    waiting: list[int] | None
    chunks: int
    serial: int
    sizes: tuple[tuple[int, LaunchExpr, str], ...]


@dataclass(slots=True)
class _Draft:
    """The parts of a list while they are collected; places are indices of words.

    Operand pointers and variables follow the commands, from `tail_at` on.
    """

    tail_at: int
    rows: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    tail: list[int] = field(default_factory=list)
    patches: list[tuple[int, int, int]] = field(default_factory=list)
    groups: dict[tuple[int | str, ...], int] = field(default_factory=dict)
    launches: dict[_Launch, list[int]] = field(default_factory=dict)
    variables: dict[str, list[int]] = field(default_factory=dict)
    scratch: dict[LaunchExpr, None] = field(default_factory=dict)
    sizes: dict[tuple[Operand, LaunchExpr], str] = field(default_factory=dict)
    kinds: dict[tuple[Any, ...], _Kind] = field(default_factory=dict)

    def operands(self, operands: Sequence[Operand]) -> int:
        """Append pointers to operands and return where they start."""
        start = self.tail_at + len(self.tail)
        for operand in operands:
            if isinstance(operand, Slot):
                place = self.tail_at + len(self.tail)
                self.patches.append((place, operand.index, operand.offset))
                self.tail.append(0)
            else:
                self.tail.append(operand.address)
        return start

    def group(self, values: tuple[int | str, ...]) -> int:
        """Return where these variables, given by value or by name, lie in a row."""
        found = self.groups.get(values)
        if found is not None:
            return found
        start = self.groups[values] = self.tail_at + len(self.tail)
        for value in values:
            if isinstance(value, str):
                self.variables.setdefault(value, []).append(self.tail_at + len(self.tail))
                self.tail.append(0)
            else:
                self.tail.append(_checked(value))
        return start

    def add(self, command: Command, entries: Entries) -> None:
        """Append a command."""
        if isinstance(command, Exec):
            self._add_exec(command)
            return
        if isinstance(command, Copy):
            operands = self.operands((command.target, command.source))
            least = entries.streamed_nbytes
            is_streamed = least is not None and command.nbytes >= least
            variables = self.group((command.nbytes, int(is_streamed)))
            entry = entries.copy
        else:
            operands = self.operands((command.target,))
            variables = self.group((command.nbytes, command.byte))
            entry = entries.fill
        chunks = -(-command.nbytes // COPY_CHUNK_NBYTES)
        self.rows.append((entry, operands, variables, chunks, 0))

    def _add_exec(self, command: Exec) -> None:
        fixed = command.variables
        key = (id(command.kernel), command.serial, *fixed.items())
        kind = self.kinds.get(key)
        if kind is None:
            kind = self.kinds[key] = self._kind(command)
        operands = self.operands(command.buffers)
        variables = self.group(kind.group) if kind.group else 0
        if kind.waiting is not None:
            kind.waiting.append(len(self.rows))
        self.rows.append((command.kernel.address, operands, variables, kind.chunks, kind.serial))
        for place, size, text in kind.sizes:
            self.sizes.setdefault((command.buffers[place], size), text)

    def _kind(self, command: Exec) -> _Kind:
        """What is common to all runs of a kernel with these variables."""
        program, fixed = command.kernel.program, command.variables
        meta = program.meta
        parts = tuple(substitute(part, fixed) for part in meta.work())
        launch = _Launch(substitute(program.chunks, fixed), parts, command.serial)
        chunks, serial, waiting = 0, 0, None
        if all(isinstance(part, int) for part in (launch.chunks, *parts)):
            chunks, serial = launch.words(fixed)
        else:
            waiting = self.launches.setdefault(launch, [])
        self.scratch.setdefault(substitute(meta.scratch_nbytes, fixed))
        sizes = [
            (place, substitute(param.nbytes, fixed), f"{param.name!r} of {program.name}")
            for place, param in enumerate(program.params) if param.nbytes is not None
        ]
        return _Kind(
            tuple(fixed.get(name, name) for name in program.variables), waiting, chunks, serial,
            # Sizes that are known were checked when the command was recorded.
            tuple(size for size in sizes if not isinstance(size[1], int)),
        )


class CpuBoundList:
    """The native form of a command list.

    `address` is where the executor finds it, and `scratch_nbytes` what each thread needs beside
    it. `prepare` fills in buffers and variables.
    """

    def __init__(self, commands: CommandList, entries: Entries) -> None:
        recorded = commands.commands
        draft = _Draft(LIST_WORDS + len(recorded) * COMMAND_WORDS)
        for command in recorded:
            draft.add(command, entries)
        self.device = commands.device
        self.labels = tuple(command.label for command in recorded)
        self.scratch_nbytes = 0
        self._needed = list(commands.slot_nbytes)
        self._static_needed = commands.slot_nbytes
        self._pack_slots = Struct(f"={len(self._needed)}q").pack_into
        self._serials: list[int] | None = None
        self.timed = False
        self._values: tuple[int, ...] | None = None
        self._scratch = tuple(draft.scratch)
        self._sizes = tuple(draft.sizes.items())
        self._write_out(draft)
        self._launches = tuple(
            (launch, LIST_WORDS + COMMAND_WORDS * np.array(rows, np.int64))
            for launch, rows in draft.launches.items()
        )
        self._variables = tuple(
            (name, np.array(places, np.int64)) for name, places in draft.variables.items()
        )

    def prepare(
        self, commands: CommandList, buffers: Sequence[Buffer], variables: Mapping[str, int]
    ) -> None:
        """Fill the slots and set the variables; raise DeviceError if they do not fit."""
        if self._values != ():
            values = commands.check_variables(variables)
            if values != self._values:
                # Not before all of it fits are the values those of the list.
                self._values = None
                self._set_variables(variables)
                self._values = values
                self._serials = None
        serials = list(map(_serial_of, buffers))
        if serials != self._serials:
            # What was checked for the submit before holds for the same open buffers.
            self._serials = None
            addresses = commands.addresses(buffers, self._needed)
            self._pack_slots(self._slots_memory, 0, *addresses)
            self._serials = serials

    def set_timed(self, timed: bool) -> None:
        """Say whether the executor is to take the time of each command."""
        self.words[5] = self._at(self._times_at) if timed else 0
        self.timed = timed

    def rows(self) -> Words:
        """Return the commands, one a row of COMMAND_WORDS words."""
        end = LIST_WORDS + len(self.labels) * COMMAND_WORDS
        return self.words[LIST_WORDS:end].reshape(-1, COMMAND_WORDS)

    def apply_patches(self) -> None:
        """Write the slots' addresses to where they are used, as the native executor does."""
        rows = self.words[self._patches_at : self._slots_at].reshape(-1, 3)
        places = (rows[:, 0] - self.address) // _WORD_NBYTES
        self.words[places] = self.slots[rows[:, 1]] + rows[:, 2]

    def _write_out(self, draft: _Draft) -> None:
        """Lay out header, commands, operands and variables, patches, slots, times."""
        patches_at = self._patches_at = draft.tail_at + len(draft.tail)
        slots_at = self._slots_at = patches_at + 3 * len(draft.patches)
        self._times_at = slots_at + len(self._needed)
        total = self._times_at + len(draft.rows) + 1
        # One line more than needed, so that commands can start on a line of the cache.
        storage = np.zeros(total + COMMAND_WORDS, np.int64)
        skip = (-storage.ctypes.data % 64) // _WORD_NBYTES
        self.words: Words = storage[skip : skip + total]
        self.address = int(self.words.ctypes.data)
        self.slots: Words = self.words[slots_at : self._times_at]
        self._slots_memory = self.slots.data
        self.times: Words = self.words[self._times_at :]
        at = self._at
        flat = [at(LIST_WORDS), len(draft.rows), at(patches_at), len(draft.patches), at(slots_at)]
        flat += [0] * (LIST_WORDS - len(flat))
        for entry, operands, variables, chunks, serial in draft.rows:
            flat += (entry, at(operands), at(variables), chunks, serial, 0, 0, 0)
        flat += draft.tail
        for place, slot, offset in draft.patches:
            flat += (at(place), slot, offset)
        self.words[:slots_at] = flat

    def _at(self, index: int) -> int:
        return self.address + index * _WORD_NBYTES

    def _set_variables(self, variables: Mapping[str, int]) -> None:
        for name, places in self._variables:
            self.words[places] = _checked(variables[name])
        for launch, rows in self._launches:
            chunks, serial = launch.words(variables)
            self.words[rows + _CHUNKS] = chunks
            self.words[rows + _SERIAL] = serial
        scratch = [evaluate(expr, variables) for expr in self._scratch]
        self.scratch_nbytes = max(scratch, default=0)
        if self._sizes:
            self._needed = needed_nbytes(
                self._static_needed, self._sizes, variables, self.device
            )


def _checked(value: int) -> int:
    """Return a value of a variable; raise DeviceError if it is no 64-bit integer."""
    if value not in _INT64:
        raise DeviceError("a variable does not fit in 64 bits", found=value)
    return int(value)
