"""Memory: alignment, sharing, lifetimes, recycling, limits, and what is refused."""

from __future__ import annotations

import gc
import itertools
import mmap
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baregrad.base.errors import DeviceError, OutOfMemory
from baregrad.runtime import open_device
from baregrad.runtime.buffers import Memory, host_array
from baregrad.runtime.host_memory import HostAllocator, size_class
from baregrad.runtime.interface import Device
from tests.runtime.kernels import open_cpu

MIB = 1 << 20


@pytest.fixture(params=["CPU", "REF"])
def device(request: pytest.FixtureRequest) -> Device:
    return open_device(request.param)


@pytest.mark.property
@given(st.integers(0, 1 << 40))
def test_size_classes_waste_an_eighth_at_most(nbytes: int) -> None:
    size = size_class(nbytes)
    assert nbytes <= size
    assert size <= max(64, nbytes + max(63, nbytes // 8))
    assert size % 64 == 0
    assert size_class(size) == size


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 1000, 300_000, 5 * MIB])
def test_buffers_are_aligned_and_writable(device: Device, nbytes: int) -> None:
    buffer = device.allocate(nbytes)
    assert buffer.address % 64 == 0
    data = np.arange(nbytes, dtype=np.uint8)
    device.copy_in(buffer, data)
    back = bytearray(nbytes)
    device.copy_out(buffer, back)
    assert bytes(back) == data.tobytes()
    assert bytes(buffer.as_memoryview()) == data.tobytes()


def test_small_buffers_do_not_overlap() -> None:
    device = open_device("CPU")
    buffers = [device.allocate(size) for size in range(1, 3000, 7)]
    ranges = sorted((buffer.address, buffer.address + buffer.nbytes) for buffer in buffers)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))


def test_views_share_bytes_and_keep_them(device: Device) -> None:
    buffer = device.allocate(100)
    device.copy_in(buffer, bytes(range(100)))
    view = buffer.view(10, 20).view(5, 3)
    assert view.address == buffer.address + 15
    buffer.close()
    del buffer
    gc.collect()
    for _ in range(50):
        device.copy_in(device.allocate(100), bytes([255]) * 100)
    assert bytes(view.as_memoryview()) == bytes([15, 16, 17])


@pytest.mark.parametrize(("offset", "nbytes"), [(-1, 5), (0, 101), (96, 5), (0, -1), (101, 0)])
def test_views_outside_are_refused(device: Device, offset: int, nbytes: int) -> None:
    with pytest.raises(DeviceError, match="outside"):
        device.allocate(100).view(offset, nbytes)


def test_a_memoryview_keeps_the_memory_from_being_recycled() -> None:
    device = open_device("CPU")
    buffer = device.allocate(4096)
    seen = np.frombuffer(buffer.as_memoryview(), np.uint8)
    seen[:] = 7
    address = buffer.address
    buffer.close()
    others = [device.allocate(4096) for _ in range(20)]
    assert address not in [other.address for other in others]
    assert (seen == 7).all()
    del seen
    assert device.allocate(4096).address == address


def test_a_closed_buffer_is_refused_everywhere(device: Device) -> None:
    buffer = device.allocate(8)
    buffer.close()
    buffer.close()
    assert buffer.closed
    for use in (
        lambda: buffer.view(0, 1),
        buffer.as_memoryview,
        lambda: device.copy_in(buffer, bytes(8)),
        lambda: device.copy_out(buffer, bytearray(8)),
    ):
        with pytest.raises(DeviceError, match="closed"):
            use()


def test_freed_memory_is_used_again() -> None:
    device = open_device("CPU")
    for size in (64, 5000, 300_000, 8 * MIB):
        first = device.allocate(size)
        address = first.address
        del first
        assert device.allocate(size - 3).address == address


def test_statistics_count_what_lives() -> None:
    device = open_device("CPU")
    buffers = [device.allocate(1024) for _ in range(4)]
    big = device.allocate(2 * MIB)
    stats = device.memory_stats()
    assert stats.in_use_nbytes == stats.peak_nbytes == 4 * 1024 + 2 * MIB
    assert stats.reserved_nbytes >= stats.in_use_nbytes
    del buffers, big
    stats = device.memory_stats()
    assert stats.in_use_nbytes == 0
    assert stats.peak_nbytes == 4 * 1024 + 2 * MIB


def test_spare_memory_is_bounded_and_can_be_given_back() -> None:
    allocator = HostAllocator(keep_nbytes=16 * MIB)
    live = [allocator.allocate(8 * MIB) for _ in range(8)]
    del live
    assert allocator.stats().reserved_nbytes <= 16 * MIB
    allocator.trim()
    assert allocator.stats().reserved_nbytes == 0


@pytest.mark.parametrize("nbytes", [0, 100, 3 * MIB])
def test_zeros_are_zeros_where_something_else_was(nbytes: int) -> None:
    device = open_cpu()
    for _ in range(2):
        used = [device.allocate(nbytes) for _ in range(3)]
        for each in used:
            host_array(each.memory, each.address, nbytes)[...] = 255
        del used, each
    found = [device.allocate_zeroed(nbytes) for _ in range(3)]
    assert not any(host_array(each.memory, each.address, nbytes).any() for each in found)
    assert len({each.address for each in found}) == (3 if nbytes else len(found))
    assert device.memory_stats().in_use_nbytes == 3 * size_class(nbytes)
    del found
    assert device.memory_stats().in_use_nbytes == 0


def test_a_size_that_no_machine_has_is_out_of_memory(device: Device) -> None:
    for nbytes in (1 << 50, 1 << 62):
        with pytest.raises(OutOfMemory, match="no room"):
            device.allocate(nbytes)
    assert device.allocate(64).nbytes == 64


def test_memory_is_released_while_allocating_in_a_collection() -> None:
    """Releasing must not take the allocator's lock: collections run inside allocations."""
    device = open_device("CPU")
    device_threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(300):
            cycle: list[object] = [device.allocate(100)]
            cycle.append(cycle)
        del cycle
    finally:
        gc.set_threshold(*device_threshold)
    gc.collect()
    assert device.memory_stats().in_use_nbytes == 0


def test_threads_allocate_at_once() -> None:
    device = open_device("CPU")
    wrong: list[int] = []

    def work(mark: int) -> None:
        for size in range(1, 400):
            buffer = device.allocate(size * 16)
            device.copy_in(buffer, bytes([mark]) * (size * 16))
            if bytes(buffer.as_memoryview()) != bytes([mark]) * (size * 16):
                wrong.append(size)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert device.memory_stats().in_use_nbytes == 0


def test_host_memory_is_wrapped_in_place(device: Device) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    buffer = device.wrap(array)
    assert buffer.address == array.ctypes.data
    assert not buffer.readonly
    array[0, 0] = 99
    assert np.frombuffer(buffer.as_memoryview(), np.float32)[0] == 99
    assert device.memory_stats().in_use_nbytes == 0


def test_a_wrapped_owner_lives_as_long_as_the_buffer(device: Device) -> None:
    class Array(np.ndarray):
        pass

    array = np.zeros(100, np.uint8).view(Array)
    gone = weakref.ref(array)
    buffer = device.wrap(array)
    view = buffer.view(50, 10)
    del array, buffer
    gc.collect()
    assert bytes(view.as_memoryview()) == bytes(10)
    assert gone() is not None
    del view
    gc.collect()
    assert gone() is None


def test_mapped_files_are_read_only(device: Device, tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(200)))
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    buffer = device.wrap(memoryview(mapping)[3:103])
    assert buffer.readonly
    assert buffer.view(1, 2).readonly
    shown = buffer.view(1, 2).as_memoryview()
    assert bytes(shown) == bytes([4, 5])
    assert shown.readonly
    with pytest.raises(DeviceError, match="read-only"):
        device.copy_in(buffer, bytes(100))
    back = bytearray(100)
    device.copy_out(buffer, back)
    assert bytes(back) == bytes(range(3, 103))


def test_writable_memory_can_be_wrapped_read_only(device: Device) -> None:
    assert device.wrap(bytearray(8), readonly=True).readonly
    assert device.wrap(b"8 bytes.").readonly


def test_scattered_memory_is_refused(device: Device) -> None:
    for data in (np.zeros((4, 4))[:, ::2], memoryview(bytes(10))[::2]):
        with pytest.raises(DeviceError, match="contiguous"):
            device.wrap(data)


def test_copies_need_the_right_size_and_device(device: Device) -> None:
    buffer = device.allocate(8)
    with pytest.raises(DeviceError, match="9 bytes, wanted 8"):
        device.copy_in(buffer, bytes(9))
    with pytest.raises(DeviceError, match="as many bytes"):
        device.copy_out(buffer, bytearray(7))
    with pytest.raises(DeviceError, match="read-only memory"):
        device.copy_out(buffer, memoryview(bytes(8)))
    with pytest.raises(DeviceError, match="another device"):
        open_device("CPU").copy_in(buffer, bytes(8))


def test_buffers_outlive_their_device() -> None:
    device = open_device("CPU")
    small, large = device.allocate(64), device.allocate(MIB)
    for buffer in (small, large):
        np.frombuffer(buffer.as_memoryview(), np.uint8)[:] = 3
    device.close()
    device.close()
    assert set(bytes(small.as_memoryview())) == set(bytes(large.as_memoryview())) == {3}


def test_unknown_devices_are_named() -> None:
    with pytest.raises(DeviceError, match="no device 'TPU'"):
        open_device("TPU")


def test_memory_calls_its_release_once() -> None:
    calls: list[str] = []
    memory = Memory(0, 1, release=calls.append, token="token")
    del memory
    gc.collect()
    assert calls == ["token"]


@pytest.mark.parametrize("nbytes", [1000, MIB - 1, MIB, 3 * MIB + 5])
def test_threads_share_large_copies(nbytes: int) -> None:
    """In, out and within a device of two threads, to and from any alignment."""
    device = open_cpu(2)
    data = np.random.default_rng(3).integers(0, 256, nbytes + 3, np.uint8)
    buffer = device.allocate(nbytes)
    device.copy_in(buffer, data[3:])
    twin = device.duplicate(buffer)
    device.copy_in(buffer, np.zeros(nbytes, np.uint8))
    back = np.zeros(nbytes + 1, np.uint8)
    device.copy_out(twin, back[1:])
    assert twin.address != buffer.address
    assert np.array_equal(back[1:], data[3:])
    assert not buffer.contents().any()


def test_copies_that_overlap_are_right() -> None:
    device = open_cpu(2)
    buffer = device.allocate(2 * MIB + 64)
    bytes_of = np.frombuffer(buffer.as_memoryview(), np.uint8)
    bytes_of[:] = np.random.default_rng(4).integers(0, 256, bytes_of.size, np.uint8)
    expected = bytes_of[: 2 * MIB].copy()
    device.copy_in(buffer.view(64, 2 * MIB), bytes_of[: 2 * MIB])
    assert np.array_equal(bytes_of[64:], expected)


def test_a_closed_device_still_gives_its_bytes() -> None:
    device = open_cpu(2)
    buffer = device.allocate(2 * MIB)
    device.copy_in(buffer, np.full(2 * MIB, 7, np.uint8))
    device.close()
    assert (buffer.contents() == 7).all()
