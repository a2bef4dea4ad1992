"""Streams get blocks that fit the machine: their registers, their shared memory, their rows."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from baregrad.base.errors import ScheduleError
from baregrad.dtypes import dtypes
from baregrad.graph import canonicalise
from baregrad.ir.analysis.stream import is_chained
from baregrad.ir.core.index import variable
from baregrad.ir.core.node import extent_of, toposort
from baregrad.ir.core.op import Ops, mask_of
from baregrad.kernel import choose, lower
from baregrad.kernel.facts.stream_facts import POWERS, stream_facts
from baregrad.kernel.language.schedule import StreamTiles
from baregrad.kernel.planning.gpu import stream_plan
from baregrad.schedule import make_plan
from baregrad.target import gpu_row
from baregrad.target.gpu import GPU_ROWS, NvidiaTarget
from baregrad.tensor import Tensor
from baregrad.testing.examples.nests import attended, product
from baregrad.testing.ptx_device import ptx_session
from tests.graph.streams.test_passes import (
    BRAIN,
    Made,
    attention,
    by_hand,
    differentiated,
    graph_of,
    inputs,
)
from tests.kernel.gpu_kernels import HOPPER

POWER = mask_of(POWERS)


@pytest.mark.parametrize("target", [row for row in GPU_ROWS if row.async_copies], ids=str)
@pytest.mark.parametrize("width", (16, 32, 64, 96, 128, 192, 256))
def test_every_width_has_a_schedule_that_fits(target: NvidiaTarget, width: int) -> None:
    kernel = attended(512, 512, width, causal=True)
    choice = choose(kernel, target)
    (step,) = choice.schedule.steps
    assert isinstance(step, StreamTiles) and "a stream" in choice.why()[0]
    loop = lower(kernel, target, choice.schedule)
    arrays = [n for n in toposort(loop) if n.op is Ops.ALLOC and n.arg.space == "shared"]
    nbytes = sum(n.arg.depth * 2 * n.shape[0] * n.shape[1] for n in arrays)
    assert nbytes <= target.shared_bytes_per_block


@pytest.mark.parametrize("target", [row for row in GPU_ROWS if row.async_copies], ids=str)
@pytest.mark.parametrize("width", (16, 64, 80, 128, 144, 256))
@pytest.mark.parametrize("make", (attention(is_causal=True), by_hand()), ids=("once", "by hand"))
def test_gradients_of_every_width_are_streams(
    target: NvidiaTarget, width: int, make: Made
) -> None:
    given, results = differentiated(BRAIN, 160, 192, width, make)
    made = canonicalise(graph_of(results, given), None, target)
    kernels = make_plan(made, target=target).kernels
    steps = [choose(kernel, target).schedule.steps for kernel in kernels if kernel.mask & POWER]
    assert len(steps) >= 3 and all(isinstance(one, StreamTiles) for (one,) in steps)
    # Two sums of wide results would leave no registers.
    joined = [node for node in toposort(made) if is_chained(node) and len(node.src) == 2]
    assert len(joined) == (width <= 128)


def test_few_rows_have_few_warps() -> None:
    steps = {rows: choose(attended(rows, 64, 64), HOPPER).schedule.steps[0] for rows in (1, 20, 60)}
    assert [step.warps for step in steps.values() if isinstance(step, StreamTiles)] == [1, 2, 4]


def test_groups_of_warps_have_streams_of_many_rows() -> None:
    found = {}
    for rows, width in ((64, 64), (4096, 64), (4096, 128), (4096, 256), (4096, 80), (48, 64)):
        (step,) = choose(attended(rows, 512, width, causal=True), HOPPER).schedule.steps
        assert isinstance(step, StreamTiles)
        found[rows, width] = step.warps, step.instruction, step.ahead
    # Wide results leave no registers for a second block: scores are made ahead instead.
    groups = {(64, 64): (1, "wgmma", 1)}
    groups |= {(4096, width): (2, "wgmma", int(width > 128)) for width in (64, 128, 256)}
    assert {size: found.pop(size) for size in groups} == groups
    # Few rows, and rows that are no panels.
    assert {one[1:] for one in found.values()} == {("mma", 0)}
    other = gpu_row("sm_80")
    (step,) = choose(attended(4096, 512, 64), other).schedule.steps
    assert isinstance(step, StreamTiles) and step.instruction == "mma"


@pytest.mark.parametrize("rows", (32, 96))
def test_what_is_computed_beside_a_sequence_changes_no_tiles(rows: int) -> None:
    """Neither do others that share its keys, nor how many rows there are of a symbolic number."""

    def steps(batch: tuple[int, ...], keys: tuple[int, ...], heads: int = 2) -> list[object]:
        shapes = (*batch, rows, 64), *[(*keys, 256, 64)] * 2
        given = inputs(BRAIN, *shapes)
        made = canonicalise(graph_of(attention(enable_gqa=heads == 1)(*given), given), None, HOPPER)
        kernels = make_plan(made, target=HOPPER).kernels
        return [choose(kernel, HOPPER).schedule.steps for kernel in kernels if kernel.mask & POWER]

    alone = steps((1, 2), (1, 2))
    assert len(alone) == 1 and ("wgmma" in str(alone[0])) == (rows > 64)
    assert steps((5, 2), (5, 2)) == alone
    assert steps((1, 2), (1, 1), heads=1) == steps((3, 2), (3, 1), heads=1) == alone
    assert steps((2,), (2,)) == alone
    many = variable("many", 1, rows)
    symbolic, fixed = (choose(attended(each, 256, 64), HOPPER) for each in (many, rows))
    assert symbolic.schedule.steps == fixed.schedule.steps


@pytest.mark.parametrize(
    ("keys", "width", "shares"), [(1024, 64, 1), (1100, 64, 2), (8192, 128, 2), (2048, 256, 2)]
)
def test_warps_share_the_octets_of_a_part_as_far_as_several_blocks_fit(
    keys: int, width: int, shares: int
) -> None:
    """However many rows there are."""
    for batch in (1, 6):
        shapes = (batch, 4, 1, width), *[(batch, 2, keys, width)] * 2
        dtype_of = (BRAIN, dtypes.float8_e4m3fn, dtypes.float8_e4m3fn)
        given = [Tensor(np.zeros(shape, np.float32), dtype=dtype).realize()
                 for shape, dtype in zip(shapes, dtype_of, strict=True)]  # fmt: skip
        query, *caches = given
        out = query.scaled_dot_product_attention(
            *[one.bfloat16() for one in caches], enable_gqa=True
        )
        made = canonicalise(graph_of(out, given), None, HOPPER)
        choice = choose(make_plan(made, target=HOPPER).kernels[0], HOPPER)
        (step,) = choice.schedule.steps
        assert isinstance(step, StreamTiles) and step.shares == shares
        assert any("share the keys" in why for why in choice.why()) == (shares > 1)


def test_others_are_planned_as_before() -> None:
    for kernel, target in ((product(64, 64, 64), HOPPER), (attended(8, 8, 16), gpu_row("sm_75"))):
        steps = choose(kernel, target).schedule.steps
        assert not any(isinstance(step, StreamTiles) for step in steps)


@pytest.mark.parametrize("kind", ("windows", "lengths", "bools", "numbers", "capped"))
def test_no_mask_keeps_attention_off_the_units_of_groups(kind: str) -> None:
    """Forward and backward: windows, lengths that are read, masks of both kinds, capped scores."""
    given = inputs(BRAIN, *[(2, 2, 96, 64)] * 4)
    place, key = Tensor.arange(96).reshape(96, 1), Tensor.arange(96).reshape(1, 96)
    more = {
        "windows": Tensor([0]), "lengths": Tensor([20, 96]), "capped": Tensor([0]),
        "bools": place.expand(96, 96) % 3 != key % 2, "numbers": inputs(BRAIN, (96, 96))[0],
    }[kind].realize()  # fmt: skip
    leaves = [x.detach().requires_grad_() for x in given[:3]]
    masks = {
        "windows": (key <= place) & (key > place - 30), "bools": more, "numbers": more,
        "lengths": key < more.reshape(-1, 1, 1, 1), "capped": None,
    }  # fmt: skip
    make = by_hand(cap=8.0) if kind == "capped" else attention(attn_mask=masks[kind])
    out = make(leaves[0], leaves[1], leaves[2])
    out.backward(given[3])
    found = [leaf.grad for leaf in leaves if leaf.grad is not None]
    made = canonicalise(graph_of([out, *found], [*given, more]), None, HOPPER)
    kernels = make_plan(made, target=HOPPER).kernels
    steps = [choose(kernel, HOPPER).schedule.steps for kernel in kernels if kernel.mask & POWER]
    assert len(steps) >= 3
    assert all(isinstance(one, StreamTiles) and one.instruction == "wgmma" for (one,) in steps)


@pytest.mark.parametrize("is_causal", (True, False))
def test_blocks_of_several_heads_take_turns_where_some_have_more_keys(is_causal: bool) -> None:
    given, results = differentiated(BRAIN, 640, 640, 64, attention(is_causal=is_causal))
    made = canonicalise(graph_of(results, given), None, HOPPER)
    kernels = [one for one in make_plan(made, target=HOPPER).kernels if one.mask & POWER]
    assert len(kernels) >= 3
    for kernel in kernels:
        (step,) = choose(kernel, HOPPER).schedule.steps
        assert isinstance(step, StreamTiles)
        facts = stream_facts(kernel)
        assert facts is not None
        members = prod(int(extent_of(axis)) for axis in facts.batch)
        assert members > 1 and step.beside == (members if is_causal else 1)
        # A cache that holds the keys of one head, and one of two.
        one = max(int(extent_of(facts.key)), 1) * sum(facts.widths) * 2
        for count, nbytes in ((1, one), (2, 2 * one)):
            small = choose(kernel, replace(HOPPER, cache_bytes=nbytes)).schedule.steps[0]
            assert isinstance(small, StreamTiles) and small.beside == (count if is_causal else 1)


@pytest.mark.parametrize("beside", (2, 3))
def test_whose_turn_it_is_changes_no_bit(beside: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(beside)
    arrays = [rng.standard_normal((1, 4, 130, 64)).astype(np.float16) for _ in range(3)]
    found = []
    for count in (beside, 1):
        monkeypatch.setattr(stream_plan, "_beside", lambda facts, target, count=count: count)
        with ptx_session():
            made = Tensor.scaled_dot_product_attention(
                *[Tensor(one) for one in arrays], is_causal=True
            )
            if beside == count == 3:
                # Four heads are not whole turns of three.
                with pytest.raises(ScheduleError, match="members"):
                    made.numpy()
                return
            found.append(made.numpy())
    np.testing.assert_array_equal(found[0].view(np.uint16), found[1].view(np.uint16))
