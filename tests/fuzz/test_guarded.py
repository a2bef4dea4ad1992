"""Arrays between pages that may not be touched, and random programs on them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest

from baregrad.base.options import options
from baregrad.dtypes import dtypes
from baregrad.engine.session import Session, use_session
from baregrad.ir.core.index import mul, variable
from baregrad.schedule.plan import Plan, PlannedBuffer
from baregrad.tensor import Tensor
from baregrad.testing.fuzz_guarded import crashed, fuzz
from baregrad.testing.fuzz_workers import Chunk, spread
from baregrad.testing.guarded_memory import (
    CELL,
    CELL_PAGES,
    FILL,
    PAGE,
    GuardedMemory,
    spaced,
    use_guarded_memory,
)

pytestmark = pytest.mark.differential

# Programs of kind "chain" with a finding whose reason is known and not yet removed.
KNOWN: dict[int, str] = {}


def _touch(chunk: Chunk) -> Iterator[tuple[int, int | None]]:
    """Reads the first and the last byte of two arrays, then one byte outside, as the kind says."""
    memory = GuardedMemory()
    first, last = memory.allocate(100), memory.allocate(100)
    places = [first.address, first.address + 99, last.address, last.address + 99]
    if chunk.kind == "cell":
        cells = memory.allocate(2 * CELL)
        places += [cells.address, cells.address + CELL, cells.address + CELL - PAGE - 1]
    outside = {"before": first.address - 1, "after": last.address + 100}
    if chunk.kind == "cell":
        outside["cell"] = cells.address + CELL - PAGE
    for place in places:
        assert ctypes.c_uint8.from_address(place).value == FILL
    yield 0, None
    if chunk.kind in outside:
        yield 1, ctypes.c_uint8.from_address(outside[chunk.kind]).value


def _how(seed: int, chunk: Chunk, how: str) -> str:
    return how


@pytest.mark.parametrize("place", ["before", "after", "cell", "inside"])
def test_a_read_outside_an_array_is_a_crash(place: str) -> None:
    chunk = Chunk(0, 2, place, None, "CPU", 0)
    found: dict[int, object] = dict(spread(_touch, _how, [chunk], 1))
    assert found == ({0: None} if place == "inside" else {0: None, 1: "SIGSEGV"})


def test_memory_is_used_again() -> None:
    memory = GuardedMemory()
    seen = set()
    for _ in range(20):
        held = memory.allocate(64)
        seen.add(held.address // PAGE)
        ctypes.memset(held.address, 0, 64)
        assert ctypes.c_uint8.from_address(memory.allocate(64).address).value == FILL
        del held
    assert len(seen) <= 4
    memory.close()


def test_temporaries_lie_apart() -> None:
    n = variable("n", 1, 8)
    buffers = (
        PlannedBuffer("param", dtypes.float32, (3,), 12, slot=0),
        PlannedBuffer("temp", dtypes.float32, (3,), 12, offset=0),
        PlannedBuffer("temp", dtypes.float32, (n,), mul(n, 4), offset=0),
    )
    made = spaced(Plan(buffers, (), (), 64))
    assert made.buffers[0] == buffers[0]
    assert [b.offset for b in made.buffers[1:]] == [CELL_PAGES * PAGE - 12, CELL]
    assert made.arena_nbytes == 2 * CELL
    large = PlannedBuffer("temp", dtypes.float32, (1 << 20,), 4 << 20, offset=64)
    plan = Plan((*buffers, large), (), (), 64)
    assert spaced(plan) is plan


def test_a_session_runs_on_guarded_memory() -> None:
    session = Session()
    device = use_guarded_memory(session)
    with use_session(session), options.override(device="CPU"):
        array = np.arange(12.0).reshape(4, 3)
        x = Tensor(array)
        np.testing.assert_allclose((x @ x.T).numpy(), array @ array.T)
        assert device.wrap(array).address % PAGE in (0, PAGE - array.nbytes % PAGE)
    session.close()


# Of seeds nearby, the one whose few programs draw the most operations.
@pytest.mark.parametrize(
    ("count", "seed"), [(40, 50_030), pytest.param(100, 30_000, marks=pytest.mark.slow)]
)
def test_programs_stay_inside_their_arrays(count: int, seed: int) -> None:
    assert not fuzz(count, seed=seed, kind="mixed")


@pytest.mark.parametrize("count", [15, pytest.param(40, marks=pytest.mark.slow)])
def test_programs_with_symbolic_extents_stay_inside_their_arrays(count: int) -> None:
    assert not [f for f in fuzz(count, seed=40_000) if f.seed not in KNOWN]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_programs_with_symbolic_extents_stay_inside_their_arrays() -> None:
    assert not [f for f in fuzz(10_000, seed=0, processes=2) if f.seed not in KNOWN]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_programs_stay_inside_their_arrays() -> None:
    assert not fuzz(10_000, seed=0, kind="mixed", processes=2)


def test_a_crash_is_made_small() -> None:
    """A program that does not crash in another process stays as it is."""
    found = crashed(3, Chunk(3, 1, "mixed", None, "CPU", 0), "SIGSEGV")
    assert found.seed == 3
    assert "SIGSEGV" in found.script
    assert "use_guarded_memory(current_session())" in found.script
    compile(found.script, "shown", "exec")
