"""Statements compared with NumPy, and arguments of foreign types with plain ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from baregrad.base.options import options
from baregrad.dtypes import DType, dtypes
from baregrad.tensor import Tensor
from baregrad.testing.fuzz import fuzz
from baregrad.testing.fuzz_compare import EAGER, REFERENCE, Difference, run
from baregrad.testing.fuzz_grow import grow
from baregrad.testing.fuzz_oracle import KIND, check_statements
from baregrad.testing.fuzz_program import FuzzProgram, Statement, given
from baregrad.testing.fuzz_shrink import script
from baregrad.testing.fuzz_values import Data, Known
from baregrad.testing.twin.array import Uncovered
from baregrad.testing.twin.casts import converted, rounded
from baregrad.testing.twin.tensor_twin import NumPyTwin, TwinMaker

pytestmark = pytest.mark.differential


def _program(*lines: str, dtype: DType = dtypes.float32, steep: bool = False) -> FuzzProgram:
    statements = tuple(Statement.parse(line) for line in lines)
    names = tuple(name for statement in statements for name in statement.defines)
    known = {name: Known(1000.0, 1e-3) for name in ("a0", *names)}
    data = {"a0": Data((4, 3), dtype, steep=steep)}
    return FuzzProgram(0, data, {}, statements, names[-1:], known)


@pytest.mark.parametrize("kind", ["mixed", "steep", "state"])
def test_statements_are_what_numpy_makes_of_them(kind: str) -> None:
    for seed in range(100):
        difference = check_statements(grow(seed, kind))
        assert difference is None, (seed, str(difference))


def test_one_wrong_formula_for_all_devices_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A running sum of exponentials without a maximum overflows, wherever it is computed."""

    def logcumsumexp(x: Tensor, dim: int) -> Tensor:
        return x.exp().cumsum(dim).log()

    program = _program("v1 = a0.logcumsumexp(0)", steep=True)
    assert check_statements(program) is None
    monkeypatch.setattr(Tensor, "logcumsumexp", logcumsumexp)
    shown = check_statements(program)
    assert shown is not None
    assert shown.kind == KIND
    assert "v1 = a0.logcumsumexp(0)" in shown.detail
    compile(script(program, shown), "shown", "exec")


def test_a_write_is_compared_and_seen_by_others() -> None:
    program = _program("v1 = a0[1:]", "v1[0] = 7", "v2 = a0 + 0")
    assert check_statements(program) is None
    raised = check_statements(_program("v1 = a0.no_such_method()"))
    assert raised is not None
    assert raised.kind == f"{KIND} raises"


def test_what_numpy_lacks_passes() -> None:
    with pytest.raises(Uncovered):
        NumPyTwin(np.ones(3), dtypes.float32).no_such_method()
    with pytest.raises(Uncovered):
        TwinMaker().no_such_method()
    assert check_statements(_program("v1 = Tensor.rand(3)", "v2 = v1 * 2")) is None


@pytest.mark.parametrize("name", ["int8", "uint8", "int32", "int64", "uint64"])
def test_casts_of_floats_saturate(name: str) -> None:
    dtype = getattr(dtypes, name)
    values = np.array([math.nan, math.inf, -math.inf, 1e30, -1e30, 2.9, -2.9, 127.0])
    wanted = [0, dtype.max, dtype.min, dtype.max, dtype.min, 2, max(-2, int(dtype.min)), 127]
    assert converted(values, dtypes.float32, dtype).tolist() == wanted


def test_bfloat16_is_rounded_to_even() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, math.nan, math.inf])
    found = rounded(values, dtypes.bfloat16)
    np.testing.assert_array_equal(found, [1.0, 1.0, 1.015625, math.nan, math.inf])


def test_a_scalar_is_rounded_to_the_dtype_in_which_it_meets_an_array() -> None:
    scalar, array = np.array(-0.450439453125), np.array([0.25, -3.5])
    found = NumPyTwin(array, dtypes.bfloat16) - NumPyTwin(scalar, dtypes.float16)
    wanted = torch.tensor(array).bfloat16() - torch.tensor(scalar).half()
    assert wanted.dtype is torch.bfloat16
    np.testing.assert_array_equal(rounded(found.array, found.dtype), wanted.double().numpy())


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_a_number_of_another_dtype_is_a_factor_as_in_pytorch(name: str) -> None:
    """It is rounded to float32 alone where 16-bit floats are the first operand."""
    wide = np.random.default_rng(0).standard_normal(500)
    array = rounded(wide, getattr(dtypes, name))
    twin, number = NumPyTwin(array, getattr(dtypes, name)), NumPyTwin(wide[0], dtypes.float64)
    theirs = torch.tensor(array).to(getattr(torch, name))
    other = torch.tensor(wide[0])
    for found, wanted in (
        (twin * number, theirs * other), (number * twin, other * theirs),
        (twin / number, theirs / other), (twin * 0.1, theirs * 0.1),
    ):
        np.testing.assert_array_equal(rounded(found.array, found.dtype), wanted.double().numpy())


def test_a_write_rounds_to_where_its_operands_meet() -> None:
    scalar, array = np.array(5.0), np.array([0.55322265625])
    found = NumPyTwin(scalar.copy(), dtypes.float32).sub_(NumPyTwin(array, dtypes.float16))
    wanted = torch.tensor(scalar).float() - torch.tensor(array).half()
    assert wanted.dtype is torch.float16
    np.testing.assert_array_equal(found.array, wanted.double().numpy()[0])


def test_foreign_arguments_are_compared_with_plain_ones() -> None:
    program = _program(
        "v1 = a0.sum(as_int64(0))", "v2 = a0[as_array((0, -1))]", "v3 = a0.permute(as_list((1, 0)))"
    )
    assert program.is_foreign
    assert not _program("v1 = a0.sum(0)").is_foreign
    found, wanted = run(program, EAGER), run(program, REFERENCE)
    np.testing.assert_array_equal(found[0]["v3"], wanted[0]["v3"])
    plain, other = given(plain=True), given()
    assert type(plain["as_int64"](3)) is int
    assert type(other["as_int64"](3)) is np.int64
    assert isinstance(other["as_tensor"]((1, 2)), Tensor)
    text = script(program, Difference("eager against reference", 0, "v3", "so"))
    assert "given(plain)" in text


def test_draws_are_the_same_on_every_device() -> None:
    program = _program("v1 = Tensor.rand(3)", "v2 = a0.dropout(0.5)")
    assert program.draws
    for found, wanted in zip(run(program, EAGER), run(program, REFERENCE), strict=True):
        np.testing.assert_array_equal(found["v2"], wanted["v2"])
    assert "manual_seed" in script(program, Difference("eager", 0, "v2", "so"))


@pytest.mark.parametrize(
    "words",
    [(".cumsum(", ".logcumsumexp(", ".logsumexp(", ".softmax(", ".cumprod(", ".cummax(")],
)
def test_steep_programs_scan(words: tuple[str, ...]) -> None:
    programs = [grow(seed, "steep") for seed in range(200)]
    texts = "\n".join(program.source() for program in programs)
    for word in words:
        assert word in texts
    drawn = [program.data(0).values() for program in programs]
    assert any(np.isinf(array).any() for arrays in drawn for array in arrays)
    assert any(np.isnan(array).any() for arrays in drawn for array in arrays)


def test_mixed_programs_name_axes_in_every_way() -> None:
    texts = "\n".join(grow(seed, "mixed").source() for seed in range(600))
    for word in ("flip(())", "sum(())", "sum([])", "::-1", ".pad((-", "as_array(", "as_int64(",
                 "as_tensor(", "Tensor.rand(", ".dropout(", "randint(", "uniform_"):  # fmt: skip
        assert word in texts, word


# Of seeds nearby, the one whose few programs draw the most operations.
@pytest.mark.parametrize(
    ("count", "seed"), [(12, 50_040), pytest.param(30, 0, marks=pytest.mark.slow)]
)
def test_steep_programs_agree(count: int, seed: int) -> None:
    with options.override(verify=False):
        found = fuzz(count, seed=seed, kind="steep")
    assert not found, "\n\n".join(finding.script for finding in found[:3])
