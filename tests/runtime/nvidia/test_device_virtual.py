"""The device on the virtual GPU, which runs the driver's calls and kernels of PTX."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from baregrad.base.errors import BaregradError, DeviceError, DriverError, OutOfMemory
from baregrad.program import Program
from baregrad.runtime.buffers import Buffer
from baregrad.runtime.commands import Kernel, Slot
from baregrad.runtime.null import NullDevice
from baregrad.runtime.nvidia.copies.host_copies import HostCopies
from baregrad.runtime.nvidia.copies.peers import peer_access
from baregrad.runtime.nvidia.copies.staging_options import StagingOptions
from baregrad.runtime.nvidia.device import NvDevice
from baregrad.runtime.nvidia.lists.list_style import STYLES
from baregrad.testing.virtual_gpu.machine.gpu_model import GpuModel
from baregrad.testing.virtual_gpu.virtual_port import Failure, VirtualPort
from tests.runtime.nvidia import device_tools
from tests.runtime.nvidia.random_lists import random_lists
from tests.testing.virtual_gpu.virtual_tools import data_cubin


@pytest.fixture
def port() -> VirtualPort:
    return VirtualPort(models=(GpuModel(), GpuModel()))


def words(count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 32, count, np.uint32)


@pytest.fixture(params=[True, False], ids=["nvlink", "pcie"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[NvDevice, NvDevice]]:
    port = VirtualPort(models=(GpuModel(), GpuModel()), nvlink=request.param)
    devices = NvDevice("NV:0", port=port), NvDevice("NV:1", port=port, index=1)
    yield devices
    for device in devices:
        device.close()
    assert not port.held()


def test_gpus_of_one_process_are_peers(pair: tuple[NvDevice, NvDevice]) -> None:
    first, second = pair
    assert peer_access(first, second).direct and peer_access(second, first).direct
    assert "peers over" in peer_access(first, second).why
    for count in (1, 5000, 3 << 20):
        data = words(count, count)
        source = first.allocate(data.nbytes)
        first.copy_in(source, data)
        there = second.duplicate(source)
        assert there.device is second
        assert np.array_equal(there.contents().view(np.uint32), data)
        back = first.allocate(data.nbytes)
        first.copy_peer(back, there)
        assert np.array_equal(back.contents().view(np.uint32), data)


def test_gpus_of_different_connections_copy_by_the_host() -> None:
    first, second = (NvDevice(port=VirtualPort(seed=seed)) for seed in range(2))
    found = peer_access(first, second)
    assert not found.direct and "connections" in found.why
    data = words(1 << 20)
    source, target = first.allocate(data.nbytes), second.allocate(data.nbytes)
    first.copy_in(source, data)
    target.device.copy_peer(target, source)
    assert np.array_equal(target.contents().view(np.uint32), data)
    with pytest.raises(DeviceError, match="two devices"):
        first.copy_peer(target, source)
    with pytest.raises(DeviceError, match="two devices of NV: found NULL to NV"):
        first.copy_peer(source, NullDevice().allocate(source.nbytes))
    with pytest.raises(DeviceError, match="as many bytes"):
        second.copy_peer(target.view(0, 4), source)
    first.close()
    second.close()


def work(port: VirtualPort) -> None:
    """Open a device, do some of everything, compare, close."""
    device = NvDevice(port=port, timeout_s=60)
    try:
        kernel = device.load(link_program())
        state = words(32)
        buffer, large = device.allocate(128), device.allocate(5 << 20)
        device.copy_in(buffer, state)
        commands = device.command_list()
        for number in range(3):
            commands.exec(kernel, [Slot(0)], {"number": number})
            device_tools.link64(state, number)
        commands.copy(Slot(1), Slot(0), 128)
        device.submit(commands, [buffer, large])
        pinned = device.pinned(5 << 20)
        device.copy_out(large, pinned)
        assert np.array_equal(pinned[:128].view(np.uint32), state)
        assert np.array_equal(buffer.contents().view(np.uint32), state)
    finally:
        device.close()


def link_program() -> Program:
    return dataclasses.replace(device_tools.program("link64"), code=data_cubin("device"))


def check_failure(port: VirtualPort, failure: Failure) -> None:
    port.calls, port.failure = 0, failure
    try:
        work(port)
    except BaregradError as error:
        assert str(error), failure
    port.failure = None
    # Buffers of the failed attempt may be kept by its traceback.
    assert not port.held(), failure
    port.calls = 0


@pytest.mark.parametrize("status", [0, 0x56])
def test_every_call_may_fail(port: VirtualPort, status: int) -> None:
    """A clear error or none, nothing left, and the next attempt works: a part of all calls."""
    work(port)
    total = port.calls
    assert total > 100 and not port.held()
    for at in range(1 + (status != 0), total + 1, 4):
        check_failure(port, Failure(at, status=status))
    work(port)


@pytest.mark.slow
@pytest.mark.parametrize("status", [0, 0x51, 0x56])
def test_every_call_may_fail_in_every_way(port: VirtualPort, status: int) -> None:
    work(port)
    total = port.calls
    for at in range(1, total + 1):
        check_failure(port, Failure(at, status=status))
        work(port)


def test_a_forked_child_leaves_the_device_alone(port: VirtualPort) -> None:
    device = NvDevice(port=port)
    buffer = device.allocate(1000)
    device.copy_in(buffer, bytes(1000))
    calls = port.calls
    child = os.fork()
    if not child:
        code = 1
        with contextlib.suppress(BaseException):
            try:
                device.allocate(1)
            except DeviceError as error:
                code = 0 if "forked" in str(error) else 2
            device.close()
            del buffer
            code = code or 3 * (port.calls != calls)
        os._exit(code)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert not buffer.contents().any()
    device.close()
    assert not port.held()


def test_a_process_may_end_with_live_buffers() -> None:
    code = (
        "from baregrad.runtime import open_device\n"
        "device = open_device('NV:1')\n"
        "kept = [device.allocate(size) for size in (1, 1000, 5 << 20)]\n"
        "device.copy_in(kept[2], bytes(5 << 20))\n"
        "pinned = device.pinned(100)\n"
        "print(device.name, device.architecture)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "BAREGRAD_NV_PORT": "virtual"},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "NV:1 sm_90a\n", "")


def test_opening_again_and_again_leaves_nothing(port: VirtualPort) -> None:
    for _ in range(50):
        device = NvDevice(port=port)
        device.copy_in(device.allocate(5000), bytes(5000))
        device.close()
        assert not port.held()


def test_memory_that_is_full_says_who_holds_it(port: VirtualPort) -> None:
    device = NvDevice(port=port)
    held: list[Buffer] = []
    with pytest.raises(OutOfMemory) as caught:
        while len(held) < 10_000:
            held.append(device.allocate(64 << 20))
    text = str(caught.value)
    assert f"{len(held)} live buffers (most of it in {len(held)} of 64.0 MiB)" in text
    assert "free on the GPU" in text
    held.clear()
    # All of it in one piece: what was let go of goes back to the driver first.
    assert device.allocate(128 << 20).nbytes == 128 << 20
    device.close()
    assert not port.held()


def load_ptx(device: NvDevice, name: str) -> Kernel:
    return device.load(dataclasses.replace(device_tools.program(name), code=data_cubin("device")))


@pytest.mark.parametrize("style", ["thorough", "light-told-progress", "idle"])
@pytest.mark.parametrize("copy_engine", [None, -1])
def test_random_lists_give_what_numpy_gives(style: str, copy_engine: int | None) -> None:
    """On a GPU that works when it likes, so that a wait that is missing shows."""
    for seed in range(3):
        port = VirtualPort(seed=seed)
        device = NvDevice(port=port, style=STYLES[style], copy_engine=copy_engine)
        assert random_lists(device, 6, seed, load_ptx) >= 6
        device.close()
        assert not port.held() and not port.faults


@pytest.mark.parametrize("native", [True, False], ids=["native", "python"])
@pytest.mark.parametrize("workers,depth,large_pages", [(3, 2, True), (2, 1, False), (5, 3, True)])
def test_threads_share_large_copies(
    port: VirtualPort, workers: int, depth: int, large_pages: bool, native: bool
) -> None:
    device = NvDevice(port=port)
    device.staging.close()
    options = StagingOptions(workers, 300_000, depth, 2, 1 << 20, large_pages, native=native)
    device.staging = HostCopies(
        device.gpu, lambda: device.channels[1], device.work.wait, device.work.watch, options
    )
    data = words((5 << 20) // 4 + 77)
    buffer = device.allocate(data.nbytes)
    for shift in range(3):
        device.copy_in(buffer, data + np.uint32(shift))
        assert np.array_equal(buffer.contents().view(np.uint32), data + np.uint32(shift))
    assert device.staging.nbytes >= workers * depth * 300_000
    # One error reaches us, whichever thread meets it; then all works again.
    device.channels[1].group.dead = "a test"
    with pytest.raises(DriverError):
        device.copy_in(buffer, data)
    device.copy_in(buffer, data)
    assert np.array_equal(buffer.contents().view(np.uint32), data)
    device.close()
    assert not port.held()


def test_what_nobody_refers_to_is_freed(port: VirtualPort) -> None:
    device = NvDevice(port=port)
    state = device.allocate(128)
    device.copy_in(state, bytes(128))

    def once() -> None:
        device.run(load_ptx(device, "link64"), [state], {"number": 1})
        device.pinned(3 << 20)[:] = 1
        device.synchronize()

    for _ in range(3):
        once()
    before = len(port.held()), device.gpu.pieces.nbytes
    for _ in range(60):
        once()
    assert (len(port.held()), device.gpu.pieces.nbytes) == before
    device.close()
    assert not port.held()


def test_a_gpu_may_be_opened_twice(port: VirtualPort) -> None:
    first, second = NvDevice(port=port), NvDevice(port=port)
    other = NvDevice(port=port, index=1)
    assert first.client is not second.client and other.client is first.client
    assert not peer_access(first, second).direct and peer_access(first, other).direct
    for device in (first, second, other):
        data = words(3000, device.index)
        buffer = device.allocate(data.nbytes)
        device.copy_in(buffer, data)
        for place in (first, second, other):
            assert np.array_equal(place.duplicate(buffer).contents().view(np.uint32), data)
    for device in (other, first, second):
        device.close()
    assert not port.held()
