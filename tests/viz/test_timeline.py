from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from baregrad.base.errors import ArgumentError
from baregrad.profiling import chrome_form, perfetto_form
from baregrad.profiling.events import Counter, Events, Stretch, Track
from baregrad.viz.command import open_documents
from baregrad.viz.timeline import TimelineDocuments

KERNELS, THREAD = Track(1 << 24, "NV kernels"), Track(7, "MainThread")
MEMORY, OWNED = Track(1 << 25, "NV memory"), Track(1 << 26, "NV memory of a.py:3 in step")
EVENTS = Events(
    50, "python a.py", (THREAD, KERNELS, MEMORY, OWNED),
    (
        Stretch(THREAD, "inner", "spans", 1_000_100, 1_000_200),
        Stretch(THREAD, "outer", "spans", 1_000_000, 1_009_000),
        Stretch(THREAD, "after", "spans", 1_009_000, 1_010_000),
        *(Stretch(KERNELS, "gemm", "kernels", 1_000_000 + at, 1_000_050 + at, {"line": "a.py:3"})
          for at in range(0, 5000, 100)),
    ),
    (Counter(MEMORY, 1_000_000, 100), Counter(MEMORY, 1_005_000, 4100),
     Counter(OWNED, 1_005_000, 4000), Counter(MEMORY, 1_008_000, 100),
     Counter(OWNED, 1_008_000, 0)),
)  # fmt: skip


def written(folder: Path, name: str) -> Path:
    path = folder / name
    form: Any = chrome_form if name.endswith(".json") else perfetto_form
    path.write_bytes(form.joined(form.begin(50), EVENTS))
    return path


def read(path: Path, name: str) -> Any:
    return json.loads(TimelineDocuments(path).get(name) or b"")


@pytest.mark.parametrize("name", ["p.json", "p.pftrace"])
def test_lanes_come_in_order_of_time_with_their_depth(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, name)
    assert read(path, "summary")["views"] == ["timeline", "memory"]
    timeline = read(path, "timeline")
    kernels, thread = timeline["lanes"]
    assert (kernels["title"], kernels["kind"]) == ("NV kernels", "kernels")
    assert kernels["begin"] == list(range(0, 5000, 100)) and set(kernels["length"]) == {50}
    texts = timeline["texts"]
    assert {json.loads(texts[one])["line"] for one in kernels["facts"]} == {"a.py:3"}
    assert [texts[one] for one in thread["name"]] == ["outer", "inner", "after"]
    assert thread["depth"] == [0, 1, 0] and thread["begin"] == [0, 100, 9000]
    assert timeline["length"] == 10_000 and timeline["processes"] == {"50": "python a.py"}


def test_memory_is_told_by_device_and_owner(tmp_path: Path) -> None:
    whole, owned = read(written(tmp_path, "p.json"), "timeline")["counters"]
    assert (whole["device"], whole["owner"], owned["device"]) == ("NV", "", "NV")
    assert owned["owner"] == "a.py:3 in step"
    assert (owned["at"], owned["value"]) == ([5000, 8000], [4000, 0])


def test_a_profile_opens_as_what_it_is_and_other_files_do_not(tmp_path: Path) -> None:
    assert open_documents(written(tmp_path, "p.pftrace")).names() == ["summary", "timeline"]
    other = tmp_path / "notes.txt"
    other.write_text("no profile")
    with pytest.raises(ArgumentError, match="no profile and no recording"):
        open_documents(other)
    with pytest.raises(ArgumentError, match="has the target"):
        open_documents(written(tmp_path, "p.json"), "sm_90a")


def test_a_profile_of_nothing_is_shown_too(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(chrome_form.begin(50))
    assert read(path, "timeline")["length"] == 0


def test_what_is_not_finite_reaches_a_browser_as_text(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text('[{"ph": "X", "name": "f", "ts": 1, "dur": 1, "args": {"loss": NaN}}]')
    (text,) = [one for one in read(path, "timeline")["texts"] if "loss" in one]
    assert json.loads(text) == {"loss": "nan"}


def test_a_thread_may_be_named_after_memory(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(
        '[{"ph": "X", "name": "f", "ts": 1, "dur": 1, "tid": 4},'
        ' {"ph": "M", "name": "thread_name", "tid": 4, "args": {"name": "GPU memory"}}]'
    )
    (lane,) = read(path, "timeline")["lanes"]
    assert (lane["title"], lane["kind"]) == ("GPU memory", "thread")
