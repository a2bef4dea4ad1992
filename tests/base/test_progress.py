from __future__ import annotations

import io

import pytest

from baregrad.base import progress as module
from baregrad.base.options import options
from baregrad.base.progress import ProgressBar, no_bars, progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_DRAW_S", 0.0)
    monkeypatch.setattr(module, "REDRAW_S", 0.0)


def test_a_bar_is_drawn_on_a_terminal_and_wiped() -> None:
    terminal = Terminal()
    with options.override(progress="auto"), ProgressBar(4, "training", terminal) as bar:
        bar.advance(2, note="loss 0.5")
    text = terminal.getvalue()
    assert "training [" in text
    assert "2/4" in text
    assert "loss 0.5" in text
    assert text.endswith("\r\x1b[2K")
    assert "\n" not in text


@pytest.mark.parametrize("setting,terminal,drawn", [
    ("auto", False, False), ("auto", True, True),
    ("on", False, True), ("off", True, False),
])
def test_who_gets_a_bar(setting: str, terminal: bool, drawn: bool) -> None:
    stream = Terminal() if terminal else io.StringIO()
    with options.override(progress=setting), ProgressBar(2, "x", stream) as bar:
        bar.advance()
    assert bool(stream.getvalue()) is drawn


def test_a_bar_is_wiped_on_an_error() -> None:
    terminal = Terminal()
    with options.override(progress="auto"):
        bar = ProgressBar(2, "x", terminal)
    with pytest.raises(KeyError), bar:
        bar.advance()
        raise KeyError
    assert terminal.getvalue().endswith("\r\x1b[2K")


def test_short_work_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_DRAW_S", 60.0)
    terminal = Terminal()
    with options.override(progress="on"), ProgressBar(2, "x", terminal) as bar:
        bar.advance()
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("width", [10, 30, 79, 200])
@pytest.mark.parametrize("total", [None, 0, 1000])
def test_a_line_fits_the_terminal(width: int, total: int | None) -> None:
    bar = ProgressBar(total, "a label of some length", io.StringIO())
    bar.advance(7, note="and a note")
    assert len(bar.render(width)) <= width


def test_the_bar_fills_with_the_work() -> None:
    bar = ProgressBar(10, "", io.StringIO())
    bar.advance(5)
    line = bar.render(100)
    assert "[" + "#" * 20 + "." * 20 + "]" in line
    bar.advance(50)
    assert "[" + "#" * 40 + "]" in bar.render(100)


def test_progress_yields_everything() -> None:
    assert list(progress(iter(range(5)))) == [0, 1, 2, 3, 4]
    assert list(progress([3, 1], "x")) == [3, 1]


def test_no_bar_wipes_a_line_that_is_being_written() -> None:
    terminal = Terminal()
    with options.override(progress="on"), ProgressBar(9, stream=terminal) as bar:
        bar.advance()
        with no_bars():
            wiped = terminal.getvalue()
            assert wiped.endswith("\r\x1b[2K")
            with no_bars():
                bar.advance()
            with ProgressBar(2, stream=terminal) as other:
                other.advance()
            assert terminal.getvalue() == wiped
        bar.advance()
        assert "3/9" in terminal.getvalue()
