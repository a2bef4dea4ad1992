"""Products beside their threads: where they begin, and where they are waited for."""

from __future__ import annotations

from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel.gpu.group_products import group_products
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import HOPPER, lowered
from tests.kernel.instructions.test_mma_sync import product
from tests.kernel.instructions.test_wgmma import ASYNC, text
from tests.kernel.linearise.programs import thread_level


def names(program: Node) -> list[str]:
    """The machine's instructions and the loops around them, repeated ones once."""
    found: list[str] = []
    for node in program.src:
        name = node.arg.name if node.op is Ops.MACHINE else node.op.name
        if node.op in (Ops.MACHINE, Ops.BEGIN, Ops.END) and found[-1:] != [name]:
            found.append(name)
    return found


def test_products_begin_ahead_of_copies_and_are_waited_for_behind_them() -> None:
    _, program = lowered(product(64, 64, 512, b_t=True), text((False, True), ASYNC.format(3)))
    code = names(program)
    loop = code[code.index("BEGIN") :]
    end = len(loop) - loop[::-1].index("END")
    order = [name for name in loop[:end] if name != "END"]
    assert order == [
        "BEGIN", "cp.async.wait", "fence.proxy.async", "bar.sync", "wgmma.fence", "wgmma",
        "wgmma.commit", "cp.async", "cp.async.commit", "wgmma.wait",
    ]  # fmt: skip
    assert loop[end] == "wgmma.wait"


def test_without_a_ring_products_are_waited_for_at_once() -> None:
    _, program = lowered(product(64, 64, 128, b_t=True), text((False, True)))
    code = [name for name in names(program) if name not in ("BEGIN", "END")]
    panel = ["fence.proxy.async", "bar.sync", "wgmma.fence", "wgmma", "wgmma.commit", "wgmma.wait"]
    begin = code.index("wgmma.fence") - 2
    assert code[begin : begin + len(panel)] == panel


def test_steps_of_a_panel_are_one_product() -> None:
    node = thread_level(product(64, 64, 128, b_t=True), text((False, True)))
    (group,) = [one for one in toposort(node) if one.op is Ops.MMA]
    assert len(group.src) == 8 and group.src[7].src[0].arg == 4


def test_the_next_tile_comes_before_results_are_stored() -> None:
    spelled = f"{text((False, True), ASYNC.format(3))[:-1]}, persist(2))"
    node = thread_level(product(320, 64, 512, b_t=True), spelled)
    *start, turns = [one for one in node.src if one.op is not Ops.DONE]
    # Two panels of the first tile.
    assert [one.op for one in start].count(Ops.COMMIT) == 1 and turns.op is Ops.LOOP
    inside = list(turns.src[1].src)
    loop = next(at for at, one in enumerate(inside) if one.op is Ops.LOOP)
    store = max(at for at, one in enumerate(inside) if one.op is Ops.STORE)
    copied = [at for at, one in enumerate(inside) if one.mask & Ops.COPYTO.bit and at != loop]
    assert loop < min(copied) and max(copied) < store
    met = [one.op for one in inside[loop : min(copied)]]
    assert met == [Ops.LOOP, Ops.DONE, Ops.FENCE, Ops.BARRIER]


def test_other_kernels_stay_as_they_are() -> None:
    loop, _ = lowered(k.matmul(64, 64, 64), "Schedule(bind('i0', 'grid'))", HOPPER)
    assert group_products(loop) is loop
