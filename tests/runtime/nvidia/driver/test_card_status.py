"""How GPUs are: what the driver answers, what it refuses, and that nothing stays open."""

from __future__ import annotations

import json
import os

import pytest

from baregrad.base.errors import DriverError
from baregrad.runtime.nvidia.driver.card_status import driver_status, uuid_text
from baregrad.testing.virtual_gpu.driver.status_controls import NAME, TEMPERATURE_C
from baregrad.testing.virtual_gpu.machine.gpu_model import GpuModel
from baregrad.testing.virtual_gpu.virtual_port import Failure, VirtualPort


def test_everything_that_is_published_is_told_of_each_gpu() -> None:
    port = VirtualPort(models=(GpuModel(), GpuModel()))
    version, (first, second) = driver_status(port)
    assert version == "580.159.04"
    assert (first.index, first.node, second.node) == (0, "/dev/nvidia0", "/dev/nvidia1")
    assert first.name == NAME and first.temperature_c == TEMPERATURE_C
    assert first.vbios == "96.00.A5.00.1A"
    assert first.uuid != second.uuid and first.bus_id != second.bus_id
    assert first.total_nbytes == GpuModel().memory_nbytes
    assert first.free_nbytes == first.usable_nbytes
    assert first.link is not None and (first.link.generation, first.link.most_lanes) == (5, 16)
    assert (first.performance_state, first.ecc, first.errors) == ("P0", True, 0)
    assert (first.mig, first.compute_mode, first.recovery) == ("off", "Default", "None")
    assert first.processes is not None and [one.pid for one in first.processes] == [os.getpid()]
    assert set(first.unknown) == {"clocks", "power", "fan"}
    json.dumps(first.plain())
    # Whoever looks holds nothing, so that the card can be reset.
    assert port.held() == []


def test_an_old_driver_leaves_what_it_has_no_call_for_unknown() -> None:
    _, (first, *_) = driver_status(VirtualPort(release="535.54.03"))
    assert first.name == NAME and first.mig == "off"
    assert first.temperature_c is first.ecc_counts is first.recovery is None
    assert "535.54.03" in first.unknown["temperature_c"]
    assert "535.54.03" in first.unknown["recovery"]


def test_a_call_that_fails_leaves_the_others_standing() -> None:
    reached = 0
    for at in range(1, 60):
        port = VirtualPort(failure=Failure(at))
        try:
            _, cards = driver_status(port)
        except DriverError:
            continue
        finally:
            assert port.held() == []
        lost = [one.unknown.keys() - {"clocks", "power", "fan"} for one in cards]
        assert sum(map(len, lost)) <= 1
        reached += sum(map(len, lost))
    assert reached >= 10


@pytest.mark.parametrize("release", ["545.23.06", "555.58", "565.77", "590.48.01", "595.45.04"])
def test_structs_of_other_releases_are_taken(release: str) -> None:
    _, (first, *_) = driver_status(VirtualPort(release=release))
    assert first.name == NAME and first.mig == "off" and first.compute_mode == "Default"


def test_identities_are_spelled_as_the_vendor_does() -> None:
    text = uuid_text(bytes(range(16)))
    assert text == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
