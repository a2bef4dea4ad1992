from __future__ import annotations

from baregrad.runtime.cpu.device import CpuDevice
from baregrad.runtime.lifetime import watching_devices


def test_a_device_is_told_of_until_it_is_closed() -> None:
    device = CpuDevice()
    seen: list[object] = []
    with watching_devices(seen.append):
        assert device in seen
    device.close()
    seen.clear()
    with watching_devices(seen.append):
        assert device not in seen


def test_devices_that_open_later_are_told_of() -> None:
    seen: list[object] = []
    with watching_devices(seen.append):
        device = CpuDevice()
        assert device in seen
    later = CpuDevice()
    assert later not in seen
    device.close()
    later.close()
