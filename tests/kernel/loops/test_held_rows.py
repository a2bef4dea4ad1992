"""Rows that threads hold in registers: the same values at every level, each element read once."""

from __future__ import annotations

import re
from typing import Any

import pytest

from baregrad import render
from baregrad.engine.compiler import Compiler
from baregrad.graph import canonicalise
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel import choose_schedule, lower
from baregrad.kernel.loops.held_rows import hold_rows
from baregrad.schedule import make_plan
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import HOPPER, check_gpu
from tests.schedule.graphs import A, param, sink

KERNELS = {"softmax": k.softmax, "layer_norm": k.layer_norm}


def stages(kernel: Node) -> list[Node]:
    """The values that a kernel keeps in registers."""
    return [node for node in toposort(hold_rows(kernel, HOPPER)) if node.op is Ops.STAGE]


def tile(kernel: Node) -> list[int]:
    """The extents of the axes that what is held lies along, outermost first."""
    return [int(axis.src[0].arg) for axis in stages(kernel)[0].src[1:]]


def planned(*values: A) -> list[Node]:
    """The kernels of a graph."""
    return list(
        make_plan(canonicalise(sink(*values), None, HOPPER), donate={}, target=HOPPER).kernels
    )


def text_of(kernel: Node) -> str:
    *_, last = Compiler(HOPPER, render.get("ptx"), None, None).stages(kernel)
    return str(last.result)


def softmax(x: A) -> A:
    high = (x - x.max(-1, keep=True)).exp()
    return high / high.sum(-1, keep=True)


@pytest.mark.parametrize("name", ["softmax", "layer_norm"])
@pytest.mark.parametrize("length", [26, 77, 128, 513, 1100])
def test_rows_of_every_length(name: str, length: int) -> None:
    """Parts of a warp, a warp, several warps; and lengths that no access divides."""
    kernel = KERNELS[name](3, length)
    assert stages(kernel)
    check_gpu(kernel, choose_schedule(kernel, HOPPER))


@pytest.mark.parametrize("rows", [4096, 4093])
@pytest.mark.parametrize(("length", "accesses"), [(64, 1), (1000, 8), (8192, 4)])
def test_each_element_is_read_once_by_the_widest_access(
    length: int, accesses: int, rows: int
) -> None:
    (kernel,) = planned(softmax(param(0, rows, length)))
    text = text_of(kernel)
    assert re.findall(r"ld\.global\S*", text) == ["ld.global.v4.f32"] * accesses
    assert re.findall(r"st\.global\S*", text) == ["st.global.v4.f32"] * accesses
    # An exponential halves its power of two once, unsigned; nothing else here shifts so.
    assert text.count("shr.u32") == 4 * accesses


@pytest.mark.parametrize("rows", [1, 7, 4096])
def test_the_order_of_sums_does_not_depend_on_the_number_of_rows(rows: int) -> None:
    assert tile(k.softmax(rows, 8192)) == tile(k.softmax(32, 8192))


def test_the_order_of_sums_does_not_depend_on_what_is_made_beside_them() -> None:
    x, g = param(0, 512, 8192), param(1, 512, 8192)
    y = softmax(x)
    gradient = (g - (g * y).sum(-1, keep=True)) * y
    (alone,) = planned(y)
    for kernel in planned(gradient):
        assert tile(kernel) == tile(alone)


def test_weights_that_all_rows_share_are_not_held() -> None:
    """They lie in caches; the registers are for the rows."""
    x, w = param(0, 512, 1024), param(1, 1024)
    scaled = x * w.to(x.shape)
    centred = scaled - scaled.mean(-1, keep=True)
    (kernel,) = planned(centred * x)
    (stage,) = stages(kernel)
    reads = [node for node in toposort(stage) if node.op is Ops.INDEX]
    assert [node.src[0].arg.slot for node in reads] == [1]


@pytest.mark.parametrize("length", [8, 24, 1 << 16])
def test_rows_too_short_or_too_long_are_read_again(length: int) -> None:
    assert stages(k.softmax(3, length)) == []


def test_other_kernels_stay_as_they_are() -> None:
    others: tuple[Any, ...] = (
        k.row_reduce(5, 70), k.column_reduce(7, 50), k.matmul(8, 8, 16), k.arg_max(4, 100),
        k.rows_scaled_by_columns(8, 16), k.elementwise(5, 64),
    )
    for kernel in others:
        assert hold_rows(kernel, HOPPER) is kernel


def test_loops_have_no_loop_over_a_row() -> None:
    loop = lower(k.softmax(4, 512), HOPPER)
    axes = {node.src[0].arg.axis for node in toposort(loop) if node.op is Ops.LOOP}
    assert not any(name.startswith("r") for name in axes)
