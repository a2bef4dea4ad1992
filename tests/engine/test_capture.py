"""Captures and replays: the runs of a block, done again over other arrays in other memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from baregrad import variable
from baregrad.base.errors import JitError, ShapeError
from baregrad.dtypes import dtypes
from baregrad.engine.canonical import bind
from baregrad.engine.capture import Capture, Replay, copies_of_others, made_by
from baregrad.engine.session import Session
from baregrad.ir.core.attrs import BufferRef
from baregrad.ir.core.node import Node, alu
from baregrad.ir.core.op import Ops
from baregrad.runtime.buffers import Buffer
from baregrad.tensor import Tensor

X = np.arange(6, dtype=np.float32).reshape(2, 3)
W = np.array([[1.0, -2.0, 3.0], [0.5, 0.25, -8.0]], np.float32)
DEVICES = pytest.mark.parametrize("device", ["CPU", "REF"])


def upload(session: Session, values: Any, device: str = "CPU") -> BufferRef:
    return session.upload(values, dtypes.float32, values.shape, device)


def leaf(ref: BufferRef) -> Node:
    return Node(Ops.BUFFER, dtypes.float32, (), ref)


def floats(buffer: Buffer) -> Any:
    found = np.empty(buffer.nbytes // 4, np.float32)
    buffer.device.copy_out(buffer, found)
    return found


def replay_of(
    capture: Capture,
    inputs: Sequence[BufferRef],
    outputs: Sequence[BufferRef],
    updates: Sequence[tuple[BufferRef, BufferRef]] = (),
    kept: Sequence[BufferRef] = (),
    variables: Sequence[str] = (),
) -> Replay:
    shapes = [ref.shape for ref in outputs]
    pairs = [(new.handle, old.handle) for new, old in updates]
    return Replay(
        capture, inputs, outputs, pairs, {id(ref.handle) for ref in kept}, (), shapes, variables
    )


@DEVICES
def test_runs_are_repeated_over_other_arguments(session: Session, device: str) -> None:
    """What is no argument stays, and every call's results have memory of their own."""
    x, w = upload(session, X, device), upload(session, W, device)
    with Capture(session) as capture:
        (product,) = session.realize([alu(Ops.MUL, leaf(x), leaf(w))], device)
        (total,) = session.realize([alu(Ops.ADD, leaf(product), leaf(x))], device)
    assert {id(ref.handle) for ref in capture.reads()} == {id(x.handle), id(w.handle)}
    assert capture.own() == made_by(capture.runs) == {id(product.handle), id(total.handle)}
    replay = replay_of(capture, [x], [total])
    results = [
        replay([upload(session, X * scale, device).handle], {}, {})[0] for scale in (2, 3, 5)
    ]
    for scale, found in zip((2, 3, 5), results, strict=True):
        np.testing.assert_array_equal(floats(found), (X * scale * W + X * scale).reshape(-1))
    np.testing.assert_array_equal(floats(total.handle), (X * W + X).reshape(-1))
    assert replay.ref(0, results[0], {}) == BufferRef(results[0], (2, 3), device)


@DEVICES
def test_state_is_updated_where_it_lies(session: Session, device: str) -> None:
    """Sums of arguments; and two states that swap, each of which is read before it is written."""
    x, total = upload(session, X, device), upload(session, W, device)
    left, right = upload(session, X, device), upload(session, -X, device)
    states = [total, left, right]
    with Capture(session) as capture:
        (more,) = session.realize([alu(Ops.ADD, leaf(total), leaf(x))], device)
        (result,) = session.realize([alu(Ops.MUL, leaf(total), leaf(left))], device)
    updates = [(more, total), (right, left), (left, right)]
    replay = replay_of(capture, [x, *states], [result], updates, states)
    wanted, swapped = W.copy(), X.copy()
    for scale in (1, 10, 100):
        arguments = [upload(session, X * scale, device), *states]
        (found,) = replay([ref.handle for ref in arguments], {}, {})
        # The result is of the state before the call.
        np.testing.assert_array_equal(floats(found), (wanted * swapped).reshape(-1))
        wanted, swapped = wanted + X * scale, -swapped
        for ref, values in zip(states, (wanted, swapped, -swapped), strict=True):
            np.testing.assert_array_equal(floats(ref.handle), values.reshape(-1))


@DEVICES
def test_a_result_that_no_run_makes_is_a_copy(session: Session, device: str) -> None:
    """Of the argument as it was before anything was changed, be it state or not."""
    x, state = upload(session, X, device), upload(session, W, device)
    with Capture(session) as capture:
        (more,) = session.realize([alu(Ops.ADD, leaf(state), leaf(x))], device)
    copies = copies_of_others(capture, [x, state, more], {id(state.handle)})
    assert set(copies) == {id(x.handle), id(state.handle)}
    np.testing.assert_array_equal(floats(copies[id(state.handle)]), W.reshape(-1))
    replay = replay_of(capture, [x, state], [x, state], [(more, state)], [state])
    assert not replay.takes_buffers_alone(2)
    arguments = [upload(session, 2 * X, device), state]
    first, second = replay([ref.handle for ref in arguments], {}, {})
    assert first is not arguments[0].handle and second is not state.handle
    np.testing.assert_array_equal(floats(first), 2 * X.reshape(-1))
    np.testing.assert_array_equal(floats(second), W.reshape(-1))
    np.testing.assert_array_equal(floats(state.handle), (W + 2 * X).reshape(-1))


def test_a_copy_of_an_argument_is_work_of_the_list(session: Session) -> None:
    """Also where no kernel runs: a call submits one list, and gives results memory as ever."""
    x = upload(session, X)
    with Capture(session) as capture:
        (negated,) = session.realize([alu(Ops.NEG, leaf(x))], "CPU")
    for captured, results in ((capture, [x, negated]), (Capture(session), [x])):
        replay = replay_of(captured, [x], results)
        assert replay.takes_buffers_alone(1 + len(results))
        slots = [replay.slot_of(position) for position in range(len(results))]
        fresh = [replay.fresh(slot).handle for slot in sorted(slots)]
        replay.submit([upload(session, W).handle, *fresh])
        np.testing.assert_array_equal(floats(fresh[slots[0]]), W.reshape(-1))
        assert floats(fresh[slots[-1]])[0] == (W if len(results) == 1 else -W)[0, 0]


def test_results_take_memory_that_is_given(session: Session) -> None:
    x = upload(session, X)
    with Capture(session) as capture:
        results = session.realize([alu(op, leaf(x)) for op in (Ops.NEG, Ops.EXP)], "CPU")
    replay = replay_of(capture, [x], results)
    slots = [replay.slot_of(position) for position in (0, 1)]
    assert sorted(slots) == [0, 1]
    spare = upload(session, W).handle
    given = replay([upload(session, W).handle], {}, {slots[1]: spare})
    assert given[1] is spare and given[0] is not spare
    np.testing.assert_allclose(floats(spare), np.exp(W).reshape(-1), rtol=1e-6)
    # So may all of it, where submitting is all that a call does.
    assert replay.takes_buffers_alone(3) and not replay.takes_buffers_alone(2)
    fresh = [replay.fresh(slot) for slot in (0, 1)]
    replay.submit([upload(session, 2 * W).handle, *[ref.handle for ref in fresh]])
    negated = floats(fresh[slots[0]].handle)
    np.testing.assert_array_equal(negated, -2 * W.reshape(-1))


def test_symbolic_sizes_are_those_of_the_call(session: Session) -> None:
    rows = variable("rows", 1, 4)
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    x = Tensor(values).realize()
    with Capture(session) as capture:
        part = x[: bind(rows, 2)]
        wide = part.node.shape
        (found,) = session.realize([(part * 2).node], "CPU")
    replay = Replay(capture, [x.node.arg], [found], (), (), (), [wide], ["rows"])
    for count in (1, 3, 4):
        (handle,) = replay([x.node.arg.handle], {"rows": count}, {})
        assert replay.ref(0, handle, {"rows": count}).shape == (count, 3)
        np.testing.assert_array_equal(floats(handle)[: 3 * count], 2 * values[:count].reshape(-1))
    assert replay.slot_of(0) == -1


def test_values_that_do_not_fit_are_refused(session: Session) -> None:
    """So is what is asked of an array that no run computed."""
    first, last = variable("first", 0, 6), variable("last", 0, 6)
    x = Tensor(X.reshape(-1)).realize()
    with Capture(session) as capture:
        unused = x[bind(first, 1) : bind(last, 4)]
        (found,) = session.realize([(x * 2).node], "CPU")
    assert unused.ndim == 1 and capture.requirements(["first", "last"])
    assert capture.requirements(["first"]) != capture.requirements(["first", "last"])
    replay = Replay(capture, [x.node.arg], [found], (), (), (), [found.shape], ["first", "last"])
    replay([x.node.arg.handle], {"first": 2, "last": 6}, {})
    with pytest.raises(ShapeError):
        replay([x.node.arg.handle], {"first": 3, "last": 2}, {})


def test_what_was_computed_before_is_computed_anew(session: Session) -> None:
    x = upload(session, X)
    square = alu(Ops.MUL, leaf(x), leaf(x))
    session.realize([square], "CPU")
    with Capture(session) as capture:
        session.realize([alu(Ops.NEG, square)], "CPU")
    (only,) = capture.runs
    assert [ref.handle for ref in only.program.inputs] == [x.handle]


READS: dict[str, Callable[[Tensor], Any]] = {
    "numpy": lambda x: x.numpy(),
    "item": lambda x: x.sum().item(),
    "if": lambda x: bool(x.sum() > 0),
}


@pytest.mark.parametrize("name", READS)
def test_values_may_not_be_read(session: Session, name: str) -> None:
    """After the error, and after a capture that ended well, nothing is noted any more."""
    x = Tensor(X).realize()
    with pytest.raises(JitError, match="read a tensor's values"), Capture(session) as capture:
        READS[name](x)
    with Capture(session) as other:
        data = upload(session, W)
        session.realize([alu(Ops.NEG, leaf(data))], "CPU")
    runs, uploads = len(other.runs), len(other.uploads)
    READS[name](x)
    session.realize([alu(Ops.EXP, leaf(upload(session, W)))], "CPU")
    assert (len(other.runs), len(other.uploads)) == (runs, uploads) == (1, 1)
    assert other.uploads[0] == (data, W.tobytes()) and len(capture.runs) <= 1
    watching = session.watching
    assert not (watching.observers or watching.uploads or watching.downloads)

