"""The thread pool: cost, sleep and waking, leaks, forks, interrupts, exits, float settings."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from baregrad.apps.instructions import count
from baregrad.base.options import options
from baregrad.program import Resources
from baregrad.runtime.buffers import Buffer
from baregrad.runtime.commands import CommandList, Slot
from baregrad.runtime.cpu.device import CpuDevice
from baregrad.runtime.cpu.host import usable_cores
from tests.runtime.kernels import add_multiply, floats, increment, open_cpu, program, read

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")
ROOT = Path(__file__).resolve().parents[2]
# Where a pool counts its workers that sleep: see `executor.py`.
SLEEPERS_AT = 132


def chain(
    device: CpuDevice, count: int, chunk: int = 8, chunks: int = 16
) -> tuple[CommandList, Buffer]:
    """A list of `count` kernels, each of which needs the one before, and where the last writes."""
    kernel = device.load(increment(chunk, chunks))
    pair = [floats(device, np.zeros(chunk * chunks)) for _ in range(2)]
    commands = device.command_list()
    for index in range(count):
        commands.exec(kernel, [pair[(index + 1) % 2], pair[index % 2]])
    return commands, pair[count % 2]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_thousand_dependent_kernels_are_right_and_cost_no_python(threads: int) -> None:
    device = open_cpu(threads)
    commands, last = chain(device, 1000)
    few, _ = chain(device, 10)
    for turn in range(1, 40):
        device.submit(commands)
        assert (read(last) == turn * 1000).all()
    device.submit(few)
    assert count(lambda: device.submit(commands)) == count(lambda: device.submit(few))
    device.close()


def wait_until_asleep(device: CpuDevice) -> None:
    """Wait until every worker has announced its sleep; it then waits in the system."""
    assert device._pool is not None
    for _ in range(60_000):
        if struct.unpack_from("<i", device._pool._shared, SLEEPERS_AT)[0] == device.threads - 1:
            return
        time.sleep(0.005)
    raise AssertionError("workers that have nothing to do do not sleep")


@linux
def test_idle_workers_sleep_and_stay_asleep() -> None:
    device = open_cpu(4)
    for _ in range(3):
        device.submit(chain(device, 10)[0])
        wait_until_asleep(device)
    assert device._pool is not None
    for _ in range(10):
        time.sleep(0.005)
        asleep = struct.unpack_from("<i", device._pool._shared, SLEEPERS_AT)[0]
        assert asleep == device.threads - 1
    device.close()


def test_sleeping_workers_wake_for_work() -> None:
    device = open_cpu(3)
    commands, last = chain(device, 20, chunk=20_000, chunks=12)
    for turn in range(1, 30):
        device.submit(commands)
        assert (read(last) == turn * 20).all()
        time.sleep((0, 0.0001, 0.003)[turn % 3])
    device.close()




@linux
@pytest.mark.skipif(usable_cores() < 2, reason="needs two processors")
def test_workers_keep_off_the_processor_of_the_thread_that_submits() -> None:
    """Wherever that moves to; what others set stays. A process of its own pins itself."""
    code = """
import os
from tests.runtime.kernels import open_cpu
from tests.runtime.test_pool import chain, wait_until_asleep

def workers():
    return {int(task) for task in os.listdir("/proc/self/task")} - before

def masks(cpu, main):
    os.sched_setaffinity(0, main)
    wait_until_asleep(device)  # the next list wakes them
    device.submit(commands)
    return [os.sched_getaffinity(task) for task in mine]

usable = sorted(os.sched_getaffinity(0))
first, second = usable[:2]
before = {int(task) for task in os.listdir("/proc/self/task")}
threads = min(3, len(usable))
device = open_cpu(threads)
commands, _ = chain(device, 1)
device.submit(commands)
mine = workers()
assert len(mine) == threads - 1
for cpu in (first, second, second, first):
    assert masks(cpu, {cpu}) == [set(usable) - {cpu}] * len(mine), (cpu, masks(cpu, {cpu}))
# Somebody else's choice is not widened, and the only processor that is left is not taken away.
for task in mine:
    os.sched_setaffinity(task, {first})
assert masks(first, {first}) == [{first}] * len(mine)
assert masks(second, {second}) == [{first}] * len(mine)
assert masks(first, {first}) == [{first}] * len(mine)
crowded = open_cpu(len(usable) + 1)
commands, _ = chain(crowded, 1)
before = {int(task) for task in os.listdir("/proc/self/task")}
crowded.submit(commands)
wait_until_asleep(crowded)
crowded.submit(commands)
assert {frozenset(os.sched_getaffinity(task)) for task in workers()} == {frozenset({first})}
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr


@linux
def test_the_work_is_shared() -> None:
    """Each chunk writes the number of the thread that did it."""
    text = """
declare i64 @syscall(i64, ...)
define void @who(ptr %buffers, ptr %vars, i64 %from, i64 %to, ptr %scratch) nounwind {
entry:
  %o = load ptr, ptr %buffers
  %at = alloca i64
  %spin = alloca i64
  store i64 %from, ptr %at
  br label %head
head:
  %i = load i64, ptr %at
  %more = icmp slt i64 %i, %to
  br i1 %more, label %body, label %out
body:
  store volatile i64 0, ptr %spin
  br label %wait
wait:
  %s = load volatile i64, ptr %spin
  %s1 = add i64 %s, 1
  store volatile i64 %s1, ptr %spin
  %again = icmp slt i64 %s1, 400000
  br i1 %again, label %wait, label %write
write:
  %t = call i64 (i64, ...) @syscall(i64 GETTID)
  %p = getelementptr i64, ptr %o, i64 %i
  store i64 %t, ptr %p
  %n = add i64 %i, 1
  store i64 %n, ptr %at
  br label %head
out:
  ret void
}
"""
    device = open_cpu(2)
    text = text.replace("GETTID", "186" if device.host.machine == "x86_64" else "178")
    kernel = device.load(program("who", text, (("o", "w", 8 * 64),), chunks=64))
    out = device.allocate(8 * 64)
    seen: set[int] = set()
    for _ in range(2000):
        device.run(kernel, [out])
        seen |= set(np.frombuffer(out.as_memoryview(), np.int64).tolist())
        if len(seen) == 2:
            break
    assert len(seen) == 2
    commands = device.command_list()
    commands.exec(kernel, [out], serial=True)
    device.submit(commands)
    alone = set(np.frombuffer(out.as_memoryview(), np.int64).tolist())
    assert alone == {threading.get_native_id()}
    device.close()


def test_small_kernels_stay_on_the_caller() -> None:
    small = Resources(flops=100, bytes_read=400, bytes_written=400)
    device = open_cpu(2)
    kernel = device.load(add_multiply(8, ("var", "n"), small))
    large = device.load(add_multiply(8, ("var", "n"), Resources(flops=("mul", ("var", "n"), 9999))))
    commands = device.command_list()
    for each in (kernel, large):
        commands.exec(each, [Slot(0), Slot(1), Slot(1), Slot(1)])
    buffers = [device.allocate(32 * 10) for _ in range(2)]
    serial = []
    for n in (1, 2):
        device.submit(commands, buffers, {"n": n})
        serial.append(commands.bound.rows()[:, 4].tolist())  # type: ignore[union-attr]
    assert serial == [[1, 1], [1, 0]]
    device.close()


@linux
def test_memory_stays_flat_over_many_submits() -> None:
    device = open_cpu(2)
    kernel = device.load(increment(4, 2))
    commands = device.command_list()
    for _ in range(3):
        commands.exec(kernel, [Slot(0), Slot(0)])
    buffer = floats(device, np.zeros(8))

    def go(count: int) -> int:
        for _ in range(count):
            device.submit(commands, [buffer])
        gc.collect()
        return resident_kib()

    before = go(5_000)
    after = go(95_000)
    assert read(buffer)[0] == 300_000
    assert after - before < 512
    device.close()


@linux
def test_memory_stays_flat_over_lists_kernels_and_devices() -> None:
    def go() -> int:
        for _ in range(30):
            device = open_cpu(2)
            for _ in range(10):
                device.submit(chain(device, 5)[0])
            device.close()
        gc.collect()
        return resident_kib()

    before = go()
    after = max(go() for _ in range(3))
    assert after - before < 4096
    assert threads_of_the_process() < 50


@linux
def test_a_forgotten_device_stops_its_threads() -> None:
    before = threads_of_the_process()
    device = open_cpu(6)
    device.submit(chain(device, 3)[0])
    assert threads_of_the_process() == before + 5
    del device
    gc.collect()
    assert threads_of_the_process() == before


@linux
def test_workers_keep_their_code_whatever_is_finalised_first() -> None:
    """In a cycle of garbage the code may be finalised before the device that stops its workers."""
    device = open_cpu(3)
    device.submit(chain(device, 3)[0])
    code = weakref.ref(device._executor)
    pool = device._pool
    device._pool = device._executor = pool._code = None
    gc.collect()
    assert code() is not None
    device._pool, device._executor, pool._code = pool, code(), code()
    device.close()
    del pool, device
    gc.collect()
    assert code() is None


def resident_kib() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 1024


def threads_of_the_process() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


@linux
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_a_pool_of_its_own() -> None:
    device = open_cpu(3)
    commands, last = chain(device, 100)
    device.submit(commands)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            device.submit(commands)
            fresh, other = chain(device, 7)
            device.submit(fresh)
            good = (read(last) == 200).all() and (read(other) == 7).all()
            device.close()
            status = 0 if good and threads_of_the_process() == 1 else 2
        finally:
            os._exit(status)
    assert wait_for(child) == 0
    device.submit(commands)
    assert (read(last) == 200).all()
    device.close()


def wait_for(child: int) -> int:
    for _ in range(6000):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -1


START = """
import sys
sys.path.insert(0, {root!r})
import numpy as np, os, threading, time
from tests.runtime.kernels import open_cpu, increment, floats, read
device = open_cpu(4)
kernel = device.load(increment(1000, 16))
data = floats(device, np.zeros(16000))
commands = device.command_list()
for _ in range(2000):
    commands.exec(kernel, [data, data])
device.submit(commands)
"""

ENDINGS: dict[str, tuple[str, int]] = {
    "falls off the end": ("", 0),
    "exits": ("sys.exit(3)", 3),
    "raises": ("raise RuntimeError('on purpose')", 1),
    "keeps it in a cycle": ("cycle = [device, commands]; cycle.append(cycle)", 0),
    "keeps it until modules are gone": (
        "sys.modules['ctypes'].kept = [kernel, commands]; del kernel, commands, device", 0
    ),
    "closes it": ("device.close()", 0),
    "exits while a thread submits": (
        "def go():\n    while True:\n        device.submit(commands)\n"
        "threading.Thread(target=go, daemon=True).start(); time.sleep(0.1)",
        0,
    ),
    "submits at exit": ("import atexit; atexit.register(lambda: device.memory_stats())", 0),
    "is killed by itself": ("os.kill(os.getpid(), 9)", -9),
}


def start(ending: str) -> subprocess.Popen[str]:
    text = START.format(root=str(ROOT)) + ending + "\n"
    return subprocess.Popen(
        [sys.executable, "-c", text],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


@linux
@pytest.mark.parametrize("how", ENDINGS)
def test_a_program_ends_cleanly(how: str) -> None:
    ending, status = ENDINGS[how]
    run = start(ending)
    _, errors = run.communicate(timeout=600)
    assert run.returncode == status, errors
    # A thread that is still submitting may be told that the device is closed.
    if how not in ("raises", "exits while a thread submits"):
        assert errors == ""


@linux
def test_an_interrupt_reaches_the_program_and_the_device_goes_on() -> None:
    run = start(
        # Whoever started the tests may have had interrupts ignored.
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "try:\n"
        "    print('ready', flush=True)\n"
        "    while True:\n"
        "        device.submit(commands)\n"
        "except KeyboardInterrupt:\n"
        "    before = read(data)[0]\n"
        "    device.submit(commands)\n"
        "    assert read(data)[0] == before + 2000 and (read(data) == read(data)[0]).all()\n"
        "    print('fine')\n"
    )
    assert run.stdout is not None
    assert run.stdout.readline() == "ready\n"
    time.sleep(0.2)
    run.send_signal(signal.SIGINT)
    try:
        output, errors = run.communicate(timeout=600)
    finally:
        run.kill()
    assert (output, errors, run.returncode) == ("fine\n", "", 0)


def float_control() -> tuple[Callable[[], int], Callable[[int], None]]:
    text = """
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define i32 @get() nounwind {
  %p = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %p)
  %v = load i32, ptr %p
  ret i32 %v
}
define void @set(i32 %v) nounwind {
  %p = alloca i32
  store i32 %v, ptr %p
  call void @llvm.x86.sse.ldmxcsr(ptr %p)
  ret void
}
"""
    from baregrad.runtime.cpu.elf import X86_64
    from baregrad.runtime.cpu.loader import Loader
    from tests.runtime.kernels import assembled

    loaded = Loader(X86_64).load(assembled(text))
    getter = ctypes.CFUNCTYPE(ctypes.c_int32)(loaded.address("get"))
    setter = ctypes.CFUNCTYPE(None, ctypes.c_int32)(loaded.address("set"))

    def get() -> int:
        assert loaded
        return int(getter())

    return get, setter


def test_another_library_s_float_settings_change_no_result() -> None:
    """With subnormals flushed in the caller's thread alone, results would depend on the thread."""
    device = open_cpu(2)
    if device.host.machine != "x86_64":
        pytest.skip("reads the control register of x86-64")
    get, set_control = float_control()
    tiny = np.full(64, 1e-40, np.float32)
    one = floats(device, np.ones(64))
    a, zero, out = floats(device, tiny), floats(device, np.zeros(64)), device.allocate(256)
    kernel = device.load(add_multiply(8, 8))
    usual = get()
    flushing = usual | 0x8040
    set_control(flushing)
    try:
        device.run(kernel, [out, a, one, zero])
        kept = get()
        results = bytes(out.as_memoryview())
    finally:
        set_control(usual)
    assert kept & 0x8040 == 0x8040
    assert results == tiny.tobytes()
    device.close()


def test_threads_are_at_most_the_cores() -> None:
    from tests.runtime.kernels import assembled

    cores = usable_cores()
    for asked, wanted in ((0, cores), (1, 1), (cores, cores), (1000, cores)):
        with options.override(threads=asked):
            device = CpuDevice(assemble=assembled)
        assert device.threads == wanted
        device.close()
    assert CpuDevice().threads == 1
