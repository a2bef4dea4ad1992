"""First schedules on a GPU: right at every level for every kind of kernel, chosen from facts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Op, Ops
from baregrad.kernel import choose_schedule, parse_schedule
from baregrad.kernel.facts.analysis import facts_of
from baregrad.kernel.language.schedule import Bind, Split
from baregrad.kernel.loops.held_rows import hold_rows
from baregrad.kernel.planning.gpu.gpu_schedule import choose_gpu_schedule
from baregrad.render import get
from tests.kernel import kernels as k
from tests.kernel.contractions import contraction
from tests.kernel.gpu_kernels import HOPPER, check_gpu, lowered
from tests.kernel.test_lowering import FAMILIES

MORE: tuple[tuple[Callable[..., Node], tuple[Any, ...]], ...] = (
    (k.elementwise, (33, 65)),
    (k.row_reduce, (3, 2500)),
    (k.whole_reduce, (20, 70)),
    (k.softmax, (2, 2100)),
    (k.layer_norm, (2, 2100)),
    (k.column_reduce, (150, 40)),
    (k.matmul, (40, 50, 30)),
    (k.conv, (1, 16, 16, 6, 7, 3, 1, 1)),
    (k.row_reduce, (0, 3)),
    (k.row_reduce, (3, 0)),
    (k.elementwise, (0, 3)),
)


@pytest.mark.parametrize(
    ("make", "args"), FAMILIES + MORE, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_chosen_schedules(make: Callable[..., Node], args: tuple[Any, ...]) -> None:
    kernel = make(*args)
    check_gpu(kernel, choose_schedule(kernel, HOPPER))


def test_large_maps_move_vectors() -> None:
    kernel = k.elementwise(1 << 12, 1 << 10)
    _, program = lowered(kernel, choose_schedule(kernel, HOPPER))
    accesses = [node.arg for node in program.src if node.op in (Ops.VLOAD, Ops.VSTORE)]
    assert {(access.width, access.align) for access in accesses} == {(4, 16)}


def why(kernel: Node) -> str:
    _, reasons = choose_gpu_schedule(facts_of(hold_rows(kernel, HOPPER)), HOPPER)
    return " / ".join(text.format(*facts) for text, *facts in reasons)


@pytest.mark.parametrize(("kernel", "reason"), [
    (k.cumsum(20, 4, 0), "writes keep their order"),
    (k.cumsum(4, 20, 1), "running folds"),
    (k.scatter_add(5, 9, 4), "writes keep their order"),
    (k.softmax(8, 256), "held in registers"),
    (k.matmul(64, 64, 64), "a contraction"),
    (k.conv(1, 16, 16, 8, 8, 3, 1, 1), "a contraction"),
    (contraction((64,), (64,), (64,), "ax", "nx", "an"), "matrix units"),
], ids=range(7))  # fmt: skip
def test_what_a_kernel_is_chooses_its_plan(kernel: Node, reason: str) -> None:
    """And the reason is given; all other kinds have other reasons."""
    assert reason in why(kernel)
    for other in (k.elementwise(8, 64), k.row_reduce(8, 256)):
        assert reason not in why(other)


def test_what_has_an_order_is_spread_along_other_axes() -> None:
    """So is each column's sum of a scan one thread's, from its first element to its last."""
    schedule = choose_schedule(k.cumsum(20, 6, 0), HOPPER)
    splits = [step for step in schedule.steps if isinstance(step, Split)]
    assert [step.axis for step in splits] == ["i1"]
    units = {step.unit for step in schedule.steps if isinstance(step, Bind)}
    assert units == {"grid", "thread"}


@pytest.mark.few(8)
@pytest.mark.parametrize(
    "dtype", (dtypes.int32, dtypes.uint32, dtypes.int64, dtypes.uint64), ids=str
)
@pytest.mark.parametrize("op", (Ops.ADD, Ops.MAX, Ops.MIN), ids=lambda op: op.name)
@pytest.mark.parametrize("atomic", (True, False))
def test_threads_share_what_the_machine_combines_in_one_step(
    dtype: DType, atomic: bool, op: Op
) -> None:
    """Integers, which a single thread need not wait for either."""
    kernel = k.scatter_add(3, 2000, 1, dtype, atomic, op)
    schedule = choose_schedule(kernel, HOPPER)
    assert any(isinstance(step, Bind) for step in schedule.steps) == atomic
    text = get("ptx").render(check_gpu(kernel, schedule), HOPPER)
    assert f"red.global.{op.name.lower()}" in text and "st.global" not in text


def test_all_that_atomic_sums_read_is_under_way_before_the_first() -> None:
    kernel = k.scatter_add(9, 1 << 22, 1, dtypes.int64, True)
    split = "split('i0', outer='o', u=4, t=128), bind('o', 'grid'), bind('u', 'unroll')"
    _, program = lowered(kernel, f"Schedule({split}, bind('t', 'thread'))")
    lines = get("ptx").render(program, HOPPER).splitlines()
    loads = [place for place, line in enumerate(lines) if "ld.global" in line]
    adds = [place for place, line in enumerate(lines) if "red.global" in line]
    assert len(loads) == 2 * len(adds) > 2 and max(loads) < min(adds)


def test_a_schedule_hangs_on_the_facts_alone() -> None:
    """Not on what the process has done before, nor on the names of kernels."""
    for make, args in MORE:
        kernel = make(*args)
        named = Node(kernel.op, kernel.dtype, kernel.src, kernel.arg._replace(name="other"))
        first, second = (choose_schedule(one, HOPPER) for one in (kernel, named))
        assert first == second == parse_schedule(str(first))
