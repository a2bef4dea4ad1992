"""Page tables of the virtual GPU, and the process's memory as its driver touches it."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.base.errors import ArgumentError
from baregrad.testing.virtual_gpu.driver.user_memory import BadAddress, UserMemory
from baregrad.testing.virtual_gpu.machine.faults import MMU_FAULT, GpuFault
from baregrad.testing.virtual_gpu.machine.memory import (
    POISON,
    AddressSpace,
    Backing,
    MappedRegion,
    address_of,
    fresh_pages,
)
from baregrad.testing.virtual_gpu.ptx.program import PtxModule
from tests.testing.virtual_gpu.virtual_tools import LINK

PAGE = 4096


def backing(nbytes: int = 2 * PAGE, *, tracked: bool = False) -> Backing:
    return Backing(fresh_pages(nbytes), PAGE, 0, tracked=tracked, label="memory")


def test_a_range_may_lie_in_several_mappings() -> None:
    space = AddressSpace()
    one, two = backing(), backing()
    space.map(MappedRegion(0x10000, PAGE, one, PAGE, False))
    space.map(MappedRegion(0x11000, 2 * PAGE, two, 0, False))
    space.write(0x10FF0, bytes(range(32)), "test")
    assert one.data[-16:].tolist() == list(range(16))
    assert two.data[:16].tolist() == list(range(16, 32))
    assert space.read(0x10FF0, 32, "test") == bytes(range(32))
    space.copy(0x12000, 0x10FF0, 32, "test")
    assert two.data[PAGE : PAGE + 32].tolist() == list(range(32))
    with pytest.raises(ArgumentError, match="overlap"):
        space.map(MappedRegion(0x12000, PAGE, one, 0, False))
    with pytest.raises(GpuFault, match="FAULT_PDE ACCESS_TYPE_VIRT_READ") as found:
        space.read(0x12FF0, 32, "test")
    assert found.value.code == MMU_FAULT and found.value.address == 0x13000
    space.unmap(0x11000)
    with pytest.raises(GpuFault, match="VIRT_WRITE"):
        space.write(0x10FF0, bytes(32), "test")


def test_what_was_written_travels_with_the_bytes() -> None:
    space = AddressSpace()
    device, other, host = backing(tracked=True), backing(tracked=True), backing()
    for base, one in ((0x10000, device), (0x20000, other), (0x30000, host)):
        space.map(MappedRegion(base, 2 * PAGE, one, 0, False))
    space.write(0x10004, b"abcd", "test")
    space.copy(0x20000, 0x10000, 12, "test")
    assert other.written is not None
    assert other.written[:12].tolist() == [0] * 4 + [1] * 4 + [0] * 4
    space.copy(0x30000, 0x20000, 12, "test")
    assert host.data[:12].tobytes() == bytes([POISON] * 4) + b"abcd" + bytes([POISON] * 4)
    space.copy(0x20000, 0x30000, 12, "test")
    assert other.written[:12].all()


def test_memory_that_is_mapped_to_be_read() -> None:
    space = AddressSpace()
    space.map(MappedRegion(0x10000, PAGE, backing(), 0, True))
    assert space.read(0x10000, 4, "test") == bytes(4)
    with pytest.raises(GpuFault, match="FAULT_RO_VIOLATION"):
        space.write(0x10000, b"1234", "test")
    kernel = PtxModule.parse(LINK).kernel("link")
    with pytest.raises(GpuFault, match="mapped to be read"):
        kernel.launch(space.memory, (1,), (32,), [0x10000, 1])


def test_the_memory_of_the_process() -> None:
    user = UserMemory()
    data = np.arange(PAGE * 3, dtype=np.uint8)
    address = address_of(data)
    assert user.read(address + 3, 5) == data[3:8].tobytes()
    user.write(address, b"new")
    assert data[:3].tobytes() == b"new"
    assert user.read(address, 0) == b""
    for bad in (0, 16, 1 << 63, (1 << 47) + 8):
        with pytest.raises(BadAddress):
            user.read(bad, 4)
        with pytest.raises(BadAddress):
            user.write(bad, b"1234")
    assert user.readable(address, PAGE) and not user.readable(0x1000, PAGE)
