"""Keys of few rows are shared out by their number alone, and each part is stored once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baregrad.dtypes import dtypes
from baregrad.engine.canonical import bind
from baregrad.graph import canonicalise
from baregrad.graph.streams.parts import parts_of
from baregrad.ir.core import index
from baregrad.ir.core.index import variable
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.alu import to_raw
from baregrad.ir.evaluate.tensor_level import evaluate_all
from baregrad.kernel import choose
from baregrad.kernel.language.schedule import Bind, Split, StreamTiles
from baregrad.schedule import make_plan
from baregrad.tensor import Tensor
from tests.graph.graphs.gpu_graphs import HOPPER
from tests.graph.streams.test_passes import BRAIN, attention, graph_of, inputs, streams

PAGE = 16


@pytest.mark.parametrize(
    ("keys", "wanted"),
    ((128, None), (512, None), (513, (17, 32)), (2048, (32, 64)), (8192, (32, 256)),
     (10000, (32, 320)), (1 << 17, (32, 4096))),
)  # fmt: skip
def test_parts_are_some_dozens_of_whole_tiles(keys: int, wanted: tuple[int, int] | None) -> None:
    assert parts_of(1, keys) == parts_of(16, keys) == wanted
    assert parts_of(17, keys) is None


@pytest.mark.parametrize(
    ("keys", "wanted"), ((512, None), (1024, (32, 32)), (1025, (9, 128)), (2048, (16, 128)),
                         (8192, (16, 512)), (10000, (16, 640)), (1 << 17, (16, 8192))),
)  # fmt: skip
def test_parts_of_bytes_are_of_whole_tiles_for_two_warps(
    keys: int, wanted: tuple[int, int] | None
) -> None:
    assert parts_of(1, keys, are_bytes=True) == parts_of(16, keys, are_bytes=True) == wanted


def test_of_a_symbolic_number_the_bound_counts() -> None:
    length = variable("length", 1, 1024)
    assert parts_of(1, length) == parts_of(1, index.sub(length, 1)) == (32, 32)


def steps_of(sink: Node) -> tuple[list[Any], list[tuple[Any, ...]]]:
    """The schedules of a graph's kernels, and the shapes of what they write."""
    kernels = make_plan(canonicalise(sink, None, HOPPER), target=HOPPER).kernels
    written = [out.src[0].shape for kernel in kernels for out in kernel.src]
    return [choose(kernel, HOPPER).schedule.steps for kernel in kernels], written


@pytest.mark.parametrize("keys", (768, 600))
def test_parts_together_have_the_value_of_one_reduction(keys: int) -> None:
    given = inputs(BRAIN, (2, 4, 1, 32), (2, 2, keys, 32), (2, 2, keys, 16))
    sink = graph_of(attention(enable_gqa=True)(*given), given)
    made = canonicalise(sink, None, HOPPER)
    assert streams(made) == 2
    arrays = {n: to_raw(x.float().numpy(), BRAIN) for n, x in enumerate(given)}
    (wanted,), (found,) = (evaluate_all(root.src, arrays) for root in (sink, made))
    np.testing.assert_allclose(found, wanted, rtol=2.0**-7)
    (first, *_), written = steps_of(sink)
    assert isinstance(first[0], StreamTiles)
    # One kernel gives sums of values, of powers and a maximum of each part, the next the result;
    # nothing is over the keys.
    assert [shape[-1] for shape in written] == [16, 1, 1, 16]


@pytest.mark.parametrize(("heads", "columns"), ((8, 128), (1, 16)))
def test_parts_are_put_together_in_one_order(heads: int, columns: int) -> None:
    """However many rows there are."""
    found = set()
    for rows in (1, 2, 7, 16):
        shapes = [(2, heads, each, columns) for each in (rows, 1024, 1024)]
        given = inputs(BRAIN, *shapes)
        steps, _ = steps_of(graph_of(attention()(*given), given))
        assert len(steps) == 2
        summed = [step for step in steps[1] if isinstance(step, Split) and step.axis[0] == "r"]
        found.add(tuple([size for step in summed for _, size in step.parts]))
    assert len(found) == 1


def test_few_threads_put_parts_together() -> None:
    """Four of them have all 32 of a column, whose loads are under way together, without a loop."""
    given = inputs(BRAIN, (2, 8, 1, 128), *[(2, 2, 1024, 128)] * 2)
    steps, _ = steps_of(graph_of(attention(enable_gqa=True)(*given), given))
    (split,) = [step for step in steps[1] if isinstance(step, Split) and step.axis[0] == "r"]
    units = {step.axis: step.unit for step in steps[1] if isinstance(step, Bind)}
    assert {units.get(name): size for name, size in split.parts if size} == {
        "unroll": 8, "thread_y": 4,
    }  # fmt: skip


def test_many_rows_are_not_parted() -> None:
    given = inputs(BRAIN, (1, 2, 17, 32), *[(1, 2, 768, 32)] * 2)
    assert streams(canonicalise(graph_of(attention()(*given), given), None, HOPPER)) == 1


def test_a_symbolic_number_of_keys_is_parted_as_its_bound() -> None:
    given = inputs(BRAIN, (1, 4, 1, 32), *[(1, 2, 640, 32)] * 2)
    length = bind(variable("at", 0, 639), 70) + 1
    query, key, value = given
    made = attention(enable_gqa=True)(query, key[:, :, :length], value[:, :, :length])
    (first, *_), written = steps_of(graph_of(made, given))
    assert isinstance(first[0], StreamTiles)
    assert [shape[-2:] for shape in written] == [(20, 32), *[(20, 1)] * 2, (1, 32)]


def paged(sequences: int, pages: int, rows: int = 1) -> tuple[Tensor, list[Tensor]]:
    """Attention to keys and values in pages, by a table, masked by each sequence's length."""
    query, keys, values = inputs(BRAIN, (sequences, 4, rows, 32), *[(32, PAGE, 2, 32)] * 2)
    table = Tensor(np.zeros((sequences, pages), np.int32)).realize()
    lengths = Tensor(np.ones(sequences, np.int32)).realize()
    key, value = (
        x[table].reshape(sequences, pages * PAGE, 2, 32).transpose(1, 2) for x in (keys, values)
    )
    seen = Tensor.arange(pages * PAGE)[None, :] < lengths[:, None]
    out = attention(enable_gqa=True, attn_mask=seen[:, None, None])(query, key, value)
    return out, [query, keys, values, table, lengths]


@pytest.mark.parametrize(("pages", "rows"), ((64, 1), (33, 3), (5, 40)))
def test_pages_are_read_where_they_lie(pages: int, rows: int) -> None:
    """Neither scores nor the keys and values of the pages are stored."""
    out, given = paged(3, pages, rows)
    steps, written = steps_of(graph_of(out, given))
    assert isinstance(steps[0][0], StreamTiles) and len(steps) == (1 if rows > 16 else 2)
    assert not any(PAGE * pages in shape or pages in shape for shape in written)


@pytest.mark.parametrize(("keys", "seen"), [(1024, 100), (2048, 100), (2048, 1100), (2304, 40)])
def test_parts_have_tiles_in_turn(keys: int, seen: int) -> None:
    """Few of many keys are not for one block: as many parts have some as there are tiles."""
    given = inputs(BRAIN, (1, 1, 1, 16), *[(1, 1, keys, 16)] * 2)
    mask = Tensor.arange(keys)[None, None, None, :] < Tensor(np.array([seen]))
    sink = graph_of(attention(attn_mask=mask)(*given), given)
    made = canonicalise(sink, None, HOPPER)
    partial = next(node for node in toposort(made) if node.op is Ops.REDUCE and len(node.src) == 3)
    total = Node(Ops.PROJ, dtypes.float32, (partial,), 1)
    arrays = {n: to_raw(x.float().numpy(), BRAIN) for n, x in enumerate(given)}
    slots = {one.arg.slot for one in toposort(made) if one.op is Ops.PARAM}
    arrays |= {slot: np.array([seen], np.int64) for slot in slots - arrays.keys()}
    (found,) = evaluate_all((total,), arrays)
    parts = parts_of(1, keys)
    assert parts is not None
    tile = 64 if parts.length % 64 == 0 else 32
    assert np.count_nonzero(found[..., 0]) == min(parts.number, -(-seen // tile))


def test_pages_are_read_by_one_look_at_the_table() -> None:
    """Tokens of a page lie together: what is read of the table is shared by keys and values."""
    out, given = paged(3, 8)
    made = canonicalise(graph_of(out, given), None, HOPPER)
    gathers = [node for node in toposort(made) if node.op is Ops.GATHER]
    assert len(gathers) == 2 and gathers[0].src[1:] == gathers[1].src[1:]
    assert not any(node.op is Ops.CONTIGUOUS and node.src[0].op is Ops.GATHER
                   for node in toposort(made))  # fmt: skip


def test_other_dtypes_are_not_parted() -> None:
    given = inputs(dtypes.float32, (1, 2, 1, 32), *[(1, 2, 768, 32)] * 2)
    assert streams(canonicalise(graph_of(attention()(*given), given), None, HOPPER)) == 0
