"""The page by keyboard alone, in a real browser, and what a screen reader is told of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from baregrad.viz import server
from baregrad.viz.documents import RecordedDocuments
from baregrad.viz.filed import Documents
from tests.viz.test_page import BROWSER, page, profile_of, served

pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no chromium to show the page in")

# Presses keys one after the other, and writes down where the focus is then.
PRESSING = """
addEventListener("load", async () => {
  const pause = () => new Promise((done) => setTimeout(done, 300));
  await pause();
  for (const key of KEYS) {
    const at = document.activeElement || document.body;
    const event = new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true });
    if (at.dispatchEvent(event) && key === "Enter" && at.matches("button")) at.click();
    await pause();
  }
  document.body.dataset.spot = location.hash;
  document.body.dataset.focus = document.activeElement.id || document.activeElement.className;
});
"""


@pytest.fixture
def press(monkeypatch: pytest.MonkeyPatch) -> object:
    original = server.page_file

    def pressing(*keys: str) -> None:
        script = PRESSING.replace("KEYS", json.dumps(keys))
        monkeypatch.setattr(
            server, "page_file",
            lambda name: original(name) + (script.encode() if name == "app.js" else b""),
        )

    return pressing


def spot_and_focus(shown: str) -> tuple[str, str]:
    (found,) = re.findall(r'<body[^>]*data-spot="([^"]*)"[^>]*data-focus="([^"]*)"', shown)
    return found


@pytest.mark.parametrize(("keys", "spot", "focus"), [
    (["3", "2", "9", "x", "1", "/"], "", "search"),
    (["2", "j", "Enter"], r"#view=kernels&amp;kernel=\d+", "row"),
    pytest.param(["2", "j", "j"], "#view=kernels", "row", marks=pytest.mark.slow),
    pytest.param(["3", "j", "Enter"], r"#view=graph&amp;p=\d+", "row", marks=pytest.mark.slow),
])  # fmt: skip
def test_keys_lead_to_every_view_and_row(
    keys: list[str], spot: str, focus: str, press: object, documents: RecordedDocuments,
    tmp_path: Path,
) -> None:
    assert callable(press)
    press(*keys)
    with served(documents) as url:
        shown = page(url, "", tmp_path / "browser")
    found, at = spot_and_focus(shown)
    assert re.fullmatch(spot, found)
    assert focus in ("BODY", at)


def test_keys_zoom_and_step_through_a_timeline(press: object, tmp_path: Path) -> None:
    assert callable(press)
    press("+", "+")
    with served(profile_of(tmp_path, 100)) as url:
        shown = page(url, "lane=0&at=4", tmp_path / "browser")
    found, _ = spot_and_focus(shown)
    begin, end = (int(re.findall(rf"{name}=(-?\d+)", found)[0]) for name in ("from", "to"))
    # Ten microseconds, by a quarter nearer twice.
    assert end - begin == pytest.approx(9_950 / 1.25**2, rel=0.02)


class Counted:
    """Documents that keep the names that they were asked for."""

    def __init__(self, others: Documents) -> None:
        self._others = others
        self.asked: list[str] = []

    def names(self) -> list[str]:
        """Every document there is."""
        return self._others.names()

    def get(self, name: str) -> bytes | None:
        """The JSON text of a document."""
        self.asked.append(name)
        return self._others.get(name)


def test_a_pass_is_shown_from_what_was_fetched_ahead(
    press: object, documents: RecordedDocuments, tmp_path: Path
) -> None:
    counted = Counted(documents)
    assert callable(press)
    press(*["x"] * 10, "3", "j", "Enter", "2")
    with served(counted) as url:
        shown = page(url, "c=0", tmp_path / "browser")
    assert "view=kernels" in spot_and_focus(shown)[0]
    # Every pass's graph once, then every kernel once, before or when a click asks for it.
    passes = len(json.loads(documents.get("summary") or b"")["computations"][0]["passes"])
    graphs = [f"graph/0/{number}" for number in range(passes)]
    assert [one for one in counted.asked if one.startswith("graph/")] == graphs
    kernels = [one for one in counted.asked if one.startswith("kernel/")]
    assert kernels and len(kernels) == len(set(kernels))
    assert min(map(counted.asked.index, kernels)) > max(map(counted.asked.index, graphs))


def test_a_screen_reader_is_told_what_there_is(
    documents: RecordedDocuments, tmp_path: Path
) -> None:
    with served(documents) as url:
        shown = page(url, "view=kernels", tmp_path / "browser")
    assert '<html lang="en">' in shown and 'role="tablist" aria-label="Views"' in shown
    tabs = re.findall(r'<button role="tab"[^>]*>', shown)
    assert [tab for tab in tabs if 'aria-selected="true"' in tab and 'tabindex="0"' in tab] == [
        tab for tab in tabs if 'data-view="kernels"' in tab
    ]
    assert all('aria-controls="list"' in tab for tab in tabs)
    assert re.search(r'id="list" role="tabpanel"[^>]*aria-labelledby="tab-kernels"', shown)
    assert 'role="status" aria-live="polite"' in shown
    for control in re.findall(r"<(?:select|input)[^>]*>", shown):
        assert "aria-label" in control or re.search(
            rf"<label[^>]*>[^<]*{re.escape(control)}", shown
        ), control
