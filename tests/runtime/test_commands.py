"""Command lists: order, slots, variables, copies, fills, times, and what is refused."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from baregrad.base.errors import CompileError, DeviceError, MissingDependency
from baregrad.program import Program, Resources
from baregrad.runtime.commands import Slot
from baregrad.runtime.cpu.device import CpuDevice
from baregrad.runtime.null import NullDevice
from tests.runtime.kernels import add_multiply, floats, increment, matmul, open_cpu, program, read

RNG = np.random.default_rng(7)


@pytest.fixture(params=["python", "native 1", "native 2", "native 5"])
def device(request: pytest.FixtureRequest) -> Any:
    kind, _, threads = request.param.partition(" ")
    made = open_cpu(int(threads or 1), kind == "native")
    yield made
    made.close()


def test_an_elementwise_kernel(device: CpuDevice) -> None:
    a, b, c = RNG.normal(size=(3, 16 * 40)).astype(np.float32)
    out = device.allocate(a.nbytes)
    device.run(device.load(add_multiply(40, 16)), [out, *(floats(device, x) for x in (a, b, c))])
    np.testing.assert_array_equal(read(out), a * b + c)


@pytest.mark.parametrize("chunks", [1, 2, 3, 4, 5, 7, 64, 1000, 40_001])
def test_each_chunk_is_done_once(device: CpuDevice, chunks: int) -> None:
    kernel = device.load(increment(1, chunks))
    data = floats(device, np.arange(chunks))
    commands = device.command_list()
    # In place: a chunk done twice would be seen.
    for _ in range(3):
        commands.exec(kernel, [data, data])
    for _ in range(5):
        device.submit(commands)
    np.testing.assert_array_equal(read(data), np.arange(chunks, dtype=np.float32) + 15)


def test_a_matmul_kernel(device: CpuDevice) -> None:
    a = RNG.normal(size=(48, 70)).astype(np.float32)
    b = RNG.normal(size=(70, 64)).astype(np.float32)
    out = device.allocate(48 * 64 * 4)
    device.run(device.load(matmul(48, 70, 64)), [out, floats(device, a), floats(device, b)])
    np.testing.assert_allclose(read(out).reshape(48, 64), a @ b, rtol=1e-4, atol=1e-5)


def test_each_command_sees_what_earlier_ones_wrote(device: CpuDevice) -> None:
    kernel = device.load(increment(3, 11))
    first, second = floats(device, np.zeros(33)), device.allocate(33 * 4)
    commands = device.command_list()
    for turn in range(200):
        commands.exec(kernel, [second, first], serial=turn % 3 == 0)
        commands.copy(first, second, 33 * 4)
    assert len(commands) == 400
    device.submit(commands)
    np.testing.assert_array_equal(read(first), np.full(33, 200))


def test_slots_are_patched(device: CpuDevice) -> None:
    kernel = device.load(increment(4, 4))
    commands = device.command_list()
    commands.exec(kernel, [Slot(1), Slot(0)])
    commands.exec(kernel, [Slot(1, 64), Slot(1)])
    assert commands.slot_nbytes == (64, 128)
    assert commands.slot_writes == (False, True)
    for turn in range(4):
        source, out = floats(device, np.full(16, turn)), device.allocate(128)
        device.submit(commands, [source, out])
        np.testing.assert_array_equal(read(out), np.repeat([turn + 1, turn + 2], 16))


def test_slots_are_checked(device: CpuDevice) -> None:
    kernel = device.load(increment(4, 4))
    commands = device.command_list()
    commands.exec(kernel, [Slot(1), Slot(0)])
    good = device.allocate(64)
    for bad, words in (
        ([good], "another number of slots: found 1, wanted 2"),
        ([good, good, good], "another number of slots"),
        ([good, device.allocate(60)], "slot 1 is too small: found 60 bytes, wanted 64"),
        ([good, device.wrap(bytes(64))], "slot 1 would be written and is read-only"),
        ([NullDevice().allocate(64), good], "slot 0 is on another device"),
    ):
        with pytest.raises(DeviceError, match=words):
            device.submit(commands, bad)
    closed = device.allocate(64)
    closed.close()
    with pytest.raises(DeviceError, match="slot 0 is a closed buffer"):
        device.submit(commands, [closed, good])
    device.submit(commands, [device.wrap(bytes(64)), good])


def test_a_read_only_buffer_may_be_read(device: CpuDevice) -> None:
    source = device.wrap(np.arange(16, dtype=np.float32), readonly=True)
    out = device.allocate(64)
    device.run(device.load(increment(4, 4)), [out, source])
    np.testing.assert_array_equal(read(out), np.arange(1, 17))


SYMBOLIC = """
define void @iota(ptr %buffers, ptr %vars, i64 %from, i64 %to, ptr %scratch) nounwind {
entry:
  %o = load ptr, ptr %buffers
  %base = load i64, ptr %vars
  %step_p = getelementptr i64, ptr %vars, i64 1
  %step = load i64, ptr %step_p
  %at = alloca i64
  store i64 %from, ptr %at
  br label %head
head:
  %i = load i64, ptr %at
  %more = icmp slt i64 %i, %to
  br i1 %more, label %body, label %out
body:
  %m = mul i64 %i, %step
  %v = add i64 %m, %base
  %p = getelementptr i64, ptr %o, i64 %i
  store i64 %v, ptr %p
  %n = add i64 %i, 1
  store i64 %n, ptr %at
  br label %head
out:
  ret void
}
"""


def iota(chunks: Any = ("var", "n"), meta: Resources | None = None) -> Program:
    """o[i] = base + i * step, for i below n."""
    size = ("mul", ("var", "n"), 8)
    names = ("base", "step", "n")
    return program("iota", SYMBOLIC, (("o", "w", size),), chunks=chunks, variables=names, meta=meta)


def longs(buffer: Any) -> Any:
    return np.frombuffer(buffer.as_memoryview(), np.int64)


def test_variables_are_patched(device: CpuDevice) -> None:
    kernel = device.load(iota())
    out = [device.allocate(800) for _ in range(3)]
    commands = device.command_list()
    commands.exec(kernel, [out[0]])
    commands.exec(kernel, [out[1]], {"step": 2})
    commands.exec(kernel, [out[2]], {"base": -1, "step": 3, "n": 4})
    assert commands.variables == ("base", "step", "n")
    for base, step, n in ((5, 1, 10), (5, 1, 10), (7, -1, 100), (1 << 62, 1, 1), (0, 0, 0)):
        for buffer in out:
            longs(buffer)[:] = -77
        device.submit(commands, variables={"base": base, "step": step, "n": n, "unused": 1})
        index = np.arange(100)
        wanted = np.where(index < n, base + index * step, -77)
        np.testing.assert_array_equal(longs(out[0]), wanted)
        np.testing.assert_array_equal(longs(out[1]), np.where(index < n, base + index * 2, -77))
        np.testing.assert_array_equal(longs(out[2]), np.where(index < 4, index * 3 - 1, -77))


def test_variables_are_checked(device: CpuDevice) -> None:
    kernel = device.load(iota())
    out = device.allocate(80)
    commands = device.command_list()
    commands.exec(kernel, [out], {"step": 1})
    with pytest.raises(DeviceError, match="needs a value of n: found values of"):
        device.submit(commands, variables={"base": 1})
    with pytest.raises(DeviceError, match=r"too small: found 80 bytes, wanted 88"):
        device.submit(commands, variables={"base": 1, "n": 11})
    with pytest.raises(DeviceError, match="does not fit in 64 bits"):
        device.submit(commands, variables={"base": 1 << 63, "n": 1})
    with pytest.raises(DeviceError, match="no variable m"):
        commands_of(device).exec(kernel, [out], {"m": 1})
    device.submit(commands, variables={"base": 1, "n": 10})
    np.testing.assert_array_equal(longs(out), np.arange(1, 11))
    slotted = commands_of(device)
    slotted.exec(kernel, [Slot(0, 16)], {"step": 1})
    device.submit(slotted, [out], {"base": 0, "n": 8})
    with pytest.raises(DeviceError, match="slot 0 is too small: found 80 bytes, wanted 88"):
        device.submit(slotted, [out], {"base": 0, "n": 9})
    device.submit(slotted, [out], {"base": 0, "n": 8})
    np.testing.assert_array_equal(longs(out), [1, 2, *range(8)])


def commands_of(device: CpuDevice) -> Any:
    return device.command_list()


def test_too_many_chunks_are_refused(device: CpuDevice) -> None:
    kernel = device.load(iota(chunks=1 << 31))
    commands = device.command_list()
    commands.exec(kernel, [Slot(0)], {"base": 1, "step": 1, "n": 1})
    with pytest.raises(DeviceError, match="too many chunks"):
        device.submit(commands, [device.allocate(80)])


@pytest.mark.parametrize("nbytes", [0, 1, 7, 4096, (256 << 10) - 1, 256 << 10, 3_000_001])
def test_copies_and_fills(device: CpuDevice, nbytes: int) -> None:
    source = device.allocate(nbytes + 2)
    target = device.allocate(nbytes + 2)
    data = RNG.integers(0, 256, nbytes + 2, dtype=np.uint8)
    device.copy_in(source, data)
    commands = device.command_list()
    commands.fill(target, nbytes + 2, 0xAB)
    commands.copy(target.view(1, nbytes), Slot(0, 2), nbytes)
    device.submit(commands, [source])
    wanted = np.concatenate([[0xAB], data[2:], [0xAB]])
    np.testing.assert_array_equal(np.frombuffer(target.as_memoryview(), np.uint8), wanted)


@pytest.mark.parametrize("nbytes", [4096, 5000, (1 << 19) + 63, 3 << 20])
@pytest.mark.parametrize("offset", [0, 1, 16, 40])
def test_large_copies_have_every_byte(nbytes: int, offset: int) -> None:
    """Past the caches by whole lines, on a machine whose caches have no room for 4 KiB."""
    device = open_cpu(2)
    device.host = replace(device.host, l2_nbytes=1024, l3_nbytes=8192, cores=1)
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes + 128, np.uint8)
    source, target = device.allocate(data.nbytes), device.allocate(data.nbytes)
    device.copy_in(source, data)
    device.copy_in(target, np.full(data.nbytes, 7, np.uint8))
    commands = device.command_list()
    commands.copy(target.view(offset, nbytes), source.view(3, nbytes), nbytes)
    device.submit(commands)
    found = np.frombuffer(target.contents(), np.uint8)
    np.testing.assert_array_equal(found[offset : offset + nbytes], data[3 : 3 + nbytes])
    assert (found[:offset] == 7).all() and (found[offset + nbytes :] == 7).all()
    np.testing.assert_array_equal(np.frombuffer(source.contents(), np.uint8), data)
    device.close()


def test_times_are_taken_when_asked_for(device: CpuDevice) -> None:
    kernel = device.load(increment(1000, 8))
    data = floats(device, np.zeros(8000))
    commands = device.command_list()
    for index in range(4):
        commands.exec(kernel, [data, data], label=f"number {index}")
    commands.fill(data, 4, 0)
    assert device.submit(commands) is None
    timeline = device.submit(commands, timed=True)
    assert timeline is not None
    assert timeline.labels == ("number 0", "number 1", "number 2", "number 3", "fill")
    assert timeline.begin_ns[1:] == timeline.end_ns[:-1]
    assert all(0 <= duration < 10**9 for duration in timeline.durations_ns())
    assert sum(timeline.durations_ns()) > 0
    assert device.submit(commands) is None


def test_recording_is_checked(device: CpuDevice) -> None:
    kernel = device.load(increment(4, 4))
    good = device.allocate(64)
    closed = device.allocate(64)
    closed.close()
    other = open_cpu()
    for operands, words in (
        ([good], "another number of buffers: found 1, wanted 2"),
        ([good, device.allocate(63)], "the buffer 'a' of increment is too small"),
        ([device.wrap(bytes(64)), good], "'o' of increment would be written and is read-only"),
        ([good, closed], "'a' of increment is a closed buffer"),
        ([good, other.allocate(64)], "another device"),
        ([Slot(-1), good], "negative"),
    ):
        with pytest.raises(DeviceError, match=words):
            device.command_list().exec(kernel, operands)
    commands = device.command_list()
    for call in (
        lambda: commands.copy(good, good, 65),
        lambda: commands.copy(good, Slot(0), -1),
        lambda: commands.fill(good, 1, 256),
        lambda: commands.fill(device.wrap(bytes(2)), 1, 0),
        lambda: commands.exec(other.load(increment(4, 4)), [good, good]),
        lambda: other.submit(commands),
    ):
        with pytest.raises(DeviceError):
            call()
    commands.exec(kernel, [good, good])
    device.submit(commands)
    with pytest.raises(DeviceError, match="submitted command list"):
        commands.exec(kernel, [good, good])


def test_an_empty_list_runs(device: CpuDevice) -> None:
    commands = device.command_list()
    device.submit(commands)
    timeline = device.submit(commands, timed=True)
    assert timeline is not None
    assert timeline.durations_ns() == ()


def test_a_closed_device_refuses_work(device: CpuDevice) -> None:
    device.submit(device.command_list())
    device.close()
    with pytest.raises(DeviceError, match="closed"):
        device.submit(device.command_list())


def test_other_programs_are_refused(device: CpuDevice) -> None:
    with pytest.raises(CompileError, match="not for CPU: found cubin, wanted cpu-object"):
        device.load(Program("k", "cubin", b"x", "k", ()))


def test_threads_submit_at_once(device: CpuDevice) -> None:
    kernel = device.load(increment(2, 8))
    wrong: list[Any] = []

    def work() -> None:
        data = floats(device, np.zeros(16))
        commands = device.command_list()
        for _ in range(10):
            commands.exec(kernel, [data, data])
        for _ in range(100):
            device.submit(commands)
        if not (read(data) == 1000).all():
            wrong.append(read(data).copy())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_without_a_compiler_the_device_says_so_and_works() -> None:
    def absent(text: str) -> bytes:
        raise MissingDependency(package="llvmlite", hint="pip install llvmlite")

    device = CpuDevice(assemble=absent, threads=4)
    data = floats(device, np.zeros(16))
    kernel = device.load(increment(4, 4))
    with pytest.warns(RuntimeWarning, match="pip install llvmlite.*one thread") as caught:
        device.run(kernel, [data, data])
        device.run(kernel, [data, data])
    assert len(caught) == 1
    assert (read(data) == 2).all()
    assert (device.native, device.threads) == (False, 1)


SCRATCHED = """
define void @through(ptr %buffers, ptr %vars, i64 %from, i64 %to, ptr %scratch) nounwind {
entry:
  %o = load ptr, ptr %buffers
  %n = load i64, ptr %vars
  %at = alloca i64
  %j_at = alloca i64
  store i64 %from, ptr %at
  br label %head
head:
  %i = load i64, ptr %at
  %more = icmp slt i64 %i, %to
  br i1 %more, label %body, label %out
body:
  store i64 0, ptr %j_at
  br label %fill
fill:
  %j = load i64, ptr %j_at
  %jmore = icmp slt i64 %j, %n
  br i1 %jmore, label %write, label %take
write:
  %sp = getelementptr i64, ptr %scratch, i64 %j
  %v = add i64 %i, %j
  store i64 %v, ptr %sp
  %jn = add i64 %j, 1
  store i64 %jn, ptr %j_at
  br label %fill
take:
  %last = sub i64 %n, 1
  %lp = getelementptr i64, ptr %scratch, i64 %last
  %lv = load i64, ptr %lp
  %p = getelementptr i64, ptr %o, i64 %i
  store i64 %lv, ptr %p
  %in = add i64 %i, 1
  store i64 %in, ptr %at
  br label %head
out:
  ret void
}
"""


def test_each_thread_has_scratch_of_its_own(device: CpuDevice) -> None:
    meta = Resources(scratch_nbytes=("mul", ("var", "n"), 8))
    made = program(
        "through", SCRATCHED, (("o", "w", 800),), chunks=100, variables=("n",), meta=meta
    )
    out = device.allocate(800)
    commands = device.command_list()
    commands.exec(device.load(made), [out])
    for n in (10, 5000, 20):
        for _ in range(20):
            device.submit(commands, variables={"n": n})
            np.testing.assert_array_equal(longs(out), np.arange(100) + n - 1)


def test_results_have_the_same_bits_for_any_number_of_threads() -> None:
    a = RNG.normal(size=(96, 50)).astype(np.float32)
    b = RNG.normal(size=(50, 32)).astype(np.float32)
    results = set()
    for threads in (1, 2, 3, 8):
        device = open_cpu(threads)
        out = device.allocate(96 * 32 * 4)
        device.run(device.load(matmul(96, 50, 32)), [out, floats(device, a), floats(device, b)])
        results.add(bytes(out.as_memoryview()))
        device.close()
    assert len(results) == 1
