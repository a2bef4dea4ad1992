"""Steps of the hardware check that launch kernels; `hardware_smoke.py` runs them.

The kernels are those of data/*.cu, compiled for sm_90a.
"""

from __future__ import annotations

import contextlib
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

from baregrad.base.errors import ArgumentError, DriverError
from baregrad.runtime.nvidia.driver.client import Client
from baregrad.runtime.nvidia.driver.objects import Gpu
from baregrad.runtime.nvidia.driver.port import KernelPort, Port
from baregrad.runtime.nvidia.lists.launch import GpuModule
from baregrad.runtime.nvidia.queue.batch import Batch
from baregrad.runtime.nvidia.queue.channel import Channel
from baregrad.runtime.nvidia.queue.pushbuffer import PushBuffer
from tests.runtime.nvidia.hardware_tools import expect, timed, two_channels

DATA = Path(__file__).parent / "data"
MASK = 0xFFFFFFFF
FAULTS = ("illegal", "wild_store", "wild_store_strict")

make_port: Callable[[], Port] = KernelPort


@contextlib.contextmanager
def opened(*, strict: bool = False) -> Iterator[tuple[Gpu, Channel, Channel]]:
    """Yield a GPU with a channel that computes and one that copies."""
    with Client(make_port(), strict_faults=strict) as client, Gpu(client) as gpu:
        yield gpu, *two_channels(gpu)


def module_of(gpu: Gpu, name: str) -> GpuModule:
    """Place one of the test's cubins on the GPU."""
    return GpuModule(gpu, (DATA / f"{name}.sm_90a.cuda13.cubin").read_bytes())


def check_words(found: memoryview, wanted: list[int], what: str) -> None:
    """Compare 32-bit words; the error tells the first that differs."""
    words = found[: 4 * len(wanted)].cast("I").tolist()
    if words != wanted:
        place = next(i for i, pair in enumerate(zip(words, wanted, strict=True))
                     if pair[0] != pair[1])
        wrong = sum(a != b for a, b in zip(words, wanted, strict=True))
        raise AssertionError(
            f"{what}: {wrong} of {len(wanted)} words differ, the first at {place}: "
            f"{words[place : place + 8]} instead of {wanted[place : place + 8]}"
        )


def check_saxpy(gpu: Gpu, compute: Channel, copies: Channel) -> None:
    """Copy in, launch, copy out, and compare with arithmetic that is exact in float32."""
    count = 100_003
    x = array("f", (i % 1000 * 0.5 for i in range(count)))
    y = array("f", (i % 77 for i in range(count)))
    host, on_gpu = gpu.memory.pinned(8 * count), gpu.memory.device(8 * count)
    host.view[: 4 * count] = x.tobytes()
    host.view[4 * count : 8 * count] = y.tobytes()
    push = PushBuffer()
    push.copy(on_gpu.gpu_va, host.gpu_va, 8 * count)
    copies.wait(copies.submit(push), timeout_s=5)
    module = module_of(gpu, "saxpy")
    kernel = module.kernel("saxpy")
    target = on_gpu.gpu_va + 4 * count
    value = kernel.launch(
        compute, (-(-count // 256), 1, 1), (256, 1, 1), (target, on_gpu, 2.5, count)
    )
    compute.wait(value, timeout_s=5)
    push = PushBuffer()
    push.copy(host.gpu_va, target, 4 * count)
    copies.wait(copies.submit(push), timeout_s=5)
    wanted = array("f", (2.5 * a + b for a, b in zip(x, y, strict=True)))
    check_words(host.view, memoryview(wanted.tobytes()).cast("I").tolist(), "saxpy")
    module.close()
    on_gpu.close()
    host.close()


def step_saxpy() -> None:
    """Launch saxpy on 100,003 elements and compare."""
    with opened() as (gpu, compute, copies):
        check_saxpy(gpu, compute, copies)
        print(f"  right; counts of the die: {gpu.counts}")


def step_dims() -> None:
    """Every thread writes its indices and the shape of the launch."""
    with opened() as (gpu, compute, _):
        kernel = module_of(gpu, "launch").kernel("dims")
        out = gpu.memory.pinned(1 << 20)
        for grid, block in (
            ((1, 1, 1), (1, 1, 1)), ((3, 2, 4), (5, 3, 2)), ((7, 1, 1), (33, 1, 1)),
            ((1, 1, 9), (1, 8, 8)),
        ):  # fmt: skip
            out.view[:] = bytes(out.nbytes)
            compute.wait(kernel.launch(compute, grid, block, (out,)), timeout_s=5)
            wanted = []
            for bz, by, bx in cells(grid):
                for tz, ty, tx in cells(block):
                    wanted += [bx, by, bz, tx, ty, tz, *block, *grid]
            check_words(out.view, wanted, f"grid {grid}, block {block}")
        print("  right for four shapes")


def cells(shape: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    """Return all (z, y, x) of a shape, x fastest."""
    return [(z, y, x) for z in range(shape[2]) for y in range(shape[1]) for x in range(shape[0])]


def step_shared() -> None:
    """Dynamic shared memory from 4 bytes to 227 KiB; more is refused before it is launched."""
    with opened() as (gpu, compute, _):
        kernel = module_of(gpu, "launch").kernel("shared")
        out = gpu.memory.pinned(4 << 20)
        for nbytes in (4, 4096, 48 << 10, 100 << 10, 227 << 10):
            words = nbytes // 4
            out.view[:] = bytes(out.nbytes)
            value = kernel.launch(
                compute, (4, 1, 1), (1024, 1, 1), (out, words, 0x9E3779B1), shared_nbytes=nbytes
            )
            compute.wait(value, timeout_s=5)
            wanted = [
                (words - 1 - i) * 0x9E3779B1 + block & MASK
                for block in range(4) for i in range(words)
            ]  # fmt: skip
            check_words(out.view, wanted, f"{nbytes} bytes")
        print("  right up to 227 KiB")
        more = (227 << 10) + 4
        try:
            kernel.launch(compute, (1, 1, 1), (32, 1, 1), (out, 1, 1), shared_nbytes=more)
        except ArgumentError as error:
            print(f"  more is refused: {error}")
        else:
            raise AssertionError("more shared memory than there is was launched")


def local_sum(thread: int, stride: int, places: int) -> int:
    """Return what a thread of the kernel with a stack of so many words writes."""
    kept = [0] * places
    for i in range(places):
        kept[i * stride % places] = thread + i
    total = 0
    for i in range(places):
        total = total * 31 + kept[(i * stride + thread) % places] & MASK
    return total


def step_local() -> None:
    """Kernels with stacks of 256 bytes and 8 KiB, on all multiprocessors at once."""
    with opened() as (gpu, compute, _):
        module = module_of(gpu, "launch")
        blocks, threads = 2 * gpu.counts.units, 256
        out = gpu.memory.pinned(4 * blocks * threads)
        for name, places in (("local", 64), ("deeper", 2048), ("local", 64)):
            out.view[:] = bytes(out.nbytes)
            begin = time.perf_counter()
            kernel = module.kernel(name)
            value = kernel.launch(compute, (blocks, 1, 1), (threads, 1, 1), (out, 5))
            compute.wait(value, timeout_s=10)
            launches = compute.launches
            expect(launches is not None and launches.pool is not None, "there is no pool")
            print(f"  {name}: {(time.perf_counter() - begin) * 1e3:.2f} ms with "
                  f"{launches and launches.pool}")
            words = out.view.cast("I").tolist()
            step = 41 if places == 64 else 997
            for thread in range(0, blocks * threads, step):
                wanted = local_sum(thread, 5, places)
                expect(words[thread] == wanted, f"{name}: thread {thread} of {blocks * threads} "
                       f"has {words[thread]:#x} instead of {wanted:#x}")


def link_all(states: list[int], numbers: range) -> list[int]:
    """Return the states after the kernel `link` ran with each of the numbers."""
    for number in numbers:
        states = [state * 1664525 + number & MASK for state in states]
    return states


def step_chain() -> None:
    """1,000 tiny kernels in one submission, each needing what the one before wrote."""
    with opened() as (gpu, compute, _):
        kernel = module_of(gpu, "launch").kernel("link")
        state = gpu.memory.visible(128)
        wanted = list(range(32))
        state.view[:128] = array("I", wanted).tobytes()
        for chained in (True, True, False, False, True):
            begin = time.perf_counter()
            batch = Batch(compute, chained=chained)
            for number in range(1000):
                kernel.launch(batch, (1, 1, 1), (32, 1, 1), (state, number))
            compute.wait(compute.submit(PushBuffer()), timeout_s=5)
            before, built = compute.timeline.time_ns, time.perf_counter()
            compute.wait(batch.submit(), timeout_s=5)
            end = time.perf_counter()
            print(f"  {'chained' if chained else 'each by the channel'}: "
                  f"{(compute.timeline.time_ns - before) / 1e6:.3f} us a kernel from idle to idle "
                  f"by the GPU's clock, {(end - built) * 1e3:.3f} with submitting by the host's; "
                  f"{(built - begin) * 1e3:.3f} to write it down")
            wanted = link_all(wanted, range(1000))
            check_words(state.view, wanted, f"chained {chained}")


def step_many() -> None:
    """20,000 launches, each submitted by itself, through memory that is used again and again."""
    with opened() as (gpu, compute, _):
        kernel = module_of(gpu, "launch").kernel("link")
        state = gpu.memory.visible(128)
        state.view[:128] = array("I", range(32)).tobytes()
        numbers = range(20_000)
        begin = time.perf_counter()
        for number in numbers:
            kernel.launch(compute, (1, 1, 1), (32, 1, 1), (state, number))
        compute.wait(timeout_s=10)
        seconds = time.perf_counter() - begin
        print(f"  {seconds / len(numbers) * 1e6:.2f} us a launch, submitted one by one")
        check_words(state.view, link_all(list(range(32)), numbers), "many launches")


def step_launch_cost() -> None:
    """Launch one tiny kernel and wait for it, over and over."""
    with opened() as (gpu, compute, _):
        kernel = module_of(gpu, "launch").kernel("link")
        state = gpu.memory.device(128)

        def once() -> int:
            return kernel.launch(compute, (1, 1, 1), (32, 1, 1), (state, 1))

        compute.wait(once(), timeout_s=5)
        timed("launch and wait", lambda: compute.wait(once(), timeout_s=5), 3000)
        times = []
        for _ in range(3000):
            begin = time.perf_counter_ns()
            compute.wait(once(), timeout_s=5)
            times.append(time.perf_counter_ns() - begin)
        times.sort()
        print(f"  median {times[1500] / 1e3:.1f} us, least {times[0] / 1e3:.1f} us")
        timed("launch", once, 1000)
        compute.wait(timeout_s=5)


def step_cluster() -> None:
    """Blocks of clusters of two read each other's shared memory."""
    with opened() as (gpu, compute, _):
        kernel = module_of(gpu, "launch").kernel("pairs")
        out = gpu.memory.pinned(1 << 16)
        value = kernel.launch(compute, (8, 1, 1), (32, 1, 1), (out,), cluster=(2, 1, 1))
        compute.wait(value, timeout_s=5)
        wanted = []
        for block in range(8):
            for thread in range(32):
                wanted += [1000 * (block ^ 1) + 31 - thread, block & 1, 2, block >> 1]
        check_words(out.view, wanted, "clusters of two")
        try:
            kernel.launch(compute, (7, 1, 1), (32, 1, 1), (out,), cluster=(2, 1, 1))
        except ArgumentError as error:
            print(f"  {error}")
        else:
            raise AssertionError("half a cluster was launched")


def fault(name: str, arguments: tuple[int, ...], *, strict: bool = False) -> None:
    """Launch a kernel that fails; it must be reported by name, and a new group must work."""
    with opened(strict=strict) as (gpu, compute, copies):
        check_saxpy(gpu, compute, copies)
        begin = time.perf_counter()
        kernel = module_of(gpu, "launch").kernel(name)
        value = kernel.launch(compute, (2, 1, 1), (32, 1, 1), arguments)
        try:
            compute.wait(value, timeout_s=5)
            print("  the timeline says that the kernel is done; asking the notifier")
            time.sleep(0.5)
            compute.check()
        except DriverError as error:
            text = str(error)
            print(f"  after {time.perf_counter() - begin:.3f} s: {text}")
        else:
            raise AssertionError("the fault went unnoticed")
        compute.group.close()
        print("  the dead group is closed; making another in this process")
        compute, copies = two_channels(gpu)
        check_saxpy(gpu, compute, copies)
        print("  a new group works")
        expect(repr(name) in text, "the kernel is not named")
        expect("Xid" in text, "the notifier told nothing")


def step_illegal() -> None:
    """A kernel that traps is reported, and a new group works in the same process."""
    fault("trapped", ())


def step_wild_store() -> None:
    """A kernel that stores where nothing is mapped is reported, and a new group works."""
    fault("store", (0x1234_0000_0000, 7))


def step_wild_store_strict() -> None:
    """The same with faults not served from the process's own memory."""
    fault("store", (0x1234_0000_0000, 7), strict=True)
