from __future__ import annotations

import itertools
import threading
from functools import partial

import pytest

from baregrad.apps.instructions import count
from baregrad.base.tracing import Recorder, span


def test_spans_nest_in_order_of_their_start() -> None:
    ticks = itertools.count()
    with Recorder(lambda: float(next(ticks))) as recorder:
        with span("compile", kernels=2) as outer:
            with span("render"):
                pass
            outer.note(cached=False)
        with span("run"):
            pass
    assert [(one.name, one.depth) for one in recorder.spans] == [
        ("compile", 0), ("render", 1), ("run", 0),
    ]
    compiled, rendered, _ = recorder.spans
    assert compiled.facts == {"kernels": 2, "cached": False}
    assert (rendered.seconds, compiled.seconds) == (1, 3)


def test_nothing_is_kept_without_a_recorder() -> None:
    with span("before") as one:
        one.note(lost=True)
    with Recorder() as recorder:
        pass
    with span("after"):
        pass
    assert recorder.spans == []
    assert span("a") is span("b")


def test_the_inner_recorder_listens() -> None:
    with Recorder() as outer:
        with Recorder() as inner, span("one"):
            pass
        with span("two"):
            pass
    assert [one.name for one in inner.spans] == ["one"]
    assert [one.name for one in outer.spans] == ["two"]


def test_a_span_ends_on_an_error() -> None:
    with Recorder() as recorder:
        with pytest.raises(KeyError), span("fails"):
            raise KeyError
        with span("next"):
            pass
    assert [one.depth for one in recorder.spans] == [0, 0]
    assert recorder.spans[0].seconds >= 0


def test_another_thread_joins_by_asking() -> None:
    recorder = Recorder()

    def work(joins: bool) -> None:
        if joins:
            with recorder.active(), span("joined"):
                pass
        with span("alone"):
            pass

    with recorder:
        for joins in (True, False):
            thread = threading.Thread(target=work, args=(joins,))
            thread.start()
            thread.join()
    assert [one.name for one in recorder.spans] == ["joined"]


def test_totals_and_table() -> None:
    with Recorder() as recorder:
        for index in range(3):
            with span("pass", index=index), span("inner"):
                pass
    count, seconds = recorder.totals()["pass"]
    assert count == 3
    assert seconds == pytest.approx(sum(s.seconds for s in recorder.spans if s.name == "pass"))
    assert "  pass  index=2" in recorder.table()
    assert "    inner" in recorder.table()


def test_a_span_is_nearly_free_when_nobody_listens() -> None:
    def spans(turns: int) -> None:
        for _ in range(turns):
            with span("off"):
                pass

    # 30 instructions with Python 3.11.
    assert count(partial(spans, 20)) - count(partial(spans, 10)) <= 10 * 33
