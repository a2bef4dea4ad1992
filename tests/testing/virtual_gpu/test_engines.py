"""The virtual GPU's host unit, copy engine and order of work."""

from __future__ import annotations

import time
from array import array

import numpy as np
import pytest

from baregrad.base.errors import DriverError
from baregrad.runtime.nvidia.abi import methods as m
from baregrad.runtime.nvidia.queue.channel import Channel
from baregrad.runtime.nvidia.queue.channel_group import ChannelGroup
from baregrad.runtime.nvidia.queue.pushbuffer import COPY_SUBCHANNEL, PushBuffer, split
from baregrad.runtime.nvidia.queue.timeline import TimelineSemaphore
from baregrad.testing.virtual_gpu.virtual_port import VirtualPort
from tests.testing.virtual_gpu.virtual_tools import LIMIT_S, LINK, Opened, linked, opened


def raw(*words: int) -> PushBuffer:
    push = PushBuffer()
    push.words += words
    return push


def stopped(gpu: Opened, push: PushBuffer, *, copies: bool = False) -> int:
    """Submit work that must stop the group, and return the code."""
    channel = gpu.copies if copies else gpu.compute
    with pytest.raises(DriverError, match="Xid"):
        channel.wait(channel.submit(push), timeout_s=LIMIT_S)
    return gpu.port.faults[-1].fault.code


@pytest.mark.parametrize("word,code", [
    (0, 32),  # no operation
    (2 << 29, 32), (6 << 29 | 1, 32),
    (1 << 29 | 99 << 16, 32),  # longer than what was submitted
    (1 << 29 | 1 << 16 | 2 << 13 | 0x300 >> 2, 69),  # a subchannel without an object
    (1 << 29 | 1 << 16 | 1 << 13 | 0xF00 >> 2, 13),  # a method that compute does not have
    (1 << 29 | 1 << 16 | 0x50 >> 2, 32),  # one that the host unit does not have
    (1 << 29 | 1 << 16 | 0, 69),  # an object of no class
])
def test_bad_words_stop_the_channel(word: int, code: int) -> None:
    with opened(VirtualPort()) as gpu:
        assert stopped(gpu, raw(word, 1)) == code
        gpu.compute.group.close()


def test_headers_of_every_kind() -> None:
    with opened(VirtualPort()) as gpu:
        line = TimelineSemaphore(gpu.gpu)
        low = m.HOST["SEM_ADDR_LO"].address >> 2
        high, bottom = split(line.gpu_va)
        execute = m.HOST["SEM_EXECUTE"].address >> 2
        release = 1 | 1 << 24 | 1 << 25
        # A run, a repeated method whose last word counts, one word in the header, a run of one
        # method and then the next.
        push = raw(
            1 << 29 | 2 << 16 | low, bottom, high,
            3 << 29 | 3 << 16 | low + 2, 1, 2, 41,
            4 << 29 | 0 << 16 | low + 3,
            1 << 29 | 1 << 16 | execute, release,
            5 << 29 | 2 << 16 | low + 2, 42, 0,
            7 << 29,
        )  # fmt: skip
        with pytest.raises(DriverError, match="no progress"):
            # The end of a segment drops what follows it, the timeline's release too.
            gpu.compute.wait(gpu.compute.submit(push), timeout_s=0.05)
        assert line.value == 41 and line.time_ns > 0
        gpu.compute.group.close()


def test_an_entry_outside_of_memory() -> None:
    with opened(VirtualPort()) as gpu:
        gpu.compute.wait()
        gpu.compute._push_va = 0x3000_0000
        assert stopped(gpu, PushBuffer()) == 31
        gpu.compute.group.close()


def test_a_pointer_past_the_ring() -> None:
    with opened(VirtualPort()) as gpu:
        gpu.compute.wait()
        state = gpu.compute.ring_state
        gpu.client.port.store(state.put_address, 5000)
        gpu.client.port.store(state.doorbell_address, state.token)
        with pytest.raises(DriverError, match="Xid 32"):
            gpu.compute.timeline.wait(99, LIMIT_S, gpu.compute.check)
        gpu.compute.group.close()


@pytest.mark.parametrize("operation,value,there,passes", [
    (0, 7, 7, True), (0, 7, 8, False), (2, 7, 8, True), (2, 7, 6, False),
    (3, 7, 7, True), (3, 7, 1 << 40, True), (3, 7, 6, False),
    (3, 5, (1 << 64) - 3, False), (3, (1 << 64) - 3, 5, True),
    (4, 6, 4, True), (4, 6, 1, False),
])  # fmt: skip
def test_acquires(operation: int, value: int, there: int, passes: bool) -> None:
    with opened(VirtualPort()) as gpu:
        line = TimelineSemaphore(gpu.gpu)
        line._words[0] = there
        low = m.HOST["SEM_ADDR_LO"].address >> 2
        high, bottom = split(line.gpu_va)
        upper, lower = split(value)
        push = raw(1 << 29 | 5 << 16 | low, bottom, high, lower, upper, operation | 1 << 24)
        held = gpu.compute.submit(push)
        time.sleep(0.01)
        if not passes:
            assert gpu.compute.timeline.value < held
            line._words[0] = value if operation != 4 else 2
        gpu.compute.wait(held, timeout_s=LIMIT_S)


def test_a_semaphore_that_is_not_aligned() -> None:
    with opened(VirtualPort()) as gpu:
        low = m.HOST["SEM_ADDR_LO"].address >> 2
        line = TimelineSemaphore(gpu.gpu)
        push = raw(1 << 29 | 5 << 16 | low, line.gpu_va + 8 & 0xFFFFFFFF, line.gpu_va >> 32, 1, 0,
                   1 | 1 << 24 | 1 << 25)
        assert stopped(gpu, push) == 32
        gpu.compute.group.close()


def test_lines_of_a_rectangle() -> None:
    with opened(VirtualPort()) as gpu:
        data = np.arange(400, dtype=np.uint8)
        source, target = gpu.put(data), gpu.put(np.zeros(400, np.uint8))
        push = PushBuffer()
        push.methods(
            COPY_SUBCHANNEL, m.COPY["OFFSET_IN_UPPER"], *split(source.gpu_va + 5),
            *split(target.gpu_va), 40, 10, 7, 9,
        )  # fmt: skip
        launch = m.COPY["LAUNCH_DMA"].word(
            DATA_TRANSFER_TYPE=2, SRC_MEMORY_LAYOUT=1, DST_MEMORY_LAYOUT=1, MULTI_LINE_ENABLE=1
        )
        push.methods(COPY_SUBCHANNEL, m.COPY["LAUNCH_DMA"], launch)
        gpu.copies.wait(gpu.copies.submit(push), timeout_s=LIMIT_S)
        wanted = np.zeros((40, 10), np.uint8)
        wanted[:9, :7] = data.reshape(10, 40)[:9, 5:12]
        assert np.array_equal(gpu.get(target, np.uint8, 400).reshape(40, 10), wanted)


def test_what_nobody_wrote_is_poison_in_the_host() -> None:
    with opened(VirtualPort()) as gpu:
        device, other = gpu.gpu.memory.device(64), gpu.gpu.memory.device(64)
        push = PushBuffer()
        push.fill(device.gpu_va, 0x01020304, 2)
        push.copy(other.gpu_va, device.gpu_va, 16)
        gpu.copies.wait(gpu.copies.submit(push), timeout_s=LIMIT_S)
        wanted = bytes([4, 3, 2, 1] * 2 + [0xA5] * 8)
        assert gpu.get(other, np.uint8, 16).tobytes() == wanted


def twice(gpu: Opened, wait: bool) -> bool:
    """Copy in on a channel of its own and run LINK on another; return whether that was right."""
    state = np.arange(32, dtype=np.uint32)
    memory, kernel = gpu.put(np.zeros(32, np.uint32)), gpu.kernel(LINK, "link")
    host, gate = gpu.gpu.memory.pinned(128), TimelineSemaphore(gpu.gpu)
    host.view[:128] = array("I", state.tolist()).tobytes()
    group = ChannelGroup(gpu.gpu, copy_engine=3)
    alone = Channel(group)
    group.schedule()
    push = PushBuffer()
    push.copy(memory.gpu_va, host.gpu_va, 128)
    push.release(gate.gpu_va, 1)
    alone.submit(push)
    batch = gpu.batch()
    if wait:
        batch.acquire(gate.gpu_va, 1)
    kernel.launch(batch, (1, 1, 1), (32, 1, 1), (memory, 5))
    gpu.compute.wait(batch.submit(), timeout_s=LIMIT_S)
    alone.wait(timeout_s=LIMIT_S)
    return np.array_equal(gpu.get(memory, np.uint32, 32), linked(state, [5]))


@pytest.fixture
def no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done though nobody waits is done by the clock: none of it, for one order a seed."""
    monkeypatch.setattr(VirtualPort, "_later", lambda self: None)


@pytest.mark.usefixtures("no_clock")
def test_a_wait_that_was_forgotten_shows() -> None:
    found = set()
    for seed in range(12):
        with opened(VirtualPort(seed=seed)) as gpu:
            assert twice(gpu, wait=True)
        with opened(VirtualPort(seed=seed)) as gpu:
            found.add(twice(gpu, wait=False))
    assert found == {True, False}


@pytest.mark.usefixtures("no_clock")
def test_kernels_without_a_wait_between_them_may_change_places() -> None:
    found = set()
    for seed in range(12):
        with opened(VirtualPort(seed=seed)) as gpu:
            memory, kernel = gpu.put(np.arange(32, dtype=np.uint32)), gpu.kernel(LINK, "link")
            batch = gpu.batch()
            batch._chained = False
            for number in range(3):
                kernel.launch(batch, (1, 1, 1), (32, 1, 1), (memory, number))
            idle = 1 << 29 | 1 << 16 | 1 << 13 | m.COMPUTE["WAIT_FOR_IDLE"].address >> 2
            while idle in batch.words:
                at = batch.words.index(idle)
                del batch.words[at : at + 2]
            gpu.compute.wait(batch.submit(), timeout_s=LIMIT_S)
            found.add(gpu.get(memory, np.uint32, 32).tobytes())
    assert len(found) > 1


@pytest.mark.usefixtures("no_clock")
def test_the_same_seed_makes_the_same_order() -> None:
    def lines(seed: int) -> list[str]:
        told: list[str] = []
        port = VirtualPort(seed=seed, trace=told.append)
        with opened(port) as gpu:
            twice(gpu, wait=True)
        return [line for line in told if line.startswith("  ")]

    assert lines(3) == lines(3)
    assert len({tuple(lines(seed)) for seed in range(6)}) > 1


def test_the_clock_goes_on_and_stamps_are_of_it() -> None:
    with opened(VirtualPort()) as gpu:
        before = gpu.gpu.timer_ns()
        gpu.compute.wait(gpu.compute.submit(PushBuffer()))
        assert before < gpu.compute.timeline.time_ns < gpu.gpu.timer_ns()


def test_work_is_done_though_nobody_waits() -> None:
    with opened(VirtualPort()) as gpu:
        value = gpu.compute.submit(PushBuffer())
        for _ in range(60_000):
            if gpu.compute.timeline.value >= value:
                break
            time.sleep(0.001)
        assert gpu.compute.timeline.value == value
