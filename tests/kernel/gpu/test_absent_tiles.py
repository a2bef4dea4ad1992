"""Tiles that are not there, as a number in memory says: zeros, stored behind all others."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from baregrad.graph import canonicalise
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel.gpu.pictures import pipeline_lines
from baregrad.render import get
from baregrad.schedule import make_plan
from baregrad.tensor import Tensor
from tests.graph.streams.test_passes import graph_of
from tests.kernel import kernels as k
from tests.kernel.gpu.test_clusters import together
from tests.kernel.gpu.test_roles import ASYNC, BRAIN, TMA, of_tiles
from tests.kernel.gpu_kernels import HOPPER, lowered, run_text, run_threads

TILES, ROWS, COLUMNS, STEPS, BLOCKS = 5, 64, 128, 256, 3


Form = Callable[[Tensor, Tensor, Tensor], list[Tensor]]
FORMS: dict[str, Form] = {
    "other numbers": lambda there, product, other: [there.where(product * 2, other)],
    "more behind the choice": lambda there, product, other: [there.where(product, 3) + other],
    "two results": lambda there, product, other: [there.where(product, other),
                                                  there.where(product + 1, 7)],
}  # fmt: skip


def zeros(there: Tensor, product: Tensor, other: Tensor) -> list[Tensor]:
    return [there.where(product, 0)]


def first_tiles(before: bool, form: Form = zeros) -> Node:
    """Tiles of rows, each times the matrix that an array names for it; the first ones, or the last.

    before: those in front of a number in memory are there. form: results, of which tiles are there,
    of the product and of other numbers.
    """
    x = Tensor.empty(TILES, ROWS, STEPS, dtype=BRAIN)
    weights = Tensor.empty(2, COLUMNS, STEPS, dtype=BRAIN)
    which, count = Tensor.empty(TILES, dtype="int32"), Tensor.empty(1, dtype="int32")
    other = Tensor.empty(TILES, ROWS, COLUMNS, dtype="float32")
    given = [one.realize() for one in (x, weights, which, count, other)]
    number = Tensor.arange(TILES, dtype="int32")
    product = x.matmul(weights[which].mT, out_dtype="float32")
    there = (number < count if before else count < number)[:, None, None]
    sink = canonicalise(graph_of(form(there, product, other), given), target=HOPPER)
    (kernel,) = make_plan(sink, target=HOPPER).kernels
    return kernel


def by_sizes(kernel: Node) -> tuple[dict[int, Any], dict[int, int]]:
    """Values of a kernel's arrays, and the slots of those of one axis, by its size."""
    leaves = [leaf.arg for leaf in toposort(kernel) if leaf.op is Ops.PARAM]
    return k.arguments(kernel), {one.shape[0]: one.slot for one in leaves if len(one.shape) == 1}


def some(found: Any) -> list[bool]:
    return [bool(tile.any()) for tile in found.reshape(TILES, -1)]


@pytest.mark.parametrize("pipe", [
    TMA, pytest.param(ASYNC, marks=pytest.mark.slow),
], ids=["boxes", "threads"])  # fmt: skip
def test_tiles_that_are_not_there_are_stored_last(pipe: str) -> None:
    """Whatever the number is; the products' loop has no condition, and their stores no choice."""
    kernel = first_tiles(True)
    arrays, slots = by_sizes(kernel)
    arrays[slots[TILES]] = np.array([1, 0, 1, 1, 0], np.int32)
    loop, program = lowered(kernel, of_tiles(pipe, 2, BLOCKS))
    assert "stored behind all others" in pipeline_lines(loop, HOPPER)[-1]
    for there in (3, 0, 7, -2):
        arrays[slots[1]] = np.array([there], np.int32)
        found = run_text(loop, program, arrays)
        k.assert_equal(k.run_kernel(kernel, arrays), found)
        assert some(found[0]) == [tile < there for tile in range(TILES)]
        if there == 3:
            np.testing.assert_array_equal(run_threads(loop, program, arrays)[0], found[0])
    text = get("ptx").render(program, HOPPER)
    products = text[text.index("wgmma.mma_async") :]
    stores = [products.index("st.global"), products.rindex("st.global")]
    if pipe == TMA:
        assert "selp" not in products[: stores[0]]
    # A loop of their own stores those that are not there.
    between = products[stores[0] : stores[1]]
    assert re.search(r"L\d+:", between) and "wgmma.mma_async" not in between


@pytest.mark.slow
def test_tiles_behind_a_number_are_where_they_lie() -> None:
    """A condition that holds from a number on tells nothing apart, and is asked for each tile."""
    kernel = first_tiles(False)
    arrays, slots = by_sizes(kernel)
    arrays[slots[TILES]] = np.zeros(TILES, np.int32)
    arrays[slots[1]] = np.array([2], np.int32)
    found = run_text(*lowered(kernel, of_tiles(TMA, 2, BLOCKS)), arrays)
    k.assert_equal(k.run_kernel(kernel, arrays), found)
    assert some(found[0]) == [False, False, False, True, True]


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_what_stands_for_tiles_that_are_not_there(name: str) -> None:
    """Whatever is stored in their place, by single blocks and by pairs of them."""
    kernel = first_tiles(True, FORMS[name])
    arrays, slots = by_sizes(kernel)
    arrays[slots[TILES]] = np.array([1, 0, 1, 1, 0], np.int32)
    for schedule in (of_tiles(TMA, 2, BLOCKS), together(of_tiles(TMA, 2, 4), "n")):
        loop, program = lowered(kernel, schedule)
        assert "stored behind all others" in "\n".join(pipeline_lines(loop, HOPPER))
        for there in (2, 0, TILES, -(1 << 31), (1 << 31) - 1):
            arrays[slots[1]] = np.array([there], np.int32)
            k.assert_equal(k.run_kernel(kernel, arrays), run_text(loop, program, arrays))
