"""What is known of values before fusion: readers, sizes, what an element costs, contractions."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from baregrad.dtypes import DType, dtypes
from baregrad.graph import canonicalise
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import MOVEMENT, Ops
from baregrad.schedule import make_plan
from baregrad.schedule.facts.survey import (
    COSTLY,
    MOST,
    Sizes,
    base_of,
    is_tuple,
    own_work,
    streamed,
    take_survey,
)
from baregrad.tensor import Tensor
from tests.graph.graphs.gpu_graphs import HOPPER
from tests.graph.streams.test_passes import BRAIN, attention, graph_of, inputs
from tests.schedule.graphs import A, param, sink

X, Y = param(0, 40, 30), param(1, 30)


def survey(*values: A, stored: tuple[Node, ...] = ()):  # type: ignore[no-untyped-def]
    return take_survey(toposort(sink(*values)), stored)


def readers_by_paths(root: Node) -> Counter[Node]:
    """Each value's readers that are no views, found by following every path of views upwards."""
    views = {*MOVEMENT} - {Ops.PAD}
    users: dict[Node, list[Node]] = {}
    for node in toposort(root):
        for child in node.src:
            users.setdefault(child, []).append(node)
    found: Counter[Node] = Counter()
    for node in toposort(root):
        waiting = list(users.get(node, ()))
        while waiting:
            user = waiting.pop()
            if user.op in views:
                waiting += users.get(user, ())
            else:
                found[node] += 1
    return found


def test_views_pass_their_readers_on() -> None:
    turned = X.permute(1, 0)
    root = sink(turned + 1.0, turned.flip(0) * 2.0, X.reshape(1200).exp(), X * X)
    found = take_survey(toposort(root)).readers
    wanted = readers_by_paths(root)
    for node in toposort(root):
        assert found[node] == wanted[node], node
    assert wanted[X.node] == 5


def test_a_size_is_an_upper_bound() -> None:
    n = index.variable("n", 2, 50)
    sizes = Sizes()
    assert sizes[(3, 5)] == 15
    assert sizes[(3, n)] == 150
    assert sizes[()] == 1
    assert base_of(X.reshape(1200).flip(0).node) is X.node
    padded = X.pad((1, 1), (0, 0)).node
    assert base_of(padded) is padded


@pytest.mark.parametrize(("op", "cost"), [(Ops.EXP, 10.0), (Ops.ADD, 1.0), (Ops.DIV, 4.0)])
def test_an_element_costs_its_operations_and_the_bytes_that_it_reads(
    op: object, cost: float
) -> None:
    operands = (X,) if op is Ops.EXP else (X, X.flip(0))
    made = operands[0].alu(op, *operands[1:])
    found = survey(made)
    assert own_work(made.node) == cost == COSTLY.get(op, 1.0)  # type: ignore[call-overload]
    assert found.work[made.node] == cost + 4.0 * len(operands)
    assert found.reading[X.node] == 4.0


def test_what_is_repeated_is_shared_and_what_is_summed_is_multiplied() -> None:
    row = Y.exp()
    wide = row.reshape(1, 30).expand(40, 30)
    found = survey((X + wide).sum(0))
    # A fortieth of an exponential for each element, but no more than a load.
    assert found.work[wide.node] == min(4.0 + 10.0, 4.0) / 40
    total = X.sum(1)
    found = survey(total)
    assert found.work[total.node] == (4.0 + 1.0) * 30


def test_what_is_dear_for_two_readers_will_be_a_load() -> None:
    dear = (X.exp() + X.log()).exp()
    alone, twice = survey(dear + 1.0), survey(dear + 1.0, dear * 2.0)
    assert alone.reading[dear.node] == alone.work[dear.node] > 24
    assert twice.reading[dear.node] == 4.0
    cheap = X + 1.0
    assert survey(cheap + 1.0, cheap * 2.0).reading[cheap.node] == 5.0
    assert survey(cheap + 1.0, stored=(cheap.node,)).reading[cheap.node] == 4.0


def test_contractions_are_sums_of_products_whose_operands_are_read_often() -> None:
    product = param(0, 16, 8) @ param(1, 8, 16)
    assert survey(product).contractions == {product.node}
    for other in (
        (X * X.flip(0)).sum(1),
        (param(0, 3, 8) @ param(1, 8, 16)),
        (X.reshape(40, 1, 30).expand(40, 9, 30) + 1.0).sum(2),
    ):
        assert not survey(other).contractions


def test_costs_have_an_end() -> None:
    total = param(0, 10**10, 10**10).sum(0, 1)
    assert survey(total).work[total.node] == MOST


def test_the_parts_of_a_tuple_are_stored_and_not_the_tuple() -> None:
    first, _ = X.argmax(1)
    whole = first.node.src[0]
    assert is_tuple(whole)
    assert not is_tuple(X.sum(1).node)
    found = survey(first, first + 1.0)
    assert found.reading[whole] == found.work[whole]


# --- streams ------------------------------------------------------------------------------------


def test_scores_are_computed_anew_and_arguments_read() -> None:
    given = inputs(BRAIN, *[(1, 2, 16, 16)] * 3)
    made = canonicalise(graph_of(attention()(*given), given), None, HOPPER)
    must: dict[Node, str] = {}
    found = streamed(toposort(made), must)
    sums = [node for node in found if node.op is Ops.REDUCE]
    assert len(sums) == 1 and not must
    assert all(node.dtype is not dtypes.token for node in found)


def test_a_factor_that_is_computed_is_stored_first() -> None:
    given = inputs(BRAIN, *[(1, 2, 16, 16)] * 3)
    q, k, v = given
    result = (q * 2).scaled_dot_product_attention(k, v.relu())
    made = canonicalise(graph_of(result, given), None, HOPPER)
    plan = make_plan(made, target=HOPPER)
    last = plan.kernels[-1]
    assert len(plan.kernels) in (2, 3)
    reads = [n for n in toposort(last) if n.op is Ops.INDEX and n.dtype is BRAIN]
    assert len(reads) == 3 and not any(n.op is Ops.MAX and n.dtype is BRAIN for n in toposort(last))


# --- rows whose places are read ------------------------------------------------------------------


@pytest.mark.parametrize("dtype", (dtypes.float32, BRAIN), ids=str)
@pytest.mark.parametrize("is_written", (False, True))
def test_a_cpu_reads_pages_where_they_lie(dtype: DType, is_written: bool) -> None:
    """Heads that share keys do not make a copy of the pages worth its while."""
    query, *pages = inputs(dtype, (3, 16, 1, 32), *[(20, 16, 4, 32)] * 2)
    table, place = (Tensor(np.zeros(shape, np.int32)).realize() for shape in ((3, 8), (3,)))
    given = [query, *pages, table, place]
    if is_written:
        pages = [one.clone() for one in pages]
        for one in pages:
            one[place, place] = query[:, :4, 0]
    key, value = (one[table].reshape(3, 128, 4, 32).transpose(1, 2) for one in pages)
    sink = canonicalise(graph_of(attention(enable_gqa=True)(query, key, value), given))
    written = [out.src[0].shape for kernel in make_plan(sink).kernels for out in kernel.src]
    # Results, and sums before they are divided; what is written is copied first.
    wide = [shape for shape in written if shape[-1] == 32]
    assert wide.count((3, 16, 1, 32)) + wide.count((20, 16, 4, 32)) == len(wide)


def test_rows_that_are_read_often_are_stored() -> None:
    """A product of many rows each, whose panels are copied anyway."""
    query, pages = inputs(dtypes.float32, (3, 4, 40, 32), (20, 16, 4, 32))
    table = Tensor(np.zeros((3, 8), np.int32)).realize()
    key = pages[table].reshape(3, 128, 4, 32).transpose(1, 2)
    sink = canonicalise(graph_of(query @ key.mT, [query, pages, table]))
    assert len(make_plan(sink).kernels) > 1


@pytest.mark.parametrize("rows", (16, 128))
def test_a_gpu_reads_matrices_that_an_index_names_where_they_are(rows: int) -> None:
    x, weight = inputs(BRAIN, (8, rows, 128), (3, 256, 128))
    named = Tensor(np.zeros(8, np.int32)).realize()
    given = graph_of(x @ weight[named].mT, [x, weight, named])
    assert len(make_plan(canonicalise(given, target=HOPPER), target=HOPPER).kernels) == 1
