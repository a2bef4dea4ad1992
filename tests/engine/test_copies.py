"""Copies within a GPU: large ones are kernels with wide accesses, wherever they are asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest

from baregrad import render
from baregrad.base.options import options
from baregrad.engine.compiler import Compiler
from baregrad.engine.copies import LEAST_NBYTES, copying
from baregrad.engine.session import Session, use_session
from baregrad.ir.evaluate.kernel_level import evaluate_kernel
from baregrad.ir.verify.verify import verify
from baregrad.runtime.commands import Copy, Exec, Slot
from baregrad.runtime.interface import Device
from baregrad.target import gpu_row
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit

HOPPER = gpu_row("sm_90a")
RNG = np.random.default_rng(3)


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    session = Session()
    with use_session(session), options.override(device="NV", nv_port="virtual"):
        yield session.backend("NV").device
    session.close()


@pytest.mark.parametrize("nbytes", [4, 7, 1 << 16, 100_004])
def test_the_kernel_copies(nbytes: int) -> None:
    kernel = copying(nbytes)
    verify(kernel, "kernel")
    dtype = np.uint8 if nbytes % 4 else np.uint32
    source = RNG.integers(0, 1 << 8, nbytes // np.dtype(dtype).itemsize).astype(dtype)
    target = np.zeros_like(source)
    evaluate_kernel(kernel, [target, source])
    np.testing.assert_array_equal(target, source)


@pytest.mark.parametrize("nbytes", [1 << 24, 1 << 30])
def test_accesses_are_of_16_bytes(nbytes: int) -> None:
    *_, last = Compiler(HOPPER, render.get("ptx"), None, None).stages(copying(nbytes))
    kinds = set(re.findall(r"(?:ld|st)\.global\S*", str(last.result)))
    assert kinds == {"ld.global.v4.b32", "st.global.v4.b32"}


@pytest.mark.parametrize("nbytes", [64, LEAST_NBYTES - 4, LEAST_NBYTES, 70_001])
def test_what_records_a_copy_need_not_choose(device: Device, nbytes: int) -> None:
    """Large ones are launches; what is no whole array is left to the copy engine."""
    buffer = device.allocate(nbytes)
    wanted = Exec if nbytes >= LEAST_NBYTES else Copy
    for target, source, kind in (
        (Slot(0), buffer, wanted), (buffer, Slot(0), wanted), (Slot(0, 64), Slot(1), wanted),
        (Slot(0, 4), buffer, Copy), (Slot(0), Slot(1, 8), Copy),
    ):
        commands = device.command_list()
        commands.copy(target, source, nbytes)
        (command,) = commands.commands
        assert isinstance(command, kind)
        assert command.label == "copy"


@pytest.mark.parametrize("nbytes", [0, 20, 1 << 16, 65_537, 70_004])
@pytest.mark.parametrize("offset", [0, 3])
def test_a_duplicate_has_the_same_bytes(device: Device, nbytes: int, offset: int) -> None:
    data = RNG.integers(0, 1 << 8, nbytes + offset).astype(np.uint8)
    buffer = device.allocate(nbytes + offset)
    if data.size:
        device.copy_in(buffer, data)
    twin = device.duplicate(buffer.view(offset, nbytes))
    np.testing.assert_array_equal(twin.contents(), data[offset:])


@pytest.mark.usefixtures("device")
def test_a_replayed_clone_of_an_argument() -> None:
    clone = jit(lambda x: x.clone())
    for _ in range(4):
        values = RNG.standard_normal(20_000).astype(np.float32)
        np.testing.assert_array_equal(clone(Tensor(values)).numpy(), values)
