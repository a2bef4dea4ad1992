"""Candidates as lines: the first schedule, then by prediction, with what was measured."""

from __future__ import annotations

import pytest

from baregrad.base.bits import human_seconds
from baregrad.engine.search.candidate_table import SHOWN, candidate_lines
from baregrad.engine.search.records import SearchRecord, row_digest
from baregrad.ir.core.digest import digest
from baregrad.kernel.search import candidates
from baregrad.target import AnyTarget, gpu_row
from tests.kernel import kernels as k
from tests.kernel.search.accepted import AVX

KERNEL = k.row_reduce(256, 1024)
HOPPER = gpu_row("sm_90a")


def record(target: AnyTarget, threads: int, **times: float) -> SearchRecord:
    """What a search found that measured some candidates."""
    row = row_digest(target, threads)
    return SearchRecord(
        digest(KERNEL), row, "any", "k", 4, "", 1.0, 1.0, 9, tuple(times.items())
    )


@pytest.mark.parametrize("target", [HOPPER, AVX], ids=["gpu", "cpu"])
def test_candidates_have_a_line_each(target: AnyTarget) -> None:
    found = candidates(KERNEL, target)
    lines = candidate_lines(KERNEL, target, 0, [])
    for each, line in zip(found[:SHOWN], lines[2:], strict=False):
        assert line.split("us")[0].strip() + " us" == human_seconds(each.predicted_ns / 1e9)
        assert line.endswith(each.what)
    assert lines[2 + min(len(found), SHOWN) :] == (
        [f"  and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    )


def test_the_last_record_of_the_kernel_on_the_machine_is_shown() -> None:
    first = "the first schedule"
    records = [
        record(HOPPER, 0, **{first: 1000.0}), record(HOPPER, 0, **{first: 2000.0, "odd": 3000.0}),
        record(HOPPER, 8, **{first: 4000.0}), record(AVX, 0, **{first: 5000.0}),
    ]  # fmt: skip
    lines = candidate_lines(KERNEL, HOPPER, 0, records)
    assert lines[2].endswith("2.0 us  the first schedule")
    assert [line.split() for line in lines if line.endswith("odd")] == [["3.0", "us", "odd"]]
