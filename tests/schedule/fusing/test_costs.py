"""What a GPU stores and what it computes anew, by what is moved for either."""

from __future__ import annotations

from baregrad.schedule import make_plan
from tests.kernel.gpu_kernels import HOPPER
from tests.schedule.graphs import param, sink


def test_a_gpu_computes_anew_what_it_reads_the_arrays_of() -> None:
    """A loss and its gradient both read two large arrays: what they come to is stored for neither.

    It would be written once and read twice. No kernel of the loss waits for one of the gradient's.
    """
    x, y = param(0, 1024, 1024), param(1, 1024, 1024)
    away = x - y
    near = (away * 0.5).relu()
    loss = (near * near + away).sum()
    plan = make_plan(sink(loss, near * away * loss), target=HOPPER)
    assert [one for one in plan.buffers if one.kind == "temp"] == []
    assert len(plan.kernels) == 2


def test_a_gpu_stores_functions_that_two_kernels_want() -> None:
    """To compute them twice takes longer than to write and to read them."""
    x, y = param(0, 1024, 1024), param(1, 1024, 1024)
    power = (x - y).exp() + (x * y).exp()
    plan = make_plan(sink(power.sum(), power * power.sum()), target=HOPPER)
    (stored,) = [one for one in plan.buffers if one.kind == "temp" and one.shape == (1024, 1024)]
    assert stored.nbytes == 4 << 20
