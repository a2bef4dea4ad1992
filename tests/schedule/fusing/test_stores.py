"""Values that are stored in a way of their own: scatters and padded arrays."""

from __future__ import annotations

from baregrad.ir.core.op import Ops
from tests.schedule.graphs import I64, check, iota, param, value
from tests.schedule.whole.resnet import convolve


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


def test_a_convolution_writes_into_the_padded_array_of_the_next() -> None:
    x, k1, k2 = param(0, 4, 8, 10, 10), param(1, 8, 8, 3, 3), param(2, 8, 8, 3, 3)
    plan = check([convolve(convolve(x, k1).relu(), k2)])
    # Pad; zeros; the first with its relu; the second.
    assert len(plan.kernels) == 4
    assert sum(1 for k in plan.kernels if not k.mask & Ops.INDEX.bit) == 1
