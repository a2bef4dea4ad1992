"""Command lists: what a device is to do, recorded once and submitted many times.

A list is a value. Buffers are given either as they are, and are then kept alive by the list, or
as a Slot: a place in the table of buffers that `submit` is given, so that a replay changes an
address without recording again. Symbolic integers work the same way, by name.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from baregrad.base.errors import DeviceError
from baregrad.program import LaunchExpr, Program, evaluate, substitute
from baregrad.runtime.buffers import Buffer, MemoryDevice

# Where arrays lie at least.
ARRAY_ALIGNMENT = 64


class Kernel:
    """A program loaded on a device; unloaded when nothing refers to it any more.

    `address` is where its entry lies. `handle` is the device's own business.
    """

    __slots__ = ("__weakref__", "address", "device", "handle", "program")

    def __init__(
        self, device: MemoryDevice, program: Program, address: int, handle: object
    ) -> None:
        self.device = device
        self.program = program
        self.address = address
        self.handle = handle

    def __repr__(self) -> str:
        return f"<Kernel {self.program.name} on {self.device.name}>"


@dataclass(frozen=True, slots=True)
class Slot:
    """The buffer that `submit` is given at `index`, from `offset` bytes on."""

    index: int
    offset: int = 0


Operand: TypeAlias = Buffer | Slot


@dataclass(frozen=True, slots=True)
class Exec:
    """Run a kernel. `variables` are the values that stay fixed; the others come with `submit`.

    `serial` keeps it on the submitting thread, for work too small to share.
    """

    kernel: Kernel
    buffers: tuple[Operand, ...]
    variables: Mapping[str, int] = field(default_factory=dict)
    serial: bool = False
    label: str = ""


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy `nbytes` bytes from `source` to `target`; they must not overlap."""

    target: Operand
    source: Operand
    nbytes: int
    label: str = "copy"


@dataclass(frozen=True, slots=True)
class Fill:
    """Set `nbytes` bytes of `target` to the value `byte`."""

    target: Operand
    nbytes: int
    byte: int
    label: str = "fill"


Command: TypeAlias = Exec | Copy | Fill


@dataclass(frozen=True, slots=True)
class Timeline:
    """When each command of a list began and ended, in nanoseconds of one clock.

    own_ns: how much of the time between commands is what timing them took.
    """

    labels: tuple[str, ...]
    begin_ns: tuple[int, ...]
    end_ns: tuple[int, ...]
    own_ns: int = 0

    def durations_ns(self) -> tuple[int, ...]:
        """Return how long each command took."""
        return tuple(end - begin for begin, end in zip(self.begin_ns, self.end_ns, strict=True))


class StartedList:
    """A command list that was started, and whose times are wanted once it is done."""

    @property
    def is_done(self) -> bool:
        """Whether `timeline` would not wait."""
        return True

    @abstractmethod
    def timeline(self) -> Timeline:
        """Return when each command began and ended; wait for that."""


@dataclass(frozen=True, slots=True)
class FinishedList(StartedList):
    """A command list that was done when it was submitted."""

    times: Timeline

    def timeline(self) -> Timeline:
        """Return when each command began and ended."""
        return self.times


class CommandDevice(MemoryDevice):
    """A device to its command lists: memory, and a way to run them.

    `copier` gives a kernel that copies so many bytes from its second array to its first, or None
    where the device's own way of copying is better. Without one, that is so of all. `overlaps`:
    kernels of a list that touch nothing of each other run beside each other.
    """

    overlaps = False
    copier: Callable[[int], Kernel | None] | None = None
    # Of so many runs of a list, one after the other, one is timed command by command where what
    # that costs shall not be felt; the others as a whole, but for some at first.
    timed_every = 1

    @abstractmethod
    def submit(
        self,
        commands: CommandList,
        buffers: Sequence[Buffer] = (),
        variables: Mapping[str, int] | None = None,
        *,
        timed: bool = False,
    ) -> Timeline | None:
        """Run a command list.

        `buffers` fill its slots, in order, and `variables` name the value of each of its symbolic
        integers. With `timed`, waits and returns when each command began and ended.
        """

    def start_timed(
        self,
        commands: CommandList,
        buffers: Sequence[Buffer] = (),
        variables: Mapping[str, int] | None = None,
        *,
        whole: bool = False,
    ) -> StartedList:
        """Start a command list as `submit` does, and have it note its times.

        Where commands overlap, each is given the time since what it waited for, or the one that
        ended before it, had ended, so that times add up to the device's. With `whole`, its timeline
        has one stretch for the list, or one a command where that costs no more.
        """
        # Whoever watches the device is in front of its `submit`, and hears of this list already.
        times = type(self).submit(self, commands, buffers, variables, timed=True)
        assert times is not None
        return FinishedList(times)

    def clock_ns(self) -> int:
        """Return the time by the clock of the device's timelines, in nanoseconds."""
        return time.perf_counter_ns()


class CommandList:
    """A recorder of commands, and then their sequence.

    `exec`, `copy` and `fill` check what they are given and raise DeviceError. The first submit
    binds the list to native form; recording after that raises. `bound` is the device's own.
    """

    def __init__(self, device: CommandDevice) -> None:
        self.device = device
        self.bound: object | None = None
        self._commands: list[Command] = []
        self._slot_nbytes: list[int] = []
        self._slot_writes: list[bool] = []
        self._variables: dict[str, None] = {}

    @property
    def commands(self) -> tuple[Command, ...]:
        """The commands, in order."""
        return tuple(self._commands)

    @property
    def slot_nbytes(self) -> tuple[int, ...]:
        """The least size of each slot's buffer, as far as it is known without variables."""
        return tuple(self._slot_nbytes)

    @property
    def slot_writes(self) -> tuple[bool, ...]:
        """Whether each slot's buffer is written to."""
        return tuple(self._slot_writes)

    @property
    def variables(self) -> tuple[str, ...]:
        """The symbolic integers that `submit` needs a value of."""
        return tuple(self._variables)

    def __len__(self) -> int:
        return len(self._commands)

    def exec(
        self,
        kernel: Kernel,
        buffers: Sequence[Operand],
        variables: Mapping[str, int] | None = None,
        *,
        serial: bool = False,
        label: str = "",
    ) -> None:
        """Record one launch of a kernel; `buffers` in the order of the program's params."""
        program = kernel.program
        if kernel.device is not self.device:
            raise DeviceError(f"{kernel} cannot run on {self.device.name}")
        if len(buffers) != len(program.params):
            raise DeviceError(
                f"{program.name} takes another number of buffers",
                found=len(buffers),
                wanted=len(program.params),
            )
        fixed = dict(variables or {})
        unknown = fixed.keys() - set(program.variables)
        if unknown:
            raise DeviceError(f"{program.name} has no variable {', '.join(sorted(unknown))}")
        for operand, param in zip(buffers, program.params, strict=True):
            size = 0 if param.nbytes is None else substitute(param.nbytes, fixed)
            nbytes = size if isinstance(size, int) else 0
            what = f"the buffer {param.name!r} of {program.name}"
            self._note(operand, nbytes, param.writes, what)
        for name in program.variables:
            if name not in fixed:
                self._variables.setdefault(name)
        self._record(Exec(kernel, tuple(buffers), fixed, serial, label or program.name))

    def copy(self, target: Operand, source: Operand, nbytes: int) -> None:
        """Record a copy of `nbytes` bytes between two ranges that do not overlap."""
        kernel = None
        if self.device.copier is not None and all(map(_is_aligned, (target, source))):
            kernel = self.device.copier(nbytes)
        if kernel is not None:
            self.exec(kernel, (target, source), label="copy")
            return
        self._note(target, nbytes, True, "the target of a copy")
        self._note(source, nbytes, False, "the source of a copy")
        self._record(Copy(target, source, nbytes))

    def fill(self, target: Operand, nbytes: int, byte: int) -> None:
        """Record setting `nbytes` bytes to `byte` (0 to 255)."""
        if not 0 <= byte <= 255:
            raise DeviceError("fill takes the value of one byte", found=byte, wanted="0 to 255")
        self._note(target, nbytes, True, "the target of a fill")
        self._record(Fill(target, nbytes, byte))

    def check_slots(self, buffers: Sequence[Buffer]) -> None:
        """Raise DeviceError unless `buffers` can fill the slots."""
        if len(buffers) != len(self._slot_nbytes):
            raise DeviceError(
                "the command list has another number of slots",
                found=len(buffers),
                wanted=len(self._slot_nbytes),
            )
        for index, buffer in enumerate(buffers):
            needed = self._slot_nbytes[index]
            check_buffer(buffer, self.device, needed, self._slot_writes[index], f"slot {index}")

    def addresses(self, buffers: Sequence[Buffer], needed: Sequence[int]) -> list[int]:
        """Return where the slots' buffers lie, each of which needs as many bytes at least.

        Raises DeviceError unless they can fill the slots.
        """
        if len(buffers) != len(needed):
            self.check_slots(buffers)
        device, slot_writes = self.device, self._slot_writes
        found: list[int] = []
        # Counted by hand: every call of every loop comes here, and `zip` costs as much as the rest.
        slot = 0
        for buffer in buffers:
            if (
                buffer.nbytes < needed[slot]
                or buffer.device is not device
                or buffer.serial < 0
                or (buffer.readonly and slot_writes[slot])
            ):
                check_buffer(buffer, device, needed[slot], slot_writes[slot], f"slot {slot}")
            found.append(buffer.address)
            slot += 1  # noqa: SIM113
        return found

    def check_variables(self, variables: Mapping[str, int]) -> tuple[int, ...]:
        """Return the value of each variable of the list; raise DeviceError if one is missing."""
        try:
            return tuple(variables[name] for name in self._variables)
        except KeyError:
            missing = sorted(self._variables.keys() - variables.keys())
            raise DeviceError(
                f"the command list needs a value of {', '.join(missing)}",
                found=f"values of {sorted(variables)}",
                hint="bind one to the variable (baregrad.bind), or give it when submitting",
            ) from None

    def _record(self, command: Command) -> None:
        if self.bound is not None:
            raise DeviceError("a submitted command list cannot be recorded to", hint="make another")
        self._commands.append(command)

    def _note(self, operand: Operand, nbytes: int, writes: bool, what: str) -> None:
        """Check a buffer now, or keep for `submit` what its slot will need."""
        if not isinstance(operand, Slot):
            check_buffer(operand, self.device, nbytes, writes, what)
            return
        if operand.index < 0 or operand.offset < 0 or nbytes < 0:
            raise DeviceError(f"{what} has a negative size or place", found=operand)
        while len(self._slot_nbytes) <= operand.index:
            self._slot_nbytes.append(0)
            self._slot_writes.append(False)
        needed = operand.offset + nbytes
        self._slot_nbytes[operand.index] = max(self._slot_nbytes[operand.index], needed)
        self._slot_writes[operand.index] |= writes


def needed_nbytes(
    static: Iterable[int],
    sizes: Iterable[tuple[tuple[Operand, LaunchExpr], str]],
    variables: Mapping[str, int],
    device: MemoryDevice,
) -> list[int]:
    """Return the bytes that each slot needs, the sizes that depend on variables included.

    `static` are the slots' sizes that do not; `sizes` are operands, how many bytes of them are used
    and what they are called. Raises DeviceError for a buffer outside the slots that is too small.
    """
    needed = list(static)
    for (operand, expr), what in sizes:
        nbytes = evaluate(expr, variables)
        if isinstance(operand, Slot):
            needed[operand.index] = max(needed[operand.index], operand.offset + nbytes)
        else:
            # Writing was checked when the command was recorded.
            check_buffer(operand, device, nbytes, False, f"the buffer {what}")
    return needed


def _is_aligned(operand: Operand) -> bool:
    """Whether a kernel may take an operand for an array."""
    place = operand.offset if isinstance(operand, Slot) else operand.address
    return place % ARRAY_ALIGNMENT == 0


def check_buffer(
    buffer: Buffer, device: MemoryDevice, nbytes: int, writes: bool, what: str
) -> None:
    """Raise DeviceError unless a buffer is open, here, large enough and writable if it must be."""
    if buffer.closed:
        raise DeviceError(f"{what} is a closed buffer")
    if buffer.device is not device:
        raise DeviceError(
            f"{what} is on another device", found=buffer.device.name, wanted=device.name
        )
    if nbytes < 0 or buffer.nbytes < nbytes:
        raise DeviceError(f"{what} is too small", found=f"{buffer.nbytes} bytes", wanted=nbytes)
    if writes and buffer.readonly:
        raise DeviceError(f"{what} would be written and is read-only", hint="copy it first")

