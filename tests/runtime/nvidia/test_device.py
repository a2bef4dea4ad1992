"""The device over a pretended driver, whose kernels are NumPy's."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator

import numpy as np
import pytest

from baregrad.base.errors import ArgumentError, DeviceError, DriverError
from baregrad.base.options import options
from baregrad.runtime.buffers import Buffer
from baregrad.runtime.commands import Kernel, Slot
from baregrad.runtime.nvidia import channel_pair
from baregrad.runtime.nvidia.code.cubin import read_cubin
from baregrad.runtime.nvidia.device import NvDevice
from baregrad.runtime.nvidia.lists.list_style import STYLES
from baregrad.runtime.nvidia.queue import timeline
from baregrad.runtime.nvidia.queue.pushbuffer import PushBuffer
from tests.runtime.nvidia import device_tools as tools
from tests.runtime.nvidia.device_tools import Words, program
from tests.runtime.nvidia.fake_port import FakeLaunch, FakePort, FaultError
from tests.runtime.nvidia.random_lists import ramp, random_lists
from tests.runtime.pretended_clock import PretendedClock


class Machine:
    """A pretended GPU that computes what the kernels of data/device.cu do."""

    def __init__(self, style: str = "thorough") -> None:
        self.port = FakePort()
        self.port.on_launch = self._run
        self.entries: dict[int, str] = {}
        self.device = NvDevice(port=self.port, style=STYLES[style], timeout_s=60)
        # With more processors threads share a copy, and wait in words that this GPU does not know.
        self.device.staging.workers = 1
        self.facts = read_cubin(tools.cubin())
        self.ran: list[str] = []

    def load(self, name: str) -> Kernel:
        kernel = self.device.load(program(name))
        self.entries[kernel.address] = name
        return kernel

    def buffer(self, words: Words) -> Buffer:
        made = self.device.allocate(words.nbytes)
        self.device.copy_in(made, words)
        return made

    def words(self, buffer: Buffer) -> Words:
        found = np.zeros(buffer.nbytes // 4, np.uint32)
        self.device.copy_out(buffer, found)
        return found

    def _words_at(self, gpu_va: int, count: int) -> Words:
        address = self.port.host_address(gpu_va)
        return np.frombuffer((ctypes.c_ubyte * (4 * count)).from_address(address), np.uint32)

    def _run(self, launch: FakeLaunch) -> None:
        name = self.entries[launch.launch.program_address]
        self.ran.append(name)
        facts = self.facts.kernel(name)
        values = [
            struct.unpack_from("<q", launch.bank, facts.parameter_base + parameter.offset)[0]
            for parameter in facts.parameters
        ]
        if name == "link64":
            tools.link64(self._words_at(values[0], 32), values[1])
        elif name in ("turn", "turn_fetched", "add"):
            buffers = 3 if name == "add" else 2
            count = values[buffers]
            assert launch.launch.grid[0] == -(-count // tools.BLOCK)
            assert struct.unpack_from("<I", launch.bank, 0xC)[0] == launch.launch.grid[0]
            arrays = [self._words_at(value, count) for value in values[:buffers]]
            getattr(tools, name.removesuffix("_fetched"))(*arrays, *values[buffers:])
        elif name == "trapped64":
            raise FaultError(13)
        elif name == "store64":
            raise FaultError(31)
        elif name == "stacked":
            self._words_at(values[0], 264 * 256)[:] = tools.stacked(values[1])


@pytest.fixture(params=sorted(STYLES))
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    made = Machine(request.param)
    yield made
    made.device.close()
    assert not made.port.objects and not made.port.fds and not made.port.maps


@pytest.fixture
def one() -> Iterator[Machine]:
    made = Machine()
    yield made
    made.device.close()


def test_what_is_copied_in_comes_out_again(one: Machine) -> None:
    device = one.device
    for nbytes in (1, 3, 64, 4096, 4097, 70_000, 1 << 20, (9 << 20) + 5):
        data = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
        buffer = device.allocate(nbytes)
        assert buffer.address % 256 == 0
        device.copy_in(buffer, data)
        found = np.zeros(nbytes, np.uint8)
        device.copy_out(buffer, found)
        assert np.array_equal(found, data), nbytes
    pinned = device.pinned(1 << 20)
    pinned[:] = 7
    buffer = device.allocate(1000)
    device.copy_in(buffer, pinned[24:1024])
    found = np.zeros(1000, np.uint8)
    device.copy_out(buffer, found)
    assert (found == 7).all()


def test_a_chain_runs_in_order_and_again_with_other_buffers(machine: Machine) -> None:
    device = machine.device
    kernel = machine.load("link64")
    commands = device.command_list()
    for number in range(20):
        commands.exec(kernel, [Slot(0)], {"number": number})
    for seed in range(4):
        state = ramp(32, seed)
        buffer = machine.buffer(state)
        for _ in range(3):
            device.submit(commands, [buffer])
            for number in range(20):
                tools.link64(state, number)
        assert np.array_equal(machine.words(buffer), state)


def test_a_list_submitted_again_is_checked_again(machine: Machine) -> None:
    """What is known of buffers holds for these buffers alone, and while they are open."""
    device = machine.device
    commands = device.command_list()
    commands.exec(machine.load("link64"), [Slot(0)], {"number": 3})
    states = [ramp(32, seed) for seed in range(3)]
    buffers = [machine.buffer(state) for state in states]
    for which in (0, 0, 0, 1, 0, 1, 1, 2, 0, 2, 2):
        device.submit(commands, [buffers[which]])
        tools.link64(states[which], 3)
        if which == 1:
            device.synchronize()
    for buffer, state in zip(buffers, states, strict=True):
        assert np.array_equal(machine.words(buffer), state)
    short = buffers[2].view(0, 64)
    with pytest.raises(DeviceError, match="too small"):
        device.submit(commands, [short])
    with pytest.raises(DeviceError, match="slots"):
        device.submit(commands, [buffers[2], buffers[1]])
    buffers[2].close()
    with pytest.raises(DeviceError, match="closed"):
        device.submit(commands, [buffers[2]])
    # Another buffer in the same memory is another buffer.
    again = device.allocate(128)
    device.copy_in(again, states[0])
    device.submit(commands, [again])
    tools.link64(states[0], 3)
    assert np.array_equal(machine.words(again), states[0])


def test_the_style_is_an_option() -> None:
    with options.override(nv_style="early-progress"):
        device = NvDevice(port=FakePort())
    assert device.style is STYLES["early-progress"]
    device.close()
    with options.override(nv_style="fastest"), pytest.raises(ArgumentError, match="NV_STYLE"):
        NvDevice(port=FakePort())


def test_variables_decide_grids_and_values(machine: Machine) -> None:
    device = machine.device
    turn, add = machine.load("turn"), machine.load("add")
    commands = device.command_list()
    commands.exec(turn, [Slot(1), Slot(0)])
    commands.exec(turn, [Slot(2), Slot(1)])
    commands.exec(add, [Slot(3), Slot(0), Slot(1)], {"count": 100})
    for count, by in ((1000, 3), (1000, 4), (256, 1), (0, 9), (1000, 3), (257, 77)):
        wanted = [ramp(1000, seed) % np.uint32(1 << 30) for seed in range(4)]
        buffers = [machine.buffer(words) for words in wanted]
        device.submit(commands, buffers, {"count": count, "by": by})
        if count:
            tools.turn(wanted[1], wanted[0], count, by)
            tools.turn(wanted[2], wanted[1], count, by)
        tools.add(wanted[3], wanted[0], wanted[1], 100)
        for buffer, words in zip(buffers, wanted, strict=True):
            assert np.array_equal(machine.words(buffer), words), (count, by)


def test_copies_and_fills_keep_their_order_with_kernels(machine: Machine) -> None:
    device = machine.device
    kernel = machine.load("link64")
    fixed = machine.buffer(ramp(32, 5))
    commands = device.command_list()
    commands.exec(kernel, [Slot(0)], {"number": 1})
    commands.copy(Slot(1), Slot(0), 128)
    commands.exec(kernel, [Slot(1)], {"number": 2})
    commands.exec(kernel, [Slot(0)], {"number": 3})
    commands.copy(fixed, Slot(1), 128)
    commands.fill(Slot(1, 4), 8, 0xAB)
    commands.fill(Slot(1, 61), 3, 0xCD)
    commands.exec(kernel, [fixed], {"number": 4})
    for seed in range(3):
        a, b = ramp(32, seed), ramp(32, seed + 9)
        first, second = machine.buffer(a), machine.buffer(b)
        device.submit(commands, [first, second])
        tools.link64(a, 1)
        b[:] = a
        tools.link64(b, 2)
        tools.link64(a, 3)
        c = b.copy()
        b[1:3] = 0xABABABAB
        b.view(np.uint8)[61:64] = 0xCD
        tools.link64(c, 4)
        assert np.array_equal(machine.words(first), a)
        assert np.array_equal(machine.words(second), b)
        assert np.array_equal(machine.words(fixed), c)


def test_a_list_in_flight_is_not_patched(one: Machine) -> None:
    device, port = one.device, one.port
    kernel = one.load("link64")
    commands = device.command_list()
    commands.exec(kernel, [Slot(0)], {"number": 1})
    states = [ramp(32, seed) for seed in range(2)]
    buffers = [one.buffer(state) for state in states]
    device.synchronize()
    port.stalled = True
    for buffer in buffers:
        device.submit(commands, [buffer])
    port.stalled = False
    device.channels[0].submit(PushBuffer())
    device.submit(commands, [buffers[0]])
    for state, times in zip(states, (2, 1), strict=True):
        for _ in range(times):
            tools.link64(state, 1)
    for buffer, state in zip(buffers, states, strict=True):
        assert np.array_equal(one.words(buffer), state)


def test_times_are_told_for_each_command(machine: Machine) -> None:
    device = machine.device
    kernel = machine.load("link64")
    commands = device.command_list()
    commands.exec(kernel, [Slot(0)], {"number": 1})
    commands.copy(Slot(1), Slot(0), 128)
    commands.exec(kernel, [Slot(1)], {"number": 1})
    state = ramp(32)
    buffers = [machine.buffer(state), machine.buffer(state)]
    timeline = device.submit(commands, buffers, timed=True)
    assert timeline is not None
    assert timeline.labels == ("link64", "copy", "link64")
    times = [t for pair in zip(timeline.begin_ns, timeline.end_ns, strict=True) for t in pair]
    assert times == sorted(times) and times[0] > 0
    tools.link64(state, 1)
    assert np.array_equal(machine.words(buffers[0]), state)
    tools.link64(state, 1)
    assert np.array_equal(machine.words(buffers[1]), state)


def test_started_lists_give_their_times_and_overlap_as_ever(machine: Machine) -> None:
    device = machine.device
    kernel = machine.load("link64")
    commands = device.command_list()
    commands.exec(kernel, [Slot(0)], {"number": 1})
    commands.exec(kernel, [Slot(2)], {"number": 2})
    commands.exec(kernel, [Slot(0)], {"number": 3})
    commands.copy(Slot(1), Slot(0), 128)
    commands.exec(kernel, [Slot(1)], {"number": 4})
    states = [ramp(32, seed) for seed in range(3)]
    buffers = [machine.buffer(state) for state in states]
    # More of them than a list has images: times are read before an image is used again.
    started = [device.start_timed(commands, buffers) for _ in range(5)]
    device.synchronize()
    assert all(one.is_done for one in started)
    end = 0
    for times in (one.timeline() for one in started):
        assert times.labels == ("link64", "link64", "link64", "copy", "link64")
        pairs = list(zip(times.begin_ns, times.end_ns, strict=True))
        assert all(begin <= finish for begin, finish in pairs)
        # The first two need nothing of each other; the others wait for what came before.
        assert pairs[2][0] == max(times.end_ns[:2]) and pairs[4][0] >= pairs[3][1]
        assert end <= pairs[0][0]
        end = times.end_ns[-1]
    assert end <= device.clock_ns()
    for _ in range(5):
        tools.link64(states[0], 1)
        tools.link64(states[2], 2)
        tools.link64(states[0], 3)
        states[1] = states[0].copy()
        tools.link64(states[1], 4)
    for buffer, state in zip(buffers, states, strict=True):
        assert np.array_equal(machine.words(buffer), state)


def test_stacks_grow_between_lists(one: Machine) -> None:
    device = one.device
    plain, stacked = one.load("link64"), one.load("stacked")
    state = ramp(32)
    buffer, out = one.buffer(state), device.allocate(4 * 264 * 256)
    first, second = device.command_list(), device.command_list()
    first.exec(plain, [buffer], {"number": 5})
    second.exec(stacked, [out], {"stride": 5})
    for commands in (first, second, first):
        device.submit(commands)
    for _ in range(2):
        tools.link64(state, 5)
    assert np.array_equal(one.words(buffer), state)
    assert np.array_equal(one.words(out), tools.stacked(5))
    assert [launch.launch.local_nbytes for launch in one.port.launches] == [0, 832, 832]


def test_a_fault_names_the_kernel_and_the_device_goes_on(one: Machine) -> None:
    device, port = one.device, one.port
    kernel = one.load("link64")
    state = ramp(32)
    buffer = one.buffer(state)
    commands = device.command_list()
    commands.exec(kernel, [Slot(0)], {"number": 5})
    device.submit(commands, [buffer])
    device.synchronize()
    port.launch_fault = 13
    device.submit(commands, [buffer])
    with pytest.raises(DriverError, match=r"'link64'.*Xid 13"):
        device.synchronize()
    port.launch_fault = 0
    device.submit(commands, [buffer])
    for _ in range(2):
        tools.link64(state, 5)
    assert np.array_equal(one.words(buffer), state)


def faulty(machine: Machine, bad: str, *, label: str = "") -> str:
    """Return what is told when the second of three kernels fails."""
    device = machine.device
    link, other = machine.load("link64"), machine.load(bad)
    buffer = machine.buffer(ramp(32))
    commands = device.command_list()
    commands.exec(link, [buffer], {"number": 1})
    values = dict.fromkeys(other.program.variables, 1)
    commands.exec(other, [buffer], values, label=label)
    commands.exec(link, [buffer], {"number": 2})
    device.submit(commands)
    with pytest.raises(DriverError) as caught:
        device.synchronize()
    state = machine.words(buffer)
    device.run(link, [buffer], {"number": 7})
    tools.link64(state, 7)
    assert np.array_equal(machine.words(buffer), state)
    return str(caught.value)


@pytest.mark.parametrize("style", ["thorough", "idle", "early-told-progress"])
def test_the_kernel_that_failed_is_told_from_its_neighbours(style: str) -> None:
    machine = Machine(style)
    text = faulty(machine, "trapped64", label="trapped64 train.py:17")
    assert text.startswith("NV: the kernel 'trapped64' (trapped64 train.py:17) was stopped by ")
    assert "Xid 13" in text and text.endswith("(asked for at train.py:17)")
    assert "link64" not in text
    machine.device.close()


def test_a_bad_address_is_told_with_the_nearest_buffer(one: Machine) -> None:
    big = one.device.allocate(3 << 20)
    one.port.mmu_fault = (big.address + big.nbytes + 100, "FAULT_PDE", 0)
    text = faulty(one, "store64")
    # The buffer's block is what its size is rounded up to.
    assert "the kernel 'store64' was stopped by MMU fault" in text
    assert f"at {big.address + big.nbytes + 100:#x} (FAULT_PDE), " in text
    assert "bytes" in text and f"at {big.address:#x}" in text


def test_code_that_failed_is_found_by_its_address() -> None:
    machine = Machine("chain")
    kernel = machine.load("store64")
    machine.port.mmu_fault = (16, "FAULT_PTE", kernel.address)
    link = machine.load("link64")
    machine.load = {"store64": kernel, "link64": link}.__getitem__  # type: ignore[method-assign]
    assert "the kernel 'store64' was" in faulty(machine, "store64")
    machine.device.close()


def test_a_kernel_without_an_end_is_told_at_the_deadline(
    one: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, port = one.device, one.port
    kernel = one.load("link64")
    buffer = one.buffer(ramp(32))
    device.synchronize()
    port.stalled = True
    with monkeypatch.context() as patch:
        clock = PretendedClock(patch, timeline, channel_pair)
        patch.setattr(device.work, "timeout_s", 5)
        device.run(kernel, [buffer], {"number": 1})
        with pytest.raises(DriverError, match=r"the kernel 'link64' did not end in 5 s"):
            device.synchronize()
        assert 5 <= clock.now_s < 5.1
    port.stalled = False
    device.run(kernel, [buffer], {"number": 1})
    device.synchronize()


def test_memory_is_used_again_and_counted(one: Machine) -> None:
    device = one.device
    device.allocate(100)
    before = device.memory_stats()
    for _ in range(1000):
        device.allocate(5 << 20)
        device.allocate(300)
        device.allocate(300_000)
    after = device.memory_stats()
    assert after.in_use_nbytes == before.in_use_nbytes
    assert after.reserved_nbytes <= 2 * (5 << 20) + (32 << 20) + (2 << 20)


def test_trimming_gives_back_what_no_buffer_uses(one: Machine) -> None:
    device = one.device
    held, spare = device.allocate(80 << 20), device.allocate(120 << 20)
    before = device.memory_stats().reserved_nbytes
    del spare
    assert device.memory_stats().reserved_nbytes == before
    device.trim()
    after = device.memory_stats()
    assert after.reserved_nbytes <= before - (120 << 20)
    assert after.in_use_nbytes >= held.nbytes


@pytest.mark.parametrize("style", ["thorough", "early-told-progress", "idle"])
def test_random_lists_give_what_numpy_gives(style: str) -> None:
    made = Machine(style)
    assert random_lists(made.device, 100, 11, lambda _, name: made.load(name)) > 100
    made.device.close()


def test_use_after_close_and_foreign_buffers_are_refused(one: Machine) -> None:
    device = one.device
    kernel = one.load("link64")
    commands = device.command_list()
    commands.exec(kernel, [Slot(0)], {"number": 5})
    with pytest.raises(DeviceError, match="too small"):
        device.submit(commands, [device.allocate(127)])
    with pytest.raises(DeviceError, match="slots"):
        device.submit(commands, [])
    device.close()
    with pytest.raises(DeviceError, match="closed"):
        device.submit(commands, [])
    with pytest.raises(DeviceError, match="closed"):
        device.allocate(1)
