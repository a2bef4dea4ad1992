"""Replays as text: over other arrays they do what was captured, and broken text raises."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from baregrad.base.errors import FileFormatError, ShapeError
from baregrad.engine.backends import CompiledBackend
from baregrad.engine.canonical import bind
from baregrad.engine.capture import Capture, Replay
from baregrad.engine.kept.replays import Wanted, replay_from_text, replay_to_text
from baregrad.engine.session import Session
from baregrad.ir.core.attrs import BufferRef
from baregrad.ir.core.index import variable
from baregrad.tensor import Tensor
from baregrad.tensor.array.storage import buffer_node

ROWS = variable("replayed_rows", 1, 9)


def array(numbers: Any) -> Tensor:
    return Tensor(np.asarray(numbers, np.float32)).realize()


def ref_of(tensor: Tensor) -> BufferRef:
    ref: BufferRef = tensor.node.arg
    return ref


def captured(session: Session) -> tuple[Replay, Tensor]:
    """Two runs, the second over what the first made, with symbolic extents; and the argument."""
    x = array(np.arange(36).reshape(9, 4))
    with Capture(session) as capture:
        part = x[: bind(ROWS, 3)]
        (between,) = session.realize([(part * 2).sum(0).node], "CPU")
        middle = buffer_node(between, x.dtype)
        whole = part + Tensor._make(middle, "CPU")
        shape = whole.node.shape
        (found,) = session.realize([whole.node], "CPU")
    made = Replay(capture, [ref_of(x)], [found], (), (), (), [shape], [ROWS.arg.name])
    return made, x


def wanted(session: Session, *inputs: BufferRef) -> Wanted:
    backend = session.backend("CPU")
    assert isinstance(backend, CompiledBackend)
    return Wanted(session, backend, inputs)


def test_a_replay_runs_over_other_arrays(session: Session) -> None:
    replay, _ = captured(session)
    text = replay_to_text(replay)
    assert text is not None
    other = array(np.linspace(-1, 1, 36).reshape(9, 4))
    back = replay_from_text(text, wanted(session, ref_of(other)))
    for rows in (1, 9, 4):
        (handle,) = back([ref_of(other).handle], {ROWS.arg.name: rows}, {})
        ref = back.ref(0, handle, {ROWS.arg.name: rows})
        x = other.numpy()[:rows]
        np.testing.assert_allclose(
            session.download(ref, other.dtype).view(np.float32),
            x + 2 * x.sum(0, dtype=np.float64), rtol=1e-5, atol=1e-6,
        )  # fmt: skip


def test_requirements_are_kept(session: Session) -> None:
    x = array(np.arange(36).reshape(9, 4))
    first = variable("replayed_first", 0, 9)
    with Capture(session) as capture:
        part = x[bind(first, 2) : bind(ROWS, 3)]
        shape = part.shape
        (found,) = session.realize([(part + 1).node], "CPU")
    names = [first.arg.name, ROWS.arg.name]
    replay = Replay(capture, [ref_of(x)], [found], (), (), (), [shape], names)
    text = replay_to_text(replay)
    assert text is not None
    back = replay_from_text(text, wanted(session, ref_of(x)))
    back([ref_of(x).handle], dict(zip(names, (4, 6), strict=True)), {})
    with pytest.raises(ShapeError):
        back([ref_of(x).handle], dict(zip(names, (6, 5), strict=True)), {})


def test_what_reads_arrays_of_its_own_process_is_not_kept(session: Session) -> None:
    x, other = array(np.ones(4)), array(np.ones(4))
    with Capture(session) as capture:
        shape = x.shape
        (found,) = session.realize([(x + other).node], "CPU")
    replay = Replay(capture, [ref_of(x)], [found], (), (), (), [shape], ())
    assert replay_to_text(replay) is None


def test_broken_text_raises(session: Session) -> None:
    replay, x = captured(session)
    whole = replay_to_text(replay)
    assert whole is not None
    changes: tuple[Callable[[Any], Any], ...] = (
        lambda table: table.pop("shapes"), lambda table: table["outputs"].append(99),
        lambda table: table["runs"][0]["outputs"].append(1),
        lambda table: table["runs"][0]["inputs"].pop(),
        lambda table: table["runs"][1].update(plan=""),
        lambda table: table["shapes"][0].append([7]), lambda table: table.update(made=3),
    )  # fmt: skip
    broken = ["", "[]", "{}", whole[:-3]]
    for change in changes:
        text, table = json.loads(whole)
        change(table)
        broken.append(json.dumps([text, table]))
    for each in broken:
        with pytest.raises(FileFormatError):
            replay_from_text(each, wanted(session, ref_of(x)))
