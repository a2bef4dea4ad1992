"""The bytes behind values, and what a GPU therefore stores or computes again."""

from __future__ import annotations

import math
from typing import Any

from baregrad.dtypes import dtypes
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.schedule.facts.survey import take_survey
from baregrad.schedule.facts.traffic import Traffic
from tests.kernel.gpu_kernels import HOPPER
from tests.schedule.graphs import F32, I64, A, check, iota, param, sink

BF16 = dtypes.bfloat16


def behind(value: A, *outputs: A) -> dict[Node, float]:
    root = sink(value, *outputs)
    order = toposort(root)
    stored = frozenset(one.node for one in outputs)
    return Traffic(take_survey(order), stored, {}).behind(value.node)


def test_an_array_counts_once_however_often_it_is_read() -> None:
    x = param(0, 64, 32, dtype=BF16)
    wide = x.cast(F32)
    assert behind(wide * wide * wide + wide) == {x.node: 64 * 32 * 2}


def test_no_more_counts_than_a_view_or_a_gather_leaves() -> None:
    x, places = param(0, 1000, 32), param(1, 8, 32, dtype=I64)
    columns = iota(32).reshape(1, 32).expand(8, 32)
    found = behind(x.gather(places, columns) * 2.0)
    assert found == {x.node: 8 * 32 * 4, places.node: 8 * 32 * 8}
    assert behind(x.shrink((0, 10, 1), (0, 32, 1)) * 2.0) == {x.node: 10 * 32 * 4}


def test_a_row_of_a_sum_reads_all_that_it_sums() -> None:
    x, y = param(0, 16, 100), param(1, 16)
    assert behind(x.sum(1) + y) == {x.node: 16 * 100 * 4, y.node: 16 * 4}


def test_what_will_be_stored_counts_itself() -> None:
    x = param(0, 16, 100)
    kept = x.exp()
    assert behind(kept * 2.0, kept) == {kept.node: 16 * 100 * 4}


# --- what is stored -------------------------------------------------------------------------------


def temporaries(plan: Any, least: int) -> list[str]:
    """The dtypes of temporary arrays of so many elements or more."""
    return [
        one.dtype.name for one in plan.buffers
        if one.kind == "temp" and math.prod(one.shape) >= least
    ]  # fmt: skip


def test_a_function_of_a_narrow_value_is_computed_again_on_a_gpu() -> None:
    """By two kernels, which sum different axes of it."""
    x = param(0, 200, 150, dtype=BF16).cast(F32)
    dear = (x * 0.1).exp().exp()
    outputs = [dear.sum(0), dear.sum(1)]
    assert temporaries(check(outputs, target=HOPPER), 200 * 150) == []
    assert temporaries(check(outputs), 200 * 150) == ["float32"]


def test_a_norm_and_its_gradient_keep_numbers_of_rows() -> None:
    rows, width = 64, 96
    x, above = (param(slot, rows, width, dtype=BF16) for slot in (0, 1))
    away = x.cast(F32) - x.cast(F32).mean(1, keep=True)
    rate = ((away * away).mean(1, keep=True) + 1e-5).sqrt().reciprocal()
    y = away * rate
    wide = above.cast(F32)
    beside = (wide * y).mean(1, keep=True)
    gradient = (wide - wide.mean(1, keep=True) - y * beside) * rate
    # The gradient of a scale is summed the other way, by another kernel.
    outputs = [y.cast(BF16), gradient.cast(BF16), (wide * y).sum(0)]
    plan = check(outputs, target=HOPPER, tolerance=5e-2)
    assert temporaries(plan, rows * width) == []


def test_the_loss_of_many_classes_stores_no_scores_but_its_own() -> None:
    rows, classes = 32, 4000
    x, w = param(0, rows, 16, dtype=BF16), param(1, 16, classes, dtype=BF16)
    labels = param(2, rows, dtype=I64)
    scores = (x.cast(F32) @ w.cast(F32)).cast(BF16).cast(F32)
    away = scores - scores.max(1, keep=True)
    total = away.exp().sum(1, keep=True)
    hot = labels.reshape(rows, 1).eq(iota(classes).reshape(1, classes))
    loss = hot.where(away - total.log(), 0.0).sum(1).mean() * -1.0
    gradient = ((away.exp() / total) - hot.cast(F32)) * (1 / rows)
    plan = check([loss, gradient.cast(BF16)], target=HOPPER, tolerance=5e-2)
    assert temporaries(plan, rows * classes) == ["bfloat16"]
    assert not [n for k in plan.kernels for n in toposort(k) if n.op is Ops.PARAM
                and n.dtype is F32 and len(n.shape) == 2 and n.shape[1] == classes]  # fmt: skip
