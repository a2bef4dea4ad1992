"""A cubin in device memory: where its sections go, and their bytes with all addresses filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from baregrad.base.bits import ceil_div, round_up
from baregrad.base.errors import FileFormatError, UnsupportedError
from baregrad.runtime.nvidia.code.cubin import Cubin, CubinKernel
from baregrad.runtime.nvidia.code.cubin_elf import CubinRelocation

# What an image must be aligned to: constant banks want the most.
ALIGNMENT = 256
# The fetching of instructions runs past the last one.
_TAIL_NBYTES = 4096

# Where each kind of relocation puts an address: (lowest bit, width, bits dropped from the address).
# The names are cuobjdump's; the last two are the targets of calls, in an instruction of 128 bits,
# as nvdisasm prints them.
_FORMS = MappingProxyType({
    0x02: ((0, 64, 0),),  # R_CUDA_64
    0x04: ((0, 64, 0),),  # R_CUDA_G64
    0x38: ((32, 32, 0),),  # R_CUDA_ABS32_LO_32
    0x39: ((32, 32, 32),),  # R_CUDA_ABS32_HI_32
    0x3A: ((34, 47, 2),),  # R_CUDA_ABS47_34
    0x4B: ((16, 8, 2), (34, 47, 10)),  # R_CUDA_ABS55_16_34
})


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


def _patch(data: bytearray, relocation: CubinRelocation, target: int) -> None:
    """Fill in one address; an addend that the file keeps in place is taken from there."""
    pieces = _FORMS.get(relocation.kind)
    if pieces is None:
        raise UnsupportedError(
            "a cubin has a relocation of no known kind",
            found=f"{relocation.kind:#x}",
            hint="compile with nvcc 12 or 13, and link with its nvlink",
        )
    begin = relocation.offset
    end = begin + ceil_div(max(low + width for low, width, _ in pieces), 8)
    if end > len(data):
        raise FileFormatError("a relocation of a cubin lies outside its section", found=hex(begin))
    bits = int.from_bytes(data[begin:end], "little")
    addend = relocation.addend
    if addend is None:
        addend = sum((bits >> low & (1 << width) - 1) << drop for low, width, drop in pieces)
    value = target + addend & 0xFFFF_FFFF_FFFF_FFFF
    for low, width, drop in pieces:
        mask = (1 << width) - 1
        bits = bits & ~(mask << low) | (value >> drop & mask) << low
    data[begin:end] = bits.to_bytes(end - begin, "little")
