"""The standard's own tests of single operators, as the package onnx ships them."""

from __future__ import annotations

import fnmatch
import warnings
from functools import lru_cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from baregrad.io.onnx import load_onnx
from baregrad.io.onnx.host import HOST
from baregrad.io.onnx.ops.table import OPERATORS
from baregrad.io.onnx.values import array_of

EXCEPTIONS = Path(__file__).parent.parent / "node_exceptions.txt"
# How far results of narrow floats may be apart: they are rounded at other places.
RELATIVE = {"bfloat16": 1.6e-2, "float16": 2e-3}
EACH = 16


@lru_cache(1)
def cases():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        return sorted(load_model_tests(kind="node"), key=lambda one: one.name)


def exceptions() -> dict[str, str]:
    lines = [line for line in EXCEPTIONS.read_text().splitlines() if not line.startswith("#")]
    return dict(line.split(": ", 1) for line in lines)


def is_excepted(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in exceptions())


def plain(value):
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def check(case) -> None:
    model = load_onnx(case.model)
    for given, wanted in case.data_sets:
        found = model(dict(zip(model.inputs, map(plain, given), strict=False)))
        for one, other in zip(found.values(), map(plain, wanted), strict=False):
            compare(array_of(one), other, case)


def compare(found, wanted, case) -> None:
    if isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            compare(one, other, case)
        return
    if wanted is None:
        assert found is None
        return
    found, wanted = np.asarray(found), np.asarray(wanted)
    if wanted.dtype == object or wanted.dtype.kind in "US":
        assert found.astype(str).tolist() == wanted.astype(str).tolist()
        return
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    if wanted.dtype.kind in "biu":
        assert np.array_equal(found, wanted)
        return
    relative = RELATIVE.get(wanted.dtype.name, 1e-3)
    np.testing.assert_allclose(
        found.astype(np.float64), wanted.astype(np.float64), max(case.rtol, relative),
        max(case.atol, 1e-6),
    )  # fmt: skip


def failures(chosen) -> list[str]:
    found = []
    for case in chosen:
        try:
            check(case)
        except Exception as error:  # noqa: BLE001 - every failure is listed by name
            found.append(f"{case.name}: {type(error).__name__} {str(error)[:200]}")
    return found


@pytest.mark.differential
def test_a_sample_of_the_node_tests_passes() -> None:
    held = [case for case in cases() if not is_excepted(case.name)]
    assert not failures(held[::EACH])


@pytest.mark.slow
@pytest.mark.differential
def test_every_node_test_passes_but_for_those_listed() -> None:
    held = [case for case in cases() if not is_excepted(case.name)]
    assert len(held) >= 0.95 * len(cases())
    assert not failures(held)


def test_exceptions_are_of_tests_that_there_are_and_fail() -> None:
    names = [case.name for case in cases()]
    for pattern, reason in exceptions().items():
        assert fnmatch.filter(names, pattern), pattern
        assert reason
    # Draws may happen to agree; whatever else is listed must fail, or leave the list.
    listed = [case for case in cases() if is_excepted(case.name)
              and "bernoulli" not in case.name and "dropout" not in case.name]  # fmt: skip
    assert len(failures(listed)) == len(listed)


def test_operators_have_functions() -> None:
    assert len(OPERATORS) > 200
    assert all(callable(one) for one in (*OPERATORS.values(), *HOST.values()))
