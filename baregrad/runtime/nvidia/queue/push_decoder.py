"""What a pushbuffer tells a GPU: methods by name, and the launches, copies and waits they make."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from baregrad.base.errors import BaregradError
from baregrad.runtime.nvidia.abi import methods as m
from baregrad.runtime.nvidia.abi.vendor import VendorTables
from baregrad.runtime.nvidia.code.descriptor_fields import DescriptorLayout, descriptor_layout
from baregrad.target.nvidia import NVIDIA_ROWS

# Reads so many bytes at an address of the GPU.
ReadMemory = Callable[[int, int], bytes]
_INCREASE, _STAY, _IMMEDIATE, _INCREASE_ONCE, _END_SEGMENT = 1, 3, 4, 5, 7
_HOST_METHODS_END = 0x100
_LAYOUTS = MappingProxyType({
    row.compute_class: row.launch_descriptor[0] for row in NVIDIA_ROWS
})  # fmt: skip
_OPERATIONS = MappingProxyType({
    0: "wait for =", 1: "release", 2: "wait for >=", 3: "wait for >= (circular)",
    4: "wait for all bits", 5: "wait for no bits", 6: "reduce",
})  # fmt: skip
# clcbc0.h:474: the address of a descriptor whose words follow, in units of 256 bytes.
_INLINE_UPPER, _INLINE_LOWER, _INLINE_DATA, _INLINE_NBYTES = 0x318, 0x31C, 0x320, 512
# clcbc0.h:161..245: a copy of words that stand in the pushbuffer.
_I2M_LENGTH, _I2M_UPPER, _I2M_LOWER, _I2M_LAUNCH, _I2M_DATA = 0x180, 0x188, 0x18C, 0x1B0, 0x1B4
# clcbc0.h:439: those actions of a signal that begin a launch, not only fetch or forget one.
_SCHEDULING = frozenset({2, 3, 9, 10, 11})
# Words that are kept by blocks, which descriptors begin at, and how many blocks at most.
_BLOCK_WORDS, _MOST_BLOCKS = 64, 1 << 12


# Methods of any unit that do something: all others set a value.
_ACTING = frozenset({
    m.HOST["SET_OBJECT"].address, m.HOST["SEM_EXECUTE"].address, m.COPY["LAUNCH_DMA"].address,
    _INLINE_UPPER, _INLINE_LOWER, _I2M_LAUNCH, _I2M_DATA,
    m.COMPUTE["SEND_SIGNALING_PCAS_B"].address, m.COMPUTE["SEND_SIGNALING_PCAS2_B"].address,
})  # fmt: skip


@dataclass(frozen=True)
class PushedWork:
    """Something that a GPU is told to do: `kind` is launch, copy, semaphore, wait or bind."""

    kind: str
    text: str
    values: tuple[tuple[str, object], ...] = ()

    def value(self, name: str) -> object:
        """Return one of the values."""
        return dict(self.values)[name]


@dataclass
class PushDecoder:
    """One channel's methods, as its units keep them.

    `read` reads the GPU's addresses and returns nothing for such as cannot be read. Words that make
    no sense end their segment and are counted, with methods that have no name, in `unknown`.
    """

    tables: VendorTables
    read: ReadMemory
    bound: dict[int, int] = field(default_factory=dict)
    state: dict[tuple[int, int], int] = field(default_factory=dict)
    unknown: Counter[str] = field(default_factory=Counter)
    methods: int = 0
    _inline: bytearray = field(default_factory=bytearray)
    _launched: int = -1
    # Methods that have a name and do nothing but set a value: most are such.
    _quiet: set[tuple[int, int]] = field(default_factory=set)
    # What a header said that is not there yet: its data may go on in the next segment.
    _open: list[int] = field(default_factory=list)
    # Words that the pushbuffer itself wrote into memory, by block: descriptors come so.
    _written: dict[int, list[int | None]] = field(default_factory=dict)
    _target: int = 0

    def feed(self, data: bytes) -> Iterator[PushedWork]:
        """Yield the work of a segment."""
        words = struct.unpack(f"<{len(data) // 4}I", data[: len(data) // 4 * 4])
        at = 0
        while at < len(words):
            if self._open:
                kind, channel, method, number, count = self._open
                here = min(count - number, len(words) - at)
                self._open = [kind, channel, method, number + here, count]
                if number + here == count:
                    self._open = []
                yield from self._run(kind, channel, method, number, words[at : at + here])
                at += here
                continue
            header = words[at]
            at += 1
            kind, count = header >> 29, header >> 16 & 0x1FFF
            channel, method = header >> 13 & 7, (header & 0xFFF) * 4
            if kind == _IMMEDIATE:
                yield from self._run(_STAY, channel, method, 0, (count,))
            elif kind == _END_SEGMENT:
                return
            elif kind in (_INCREASE, _STAY, _INCREASE_ONCE):
                self._open = [kind, channel, method, 0, count] if count else []
            elif header:
                self.unknown[f"header {header:#010x}"] += 1
                return

    def _run(
        self, kind: int, channel: int, method: int, number: int, words: tuple[int, ...]
    ) -> Iterator[PushedWork]:
        """Yield the work of words below one header, the first of which is its `number`th."""
        self.methods += len(words)
        if kind == _INCREASE_ONCE:
            if not number:
                yield from self._method(channel, method, words[0])
                words = words[1:]
            kind, method = _STAY, method + 4
        elif kind == _INCREASE:
            method += 4 * number
        if len(words) > 1 and self.unit(channel) == "compute":
            # Most words are data, which can be taken in one piece.
            if kind == _STAY and method == _I2M_DATA:
                self._keep(words[:-1])
                words = words[-1:]
            elif kind == _INCREASE and _in_descriptor(method, len(words)):
                yield from self._take_inline(channel, words[:-1])
                method, words = method + 4 * (len(words) - 1), words[-1:]
        step = 4 if kind == _INCREASE else 0
        for index, word in enumerate(words):
            key = (channel, method + step * index)
            if key in self._quiet:
                self.state[key] = word
            else:
                yield from self._method(channel, method + step * index, word)

    def unit(self, channel: int) -> str:
        """Return which unit a subchannel speaks to: by its object, or by the usual number."""
        kind = self.bound.get(channel)
        if kind is None:
            return "copy" if channel == 4 else "compute" if channel == 1 else "other"
        return {0xC0: "compute", 0xB5: "copy"}.get(kind & 0xFF, "other")

    def name(self, channel: int, method: int) -> str:
        """Return the name of a method, or a number."""
        unit = "host" if method < _HOST_METHODS_END else self.unit(channel)
        found = self.tables.methods.get(unit, {}).get(method)
        return found or f"{unit} method {method:#x}"

    def _method(self, channel: int, method: int, data: int) -> Iterator[PushedWork]:
        key, unit = (channel, method), self.unit(channel)
        self.state[key] = data
        name = self.name(channel, method)
        if " " in name:
            self.unknown[name] += 1
        elif method not in _ACTING and not _in_descriptor(method, 1):
            self._quiet.add(key)
        if method < _HOST_METHODS_END:
            yield from self._host(channel, method, data)
        elif unit == "compute":
            yield from self._compute(channel, method, data)
        elif unit == "copy" and method == m.COPY["LAUNCH_DMA"].address:
            yield from self._copy(channel, data)

    def _host(self, channel: int, method: int, data: int) -> Iterator[PushedWork]:
        if method == m.HOST["SET_OBJECT"].address:
            self.bound[channel] = data & 0xFFFF
            self._quiet.clear()
            named = self.tables.classes.get(data & 0xFFFF)
            yield PushedWork("bind", f"subchannel {channel} speaks to "
                       f"{named.name if named else hex(data)}", (("class", data & 0xFFFF),))
        elif method == m.HOST["SEM_EXECUTE"].address:
            part = m.HOST["SEM_EXECUTE"].read
            # The host unit is one for all subchannels.
            kept = {at: value for (_, at), value in self.state.items() if at < _HOST_METHODS_END}
            address = kept.get(0x60, 0) << 32 | kept.get(0x5C, 0)
            value = kept.get(0x64, 0)
            if part(data, "PAYLOAD_SIZE"):
                value |= kept.get(0x68, 0) << 32
            operation = _OPERATIONS.get(part(data, "OPERATION"), "unknown")
            kind = "wait" if operation.startswith("wait") else "semaphore"
            yield PushedWork(kind, f"{operation} {value:#x} at {address:#x}",
                       (("address", address), ("value", value)))  # fmt: skip

    def _pair(self, channel: int, upper: int, lower: int) -> int:
        return self.state.get((channel, upper), 0) << 32 | self.state.get((channel, lower), 0)

    def _copy(self, channel: int, data: int) -> Iterator[PushedWork]:
        part = m.COPY["LAUNCH_DMA"].read
        if part(data, "DATA_TRANSFER_TYPE") != m.TRANSFER_NONE:
            source, target = (self._pair(channel, at, at + 4) for at in (0x400, 0x408))
            nbytes = self.state.get((channel, 0x418), 0)
            lines = self.state.get((channel, 0x41C), 1) if part(data, "MULTI_LINE_ENABLE") else 1
            what = "fill" if part(data, "REMAP_ENABLE") else "copy"
            size = f"{nbytes} bytes" + (f" in {lines} lines" if lines > 1 else "")
            yield PushedWork("copy", f"{what} {size} from {source:#x} to {target:#x}",
                       (("source", source), ("target", target), ("nbytes", nbytes),
                        ("lines", lines)))  # fmt: skip
        if part(data, "SEMAPHORE_TYPE") != m.SEMAPHORE_NONE:
            address = self._pair(channel, 0x240, 0x244)
            value = self.state.get((channel, 0x248), 0)
            yield PushedWork("semaphore", f"release {value:#x} at {address:#x} after copies",
                       (("address", address), ("value", value)))  # fmt: skip

    def _compute(self, channel: int, method: int, data: int) -> Iterator[PushedWork]:
        table = m.COMPUTE
        if method in (_INLINE_UPPER, _INLINE_LOWER):
            self._inline.clear()
        elif _in_descriptor(method, 1):
            yield from self._take_inline(channel, (data,))
        elif method == _I2M_DATA:
            self._keep((data,))
        elif method == _I2M_LAUNCH:
            place = self._target = self._pair(channel, _I2M_UPPER, _I2M_LOWER)
            nbytes = self.state.get((channel, _I2M_LENGTH), 0)
            yield PushedWork("copy", f"write {nbytes} bytes of the pushbuffer to {place:#x}",
                       (("source", 0), ("target", place), ("nbytes", nbytes), ("lines", 1)))
        elif method in (
            table["SEND_SIGNALING_PCAS2_B"].address, table["SEND_SIGNALING_PCAS_B"].address
        ):  # fmt: skip
            if not _starts(method, data):
                return
            place = self.state.get((channel, table["SEND_PCAS_A"].address), 0) << 8
            layout = self._layout(channel)
            if layout is not None and place != self._launched:
                yield self._launch(self._memory(place, layout.nbytes), layout, place)
            self._launched = -1

    def _take_inline(self, channel: int, words: tuple[int, ...]) -> Iterator[PushedWork]:
        """Take words of a descriptor that stands in the pushbuffer; the last one launches it."""
        layout = self._layout(channel)
        short = len(words) if layout is None else (layout.nbytes - len(self._inline)) // 4
        self._inline += struct.pack(f"<{len(words)}I", *words)
        if layout is not None and 0 < short <= len(words):
            place = (self.state.get((channel, _INLINE_UPPER), 0) & 0x1FF) << 40
            place |= self.state.get((channel, _INLINE_LOWER), 0) << 8
            self._launched = place
            yield self._launch(bytes(self._inline[: layout.nbytes]), layout, place)

    def _keep(self, words: tuple[int, ...]) -> None:
        """Keep words that the pushbuffer writes into memory; the oldest blocks go in time."""
        at, target = 0, self._target // 4
        self._target += 4 * len(words)
        while at < len(words):
            block, first = divmod(target + at, _BLOCK_WORDS)
            count = min(_BLOCK_WORDS - first, len(words) - at)
            # Written anew, a block is the newest.
            kept = self._written.pop(block, None) or [None] * _BLOCK_WORDS
            kept[first : first + count] = words[at : at + count]
            self._written[block] = kept
            at += count
        if len(self._written) > _MOST_BLOCKS:
            for block in list(self._written)[: _MOST_BLOCKS // 2]:
                del self._written[block]

    def _written_words(self, address: int, nbytes: int) -> list[int | None]:
        """Return the words that the pushbuffer wrote at an address, None for those it did not."""
        first, count = address // (4 * _BLOCK_WORDS), nbytes // 4
        skipped = address // 4 % _BLOCK_WORDS
        kept: list[int | None] = []
        for block in range(first, first + -(-(skipped + count) // _BLOCK_WORDS)):
            kept += self._written.get(block) or [None] * _BLOCK_WORDS
        return kept[skipped : skipped + count]

    def kept(self, address: int, nbytes: int) -> bytes:
        """Return what the pushbuffer wrote at an address, up to where it is not known."""
        words = self._written_words(address, nbytes)
        count = next((at for at, word in enumerate(words) if word is None), len(words))
        return struct.pack(f"<{count}I", *[word for word in words[:count] if word is not None])

    def _memory(self, address: int, nbytes: int) -> bytes:
        """Read the GPU's memory, with what the pushbuffer wrote and may not be there yet."""
        kept, count = self._written_words(address, nbytes), nbytes // 4
        whole = [word for word in kept if word is not None]
        if len(whole) == count:
            return struct.pack(f"<{count}I", *whole)
        found = self.read(address, nbytes)
        if len(found) < nbytes and any(whole):
            found = found.ljust(nbytes, b"\0")
        data = bytearray(found)
        for index, word in enumerate(kept if data else ()):
            if word is not None:
                data[4 * index : 4 * index + 4] = word.to_bytes(4, "little")
        return bytes(data)

    def _layout(self, channel: int) -> DescriptorLayout | None:
        major = _LAYOUTS.get(self.bound.get(channel, 0))
        return descriptor_layout(major) if major else None

    def _launch(self, data: bytes, layout: DescriptorLayout, place: int) -> PushedWork:
        if len(data) < layout.nbytes:
            text = f"launch of a descriptor at {place:#x} that cannot be read"
            return PushedWork("launch", text, (("descriptor", place),))
        try:
            found = {
                name: tuple(layout.read(data, f"{name}_{way}") for way in ways)
                for name, ways in (("grid", ("width", "height", "depth")),
                                   ("block", ("width", "height", "depth")))
            }  # fmt: skip
            cluster = _cluster(layout, data)
            grid = tuple(one * two for one, two in zip(found["grid"], cluster, strict=True))
            registers, shared, program = (
                layout.read(data, name)
                for name in ("register_count", "shared_nbytes", "program_address")
            )
        except BaregradError as error:
            text = f"launch of a descriptor at {place:#x}: {error}"
            return PushedWork("launch", text, (("descriptor", place),))
        if not program and not any(grid):
            text = f"empty descriptor at {place:#x}, which starts no program"
            return PushedWork("empty", text, (("descriptor", place),))
        clusters = f", clusters {cluster}" if cluster != (1, 1, 1) else ""
        text = (
            f"launch of {program:#x}: grid {grid}, block {found['block']}{clusters}, "
            f"{registers} registers, {shared} bytes of shared memory"
        )
        return PushedWork("launch", text, (
            ("descriptor", place), ("program", program), ("grid", grid),
            ("block", found["block"]), ("registers", registers), ("shared", shared),
        ))  # fmt: skip


def _in_descriptor(method: int, count: int) -> bool:
    """Whether methods from one on are words of a descriptor that stands in the pushbuffer."""
    return _INLINE_DATA <= method and method + 4 * count <= _INLINE_DATA + _INLINE_NBYTES


def _starts(method: int, data: int) -> bool:
    """Whether a signal to the unit that hands out blocks schedules the descriptor."""
    if method == m.COMPUTE["SEND_SIGNALING_PCAS_B"].address:
        return bool(m.COMPUTE["SEND_SIGNALING_PCAS_B"].read(data, "SCHEDULE"))
    return m.COMPUTE["SEND_SIGNALING_PCAS2_B"].read(data, "PCAS_ACTION") in _SCHEDULING


def _cluster(layout: DescriptorLayout, data: bytes) -> tuple[int, ...]:
    """Return the blocks of a cluster: the grid's extents count clusters where there are any."""
    if "grid_kind" not in layout.fields or layout.read(data, "grid_kind") != 3:
        return (1, 1, 1)
    return tuple(layout.read(data, f"cluster_{way}") for way in ("width", "height", "depth"))


def methods_of(words: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """Yield the methods of whole segments: place of the word, subchannel, method, data."""
    at = 0
    while at < len(words):
        header = words[at]
        kind, count = header >> 29, header >> 16 & 0x1FFF
        channel, method = header >> 13 & 7, (header & 0xFFF) * 4
        if kind == _IMMEDIATE:
            yield at, channel, method, count
            count = 0
        elif kind == _END_SEGMENT:
            return
        for number, word in enumerate(words[at + 1 : at + 1 + count]):
            step = number if kind == _INCREASE else min(number, kind == _INCREASE_ONCE)
            yield at + 1 + number, channel, method + 4 * step, word
        at += 1 + count
