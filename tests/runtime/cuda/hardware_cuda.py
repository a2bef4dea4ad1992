"""A check of the device CUDA on a GPU: `python3 tests/runtime/cuda/hardware_cuda.py [STEP...]`.

Needs a GPU of sm_90, libcuda, NumPy and ptxas. Each step runs in a process of its own, prints what
it measured, and ends with PASS or FAIL; steps that make kernels fail on purpose come last. All take
about three minutes.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import functools
import resource
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import numpy as np

from baregrad.assemble.ptxas import PtxAssembler
from baregrad.base.errors import BaregradError, CompileError, DriverError, OutOfMemory
from baregrad.base.options import options
from baregrad.program import Program
from baregrad.runtime.commands import Kernel, Slot
from baregrad.runtime.cuda import list_runner
from baregrad.runtime.cuda.device import CudaDevice
from tests.runtime.cuda import kernels
from tests.runtime.cuda.kernels import get, put
from tests.runtime.nvidia import device_tools
from tests.runtime.nvidia.random_lists import random_lists

MIB = 1 << 20


def expect(truth: bool, why: str) -> None:
    """Fail the step unless something is true."""
    if not truth:
        raise AssertionError(why)


def assembled(device: CudaDevice, program: Program) -> Kernel:
    """Load a program of PTX text, made for the GPU by ptxas."""
    code = PtxAssembler(device.architecture).assemble(program.source)
    return device.load(dataclasses.replace(program, code=code))


def load_data(device: Any, name: str) -> Kernel:
    """Load a kernel of the cubin for sm_90a."""
    return device.load(device_tools.program(name))  # type: ignore[no-any-return]


def middle_us(action: Callable[[], Any], times: int) -> float:
    """The median time of an action."""
    found = []
    for _ in range(times):
        begin = time.perf_counter_ns()
        action()
        found.append(time.perf_counter_ns() - begin)
    return sorted(found)[times // 2] / 1e3


def step_open() -> None:
    """Open and close; what was found."""
    for _ in range(2):
        begin = time.perf_counter()
        device = CudaDevice()
        opened = time.perf_counter()
        driver, context = device.driver, device.context
        print(f"  {driver.device_name(context.device)}, {device.architecture}, CUDA "
              f"{driver.version}, clusters {context.clusters}, {context.shared_nbytes} bytes of "
              "shared memory a block")
        device.close()
        print(f"  open {(opened - begin) * 1e3:.1f} ms, "
              f"close {(time.perf_counter() - opened) * 1e3:.1f} ms")


def step_right() -> None:
    """Random command lists against NumPy: launched one by one, then as graphs."""
    for after, graph_us in ((1 << 30, 1e9), (4, list_runner.GRAPH_US), (1, 0.0)):
        list_runner.GRAPH_AFTER, list_runner.GRAPH_US = after, graph_us
        device = CudaDevice()
        begin = time.perf_counter()
        count = random_lists(device, 400, after & 0xFF, load_data)  # type: ignore[arg-type]
        print(f"  graphs after {after}: {count} submissions in "
              f"{time.perf_counter() - begin:.1f} s, marks {device.context.progress.offered}")
        device.close()


def step_shapes() -> None:
    """Much shared memory, clusters of up to 16 blocks, grids that follow a variable."""
    device = CudaDevice()
    counter = put(device, [0])
    total = 0
    for shared, cluster in ((0, 1), (48 << 10, 1), (200 << 10, 1), (0, 8), (64 << 10, 16)):
        # Blocks add to one word without care, so each runs alone: one block of a cluster writes.
        text = kernels.STEP.replace("ld.param.u64 %o, [o];", "ld.param.u64 %o, [o];\n"
                                    "    .reg .b32 %c; .reg .pred %p; mov.u32 %c, %ctaid.x;\n"
                                    "    setp.ne.u32 %p, %c, 0;\n    @%p ret;")
        program = kernels.one_thread("step", text, shared, cluster)
        kernel = assembled(device, program)
        commands = device.command_list()
        for _ in range(5):
            commands.exec(kernel, [counter])
        for _ in range(8):
            device.submit(commands)
            total += 5
        expect(get(device, counter) == [total], f"{shared} bytes, clusters of {cluster}")
        print(f"  {shared} bytes of shared memory, clusters of {cluster}: right")
    try:
        device.load(kernels.one_thread("step", kernels.STEP, 228 << 10))
    except CompileError as error:
        print(f"  too much is refused: {error}")
    scale = assembled(device, kernels.scale())
    source, target = put(device, list(range(1000))), put(device, [0] * 1000)
    commands = device.command_list()
    for _ in range(6):
        commands.exec(scale, [Slot(1), Slot(0)])
    for n in (1000, 64, 0, 65, 1000, 1, 999, 0, 1000, 500):
        device.copy_in(target, np.zeros(1000, np.int64))
        device.submit(commands, [source, target], {"n": n, "k": -7})
        wanted = [2 * i - 7 if i < n else 0 for i in range(1000)]
        expect(get(device, target) == wanted, f"a grid for {n} elements")
    print("  grids follow their variable, in graphs as well")
    device.close()


def step_copies() -> None:
    """Copies of ordinary and pinned memory, all sizes; rates of 256 MiB."""
    device = CudaDevice()
    for nbytes in (1, 3, 4095, 65537, 262145, 4 * MIB + 1, 17 * MIB + 5, 256 * MIB):
        data = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
        buffer, twin = device.allocate(nbytes), None
        for source in (data, device.pinned(nbytes)):
            source[:] = data
            device.copy_in(buffer, source)
            source[:1] ^= 0
            twin = device.duplicate(buffer)
            for back in (np.zeros_like(data), device.pinned(nbytes)):
                back[:] = 0
                device.copy_out(twin, back)
                expect(np.array_equal(back, data), f"{nbytes} bytes come back changed")
    print("  all sizes come back unchanged")
    pinned = device.pinned(data.nbytes)
    for name, array in (("ordinary", data), ("pinned", pinned)):
        for way, copy in (("in", device.copy_in), ("out", device.copy_out)):

            def once(copy: Any = copy, array: Any = array) -> None:
                copy(buffer, array)
                device.synchronize()

            print(f"  {name} {way}: {data.nbytes / middle_us(once, 5) / 1e3:.1f} GB/s")
    device.close()


def step_times() -> None:
    """A launch and a wait; a chain of 1,000; a timeline by events."""
    device = CudaDevice()
    kernel = load_data(device, "link64")
    buffer, other = put(device, [0] * 16), put(device, [0] * 16)
    one, many = device.command_list(), device.command_list()
    one.exec(kernel, [Slot(0)], {"number": 1})
    for number in range(1000):
        many.exec(kernel, [Slot(0)], {"number": number})

    def run(commands: Any) -> None:
        device.submit(commands, [buffer])
        device.synchronize()

    for commands, times, name in ((one, 3000, "one"), (many, 60, "1,000")):
        again = functools.partial(run, commands)
        for _ in range(10):
            again()
        print(f"  {name} launched and waited for: {middle_us(again, times):.2f} us")
    timeline = device.submit(many, [buffer], timed=True)
    assert timeline is not None
    durations = sorted(timeline.durations_ns())
    print(f"  by events: median {durations[500]} ns a kernel, {timeline.end_ns[-1]} ns in all")
    turn = [0]

    def changed() -> None:
        turn[0] ^= 1
        device.submit(many, [(buffer, other)[turn[0]]])
        device.synchronize()

    print(f"  1,000 with another buffer each time: {middle_us(changed, 30):.1f} us")
    device.close()


def step_memory() -> None:
    """Out of memory and a retry; 200,000 launches and 1,000 devices leave memory flat."""
    device = CudaDevice()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()

    def left() -> int:
        with device._entered():
            device.driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    held = device.allocate(left() * 9 // 10)
    try:
        device.allocate(held.nbytes)
    except OutOfMemory as error:
        print(f"  {error}")
    nbytes = held.nbytes
    del held
    print(f"  and then {device.allocate(nbytes).nbytes >> 20} MiB are given")
    device.allocator.trim()
    kernel, before = load_data(device, "link64"), 0
    for round_number in range(20):
        for _ in range(10_000):
            device.run(kernel, [device.allocate(4096)], {"number": 3})
        device.synchronize()
        if round_number == 1:
            before = left()
            resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident
    print(f"  180,000 launches: {before - left()} bytes of the GPU's, {grown} KiB of ours")
    expect(before - left() <= 2 * MIB and grown < 4096, "memory grows")
    before = left()
    for _ in range(1000):
        with_one = CudaDevice()
        put(with_one, [1])
        with_one.close()
    print(f"  1,000 devices beside this one: {before - left()} bytes")
    expect(before - left() <= 2 * MIB, "devices leave memory behind")
    device.close()


def step_peers() -> None:
    """Copies between two GPUs."""
    first = CudaDevice("CUDA:0", 0)
    try:
        second = CudaDevice("CUDA:1", 1)
    except BaregradError as error:
        print(f"  skipped: {error}")
        return
    for nbytes in (1, 4097, 64 * MIB):
        data = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
        source = first.allocate(nbytes)
        first.copy_in(source, data)
        there = second.duplicate(source)
        first.copy_in(source, np.zeros_like(data))
        back = first.duplicate(there)
        expect(np.array_equal(back.contents(), data), f"{nbytes} bytes arrive changed")

    def once() -> None:
        second.copy_peer(there, source)
        second.synchronize()

    print(f"  64 MiB: {64 * MIB / middle_us(once, 9) / 1e3:.1f} GB/s")
    second.close()
    first.close()


def step_tensors() -> None:
    """A few ops and a gradient as on the CPU."""
    from baregrad import Tensor

    data = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    found = {}
    for name in ("CUDA", "CPU"):
        x = Tensor(data, device=name, requires_grad=True)
        y = ((x @ x).tanh().sum(1) * x.exp().amax(0)).sum()
        y.backward()
        assert x.grad is not None
        found[name] = (y.numpy(), x.grad.numpy())
    for one, two in zip(found["CUDA"], found["CPU"], strict=True):
        expect(np.allclose(one, two, rtol=1e-4, atol=1e-4), "CUDA and CPU differ")
    print("  a product, functions, reductions and their gradients agree")


def fault(text: str, name: str, told: str) -> None:
    """Run a kernel that fails; the error must name it, and come soon."""
    device = CudaDevice()
    counter = put(device, [0])
    good = assembled(device, kernels.one_thread("step", kernels.STEP))
    bad = assembled(device, kernels.one_thread(name, text))
    commands = device.command_list()
    for kernel in (good, bad, good):
        commands.exec(kernel, [counter])
    device.submit(commands)
    begin = time.perf_counter()
    try:
        get(device, counter)
    except DriverError as error:
        print(f"  after {(time.perf_counter() - begin) * 1e3:.1f} ms: {error}")
        expect(repr(name) in str(error) and told in str(error), "the error does not say so")
    else:
        raise AssertionError("nothing was reported")
    try:
        device.synchronize()
    except DriverError as error:
        print(f"  and then: {error}")
    device.close()
    print("  closed")


def step_wild() -> None:
    """A store outside every buffer."""
    fault(kernels.WILD, "wild", "outside every buffer")


def step_trap() -> None:
    """A trap."""
    text = kernels.HANG.replace("hang", "trapped").replace("again:\n    bra again;", "trap;\nret;")
    # Drivers call it a failed launch or an illegal instruction.
    fault(text, "trapped", "")


def step_misaligned() -> None:
    """A store at an odd address."""
    text = kernels.WILD.replace("wild", "odd").replace("1099511627776", "1")
    fault(text, "odd", "multiple")


def step_endless() -> None:
    """A kernel that does not end, with a deadline of 2 s."""
    with options.override(gpu_timeout=2):
        fault(kernels.HANG, "hang", "does not end")


STEPS = {name[5:]: step for name, step in list(globals().items()) if name.startswith("step_")}


def main() -> int:
    """Run steps, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("steps", nargs="*", help=", ".join(STEPS))
    parser.add_argument("--here", action="store_true", help="in this process")
    arguments = parser.parse_args()
    failed = []
    for name in arguments.steps or STEPS:
        if not arguments.here:
            me = [sys.executable, __file__, "--here", name]
            try:
                code = subprocess.run(me, timeout=180, check=False).returncode
            except subprocess.TimeoutExpired:
                print(f"FAIL {name}: it did not end in 180 s", flush=True)
                code = 1
            failed += [name] if code else []
            continue
        print(f"{name}: {(STEPS[name].__doc__ or '').strip()}", flush=True)
        try:
            STEPS[name]()
        except Exception:  # noqa: BLE001  the next steps are to be run
            traceback.print_exc()
            failed.append(name)
        print(f"{'FAIL' if name in failed else 'PASS'} {name}", flush=True)
    if not arguments.here:
        print(f"failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
