"""Sums of products of bytes by DOT4: words, signs that fit, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from baregrad import Tensor, dtypes
from baregrad.base.errors import ScheduleError
from baregrad.dtypes import DType
from baregrad.ir.node import Node, toposort
from baregrad.ir.op import Ops
from baregrad.kernel import choose_schedule, lower, parse_schedule
from baregrad.kernel.schedule_value import Tensorize
from baregrad.target.cpu import cpu_row_named
from tests.kernel import kernels as k
from tests.kernel.test_lowering import check

I8, U8, I32 = dtypes.int8, dtypes.uint8, dtypes.int32
ROW = cpu_row_named("x86-64-avx512")
DOTS = replace(ROW, name="dots", features=(*ROW.features, "avx512vnni"), cores=2)
# Four lanes and caches so small that sums are split into blocks at tests' sizes.
SMALL = replace(DOTS, name="small", vector_bytes=16, l1_bytes=512, l2_bytes=4096)
DOT = "tensorize('d', instruction='dot4')"
SIGNS = [(I8, I8), (U8, I8), (I8, U8), (U8, U8)]


def count(root: Node, op: object) -> int:
    return sum(node.op is op for node in toposort(root))


@pytest.mark.parametrize("types", SIGNS, ids=str)
@pytest.mark.parametrize("inner", [8, 10])
def test_four_bytes_at_a_time_without_copies(types: tuple[DType, DType], inner: int) -> None:
    text = f"Schedule(split('r2', outer='k', d=4, masked=True), {DOT})"
    loop = check(k.byte_product(3, 5, inner, types=types), parse_schedule(text), SMALL)
    # Where the signs are the same, what is too large is added up beside the products.
    assert count(loop, Ops.DOT4) == (2 if types[0] is types[1] else 1)


@pytest.mark.parametrize("types", [(I8, I8), (U8, U8)], ids=str)
@pytest.mark.parametrize(
    ("m", "n", "inner", "a", "b", "batch"),
    [
        (24, 16, 64, False, False, 0), (25, 17, 70, True, False, 0), (31, 33, 93, False, True, 0),
        (40, 9, 68, True, True, 0), (26, 12, 72, False, True, 2), (24, 5, 129, True, False, 0),
    ],
)
def test_the_first_schedule(
    m: int, n: int, inner: int, a: bool, b: bool, batch: int, types: tuple[DType, DType]
) -> None:
    kernel = k.byte_product(m, n, inner, a, b, batch, types)
    schedule = choose_schedule(kernel, SMALL)
    assert any(isinstance(step, Tensorize) for step in schedule.steps)
    assert parse_schedule(str(schedule)) == schedule
    loop = check(kernel, schedule, SMALL)
    assert loop.has(Ops.DOT4)


def test_words_are_read_whole_where_they_lie_whole() -> None:
    def arguments(inner: int) -> set[DType]:
        kernel = k.byte_product(24, 16, inner, b_t=True)
        loop = lower(kernel, DOTS, choose_schedule(kernel, DOTS))
        return {node.dtype for node in toposort(loop) if node.op is Ops.PARAM}

    assert arguments(64) == {I32}
    assert arguments(65) == {I8, I32}


def test_without_the_instruction_nothing_is_tensorized() -> None:
    assert "tensorize" not in str(choose_schedule(k.byte_product(24, 16, 64), ROW))
    assert "tensorize" in str(choose_schedule(k.byte_product(24, 16, 64), DOTS))


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ("tensorize('r2', instruction='dot4')", "not 4 steps"),
        (f"split('r2', outer='k', d=4), bind('d', 'unroll'), {DOT}", "unroll"),
        (f"split('r2', outer='k', d=4), {DOT}, bind('d', 'unroll')", "instruction"),
        (f"split('r2', outer='k', d=4), {DOT}, stage_input(1, 'd')", "instruction"),
        (f"split('r2', outer='k', d=4), stage_input(1, 'd'), {DOT}", "free"),
        (f"split('i1', outer='k', d=4), {DOT}", "not reduced"),
        ("tensorize('d', instruction='dot5')", "wrong type"),
    ],
)
def test_what_is_refused(steps: str, said: str) -> None:
    with pytest.raises(ScheduleError, match=said):
        lower(k.byte_product(8, 8, 8), DOTS, parse_schedule(f"Schedule({steps})"))


def test_other_sums_and_other_machines_are_refused() -> None:
    schedule = parse_schedule(f"Schedule(split('r2', outer='k', d=4), {DOT})")
    with pytest.raises(ScheduleError, match="something else than bytes"):
        lower(k.matmul(8, 8, 8), DOTS, schedule)
    with pytest.raises(ScheduleError, match="no such instruction"):
        lower(k.byte_product(8, 8, 8), ROW, schedule)


@pytest.mark.parametrize("transposed", ["", "a", "b", "ab"])
@pytest.mark.parametrize(
    ("m", "inner", "n"),
    [(64, 64, 64), (2, 68, 47), (33, 1537, 65), (127, 130, 131), (24, 16, 16), (25, 4099, 19)],
)
def test_products_against_numpy(m: int, inner: int, n: int, transposed: str) -> None:
    """The extremes are frequent: four products of the largest bytes must not saturate."""
    rng = np.random.default_rng(m + n)
    types = SIGNS[(inner + len(transposed)) % len(SIGNS)]

    def draw(dtype: DType, *shape: int) -> np.ndarray:
        low, high = int(dtype.min), int(dtype.max)
        values = rng.choice([low, high, *rng.integers(low, high + 1, 6)], shape)
        return values.astype(np.int8 if dtype is I8 else np.uint8)

    a = draw(types[0], *((inner, m) if "a" in transposed else (m, inner)))
    b = draw(types[1], *((n, inner) if "b" in transposed else (inner, n)))
    left, right = Tensor(a).cast(I32), Tensor(b).cast(I32)
    if "a" in transposed:
        left, a = left.transpose(0, 1), a.T
    if "b" in transposed:
        right, b = right.transpose(0, 1), b.T
    wanted = a.astype(np.int32) @ b.astype(np.int32)
    assert np.array_equal((left @ right).numpy(), wanted)


def test_a_batch_and_what_follows_the_sum() -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-128, 128, shape, np.int8) for shape in ((3, 40, 68), (3, 68, 36)))
    total = a.astype(np.int32) @ b.astype(np.int32)
    found = (Tensor(a).cast(I32) @ Tensor(b).cast(I32)).cast(dtypes.float32) * 0.5 + 1.0
    assert np.array_equal(found.numpy(), total.astype(np.float32) * 0.5 + 1.0)


def test_a_matrix_times_itself() -> None:
    """One argument is read both ways: as words along one axis, byte by byte along the other."""
    a = np.random.default_rng(2).integers(-128, 128, (64, 64), np.int8)
    x = Tensor(a).cast(I32)
    wide = a.astype(np.int32)
    assert np.array_equal((x @ x).numpy(), wide @ wide)
    assert np.array_equal((x @ x.transpose(0, 1)).numpy(), wide @ wide.T)
