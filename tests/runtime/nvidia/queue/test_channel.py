from __future__ import annotations

import random
import struct
from collections.abc import Iterator

import pytest

from baregrad.base.errors import ArgumentError, DriverError, OutOfMemory
from baregrad.runtime.nvidia.abi.methods import HOST
from baregrad.runtime.nvidia.driver.addresses import AddressRange
from baregrad.runtime.nvidia.driver.client import Client
from baregrad.runtime.nvidia.driver.objects import Gpu
from baregrad.runtime.nvidia.queue.channel import Channel
from baregrad.runtime.nvidia.queue.channel_group import ChannelGroup
from baregrad.runtime.nvidia.queue.pushbuffer import PushBuffer
from tests.runtime.nvidia.fake_port import FakePort


@pytest.fixture
def port() -> FakePort:
    return FakePort()


@pytest.fixture
def gpu(port: FakePort) -> Iterator[Gpu]:
    with Client(port) as client, Gpu(client) as gpu:
        yield gpu


def channel_of(gpu: Gpu, *, copies: bool = True, entries: int = 8, push: int = 1024) -> Channel:
    group = ChannelGroup(gpu)
    if copies:
        Channel(group)
    channel = Channel(group, copies=copies, entries=entries, push_nbytes=push)
    group.schedule()
    return channel


# Words by hand: header = 1 << 29 | count << 16 | subchannel << 13 | method >> 2.


def test_a_release_is_five_words_to_the_host_unit() -> None:
    push = PushBuffer()
    push.release(0x12_3456_7890, 0xAAAA_BBBB_CCCC)
    assert push.words == [
        0x20050017, 0x34567890, 0x12, 0xBBBBCCCC, 0xAAAA, 1 | 1 << 20 | 1 << 24 | 1 << 25
    ]
    push = PushBuffer()
    push.release(0x10, 1, wait_idle=False)
    assert push.words[-1] == 1 | 1 << 24 | 1 << 25


def test_an_acquire_lets_others_run() -> None:
    push = PushBuffer()
    push.acquire(0x40, 9)
    assert push.words == [0x20050017, 0x40, 0, 9, 0, 3 | 1 << 12 | 1 << 24]
    with pytest.raises(ArgumentError, match="16 bytes"):
        push.acquire(0x48, 9)


def test_a_copy_is_its_addresses_its_length_and_a_launch() -> None:
    push = PushBuffer()
    push.copy(0x2_0000_0010, 0x1_0000_0020, 77)
    assert push.words == [
        0x20048100, 1, 0x20, 2, 0x10,
        0x20028106, 77, 1,
        0x200180C0, 0x182,
    ]  # fmt: skip


def test_a_copy_of_more_than_a_chunk_is_cut() -> None:
    push = PushBuffer()
    push.copy(0, 1 << 40, (1 << 31) + 5)
    assert len(push.words) == 20
    assert push.words[11:18] == [0x100, 0x80000000, 0, 0x80000000, 0x20028106, 5, 1]


def test_the_engine_releases_32_or_64_bits() -> None:
    push = PushBuffer()
    push.copy_release(0x1_0000_0040, 5, payload_bits=32)
    assert push.words == [0x20038090, 1, 0x40, 5, 0x200180C0, 0x14]
    push = PushBuffer()
    push.copy_release(0x40, 7 << 32 | 5, payload_bits=64)
    assert push.words == [0x20048090, 0, 0x40, 5, 7, 0x200180C0, 0x14 | 1 << 27]
    with pytest.raises(ArgumentError, match="cannot release"):
        push.copy_release(0x40, 1 << 32, payload_bits=32)


def test_objects_windows_and_caches() -> None:
    push = PushBuffer()
    push.set_object(1, 0xCBC0)
    push.set_windows(0x7294_0000_0000, 0x7293_0000_0000)
    push.invalidate_caches()
    assert push.words == [
        0x20012000, 0xCBC0,
        0x200220A8, 0x7294, 0,
        0x200221EC, 0x7293, 0,
        0x200125A6, 0x1011,
    ]  # fmt: skip
    with pytest.raises(ArgumentError, match="bad length"):
        push.methods(0, HOST["WFI"])


def test_a_submission_is_an_entry_of_the_ring(gpu: Gpu, port: FakePort) -> None:
    port.stalled = True
    channel = channel_of(gpu)
    state = list(port.channels.values())[-1]
    push = PushBuffer()
    push.methods(0, HOST["WFI"], 1)
    value = channel.submit(push)
    ring = port.view(port.host_address(state.ring_va), 16)
    entry = struct.unpack("<2Q", ring)[1]
    # The object's binding is the first submission: two words, and six of the release.
    assert entry & 0xFFFFFFFFFF == state.ring_va + (128 << 10) + 32
    assert entry >> 40 == 1 << 1 | 8 << 2
    assert value == 2 and channel.pointers == (0, 2)
    where = port.host_address(entry & 0xFFFFFFFFFC)
    words = struct.unpack("<8I", port.view(where, 32))
    assert words[:2] == (0x2001001E, 1) and words[5:7] == (2, 0)
    port.stalled = False
    channel.submit(PushBuffer())
    channel.wait()


@pytest.mark.parametrize("entries,push_nbytes", [(2, 1024), (8, 256), (64, 1024), (1024, 65536)])
def test_rings_wrap_around_with_nothing_lost(
    gpu: Gpu, port: FakePort, entries: int, push_nbytes: int
) -> None:
    channel = channel_of(gpu, entries=entries, push=push_nbytes)
    memory = gpu.memory.pinned(4096)
    words = memory.view.cast("I")
    rng = random.Random(entries)
    for i in range(400):
        push = PushBuffer()
        words[i % 512] = i
        for _ in range(rng.randrange(min(20, push_nbytes // 48))):
            push.copy(memory.gpu_va + 2048 + 4 * (i % 512), memory.gpu_va + 4 * (i % 512), 4)
        # Host words that change nothing: lengths of all kinds.
        for _ in range(rng.randrange(3)):
            push.methods(0, HOST["WFI"], 0)
        copied = any(word == 0x182 for word in push.words)
        assert channel.submit(push) == i + 2
        if rng.random() < 0.2:
            channel.wait()
        if copied:
            assert words[512 + i % 512] == i
    channel.wait()
    assert channel.timeline.value == 401


def test_a_full_ring_waits_for_the_gpu(gpu: Gpu, port: FakePort) -> None:
    channel = channel_of(gpu, entries=4)
    port.stalled = True
    for _ in range(2):
        channel.submit(PushBuffer())
    state = list(port.channels.values())[-1]
    waited = []

    def wait(value: int | None = None, timeout_s: float = 1) -> None:
        waited.append(value)
        if value != 1:
            port._run(state)

    channel.wait = wait  # type: ignore[method-assign]
    channel.submit(PushBuffer())
    # The object's binding is done, but nobody had looked.
    assert waited == [1]
    channel.submit(PushBuffer())
    assert waited == [1, 2]
    del channel.wait  # type: ignore[method-assign]
    port.stalled = False
    channel.submit(PushBuffer())
    channel.wait()


def test_work_that_does_not_fit_is_refused(gpu: Gpu) -> None:
    channel = channel_of(gpu, push=64)
    push = PushBuffer()
    push.words = [0] * 11
    with pytest.raises(ArgumentError, match="found 68 bytes, wanted at most 64"):
        channel.submit(push)
    with pytest.raises(ArgumentError, match="power of two"):
        Channel(channel.group, entries=6)
    with pytest.raises(ArgumentError, match="does not fit"):
        Channel(channel.group, push_nbytes=4 << 20)
    with pytest.raises(ArgumentError, match="no such copy engine"):
        ChannelGroup(gpu, copy_engine=10)


def test_a_gpu_that_stands_still_is_an_error(gpu: Gpu, port: FakePort) -> None:
    channel = channel_of(gpu)
    port.stalled = True
    value = channel.submit(PushBuffer())
    with pytest.raises(DriverError, match=r"no progress for 0.15 s: found the timeline at 1"):
        channel.wait(value, timeout_s=0.15)
    with pytest.raises(DriverError, match="the channel is dead"):
        channel.submit(PushBuffer())


def test_a_fault_is_read_from_the_notifier(gpu: Gpu) -> None:
    channel = channel_of(gpu)
    push = PushBuffer()
    push.copy(0x1234_0000_0000, 0x10, 4)
    value = channel.submit(push)
    with pytest.raises(DriverError, match="MMU fault .* .Xid 31"):
        channel.wait(value)
    channel.group.close()
    other = channel_of(gpu)
    other.wait(other.submit(PushBuffer()))


def test_addresses_are_apart_and_come_back() -> None:
    addresses = AddressRange(range(0x1000, 0x101000))
    rng = random.Random(3)
    held: dict[int, int] = {}
    for _ in range(2000):
        if held and rng.random() < 0.5:
            address = rng.choice(list(held))
            addresses.give(address)
            del held[address]
        else:
            nbytes, alignment = rng.randrange(1, 0x8000), 1 << rng.randrange(14)
            try:
                address = addresses.take(nbytes, alignment)
            except OutOfMemory:
                continue
            assert address % alignment == 0 and 0x1000 <= address <= 0x101000 - nbytes
            assert all(
                address + nbytes <= other or other + size <= address
                for other, size in held.items()
            )
            held[address] = nbytes
        assert addresses.taken_nbytes == sum(held.values())
    for address in held:
        addresses.give(address)
    assert addresses.take(0x100000, 1) == 0x1000
    with pytest.raises(OutOfMemory):
        addresses.take(1, 1)
    with pytest.raises(ArgumentError, match="not handed out"):
        addresses.give(0x2000)
