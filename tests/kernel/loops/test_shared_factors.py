"""Dear factors that a kernel keeps in scratch memory, and products whose bits do not tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baregrad.base.options import options
from baregrad.dtypes import dtypes
from baregrad.engine.canonical import bind
from baregrad.ir.core.index import variable
from baregrad.ir.core.node import toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel.loops.shared_factors import share_factors
from baregrad.kernel.planning.first_schedule import choose_schedule
from baregrad.schedule import make_plan
from baregrad.target.cpu import cpu_row_named
from baregrad.tensor import Tensor
from tests.schedule.facts.test_packed_factors import numbers
from tests.schedule.graphs import A, param, sink

WAYS = (("CPU", "tensor"), ("REF", "loop"), ("REF", "linear"))


def kernel_of(total: A) -> object:
    (kernel,) = make_plan(sink(total), donate={}).kernels
    return kernel


def weight(out: int, blocks: int) -> A:
    return numbers(param(1, out, blocks, 16, dtype=dtypes.uint8), param(2, out, blocks))


@pytest.mark.parametrize("rows, kept", [(1, 0), (2, 1), (40, 1)])
def test_a_row_is_kept_where_several_rows_read_it(rows: int, kept: int) -> None:
    kernel = kernel_of(param(0, rows, 128) @ weight(24, 4).permute(1, 0))
    stages = [node for node in toposort(share_factors(kernel)) if node.op is Ops.STAGE]
    assert len(stages) == kept
    if kept:
        assert np.prod([axis.src[0].arg for axis in stages[0].src[1:]]) == 128


def test_factors_that_are_only_widened_are_not_kept() -> None:
    half = param(1, 24, 128, dtype=dtypes.float16).cast(dtypes.float32)
    kernel = kernel_of(param(0, 40, 128) @ half.permute(1, 0))
    assert share_factors(kernel) is kernel


@pytest.mark.parametrize("rows", [2, 40, variable("rows", 1, 16)])
def test_lanes_lie_along_the_row_that_is_kept(rows: Any) -> None:
    kernel = kernel_of(param(0, rows, 128) @ weight(24, 4).permute(1, 0))
    lines = str(choose_schedule(kernel, cpu_row_named("x86-64-avx512"))).splitlines()
    vectors = [line for line in lines if "'vector'" in line]
    assert vectors
    assert all("'r" in line for line in vectors), lines


@pytest.mark.parametrize("rows", [300, variable("rows", 1, 300)])
def test_rows_come_in_blocks_that_a_cache_holds(rows: Any) -> None:
    kernel = kernel_of(param(0, rows, 512) @ weight(384, 16).permute(1, 0))
    text = str(choose_schedule(kernel, cpu_row_named("x86-64-avx512")))
    assert "split('i0', outer='i0b', i0r=6" in text
    assert "reorder('i0b', 'i1o'" in text
    assert "bind('i1o', 'pool'" in text


@pytest.mark.parametrize("level", ["loop", "linear"])
def test_blocks_of_rows_have_all_rows(level: str) -> None:
    packed, scales = arrays(5, 4)
    x = np.random.default_rng(5).standard_normal((139, 128)).astype(np.float32)
    wanted = x @ dense(packed, scales).T
    with options.override(device="REF", ref_level=level):
        made = (Tensor(x) @ unpacked(Tensor(packed), Tensor(scales)).T).numpy()
    np.testing.assert_allclose(made, wanted, rtol=2e-5, atol=1e-4)


def arrays(out: int, blocks: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(out * blocks)
    packed = rng.integers(0, 256, (out, blocks, 16), dtype=np.uint8)
    return packed, rng.standard_normal((out, blocks)).astype(np.float32)


def dense(packed: np.ndarray, scales: np.ndarray) -> np.ndarray:
    codes = np.stack([packed & 15, packed >> 4], 2).astype(np.float64) - 8
    return (scales[:, :, None, None] * codes).reshape(len(packed), -1)


def unpacked(packed: Tensor, scales: Tensor) -> Tensor:
    shifts = Tensor.arange(2, dtype=dtypes.int32).reshape(2, 1) * 4
    codes = ((packed.cast(dtypes.int32).unsqueeze(2) >> shifts) & 15) - 8
    return (scales.reshape(*scales.shape, 1, 1) * codes).flatten(1)


@pytest.mark.parametrize(("device", "level"), WAYS)
@pytest.mark.parametrize("rows, out, blocks", [(1, 6, 2), (2, 24, 3), (5, 7, 4), (9, 33, 2)])
def test_products_have_the_values_of_the_dense_matrix(
    rows: int, out: int, blocks: int, device: str, level: str
) -> None:
    packed, scales = arrays(out, blocks)
    x = np.random.default_rng(rows).standard_normal((rows, 32 * blocks)).astype(np.float32)
    with options.override(device=device, ref_level=level):
        made = (Tensor(x) @ unpacked(Tensor(packed), Tensor(scales)).T).numpy()
    wanted = x @ dense(packed, scales).T
    np.testing.assert_allclose(made, wanted, rtol=2e-5, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("bound", [9, 64])
def test_a_symbolic_number_of_rows(bound: int) -> None:
    packed, scales = arrays(40, 3)
    x = np.random.default_rng(bound).standard_normal((bound, 96)).astype(np.float32)
    wanted = x @ dense(packed, scales).T
    whole, codes, factors = Tensor(x), Tensor(packed), Tensor(scales)
    for count in (1, 2, bound - 1, bound):
        part = whole[: bind(variable("rows", 1, bound), count)]
        made = (part @ unpacked(codes, factors).T).numpy()
        assert made.shape == (count, 40)
        np.testing.assert_allclose(made, wanted[:count], rtol=2e-5, atol=1e-4)
