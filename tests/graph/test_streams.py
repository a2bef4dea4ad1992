"""Attention is found in graphs, keeps its values, and is left alone where others read its parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from baregrad.dtypes import DType, dtypes
from baregrad.graph import canonicalise
from baregrad.graph.streams import has_streams
from baregrad.ir.analysis.stream import is_stream
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


def graph_of(result: Tensor, given: list[Tensor]) -> Node:
    """The SINK of a result over arguments in the place of the arrays that it is made of."""
    slots = {x.node.arg.handle: slot for slot, x in enumerate(given)}

    def visit(node: Node) -> Node | None:
        if node.op is not Ops.BUFFER:
            return None
        slot = slots.setdefault(node.arg.handle, len(slots))
        return argument(slot, node.dtype, *node.shape)

    return rebuild(Node(Ops.SINK, dtypes.token, (result.node,)), visit)


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


def test_what_dropout_leaves_is_drawn_in_the_same_kernel() -> None:
    given = inputs(BRAIN, (1, 2, 16, 16), (1, 2, 16, 16), (1, 2, 16, 16))
    made = canonicalise(graph_of(thinned(*given), given), None, HOPPER)
    assert streams(made) == 1
    assert len(make_plan(made, target=HOPPER).kernels) == 1


def test_gradients_read_the_powers_so_that_they_are_stored() -> None:
    given = inputs(BRAIN, (1, 2, 16, 16), (1, 2, 16, 16), (1, 2, 16, 16))
    q, k, v = (x.detach().requires_grad_() for x in given)
    out = q.scaled_dot_product_attention(k, v)
    out.backward(Tensor.ones(*out.shape, dtype=BRAIN))
    assert q.grad is not None
    sink = graph_of(q.grad, given)
    assert streams(canonicalise(sink, None, HOPPER)) == 0


@pytest.mark.parametrize("dtype", (dtypes.float32, dtypes.float64), ids=str)
def test_other_floats_stay_as_they_are(dtype: DType) -> None:
    given = inputs(dtype, *[(1, 2, 16, 16)] * 3)
    assert streams(canonicalise(graph_of(attention()(*given), given), None, HOPPER)) == 0


def test_widths_that_tiles_do_not_divide_stay_as_they_are() -> None:
    for width in (24, 272):
        given = inputs(BRAIN, *[(1, 2, 16, width)] * 3)
        assert streams(canonicalise(graph_of(attention()(*given), given), None, HOPPER)) == 0


def test_machines_without_the_products_have_no_streams() -> None:
    assert has_streams(HOPPER) and has_streams(gpu_row("sm_80"))
    assert not has_streams(gpu_row("sm_75"))
