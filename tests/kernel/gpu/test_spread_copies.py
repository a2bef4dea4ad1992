"""Copies between the steps of products: the same copies, each begun once, and closed behind all."""

from __future__ import annotations

from typing import Any

import pytest

from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel import choose_schedule
from baregrad.kernel.gpu.spread_copies import spread_copies
from baregrad.kernel.planning.gpu import gemm_mma
from baregrad.kernel.planning.gpu.gemm_tiles import TileChoice, WarpTile
from baregrad.render import get
from tests.kernel import kernels as k
from tests.kernel.contractions import contraction
from tests.kernel.gpu_kernels import HOPPER, check_gpu


def pipelined(kernel: Node, tile: WarpTile, monkeypatch: pytest.MonkeyPatch) -> str:
    """The PTX of a product with three slots, whose values were checked at each level."""
    monkeypatch.setattr(gemm_mma, "ranked_tiles", lambda *_: [TileChoice(tile, 3, 0.0)])
    return str(get("ptx").render(check_gpu(kernel, choose_schedule(kernel, HOPPER)), HOPPER))


def loop_of(text: str) -> list[str]:
    """What the loop of a text does that counts, in order."""
    inside = text.partition("L1:")[2].partition("bra L1;")[0]
    names = ("bar.sync", "ldmatrix", "mma.sync", "cp.async.cg", "commit_group", "wait_group")
    found = [name for line in inside.splitlines() for name in names if name in line]
    return [one for one, before in zip(found, ["", *found], strict=False) if one != before]


def copies(order: list[Any], what: str) -> list[int]:
    return [place for place, one in enumerate(order) if one == what]


@pytest.mark.parametrize("arrays", [("ax", "nx"), ("ax", "xn"), ("xa", "nx")], ids=str)
def test_copies_are_begun_between_steps(
    arrays: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = contraction((64,), (64,), (256,), *arrays, "an")
    text = pipelined(kernel, WarpTile(2, 2, 2, 4), monkeypatch)
    order = loop_of(text)
    begun = copies(order, "cp.async.cg")
    assert order[:2] == ["wait_group", "bar.sync"]
    assert len(begun) == 3
    assert all("mma.sync" in order[a:b] for a, b in zip([0, *begun], begun, strict=False))
    (closed,) = copies(order, "commit_group")
    assert begun[-1] < closed < len(order) - 1
    assert "bra E" not in text.partition("L1:")[2].partition("bra L1;")[0]


def test_edges_stay_conditions_of_each_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = contraction((72,), (40,), (208,), "ax", "nx", "an")
    order = loop_of(pipelined(kernel, WarpTile(2, 1, 2, 2), monkeypatch))
    assert "mma.sync" in order[: order.index("cp.async.cg")]


def test_sums_of_threads_are_written_out_as_well() -> None:
    kernel = k.matmul(32, 32, 640)
    program = check_gpu(kernel, choose_schedule(kernel, HOPPER))
    inside = str(get("ptx").render(program, HOPPER)).partition("L1:")[2].partition("bra L1;")[0]
    begun = [place for place, line in enumerate(inside.splitlines()) if "cp.async.c" in line]
    sums = [place for place, line in enumerate(inside.splitlines()) if "fma.rn.f32" in line]
    assert begun[0] > sums[0]
    assert begun[-1] < sums[-1]
    assert inside.count("bra ") == 0
    assert len(sums) % 16 == 0


def test_kernels_without_products_are_the_same() -> None:
    kernel = contraction((4,), (4,), (4,), "ax", "nx", "an")
    assert spread_copies(kernel) is kernel
    assert not any(node.op is Ops.MMA for node in toposort(kernel))
