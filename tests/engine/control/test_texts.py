"""Kernels of text as work among other work: compiled once, launched over places."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from baregrad.base.errors import DeviceError, DTypeError
from baregrad.dtypes import DType, dtypes
from baregrad.engine.backends import CompiledBackend
from baregrad.engine.control.texts import CallWork, call_work, loaded
from baregrad.engine.control.works import AtOnce, Evaluated
from baregrad.engine.session import current_session
from baregrad.ir.core.attrs import Param, TextKernel
from baregrad.ir.core.control import call_form, result
from baregrad.ir.core.node import Node, const, make_node
from baregrad.ir.core.op import Ops

needs_cc = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="C wants an installed compiler"
)
TEXT = """
void both(float *twice, float *minus, const float *x) {
  for (int64_t i = 0; i < n; i++) { twice[i] = 2 * x[i]; minus[i] = -x[i]; }
}
"""


def param(extent: int, dtype: DType = dtypes.float32) -> Node:
    return Node(Ops.PARAM, dtype, (), Param(0, (extent,)))


def both(x: Node, language: str = "c") -> TextKernel:
    two = make_node(Ops.EXPAND, x.dtype, (
        make_node(Ops.RESHAPE, x.dtype, (const(2, x.dtype),), (1,)),), x.shape)
    body = Node(Ops.SINK, dtypes.token, (
        make_node(Ops.MUL, x.dtype, (x, two)), make_node(Ops.NEG, x.dtype, (x,))))
    (extent,) = x.shape
    return call_form(body, 1, language, "both", TEXT, ("twice", "minus", "x"), (("n", extent),),
                     (1, 1, 1), (128, 1, 1), 0)


def cpu() -> CompiledBackend:
    backend = current_session().backend("CPU")
    assert isinstance(backend, CompiledBackend)
    return backend


@needs_cc
def test_results_that_nobody_wants_lie_in_scratch_memory() -> None:
    backend, x = cpu(), param(5)
    work = call_work(backend, [result(both(x), (x,), 1)])
    assert isinstance(work, CallWork) and work.is_fixed and work.scratch({}) == 64
    assert CallWork(backend, [result(both(x), (x,), part) for part in (0, 1)]).scratch({}) == 0
    given, made, scratch = (backend.device.allocate(n) for n in (20, 20, 64))
    backend.device.copy_in(given, np.arange(5, dtype=np.float32))
    assert work.play(AtOnce(backend, {}, None), [given], [made], scratch) == [made]
    found = np.zeros(5, np.float32)
    backend.device.copy_out(made, found)
    np.testing.assert_array_equal(found, -np.arange(5))


@needs_cc
def test_a_text_is_compiled_once_for_its_sizes() -> None:
    backend, x = cpu(), param(5)
    kernel = loaded(backend, both(x), (x,))
    assert loaded(backend, both(x), (x,)) is kernel
    assert loaded(backend, both(param(6)), (param(6),)) is not kernel


def test_what_runs_no_text_has_the_reference() -> None:
    x = param(5)
    backend = current_session().backend("REF")
    assert isinstance(call_work(backend, [result(both(x), (x,), 0)]), Evaluated)
    with pytest.raises(DeviceError, match="written in c"):
        loaded(backend, both(x), (x,))
    with pytest.raises(DeviceError, match="written in ptx"):
        loaded(cpu(), both(x, "ptx"), (x,))
    narrow = param(5, dtypes.bfloat16)
    with pytest.raises(DTypeError, match="no type for twice"):
        loaded(cpu(), both(narrow), (narrow,))
