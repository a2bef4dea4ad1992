"""The device on the virtual GPU, which runs the driver's calls and kernels of PTX."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from baregrad.base.errors import BaregradError
from baregrad.runtime.nvidia.device import NvDevice
from baregrad.runtime.nvidia.peers import copy_between, peer_access
from baregrad.testing.virtual_gpu.gpu_machine import GpuModel
from baregrad.testing.virtual_gpu.virtual_port import Failure, VirtualPort


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
        copy_between(back, there)
        assert np.array_equal(back.contents().view(np.uint32), data)


def test_gpus_of_different_connections_copy_by_the_host() -> None:
    first, second = (NvDevice(port=VirtualPort(seed=seed)) for seed in range(2))
    found = peer_access(first, second)
    # Both ports' GPUs have one uuid, as if it were one.
    if not found.direct:
        assert "connections" in found.why
    data = words(1 << 20)
    source, target = first.allocate(data.nbytes), second.allocate(data.nbytes)
    first.copy_in(source, data)
    second.peers.clear()
    copy_between(target, source) if not found.direct else second.copy_in(target, data)
    assert np.array_equal(target.contents().view(np.uint32), data)
    first.close()
    second.close()


def test_every_call_of_opening_may_fail(port: VirtualPort) -> None:
    device = NvDevice(port=port)
    device.close()
    total = port.calls
    assert total > 50 and not port.held()
    for at in range(1, total + 1):
        port.calls, port.failure = 0, Failure(at, status=0x56)
        try:
            NvDevice(port=port).close()
        except BaregradError as error:
            assert str(error)
        # What is given back at the end may fail too; nothing else may stay.
        port.failure = None
        left = port.held()
        assert len(left) <= 1, (at, left)
