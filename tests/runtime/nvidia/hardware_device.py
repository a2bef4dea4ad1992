"""A check of the device on a real GPU: `python3 tests/runtime/nvidia/hardware_device.py [STEP...]`.

Needs a GPU of sm_90, its kernel driver, NumPy and pyelftools. Each step runs in a process of its
own, prints what it measured, and ends with PASS or FAIL; all take less than five minutes. `--here`
runs steps in this process.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import numpy as np

from baregrad.base.errors import BaregradError, DriverError, OutOfMemory
from baregrad.runtime.buffers import Buffer
from baregrad.runtime.commands import CommandList, Kernel, Slot
from baregrad.runtime.nvidia.copies.peers import PeerAccess, peer_access
from baregrad.runtime.nvidia.device import NvDevice
from baregrad.runtime.nvidia.lists.list_style import DEFAULT_STYLE, STYLES
from baregrad.runtime.nvidia.queue.pushbuffer import PushBuffer
from tests.runtime.nvidia import device_tools as tools
from tests.runtime.nvidia.hardware_tools import MIB, expect, main
from tests.runtime.nvidia.random_lists import buffer_of, load, ramp, random_lists, same, words_of

make_device: Callable[..., NvDevice] = NvDevice


def chain_of(device: NvDevice, kernel: Kernel, count: int) -> CommandList:
    """Return a list of launches of which each needs what the one before wrote."""
    commands = device.command_list()
    for number in range(count):
        commands.exec(kernel, [Slot(0)], {"number": number})
    return commands


def median_us(action: Callable[[], Any], times: int) -> tuple[float, float]:
    """Return the median and the least time of an action in microseconds."""
    found = []
    for _ in range(times):
        begin = time.perf_counter_ns()
        action()
        found.append(time.perf_counter_ns() - begin)
    found.sort()
    return found[times // 2] / 1e3, found[0] / 1e3


def step_open() -> None:
    """Open and close; say what was found, and that no library of the vendor's is loaded."""
    for _ in range(2):
        begin = time.perf_counter()
        device = make_device()
        opened = time.perf_counter()
        print(f"  {device.architecture}, driver {device.client.version}, "
              f"{len(device.client.cards())} GPUs, copy group {device.channels[1].group.engine}, "
              f"{device.staging.workers} threads for copies")
        print(f"  memory, of it free: {device.gpu.memory_nbytes()}")
        device.close()
        print(f"  open {(opened - begin) * 1e3:.1f} ms, "
              f"close {(time.perf_counter() - opened) * 1e3:.1f} ms")
    maps = Path("/proc/self/maps").read_text()
    expect("libcuda" not in maps and "libnvidia" not in maps, "a library of the vendor's is loaded")


def check_everything(device: NvDevice) -> None:
    """Run a little of everything and compare."""
    link, turn, stacked = (load(device, name) for name in ("link64", "turn", "stacked"))
    state = ramp(32)
    buffer = buffer_of(device, state)
    commands = chain_of(device, link, 50)
    for _ in range(3):
        device.submit(commands, [buffer])
        for number in range(50):
            tools.link64(state, number)
    same(words_of(device, buffer), state, "a chain")
    count = 100_003
    arrays = [ramp(count, seed) for seed in range(2)]
    buffers = [buffer_of(device, array) for array in arrays]
    commands = device.command_list()
    for i in range(6):
        commands.exec(turn, [Slot(1 - i % 2), Slot(i % 2)], {"by": 7 * i + 1})
    commands.copy(Slot(2), Slot(0), 4 * count)
    commands.fill(Slot(1, 1), 5, 0xEE)
    commands.exec(link, [Slot(2)], {"number": 3})
    arrays.append(np.zeros(count, np.uint32))
    buffers.append(device.allocate(4 * count))
    for size in (count, count - 300, count):
        device.submit(commands, buffers, {"count": size})
        for i in range(6):
            tools.turn(arrays[1 - i % 2], arrays[i % 2], size, 7 * i + 1)
        arrays[2][:] = arrays[0]
        arrays[1].view(np.uint8)[1:6] = 0xEE
        tools.link64(arrays[2], 3)
    for number, (one, array) in enumerate(zip(buffers, arrays, strict=True)):
        same(words_of(device, one), array, f"blocks that read each other's, buffer {number}")
    out = device.allocate(4 * 264 * 256)
    device.run(stacked, [out], {"stride": 5})
    same(words_of(device, out), tools.stacked(5), "stacks")


def step_right() -> None:
    """Chains, grids from variables, copies, fills and stacks give what NumPy gives."""
    device = make_device()
    check_everything(device)
    device.close()


def step_latency() -> None:
    """One tiny kernel launched and waited for, by style; and the parts of it."""
    for name in ("thorough", "chain", "light-told-progress", DEFAULT_STYLE):
        device = make_device(style=STYLES[name])
        kernel = load(device, "link64")
        commands = chain_of(device, kernel, 1)
        buffer = buffer_of(device, ramp(32))
        buffers = [buffer]

        def once(device: NvDevice = device, commands: CommandList = commands,
                 buffers: list[Buffer] = buffers) -> None:
            device.submit(commands, buffers)
            device.synchronize()

        median_us(once, 300)
        both, least = median_us(once, 3000)
        found = []
        for _ in range(2000):
            device.synchronize()
            begin = time.perf_counter_ns()
            device.submit(commands, buffers)
            found.append(time.perf_counter_ns() - begin)
        found.sort()
        timeline = device.submit(commands, buffers, timed=True)
        assert timeline is not None
        print(f"  {name}: launch and wait {both:.2f} us (least {least:.2f}), "
              f"of which submit {found[1000] / 1e3:.2f}; the kernel by the GPU's clock "
              f"{timeline.durations_ns()[0]} ns")
        device.close()


def step_styles() -> None:
    """1,000 dependent tiny kernels in one submission, each way; and whether all are right."""
    for name, style in STYLES.items():
        device = make_device(style=style)
        kernel, turn, fetched = (
            load(device, f"{one}_early" if style.early else one)
            for one in ("link64", "turn", "turn_fetched")
        )
        commands = chain_of(device, kernel, 1000)
        state = ramp(32)
        buffer = buffer_of(device, state)
        device.submit(commands, [buffer])
        device.synchronize()
        rounds, times = 10, []
        for _ in range(rounds):
            begin = time.perf_counter_ns()
            device.submit(commands, [buffer])
            device.synchronize()
            times.append((time.perf_counter_ns() - begin) / 1e3 / 1000)
        wanted = state.copy()
        for _ in range(rounds + 1):
            for number in range(1000):
                tools.link64(wanted, number)
        right = np.array_equal(words_of(device, buffer), wanted)
        # Many blocks, on other multiprocessors than those that wrote what they read.
        count = 64 * 256
        arrays = [ramp(count, seed) for seed in range(2)]
        buffers = [buffer_of(device, array) for array in arrays]
        commands = device.command_list()
        for i in range(200):
            values = {"count": count, "by": 257 * i + 1}
            commands.exec(fetched if i % 3 else turn, [Slot(1 - i % 2), Slot(i % 2)], values)
        wide = []
        for _ in range(5):
            begin = time.perf_counter_ns()
            device.submit(commands, buffers)
            device.synchronize()
            wide.append((time.perf_counter_ns() - begin) / 1e3 / 200)
            for i in range(200):
                tools.turn(arrays[1 - i % 2], arrays[i % 2], count, 257 * i + 1)
        good = all(
            np.array_equal(words_of(device, one), array)
            for one, array in zip(buffers, arrays, strict=True)
        )
        print(f"  {name:18}: {min(times):.3f} us a kernel (median {sorted(times)[5]:.3f}), "
              f"of 64 blocks {min(wide[1:]):.3f}; {'right' if right else 'WRONG'}, "
              f"{'right' if good else 'WRONG'}", flush=True)
        device.close()


def step_overlap() -> None:
    """Kernels that need nothing of each other run at once."""
    device = make_device()
    slow = load(device, "slow")
    for count in (1, 8):
        commands = device.command_list()
        for number in range(count):
            commands.exec(slow, [Slot(number)], {"turns": 20_000})
        buffers = [device.allocate(128) for _ in range(count)]
        device.submit(commands, buffers)
        device.synchronize()
        begin = time.perf_counter()
        device.submit(commands, buffers)
        device.synchronize()
        print(f"  {count} kernels: {(time.perf_counter() - begin) * 1e6:.0f} us")
        for buffer in buffers:
            same(words_of(device, buffer), tools.slow(20_000), "an overlapped kernel")
    device.close()


def rates(device: NvDevice, nbytes: int, pinned: bool) -> tuple[float, float]:
    """Return GB/s in and out, each the best of some."""
    host = device.pinned(nbytes) if pinned else np.empty(nbytes, np.uint8)
    host[:] = 3
    buffer = device.allocate(nbytes)
    found = []
    for copy in (device.copy_in, device.copy_out):
        best = 1e9
        for _ in range(6):
            begin = time.perf_counter()
            copy(buffer, host)
            device.synchronize()
            best = min(best, time.perf_counter() - begin)
        found.append(nbytes / best / 1e9)
    return found[0], found[1]


def step_host_memory() -> None:
    """The rate of one copy each way, by kind of host memory, of copy and of engine."""
    for engine in (None, -1):
        device = make_device(copy_engine=engine)
        copies, memory = device.channels[1], device.gpu.memory
        there = memory.device(256 * MIB)
        for kind in (memory.pinned, memory.system):
            try:
                begin = time.perf_counter()
                host = kind(256 * MIB)
                host.view[: 256 * MIB] = bytes(256 * MIB)
            except BaregradError as error:
                print(f"  {kind.__name__}: {error}")
                continue
            print(f"  {kind.__name__}: allocated and filled in "
                  f"{time.perf_counter() - begin:.3f} s")
            for pipelined in (False, True):
                for parts in (1, 64):
                    found = []
                    for to, come in ((there, host), (host, there)):
                        best = 1e9
                        for _ in range(4):
                            copies.wait(copies.submit(PushBuffer()))
                            start = copies.timeline.time_ns
                            push, step = PushBuffer(), 256 * MIB // parts
                            for place in range(0, 256 * MIB, step):
                                push.copy(to.gpu_va + place, come.gpu_va + place, step,
                                          pipelined=pipelined)
                            copies.wait(copies.submit(push))
                            best = min(best, (copies.timeline.time_ns - start) / 1e9)
                        found.append(256 * MIB / best / 1e9)
                    print(f"  engine {engine}, {kind.__name__}, pipelined {pipelined}, "
                          f"{parts} parts: in {found[0]:.1f}, out {found[1]:.1f} GB/s", flush=True)
            host.close()
        device.close()


def step_copies() -> None:
    """Copies between host and GPU, from pinned and ordinary memory, by size and by engine."""
    for engine in (None, -1, 0, 1, 2, 3, 4, 5, 6, 7):
        try:
            device = make_device(copy_engine=engine)
        except BaregradError as error:
            print(f"  engine {engine}: {error}")
            continue
        into, out = rates(device, 256 * MIB, True)
        print(f"  engine {engine}: pinned 256 MiB in {into:.1f}, out {out:.1f} GB/s", flush=True)
        device.close()
    device = make_device()
    for nbytes in (64, 4096, 65536, MIB, 16 * MIB, 256 * MIB):
        cells = [rates(device, nbytes, pinned) for pinned in (True, False)]
        print(f"  {nbytes:>10} bytes: pinned in {cells[0][0]:7.3f}, out {cells[0][1]:7.3f}; "
              f"ordinary in {cells[1][0]:7.3f}, out {cells[1][1]:7.3f} GB/s", flush=True)
    small = device.allocate(4)
    word = np.zeros(1, np.uint32)
    into = median_us(lambda: device.copy_in(small, word), 1000)[0]
    out = median_us(lambda: device.copy_out(small, word), 1000)[0]
    print(f"  4 bytes: in {into:.2f} us, out {out:.2f} us")
    device.close()


def step_random() -> None:
    """Random command lists give what NumPy gives."""
    for name in ("thorough", "chain", "idle", DEFAULT_STYLE):
        device = make_device(style=STYLES[name])
        begin = time.perf_counter()
        done = random_lists(device, 1000, 7)
        print(f"  {name}: {done} submissions of 1000 lists right, "
              f"{time.perf_counter() - begin:.1f} s", flush=True)
        device.close()


def step_flat() -> None:
    """A million launches, submitted one by one, leave memory flat."""
    device = make_device()
    commands = chain_of(device, load(device, "link64"), 1)
    buffers = [buffer_of(device, ramp(32))]
    sizes = []
    begin = time.perf_counter()
    for _ in range(5):
        for _ in range(200_000):
            device.submit(commands, buffers)
        device.synchronize()
        rss = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
        sizes.append((rss, device.memory_stats().reserved_nbytes, device.gpu.pieces.nbytes))
    seconds = time.perf_counter() - begin
    print(f"  {seconds:.2f} us a launch; host bytes {[size[0] >> 10 for size in sizes]} KiB, "
          f"GPU bytes {[size[1:] for size in sizes]}")
    expect(sizes[-1][0] - sizes[0][0] < MIB and sizes[-1][1:] == sizes[0][1:], "memory grows")
    kernel = load(device, "link64")
    before = device.gpu.pieces.nbytes
    for _ in range(3000):
        device.run(kernel, buffers, {"number": 1})
        load(device, "nothing")
    device.synchronize()
    print(f"  3,000 lists and modules let go of: pieces {before} -> {device.gpu.pieces.nbytes}")
    expect(device.gpu.pieces.nbytes <= before + 8 * MIB, "lists or modules are not freed")
    device.close()


def step_full() -> None:
    """Memory that is full is told, with what holds it, and freed memory is given again."""
    device = make_device()
    held: list[Buffer] = []
    try:
        while len(held) < 4000:
            held.append(device.allocate(1 << 30))
    except OutOfMemory as error:
        print(f"  after {len(held)} GiB: {error}")
    held.clear()
    begin = time.perf_counter()
    buffer = device.allocate(3 << 30)
    print(f"  3 GiB in one after all were let go of: {(time.perf_counter() - begin) * 1e3:.1f} ms")
    expect(buffer.nbytes == 3 << 30, "no memory")
    check_everything(device)
    device.close()


def step_reopen() -> None:
    """Open, work and close many times; nothing stays."""
    counts = []
    begin = time.perf_counter()
    for number in range(1000):
        device = make_device()
        if number % 50 == 0:
            check_everything(device)
        device.close()
        maps = Path("/proc/self/maps").read_text()
        rss = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
        counts.append((len(list(Path("/proc/self/fd").iterdir())), maps.count("nvidia"), rss))
        if time.perf_counter() - begin > 70:
            break
    print(f"  {len(counts)} times, {(time.perf_counter() - begin) / len(counts) * 1e3:.1f} ms each;"
          f" descriptors, mappings, bytes: {counts[1]}, {counts[-1]}")
    expect(counts[1][:2] == counts[-1][:2], "something stays")


def faulty(name: str, values: dict[str, int], *, timeout_s: float = 5.0) -> None:
    """Run a kernel that fails in the middle of others; the device has to go on."""
    device = make_device(timeout_s=timeout_s)
    check_everything(device)
    link, bad = load(device, "link64"), load(device, name)
    state = buffer_of(device, ramp(32))
    device.synchronize()
    commands = device.command_list()
    commands.exec(link, [state], {"number": 1})
    commands.exec(bad, [state], values, label=f"{name} train.py:17")
    commands.exec(link, [state], {"number": 2})
    begin = time.perf_counter()
    text = ""
    try:
        device.submit(commands)
        device.synchronize()
    except DriverError as error:
        text = str(error)
        print(f"  after {time.perf_counter() - begin:.3f} s: {text}")
    expect(bool(text), "the fault went unnoticed")
    begin = time.perf_counter()
    check_everything(device)
    print(f"  the device goes on, all right after {time.perf_counter() - begin:.3f} s")
    device.close()
    expect(f"'{name}'" in text, "the kernel is not named")


def step_wild() -> None:
    """A store outside every buffer is reported, and the device goes on."""
    faulty("store64", {"offset": 1 << 40})


def step_trap() -> None:
    """A trap is reported, and the device goes on."""
    faulty("trapped64", {})


def step_endless() -> None:
    """A kernel without an end is reported at its deadline, and the device goes on."""
    faulty("endless", {}, timeout_s=2.0)


def step_kill() -> None:
    """Processes killed at any moment leave the GPU as it was."""
    chance = random.Random(3)
    begin, times = time.perf_counter(), 0
    while times < 50 and time.perf_counter() - begin < 70:
        child = subprocess.Popen([sys.executable, __file__, "--here", "busy"],
                                 stdout=subprocess.DEVNULL)
        time.sleep(chance.uniform(0.2, 1.2))
        child.send_signal(signal.SIGKILL)
        child.wait()
        times += 1
        if times % 10 == 0:
            device = make_device()
            check_everything(device)
            device.close()
    print(f"  {times} processes killed, what came after is right")


def step_busy() -> None:
    """Work until somebody stops it (for the step that kills)."""
    device = make_device()
    end = time.perf_counter() + 20
    while time.perf_counter() < end:
        random_lists(device, 20, 1)
        check_everything(device)


def step_fork() -> None:
    """A forked child leaves its parent's device alone."""
    device = make_device()
    check_everything(device)
    child = os.fork()
    if not child:
        code = 1
        try:
            device.allocate(1)
        except BaregradError as error:
            print(f"  {error}", flush=True)
            code = 0
        finally:
            device.close()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    expect(status == 0, "the child used the device")
    check_everything(device)
    device.close()


def step_peers() -> None:
    """Copies from GPU to GPU, by engine, and by way of the host; where there are two."""
    first = make_device("NV:0", index=0)
    if len(first.client.cards()) < 2:
        print("  there is one GPU")
        first.close()
        return
    second = make_device("NV:1", index=1)
    for one, other in ((first, second), (second, first)):
        found = peer_access(one, other)
        print(f"  {one.name} uses the memory of {other.name}: {found.direct}, {found.why}")
    words = ramp(70 * MIB // 4)
    source = buffer_of(first, words)
    same(words_of(second, second.duplicate(source)), words, "a copy to a peer")
    link = load(first, "link64")
    state = ramp(32)
    mine = buffer_of(first, state)
    for number in range(100):
        first.run(link, [mine], {"number": number})
        tools.link64(state, number)
    same(words_of(second, second.duplicate(mine)), state, "a copy of what was just computed")
    first.close()
    second.close()
    for engine in (None, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, -1):
        try:
            device = make_device("NV:0", index=0, copy_engine=engine)
        except BaregradError as error:
            print(f"  engine {engine}: {error}")
            continue
        second = make_device("NV:1", index=1)
        come, to = device.allocate(1 << 30), second.allocate(1 << 30)
        best = 1e9
        for _ in range(5):
            begin = time.perf_counter()
            to.device.copy_peer(to, come)
            best = min(best, time.perf_counter() - begin)
        print(f"  engine {engine}: 1 GiB at {(1 << 30) / best / 1e9:.0f} GB/s", flush=True)
        if engine is None:
            device.peers[second.gpu.uuid] = PeerAccess(False, "told so")
            begin = time.perf_counter()
            to.device.copy_peer(to, come)
            seconds = time.perf_counter() - begin
            print(f"  by the host: {(1 << 30) / seconds / 1e9:.1f} GB/s")
        device.close()
        second.close()


HIDDEN = ("busy",)
LATE = ("wild", "trap", "endless", "kill")
_FOUND = {
    name.removeprefix("step_"): step
    for name, step in list(globals().items())
    if name.startswith("step_")
}
STEPS = {name: _FOUND[name] for name in (*(n for n in _FOUND if n not in LATE), *LATE)}


if __name__ == "__main__":
    sys.exit(main(STEPS, __file__, __doc__ or "", hidden=HIDDEN, limit_s=100))
