"""The order of kernels, in which little memory is alive at a time."""

from __future__ import annotations

from baregrad.schedule import make_plan
from tests.schedule.graphs import param, sink


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
