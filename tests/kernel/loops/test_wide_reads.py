"""Bytes that are put together as words: one load of as many, from wherever the first lies."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, alu, cast, const, make_node, range_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel.loops.wide_reads import widen_reads
from tests.kernel.linearise.test_linearise import ROUTES
from tests.render.harness import check, kernel, load, loop, param, store, vector

pytestmark = pytest.mark.differential
BLOCK, LANE = range_node(5, 0), vector(8, 1)
# Blocks of 22 bytes: words in them lie at any even place.
NBYTES, START = 22, 2


def placed(part: Node, place: int, wide: DType) -> Node:
    part = cast(part, wide)
    return alu(Ops.SHL, part, const(place, wide)) if place else part


def joined(
    array: Node, first: object, count: int, wide: DType = dtypes.uint32,
    condition: Node | None = None,
) -> Node:
    """`count` neighbours as an integer, spelled as its parts; under a condition, or 0."""
    bits = array.dtype.bits
    found: Node | None = None
    for step in range(count):
        part = load(array, index.as_node(index.add(first, step)))
        if condition is not None:
            part = make_node(Ops.GUARD, part.dtype, (condition, part))
        if array.dtype.kind == "int":
            part = make_node(Ops.BITCAST, dtypes.uint8, (part,))
        part = placed(part, step * bits, wide)
        found = part if found is None else alu(Ops.OR, found, part)
    assert found is not None
    return found


def in_block(lane: object, scale: int) -> object:
    return index.add(index.add(index.mul(BLOCK, NBYTES), START), index.mul(lane, scale))


def stored(value: Node) -> Node:
    return kernel(loop(BLOCK, store(param(0, 5, 8, dtype=value.dtype), value, BLOCK, LANE)))


def loads(node: Node) -> list[Node]:
    return [each for each in toposort(node) if each.op is Ops.LOAD]


def raw(dtype: DType, count: int = 5 * NBYTES + 16) -> np.ndarray:
    codes = np.random.default_rng(7).integers(0, 256, count * dtype.itemsize, np.uint8)
    return codes.view(dtype.numpy)


def words_at(array: np.ndarray, places: np.ndarray, nbytes: int) -> np.ndarray:
    data = array.tobytes()
    each = [int.from_bytes(data[at : at + nbytes], "little") for at in places.reshape(-1)]
    return np.array(each, np.uint64).reshape(places.shape)


# Where the words of eight lanes begin in a block, and the same in numbers.
PLACES = {
    "near": (LANE, 2, np.arange(8)),
    "overlapping": (LANE, 3, np.arange(8)),
    "repeated": (index.mod(LANE, 4), 4, np.arange(8) % 4),
    "held": (index.floordiv(LANE, 4), 4, np.arange(8) // 4),
    "apart": (
        index.add(index.mod(LANE, 4), index.mul(index.floordiv(LANE, 4), 5)), 3,
        np.arange(8) % 4 + np.arange(8) // 4 * 5,
    ),
    "odd": (index.floordiv(LANE, 4), 3, np.arange(8) // 4),
    "same": (0, 0, np.zeros(8, int)),
}


@pytest.mark.parametrize("source", (dtypes.uint8, dtypes.int8), ids=str)
@pytest.mark.parametrize("name", PLACES)
def test_bytes_are_read_as_words(source: DType, name: str) -> None:
    lane, scale, lanes = PLACES[name]
    array = param(1, 5 * NBYTES + 16, dtype=source)
    node = stored(joined(array, in_block(lane, scale), 4))
    wide = widen_reads(node)
    assert len(loads(node)) == 4
    assert [each.dtype for each in loads(wide)] == [dtypes.uint32]
    data = raw(source)
    found, _ = check(wide, [np.zeros((5, 8), np.uint32), data], routes=(*ROUTES, "c"))
    places = np.arange(5)[:, None] * NBYTES + START + lanes * scale
    np.testing.assert_array_equal(found, words_at(data, places, 4))


@pytest.mark.parametrize(
    ("source", "count", "wide"),
    (
        (dtypes.uint8, 2, dtypes.int32), (dtypes.uint8, 8, dtypes.uint64),
        (dtypes.uint16, 2, dtypes.uint32), (dtypes.uint16, 4, dtypes.uint64),
    ),
    ids=("half", "long", "halves", "quarters"),
)  # fmt: skip
def test_other_widths(source: DType, count: int, wide: DType) -> None:
    array = param(1, 64, dtype=source)
    first = index.add(index.mul(BLOCK, 8), LANE)
    node = stored(joined(array, first, count, wide))
    (load,) = loads(widen_reads(node))
    assert load.dtype.bits == source.bits * count
    data = raw(source, 64)
    blank = np.zeros((5, 8), wide.numpy)
    found, _ = check(node, [blank, data], routes=(*ROUTES, "c"))
    places = (np.arange(5)[:, None] * 8 + np.arange(8)) * source.itemsize
    np.testing.assert_array_equal(found, words_at(data, places, source.itemsize * count))


def test_bytes_under_one_condition_are_a_word_under_it() -> None:
    array = param(1, 3 * NBYTES + 16, dtype=dtypes.uint8)
    lane, scale, lanes = PLACES["apart"]
    first = in_block(lane, scale)
    node = stored(joined(array, first, 4, condition=index.as_node(index.less(BLOCK, 3))))
    assert [each.dtype for each in loads(widen_reads(node))] == [dtypes.uint32]
    data = raw(dtypes.uint8, 3 * NBYTES + 16)
    found, _ = check(node, [np.zeros((5, 8), np.uint32), data], routes=(*ROUTES, "c"))
    places = np.arange(3)[:, None] * NBYTES + START + lanes * scale
    np.testing.assert_array_equal(found[:3], words_at(data, places, 4))
    assert not found[3:].any()
    # Parts that have different conditions are read by themselves.
    low = joined(array, first, 1, condition=index.as_node(index.less(BLOCK, 2)))
    high = alu(Ops.SHL, joined(array, index.add(first, 1), 1), const(8, dtypes.uint32))
    mixed = stored(alu(Ops.OR, low, high))
    assert widen_reads(mixed) is mixed


def test_what_is_no_word_stays() -> None:
    """Bytes that are turned over, apart, signed, or of two arrays."""
    wide = dtypes.uint32
    array, other = param(1, 64, dtype=dtypes.uint8), param(2, 64, dtype=dtypes.uint8)
    signed = param(3, 64, dtype=dtypes.int8)
    here, after, far = (index.as_node(index.add(BLOCK, step)) for step in range(3))
    pairs = [
        (load(array, after), load(array, here)),
        (load(array, here), load(array, far)),
        (load(array, here), load(other, after)),
        (load(signed, here), load(signed, after)),
    ]
    values = [alu(Ops.OR, placed(low, 0, wide), placed(high, 8, wide)) for low, high in pairs]
    for value in values:
        node = stored(value)
        assert widen_reads(node) is node
