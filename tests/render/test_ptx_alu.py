"""Every arithmetic op on every dtype with special values: the loop level and the PTX agree."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from baregrad import render
from baregrad.dtypes import COMPUTED, DType, decode, dtypes, encode
from baregrad.ir.core.node import Node, alu, cast, const, range_node
from baregrad.ir.core.op import Op, Ops
from baregrad.ir.evaluate.loop_level import evaluate_loop
from baregrad.target.gpu import NvidiaTarget, gpu_row
from tests.kernel.legalise.accuracy import ERRORS, SPANS, WIDE, assert_same, samples, ulps
from tests.render.gpu_harness import HOPPER, lower, run_ptx, spread
from tests.render.harness import (
    alloc,
    elementwise,
    kernel,
    load,
    loop,
    param,
    same_bits,
    store,
)
from tests.render.test_alu import (
    STORED,
    Function,
    binary,
    blank,
    functions_of,
    pairs,
    stores,
    unary,
)

pytestmark = pytest.mark.differential
TURING = gpu_row("sm_75")
# Turing lacks some instructions that all later generations have.
TARGETS = pytest.mark.parametrize("target", (TURING, HOPPER), ids=lambda row: row.name)


def agree(
    functions: list[Function],
    inputs: tuple[DType, ...],
    arrays: list[Any],
    target: NvidiaTarget = HOPPER,
    lanes: int = 2,
    lowered_for: NvidiaTarget | None = None,
) -> str:
    """Assert that a kernel gives what the loop level gives; a thread takes so many elements.

    Gives the text.
    """
    count = len(arrays[0])
    whole = elementwise(functions, count, inputs, count)
    expected = blank(whole, count)
    evaluate_loop(whole, [*expected, *arrays])
    found = blank(whole, count)
    program = spread(lower(elementwise(functions, count, inputs, lanes), lowered_for))
    run_ptx(program, [*found, *arrays], target=target)
    for k, one in enumerate(stores(whole)):
        assert same_bits(expected[k], found[k], one.src[0].dtype), one.src[1]
    return render.get("ptx").render(program, target)


@TARGETS
@pytest.mark.parametrize("dtype", (dtypes.float16, dtypes.bfloat16), ids=str)
@pytest.mark.parametrize("lanes", (1, 8))
def test_narrow_floats_agree_as_the_machine_converts_them(
    dtype: DType, target: NvidiaTarget, lanes: int
) -> None:
    x, y = pairs(dtype)
    functions = [*functions_of(dtype), lambda a, b: cast(b, dtypes.float32), lambda a, b: a]
    text = agree(functions, (dtype, dtype), [x, y], target, lanes, target)
    name = "f16" if dtype is dtypes.float16 else "bf16"
    assert (f"cvt.rn.{name}.f32" in text) == (dtype.name in target.converted_floats)


@pytest.mark.parametrize("lanes", (1, 4))
def test_what_is_rounded_and_widened_again_is_rounded_once(lanes: int) -> None:
    """As the upper half of a word; stored beside that as well."""
    x, _ = pairs(dtypes.float32)
    functions = [
        lambda a: cast(cast(a, dtypes.bfloat16), dtypes.float32), lambda a: cast(a, dtypes.bfloat16)
    ]  # fmt: skip
    text = agree(functions, (dtypes.float32,), [x], lanes=lanes, lowered_for=HOPPER)
    assert text.count("cvt.rn.bf16x2.f32") == lanes


@pytest.mark.parametrize("is_set_anew", (False, True))
def test_sums_that_are_rounded_and_widened_are_what_they_were(is_set_anew: bool) -> None:
    """A REG is rounded by one instruction as well, unless something sets it before it is read."""
    x, _ = pairs(dtypes.float32)
    i, total = range_node(len(x), 0), alloc(0)
    rounded = cast(cast(load(total), dtypes.bfloat16), dtypes.float32)
    body = (store(total, load(param(1, len(x)), i)), store(param(0, len(x)), rounded, i))
    program = lower(kernel(loop(i, *body)), HOPPER)
    if is_set_anew:
        code = list(program.src)
        place = next(at for at, node in enumerate(code) if node.dtype is dtypes.bfloat16)
        register = code[place].src[0]
        code.insert(place + 1, Node(Ops.SET, dtypes.token, (register, const(7.0, dtypes.float32))))
        program = program.replace(src=tuple(code))
    found = np.zeros_like(x)
    run_ptx(program, [found, x])
    wanted = decode(encode(x, dtypes.bfloat16), dtypes.bfloat16)
    assert same_bits(found, wanted.astype(np.float32))
    assert ("bf16x2" in render.get("ptx").render(program, HOPPER)) != is_set_anew


@TARGETS
@pytest.mark.parametrize("dtype", COMPUTED, ids=str)
def test_ops_agree(dtype: DType, target: NvidiaTarget) -> None:
    agree(functions_of(dtype), (dtype, dtype), list(pairs(dtype)), target)


@pytest.mark.parametrize("lanes", (1, 4, 8))
@pytest.mark.parametrize("dtype", (dtypes.float16, dtypes.int8, dtypes.bool), ids=str)
def test_widths_agree(dtype: DType, lanes: int) -> None:
    agree(functions_of(dtype), (dtype, dtype), list(pairs(dtype)), lanes=lanes)


@pytest.mark.parametrize("dtype", COMPUTED, ids=str)
def test_where_agrees(dtype: DType) -> None:
    x, y = pairs(dtype)
    choice = np.random.default_rng(1).integers(0, 2, len(x)).astype(bool)
    functions: list[Function] = [lambda c, a, b: alu(Ops.WHERE, c, a, b)]
    agree(functions, (dtypes.bool, dtype, dtype), [choice, x, y])


@TARGETS
@pytest.mark.parametrize("source", COMPUTED, ids=str)
def test_casts_agree(source: DType, target: NvidiaTarget) -> None:
    x, y = pairs(source)
    functions: list[Function] = [lambda a, b, t=to: cast(b, t) for to in STORED]
    functions.append(lambda a, b: cast(a, dtypes.float32))
    agree(functions, (source, source), [x, y], target)


@pytest.mark.parametrize("bits", (8, 16, 32, 64))
def test_bitcasts_agree(bits: int) -> None:
    same = [dtype for dtype in COMPUTED if dtype.bits == bits and dtype.kind != "bool"]
    for source in same:
        x, y = pairs(source)
        functions: list[Function] = [
            lambda a, b, t=target: Node(Ops.BITCAST, t, (a,)) for target in same
        ]
        functions.append(lambda a, b: b)
        if source.is_float:
            # What a NaN's bits are is nobody's business.
            keep = np.isfinite(x.astype(np.float64)) if source.numpy else (x & 0x7F80) != 0x7F80
            x = np.where(keep, x, x.dtype.type(0))
        agree(functions, (source, source), [x, y])


@pytest.mark.parametrize("dtype", (dtypes.float32, dtypes.float64), ids=str)
def test_functions_agree(dtype: DType) -> None:
    """Written out as arithmetic, they are the same bits on every machine."""
    from baregrad.ir.evaluate.linear_level import evaluate_linear

    x, y = (np.ascontiguousarray(array[::17][:32]) for array in pairs(dtype))
    ops = (Ops.EXP, Ops.LOG, Ops.SIN, Ops.TANH, Ops.ERF, Ops.GELU, Ops.ATAN)
    functions = [*unary(*ops), *binary(Ops.POW)]
    node = elementwise(functions, 32, (dtype, dtype), 32)
    expected, found = blank(node, 32), blank(node, 32)
    evaluate_linear(lower(node), [*expected, x, y])
    run_ptx(spread(lower(elementwise(functions, 32, (dtype, dtype), 1))), [*found, x, y])
    for k, op in enumerate((*ops, Ops.POW)):
        assert same_bits(expected[k], found[k]), op


def test_products_of_bytes_are_one_instruction() -> None:
    x, y = pairs(dtypes.int32)
    functions: list[Function] = [lambda a, b: alu(Ops.DOT4, a, b, a)]
    text = agree(functions, (dtypes.int32, dtypes.int32), [x, y])
    assert "dp4a.u32.s32" in text


def test_products_of_bytes_and_halves_are_one_instruction_each() -> None:
    x, y = pairs(dtypes.int32)
    functions: list[Function] = [
        lambda a, b: alu(Ops.DOT2LO, a, b, a), lambda a, b: alu(Ops.DOT2HI, a, b, a)
    ]  # fmt: skip
    text = agree(functions, (dtypes.int32, dtypes.int32), [x, y], lanes=1)
    assert text.count("dp2a.lo.s32.u32") == text.count("dp2a.hi.s32.u32") == 1


@TARGETS
def test_a_near_power_of_two_is_one_instruction(target: NvidiaTarget) -> None:
    """float32's is the machine's own, within its bound; float64's is as good as EXP2."""
    rng = np.random.default_rng(3)
    ends = [0.0, -0.0, 1.0, -1.0, 127.0, -126.0, -np.inf, np.inf]
    x = np.concatenate([rng.uniform(-126, 127, 56), ends]).astype(np.float32)
    found = np.zeros(64, np.float32)
    near = elementwise(unary(Ops.EXP2_NEAR), 64, (dtypes.float32,) * 2, 1)
    program = spread(lower(near, target))
    run_ptx(program, [found, x, x], target=target)
    true = np.exp2(x.astype(np.float64))
    finite = np.isfinite(true)
    assert np.all(np.abs(found[finite] - true[finite]) <= 2.0**-22 * true[finite])
    assert found[~finite].tolist() == [np.inf]
    text = render.get("ptx").render(program, target)
    assert text.count("ex2.approx.ftz.f32") == 1 and "fma" not in text
    wide = elementwise(unary(Ops.EXP2_NEAR), 64, (dtypes.float64,) * 2, 1)
    assert "ex2" not in render.get("ptx").render(spread(lower(wide, target)), target)


def test_a_near_power_of_e_is_two_instructions() -> None:
    """float32's is within its bound; float64's is as good as EXP."""
    rng = np.random.default_rng(4)
    ends = [0.0, -0.0, 88.5, -87.0, -np.inf, np.inf]
    x = np.concatenate([rng.uniform(-87, 88, 58), ends]).astype(np.float32)
    found = np.zeros(64, np.float32)
    near = elementwise(unary(Ops.EXP_NEAR), 64, (dtypes.float32,) * 2, 1)
    program = spread(lower(near, HOPPER))
    run_ptx(program, [found, x, x], target=HOPPER)
    true = np.exp(x.astype(np.float64))
    finite = np.isfinite(true)
    assert np.all(np.abs(found[finite] - true[finite]) <= 2.0**-17 * true[finite])
    assert found[~finite].tolist() == [np.inf]
    text = render.get("ptx").render(program, HOPPER)
    assert text.count("ex2.approx.ftz.f32") == text.count("mul.rn.f32") == 1 and "fma" not in text
    wide = elementwise(unary(Ops.EXP_NEAR), 64, (dtypes.float64,) * 2, 1)
    assert "ex2" not in render.get("ptx").render(spread(lower(wide, HOPPER)), HOPPER)


def test_a_near_gelu_is_a_power_of_two() -> None:
    """Within its bound by the C library's erfc; float64's is as good as GELU."""
    rng = np.random.default_rng(5)
    ends = [0.0, -0.0, 1e30, -1e30, np.inf, -np.inf, 13.0, -15.0]
    spans = [rng.uniform(low, high, 512) for low, high in ((-4.3, 4.3), (-30, 30), (-1e-3, 1e-3))]
    x = np.concatenate([*spans, rng.uniform(-5.5, -4.3, 504), ends]).astype(np.float32)
    found = np.zeros_like(x)
    near = elementwise(unary(Ops.GELU_NEAR), len(x), (dtypes.float32,) * 2, 1)
    program = spread(lower(near, HOPPER), 1024)
    run_ptx(program, [found, x, x], grid=len(x) // 1024, target=HOPPER)
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        tails = np.array([math.erfc(-v * math.sqrt(0.5)) / 2 for v in wide])
        true = np.where(np.isinf(wide), np.maximum(wide, 0), wide * tails)
    finite = np.isfinite(true)
    error = np.abs(found[finite] - true[finite])
    allowed = np.maximum(2.0**-14 * np.abs(true[finite]), np.where(x[finite] < -4.3, 2.0**-23, 0))
    assert np.all(error <= allowed), x[finite][error > allowed]
    # By as much of its own size far below as a bfloat16 may be off by.
    below = (x < -5.5) & (x > -9)
    assert np.all(np.abs(found[below] - true[below]) <= 2.0**-8 * np.abs(true[below]))
    assert found[~finite].tolist() == [np.inf]
    negative = [-1, -3, -5, -7]
    assert np.signbit(found[negative]).all() and not found[negative].any()
    assert not np.signbit(found[-8])
    text = render.get("ptx").render(program, HOPPER)
    assert text.count("ex2.approx.ftz.f32") == 1 and text.count("fma.rn.f32") == 8
    wide_one = elementwise(unary(Ops.GELU_NEAR), 64, (dtypes.float64,) * 2, 1)
    assert "ex2" not in render.get("ptx").render(spread(lower(wide_one, HOPPER)), HOPPER)


@pytest.mark.parametrize("skew", [-1.0, 0.0, 1.0])
def test_a_gpu_has_tanh_by_a_near_reciprocal(skew: float) -> None:
    """Within the bound of all machines however far the reciprocal is off; it has no branch."""
    x = samples(dtypes.float32, *SPANS[Ops.TANH], count=1 << 12)
    found = np.zeros_like(x)
    node = elementwise([lambda y: alu(Ops.TANH, y)], len(x), (dtypes.float32,), 1)
    program = spread(lower(node, HOPPER), 1024)
    run_ptx(program, [found, x], grid=len(x) // 1024, skew=skew)
    with np.errstate(invalid="ignore"):
        error = ulps(found, np.tanh(x.astype(WIDE)))
    assert error.max() <= ERRORS[Ops.TANH, dtypes.float32]
    assert_same(found[np.isnan(x)], x[np.isnan(x)], x[np.isnan(x)])
    text = render.get("ptx").render(program, HOPPER)
    assert text.count("rcp.approx.ftz.f32") == 1 and "div" not in text


def test_integers_that_are_short_for_certain_convert_as_words() -> None:
    words = np.array([0, 1, (1 << 64) - 1, 1 << 63, 0x1234_5678_9ABC_DEF1, 1 << 40], np.uint64)

    def share(bits: int) -> Function:
        return lambda x: cast(
            alu(Ops.SHR, x, const(bits, dtypes.uint64)), dtypes.float32
        )

    text = agree([share(40), share(32)], (dtypes.uint64,), [words])
    assert "cvt.rn.f32.u32" in text and "cvt.rn.f32.u64" not in text
    assert "cvt.rn.f32.u64" in agree([share(31)], (dtypes.uint64,), [words])


@pytest.mark.parametrize("dtype", (dtypes.int32, dtypes.int16, dtypes.int8), ids=str)
@pytest.mark.parametrize("op", (Ops.MAX, Ops.MIN), ids=str)
def test_extremes_of_signed_integers_are_choices(op: Op, dtype: DType) -> None:
    """A chain of them with negated operands came out wrong from the assembler."""
    x, y = pairs(dtype)

    def chain(x: Node, y: Node) -> Node:
        return alu(op, alu(op, y, alu(Ops.NEG, x)), alu(Ops.NEG, y))

    text = agree([chain], (dtype, dtype), [x, y])
    assert "selp.b32" in text and "max.s32" not in text and "min.s32" not in text
