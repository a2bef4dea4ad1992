"""Index arithmetic against Python's integers, at every point of every range."""

from __future__ import annotations

import itertools
import random

import pytest

from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.bounds import bounds
from baregrad.ir.core.node import Node, alu, const, range_node
from baregrad.ir.core.op import ALU, Ops
from baregrad.ir.core.substitution import substitute
from baregrad.ir.evaluate.tensor_level import resolve

INDEX = dtypes.index


def at(root: index.Dim, point: dict[Node, int]) -> int:
    """The value of an index node where its ranges and variables have these values: the oracle."""
    if isinstance(root, int):
        return root
    known = dict(point)
    return resolve(root, {}, known)


def points(ranges: list[Node], extents: list[int]) -> list[dict[Node, int]]:
    every = itertools.product(*(range(extent) for extent in extents))
    return [dict(zip(ranges, values, strict=True)) for values in every]


class Pair:
    """An index expression twice: through the smart constructors, and as a Python function."""

    def __init__(self, built: index.Dim, plain) -> None:
        self.built = built
        self.plain = plain


def random_pair(rng: random.Random, ranges: list[Node], depth: int) -> Pair:
    """A random expression; divisors are positive constants."""
    if depth == 0 or rng.random() < 0.15:
        if rng.random() < 0.25:
            value = rng.randrange(-20, 21)
            return Pair(value, lambda p: value)
        axis = rng.choice(ranges)
        return Pair(axis, lambda p: p[axis])
    a = random_pair(rng, ranges, depth - 1)
    kind = rng.choice(("add", "add", "sub", "scale", "div", "mod", "mul", "min", "max"))
    size = rng.choice((1, 2, 3, 4, 5, 6, 8, 12))
    if kind == "scale":
        size = rng.choice((-3, -1, 0, 2, 3, 4, 8))
        return Pair(index.mul(a.built, size), lambda p: a.plain(p) * size)
    if kind == "div":
        return Pair(index.floordiv(a.built, size), lambda p: a.plain(p) // size)
    if kind == "mod":
        return Pair(index.mod(a.built, size), lambda p: a.plain(p) % size)
    b = random_pair(rng, ranges, depth - 1)
    made = {
        "add": (index.add, lambda p: a.plain(p) + b.plain(p)),
        "sub": (index.sub, lambda p: a.plain(p) - b.plain(p)),
        "mul": (index.mul, lambda p: a.plain(p) * b.plain(p)),
        "min": (index.minimum, lambda p: min(a.plain(p), b.plain(p))),
        "max": (index.maximum, lambda p: max(a.plain(p), b.plain(p))),
    }
    build, plain = made[kind]
    return Pair(build(a.built, b.built), plain)


@pytest.mark.property
def test_random_expressions_at_every_point() -> None:
    rng = random.Random(1)
    for trial in range(1500):
        extents = [rng.choice((1, 2, 3, 4, 6, 8)) for _ in range(rng.randrange(1, 4))]
        ranges = [range_node(extent, number) for number, extent in enumerate(extents)]
        pair = random_pair(rng, ranges, 4)
        lo, hi = index.lower(pair.built), index.upper(pair.built)
        for point in points(ranges, extents):
            wanted = pair.plain(point)
            assert at(pair.built, point) == wanted, f"trial {trial}: {point}"
            assert lo <= wanted <= hi


@pytest.mark.property
def test_random_comparisons_at_every_point() -> None:
    rng = random.Random(2)
    decided = 0
    for _ in range(600):
        extents = [rng.choice((1, 2, 3, 5, 8)) for _ in range(2)]
        ranges = [range_node(extent, number) for number, extent in enumerate(extents)]
        a, b = random_pair(rng, ranges, 2), random_pair(rng, ranges, 2)
        less, least = index.less(a.built, b.built), index.at_least(a.built, b.built)
        inside = index.inside(a.built, 4)
        decided += less.op is Ops.CONST
        for point in points(ranges, extents):
            x, y = a.plain(point), b.plain(point)
            assert bool(at(less, point)) == (x < y)
            assert bool(at(least, point)) == (x >= y)
            assert bool(at(inside, point)) == (0 <= x < 4)
    assert decided > 50


@pytest.mark.property
def test_views_of_views_at_every_point() -> None:
    # Reshaped twice: unflatten into one shape, flatten through another.
    rng = random.Random(3)
    shapes = [(24,), (2, 12), (4, 6), (2, 3, 4), (4, 3, 2), (3, 8), (1, 24), (2, 2, 6)]
    for _ in range(200):
        first, second, third = rng.choices(shapes, k=3)
        ranges = [range_node(extent, number) for number, extent in enumerate(first)]
        offset = index.flatten(ranges, first)
        middle = index.unflatten(offset, second)
        last = index.unflatten(index.flatten(middle, second), third)
        for point in points(ranges, list(first)):
            flat = 0
            for axis, extent in zip(ranges, first, strict=True):
                flat = flat * extent + point[axis]
            for value, extent in zip(reversed(last), reversed(third), strict=True):
                assert at(value, point) == flat % extent
                flat //= extent


@pytest.mark.parametrize(
    "shape", [(2, 3), (4, 5, 6), (7,), (1, 5, 1), (3, 1, 4, 2), (2, 2, 2, 2, 2), (128, 49, 3)]
)
def test_flatten_of_unflatten_is_the_offset(shape: tuple[int, ...]) -> None:
    total = 1
    for extent in shape:
        total *= extent
    offset = range_node(total, 0)
    assert index.flatten(index.unflatten(offset, shape), shape) is offset
    ranges = tuple(range_node(extent, number) for number, extent in enumerate(shape))
    back = index.unflatten(index.flatten(ranges, shape), shape)
    for axis, value, extent in zip(ranges, back, shape, strict=True):
        assert value is axis or (extent == 1 and index.linear(value) == ({}, 0))


def test_flatten_of_unflatten_with_a_symbolic_extent() -> None:
    length = index.variable("length", 1, 512)
    rows, columns = range_node(8, 0), range_node(length, 1)
    offset = index.add(index.mul(rows, length), columns)
    assert index.unflatten(offset, (8, length)) == (rows, columns)
    total = range_node(index.mul(length, 4), 2)
    parts = index.unflatten(total, (length, 4))
    assert index.flatten(parts, (length, 4)) is total


def test_symbolic_guards() -> None:
    n = index.variable("n", 1, 64)
    axis = range_node(n, 0)
    true = const(True, dtypes.bool)
    assert index.less(axis, n) is true
    assert index.at_least(axis, 0) is true
    assert index.less(index.add(axis, 1), index.add(n, 1)) is true
    assert index.less(index.add(axis, 1), n).op is Ops.CMPLT
    assert index.less(index.mul(axis, 4), index.mul(n, 4)) is true
    assert index.less(n, axis).op is Ops.CMPLT or index.less(n, axis).arg is False


def test_values_with_variables() -> None:
    n = index.variable("n", 1, 9)
    total = index.sub(index.mul(index.add(n, 2), index.add(n, 3)), index.mul(n, n))
    for value in range(1, 10):
        assert resolve(index.as_node(total), {"n": value}) == 5 * value + 6
    # The square cancels: what is left is linear.
    assert total is index.add(index.mul(n, 5), 6)


def test_equal_sums_are_one_node() -> None:
    a, b, c = (range_node(7, number) for number in range(3))
    one = index.add(index.add(a, index.mul(b, 3)), index.add(c, 5))
    two = index.add(index.mul(index.add(b, 1), 3), index.add(index.add(c, 2), a))
    assert one is two
    assert index.sub(one, two) == 0 or index.as_dim(index.sub(one, two)) == 0


def test_conjunctions() -> None:
    a, b = range_node(9, 0), range_node(9, 1)
    p, q = index.less(a, 5), index.less(b, 5)
    assert index.both(p, q) is index.both(q, p, q)
    assert index.both(p, const(True, dtypes.bool)) is p
    assert index.both(p, const(False, dtypes.bool)).arg is False
    assert index.both().arg is True


def test_substitution_simplifies_again() -> None:
    a, b = range_node(12, 0), range_node(4, 1)
    c = range_node(3, 2)
    value = index.add(index.mul(index.floordiv(a, 4), 4), index.mod(a, 4))
    assert value is a
    moved = substitute(
        index.as_node(index.floordiv(a, 4)), {a: index.as_node(index.add(index.mul(c, 4), b))}
    )
    assert moved is c


@pytest.mark.property
def test_substituted_axes_at_every_point() -> None:
    rng = random.Random(6)
    for trial in range(400):
        extents = [rng.choice((2, 4, 6)), rng.choice((3, 8)), 5]
        ranges = [range_node(extent, number) for number, extent in enumerate(extents)]
        pair = random_pair(rng, ranges, 4)
        expression = index.as_node(pair.built)
        # One axis as the digits of two others, one renamed, one fixed.
        high, low = range_node(extents[0] // 2, 7), range_node(2, 8)
        renamed = range_node(extents[1], 9)
        digits = index.as_node(index.add(index.mul(high, 2), low))
        fixed = const(rng.randrange(5), INDEX)
        moved = substitute(
            expression, dict(zip(ranges, (digits, renamed, fixed), strict=True))
        )
        for point in points([high, low, renamed], [extents[0] // 2, 2, extents[1]]):
            old = (2 * point[high] + point[low], point[renamed], fixed.arg)
            wanted = pair.plain(dict(zip(ranges, old, strict=True)))
            assert at(moved, point) == wanted, f"trial {trial}: {point}"


def test_bounds_of_wrapping_integers_widen() -> None:
    small = Node(Ops.CAST, dtypes.int8, (range_node(100, 0),))
    assert bounds(small) == (0, 99)
    assert bounds(alu(Ops.ADD, small, small)) == (-128, 127)
    assert bounds(alu(Ops.SUB, small, const(50, dtypes.int8))) == (-50, 49)
    assert bounds(Node(Ops.CAST, dtypes.uint8, (alu(Ops.NEG, small),))) == (0, 255)


@pytest.mark.property
def test_bounds_of_integer_and_bool_ops_are_sound() -> None:
    from baregrad.ir.evaluate.kernel_level import evaluate_value
    rng = random.Random(4)
    kinds = (dtypes.int8, dtypes.uint8, dtypes.int32, dtypes.bool, INDEX)
    ops = sorted((op for op in ALU if op not in (Ops.THREEFRY, Ops.POW)), key=lambda o: o.name)
    tight = 0
    for _ in range(400):
        a, b = range_node(rng.randrange(1, 12), 0), range_node(rng.randrange(1, 12), 1)
        pool: dict = {kind: [] for kind in kinds}
        for kind in kinds:
            for axis in (a, b):
                pool[kind].append(axis if kind is INDEX else Node(Ops.CAST, kind, (axis,)))
            value = rng.choice((0, 1, 3)) if kind is dtypes.bool else rng.randrange(-9, 10)
            pool[kind].append(const(value, kind))
        for _ in range(12):
            kind, op = rng.choice(kinds), rng.choice(ops)
            if kind.kind not in op.kinds:
                continue
            if op is Ops.WHERE:
                src = (rng.choice(pool[dtypes.bool]), *rng.choices(pool[kind], k=2))
            else:
                src = tuple(rng.choices(pool[kind], k=op.arity[0]))
            if kind is INDEX and op in (Ops.SHL, Ops.SHR, Ops.AND, Ops.OR, Ops.XOR, Ops.NOT):
                continue
            made = alu(op, *src)
            pool[made.dtype].append(made)
            other = Node(Ops.CAST, rng.choice(kinds), (made,))
            pool[other.dtype].append(other)
            for node in (made, other):
                lo, hi = bounds(node)
                values = evaluate_value(node)
                assert lo <= int(values.min()) and int(values.max()) <= hi, (node, lo, hi)
                tight += lo == int(values.min()) and hi == int(values.max())
    assert tight > 500
