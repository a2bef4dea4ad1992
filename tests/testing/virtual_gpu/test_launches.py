"""Launches on the virtual GPU: every release and generation, results against NumPy, checks."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.assemble.virtual_cubin import kernel_code
from baregrad.base.errors import DriverError
from baregrad.runtime.nvidia.lists.launch import GpuKernel, GpuModule
from baregrad.runtime.nvidia.queue.channel import Channel
from baregrad.runtime.nvidia.queue.channel_group import ChannelGroup
from baregrad.runtime.nvidia.queue.pushbuffer import PushBuffer
from baregrad.testing.virtual_gpu.machine.gpu_model import GpuModel
from baregrad.testing.virtual_gpu.ptx.errors import (
    KernelHang,
    OutOfBoundsAccess,
    SharedMemoryRace,
    UninitialisedRead,
)
from baregrad.testing.virtual_gpu.virtual_port import VirtualPort
from tests.testing.virtual_gpu.virtual_tools import (
    LIMIT_S,
    LINK,
    RELEASES,
    Opened,
    data_cubin,
    kernel_text,
    linked,
    opened,
)

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")


def check_saxpy(gpu: Opened, architecture: str) -> None:
    count = 1000
    x = np.arange(count, dtype=np.float32) / 2
    y = np.arange(count, dtype=np.float32) % 77
    first, second = gpu.put(x), gpu.put(y)
    kernel = GpuModule(gpu.gpu, data_cubin("saxpy", architecture)).kernel("saxpy")
    gpu.run(kernel, second, first, 2.5, count, blocks=4, threads=256)
    assert np.array_equal(gpu.get(second, np.float32, count), np.float32(2.5) * x + y)
    assert gpu.port.launched == ["saxpy"]


@pytest.mark.parametrize("release", RELEASES)
def test_every_release(release: str) -> None:
    with opened(VirtualPort(release)) as gpu:
        assert gpu.client.version == release
        check_saxpy(gpu, "sm_90")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_generation(architecture: str) -> None:
    with opened(VirtualPort(models=(GpuModel(architecture),))) as gpu:
        assert gpu.gpu.sm_version == GpuModel(architecture).sm_version
        check_saxpy(gpu, architecture)


@pytest.mark.parametrize("architecture", ["sm_75", "sm_86", "sm_90", "sm_120"])
def test_a_chain_keeps_its_order(architecture: str) -> None:
    with opened(VirtualPort(models=(GpuModel(architecture),))) as gpu:
        state = np.arange(32, dtype=np.uint32)
        memory, kernel = gpu.put(state), gpu.kernel(LINK, "link")
        for chained in (True, False):
            batch = gpu.batch()
            batch._chained = chained
            for number in range(9):
                kernel.launch(batch, (1, 1, 1), (32, 1, 1), (memory, number))
            gpu.compute.wait(batch.submit(), timeout_s=LIMIT_S)
            state = linked(state, range(9))
            assert np.array_equal(gpu.get(memory, np.uint32, 32), state)


def test_shared_and_local_memory_and_indices() -> None:
    with opened(VirtualPort()) as gpu:
        module = GpuModule(gpu.gpu, data_cubin("launch"))
        out = gpu.gpu.memory.pinned(1 << 20)
        words = out.view.cast("I")
        value = module.kernel("shared").launch(
            gpu.compute, (2, 1, 1), (64, 1, 1), (out, 100, 7), shared_nbytes=400
        )
        gpu.compute.wait(value, timeout_s=LIMIT_S)
        wanted = [(99 - i) * 7 + block for block in range(2) for i in range(100)]
        assert words[:200].tolist() == wanted
        gpu.run(module.kernel("local"), out, 5, blocks=1, threads=32)
        kept = np.zeros((64, 32), np.uint32)
        lanes = np.arange(32)
        for i in range(64):
            kept[i * 5 & 63] = lanes + i
        total = np.zeros(32, np.uint32)
        for i in range(64):
            total = total * np.uint32(31) + kept[(i * 5 + lanes) & 63, lanes]
        assert words[:32].tolist() == total.tolist()
        value = module.kernel("dims").launch(gpu.compute, (2, 3, 1), (3, 2, 2), (out,))
        gpu.compute.wait(value, timeout_s=LIMIT_S)
        assert words[12 * 12 * 5 + 12 * 11 :][:12].tolist() == [1, 2, 0, 2, 1, 1, 3, 2, 2, 2, 3, 1]


FAULTS = {
    "a wild store": ("st.global.u32 [%n], 1;", 0x1234_0000_0000, 31, OutOfBoundsAccess),
    "past the end": ("ld.global.u32 %r0, [%a + 2097152];", 0, 31, OutOfBoundsAccess),
    "nobody wrote it": ("ld.global.u32 %r0, [%a + 4096];", 0, 13, UninitialisedRead),
    "a trap": ("trap;", 0, 13, None),
    "an endless loop": ("L: add.u64 %n, %n, 1; bra L;", 0, 109, KernelHang),
    "a race": (
        ".shared .b32 place[2]; mov.u32 %r0, %tid.x; st.shared.u32 [place], %r0;", 0, 13,
        SharedMemoryRace,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_faults_stop_the_group_and_are_told(name: str) -> None:
    body, number, code, kind = FAULTS[name]
    port = VirtualPort(step_limit=3000)
    with opened(port) as gpu:
        memory = gpu.put(np.zeros(32, np.uint32))
        kernel = gpu.kernel(kernel_text(body, "broken"), "broken")
        value = kernel.launch(gpu.compute, (1, 1, 1), (32, 1, 1), (memory, number))
        with pytest.raises(DriverError, match=rf"'broken'.*Xid {code}\)"):
            gpu.compute.wait(value, timeout_s=LIMIT_S)
        (told,) = port.faults
        assert told.fault.code == code and told.fault.kernel == "broken"
        if kind is not None:
            assert isinstance(told.fault.__cause__, kind)
        assert f"{code}, Ch 00000001, kernel broken" in told.line
        # What is stopped stays so, in both channels; the copy never happens.
        with pytest.raises(DriverError):
            gpu.compute.submit(gpu.batch())
        with pytest.raises(DriverError, match="Xid"):
            gpu.copies.check()
        gpu.compute.group.close()
    with opened(port) as gpu:
        check_saxpy_again(gpu)


def check_saxpy_again(gpu: Opened) -> None:
    gpu.port.machine.launched.clear()
    check_saxpy(gpu, "sm_90")


def test_a_kernel_that_never_ends_stalls_its_channel_alone() -> None:
    with opened(VirtualPort(step_limit=3000, stall=True)) as gpu:
        memory = gpu.put(np.zeros(32, np.uint32))
        kernel = gpu.kernel(kernel_text("L: add.u64 %n, %n, 1; bra L;"), "one")
        value = kernel.launch(gpu.compute, (1, 1, 1), (32, 1, 1), (memory, 0))
        with pytest.raises(DriverError, match="no progress"):
            gpu.compute.wait(value, timeout_s=0.05)
        assert not gpu.port.faults
        gpu.compute.group.close()
        group = ChannelGroup(gpu.gpu, copy_engine=0)
        gpu.copies = Channel(group)
        group.schedule()
        assert gpu.get(memory, np.uint32, 32).tolist() == [0] * 32


def test_code_that_was_rewritten_wants_the_caches_dropped() -> None:
    with opened(VirtualPort()) as gpu:
        memory = gpu.put(np.arange(32, dtype=np.uint32))
        kernel = gpu.kernel(LINK, "link")
        gpu.run(kernel, memory, 1)
        # The same text but for one number, over the code of the first.
        other = LINK.replace("1664525", "1664527")
        kernel.module._piece.write(0, kernel_code("link", other))
        assert gpu.port.machine.gpus[0].caches.code, "the code is not remembered"
        gpu.run(kernel, memory, 1)
        state = linked(np.arange(32, dtype=np.uint32), [1])
        state = state * np.uint32(1664527) + np.uint32(1)
        assert np.array_equal(gpu.get(memory, np.uint32, 32), state)


def test_code_that_is_overwritten_is_an_illegal_instruction() -> None:
    with opened(VirtualPort()) as gpu:
        memory = gpu.put(np.arange(32, dtype=np.uint32))
        kernel = gpu.kernel(LINK, "link")
        kernel.module._piece.write(60, b"\xff\xff")
        value = kernel.launch(gpu.compute, (1, 1, 1), (32, 1, 1), (memory, 1))
        with pytest.raises(DriverError, match="Xid 13"):
            gpu.compute.wait(value, timeout_s=LIMIT_S)
        assert "Illegal Instruction" in gpu.port.faults[0].line
        gpu.compute.group.close()


@pytest.mark.parametrize("told", [True, False])
def test_descriptors_in_recycled_places_want_the_scheduler_told(told: bool) -> None:
    """The second launch of a chain lies where another lay that the GPU still remembers."""
    with opened(VirtualPort()) as gpu:
        state = np.arange(32, dtype=np.uint32)
        memory = gpu.put(state)
        link, other = gpu.kernel(LINK, "link"), gpu.kernel(LINK.replace("1664525", "5"), "link")

        def run(second: GpuKernel) -> None:
            batch = gpu.batch()
            for number, kernel in enumerate((link, second)):
                kernel.launch(batch, (1, 1, 1), (32, 1, 1), (memory, number))
            gpu.compute.wait(batch.submit(), timeout_s=LIMIT_S)

        run(link)
        assert gpu.compute.launches is not None
        (block,) = gpu.compute.launches._blocks
        block.used, block.recycled = 0, told
        run(other)
        state = linked(state, [0, 1, 0])
        # What it remembers is the kernel of the first time.
        state = state * np.uint32(5) + np.uint32(1) if told else linked(state, [1])
        assert np.array_equal(gpu.get(memory, np.uint32, 32), state)


def test_a_bank_that_says_another_shape_than_the_descriptor() -> None:
    with opened(VirtualPort()) as gpu:
        memory = gpu.put(np.arange(32, dtype=np.uint32))
        kernel = gpu.kernel(LINK, "link")
        batch = gpu.batch()
        kernel.launch(batch, (1, 1, 1), (32, 1, 1), (memory, 1))
        (item,) = batch._items
        item.data[item.form.bank_offset] = 31
        with pytest.raises(DriverError, match="Xid 13"):
            gpu.compute.wait(batch.submit(), timeout_s=LIMIT_S)
        assert "bank 0 says block (31, 1, 1), the descriptor (32, 1, 1)" in gpu.port.faults[0].line
        gpu.compute.group.close()


def test_a_launch_before_the_windows_are_placed() -> None:
    with opened(VirtualPort()) as gpu:
        memory = gpu.put(np.arange(32, dtype=np.uint32))
        kernel = gpu.kernel(LINK, "link")
        push = PushBuffer()
        push.set_windows(0, 0)
        gpu.compute.submit(push)
        value = kernel.launch(gpu.compute, (1, 1, 1), (32, 1, 1), (memory, 1))
        with pytest.raises(DriverError, match="Xid 13"):
            gpu.compute.wait(value, timeout_s=LIMIT_S)
        assert "the shared_window of bank 0" in gpu.port.faults[0].line
        gpu.compute.group.close()
