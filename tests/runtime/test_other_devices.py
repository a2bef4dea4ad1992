"""NULL runs nothing and checks everything; REF lends NumPy's memory; the host is described."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from baregrad.base.errors import CompileError, DeviceError, UnsupportedDevice
from baregrad.base.options import options
from baregrad.program import CPU_OBJECT, ParamSpec, Program
from baregrad.runtime import open_device
from baregrad.runtime.commands import Slot
from baregrad.runtime.cpu.host import detect_host, usable_cores
from baregrad.target.cpu import cpu_row

MADE = Program(
    "k",
    CPU_OBJECT,
    b"code",
    "k",
    (ParamSpec("o", "float32", 64, "w"), ParamSpec("a", "float32", ("mul", ("var", "n"), 4), "r")),
    ("n",),
    ("var", "n"),
)


def test_null_takes_lists_and_runs_nothing() -> None:
    device = open_device("NULL")
    huge = device.allocate(1 << 50)
    kernel = device.load(MADE)
    commands = device.command_list()
    commands.exec(kernel, [huge, Slot(0)])
    commands.copy(Slot(0), huge.view(1 << 40, 10), 10)
    assert device.submit(commands, [huge], {"n": 3}) is None
    timeline = device.submit(commands, [huge], {"n": 3}, timed=True)
    assert timeline is not None
    assert timeline.durations_ns() == (0, 0)
    back = np.ones(64, np.uint8)
    device.copy_in(huge.view(0, 64), back)
    device.copy_out(huge.view(0, 64), back)
    assert not back.any()
    device.synchronize()
    device.close()


def test_null_checks_what_others_check() -> None:
    device = open_device("NULL")
    kernel = device.load(MADE)
    commands = device.command_list()
    with pytest.raises(DeviceError, match="too small"):
        commands.exec(kernel, [device.allocate(63), Slot(0)])
    commands.exec(kernel, [device.allocate(64), Slot(0)])
    with pytest.raises(DeviceError, match="number of slots"):
        device.submit(commands, [], {"n": 3})
    with pytest.raises(DeviceError, match="needs a value of n"):
        device.submit(commands, [device.allocate(1)])
    with pytest.raises(CompileError, match="has no code"):
        device.load(Program("k", CPU_OBJECT, b"", "k", ()))
    with pytest.raises(DeviceError, match="as many bytes"):
        device.copy_in(device.allocate(3), bytes(4))
    with pytest.raises(UnsupportedDevice, match="copy_out"):
        device.allocate(3).as_memoryview()
    with pytest.raises(UnsupportedDevice, match="host memory in place"):
        device.wrap(bytes(3))


def test_ref_lends_memory_and_runs_nothing() -> None:
    device = open_device("REF")
    buffer = device.allocate(100)
    assert bytes(buffer.as_memoryview()) == bytes(100)
    assert device.memory_stats().in_use_nbytes == 100
    del buffer
    assert device.memory_stats().in_use_nbytes == 0
    assert device.memory_stats().peak_nbytes == 100
    with pytest.raises(UnsupportedDevice, match="loads no programs"):
        device.load(MADE)
    with pytest.raises(UnsupportedDevice, match="no command lists"):
        device.submit(device.command_list())


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="no description of the processor")
def test_the_host_is_described() -> None:
    host = detect_host()
    assert host.machine in ("x86_64", "aarch64")
    assert 1 <= host.cores == usable_cores() <= (os.cpu_count() or 1)
    assert host.l1_nbytes <= host.l2_nbytes or host.l2_nbytes == 0
    assert host.line_nbytes in (32, 64, 128, 256)
    assert cpu_row(host.features).vector_bytes == host.vector_nbytes


@pytest.mark.parametrize("nbytes", [100, 1 << 16, 300_001, 300_004])
def test_a_gpu_has_zeros_where_something_else_was(nbytes: int) -> None:
    with options.override(nv_port="virtual"):
        gpu = open_device("NV")
        try:
            used = gpu.allocate(nbytes)
            gpu.copy_in(used, b"\xff" * nbytes)
            del used
            found = bytearray(nbytes)
            gpu.copy_out(gpu.allocate_zeroed(nbytes), found)
            assert not any(found)
        finally:
            gpu.close()
