"""A run that is done again over other arrays: its results, and what it writes over."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.base.options import options
from baregrad.engine.again import run_again
from baregrad.engine.canonical import bind
from baregrad.engine.session import Run, Session, use_session
from baregrad.ir.core.index import variable
from baregrad.tensor import Tensor
from baregrad.tensor.array import nodes
from baregrad.tensor.array.storage import buffer_node

ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.mark.parametrize("device", ["CPU", "REF"])
def test_other_arrays_and_values_of_variables(device: str) -> None:
    session = Session()
    with use_session(session), options.override(device=device):
        place = variable("place", 0, 3)
        arrays = [Tensor(ROWS).realize(), Tensor(ROWS * 10).realize()]
        runs: list[Run] = []
        session.watching.observers.append(runs.append)
        (arrays[0][bind(place, 1)] * 2).realize()
        (run,) = runs
        ref = arrays[1]._ref()
        (found,) = run_again(session, run, [ref], {"place": 3})
        data = session.download(found, arrays[1].dtype).view(np.float32)
        np.testing.assert_array_equal(data, (ROWS[3] * 20).reshape(found.shape))
        assert len(runs) == 2 and runs[1].program.variables == {"place": 3}


@pytest.mark.parametrize("device", ["CPU", "REF"])
def test_what_was_written_over_is_so_again(device: str) -> None:
    session = Session()
    with use_session(session), options.override(device=device):
        runs: list[Run] = []
        first, second = (Tensor(ROWS + i).realize()._ref() for i in range(2))
        session.watching.observers.append(runs.append)
        node = buffer_node(first, Tensor(ROWS).dtype)
        given = {0: first.handle}
        (ref,) = session.realize([nodes.add(node, node)], device, given, [0])
        (found,) = run_again(session, runs[0], [second], {})
        data = session.download(found, node.dtype).view(np.float32)
        np.testing.assert_array_equal(data, 2 * (ROWS + 1))
        assert (found.handle is second.handle) == (ref.handle is first.handle)
        assert found.version != second.version or found.handle is not second.handle
