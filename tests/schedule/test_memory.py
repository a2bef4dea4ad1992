"""The arena, output buffers, donated arguments, order of kernels."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import dtypes
from baregrad.ir.core.node import Node, const
from baregrad.ir.core.op import Ops
from baregrad.schedule import Plan, make_plan
from tests.schedule.graphs import I64, A, check, iota, param, random_inputs, run_plan, sink, value


def shared_param(plan: Plan, output: int) -> int | None:
    """The slot of the argument that an output is written over."""
    buffer = plan.buffers[plan.outputs[output]]
    return buffer.slot if buffer.kind == "param" else None


def chain(x: A, count: int) -> A:
    for _ in range(count):
        x = (x + 1.0).contiguous()
    return x


def test_temporaries_share_memory() -> None:
    plan = check([chain(param(0, 1000), 12) * 2.0], kernels=13)
    assert plan.arena_nbytes == 2 * 4032


def test_live_temporaries_do_not_overlap() -> None:
    x = param(0, 500)
    parts = [chain(x * float(i), 2) for i in range(1, 8)]
    total = parts[0]
    for part in reversed(parts[1:]):
        total = total + part.flip(0)
    check([total, parts[3]])


def test_values_with_several_readers_live_long_enough() -> None:
    x = (param(0, 64, 64) @ param(1, 64, 64)).contiguous()
    y = (x @ param(2, 64, 64)).contiguous()
    z = (y @ param(3, 64, 64)).contiguous()
    check([z + x, y.sum(1)], tolerance=1e-2)


def test_backward_runs_layer_by_layer() -> None:
    """An update follows its gradient: gradients of all layers are never alive together."""
    count, size = 12, 256
    ws = [param(i + 1, size, size) for i in range(count)]
    acts = [param(0, 8, size)]
    for w in ws:
        acts.append((acts[-1] @ w).contiguous())
    d = acts[-1]
    news = []
    for w, a in zip(reversed(ws), reversed(acts[:-1]), strict=True):
        gradient = (a.permute(1, 0) @ d).contiguous()
        news.append(w - (gradient + (gradient * gradient).sum()))
        d = (d @ w.permute(1, 0)).contiguous()
    plan = make_plan(sink(*reversed(news)))
    gradient_nbytes = size * size * 4
    assert plan.arena_nbytes < 3 * gradient_nbytes


# --- donation -------------------------------------------------------------------------------------


def test_elementwise_update_in_place() -> None:
    x, g = param(0, 50, 20), param(1, 50, 20)
    plan = check([x - g * 0.1], donate={0: 0})
    assert shared_param(plan, 0) == 0
    (step,) = plan.steps
    assert step.aliases == ((0, 1),) or step.aliases == ((0, 2),)


def test_update_of_two_arrays_in_place_is_ordered() -> None:
    """The new momentum is needed for the new weights: the old momentum is overwritten last."""
    p, m, g = (param(i, 300) for i in range(3))
    m2 = m * 0.9 + g
    plan = check([m2, p - m2 * 0.1], kernels=1, donate={0: 1, 1: 0})
    assert shared_param(plan, 0) == 1
    assert shared_param(plan, 1) == 0
    order = [out.src[0].arg.slot for out in plan.kernels[0].src]
    assert [plan.steps[0].buffers[slot] for slot in order] == [0, 1]


def test_swap_is_not_done_in_place() -> None:
    x, y = param(0, 30), param(1, 30)
    plan = check([x * 1.0 + y, y * 1.0 - x], kernels=1, donate={0: 0, 1: 1})
    assert [shared_param(plan, 0), shared_param(plan, 1)].count(None) >= 1


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.flip(0) + 1.0,
        lambda x: x.permute(1, 0) * 2.0,
        lambda x: x.softmax(),
        lambda x: x.shrink((0, 19), (0, 20)).pad((1, 0), (0, 0)) + x,
    ],
)
def test_reads_of_other_elements_are_not_overwritten(make: object) -> None:
    x = param(0, 20, 20)
    plan = check([make(x)], donate={0: 0})  # type: ignore[operator]
    assert shared_param(plan, 0) is None


def test_later_reader_keeps_an_argument() -> None:
    x = param(0, 40)
    y = (x + 1.0).contiguous()
    plan = check([y, (y * 2.0).contiguous().flip(0) + x], donate={0: 0})
    assert shared_param(plan, 0) is None


def test_earlier_reader_does_not() -> None:
    x = param(0, 40)
    plan = check([x + x.scan(0).flip(0)], kernels=2, donate={0: 0})
    assert shared_param(plan, 0) == 0


@pytest.mark.parametrize("place", (0, 1))
def test_an_update_waits_for_those_that_still_read_the_weights(place: int) -> None:
    """Whichever comes first, the gradient passed on or the new weights."""
    w, x = param(0, 24, 40), param(1, 24, 40)
    outputs = [w - x * 0.1, w.flip(1).sum(0)]
    plan = check(outputs if not place else outputs[::-1], kernels=2, donate={place: 0})
    assert shared_param(plan, place) == 0


def test_an_update_that_others_need_does_not_wait() -> None:
    w, x = param(0, 24, 40), param(1, 24, 40)
    new = (w - x * 0.1).contiguous()
    plan = check([new, (new.flip(1) * w).sum(0)], donate={0: 0})
    assert shared_param(plan, 0) is None


def test_argument_that_is_an_output_stays() -> None:
    x = param(0, 40)
    plan = check([x + 1.0, x], donate={0: 0})
    assert shared_param(plan, 0) is None


def test_sizes_must_agree() -> None:
    x = param(0, 40)
    assert shared_param(check([x.shrink((0, 20)) + 1.0], donate={0: 0}), 0) is None
    assert shared_param(check([x.cast(dtypes.float64)], donate={0: 0}), 0) is None
    assert shared_param(check([(x + 1.0).cast(dtypes.int32)], donate={0: 0}), 0) is None
    assert shared_param(check([(x + 1.0).reshape(8, 5)], donate={0: 0}), 0) == 0


def test_write_into_a_cache_copies_nothing() -> None:
    cache, row, place = param(0, 64, 16), param(1, 1, 16), param(2, 1, dtype=I64)
    made = cache.scatter(row, place.reshape(1, 1), iota(16).reshape(1, 16))
    plan = check([made], donate={0: 0}, kernels=1)
    assert shared_param(plan, 0) == 0
    assert len(check([made]).kernels) == 2


# --- scatters -------------------------------------------------------------------------------------


def test_scatters_into_one_array() -> None:
    base, places = param(0, 12), param(1, 5, dtype=I64)
    first = base.scatter(param(2, 5), places, op=Ops.ADD)
    second = first.scatter(param(3, 5), places + value(1, I64), op=None)
    plan = check([second * 2.0])
    assert len(plan.kernels) == 4
    assert plan.arena_nbytes == 64


def test_scattered_base_with_another_reader_is_kept() -> None:
    base, places = param(0, 12), param(1, 5, dtype=I64)
    first = base.scatter(param(2, 5), places, op=Ops.ADD)
    second = first.scatter(param(3, 5), places, op=Ops.MAX)
    check([second, first + 1.0])


def test_embedding_gradient() -> None:
    ids, dy = param(0, 6, 4, dtype=I64), param(1, 6, 4, 8)
    table = value(0).to((10, 8))
    wide = ids.reshape(6, 4, 1).expand(6, 4, 8)
    check([table.scatter(dy, wide, iota(8).reshape(1, 1, 8), op=Ops.ADD)], kernels=2)


# --- other devices --------------------------------------------------------------------------------


def test_a_copy_to_another_device_is_not_planned() -> None:
    moved = A(Node(Ops.COPY, dtypes.float32, (param(0, 8, 8).node,), "REMOTE"))
    with pytest.raises(CompilerBug, match="one device"):
        make_plan(sink(moved * 2.0))


# --- what is not there ----------------------------------------------------------------------------


def test_arrays_without_elements() -> None:
    x = param(0, 0, 5)
    plan = check([x + 1.0, x.sum(0), x.reshape(5, 0).max(0), x.sum(1)], canonical=True)
    assert len(plan.kernels) == 1
    check([x + 1.0, x.sum(0)], canonical=False)


def test_scalars() -> None:
    x = param(0)
    check([x * 2.0 + 1.0, x.reshape(1, 1), x.reshape(1).sum(0)], kernels=1)


def test_a_plan_is_made_of_a_sink() -> None:
    with pytest.raises(CompilerBug, match="SINK"):
        make_plan(const(1, dtypes.int32))


def test_nothing_wanted() -> None:
    plan = make_plan(sink())
    assert plan.steps == ()
    assert plan.outputs == ()


def test_unread_arguments_are_not_in_the_plan() -> None:
    x, y = param(0, 4), param(7, 4)
    plan = make_plan(sink(y + 1.0))
    assert [b.slot for b in plan.buffers if b.kind == "param"] == [7]
    found = run_plan(plan, random_inputs(sink(x, y)))
    assert np.isfinite(found[0]).all()
