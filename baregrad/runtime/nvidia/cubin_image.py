"""A cubin in device memory: where its sections go, and their bytes with all addresses filled in."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from baregrad.base.bits import round_up
from baregrad.base.errors import FileFormatError, UnsupportedError
from baregrad.runtime.nvidia.cubin import Cubin, CubinKernel
from baregrad.runtime.nvidia.cubin_elf import Relocation

# What an image must be aligned to: constant banks want the most.
ALIGNMENT = 256
# The fetching of instructions runs past the last one.
_TAIL_NBYTES = 4096

# Names of cuobjdump: R_CUDA_64, R_CUDA_G64; R_CUDA_ABS32_LO_32, R_CUDA_ABS32_HI_32.
_WHOLE_ADDRESS = (0x02, 0x04)
_LOW_HALF, _HIGH_HALF = 0x38, 0x39


@dataclass(frozen=True, slots=True)
class CubinImage:
    """A cubin laid out for a place: `nbytes` to allocate, `offsets` of its sections in there.

    `parts` are (offset, bytes) to write; the rest has to be zeros.
    """

    base: int
    nbytes: int
    offsets: Mapping[int, int]
    parts: tuple[tuple[int, bytes], ...]

    def entry(self, kernel: CubinKernel) -> int:
        """Return the address of a kernel's first instruction."""
        return self.base + self.offsets[kernel.code]

    def bank_address(self, kernel: CubinKernel, bank: int) -> int:
        """Return the address of one of a kernel's constant banks, bank 0 aside."""
        return self.base + self.offsets[kernel.banks[bank]]


def image_nbytes(cubin: Cubin) -> int:
    """Return how much memory a cubin takes, at a multiple of ALIGNMENT."""
    return _offsets(cubin)[1]


def link(cubin: Cubin, base: int) -> CubinImage:
    """Return the image of a cubin for the address `base`, a multiple of ALIGNMENT.

    Raises UnsupportedError for relocations that are not known, or that want a symbol from
    elsewhere; FileFormatError for those that lie outside.
    """
    offsets, nbytes = _offsets(cubin)
    parts = {
        index: bytearray(section.data)
        for index, section in cubin.sections.items()
        if section.data
    }
    for relocation in cubin.relocations:
        symbol = cubin.symbols[relocation.symbol]
        if symbol.section is None:
            raise UnsupportedError(
                f"a cubin needs {symbol.name!r} from elsewhere",
                hint="the vendor's own functions, such as printf and malloc, are not offered",
            )
        if symbol.section not in offsets:
            raise UnsupportedError(
                f"a cubin takes the address of {symbol.name!r}, which is in no global memory"
            )
        target = base + offsets[symbol.section] + symbol.value
        _patch(parts.get(relocation.section, bytearray()), relocation, target)
    written = tuple((offsets[index], bytes(data)) for index, data in parts.items())
    return CubinImage(base, nbytes, offsets, written)


def _offsets(cubin: Cubin) -> tuple[dict[int, int], int]:
    """Return where each section goes and the size of all: code first, zeros last."""
    at = 0
    offsets = {}
    ranked = sorted(
        cubin.sections.items(), key=lambda item: (not item[1].is_code, not item[1].data, item[0])
    )
    for index, section in ranked:
        at = round_up(at, max(section.alignment, ALIGNMENT))
        offsets[index] = at
        at += section.nbytes
    return offsets, round_up(at, ALIGNMENT) + _TAIL_NBYTES


def _patch(data: bytearray, relocation: Relocation, target: int) -> None:
    """Fill in one address; an addend that the file keeps in place is taken from there."""
    kind, at = relocation.kind, relocation.offset
    if kind in _WHOLE_ADDRESS:
        place, width = at, 8
    elif kind in (_LOW_HALF, _HIGH_HALF):
        # The upper half of an instruction's first word.
        place, width = at + 4, 4
    else:
        raise UnsupportedError(
            "a cubin has a relocation of no known kind",
            found=f"{kind:#x}",
            hint="compile with nvcc 12 or 13, without -rdc",
        )
    if place + width > len(data):
        raise FileFormatError("a relocation of a cubin lies outside its section", found=hex(at))
    form = "<Q" if width == 8 else "<I"
    addend = relocation.addend
    if addend is None:
        (addend,) = struct.unpack_from(form, data, place)
    value = target + addend
    if kind == _HIGH_HALF:
        value >>= 32
    struct.pack_into(form, data, place, value & ((1 << 8 * width) - 1))
