"""Functions as arithmetic: which a machine gets, the judge of their errors, published vectors."""

from __future__ import annotations

from functools import partial

import mpmath
import numpy as np
import pytest

from baregrad.dtypes import dtypes
from baregrad.ir.core.node import alu
from baregrad.ir.core.op import Op, Ops
from baregrad.kernel.codegen import to_linear
from baregrad.kernel.legalise.transcendental import FUNCTIONS
from baregrad.target.cpu import cpu_row_named
from tests.kernel.legalise.accuracy import (
    ERRORS,
    F32,
    F64,
    NUMPY,
    SPANS,
    WIDE,
    exact,
    samples,
)
from tests.render.harness import compiled, elementwise, lower

pytestmark = pytest.mark.differential


@pytest.mark.parametrize("op", SPANS, ids=str)
def test_extended_precision_is_a_fair_judge(op: Op) -> None:
    """NumPy's 80-bit functions are near enough to mpmath's to measure float64 by."""
    x = samples(F64, *SPANS[op], count=64)
    function = getattr(mpmath, op.name.lower().removesuffix("_near"), None)
    if op in (Ops.EXP2, Ops.EXP2_NEAR):
        function = lambda v: mpmath.mpf(2) ** v  # noqa: E731
    elif op is Ops.LOG2:
        function = lambda v: mpmath.log(v, 2)  # noqa: E731
    if op in (Ops.LOG, Ops.LOG2):
        x = np.abs(x)
    x = x[np.isfinite(x) & (np.abs(x) < 1e300) & (x != 0)]
    with np.errstate(all="ignore"):
        own = NUMPY[op](x.astype(WIDE))
        true = exact(function, x)
        finite = np.isfinite(true) & (np.abs(true) > 1e-300) & (np.abs(true) < 1e300)
        apart = np.abs(own - true) / np.abs(np.where(finite, true, 1))
    assert np.max(np.where(finite, apart, 0)) < 2.0**-60


def test_machines_compute_gelu_by_tables_where_an_instruction_looks_in_one() -> None:
    node = elementwise([partial(alu, Ops.GELU)], 64, [F32], 16)
    for name, looks in (("x86-64-avx2", False), ("x86-64-avx512", True), ("arm64-neon", False)):
        found = [part for part in to_linear(node, cpu_row_named(name)).src if part.op is Ops.LOOKUP]
        assert bool(found) == looks, name


def test_every_function_states_its_error() -> None:
    missing = [
        (op, dtype) for op in FUNCTIONS for dtype in (F32, F64)
        if op is not Ops.THREEFRY and (op, dtype) not in ERRORS
    ]
    assert not missing


def test_threefry_gives_the_published_vectors() -> None:
    """Known answers of Threefry-2x32-20 from the Random123 distribution's kat_vectors."""
    vectors = (
        ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
    )
    words = np.array(vectors * 8, np.uint64)
    counter, key, expected = (words[:, k, 0] | (words[:, k, 1] << np.uint64(32)) for k in range(3))
    node = elementwise([lambda c, k: alu(Ops.THREEFRY, c, k)], 24, [dtypes.uint64] * 2)
    found = np.zeros(24, np.uint64)
    compiled(lower(node))([found, np.ascontiguousarray(counter), np.ascontiguousarray(key)])
    np.testing.assert_array_equal(found, expected)
