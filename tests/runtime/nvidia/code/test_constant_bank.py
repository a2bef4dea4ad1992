"""Constant bank 0: what kernels find where, per generation."""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from baregrad.base.errors import ArgumentError, UnsupportedError
from baregrad.runtime.nvidia.code.constant_bank import (
    BANK_AMPERE,
    BANK_BLACKWELL,
    BANK_HOPPER,
    BANK_LAYOUTS,
    BANK_TURING,
    TRIPLES,
    WIDE,
    BankFacts,
    BankLayout,
    fill,
    reciprocal_above,
    write_parameters,
)
from baregrad.runtime.nvidia.code.cubin import CubinKernel, Parameter, read_cubin

DATA = Path(__file__).parents[1] / "data"
FACTS = BankFacts(
    address=0x10_0000_4000,
    grid=(40, 6, 2),
    block=(128, 2, 1),
    shared_window=0x7294_0000_0000,
    local_window=0x7293_0000_0000,
    dynamic_shared_nbytes=4096,
    reserved_shared_nbytes=1024,
    unit_count=132,
    grid_number=9,
)
EACH_LAYOUT = pytest.mark.parametrize("layout", BANK_LAYOUTS, ids=lambda one: one.name)


def kernel(layout: BankLayout, **changes: Any) -> CubinKernel:
    values: dict[str, Any] = {
        "name": "k", "code": 1, "register_count": 10, "barrier_count": 0, "shared_nbytes": 0,
        "stack_nbytes": 0, "parameter_base": layout.parameter_base, "parameter_nbytes": 24,
        "parameters": tuple(Parameter(*one) for one in ((0, 8), (8, 4), (12, 2), (16, 8))),
        "bank_template": bytes(layout.parameter_base + 24), "banks": {},
    }  # fmt: skip
    return CubinKernel(**values | changes)


def u32(data: bytes | bytearray, offset: int, count: int = 1) -> tuple[int, ...]:
    return struct.unpack_from(f"<{count}I", data, offset)


def u64(data: bytes | bytearray, offset: int) -> int:
    return int(struct.unpack_from("<Q", data, offset)[0])


@EACH_LAYOUT
def test_fields_lie_apart_and_before_the_parameters(layout: BankLayout) -> None:
    taken: set[int] = set()
    for name, offset in layout.offsets.items():
        nbytes = 12 if name in TRIPLES else 8 if name in WIDE else 4
        own = set(range(offset, offset + nbytes))
        assert not own & taken, name
        assert offset + nbytes <= layout.parameter_base
        assert offset % (8 if name in WIDE else 4) == 0
        taken |= own


@pytest.mark.parametrize("layout", BANK_LAYOUTS[:3], ids=lambda one: one.name)
def test_the_shape_comes_first_until_hopper(layout: BankLayout) -> None:
    made = fill(kernel(layout), layout, FACTS)
    assert u32(made, 0, 6) == (128, 2, 1, 40, 6, 2)
    assert u64(made, 0x18) == 0x7294_0000_0000
    assert u64(made, 0x20) == 0x7293_0000_0000
    assert u32(made, 0x28, 2) == (0xFFFDC0, 4096)
    assert u64(made, 0x30) == 9
    assert u32(made, 0x10C) == (132,)
    assert u32(made, 0x114) == ((0,) if layout is BANK_TURING else (1024,))
    assert len(made) == layout.parameter_base + 24


def test_hopper_without_and_with_a_cluster() -> None:
    made = fill(kernel(BANK_HOPPER), BANK_HOPPER, FACTS)
    assert u32(made, 0x140, 4) == (0, 1, 1, 1)
    assert struct.unpack_from("<3f", made, 0x150) == (1.0, 1.0, 1.0)
    assert u32(made, 0x15C, 3) == (40, 6, 2)
    assert u32(made, 0x188) == (1,)
    assert u64(made, 0x198) == 0x10_0000_4210
    assert u64(made, 0x208) == 0
    clustered = dataclasses.replace(FACTS, cluster=(4, 2, 1))
    made = fill(kernel(BANK_HOPPER), BANK_HOPPER, clustered)
    assert u32(made, 0x140, 4) == (1, 4, 2, 1)
    assert struct.unpack_from("<3f", made, 0x150) == (0.25, 0.5, 1.0)
    assert u32(made, 0x15C, 3) == (10, 3, 2)
    assert u32(made, 0x188) == (8,)
    # The grid that a kernel sees counts blocks in any case.
    assert u32(made, 0x0C, 3) == (40, 6, 2)


def test_blackwell_has_its_own_places() -> None:
    made = fill(kernel(BANK_BLACKWELL), BANK_BLACKWELL, FACTS)
    assert u32(made, 0x360, 3) == (128, 2, 1)
    assert u32(made, 0x370, 4) == (40, 6, 2, 0xFFFDC0)
    assert (u64(made, 0x2F0), u64(made, 0x2F8)) == (0x7294_0000_0000, 0x7293_0000_0000)
    assert (u32(made, 0x2AC), u32(made, 0x2D0), u32(made, 0x16C)) == ((4096,), (132,), (1024,))
    assert u64(made, 0x348) == 0x10_0000_4380
    assert u32(made, 0, 6) == (0,) * 6


@pytest.mark.parametrize("layout", [BANK_TURING, BANK_AMPERE, BANK_BLACKWELL], ids=lambda x: x.name)
def test_clusters_are_refused_where_they_are_not_known(layout: BankLayout) -> None:
    with pytest.raises(UnsupportedError, match="clusters are not offered"):
        fill(kernel(layout), layout, dataclasses.replace(FACTS, cluster=(2, 1, 1)))


def test_a_kernel_wants_its_own_cluster() -> None:
    wanted = kernel(BANK_HOPPER, cluster=(2, 1, 1))
    for given in (None, (4, 1, 1)):
        with pytest.raises(ArgumentError, match="one size of cluster"):
            fill(wanted, BANK_HOPPER, dataclasses.replace(FACTS, cluster=given))
    fill(wanted, BANK_HOPPER, dataclasses.replace(FACTS, cluster=(2, 1, 1)))


def test_a_kernel_of_another_generation_is_refused() -> None:
    with pytest.raises(ArgumentError, match="another generation than hopper: found parameters at"):
        fill(kernel(BANK_AMPERE), BANK_HOPPER, FACTS)


@pytest.mark.parametrize("size", range(1, 17))
def test_blocks_find_their_cluster(size: int) -> None:
    """As compiled code does it: the block's index to float32, times this, without the fraction."""
    factor = np.float32(reciprocal_above(size))
    assert float(factor) == reciprocal_above(size)
    blocks = np.arange(1 << 20, dtype=np.uint32)
    found = (blocks.astype(np.float32) * factor).astype(np.uint32)
    np.testing.assert_array_equal(found, blocks // size)


def test_parameters_are_stored_as_they_are() -> None:
    made = fill(kernel(BANK_HOPPER), BANK_HOPPER, FACTS)
    write_parameters(made, kernel(BANK_HOPPER), [0x1234_5678_9ABC, 1.5, 0.5, b"12345678"])
    base = 0x210
    assert u64(made, base) == 0x1234_5678_9ABC
    assert struct.unpack_from("<fe", made, base + 8) == (1.5, 0.5)
    assert made[base + 16 : base + 24] == b"12345678"
    write_parameters(made, kernel(BANK_HOPPER), [-1, -2, 0xFFFF, 2.0])
    assert struct.unpack_from("<qiHxxd", made, base) == (-1, -2, 0xFFFF, 2.0)


@pytest.mark.parametrize("values", [
    [1 << 64, 0, 0, 0], [0, 1 << 32, 0, 0], [0, 0, -(1 << 15) - 1, 0], [0, 0, 0, b"1234567"],
    [0, 1e300, 0, 0], [0, 0, 1e10, 0],
])
def test_parameters_that_do_not_fit_are_named(values: list[Any]) -> None:
    with pytest.raises(ArgumentError, match="parameter . of the kernel 'k' does not fit"):
        write_parameters(bytearray(0x400), kernel(BANK_HOPPER), values)
    with pytest.raises(ArgumentError, match="takes 4 parameters: found 3"):
        write_parameters(bytearray(0x400), kernel(BANK_HOPPER), values[:3])


def test_a_compiled_kernel_is_filled() -> None:
    pytest.importorskip("elftools")
    saxpy = read_cubin((DATA / "saxpy.sm_90a.cuda13.cubin").read_bytes()).kernel("saxpy")
    made = fill(saxpy, BANK_HOPPER, FACTS)
    write_parameters(made, saxpy, [0x20_0000_0000, 0x20_0000_1000, 2.5, 1000])
    assert struct.unpack_from("<QQfi", made, 0x210) == (0x20_0000_0000, 0x20_0000_1000, 2.5, 1000)
    assert len(made) == 0x210 + 24
