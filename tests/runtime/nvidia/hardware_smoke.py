"""A check of the runtime on a real GPU: `python3 tests/runtime/nvidia/hardware_smoke.py [STEP...]`.

Needs a GPU of the generations in `target/nvidia.py` and its kernel driver, nothing else; the steps
that launch kernels (`hardware_launch.py`) need one of sm_90, and pyelftools. Each step runs in a
process of its own, prints what it measured, and ends with PASS or FAIL; steps that make the GPU
fail on purpose come last.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from baregrad.base.errors import BaregradError, DriverError, OutOfMemory
from baregrad.runtime.nvidia.abi import numbers as nv
from baregrad.runtime.nvidia.driver.client import Client
from baregrad.runtime.nvidia.driver.objects import Gpu
from baregrad.runtime.nvidia.driver.port import KernelPort, Port
from baregrad.runtime.nvidia.queue.channel import Channel
from baregrad.runtime.nvidia.queue.channel_group import ChannelGroup
from baregrad.runtime.nvidia.queue.pushbuffer import PushBuffer
from baregrad.runtime.nvidia.queue.timeline import TimelineSemaphore
from tests.runtime.nvidia import hardware_launch
from tests.runtime.nvidia.hardware_tools import MIB, expect, main, noise, timed, two_channels

BIG_NBYTES = 256 * MIB

make_port: Callable[[], Port] = KernelPort


# Steps. The docstring's first line is what is printed.


def step_client() -> None:
    """Open the driver, read its release, list GPUs."""
    with Client(make_port()) as client:
        print(f"  driver {client.version}, structs of {client.release.version}")
        print(f"  cards (GPU id, node): {client.cards()}")
        print(f"  root handle {client.root:#x}")


def step_gpu() -> None:
    """Open a GPU: device, classes, doorbell, clock, address space, registration."""
    with Client(make_port()) as client:
        begin = time.perf_counter()
        gpu = Gpu(client)
        print(f"  opened in {(time.perf_counter() - begin) * 1e3:.1f} ms")
        print(f"  {gpu.generation.name} ({gpu.generation.chips}), uuid {gpu.uuid.hex()}")
        print("  classes: " + " ".join(f"{kind:x}" for kind in sorted(gpu.classes())))
        print(f"  SM version {gpu.sm_version:#x}")
        facts = gpu.facts(
            nv.NV2080_CTRL_GR_INFO_INDEX_MAX_WARPS_PER_SM,
            nv.NV2080_CTRL_GR_INFO_INDEX_LITTER_NUM_GPCS,
            nv.NV2080_CTRL_GR_INFO_INDEX_LITTER_NUM_TPC_PER_GPC,
            nv.NV2080_CTRL_GR_INFO_INDEX_LITTER_NUM_SM_PER_TPC,
        )
        print(f"  warps per SM, GPCs, TPCs per GPC, SMs per TPC: {facts}")
        first, host = gpu.timer_ns(), time.perf_counter_ns()
        time.sleep(0.05)
        gpu_ns, host_ns = gpu.timer_ns() - first, time.perf_counter_ns() - host
        print(f"  50 ms by the host are {gpu_ns / 1e6:.3f} ms by the GPU, host {host_ns / 1e6:.3f}")
        expect(0.9 < gpu_ns / host_ns < 1.1, "the GPU's clock does not keep time")
        timed("read the GPU's clock", gpu.timer_ns, 1000)


def step_channel() -> None:
    """Bring up a compute and a copy channel, release semaphores, wait for them."""
    with Client(make_port()) as client, Gpu(client) as gpu:
        begin = time.perf_counter()
        compute, copies = two_channels(gpu)
        print(f"  two channels in {(time.perf_counter() - begin) * 1e3:.1f} ms")
        for name, channel in (("compute", compute), ("copies", copies)):
            channel.wait(timeout_s=5)
            print(f"  {name}: timeline {channel.timeline.value}, pointers {channel.pointers}")

            def round_trip(channel: Channel = channel) -> None:
                channel.wait(channel.submit(PushBuffer()), timeout_s=5)

            timed(f"{name}: submit and wait", round_trip, 2000)
            timed(f"{name}: submit", lambda channel=channel: channel.submit(PushBuffer()), 2000)
            channel.wait(timeout_s=5)
            before, stamp = gpu.timer_ns(), 0
            round_trip()
            stamp, after = channel.timeline.time_ns, gpu.timer_ns()
            print(f"  {name}: stamp {stamp - before} ns after the clock before, "
                  f"{after - stamp} ns before the clock after")
            expect(before <= stamp <= after, "time stamps are not of the GPU's clock")


def step_copy() -> None:
    """Copy host to GPU to host and compare; small, odd and large sizes."""
    with Client(make_port()) as client, Gpu(client) as gpu:
        _, channel = two_channels(gpu)
        source, target = gpu.memory.pinned(BIG_NBYTES), gpu.memory.pinned(BIG_NBYTES)
        middle = gpu.memory.device(BIG_NBYTES)
        print(f"  pinned at {source.gpu_va:#x}, {target.gpu_va:#x}; device at {middle.gpu_va:#x}")
        source.view[:] = noise(BIG_NBYTES)
        for nbytes, shift in ((4, 0), (1, 3), (4096, 0), (65521, 1), (MIB, 0), (BIG_NBYTES, 0)):
            target.view[:] = bytes(BIG_NBYTES)
            push = PushBuffer()
            push.copy(middle.gpu_va + shift, source.gpu_va + shift, nbytes)
            push.copy(target.gpu_va + shift, middle.gpu_va + shift, nbytes)
            channel.wait(channel.submit(push), timeout_s=10)
            view = slice(shift, shift + nbytes)
            expect(target.view[view] == source.view[view], f"{nbytes} bytes arrive changed")
            rest = target.view[shift + nbytes : shift + nbytes + 64]
            expect(not any(rest), f"{nbytes} bytes: more was written")
        print("  all sizes arrive unchanged, right after the host unit's release")
        for name, to, come in (
            ("host to GPU", middle.gpu_va, source.gpu_va),
            ("GPU to host", target.gpu_va, middle.gpu_va),
        ):
            push = PushBuffer()
            push.copy(to, come, BIG_NBYTES)
            begin = channel.submit(PushBuffer())
            channel.wait(begin)
            start = channel.timeline.time_ns
            channel.wait(channel.submit(push))
            seconds = (channel.timeline.time_ns - start) / 1e9
            print(f"  {name}: {BIG_NBYTES / seconds / 1e9:.1f} GB/s by the GPU's clock")


def step_engine_release() -> None:
    """The copy engine's own semaphore against the host unit's, after a large copy."""
    with Client(make_port()) as client, Gpu(client) as gpu:
        _, channel = two_channels(gpu)
        source, middle = gpu.memory.device(BIG_NBYTES), gpu.memory.device(BIG_NBYTES)
        mine = TimelineSemaphore(gpu)
        push = PushBuffer()
        push.copy(middle.gpu_va, source.gpu_va, BIG_NBYTES)
        push.copy_release(mine.gpu_va, 7, payload_bits=gpu.generation.copy_payload_bits)
        value = channel.submit(push)
        channel.wait(value, timeout_s=5)
        print(f"  engine's semaphore {mine.value}, {channel.timeline.time_ns - mine.time_ns} ns "
              "before the host unit's")
        expect(mine.value == 7, "the host unit's release came before the copies were done")
        if gpu.generation.copy_payload_bits == 64:
            push = PushBuffer()
            push.copy_release(mine.gpu_va, 5 << 32 | 6, payload_bits=64)
            channel.wait(channel.submit(push), timeout_s=5)
            expect(mine.value == 5 << 32 | 6, f"64-bit payload reads {mine.value:#x}")
            print("  64-bit payload arrives")


def step_fill() -> None:
    """Fill GPU memory with a pattern by the copy engine."""
    with Client(make_port()) as client, Gpu(client) as gpu:
        _, channel = two_channels(gpu)
        middle, target = gpu.memory.device(MIB), gpu.memory.pinned(MIB)
        push = PushBuffer()
        push.fill(middle.gpu_va, 0x12345678, MIB // 4 - 3)
        push.copy(target.gpu_va, middle.gpu_va, MIB)
        channel.wait(channel.submit(push), timeout_s=5)
        words = target.view.cast("I")
        expect(set(words[: MIB // 4 - 3]) == {0x12345678}, f"found {words[0]:#x} {words[1]:#x}")
        push = PushBuffer()
        push.copy(middle.gpu_va + 64, target.gpu_va, 64)
        push.copy(target.gpu_va + 64, middle.gpu_va + 64, 64)
        channel.wait(channel.submit(push), timeout_s=5)
        expect(words[16] == 0x12345678, "a plain copy after a fill is not plain")


def step_visible() -> None:
    """GPU memory that the host writes through its window, read back by a copy and directly."""
    with Client(make_port()) as client, Gpu(client) as gpu:
        _, channel = two_channels(gpu)
        window, target = gpu.memory.visible(2 * MIB), gpu.memory.pinned(2 * MIB)
        data = noise(2 * MIB, 5)
        timed("host writes 2 MiB to the window", lambda: window.view.__setitem__(slice(None), data))
        push = PushBuffer()
        push.copy(target.gpu_va, window.gpu_va, 2 * MIB)
        channel.wait(channel.submit(push), timeout_s=5)
        expect(target.view == data, "what the host wrote is not what the GPU reads")
        timed("host reads 4 KiB of it", lambda: bytes(window.view[:4096]))
        expect(window.view[:4096] == data[:4096], "the host reads back something else")


def step_ring() -> None:
    """Wrap a small ring and a small pushbuffer around many times, with copies in order."""
    with Client(make_port()) as client, Gpu(client) as gpu:
        _, channel = two_channels(gpu, entries=8, push_nbytes=1024)
        line = gpu.memory.pinned(4096)
        device = gpu.memory.device(4096)
        words = line.view.cast("I")
        for i in range(3000):
            words[i % 512] = i
            push = PushBuffer()
            for _ in range(i % 5):
                push.copy(device.gpu_va, line.gpu_va + 4 * (i % 512), 4)
            push.copy(line.gpu_va + 2048 + 4 * (i % 512), line.gpu_va + 4 * (i % 512), 4)
            value = channel.submit(push)
            if i % 512 == 511:
                channel.wait(value, timeout_s=5)
                expect(words[:512].tolist() == words[512:1024].tolist(), f"round {i} differs")
        channel.wait(timeout_s=5)
        print(f"  3000 submissions through 8 entries, pointers {channel.pointers}")
        expect(channel.timeline.value == channel.submit(PushBuffer()) - 1, "a release is lost")


def step_between() -> None:
    """One channel waits for a semaphore that the other releases, and for one of the host's."""
    with Client(make_port()) as client, Gpu(client) as gpu:
        compute, copies = two_channels(gpu)
        gate = TimelineSemaphore(gpu)
        waiting = PushBuffer()
        waiting.acquire(gate.gpu_va, 5)
        held = copies.submit(waiting)
        time.sleep(0.02)
        expect(copies.timeline.value < held, "an acquire does not hold")
        opening = PushBuffer()
        opening.release(gate.gpu_va, 5)
        compute.submit(opening)
        copies.wait(held, timeout_s=5)
        print("  the copy channel waited for the compute channel")
        waiting = PushBuffer()
        waiting.acquire(gate.gpu_va, 1 << 33)
        held = copies.submit(waiting)
        time.sleep(0.02)
        expect(copies.timeline.value < held, "an acquire of a 64-bit value does not hold")
        opening = PushBuffer()
        opening.release(gate.gpu_va, 1 << 33)
        compute.submit(opening)
        copies.wait(held, timeout_s=5)
        print("  64-bit acquire works")


def step_memory() -> None:
    """Allocate until the GPU is full, get OutOfMemory, free, allocate again; time allocations."""
    with Client(make_port()) as client, Gpu(client) as gpu:
        _, channel = two_channels(gpu)
        held = []
        try:
            while len(held) < 4000:
                held.append(gpu.memory.device(1 << 30))
        except OutOfMemory as error:
            print(f"  after {len(held)} GiB: {error}")
        else:
            raise AssertionError("the GPU is never full")
        channel.wait(channel.submit(PushBuffer()), timeout_s=5)
        for memory in held:
            memory.close()
        expect(gpu.memory.device(1 << 30).gpu_va > 0, "freed memory is not given again")
        for kind in (gpu.memory.device, gpu.memory.visible, gpu.memory.pinned):
            def once(kind: Callable[[int], object] = kind) -> None:
                kind(2 * MIB).close()  # type: ignore[attr-defined]

            timed(f"allocate and free 2 MiB, {kind.__name__}", once, 50)


def step_refusals() -> None:
    """What the driver refuses is named: a class, a struct of a wrong size, a node."""
    with Client(make_port()) as client, Gpu(client) as gpu:
        for name, action in (
            ("bad class", lambda: client.allocate(gpu.device, 0xBEEF, None)),
            ("bad parent", lambda: client.allocate(0x1234, nv.NV20_SUBDEVICE_0, None)),
            ("bad size", lambda: client.control(
                gpu.subdevice, nv.NV2080_CTRL_CMD_GPU_GET_GID_INFO,
                client.struct("work_submit_token").record())),
            ("bad fd", lambda: gpu.register_fd(client.uvm_fd)),
        ):  # fmt: skip
            try:
                action()
            except DriverError as error:
                print(f"  {name}: {error}")
            else:
                raise AssertionError(f"{name} was taken")
        channels = two_channels(gpu)
        channels[0].wait(timeout_s=5)


def step_reopen() -> None:
    """Open, work, close, three times in one process; no descriptor or mapping stays."""

    def count() -> tuple[int, int]:
        maps = Path("/proc/self/maps").read_text().splitlines()
        of_driver = sum(" /dev/nvidia" in line for line in maps)
        return len(list(Path("/proc/self/fd").iterdir())), of_driver

    before, counts = count(), []
    for _ in range(3):
        begin = time.perf_counter()
        with Client(make_port()) as client, Gpu(client) as gpu:
            compute, copies = two_channels(gpu)
            memory = gpu.memory.device(64 * MIB)
            expect(memory.gpu_va > 0, "no address")
            compute.wait(timeout_s=5)
            copies.wait(timeout_s=5)
            opened = time.perf_counter()
            inside = count()
        closed = time.perf_counter()
        print(f"  open {(opened - begin) * 1e3:.1f} ms, close {(closed - opened) * 1e3:.1f} ms, "
              f"descriptors and mappings {inside} -> {count()}")
        counts.append(count())
    expect(counts[0] == counts[2], f"something stays: {counts}")
    expect(counts[2][1] == before[1], "a mapping stays")


def step_copy_engine() -> None:
    """Channels on copy engines of their own, beside the graphics engine."""
    with Client(make_port()) as client, Gpu(client) as gpu:
        source, middle = gpu.memory.pinned(BIG_NBYTES), gpu.memory.device(BIG_NBYTES)
        target = gpu.memory.pinned(BIG_NBYTES)
        source.view[:] = noise(BIG_NBYTES, 3)
        worked = []
        for engine in range(10):
            try:
                group = ChannelGroup(gpu, copy_engine=engine)
                channel = Channel(group)
                group.schedule()
                channel.wait(timeout_s=5)
            except BaregradError as error:
                print(f"  engine {engine}: {error}")
                continue
            rates = []
            for to, come in (
                (middle.gpu_va, source.gpu_va), (target.gpu_va, middle.gpu_va),
            ):  # fmt: skip
                push = PushBuffer()
                push.copy(to, come, BIG_NBYTES)
                start = channel.timeline.time_ns
                channel.wait(channel.submit(PushBuffer()))
                start = channel.timeline.time_ns
                channel.wait(channel.submit(push))
                rates.append(BIG_NBYTES / (channel.timeline.time_ns - start))
            right = target.view == source.view
            print(f"  engine {engine}: in {rates[0]:.1f} GB/s, out {rates[1]:.1f} GB/s, "
                  f"data {'right' if right else 'WRONG'}")
            expect(right, "data arrive changed")
            worked.append(engine)
            group.close()
        expect(bool(worked), "no copy engine works by itself")


def step_strict() -> None:
    """Open with the driver told not to serve faults from the process's own memory."""
    with Client(make_port(), strict_faults=True) as client, Gpu(client) as gpu:
        compute, copies = two_channels(gpu)
        compute.wait(timeout_s=5)
        copies.wait(timeout_s=5)


def step_fork() -> None:
    """A forked child closes what it inherited without harm to its parent."""
    with Client(make_port()) as client, Gpu(client) as gpu:
        compute, _ = two_channels(gpu)
        child = os.fork()
        if child == 0:
            gpu.close()
            client.close()
            os._exit(0)
        expect(os.waitpid(child, 0)[1] == 0, "the child failed")
        compute.wait(compute.submit(PushBuffer()), timeout_s=5)


def step_left_open() -> None:
    """End the process with everything open; the kernel cleans up (the next step shows it)."""
    client = Client(make_port())
    gpu = Gpu(client)
    two_channels(gpu)
    gpu.memory.device(1 << 30)


def step_after() -> None:
    """The GPU works after a process that left everything open."""
    step_channel()


def wild(strict: bool) -> None:
    """Copy to an address that is not mapped; the wait must raise, with what the driver says."""
    with Client(make_port(), strict_faults=strict) as client, Gpu(client) as gpu:
        _, channel = two_channels(gpu)
        source = gpu.memory.device(MIB)
        push = PushBuffer()
        push.copy(0x1234_0000_0000, source.gpu_va, 4096)
        begin = time.perf_counter()
        try:
            channel.wait(channel.submit(push), timeout_s=5)
        except DriverError as error:
            print(f"  after {time.perf_counter() - begin:.3f} s: {error}")
        else:
            raise AssertionError("a wild copy went unnoticed")
        channel.group.close()
        print("  the dead group is closed; making another in this process")
        _, channel = two_channels(gpu)
        target = gpu.memory.pinned(MIB)
        push = PushBuffer()
        push.copy(target.gpu_va, source.gpu_va, MIB)
        channel.wait(channel.submit(push), timeout_s=5)
        print("  a new group works, and so does memory made before the fault")


def step_wild() -> None:
    """A wild copy is reported, and a new channel works in the same process."""
    wild(strict=False)


def step_wild_strict() -> None:
    """The same with faults not served from the process's own memory."""
    wild(strict=True)


def step_wild_method() -> None:
    """A method that the engine does not have stops the channel and is reported."""
    with Client(make_port()) as client, Gpu(client) as gpu:
        _, channel = two_channels(gpu)
        push = PushBuffer()
        push.words += [1 << 29 | 1 << 16 | 4 << 13 | 0xFFC >> 2, 1]
        try:
            channel.wait(channel.submit(push), timeout_s=5)
        except DriverError as error:
            print(f"  {error}")
        else:
            print("  the engine took the method in silence")


def step_after_faults() -> None:
    """The GPU works after processes that made it fail."""
    step_copy()


# Those that make the GPU fail are the last.
FAULTS = ("wild", "wild_strict", "wild_method", *hardware_launch.FAULTS)
_FOUND = {
    name.removeprefix("step_"): step
    for name, step in [*globals().items(), *vars(hardware_launch).items()]
    if name.startswith("step_")
}
STEPS = {
    name: _FOUND[name]
    for name in (
        *(name for name in _FOUND if name not in FAULTS and name != "after_faults"),
        *FAULTS, "after_faults",
    )
}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(STEPS, __file__, __doc__ or ""))
