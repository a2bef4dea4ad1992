"""The session: devices opened once, plans kept, values remembered, by whom they may be seen."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from baregrad.base.errors import BaregradError, CompilerBug, UnsupportedDevice
from baregrad.base.options import options
from baregrad.dtypes import dtypes
from baregrad.engine import backends
from baregrad.engine import session as module
from baregrad.engine.session import Run, Session, current_session, use_session
from baregrad.ir.core.attrs import BufferRef
from baregrad.ir.core.node import Node, alu
from baregrad.ir.core.op import Ops
from baregrad.runtime.buffers import Buffer
from baregrad.runtime.null import NullDevice
from baregrad.runtime.ref import RefDevice

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


class Counting(backends.ReferenceBackend):
    """A reference that notes what is asked of it, and may fail."""

    def __init__(self, name: str = "REF", fails: Exception | None = None) -> None:
        super().__init__(name, RefDevice())
        self.prepared = 0
        self.closed: list[str] = []
        self.fails = fails

    def prepare(self, program: Any, donated: Mapping[int, int]) -> Any:
        self.prepared += 1
        if self.fails is not None:
            raise self.fails
        return "a plan"

    def execute(self, executable: Any, program: Any, where: Any) -> list[Buffer]:
        assert executable == "a plan"
        return super().execute(None, program, where)

    def close(self) -> None:
        self.closed.append(self.name)
        super().close()


@pytest.fixture
def session() -> Iterator[Session]:
    with use_session(Session()) as opened:
        yield opened
        opened.close()


@pytest.fixture
def backend(session: Session) -> Counting:
    found = Counting()
    session.adopt(found)
    return found


def leaf(session: Session, device: str = "REF", values: Any = VALUES) -> Node:
    ref = session.upload(values, dtypes.float32, values.shape, device)
    return Node(Ops.BUFFER, dtypes.float32, (), ref)


def values_of(session: Session, ref: BufferRef) -> Any:
    return session.download(ref, dtypes.float32).view(np.float32)


# --- devices -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["CPU", "REF", "NULL", "NV", "CUDA", "NV:1", "CUDA:12"])
def test_names_of_devices(session: Session, name: str) -> None:
    assert session.known_device(name) == name


@pytest.mark.parametrize(
    "name", ["", "cpu", "GPU", "CPU:1", "NV:", "NV:x", "NV:-1", "NV:\u0661", "NV:1:2"]
)
def test_names_of_no_device_are_refused(session: Session, name: str) -> None:
    with pytest.raises(UnsupportedDevice, match="there is no device"):
        session.backend(name)


def test_a_device_is_opened_once_and_closed_last_first(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    opened: list[str] = []

    def open_backend(name: str) -> Counting:
        opened.append(name)
        found = Counting(name)
        found.closed = closed
        return found

    monkeypatch.setattr(backends, "open_backend", open_backend)
    names = ["REF", "NULL", "REF", "CPU", "NULL"]
    found = [session.backend(name) for name in names]
    assert opened == ["REF", "NULL", "CPU"] and found[0] is found[2] and found[1] is found[4]
    session.close()
    assert closed == ["CPU", "NULL", "REF"]
    assert session.backend("REF") is not found[0]


def test_the_option_names_the_device_of_new_tensors(session: Session) -> None:
    for name in ("REF", "CPU", "NULL"):
        with options.override(device=name):
            assert session.default_device() == name


# --- memory --------------------------------------------------------------------------------------


def test_what_is_uploaded_comes_back(session: Session) -> None:
    turned = VALUES.T
    ref = session.upload(turned, dtypes.float32, (3, 2), "REF")
    found = values_of(session, ref)
    np.testing.assert_array_equal(found, turned)
    # Both ways they are copies.
    found[:] = 7
    np.testing.assert_array_equal(values_of(session, ref), turned)
    empty = session.upload(np.empty((0, 3), np.float32), dtypes.float32, (0, 3), "REF")
    assert values_of(session, empty).shape == (0, 3)


def test_memory_that_the_device_sees_is_wrapped_in_place(session: Session) -> None:
    mine = VALUES.copy()
    seen = session.wrap(mine, dtypes.float32, (2, 3), "CPU")
    mine[0, 0] = 9
    assert values_of(session, seen)[0, 0] == 9
    # Another device has a copy.
    session.adopt(backends.CompiledBackend("NULL", NullDevice(), None))  # type: ignore[arg-type]
    uploads: list[BufferRef] = []
    session.watching.uploads.append(lambda ref, data: uploads.append(ref))
    assert session.wrap(mine, dtypes.float32, (2, 3), "NULL") in uploads


def test_observers_see_what_comes_and_goes(session: Session) -> None:
    uploads: list[tuple[BufferRef, Any]] = []
    downloads: list[BufferRef] = []
    session.watching.uploads.append(lambda *args: uploads.append(args))
    session.watching.downloads.append(downloads.append)
    ref = session.upload(VALUES, dtypes.float32, (2, 3), "REF")
    session.upload(VALUES, dtypes.float32, (2, 3), "REF", noted=False)
    assert [one for one, _ in uploads] == [ref] and uploads[0][1].tobytes() == VALUES.tobytes()
    values_of(session, ref)
    assert downloads == [ref]


# --- realisation ---------------------------------------------------------------------------------


def test_a_value_is_computed_once(session: Session, backend: Counting) -> None:
    x = leaf(session)
    square = alu(Ops.MUL, x, x)
    runs: list[Run] = []
    session.watching.observers.append(runs.append)
    (first,) = session.realize([square], "REF")
    assert session.realised(square) is not None
    (total,) = session.realize([alu(Ops.ADD, square, square)], "REF")
    np.testing.assert_array_equal(values_of(session, total), 2 * VALUES**2)
    # The second run read the first one's result, and was a run of another program.
    assert [ref.handle for ref in runs[1].program.inputs] == [first.handle]
    assert [run.outputs for run in runs] == [(first,), (total,)] and backend.prepared == 2


def test_a_program_has_one_plan_whatever_it_reads(session: Session, backend: Counting) -> None:
    for scale in range(3):
        x = leaf(session, values=VALUES * scale)
        (found,) = session.realize([alu(Ops.MUL, x, x)], "REF")
        np.testing.assert_array_equal(values_of(session, found), (VALUES * scale) ** 2)
    assert backend.prepared == 1
    with options.override(ref_level="kernel"):
        x = leaf(session)
        session.realize([alu(Ops.MUL, x, x)], "REF")
    assert backend.prepared == 2


def test_the_plan_that_was_used_longest_ago_is_forgotten(
    session: Session, backend: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PLANS_KEPT", 2)

    def run(op: Ops) -> int:
        """How many plans were made for it."""
        before = backend.prepared
        x = leaf(session)
        session.realize([alu(op, x, x)], "REF")
        return backend.prepared - before

    asked = [Ops.MUL, Ops.ADD, Ops.MUL, Ops.MAX, Ops.MUL, Ops.ADD]
    assert [run(op) for op in asked] == [1, 1, 0, 1, 0, 1]


def test_what_lies_elsewhere_is_computed_there_and_copied(session: Session) -> None:
    x, y = leaf(session, "REF"), leaf(session, "CPU", VALUES + 1)
    square = alu(Ops.MUL, x, x)
    runs: list[Run] = []
    session.watching.observers.append(runs.append)
    brought = Node(Ops.COPY, dtypes.float32, (square,), "CPU")
    (found,) = session.realize([alu(Ops.ADD, brought, y)], "CPU")
    assert found.device == "CPU"
    np.testing.assert_array_equal(values_of(session, found), VALUES**2 + VALUES + 1)
    assert [run.backend.name for run in runs] == ["REF", "CPU"]
    # The copy is remembered: the value is not brought again.
    session.realize([alu(Ops.MUL, brought, y)], "CPU")
    assert [run.backend.name for run in runs] == ["REF", "CPU", "CPU"]


def test_overwritten_values_are_forgotten(session: Session) -> None:
    nodes = [alu(op, leaf(session)) for op in (Ops.NEG, Ops.EXP)]
    refs = session.realize(nodes, "REF")
    session.forget([id(refs[0].handle)])
    assert session.realised(nodes[0]) is None and session.realised(nodes[1]) == refs[1]


@pytest.mark.parametrize("kept", [True, False])
def test_inside_a_block_only_its_own_values_count(session: Session, kept: bool) -> None:
    before, inside = alu(Ops.NEG, leaf(session)), alu(Ops.EXP, leaf(session))
    session.realize([before], "REF")
    seen: list[object] = []
    with session.isolated(kept):
        assert session.realised(before) is None
        session.realize([inside], "REF")
        other = threading.Thread(
            target=lambda: seen.extend([session.realised(before), session.realised(inside)])
        )
        other.start()
        other.join()
    assert seen[0] is not None and seen[1] is None
    assert session.realised(before) is not None
    assert (session.realised(inside) is not None) is kept


def test_memory_of_two_values_is_marked(session: Session) -> None:
    """What is written in place has to know of it."""
    x = leaf(session)
    alone, twice = alu(Ops.NEG, x), alu(Ops.EXP, x)
    refs = session.realize([alone, twice, twice, x], "REF")
    handles = [ref.handle for ref in refs]
    assert not handles[0].shared
    for position in (2, 3):
        first = [h is handles[position] for h in (*handles[:position], x.arg.handle)]
        assert handles[position].shared is any(first)


def test_errors_have_the_line_of_the_user(session: Session) -> None:
    known = BaregradError("no")
    for fails, wanted in ((known, BaregradError), (ZeroDivisionError("nought"), CompilerBug)):
        own = Counting(fails=fails)
        session.adopt(own)
        x = leaf(session)
        with pytest.raises(wanted) as found:
            session.realize([alu(Ops.MUL, x, x)], "REF")
        assert str(found.value.at).startswith(__file__)
        if wanted is CompilerBug:
            assert "ZeroDivisionError: nought" in str(found.value)
            assert "mul" in str(found.value.ir_text).lower()


# --- the process ---------------------------------------------------------------------------------


def test_the_innermost_session_is_the_current_one() -> None:
    outside, outer, inner = current_session(), Session(), Session()
    seen: list[Session] = []
    with use_session(outer):
        with pytest.raises(ZeroDivisionError), use_session(inner):
            assert current_session() is inner
            raise ZeroDivisionError
        assert current_session() is outer
        thread = threading.Thread(target=lambda: seen.append(current_session()))
        thread.start()
        thread.join()
    assert current_session() is outside
    # A new thread is in no block: it has the process's own.
    assert seen[0] not in (outer, inner) and seen[0] is module._process.default()
