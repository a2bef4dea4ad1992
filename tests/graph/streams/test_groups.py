"""What reads scores decides whether they are computed anew or stored."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.dtypes import DType, dtypes
from baregrad.graph import canonicalise
from baregrad.graph.streams.groups import MANY_KEYS
from baregrad.graph.streams.softmax import POWERS
from baregrad.ir.analysis.stream import is_chained
from baregrad.ir.core.node import toposort
from baregrad.ir.core.op import Ops, mask_of
from baregrad.ir.evaluate.alu import to_raw
from baregrad.ir.evaluate.tensor_level import evaluate_all
from baregrad.kernel import choose
from baregrad.kernel.language.schedule import StreamTiles
from baregrad.schedule import make_plan
from baregrad.tensor import Tensor
from tests.graph.graphs.gpu_graphs import HOPPER
from tests.graph.streams.test_passes import BRAIN, attention, by_hand, graph_of, inputs, streams


def test_weights_that_are_wanted_themselves_are_stored() -> None:
    given = inputs(BRAIN, *[(1, 2, 16, 16)] * 3)
    weights = (given[0] @ given[1].mT).softmax(-1)
    sink = graph_of([weights @ given[2], weights], given)
    made = canonicalise(sink, None, HOPPER)
    assert streams(made) == 0 and not any(map(is_chained, toposort(made)))


def test_few_rows_by_hand_stay_as_they_are() -> None:
    for rows, count in ((1, 0), (15, 0), (16, 1)):
        given = inputs(BRAIN, (1, 2, rows, 16), (1, 2, 64, 16), (1, 2, 64, 16))
        assert streams(canonicalise(graph_of(by_hand()(*given), given), None, HOPPER)) == count


def test_products_of_many_steps_stay_as_they_are() -> None:
    for width in (24, 272):
        given = inputs(BRAIN, (1, 2, 16, width), (1, 2, 16, width), (1, 2, 16, 16))
        assert streams(canonicalise(graph_of(by_hand()(*given), given), None, HOPPER)) == 0


def test_scores_that_something_else_reads_are_stored() -> None:
    """Powers that are asked for are computed once, and attention reads them."""
    given = inputs(BRAIN, *[(1, 2, 16, 16)] * 3)
    result = attention()(*given)
    (power,) = [node for node in toposort(result.node) if node.op is Ops.EXP2_NEAR]
    sink = graph_of([result], given, power)
    assert streams(canonicalise(sink, None, HOPPER)) == 0


def biased(shape: tuple[int, ...], length: int) -> tuple[list[Tensor], list[Tensor]]:
    """Attention with an addend that wants a gradient: inputs; the result and all gradients."""
    given = inputs(BRAIN, *[(2, 2, length, 16)] * 4, shape)
    query, key, value, bias = leaves = [given[n].detach().requires_grad_() for n in (0, 1, 2, 4)]
    out = query.scaled_dot_product_attention(key, value, bias)
    out.backward(given[3])
    return given, [out, *[leaf.grad for leaf in leaves if leaf.grad is not None]]


@pytest.mark.parametrize(
    ("shape", "widest"),
    (((1, 2, 384, 384), (2, 384, 384)), ((512, 512), (512, 512)), ((2, 1, 1, 96), None),
     ((2, 1, 1), None)),
)  # fmt: skip
def test_gradients_of_addends_are_as_large_as_these(
    shape: tuple[int, ...], widest: tuple[int, ...] | None
) -> None:
    length = shape[-1] if shape[-1] > 1 else 96
    given, results = biased(shape, length)
    made = canonicalise(graph_of(results, given), None, HOPPER)
    kernels = make_plan(made, target=HOPPER).kernels
    written = [out.src[0].shape for kernel in kernels for out in kernel.src]
    found = [one for one in written if one[-2:] == (length, length)]
    assert found == ([] if widest is None else [widest])
    for kernel in kernels:
        steps = choose(kernel, HOPPER).schedule.steps
        assert isinstance(steps[0], StreamTiles) or not kernel.mask & mask_of(POWERS)


def test_gradients_in_few_tiles_are_summed_as_before() -> None:
    given, results = biased((1, 2, 96, 96), 96)
    made = canonicalise(graph_of(results, given), None, HOPPER)
    assert streams(made) == 0 and not any(map(is_chained, toposort(made)))


@pytest.mark.parametrize("dtype", (dtypes.bfloat16, dtypes.float32), ids=str)
@pytest.mark.parametrize(("keys", "apart"), ((MANY_KEYS, True), (MANY_KEYS - 8, False)))
def test_of_few_rows_the_sum_of_powers_is_no_part_of_the_sum_of_values(
    dtype: DType, keys: int, apart: bool
) -> None:
    """That one has a thread for each column; of few keys, one launch less is worth more.

    Here are 512 rows: of a few, every reader makes the powers sooner than a kernel begins.
    """
    given = inputs(dtype, (512, 1, 32), *[(512, keys, 32)] * 2)
    sink = graph_of(by_hand()(*given), given)
    made = canonicalise(sink, None, HOPPER)
    kernels = make_plan(made, target=HOPPER).kernels
    sums = [sum(node.op is Ops.REDUCE and node.arg.monoid.primitive is Ops.ADD
                for node in toposort(kernel)) for kernel in kernels]  # fmt: skip
    assert max(sums) == (1 if apart or dtype.bits == 32 else 2)
    assert len(kernels) == (3 if dtype.bits == 32 else 4 if apart else 2)
    arrays = {n: to_raw(x.float().numpy(), dtype) for n, x in enumerate(given)}
    (wanted,), (found,) = (evaluate_all(root.src, arrays) for root in (sink, made))
    unit = 2.0**-7 if dtype.bits == 16 else 2.0**-20
    np.testing.assert_allclose(found, wanted, atol=unit * np.abs(wanted).max())
