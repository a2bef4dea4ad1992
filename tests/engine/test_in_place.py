"""Which new values of state a replay writes where the old ones lie."""

from __future__ import annotations

from typing import Any

import numpy as np

from baregrad.dtypes import dtypes
from baregrad.engine.capture import Capture
from baregrad.engine.executor import Executable
from baregrad.engine.in_place import written_in_place
from baregrad.engine.session import Session
from baregrad.ir.core.attrs import BufferRef
from baregrad.ir.core.node import Node, alu
from baregrad.ir.core.op import Ops

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)


def upload(session: Session) -> BufferRef:
    return session.upload(VALUES, dtypes.float32, VALUES.shape, "CPU")


def leaf(ref: BufferRef) -> Node:
    return Node(Ops.BUFFER, dtypes.float32, (), ref)


def doubled(ref: BufferRef) -> Node:
    return alu(Ops.ADD, leaf(ref), leaf(ref))


def flipped(ref: BufferRef) -> Node:
    return Node(Ops.FLIP, dtypes.float32, (leaf(ref),), (0,))


def in_place(
    capture: Capture,
    changed: BufferRef,
    kept: BufferRef,
    results: tuple[BufferRef, ...] = (),
    seen: tuple[BufferRef, ...] = (),
) -> Any:
    runs, found = written_in_place(
        capture.runs, [(changed.handle, kept.handle)],
        {id(ref.handle) for ref in results}, {id(ref.handle) for ref in seen},
    )
    assert all(place is kept.handle for place in found.values())
    return runs, id(changed.handle) in found


def test_a_value_that_its_run_does_not_read(session: Session) -> None:
    state, x = upload(session), upload(session)
    with Capture(session) as capture:
        (new,) = session.realize([doubled(x)], "CPU")
    assert in_place(capture, new, state)[1]
    for results, seen, expected in (
        ((new,), (), False), ((state,), (), False), ((), (new,), False),
        # Before a replay, state moves away from what others read.
        ((), (state,), True),
    ):
        assert in_place(capture, new, state, results, seen)[1] is expected


def test_a_value_that_its_kernel_reads_where_it_writes(session: Session) -> None:
    """With a plan that allows that: else another element might be read too late."""
    state = upload(session)
    for value, donate, expected in (
        (doubled(state), {0: state.handle}, True),
        (doubled(state), {}, False),
        (alu(Ops.ADD, flipped(state), leaf(state)), {0: state.handle}, False),
    ):
        with Capture(session) as capture:
            (new,) = session.realize([value], "CPU", donate)
        runs, found = in_place(capture, new, state)
        assert found is expected
        assert new.handle is not state.handle
        if found:
            executable = runs[0].executable
            assert isinstance(executable, Executable)
            assert executable.plan.buffers[executable.plan.outputs[0]].kind == "param"


def test_a_run_may_write_over_what_nobody_else_reads(session: Session) -> None:
    state = upload(session)
    (new,) = session.realize([doubled(state)], "CPU", {0: state.handle}, [0])
    assert new.handle is state.handle
    raw = session.download(new, dtypes.float32)
    np.testing.assert_array_equal(raw.view(np.float32), 2 * VALUES)


def test_an_old_value_that_a_later_run_reads(session: Session) -> None:
    state, x = upload(session), upload(session)
    with Capture(session) as capture:
        (new,) = session.realize([doubled(x)], "CPU")
        session.realize([flipped(state)], "CPU")
    assert not in_place(capture, new, state)[1]


def test_an_old_value_that_an_earlier_run_reads(session: Session) -> None:
    state, x = upload(session), upload(session)
    with Capture(session) as capture:
        session.realize([flipped(state)], "CPU")
        (new,) = session.realize([doubled(x)], "CPU")
        session.realize([flipped(new)], "CPU")
    assert in_place(capture, new, state)[1]
    runs, found = written_in_place(
        capture.runs, [(new.handle, state.handle), (state.handle, new.handle)], set(), ()
    )
    assert not found and runs == tuple(capture.runs)
