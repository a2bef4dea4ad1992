"""The page in a real browser, with no window."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from baregrad.viz.documents import RecordedDocuments
from baregrad.viz.filed import Documents
from baregrad.viz.server import PageServer
from baregrad.viz.timeline import TimelineDocuments

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no chromium to show the page in")


@contextlib.contextmanager
def served(documents: Documents) -> Iterator[str]:
    """Where the page of some documents is, for a block."""
    with PageServer(documents) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.url
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def url(documents: RecordedDocuments) -> Iterator[str]:
    with served(documents) as found:
        yield found


class Given:
    """Documents with some that are given in place of their own."""

    def __init__(self, given: dict[str, Any], others: Documents) -> None:
        self._given, self._others = given, others

    def names(self) -> list[str]:
        """Every document there is."""
        return [*self._given, *self._others.names()]

    def get(self, name: str) -> bytes | None:
        """The JSON text of a document."""
        found = self._given.get(name)
        return self._others.get(name) if found is None else json.dumps(found).encode()


def page(url: str, spot: str, profile: Path, size: tuple[int, int] = (1400, 900)) -> str:
    """The page's elements once its scripts have nothing left to do."""
    assert BROWSER is not None
    done = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
         f"--window-size={size[0]},{size[1]}", f"--user-data-dir={profile}",
         "--virtual-time-budget=10000", f"{url}#{spot}"],
        capture_output=True, text=True, timeout=120, check=True,
    )
    return done.stdout


def test_the_lines_view_shows_the_dearest_line_and_its_kernels(url: str, tmp_path: Path) -> None:
    shown = page(url, "", tmp_path)
    assert re.search(r'aria-selected="true"[^>]*>Lines', shown) or re.search(
        r'data-view="lines"[^>]*aria-selected="true"', shown
    )
    assert "shown.py on sm_90a" in shown
    assert "loss.backward()" in shown
    assert re.search(r'aria-current="true"', shown)
    assert re.search(r"reduce_\w+, at least [\d.]+ µs", shown)


def test_the_kernels_view_shows_loops_and_reasons(url: str, tmp_path: Path) -> None:
    shown = page(url, "view=kernels&part=render", tmp_path)
    assert ".visible .entry" in shown
    assert "Why it is a kernel of its own" in shown
    assert re.search(r"(stored|fused): <button", shown)


def test_the_graph_view_draws_every_node_but_constants(
    url: str, tmp_path: Path, recording: object
) -> None:
    shown = page(url, "view=graph&c=0&p=0", tmp_path)
    boxes = re.findall(r'<g class="box[^"]*" tabindex="0" role="button" aria-label="(\w+)', shown)
    assert "SINK" in boxes
    assert "CONST" not in boxes
    assert 'role="status"' in shown
    assert not re.search(r'role="status"[^>]*>[^<]', shown), "the page reports an error"


def test_machine_code_stands_beside_the_lines_it_was_made_of(
    documents: RecordedDocuments, tmp_path: Path
) -> None:
    code = [[0, "S2R R0, SR_TID.X", 2, 1, 1, [0], []], [16, "IADD R0, R0, 0x1", 3, 1, 4, [], [0]]]
    machine = {
        "text": [".entry k", "mov.u32 %r1, %tid.x;", "add.s32 %r1, %r1, 1;"], "code": code,
        "missing": "", "registers": 8, "stack": 0, "shared": 0,
    }
    with served(Given({"machine/0": machine}, documents)) as url:
        shown = page(url, "view=kernels&part=machine+code", tmp_path)
    rows = re.findall(r'<tr id="at\d+".*?</tr>', shown)
    assert len(rows) == 2 and "mov.u32" in rows[0] and "S2R" in rows[0] and "sets 0" in rows[0]
    assert "add.s32" in rows[1] and re.search(r">0000</button>", rows[1])
    assert "2 instructions, 8 registers a thread" in shown


def profile_of(folder: Path, count: int) -> TimelineDocuments:
    """A profile of so many kernels of 50 ns, one in 100 ns, and memory that comes and goes."""
    rows = [{"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "NV kernels"}}]
    rows += [
        {"ph": "X", "name": f"gemm_{at % 3}", "pid": 1, "tid": 2, "ts": at / 10, "dur": 0.05,
         "args": {"line": "a.py:3", "bytes": 1000}}
        for at in range(count)
    ]
    for name, most in (("NV memory", 3000), ("NV memory of a.py:3", 2000)):
        rows += [{"ph": "C", "name": name, "pid": 1, "ts": at, "args": {"bytes": nbytes}}
                 for at, nbytes in ((0, 500), (count / 20, most), (count / 10, 500))]
    path = folder / "p.json"
    path.write_text(json.dumps({"traceEvents": rows}))
    return TimelineDocuments(path)


def test_a_profile_has_a_timeline_with_totals_and_facts(tmp_path: Path) -> None:
    with served(profile_of(tmp_path, 30)) as url:
        shown = page(url, "lane=0&at=4", tmp_path / "browser")
        keys = re.findall(r'<button role="tab"[^>]*data-view="(\w+)"(?![^>]*hidden)', shown)
    assert keys == ["timeline", "memory"]
    assert re.search(r'role="img"[^>]*aria-label="Timeline of 3.0 µs: NV kernels, 30', shown)
    (drawn,) = re.findall(r'data-drawn="(\d+)"', shown)
    assert int(drawn) >= 30 and "gemm_1" in shown
    assert "10 times · 500 ns" in shown and "20.00 GB/s" in shown
    assert 'aria-current="true"' in shown
    assert not re.search(r'role="status"[^>]*>[^<]', shown), "the page reports an error"


def test_what_is_drawn_is_bounded_by_the_picture_not_by_the_profile(tmp_path: Path) -> None:
    with served(profile_of(tmp_path, 39_000)) as url:
        shown = page(url, "view=timeline", tmp_path / "browser")
    (drawn,) = re.findall(r'data-drawn="(\d+)"', shown)
    assert 200 < int(drawn) < 4000
    assert "13000 times" in shown


def test_the_memory_view_says_who_holds_what_at_the_peak(tmp_path: Path) -> None:
    with served(profile_of(tmp_path, 100)) as url:
        shown = page(url, "view=memory", tmp_path / "browser")
    assert "who holds what at 5.0 µs, the peak" in shown
    assert "2.00 kB then, 66.7 %; at most 2.00 kB" in shown
    assert 'data-owners="1"' in shown and "1.00 kB" in shown
    assert not re.search(r'role="status"[^>]*>[^<]', shown), "the page reports an error"


def large_graph(count: int, lines: int) -> dict[str, Any]:
    """A graph of so many additions in a chain, which so many lines of a program asked for."""
    names = ["ADD", "float32", "8", "", *(f"a.py:{line}" for line in range(lines))]
    columns = {
        "id": list(range(count)), "of": list(range(count)), "op": [0] * count, "dtype": [1] * count,
        "shape": [2] * count, "arg": [3] * count, "line": [4 + at * lines // count
                                                           for at in range(count)],
        "src": [[at - 1] if at else [] for at in range(count)],
    }  # fmt: skip
    return {**columns, "names": names}


@pytest.mark.parametrize(("spot", "boxes", "told"), [
    ("", 50, "100000 nodes, by the line that asked for them"),
    ("&group=a.py:7", 60, "2000 nodes of this line, in stretches"),
    pytest.param("&group=a.py:7&stretch=14000-14033", 34, "34 nodes, 99966 others not shown",
                 marks=pytest.mark.slow),
    pytest.param("&node=500", 50, "50 nodes, 99950 others not shown", marks=pytest.mark.slow),
])  # fmt: skip
def test_a_graph_of_100_000_nodes_is_shown_by_levels(
    spot: str, boxes: int, told: str, documents: RecordedDocuments, tmp_path: Path
) -> None:
    given = {f"graph/0/{number}": large_graph(100_000, 50) for number in (0, 1)}
    with served(Given(given, documents)) as url:
        shown = page(url, f"view=graph&c=0&p=1{spot}", tmp_path / "browser")
    # Stretches are of equal numbers of nodes.
    assert boxes - 2 <= len(re.findall(r'<g class="box', shown)) <= boxes
    assert told in shown
    assert not re.search(r'role="status"[^>]*>[^<]', shown), "the page reports an error"


def test_a_command_list_is_shown_word_by_word(url: str, tmp_path: Path) -> None:
    shown = page(url, "view=commands&c=0", tmp_path)
    assert "SEND_PCAS_A" in shown and "What the GPU does, in order" in shown
    assert re.search(r"launch of 0x\w+: grid \(\d+, 1, 1\), block", shown)
    assert not re.search(r'role="status"[^>]*>[^<]', shown), "the page reports an error"
