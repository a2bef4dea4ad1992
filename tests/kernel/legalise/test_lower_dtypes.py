"""Dtypes that machines lack: computed in others, rounded at each op, coded in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baregrad.dtypes import DType, decode, dtypes, encode
from baregrad.ir.core import index
from baregrad.ir.core.monoid import primitive
from baregrad.ir.core.node import Node, alu, cast, const, range_node, toposort
from baregrad.ir.core.op import ALU, Ops
from baregrad.ir.evaluate.loop_level import evaluate_loop
from baregrad.kernel.legalise.lower_dtypes import lower_dtypes
from baregrad.tensor import Tensor
from baregrad.testing.ptx_device import ptx_session
from tests.render.harness import (
    F32,
    alloc,
    check,
    compiled,
    elementwise,
    guard,
    kernel,
    load,
    loop,
    lower,
    param,
    same_bits,
    store,
    vector,
)

pytestmark = pytest.mark.differential
NARROW = (
    dtypes.float16,
    dtypes.bfloat16,
    dtypes.float8_e4m3fn,
    dtypes.float8_e5m2,
    dtypes.float4_e2m1fn,
)


@pytest.mark.parametrize("native", (True, False))
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_rounding_to_a_narrow_float(dtype: DType, native: bool) -> None:
    """Values, ties and their neighbours, overflow and subnormals, against exact arithmetic."""
    form, memory = dtype.format, dtype.numpy or dtype.storage
    assert form is not None and dtype.storage is not None
    codes = np.arange(1 << form.bits - 1).astype(dtype.storage)
    values = decode(codes[: form.largest_code + 1], dtype).astype(np.float64)
    middles = ((values[1:] + values[:-1]) / 2).astype(np.float32)
    above, below = np.nextafter(middles, np.float32(1e38)), np.nextafter(middles, np.float32(0))
    huge = [min(form.largest * 1.01, 3.4e38), 1e30, np.inf, np.nan]
    samples = np.concatenate([values, middles, above, below, huge]).astype(np.float32)
    samples = np.concatenate([samples, -samples])
    node = elementwise([lambda x: cast(x, dtype)], len(samples), (F32,), len(samples))
    expected, found = np.zeros(len(samples), memory), np.zeros(len(samples), memory)
    evaluate_loop(node, [expected, samples])
    machine = frozenset((dtype,) if native and form.bits == 16 else ())
    evaluate_loop(lower_dtypes(node, machine), [found, samples])
    bits = expected.view(dtype.storage), found.view(dtype.storage)
    numbers = ~np.isnan(samples)
    np.testing.assert_array_equal(bits[0][numbers], bits[1][numbers])
    if form.special != "none":
        assert same_bits(decode(bits[0], dtype), decode(bits[1], dtype))


@pytest.mark.parametrize("native", (True, False))
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_what_is_only_moved_keeps_its_bits(dtype: DType, native: bool) -> None:
    """Chosen, guarded and stored: NaN of any payload too, which no conversion promises to keep."""
    form, storage = dtype.format, dtype.storage
    assert form is not None and storage is not None
    codes = np.arange(0, 1 << form.bits, 61 if form.bits == 16 else 1).astype(storage)
    count = len(codes)
    i = range_node(count, 0)
    x, out, padded = (param(slot, count, dtype=dtype) for slot in (2, 0, 1))
    even = alu(Ops.CMPEQ, alu(Ops.MOD, i, const(2, dtypes.index)), const(0, dtypes.index))
    beyond = alu(Ops.CMPLT, i, const(count - 3, dtypes.index))
    turned = load(x, alu(Ops.SUB, const(count - 1, dtypes.index), i))
    chosen = alu(Ops.WHERE, even, load(x, i), alu(Ops.WHERE, beyond, turned, const(1.5, dtype)))
    node = kernel(loop(i, store(out, chosen, i), store(padded, guard(beyond, load(x, i)), i)))
    machine = frozenset((dtype,) if native and form.bits == 16 else ())
    lowered = lower_dtypes(node, machine)
    assert not any(one.dtype is F32 for one in toposort(lowered))
    found = [np.ones(count, storage).view(dtype.numpy or storage) for _ in range(2)]
    evaluate_loop(lowered, [*found, codes.view(dtype.numpy or storage)])
    where = np.arange(count)
    one_and_a_half = encode(np.float32(1.5), dtype)
    expected = np.where(where < count - 3, codes[::-1], one_and_a_half)
    expected = np.where(where % 2 == 0, codes, expected)
    np.testing.assert_array_equal(found[0].view(storage), expected)
    np.testing.assert_array_equal(found[1].view(storage), np.where(where < count - 3, codes, 0))


@pytest.mark.parametrize("dtype", (dtypes.float16, dtypes.bfloat16), ids=str)
def test_what_is_chosen_among_rounded_numbers_is_rounded_once(dtype: DType) -> None:
    special = [np.inf, -np.inf, np.nan, 0.0, -0.0, 1e38, 1e-45, 1.00390625, -65520.0]
    x, y = np.resize(special, 24).astype(np.float32), np.linspace(-3, 3, 24, dtype=np.float32)

    def chosen(x: Node, y: Node) -> Node:
        inner = alu(Ops.WHERE, alu(Ops.CMPLT, x, y), cast(y, dtype), const(1.5, dtype))
        return alu(Ops.WHERE, alu(Ops.CMPEQ, x, x), cast(x, dtype), inner)

    node = elementwise([chosen], 24, (F32, F32), 24)
    lowered = lower_dtypes(node, frozenset((dtype,)))
    rounded = [one for one in toposort(lowered) if one.op is Ops.CAST and one.dtype is dtype]
    assert len(rounded) == 1 and rounded[0].src[0].op is Ops.WHERE
    found = np.zeros(24, dtype.numpy or dtype.storage)
    evaluate_loop(lowered, [found, x, y])
    wanted = np.where(x == x, x, np.where(x < y, y, np.float32(1.5)))
    np.testing.assert_array_equal(found.view(dtype.storage), encode(wanted, dtype))


def test_a_guard_of_an_empty_array_reads_nothing() -> None:
    i = range_node(4, 0)
    x, out = param(1, 0), param(0, 4)
    never = alu(Ops.CMPLT, i, index.variable("n", 0, 4))
    node = kernel(loop(i, store(out, guard(never, load(x, i)), i)))
    empty = [np.zeros(count, np.float32) for count in (4, 0)]
    check(node, empty, {"n": 0}, routes=("loop", "linear", "llvm"))


@pytest.mark.parametrize("dtype", (dtypes.float16, dtypes.bfloat16), ids=str)
def test_accumulators_of_narrow_floats_are_float32(dtype: Any) -> None:
    """4096 ones sum to 4096, where rounding after each addition would stop early."""
    i = range_node(4096, 0)
    x, out = param(1, 4096, dtype=dtype), param(0, 1, dtype=dtype)
    acc = alloc(0, dtype=dtype)
    node = kernel(
        store(acc, const(0.0, dtype)),
        loop(i, store(acc, alu(Ops.ADD, load(acc), load(x, i)))),
        store(out, load(acc), 0),
    )
    ones = encode(np.ones(4096, np.float32), dtype)
    found = np.zeros(1, dtype.storage)
    compiled(lower(node))([found, ones])
    assert decode(found, dtype)[0] == 4096


@pytest.mark.parametrize("dtype", (dtypes.float16, dtypes.bfloat16, dtypes.bool), ids=str)
def test_accumulating_in_memory_of_coded_elements(dtype: Any) -> None:
    i = range_node(8, 0)
    x, out = param(1, 8, dtype=dtype), param(0, 3, dtype=dtype)
    op = Ops.OR if dtype is dtypes.bool else Ops.ADD
    node = kernel(loop(i, store(out, load(x, i), index.mod(i, 3), monoid=primitive(op, dtype))))
    memory = dtype.numpy or dtype.storage
    values = np.zeros(8, memory)
    if dtype is dtypes.bool:
        values[[1, 5]] = True
    else:
        values = encode(np.linspace(-2, 3, 8, dtype=np.float32), dtype).view(memory)
    check(node, [np.zeros(3, memory), values])


# --- what is left --------------------------------------------------------------------------------


def dtypes_in(node: Node) -> set[DType]:
    return {one.dtype for one in toposort(node) if one.dtype not in (dtypes.token, dtypes.index)}


@pytest.mark.parametrize("native", [False, True])
def test_only_dtypes_that_machines_have_are_left(native: bool) -> None:
    half = dtypes.float16
    node = elementwise(
        [lambda x, y, op=op: alu(op, x, cast(y, half)) for op in (Ops.ADD, Ops.CMPLT)],
        16, (half, dtypes.int8),
    )
    made = lower_dtypes(node, frozenset((half,) if native else ()))
    memory = half if native else dtypes.uint16
    stored = {one.src[0].dtype for one in toposort(made) if one.op in (Ops.LOAD, Ops.STORE)}
    assert stored == {memory, dtypes.int8, dtypes.uint8}
    assert half not in {one.dtype for one in toposort(made) if one.op in ALU}
    assert (half in dtypes_in(made)) == native


def test_what_is_plain_stays_the_same_node() -> None:
    node = elementwise([lambda x, y: alu(Ops.FMA, x, y, x)], 16, (F32, F32))
    assert lower_dtypes(node, frozenset()) is node


@pytest.mark.parametrize("dtype", (dtypes.float16, dtypes.bfloat16), ids=str)
def test_each_op_is_rounded_by_itself(dtype: DType) -> None:
    rng = np.random.default_rng(5)
    raw = [encode(rng.uniform(-30, 30, 256).astype(np.float32), dtype) for _ in range(2)]
    x, y = (decode(codes, dtype).astype(np.float32) for codes in raw)
    function = lambda a, b: alu(Ops.SUB, alu(Ops.MUL, a, b), b)  # noqa: E731
    node = elementwise([function], 256, (dtype, dtype), 256)
    found = np.zeros(256, dtype.storage)
    evaluate_loop(lower_dtypes(node, frozenset()), [found, *raw])
    product = decode(encode(x * y, dtype), dtype).astype(np.float32)
    np.testing.assert_array_equal(found, encode(product - y, dtype))


@pytest.mark.parametrize("dtype", (dtypes.int4, dtypes.uint4), ids=str)
def test_integers_of_4_bits_wrap_around_and_have_their_signs(dtype: DType) -> None:
    given = np.arange(-40, 40, dtype=np.int32)
    functions = [lambda x: cast(x, dtype), lambda x: cast(cast(x, dtype), dtypes.int32)]
    found = [np.zeros(80, np.uint8), np.zeros(80, np.int32)]
    node = elementwise(functions, 80, (dtypes.int32,), 80)
    evaluate_loop(lower_dtypes(node, frozenset()), [*found, given])
    np.testing.assert_array_equal(found[0], given & 15)
    low = -8 if dtype is dtypes.int4 else 0
    np.testing.assert_array_equal(found[1], (given - low) % 16 + low)


def test_guards_come_to_stand_on_the_loads() -> None:
    v = vector(8, 0)
    x, y, out = param(1, 4), param(2, 8), param(0, 8)
    inside = index.less(v, 4)
    inner = alu(Ops.ADD, alu(Ops.MUL, load(x, v), load(y, v)), const(1.0, F32))
    made = lower_dtypes(kernel(store(out, guard(inside, inner), v)), frozenset())
    guards = [one for one in toposort(made) if one.op is Ops.GUARD]
    # What is inside its array anyway needs none, since a choice follows.
    assert [one.src[1] for one in guards] == [load(x, v)]
    assert [one.src[0] for one in toposort(made) if one.op is Ops.WHERE] == [inside]
    rng = np.random.default_rng(6)
    a, b = rng.standard_normal(4).astype(np.float32), rng.standard_normal(8).astype(np.float32)
    found = np.full(8, np.nan, np.float32)
    evaluate_loop(made, [found, a, b])
    np.testing.assert_allclose(found, [*(a * b[:4] + 1), 0, 0, 0, 0], rtol=1e-6)


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=str)
def test_narrow_powers_need_no_more_than_float32(dtype: DType) -> None:
    """A GPU's are off by little more than their rounding, and end as C's do."""
    draw = np.random.default_rng(5)
    bases, exponents = np.exp(draw.uniform(-6, 6, 192)), draw.uniform(-1.5, 1.5, 192)
    special = np.meshgrid([0.0, -0.0, 1.0, -1.0, -2.0, np.inf, -np.inf, np.nan],
                          [0.0, 1.0, 3.0, -2.0, 0.5, np.inf, -np.inf, np.nan])  # fmt: skip
    x, y = (np.concatenate([one, two.ravel()]).astype(np.float32)
            for one, two in zip((bases, exponents), special, strict=True))  # fmt: skip
    with ptx_session():
        given = [Tensor(each).cast(dtype).realize() for each in (x, y)]
        x, y = (each.float().numpy().astype(np.float64) for each in given)
        found = (given[0] ** given[1]).float().numpy()
    with np.errstate(all="ignore"):
        wanted = np.power(x, y)
    exact = ~np.isfinite(wanted) | (wanted == 0)
    np.testing.assert_array_equal(found[exact], wanted[exact].astype(np.float32))
    digits = 10 if dtype is dtypes.float16 else 7
    step = 2.0 ** (np.floor(np.log2(np.abs(wanted[~exact]))) - digits)
    assert np.max(np.abs(found[~exact] - wanted[~exact]) / step) < 0.5 + 2.0**-5
