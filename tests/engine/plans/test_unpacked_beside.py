"""Factors unpacked beside the product in front: the same results, by launches that may overlap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baregrad import Tensor
from baregrad.base.options import options
from baregrad.dtypes import dtypes
from baregrad.engine.plans import unpacked_beside as module
from baregrad.engine.plans.unpacked_beside import unpacked_beside
from baregrad.graph import canonicalise
from baregrad.io.gguf import PackedWeight, by_name
from baregrad.ir.core import index
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.alu import to_raw
from baregrad.ir.verify.verify import verify
from baregrad.runtime.nvidia.lists import command_list, list_plan
from baregrad.schedule import make_plan
from baregrad.schedule.plan import Launch, Plan, PlannedBuffer
from baregrad.target import gpu_row
from baregrad.tensor.jit.jit import jit
from baregrad.testing.virtual_gpu.virtual_port import VirtualPort
from tests.graph.streams.test_passes import graph_of
from tests.kernel.gpu_kernels import HOPPER
from tests.kernel.kernels import run_kernel
from tests.runtime.nvidia.test_virtual_tensors import tensors_on

RNG = np.random.default_rng(5)


def drawn(buffer: PlannedBuffer) -> Any:
    """Random elements of an argument: small, and places that both matrices of a stack have."""
    random = np.random.default_rng(buffer.slot)
    shape = tuple(map(index.upper, buffer.shape))
    if buffer.dtype.is_float:
        return to_raw(random.standard_normal(shape).astype(np.float32), dtypes.bfloat16)
    most = {"uint32": 1 << 32, "uint16": 1 << 14, "int32": 2}.get(buffer.dtype.name, 64)
    return random.integers(0, most, shape).astype(buffer.dtype.numpy)


def stored_as(buffer: PlannedBuffer) -> Any:
    """What NumPy has the elements of a buffer as: codes, of 16-bit floats."""
    return np.float32 if buffer.dtype.name == "float32" else np.uint16


def run(plan: Plan) -> dict[int, Any]:
    """What every buffer of a plan holds in the end, the same random arguments each time.

    What parts of a plan left in memory that others took meanwhile is what these left there.
    """
    arrays: dict[int, Any] = {}
    arena = np.zeros(index.upper(plan.arena_nbytes), np.uint8)
    for place, buffer in enumerate(plan.buffers):
        if buffer.kind == "param":
            arrays[place] = drawn(buffer)
        elif buffer.kind == "output":
            arrays[place] = np.zeros(buffer.shape, stored_as(buffer))
        else:
            held = arena[buffer.offset : buffer.offset + index.upper(buffer.nbytes)]
            kind = stored_as(buffer)
            arrays[place] = held.view(kind).reshape(buffer.shape)
    for step in plan.steps:
        verify(step.kernel, "kernel")
        found = run_kernel(step.kernel, {s: arrays[p] for s, p in enumerate(step.buffers)})
        for slot in step.writes:
            arrays[step.buffers[slot]][...] = found[slot]
    return arrays


def meet(plan: Plan, one: Launch, other: Launch) -> bool:
    """Whether one launch writes bytes that the other reads or writes."""

    def spans(step: Launch) -> list[tuple[tuple[str, int], int, int, bool]]:
        found = []
        for slot, place in enumerate(step.buffers):
            buffer = plan.buffers[place]
            end = buffer.offset + index.upper(buffer.nbytes)
            found.append(((buffer.kind, buffer.slot), buffer.offset, end, slot in step.writes))
        return found

    return any(
        (writes or written) and what == which and begin < last and first < end
        for what, begin, end, writes in spans(one)
        for which, first, last, written in spans(other)
    )


def blocks_of(
    out: int, width: int, rows: int, layers: int = 3, again: bool = False, renewed: bool = False
) -> Plan:
    """The plan of rows times packed matrices in turn; again: and what the first one gave.

    renewed: other words are written over those of the second matrix.
    """
    row = by_name("Q4_K")
    given: list[Tensor] = []
    more: list[Tensor] = []
    with options.override(device="NULL", cache=False):
        x = Tensor.ones(rows, width, dtype=dtypes.bfloat16).contiguous().realize()
        found = first = x
        for number in range(layers):
            shape = (width, out) if number % 2 else (out, width)
            packed = Tensor.zeros(shape[0], row.row_nbytes(shape[1]), dtype=dtypes.uint8)
            weight = PackedWeight(row, shape, packed.contiguous()).in_planes()
            if renewed and number == 1:
                given = [max(weight.tensors, key=lambda one: one.nbytes)]
                more = [given[0] + 1]
            found = weight.linear(found).relu()
            first = found if not number else first
        if again:
            found = found + first.relu()
        sink = graph_of([found, *more], [x, *given])
    return make_plan(canonicalise(sink, None, HOPPER), donate={1: 1}, target=HOPPER)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Factors of small products are unpacked beside others too."""
    monkeypatch.setattr(module, "LEAST_NBYTES", 1)
    monkeypatch.setattr(module, "LEAST_PRODUCT", 1)


@pytest.mark.usefixtures("small")
def test_factors_are_unpacked_beside_the_product_in_front() -> None:
    whole = blocks_of(512, 256, 128)
    plan = unpacked_beside(whole, HOPPER)
    products = [step.kernel.has(Ops.REDUCE) for step in plan.steps]
    assert products == [False, True, False, True, False, True]
    for place in (1, 3):
        front, beside = plan.steps[place : place + 2]
        assert front.kernel.arg.beside and beside.kernel.arg.beside
        assert meet(whole, *whole.steps[place : place + 2])
        assert not meet(plan, front, beside)
    assert not plan.steps[-1].kernel.arg.beside
    found = [run(one)[one.outputs[0]] for one in (whole, plan)]
    np.testing.assert_array_equal(*found)


@pytest.mark.usefixtures("small")
def test_what_is_live_meanwhile_stays_where_it_is() -> None:
    """Rows that are added again behind three products lie in memory all the time."""
    whole = blocks_of(512, 256, 128, again=True)
    plan = unpacked_beside(whole, HOPPER)
    assert plan is not whole
    found = [run(one)[one.outputs[0]] for one in (whole, plan)]
    np.testing.assert_array_equal(*found)


@pytest.mark.usefixtures("small")
def test_words_are_unpacked_before_others_are_written_over_them() -> None:
    whole = blocks_of(512, 256, 128, renewed=True)
    ((output, words),) = whole.over
    plan = unpacked_beside(whole, HOPPER).written_over([output])
    reads, changes = (step for step in plan.steps if words in step.buffers)
    assert reads.kernel.arg.beside and plan.steps.index(reads) == 2
    assert [changes.buffers[slot] for slot in changes.writes] == [words]


def test_kernels_that_layers_have_in_common_are_looked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where each product is too short, so that there is none in front of any factor."""
    seen: list[Node] = []
    monkeypatch.setattr(module, "LEAST_NBYTES", 1)
    monkeypatch.setattr(module, "_is_long_product", seen.append)
    whole = blocks_of(512, 256, 128, layers=8)
    assert unpacked_beside(whole, HOPPER) is whole
    assert len(seen) == len(set(whole.kernels)) < len(whole.kernels) / 2


@pytest.mark.usefixtures("small")
def test_plans_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = blocks_of(512, 256, 128)
    # No groups of warps multiply, nor is there another product in front.
    for name in ("sm_80", "sm_100a", "sm_120"):
        assert unpacked_beside(whole, gpu_row(name)) is whole
    alone = blocks_of(512, 256, 128, layers=1)
    assert unpacked_beside(alone, HOPPER) is alone
    # There is no room without more memory.
    monkeypatch.setattr(module, "MOST_MORE", 0)
    assert unpacked_beside(whole, HOPPER) is whole
    monkeypatch.undo()
    assert unpacked_beside(whole, HOPPER) is whole


@pytest.mark.slow
def test_a_gpu_runs_both_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The virtual one, by a replay; bits are those of one after the other."""
    raw = RNG.integers(0, 256, (64, by_name("Q4_K").row_nbytes(256)), np.uint8)
    # The scales of blocks of 144 bytes, two float16 numbers.
    raw.reshape(-1, 144)[:, 1:4:2] = 0x08
    shapes = (128, 64), (64, 256)
    rows, plain = (RNG.standard_normal(shape).astype(np.float32) for shape in shapes)
    plans: list[list_plan.ListPlan] = []
    real = list_plan.plan_list

    def plan_list(*args: Any, **named: Any) -> list_plan.ListPlan:
        plans.append(real(*args, **named))
        return plans[-1]

    monkeypatch.setattr(command_list, "plan_list", plan_list)
    monkeypatch.setattr(module, "LEAST_PRODUCT", 1)
    found = []
    for least in (1 << 60, 1):
        monkeypatch.setattr(module, "LEAST_NBYTES", least)
        with tensors_on(VirtualPort(), monkeypatch), options.override(cache=False):
            weight = PackedWeight(by_name("Q4_K"), (64, 256), Tensor(raw)).in_planes()
            x, matrix = (Tensor(one).cast(dtypes.bfloat16).realize() for one in (rows, plain))
            plans.clear()
            replay = jit(lambda x, y, weight=weight: weight.linear((x @ y).relu()))
            for _ in range(3):
                result = replay(x, matrix)
            found.append(result.cast(dtypes.float32).numpy())
            assert any(plan.overlaps for plan in plans) is (least == 1)
    np.testing.assert_array_equal(*found)
