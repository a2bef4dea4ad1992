"""Positions and tables that no launch of a plan writes, and kernels that read them early."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad import Tensor, dtypes, jit
from baregrad.base.options import options
from baregrad.engine.plans.fixed_numbers import MOST_NBYTES, with_fixed
from baregrad.graph import canonicalise
from baregrad.ir.core.node import Node
from baregrad.program import Program
from baregrad.schedule import make_plan
from baregrad.schedule.plan import Plan
from baregrad.testing.ptx_device import PtxDevice, ptx_session
from tests.graph.streams.test_passes import graph_of
from tests.kernel.gpu_kernels import HOPPER

RNG = np.random.default_rng(3)


def plan_of(values: list[Tensor], given: list[Tensor], donate: dict[int, int]) -> Plan:
    sink = graph_of(values, given)
    return with_fixed(make_plan(canonicalise(sink, None, HOPPER), target=HOPPER, donate=donate))


def marked(plan: Plan, kernel: Node) -> set[int]:
    """The arguments that a kernel takes for fixed."""
    (step,) = (one for one in plan.steps if one.kernel is kernel)
    return {plan.buffers[step.buffers[slot]].slot for slot in kernel.arg.fixed}


def test_small_arrays_of_whole_numbers_are_fixed() -> None:
    with options.override(device="NULL", cache=False):
        table = Tensor.zeros(8, dtype=dtypes.int32).contiguous().realize()
        large = Tensor.zeros(MOST_NBYTES // 4 + 1, dtype=dtypes.int32).contiguous().realize()
        x = Tensor.zeros(64, 16).contiguous().realize()
        plan = plan_of([x[table] * 2, x[large]], [table, large, x], {})
    assert sorted(map(len, (marked(plan, kernel) for kernel in plan.kernels))) == [0, 1]
    assert {slot for kernel in plan.kernels for slot in marked(plan, kernel)} == {0}


def test_what_a_launch_of_the_plan_writes_is_not_fixed() -> None:
    with options.override(device="NULL", cache=False):
        table = Tensor.zeros(8, dtype=dtypes.int32).contiguous().realize()
        other = Tensor.zeros(9, dtype=dtypes.int32).contiguous().realize()
        x = Tensor.zeros(64, 16).contiguous().realize()
        read = [x[table], x[other] * 3]
        plan = plan_of([*read, table + 1], [table, other, x], {2: 0})
        assert plan.over
    assert {slot for kernel in plan.kernels for slot in marked(plan, kernel)} == {1}
    # Nor is what is computed.
    with options.override(device="NULL", cache=False):
        plan = plan_of([x[(x @ x.mT).argmax(1)]], [x], {})
    assert len(plan.kernels) > 1 and not any(one.arg.fixed for one in plan.kernels)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[Program]:
    found: list[Program] = []
    load = PtxDevice.load

    def kept(device: PtxDevice, program: Program) -> object:
        found.append(program)
        return load(device, program)

    monkeypatch.setattr(PtxDevice, "load", kept)
    return found


@pytest.mark.parametrize("heads", [1, 3])
def test_pages_are_written_and_read_as_tables_say(heads: int, loaded: list[Program]) -> None:
    """Rows go to a place of a page, and all pages of a table are read behind them."""
    pages = RNG.standard_normal((6, 4, heads, 8)).astype(np.float32)
    rows = RNG.standard_normal((heads, 8)).astype(np.float32)
    table, wanted = np.array([4, 1, 3], np.int32), pages.copy()
    with ptx_session():
        cache, names = Tensor(pages).realize(), Tensor(table).realize()

        @jit
        def step(row: Tensor, at: Tensor) -> Tensor:
            new = (row * 2).contiguous() + 1
            page = names.index_select(0, (at // 4).long())
            cache[page, at % 4] = new[None]
            cache.realize()
            return (cache[names] * 2).sum(0)

        for place in (2, 5, 11):
            at = Tensor(np.array([place], np.int32)).realize()
            found = step(Tensor(rows).realize(), at).numpy()
            wanted[table[place // 4], place % 4] = rows * 2 + 1
            np.testing.assert_allclose(found, 2 * wanted[table].sum(0), rtol=1e-6)
    early = [one for one in loaded if one.launch is not None and one.launch.early]
    assert early
    for one in early:
        assert one.launch is not None
        read = [one.params[slot] for slot in one.launch.early]
        assert {(param.dtype_name, param.access) for param in read} == {("int32", "r")}
