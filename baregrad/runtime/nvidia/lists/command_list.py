"""A command list bound to a GPU: its images, and what a submission checks and patches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import and_, attrgetter, lt
from typing import TYPE_CHECKING

from baregrad.base.errors import CompileError, DriverError, OutOfMemory
from baregrad.program import LaunchExpr, evaluate, substitute
from baregrad.runtime.buffers import Buffer
from baregrad.runtime.commands import (
    Command,
    CommandList,
    Exec,
    Fill,
    Operand,
    Slot,
    check_buffer,
    needed_nbytes,
)
from baregrad.runtime.nvidia.lists.list_image import ListImage
from baregrad.runtime.nvidia.lists.list_launches import ImageKind
from baregrad.runtime.nvidia.lists.list_plan import ListPlan, plan_list, reads_early
from baregrad.runtime.nvidia.lists.list_style import ListStyle
from baregrad.runtime.slot_table import symbolic_sizes
from baregrad.runtime.tensor_map import NBYTES as MAP_NBYTES

if TYPE_CHECKING:
    from baregrad.program import Program
    from baregrad.runtime.nvidia.code.cubin import CubinKernel
    from baregrad.runtime.nvidia.driver.device_memory import MemoryBlock
    from baregrad.runtime.nvidia.queue.channel import Channel

# How many images of a kind a list has: while one is in flight, the other is patched. A short list
# has more, _IMAGE_LAUNCHES launches in all of them: one kernel is run over other arrays in turn, as
# those of a model's layers are, and an image that is patched for its arrays is submitted at once.
# Of one that runs for as long as it takes to tell the host that it is done, _ALIKE for the same
# arrays keep the GPU at work.
_IMAGES, _MOST_IMAGES, _IMAGE_LAUNCHES, _ALIKE = 2, 32, 128, 4
# Buffers come back if they are among the last so many that images were patched for.
_REMEMBERED = 64
_value_of = attrgetter("value")
_serial_of, _nbytes_of, _readonly_of, _device_of, _address_of, _block_of = map(
    attrgetter, ("serial", "nbytes", "readonly", "device", "address", "_memory.block")
)


class NvBoundList:
    """The native form of a command list.

    `ready` returns an image that is not in flight, patched for these buffers and variables but for
    the timelines' values. `retire` is given images that are not needed any more.
    """

    def __init__(
        self, commands: CommandList, style: ListStyle, retire: Callable[[ListImage], None]
    ) -> None:
        recorded = commands.commands
        self.commands = recorded
        self.device = commands.device
        self.labels = tuple(command.label for command in recorded)
        self._style = style
        self._retire = retire
        self._images: dict[ImageKind, list[ListImage]] = {}
        self._static_needed = list(commands.slot_nbytes)
        self._needed = self._static_needed
        self._writes = commands.slot_writes
        self._values: tuple[int, ...] = ()
        self._skipped: frozenset[int] = frozenset()
        self._sizes = symbolic_sizes(recorded)
        self._grids = _symbolic_grids(recorded)
        self._empty = frozenset(_empty_launches(recorded))
        self._skipped = self._empty
        self._stale = True
        self._symbolic = bool(commands.variables)
        self.fixed = _fixed_blocks(recorded)
        self.local_nbytes = max(
            (
                one.kernel.handle.local_nbytes  # type: ignore[attr-defined]
                for one in recorded
                if isinstance(one, Exec)
            ),
            default=0,
        )
        self._plans: dict[ImageKind, ListPlan] = {}
        self._slot_fills = {
            one.target.index
            for one in recorded
            if isinstance(one, Fill) and isinstance(one.target, Slot) and one.nbytes % 4 == 0
        }
        self._kind = ImageKind(skipped=self._skipped)
        self._plain: list[ListImage] = []
        self._most_images = max(
            _IMAGES, min(_MOST_IMAGES, _IMAGE_LAUNCHES // max(len(recorded), 1))
        )
        # How many are made for the same arrays.
        self.most_alike = min(_ALIKE, self._most_images)
        # Addresses that images were patched for, the last ones.
        self._patched: deque[list[int]] = deque(maxlen=_REMEMBERED)
        self._images[self._kind] = self._plain
        # Images that may be submitted again as they are, by the serials of their buffers.
        self.quick: dict[tuple[int, ...], list[ListImage]] = {}
        self._reads_early = any(map(reads_early, recorded))
        self._relaxed = self._plan(self._kind).relaxed

    def _plan(self, kind: ImageKind) -> ListPlan:
        found = self._plans.get(kind)
        if found is None:
            found = self._plans[kind] = plan_list(
                self.commands, serial=kind.serial, timed=kind.timed, stamped=kind.stamped,
                skipped=kind.skipped,
            )  # fmt: skip
        return found

    def ready(
        self,
        commands: CommandList,
        buffers: Sequence[Buffer],
        variables: Mapping[str, int],
        channels: tuple[Channel, Channel],
        wait: Callable[[Channel, int], None],
        *,
        timed: bool,
        stamped: bool = False,
        another: bool = False,
    ) -> tuple[ListImage, list[MemoryBlock]]:
        """Return an image for a submission, and the blocks of the buffers.

        `timed` and `stamped` are those of ImageKind. With `another`, those for the same buffers
        were in flight: there is going to be one more, as long as there are few.
        If all images are in flight, one is awaited by `wait`. Raises DeviceError for buffers and
        variables that do not fit.
        """
        if self._stale or self._symbolic:
            self._set_variables(commands, variables)
        if len(buffers) != len(self._needed):
            commands.check_slots(buffers)
        serials = tuple(map(_serial_of, buffers))
        self._check(buffers, serials)
        blocks: list[MemoryBlock] = list(map(_block_of, buffers))
        addresses = list(map(_address_of, buffers))
        kind = self._kind
        images: list[ListImage] | None = self._plain
        if timed:
            kind, images = kind._replace(timed=True), None
        elif (self._relaxed or self._reads_early) and self._shared(buffers, blocks):
            kind, images = kind._replace(serial=True), None
        if stamped:
            kind, images = kind._replace(stamped=True), None
        if self._slot_fills and any(addresses[slot] % 4 for slot in self._slot_fills):
            kind, images = kind._replace(bytewise=True), None
        if images is None:
            images = self._images.setdefault(kind, [])
        image = self._free_image(kind, images, addresses, channels, wait, another)
        image.tell()
        # What is there for the first time may be so for the last one.
        is_known = image.addresses == addresses or addresses in self._patched
        if image.addresses != addresses:
            self._patched.append(addresses)
            self._set_serials(image, None)
            image.set_addresses(addresses)
        if image.values != self._values:
            image.set_variables(self._values, variables)
        if is_known and images is self._plain and not (self._symbolic or image.copy_entry):
            image.blocks = list(dict.fromkeys(blocks))
            self._set_serials(image, serials)
        return image, blocks

    def _check(self, buffers: Sequence[Buffer], serials: tuple[int, ...]) -> None:
        """Raise DeviceError for buffers that do not fit, of these serials."""
        # One step of the interpreter for all of them, as far as that goes: calls wait for this.
        if (
            -1 in serials
            or any(map(lt, map(_nbytes_of, buffers), self._needed))
            or any(map(and_, map(_readonly_of, buffers), self._writes))
            or not {self.device}.issuperset(map(_device_of, buffers))
        ):
            needed, writes = self._needed, self._writes
            for index, buffer in enumerate(buffers):
                check_buffer(
                    buffer, self.device, needed[index], writes[index], f"slot {index}"
                )

    def _set_serials(self, image: ListImage, serials: tuple[int, ...] | None) -> None:
        """Note the buffers that an image may be submitted for as it is, None for none.

        Whoever interrupts it leaves an image that is known by none, never one known by others'.
        """
        if image.serials == serials:
            return
        if image.serials is not None:
            others = [one for one in self.quick.pop(image.serials, ()) if one is not image]
            if others:
                self.quick[image.serials] = others
        image.serials = serials
        if serials is not None:
            self.quick.setdefault(serials, []).append(image)

    def _free_image(
        self,
        kind: ImageKind,
        images: list[ListImage],
        addresses: list[int],
        channels: tuple[Channel, Channel],
        wait: Callable[[Channel, int], None],
        another: bool,
    ) -> ListImage:
        compute, copies = channels
        done, copied = compute.words[0], copies.words[0]
        alike = [image for image in images if image.addresses == addresses]
        another = another and len(alike) < self.most_alike and len(images) < self._most_images
        for image in () if another else alike:
            if image.value <= done and image.copy_value <= copied:
                return image
        if len(alike) >= self.most_alike:
            return _awaited(min(alike, key=_value_of), channels, wait)
        oldest = min(images, key=_value_of, default=None)
        if oldest is not None:
            has_room = len(images) < self._most_images
            if not another and oldest.value <= done and oldest.copy_value <= copied:
                if not (has_room and addresses in self._patched):
                    return oldest
            elif not has_room:
                return _awaited(oldest, channels, wait)
        try:
            image = ListImage(self.commands, self._plan(kind), kind, self._style, compute, copies)
        except (OutOfMemory, DriverError):
            # One will do, where the GPU's memory that the host sees is full.
            if oldest is None:
                raise
            return _awaited(oldest, channels, wait)
        images.append(image)
        return image

    def forget(self) -> None:
        """Let go of all images; they are made anew when they are needed."""
        for image in self._all_images():
            self._retire(image)
        self._plain = []
        self._images = {self._kind: self._plain}
        self.quick = {}
        self._plans = {}

    def _all_images(self) -> Iterator[ListImage]:
        for images in self._images.values():
            yield from images

    def __del__(self) -> None:
        images = self.__dict__.get("_images")
        if images:
            for image in self._all_images():
                self._retire(image)

    # Variables.

    def _set_variables(self, commands: CommandList, variables: Mapping[str, int]) -> None:
        values = commands.check_variables(variables)
        if values == self._values and not self._stale:
            return
        self._stale = True
        needed = needed_nbytes(self._static_needed, self._sizes.items(), variables, self.device)
        skipped = set(self._empty)
        for number, grid in self._grids:
            if any(evaluate(size, variables) < 1 for size in grid):
                skipped.add(number)
        if skipped != self._skipped:
            self._skipped = frozenset(skipped)
            self._kind = ImageKind(skipped=self._skipped)
            self.forget()
        self._relaxed = self._plan(self._kind).relaxed
        self._needed = needed
        self._values = values
        self._stale = False

    def _shared(self, buffers: Sequence[Buffer], blocks: Sequence[MemoryBlock]) -> bool:
        """Return whether two slots, or a slot and a fixed buffer, may be the same memory."""
        distinct = set(blocks)
        if len(distinct) == len(blocks) and distinct.isdisjoint(self.fixed):
            return False
        if not distinct.isdisjoint(self.fixed):
            return True
        ranges = sorted(
            (buffer.address, buffer.address + buffer.nbytes, writes)
            for buffer, writes in zip(buffers, self._writes, strict=True)
        )
        # A written range may reach over several that follow it.
        end, written_end = 0, 0
        for begin, stop, writes in ranges:
            if begin < written_end or (writes and begin < end):
                return True
            end = max(end, stop)
            if writes:
                written_end = max(written_end, stop)
        return False


def _awaited(
    image: ListImage, channels: tuple[Channel, Channel], wait: Callable[[Channel, int], None]
) -> ListImage:
    """Return an image when it is not in flight any more."""
    for channel, value in zip(channels, (image.value, image.copy_value), strict=True):
        wait(channel, value)
    return image


def _fixed_blocks(commands: Sequence[Command]) -> frozenset[MemoryBlock]:
    found = set()
    for command in commands:
        operands: tuple[Operand, ...]
        if isinstance(command, Exec):
            operands = command.buffers
        elif isinstance(command, Fill):
            operands = (command.target,)
        else:
            operands = (command.target, command.source)
        for operand in operands:
            if not isinstance(operand, Slot):
                found.add(operand.memory.block)  # type: ignore[attr-defined]
    return frozenset(found)


def _grids(commands: Sequence[Command]) -> Iterator[tuple[int, tuple[LaunchExpr, ...]]]:
    for number, command in enumerate(commands):
        if isinstance(command, Exec):
            launch = command.kernel.program.launch
            assert launch is not None
            yield number, tuple(substitute(size, command.variables) for size in launch.grid)


def _symbolic_grids(commands: Sequence[Command]) -> list[tuple[int, tuple[LaunchExpr, ...]]]:
    return [
        (number, grid)
        for number, grid in _grids(commands)
        if not all(isinstance(size, int) for size in grid)
    ]


def _empty_launches(commands: Sequence[Command]) -> Iterator[int]:
    for number, grid in _grids(commands):
        if any(isinstance(size, int) and size < 1 for size in grid):
            yield number


def check_parameters(program: Program, facts: CubinKernel) -> None:
    """Raise CompileError unless a kernel takes what its program says.

    64 bits for each buffer and variable, and tensor maps.
    """
    wanted = len(program.params) + len(program.variables)
    sizes = [parameter.nbytes for parameter in facts.parameters]
    if sizes != [8] * wanted + [MAP_NBYTES] * len(program.maps):
        raise CompileError(
            f"the kernel of {program.name!r} has other parameters than its program",
            source=program.source,
            found=f"parameters of {sizes} bytes",
            wanted=f"{wanted} of 8 bytes, {len(program.maps)} of {MAP_NBYTES}",
        )
