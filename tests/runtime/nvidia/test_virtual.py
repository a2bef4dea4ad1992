"""The runtime on the virtual GPU: the hardware check's steps, every failure, leaks, two GPUs."""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from baregrad.base.errors import BaregradError, DriverError
from baregrad.base.options import options
from baregrad.program import Program
from baregrad.runtime.commands import Slot
from baregrad.runtime.nvidia.abi import numbers as nv
from baregrad.runtime.nvidia.copies import host_copies as copies
from baregrad.runtime.nvidia.device import NvDevice
from baregrad.runtime.nvidia.driver.client import Client
from baregrad.runtime.nvidia.driver.memory import Allocation
from baregrad.runtime.nvidia.driver.objects import Gpu
from baregrad.runtime.nvidia.driver.port import KernelPort, open_port
from baregrad.runtime.nvidia.lists.launch import GpuModule
from baregrad.runtime.nvidia.queue.channel import Channel
from baregrad.runtime.nvidia.queue.channel_group import ChannelGroup
from baregrad.runtime.nvidia.queue.pushbuffer import PushBuffer
from baregrad.testing.virtual_gpu import virtual_port
from baregrad.testing.virtual_gpu.machine.gpu_model import GpuModel
from baregrad.testing.virtual_gpu.virtual_port import Failure, VirtualPort
from tests.runtime.nvidia import device_tools, hardware_launch, hardware_smoke
from tests.testing.virtual_gpu.virtual_tools import RELEASES, data_cubin

# Those that make a GPU busy for long, or read what is in /proc.
TOO_LONG = {"local", "many", "launch_cost", "chain", "channel", "after", "ring"}
STEPS = [
    name for name in hardware_smoke.STEPS
    if name not in TOO_LONG | {"left_open", "after_faults"}
]  # fmt: skip


@pytest.fixture
def ports(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[VirtualPort]]:
    """Let the steps open virtual GPUs, and give them the same kernels as PTX."""
    made: list[VirtualPort] = []

    def make() -> VirtualPort:
        made.append(VirtualPort())
        return made[-1]

    def module_of(gpu: Gpu, name: str) -> GpuModule:
        return GpuModule(gpu, data_cubin(name))

    monkeypatch.setattr(hardware_smoke, "make_port", make)
    monkeypatch.setattr(hardware_launch, "make_port", make)
    monkeypatch.setattr(hardware_launch, "module_of", module_of)
    monkeypatch.setattr(hardware_smoke, "BIG_NBYTES", 1 << 20)
    yield made
    assert made and all(port.held() == [] for port in made)


@pytest.mark.parametrize("name", STEPS)
def test_steps_of_the_hardware_check(name: str, ports: list[VirtualPort]) -> None:
    hardware_smoke.STEPS[name]()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["channel", "ring", "chain", "many"])
def test_long_steps_of_the_hardware_check(name: str, ports: list[VirtualPort]) -> None:
    hardware_smoke.STEPS[name]()


# Failures.


def bring_up(port: VirtualPort) -> None:
    """Open a GPU, allocate every kind of memory, copy, launch, copy back, close."""
    with Client(port) as client, Gpu(client) as gpu:
        group = ChannelGroup(gpu)
        compute, mover = Channel(group), Channel(group, copies=True)
        group.schedule()
        host, device = gpu.memory.pinned(256), gpu.memory.device(256)
        host.view[:128] = np.arange(32, dtype=np.float32).tobytes()
        host.view[128:256] = np.ones(32, np.float32).tobytes()
        move(mover, device, host)
        kernel = GpuModule(gpu, data_cubin("saxpy")).kernel("saxpy")
        arguments = (device.gpu_va + 128, device, 2.0, 32)
        compute.wait(kernel.launch(compute, (1, 1, 1), (32, 1, 1), arguments), timeout_s=60)
        move(mover, host, device)
        found = np.frombuffer(bytes(host.view[128:256]), np.float32)
        device.close()
        assert np.array_equal(found, 2 * np.arange(32, dtype=np.float32) + 1)


def move(channel: Channel, target: Allocation, source: Allocation) -> None:
    push = PushBuffer()
    push.copy(target.gpu_va, source.gpu_va, 256)
    channel.wait(channel.submit(push), timeout_s=60)


def calls_of(release: str) -> int:
    port = VirtualPort(release, lag=False)
    bring_up(port)
    assert port.held() == []
    return port.calls


def check_failure(release: str, failure: Failure) -> None:
    """One call fails: a clear error, nothing left, and the next attempt works."""
    told: list[str] = []
    port = VirtualPort(release, lag=False, failure=failure, trace=told.append)
    with pytest.raises(BaregradError) as found:
        bring_up(port)
    (call,) = [line for line in told if line.startswith("injected")]
    message = str(found.value)
    assert isinstance(found.value, DriverError) or "no" in message, call
    if "ioctl" in call:
        struct = call.rsplit(" ", 1)[1]
        hint = f"{message} {found.value.hint}"
        assert struct in hint, call
        wanted = "NV_ERR_NO_MEMORY (0x51)" if failure.status else errno.errorcode[failure.error]
        # A call whose struct has no status fails with the system's own error.
        assert wanted in hint or "EIO" in hint, call
    assert port.held() == [], call
    port.failure = port.trace = port.machine.note = None
    bring_up(port)
    assert port.held() == []


@pytest.mark.parametrize("release", RELEASES)
def test_every_call_may_fail(release: str) -> None:
    """Each call of one release, with an error of the system or of the driver by turns; of the
    others every fourth, not the same ones.
    """
    total = calls_of(release)
    begin, step = (1, 1) if release == "580.159.04" else (1 + RELEASES.index(release), 4)
    for at in range(begin, total + 1, step):
        check_failure(release, Failure(at, errno.EIO, 0x51 if at // step % 2 else 0))


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("status", [0, 0x51])
def test_every_call_may_fail_in_every_way(release: str, status: int) -> None:
    for at in range(1, calls_of(release) + 1):
        check_failure(release, Failure(at, errno.EIO, status))


def test_the_host_may_have_no_memory_left() -> None:
    told: list[str] = []
    bring_up(VirtualPort(lag=False, trace=told.append))
    calls = [line for line in told if line.startswith(("open", "ioctl", "mmap"))]
    at = 1 + next(i for i, line in enumerate(calls) if "of pages" in line)
    port = VirtualPort(failure=Failure(at, errno.ENOMEM))
    with pytest.raises(BaregradError, match="maps no .* bytes of host memory"):
        bring_up(port)
    assert port.held() == []


# Two GPUs.


def test_one_gpu_reads_the_memory_of_the_other() -> None:
    port = VirtualPort(models=(GpuModel(), GpuModel("sm_80")))
    with Client(port) as client, Gpu(client, 0) as first, Gpu(client, 1) as second:
        assert first.uuid != second.uuid and second.sm_version == 0x800
        assert see_from(first, second, 0x3000_0000_0000) == b"there" * 20
    assert port.held() == []


def see_from(first: Gpu, second: Gpu, base: int) -> bytes:
    """Map memory of the first GPU for the second, and copy it out by the second."""
    client, nbytes = first.client, 2 << 20
    theirs, mine = first.memory.visible(100), second.memory.pinned(100)
    theirs.view[:100] = b"there" * 20
    record = client.struct("uvm_create_external_range").record(base=base, length=nbytes)
    client.uvm(nv.UVM_CREATE_EXTERNAL_RANGE, record, "x")
    record = client.struct("uvm_map_external").record(
        base=base, length=nbytes, gpuAttributesCount=1, rmCtrlFd=client.control_fd,
        hClient=client.root, hMemory=theirs.handle,
    )  # fmt: skip
    record["perGpuAttributes[0].gpuUuid"] = second.uuid
    try:
        client.uvm(nv.UVM_MAP_EXTERNAL_ALLOCATION, record, "x")
        group = ChannelGroup(second, copy_engine=0)
        channel = Channel(group)
        group.schedule()
        push = PushBuffer()
        push.copy(mine.gpu_va, base, 100)
        channel.wait(channel.submit(push), timeout_s=60)
    finally:
        first.memory._free_range(base, nbytes)
    return bytes(mine.view[:100])


def test_gpus_without_a_link_are_made_peers_first() -> None:
    port = VirtualPort(models=(GpuModel(), GpuModel()), nvlink=False)
    with Client(port) as client, Gpu(client, 0) as first, Gpu(client, 1) as second:
        with pytest.raises(DriverError, match="NV_ERR_INVALID_DEVICE"):
            see_from(first, second, 0x3000_0000_0000)
        record = client.struct("uvm_enable_peer_access").record(
            gpuUuidA=first.uuid, gpuUuidB=second.uuid
        )
        client.uvm(nv.UVM_ENABLE_PEER_ACCESS, record, "x")
        with pytest.raises(DriverError, match="NV_ERR_INVALID_DEVICE"):
            client.uvm(nv.UVM_ENABLE_PEER_ACCESS, record, "x")
        assert see_from(first, second, 0x3000_0000_0000) == b"there" * 20
    assert port.held() == []


# The option, and the device.


def test_the_option_names_the_port() -> None:
    assert isinstance(open_port("virtual"), VirtualPort)
    with options.override(nv_port="virtual"):
        assert isinstance(open_port(), VirtualPort)
    if Path("/dev/nvidiactl").exists():
        assert isinstance(open_port("kernel"), KernelPort)
    with pytest.raises(BaregradError, match="no such port"):
        open_port("nothing")


def program(name: str) -> Program:
    return dataclasses.replace(device_tools.program(name), code=data_cubin("device"))


@pytest.mark.parametrize("seed", range(4))
def test_a_device_computes(seed: int) -> None:
    port = VirtualPort(seed=seed)
    device = NvDevice(port=port, timeout_s=60)
    try:
        link, add = device.load(program("link64")), device.load(program("add"))
        commands = device.command_list()
        for number in range(4):
            commands.exec(link, [Slot(0)], {"number": number})
        commands.copy(Slot(1), Slot(0), 128)
        commands.exec(add, [Slot(2), Slot(0), Slot(1)], {"count": 32})
        state = np.arange(32, dtype=np.uint32)
        buffers = [device.allocate(128) for _ in range(3)]
        device.copy_in(buffers[0], state)
        device.submit(commands, buffers)
        for number in range(4):
            device_tools.link64(state, number)
        found = np.zeros((2, 32), np.uint32)
        device.copy_out(buffers[1], found[0])
        device.copy_out(buffers[2], found[1])
        assert np.array_equal(found[0], state)
        with np.errstate(all="ignore"):
            wanted = state.view(np.float32) * np.float32(2)
        assert np.array_equal(found[1].view(np.float32), wanted, equal_nan=True)
    finally:
        device.close()
    assert port.held() == []


@pytest.mark.parametrize("seed", range(8))
def test_kernels_of_a_list_that_copies_wait_for_what_is_copied_in(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces of what is copied in lag; a list's first kernel comes before its own first copy."""
    monkeypatch.setattr(copies, "_LEAST_OWN", 4096)
    monkeypatch.setattr(copies, "_OWN_NBYTES", 4096)
    monkeypatch.setattr(virtual_port, "_AT_DOORBELL", (0, 1))
    device = NvDevice(port=VirtualPort(seed=seed), timeout_s=60)
    turn, count = device.load(program("turn")), 2500
    commands = device.command_list()
    commands.exec(turn, [Slot(1), Slot(0)], {"count": count, "by": 1})
    commands.copy(Slot(2), Slot(1), 4 * count)
    first, second = np.arange(count, dtype=np.uint32), np.zeros(count, np.uint32)
    buffers = [device.allocate(4 * count) for _ in range(3)]
    device.copy_in(buffers[1], second)
    device.copy_in(buffers[0], first)
    device.submit(commands, buffers)
    found = np.zeros(count, np.uint32)
    device.copy_out(buffers[2], found)
    device_tools.turn(second, first, count, 1)
    device.close()
    assert np.array_equal(found, second)


def test_a_device_tells_of_a_wild_store_and_goes_on() -> None:
    port = VirtualPort()
    device = NvDevice(port=port, timeout_s=60)
    kernel, good = device.load(program("store64")), device.load(program("link64"))
    buffer = device.allocate(128)
    commands = device.command_list()
    commands.exec(kernel, [Slot(0)], {"offset": 1 << 40})
    with pytest.raises(DriverError) as caught:
        device.submit(commands, [buffer])
        device.synchronize()
    told = str(caught.value)
    assert "the kernel 'store64' was stopped by MMU fault" in told
    assert f"at {buffer.address + (4 << 40):#x} (FAULT_PDE), " in told
    assert f"at {buffer.address:#x}" in told
    assert [one.fault.code for one in port.faults] == [31]
    state = np.arange(32, dtype=np.uint32)
    device.copy_in(buffer, state)
    commands = device.command_list()
    commands.exec(good, [Slot(0)], {"number": 3})
    device.submit(commands, [buffer])
    found = np.zeros(32, np.uint32)
    device.copy_out(buffer, found)
    device_tools.link64(state, 3)
    assert np.array_equal(found, state)
    device.close()
    assert port.held() == []
