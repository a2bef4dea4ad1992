"""The REF device's work: at every level a program has the values that NumPy gives."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import DType, dtypes
from baregrad.engine.backends import host_target
from baregrad.engine.canonical import Canonical, bind, canonicalise
from baregrad.engine.reference import Array, evaluate_plan, evaluate_program, storage_of
from baregrad.graph import canonicalise as simplify
from baregrad.ir.core.index import variable
from baregrad.schedule import Plan, make_plan
from baregrad.tensor import Tensor

VALUES = np.arange(24, dtype=np.float32).reshape(4, 6) / 8 - 1
TARGET = host_target()


def program_of(*results: Tensor) -> tuple[Canonical, list[Array]]:
    program = canonicalise([one.node for one in results], lambda node: None)
    raw = [np.frombuffer(ref.handle.as_memoryview(), np.uint8) for ref in program.inputs]
    return program, raw


def plan_of(program: Canonical) -> Plan:
    return make_plan(simplify(program.sink), donate={}, target=TARGET)


def held(values: Array) -> Tensor:
    return Tensor(values, device="REF").realize()


def test_a_program_has_the_values_of_numpy() -> None:
    x = held(VALUES)
    program, raw = program_of((x * x).sum(1), x.T, (x > 0).sum(0))
    total, turned, count = evaluate_program(program, raw)
    np.testing.assert_allclose(total, (VALUES * VALUES).sum(1), rtol=1e-6)
    np.testing.assert_array_equal(turned, VALUES.T)
    np.testing.assert_array_equal(count.reshape(-1), (VALUES > 0).sum(0))


@pytest.mark.parametrize("level", ["kernel", "loop", "linear"])
def test_a_plan_has_the_values_of_numpy_at_each_level(level: str) -> None:
    """Two kernels, the second of which reads what the first one left in a temporary."""
    x = held(VALUES)
    program, raw = program_of((x - x.max(1, keepdim=True).values).exp().sum(1), x + 1)
    plan = plan_of(program)
    rows, more = evaluate_plan(plan, program, raw, level, TARGET)
    wanted = np.exp(VALUES - VALUES.max(1, keepdims=True)).sum(1)
    np.testing.assert_allclose(rows.view(np.float32).reshape(-1), wanted, rtol=1e-5)
    np.testing.assert_array_equal(more.view(np.float32).reshape(4, 6), VALUES + 1)


@pytest.mark.parametrize("level", ["tensor", "kernel", "loop", "linear"])
def test_symbolic_sizes_take_part_of_an_array(level: str) -> None:
    part = held(VALUES)[: bind(variable("rows", 1, 4), 3)]
    program, raw = program_of(part.sum(0))
    if level == "tensor":
        (found,) = evaluate_program(program, raw)
    else:
        (found,) = evaluate_plan(plan_of(program), program, raw, level, TARGET)
    np.testing.assert_allclose(found.view(np.float32).reshape(-1), VALUES[:3].sum(0), rtol=1e-6)


@pytest.mark.parametrize(("dtype", "storage"), [
    (dtypes.float32, "f4"), (dtypes.bfloat16, "u2"), (dtypes.float8_e5m2, "u1"),
    (dtypes.int64, "i8"), (dtypes.bool, "u1"),
])  # fmt: skip
def test_codes_are_stored_as_wide_as_they_are(dtype: DType, storage: str) -> None:
    assert storage_of(dtype).itemsize == np.dtype(storage).itemsize


def test_what_is_never_stored_has_no_storage() -> None:
    with pytest.raises(CompilerBug, match="no storage"):
        storage_of(dtypes.token)
