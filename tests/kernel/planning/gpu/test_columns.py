"""Sums of columns on a GPU: values at every level, and what threads load at once."""

from __future__ import annotations

import re

import pytest

from baregrad import render
from baregrad.engine.compiler import Compiler
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.kernel import choose_schedule
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import HOPPER, check_gpu


def check(kernel: Node) -> None:
    check_gpu(kernel, choose_schedule(kernel, HOPPER))


@pytest.mark.parametrize("shape", [(3, 40), (31, 128), (64, 129), (300, 36), (257, 7), (1000, 1)])
def test_sums_and_maxima_of_columns(shape: tuple[int, int]) -> None:
    for op in (Ops.ADD, Ops.MAX):
        check(k.column_reduce(*shape, op))


@pytest.mark.parametrize("shape", [(256, 8), (600, 72), (1100, 31), (513, 3)])
def test_sums_and_maxima_of_long_columns(shape: tuple[int, int]) -> None:
    for op in (Ops.ADD, Ops.MAX):
        kernel = k.column_reduce(*shape, op)
        check(kernel)
    # How many threads share a sum is decided by its length.
    assert "r1_t1=64" in str(choose_schedule(k.column_reduce(*shape, Ops.ADD), HOPPER))


@pytest.mark.parametrize(
    ("shape", "lanes"), [((600, 3), 4), ((5000, 3), 4), ((3072, 5), 4), ((258, 3), 2)]
)
def test_threads_have_whole_rows_of_few_long_columns(shape: tuple[int, int], lanes: int) -> None:
    """So that each loads what lies together, and not one number of each row."""
    for op in (Ops.ADD, Ops.MAX):
        kernel = k.column_reduce(*shape, op)
        check(kernel)
        *_, last = Compiler(HOPPER, render.get("ptx"), None, None).stages(kernel)
        assert {*re.findall(r"ld\.global[.\w]*", str(last.result))} == {f"ld.global.v{lanes}.f32"}


def test_rows_that_no_access_fills_are_no_whole_rows() -> None:
    kernel = k.column_reduce(601, 3, Ops.ADD)
    check(kernel)
    assert "r1_t1=64" in str(choose_schedule(kernel, HOPPER))
