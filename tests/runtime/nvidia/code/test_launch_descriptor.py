"""Launch descriptors: their tables, what is built by them and read back."""

from __future__ import annotations

import dataclasses
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baregrad.base.errors import (
    ArgumentError,
    FileFormatError,
    IndexOutOfRange,
    UnsupportedError,
)
from baregrad.runtime.nvidia.code.descriptor_fields import (
    LAYOUTS,
    VERSION_AMPERE,
    VERSION_BLACKWELL,
    VERSION_HOPPER,
    VERSION_TURING,
    DescriptorLayout,
    descriptor_layout,
)
from baregrad.runtime.nvidia.code.launch_descriptor import (
    Bank,
    GridLaunch,
    SemaphoreRelease,
    SharedConfig,
    carve_out_code,
    choose_shared_config,
    decode,
    encode,
)

EACH_VERSION = pytest.mark.parametrize(
    "layout", LAYOUTS, ids=[f"{one.version[0]}.{one.version[1]}" for one in LAYOUTS]
)
PLAIN = GridLaunch(
    program_address=0x20_1234_5600,
    grid=(100, 20, 3),
    block=(128, 2, 1),
    register_count=40,
    shared_nbytes=0x2000,
    shared_config=SharedConfig(8, 228, 16),
    instruction_set=0x90,
    banks=(Bank(0, 0x10_0000_4000, 0x240), Bank(3, 0x10_0000_8000, 64)),
    barrier_count=2,
    local_nbytes=0x250,
    program_nbytes=0x1234,
    releases=(SemaphoreRelease(0x10_0000_0040, 0x8000_0001), SemaphoreRelease(0x10_0000_0050, 7)),
    next_address=0x10_0000_0200,
)


@EACH_VERSION
def test_fields_share_no_bit_and_fit(layout: DescriptorLayout) -> None:
    owners: dict[int, tuple[str, int]] = {}
    for name, field in layout.fields.items():
        for index in range(field.count):
            for low, width in field.pieces(index):
                for bit in range(low, low + width):
                    assert bit < layout.nbytes * 8, name
                    assert bit not in owners, (name, index, owners[bit])
                    owners[bit] = (name, index)


def test_versions_have_the_same_fields_but_for_what_their_hardware_lacks() -> None:
    shared = set.intersection(*(set(layout.fields) for layout in LAYOUTS))
    extra = {layout.version: set(layout.fields) - shared for layout in LAYOUTS}
    later = {"next_action", "next_prefetch", "release_wide"}
    clusters = {"grid_kind", "cluster_width", "cluster_height", "cluster_depth", "cluster_spread"}
    early = {
        "barrier_chasing", "early_exit", "early_exit_at_launch", "arrive_latch",
        "arrive_latch_valid", "wait_latch", "wait_latch_valid", "latch_drops_data",
        "latch_drops_fetched",
    }  # fmt: skip
    assert extra == {
        (2, 3): {"global_caching", "next_is_grid"},
        (3, 0): {"global_caching"} | later,
        (4, 0): clusters | later | early,
        (5, 0): clusters | later | early,
    }


def test_a_descriptor_of_hopper_word_by_word() -> None:
    """Written down from clcbc0qmd.h by hand, as words of 32 bits, by number."""
    launch = dataclasses.replace(PLAIN, cluster=(2, 1, 1))
    words = [0] * 96
    words[0] = 0x3F << 16 | 3 << 23
    words[10] = (1 << 0 | 0 << 1 | 1 << 3 | 1 << 12) * 0x10001
    words[11] = 1 << 16 | 1 << 17 | 1 << 20
    words[13] = 0x9 | 0x9 << 12
    words[14] = 0x10_0000_0200 >> 8
    words[16] = 0x90 << 24
    words[17] = 0x250 | 1 << 24 | 1 << 25
    words[18] = 4 << 4 | 0x2000 << 8 | 0b1111 << 26
    words[19] = (8 // 4 + 1) | (228 // 4 + 1) << 6 | (16 // 4 + 1) << 12
    words[20:24] = (0x40, 0x10, 0x8000_0001, 0)
    words[24:28] = (0x50, 0x10, 7, 0)
    words[32:35] = (50, 20, 3)
    words[35] = 1 << 16
    words[36:38] = (128 | 2 << 16, 1 | 40 << 16 | 2 << 27)
    words[38:40] = (0x1234_5600, 0x20)
    words[42:44] = (0x20_1234_56, 0 | 0x12 << 17)
    words[48:50] = (0x4000_0100, 0x24 << 19)
    words[54:56] = (0x4000_0200, 4 << 19)
    words[67] = 2 | 1 << 8 | 1 << 16
    made = struct.unpack("<96I", encode(launch, VERSION_HOPPER))
    assert {i: hex(a) for i, a in enumerate(made) if a != words[i]} == {}


def test_a_descriptor_of_ampere_has_its_fields_where_the_header_says() -> None:
    made = struct.unpack("<64I", encode(PLAIN, VERSION_AMPERE))
    assert made[12:15] == (100, 20, 3)
    assert made[18] >> 4 & 15 == 3
    assert made[18] >> 16 == 128
    assert made[19] == 2 | 1 << 16
    assert made[20] & 0xFF == 0b1001
    assert made[20] >> 8 & 0x1FF == 40
    assert made[48:50] == (0x1234_5600, 0x20)
    assert made[32] == 0x4000
    assert made[33] == 0x10 | 1 << 18 | 0x24 << 19
    assert made[15] == 0x10_0000_0200 >> 8


def test_a_descriptor_of_blackwell_drops_the_low_bits() -> None:
    made = struct.unpack("<96I", encode(PLAIN, VERSION_BLACKWELL))
    assert made[33] & 0x1FFFFF == 0x20_1234_5600 >> 36
    assert made[32] == 0x20_1234_5600 >> 4 & 0xFFFFFFFF
    assert made[36] & 0x7FF == 0x2000 >> 7
    assert made[39:41] == (100, 20)
    assert made[41] == 3
    assert made[14] >> 20 & 15 == 5


@EACH_VERSION
def test_what_is_built_is_read_back(layout: DescriptorLayout) -> None:
    launch = dataclasses.replace(PLAIN, local_nbytes=0x250, program_nbytes=0x1200)
    assert decode(encode(launch, layout), layout) == launch


def triples(high: int) -> Any:
    return st.tuples(st.integers(1, high), st.integers(1, high), st.integers(1, high))


@pytest.mark.property
@given(
    layout=st.sampled_from(LAYOUTS),
    grid=st.tuples(st.integers(1, 2**31 - 1), st.integers(1, 65535), st.integers(1, 65535)),
    block=triples(10),
    registers=st.integers(16, 255),
    barriers=st.integers(0, 16),
    shared=st.integers(0, 8).map(lambda n: n * 1024),
    local=st.integers(0, 1000).map(lambda n: n * 32),
    program=st.integers(0, 2**32).map(lambda n: n * 128),
    numbers=st.sets(st.integers(0, 7)),
    address=st.integers(0, 2**30).map(lambda n: n * 256),
)
def test_any_launch_is_read_back(
    layout: DescriptorLayout, grid: Any, block: Any, registers: int, barriers: int, shared: int,
    local: int, program: int, numbers: set[int], address: int,
) -> None:  # fmt: skip
    banks = tuple(Bank(number, address + 256 * number, 16 * number) for number in sorted(numbers))
    launch = dataclasses.replace(
        PLAIN, grid=grid, block=block, register_count=registers, barrier_count=barriers,
        shared_nbytes=shared, local_nbytes=local, program_address=program, banks=banks,
        program_nbytes=0, next_address=address,
    )  # fmt: skip
    assert decode(encode(launch, layout), layout) == launch


@pytest.mark.parametrize("layout", [VERSION_HOPPER, VERSION_BLACKWELL], ids=["4.0", "5.0"])
def test_clusters_are_what_the_grid_counts(layout: DescriptorLayout) -> None:
    launch = dataclasses.replace(PLAIN, grid=(8, 6, 1), cluster=(4, 2, 1), program_nbytes=0)
    made = encode(launch, layout)
    assert [layout.read(made, f"grid_{axis}") for axis in ("width", "height", "depth")] == [2, 3, 1]
    assert layout.read(made, "grid_kind") == 3
    assert decode(made, layout) == launch


@pytest.mark.parametrize("layout", [VERSION_TURING, VERSION_AMPERE], ids=["2.3", "3.0"])
def test_older_chips_have_no_clusters(layout: DescriptorLayout) -> None:
    with pytest.raises(UnsupportedError, match="no clusters"):
        encode(dataclasses.replace(PLAIN, cluster=(2, 1, 1)), layout)


@pytest.mark.parametrize("change,message", [
    ({"grid": (0, 1, 1)}, "no empty axes"),
    ({"block": (1, 0, 1)}, "no empty axes"),
    ({"block": (64, 32, 1)}, "too many threads"),
    ({"grid": (5, 1, 1), "cluster": (2, 1, 1)}, "whole clusters"),
    ({"grid": (1, 65536, 1)}, "grid_height"),
    ({"grid": (1 << 32, 1, 1)}, "grid_width"),
    ({"banks": (Bank(0, 0x1000, 16), Bank(0, 0x2000, 16))}, "twice"),
    ({"banks": (Bank(0, 0x1020, 16),)}, "not aligned"),
    ({"banks": (Bank(0, 0x1000, 1 << 17),)}, "bank_nbytes"),
    ({"register_count": 512}, "register_count"),
    ({"barrier_count": 32}, "barrier_count"),
    ({"shared_nbytes": 9000}, "least shared memory"),
    ({"next_address": 0x10_0000_0210}, "next_address"),
    ({"next_address": 1 << 40}, "next_address"),
    ({"releases": (SemaphoreRelease(0x1008, 1),)}, "release is not aligned"),
    ({"program_address": 1 << 57}, "program_address"),
])
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        encode(dataclasses.replace(PLAIN, **change), VERSION_HOPPER)


def test_releases_without_a_timestamp() -> None:
    launch = dataclasses.replace(PLAIN, releases=(SemaphoreRelease(0x1008, 1 << 40, False),))
    for layout in (VERSION_AMPERE, VERSION_HOPPER, VERSION_BLACKWELL):
        assert decode(encode(launch, layout), layout).releases == launch.releases
    with pytest.raises(UnsupportedError, match="timestamp"):
        encode(launch, VERSION_TURING)


def test_a_bank_that_does_not_exist() -> None:
    with pytest.raises(IndexOutOfRange, match="8 of bank_valid"):
        encode(dataclasses.replace(PLAIN, banks=(Bank(8, 0x1000, 16),)), VERSION_HOPPER)


def test_one_field_is_patched_in_place() -> None:
    made = encode(PLAIN, VERSION_HOPPER)
    VERSION_HOPPER.write(memoryview(made), "grid_width", 77)
    assert decode(made, VERSION_HOPPER).grid == (77, 20, 3)
    with pytest.raises(UnsupportedError, match="no field 'next_is_grid'"):
        VERSION_HOPPER.write(made, "next_is_grid", 1)


@EACH_VERSION
def test_what_is_no_descriptor_is_not_decoded(layout: DescriptorLayout) -> None:
    made = encode(PLAIN, layout)
    with pytest.raises(FileFormatError, match="cut short"):
        decode(made[:-1], layout)
    with pytest.raises(FileFormatError, match="another version"):
        decode(bytes(layout.nbytes), layout)
    empty = bytearray(made)
    layout.write(empty, "grid_width", 0)
    with pytest.raises(FileFormatError, match="launches nothing"):
        decode(empty, layout)


def test_layouts_are_found_by_version() -> None:
    assert [descriptor_layout(n) for n in (2, 3, 4, 5)] == list(LAYOUTS)
    with pytest.raises(UnsupportedError, match="2, 3, 4, 5"):
        descriptor_layout(1)


@pytest.mark.parametrize("kib,code", [
    (8, 3), (16, 5), (32, 9), (64, 0x11), (100, 0x1A), (132, 0x22), (164, 0x2A), (228, 0x3A),
])
def test_the_codes_of_shared_memory(kib: int, code: int) -> None:
    assert carve_out_code(kib) == code


def test_the_smallest_set_up_that_fits_is_chosen() -> None:
    sizes = (8, 16, 32, 64, 100, 132, 164, 196, 228)
    assert choose_shared_config(1024, sizes) == SharedConfig(8, 228, 8)
    assert choose_shared_config(8193, sizes) == SharedConfig(16, 228, 16)
    assert choose_shared_config(50 * 1024, sizes, blocks=4) == SharedConfig(64, 228, 228)
    assert choose_shared_config(228 * 1024, sizes) == SharedConfig(228, 228, 228)
    # What fills the machine waits for room for all its blocks.
    assert choose_shared_config(50 * 1024, sizes, 2, least=9) == SharedConfig(100, 228, 100)
    assert choose_shared_config(50 * 1024, sizes, 8, least=8) == SharedConfig(228, 228, 228)
    # Where fewer come, no more than these need.
    assert choose_shared_config(25 * 1024, sizes, 8, least=3) == SharedConfig(100, 228, 228)
    with pytest.raises(ArgumentError, match="more shared memory"):
        choose_shared_config(228 * 1024 + 1, sizes)
