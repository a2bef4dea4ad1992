"""What lies apart in another array: a thread moves whole short rows, and unpacks whole words."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from baregrad import render
from baregrad.dtypes import DType, dtypes
from baregrad.engine.compiler import Compiler
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, alu, const, range_node
from baregrad.ir.core.op import Ops
from baregrad.kernel import choose_schedule
from baregrad.kernel.language.schedule import Bind, Split
from baregrad.kernel.planning.first_schedule import choose
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import HOPPER, check_gpu, lowered
from tests.kernel.packed_products import unpacked

# A machine that few threads keep busy, so that threads of small kernels have as much as of large.
SMALL = replace(HOPPER, busy_threads=1)


def planes_of(n: int, pixels: int, colours: int, dtype: DType) -> Node:
    """Images whose colours are neighbours, as planes."""
    i, c, p = (range_node(size, at) for at, size in enumerate((n, colours, pixels)))
    read = k.at(k.param(1, n, pixels, colours, dtype=dtype), i, p, c)
    value = alu(Ops.MUL, read, const(3, dtype))
    return k.kernel(k.out(k.param(0, n, colours, pixels, dtype=dtype), value, i, c, p))


def pixels_of(n: int, h: int, w: int, colours: int) -> Node:
    """Planes as images whose colours are neighbours, with a number added to each colour."""
    i, y, x, c = (range_node(size, at) for at, size in enumerate((n, h, w, colours)))
    read = k.at(k.param(1, n, colours, h, w), i, c, y, x)
    value = alu(Ops.ADD, read, k.at(k.param(2, colours), c))
    return k.kernel(k.out(k.param(0, n, h, w, colours), value, i, y, x, c))


def columns_of(n: int, width: int, steps: int, taps: int) -> Node:
    """What each element and the next one say of `steps` places each, for each of some taps."""
    i, x, p, t = (range_node(size, at) for at, size in enumerate((n, width, steps, taps)))
    source, weights = k.param(1, n, width + 1), k.param(2, steps, taps)
    both = alu(Ops.SUB, k.at(source, i, x), k.at(source, i, index.add(x, 1)))
    value = alu(Ops.MUL, both, k.at(weights, p, t))
    place = index.add(index.mul(x, steps), p)
    return k.kernel(k.out(k.param(0, n, width * steps, taps), value, i, place, t))


def accesses(kernel: Node) -> list[str]:
    *_, last = Compiler(HOPPER, render.get("ptx"), None, None).stages(kernel)
    return re.findall(r"(?:ld|st)\.global\S*", str(last.result))


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.int16, dtypes.int8, dtypes.float64])
@pytest.mark.parametrize("shape", [(2, 40, 3), (1, 33, 2), (2, 24, 5), (1, 64, 8)])
def test_planes_of_pixels(shape: tuple[int, int, int], dtype: DType) -> None:
    kernel = planes_of(*shape, dtype)
    check_gpu(kernel, choose_schedule(kernel, SMALL), SMALL)


@pytest.mark.parametrize("shape", [(2, 4, 10, 3), (1, 3, 7, 4), (2, 1, 50, 2)])
def test_pixels_of_planes(shape: tuple[int, int, int, int]) -> None:
    kernel = pixels_of(*shape)
    check_gpu(kernel, choose_schedule(kernel, SMALL), SMALL)


@pytest.mark.parametrize("shape", [(2, 24, 2, 3), (1, 10, 2, 4), (3, 9, 2, 2)])
def test_several_short_axes(shape: tuple[int, int, int, int]) -> None:
    kernel = columns_of(*shape)
    check_gpu(kernel, choose_schedule(kernel, SMALL), SMALL)


def test_a_thread_has_all_of_several_short_axes() -> None:
    found = accesses(columns_of(64 * 64 * 56, 64, 2, 2))
    # Four elements and their next ones, four places for each, weights from a cache.
    assert found.count("st.global.v4.f32") == 4
    assert sum("ld.global" in each for each in found) <= 3 + 4


def test_a_thread_moves_three_wide_accesses_either_way() -> None:
    wide = ["ld.global.v4.b32"] * 3 + ["st.global.v4.b32"] * 3
    assert accesses(planes_of(64, 224 * 224, 3, dtypes.int16)) == wide
    found = accesses(pixels_of(64, 224, 224, 3))
    assert found.count("ld.global.v4.f32") == found.count("st.global.v4.f32") == 3


def test_short_rows_leave_few_threads_idle() -> None:
    steps = choose_schedule(columns_of(4096, 56, 2, 3), SMALL).steps
    bound = {step.axis for step in steps if isinstance(step, Bind) and "thread" in step.unit}
    sizes = [
        size for step in steps if isinstance(step, Split) for name, size in step.parts
        if name in bound
    ]
    assert 56 % (4 * sizes[-1]) == 0
    assert np.prod(sizes) >= 96


def test_planes_alone_are_read_as_they_lie() -> None:
    i, c, p = (range_node(size, at) for at, size in enumerate((64, 3, 4096)))
    value = alu(Ops.ADD, k.at(k.param(1, 64, 3, 4096), i, c, p), k.at(k.param(2, 3), c))
    kernel = k.kernel(k.out(k.param(0, 64, 3, 4096), value, i, c, p))
    assert accesses(kernel).count("ld.global.v4.f32") == 1


@pytest.mark.parametrize("name", [
    "Q4_K", *[pytest.param(name, marks=pytest.mark.slow) for name in ("Q6_K", "Q4_0", "Q2_K")],
])  # fmt: skip
def test_unpacked_numbers_are_right_at_every_level(name: str) -> None:
    kernel = unpacked(name, 80, 512)
    found = choose(kernel, HOPPER)
    assert "all that is in them" in " ".join(found.why())
    check_gpu(kernel, found.schedule)


@pytest.mark.parametrize(("name", "stores"), [("Q4_K", 2), ("Q8_0", 1)])
def test_two_words_fill_each_store(name: str, stores: int) -> None:
    """Two words are 8 neighbours of each stretch, and so 16 bytes of each."""
    kernel = unpacked(name, 14336, 4096)
    _, program = lowered(kernel, choose(kernel, HOPPER).schedule)
    code = render.get("ptx").render(program, HOPPER)
    assert re.findall(r"\bst\.global\S*\.v(\d)\.b32", code) == ["4"] * stores
    assert code.count("st.global") == stores


def test_what_is_not_made_of_words_is_laid_out_along_the_output() -> None:
    assert "all that is in them" not in " ".join(choose(k.elementwise(4096, 4096), HOPPER).why())
