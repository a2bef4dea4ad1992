from __future__ import annotations

import pytest

from baregrad.base.errors import UnsupportedDevice
from baregrad.runtime.nvidia.abi.names import CLASSES
from baregrad.target.nvidia import NVIDIA_ROWS, nvidia_row

# What the driver lists on each chip, of the four kinds: its own classes and older ones.
LISTED = {
    "TU10x": (0xC361, 0xC461, 0xC36F, 0xC46F, 0xC5C0, 0xC5B5),
    "GA100": (0xC361, 0xC461, 0xC561, 0xC36F, 0xC46F, 0xC56F, 0xC6C0, 0xC6B5),
    "GA10x": (0xC461, 0xC561, 0xC46F, 0xC56F, 0xC7C0, 0xC7B5),
    "AD10x": (0xC461, 0xC561, 0xC46F, 0xC56F, 0xC9C0, 0xC7B5),
    "GH100": (0xC461, 0xC561, 0xC661, 0xC46F, 0xC56F, 0xC86F, 0xCBC0, 0xC8B5),
    "GB100, GB102, GB110, GB112, GB10B": (0xC661, 0xC86F, 0xC96F, 0xCDC0, 0xC9B5),
    "GB20x, GB20B, GB20C": (0xC661, 0xC761, 0xC86F, 0xC96F, 0xCA6F, 0xCEC0, 0xC9B5, 0xCAB5),
}


@pytest.mark.parametrize("chips", LISTED)
def test_a_chip_is_known_by_its_classes(chips: str) -> None:
    assert nvidia_row(LISTED[chips]).chips == chips


def test_every_row_is_found_and_every_class_has_a_name() -> None:
    assert [row.chips for row in NVIDIA_ROWS] == list(LISTED)
    for row in NVIDIA_ROWS:
        for kind in (row.usermode_class, row.channel_class, row.compute_class, row.copy_class):
            assert kind in CLASSES
    versions = [version for row in NVIDIA_ROWS for version in row.sm_versions]
    assert len(versions) == len(set(versions)) and versions == sorted(versions)


def test_a_chip_of_no_row_is_refused_by_its_compute_class() -> None:
    with pytest.raises(UnsupportedDevice, match="compute classes 0xc3c0, wanted Turing, Ampere"):
        nvidia_row((0xC361, 0xC36F, 0xC3C0, 0xC3B5))
    with pytest.raises(UnsupportedDevice, match="none"):
        nvidia_row(())
