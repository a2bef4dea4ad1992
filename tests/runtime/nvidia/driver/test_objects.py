from __future__ import annotations

import errno
import re

import pytest

from baregrad.base.errors import DriverError, OutOfMemory, UnsupportedDevice
from baregrad.runtime.nvidia.driver.client import Client
from baregrad.runtime.nvidia.driver.objects import Gpu
from baregrad.runtime.nvidia.queue.channel import Channel
from baregrad.runtime.nvidia.queue.channel_group import ChannelGroup
from baregrad.runtime.nvidia.queue.timeline import TimelineSemaphore
from tests.runtime.nvidia.fake_port import FakePort


def assert_clean(port: FakePort) -> None:
    """Everything that was made is freed."""
    assert not port.fds and not port.objects and not port.ranges and not port.maps


def bring_up(port: FakePort) -> None:
    """Open everything once and close it."""
    with Client(port) as client, Gpu(client) as gpu:
        group = ChannelGroup(gpu)
        Channel(group)
        copies = Channel(group, copies=True)
        group.schedule()
        gpu.memory.device(1)
        gpu.memory.pinned(1)
        own = ChannelGroup(gpu, copy_engine=2)
        Channel(own)
        own.schedule()
        copies.wait()


@pytest.mark.parametrize("version", [
    "535.54.03", "535.183.01", "545.29.06", "550.54.14", "560.35.03", "570.86.15", "575.57.08",
    "580.159.04", "590.48.01", "595.45.04", "610.43.02",
])
def test_all_that_is_opened_is_closed_on_every_release(version: str) -> None:
    port = FakePort(version)
    bring_up(port)
    assert_clean(port)


@pytest.mark.parametrize("chips", [
    (0xC461, 0xC46F, 0xC5C0, 0xC5B5), (0xC561, 0xC56F, 0xC6C0, 0xC6B5),
    (0xC561, 0xC56F, 0xC9C0, 0xC7B5), (0xC661, 0xC96F, 0xCDC0, 0xC9B5),
    (0xC661, 0xC761, 0xC96F, 0xCA6F, 0xCEC0, 0xC9B5, 0xCAB5),
])
def test_every_generation_is_brought_up(chips: tuple[int, ...]) -> None:
    port = FakePort(classes=chips)
    bring_up(port)
    assert_clean(port)


def every_call() -> list[str]:
    """Return the names of all ioctls of a bring-up, and of its teardown."""
    port = FakePort()
    bring_up(port)
    calls = [call for call in port.calls if not call.startswith(("open", "close", "unmap"))]
    return list(dict.fromkeys(calls))


# A refused call while closing is reported, and the rest is closed all the same; what hangs below
# the object that could not be freed is the kernel's business when the descriptors go.
_CLOSING = ("NVOS00", "NVOS34", "UVM_FREE", "UVM_UNREGISTER")


@pytest.mark.parametrize("call", every_call())
@pytest.mark.parametrize("refusal", [0x1F, -errno.EINVAL])
def test_a_refusal_is_named_and_everything_before_it_is_undone(call: str, refusal: int) -> None:
    name = re.split(r"[(]", call)[0]
    if refusal > 0 and name.startswith(("nv_ioctl_card", "nv_ioctl_register")):
        pytest.skip("has no status")
    port = FakePort()
    port.fail[call] = refusal
    with pytest.raises(DriverError) as caught:
        bring_up(port)
    error = caught.value
    assert name in error.struct
    assert error.ioctl.startswith(("NV_ESC_", "UVM_"))
    if refusal > 0:
        assert error.status == "NV_ERR_INVALID_ARGUMENT (0x1f)" and error.code == 0x1F
    else:
        assert error.status == "EINVAL" and error.code == 0
    assert error.struct in str(error) and error.status in str(error)
    assert not port.fds and not port.maps
    if not name.startswith(_CLOSING):
        assert_clean(port)


def test_an_error_tells_ioctl_struct_and_status() -> None:
    with Client(FakePort()) as client, Gpu(client) as gpu, pytest.raises(DriverError) as caught:
        client.allocate(gpu.device, 0xBEEF, None)
    assert str(caught.value) == (
        "the NVIDIA driver refused an object of class class 0xbeef: "
        "NV_ESC_RM_ALLOC with NVOS21_PARAMETERS gave NV_ERR_INVALID_CLASS (0x22)"
    )


def test_a_gpu_that_is_not_there_is_refused() -> None:
    with Client(FakePort()) as client:
        assert client.cards() == [(0x700, 3)]
        with pytest.raises(UnsupportedDevice, match="found 1, wanted 0 to 0"):
            Gpu(client, 1)


def test_an_unknown_generation_is_refused_and_undone() -> None:
    port = FakePort(classes=(0xC361, 0xC36F, 0xC3C0, 0xC3B5))
    with Client(port) as client, pytest.raises(UnsupportedDevice, match="0xc3c0"):
        Gpu(client)
    assert_clean(port)


def test_a_missing_node_says_what_to_check() -> None:
    port = FakePort()
    port.fail["/dev/nvidia-uvm"] = errno.ENOENT
    with pytest.raises(DriverError, match="cannot open /dev/nvidia-uvm.*driver loaded"):
        Client(port)
    assert_clean(port)


def test_memory_that_the_gpu_does_not_have_is_out_of_memory() -> None:
    port = FakePort()
    with Client(port) as client, Gpu(client) as gpu:
        first = gpu.memory.device(12 << 30)
        with pytest.raises(OutOfMemory, match="NV_ERR_NO_MEMORY"):
            gpu.memory.device(12 << 30)
        first.close()
        first.close()
        assert gpu.memory.device(12 << 30).gpu_va == first.gpu_va
    assert_clean(port)


def test_views_of_memory_that_is_gone_raise() -> None:
    with Client(FakePort()) as client, Gpu(client) as gpu:
        pinned = gpu.memory.pinned(4096)
        view = pinned.view
        timeline = TimelineSemaphore(gpu)
        pinned.close()
        with pytest.raises(ValueError, match="released"):
            bytes(view)
    with pytest.raises(ValueError, match="released"):
        assert timeline.value


def test_addresses_are_low_where_they_must_be() -> None:
    with Client(FakePort()) as client, Gpu(client) as gpu:
        low = [gpu.memory.pinned(1), gpu.memory.visible(1), gpu.memory.device(1, low=True)]
        assert all(memory.gpu_va + memory.nbytes < 1 << 40 for memory in low)
        assert gpu.memory.device(1).gpu_va >= 1 << 40
        assert gpu.memory.device(3 << 20).gpu_va % (2 << 20) == 0
