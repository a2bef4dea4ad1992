"""Copies by threads of machine code on the virtual GPU: right, also after faults, interrupts."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator

import numpy as np
import pytest

from baregrad.base.errors import DeviceError, DriverError
from baregrad.runtime.nvidia.copies.copy_code import copy_code
from baregrad.runtime.nvidia.copies.host_copies import HostCopies
from baregrad.runtime.nvidia.copies.piece_words import LEAST_PIECE_NBYTES, cut
from baregrad.runtime.nvidia.copies.shared_copies import (
    _MOST_PIECES,
    _MOST_SHARERS,
    _MOST_WHOLE,
    SharedCopies,
)
from baregrad.runtime.nvidia.copies.staging_options import StagingOptions
from baregrad.runtime.nvidia.device import NvDevice
from baregrad.testing.virtual_gpu.virtual_port import VirtualPort

pytestmark = pytest.mark.skipif(copy_code() is None, reason="there is no code for this processor")

OPTIONS = StagingOptions(3, 256 << 10, 2, 2, 200_000)


@pytest.fixture
def port() -> VirtualPort:
    return VirtualPort()


@pytest.fixture
def device(port: VirtualPort) -> Iterator[NvDevice]:
    device = NvDevice(port=port, timeout_s=60)
    device.staging.close()
    device.staging = HostCopies(
        device.gpu, lambda: device.channels[1], device.work.wait, device.work.watch, OPTIONS
    )
    yield device
    device.close()
    assert not port.held()


def noise(nbytes: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def check(device: NvDevice, nbytes: int, seed: int = 1) -> None:
    """Copy there and back; the array changes as soon as it may."""
    data = noise(nbytes, seed)
    buffer, sent = device.allocate(nbytes), data.copy()
    device.copy_in(buffer, sent)
    sent[:] = 0
    back = np.zeros_like(data)
    device.copy_out(buffer, back)
    assert np.array_equal(back, data)


def native(device: NvDevice) -> SharedCopies:
    found = device.staging._native
    assert found is not None
    return found


def test_all_sizes(device: NvDevice) -> None:
    for seed, nbytes in enumerate((200_000, 262_144, 262_145, 1_500_001, 5 << 20)):
        check(device, nbytes, seed)


@pytest.mark.parametrize("most", [4096, 256 << 10, 1 << 20, 4 << 20])
@pytest.mark.parametrize("sharers", [2, 8, _MOST_SHARERS])
def test_pieces_are_all_of_a_copy_and_no_more_than_there_is_room_for(
    most: int, sharers: int
) -> None:
    for nbytes in (1, 4097, 200_000, 5_000_001, most * _MOST_WHOLE):
        if nbytes > most * _MOST_WHOLE:
            continue
        begins, sizes = cut(nbytes, most, sharers, 2)
        assert begins[0] == 0 and begins[-1] == nbytes == sizes.sum()
        assert np.array_equal(begins[:-1] + sizes, begins[1:])
        assert sizes.min() > 0 and sizes.max() <= most and len(sizes) <= _MOST_PIECES
        # All but the last begin pages, and none is smaller than is worth it.
        assert not (begins[:-1] % 4096).any()
        assert len(sizes) == 1 or sizes[:-1].min() >= min(most, LEAST_PIECE_NBYTES)


def test_the_last_pieces_are_small() -> None:
    """What one thread does last is waited for by all others."""
    sizes = cut(64 << 20, 1 << 20, 8, 2).sizes
    assert sizes[20:40].min() == 1 << 20 and sizes[-8:].max() <= LEAST_PIECE_NBYTES


def test_numbers_of_pieces_go_round(device: NvDevice) -> None:
    check(device, 300_000)
    state = native(device)._state
    state.next = state.end = state.finished = (1 << 32) - 5
    native(device)._channel = None
    for seed in range(3):
        check(device, 1_000_000, seed)
    assert state.end > 1 << 32


def test_a_copy_longer_than_one_submission(
    device: NvDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baregrad.runtime.nvidia.copies.shared_copies._MOST_WHOLE", 4)
    check(device, 3_000_000)


@pytest.mark.parametrize("out", [False, True])
def test_a_fault_is_told_and_the_next_copy_is_right(
    device: NvDevice, port: VirtualPort, out: bool
) -> None:
    check(device, 300_000)
    data = noise(1_000_000)

    def once() -> None:
        if out:
            device.staging.copy_out(data, 0x3F00_0000_0000, None)
        else:
            device.staging.copy_in(0x3F00_0000_0000, data, None)
            device.staging._wait(device.channels[1], device.channels[1].last_value)

    with pytest.raises(DriverError, match="MMU fault"):
        device.work.guarded(once)
    assert port.faults
    for seed in range(2):
        check(device, 1_000_000, seed)


def test_work_in_front_that_never_ends_is_told_in_time(device: NvDevice) -> None:
    check(device, 300_000)
    never = (device.channels[0].timeline.gpu_va, 1 << 40)
    target = noise(1_000_000)
    kept, buffer = target.copy(), device.allocate(1_000_000)
    device.work.timeout_s = 0.3
    with pytest.raises(DriverError, match="a copy did not end in 0.3 s"):
        device.work.guarded(lambda: device.staging.copy_out(target, buffer.address, never))
    assert np.array_equal(target, kept)
    device.work.timeout_s = 60
    check(device, 1_000_000)


@pytest.mark.parametrize("out", [False, True])
def test_an_interrupt_comes_when_the_copy_is_done(
    device: NvDevice, out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(device, 300_000)
    data, back = noise(3 << 20), np.zeros(3 << 20, np.uint8)
    buffer = device.allocate(data.nbytes)
    if out:
        device.copy_in(buffer, data)
    code, left = copy.copy(native(device)._code), [4]
    join = code.join

    def interrupted(address: int, turns: int) -> int:
        left[0] -= 1
        if left[0] in (0, 2):
            raise KeyboardInterrupt
        return join(address, turns) or left[0] > 0

    code.join = interrupted
    monkeypatch.setattr(native(device), "_code", code)
    with pytest.raises(KeyboardInterrupt):
        if out:
            device.copy_out(buffer, back)
        else:
            device.copy_in(buffer, data)
    monkeypatch.undo()
    if not out:
        device.copy_out(buffer, back)
    assert np.array_equal(back, data)


def test_what_cannot_be_submitted_is_let_go_of(
    device: NvDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(device, 300_000)

    def refused(*_: object) -> None:
        raise DriverError("a test says no")

    monkeypatch.setattr(device.channels[1], "enter", refused)
    buffer = device.allocate(1_000_000)
    with pytest.raises(DriverError, match="a test says no"):
        device.copy_in(buffer, noise(1_000_000))
    monkeypatch.undo()
    check(device, 1_000_000, 2)


def test_a_forked_child_leaves_the_threads_to_its_parent(device: NvDevice) -> None:
    check(device, 300_000)
    child = os.fork()
    if not child:
        try:
            device.allocate(8)
        except DeviceError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    check(device, 1_000_000)


def test_a_gpu_that_works_at_the_doorbell_alone() -> None:
    port = VirtualPort(lag=False)
    device = NvDevice(port=port)
    device.staging.options = OPTIONS
    device.staging.workers = 3
    for seed in range(3):
        check(device, 1_500_000, seed)
    device.close()
    assert not port.held()
