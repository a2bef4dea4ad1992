"""Sums of a product's results that its kernel makes parts of: the same results, one pass less."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from baregrad import Tensor, nn
from baregrad.base.errors import ChangedPipeline
from baregrad.base.options import options
from baregrad.dtypes import dtypes
from baregrad.engine.plans import side_sums as module
from baregrad.engine.plans.side_sums import with_side_sums
from baregrad.graph import canonicalise
from baregrad.ir.evaluate.alu import to_array
from baregrad.schedule import make_plan
from baregrad.schedule.plan import Plan
from baregrad.target import gpu_row
from baregrad.testing import ptx_device
from tests.engine.plans.test_unpacked_beside import run
from tests.graph.streams.test_passes import graph_of
from tests.kernel.gpu_kernels import HOPPER

BRAIN = dtypes.bfloat16


def planned(results: list[Tensor], given: list[Tensor], target: Any = HOPPER) -> Plan:
    sink = graph_of(results, given)
    return make_plan(canonicalise(sink, None, target), donate={}, target=target)


def rows(count: int, width: int, inner: int, power: int = 2) -> Plan:
    """A product, and sums of its rows' squares."""
    with options.override(device="NULL", cache=False):
        x = Tensor.ones(count, inner, dtype=BRAIN).contiguous().realize()
        w = Tensor.ones(inner, width, dtype=BRAIN).contiguous().realize()
        y = x @ w
        wide = y.cast(dtypes.float32)
        return planned([y, (wide * wide if power == 2 else wide.abs()).sum(1)], [x, w])


def normalised(images: int, channels: int, side: int, taps: int = 3) -> Plan:
    """A convolution, normalised by what all of its images' elements of a channel are."""
    with options.override(device="NULL", cache=False):
        x = Tensor.ones(images, channels, side, side, dtype=BRAIN).contiguous().realize()
        w = Tensor.ones(channels, channels, taps, taps, dtype=BRAIN).contiguous().realize()
        norm = nn.BatchNorm2d(channels).bfloat16()
        return planned([norm(x.conv2d(w, padding=taps // 2)).relu()], [x, w])


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of small products are made so too."""
    monkeypatch.setattr(module, "LEAST_NBYTES", 1)


@pytest.mark.few(1)
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("power", [1, 2])
def test_sums_of_rows_are_made_of_parts(power: int) -> None:
    whole = rows(2048, 1024, 128, power)
    plan = with_side_sums(whole, HOPPER)
    assert [step.kernel.arg.sums for step in plan.steps] == [1, 0]
    # The product's results are not read again.
    (y,) = (step.buffers[0] for step in whole.steps[:1])
    assert y not in plan.steps[1].buffers
    before, after = run(whole), run(plan)
    np.testing.assert_array_equal(before[y], after[y])
    wide = to_array(after[y], BRAIN).astype(np.float64)
    wanted = (wide * wide if power == 2 else np.abs(wide)).sum(1)
    np.testing.assert_allclose(after[plan.outputs[1]], wanted, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_statistics_of_channels_are_made_of_parts() -> None:
    whole = normalised(32, 64, 16)
    plan = with_side_sums(whole, HOPPER)
    assert [step.kernel.arg.sums for step in plan.steps].count(2) == 1
    before, after = run(whole), run(plan)
    (out,) = plan.outputs
    left, right = (to_array(found[out], BRAIN) for found in (before, after))
    # Statistics differ in their last bits, what is rounded in one.
    np.testing.assert_allclose(left, right, rtol=2.0**-7, atol=1e-6)
    # What later steps write over is looked at behind the product.
    at = next(n for n, step in enumerate(plan.steps) if step.kernel.arg.sums)
    found = run(replace(plan, steps=plan.steps[: at + 1]))
    y, sums, squares = (found[plan.steps[at].buffers[place]] for place in (0, -2, -1))
    wide = to_array(y, BRAIN).astype(np.float64).reshape(32, 64, 256)
    parts = wide.transpose(1, 0, 2).reshape(64, 128, 64)
    sums, squares = (each.reshape(128, 64).T for each in (sums, squares))
    np.testing.assert_allclose(sums, parts.sum(2), rtol=1e-5, atol=1e-5 * np.abs(parts).max())
    apart = parts - parts.mean(2, keepdims=True)
    np.testing.assert_allclose(squares, (apart**2).sum(2), rtol=1e-5)


def test_only_what_no_cache_holds_is_summed_so() -> None:
    whole = rows(2048, 1024, 128)
    assert with_side_sums(whole, HOPPER) is whole


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("make", [
    # Tiles of single warps; rows of no whole tiles; parts that two images have.
    lambda: rows(256, 256, 128), lambda: rows(2000, 1000, 128), lambda: normalised(33, 64, 15),
])  # fmt: skip
def test_other_plans_stay_as_they_are(make: Any) -> None:
    whole = make()
    assert with_side_sums(whole, HOPPER) is whole


@pytest.mark.usefixtures("small")
def test_other_machines_have_no_such_sums() -> None:
    whole = rows(2048, 1024, 128)
    assert with_side_sums(whole, gpu_row("sm_80")) is whole


class Refusing(ptx_device.TextAssembler):
    """An assembler that would make the products of groups of warps wait for each other."""

    def assemble(self, text: str) -> bytes:
        if "wgmma" in text:
            raise ChangedPipeline("ptxas changed the pipeline of one", found="(C7510)")
        return super().assemble(text)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("refuses", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_program_has_its_sums_whatever_the_assembler_makes_of_the_product(
    refuses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if refuses:
        monkeypatch.setattr(ptx_device, "TextAssembler", Refusing)
    random = np.random.default_rng(3)
    with ptx_device.ptx_session() as session:
        left, right = (
            Tensor(random.standard_normal(shape).astype(np.float32)).cast(BRAIN).realize()
            for shape in ((2048, 64), (64, 1024))
        )
        y = left @ right
        sums = y.float().square().sum(1)
        plans: list[Plan] = []
        with session.watching.observing(
            lambda one: plans.extend(part.executable.plan for part in one.programs)
        ):
            y.realize(sums)
        (plan,) = plans
        assert [step.kernel.arg.sums for step in plan.steps] == [0 if refuses else 1, 0]
        wide = y.float().numpy().astype(np.float64)
        exact = left.float().numpy().astype(np.float64) @ right.float().numpy().astype(np.float64)
        np.testing.assert_allclose(wide, exact, rtol=2.0**-8, atol=1e-4)
        np.testing.assert_allclose(sums.numpy(), np.square(wide).sum(1), rtol=1e-5)
