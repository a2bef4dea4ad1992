"""Attention is found in graphs, keeps its values, and is left alone where others read its parts."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest

from baregrad.dtypes import DType, dtypes
from baregrad.graph import canonicalise
from baregrad.graph.streams.passes import has_streams
from baregrad.ir.analysis.stream import is_chained, is_stream
from baregrad.ir.core.node import Node, rebuild, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.alu import to_raw
from baregrad.ir.evaluate.tensor_level import evaluate_all
from baregrad.schedule import make_plan
from baregrad.target import gpu_row
from baregrad.tensor import Tensor
from tests.graph.graphs.gpu_graphs import HOPPER, argument

BRAIN, HALF = dtypes.bfloat16, dtypes.float16
Made = Callable[[Tensor, Tensor, Tensor], Tensor]


def inputs(dtype: DType, *shapes: tuple[int, ...]) -> list[Tensor]:
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    return [Tensor(array).cast(dtype).realize() for array in arrays]


def graph_of(
    results: Tensor | list[Tensor], given: list[Tensor], *more: Node,
    known: dict[Node, Node] | None = None,
) -> Node:  # fmt: skip
    """The SINK of results over arguments in the place of the arrays that they are made of.

    known: what else to put in the place of some nodes.
    """
    slots = {x.node.arg.handle: slot for slot, x in enumerate(given)}

    def visit(node: Node) -> Node | None:
        if node.op is not Ops.BUFFER:
            return None
        slot = slots.setdefault(node.arg.handle, len(slots))
        return argument(slot, node.dtype, *node.shape)

    roots = [x.node for x in (results if isinstance(results, list) else [results])]
    return rebuild(Node(Ops.SINK, dtypes.token, (*roots, *more)), visit, memo=known)


def streams(root: Node) -> int:
    return sum(node.op is Ops.REDUCE and is_stream(node) for node in toposort(root))


def attention(**options: Any) -> Made:
    return lambda q, k, v: q.scaled_dot_product_attention(k, v, **options)


def thinned(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    Tensor.manual_seed(5)
    return q.scaled_dot_product_attention(k, v, dropout_p=0.25)


@pytest.mark.parametrize("dtype", (BRAIN, HALF), ids=str)
@pytest.mark.parametrize(
    ("make", "heads"),
    (
        (attention(), 4), (attention(is_causal=True), 4), (attention(enable_gqa=True), 2),
        (attention(scale=0.5, is_causal=True, enable_gqa=True), 1),
    ),
)  # fmt: skip
def test_attention_is_one_reduction_of_the_same_value(
    dtype: DType, make: Made, heads: int
) -> None:
    given = inputs(dtype, (2, 4, 9, 32), (2, heads, 12, 32), (2, heads, 12, 16))
    sink = graph_of(make(*given), given)
    made = canonicalise(sink, None, HOPPER)
    assert streams(made) == 1 and streams(canonicalise(sink)) == 0
    arrays = {n: to_raw(x.float().numpy(), dtype) for n, x in enumerate(given)}
    (wanted,), (found,) = (evaluate_all(root.src, arrays) for root in (sink, made))
    # The numbers are the same; sums of other order may round the last place elsewhere.
    np.testing.assert_allclose(found, wanted, rtol=2.0**-7 if dtype is BRAIN else 2.0**-10)
    # One kernel, with nothing stored on the way.
    plan = make_plan(made, target=HOPPER)
    assert len(plan.kernels) == 1


def differentiated(
    dtype: DType, rows: int, keys: int, width: int, make: Made, heads: int = 2
) -> tuple[list[Tensor], list[Tensor]]:
    """Attention's inputs with a gradient of its result; the result, and the inputs' gradients."""
    shapes = ((1, 2, rows, width), *[(1, heads, keys, width)] * 2, (1, 2, rows, width))
    given = inputs(dtype, *shapes)
    leaves = [x.detach().requires_grad_() for x in given[:3]]
    out = make(leaves[0], leaves[1], leaves[2])
    out.backward(given[3])
    found = [leaf.grad for leaf in leaves if leaf.grad is not None]
    return given, [out, *found]


@pytest.mark.parametrize("dtype", (BRAIN, HALF), ids=str)
@pytest.mark.parametrize("heads", (1, 2))
def test_gradients_compute_the_powers_anew(dtype: DType, heads: int) -> None:
    make = attention(is_causal=True, enable_gqa=heads == 1)
    given, results = differentiated(dtype, 20, 24, 16, make, heads)
    sink = graph_of(results, given)
    made = canonicalise(sink, None, HOPPER)
    order = toposort(made)
    chained = [node for node in order if is_chained(node)]
    known: dict[Node, int] = {}
    assert chained == [node for node in order if is_chained(node, known)]
    # The result, with maxima and sums, which gradients read; the query's gradient, and the others.
    assert streams(made) == 1 and sorted(one.arg.monoid.arity for one in chained) == [1, 2]
    arrays = {n: to_raw(x.float().numpy(), dtype) for n, x in enumerate(given)}
    for wanted, found in zip(*[evaluate_all(one.src, arrays) for one in (sink, made)], strict=True):
        unit = 2.0**-7 if dtype is BRAIN else 2.0**-10
        np.testing.assert_allclose(found, wanted, atol=unit * np.abs(wanted).max())
    # Nothing of rows x keys is stored.
    plan = make_plan(made, target=HOPPER)
    written = [out.src[0].shape for kernel in plan.kernels for out in kernel.src]
    assert all(shape[-2:] != (20, 24) and shape[-2:] != (24, 20) for shape in written)
    # One kernel makes the result and two numbers for each row.
    (first,) = [
        kernel for kernel in plan.kernels
        if any(node.op is Ops.REDUCE and is_stream(node) for node in toposort(kernel))
    ]
    assert sorted(out.src[0].dtype.itemsize for out in first.src) == [2, 4, 4]
    sizes = {out.src[0].dtype.itemsize: prod(out.src[0].shape) for out in first.src}
    assert sizes[4] == 2 * 20 and sizes[2] == 2 * 20 * 16


def test_gradients_of_a_result_that_is_there_are_streams_by_themselves() -> None:
    given = inputs(BRAIN, *[(1, 2, 16, 16)] * 4)
    leaves = [x.detach().requires_grad_() for x in given[:3]]
    out = leaves[0].scaled_dot_product_attention(*leaves[1:])
    out.backward(given[3])
    found = [leaf.grad for leaf in leaves if leaf.grad is not None]
    # What was computed before is read: the graph has no result of attention.
    kept = {out.node.src[0]: argument(4, BRAIN, *out.shape)}
    sink = graph_of(found, given, known=kept)
    assert sum(node.op is Ops.DIV for node in toposort(sink)) == 0
    made = canonicalise(sink, None, HOPPER)
    chained = [node for node in toposort(made) if is_chained(node)]
    assert streams(made) >= 1 and len(chained) == 2


def test_factors_that_layers_round_are_read() -> None:
    """Query, key and value come from one product, and the result's gradient from another."""
    shapes = ((1, 20, 64), (96, 64), (64, 32), (1, 20, 64))
    given = inputs(BRAIN, *shapes)
    leaves = [x.detach().requires_grad_() for x in given[:3]]
    x, packed, mix = leaves
    parts = (x @ packed.mT).chunk(3, -1)
    q, k, v = (part.unflatten(-1, (2, 16)).transpose(1, 2) for part in parts)
    mixed = q.scaled_dot_product_attention(k, v, is_causal=True)
    out = mixed.transpose(1, 2).flatten(2) @ mix.mT
    out.backward(given[3])
    results = [out, *[leaf.grad for leaf in leaves if leaf.grad is not None]]
    sink = graph_of(results, given)
    made = canonicalise(sink, None, HOPPER)
    assert streams(made) == 1 and sum(map(is_chained, toposort(made))) == 2
    arrays = {n: to_raw(x.float().numpy(), BRAIN) for n, x in enumerate(given)}
    for wanted, found in zip(*[evaluate_all(one.src, arrays) for one in (sink, made)], strict=True):
        np.testing.assert_allclose(found, wanted, atol=2.0**-7 * np.abs(wanted).max())
    plan = make_plan(made, target=HOPPER)
    written = [out.src[0].shape for kernel in plan.kernels for out in kernel.src]
    assert all(shape[-2:] != (20, 20) for shape in written)


def by_hand(p: float = 0.0, cap: float = 0.0) -> Made:
    """Attention as it is written without a function for it, perhaps with what caps the scores."""

    def made(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows, keys = q.shape[-2], k.shape[-2]
        mask = Tensor.ones(rows, keys).tril()
        scores = (q @ k.transpose(-2, -1)) * 0.25
        if cap:
            scores = (scores / cap).tanh() * cap
        weights = scores.masked_fill(mask == 0, float("-inf")).softmax(-1)
        Tensor.manual_seed(5)
        return (weights.dropout(p) if p else weights) @ v

    return made


@pytest.mark.parametrize("dtype", (BRAIN, HALF), ids=str)
@pytest.mark.parametrize(
    ("make", "heads"), ((by_hand(), 2), (by_hand(0.25), 2), (by_hand(cap=2.0), 2), (by_hand(), 1)),
    ids=("plain", "dropout", "capped", "shared"),
)
def test_attention_by_hand_is_sums_of_what_is_rounded_as_it_is_written(
    dtype: DType, make: Made, heads: int
) -> None:
    given, results = differentiated(dtype, 20, 24, 16, make, heads)
    sink = graph_of(results, given)
    made = canonicalise(sink, None, HOPPER)
    # Maxima with sums of powers; then the result, a sum for each row, the query's gradient, and the
    # others' as one.
    assert streams(made) == 1 and sum(map(is_chained, toposort(made))) == 4
    arrays = {n: to_raw(x.float().numpy(), dtype) for n, x in enumerate(given)}
    # What dropout draws from.
    arrays[len(given)] = np.array([5, 9], np.uint64)
    for wanted, found in zip(*[evaluate_all(one.src, arrays) for one in (sink, made)], strict=True):
        unit = 2.0**-7 if dtype is BRAIN else 2.0**-10
        np.testing.assert_allclose(found, wanted, atol=unit * np.abs(wanted).max())
        # Only what lies between two 16-bit floats by the order of a sum is another one.
        assert (found != wanted).mean() < 0.05
    plan = make_plan(made, target=HOPPER)
    written = [out.src[0].shape for kernel in plan.kernels for out in kernel.src]
    assert all(shape[-2:] != (20, 24) and shape[-2:] != (24, 20) for shape in written)


def test_machines_without_the_products_have_no_streams() -> None:
    assert has_streams(HOPPER) and has_streams(gpu_row("sm_80"))
    assert not has_streams(gpu_row("sm_75"))


@pytest.mark.parametrize("rows", (1, 40))
def test_keys_of_bytes_are_widened_by_few_rows_and_stored_for_many(rows: int) -> None:
    shapes = ((1, 4, rows, 64), (1, 2, 700, 64), (1, 2, 700, 64))
    rng = np.random.default_rng(1)
    dtype_of = (BRAIN, dtypes.float8_e4m3fn, dtypes.float8_e4m3fn)
    given = [Tensor(rng.standard_normal(shape).astype(np.float32), dtype=dtype).realize()
             for shape, dtype in zip(shapes, dtype_of, strict=True)]  # fmt: skip
    query, key, value = given
    out = query.scaled_dot_product_attention(key.bfloat16(), value.bfloat16(), enable_gqa=True)
    plan = make_plan(canonicalise(graph_of(out, given), None, HOPPER), target=HOPPER)
    stored = [one.src[0].shape for kernel in plan.kernels for one in kernel.src
              if one.src[0].dtype is BRAIN and prod(one.src[0].shape) == 2 * 700 * 64]  # fmt: skip
    assert len(stored) == (0 if rows == 1 else 2)
    assert sum(bool(kernel.mask & Ops.EXP2_NEAR.bit) for kernel in plan.kernels) == 1
