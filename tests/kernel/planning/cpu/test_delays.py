"""Where rows are stored late: those that take long to compute and that memory waits for."""

from __future__ import annotations

from dataclasses import replace

from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel import choose_schedule, lower
from baregrad.kernel.language.schedule import Pipeline
from baregrad.kernel.loops.sharing import prepare
from tests.kernel import kernels as k
from tests.kernel.loops.test_delayed_stores import SMALL, log_softmax
from tests.render.harness import host


def is_late(kernel: Node) -> bool:
    steps = choose_schedule(prepare(kernel, SMALL), SMALL).steps
    return any(isinstance(step, Pipeline) for step in steps)


def test_rows_that_take_long_are_stored_late() -> None:
    assert is_late(k.softmax(256, 512))
    # These are as fast as memory already, or read their rows once more for the stores.
    assert not is_late(k.layer_norm(256, 512))
    assert not is_late(log_softmax(256, 512))
    # Its output stays in the caches.
    assert not is_late(k.softmax(4, 128))


def test_the_heuristic_asks_for_whole_rows_ahead() -> None:
    """The shares of the loops that are left are a row together."""
    target = replace(host(), l2_bytes=1 << 16, l3_bytes=1 << 17)
    loop = lower(k.softmax(256, 512), target)
    (array,) = [node for node in toposort(loop) if node.op is Ops.PARAM and node.arg.slot == 1]
    loops = {node.src[0].arg.axis: int(node.src[0].src[0].arg)
             for node in toposort(loop) if node.op is Ops.LOOP}
    assert sum(loops[name] * nbytes for name, _, nbytes in array.arg.shares) == 512 * 4
