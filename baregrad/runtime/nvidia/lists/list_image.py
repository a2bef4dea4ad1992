"""A command list as a GPU reads it: launch descriptors with their constants, and words.

An image lies in the GPU's memory, where the host patches it between two submissions: addresses of
slots, values of variables, grids, and the timeline's value. What is patched is never in flight.

The launches, with semaphores in front, are one piece of memory (list_launches.py); the words are
another (list_words.py). Time stamps lie in the host's memory, where they are read at once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from baregrad.runtime.commands import Command
from baregrad.runtime.nvidia.abi import methods as m
from baregrad.runtime.nvidia.code.launch_descriptor import ALIGNMENT
from baregrad.runtime.nvidia.driver.doorbell import Ticket
from baregrad.runtime.nvidia.lists.list_launches import (
    PROGRESS,
    SEMAPHORES_NBYTES,
    STAMP_NBYTES,
    ImageKind,
    LaunchTable,
    checked,
)
from baregrad.runtime.nvidia.lists.list_plan import ChannelStep, ListPlan
from baregrad.runtime.nvidia.lists.list_style import ListStyle
from baregrad.runtime.nvidia.lists.list_words import ComputeWriter, CopyWriter

if TYPE_CHECKING:
    from baregrad.runtime.nvidia.driver.device_memory import MemoryBlock
    from baregrad.runtime.nvidia.driver.memory import Allocation
    from baregrad.runtime.nvidia.queue.channel import Channel

# Up to this many addresses are patched one by one, more of them by NumPy.
_FEW = 24
_NOTHING = bytes(SEMAPHORES_NBYTES)
_MASK = 0xFFFFFFFF
# A value that no timeline reaches: words that nobody may submit by their ticket.
_NEVER = (1 << 64) - 1


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
        # without a look at anything else, and their blocks: the list's business.
        self.serials: tuple[int, ...] | None = None
        self.blocks: list[MemoryBlock] = []
        self.addresses: list[int] | None = None
        self.values: tuple[int, ...] | None = None
        # Who wants the times of the submission that is in flight, told before they are gone.
        self.asked: Callable[[], object] | None = None
        self._commands = commands
        self._compute, self._copies = compute, copies
        launches = compute.launches
        assert launches is not None
        self._table = LaunchTable(commands, kind, style, launches.thread_nbytes)
        pieces = compute.gpu.pieces
        self._data_piece = pieces.take(self._table.nbytes, ALIGNMENT)
        self._words_piece = None
        self._stamps: Allocation | None = None
        self._stamp_words: np.ndarray[Any, np.dtype[np.int64]] = np.empty(0, np.int64)
        self._steps = plan.compute
        # The copies that are done when the copying channel signals a value.
        self._copied: dict[int, list[int]] = {}
        copied: list[int] = []
        for step in plan.copies:
            if step.kind == "run":
                copied.append(step.value)
            elif step.kind == "signal":
                self._copied[step.value] = list(copied)
        try:
            if stamps := kind.stamps(len(commands)):
                self._stamps = compute.gpu.memory.pinned(STAMP_NBYTES * stamps)
                view = self._stamps.view[: STAMP_NBYTES * stamps]
                self._stamp_words = np.frombuffer(view, np.int64)
            self._write(plan)
            self._words_piece = pieces.take(4 * (len(self._compute_words)
                                                 + len(self._copy_words)), ALIGNMENT)
            self._place_words()
        except BaseException:
            self.close()
            raise

    def _write(self, plan: ListPlan) -> None:
        table, compute = self._table, self._compute
        table.write(self._data_piece.gpu_va, self._stamps.gpu_va if self._stamps else 0)
        self._patches = table.patches
        self._overlaps = not self.kind.serial and plan.overlaps
        writer = ComputeWriter(
            table, plan.compute, compute.timeline.gpu_va,
            by_action=compute.gpu.generation.launch_by_action,
        )  # fmt: skip
        self._compute_words = writer.words
        self._value_place = writer.value_place
        self._again = writer.again
        self._order = writer.order
        self._has_semaphores = bool(plan.copies) or table.has_progress
        copier = CopyWriter(table, plan.copies, self._copies.timeline.gpu_va)
        self._copy_words = copier.words
        self._copy_patches = copier.patches

    @property
    def progress(self) -> int:
        """How many launches are done, 0 where they do not report it."""
        if self.kind.stamped:
            ends = self._stamp_words[3::4].tolist()
            done = [bool(ends[number]) for number in self._order]
            return done.index(False) if False in done else len(done)
        return int.from_bytes(self._semaphores[PROGRESS : PROGRESS + 8], "little")

    @property
    def words(self) -> tuple[list[int], list[int]]:
        """What the computing channel and the copying one are told, for who shows it."""
        return list(self._compute_words), list(self._copy_words)

    def read(self, address: int, nbytes: int) -> bytes:
        """Return what lies at an address of the image's descriptors, nothing elsewhere."""
        first = address - self._data_piece.gpu_va
        if not 0 <= first < self._table.nbytes:
            return b""
        return bytes(self._data_piece.view[first : first + nbytes])

    @property
    def names(self) -> list[str]:
        """The kernels that are launched."""
        return [name for name, _ in self._table.described(self._order)]

    def suspects(self, program: int) -> list[tuple[str, str]]:
        """Return name and label of the kernels that may have failed.

        `program` is where the code of the failing one begins, 0 if that is not known.
        """
        table, order = self._table, self._order[self.progress :] or self._order
        meant = [
            one for one in order
            if table.launches[one].form.launch.program_address == program
        ]  # fmt: skip
        if meant:
            return table.described(meant[:1])
        return table.described(
            order[:1]
            if (table.has_progress or self.kind.stamped) and not self._overlaps
            else order
        )

    def _place_words(self) -> None:
        """Write all to the GPU's memory, and remember what is patched there."""
        assert self._words_piece is not None
        compute, copies = self._compute_words, self._copy_words
        copy_at = 4 * len(compute)
        self._words_piece.write(0, np.array(compute + copies, np.uint32).tobytes())
        self._data_piece.write(0, self._table.data)
        begin = self._words_piece.gpu_va
        self._entry, self._fresh_entry = (
            gp_entry(begin + 4 * place, len(compute) - place) for place in (self._again, 0)
        )
        self.copy_entry = gp_entry(begin + copy_at, len(copies)) if copies else 0
        view = self._words_piece.view
        self._words: np.ndarray[Any, np.dtype[np.uint32]] = np.frombuffer(view, np.uint32)
        data = self._data_piece.view
        self._longs: np.ndarray[Any, np.dtype[np.int64]] = np.frombuffer(
            data[: self._table.nbytes // 8 * 8], np.int64
        )
        self._quick = data[: self._table.nbytes // 8 * 8].cast("q")
        self._semaphores = data[:SEMAPHORES_NBYTES]
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
        self._changing = [one for one in self._table.launches.values() if one.grid is not None]
        self._ticket = Ticket(
            state=ctypes.addressof(self._compute.ring_state),
            copies=ctypes.addressof(self._copies.ring_state),
            value_address=value_address,
            value=_NEVER,
            entry=self._entry,
            clear_address=self._data_piece.host_address,
            clear_words=SEMAPHORES_NBYTES // 8 if self._has_semaphores else 0,
        )
        # For the port's `go`.
        self.ticket = ctypes.addressof(self._ticket)
        # Nobody has seen these descriptors yet; the memory may have held others.
        self._change()

    def _change(self) -> None:
        """Have the next submission drop what the GPU may have cached of the image."""
        self._fresh = True
        self._ticket.value = _NEVER

    def set_addresses(self, addresses: list[int]) -> None:
        """Patch the slots' addresses."""
        # Where somebody interrupts this, the words are nobody's.
        self.addresses = None
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
            self._data_piece.write(launch.offset, self._table.set_grid(launch, variables))
        self.values = values

    def set_values(self, value: int, copy_value: int) -> None:
        """Say what the timelines have when the list is done; its semaphores begin at zero."""
        if self._has_semaphores:
            self._semaphores[:] = _NOTHING
        self._stamp_words[:] = 0
        self._value[0] = value
        if self.copy_entry:
            self._copy_value[0] = copy_value
        self.value, self.copy_value = value, copy_value

    def take_entry(self) -> int:
        """Return the ring's entry for a submission; its values are those of `set_values`."""
        self._ticket.value = self.value
        fresh, self._fresh = self._fresh, False
        return self._fresh_entry if fresh else self._entry

    def times(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return when each command began and ended, in nanoseconds of the GPU's clock.

        Of launches that overlap, one begins when the one that ended before it had ended.
        """
        stamps: list[int] = self._stamp_words[1::2].tolist()
        if not self.kind.stamped:
            return tuple(stamps[::2]), tuple(stamps[1::2])
        begins, ends = stamps[:-1:2], stamps[1::2]
        now = stamps[-1]
        # What had nothing to do took no time.
        for number, end in enumerate(ends):
            if not end:
                begins[number] = ends[number] = now
        # Launches between two waits overlap; in what order they end, the stamps tell.
        wave: list[int] = []
        for step in (*self._steps, ChannelStep("idle")):
            if step.kind == "run":
                wave.append(step.value)
                continue
            for number in sorted(wave, key=ends.__getitem__):
                begins[number] = now
                now = max(now, ends[number])
            wave = []
            if step.kind == "wait":
                now = max(now, *(ends[number] for number in self._copied[step.value]), 0)
        return tuple(begins), tuple(ends)

    def tell(self) -> None:
        """Tell who asked for the times of the last submission, which is done."""
        asked, self.asked = self.asked, None
        if asked is not None:
            asked()

    def close(self) -> None:
        """Give the memory back; nothing of it is in flight."""
        self.tell()
        for piece in (self._data_piece, self._words_piece, self._stamps):
            if piece is not None:
                piece.close()


def gp_entry(address: int, words: int) -> int:
    """Return the ring's entry for words at an address."""
    return address | m.GP_ENTRY_SUBROUTINE | words << m.GP_ENTRY_LENGTH_SHIFT
