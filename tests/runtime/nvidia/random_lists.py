"""Random command lists on a device, beside what NumPy makes of them; buffers of words."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from baregrad.runtime.buffers import Buffer
from baregrad.runtime.commands import CommandList, Kernel, Slot
from baregrad.runtime.nvidia.device import NvDevice
from tests.runtime.nvidia import device_tools as tools
from tests.runtime.nvidia.device_tools import Words, program

Load = Callable[[NvDevice, str], Kernel]


def load(device: NvDevice, name: str) -> Kernel:
    """Load one of the kernels of data/device.cu."""
    return device.load(program(name))


def ramp(count: int, seed: int = 1) -> Words:
    """Return words that do not repeat."""
    return np.random.default_rng(seed).integers(0, 1 << 32, count, np.uint32)


def buffer_of(device: NvDevice, words: Words) -> Buffer:
    """Return a buffer that holds words."""
    made = device.allocate(words.nbytes)
    device.copy_in(made, words)
    return made


def words_of(device: NvDevice, buffer: Buffer) -> Words:
    """Return a buffer's words."""
    found = np.zeros(buffer.nbytes // 4, np.uint32)
    device.copy_out(buffer, found)
    return found


def same(found: Words, wanted: Words, what: str) -> None:
    """Stop the step where words differ."""
    if not np.array_equal(found, wanted):
        places = np.flatnonzero(found != wanted)
        raise AssertionError(
            f"{what}: {len(places)} of {len(wanted)} words differ, the first at {places[0]}: "
            f"{found[places[0]]:#x} instead of {wanted[places[0]]:#x}"
        )


def random_list(device: NvDevice, kernels: dict[str, Kernel], chance: random.Random,
                slots: int) -> tuple[CommandList, list[tuple[Any, ...]]]:
    """Return a list, and what it does in plain words, of (name, operands, values)."""
    commands = device.command_list()
    plain: list[tuple[Any, ...]] = []
    for _ in range(chance.randint(1, 12)):
        kind = chance.choice(("link64", "turn", "copy", "fill", "link64"))
        a, b = chance.sample(range(slots), 2)
        if kind == "link64":
            number = chance.randint(0, 1 << 30)
            commands.exec(kernels[kind], [Slot(a, 256)], {"number": number})
            plain.append((kind, a, number))
        elif kind == "turn":
            by = chance.randint(1, 1000)
            commands.exec(kernels[kind], [Slot(a), Slot(b)], {"by": by})
            plain.append((kind, a, b, by))
        elif kind == "copy":
            nbytes, shift = chance.randint(1, 2000), chance.randint(0, 400)
            commands.copy(Slot(a, shift), Slot(b, 5), nbytes)
            plain.append((kind, a, b, shift, nbytes))
        else:
            nbytes, shift = chance.randint(1, 500), chance.randint(0, 9)
            byte = chance.randint(0, 255)
            commands.fill(Slot(a, shift), nbytes, byte)
            plain.append((kind, a, shift, nbytes, byte))
    return commands, plain


def run_plain(plain: list[tuple[Any, ...]], arrays: list[Words], count: int) -> None:
    """Do in NumPy what a random list does."""
    for kind, a, *rest in plain:
        if kind == "link64":
            tools.link64(arrays[a][64:], rest[0])
        elif kind == "turn":
            tools.turn(arrays[a], arrays[rest[0]], count, rest[1])
        elif kind == "copy":
            b, shift, nbytes = rest
            arrays[a].view(np.uint8)[shift : shift + nbytes] = arrays[b].view(np.uint8)[
                5 : 5 + nbytes
            ]
        else:
            shift, nbytes, byte = rest
            arrays[a].view(np.uint8)[shift : shift + nbytes] = byte


def random_lists(device: NvDevice, lists: int, seed: int, load: Load = load) -> int:
    """Submit random lists with changing buffers and compare; return how many submissions."""
    chance = random.Random(seed)
    kernels = {name: load(device, name) for name in ("link64", "turn")}
    slots, words = 4, 1024
    arrays = [ramp(words, i) for i in range(8)]
    buffers = [buffer_of(device, array) for array in arrays]
    done = 0
    for _ in range(lists):
        commands, plain = random_list(device, kernels, chance, slots)
        used = len(commands.slot_nbytes)
        for _ in range(chance.randint(1, 5)):
            chosen = chance.sample(range(8), slots)
            count = chance.choice((0, 1, 300, 1000, 1024))
            device.submit(commands, [buffers[i] for i in chosen[:used]],
                          {"count": count} if commands.variables else {})
            if count or "turn" not in {one[0] for one in plain}:
                run_plain(plain, [arrays[i] for i in chosen], count)
            else:
                run_plain([one for one in plain if one[0] != "turn"],
                          [arrays[i] for i in chosen], count)
            done += 1
            if chance.random() < 0.1:
                device.synchronize()
            if chance.random() < 0.1:
                i = chance.randrange(8)
                arrays[i] = ramp(words, chance.randint(0, 1 << 30))
                device.copy_in(buffers[i], arrays[i])
            if chance.random() < 0.1:
                i = chance.randrange(8)
                same(words_of(device, buffers[i]), arrays[i], f"list {plain}")
    for one, array in zip(buffers, arrays, strict=True):
        same(words_of(device, one), array, "the end")
    return done
