"""The launches of a command list's image: descriptors with their constants, and what links them.

The piece of memory begins with three semaphores: the signals of either channel, and the number of
launches that are done.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from baregrad.base.bits import round_up
from baregrad.base.errors import DeviceError
from baregrad.program import LaunchExpr, evaluate, substitute
from baregrad.runtime.commands import Command, Exec, Slot
from baregrad.runtime.nvidia.code.constant_bank import write_grid, write_place
from baregrad.runtime.nvidia.code.launch_descriptor import (
    ALIGNMENT,
    SemaphoreRelease,
    release_payload_offset,
    write_grid_units,
    write_kept,
    write_latch,
    write_release,
)
from baregrad.runtime.nvidia.lists.list_plan import reads_early, written_before
from baregrad.runtime.nvidia.lists.list_style import ListStyle
from baregrad.runtime.tensor_map import map_of

if TYPE_CHECKING:
    from baregrad.runtime.nvidia.lists.launch import GpuKernel
    from baregrad.runtime.nvidia.queue.batch import LaunchForm

Triple = tuple[int, int, int]
SEMAPHORES_NBYTES = 48
STAMP_NBYTES = 16
# The share of its shared memory that a multiprocessor is set up with for kernels that need none of
# it, as (part, of), at most: what is not shared is the first cache, where loads under way are.
SHARED = (3, 5)
_INT64 = range(-(1 << 63), 1 << 63)
# Where an image has its semaphores: the signals of the channel that computes, the answers of the
# one that copies, and how many kernels are done.
SIGNAL, ANSWER, PROGRESS = 0, 16, 32


class ImageKind(NamedTuple):
    """What makes images of one list differ.

    `serial`: nothing overlaps. `timed`: with stamps around each command, which is serial too.
    `stamped`: overlapping, with a stamp at the list's begin and at each launch's end, and stamps
    around copies. `bytewise`: fills of slots take any address. `skipped`: launches that have
    nothing to do.
    """

    serial: bool = False
    timed: bool = False
    bytewise: bool = False
    skipped: frozenset[int] = frozenset()
    stamped: bool = False

    def stamps(self, commands: int) -> int:
        """Return how many stamps an image of so many commands has."""
        return 2 * commands * (self.timed or self.stamped) + self.stamped


@dataclass(slots=True)
class SlotPatches:
    """Places of 64-bit words by slot and by variable, in the piece of launches."""

    places: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    variables: dict[str, list[int]] = field(default_factory=dict)

    def add(self, place: int, slot: Slot) -> None:
        """Have the 64-bit word at `place` patched with the address of a slot."""
        self.places.append(place)
        self.slots.append(slot.index)
        self.offsets.append(slot.offset)


@dataclass(frozen=True, slots=True)
class ListLaunch:
    """A launch of the image: its command, its form, where it lies, its grid if that changes."""

    number: int
    form: LaunchForm
    offset: int
    grid: tuple[LaunchExpr, LaunchExpr, LaunchExpr] | None
    fixed: Mapping[str, int]


class LaunchTable:
    """The launches of a list's commands, laid out behind each other; `write` makes their bytes.

    `data` are the bytes, `nbytes` of them, and `patches` the places of what changes in them.
    """

    def __init__(
        self, commands: Sequence[Command], kind: ImageKind, style: ListStyle, local_nbytes: int
    ) -> None:
        self._commands = commands
        self.kind = kind
        self.style = style
        self._local_nbytes = local_nbytes
        self._written_before = written_before(commands)
        self.launches: dict[int, ListLaunch] = {}
        self._lay_out()

    def _lay_out(self, shared_kib: int = 0) -> None:
        """Lay the launches out, for multiprocessors that are set up with so much memory.

        One that is to be set up anew waits until it is empty. So where kernels keep weights there
        before they wait, those between them are launched with as much.
        """
        place = round_up(SEMAPHORES_NBYTES, ALIGNMENT)
        for number, command in enumerate(self._commands):
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
            form = self._form(command, sizes, shared_kib)  # type: ignore[arg-type]
            self.launches[number] = ListLaunch(number, form, place, changes, fixed)
            place += round_up(form.nbytes, ALIGNMENT)
        self.nbytes = place
        if not any(map(reads_early, self._commands)):
            return
        part, of = SHARED
        configs = [one.form.launch.shared_config for one in self.launches.values()]
        wished = max([
            one.target_kib for one in configs if one.target_kib * of <= one.most_kib * part
        ], default=0)  # fmt: skip
        if wished > shared_kib:
            self._lay_out(wished)

    def _form(self, command: Exec, grid: Triple, shared_kib: int) -> LaunchForm:
        launch = command.kernel.program.launch
        assert launch is not None
        kernel: GpuKernel = command.kernel.handle.kernel  # type: ignore[attr-defined]
        return kernel.form(
            grid, launch.block,
            shared_nbytes=launch.shared_nbytes,
            cluster=(launch.cluster, 1, 1),
            manners=self.style.between,
            shared_kib=shared_kib,
        )  # fmt: skip

    def write(self, base: int, stamps_va: int = 0) -> None:
        """Make the bytes of the launches, which are going to lie at an address, as are stamps."""
        self._base = base
        self._stamps_va = stamps_va
        self.patches = SlotPatches()
        self.data = bytearray(self.nbytes)
        for launch in self.launches.values():
            self._write_launch(launch)

    def _write_launch(self, launch: ListLaunch) -> None:
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
                self.patches.add((begin + bank_at + place) // 8, operand)
            else:
                struct.pack_into("<Q", bank, place, operand.address)
        names = command.kernel.program.variables
        maps = command.kernel.program.maps
        mapped = count + len(names)
        for spec, parameter in zip(maps, kernel.facts.parameters[mapped:], strict=True):
            place = first + parameter.offset
            operand = command.buffers[spec.param]
            if isinstance(operand, Slot):
                # A map begins with its array's address, 64 bits.
                self.patches.add((begin + bank_at + place) // 8, operand)
            address = 0 if isinstance(operand, Slot) else operand.address
            bank[place : place + parameter.nbytes] = map_of(spec, address)
        for name, parameter in zip(names, kernel.facts.parameters[count:mapped], strict=True):
            place = first + parameter.offset
            if name in command.variables:
                struct.pack_into("<q", bank, place, checked(command.variables[name]))
            else:
                word = (begin + bank_at + place) // 8
                self.patches.variables.setdefault(name, []).append(word)
        self.data[begin : begin + len(data)] = data

    def launch_va(self, number: int) -> int:
        """Return where the descriptor of a command's launch lies."""
        return self._base + self.launches[number].offset

    def follow(self, number: int, after: int) -> None:
        """Have the launch of command `after` followed by that of `number`."""
        launch = self.launches[after]
        launch.form.follow(self.data, launch.offset, self.launch_va(number))
        if self._may_begin_early(number):
            for one, waits in ((launch, False), (self.launches[number], True)):
                view = memoryview(self.data)[one.offset :]
                write_latch(view, one.form.layout, number + 1, waits=waits)
                if waits and self.style.late_drop:
                    write_kept(view, one.form.layout)

    def _may_begin_early(self, number: int) -> bool:
        """Return whether a launch may begin before the one in front of it in a chain has ended.

        Its kernel must wait (`GpuLaunch.waits`); the one in front may be any. Why that is right:

        - Every thread waits before it touches memory that others write, and the wait returns when
          the one in front has ended and its writes are seen (PTX ISA, `griddepcontrol.wait`); the
          latch drops what the multiprocessor has cached till then.
        - Launches further in front have ended too. Either the one in front began early as well:
          then its own threads waited before they ended, and so on back. Or it began when all in
          front of it had ended. So a kernel that does not wait may stand anywhere in a chain.
        - What a kernel reads before it waits (`GpuLaunch.early`) no command ahead of it in the list
          writes: else it does not begin early. All that was submitted before has ended when the
          head of the chain begins, which drops what is cached. Where slots may be the same memory
          none of these kernels begins early.
        - A launch in front lets the next one begin when its last block has begun, so blocks that
          wait never keep one that they wait for from its place.
        - What a launch reads before the wait (descriptor, bank 0 with its arguments, code) is
          written by the host before the list is submitted, while nothing of the image is in flight.
        - A launch ends when all its threads have, so not before the one in front has: the last one
          of a chain ends last, and that it releases the timeline then is true of all.
        - Copies and stamps are between chains: the channel goes on to them when the engine is idle,
          which it is not before the last launch of a chain has ended. The head of a chain never
          begins early, nor do launches that need nothing of each other, which are in no chain.
          Where slots may be the same memory, each launch waits for the one before, in one chain.
        """
        launch = self.launches[number]
        command = self._commands[number]
        assert isinstance(command, Exec) and command.kernel.program.launch is not None
        can = "wait_latch" in launch.form.layout.fields
        if reads_early(command) and (self.kind.serial or number in self._written_before):
            return False
        return self.style.early and can and command.kernel.program.launch.waits

    def finish(self, number: int, release: SemaphoreRelease | None = None) -> int:
        """Make a launch the last of a run; return where its release has its value, if any."""
        launch = self.launches[number]
        layout = launch.form.layout
        view = memoryview(self.data)[launch.offset :]
        if self.style.last.barrier != self.style.between.barrier:
            layout.write(view, "completion_barrier", self.style.last.barrier)
        if release is None:
            return 0
        write_release(view, release, layout)
        return launch.offset + release_payload_offset(layout)

    @property
    def has_progress(self) -> bool:
        """Whether launches write their numbers when they are done."""
        # Of one launch it is known which one fails. Those with stamps write these in its place.
        several = len(self.launches) > 1 and not self.kind.stamped
        return self.style.progress and several and self.can_release

    def write_progress(self, number: int, value: int) -> None:
        """Have the launch of a command write a value when it is done."""
        launch = self.launches[number]
        launch.form.write_progress(self.data, launch.offset, self._base + PROGRESS, value)

    def write_stamp(self, number: int) -> None:
        """Have the launch of a command write the time when it is done."""
        launch = self.launches[number]
        place = self.stamp_va(2 * number + 1)
        launch.form.write_progress(self.data, launch.offset, place, 1, stamped=True)

    @property
    def can_release(self) -> bool:
        """Whether a launch can release a timeline."""
        return self.launches[next(iter(self.launches))].form.can_release

    def semaphore(self, which: int) -> int:
        """Return where a semaphore of the image lies."""
        return self._base + which

    def stamp_va(self, place: int) -> int:
        """Return where a time stamp is written."""
        return self._stamps_va + STAMP_NBYTES * place

    @property
    def begin_stamp_va(self) -> int:
        """Where the time is written at which the list begins."""
        return self.stamp_va(2 * len(self._commands))

    def command(self, number: int) -> Command:
        """Return a command of the list."""
        return self._commands[number]

    def set_grid(self, launch: ListLaunch, variables: Mapping[str, int]) -> bytearray:
        """Write a launch's grid anew; return what has changed of it, from its offset on."""
        assert launch.grid is not None
        known = {**variables, **launch.fixed}
        x, y, z = (evaluate(size, known) for size in launch.grid)
        grid = x, y, z
        command = self._commands[launch.number]
        assert isinstance(command, Exec)
        form, kernel = launch.form, command.kernel.handle.kernel  # type: ignore[attr-defined]
        end = launch.offset + form.nbytes
        view = memoryview(self.data)[launch.offset : end]
        changed = dataclasses.replace(form.launch, grid=grid)
        write_grid_units(view, changed, form.layout)
        write_grid(view[form.bank_offset :], kernel.bank_layout, grid, form.launch.cluster)
        # Parameters may have been patched since: they stay.
        head = form.bank_offset + kernel.bank_layout.parameter_base
        return self.data[launch.offset : launch.offset + head]

    def described(self, numbers: Sequence[int]) -> list[tuple[str, str]]:
        """Return name and label of the kernels that commands launch."""
        found = []
        for number in numbers:
            command = self._commands[number]
            assert isinstance(command, Exec)
            found.append((command.kernel.program.name, command.label))
        return found


def checked(value: int) -> int:
    """Return a value of a variable; raise DeviceError if it is no 64-bit integer."""
    if value not in _INT64:
        raise DeviceError("a variable does not fit in 64 bits", found=value)
    return int(value)


def _grid_size(size: LaunchExpr, fixed: Mapping[str, int]) -> int | None:
    found = substitute(size, fixed)
    return found if isinstance(found, int) else None
