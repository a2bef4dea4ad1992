"""Last products behind the next iteration's barrier: what they read, in which order they add."""

from __future__ import annotations

import pytest

from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.kernel import choose_schedule
from baregrad.kernel.linearise.late_products import delay_products
from baregrad.kernel.planning.gpu import gemm_mma
from baregrad.kernel.planning.gpu.gemm_tiles import TileChoice, WarpTile
from tests.kernel.contractions import contraction
from tests.kernel.gpu_kernels import HOPPER, check_gpu


def planned(
    monkeypatch: pytest.MonkeyPatch, slots: int, sizes: tuple[int, int, int] = (64, 64, 192)
) -> Node:
    """The PROGRAM of a product, whose values were checked at each level."""
    tile = TileChoice(WarpTile(2, 2, 2, 4), slots, 0.0)
    monkeypatch.setattr(gemm_mma, "ranked_tiles", lambda *_: [tile])
    m, n, deep = sizes
    kernel = contraction((m,), (n,), (deep,), "ax", "xn", "an")
    return check_gpu(kernel, choose_schedule(kernel, HOPPER))


def parts(program: Node) -> list[list[Node]]:
    """What is before a program's loop, in it up to the barrier, behind that, and behind it all."""
    code = list(program.src)
    (begin,) = [place for place, node in enumerate(code) if node.op is Ops.BEGIN]
    end = max(place for place, node in enumerate(code) if node.op is Ops.END)
    body = code[begin:end]
    meeting = next(place for place, node in enumerate(body) if named(node, "bar.sync"))
    return [code[:begin], body[:meeting], body[meeting:], code[end:]]


def named(node: Node, name: str) -> bool:
    return node.op is Ops.MACHINE and bool(node.arg.name == name)


def products(code: list[Node]) -> list[Node]:
    return [node for node in code if named(node, "mma.sync")]


@pytest.mark.parametrize("slots", [2, 3])
def test_a_loop_begins_with_what_the_iteration_before_has_read(
    monkeypatch: pytest.MonkeyPatch, slots: int
) -> None:
    before, above, inside, behind = parts(planned(monkeypatch, slots))
    # Two by four tiles, of which each has four steps in an iteration.
    assert [len(products(code)) for code in (before, above, inside, behind)] == [0, 0, 32, 8]
    late = products(behind)
    assert products(inside)[:8] == late
    first_read = next(place for place, node in enumerate(inside) if named(node, "ldmatrix"))
    assert len(products(inside[:first_read])) == 8
    zeros = {node.src[0] for node in before if node.op is Ops.SET and node.src[1].arg == 0}
    assert zeros.issuperset(register for node in late for register in node.src[:-2])
    read = {one for node in inside if named(node, "ldmatrix") for one in node.src[2:]}
    assert read.issuperset(register for node in late for register in node.src[:-2])


def test_programs_without_copies_ahead_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    program = planned(monkeypatch, 1)
    assert delay_products(program).src == program.src
    assert any(node.op is Ops.BEGIN for node in program.src)
