"""A command list as a GPU reads it: launch descriptors with their constants, and words.

An image lies in the GPU's memory, where the host patches it between two submissions: addresses of
slots, values of variables, grids, and the timeline's value. What is patched is never in flight.

Memory of an image, in one piece: three semaphores (the signals of either channel, a gate at which
the channel waits for chained kernels), time stamps, and the launches; the words are another piece.
"""

from __future__ import annotations

import ctypes
import dataclasses
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from baregrad.base.bits import round_up
from baregrad.base.errors import DeviceError
from baregrad.program import LaunchExpr, evaluate
from baregrad.runtime.commands import Command, Exec, Slot
from baregrad.runtime.nvidia.abi import methods as m
from baregrad.runtime.nvidia.code.constant_bank import write_grid, write_place
from baregrad.runtime.nvidia.code.launch_descriptor import (
    ALIGNMENT,
    Release,
    release_payload_offset,
    write_grid_units,
    write_kept,
    write_latch,
    write_release,
)
from baregrad.runtime.nvidia.driver.doorbell import Ticket
from baregrad.runtime.nvidia.lists.list_plan import ListPlan
from baregrad.runtime.nvidia.lists.list_style import ListStyle
from baregrad.runtime.nvidia.lists.list_words import HOLD, PROGRESS, ComputeWriter, CopyWriter

if TYPE_CHECKING:
    from baregrad.runtime.nvidia.driver.device_memory import Block
    from baregrad.runtime.nvidia.lists.launch import Kernel as GpuKernel
    from baregrad.runtime.nvidia.queue.batch import LaunchForm
    from baregrad.runtime.nvidia.queue.channel import Channel

Triple = tuple[int, int, int]
_STAMPS = 64
_STAMP_NBYTES = 16
# So many addresses are patched one by one, more of them by NumPy.
_FEW = 24
_NOTHING = bytes(_STAMPS)
_INT64 = range(-(1 << 63), 1 << 63)
_MASK = 0xFFFFFFFF
# A value that no timeline reaches: words that nobody may submit by their ticket.
_NEVER = (1 << 64) - 1


class ImageKind(NamedTuple):
    """What makes images of one list differ.

    `serial`: nothing overlaps. `timed`: with stamps. `bytewise`: fills of slots take any address.
    `skipped`: launches that have nothing to do.
    """

    serial: bool = False
    timed: bool = False
    bytewise: bool = False
    skipped: frozenset[int] = frozenset()


@dataclass(slots=True)
class _Patches:
    """Places of 64-bit words by slot and by variable, in the piece of launches."""

    places: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    variables: dict[str, list[int]] = field(default_factory=dict)

    def add(self, place: int, slot: Slot) -> None:
        self.places.append(place)
        self.slots.append(slot.index)
        self.offsets.append(slot.offset)


@dataclass(frozen=True, slots=True)
class _Launch:
    """A launch of the image: its command, its form, where it lies, its grid if that changes."""

    number: int
    form: LaunchForm
    offset: int
    grid: tuple[LaunchExpr, LaunchExpr, LaunchExpr] | None
    fixed: Mapping[str, int]


class ListImage:
    """One image, in flight until the timelines have `value` and `copy_value`."""

    def __init__(
        self,
        commands: Sequence[Command],
        plan: ListPlan,
        kind: ImageKind,
        style: ListStyle,
        compute: Channel,
        copies: Channel,
    ) -> None:
        self.kind = kind
        self.value = self.copy_value = 0
        # The buffers that the image was last patched for, if it may be submitted again for them
        # without a look at anything else, and their blocks.
        self.serials: list[int] | None = None
        self.blocks: list[Block] = []
        self.addresses: list[int] | None = None
        self.values: tuple[int, ...] | None = None
        self._commands = commands
        self._compute, self._copies = compute, copies
        self._style = style
        launches = compute.launches
        assert launches is not None
        self._local_nbytes = launches.thread_nbytes
        self._layout_launches(commands)
        pieces = compute.gpu.pieces
        self._data_piece = pieces.take(self._nbytes, ALIGNMENT)
        self._words_piece = None
        try:
            self._base = self._data_piece.gpu_va
            self._write(plan)
            self._words_piece = pieces.take(4 * (len(self._compute_words)
                                                 + len(self._copy_words)), ALIGNMENT)
            self._place_words()
        except BaseException:
            self.close()
            raise

    # Layout.

    def _layout_launches(self, commands: Sequence[Command]) -> None:
        place = _STAMPS
        if self.kind.timed:
            place += 2 * _STAMP_NBYTES * len(commands)
        place = round_up(place, ALIGNMENT)
        self._launches: dict[int, _Launch] = {}
        for number, command in enumerate(commands):
            if not isinstance(command, Exec) or number in self.kind.skipped:
                continue
            launch = command.kernel.program.launch
            assert launch is not None
            grid = launch.grid
            known = all(isinstance(size, int) for size in grid)
            fixed = command.variables
            sizes = grid if known else tuple(_grid_size(size, fixed) for size in grid)
            changes = None
            if any(size is None for size in sizes):
                changes, sizes = grid, (launch.cluster, 1, 1)
            form = self._form(command, sizes)  # type: ignore[arg-type]
            self._launches[number] = _Launch(number, form, place, changes, fixed)
            place += round_up(form.nbytes, ALIGNMENT)
        self._nbytes = place

    def _form(self, command: Exec, grid: Triple) -> LaunchForm:
        launch = command.kernel.program.launch
        assert launch is not None
        kernel: GpuKernel = command.kernel.handle.kernel  # type: ignore[attr-defined]
        return kernel.form(
            grid, launch.block,
            shared_nbytes=launch.shared_nbytes,
            cluster=(launch.cluster, 1, 1),
            manners=self._style.between,
        )  # fmt: skip

    # Contents.

    def _write(self, plan: ListPlan) -> None:
        self._patches = _Patches()
        self._data = bytearray(self._nbytes)
        for launch in self._launches.values():
            self._write_launch(launch)
        self._overlaps = not self.kind.serial and plan.overlaps
        writer = ComputeWriter(self, plan.compute)
        self._compute_words = writer.words
        self._value_place = writer.value_place
        self.released = writer.released
        self._first, self._again = writer.first, writer.again
        self._order = writer.order
        self._gated = writer.gated or bool(plan.copies) or self.tells_progress
        copier = CopyWriter(self, plan.copies)
        self._copy_words = copier.words
        self._copy_patches = copier.patches

    def _write_launch(self, launch: _Launch) -> None:
        command = self._commands[launch.number]
        assert isinstance(command, Exec)
        form, kernel = launch.form, command.kernel.handle.kernel  # type: ignore[attr-defined]
        data, begin = form.image(self._local_nbytes), launch.offset
        bank_at = form.bank_offset
        form.bank_slot.fill(data, self._base + begin + bank_at)
        bank = memoryview(data)[bank_at:]
        write_place(bank, kernel.bank_layout, self._base + begin + bank_at)
        first = kernel.facts.parameter_base
        count = len(command.buffers)
        for operand, parameter in zip(command.buffers, kernel.facts.parameters, strict=False):
            place = first + parameter.offset
            if isinstance(operand, Slot):
                self._patches.add((begin + bank_at + place) // 8, operand)
            else:
                struct.pack_into("<Q", bank, place, operand.address)
        names = command.kernel.program.variables
        for name, parameter in zip(names, kernel.facts.parameters[count:], strict=True):
            place = first + parameter.offset
            if name in command.variables:
                struct.pack_into("<q", bank, place, checked(command.variables[name]))
            else:
                word = (begin + bank_at + place) // 8
                self._patches.variables.setdefault(name, []).append(word)
        self._data[begin : begin + len(data)] = data

    def launch_va(self, number: int) -> int:
        """Return where the descriptor of a command's launch lies."""
        return self._base + self._launches[number].offset

    def follow(self, number: int, after: int) -> None:
        """Have the launch of command `after` followed by that of `number`."""
        launch = self._launches[after]
        launch.form.follow(self._data, launch.offset, self.launch_va(number))
        if self._may_begin_early(number):
            for one, waits in ((launch, False), (self._launches[number], True)):
                view = memoryview(self._data)[one.offset :]
                write_latch(view, one.form.layout, number + 1, waits=waits)
                if waits and self._style.late_drop:
                    write_kept(view, one.form.layout)

    def _may_begin_early(self, number: int) -> bool:
        """Return whether a launch may begin before the one in front of it in a chain has ended.

        Its kernel must wait (`GpuLaunch.waits`); the one in front may be any. Why that is right:

        - Every thread waits before it touches memory, and the wait returns when the launch in front
          has ended and its writes are seen (PTX ISA, `griddepcontrol.wait`); the latch drops what
          the multiprocessor has cached till then.
        - Launches further in front have ended too. Either the one in front began early as well:
          then its own threads waited before they ended, and so on back. Or it began when all in
          front of it had ended. So a kernel that does not wait may stand anywhere in a chain.
        - A launch in front lets the next one begin when its last block has begun, so blocks that
          wait never keep one that they wait for from its place.
        - What a launch reads before the wait (descriptor, bank 0 with its arguments, code) is
          written by the host before the list is submitted, while nothing of the image is in flight.
        - A launch ends when all its threads have, so not before the one in front has: the last one
          of a chain ends last, and what it tells then (gate, timeline) is true of all.
        - Copies and stamps are between chains: the channel goes on to them when the last launch of
          a chain has opened its gate. The head of a chain never begins early, nor do launches that
          need nothing of each other, which are in no chain. Where slots may be the same memory,
          each launch waits for the one before, in one chain.
        """
        launch = self._launches[number]
        command = self._commands[number]
        assert isinstance(command, Exec) and command.kernel.program.launch is not None
        can = "wait_latch" in launch.form.layout.fields
        return self._style.early and can and command.kernel.program.launch.waits

    def finish(self, number: int, release: Release | None = None) -> int:
        """Make a launch the last of a run; return where its release has its value, if any."""
        launch = self._launches[number]
        layout = launch.form.layout
        view = memoryview(self._data)[launch.offset :]
        if self._style.last.barrier != self._style.between.barrier:
            layout.write(view, "completion_barrier", self._style.last.barrier)
        if release is None:
            return 0
        write_release(view, release, layout)
        return launch.offset + release_payload_offset(layout)

    @property
    def tells_progress(self) -> bool:
        """Whether launches write their numbers when they are done."""
        # Of one launch it is known which one fails.
        return self._style.progress and len(self._launches) > 1 and self.can_release

    def tell_progress(self, number: int, value: int) -> None:
        """Have the launch of a command write a value when it is done."""
        launch = self._launches[number]
        launch.form.tell_progress(self._data, launch.offset, self._base + PROGRESS, value)

    @property
    def progress(self) -> int:
        """How many launches are done, 0 where they do not tell."""
        return int.from_bytes(self._semaphores[PROGRESS : PROGRESS + 8], "little")

    @property
    def names(self) -> list[str]:
        """The kernels that are launched."""
        return [name for name, _ in self._told(self._order)]

    def suspects(self, program: int) -> list[tuple[str, str]]:
        """Return name and label of the kernels that may have failed.

        `program` is where the code of the failing one begins, 0 if that is not known.
        """
        order = self._order[self.progress :] or self._order
        meant = [one for one in order if self._launches[one].form.launch.program_address == program]
        if meant:
            return self._told(meant[:1])
        return self._told(order[:1] if self.tells_progress and not self._overlaps else order)

    def _told(self, numbers: Sequence[int]) -> list[tuple[str, str]]:
        found = []
        for number in numbers:
            command = self._commands[number]
            assert isinstance(command, Exec)
            found.append((command.kernel.program.name, command.label))
        return found

    @property
    def by_action(self) -> bool:
        """Whether launches are sent by an action."""
        return self._compute.gpu.generation.launch_by_action

    @property
    def style(self) -> ListStyle:
        """How kernels follow each other."""
        return self._style

    @property
    def timeline_va(self) -> int:
        """Where the computing channel's timeline lies."""
        return self._compute.timeline.gpu_va

    @property
    def copy_timeline_va(self) -> int:
        """Where the copying channel's timeline lies."""
        return self._copies.timeline.gpu_va

    @property
    def can_release(self) -> bool:
        """Whether a launch can tell a timeline."""
        return self._launches[next(iter(self._launches))].form.can_tell

    def semaphore(self, which: int) -> int:
        """Return where a semaphore of the image lies."""
        return self._base + which

    def stamp_va(self, place: int) -> int:
        """Return where a time stamp is written."""
        return self._base + _STAMPS + _STAMP_NBYTES * place

    def command(self, number: int) -> Command:
        """Return a command of the list."""
        return self._commands[number]

    # In the GPU's memory.

    def _place_words(self) -> None:
        """Write all to the GPU's memory, and remember what is patched there."""
        assert self._words_piece is not None
        compute, copies = self._compute_words, self._copy_words
        copy_at = 4 * len(compute)
        self._words_piece.write(0, np.array(compute + copies, np.uint32).tobytes())
        self._data_piece.write(0, self._data)
        begin = self._words_piece.gpu_va
        self._entry, self._fresh_entry, self._held_entry = (
            gp_entry(begin + 4 * place, len(compute) - place)
            for place in (self._again, self._first, 0)
        )
        self.copy_entry = gp_entry(begin + copy_at, len(copies)) if copies else 0
        view = self._words_piece.view
        self._hold = view[HOLD : HOLD + 8].cast("Q")
        self._words: np.ndarray[Any, np.dtype[np.uint32]] = np.frombuffer(view, np.uint32)
        data = self._data_piece.view
        self._longs: np.ndarray[Any, np.dtype[np.int64]] = np.frombuffer(
            data[: self._nbytes // 8 * 8], np.int64
        )
        self._quick = data[: self._nbytes // 8 * 8].cast("q")
        self._semaphores = data[:_STAMPS]
        if self._value_place < 0:
            place = 4 * (-self._value_place)
            self._value = view[place : place + 8].cast("Q")
            value_address = self._words_piece.host_address + place
        else:
            self._value = data[self._value_place : self._value_place + 8].cast("Q")
            value_address = self._data_piece.host_address + self._value_place
        self._copy_value = view[:0].cast("Q")
        if copies:
            place = copy_at + 4 * (len(copies) - 3)
            self._copy_value = view[place : place + 8].cast("Q")
        self._places = np.array(self._patches.places, np.int64)
        self._place_slots = np.array(self._patches.slots, np.int64)
        self._place_offsets = np.array(self._patches.offsets, np.int64)
        self._copy_places = np.array(
            [(place + len(compute), *rest) for place, *rest in self._copy_patches], np.int64
        ).reshape(-1, 3)
        self._variables = [
            (name, np.array(places, np.int64)) for name, places in self._patches.variables.items()
        ]
        self._changing = [one for one in self._launches.values() if one.grid is not None]
        self._ticket = Ticket(
            state=ctypes.addressof(self._compute.ring_state),
            copies=ctypes.addressof(self._copies.ring_state),
            value_address=value_address,
            value=_NEVER,
            entry=self._entry,
            clear_address=self._data_piece.host_address,
            clear_words=_STAMPS // 8 if self._gated else 0,
            holds=self.released,
            held_entry=self._held_entry,
            hold_address=self._words_piece.host_address + HOLD,
        )
        # For the port's `go`.
        self.ticket = ctypes.addressof(self._ticket)
        # Nobody has seen these descriptors yet; the memory may have held others.
        self._change()

    def _change(self) -> None:
        """Have the next submission tell the GPU that something is not what it may have cached."""
        self._fresh = True
        self._ticket.value = _NEVER

    def set_addresses(self, addresses: list[int]) -> None:
        """Patch the slots' addresses."""
        self.serials = None
        self._change()
        if len(self._patches.places) <= _FEW:
            words = self._quick
            patches = self._patches
            for place, slot, offset in zip(
                patches.places, patches.slots, patches.offsets, strict=True
            ):
                words[place] = addresses[slot] + offset
            if not self._copy_patches:
                self.addresses = addresses
                return
        table = np.array(addresses, np.int64)
        if len(self._places) > _FEW:
            self._longs[self._places] = table[self._place_slots] + self._place_offsets
        if len(self._copy_places):
            places = self._copy_places
            found = table[places[:, 1]] + places[:, 2]
            self._words[places[:, 0]] = found >> 32
            self._words[places[:, 0] + 1] = found & _MASK
        self.addresses = addresses

    def set_variables(self, values: tuple[int, ...], variables: Mapping[str, int]) -> None:
        """Patch the values of variables, and the grids that they decide."""
        self.values = None
        self._change()
        for name, places in self._variables:
            self._longs[places] = checked(variables[name])
        for launch in self._changing:
            assert launch.grid is not None
            known = {**variables, **launch.fixed}
            x, y, z = (evaluate(size, known) for size in launch.grid)
            self._set_grid(launch, (x, y, z))
        self.values = values

    def _set_grid(self, launch: _Launch, grid: Triple) -> None:
        command = self._commands[launch.number]
        assert isinstance(command, Exec)
        form, kernel = launch.form, command.kernel.handle.kernel  # type: ignore[attr-defined]
        end = launch.offset + form.nbytes
        view = memoryview(self._data)[launch.offset : end]
        changed = dataclasses.replace(form.launch, grid=grid)
        write_grid_units(view, changed, form.layout)
        write_grid(view[form.bank_offset :], kernel.bank_layout, grid, form.launch.cluster)
        # Parameters may have been patched since: they stay.
        head = form.bank_offset + kernel.bank_layout.parameter_base
        self._data_piece.write(launch.offset, self._data[launch.offset : launch.offset + head])

    def set_values(self, value: int, copy_value: int) -> None:
        """Say what the timelines have when the list is done; its semaphores begin at zero."""
        if self._gated:
            self._semaphores[:] = _NOTHING
        self._value[0] = value
        if self.copy_entry:
            self._copy_value[0] = copy_value
        self.value, self.copy_value = value, copy_value

    def take_entry(self, hold: int = 0) -> int:
        """Return the ring's entry for a submission; `set_values` was told its values.

        With `hold`, its words wait for that value of the timeline first.
        """
        self._ticket.value = self.value
        fresh, self._fresh = self._fresh, False
        if hold:
            self._hold[0] = hold
            return self._held_entry
        return self._fresh_entry if fresh else self._entry

    def stamps(self) -> list[int]:
        """Return the stamps' times in nanoseconds of the GPU's clock."""
        words = self._longs[_STAMPS // 8 : _STAMPS // 8 + 4 * len(self._commands)]
        times: list[int] = words[1::2].tolist()
        return times

    def close(self) -> None:
        """Give the memory back; nothing of it is in flight."""
        for piece in (self._data_piece, self._words_piece):
            if piece is not None:
                piece.close()


def gp_entry(address: int, words: int) -> int:
    """Return the ring's entry for words at an address."""
    return address | m.GP_ENTRY_SUBROUTINE | words << m.GP_ENTRY_LENGTH_SHIFT


def checked(value: int) -> int:
    """Return a value of a variable; raise DeviceError if it is no 64-bit integer."""
    if value not in _INT64:
        raise DeviceError("a variable does not fit in 64 bits", found=value)
    return int(value)


def _grid_size(size: LaunchExpr, fixed: Mapping[str, int]) -> int | None:
    from baregrad.program import substitute

    found = substitute(size, fixed)
    return found if isinstance(found, int) else None
