"""How GPUs are: what the driver answers, what it refuses, and that nothing stays open."""

from __future__ import annotations

import json
import os

import pytest

from baregrad.base.errors import DriverError
from baregrad.runtime.nvidia.abi.vendor import load_tables
from baregrad.runtime.nvidia.driver import shared_status
from baregrad.runtime.nvidia.driver.card_status import NvLinks, driver_status, uuid_text
from baregrad.runtime.nvidia.driver.shared_status import CardClocks, Load, Power
from baregrad.testing.virtual_gpu.driver import control
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
    assert first.nvlinks == NvLinks(4, 3, 26_562_500_000)
    assert (first.performance_state, first.ecc, first.errors) == ("P0", True, 0)
    assert (first.mig, first.compute_mode, first.recovery) == ("off", "Default", "None")
    assert first.processes is not None and [one.pid for one in first.processes] == [os.getpid()]
    # The power cap holds the clocks back, and there is no fan.
    assert first.clocks == CardClocks(1980, 3201, 1545, 1965) and first.held_back == ("power cap",)
    assert first.power == Power(121.33, 81.57, 37.8, 650.0) and first.load == Load(97, 41)
    assert set(first.unknown) == {"fans_rpm"}
    json.dumps(first.plain())
    # Whoever looks holds nothing, so that the card can be reset.
    assert port.held() == []


def test_an_old_driver_leaves_what_it_has_no_call_for_unknown() -> None:
    _, (first, *_) = driver_status(VirtualPort(release="535.54.03"))
    assert first.name == NAME and first.mig == "off"
    assert first.temperature_c is first.ecc_counts is first.recovery is None
    assert "535.54.03" in first.unknown["temperature_c"]
    assert "535.54.03" in first.unknown["recovery"]
    assert "535.54.03" in first.unknown["clocks"] and "535.54.03" in first.unknown["power"]


def test_a_call_that_fails_leaves_the_others_standing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_status, "_SETTLE_S", 0.0)
    reached = 0
    for at in range(1, 60):
        port = VirtualPort(failure=Failure(at))
        try:
            _, cards = driver_status(port)
        except DriverError:
            continue
        finally:
            assert port.held() == []
        # What lies in shared memory is lost together.
        shared = {"held_back", "power", "load", "fans_rpm"}
        lost = [one.unknown.keys() - shared for one in cards]
        assert sum(map(len, lost)) <= 1
        assert all(one.power is None for one in cards if "clocks" in one.unknown)
        reached += sum(map(len, lost))
    assert reached >= 10


@pytest.mark.parametrize("release", ["545.23.06", "555.58", "565.77", "590.48.01", "595.45.04"])
def test_structs_of_other_releases_are_taken(release: str) -> None:
    _, (first, *_) = driver_status(VirtualPort(release=release))
    assert first.name == NAME and first.mig == "off" and first.compute_mode == "Default"
    assert first.clocks == CardClocks(1980, 3201, 1545, 1965) and first.load == Load(97, 41)
    assert first.power == Power(121.33, 81.57, 37.8, 650.0) and first.held_back == ("power cap",)
    assert first.nvlinks is not None and first.nvlinks.active == 3


def test_sections_lie_where_a_compiler_puts_them() -> None:
    # offsetof in class/cl00de.h of each release; that of 580.159.04 was seen on a card.
    places = {
        "545.23.06": (16, 40, 56, 192, 264, 288),
        "580.142": (72, 96, 1976, 2280, 2416, 2440),
        "580.159.04": (72, 96, 1976, 2280, 2424, 2448),
        "595.45.04": (72, 112, 1992, 2296, 2432, 2456),
    }
    for release, wanted in places.items():
        tables = load_tables(release)
        layout = tables.struct("NV00DE_SHARED_DATA")
        assert layout is not None
        found = {one.name: one.offset for one in layout.members}
        reasons = "clkThrottleReason" if release < "575" else "clkThrottleInfo"
        names = ("clkPublicDomainInfos", reasons, "perfDevUtil", "powerLimitGpu",
                 "avgPowerUsage", "instPowerUsage")  # fmt: skip
        assert tuple(found[name] for name in names) == wanted


def test_what_was_written_days_ago_is_no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    # The firmware writes nothing: what the memory holds may be days old.
    monkeypatch.setattr(control, "SHARED", {})
    monkeypatch.setattr(shared_status, "_PATIENCE_S", 0.02)
    _, (first, *_) = driver_status(VirtualPort())
    for told in (first.clocks, first.power, first.load, first.held_back):
        assert told is None
    assert first.unknown["power"] == "the driver gave no reading of it"


def test_identities_are_spelled_as_the_vendor_does() -> None:
    text = uuid_text(bytes(range(16)))
    assert text == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"


def test_what_lies_where_a_stamp_should_is_told_from_one(monkeypatch: pytest.MonkeyPatch) -> None:
    # A layout that nobody knows: the sections of power lie eight bytes further than is taken.
    monkeypatch.setattr(shared_status, "load_tables", lambda version: load_tables("580.142"))
    _, (first, *_) = driver_status(VirtualPort())
    assert first.clocks is not None and first.load == Load(97, 41)
    assert first.power is not None and first.power.limit_w == 650.0
    assert first.power.average_w is first.power.now_w is None
