"""Which copy engine is used: by what the driver reports, and what is said where it reports less."""

from __future__ import annotations

import logging

import pytest

from baregrad.base.errors import DriverError
from baregrad.runtime.nvidia.abi import numbers as nv
from baregrad.runtime.nvidia.copies.copy_engines import copy_engines
from baregrad.runtime.nvidia.device import NvDevice
from baregrad.testing.virtual_gpu.machine.gpu_model import GpuModel
from baregrad.testing.virtual_gpu.virtual_port import Failure, VirtualPort

GRAPHICS, SHARED, READ, NVLINK = 0x1, 0x2, 0x4, 0x10


def opened(engines: tuple[tuple[int, int], ...], *, shows: bool = True) -> tuple[list[int], str]:
    """The engines of a GPU of such a model, best first, and why."""
    port = VirtualPort(models=(GpuModel(copy_engines=engines, shows_copy_parts=shows),))
    device = NvDevice(port=port)
    numbers, why = copy_engines(device.gpu)
    used = device.channels[1].group
    assert used.engine == (nv.NV2080_ENGINE_TYPE_COPY0 + numbers[0] if numbers else 1)
    assert used.why == why
    device.close()
    assert not port.held()
    return list(numbers), why


@pytest.mark.parametrize("release", ["535.54.03", "550.40.07", "570.86.15", "595.45.04"])
def test_every_release_tells(release: str) -> None:
    port = VirtualPort(release)
    device = NvDevice(port=port)
    assert device.channels[1].group.engine == nv.NV2080_ENGINE_TYPE_COPY0 + 4
    device.close()


def test_most_physical_engines_are_best_then_abilities_then_the_last() -> None:
    engines = ((GRAPHICS, 0xFFF), (0, 1), (0, 6), (NVLINK, 8), (0, 0), (READ, 16), (SHARED, 32),
               (0, 64))  # fmt: skip
    numbers, why = opened(engines)
    assert numbers == [2, 5, 3, 7, 1, 6]
    assert why.startswith("by physical engines: 2 with 2, 5 with 1")


def test_abilities_decide_where_physical_engines_are_not_told() -> None:
    engines = ((GRAPHICS, 1), (0, 1), (0, 6), (NVLINK, 8), (0, 4))
    numbers, why = opened(engines, shows=False)
    assert numbers == [3, 4, 2, 1]
    assert why.startswith("by abilities, since physical engines are not reported: 3 with 0x10")


def test_no_engine_beside_the_graphics_engine() -> None:
    assert opened(((GRAPHICS, 1), (0, 0))) == (
        [], "the driver has none beside the graphics engine's"
    )  # fmt: skip


def test_the_last_engine_is_taken_and_said_where_nothing_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    port = VirtualPort()
    device = NvDevice(port=port)
    calls = port.calls
    port.failure = Failure(calls + 1)
    with caplog.at_level(logging.WARNING):
        numbers, why = copy_engines(device.gpu)
    assert numbers == tuple(range(9, -1, -1))
    assert why.startswith("the last that works, since none is reported")
    assert "the last copy engine is taken" in caplog.text
    device.close()


def test_an_engine_that_is_asked_for_is_not_replaced() -> None:
    port = VirtualPort()
    device = NvDevice(port=port, copy_engine=2)
    assert device.channels[1].group.engine == nv.NV2080_ENGINE_TYPE_COPY0 + 2
    before = port.calls
    device.close()
    for at in range(before - 12, before + 1):
        port = VirtualPort(failure=Failure(at))
        with pytest.raises(DriverError):
            NvDevice(port=port, copy_engine=2)
        assert not port.held()
