"""The page in a real browser, with no window."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from baregrad.viz.documents import RecordedDocuments
from baregrad.viz.server import PageServer

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no chromium to show the page in")


@pytest.fixture(scope="module")
def url(documents: RecordedDocuments) -> Iterator[str]:
    with PageServer(documents) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.url
        server.shutdown()
        thread.join()


def page(url: str, spot: str, profile: Path) -> str:
    """The page's elements once its scripts have nothing left to do."""
    assert BROWSER is not None
    done = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
         f"--user-data-dir={profile}", "--virtual-time-budget=10000", f"{url}#{spot}"],
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
