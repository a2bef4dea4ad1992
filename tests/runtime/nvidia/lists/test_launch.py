"""Launches on the pretended GPU: the words that go to it, descriptors, banks, chains, stacks."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from baregrad.base.errors import ArgumentError, DriverError, FileFormatError, UnsupportedError
from baregrad.runtime.nvidia.code.descriptor_fields import LAYOUTS, DescriptorLayout
from baregrad.runtime.nvidia.code.launch_descriptor import next_flags
from baregrad.runtime.nvidia.driver.client import Client
from baregrad.runtime.nvidia.driver.objects import Gpu
from baregrad.runtime.nvidia.lists.launch import GpuKernel, GpuModule
from baregrad.runtime.nvidia.queue.batch import Batch
from baregrad.runtime.nvidia.queue.channel import Channel
from baregrad.runtime.nvidia.queue.channel_group import ChannelGroup
from baregrad.runtime.nvidia.queue.launch_memory import LaunchBlock, LaunchPlace
from baregrad.runtime.nvidia.queue.pushbuffer import PushBuffer
from tests.runtime.nvidia.fake_port import FakePort

pytest.importorskip("elftools")

DATA = Path(__file__).parents[1] / "data"
TURING = (0xC461, 0xC46F, 0xC5C0, 0xC5B5)


@pytest.fixture
def port() -> FakePort:
    return FakePort()


@pytest.fixture
def gpu(port: FakePort) -> Iterator[Gpu]:
    with Client(port) as client, Gpu(client) as gpu:
        yield gpu
    assert not port.fds and not port.objects and not port.ranges and not port.maps


def compute_channel(gpu: Gpu, port: FakePort) -> Channel:
    group = ChannelGroup(gpu)
    channel = Channel(group)
    group.schedule()
    port.compute.clear()
    return channel


def module_of(gpu: Gpu, name: str = "launch.sm_90a.cuda13") -> GpuModule:
    return GpuModule(gpu, (DATA / f"{name}.cubin").read_bytes())


def link_kernel(gpu: Gpu) -> GpuKernel:
    return module_of(gpu).kernel("link")


def test_a_launch_is_its_descriptors_address_and_an_action(gpu: Gpu, port: FakePort) -> None:
    channel = compute_channel(gpu, port)
    kernel = link_kernel(gpu)
    value = kernel.launch(channel, (2, 3, 4), (32, 2, 1), (0x1122_3344_5566, 7))
    assert value == 2 == channel.timeline.value
    (ran,) = port.launches
    assert port.compute == [(0x1698, 0x1011), (0x2B4, ran.address >> 8), (0x2C0, 3)]
    assert ran.address % 256 == 0 and ran.address < 1 << 40
    launch = ran.launch
    assert (launch.grid, launch.block, launch.cluster) == ((2, 3, 4), (32, 2, 1), (1, 1, 1))
    assert (launch.instruction_set, launch.local_nbytes, launch.releases) == (0x90, 0, ())
    assert launch.shared_nbytes == 1024 and launch.next_address == 0
    # 32 blocks have room: 32 KiB is the wish, 8 the least, 228 the most.
    config = launch.shared_config
    assert (config.least_kib, config.most_kib, config.target_kib) == (8, 228, 32)
    (bank,) = launch.banks
    assert bank.address == ran.address + 512 and bank.nbytes == 544
    assert struct.unpack_from("<6I", ran.bank) == (32, 2, 1, 2, 3, 4)
    assert struct.unpack_from("<QQI", ran.bank, 0x18) == (
        0x7294_0000_0000, 0x7293_0000_0000, 0xFFFDC0
    )
    assert struct.unpack_from("<I", ran.bank, 0x10C) == (144,)
    assert struct.unpack_from("<Q", ran.bank, 0x198) == (bank.address + 0x210,)
    assert struct.unpack_from("<QI", ran.bank, 0x210) == (0x1122_3344_5566, 7)


def test_code_is_where_the_descriptor_says(gpu: Gpu, port: FakePort) -> None:
    channel = compute_channel(gpu, port)
    first, second = module_of(gpu, "saxpy.sm_90a.cuda13"), module_of(gpu)
    for module, name in ((first, "saxpy"), (second, "dims")):
        kernel = module.kernel(name)
        assert module.kernel(name) is kernel
        arguments = (1, 2, 3.5, 4) if name == "saxpy" else (1,)
        kernel.launch(channel, (1, 1, 1), (1, 1, 1), arguments)
        code = module.cubin.sections[kernel.facts.code]
        where = port.host_address(port.launches[-1].launch.program_address)
        assert port.view(where, code.nbytes) == code.data
    assert struct.unpack_from("<QQfi", port.launches[0].bank, 0x210) == (1, 2, 3.5, 4)
    place = first.image.base
    first.close()
    first.close()
    assert module_of(gpu, "saxpy.sm_90a.cuda13").image.base == place != second.image.base


def test_arguments_are_numbers_bytes_and_memory(gpu: Gpu, port: FakePort) -> None:
    channel = compute_channel(gpu, port)
    memory = gpu.memory.device(1)
    kernel = link_kernel(gpu)
    for number in (-2, 2**32 - 2, b"\xfe\xff\xff\xff", memoryview(b"\xfe\xff\xff\xff")):
        kernel.launch(channel, (1, 1, 1), (1, 1, 1), (memory, number))
        found = struct.unpack_from("<QI", port.launches[-1].bank, 0x210)
        assert found == (memory.gpu_va, 0xFFFFFFFE)
    before = len(port.launches)
    for bad in ((memory,), (memory, 1 << 32), (memory, b"12"), (1.5, 2, 3)):
        with pytest.raises(ArgumentError, match=r"parameter.*"):
            kernel.launch(channel, (1, 1, 1), (1, 1, 1), bad)
    assert len(port.launches) == before


def test_launches_in_a_row_are_chained_and_waited_for(gpu: Gpu, port: FakePort) -> None:
    channel = compute_channel(gpu, port)
    kernel = link_kernel(gpu)
    batch = Batch(channel)
    for number in range(3):
        assert kernel.launch(batch, (1, 1, 1), (32, 1, 1), (0, number)) == 0
    assert not port.launches
    value = batch.submit()
    channel.wait(value)
    first, second, third = port.launches
    assert [one.first for one in port.launches] == [True, False, False]
    assert first.launch.next_address == second.address
    assert second.launch.next_address == third.address
    assert third.launch.next_address == 0
    assert not any(one.launch.releases for one in port.launches)
    # Behind the chain, before the timeline, the channel waits for idleness.
    assert port.compute == [(0x1698, 0x1011), (0x2B4, first.address >> 8), (0x2C0, 3), (0x110, 0)]
    with pytest.raises(ArgumentError, match="once"):
        batch.submit()


def test_other_work_breaks_a_chain(gpu: Gpu, port: FakePort) -> None:
    channel = compute_channel(gpu, port)
    kernel = link_kernel(gpu)
    signal = gpu.memory.pinned(16)
    batch = Batch(channel)
    kernel.launch(batch, (1, 1, 1), (32, 1, 1), (0, 0))
    batch.release(signal.gpu_va, 5, wait_idle=False)
    kernel.launch(batch, (1, 1, 1), (32, 1, 1), (0, 1))
    kernel.launch(batch, (1, 1, 1), (32, 1, 1), (0, 2))
    batch.release(signal.gpu_va, 6)
    kernel.launch(batch, (1, 1, 1), (32, 1, 1), (0, 3))
    channel.wait(batch.submit())
    assert [one.first for one in port.launches] == [True, True, False, True]
    assert not any(one.launch.releases for one in port.launches)
    sent = [(0x2B4, one.address >> 8) for one in port.launches if one.first]
    # After a single launch the channel waits where another follows, after a chain at once.
    assert port.compute == [
        (0x1698, 0x1011),
        sent[0], (0x2C0, 3),
        (0x110, 0), sent[1], (0x2C0, 3), (0x110, 0),
        sent[2], (0x2C0, 3),
    ]  # fmt: skip
    assert signal.view[:8] == struct.pack("<Q", 6)


def test_a_batch_may_be_unchained(gpu: Gpu, port: FakePort) -> None:
    channel = compute_channel(gpu, port)
    kernel = link_kernel(gpu)
    batch = Batch(channel, chained=False)
    for number in range(3):
        kernel.launch(batch, (1, 1, 1), (32, 1, 1), (0, number))
    channel.wait(batch.submit())
    assert [method for method, _ in port.compute] == [
        0x1698, 0x2B4, 0x2C0, 0x110, 0x2B4, 0x2C0, 0x110, 0x2B4, 0x2C0
    ]
    assert not any(one.launch.releases or one.launch.next_address for one in port.launches)


def test_turing_is_launched_by_its_own_method() -> None:
    port = FakePort(classes=TURING)
    port.facts[0xC] = 0x705
    with Client(port) as client, Gpu(client) as gpu:
        channel = compute_channel(gpu, port)
        kernel = module_of(gpu, "saxpy.sm_75.cuda13").kernel("saxpy")
        batch = Batch(channel)
        for _ in range(2):
            kernel.launch(batch, (5, 1, 1), (64, 1, 1), (1, 2, 0.5, 3))
        channel.wait(batch.submit())
        first, second = port.launches
        assert port.compute[1:] == [(0x2B4, first.address >> 8), (0x2BC, 3), (0x110, 0)]
        assert first.launch.next_address == second.address
        assert struct.unpack_from("<QQfi", first.bank, 0x160) == (1, 2, 0.5, 3)
        with pytest.raises(UnsupportedError, match=r"sm_90, wanted sm_75"):
            module_of(gpu)
        with pytest.raises(UnsupportedError, match="clusters"):
            kernel.launch(channel, (4, 1, 1), (64, 1, 1), (1, 2, 0.5, 3), cluster=(2, 1, 1))


def test_stacks_grow_and_all_launches_then_have_the_same(gpu: Gpu, port: FakePort) -> None:
    channel = compute_channel(gpu, port)
    module = module_of(gpu)
    early = Batch(channel)
    module.kernel("local").launch(early, (1, 1, 1), (32, 1, 1), (0, 5))
    module.kernel("link").launch(early, (1, 1, 1), (32, 1, 1), (0, 5))
    module.kernel("deeper").launch(channel, (1, 1, 1), (32, 1, 1), (0, 5))
    # 8192 + 0x240 = 8768 bytes a thread: 32 of them make 280576, a multiple of 512; 64 warps on
    # each of two multiprocessors make 35913728, a multiple of 32768.
    methods = dict(port.compute)
    base = methods[0x790] << 32 | methods[0x794]
    assert (methods[0x2E4], methods[0x2E8], methods[0x2EC]) == (0, 35913728, 0xFF)
    nbytes = 35913728 * 72
    assert port.host_address(base + nbytes - 1) - port.host_address(base) == nbytes - 1
    assert port.launches[0].launch.local_nbytes == 8768
    port.compute.clear()
    channel.wait(early.submit())
    assert 0x790 not in dict(port.compute)
    module.kernel("link").launch(channel, (1, 1, 1), (32, 1, 1), (0, 5))
    assert [one.launch.local_nbytes for one in port.launches] == [8768] * 4


def test_memory_of_launches_is_used_again(gpu: Gpu, port: FakePort) -> None:
    channel = compute_channel(gpu, port)
    kernel = link_kernel(gpu)
    held = Batch(channel)
    kernel.launch(held, (1, 1, 1), (32, 1, 1), (0, 12345))
    # 1280 bytes for each: 1638 fit into a block.
    for number in range(5000):
        kernel.launch(channel, (1, 1, 1), (32, 1, 1), (0, number))
    numbers = [struct.unpack_from("<I", one.bank, 0x218)[0] for one in port.launches]
    assert numbers == list(range(5000))
    blocks = {one.address >> 21 for one in port.launches}
    # The first block is held back by the batch; the second is used again and again, each time
    # with its old descriptors forgotten once.
    assert len(blocks) == 2
    assert port.compute.count((0x298, 0)) == 2
    channel.wait(held.submit())
    assert struct.unpack_from("<I", port.launches[-1].bank, 0x218) == (12345,)


def test_shared_memory_up_to_what_there_is(gpu: Gpu, port: FakePort) -> None:
    channel = compute_channel(gpu, port)
    kernel = module_of(gpu).kernel("shared")
    most = 227 << 10
    kernel.launch(channel, (1, 1, 1), (64, 1, 1), (0, 1, 2), shared_nbytes=most)
    launch = port.launches[0].launch
    assert launch.shared_nbytes == 228 << 10 and launch.shared_config.least_kib == 228
    assert struct.unpack_from("<I", port.launches[0].bank, 0x2C) == (most,)
    assert struct.unpack_from("<I", port.launches[0].bank, 0x114) == (1024,)
    with pytest.raises(ArgumentError, match="more shared memory"):
        kernel.launch(channel, (1, 1, 1), (64, 1, 1), (0, 1, 2), shared_nbytes=most + 4)
    with pytest.raises(ArgumentError, match="has a size"):
        kernel.launch(channel, (1, 1, 1), (64, 1, 1), (0, 1, 2), shared_nbytes=-1)


def test_clusters(gpu: Gpu, port: FakePort) -> None:
    channel = compute_channel(gpu, port)
    kernel = module_of(gpu).kernel("pairs")
    kernel.launch(channel, (8, 1, 1), (32, 1, 1), (0,), cluster=(2, 1, 1))
    (ran,) = port.launches
    assert (ran.launch.grid, ran.launch.cluster) == ((8, 1, 1), (2, 1, 1))
    assert struct.unpack_from("<4I3f3I", ran.bank, 0x140) == (1, 2, 1, 1, 0.5, 1, 1, 4, 1, 1)
    with pytest.raises(ArgumentError, match="whole clusters"):
        kernel.launch(channel, (7, 1, 1), (32, 1, 1), (0,), cluster=(2, 1, 1))
    with pytest.raises(ArgumentError, match="too many blocks"):
        kernel.launch(channel, (32, 1, 1), (32, 1, 1), (0,), cluster=(32, 1, 1))
    demanding = module_of(gpu, "parts.sm_90a.cuda13").kernel("twins")
    demanding.launch(channel, (4, 1, 1), (32, 1, 1), (0,))
    assert port.launches[-1].launch.cluster == (2, 1, 1)


def test_launches_that_cannot_be_are_refused(gpu: Gpu, port: FakePort) -> None:
    channel = compute_channel(gpu, port)
    kernel = link_kernel(gpu)
    with pytest.raises(ArgumentError, match="'link' has too many threads: found 1056.* 1024"):
        kernel.launch(channel, (1, 1, 1), (33, 32, 1), (0, 1))
    bound = module_of(gpu, "parts.sm_90a.cuda13").kernel("deep")
    with pytest.raises(ArgumentError, match="at most 64"):
        bound.launch(channel, (1, 1, 1), (96, 1, 1), (0, bytes(16), 1))
    with pytest.raises(ArgumentError, match="empty axes"):
        kernel.launch(channel, (0, 1, 1), (1, 1, 1), (0, 1))
    with pytest.raises(ArgumentError, match="does not fit its 16 bits"):
        kernel.launch(channel, (1, 1 << 16, 1), (1, 1, 1), (0, 1))
    with pytest.raises(FileFormatError, match="no kernel 'nothing'"):
        module_of(gpu).kernel("nothing")
    copies = Channel(channel.group, copies=True)
    with pytest.raises(ArgumentError, match="does not compute"):
        Batch(copies)
    assert not port.launches


def test_what_only_copies_needs_a_context(gpu: Gpu) -> None:
    group = ChannelGroup(gpu)
    with pytest.raises(ArgumentError, match="no context yet; make a channel that computes"):
        Channel(group, copies=True)
    Channel(group)
    Channel(group, copies=True)
    Channel(ChannelGroup(gpu, copy_engine=2), copies=True)


@pytest.mark.parametrize("code", [13, 31])
def test_a_fault_names_the_kernel_and_a_new_group_works(
    gpu: Gpu, port: FakePort, code: int
) -> None:
    channel = compute_channel(gpu, port)
    other = Channel(channel.group, copies=True)
    kernel = module_of(gpu).kernel("store")
    kernel.launch(channel, (1, 1, 1), (32, 1, 1), (0, 1))
    channel.wait()
    port.launch_fault = code
    value = kernel.launch(channel, (1, 1, 1), (32, 1, 1), (0, 1))
    match = rf"stopped the channel while it ran the kernel 'store': found .*\(Xid {code}\)"
    with pytest.raises(DriverError, match=match):
        channel.wait(value, timeout_s=60)
    for dead in (channel, other):
        with pytest.raises(DriverError, match=rf"is dead: found .*Xid {code}\) while .* 'store'"):
            dead.submit(PushBuffer())
    port.launch_fault = 0
    channel.group.close()
    again = compute_channel(gpu, port)
    again.wait(kernel.launch(again, (1, 1, 1), (32, 1, 1), (0, 1)))


def test_a_fault_in_a_chain_names_those_it_may_be(gpu: Gpu, port: FakePort) -> None:
    channel = compute_channel(gpu, port)
    module = module_of(gpu)
    batch = Batch(channel)
    for name in ("link", "store", "link"):
        module.kernel(name).launch(batch, (1, 1, 1), (32, 1, 1), (0, 1))
    port.launch_fault = 13
    value = batch.submit()
    with pytest.raises(DriverError, match=re.escape("one of the kernels 'link', 'store': found")):
        channel.wait(value, timeout_s=60)


def test_a_kernel_without_an_end_is_named(gpu: Gpu, port: FakePort) -> None:
    channel = compute_channel(gpu, port)
    port.stalled = True
    value = link_kernel(gpu).launch(channel, (1, 1, 1), (32, 1, 1), (0, 1))
    with pytest.raises(DriverError, match=r"no progress .* while it ran the kernel 'link'"):
        channel.wait(value, timeout_s=0.15)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda one: f"{one.version[0]}")
def test_quick_fields_are_those_of_the_table(layout: DescriptorLayout) -> None:
    for name, value in (("bank_address", 0x12_3456_7800), ("next_address", 0xFF_FEDC_BA00)):
        around = {("bank_nbytes", 0): 0x1230, ("bank_valid", 0): 1, ("program_address", 0): 0x1230}
        quick = layout.encode(around)
        layout.slot(name).fill(quick, value)
        assert quick == layout.encode({**around, (name, 0): value})
    data = bytearray(layout.nbytes)
    for offset, bits in next_flags(layout):
        data[offset] |= bits
    known = {"next_enable", "next_action", "next_prefetch", "next_is_grid"}
    assert not any(
        layout.read(data, name, index)
        for name, field in layout.fields.items() if name not in known
        for index in range(field.count)
    )  # fmt: skip
    assert layout.read(data, "next_enable") == 1


def test_places_of_a_block_are_apart(gpu: Gpu) -> None:
    block = LaunchBlock(gpu.memory.visible(1))
    LaunchPlace(block, 256).write(b"abc", 2)
    assert bytes(block.memory.view[256:262]) == b"\0\0abc\0"
