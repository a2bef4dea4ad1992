"""What a submission tells the GPU to forget, and to wait for; and that both suffice."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

from baregrad.base.errors import DeviceError, OutOfMemory
from baregrad.runtime.buffers import Buffer
from baregrad.runtime.commands import Kernel, Slot
from baregrad.runtime.nvidia.device import NvDevice
from baregrad.runtime.nvidia.lists.command_list import NvBoundList
from baregrad.runtime.nvidia.lists.list_style import DEFAULT_STYLE, STYLES
from baregrad.testing.virtual_gpu.virtual_port import VirtualPort
from tests.runtime.nvidia import device_tools
from tests.runtime.nvidia.device_tools import Words
from tests.testing.virtual_gpu.virtual_tools import data_cubin

FORGETS = {"C": "INVALIDATE_SHADER_CACHES_NO_WFI", "D": "INVALIDATE_SKED_CACHES"}
# What is forgotten, constants or descriptors, by submissions of one kernel, and of three in a
# chain: of new lists, of the same again, for other buffers.
WANTED = {
    "thorough": ("CD", "C", "CD", "CD", "C", "CD"),
    "light-told-progress": ("CD", "CD", "CD", "CD", "CD", "CD"),
    "early-told-progress": ("CD", "", "CD", "CD", "D", "CD"),
    "early-told-forgets": ("CD", "D", "CD", "CD", "D", "CD"),
    "early-told-drops": ("CD", "C", "CD", "CD", "CD", "CD"),
    "early-told-kept": ("CD", "D", "CD", "CD", "D", "CD"),
    "early-progress": ("CD", "C", "CD", "CD", "C", "CD"),
}


def load(device: NvDevice, name: str = "link64") -> Kernel:
    made = device_tools.program(f"{name}_early")
    return device.load(dataclasses.replace(made, code=data_cubin("device")))


def buffers_of(device: NvDevice, *states: Words) -> list[Buffer]:
    made = [device.allocate(state.nbytes) for state in states]
    for buffer, state in zip(made, states, strict=True):
        device.copy_in(buffer, state)
    return made


def ramps(count: int) -> list[Words]:
    return [np.arange(32, dtype=np.uint32) * np.uint32(77 + n) for n in range(count)]


@pytest.mark.parametrize("style", WANTED)
def test_what_did_not_change_is_kept(style: str) -> None:
    lines: list[str] = []
    port = VirtualPort(lag=False, trace=lines.append)
    device = NvDevice(port=port, style=STYLES[style])
    kernel, states = load(device), ramps(2)
    buffers = buffers_of(device, *states)
    found = []

    def forgotten(action: Callable[[], object]) -> str:
        lines.clear()
        action()
        text = "\n".join(lines)
        return "".join(one for one, name in FORGETS.items() if name in text)

    for length in (1, 3):
        commands = device.command_list()
        for number in range(length):
            commands.exec(kernel, [Slot(0)], {"number": number})
        # The second image of a list is not needed: nothing is ever in flight.
        for which in (0, 0, 1, 1, 0):
            told = forgotten(lambda c=commands, b=buffers[which]: device.submit(c, [b]))
            device.synchronize()
            found.append(told)
            for number in range(length):
                device_tools.link64(states[which], number)
    for buffer, state in zip(buffers, states, strict=True):
        assert np.array_equal(buffer.contents().view(np.uint32), state)
    first, again, other, other_again, back = (found[at::5] for at in range(5))
    assert other_again == again and back == other
    told = [part for row in zip(first, again, other, strict=True) for part in row]
    assert tuple(told) == WANTED[style]
    device.close()


@pytest.mark.parametrize("style", [DEFAULT_STYLE, "light-told-progress"])
@pytest.mark.parametrize("seed", range(3))
def test_submissions_that_nobody_waits_for_follow_each_other(style: str, seed: int) -> None:
    """Also where the one before tells the timeline by its last kernel, and may still be at work."""
    lines: list[str] = []
    device = NvDevice(port=VirtualPort(seed=seed, trace=lines.append), style=STYLES[style])
    kernel, states = load(device), ramps(2)
    buffers = buffers_of(device, *states)
    lists = []
    for length in (1, 2, 3):
        commands = device.command_list()
        for number in range(length):
            commands.exec(kernel, [Slot(0)], {"number": number})
        lists.append(commands)
    draw = np.random.default_rng(seed)
    for _ in range(60):
        which, slot = int(draw.integers(3)), int(draw.integers(2))
        device.submit(lists[which], [buffers[slot]])
        for number in range(which + 1):
            device_tools.link64(states[slot], number)
    for buffer, state in zip(buffers, states, strict=True):
        assert np.array_equal(buffer.contents().view(np.uint32), state)
    device.close()


def test_one_list_again_and_again_needs_no_more_than_its_two_images() -> None:
    device = NvDevice(port=VirtualPort())
    kernel, states = load(device), ramps(1)
    buffers = buffers_of(device, *states)
    commands = device.command_list()
    for number in range(2):
        commands.exec(kernel, [Slot(0)], {"number": number})
    for _ in range(50):
        device.submit(commands, buffers)
        device_tools.link64(states[0], 0)
        device_tools.link64(states[0], 1)
    # Each is one entry of the ring; a few more tell it of new code.
    read, written = device.channels[0].pointers
    assert written - read < 5 and written <= 55
    assert np.array_equal(buffers[0].contents().view(np.uint32), states[0])
    device.close()


def test_arrays_that_come_again_and_again_need_few_of_many_images() -> None:
    device = NvDevice(port=VirtualPort())
    kernel, states = load(device), ramps(2)
    buffers = buffers_of(device, *states)
    commands = device.command_list()
    commands.exec(kernel, [Slot(0)], {"number": 3})
    for which in [0, 1] * 3 + [0] * 80:
        device.submit(commands, [buffers[which]])
        device_tools.link64(states[which], 3)
        if which:
            device.synchronize()
    assert isinstance(commands.bound, NvBoundList)
    counts = {key: len(images) for key, images in commands.bound.quick.items()}
    assert counts.pop((buffers[1].serial,)) == 1
    # As many as are submitted before the first of them is done, and no more than that.
    assert 2 <= counts.pop((buffers[0].serial,)) <= commands.bound.most_alike == 4 and not counts
    for buffer, state in zip(buffers, states, strict=True):
        assert np.array_equal(buffer.contents().view(np.uint32), state)
    device.close()


def test_results_that_lie_in_two_places_in_turn_change_nothing() -> None:
    """Each of two sets of buffers has words of its own, which are submitted as they are."""
    lines: list[str] = []
    device = NvDevice(port=VirtualPort(lag=False, trace=lines.append))
    kernel, states = load(device), ramps(3)
    buffers = buffers_of(device, *states)
    commands = device.command_list()
    commands.exec(kernel, [Slot(0)], {"number": 5})
    for turn in range(12):
        lines.clear()
        device.submit(commands, [buffers[turn % 2]])
        device.synchronize()
        device_tools.link64(states[turn % 2], 5)
        # The first buffers, the second ones, the first ones again: then both are known.
        forgets = any(name in line for line in lines for name in FORGETS.values())
        assert forgets == (turn < 3), turn
    # A third set takes the place of the one that was not used for longest.
    for turn in (2, 1, 2, 1):
        device.submit(commands, [buffers[turn]])
        device.synchronize()
        device_tools.link64(states[turn], 5)
    for buffer, state in zip(buffers, states, strict=True):
        assert np.array_equal(buffer.contents().view(np.uint32), state)
    device.close()


@pytest.mark.parametrize(("launches", "sets", "known"), [(1, 8, 8), (1, 34, 32), (60, 3, 2)])
def test_arrays_that_come_back_find_words_of_their_own(
    launches: int, sets: int, known: int
) -> None:
    """A short list has words for many arrays in turn, a long one for two: others are patched."""
    lines: list[str] = []
    device = NvDevice(port=VirtualPort(lag=False, trace=lines.append))
    kernel, states = load(device), ramps(sets)
    buffers = buffers_of(device, *states)
    commands = device.command_list()
    for number in range(launches):
        commands.exec(kernel, [Slot(0)], {"number": number})
    for turn in range(4):
        unchanged = 0
        for buffer, state in zip(buffers, states, strict=True):
            lines.clear()
            device.submit(commands, [buffer])
            device.synchronize()
            for number in range(launches):
                device_tools.link64(state, number)
            unchanged += not any(name in line for line in lines for name in FORGETS.values())
        # Of more arrays in turn than there are words for, none finds its own.
        assert turn < 2 or unchanged == (sets if sets <= known else 0)
    assert isinstance(commands.bound, NvBoundList)
    assert len(commands.bound.quick) == known
    for buffer, state in zip(buffers, states, strict=True):
        assert np.array_equal(buffer.contents().view(np.uint32), state)
    device.close()


def test_memory_that_is_given_out_again_finds_its_words() -> None:
    """A new buffer where an old one lay, as large, is that one to all who checked it."""
    lines: list[str] = []
    device = NvDevice(port=VirtualPort(lag=False, trace=lines.append))
    kernel = load(device)
    commands = device.command_list()
    commands.exec(kernel, [Slot(0)], {"number": 5})
    places = set()
    for turn in range(4):
        (buffer,) = buffers_of(device, state := ramps(1)[0])
        places.add((buffer.address, buffer.serial))
        lines.clear()
        device.submit(commands, [buffer])
        device.synchronize()
        device_tools.link64(state, 5)
        forgets = any(name in line for line in lines for name in FORGETS.values())
        assert forgets == (turn == 0), turn
        assert np.array_equal(buffer.contents().view(np.uint32), state)
        part, larger = buffer.view(0, 64), device.allocate(1024)
        assert len({buffer.serial, part.serial, larger.serial}) == 3
        del buffer, part, larger
    assert len(places) == 1
    # Of another size it is another buffer, and so is what lies there next.
    (address, serial), = places
    smaller = device.allocate(64)
    assert smaller.address == address and smaller.serial != serial
    with pytest.raises(DeviceError, match="slot 0"):
        device.submit(commands, [smaller])
    closed = device.allocate(128)
    closed.close()
    with pytest.raises(DeviceError, match="closed"):
        device.submit(commands, [closed])
    device.close()


@pytest.mark.parametrize("launches", [1, pytest.param(25, marks=pytest.mark.slow)])
def test_who_interrupts_a_patch_leaves_words_that_are_nobodys(launches: int) -> None:
    """Ctrl-C at any line of it: who was known before, and who comes next, has right words."""
    device = NvDevice(port=VirtualPort(lag=False))
    kernel, states = load(device), ramps(3)
    buffers = buffers_of(device, *states)
    commands = device.command_list()
    for number in range(launches):
        commands.exec(kernel, [Slot(0)], {"number": number})
    left, kept = -1, list(buffers)

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if frame.f_code.co_name not in ("set_addresses", "_set_serials"):
            return None
        left -= event == "line"
        if event == "line" and left < 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    def submit(which: int) -> None:
        device.submit(commands, [buffers[which]])
        device.synchronize()
        for number in range(launches):
            device_tools.link64(states[which], number)

    for at in range(40):
        for which in (0, 1, 0):
            submit(which)
        # A new one, for which somebody's words are patched.
        (buffers[2],) = buffers_of(device, states[2])
        kept.append(buffers[2])
        left, before = at, sys.gettrace()
        sys.settrace(trace)
        try:
            submit(2)
        except KeyboardInterrupt:
            pass
        else:
            break
        finally:
            sys.settrace(before)
        for which in (1, 0, 2):
            submit(which)
        for buffer, state in zip(buffers, states, strict=True):
            assert np.array_equal(buffer.contents().view(np.uint32), state), at
    assert 9 < at < 39
    device.close()


def test_where_memory_is_full_one_piece_of_words_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in flight is awaited, and patched for the next arrays; without any it is an error."""
    device = NvDevice(port=VirtualPort(seed=1))
    kernel, states = load(device), ramps(5)
    buffers = buffers_of(device, *states)
    lists = [device.command_list() for _ in range(2)]
    for commands in lists:
        commands.exec(kernel, [Slot(0)], {"number": 7})
    for turn in range(10):
        device.submit(lists[0], [buffers[turn % 5]])
        device_tools.link64(states[turn % 5], 7)
        if not turn:

            def full(nbytes: int, alignment: int) -> object:
                raise OutOfMemory("no room", found=f"{nbytes}, {alignment}")

            monkeypatch.setattr(device.gpu.pieces, "take", full)
    with pytest.raises(OutOfMemory, match="no room"):
        device.submit(lists[1], [buffers[0]])
    monkeypatch.undo()
    device.submit(lists[1], [buffers[0]])
    device_tools.link64(states[0], 7)
    for buffer, state in zip(buffers, states, strict=True):
        assert np.array_equal(buffer.contents().view(np.uint32), state)
    device.close()
