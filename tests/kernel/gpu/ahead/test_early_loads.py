"""What is used with a sum of threads is loaded before they meet, if nothing may write it first."""

from __future__ import annotations

import pytest

from baregrad.dtypes import dtypes
from baregrad.ir.core.attrs import Machine, Reg
from baregrad.ir.core.node import Node, alu, const, range_node
from baregrad.ir.core.op import Ops
from baregrad.kernel.gpu.ahead.early_loads import MOST_NBYTES, leave_to_first, load_early
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import check_gpu

BLOCK = "split('r1', outer='w', t=32), bind('w', 'thread_y'), bind('t', 'thread')"


def shares(rows: int, length: int) -> Node:
    """Rows over their sums, times weights of their own."""
    i, j, r = (range_node(size, at) for at, size in enumerate((rows, length, length)))
    x, weight = k.param(1, rows, length), k.param(2, length)
    total = k.reduce(Ops.ADD, k.at(x, i, r), r)
    value = alu(Ops.MUL, alu(Ops.MUL, k.at(x, i, j), total), k.at(weight, j))
    return k.kernel(k.out(k.param(0, rows, length), value, i, j))


def with_residual(rows: int, length: int) -> Node:
    """The sums of rows, and an element beside each."""
    i, r = range_node(rows, 0), range_node(length, 1)
    total = k.reduce(Ops.ADD, k.at(k.param(1, rows, length), i, r), r)
    value = alu(Ops.ADD, total, k.at(k.param(2, rows), i))
    return k.kernel(k.out(k.param(0, rows), value, i))


def behind(program: Node) -> list[Node]:
    """Loads of arguments behind the first fold."""
    code = program.src
    fold = next(place for place, node in enumerate(code) if node.op is Ops.MACHINE)
    return [node for node in code[fold:] if node.op is Ops.VLOAD and node.src[0].op is Ops.PARAM]


def test_weights_of_a_row_are_loaded_with_it() -> None:
    program = check_gpu(
        shares(3, 128),
        "Schedule(bind('i0', 'grid'), split('r2', outer='w', t=32), bind('w', 'thread_y'),"
        " bind('t', 'thread'), split('i1', outer='v', s=32), bind('v', 'thread_y'),"
        " bind('s', 'thread'))",
    )
    assert not behind(program)


@pytest.mark.parametrize(("rows", "late"), ((4, 0), (6, 1)))
def test_what_one_thread_adds_is_loaded_by_that_one(rows: int, late: int) -> None:
    """Under the condition of its use, and that of its row, unless another row is stored before."""
    program = check_gpu(
        with_residual(rows, 64),
        f"Schedule(split('i0', outer='b', u=4, masked=True), bind('b', 'grid'),"
        f" bind('u', 'unroll'), {BLOCK})",
    )
    loads = [one for one in program.src if one.op is Ops.VLOAD and one.src[0].op is Ops.PARAM]
    early = [one for one in loads if one.src[0].arg.slot == 2]
    assert early and all(len(node.src) == 3 for node in early)
    assert len(behind(program)) == late


def test_no_more_is_held_than_registers_have_room_for() -> None:
    program = check_gpu(
        with_residual(64, 64),
        f"Schedule(bind('i0', 'unroll'), {BLOCK})",
    )
    late = sum(max(node.arg.width, 1) * node.dtype.itemsize for node in behind(program))
    assert late == 64 * 4 - MOST_NBYTES


def test_what_may_have_been_written_is_loaded_in_its_turn() -> None:
    """Arguments may be the same memory, and what two sums give is stored after each."""
    i, r = range_node(4, 0), range_node(64, 1)
    outs = []
    for slot in (0, 1):
        total = k.reduce(Ops.ADD, k.at(k.param(2 + slot, 4, 64), i, r), r)
        value = alu(Ops.ADD, total, k.at(k.param(4 + slot, 4), i))
        outs.append(k.out(k.param(slot, 4), value, i))
    program = check_gpu(k.kernel(*outs), f"Schedule(bind('i0', 'grid'), {BLOCK})")
    stores = [place for place, node in enumerate(program.src)
              if node.op is Ops.VSTORE and node.src[0].op is Ops.PARAM]  # fmt: skip
    assert len(stores) == 2
    assert load_early(program) is program


def test_stores_ahead_of_a_fold_hold_everything_back() -> None:
    program = check_gpu(
        with_residual(4, 64), f"Schedule(bind('i0', 'grid'), {BLOCK})"
    )
    code = list(program.src)
    write = next(node for node in code if node.op is Ops.VSTORE and node.src[0].op is Ops.PARAM)
    atom = Node(Ops.MACHINE, dtypes.token, write.src[:3], Machine("atom.add", (0,)))
    for first in (write, atom):
        changed = program.replace(src=(first, *code))
        assert load_early(changed) is changed


@pytest.mark.parametrize("again", (False, True))
def test_a_place_that_is_read_anew_is_not_known_before(again: bool) -> None:
    """What a register holds then may be another number."""
    program = check_gpu(with_residual(4, 64), f"Schedule(bind('i0', 'grid'), {BLOCK})")
    code = list(program.src)
    write = next(place for place, one in enumerate(code)
                 if one.op is Ops.VSTORE and one.src[0].op is Ops.PARAM)  # fmt: skip
    loads = [one for one in code if one.op is Ops.VLOAD and one.src[0].op is Ops.PARAM]
    (one,) = [one for one in loads if one.src[0].arg.slot == 2]
    register = Node(Ops.REG, dtypes.int32, (), Reg(1 << 20, 1))
    read = Node(Ops.READ, dtypes.int32, (register,))
    zero, other = (
        Node(Ops.SET, dtypes.token, (register, const(place, dtypes.int32))) for place in (0, 1)
    )
    load = Node(Ops.VLOAD, dtypes.float32, (one.src[0], read), one.arg)
    late = (other, read, load) if again else (load,)
    changed = program.replace(src=(zero, read, *code[:write], *late, *code[write:]))
    assert (load in behind(load_early(changed))) == again


@pytest.mark.parametrize("length", [64, 96])
def test_one_warp_ends_a_sum_that_its_thread_stores(length: int) -> None:
    program = check_gpu(
        with_residual(4, length),
        f"Schedule(split('i0', outer='b', u=4, masked=True), bind('b', 'grid'),"
        f" bind('u', 'unroll'), {BLOCK})",
    )
    code = program.src
    barriers = [
        place for place, node in enumerate(code)
        if node.op is Ops.MACHINE and node.arg.name == "bar.sync"
    ]  # fmt: skip
    depth = 0
    depths = []
    for node in code[barriers[-1] :]:
        depth += (node.op is Ops.TEST) - (node.op is Ops.END)
        if node.op is Ops.VLOAD and node.src[0].op is Ops.ALLOC:
            depths.append(depth)
    assert depths and min(depths) == 1


def test_what_all_warps_need_of_a_sum_is_left_to_all() -> None:
    """Each element is over its row's sum: there is no thread that has to store it alone."""
    program = check_gpu(
        shares(3, 128),
        "Schedule(bind('i0', 'grid'), split('r2', outer='w', t=32), bind('w', 'thread_y'),"
        " bind('t', 'thread'), split('i1', outer='v', s=32), bind('v', 'thread_y'),"
        " bind('s', 'thread'))",
    )
    assert leave_to_first(program) is program
    assert not any(node.op is Ops.TEST for node in program.src)


@pytest.mark.parametrize("beside", (False, True))
def test_a_store_of_all_warps_beside_that_of_a_sum_is_left_to_all(beside: bool) -> None:
    """Under a condition around both, which warp stores the sum is not asked for the other."""
    program = check_gpu(
        with_residual(8, 64),
        f"Schedule(split('i0', outer='b', u=4, masked=True), bind('b', 'grid'),"
        f" bind('u', 'unroll'), {BLOCK})",
    )
    code = program.src
    first, inner = [place for place, node in enumerate(code) if node.op is Ops.TEST]
    thread = next(one for node in code for one in node.src if one.op is Ops.VAR)
    store = next(node for node in code if node.op is Ops.VSTORE and node.src[0].op is Ops.PARAM)
    around = Node(Ops.TEST, dtypes.token, (alu(Ops.CMPLT, thread, const(48, thread.dtype)),))
    other = store.replace(src=(k.param(5, 64), *store.src[1:]))
    # As all warps would fold the sum: without the condition on that, and with another one.
    code = (*code[:first], *code[first + 1 : inner], around, *code[inner:-1],
            *[other] * beside, code[-1])  # fmt: skip
    changed = program.replace(src=code)
    assert (leave_to_first(changed) is changed) == beside
