"""Cubins of our own making: what is read of them, how they are laid out, what is refused.

The figures expected are those that the vendor's `cuobjdump -res-usage` and `cuobjdump -elf` print
for the same files, and what the sources beside them say.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from baregrad.base.errors import FileFormatError, UnsupportedError
from baregrad.runtime.nvidia.code.cubin import Cubin, Parameter, read_cubin
from baregrad.runtime.nvidia.code.cubin_image import CubinImage, image_nbytes, link

pytest.importorskip("elftools")

DATA = Path(__file__).parents[1] / "data"
PARTS = tuple(sorted(path.stem for path in DATA.glob("parts.*.cubin")))
SAXPY = tuple(sorted(path.stem for path in DATA.glob("saxpy.*.cubin")))
PARAMETER_BASES = {75: 0x160, 80: 0x160, 89: 0x160, 90: 0x210, 100: 0x380, 120: 0x380}
BASE = 0x20_0000_1000


@functools.cache
def content(name: str) -> bytes:
    return (DATA / f"{name}.cubin").read_bytes()


@functools.cache
def cubin(name: str) -> Cubin:
    return read_cubin(content(name))


@functools.cache
def image(name: str) -> CubinImage:
    return link(cubin(name), BASE)


def memory(made: CubinImage) -> bytearray:
    """Return the image as it lies in memory."""
    data = bytearray(made.nbytes)
    for offset, part in made.parts:
        data[offset : offset + len(part)] = part
    return data


def capability(name: str) -> int:
    return int(name.split(".")[1].removeprefix("sm_").removesuffix("a"))


@pytest.mark.parametrize("name", SAXPY)
def test_saxpy_is_read(name: str) -> None:
    made = cubin(name)
    assert (made.capability, made.abi) == (capability(name), 8)
    assert list(made.kernels) == ["saxpy"]
    kernel = made.kernel("saxpy")
    assert (kernel.register_count, kernel.barrier_count, kernel.stack_nbytes) == (10, 0, 0)
    assert kernel.parameter_base == PARAMETER_BASES[made.capability]
    assert kernel.parameter_nbytes == 24
    assert kernel.parameters == tuple(Parameter(*one) for one in ((0, 8), (8, 8), (16, 4), (20, 4)))
    assert kernel.bank_nbytes == kernel.parameter_base + 24
    assert (kernel.banks, kernel.max_threads, kernel.cluster) == ({}, 0, None)
    assert made.relocations == ()


def test_there_are_files_of_both_forms() -> None:
    assert {cubin(name).abi for name in PARTS} == {7, 8}
    assert {capability(name) for name in PARTS} == {75, 89, 90, 120}


REGISTERS = {
    ("parts.sm_75.cuda12", "deep"): 12, ("parts.sm_75.cuda12", "halves"): 11,
    ("parts.sm_75.cuda13", "deep"): 12, ("parts.sm_75.cuda13", "halves"): 11,
    ("parts.sm_89.cuda13", "deep"): 14, ("parts.sm_89.cuda13", "halves"): 11,
    ("parts.sm_90a.cuda12", "deep"): 12, ("parts.sm_90a.cuda12", "halves"): 12,
    ("parts.sm_90a.cuda12", "twins"): 10,
    ("parts.sm_90a.cuda13", "deep"): 12, ("parts.sm_90a.cuda13", "halves"): 12,
    ("parts.sm_90a.cuda13", "twins"): 10,
    ("parts.sm_120a.cuda13", "deep"): 12, ("parts.sm_120a.cuda13", "halves"): 12,
    ("parts.sm_120a.cuda13", "twins"): 10,
}  # fmt: skip


@pytest.mark.parametrize("name", PARTS)
def test_kernels_and_their_resources_are_read(name: str) -> None:
    made = cubin(name)
    found = {(name, kernel.name): kernel.register_count for kernel in made.kernels.values()}
    assert found == {key: value for key, value in REGISTERS.items() if key[0] == name}
    halves, deep = made.kernel("halves"), made.kernel("deep")
    # Named barriers 1 and 2 take three with barrier 0; `__syncthreads` takes one.
    assert (halves.barrier_count, deep.barrier_count) == (3, 1)
    assert (halves.stack_nbytes, deep.stack_nbytes) == (0, 256)
    assert (halves.max_threads, deep.max_threads) == (0, 64)
    assert [(one.offset, one.nbytes) for one in deep.parameters] == [(0, 8), (8, 16), (24, 1)]
    assert deep.bank_nbytes == PARAMETER_BASES[made.capability] + 25
    assert set(halves.banks) == {3, 4}
    if made.capability >= 90:
        assert made.kernel("twins").cluster == (2, 1, 1)


@pytest.mark.parametrize("name", PARTS)
def test_shared_memory_counts_what_the_system_reserves_once(name: str) -> None:
    made = cubin(name)
    counted = made.capability >= 90
    reserved = 0 if made.capability == 75 else 1024
    halves, deep = made.kernel("halves"), made.kernel("deep")
    assert halves.shared_total(0, reserved, counted) == 1024 + reserved
    assert deep.shared_total(4096, reserved, counted) == 4096 + reserved


def test_local_memory_has_room_for_the_system() -> None:
    assert cubin("parts.sm_90a.cuda13").kernel("deep").local_nbytes == 832
    assert cubin("saxpy.sm_75.cuda13").kernel("saxpy").local_nbytes == 576


@pytest.mark.parametrize("name", PARTS + SAXPY)
def test_images_hold_the_sections_apart(name: str) -> None:
    made, placed = cubin(name), image(name)
    assert placed.nbytes == image_nbytes(made)
    spans = sorted(
        (offset, offset + made.sections[index].nbytes) for index, offset in placed.offsets.items()
    )
    assert all(begin % 256 == 0 for begin, _ in spans)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
    # Instructions are fetched ahead, past the end of the code.
    assert spans[-1][1] + 4096 <= placed.nbytes
    for kernel in made.kernels.values():
        at = placed.entry(kernel) - BASE
        code = made.sections[kernel.code].data
        assert memory(placed)[at : at + len(code)] == code


@pytest.mark.parametrize("name", PARTS)
def test_addresses_of_globals_are_filled_in(name: str) -> None:
    """`counters` holds &started and &finished[1]; bank 4 holds the addresses of all three."""
    made, placed = cubin(name), image(name)
    data = memory(placed)
    names = {section.name: index for index, section in made.sections.items()}
    initialised = placed.offsets[names[".nv.global.init"]]
    zeros = placed.offsets[names[".nv.global"]]
    places = {one.name: one.value for one in made.symbols}
    started = BASE + initialised + places["started"]
    finished = BASE + zeros + places["finished"]
    counters = BASE + initialised + places["counters"]
    assert struct.unpack_from("<i", data, started - BASE) == (7,)
    assert struct.unpack_from("<QQ", data, counters - BASE) == (started, finished + 4)
    bank = placed.bank_address(made.kernel("halves"), 4) - BASE
    assert set(struct.unpack_from("<3Q", data, bank)) == {started, finished, counters}
    scales = placed.bank_address(made.kernel("halves"), 3) - BASE
    assert struct.unpack_from("<4f", data, scales) == (1.0, 2.0, 4.0, 8.0)


def test_a_kernel_that_is_not_there_is_named() -> None:
    with pytest.raises(FileFormatError, match="no kernel 'axpy': found saxpy"):
        cubin("saxpy.sm_75.cuda13").kernel("axpy")


HEADER_FIELDS = {"kind": 16, "machine": 18, "abi": 8, "class": 4, "entry": 58, "names": 62}


def changed(name: str, field: str, value: int) -> bytes:
    data = bytearray(content(name))
    data[HEADER_FIELDS[field]] = value
    return bytes(data)


@pytest.mark.parametrize("field,value,message", [
    ("kind", 1, "not linked"), ("kind", 3, "no known kind"), ("machine", 62, "no cubin"),
    ("abi", 9, "unknown ABI"), ("class", 1, "no cubin"), ("entry", 0, "table of sections"),
    ("names", 255, "table of sections"),
])
def test_other_files_are_refused(field: str, value: int, message: str) -> None:
    with pytest.raises(FileFormatError, match=message):
        read_cubin(changed("saxpy.sm_90a.cuda13", field, value))


def test_other_relocations_are_refused() -> None:
    data = bytearray(content("parts.sm_90a.cuda13"))
    made = cubin("parts.sm_90a.cuda13")
    first = made.relocations[0]
    record = struct.pack("<QI", first.offset, first.kind)
    at = data.index(record)
    struct.pack_into("<I", data, at + 8, 0x7F)
    with pytest.raises(UnsupportedError, match="no known kind: found 0x7f"):
        link(read_cubin(bytes(data)), BASE)


def test_halves_of_an_address_go_into_an_instruction() -> None:
    """The upper 32 bits of an instruction's first 64 hold the operand."""
    data = bytearray(content("parts.sm_90a.cuda13"))
    made = cubin("parts.sm_90a.cuda13")
    for relocation, kind in zip(made.relocations[:2], (0x38, 0x39), strict=True):
        at = data.index(struct.pack("<QII", relocation.offset, relocation.kind, relocation.symbol))
        struct.pack_into("<I", data, at + 8, kind)
    again = read_cubin(bytes(data))
    placed = link(again, BASE)
    filled = memory(placed)
    for relocation, shift in zip(again.relocations[:2], (0, 32), strict=True):
        symbol = again.symbols[relocation.symbol]
        assert symbol.section is not None
        target = BASE + placed.offsets[symbol.section] + symbol.value
        at = placed.offsets[relocation.section] + relocation.offset
        assert struct.unpack_from("<II", filled, at) == (0, target >> shift & 0xFFFFFFFF)


def instruction(name: str, offset: int) -> int:
    """Return one instruction of the kernel `calls`, 128 bits, as it lies in memory."""
    at = image(name).entry(cubin(name).kernel("calls")) - BASE + offset
    return int.from_bytes(memory(image(name))[at : at + 16], "little")


@pytest.mark.parametrize("name,first,call", [
    ("calls.sm_75.cuda13", 0x60, 0x80), ("calls.sm_90a.cuda13", 0x40, 0x60),
])
def test_calls_lead_to_other_functions(name: str, first: int, call: int) -> None:
    """A call of an address, before it two moves of the address to return to.

    Checked with nvdisasm: `MOV R20, 0x1070; MOV R21, 0x20; CALL.ABS.NOINC 0x2000001200` on sm_90a.
    """
    made, placed = cubin(name), image(name)
    entry = placed.entry(made.kernel("calls"))
    halves = [instruction(name, first + step) >> 32 & 0xFFFFFFFF for step in (0, 16)]
    assert halves[0] | halves[1] << 32 == entry + call + 16
    target = instruction(name, call) >> 34 & ((1 << 47) - 1)
    if made.capability >= 90:
        target = target << 8 | instruction(name, call) >> 16 & 0xFF
    names = {section.name: index for index, section in made.sections.items()}
    assert target << 2 == BASE + placed.offsets[names[".text._Z7tripledi"]]
    assert made.kernel("calls").shared_nbytes == (32 if made.capability == 75 else 1056)


def test_a_stack_without_bound_is_refused() -> None:
    calls = cubin("calls.sm_75.cuda13").kernel("calls")
    kernel = dataclasses.replace(calls, stack_nbytes=2**32 - 1)
    with pytest.raises(UnsupportedError, match="recurses"):
        _ = kernel.local_nbytes


def test_what_comes_from_elsewhere_is_refused() -> None:
    """As a kernel that prints: a relocation names a function that the file does not hold."""
    data = bytearray(content("parts.sm_90a.cuda13"))
    made = cubin("parts.sm_90a.cuda13")
    symbol = made.relocations[0].symbol
    table = next(one for one in _headers(bytes(data)) if one[1] == 2)
    struct.pack_into("<H", data, table[4] + symbol * 24 + 6, 0)
    with pytest.raises(UnsupportedError, match="from elsewhere"):
        link(read_cubin(bytes(data)), BASE)


def _headers(data: bytes) -> list[tuple[int, ...]]:
    begin, count = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 60)[0]
    return [struct.unpack_from("<IIQQQQIIQQ", data, begin + 64 * i) for i in range(count)]


def read_all(data: bytes) -> None:
    """Read and lay out a file; raise nothing but what is meant for broken ones."""
    try:
        made = read_cubin(data)
        link(made, BASE)
    except (FileFormatError, UnsupportedError) as error:
        assert str(error)


@pytest.mark.parametrize("name", ["saxpy.sm_80.cuda13", "parts.sm_90a.cuda12"])
def test_cut_files_raise_only_our_error(name: str) -> None:
    data = content(name)
    needed = max(one[4] + one[5] for one in _headers(data) if one[1] != 8)
    for length in range(0, len(data), 61):
        if length < needed:
            with pytest.raises(FileFormatError):
                read_cubin(data[:length])
        else:
            read_all(data[:length])


FUZZED = ("saxpy.sm_75.cuda13", "parts.sm_90a.cuda13", "calls.sm_75.cuda13")


@pytest.mark.property
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.differing_executors]
)
@given(data=st.data())
def test_corrupted_files_raise_only_our_errors(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(FUZZED))
    broken = bytearray(content(name))
    table_at, count = struct.unpack_from("<Q", broken, 40)[0], struct.unpack_from("<H", broken, 60)
    for _ in range(data.draw(st.integers(1, 4))):
        begin, end = data.draw(
            st.sampled_from(((0, 64), (table_at, table_at + 64 * count[0]), (0, len(broken))))
        )
        at = data.draw(st.integers(begin, end - 1))
        if data.draw(st.booleans()):
            broken[at] ^= 1 << data.draw(st.integers(0, 7))
        else:
            broken[at] = data.draw(st.sampled_from((0, 1, 0x7F, 0x80, 0xFF)))
    read_all(bytes(broken))


def test_sizes_that_no_gpu_has_are_refused() -> None:
    data = bytearray(content("parts.sm_90a.cuda13"))
    index = next(i for i, one in enumerate(_headers(bytes(data))) if one[1] == 8)
    begin = struct.unpack_from("<Q", data, 40)[0]
    struct.pack_into("<Q", data, begin + 64 * index + 32, 1 << 60)
    with pytest.raises(FileFormatError, match="too big"):
        read_cubin(bytes(data))


def test_compressed_sections_are_not_opened() -> None:
    data = bytearray(content("saxpy.sm_75.cuda13"))
    rows = _headers(bytes(data))
    index = next(i for i, one in enumerate(rows) if one[1] == 1 and one[2] & 4)
    begin = struct.unpack_from("<Q", data, 40)[0]
    struct.pack_into("<Q", data, begin + 64 * index + 8, rows[index][2] | 0x800)
    with pytest.raises(FileFormatError):
        read_cubin(bytes(data))
