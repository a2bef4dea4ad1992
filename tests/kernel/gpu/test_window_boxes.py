"""Boxes of windows: an engine walks along places of an image, and what lies beside it is zeros."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from baregrad.base.errors import ScheduleError
from baregrad.dtypes import DType, dtypes
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, alu, cast, range_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.core.substitution import substitute
from baregrad.kernel import choose, facts_of
from baregrad.kernel.gpu.window_boxes import window_of
from baregrad.kernel.language.schedule import Schedule, StageFactor
from baregrad.kernel.planning.gpu import gemm_mma
from baregrad.kernel.planning.gpu.gemm_factors import gemm_factors
from baregrad.kernel.planning.gpu.gpu_plan import GpuPlan
from baregrad.render import get
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import HOPPER, lowered, run_text, run_threads
from tests.kernel.test_gpu_assembles import assembled, needs_ptxas

F32 = dtypes.float32


class Conv(NamedTuple):
    """A convolution of images whose channels lie innermost."""

    images: int
    sides: tuple[int, ...]
    channels: int = 64
    filters: int = 64
    taps: int = 3
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1
    backwards: bool = False
    dtype: DType = dtypes.float16

    @property
    def results(self) -> list[int]:
        reach = self.dilation * (self.taps - 1) + 1
        return [(side + 2 * self.padding - reach) // self.stride + 1 for side in self.sides]

    def read(self, image: Node, at: list[Node], taps: list[Node], channel: index.Dim) -> Node:
        """The element that each tap of a window reads, zero beside the image."""
        steps = [index.sub(self.taps - 1, tap) if self.backwards else tap for tap in taps]
        places = [
            index.sub(index.add(index.mul(one, self.stride), index.mul(step, self.dilation)),
                      self.padding)
            for one, step in zip(at, steps, strict=True)
        ]
        array = k.param(1, self.images, *self.sides, self.channels, dtype=self.dtype)
        read = k.at(array, image, *places, channel)
        pairs = zip(places, self.sides, strict=True)
        inside = index.both(*[index.inside(place, side) for place, side in pairs])
        return read if inside.op is Ops.CONST and inside.arg else k.guard(inside, read)

    def forward(self) -> Node:
        rank, own, filters = len(self.sides), self.channels // self.groups, self.filters
        each = filters // self.groups
        sizes = [self.groups, self.images, each, *self.results, own, *[self.taps] * rank]
        group, image, one, *others = (range_node(size, at) for at, size in enumerate(sizes))
        at, channel, taps = others[:rank], others[rank], others[rank + 1 :]
        array = k.param(2, self.groups, each, *[self.taps] * rank, own, dtype=self.dtype)
        weight = k.at(array, group, one, *taps, channel)
        read = self.read(image, at, taps, index.add(index.mul(group, own), channel))
        total = k.reduce(Ops.ADD, alu(Ops.MUL, cast(read, F32), cast(weight, F32)), channel, *taps)
        out = k.param(0, self.images, self.groups, each, *self.results)
        return k.kernel(k.out(out, total, image, group, one, *at), name="convolution")

    def by_filter(self) -> Node:
        rank = len(self.sides)
        sizes = [self.filters, *[self.taps] * rank, self.channels, self.images, *self.results]
        one, *others = (range_node(size, at) for at, size in enumerate(sizes))
        taps, channel, image, at = others[:rank], others[rank], others[rank + 1], others[rank + 2 :]
        array = k.param(2, self.images, *self.results, self.filters, dtype=self.dtype)
        given = k.at(array, image, *at, one)
        read = self.read(image, at, taps, channel)
        total = k.reduce(Ops.ADD, alu(Ops.MUL, cast(read, F32), cast(given, F32)), image, *at)
        out = k.param(0, self.filters, *[self.taps] * rank, self.channels)
        return k.kernel(k.out(out, total, one, *taps, channel), name="gradient")


@pytest.fixture(autouse=True)
def small_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products for groups of warps whose panels are boxes, of the smallest tiles."""
    ranked = gemm_mma.ranked_groups

    def boxes_alone(*given: Any, **named: Any) -> list[Any]:
        found = [one for one in ranked(*given, **named) if one.boxes]
        cheap = [one._replace(cycles=one.tile.m * one.tile.n / 1e6 + one.slots) for one in found]
        return sorted(cheap, key=lambda one: one.cycles)

    monkeypatch.setattr(gemm_mma, "ranked_groups", boxes_alone)


def check(kernel: Node) -> Node:
    """All levels give what the kernel does, by a walk; its PROGRAM."""
    choice = choose(kernel, HOPPER)
    loop, program = lowered(kernel, choice.schedule)
    arrays = k.arguments(kernel)
    wanted = k.run_kernel(kernel, arrays)
    k.assert_equal(wanted, k.run_loop(loop, arrays))
    found = run_threads(loop, program, arrays)
    k.assert_equal(wanted, found)
    np.testing.assert_array_equal(run_text(loop, program, arrays)[0], found[0])
    names = [node.arg.name for node in program.src if node.op is Ops.MACHINE]
    assert "tma.walk" in names and "cp.async" not in names
    assert any("walks along places" in reason for reason in choice.why())
    return program


CONVS = {
    "padded, of every other place": Conv(3, (11, 12), stride=2, padding=1),
    "grouped, backwards": Conv(2, (9, 8), 128, 128, padding=1, groups=2, backwards=True),
}
MORE = {
    "padded": Conv(2, (8, 8), padding=1),
    "not padded": Conv(2, (10, 9)),
    "every other place": Conv(3, (11, 12), stride=2),
    "dilated": Conv(2, (9, 10), padding=2, dilation=2),
    "dilated, of every third place": Conv(6, (14, 13), padding=1, dilation=2, stride=3),
    "along one axis": Conv(2, (50,), taps=5, padding=2),
    "along three": Conv(2, (4, 5, 6), padding=1),
    "along three, of every other place": Conv(2, (7, 5, 6), padding=1, stride=2),
    "one image": Conv(1, (9, 10), padding=1),
    "many taps": Conv(1, (9, 10), taps=5, padding=2),
    "many channels": Conv(1, (9, 8), 192, 64, padding=1),
    "backwards, not padded": Conv(2, (10, 9), backwards=True),
    "padded by more than the window": Conv(2, (5, 6), padding=4),
    "of one image, padded far": Conv(1, (5, 6), padding=6, dilation=3),
    "brain floats": Conv(2, (8, 9), padding=1, dtype=dtypes.bfloat16),
}


@pytest.mark.parametrize("name", CONVS)
def test_convolutions(name: str) -> None:
    check(CONVS[name].forward())


def test_places_that_lie_together_are_stored_at_once() -> None:
    """They come in the order of the walk: lanes exchange theirs of four tiles."""
    program = check(MORE["padded"].forward())
    stores = [node for node in program.src
              if node.op is Ops.VSTORE and node.src[0].op is Ops.PARAM]  # fmt: skip
    assert stores and all(node.arg.width == 8 and node.arg.stride == 1 for node in stores)


def test_a_gradient_by_the_filter() -> None:
    """The walk is summed along: what lies beyond the last image is zeros."""
    check(Conv(3, (9, 10), padding=1, stride=2).by_filter())


@needs_ptxas
def test_walks_assemble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm_mma, "WALKED", 1.0)
    kernel = CONVS["padded, of every other place"].forward()
    _, program = lowered(kernel, choose(kernel, HOPPER).schedule)
    _, spilled = assembled(get("ptx").render(program, HOPPER), "sm_90a")
    assert not spilled
    text = get("cuda").render(program, HOPPER)
    assert "tensor.4d.shared::cluster.global.im2col.mbarrier" in text
    assert "[%1, {%3, %4, %5, %6}], [%2], {%7, %8}" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_more_convolutions(name: str) -> None:
    check(MORE[name].forward())


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n, conv in {**CONVS, **MORE}.items() if conv.groups == 1])
def test_more_gradients_by_the_filter(name: str) -> None:
    check({**CONVS, **MORE}[name].by_filter())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_random_convolutions(seed: int) -> None:
    r = np.random.default_rng(seed)
    rank = int(r.choice([1, 2, 2, 2, 3]))
    most = {1: 60, 2: 14, 3: 7}[rank]
    taps, dilation = int(r.integers(2, 5)), int(r.integers(1, 3))
    least = dilation * (taps - 1) + 1
    padding = int(r.integers(0, least + 2))
    sides = tuple([int(r.integers(max(least - 2 * padding, 2), most + least)) for _ in range(rank)])
    conv = Conv(
        int(r.integers(1, 5)), sides, 64 * int(r.integers(1, 3)), 64, taps, int(r.integers(1, 4)),
        padding, dilation, backwards=bool(r.integers(2)),
    )  # fmt: skip
    kernel = conv.by_filter() if r.integers(2) else conv.forward()
    factors = gemm_factors(GpuPlan(facts_of(kernel), HOPPER))
    # Of a lone place there is no product.
    rows, columns, steps, _ = (1, 1, 1, 1) if factors is None else factors.sizes()
    if min(rows, columns) < 64 or steps <= 64:
        # There are no groups of warps for fewer results, and no ring of one panel.
        assert "'tma'" not in str(choose(kernel, HOPPER).schedule)
    else:
        check(kernel)


def test_other_schedules_are_refused_where_no_walk_fills_rows() -> None:
    """A schedule by hand: rows whose chunks are not exchanged, or what is computed of an image."""
    kernel = CONVS["padded, of every other place"].forward()
    schedule = choose(kernel, HOPPER).schedule
    straight = [
        replace(step, swizzle=0) if isinstance(step, StageFactor) else step
        for step in schedule.steps
    ]
    reads = [node for node in toposort(kernel) if node.op is Ops.GUARD]
    doubled = substitute(kernel, {read: alu(Ops.ADD, read, read) for read in reads})
    for one, steps in ((kernel, straight), (doubled, schedule.steps)):
        with pytest.raises(ScheduleError, match="a factor is no box of an input"):
            lowered(one, Schedule(tuple(steps)))


def refused() -> dict[str, Conv]:
    return {
        "corners that a map has no bits for": Conv(1, (200, 4), padding=130, taps=3),
        "steps that are too long": Conv(2, (40, 40), stride=9, padding=1),
        "four axes": Conv(1, (3, 3, 3, 3), padding=1),
        "channels that are no whole row": Conv(2, (9, 9), 72),
    }


@pytest.mark.parametrize("what", sorted(refused()))
def test_what_is_no_window(what: str) -> None:
    conv = refused()[what]
    factors = gemm_factors(GpuPlan(facts_of(conv.forward()), HOPPER))
    assert factors is not None
    (read,) = next(one for one in (factors.left, factors.right) if one.slot == 1).reads
    walked = [axis for axis in read.offset.strides if axis in {*factors.rows, *factors.columns}]
    channels = next(axis for axis, stride in read.offset.strides.items() if stride == 1)
    assert window_of(read, sorted(walked, key=lambda axis: axis.arg.id), channels) is None
