"""Sums of products by DOT4 and DOT2: words of bytes and of bfloat16, signs that fit, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from baregrad import Tensor, dtypes
from baregrad.assemble.llvm import LlvmAssembler
from baregrad.base.errors import ScheduleError
from baregrad.base.options import options
from baregrad.dtypes import DType, decode
from baregrad.engine.session import Session, use_session
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.linear_level import evaluate_linear
from baregrad.ir.verify.verify import verify
from baregrad.kernel import apply_schedule, choose_schedule, lower, parse_schedule, to_linear
from baregrad.kernel.language.schedule import Split, StageInput, Tensorize
from baregrad.render import get
from baregrad.target.cpu import cpu_row_named
from tests.kernel import kernels as k
from tests.kernel.test_lowering import check

I8, U8, I32 = dtypes.int8, dtypes.uint8, dtypes.int32
BRAIN, F32 = dtypes.bfloat16, dtypes.float32
ROW = cpu_row_named("x86-64-avx512")
DOTS = replace(ROW, name="dots", features=(*ROW.features, "avx512vnni", "avx512bf16"), cores=2)
# Four lanes and caches so small that sums are split into blocks at tests' sizes.
TILED = replace(DOTS, name="tiled", features=(*DOTS.features, "amx-tile", "amx-bf16"))
SMALL = replace(DOTS, name="small", vector_bytes=16, l1_bytes=512, l2_bytes=4096)
DOT = "tensorize('d', instruction='dot4')"
HALVES = "tensorize('d', instruction='dot2')"
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


@pytest.mark.few(5)
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


@pytest.mark.parametrize("inner", [8, 11])
def test_two_halves_at_a_time_without_copies(inner: int) -> None:
    text = f"Schedule(split('r2', outer='k', d=2, masked=True), {HALVES})"
    loop = check(k.brain_product(3, 5, inner, dtype=F32), parse_schedule(text), SMALL)
    assert count(loop, Ops.DOT2) == 1


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", [BRAIN, F32], ids=str)
@pytest.mark.parametrize(
    ("m", "n", "inner", "a_t", "b_t"),
    [
        (24, 16, 64, False, False), (25, 17, 71, True, False), (31, 33, 93, False, True),
        (40, 9, 68, True, True), (4, 5, 129, False, False), (24, 21, 257, False, True),
    ],
)
def test_the_first_schedule_of_halves(
    m: int, n: int, inner: int, a_t: bool, b_t: bool, dtype: DType
) -> None:
    """Every level gives what NumPy gives: 8 bits of a bfloat16, some 20 of a float32 sum."""
    kernel = k.brain_product(m, n, inner, a_t, b_t, dtype)
    schedule = choose_schedule(kernel, SMALL)
    assert any(isinstance(s, Tensorize) and s.instruction == "dot2" for s in schedule.steps)
    assert parse_schedule(str(schedule)) == schedule
    loop = lower(kernel, SMALL, schedule)
    verify(loop, "loop")
    program = to_linear(loop, SMALL)
    verify(program, "linear")
    assert loop.has(Ops.DOT2)
    arrays = k.arguments(kernel)
    a, b = (decode(arrays[slot], BRAIN).astype(np.float64) for slot in (1, 2))
    wanted = (a.T if a_t else a) @ (b.T if b_t else b)
    linear = {slot: np.array(array) for slot, array in arrays.items()}
    evaluate_linear(program, linear)
    applied = apply_schedule(kernel, schedule, SMALL)
    near = (2.0**-8 if dtype is BRAIN else 2.0**-20) * np.abs(wanted).max()
    for found in (k.run_kernel(applied, arrays), k.run_loop(loop, arrays), linear):
        values = decode(found[0], BRAIN) if dtype is BRAIN else found[0]
        assert np.abs(values - wanted).max() <= near
    assert np.array_equal(k.run_loop(loop, arrays)[0], linear[0])


def test_words_are_read_whole_where_they_lie_whole() -> None:
    def arguments(product: Any, inner: int) -> set[DType]:
        kernel = product(24, 16, inner, b_t=True)
        loop = lower(kernel, DOTS, choose_schedule(kernel, DOTS))
        return {node.dtype for node in toposort(loop) if node.op is Ops.PARAM}

    assert arguments(k.byte_product, 64) == {I32}
    assert arguments(k.byte_product, 65) == {I8, I32}
    assert arguments(k.brain_product, 64) == {I32, BRAIN}
    assert arguments(k.brain_product, 65) == {BRAIN}


@pytest.mark.parametrize("target", [DOTS, TILED], ids=lambda target: str(target.name))
def test_halves_of_words_anywhere_are_copied_in_vectors(target: Any) -> None:
    """Rows of an odd number of bfloat16 begin within words: each half of words is a vector."""
    kernel = k.brain_product(64, 64, 511, b_t=True)
    loop = lower(kernel, target, choose_schedule(kernel, target))
    copied = [
        node for node in toposort(loop)
        if node.op is Ops.LOAD and node.src[0].op is Ops.PARAM
    ]
    assert len(copied) == 4
    assert all(any(axis.arg.bind == "vector" for axis in load.ranges) for load in copied)


def test_rows_of_whole_words_of_halves_stay_where_they_lie() -> None:
    def copied(kernel: Node) -> set[int]:
        steps = choose_schedule(kernel, DOTS).steps
        return {step.param for step in steps if isinstance(step, StageInput)}

    assert copied(k.brain_product(64, 64, 256)) == {2}
    assert copied(k.brain_product(64, 64, 255)) == {1, 2}
    # Of two signed bytes one is turned over, once for all columns.
    assert copied(k.byte_product(64, 64, 256)) == {1, 2}


@pytest.mark.parametrize(("columns", "taken"), [(3, False), (4, True), (10, True)])
def test_fewer_columns_than_lanes_are_words_from_some_on(columns: int, taken: bool) -> None:
    kernel = k.brain_product(40, columns, 66)
    assert ("tensorize" in str(choose_schedule(kernel, DOTS))) == taken


def test_the_text_has_the_instruction() -> None:
    """Tiles of registers, each product one instruction; the C text says the same in plain steps."""
    kernel = k.brain_product(64, 64, 256)
    schedule = choose_schedule(kernel, DOTS)
    sizes = dict(part for step in schedule.steps if isinstance(step, Split) for part in step.parts)
    program = to_linear(lower(kernel, DOTS, schedule), DOTS)
    text = LlvmAssembler(None).disassemble(get("llvm").render(program, DOTS))
    assert text.count("vdpbf16ps") == sizes["i0u"] * sizes.get("i1u", 1) > 8
    assert "dot2(" in get("c").render(program, DOTS)


@pytest.mark.parametrize("product", [k.byte_product, k.brain_product])
def test_without_the_instruction_nothing_is_tensorized(product: Any) -> None:
    assert "tensorize" not in str(choose_schedule(product(24, 16, 64), ROW))
    assert "tensorize" in str(choose_schedule(product(24, 16, 64), DOTS))


def test_few_rows_of_halves_are_no_words() -> None:
    """A panel in words is made for a few rows at least."""
    assert "tensorize" not in str(choose_schedule(k.brain_product(3, 64, 64), DOTS))
    assert "tensorize" in str(choose_schedule(k.byte_product(3, 64, 64), DOTS))


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ("tensorize('r2', instruction='dot4')", "no part of the size"),
        (f"split('r2', outer='k', d=4), bind('d', 'unroll'), {DOT}", "unroll"),
        (f"split('r2', outer='k', d=4), {DOT}, bind('d', 'unroll')", "instruction"),
        (f"split('r2', outer='k', d=4), {DOT}, stage_input(1, 'd')", "instruction"),
        (f"split('r2', outer='k', d=4), stage_input(1, 'd'), {DOT}", "no part of the size"),
        (f"split('i1', outer='k', d=4), {DOT}", "no part of the size"),
        ("tensorize('d', instruction='dot5')", "wrong type"),
    ],
)
def test_what_is_refused(steps: str, said: str) -> None:
    with pytest.raises(ScheduleError, match=said):
        lower(k.byte_product(8, 8, 8), DOTS, parse_schedule(f"Schedule({steps})"))


def test_other_sums_and_other_machines_are_refused() -> None:
    schedule = parse_schedule(f"Schedule(split('r2', outer='k', d=4), {DOT})")
    with pytest.raises(ScheduleError, match="something else is reduced"):
        lower(k.matmul(8, 8, 8), DOTS, schedule)
    with pytest.raises(ScheduleError, match="no such instruction"):
        lower(k.byte_product(8, 8, 8), ROW, schedule)
    halves = parse_schedule(f"Schedule(split('r2', outer='k', d=2), {HALVES})")
    for kernel in (k.byte_product(8, 8, 8), k.matmul(8, 8, 8)):
        with pytest.raises(ScheduleError, match="something else is reduced"):
            lower(kernel, DOTS, halves)
    with pytest.raises(ScheduleError, match=r"no such instruction: found none of this kind"):
        lower(k.brain_product(8, 8, 8), ROW, halves)
    with pytest.raises(ScheduleError, match="no part of the size"):
        lower(k.brain_product(8, 8, 8), DOTS, parse_schedule(str(halves).replace("dot2", "dot4")))


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


# --- bfloat16 on the host as it is: by its instructions where it has them ------------------------


def brain(values: np.ndarray) -> Tensor:
    return Tensor(values.astype(np.float32)).cast(BRAIN)


def wide(tensor: Tensor) -> np.ndarray:
    return tensor.cast(F32).numpy().astype(np.float64)


def is_near(found: Tensor, wanted: np.ndarray) -> bool:
    return bool(np.abs(wide(found) - wanted).max() <= 2.0**-8 * np.abs(wanted).max())


@pytest.mark.parametrize("transposed", ["", "a", "b", "ab"])
@pytest.mark.parametrize(
    ("m", "inner", "n"),
    [
        (64, 64, 64), (1, 130, 70), (4, 68, 47), (70, 258, 10), (33, 1537, 65), (127, 131, 130),
        (25, 4099, 19),
    ],
)
def test_products_of_halves_against_numpy(m: int, inner: int, n: int, transposed: str) -> None:
    rng = np.random.default_rng(m + n)
    a = brain(rng.standard_normal((inner, m) if "a" in transposed else (m, inner))).realize()
    b = brain(rng.standard_normal((n, inner) if "b" in transposed else (inner, n))).realize()
    left = a.transpose(0, 1) if "a" in transposed else a
    right = b.transpose(0, 1) if "b" in transposed else b
    assert is_near(left @ right, wide(left) @ wide(right))


def test_a_batch_of_halves_and_what_follows_the_sum() -> None:
    rng = np.random.default_rng(1)
    a, b = (brain(rng.standard_normal(s)).realize() for s in ((3, 40, 67), (3, 67, 36)))
    assert is_near((a @ b).relu() * 0.5, np.maximum(wide(a) @ wide(b), 0) * 0.5)
    assert is_near(a @ b[0], wide(a) @ wide(b)[0])


@pytest.mark.parametrize("inner", [64, 67])
def test_a_matrix_of_halves_times_itself(inner: int) -> None:
    x = brain(np.random.default_rng(2).standard_normal((inner, inner))).realize()
    assert is_near(x @ x, wide(x) @ wide(x))
    assert is_near(x @ x.transpose(0, 1), wide(x) @ wide(x).T)


@pytest.mark.parametrize("transposed", [False, True])
def test_what_is_no_number_stays_in_its_row_and_column(transposed: bool) -> None:
    """Words of an odd row reach into the next one, and what is copied past the end is 0."""
    a, b = np.ones((40, 65)), np.ones((65, 50))
    a[7, 0], a[8, 64], b[0, 3], b[64, 9] = np.nan, np.inf, np.inf, -np.inf
    right = brain(b.T).realize().transpose(0, 1) if transposed else brain(b).realize()
    with np.errstate(invalid="ignore"):
        wanted = a @ b
    found = wide(brain(a).realize() @ right)
    assert np.array_equal(found, wanted, equal_nan=True)


def test_any_number_of_threads_gives_the_same_bits() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((300, 517)), rng.standard_normal((517, 260))
    found = []
    for threads in (1, 2, 3):
        session = Session()
        with options.override(threads=threads), use_session(session):
            found.append((brain(a).realize() @ brain(b).realize()).cast(F32).numpy())
        session.close()
    assert all(np.array_equal(found[0], other) for other in found[1:])


def test_gradients_of_products_of_halves() -> None:
    """Each is a product of bfloat16 itself: as PyTorch's, within a bfloat16's 8 bits."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(4)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((48, 65), (65, 40), (48, 40))]
    ours = [brain(x).realize() for x in arrays]
    theirs = [torch.from_numpy(x).bfloat16() for x in arrays]
    for x, y in zip(ours[:2], theirs[:2], strict=True):
        x.requires_grad = True
        y.requires_grad = True
    ((ours[0] @ ours[1]) * ours[2]).sum().backward()
    ((theirs[0] @ theirs[1]) * theirs[2]).sum().backward()
    for x, y in zip(ours[:2], theirs[:2], strict=True):
        assert x.grad is not None
        assert is_near(x.grad, y.grad.double().numpy())
