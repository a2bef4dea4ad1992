"""The bench: programs that are right are timed, and each kind of wrong one is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from baregrad.dtypes import dtypes
from baregrad.engine.backends import CompiledBackend, open_backend
from baregrad.engine.search import bench as module
from baregrad.engine.search.bench import MARGIN, Bench
from baregrad.ir.core.node import Node, alu, const, range_node
from baregrad.ir.core.op import Ops
from baregrad.kernel import Schedule
from baregrad.runtime.commands import CommandList, Exec, Timeline
from tests.kernel import kernels as k

ROWS, COLUMNS = 3, 40
KERNEL = k.elementwise(ROWS, COLUMNS)


@pytest.fixture(scope="module")
def backend() -> Iterator[CompiledBackend]:
    opened = open_backend("CPU")
    assert isinstance(opened, CompiledBackend)
    yield opened
    opened.close()


def scaled(factor: int, extent: int = ROWS * COLUMNS, *more: Node) -> Node:
    """The kernel's sums with another factor than its three, of a number of elements."""
    i = range_node(extent, 0)
    x, y = k.at(k.param(1, extent), i), k.at(k.param(2, extent), i)
    value = alu(Ops.ADD, alu(Ops.MUL, x, const(factor, dtypes.float32)), y)
    return k.kernel(k.out(k.param(0, extent), value, i), *more)


def program(backend: CompiledBackend, kernel: Node, schedule: Schedule | None = None) -> bytes:
    return backend.compiler.compile(kernel, schedule).to_bytes()


def opened(backend: CompiledBackend, cold_nbytes: int = 0) -> Bench:
    bench = Bench(KERNEL, backend.device, cold_nbytes)
    assert bench.first(program(backend, KERNEL))["ns"] > 0
    return bench


def test_a_right_program_is_timed_beside_the_first_one(backend: CompiledBackend) -> None:
    bench = opened(backend)
    first, other = bench.check("plain", program(backend, KERNEL, Schedule()))["times"]
    low, high = module.LOOK_ROUNDS
    assert low <= len(first) == len(other) <= high and min(first + other) > 0
    assert [len(times) for times in bench.race(["plain", "first", "plain"], 4)] == [4, 4, 4]


def test_another_function_is_no_first_program(backend: CompiledBackend) -> None:
    found = Bench(KERNEL, backend.device, 0).first(program(backend, scaled(4)))
    assert found["wrong"].startswith("against the reference: ")


def overwriting(slot: int) -> Node:
    """A kernel that does what it should and writes an argument as well."""
    extent = ROWS * COLUMNS
    i = range_node(extent, 5)
    return scaled(3, extent, k.out(k.param(slot, extent), const(7.0, dtypes.float32), i))


@pytest.mark.parametrize(("kernel", "why"), [
    (scaled(4), "against the reference"),
    (scaled(3, ROWS * COLUMNS + 1), "it writes outside argument 0"),
    (overwriting(1), "it changes argument 1"),
    (overwriting(2), "it changes argument 2"),
], ids=["values", "outside", "first argument", "second argument"])  # fmt: skip
def test_what_is_wrong_is_said_and_does_no_harm(
    backend: CompiledBackend, kernel: Node, why: str
) -> None:
    bench = opened(backend)
    found = bench.check("wrong", program(backend, kernel))
    assert why in found["wrong"] and "wrong" not in bench.kernels
    # The next one is tried on what the first one was tried on.
    assert "times" in bench.check("right", program(backend, scaled(3)))


def test_elements_that_no_sample_shows_are_compared_with_the_first_program(
    backend: CompiledBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "samples", lambda problem: [])
    bench = opened(backend)
    found = bench.check("wrong", program(backend, scaled(4)))
    assert found["wrong"].startswith("against the first schedule: ")


def test_sums_go_on_from_what_lies_there(backend: CompiledBackend) -> None:
    """Each run begins with the argument as it was made."""
    kernel = k.scatter_add(5, 9, 4)
    bench = Bench(kernel, backend.device, 0)
    assert "ns" in bench.first(program(backend, kernel))
    before = {slot: array.copy() for slot, array in bench.results.items()}
    assert "times" in bench.check("again", program(backend, kernel))
    for slot, array in bench.results.items():
        np.testing.assert_array_equal(array, before[slot])


def test_all_run_in_every_round_in_changing_order(
    backend: CompiledBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over arrays that are as large as the caches together, one set after the other."""
    one_set = 3 * 4 * ROWS * COLUMNS
    bench = opened(backend, 5 * one_set - 1)
    assert len(bench.copies) == 5 and len(Bench(KERNEL, backend.device, one_set).copies) == 1
    for name in ("second", "third"):
        bench.kernels[name] = backend.device.load(backend.compiler.compile(scaled(3)))
    names = {id(kernel): name for name, kernel in bench.kernels.items()}
    order: list[str] = []
    places: list[int] = []

    def submit(commands: CommandList, *args: Any, **kwargs: Any) -> Timeline:
        for command in commands.commands:
            assert isinstance(command, Exec)
            order.append(names[id(command.kernel)])
            places.append(command.buffers[0].address)  # type: ignore[union-attr]
        count = len(commands)
        return Timeline(("",) * count, tuple(range(count)), tuple(range(1, 2 * count, 2)))

    monkeypatch.setattr(backend.device, "submit", submit)
    asked = ["first", "second", "third"]
    times = bench.race(asked, 6)
    rounds = [tuple(order[at : at + 3]) for at in range(0, 18, 3)]
    assert all(sorted(each) == asked for each in rounds) and len(set(rounds)) == 6
    # A command's time is the number of commands before it, and one.
    wanted = {name: [i + 1 for i, one in enumerate(order) if one == name] for name in asked}
    assert dict(zip(asked, times, strict=True)) == wanted
    assert len({*places[:5]}) == 5 and places[5:10] == places[:5]
    assert Counter(order) == dict.fromkeys(asked, 6)
    places.clear()
    bench.race(asked, 3, near=True)
    assert len(places) == 9 and len({*places}) == 1


def test_results_have_room_around_them(backend: CompiledBackend) -> None:
    bench = opened(backend)
    for buffer, array in zip(bench.copies[0], bench.problem.arrays, strict=True):
        assert buffer.nbytes == array.nbytes + 2 * MARGIN
