from __future__ import annotations

from pathlib import Path

import pytest

from baregrad.base.errors import ArgumentError
from baregrad.graph import stages
from baregrad.ir.core.node import toposort
from baregrad.target.gpu import gpu_row
from baregrad.viz.recording import Recording, least_ns, record


def test_equal_computations_are_one_that_ran_often(recording: Recording) -> None:
    assert [one.runs for one in recording.computations].count(3) >= 1


def test_passes_are_those_of_the_target_and_end_where_the_plan_begins(recording: Recording) -> None:
    for one in recording.computations:
        names = [name for name, _, _ in stages(one.passes[0].sink, gpu_row("sm_90a"))]
        assert [item.name for item in one.passes] == names
        assert one.plan.steps
        planned = {decision.value for decision in one.plan.decisions}
        assert planned <= set(toposort(one.passes[-1].sink))


def test_a_product_by_one_is_replaced_by_a_rule_with_a_law(recording: Recording) -> None:
    rewrites = [each for one in recording.computations for each in one.rewrites]
    found = [one for one in rewrites if one.old.op.name == "MUL" and one.rule]
    assert found
    assert all(one.law for one in found)


def test_launches_know_the_users_lines(recording: Recording, program: Path) -> None:
    lines = {step.found.where for one in recording.computations for step in one.steps}
    assert lines <= {f"{program}:{number}" for number in range(1, 11)}
    assert any(where.endswith((":8", ":9")) for where in lines)


def test_the_least_time_grows_with_the_work(tmp_path: Path) -> None:
    found = []
    for size in (1 << 10, 1 << 24):
        path = tmp_path / f"of_{size}.py"
        path.write_text(
            "from baregrad import Tensor, dtypes\n"
            f"(Tensor.empty({size}, dtype=dtypes.float32) + 1).realize()\n"
        )
        one = record(path, "sm_90a")
        found.append(least_ns(one.computations[-1].steps[-1].found, one))
    # 64 MiB written at 3.35 TB/s, the published rate of the generation's first part, take 20.0 us.
    assert found[0] < 10_000 < 20_000 < found[1] < 25_000


def test_a_program_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="no such program"):
        record(tmp_path / "none.py", "sm_90a")
