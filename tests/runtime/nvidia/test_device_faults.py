"""What is told of a fault, when, and what is left of a device: on the virtual GPU."""

from __future__ import annotations

import collections
import dataclasses
import gc
from pathlib import Path

import numpy as np
import pytest

from baregrad.base.errors import DeviceError, DriverError
from baregrad.runtime.commands import Kernel, Slot
from baregrad.runtime.nvidia import channel_pair
from baregrad.runtime.nvidia.device import NvDevice
from baregrad.runtime.nvidia.lists.launch import GpuModule
from baregrad.runtime.nvidia.queue import timeline
from baregrad.testing.virtual_gpu.virtual_port import Failure, VirtualPort
from tests.runtime.nvidia import device_tools
from tests.runtime.nvidia.random_lists import ramp
from tests.runtime.pretended_clock import PretendedClock
from tests.testing.virtual_gpu.virtual_tools import data_cubin

PARTS = Path(__file__).parent / "data/parts.sm_90a.cuda13.cubin"

pytestmark = pytest.mark.usefixtures("earlier_objects_rest")


def load(device: NvDevice, name: str) -> Kernel:
    return device.load(dataclasses.replace(device_tools.program(name), code=data_cubin("device")))


def told(device: NvDevice, name: str, values: dict[str, int], before: int = 1) -> str:
    """What is told of a kernel between good ones."""
    link, bad = load(device, "link64"), load(device, name)
    buffer = device.allocate(128)
    device.copy_in(buffer, ramp(32))
    commands = device.command_list()
    for _ in range(before):
        commands.exec(link, [buffer], {"number": 1})
    commands.exec(bad, [buffer], values, label=f"{name} train.py:17")
    commands.exec(link, [buffer], {"number": 2})
    with pytest.raises(DriverError) as caught:
        device.submit(commands)
        device.synchronize()
    return str(caught.value)


def check_goes_on(device: NvDevice) -> None:
    state = ramp(32, 5)
    buffer = device.allocate(128)
    device.copy_in(buffer, state)
    device.run(load(device, "link64"), [buffer], {"number": 9})
    device_tools.link64(state, 9)
    assert np.array_equal(buffer.contents().view(np.uint32), state)


def test_a_loop_without_an_end_is_told_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not later for the kernels that ended before it, and with how far the channels are."""
    port = VirtualPort(stall=True, step_limit=3000)
    device = NvDevice(port=port, timeout_s=10)
    with monkeypatch.context() as patch:
        clock = PretendedClock(patch, timeline, channel_pair)
        text = told(device, "endless", {}, before=5)
        assert 10 <= clock.now_s < 11
    assert "the kernel 'endless' (endless train.py:17) did not end in 10 s" in text
    assert "kernels: timeline at " in text and "copies: timeline at " in text
    assert "ring read up to" in text and "notifier 0x0" in text
    check_goes_on(device)
    device.close()
    assert not port.held()


def test_a_trap_says_that_there_is_no_address() -> None:
    device = NvDevice(port=VirtualPort())
    text = told(device, "trapped64", {})
    assert "'trapped64' (trapped64 train.py:17) was stopped by graphics engine exception" in text
    assert "the GPU reports no address for it" in text and "0x0" not in text
    assert "UNRECOGNIZED" not in text and "nearest" not in text
    check_goes_on(device)
    device.close()


@pytest.mark.parametrize("offset,words", [
    (1 << 40, "far from every buffer: the nearest one is 4.0 TiB away, the buffer of"),
    (1 << 20, " bytes behind the nearest buffer, "),
])  # fmt: skip
def test_an_address_is_told_with_what_is_near(offset: int, words: str) -> None:
    device = NvDevice(port=VirtualPort())
    text = told(device, "store64", {"offset": offset})
    assert words in text and "MMU fault" in text
    check_goes_on(device)
    device.close()


def test_new_channels_are_made_when_they_are_needed() -> None:
    """A fault is told before the driver is asked to take the old ones down, which may last."""
    port = VirtualPort()
    device = NvDevice(port=port)
    old = device.channels
    calls = port.calls
    told(device, "trapped64", {})
    assert device.channels is old
    assert port.calls - calls < 40
    check_goes_on(device)
    assert device.channels is not old
    told(device, "trapped64", {})
    port.failure = Failure(port.calls + 3)
    with pytest.raises(DeviceError, match=r"is lost.*trapped64.*and then no new channels"):
        device.allocate(128).contents()
    port.failure = None
    with pytest.raises(DeviceError, match="is lost"):
        device.synchronize()
    device.close()
    assert not port.held()


def test_variables_of_kernels_begin_anew_after_a_fault() -> None:
    """Flags that a kernel has left up when it was stopped are nothing that the next one waits for.

    Those of code that was given back are somebody else's memory by then.
    """
    device = NvDevice(port=VirtualPort())
    modules = [GpuModule(device.gpu, PARTS.read_bytes()) for _ in range(2)]
    device.work.modules.update(modules)
    names = {one.name: index for index, one in modules[0].cubin.sections.items()}
    spoiled = []
    for module in modules:
        for name in (".nv.global", ".nv.global.init"):
            begin = module.image.offsets[names[name]]
            end = begin + module.cubin.sections[names[name]].nbytes
            kept = bytes(module._piece.view[begin:end])
            module._piece.view[begin:end] = b"\xff" * (end - begin)
            spoiled.append((module._piece.view[begin:end], kept))
    modules[1].close()
    told(device, "trapped64", {})
    device.synchronize()
    device.allocate(128).contents()
    assert [bytes(view) == kept for view, kept in spoiled] == [True, True, False, False]
    assert any(spoiled[1][1]) and not any(spoiled[0][1])
    loaded = load(device, "link64").handle.kernel.module  # type: ignore[attr-defined]
    assert loaded in device.work.modules
    spoiled.clear()
    modules[0].close()
    device.close()


class Deaf(VirtualPort):
    """A GPU that misses some doorbells."""

    deaf = False

    def doorbell_heard(self) -> bool:
        heard, self.deaf = not self.deaf, False
        return heard

    def store(self, address: int, value: int) -> None:
        is_doorbell = any(address - base == 0x90 for base in self._doorbells)
        if not is_doorbell or self.doorbell_heard():
            super().store(address, value)


def test_a_doorbell_that_was_missed_is_rung_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_pair, "_RING_AGAIN_S", 0.05)
    port = Deaf()
    device = NvDevice(port=port, timeout_s=60)
    kernel, state = load(device, "link64"), ramp(32)
    buffer = device.allocate(128)
    device.copy_in(buffer, state)
    # New code makes one more submission: the first time.
    for deaf in (False, True):
        device.synchronize()
        port.deaf = deaf
        device.run(kernel, [buffer], {"number": 3})
        device.synchronize()
        device_tools.link64(state, 3)
    assert np.array_equal(buffer.contents().view(np.uint32), state)
    assert device.channels[0].rung_again == 1
    device.close()


def test_opening_and_closing_leaves_no_object_behind() -> None:
    port = VirtualPort()

    def once() -> None:
        device = NvDevice(port=port)
        buffer, large = device.allocate(128), device.allocate(3 << 20)
        device.copy_in(buffer, ramp(32))
        device.copy_in(large, bytes(3 << 20))
        commands = device.command_list()
        kernel = load(device, "link64")
        commands.exec(kernel, [Slot(0)], {"number": 1})
        device.submit(commands, [buffer])
        device.pinned(5000)[:] = 1
        device.synchronize()
        device.close()

    def counts() -> collections.Counter[str]:
        gc.collect()
        return collections.Counter(type(one).__name__ for one in gc.get_objects())

    def resources() -> tuple[int, int]:
        maps = Path("/proc/self/maps").read_text().count("\n")
        return maps, len(list(Path("/proc/self/fd").iterdir()))

    for _ in range(3):
        once()

    def growth() -> collections.Counter[str]:
        before = counts()
        for _ in range(50):
            once()
        return counts() - before

    # What is left behind grows each time; a cache that fills (abstract classes keep what
    # `isinstance` answered, for instance) grows once.
    held = resources()
    more = growth() & growth()
    assert {name: count for name, count in more.items() if count >= 25} == {}
    assert resources()[1] == held[1] and resources()[0] < held[0] + 25
    assert not port.held()
