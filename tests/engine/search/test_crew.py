"""The crew: work shared out, what goes wrong counted, and a lost process taken up again."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from baregrad.engine.search.crew import Bout, Crew
from baregrad.engine.workers.child import ChildLost
from baregrad.engine.workers.wire import Message
from baregrad.kernel import Schedule
from baregrad.kernel.language.schedule import split

Answer = dict[str, Any] | ChildLost
CRASH, LATE = ChildLost("it crashed", late=False), ChildLost("it was late", late=True)
SCHEDULES = [Schedule().then(split("i0", outer="a", b=1 << n)) for n in range(1, 8)]


class Scripted:
    """A worker without a process: `reply` says what it answers, and how it is lost."""

    def __init__(self, reply: Callable[[dict[str, Any], Sequence[bytes]], Answer]) -> None:
        self.reply = reply
        self.alive = False
        self.started = 0
        self.asked: list[dict[str, Any]] = []
        self.limits: list[float] = []
        self._ends = os.pipe()
        self._answer: Answer | None = None

    def start(self) -> None:
        self.started += not self.alive
        self.alive = True

    def kill(self) -> None:
        self.alive = False

    def fileno(self) -> int:
        return self._ends[0]

    def free(self) -> None:
        for end in self._ends:
            os.close(end)

    def send(self, header: dict[str, Any], blobs: Sequence[bytes] = ()) -> None:
        assert self._answer is None, "it is asked before it has answered"
        self.start()
        self.asked.append(header)
        self._answer = self.reply(header, blobs)
        os.write(self._ends[1], b"!")

    def answer(self, deadline: float) -> Message:
        os.read(self._ends[0], 1)
        found, self._answer = self._answer, None
        assert found is not None
        if isinstance(found, ChildLost):
            self.kill()
            raise found
        return found, [found["schedule"].encode()] if "schedule" in found else []

    def ask(self, header: dict[str, Any], blobs: Sequence[bytes], seconds: float) -> Message:
        self.limits.append(seconds)
        self.send(header, blobs)
        return self.answer(math.inf)


class Workers:
    """The crew's workers, all of which follow one script; the last of them times."""

    def __init__(self) -> None:
        self.made: list[Scripted] = []
        self.reply: Callable[[dict[str, Any], Sequence[bytes]], Answer] = lambda header, _: header

    def crew(self, count: int) -> Crew:
        def make() -> Any:
            self.made.append(Scripted(lambda header, blobs: self.reply(header, blobs)))
            return self.made[-1]

        return Crew(make, count, 30.0)


@pytest.fixture
def workers() -> Iterator[Workers]:
    found = Workers()
    yield found
    for each in found.made:
        each.free()


# --- compiling -----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 3, 20])
def test_each_schedule_is_compiled_once_and_has_its_place(workers: Workers, count: int) -> None:
    with workers.crew(count) as crew:
        found = crew.compile_all(b"kernel", SCHEDULES, math.inf)
        assert found == [str(schedule).encode() for schedule in SCHEDULES]
        assert len(crew.compilers) == max(count, 1) and not crew.losses.reasons
    *compilers, bench = workers.made
    assert sum(len(each.asked) for each in compilers) == len(SCHEDULES)
    # All have work where there is work for all.
    assert sum(bool(each.asked) for each in compilers) == min(max(count, 1), len(SCHEDULES))
    assert not bench.asked and not any(each.alive for each in workers.made)


def test_what_is_lost_or_refused_costs_nobody_else(workers: Workers) -> None:
    texts = [str(schedule) for schedule in SCHEDULES]
    answers: dict[str, Answer] = {
        texts[0]: CRASH, texts[1]: LATE, texts[2]: {"error": "ScheduleError: no"}, texts[3]: {},
    }  # fmt: skip

    def reply(header: dict[str, Any], blobs: Sequence[bytes]) -> Answer:
        return answers.get(header["schedule"], header)

    workers.reply = reply
    crew = workers.crew(2)
    found = crew.compile_all(b"kernel", SCHEDULES, math.inf)
    assert found == [None] * 4 + [text.encode() for text in texts[4:]]
    losses = crew.losses
    assert (losses.crashed, losses.late, losses.refused, losses.wrong) == (1, 1, 2, 0)
    assert sorted(losses.reasons) == ["ScheduleError: no", "it crashed", "it was late",
                                      "no program"]  # fmt: skip


def test_nothing_is_begun_after_the_deadline(workers: Workers) -> None:
    crew = workers.crew(2)
    assert crew.compile_all(b"kernel", SCHEDULES, time.monotonic() - 1) == [None] * len(SCHEDULES)
    assert not any(each.asked for each in workers.made)


# --- timing --------------------------------------------------------------------------------------


def bench_of(answers: dict[str, Answer]) -> Callable[[dict[str, Any], Sequence[bytes]], Answer]:
    """A script by the question, or by the question and the name of the program."""
    def reply(header: dict[str, Any], blobs: Sequence[bytes]) -> Answer:
        key = f"{header['ask']} {header.get('name', '')}".strip()
        return answers.get(key, answers.get(header["ask"], {}))

    return reply


RIGHT: dict[str, Answer] = {
    "open": {"ns": 1200}, "check": {"times": [[900, 1100, 1000], [300, 550, 250]]},
    "race": {"times": [[4, 4, 4], [2, 3, 2]]},
}  # fmt: skip


def opened(workers: Workers, **answers: Answer) -> Bout:
    workers.reply = bench_of(RIGHT | answers)
    bout = workers.crew(1).open_bench(b"kernel", b"program", 1 << 20)
    assert bout is not None
    return bout


def test_times_are_set_beside_the_first_one_s_of_the_same_rounds(workers: Workers) -> None:
    """The machine was faster when the first program was opened: what counts is the ratio."""
    bout = opened(workers)
    assert bout.first_ns == 1200
    # Three, two and four times as fast, in the three rounds.
    assert bout.check("good", b"other") == 1200 / 3
    assert bout.race(["first", "good"], 3) == [[4, 4, 4], [2, 3, 2]]
    bench = workers.made[-1]
    assert [one["ask"] for one in bench.asked] == ["open", "check", "race"]
    assert bench.started == 1 and bench.asked[0]["cold_nbytes"] == 1 << 20


@pytest.mark.parametrize(("answer", "counted"), [
    ({"wrong": "against the reference"}, (0, 0, 0, 1)), ({"error": "no"}, (0, 0, 1, 0)),
    (CRASH, (1, 0, 0, 0)), (LATE, (0, 1, 0, 0)),
], ids=["wrong", "error", "crash", "late"])  # fmt: skip
def test_what_cannot_be_opened_or_checked_is_counted(
    workers: Workers, answer: Answer, counted: tuple[int, ...]
) -> None:
    bout = opened(workers, check=answer)
    assert bout.check("bad", b"other") is None and "bad" not in bout.programs
    losses = bout.crew.losses
    assert (losses.crashed, losses.late, losses.refused, losses.wrong) == counted
    workers.reply = bench_of({"open": answer})
    assert workers.crew(1).open_bench(b"kernel", b"program", 0) is None


@pytest.mark.parametrize("times", [
    None, "fast", [], [[1, 2]], [[], []], [[1, 2], [0, 2]], [[1, 2], [3]], [[1], [2], [3]],
    [[1], None], [[1], ["2"]], [[1], [float("nan")]],
])  # fmt: skip
def test_times_that_are_none_are_not_believed(workers: Workers, times: object) -> None:
    bout = opened(workers, check={"times": times})
    assert bout.check("odd", b"other") is None and "odd" not in bout.programs


@pytest.mark.parametrize("ns", [None, 0, -3, float("nan"), "fast"])
def test_a_first_time_that_is_none_opens_nothing(workers: Workers, ns: object) -> None:
    workers.reply = bench_of({"open": {"ns": ns}})
    assert workers.crew(1).open_bench(b"kernel", b"program", 0) is None


@pytest.mark.parametrize("times", [
    None, 5, [[4, 4, 4]], [[4, 4, 4], [2, 3]], [[4, 4], [2, 3]], [[4, 4, 4], [2, None, 3]],
])  # fmt: skip
def test_a_race_without_all_of_its_times_is_none(workers: Workers, times: object) -> None:
    bout = opened(workers, race={"times": times})
    assert bout.check("good", b"other") is not None
    assert bout.race(["first", "good"], 3) is None


def test_a_lost_process_is_given_everything_again(workers: Workers) -> None:
    bout = opened(workers, **{"check bad": CRASH})
    bench = workers.made[-1]
    assert bout.check("good", b"other") is not None
    assert bout.check("bad", b"third") is None and not bench.alive
    bench.asked.clear()
    assert bout.race(["first", "good"], 3) is not None
    assert [(one["ask"], one.get("name")) for one in bench.asked] == [
        ("open", None), ("check", "good"), ("race", None),
    ]  # fmt: skip
    # It stays the first time of all, which what was found before was held against.
    assert bench.started == 2 and bout.first_ns == 1200


def test_no_answer_is_waited_for_beyond_the_end_of_all(workers: Workers) -> None:
    bout = opened(workers)
    bench, crew = workers.made[-1], bout.crew
    bout.check("good", b"other")
    # A check takes about as long as opening did, which was no time at all.
    assert bench.limits[-1] <= crew.limit_s
    crew.until = time.monotonic() - 5
    bout.check("good", b"other")
    assert bench.limits[-1] == pytest.approx(0.1)
