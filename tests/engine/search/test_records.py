"""The file of schedules: several writers, broken lines, and what a line is good for."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from baregrad.engine.search.records import Records, SearchRecord, parse_record

RECORD = SearchRecord(
    "k", "t", "c", "matmul", 4, "Schedule(bind('i0', 'unroll'))", 200.0, 100.0, 30
)


def test_records_come_back_and_the_last_one_holds(tmp_path: Path) -> None:
    records = Records(tmp_path / "a" / "found.jsonl")
    assert records.get("k", "t", "c") is None
    records.put(RECORD)
    records.put(replace(RECORD, ns=50.0))
    again = Records(records.path)
    assert again.get("k", "t", "c") == replace(RECORD, ns=50.0)
    assert again.get("k", "t", "c").gain == 4.0  # type: ignore[union-attr]
    assert again.get("k", "t", "d") is None
    assert again.get("k", "u", "c") is None
    # What another process writes is seen.
    records.put(replace(RECORD, kernel="other"))
    assert again.get("other", "t", "c") is not None


def test_broken_and_foreign_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    Records(path).put(RECORD)
    whole = path.read_bytes()
    good = json.loads(whole)
    bad = [
        b"\xff\xfe", b"[]", b"null", b"1e999", b"{}", b"[" * 5000, whole[:40],
        json.dumps({**good, "version": 99}).encode(),
        json.dumps({**good, "schedule": "Schedule(open('x'))"}).encode(),
        json.dumps({**good, "schedule": 3}).encode(),
        json.dumps({**good, "ns": 0}).encode(),
        json.dumps({**good, "ns": "fast"}).encode(),
        json.dumps({**good, "width": True}).encode(),
        json.dumps({**good, "more": 1}).encode(),
    ]
    for line in bad:
        assert parse_record(line) is None, line[:60]
    path.write_bytes(b"\n".join([*bad, whole.strip(), *bad]))
    records = Records(path)
    assert records.all() == [RECORD]
    # A line that a killed process left half written does not swallow the next one.
    records.put(replace(RECORD, kernel="next"))
    assert {record.kernel for record in Records(path).all()} == {"k", "next"}


def test_several_processes_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    root = Path(__file__).resolve().parents[3]
    program = (
        f"import sys; sys.path.insert(0, {str(root)!r})\n"
        "from dataclasses import replace\nfrom pathlib import Path\n"
        "from baregrad.engine.search.records import Records\n"
        "from tests.engine.search.test_records import RECORD\n"
        "records = Records(Path(sys.argv[1]))\n"
        "for n in range(40): records.put(replace(RECORD, kernel=f'{sys.argv[2]}.{n}'))\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", program, str(path), str(number)])
        for number in range(3)
    ]
    assert [process.wait(600) for process in processes] == [0, 0, 0]
    assert len(Records(path).all()) == 120
    assert path.read_bytes().count(b"\n") == 120


def test_a_file_that_cannot_be_written_costs_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    records = Records(tmp_path / "file" / "found.jsonl")
    with pytest.warns(RuntimeWarning, match="BAREGRAD_BEAM_FILE"):
        records.put(RECORD)
    assert records.get("k", "t", "c") == RECORD
