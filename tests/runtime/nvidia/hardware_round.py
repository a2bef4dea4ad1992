"""All that one visit to a GPU should answer: `python3 tests/runtime/nvidia/hardware_round.py`.

Takes less than ten minutes on a machine with a GPU of sm_90, its kernel driver, ptxas, and CUDA
and PyTorch to compare with where there are some. Parts run in order of what they decide, each in a
process of its own with a time limit of its own; what there is no time for any more is said to be
left out. One line a fact. With `--virtual` everything runs on virtual GPUs, a little of each, to
see that it does run: its times mean nothing. PART... chooses parts, `--total` the seconds for all.
"""

from __future__ import annotations

import argparse
import functools
import gc
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import numpy as np

from baregrad.base.errors import BaregradError, DriverError
from baregrad.base.options import options
from baregrad.program import Program
from baregrad.runtime.buffers import Buffer
from baregrad.runtime.commands import CommandList, Kernel, Slot
from baregrad.runtime.nvidia.copies.copy_code import copy_code
from baregrad.runtime.nvidia.copies.copy_engines import copy_engines
from baregrad.runtime.nvidia.copies.host_copies import HostCopies
from baregrad.runtime.nvidia.copies.peers import peer_access
from baregrad.runtime.nvidia.copies.staging_options import PYTHON_OPTIONS, default_options
from baregrad.runtime.nvidia.device import NvDevice
from baregrad.runtime.nvidia.driver.port import open_port
from baregrad.runtime.nvidia.lists.list_style import DEFAULT_STYLE, STYLES, style_of
from tests.runtime.nvidia import device_tools as tools
from tests.runtime.nvidia.hardware_tools import MIB, TimedPort, expect
from tests.runtime.nvidia.random_lists import buffer_of, ramp, random_lists, same, words_of

ROOT = Path(__file__).resolve().parents[3]
# How long the part `cycles` may go on.
CYCLES_S = 550
EARLY = tuple(name for name, style in STYLES.items() if style.early)


def is_virtual() -> bool:
    """Whether GPUs are pretended ones, and a little of everything is enough."""
    return options.nv_port == "virtual"


def few(many: int, little: int) -> int:
    """How many of something: `little` where GPUs are virtual."""
    return little if is_virtual() else many


def program(name: str) -> Program:
    """A kernel of data/device.cu."""
    found = tools.program(name)
    if not is_virtual():
        return found
    import dataclasses

    from tests.testing.virtual_gpu.virtual_tools import data_cubin

    return dataclasses.replace(found, code=data_cubin("device"))


def load(device: NvDevice, name: str) -> Kernel:
    """Load one."""
    return device.load(program(name))


def best_us(action: Callable[[], Any], times: int) -> float:
    """The least time of an action in microseconds."""
    best = float("inf")
    for _ in range(times):
        begin = time.perf_counter_ns()
        action()
        best = min(best, (time.perf_counter_ns() - begin) / 1e3)
    return best


# Parts. Each prints facts, and raises where something is wrong.


def part_facts() -> None:
    """What there is."""
    device = NvDevice()
    maps = Path("/proc/self/maps").read_text()
    print(f"  {device.architecture}, driver {device.client.version}, "
          f"{len(device.client.cards())} GPUs, copy engine {device.channels[1].group.engine} "
          f"({device.channels[1].group.why}), "
          f"{device.staging.workers} workers of {os.cpu_count()} processors, "
          f"default style {DEFAULT_STYLE}, libcuda mapped: {'libcuda' in maps}")
    device.close()


def part_early() -> None:
    """Styles that begin kernels early, and lean ones: right with one block and with many?"""
    for name in (*EARLY, *(one for one in STYLES if one.startswith("light") and one not in EARLY)):
        try:
            print(f"  {name:26} {_check_style(name)}", flush=True)
        except (BaregradError, AssertionError) as error:
            print(f"  {name:26} WRONG: {error}", flush=True)


def _check_style(name: str) -> str:
    """Chains of small and of wide kernels, some of which wait by themselves."""
    device = NvDevice(style=STYLES[name], timeout_s=5)
    end = "_early"
    try:
        links = [load(device, "link64" + end), load(device, "link64")]
        state, count = ramp(32), few(1000, 12)
        commands = device.command_list()
        for number in range(count):
            commands.exec(links[number % 7 == 3], [Slot(0)], {"number": number})
        buffer = buffer_of(device, state)
        small = _timed_rounds(device, commands, [buffer])
        for number in list(range(count)) * small[1]:
            tools.link64(state, number)
        same(words_of(device, buffer), state, "a chain of small kernels")
        turns = [load(device, "turn" + end), load(device, "turn_fetched" + end),
                 load(device, "turn")]
        blocks, length = few(1024, 3), few(200, 6)
        elements = blocks * 256 - 77
        arrays = [ramp(elements, seed) for seed in range(2)]
        buffers = [buffer_of(device, array) for array in arrays]
        commands = device.command_list()
        for i in range(length):
            values = {"count": elements, "by": 4099 * i + 1}
            kernel = turns[2 if i % 11 == 5 else i % 2]
            commands.exec(kernel, [Slot(1 - i % 2), Slot(i % 2)], values)
        wide = _timed_rounds(device, commands, buffers)
        for i in list(range(length)) * wide[1]:
            tools.turn(arrays[1 - i % 2], arrays[i % 2], elements, 4099 * i + 1)
        for one, array in zip(buffers, arrays, strict=True):
            same(words_of(device, one), array, "a chain of wide kernels")
        return (f"right; {small[0] / count:.3f} us a kernel, of {blocks} blocks "
                f"{wide[0] / length:.3f}")
    finally:
        device.close()


def _timed_rounds(device: NvDevice, commands: CommandList, buffers: list[Buffer]
                  ) -> tuple[float, int]:
    """Submit and wait some times; the least time in us, and how often."""
    def once() -> None:
        device.submit(commands, buffers)
        device.synchronize()

    times = few(8, 2)
    return best_us(once, times), times


def part_launch() -> None:
    """Launches in every style beside CUDA's, in one run."""
    little = ("early-progress", "--rounds", "1", "--count", "3", "--replays", "1", "--singles", "1",
              "--warm", "1")
    chosen = little if is_virtual() else ("all", "--rounds", "3")
    _script("benchmarks/gpu_launch.py", "--devices", "NV", "--styles", *chosen)


def part_parts() -> None:
    """Of one launch: the host's `submit`, and the kernel by the GPU's clock."""
    told = (name for name, style in STYLES.items() if style.released and name != DEFAULT_STYLE)
    for name in (DEFAULT_STYLE, "thorough", "light", *told, DEFAULT_STYLE):
        device = NvDevice(style=style_of(name), timeout_s=5)
        print(f"  {name:20} {_parts_of_one(device)}", flush=True)
        device.close()


def _parts_of_one(device: NvDevice) -> str:
    commands = device.command_list()
    commands.exec(load(device, "link64_early"), [Slot(0)], {"number": 1})
    buffers = [buffer_of(device, ramp(32))]
    found, both, times = [], [], few(3000, 3)
    for _ in range(times):
        device.synchronize()
        begin = time.perf_counter_ns()
        device.submit(commands, buffers)
        middle = time.perf_counter_ns()
        device.synchronize()
        both.append(time.perf_counter_ns() - begin)
        found.append(middle - begin)
    begin = time.perf_counter_ns()
    for _ in range(times):
        device.submit(commands, buffers)
    device.synchronize()
    each = (time.perf_counter_ns() - begin) / times / 1e3
    timeline = device.submit(commands, buffers, timed=True)
    assert timeline is not None
    return (f"{np.median(both) / 1e3:.2f} us, of it submit {np.median(found) / 1e3:.2f}; "
            f"without waiting {each:.2f}; between stamps {timeline.durations_ns()[0]} ns")


def part_pinned() -> None:
    """Pinned copies by engine, and what one costs besides its bytes."""
    device = NvDevice(timeout_s=10)
    print(f"  {device.channels[1].group.why}")
    numbers = copy_engines(device.gpu).numbers
    device.close()
    for engine in (None, *numbers[: few(4, 1)]):
        try:
            device = NvDevice(copy_engine=engine, timeout_s=10)
        except BaregradError as error:
            print(f"  engine {engine}: {error}")
            continue
        cells = []
        for nbytes in (4096, 16 * MIB, few(256 * MIB, 16 * MIB)):
            into, out = _rates(device, device.pinned(nbytes))
            cells.append(f"{nbytes:>9} bytes in {into:6.2f}, out {out:6.2f} GB/s")
        print(f"  engine {device.channels[1].group.engine}: {'; '.join(cells)}", flush=True)
        device.close()


def _rates(device: NvDevice, host: Any) -> tuple[float, float]:
    """GB/s in and out, the best of some."""
    nbytes = host.nbytes
    host[:] = 3
    buffer, times = device.allocate(nbytes), few(6, 1)
    into = best_us(lambda: (device.copy_in(buffer, host), device.synchronize()), times)
    return nbytes / into / 1e3, nbytes / best_us(lambda: device.copy_out(buffer, host), times) / 1e3


def part_ordinary() -> None:
    """Ordinary arrays by threads, pieces, pieces under way and kind of staging memory."""
    device = NvDevice(timeout_s=10)
    nbytes = (4, 16, 64, 256)
    hosts = [np.empty(few(one, 5) * MIB, np.uint8) for one in nbytes[: few(4, 1)]]
    most, count = default_options(), few(8, 2)
    rows = [most, most._replace(pipelined=False), PYTHON_OPTIONS]
    rows += [most._replace(piece_nbytes=piece << 10, depth=depth)
             for piece, depth in ((512, 4), (1024, 2), (1024, 4), (1024, 8), (2048, 2), (4096, 2))]
    rows += [most._replace(workers=workers) for workers in (4, 6, 10, 12)]
    rows += [most._replace(rounds=rounds) for rounds in (2, 4)]
    found = []
    for row in rows[: few(len(rows), 3)]:
        row = row._replace(workers=row.workers or count)
        device.staging.close()
        device.staging = HostCopies(
            device.gpu, lambda: device.channels[1], device.work.wait, device.work.watch, row
        )
        rates = [_rates(device, host) for host in hosts]
        found.append((min(min(pair) for pair in rates[-2:]), row))
        told = "; ".join(f"{host.nbytes >> 20} MiB in {pair[0]:5.1f}, out {pair[1]:5.1f}"
                         for host, pair in zip(hosts, rates, strict=True))
        print(f"  {'native' if row.native else 'python'} {device.staging.workers:2} workers, "
              f"{row.piece_nbytes >> 10:4} KiB, depth {row.depth}, rounds {row.rounds}, "
              f"large pages {row.large_pages:1}, pipelined {row.pipelined:1}: {told} GB/s",
              flush=True)
    print(f"  best: {max(found, key=lambda one: one[0])[1]}")
    code = copy_code()
    print(f"  a look takes {code.turn_ns if code else 0:.1f} ns, wakes of all threads "
          f"{_wake_us(device):.1f} us")
    for host in hosts[1::2]:
        _pin_in_place(device, host)
    device.close()


def _wake_us(device: NvDevice) -> float:
    """The least time that the caller takes to wake all threads which sleep."""
    native = device.staging._native
    if native is None:
        return 0.0
    best = float("inf")
    for _ in range(5):
        time.sleep(0.01)
        best = min(best, best_us(lambda: native._code.wake(native._address, 1 << 30), 1))
    return best


def _pin_in_place(device: NvDevice, host: Any) -> None:
    """What it would cost to pin an array's own pages for one copy."""
    memory, port = device.gpu.memory, device.client.port
    address = port.map_memory(host.nbytes)
    view = port.view(address, host.nbytes)
    view[:] = bytes(host.nbytes)
    made: list[Any] = []

    def pin() -> None:
        made.append(memory._make("the array's pages", host.nbytes, True,
                                 lambda n, owner: (memory._pin(address, n, owner), 0), None))

    pinned = best_us(pin, 1)
    freed = best_us(lambda: made.pop().close(), 1)
    view.release()
    port.unmap(address, host.nbytes)
    print(f"  pages of {host.nbytes >> 20} MiB pinned in place in {pinned / 1e3:.2f} ms, let go in "
          f"{freed / 1e3:.2f} ms (a copy at 54 GB/s: {host.nbytes / 54e6:.2f} ms)", flush=True)


def part_slots() -> None:
    """A slot is written over as soon as the GPU says that it was read, and read when it is full."""
    device, size = NvDevice(timeout_s=10), few(32 * MIB, 2 * MIB)
    random, buffer = np.random.default_rng(7), device.allocate(size)
    arrays = [random.integers(0, 256, size, np.uint8) for _ in range(3)]
    for workers, piece, depth in ((2, 128, 1), (8, 128, 1), (8, 4, 1), (8, 256, 2), (8, 2048, 4)):
        device.staging.close()
        row = default_options()._replace(workers=workers, piece_nbytes=piece << 10, depth=depth)
        device.staging = HostCopies(
            device.gpu, lambda: device.channels[1], device.work.wait, device.work.watch, row
        )
        back, times, host = device.pinned(size), few(60, 2), np.empty(size, np.uint8)
        for number in range(times):
            data = arrays[number % 3]
            device.copy_in(buffer, data)
            device.copy_out(buffer, back)
            same(back, data, f"to the GPU in pieces of {piece} KiB, copy {number}")
            device.copy_out(buffer, host)
            same(host, data, f"to the host in pieces of {piece} KiB, copy {number}")
        print(f"  {workers} threads, {piece} KiB, depth {depth}: {times} copies right", flush=True)
    device.close()


def part_copies() -> None:
    """Copies in the present setting beside PyTorch's."""
    if is_virtual():
        print("  (a comparison: nothing to compare with here)")
        return
    sizes = ",".join(str(one * MIB) for one in (1, 16, 64, 256))
    _script("benchmarks/gpu_copy.py", "--devices", "NV", "--rounds", "3", "--sizes", sizes)


def part_faults() -> None:
    """Faults: when they are told, what is told, how long it takes to go on, and whether rightly."""
    cases = [("store64", {"offset": 1 << 40}, 5.0), ("store64", {"offset": 1 << 22}, 5.0),
             ("trapped64", {}, 5.0), ("endless", {}, 2.0)]
    for style in (DEFAULT_STYLE, "thorough"):
        for name, values, deadline in cases[: few(4, 3)]:
            _fault(style, name, values, deadline)


def _fault(style: str, name: str, values: dict[str, int], deadline: float) -> None:
    device = NvDevice(style=STYLES[style], timeout_s=deadline)
    link, bad = load(device, "link64_early"), load(device, name)
    buffer = buffer_of(device, ramp(32))
    device.synchronize()
    commands = device.command_list()
    for number in range(3):
        commands.exec(link, [buffer], {"number": number})
    commands.exec(bad, [buffer], values, label=f"{name} train.py:17")
    commands.exec(link, [buffer], {"number": 2})
    begin, text = time.perf_counter(), ""
    try:
        device.submit(commands)
        device.synchronize()
    except DriverError as error:
        text = str(error)
    told = time.perf_counter() - begin
    state = ramp(32, 9)
    again = buffer_of(device, state)
    mended = time.perf_counter() - begin - told
    device.run(link, [again], {"number": 4})
    tools.link64(state, 4)
    same(words_of(device, again), state, "what came after a fault")
    device.close()
    print(f"  {style}, {name}: told after {told:.3f} s, mended in {mended:.3f} s: {text}",
          flush=True)
    expect(f"'{name}'" in text and "train.py:17" in text, "the kernel or its line is not named")
    expect(told < deadline + 0.5 or is_virtual(), "told late")


def part_random() -> None:
    """10,000 random lists give what NumPy gives, in the styles that may become the default."""
    names = (DEFAULT_STYLE, "early-told-drops", "thorough")
    for name in names:
        device = NvDevice(style=STYLES[name], timeout_s=10)
        begin = time.perf_counter()

        def pick(device: NvDevice, kernel: str, style: str = name) -> Kernel:
            return load(device, f"{kernel}_early" if STYLES[style].early else kernel)

        done = random_lists(device, few(2500, 4), 7, pick)
        took = time.perf_counter() - begin
        print(f"  {name}: {done} submissions right, {took:.1f} s", flush=True)
        device.close()


def part_flat() -> None:
    """A million launches; and opening and closing: what stays of them?"""
    device = NvDevice()
    commands = device.command_list()
    commands.exec(load(device, "link64"), [Slot(0)], {"number": 1})
    buffers = [buffer_of(device, ramp(32))]
    sizes, times = [], few(200_000, 20)
    begin = time.perf_counter()
    for _ in range(5):
        for _ in range(times):
            device.submit(commands, buffers)
        device.synchronize()
        sizes.append(_rss())
    took = (time.perf_counter() - begin) / times / 5 * 1e6
    print(f"  {took:.2f} us a launch without waiting; resident KiB {[one >> 10 for one in sizes]}")
    device.close()
    found = []
    for _ in range(few(60, 4)):
        device = NvDevice()
        buffer = buffer_of(device, ramp(5000))
        device.run(load(device, "link64"), [buffer], {"number": 1})
        words_of(device, buffer)
        device.close()
        gc.collect()
        found.append(_rss())
    grown = (found[-1] - found[len(found) // 3]) / max(1, len(found) - len(found) // 3 - 1)
    print(f"  opened and closed {len(found)} times: {grown / 1024:.1f} KiB more each time")
    expect(grown < 16 << 10 or is_virtual(), "opening and closing leaks")


def _rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def part_peers() -> None:
    """Two GPUs: peers, rates, right data."""
    first = NvDevice("NV:0", index=0)
    if len(first.client.cards()) < 2:
        print("  there is one GPU")
        first.close()
        return
    second = NvDevice("NV:1", index=1)
    for one, other in ((first, second), (second, first)):
        access = peer_access(one, other)
        print(f"  {one.name} uses the memory of {other.name}: {access.direct}, {access.why}")
    words = ramp(few(70 * MIB, 3 * MIB) // 4)
    same(words_of(second, second.duplicate(buffer_of(first, words))), words, "a copy to a peer")
    others = second_best(first)
    first.close()
    second.close()
    for engine in (None, *others):
        first = NvDevice("NV:0", index=0, copy_engine=engine)
        second = NvDevice("NV:1", index=1)
        nbytes = few(1 << 30, 4 * MIB)
        come, to = first.allocate(nbytes), second.allocate(nbytes)
        first.copy_in(come, bytes(nbytes))
        best = best_us(functools.partial(to.device.copy_peer, to, come), few(40, 1))
        print(f"  engine {first.channels[1].group.engine}: {nbytes / best / 1e3:.1f} GB/s",
              flush=True)
        first.close()
        second.close()


def second_best(device: NvDevice) -> tuple[int, ...]:
    """The engine that is second best for copies, if there is one."""
    return copy_engines(device.gpu).numbers[1:2]


def part_cycles() -> None:
    """1,000 times opened and closed, two GPUs together where there are two: what stays?"""
    first = NvDevice()
    count = min(2, len(first.client.cards()))
    first.close()
    begin, sizes, wanted = time.perf_counter(), [], few(1000, 3)
    for number in range(1, wanted + 1):
        devices = [NvDevice(f"NV:{index}", index=index) for index in range(count)]
        for one in devices:
            one.close()
        maps = Path("/proc/self/maps").read_text().count("nvidia")
        sizes.append((len(list(Path("/proc/self/fd").iterdir())), maps, _rss()))
        taken = time.perf_counter() - begin
        if number % 100 == 0 or number == wanted:
            print(f"  {number} times, {taken / number * 1e3:.0f} ms each: descriptors, mappings, "
                  f"resident bytes {sizes[-1]}", flush=True)
        if taken > CYCLES_S:
            break
    print(f"  {count} GPUs opened and closed {len(sizes)} times of {wanted}: {sizes[1]} -> "
          f"{sizes[-1]}")
    expect(sizes[1][:2] == sizes[-1][:2], "something stays")
    expect(len(sizes) == wanted, f"there was time for {len(sizes)}")


def part_opening() -> None:
    """Where the time of opening and closing goes: calls of the system by kind."""
    for number in range(2):
        port = TimedPort(open_port())
        begin = time.perf_counter()
        device = NvDevice(port=port)
        opened = time.perf_counter()
        told = [("opening", opened - begin, port.take())]
        device.copy_in(device.allocate(8 * MIB), bytes(8 * MIB))
        device.synchronize()
        copied = time.perf_counter()
        told.append(("a copy of 8 MiB", copied - opened, port.take()))
        device.close()
        told.append(("closing", time.perf_counter() - copied, port.take()))
        for what, seconds, calls in told:
            inside = sum(spent for _, spent, _ in calls)
            print(f"  {number}: {what} takes {seconds * 1e3:.1f} ms, {inside * 1e3:.1f} of them in "
                  f"{sum(times for _, _, times in calls)} calls", flush=True)
            for name, spent, times in calls[: few(12, 2)]:
                print(f"     {spent * 1e3:7.2f} ms in {times:3} {name}", flush=True)


def _script(*command: str) -> None:
    """Run a script of the repository; its lines are facts."""
    child = subprocess.Popen([sys.executable, str(ROOT / command[0]), *command[1:]], cwd=ROOT,
                             stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    for line in child.stdout:
        print(f"  {line.rstrip()}", flush=True)
    code = child.wait()
    expect(code == 0, f"{command[0]} ends with {code}")


def _run_apart(name: str, environment: dict[str, str], limit_s: float) -> bool:
    """Run a part in processes of its own, all of which end with its time; whether it passed."""
    command = [sys.executable, __file__, "--here", name]
    child = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        return child.wait(limit_s) == 0
    except subprocess.TimeoutExpired:
        print(f"  no end in {limit_s:.0f} s", flush=True)
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        return False


class Part(NamedTuple):
    """A part and how many seconds it may take."""

    run: Callable[[], None]
    limit_s: int


# The order is that of what is decided by them.
PARTS = {
    "facts": Part(part_facts, 20),
    "early": Part(part_early, 150),
    "launch": Part(part_launch, 120),
    "parts": Part(part_parts, 20),
    "pinned": Part(part_pinned, 60),
    "ordinary": Part(part_ordinary, 90),
    "faults": Part(part_faults, 80),
    "slots": Part(part_slots, 60),
    "copies": Part(part_copies, 90),
    "random": Part(part_random, 120),
    "flat": Part(part_flat, 60),
    "peers": Part(part_peers, 60),
    "opening": Part(part_opening, 30),
    "cycles": Part(part_cycles, 560),
}


def main() -> int:
    """Run the chosen parts; return how many failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=" ".join(PARTS))
    parser.add_argument("--virtual", action="store_true", help="on virtual GPUs, little of each")
    parser.add_argument("--total", type=float, default=570, help="seconds for all")
    parser.add_argument("--here", action="store_true", help="run them in this process")
    chosen = parser.parse_args()
    names = chosen.parts or list(PARTS)
    if unknown := sorted(set(names) - set(PARTS)):
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if chosen.here:
        for name in names:
            PARTS[name].run()
        return 0
    # Behind ours is what the caller has: packages may lie in a folder of their own.
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "BAREGRAD_PROGRESS": "off"}
    if chosen.virtual:
        environment["BAREGRAD_NV_PORT"] = "virtual"
    end, failed = time.perf_counter() + chosen.total, []
    for name in names:
        left = end - time.perf_counter()
        if left < 5:
            print(f"LEFT OUT {name}: no time", flush=True)
            failed.append(name)
            continue
        print(f"--- {name}: {(PARTS[name].run.__doc__ or '').splitlines()[0]}", flush=True)
        begin = time.perf_counter()
        passed = _run_apart(name, environment, min(left, PARTS[name].limit_s))
        print(f"{'PASS' if passed else 'FAIL'} {name} ({time.perf_counter() - begin:.1f} s)",
              flush=True)
        failed += [name] * (not passed)
    print(f"{len(names) - len(failed)} of {len(names)} passed" + "".join(f", {n}" for n in failed))
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
