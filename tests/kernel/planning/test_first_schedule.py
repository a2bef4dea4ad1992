"""Every schedule that a heuristic chooses comes with reasons that can be put into words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from baregrad.ir.core.node import Node
from baregrad.kernel import choose, choose_schedule
from baregrad.target import gpu_row
from baregrad.target.cpu import cpu_row_named
from tests.kernel import kernels as k
from tests.kernel.test_lowering import FAMILIES, TARGETS

BIG: tuple[tuple[Callable[..., Node], tuple[Any, ...]], ...] = (
    (k.elementwise, (1024, 1024)),
    (k.transpose, (1024, 1024)),
    (k.row_reduce, (1024, 1024)),
    (k.column_reduce, (1024, 1024)),
    (k.whole_reduce, (1024, 1024)),
    (k.softmax, (1024, 1024)),
    (k.matmul, (1024, 1024, 1024)),
    (k.matmul, (1024, 1024, 8192, True)),
    (k.conv, (8, 64, 64, 56, 56, 3, 1, 1)),
)
AVX512 = cpu_row_named("x86-64-avx512")


@pytest.mark.parametrize("target", (*TARGETS, gpu_row("sm_90a")), ids=lambda one: str(one.name))
@pytest.mark.parametrize(("make", "args"), (*FAMILIES, *BIG))
def test_each_choice_has_reasons(
    make: Callable[..., Node], args: tuple[Any, ...], target: Any
) -> None:
    choice = choose(make(*args), target)
    assert choice.schedule == choose_schedule(make(*args), target)
    assert choice.why()
    for reason in choice.why():
        assert "{" not in reason
        assert len(reason) < 120


def test_what_has_one_element_says_so() -> None:
    (reason,) = choose(k.elementwise(1), AVX512).why()
    assert "no axis has two elements" in reason


def test_reasons_name_what_the_schedule_binds() -> None:
    for make, args in BIG:
        choice = choose(make(*args), AVX512)
        steps = choice.schedule.steps
        shared = [step.axis for step in steps if getattr(step, "unit", "") == "pool"]
        told = [reason for reason in choice.why() if reason.startswith("threads share")]
        assert [reason.split()[2].rstrip(":") for reason in told] == shared
