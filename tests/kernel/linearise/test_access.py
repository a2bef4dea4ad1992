"""Where accesses lie: offsets in parts, strides, gathers and scatters, registers."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from baregrad.base.errors import CompilerBug, IndexOutOfRange
from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.monoid import primitive
from baregrad.ir.core.node import Node, alu, cast, const, range_node
from baregrad.ir.core.op import Ops
from baregrad.ir.core.substitution import substitute
from baregrad.ir.evaluate.linear_level import evaluate_linear
from baregrad.ir.evaluate.loop_level import evaluate_loop
from baregrad.kernel.linearise.access import Address, MemoryUse, analyse
from tests.kernel.linearise.programs import (
    ONE,
    ROUTES,
    data,
    zeros,
)
from tests.render.harness import (
    F32,
    I32,
    I64,
    alloc,
    check,
    kernel,
    load,
    loop,
    lower,
    param,
    store,
    unroll,
    vector,
)

pytestmark = pytest.mark.differential


@pytest.mark.parametrize("stride", (-1, 0, 1, 2, 3))
def test_strides(stride: int) -> None:
    i, v = range_node(3, 0), vector(8, 1)
    x, out = param(1, 80), param(0, 24)
    place = index.add(index.mul(i, 8), v)
    source = index.add(index.mul(place, stride), 30 if stride < 0 else 2)
    node = kernel(loop(i, store(out, alu(Ops.ADD, load(x, source), ONE), place)))
    check(node, [zeros(24), data(80)], routes=ROUTES)


def test_indices_that_are_not_affine() -> None:
    i, v = range_node(3, 0), vector(8, 1)
    x, out = param(1, 5, 7), param(0, 24)
    place = index.add(index.mul(i, 8), v)
    node = kernel(
        loop(i, store(out, load(x, index.mod(place, 5), index.floordiv(place, 4)), place))
    )
    check(node, [zeros(24), data(5, 7)], routes=ROUTES)


def test_unrolled_indices_that_are_not_affine() -> None:
    i, u, v = range_node(3, 0), unroll(4, 1), vector(4, 2)
    x, out = param(1, 48), param(0, 48)
    flat = index.add(index.mul(i, 4), u)
    source = index.add(index.mul(index.mod(index.mul(flat, 5), 12), 4), v)
    node = kernel(loop(i, store(out, load(x, source), index.add(index.mul(flat, 4), v))))
    check(node, [zeros(48), data(48)], routes=ROUTES)


def test_gather_by_loaded_indices() -> None:
    i, v = range_node(2, 0), vector(8, 1)
    table, places, out = param(1, 10, 3), param(2, 16, dtype=I32), param(0, 16)
    place = index.add(index.mul(i, 8), v)
    row = cast(load(places, place), dtypes.index)
    node = kernel(loop(i, store(out, load(table, row, 1), place)))
    order = np.random.default_rng(2).integers(0, 10, 16).astype(np.int32)
    found, table_data, _ = check(node, [zeros(16), data(10, 3), order], routes=ROUTES)
    np.testing.assert_array_equal(found, table_data[order, 1])


def test_a_gather_outside_its_array_is_an_error() -> None:
    i = range_node(4, 0)
    x, places, out = param(1, 4), param(2, 4, dtype=I64), param(0, 4)
    node = kernel(loop(i, store(out, load(x, cast(load(places, i), dtypes.index)), i)))
    arrays = [zeros(4), data(4), np.array([0, 1, 4, 2])]
    with pytest.raises(IndexOutOfRange, match="leaves its array"):
        evaluate_loop(node, arrays)
    with pytest.raises(IndexOutOfRange, match="0 <= offset < 4"):
        evaluate_linear(lower(node), arrays)


@pytest.mark.parametrize("op", (None, Ops.ADD, Ops.MAX))
def test_scatter_lanes_in_order(op: Any) -> None:
    """The last lane wins where lanes meet, and all of them count when they accumulate."""
    i, v = range_node(2, 0), vector(8, 1)
    x, places, out = param(1, 16), param(2, 16, dtype=I64), param(0, 4)
    place = index.add(index.mul(i, 8), v)
    monoid = None if op is None else primitive(op, F32)
    target = cast(load(places, place), dtypes.index)
    node = kernel(loop(i, store(out, load(x, place), target, monoid=monoid)))
    order = np.random.default_rng(3).integers(0, 4, 16)
    check(node, [zeros(4), data(16), order], routes=ROUTES)


def test_accumulating_a_constant_counts_every_lane() -> None:
    i, u, v = range_node(2, 0), unroll(2, 1), vector(4, 2)
    places, out = param(1, 16, dtype=I64), param(0, 3)
    place = index.total((index.mul(i, 8), index.mul(u, 4), v))
    target = cast(load(places, place), dtypes.index)
    node = kernel(loop(i, store(out, ONE, target, monoid=primitive(Ops.ADD, F32))))
    order = np.random.default_rng(4).integers(0, 3, 16)
    found, _ = check(node, [zeros(3), order], routes=ROUTES)
    np.testing.assert_array_equal(found, np.bincount(order, minlength=3))


def test_accumulating_into_one_place_from_a_tile() -> None:
    u, v = unroll(3, 0), vector(4, 1)
    x, out = param(1, 12), param(0, 1)
    place = index.add(index.mul(u, 4), v)
    node = kernel(store(out, load(x, place), 0, monoid=primitive(Ops.ADD, F32)))
    check(node, [zeros(1), data(12)], routes=ROUTES)


def test_a_register_indexed_by_a_loop_lives_in_memory() -> None:
    i, k, v = range_node(3, 0), range_node(3, 1), vector(4, 2)
    x, out, acc = param(1, 3, 4), param(0, 3, 4), alloc(0, 3, 4)
    node = kernel(
        loop(i, store(acc, load(x, i, v), i, v)),
        loop(k, store(out, load(acc, index.sub(2, k), v), k, v)),
    )
    found, source = check(node, [zeros(3, 4), data(3, 4)], routes=ROUTES)
    np.testing.assert_array_equal(found, source[::-1])


def test_lanes_of_a_register_read_one_by_one() -> None:
    v, k = vector(4, 0), range_node(4, 1)
    x, out, acc = param(1, 4), param(0, 4), alloc(0, 4)
    node = kernel(
        store(acc, load(x, v), v), loop(k, store(out, load(acc, index.sub(3, k)), k))
    )
    check(node, [zeros(4), data(4)], routes=ROUTES)


def test_symbolic_extents_and_strides() -> None:
    n, m = index.variable("n", 1, 8), index.variable("m", 1, 8)
    i, j = range_node(n, 0), range_node(m, 1)
    x, out = param(1, n, m), param(0, m, n)
    node = kernel(loop(i, loop(j, store(out, load(x, i, j), j, i))))
    source = data(5, 7)
    results = check(node, [zeros(7, 5), source], {"n": 5, "m": 7}, routes=ROUTES)
    np.testing.assert_array_equal(results[0], source.T)


# --- addresses by themselves ----------------------------------------------------------------------


def offset_at(address: Address, values: dict[Node, int], lane: int) -> int:
    """The offset of one lane, summed up from the parts that an address is split into."""

    def value(atom: Node) -> int:
        return int(index.as_dim(substitute(atom, as_constants(values, lane, address))))

    point = {axis: values[axis] for axis, _ in address.unrolled}
    total = address.at(point)
    total += sum(scale * value(atom) for atom, scale in (*address.fixed, *address.points))
    return total + address.stride * lane + sum(s * value(atom) for atom, s in address.lanes)


def as_constants(values: dict[Node, int], lane: int, address: Address) -> dict[Node, Node]:
    held = dict(values)
    if address.vector is not None:
        held[address.vector] = lane
    return {axis: const(number, dtypes.index) for axis, number in held.items()}


def test_an_address_is_the_sum_of_its_parts() -> None:
    """Over all values of the axes: the same element as flattening the indices gives."""
    i, j, u, w, v = range_node(3, 0), range_node(2, 1), unroll(2, 2), unroll(2, 3), vector(4, 4)
    shape = (6, 9, 40)
    total, mul, mod = index.total, index.mul, index.mod
    for places in (
        (i, j, v),
        (total((i, u)), 3, total((mul(v, 2), mul(j, 5), 1))),
        (mod(total((mul(i, 2), u)), 5), index.floordiv(total((mul(j, 7), w)), 2), v),
        (i, mod(total((mul(v, 3), u)), 7), total((mul(u, 4), v))),
        (5, total((mul(w, -1), 4)), total((mul(v, -1), 30))),
    ):
        nodes = tuple(index.as_node(place) for place in places)
        address = analyse(param(1, *shape), nodes)
        flat = index.as_node(index.flatten(nodes, shape))
        for a, b, c, d in product(range(3), range(2), range(2), range(2)):
            values = {i: a, j: b, u: c, w: d}
            for lane in range(address.width):
                known = as_constants({**values, v: lane}, lane, address)
                wanted = index.as_dim(substitute(flat, known))
                assert offset_at(address, values, lane) == wanted


def test_places_of_points_are_in_the_order_of_the_axes() -> None:
    u, w = unroll(3, 1), unroll(2, 2)
    address = analyse(param(1, 100), (index.total((index.mul(u, 10), w, 7)),))
    assert address.layout((u, w)) == (7, (0, 1, 10, 11, 20, 21))
    assert address.layout((w, u)) == (7, (0, 10, 20, 1, 11, 21))
    # Along an axis that does not move it each point is at one place.
    assert address.places((w, unroll(2, 9))) == (0, 0, 1, 1)


@pytest.mark.parametrize(("place", "fits"), [
    (lambda u, v: index.add(index.mul(u, 4), v), True),
    (lambda u, v: index.add(index.mul(u, 8), v), True),
    (lambda u, v: index.add(index.mul(u, 2), v), False),  # not at whole registers
    (lambda u, v: index.add(index.mul(v, 2), u), False),  # lanes are not adjacent
    (lambda u, v: index.total((index.mul(u, 4), v, 2)), False),
    (lambda u, v: index.add(range_node(3, 5), v), False),  # a loop moves it
])  # fmt: skip
def test_what_can_be_a_register(place: object, fits: bool) -> None:
    u, v = unroll(3, 1), vector(4, 2)
    address = analyse(param(1, 64), (index.as_node(place(u, v)),))  # type: ignore[operator]
    assert address.fits_registers() == fits


def test_offsets_of_32_bits_are_measured() -> None:
    i = range_node(1 << 16, 0)
    near = analyse(param(1, 1 << 31), (index.as_node(index.mul(i, 1 << 14)),))
    far = analyse(param(1, 1 << 33), (index.as_node(index.mul(i, 1 << 16)),))
    for address, narrow in ((near, True), (far, False)):
        address.measure()
        assert address.is_narrow == narrow


def test_what_a_kernel_does_to_buffers() -> None:
    v, i = vector(4, 0), range_node(3, 1)
    x, y, out, kept, looped = param(1, 4), param(2, 3), param(0, 4), alloc(0, 4), alloc(1, 3)
    use = MemoryUse(kernel(
        store(kept, load(x, v), v),
        loop(i, store(looped, load(y, i), i)),
        store(out, load(kept, v), v),
        store(out, alu(Ops.ADD, load(out, v), load(looped, 1)), v),
    ))
    assert use.read == {x, y, kept, out, looped}
    assert use.written == {kept, looped, out}
    assert use.again == {out}
    assert use.registers == {kept: 4}
    assert use.single


def test_two_vectors_in_one_access_are_a_bug() -> None:
    v, w = vector(4, 0), vector(4, 1)
    with pytest.raises(CompilerBug, match="two vector ranges"):
        analyse(param(1, 99), (index.as_node(index.add(index.mul(v, 4), w)),))
    with pytest.raises(CompilerBug, match="as many indices as axes"):
        analyse(param(1, 9, 9), (v,))
    symbolic = range_node(index.variable("n", 1, 4), 2, bind="vector")
    with pytest.raises(CompilerBug, match="constant extent"):
        analyse(param(1, 9), (symbolic,))
