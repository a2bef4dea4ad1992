"""Long accumulating scatters in parts, on GPUs."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.dtypes import dtypes
from baregrad.ir.core.attrs import Scatter
from baregrad.ir.core.monoid import primitive
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from tests.graph.gpu_graphs import F32, RNG, argument, changed


@pytest.mark.parametrize("rows", (640, 601, 100))
def test_long_sums_by_index_are_cut(rows: int) -> None:
    base, values = argument(0, F32, 7, 5), argument(1, F32, rows, 5)
    places = argument(2, dtypes.int64, rows, 1)
    line = Node(Ops.RESHAPE, dtypes.int64, (Node(Ops.IOTA, dtypes.int64, (), 5),), (1, 5))
    columns = Node(Ops.EXPAND, dtypes.int64, (line,), (rows, 5))
    chosen = Node(Ops.EXPAND, dtypes.int64, (places,), (rows, 5))
    adding = Scatter(primitive(Ops.ADD, F32))
    node = Node(Ops.SCATTER, F32, (base, values, chosen, columns), adding)
    made = changed(
        node,
        [
            RNG.standard_normal((7, 5)).astype(np.float32),
            RNG.standard_normal((rows, 5)).astype(np.float32),
            RNG.integers(0, 7, (rows, 1)),
        ],
    )
    (found,) = (one for one in toposort(made) if one.op is Ops.SCATTER)
    # 640 rows are 40 parts of 16; 601 is a prime number.
    assert found.shape == ((40, 7, 5) if rows == 640 else (7, 5))
