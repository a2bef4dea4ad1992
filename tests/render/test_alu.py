"""Every arithmetic op on every dtype with special values: evaluators, LLVM and C agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

from baregrad.dtypes import COMPUTED, DType, decode, dtypes, encode
from baregrad.ir.core.node import Node, alu, cast, const
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.linear_level import evaluate_linear
from baregrad.ir.evaluate.loop_level import evaluate_loop
from baregrad.kernel.codegen import to_linear
from baregrad.target.cpu import cpu_row_named
from tests.render.harness import F32, compiled, elementwise, host, lower, same_bits

pytestmark = pytest.mark.differential
Function = Callable[..., Node]

ARITHMETIC = (Ops.ADD, Ops.SUB, Ops.MUL)
COMPARISONS = (Ops.CMPLT, Ops.CMPLE, Ops.CMPEQ, Ops.CMPNE)
EXTREMES = (Ops.MAX, Ops.MIN)
ROUNDING = (Ops.FLOOR, Ops.CEIL, Ops.TRUNC, Ops.RINT)


def specials(dtype: DType) -> list[Any]:
    """Values at which something may go wrong."""
    if dtype.kind == "bool":
        return [False, True]
    if dtype.is_int:
        least, most = int(dtype.min), int(dtype.max)
        near = [least, least + 1, most, most - 1, 0, 1, 2, 3, 7, dtype.bits - 1, dtype.bits]
        return near + ([-1, -2, -3, -7] if dtype.is_signed else [])
    form = dtype.format
    assert form is not None
    tiny = 2.0**form.least_exponent
    values = [0.0, 0.5, 1.0, 1.5, 2.5, 3.0, 7.25, 1e4, form.largest, tiny, tiny / 2, np.inf, np.nan]
    return values + [-value for value in values]


def pairs(dtype: DType, seed: int = 0, extra: int = 64) -> tuple[Any, Any]:
    """Every pair of special values and some random ones, as two stored arrays."""
    both = np.array(list(product(specials(dtype), repeat=2)), dtype=object)
    generator = np.random.default_rng(seed)
    if dtype.kind == "bool":
        noise = generator.integers(0, 2, (extra, 2)).astype(bool).astype(object)
    elif dtype.is_int:
        low, high = int(dtype.min), int(dtype.max)
        noise = generator.integers(low, high, (extra, 2), dtype=dtype.numpy, endpoint=True)
        noise = noise.astype(object)
    else:
        noise = (generator.standard_normal((extra, 2)) * 10).astype(object)
    both = np.concatenate([both, noise])
    spare = -len(both) % 16
    both = np.concatenate([both, both[:spare]])
    return stored(both[:, 0], dtype), stored(both[:, 1], dtype)


def stored(values: Any, dtype: DType) -> Any:
    with np.errstate(over="ignore"):
        if dtype.numpy is None:
            return encode(values.astype(np.float64).astype(np.float32), dtype)
        return values.astype(dtype.numpy)


def stores(node: Node) -> tuple[Node, ...]:
    """The STOREs of an elementwise kernel."""
    (loop,) = node.src
    body = loop.src[1]
    return body.src if body.op is Ops.SEQ else (body,)


def blank(node: Node, count: int) -> list[Any]:
    """Arrays for the outputs of an elementwise kernel."""
    dtypes_stored = [store.src[0].dtype for store in stores(node)]
    return [np.zeros(count, dtype.numpy or dtype.storage) for dtype in dtypes_stored]


def agree(
    functions: list[Function],
    inputs: tuple[DType, ...],
    arrays: list[Any],
    lanes: int = 8,
    routes: tuple[str, ...] = ("linear", "llvm"),
) -> None:
    """Assert that routes agree with the loop level; machine code runs with so many lanes."""
    count = len(arrays[0])
    # The evaluators take the whole array as one vector.
    whole = elementwise(functions, count, inputs, count)
    blanks = blank(whole, count)
    expected = [np.array(array) for array in blanks]
    evaluate_loop(whole, [*expected, *arrays])
    for route in routes:
        found = [np.array(array) for array in blanks]
        if route == "linear":
            evaluate_linear(lower(whole), [*found, *arrays])
        else:
            compiled(lower(elementwise(functions, count, inputs, lanes)), route)([*found, *arrays])
        for k, store in enumerate(stores(whole)):
            assert same_bits(expected[k], found[k], store.src[0].dtype), (route, store.src[1])


def binary(*ops: Any) -> list[Function]:
    return [lambda x, y, op=op: alu(op, x, y) for op in ops]


def unary(*ops: Any) -> list[Function]:
    return [lambda x, y, op=op: Node(op, x.dtype, (x,)) for op in ops]


def functions_of(dtype: DType) -> list[Function]:
    if dtype.kind == "bool":
        logic = (Ops.AND, Ops.OR, Ops.XOR, Ops.ADD, Ops.MUL, *EXTREMES)
        return binary(*logic, *COMPARISONS) + unary(Ops.NOT)
    if dtype.is_int:
        whole = (Ops.FLOORDIV, Ops.MOD, Ops.TRUNCDIV, Ops.SHL, Ops.SHR, Ops.AND, Ops.OR, Ops.XOR)
        functions = binary(*ARITHMETIC, *whole, *COMPARISONS, *EXTREMES)
        functions += unary(Ops.NOT, Ops.NEG, Ops.ABS)
        return [*functions, lambda x, y: alu(Ops.FMA, x, y, x)]
    functions = binary(*ARITHMETIC, Ops.DIV, Ops.MOD, *COMPARISONS)
    functions += unary(Ops.NEG, Ops.ABS, Ops.RECIPROCAL, Ops.SQRT, *ROUNDING)
    functions.append(lambda x, y: alu(Ops.FMA, x, y, x))
    return functions + [nonzero_extreme(op) for op in EXTREMES]


def nonzero_extreme(op: Any) -> Function:
    """Which zero MAX and MIN return is not defined: the sign of a zero is wiped out."""
    return lambda x, y: alu(Ops.ADD, alu(op, x, y), const(0.0, x.dtype))


@pytest.mark.parametrize("dtype", COMPUTED, ids=str)
def test_ops_agree(dtype: DType) -> None:
    agree(functions_of(dtype), (dtype, dtype), list(pairs(dtype)))


@pytest.mark.parametrize("dtype", COMPUTED, ids=str)
def test_ops_agree_in_c(dtype: DType) -> None:
    agree(functions_of(dtype), (dtype, dtype), list(pairs(dtype)), routes=("c",))


@pytest.mark.parametrize("lanes", (1, 2, 4, 16))
@pytest.mark.parametrize("dtype", (dtypes.float32, dtypes.int8, dtypes.bool), ids=str)
def test_widths_agree(dtype: DType, lanes: int) -> None:
    agree(functions_of(dtype), (dtype, dtype), list(pairs(dtype)), lanes)


PLAIN = cpu_row_named("x86-64-avx2" if host().architecture == "x86_64" else "arm64-neon")


@pytest.mark.parametrize("lanes", (1, 2, 4, 8, 16))
def test_dot4_agrees(lanes: int) -> None:
    """By the machine's instruction where it has one of so many lanes, in plain steps elsewhere."""
    x, y = pairs(dtypes.int32)
    functions: list[Function] = [lambda a, b: alu(Ops.DOT4, a, b, a)]
    inputs = (dtypes.int32, dtypes.int32)
    agree(functions, inputs, [x, y], lanes, ("linear", "llvm", "c"))
    expected, found = (np.zeros(len(x), np.int32) for _ in range(2))
    evaluate_loop(elementwise(functions, len(x), inputs, len(x)), [expected, x, y])
    compiled(lower(elementwise(functions, len(x), inputs, lanes)), "llvm", PLAIN)([found, x, y])
    assert same_bits(expected, found)


def words_of_halves(rng: np.random.Generator, count: int) -> Any:
    """Words of two bfloat16: any bits, ordinary numbers, and such whose products are tiny."""
    numbers = rng.standard_normal((3, count // 4, 2)).astype(np.float32)
    numbers[1:] *= np.float32(2.0) ** rng.integers(-70, -50, (2, count // 4, 2))
    codes = (numbers.view(np.uint32) >> 16).astype(np.uint16)
    bits = rng.integers(0, 1 << 16, (count - 3 * (count // 4), 2), np.uint16)
    return np.concatenate([*codes, bits]).view(np.int32).reshape(-1)


@pytest.mark.parametrize("lanes", (1, 8))
def test_products_of_bytes_and_halves_agree(lanes: int) -> None:
    x, y = pairs(dtypes.int32)
    functions: list[Function] = [
        lambda a, b: alu(Ops.DOT2LO, a, b, a), lambda a, b: alu(Ops.DOT2HI, a, b, a)
    ]  # fmt: skip
    agree(functions, (dtypes.int32, dtypes.int32), [x, y], lanes, ("linear", "llvm", "c"))


@pytest.mark.parametrize("lanes", (1, 2, 4, 8, 16))
def test_dot2_agrees(lanes: int) -> None:
    """By the machine's instruction where it has one of so many lanes, in plain steps elsewhere."""
    rng = np.random.default_rng(lanes)
    count = 4096
    x, y = words_of_halves(rng, count), words_of_halves(rng, count)
    z = rng.standard_normal(count).astype(np.float32)
    z[count // 2 :] *= np.float32(2.0) ** rng.integers(-130, -110, count // 2)
    z[-200:] = rng.integers(0, 1 << 32, 200, np.uint32).view(np.float32)
    inputs = (dtypes.int32, dtypes.int32, F32)
    functions: list[Function] = [lambda a, b, c: alu(Ops.DOT2, a, b, c)]
    whole = elementwise(functions, count, inputs, count)
    expected = np.zeros(count, np.float32)
    evaluate_loop(whole, [expected, x, y, z])
    found = np.zeros(count, np.float32)
    evaluate_linear(lower(whole), [found, x, y, z])
    assert same_bits(expected, found)
    program = lower(elementwise(functions, count, inputs, lanes))
    for renderer, row in (("llvm", host()), ("llvm", PLAIN), ("c", host())):
        found = np.zeros(count, np.float32)
        compiled(program, renderer, row)([found, x, y, z])
        assert same_bits(expected, found), (renderer, row.name)


@pytest.mark.parametrize("lanes", (1, 2, 3, 8, 16, 48))
@pytest.mark.parametrize("dtype", (dtypes.float32, dtypes.float64), ids=str)
def test_ldexp_agrees(dtype: DType, lanes: int) -> None:
    """By the machine's instruction where it has one, in plain steps elsewhere, and in C."""
    random = np.random.default_rng(lanes)
    bits = 150 if dtype is dtypes.float32 else 1076
    count = 40 * lanes
    x = random.uniform(0.5, 2, count).astype(dtype.numpy) * random.choice([-1, 1], count)
    x = x.astype(dtype.numpy)
    y = random.integers(-bits, bits - 20, count).astype(dtype.numpy)
    x[: count // 20] = np.nan
    with np.errstate(all="ignore"):
        expected = np.ldexp(x, y.astype(np.int32))
    node = elementwise([lambda a, b: alu(Ops.LDEXP, a, b)], count, (dtype, dtype), lanes)
    program = lower(node)
    ways = [("llvm", host()), ("llvm", PLAIN), ("c", host())]
    for renderer, row in ways if lanes == 8 else ways[:2]:
        found = np.zeros(count, dtype.numpy)
        compiled(program, renderer, row)([found, x, y])
        assert same_bits(expected, found), (renderer, row.name)


@pytest.mark.parametrize("lanes", (1, 2, 3, 8, 16, 48))
@pytest.mark.parametrize(("length", "number", "place"), (
    (16, dtypes.float32, dtypes.uint32),
    (16, dtypes.float64, dtypes.uint64),
    (16, dtypes.float32, dtypes.uint8),
    (1, dtypes.float32, dtypes.uint32),
    (32, dtypes.float32, dtypes.uint32),
))
def test_lookup_agrees(length: int, number: DType, place: DType, lanes: int) -> None:
    """By the machine's instruction where it has one for such a table, by memory elsewhere."""
    random = np.random.default_rng(lanes)
    table = [0.0, -0.0, np.inf, *random.standard_normal(length).tolist()][:length]
    count = 20 * lanes
    places = random.integers(0, int(place.max), count, place.numpy, endpoint=True)
    expected = np.array(table, number.numpy)[places % np.array(length, place.numpy)]
    found = np.zeros(count, number.numpy)
    look = partial(Node, Ops.LOOKUP, number, arg=tuple(table))
    node = elementwise([lambda x: look((x,))], count, (place,), lanes)
    evaluate_loop(node, [found, places])
    assert same_bits(expected, found)
    program = lower(node)
    ways = [("llvm", host()), ("llvm", PLAIN), ("c", host())]
    for renderer, row in ways if lanes == 8 else ways[:2]:
        found = np.zeros(count, number.numpy)
        compiled(program, renderer, row)([found, places])
        assert same_bits(expected, found), (renderer, row.name)
    found = np.zeros(count, number.numpy)
    evaluate_linear(program, [found, places])
    assert same_bits(expected, found)


@pytest.mark.parametrize("dtype", (dtypes.float32, dtypes.float64), ids=str)
def test_exponentials_have_the_same_bits_without_ldexp(dtype: DType) -> None:
    """Every binade of results, the edges of what is 0 and infinite, and what is no number."""
    info = np.finfo(dtype.numpy)
    random = np.random.default_rng(5)
    edges = [np.log(float(info.max)), np.log(float(info.tiny)), np.log(float(info.tiny)) - 16, -110]
    x = np.concatenate([
        random.uniform(-1.1, 1.1, 4096) * info.maxexp,
        *(edge + random.uniform(-1, 1, 64) for edge in edges),
        [0.0, -0.0, np.inf, -np.inf, np.nan, 1e30, -1e30, info.tiny, float(info.min), -1e4],
    ]).astype(dtype.numpy)
    x = x[: len(x) // 16 * 16][::-1].copy()
    node = elementwise(unary(Ops.EXP, Ops.EXP2), len(x), (dtype, dtype), 16)
    found = []
    for row in (PLAIN, host(), replace(host(), slow_underflow=False)):
        program = to_linear(node, row)
        results = blank(node, len(x))
        compiled(program)([*results, x, x])
        found.append(results)
    for plain, *others in zip(*found, strict=True):
        assert all(same_bits(plain, other) for other in others)


@pytest.mark.parametrize("dtype", COMPUTED, ids=str)
def test_where_agrees(dtype: DType) -> None:
    x, y = pairs(dtype)
    choice = np.random.default_rng(1).integers(0, 2, len(x)).astype(bool)
    agree([lambda c, a, b: alu(Ops.WHERE, c, a, b)], (dtypes.bool, dtype, dtype), [choice, x, y])


STORED = (*COMPUTED, dtypes.float8_e4m3fn, dtypes.float8_e5m2)


@pytest.mark.parametrize("source", COMPUTED, ids=str)
def test_casts_agree(source: DType) -> None:
    x, y = pairs(source)
    functions: list[Function] = [lambda a, b, t=target: cast(a, t) for target in STORED]
    functions.append(lambda a, b: cast(b, dtypes.float32))
    agree(functions, (source, source), [x, y])


@pytest.mark.parametrize("source", COMPUTED, ids=str)
def test_casts_agree_in_c(source: DType) -> None:
    x, y = pairs(source)
    functions: list[Function] = [lambda a, b, t=target: cast(b, t) for target in COMPUTED]
    functions.append(lambda a, b: cast(a, dtypes.float32))
    agree(functions, (source, source), [x, y], routes=("c",))


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
            values = x.astype(np.float64) if source.numpy else x
            keep = np.isfinite(values) if source.numpy else (x & 0x7F80) != 0x7F80
            x = np.where(keep, x, x.dtype.type(0))
        agree(functions, (source, source), [x, y])


NARROW = (
    dtypes.float16,
    dtypes.bfloat16,
    dtypes.float8_e4m3fn,
    dtypes.float8_e5m2,
    dtypes.float4_e2m1fn,
)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_every_code_of_a_narrow_float_decodes(dtype: DType) -> None:
    assert dtype.storage is not None
    codes = np.arange(1 << max(dtype.bits, 4)).astype(dtype.storage)
    array = codes.view(dtype.numpy) if dtype.numpy is not None else codes
    node = elementwise([lambda x: cast(x, dtypes.float32)], len(codes), (dtype,), 16)
    found = np.zeros(len(codes), np.float32)
    compiled(lower(node))([found, array])
    assert same_bits(found, decode(codes, dtype))


def test_extremes_keep_nan_against_constants() -> None:
    """The short form against a constant is right whichever side the constant is on."""
    dtype = dtypes.float32
    x, y = pairs(dtype)
    for value in (0.0, 3.0, -2.0, np.inf):
        limit = const(value, dtype)
        functions: list[Function] = [
            lambda a, b, c=limit, op=op: alu(Ops.ADD, alu(op, a, c), const(0.0, dtype))
            for op in EXTREMES
        ]
        functions += [
            lambda a, b, c=limit, op=op: alu(Ops.ADD, alu(op, c, b), const(0.0, dtype))
            for op in EXTREMES
        ]
        agree(functions, (dtype, dtype), [x, y])


@pytest.mark.parametrize("dtype", (dtypes.float32, dtypes.float64), ids=str)
def test_functions_are_arithmetic_behind_the_loop_level(dtype: DType) -> None:
    """Written out, they have the same bits in the evaluator, in LLVM and in C."""
    x, y = (np.ascontiguousarray(array[::17][:32]) for array in pairs(dtype))
    ops = (Ops.EXP, Ops.LOG, Ops.SIN, Ops.TANH, Ops.ERF, Ops.GELU, Ops.ATAN)
    functions = [*unary(*ops), *binary(Ops.POW)]
    node = elementwise(functions, 32, (dtype, dtype), 32)
    expected = blank(node, 32)
    evaluate_linear(lower(node), [*expected, x, y])
    narrow = lower(elementwise(functions, 32, (dtype, dtype)))
    for renderer in ("llvm", "c"):
        found = blank(node, 32)
        compiled(narrow, renderer)([*found, x, y])
        for k, op in enumerate((*ops, Ops.POW)):
            assert same_bits(expected[k], found[k]), (renderer, op)
