"""What is computed where it is read and what is stored: which values become one kernel."""

from __future__ import annotations

import pytest

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.node import toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel import choose_schedule
from baregrad.schedule import Decision, make_plan
from baregrad.target.cpu import cpu_row_named
from tests.kernel.gpu_kernels import HOPPER
from tests.schedule.graphs import I64, A, check, iota, param, sink


def reasons(plan: object, op: object) -> list[Decision]:
    return [d for d in plan.decisions if d.value.op is op]  # type: ignore[attr-defined]


def test_elementwise_chain_is_one_kernel() -> None:
    x, y = param(0, 30, 40), param(1, 40)
    plan = check([((x + y) * 2.0).relu().exp()], kernels=1)
    assert plan.arena_nbytes == 0


def test_softmax_is_one_kernel() -> None:
    plan = check([param(0, 64, 128).softmax()], kernels=1)
    reductions = [n for n in toposort(plan.kernels[0]) if n.op is Ops.REDUCE]
    assert len(reductions) == 2


def test_layer_norm_is_one_kernel() -> None:
    x, g, b = param(0, 64, 96), param(1, 96), param(2, 96)
    away = x - x.mean(1, keep=True)
    rate = ((away * away).mean(1, keep=True) + 1e-5).sqrt().reciprocal()
    check([away * rate * g + b], kernels=1)


def test_rms_norm_is_one_kernel() -> None:
    x, g = param(0, 64, 96), param(1, 96)
    check([x * ((x * x).mean(1, keep=True) + 1e-5).sqrt().reciprocal() * g], kernels=1)


def test_loss_and_its_gradient_are_two_kernels() -> None:
    x, labels = param(0, 128, 10), param(1, 128, dtype=I64)
    away = x - x.max(1, keep=True)
    e = away.exp()
    total = e.sum(1, keep=True)
    loss = (away - total.log()).gather(iota(128), labels).mean() * -1.0
    hot = labels.reshape(128, 1).eq(iota(10).reshape(1, 10)).cast(x.node.dtype)
    check([loss, (e / total - hot) * (1 / 128)], most=2)


def test_matmul_keeps_its_epilogue() -> None:
    x, w, b, skip = param(0, 48, 64), param(1, 64, 40), param(2, 40), param(3, 48, 40)
    check([((x @ w) + b + skip).relu()], kernels=1)


def test_matmul_operand_that_is_computed_is_stored_first() -> None:
    x, w = param(0, 128, 128), param(1, 128, 128)
    plan = check([x.exp() @ w], kernels=2)
    assert reasons(plan, Ops.EXP)[0].stored


def test_chain_of_matmuls_is_a_kernel_each() -> None:
    x, w, v = param(0, 64, 64), param(1, 64, 64), param(2, 64, 64)
    check([((x @ w).relu() @ v).relu()], kernels=2)


def test_attention_is_three_kernels() -> None:
    q, k, v = (param(i, 4, 32, 16) for i in range(3))
    scores = (q.reshape(4, 32, 1, 16) * k.reshape(4, 1, 32, 16)).sum(3) * 0.25
    p = scores.softmax()
    out = (p.reshape(4, 32, 32, 1) * v.reshape(4, 1, 32, 16)).sum(2)
    check([out], kernels=3)


def test_constant_scale_leaves_the_contraction() -> None:
    x, w = param(0, 128, 64), param(1, 64, 128)
    check([(x * 0.125) @ w], kernels=1)


def test_batch_norm_training_is_two_kernels() -> None:
    x, g, b = param(0, 16, 32, 8, 8), param(1, 32), param(2, 32)
    mean = x.mean(0, 2, 3, keep=True)
    away = x - mean
    var = (away * away).mean(0, 2, 3, keep=True)
    y = away * (var + 1e-5).sqrt().reciprocal() * g.reshape(1, 32, 1, 1) + b.reshape(1, 32, 1, 1)
    running = param(3, 32) * 0.9 + mean.reshape(32) * 0.1
    check([y, running], kernels=2)


def test_sums_over_the_same_axes_share_a_kernel() -> None:
    x, y = param(0, 32, 300), param(1, 32, 300)
    plan = check([x.sum(1), (x * y).sum(1), x.max(1)], kernels=1)
    ranges = {n for n in toposort(plan.kernels[0]) if n.op is Ops.RANGE}
    assert len(ranges) == 2


def test_argmax_and_its_value_are_one_kernel() -> None:
    check([*param(0, 40, 50).argmax(1)], kernels=1)


@pytest.mark.parametrize(("points", "kernels"), [(2, 2), (16, 1)])
def test_a_handful_of_values_joins_no_kernel_to_a_sum(points: int, kernels: int) -> None:
    """The bits of the sum would hang on what else is wanted."""
    values = param(0, points)
    check([(param(1, 99, points) * values).sum(0), values + 1.0], kernels=kernels)


@pytest.mark.parametrize("first", (0, 1))
def test_a_contraction_shares_no_kernel_with_another_sum(first: int) -> None:
    """Each wants tiles of its own, though both are over axes of one shape and near each other."""
    top, place = param(0, 80, 64, 9).argmax(2)
    product = param(1, 80, 64) @ param(2, 64, 64) + (top < 1.0).where(top, 0.0)
    outputs = [place, product.relu()]
    plan = check([outputs[first], outputs[1 - first]])
    for kernel in plan.kernels:
        assert sum(node.op is Ops.REDUCE for node in toposort(kernel)) <= 1


def test_optimiser_updates_share_a_kernel() -> None:
    p, m, v, g = (param(i, 1000) for i in range(4))
    m2 = m * 0.9 + g * 0.1
    v2 = v * 0.99 + g * g * 0.01
    check([m2, v2, p - m2 / (v2.sqrt() + 1e-8)], kernels=1)


@pytest.mark.parametrize(("rows", "kernels"), [(200, 1), (4000, 2)])
def test_a_counter_keeps_threads_from_no_kernel(rows: int, kernels: int) -> None:
    """A scalar that a map reads is written by the map's kernel where one thread does it anyway."""
    x, steps = param(0, rows, 100), param(1)
    counted = steps + 1.0
    plan = check([x / (counted * counted), counted], kernels=kernels)
    shared = ["'pool'" in str(choose_schedule(kernel, cpu_row_named("x86-64-avx2")))
              for kernel in plan.kernels]
    assert any(shared) == (kernels > 1)


@pytest.mark.parametrize(
    ("rows", "dtype", "kernels"),
    [(4000, dtypes.float64, 2), (4000, dtypes.float32, 1), (200, dtypes.float64, 1)],
)
def test_gpu_threads_share_a_dear_scalar(rows: int, dtype: DType, kernels: int) -> None:
    """A function in float64 is computed once before a large map, and on a CPU within its kernel."""
    x, steps = param(0, rows, 100), param(1, dtype=dtype)
    scaled = x * steps.exp().cast(dtypes.float32)
    found = make_plan(sink(scaled), target=HOPPER)
    assert len(found.kernels) == kernels
    assert len(make_plan(sink(scaled)).kernels) == 1


def test_dear_value_with_two_readers_is_stored_once() -> None:
    x = param(0, 400, 400)
    y = (x.exp() + x.log().exp()).exp()
    plan = check([y.sum(0), y.sum(1)])
    assert any(d.stored for d in reasons(plan, Ops.EXP))


def test_cheap_value_with_two_readers_is_computed_twice() -> None:
    x = param(0, 400, 400)
    plan = check([(x + 1.0).sum(0), (x + 1.0).sum(1)], kernels=2)
    assert not any(d.stored for d in reasons(plan, Ops.ADD))


def test_reduction_shared_out_over_few_rows_is_stored() -> None:
    x = param(0, 2, 60000)
    plan = check([x / x.sum(1, keep=True)], kernels=2)
    assert "rows" in plan.explain()


def test_a_sum_of_what_is_stored_reads_what_is_stored() -> None:
    """The sum of a norm's output and a residual is not taken apart into the norm's ingredients."""
    x, g, w, v = param(0, 48, 64), param(1, 64), param(2, 64, 64), param(3, 64, 64)

    def norm(y: A) -> A:
        away = y - y.mean(1, keep=True)
        return away * ((away * away).mean(1, keep=True) + 1e-5).sqrt().reciprocal() * g

    h = norm(x)
    f = (h @ w).relu() @ v
    # Norm; two matmuls, the second with its residual; norm.
    check([norm(f + h)], kernels=4, tolerance=1e-3)


def test_sums_of_what_a_gpu_reads_anyway_are_one_kernel() -> None:
    """Those of the gradient of a batch norm: the first of them does not read what the last does."""
    x, mean, g = param(0, 64, 900), param(1, 64, 1), param(2, 64, 900)
    away = x - mean
    sums = [away.sum(1), (g * away).sum(1), g.sum(1)]
    (kernel,) = make_plan(sink(*sums), target=HOPPER).kernels
    assert len(kernel.src) == 3
    check(sums)


def test_a_product_beside_writes_that_keep_their_order_has_a_kernel_of_its_own() -> None:
    x, w, cache = param(0, 8, 64), param(1, 64, 48), param(2, 20, 48)
    rows = (iota(8) * 2).reshape(8, 1)
    plan = check([cache.scatter(x @ w, rows, iota(48).reshape(1, 48))])
    (found,) = [decision for decision in reasons(plan, Ops.REDUCE) if decision.stored]
    assert "keep their order" in str(found.reason)


@pytest.mark.parametrize("columns, stored", [(8, False), (4096, True)])
def test_long_sums_below_one_result_are_shared_by_threads(columns: int, stored: bool) -> None:
    x, w = param(0, 1, 512), param(1, columns, 512)
    logits = (x.reshape(1, 1, 512) * w.reshape(1, columns, 512)).sum(2)
    plan = check([logits.max(1)], kernels=2 if stored else 1)
    assert any("in parallel" in str(one.reason) for one in reasons(plan, Ops.REDUCE)) is stored


@pytest.mark.parametrize("rows", [2, 5, 40])
@pytest.mark.parametrize(("columns", "kernels"), [(16, 1), (78736, 2)])
def test_no_block_of_a_gpu_sums_several_long_rows(rows: int, columns: int, kernels: int) -> None:
    """As the mean of a loss over a few rows of many classes does; short ones are a warp's each."""
    x = param(0, rows, columns)
    high = x.max(1, keep=True)
    loss = ((x - high).exp().sum(1, keep=True).log() + high).mean(0)
    assert len(make_plan(sink(loss), target=HOPPER).kernels) == kernels


@pytest.mark.parametrize(("functions", "kernels"), [(0, 1), (12, 2)])
def test_what_many_results_read_is_made_anew_if_all_behind_it_is_little(
    functions: int, kernels: int
) -> None:
    """Each of a chain of functions is little work, and stays in whichever kernel reads it."""
    x = param(0, 200) * 0.5
    for _ in range(functions):
        x = x.exp()
    apart = (x.reshape(200, 1) - x.reshape(1, 200)).relu().sum(1)
    assert len(make_plan(sink(apart), target=HOPPER).kernels) == kernels
