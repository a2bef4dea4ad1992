"""Programs by keys: over whichever leaves, and none where memory would be shared unseen."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.dtypes import dtypes
from baregrad.engine import keyed_programs
from baregrad.engine.keyed_programs import KeyedPrograms
from baregrad.engine.session import Session
from baregrad.ir.core.attrs import BufferRef
from baregrad.ir.core.node import Node, alu
from baregrad.ir.core.op import Ops

F32 = dtypes.float32


def leaf(ref: BufferRef) -> Node:
    return Node(Ops.BUFFER, F32, (), ref)


def uploaded(session: Session, *values: float) -> BufferRef:
    array = np.array(values, np.float32)
    return session.upload(array, F32, array.shape, "CPU")


def values(session: Session, ref: BufferRef) -> list[float]:
    found: list[float] = session.download(ref, F32).view(np.float32).tolist()
    return found


def never() -> list[Node]:
    raise AssertionError("a graph was asked for twice")


def test_a_key_runs_over_other_leaves(session: Session) -> None:
    a, b = uploaded(session, 1, 2), uploaded(session, 5, 7)
    found = session.realize_by_key(
        ("sub",), "CPU", [a, b], lambda: [alu(Ops.SUB, leaf(b), leaf(a))]
    )
    assert found is not None
    assert values(session, found[0]) == [4, 5]
    found = session.realize_by_key(("sub",), "CPU", [b, a], never)
    assert found is not None
    assert values(session, found[0]) == [-4, -5]


def test_values_known_elsewhere_are_not_read(session: Session) -> None:
    a = uploaded(session, 1, 2)
    known = alu(Ops.NEG, leaf(a))
    session.realize([known], "CPU")
    for call, (given, wanted) in enumerate((((1, 2), [-2, -4]), ((3, 4), [-6, -8]))):
        ref = a if not call else uploaded(session, *given)
        found = session.realize_by_key(
            ("twice",), "CPU", [ref], lambda: [alu(Ops.ADD, known, known)]
        )
        assert found is not None
        assert values(session, found[0]) == wanted


def test_there_is_no_program_where_a_result_is_an_argument(session: Session) -> None:
    a = uploaded(session, 1, 2)
    twice = alu(Ops.NEG, leaf(a))
    for _ in range(2):
        assert session.realize_by_key(("same",), "CPU", [a], lambda: [leaf(a)]) is None
        assert session.realize_by_key(("two",), "CPU", [a], lambda: [twice, twice]) is None


def test_there_is_no_program_where_something_else_is_read(session: Session) -> None:
    a, b = uploaded(session, 1, 2), uploaded(session, 3, 4)
    found = session.realize_by_key(("sum",), "CPU", [a], lambda: [alu(Ops.ADD, leaf(a), leaf(b))])
    assert found is None


def test_the_last_keys_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_programs, "KEYS_KEPT", 2)
    programs = KeyedPrograms()
    first = programs.add("a", None)
    programs.add("b", None)
    assert programs.get("a") is first
    programs.add("c", None)
    assert programs.get("b") is None
    assert programs.get("a") is first
    programs.clear()
    assert programs.get("a") is None
