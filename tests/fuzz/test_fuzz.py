"""Random programs agree eagerly, jitted and on the reference device; what differs is made small."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from baregrad.base.options import options
from baregrad.engine.backends import CompiledBackend, host_target
from baregrad.engine.session import Session
from baregrad.kernel import choose_schedule
from baregrad.kernel.language.schedule import Bind
from baregrad.target.cpu import CPU_ROWS
from baregrad.testing import fuzz_compare
from baregrad.testing.fuzz import FuzzFinding, check_seed, fuzz, is_large
from baregrad.testing.fuzz_compare import Difference, check
from baregrad.testing.fuzz_grow import grow
from baregrad.testing.fuzz_program import FuzzProgram, Statement
from baregrad.testing.fuzz_shrink import script, shrink
from baregrad.testing.fuzz_workers import Chunk
from baregrad.testing.large_schedules import machines, use_large_schedules
from tests.kernel import kernels as k

pytestmark = pytest.mark.differential

# Programs that differ for a reason that is known and not yet removed.
KNOWN: dict[int, str] = {}


@pytest.mark.parametrize(
    "chunk", [pytest.param(one, marks=[pytest.mark.slow] if one > 1 else []) for one in range(10)]
)
def test_programs_agree(chunk: int) -> None:
    with options.override(verify=False):
        found = [f for f in fuzz(200, seed=200 * chunk, kind="mixed") if f.seed not in KNOWN]
    assert not found, "\n\n".join(finding.script for finding in found[:3])


def test_lowered_programs_are_well_formed() -> None:
    with options.override(verify=True):
        assert not fuzz(40, seed=50_000, kind="mixed")


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(100))
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_programs_agree(chunk: int) -> None:
    with options.override(verify=False):
        found = [f for f in fuzz(1000, seed=1000 * chunk) if f.seed not in KNOWN]
    assert not found, "\n\n".join(finding.script for finding in found[:3])


def test_what_is_found_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = FuzzFinding(3, grow(3), Difference("eager raises", 0, "", "so"), "")

    def interrupted(_: Chunk) -> Iterator[tuple[int, FuzzFinding | None]]:
        yield 3, finding
        raise KeyboardInterrupt

    monkeypatch.setattr("baregrad.testing.fuzz.check_chunk", interrupted)
    told: list[FuzzFinding] = []
    with pytest.raises(KeyboardInterrupt):
        fuzz(2, seed=3, told=told.append)
    assert told == [finding]


def test_some_programs_have_the_schedules_of_large_arrays() -> None:
    """Threads share what one would do alone, and the script says so."""
    assert is_large(5)
    assert not is_large(4)
    with options.override(device="REF"):
        assert not is_large(5)
    session = Session()
    use_large_schedules(session)
    backend = session.backend("CPU")
    assert isinstance(backend, CompiledBackend)
    shared = []
    for target in (backend.compiler.target, host_target()):
        steps = choose_schedule(k.row_reduce(6, 40), target).steps
        shared.append(any(isinstance(step, Bind) and step.unit == "pool" for step in steps))
    assert shared == [True, False]
    session.close()
    difference = Difference("eager raises", 0, "", "so")
    assert "use_large_schedules(current_session(), 7)" in script(grow(5), difference, 7)
    assert "large" not in script(grow(5), difference)


def test_large_schedules_are_those_of_several_machines() -> None:
    """This one's, and older ones' that it stands for, with few cores and with many."""
    host, *others = machines()
    assert host.name == host_target().name
    assert host.cores == host_target().cores
    assert len({each.name for each in (host, *others) if each.cores == 16}) * 2 == len(others) + 1
    if host.name == "x86-64-avx512":
        assert {each.name for each in others} == {row.name for row in CPU_ROWS[:3]}


def _mixed(count: int) -> Iterator[FuzzProgram]:
    return (grow(seed, "mixed") for seed in range(count))


def test_a_seed_gives_the_same_program_and_data() -> None:
    first, second = grow(5), grow(5)
    assert first.source() == second.source()
    for a, b in zip(first.data(1).values(), second.data(1).values(), strict=True):
        np.testing.assert_array_equal(a, b)
    for a in first.data(1).values():
        assert any(a.shape == b.shape for b in first.data(2).values())


def test_gradients_pass_no_jump_where_rounding_would_decide() -> None:
    """The slope of |x| at an x that is 0 but for rounding is 1, 0 or -1, and all are right."""
    seen = 0
    for program in _mixed(600):
        if not any(".gradient(" in statement.text for statement in program.statements):
            continue
        for statement in program.statements:
            if any(word in statement.text for word in (".abs(", ".relu(", "maximum(", "amax(")):
                seen += 1
                errors = [program.known[n].error for n in statement.reads if n in program.known]
                assert not any(errors), statement.text
    assert seen > 10


def test_lower_levels_come_before_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """An access outside its array raises at the linear level; a processor may crash."""
    seen: list[str] = []

    def run(program: FuzzProgram, way: fuzz_compare.Way) -> fuzz_compare.Results:
        seen.append(way.level if way.device == "REF" else way.name)
        return original(program, way, 1)

    original = fuzz_compare.run
    monkeypatch.setattr(fuzz_compare, "run", run)
    assert check(grow(3, "mixed"), lowered=True) is None
    assert seen == ["tensor", "kernel", "linear", "eager", "jit"]


def _with(program: FuzzProgram, *lines: str) -> FuzzProgram:
    added = tuple(Statement.parse(line) for line in lines)
    return replace(program, statements=(*program.statements, *added))


def test_a_difference_is_found_and_made_small() -> None:
    """A statement that looks at the device stands for a compiler that is wrong."""
    program = next(p for p in _mixed(100) if len(p.statements) > 5 and p.arguments)
    name = next(iter(program.arguments))
    wrong = f"wrong = ({name} != {name}).sum() + ({name}.device == 'CPU')"
    broken = replace(_with(program, wrong), results=(*program.results, "wrong"))
    known = {**broken.known, "wrong": next(iter(broken.known.values()))}
    broken = replace(broken, known={**known, "wrong": replace(known["wrong"], error=0.0)})
    found = check(broken, lowered=False, jitted=False)
    assert isinstance(found, Difference)
    small, shown = shrink(broken, found, lambda p: check(p, lowered=False, jitted=False))
    assert [s.defines for s in small.statements] == [("wrong",)]
    assert small.results == ("wrong",)
    assert list(small.arguments) == [name]
    text = script(small, shown)
    compile(text, "shown", "exec")
    assert "def program" in text


def test_what_is_raised_is_a_difference() -> None:
    program = _with(grow(3, "mixed"), "v1.no_such_method()")
    found = check(program, lowered=False)
    assert found is not None
    assert "raises" in found.kind
    assert "no_such_method" in found.detail


def test_a_good_seed_has_no_finding() -> None:
    with options.override(cache=False):
        assert check_seed(1, kind="mixed") is None
