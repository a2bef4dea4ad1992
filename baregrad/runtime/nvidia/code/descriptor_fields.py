"""Where each field of a launch descriptor lies, one table for each version.

A launch descriptor holds all that the compute engine knows of one grid: program, shape, resources,
constant banks, what to write when it is done and what to run next. It is a structure of bits that
changed with the generations: version 2.3 on Turing, 3.0 on Ampere and Ada, 4.0 on Hopper and 5.0 on
Blackwell.

Sources: the vendor's open-gpu-doc, classes/compute/: clc5c0qmd.h:44..243 (2.3),
clc6c0qmd.h:484..759 (3.0), clcbc0qmd.h:312..548 (4.0), clcdc0qmd.h:31..321 (5.0). The bit ranges
below are those of the headers, high bit first. Neighbouring halves of one address are one range
here, and of three releases the first two are listed: the third lies at no regular distance.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from baregrad.base.bits import ceil_div, round_up
from baregrad.base.errors import ArgumentError, FileFormatError, IndexOutOfRange, UnsupportedError


@dataclass(frozen=True, slots=True)
class DescriptorField:
    """Bits of a descriptor: ranges (high, low), the least significant one first.

    The field holds the value without its `shift` lowest bits. There are `count` of it, one every
    `step` bits.
    """

    ranges: tuple[tuple[int, int], ...]
    shift: int = 0
    count: int = 1
    step: int = 0

    @property
    def width(self) -> int:
        """Bits of the field."""
        return sum(high - low + 1 for high, low in self.ranges)

    def pieces(self, index: int) -> Iterator[tuple[int, int]]:
        """Yield (lowest bit, width) of each range of element `index`."""
        for high, low in self.ranges:
            yield low + index * self.step, high - low + 1


_WORD = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class DescriptorSlot:
    """Where a field lies whose bits are zero yet, to be filled in quickly: 64 bits at `offset`."""

    offset: int
    shift: int
    dropped: int

    def fill(self, data: bytearray, value: int, begin: int = 0) -> None:
        """Put a value that is known to fit into the descriptor that begins at byte `begin`."""
        offset = begin + self.offset
        (word,) = _WORD.unpack_from(data, offset)
        _WORD.pack_into(data, offset, word | value >> self.dropped << self.shift)


@dataclass(frozen=True, slots=True)
class DescriptorLayout:
    """One version of the descriptor: its size and its fields by name.

    A descriptor lies at a multiple of 256 bytes, below 2**40; a constant bank at a multiple of
    `bank_alignment`.
    """

    version: tuple[int, int]
    nbytes: int
    bank_alignment: int
    fields: Mapping[str, DescriptorField]

    @property
    def stride_nbytes(self) -> int:
        """Bytes from one descriptor to what may follow it, a descriptor or a bank."""
        return round_up(self.nbytes, 256)

    def write(self, data: bytearray | memoryview, name: str, value: int, index: int = 0) -> None:
        """Put a value into a descriptor; raise ArgumentError where it does not fit its field."""
        field = self._field(name, index)
        rest = value >> field.shift
        if rest << field.shift != value or not 0 <= rest < 1 << field.width:
            raise ArgumentError(
                f"{name} of a launch descriptor does not fit its {field.width} bits",
                found=f"{value:#x}",
                wanted=f"a multiple of {1 << field.shift} below 2**{field.width + field.shift}",
            )
        for low, width in field.pieces(index):
            _put(data, low, width, rest & ((1 << width) - 1))
            rest >>= width

    def slot(self, name: str, index: int = 0) -> DescriptorSlot:
        """Return where a field lies that has one range of bits."""
        field = self._field(name, index)
        ((low, _),) = field.pieces(index)
        offset = min(low // 8, self.nbytes - 8)
        return DescriptorSlot(offset, low - 8 * offset, field.shift)

    def read(self, data: bytes | bytearray | memoryview, name: str, index: int = 0) -> int:
        """Return a value of a descriptor."""
        field = self._field(name, index)
        value = done = 0
        for low, width in field.pieces(index):
            value |= _get(data, low, width) << done
            done += width
        return value << field.shift

    def encode(self, values: Mapping[tuple[str, int], int]) -> bytearray:
        """Return a descriptor with values by (name, index); all else is zero."""
        data = bytearray(self.nbytes)
        for (name, index), value in values.items():
            self.write(data, name, value, index)
        return data

    def decode(self, data: bytes | bytearray | memoryview) -> dict[tuple[str, int], int]:
        """Return the fields of a descriptor that are not zero, by (name, index).

        Raises FileFormatError for a descriptor that is too short or of another version.
        """
        if len(data) < self.nbytes:
            raise FileFormatError(
                "a launch descriptor is cut short", found=len(data), wanted=self.nbytes
            )
        found = (self.read(data, "major_version"), self.read(data, "minor_version"))
        if found != self.version:
            raise FileFormatError(
                "a launch descriptor is of another version", found=found, wanted=self.version
            )
        values = {}
        for name, field in self.fields.items():
            for index in range(field.count):
                value = self.read(data, name, index)
                if value:
                    values[name, index] = value
        return values

    def _field(self, name: str, index: int) -> DescriptorField:
        field = self.fields.get(name)
        if field is None:
            raise UnsupportedError(
                f"launch descriptors of version {self.version[0]}.{self.version[1]} "
                f"have no field {name!r}"
            )
        if not 0 <= index < field.count:
            raise IndexOutOfRange(f"a launch descriptor has {field.count} of {name}", found=index)
        return field


def _put(data: bytearray | memoryview, low: int, width: int, value: int) -> None:
    begin, shift = low // 8, low % 8
    end = begin + ceil_div(shift + width, 8)
    kept = int.from_bytes(data[begin:end], "little") & ~(((1 << width) - 1) << shift)
    data[begin:end] = (kept | value << shift).to_bytes(end - begin, "little")


def _get(data: bytes | bytearray | memoryview, low: int, width: int) -> int:
    begin, shift = low // 8, low % 8
    end = begin + ceil_div(shift + width, 8)
    return int.from_bytes(data[begin:end], "little") >> shift & ((1 << width) - 1)


def _at(high: int, low: int, shift: int = 0) -> DescriptorField:
    return DescriptorField(((high, low),), shift)


def _each(high: int, low: int, step: int, count: int, shift: int = 0) -> DescriptorField:
    return DescriptorField(((high, low),), shift, count, step)


# Fields that 2.3 and 3.0 have at the same places.
_TURING_TO_ADA = MappingProxyType({
    "group": _at(133, 128),
    "global_caching": _at(134, 134),
    "invalidate_texture_header": _at(186, 186),
    "invalidate_sampler": _at(187, 187),
    "invalidate_texture_data": _at(188, 188),
    "invalidate_shader_data": _at(189, 189),
    "invalidate_instruction": _at(190, 190),
    "invalidate_constant": _at(191, 191),
    "completion_barrier": _at(369, 368),
    "no_call_limit": _at(378, 378),
    "sampler_by_header": _at(382, 382),
    "grid_width": _at(415, 384),
    "grid_height": _at(431, 416),
    "grid_depth": _at(463, 448),
    "next_address": _at(511, 480, shift=8),
    "shared_nbytes": _at(561, 544),
    "minor_version": _at(579, 576),
    "major_version": _at(583, 580),
    "block_width": _at(607, 592),
    "block_height": _at(623, 608),
    "block_depth": _at(639, 624),
    "bank_valid": _each(640, 640, 1, 8),
    "register_count": _at(656, 648),
    "bank_address": _each(1072, 1024, 64, 8),
    "bank_invalidate": _each(1074, 1074, 64, 8),
    "bank_nbytes": _each(1087, 1075, 64, 8, shift=4),
    "program_address": _at(1584, 1536),
})

VERSION_TURING = DescriptorLayout((2, 3), 256, 256, MappingProxyType({
    **_TURING_TO_ADA,
    "release_enable": _each(138, 138, 1, 2),
    "next_enable": _at(141, 141),
    "next_is_grid": _at(142, 142),
    "prefetch_address": DescriptorField(((287, 256), (1000, 992)), shift=8),
    "release_barrier": _at(366, 366),
    "shared_config_min": _at(568, 562),
    "shared_config_max": _at(575, 569),
    "shared_config_target": _at(663, 657),
    "release_address": _each(775, 736, 96, 2),
    "release_words": _each(799, 799, 96, 2),
    "release_payload": _each(831, 800, 96, 2),
    "local_low_nbytes": _at(951, 928),
    "barrier_count": _at(959, 955),
    "local_high_nbytes": _at(983, 960),
    "prefetch_nbytes": _at(1009, 1001, shift=8),
    "instruction_set": _at(1023, 1016),
}))

VERSION_AMPERE = DescriptorLayout((3, 0), 256, 256, MappingProxyType({
    **_TURING_TO_ADA,
    "prefetch_address": DescriptorField(((287, 256), (1640, 1632)), shift=8),
    "next_enable": _at(512, 512),
    "next_action": _at(515, 513),
    "next_prefetch": _at(516, 516),
    "shared_config_min": _at(567, 562),
    "shared_config_max": _at(574, 569),
    "shared_config_target": _at(662, 657),
    "local_low_nbytes": _at(759, 736),
    "barrier_count": _at(767, 763),
    "release_address": _each(807, 768, 128, 2),
    "release_barrier": _each(819, 819, 128, 2),
    "release_enable": _each(823, 823, 128, 2),
    "release_wide": _each(829, 829, 128, 2),
    "release_words": _each(831, 830, 128, 2),
    "release_payload": _each(895, 832, 128, 2),
    "local_high_nbytes": _at(1623, 1600),
    "prefetch_nbytes": _at(1649, 1641, shift=8),
    "instruction_set": _at(1663, 1656),
}))

VERSION_HOPPER = DescriptorLayout((4, 0), 384, 64, MappingProxyType({
    "group": _at(21, 16),
    "grid_kind": _at(25, 23),
    "release_enable": _each(320, 320, 16, 2),
    "release_words": _each(322, 321, 16, 2),
    "release_barrier": _each(323, 323, 16, 2),
    "release_wide": _each(332, 332, 16, 2),
    "next_enable": _at(368, 368),
    "next_action": _at(371, 369),
    "next_prefetch": _at(372, 372),
    "bank_valid": _each(416, 416, 4, 8),
    "bank_invalidate": _each(419, 419, 4, 8),
    "next_address": _at(479, 448, shift=8),
    "local_low_nbytes": _at(535, 512),
    "instruction_set": _at(543, 536),
    "local_high_nbytes": _at(567, 544),
    "no_call_limit": _at(568, 568),
    "sampler_by_header": _at(569, 569),
    "minor_version": _at(579, 576),
    "major_version": _at(583, 580),
    "shared_nbytes": _at(601, 584),
    "invalidate_texture_header": _at(602, 602),
    "invalidate_sampler": _at(603, 603),
    "invalidate_texture_data": _at(604, 604),
    "invalidate_shader_data": _at(605, 605),
    "invalidate_instruction": _at(606, 606),
    "invalidate_constant": _at(607, 607),
    "shared_config_min": _at(613, 608),
    "shared_config_max": _at(619, 614),
    "shared_config_target": _at(625, 620),
    "release_address": _each(696, 640, 128, 2),
    "release_payload": _each(767, 704, 128, 2),
    "grid_width": _at(1055, 1024),
    "grid_height": _at(1071, 1056),
    "grid_depth": _at(1103, 1088),
    "completion_barrier": _at(1137, 1136),
    "block_width": _at(1167, 1152),
    "block_height": _at(1183, 1168),
    "block_depth": _at(1199, 1184),
    "register_count": _at(1208, 1200),
    "barrier_count": _at(1215, 1211),
    "program_address": _at(1272, 1216),
    "prefetch_address": _at(1392, 1344, shift=8),
    "prefetch_nbytes": _at(1401, 1393, shift=8),
    "bank_address": _each(1586, 1536, 64, 8, shift=6),
    "bank_nbytes": _each(1599, 1587, 64, 8, shift=4),
    "cluster_width": _at(2149, 2144),
    "cluster_height": _at(2157, 2152),
    "cluster_depth": _at(2165, 2160),
    "cluster_spread": _at(2207, 2207),
    "barrier_chasing": _at(382, 382),
    "arrive_latch_valid": _at(28, 28),
    "wait_latch_valid": _at(29, 29),
    "early_exit_at_launch": _at(1150, 1150),
    "early_exit": _at(1151, 1151),
    "latch_drops_data": _at(1406, 1406),
    "latch_drops_fetched": _at(1407, 1407),
    "arrive_latch": _at(1503, 1472),
    "wait_latch": _at(1535, 1504),
}))

VERSION_BLACKWELL = DescriptorLayout((5, 0), 384, 64, MappingProxyType({
    "barrier_chasing": _at(350, 350),
    "latch_drops_data": _at(478, 478),
    "latch_drops_fetched": _at(479, 479),
    "early_exit_at_launch": _at(638, 638),
    "early_exit": _at(639, 639),
    "arrive_latch": _at(671, 640),
    "wait_latch": _at(703, 672),
    "arrive_latch_valid": _at(730, 730),
    "wait_latch_valid": _at(731, 731),
    "group": _at(149, 144),
    "grid_kind": _at(153, 151),
    "release_enable": _each(288, 288, 16, 2),
    "release_words": _each(290, 289, 16, 2),
    "release_barrier": _each(291, 291, 16, 2),
    "release_wide": _each(300, 300, 16, 2),
    "next_enable": _at(336, 336),
    "next_action": _at(339, 337),
    "next_prefetch": _at(340, 340),
    "next_address": _at(415, 384, shift=8),
    "instruction_set": _at(455, 448),
    "no_call_limit": _at(456, 456),
    "sampler_by_header": _at(457, 457),
    "minor_version": _at(467, 464),
    "major_version": _at(471, 468),
    "invalidate_texture_header": _at(472, 472),
    "invalidate_sampler": _at(473, 473),
    "invalidate_texture_data": _at(474, 474),
    "invalidate_shader_data": _at(475, 475),
    "invalidate_instruction": _at(476, 476),
    "invalidate_constant": _at(477, 477),
    "release_address": _each(536, 480, 288, 2),
    "release_payload": _each(607, 544, 288, 2),
    "completion_barrier": _at(625, 624),
    "program_address": _at(1076, 1024, shift=4),
    "prefetch_nbytes": _at(1085, 1077, shift=8),
    "block_width": _at(1103, 1088),
    "block_height": _at(1119, 1104),
    "block_depth": _at(1127, 1120),
    "register_count": _at(1136, 1128),
    "barrier_count": _at(1141, 1137),
    "shared_nbytes": _at(1162, 1152, shift=7),
    "shared_config_min": _at(1168, 1163),
    "shared_config_max": _at(1174, 1169),
    "shared_config_target": _at(1180, 1175),
    "local_low_nbytes": _at(1199, 1184, shift=4),
    "local_high_nbytes": _at(1215, 1200, shift=4),
    "grid_width": _at(1279, 1248),
    "grid_height": _at(1295, 1280),
    "grid_depth": _at(1327, 1312),
    "bank_address": _each(1394, 1344, 64, 8, shift=6),
    "bank_nbytes": _each(1407, 1395, 64, 8, shift=4),
    "bank_valid": _each(1856, 1856, 4, 8),
    "bank_invalidate": _each(1859, 1859, 4, 8),
    "prefetch_address": _at(1936, 1888, shift=8),
    "cluster_width": _at(2053, 2048),
    "cluster_height": _at(2061, 2056),
    "cluster_depth": _at(2069, 2064),
    "cluster_spread": _at(2111, 2111),
}))

LAYOUTS = (VERSION_TURING, VERSION_AMPERE, VERSION_HOPPER, VERSION_BLACKWELL)


def descriptor_layout(major: int) -> DescriptorLayout:
    """Return the layout of a major version: 2, 3, 4 or 5."""
    for layout in LAYOUTS:
        if layout.version[0] == major:
            return layout
    raise UnsupportedError(
        "launch descriptors of this version are not known",
        found=major,
        wanted=", ".join(str(layout.version[0]) for layout in LAYOUTS),
    )
