"""Kinds of random programs: with sizes that change, with state that is put back."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from baregrad.base.options import options
from baregrad.dtypes import dtypes
from baregrad.testing import fuzz_compare
from baregrad.testing.fuzz import FuzzFinding, fuzz
from baregrad.testing.fuzz_compare import EAGER, REFERENCE, Difference, check, run
from baregrad.testing.fuzz_grow import KINDS, grow
from baregrad.testing.fuzz_program import FuzzProgram, Size, Statement
from baregrad.testing.fuzz_shrink import script, shrink
from baregrad.testing.fuzz_values import Data, Known
from baregrad.testing.fuzz_workers import Chunk, spread

pytestmark = pytest.mark.differential


def _program(*lines: str, sizes: dict[str, Size] | None = None) -> FuzzProgram:
    """A program of one argument, of 4 rows of 3."""
    statements = tuple(Statement.parse(line) for line in lines)
    names = tuple(name for statement in statements for name in statement.defines)
    known = {name: Known(4.0, 0.0, 0.25) for name in ("a0", *names)}
    data = {"a0": Data((4, 3), dtypes.float32)}
    return FuzzProgram(0, data, {}, statements, names[-1:], known, (), sizes or {})


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_gives_the_same_program(kind: str) -> None:
    for seed in range(20):
        first, second = grow(seed, kind), grow(seed, kind)
        assert first == second
        assert first.integers(1) == second.integers(1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_is_printed_as_a_script(kind: str) -> None:
    for seed in range(10):
        compile(script(grow(seed, kind), Difference("eager", 1, "", "so")), "shown", "exec")


def test_sizes_change_from_call_to_call() -> None:
    program = grow(3, "sized")
    assert program.sizes
    drawn = [grow(seed, "sized").integers(call) for seed in range(20) for call in range(3)]
    assert len({value for values in drawn for value in values.values()}) > 4
    for values in drawn:
        assert all(value >= 0 for value in values.values())


def test_symbolic_sizes_are_compared_with_plain_ones() -> None:
    program = _program("v1 = a0[:n0]", sizes={"n0": Size(1, 4)})
    assert check(program, lowered=False, jitted=False) is None
    found, wanted = run(program, EAGER), run(program, REFERENCE)
    for call in range(3):
        assert found[call]["v1"].shape == (program.integers(call)["n0"], 3)
        np.testing.assert_array_equal(found[call]["v1"], wanted[call]["v1"])


def test_sizes_that_do_not_fit_are_refused_either_way() -> None:
    """The call that does not fit has no arrays, and is the last; else there is a difference."""
    program = _program("v1 = a0[n0]", sizes={"n0": Size(0, 3)})
    broken = replace(program, sizes={"n0": Size(4, 5)})
    assert run(broken, REFERENCE) == [{}]
    assert run(broken, EAGER) == [{}]
    other: fuzz_compare.Results = [{"v1": np.zeros(3)}]
    shown = fuzz_compare.compare(broken, other, [{}], "eager against reference")
    assert shown is not None
    assert "do not fit" in shown.detail
    assert fuzz_compare.compare(broken, [{}], other, "eager against reference") is None
    shown = fuzz_compare.compare(broken, [{}], other, "jit against eager")
    assert shown is not None
    assert shown.detail == "refused"


def test_a_size_that_is_not_read_goes_while_a_program_is_made_small() -> None:
    program = _program("v1 = a0[:n0]", "v2 = a0 + 1", sizes={"n0": Size(1, 4), "n1": Size(1, 2)})
    small, _ = shrink(program, Difference("so", 0, "", ""), lambda p: Difference("so", 0, "", ""))
    assert small.sizes == {}
    kept, _ = shrink(
        program,
        Difference("so", 0, "", ""),
        lambda p: Difference("so", 0, "", "") if "n0" in p.source().split(":", 1)[1] else None,
    )
    assert list(kept.sizes) == ["n0"]
    assert [s.text for s in kept.statements] == ["v1 = a0[:n0]"]


def test_state_is_put_back_between_calls() -> None:
    """What happens between the calls, and before them, is seen by each way of running."""
    program = replace(
        _program("s0.add_(a0)", "v1 = s0 + 0"),
        state={"s0": Data((4, 3), dtypes.float32)},
        setup=(Statement.parse("s1 = s0[:2]"),),
        between=((Statement.parse("s0.zero_()"),), (Statement.parse("s1.fill_(1)"),)),
    )
    known = {**program.known, "s0": Known(12.0, 0.0, 0.25), "s1": Known(12.0, 0.0, 0.25)}
    program = replace(program, known=known)
    assert program.calls == 3
    assert program.held() == ["s0", "s1"]
    found = run(program, EAGER)
    np.testing.assert_array_equal(found[1]["s0"], program.data(1)["a0"])
    np.testing.assert_array_equal(found[2]["s1"], program.data(2)["a0"][:2] + 1)
    small, _ = shrink(program, Difference("so", 0, "", ""), lambda p: Difference("so", 0, "", ""))
    assert small.between == ((), ())
    assert small.setup == ()


# Here and below, of seeds nearby the one whose few programs draw the most operations.
@pytest.mark.parametrize(
    ("count", "seed"), [(16, 50_029), pytest.param(40, 40_000, marks=pytest.mark.slow)]
)
def test_programs_with_sizes_agree(count: int, seed: int) -> None:
    with options.override(verify=False):
        found = fuzz(count, seed=seed, kind="sized")
    assert not found, "\n\n".join(finding.script for finding in found[:3])


@pytest.mark.parametrize(
    ("count", "seed"), [(12, 50_088), pytest.param(30, 0, marks=pytest.mark.slow)]
)
def test_programs_whose_state_is_put_back_agree(count: int, seed: int) -> None:
    with options.override(verify=False):
        found = fuzz(count, seed=seed, kind="state")
    assert not found, "\n\n".join(finding.script for finding in found[:3])


def test_programs_put_state_back_in_every_way() -> None:
    programs = [grow(seed, "state") for seed in range(300)]
    texts = [s.text for p in programs for each in p.between for s in each]
    for wanted in (".zero_()", ".fill_(", "[...] = ", ".assign(", ".copy_(", ".data.zero_()",
                   ".detach().fill_(", " = Tensor.zeros", "s0 = s"):  # fmt: skip
        assert any(wanted in text for text in texts), wanted
    assert any(program.setup for program in programs)
    assert all(program.calls >= 5 for program in programs)


def _even(chunk: Chunk) -> Iterator[tuple[int, str | None]]:
    """Finds something at each even seed, and crashes at 5."""
    for seed in range(chunk.first, chunk.first + chunk.count):
        if seed == 5:
            os.kill(os.getpid(), signal.SIGSEGV)
        yield seed, None if seed % 2 else f"even {seed}"


def _crashed(seed: int, chunk: Chunk, how: str) -> str:
    return f"{how} at {seed}"


def test_a_crash_is_a_finding_and_not_the_end() -> None:
    chunks = [Chunk(first, 4, None, None, "CPU", 0) for first in (0, 4, 8)]
    found = dict(spread(_even, _crashed, chunks, 2))
    assert sorted(found) == list(range(12))
    assert found[5] == "SIGSEGV at 5"
    assert found[6] == "even 6"
    assert found[7] is None


def test_processes_find_what_one_finds() -> None:
    with options.override(verify=False):
        found: list[FuzzFinding] = fuzz(2, seed=3, kind="mixed", processes=2)
    assert found == []
