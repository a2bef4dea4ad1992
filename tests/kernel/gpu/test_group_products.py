"""Products beside their threads: where they begin, and where they are waited for."""

from __future__ import annotations

import pytest

from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, alu, cast, range_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel.gpu.group_products import group_products
from baregrad.testing.virtual_gpu.ptx.errors import IllegalInstruction, SharedMemoryRace
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import HOPPER, check_gpu, lowered, run_text
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
        "wgmma.commit", "wgmma.wait", "bar.sync", "cp.async", "cp.async.commit",
    ]  # fmt: skip
    assert loop[end] == "wgmma.wait"


ORDER = {
    "cp.async.wait": SharedMemoryRace, "fence.proxy.async": IllegalInstruction,
    "bar.sync": SharedMemoryRace, "wgmma.commit": SharedMemoryRace,
    "cp.async.commit": SharedMemoryRace, "wgmma.wait": SharedMemoryRace,
}  # fmt: skip


@pytest.mark.parametrize("slots", [2, 3])
def test_nothing_that_orders_a_rings_loop_can_be_left_out(slots: int) -> None:
    """The virtual GPU finds out what lacks any one of it."""
    kernel = product(64, 64, 320, b_t=True)
    loop, program = lowered(kernel, text((False, True), ASYNC.format(slots)))
    arrays = k.arguments(kernel)
    k.assert_equal(k.run_kernel(kernel, arrays), run_text(loop, program, arrays))
    code = list(program.src)
    wait = next(at for at, one in enumerate(code) if _is(one, "cp.async.wait"))
    begin = max(at for at in range(wait) if code[at].op is Ops.BEGIN)
    left = dict(ORDER)
    for at, node in enumerate(code[begin:], begin):
        fault = left.pop(node.arg.name, None) if node.op is Ops.MACHINE else None
        if fault is not None:
            with pytest.raises(fault):
                run_text(loop, program.replace(src=(*code[:at], *code[at + 1 :])), arrays)
    assert not left


def _is(node: Node, name: str) -> bool:
    return node.op is Ops.MACHINE and bool(node.arg.name == name)


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
    assert [one.op for one in start].count(Ops.COMMIT) == 2 and turns.op is Ops.LOOP
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


def test_a_first_tile_of_rows_that_are_not_there() -> None:
    """Nobody copies them: the first iteration's copies, ahead of all, are constants."""
    i, j, q = (range_node(size, place) for place, size in enumerate((192, 64, 128)))
    rows = k.at(k.param(1, 128, 128, dtype=dtypes.float16), index.sub(i, 64), q)
    left = cast(k.guard(index.less(63, i), rows), dtypes.float32)
    right = cast(k.at(k.param(2, 64, 128, dtype=dtypes.float16), j, q), dtypes.float32)
    total = k.reduce(Ops.ADD, alu(Ops.MUL, left, right), q)
    kernel = k.kernel(k.out(k.param(0, 192, 64), total, i, j), name="padded")
    check_gpu(kernel, f"{text((False, True), ASYNC.format(3))[:-1]}, persist(1))")
