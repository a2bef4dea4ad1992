"""Contractions of 16-bit floats that are planned for matrix units: joined axes, edges, batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, alu, cast, range_node
from baregrad.ir.core.op import Ops
from baregrad.kernel import choose, choose_schedule
from baregrad.render import get
from baregrad.target import gpu_row
from baregrad.tensor import Tensor
from baregrad.testing.ptx_device import ptx_session
from tests.kernel import kernels as k
from tests.kernel.gpu.test_gpu_assembles import assembled, needs_ptxas
from tests.kernel.gpu_kernels import HOPPER, check_gpu, lowered

HALF, F32 = dtypes.float16, dtypes.float32
Sizes = tuple[int, ...]


def contraction(
    rows: Sizes, columns: Sizes, depth: Sizes, left: str, right: str, out: str, batch: Sizes = (),
) -> Node:  # fmt: skip
    """A sum of products over axes that letters name: rows a b.., columns n o.., depth x y, batch s.

    Each of `left`, `right` and `out` spells the axes of an array, outermost first.
    """
    letters = dict(zip("abc", rows, strict=False)) | dict(zip("nop", columns, strict=False))
    letters |= dict(zip("xyz", depth, strict=False)) | dict(zip("st", batch, strict=False))
    order = [*out, *[letter for letter in letters if letter not in out]]
    axes = {letter: range_node(letters[letter], place) for place, letter in enumerate(order)}
    reads = []
    for slot, spelled in ((1, left), (2, right)):
        array = k.param(slot, *[letters[letter] for letter in spelled], dtype=HALF)
        reads.append(cast(k.at(array, *[axes[letter] for letter in spelled]), F32))
    summed = [axis for letter, axis in axes.items() if letter in "xyz"]
    total = k.reduce(Ops.ADD, alu(Ops.MUL, *reads), *summed)
    result = k.param(0, *[letters[letter] for letter in out])
    return k.kernel(k.out(result, total, *[axes[letter] for letter in out]), name="contraction")


def convolution(n: int, c: int, side: int, o: int, taps: int, padded: bool) -> Node:
    """A convolution in which the image has a margin, or is guarded around its edges."""
    axes = [range_node(size, place) for place, size in enumerate((n, o, side, side, c, taps, taps))]
    image, filters, row, column, channel, r, q = axes
    y, x = index.add(row, r), index.add(column, q)
    w = k.at(k.param(2, o, c, taps, taps, dtype=HALF), filters, channel, r, q)
    if padded:
        edge = side + taps - 1
        read = k.at(k.param(1, n, c, edge, edge, dtype=HALF), image, channel, y, x)
    else:
        y, x = index.sub(y, 1), index.sub(x, 1)
        read = k.at(k.param(1, n, c, side, side, dtype=HALF), image, channel, y, x)
        read = k.guard(index.both(index.inside(y, side), index.inside(x, side)), read)
    total = k.reduce(Ops.ADD, alu(Ops.MUL, cast(read, F32), cast(w, F32)), channel, r, q)
    result = k.param(0, n, o, side, side)
    return k.kernel(k.out(result, total, image, filters, row, column), name="convolution")


def copies(kernel: Node) -> tuple[int, int]:
    """How many elements copies of the left and the right factor take, as the plan says."""
    (told,) = (why for why in choose(kernel, HOPPER).why() if why.startswith("matrix units"))
    left, _, right = told.partition("copies of ")[2].removesuffix(" elements").partition(" and ")
    return int(left), int(right)


JOINED: dict[str, tuple[Node, tuple[int, int]]] = {
    "rows that lie together": (
        contraction((4, 24), (48,), (64,), "abx", "nx", "abn"), (8, 8)),
    "rows that do not": (
        contraction((4, 8), (32,), (64,), "abx", "nx", "bna"), (8, 8)),
    "depth that lies together": (
        contraction((32,), (48,), (4, 24), "xya", "xyn", "an"), (8, 8)),
    "depth that one factor has in another order": (
        contraction((32,), (40,), (6, 16), "axy", "nyx", "an"), (0, 8)),
    "columns that lie together across": (
        contraction((24,), (4, 16), (48,), "ax", "xno", "ano"), (8, 8)),
    "three axes a side": (
        contraction((2, 3, 8), (2, 2, 16), (4, 2, 8), "abcxyz", "xyznop", "abcnop"), (8, 8)),
    "batches": (
        contraction((32,), (24,), (32,), "sax", "sxn", "san", (3,)), (8, 8)),
    "batches turned": (
        contraction((32,), (24,), (32,), "sxa", "snx", "sna", (3,)), (8, 8)),
    "heads between": (
        contraction((32,), (24,), (32,), "satx", "sntx", "stan", (2, 2)), (8, 8)),
    "edges in the depth": (
        contraction((32,), (24,), (40,), "ax", "nx", "an"), (8, 8)),
    "odd sizes": (
        contraction((19,), (21,), (33,), "ax", "nx", "an"), (1, 1)),
    "few rows": (
        contraction((8,), (72,), (128,), "ax", "xn", "an"), (8, 8)),
    "few columns": (
        contraction((72,), (8,), (128,), "ax", "nx", "an"), (8, 8)),
}  # fmt: skip


@pytest.mark.parametrize("name", JOINED)
def test_axes_of_a_side_are_one(name: str) -> None:
    kernel, lanes = JOINED[name]
    schedule = choose_schedule(kernel, HOPPER)
    assert "tensorize" in str(schedule)
    assert sorted(copies(kernel)) == sorted(lanes)
    check_gpu(kernel, schedule)


@needs_ptxas
@pytest.mark.parametrize("sizes", [(4096, 4096, 4096), (16, 8192, 8192), (1000, 520, 200)])
@pytest.mark.parametrize("arrays", [("ax", "xn"), ("xa", "nx")], ids=str)
def test_no_tile_spills(sizes: tuple[int, int, int], arrays: tuple[str, str]) -> None:
    m, n, deep = sizes
    kernel = contraction((m,), (n,), (deep,), *arrays, "an")
    for row in ("sm_80", "sm_90a"):
        target = gpu_row(row)
        _, program = lowered(kernel, choose_schedule(kernel, target), target)
        registers, spilled = assembled(get("ptx").render(program, target), row)
        assert spilled == 0
        assert registers * math.prod(program.arg.block) <= target.registers_per_unit


def test_a_linear_layer_and_its_gradients_are_on_the_unit() -> None:
    rng = np.random.default_rng(0)
    x, w, g = (rng.standard_normal(shape).astype(np.float16)
               for shape in ((2, 16, 32), (48, 32), (2, 16, 48)))  # fmt: skip
    with ptx_session() as session:
        left, right = Tensor(x).requires_grad_(), Tensor(w).requires_grad_()
        y = left @ right.transpose(0, 1)
        y.backward(Tensor(g))
        assert left.grad is not None
        assert right.grad is not None
        found = [y.detach().numpy(), left.grad.numpy(), right.grad.numpy()]
        made = session.backend("NV").compiler._programs.values()
        assert sum("mma.sync" in one.source for one in made) == 3
    x, w, g = (one.astype(np.float64) for one in (x, w, g))
    wanted = [x @ w.T, g @ w, np.einsum("bto,bti->oi", g, x)]
    for one, other in zip(found, wanted, strict=True):
        assert np.abs(one - other).max() < 2.0**-9 * np.abs(other).max()


CONVOLUTIONS: tuple[tuple[Callable[..., Node], tuple[Any, ...]], ...] = (
    (convolution, (2, 8, 4, 16, 3, True)),
    (convolution, (2, 8, 4, 16, 3, False)),
    (convolution, (2, 16, 4, 16, 1, True)),
    (convolution, (1, 3, 5, 24, 3, False)),
)


@pytest.mark.parametrize(("make", "sizes"), CONVOLUTIONS)
def test_convolutions_are_products(make: Callable[..., Node], sizes: tuple[Any, ...]) -> None:
    kernel = make(*sizes)
    schedule = choose_schedule(kernel, HOPPER)
    assert "tensorize" in str(schedule)
    check_gpu(kernel, schedule)
