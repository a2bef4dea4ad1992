"""Plans that run: buffers where the plan has them, sizes as variables have them, work in order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baregrad.dtypes import dtypes
from baregrad.engine import executor
from baregrad.engine.backends import CompiledBackend
from baregrad.engine.canonical import Canonical, bind, canonicalise
from baregrad.engine.executor import Executable, KeyedPrograms
from baregrad.engine.session import Session
from baregrad.ir.core.attrs import BufferRef
from baregrad.ir.core.index import variable
from baregrad.ir.core.node import Node, alu
from baregrad.ir.core.op import Ops
from baregrad.program import evaluate
from baregrad.runtime.buffers import Buffer
from baregrad.runtime.commands import Exec, Slot
from baregrad.tensor import Tensor

VALUES = np.linspace(-2, 2, 30, dtype=np.float32).reshape(5, 6)
F32 = dtypes.float32
ROWS = variable("rows", 1, 5)


def backend_of(session: Session) -> CompiledBackend:
    found = session.backend("CPU")
    assert isinstance(found, CompiledBackend)
    return found


def prepared(session: Session, *results: Tensor) -> tuple[Executable, Canonical]:
    program = canonicalise([one.node for one in results], lambda node: None)
    return backend_of(session).prepare(program, {}), program


def inputs_of(program: Canonical) -> list[Buffer]:
    return [ref.handle for ref in program.inputs]


def floats(buffer: Buffer) -> Any:
    return np.frombuffer(buffer.as_memoryview(), np.float32)


def test_temporaries_share_an_arena_and_results_come_in_order(session: Session) -> None:
    values = np.linspace(-1, 1, 16 * 17, dtype=np.float32).reshape(16, 17)
    x = Tensor(values).realize()
    executable, program = prepared(session, (x @ x.T @ x).sum(0), x + 1, x.softmax(1).sum(0))
    kinds = [buffer.kind for buffer in executable.plan.buffers]
    assert kinds.count("temp") > 1 and executable.arena_nbytes({}) > 0
    powers = np.exp(values)
    wanted = [
        (values @ values.T @ values).sum(0),
        values + 1,
        (powers / powers.sum(1, keepdims=True)).sum(0),
    ]
    inputs = inputs_of(program)
    for _ in range(2):
        found, timeline = executable.run(inputs, {})
        assert timeline is None
        for one, right in zip(found, wanted, strict=True):
            np.testing.assert_allclose(floats(one), right.reshape(-1), rtol=1e-4, atol=1e-4)


def test_a_run_has_memory_of_its_own(session: Session) -> None:
    executable, program = prepared(session, Tensor(VALUES).realize() * 2)
    inputs = inputs_of(program)
    (first,), (second,) = executable.run(inputs, {})[0], executable.run(inputs, {})[0]
    floats(first)[:] = 0
    np.testing.assert_array_equal(floats(second), VALUES.reshape(-1) * 2)


def test_a_result_that_is_an_argument_is_that_buffer(session: Session) -> None:
    x, y = Tensor(VALUES).realize(), Tensor(VALUES + 3).realize()
    executable, program = prepared(session, y, x + y, x)
    inputs = inputs_of(program)
    (left, total, right), _ = executable.run(inputs, {})
    assert {id(left), id(right)} == {id(one) for one in inputs}
    np.testing.assert_array_equal(floats(left), (VALUES + 3).reshape(-1))
    np.testing.assert_array_equal(floats(total), (VALUES + (VALUES + 3)).reshape(-1))


def test_sizes_follow_the_variables(session: Session) -> None:
    part = Tensor(VALUES).realize()[: bind(ROWS, 2)]
    executable, program = prepared(session, part * 3, part.sum(0))
    (place, _) = executable.output_indices
    inputs = inputs_of(program)
    for rows in range(1, 6):
        assert evaluate(executable.size(place), {"rows": rows}) == rows * 6 * 4
        (scaled, total), _ = executable.run(inputs, {"rows": rows})
        np.testing.assert_array_equal(floats(scaled), VALUES[:rows].reshape(-1) * 3)
        np.testing.assert_allclose(floats(total), VALUES[:rows].sum(0), rtol=1e-5)


def test_a_list_has_the_plans_launches_each_with_its_own_variables(session: Session) -> None:
    """Over places of our own, and labelled with the lines that are known."""
    part = Tensor(VALUES).realize()[: bind(ROWS, 2)]
    executable, _ = prepared(session, (part + 1).sum(0), Tensor(VALUES).realize().exp())
    device = backend_of(session).device
    commands = device.command_list()
    names = [launch.kernel.program.name for launch in executable.launches]
    executable.record(
        commands, lambda index: Slot(index + 7), {"rows": 4, "others": 9},
        lambda launch: "here:1" if launch.kernel.program.variables else "",
    )  # fmt: skip
    assert len(commands.commands) == len(executable.plan.steps) == 2
    symbolic = 0
    for command, launch, name in zip(commands.commands, executable.launches, names, strict=True):
        assert isinstance(command, Exec)
        assert command.buffers == tuple(Slot(index + 7) for index in launch.buffers)
        needs = launch.kernel.program.variables
        assert dict(command.variables) == ({"rows": 4} if needs else {})
        assert command.label == (f"{name} here:1" if needs else name)
        symbolic += bool(needs)
    assert symbolic == 1


def test_equal_kernels_are_loaded_once(session: Session) -> None:
    x, y = Tensor(VALUES).realize(), Tensor(VALUES).realize()
    executable, program = prepared(session, x.exp().sum(1), y.exp().sum(1))
    first, second = executable.launches
    assert first.kernel is second.kernel and first.buffers != second.buffers
    found, timeline = executable.run(inputs_of(program), {}, timed=True)
    assert len(timeline.durations_ns()) == 2
    for one in found:
        np.testing.assert_allclose(floats(one), np.exp(VALUES).sum(1), rtol=1e-5)


def test_a_plan_without_work_runs_nothing(session: Session) -> None:
    x = Tensor(VALUES).realize()
    executable, program = prepared(session, x)
    assert executable.launches == () and executable.arena_nbytes({}) == 0
    found, timeline = executable.run(inputs_of(program), {}, timed=True)
    assert found == inputs_of(program) and timeline is None


# --- programs by keys -----------------------------------------------------------------------------


def leaf(ref: BufferRef) -> Node:
    return Node(Ops.BUFFER, F32, (), ref)


def uploaded(session: Session, *values: float) -> BufferRef:
    array = np.array(values, np.float32)
    return session.upload(array, F32, array.shape, "CPU")


def values(buffer: Buffer) -> list[float]:
    found: list[float] = buffer.contents().view(np.float32).tolist()
    return found


def never() -> list[Node]:
    raise AssertionError("a graph was asked for twice")


def test_a_key_runs_over_other_leaves(session: Session) -> None:
    a, b = uploaded(session, 1, 2), uploaded(session, 5, 7)
    found = session.realize_by_key(
        ("sub",), "CPU", [a.handle, b.handle], lambda: [alu(Ops.SUB, leaf(b), leaf(a))]
    )
    assert found is not None
    assert values(found[0]) == [4, 5]
    found = session.realize_by_key(("sub",), "CPU", [b.handle, a.handle], never)
    assert found is not None
    assert values(found[0]) == [-4, -5]


def test_values_known_elsewhere_are_not_read(session: Session) -> None:
    a = uploaded(session, 1, 2)
    known = alu(Ops.NEG, leaf(a))
    session.realize([known], "CPU")
    for call, (given, wanted) in enumerate((((1, 2), [-2, -4]), ((3, 4), [-6, -8]))):
        ref = a if not call else uploaded(session, *given)
        found = session.realize_by_key(
            ("twice",), "CPU", [ref.handle], lambda: [alu(Ops.ADD, known, known)]
        )
        assert found is not None
        assert values(found[0]) == wanted


def test_results_that_are_an_argument_or_each_other_are_marked(session: Session) -> None:
    for number in range(3):
        a = uploaded(session, 1 + number, 2)
        twice = alu(Ops.NEG, leaf(a))
        graph = [leaf(a), alu(Ops.ADD, leaf(a), leaf(a))]
        write_out = never if number else graph.copy
        found = session.realize_by_key(("same",), "CPU", [a.handle], write_out)
        assert found is not None
        assert [buffer.shared for buffer in found] == [True, False]
        assert found[0] is a.handle
        assert values(found[1]) == [2 + 2 * number, 4]
        write_out = never if number else [twice, twice].copy
        found = session.realize_by_key(("two",), "CPU", [a.handle], write_out)
        assert found is not None
        assert found[0] is found[1]
        assert found[0].shared
        assert values(found[0]) == [-1 - number, -2]


def test_there_is_no_program_where_something_else_is_read(session: Session) -> None:
    a, b = uploaded(session, 1, 2), uploaded(session, 3, 4)
    found = session.realize_by_key(
        ("sum",), "CPU", [a.handle], lambda: [alu(Ops.ADD, leaf(a), leaf(b))]
    )
    assert found is None


def test_the_last_keys_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "KEYS_KEPT", 2)
    programs = KeyedPrograms()
    first = programs.add("a", None)
    programs.add("b", None)
    assert programs.get("a") is first
    programs.add("c", None)
    assert programs.get("b") is None
    assert programs.get("a") is first
    programs.clear()
    assert programs.get("a") is None
