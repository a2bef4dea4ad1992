"""Bodies as works: loops inside of bodies, what a list records, how much memory a run is given."""

from __future__ import annotations

from typing import Any

import numpy as np

from baregrad import func
from baregrad.engine.control.loops import ControlExecutable
from baregrad.engine.control.works import Staged, part_of
from baregrad.engine.session import Session, use_session
from baregrad.runtime.commands import Slot
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit

X = np.random.default_rng(0).normal(size=(3, 4, 20)).astype(np.float32)


def nested(c: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """A product before an inner loop that is read after it as well, and a result of the loop."""
    scaled = rows @ rows.mT
    end, made = func.scan(lambda c, row: (c * 0.5 + row.sum(), c), c, scaled)
    return end.tanh(), made + scaled.sum()


def plain(c: Any, x: Any) -> tuple[Any, Any]:
    made = []
    for rows in x.astype(np.float64):
        scaled, inner = rows @ rows.T, []
        for row in scaled:
            inner.append(c)
            c = c * 0.5 + row.sum()
        made.append(np.array(inner) + scaled.sum())
        c = np.tanh(c)
    return c, np.stack(made)


def test_loops_inside_bodies_are_planned_with_them_and_recorded() -> None:
    with use_session(Session()) as session:
        runs: list[Any] = []
        session.watching.observers.append(runs.append)
        wanted = plain(1.0, X)

        def both(x: Tensor) -> tuple[Tensor, Tensor]:
            end, made = func.scan(nested, Tensor(1.0), x)
            return end, made

        for found in (both(Tensor(X)), *[jit(both)(Tensor(X)) for _ in range(3)]):
            np.testing.assert_allclose(found[0].numpy(), wanted[0], rtol=1e-5)
            np.testing.assert_allclose(found[1].numpy(), wanted[1], rtol=1e-5)
        captured = jit(both)
        for _ in range(3):
            _, made = captured(Tensor(X))
        np.testing.assert_allclose(made.numpy(), wanted[1], rtol=1e-5)
        loops = [run.executable for run in runs if isinstance(run.executable, ControlExecutable)]
        assert all(one.is_recordable and isinstance(one.work.body, Staged) for one in loops)
        # Whatever a step needs is told before, and is the same for all steps.
        inner = loops[0].work.body
        assert loops[0].arena_nbytes({}) >= inner.scratch({}) > 0
        assert 3 * inner.commands <= loops[0].work.commands


def test_parts_of_places() -> None:
    assert part_of(Slot(2, 64), 128, 4) == Slot(2, 192)
    with use_session(Session()) as session:
        buffer = session.backend("CPU").device.allocate(256)
        part = part_of(buffer, 64, 32)
        assert (part.nbytes, part.address - buffer.address) == (32, 64)  # type: ignore[union-attr]
