"""`baregrad search`, and the other ways to ask for a search."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import baregrad
from baregrad import Tensor, nn, optim
from baregrad.apps import search as command
from baregrad.apps.models import TrainingStep
from baregrad.base.errors import ArgumentError, OptionError
from baregrad.base.options import options
from baregrad.engine.search.records import Records, SearchRecord
from baregrad.engine.search.tuner import Tuner
from baregrad.engine.session import Session, use_session
from baregrad.kernel import parse_schedule
from baregrad.kernel.search import beam
from tests.kernel import kernels as k

PROGRAM = """
import sys
import numpy as np
from baregrad import Tensor, nn, optim
x = np.arange(6000, dtype=np.float32).reshape(60, 100) % 7
y = (Tensor(x) @ Tensor(x.T.copy())).numpy()
assert (y == x @ x.T).all()
print("arguments", sys.argv[1:])
"""


@pytest.fixture
def session() -> Any:
    own = Session()
    with use_session(own):
        yield own
    own.close()


def test_a_program_is_run_and_its_kernels_are_searched(
    session: Session,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(beam, "MOST_ROUNDS", 1)
    path, file = tmp_path / "program.py", tmp_path / "found.jsonl"
    path.write_text(PROGRAM)
    words = ["--beam", "1", "--seconds", "3600", "--file", str(file)]
    with options.override(beam_timeout=120):
        assert command.main([*words, str(path), "one", "--two"]) == 0
    shown = capsys.readouterr().out
    assert "arguments ['one', '--two']" in shown
    assert "kernels were searched" in shown
    assert "reduce_60x60_100" in shown
    assert len(Records(file).all()) >= 1
    assert command.main(["--list", "--file", str(file)]) == 0
    assert "reduce_60x60_100" in capsys.readouterr().out


def test_nothing_to_search_for_is_said() -> None:
    with pytest.raises(ArgumentError, match="nothing to search for"):
        command.main([])
    with pytest.raises(ArgumentError, match="nothing to search for"):
        command.main(["--app", "resnet18", "x.py"])


class Calls:
    """Stands in for the search: notes how widely it was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.widths: list[int] = []

        def schedules(tuner: Tuner, kernels: Any) -> Any:
            self.widths.append(options.beam)
            return {}

        monkeypatch.setattr(Tuner, "schedules", schedules)


def test_searches_are_asked_for_by_block_and_by_function(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(monkeypatch)
    x = Tensor(np.arange(12, dtype=np.float32)).realize()

    def step(x: Tensor) -> Tensor:
        return (x * 3 + 1).realize()

    step(x)
    assert calls.widths == []
    with baregrad.search(beam=3):
        step(x)
    assert calls.widths == [3]
    # What is compiled already, with or without a search, is not asked for again.
    with baregrad.search(beam=3):
        step(x)
    step(x)
    assert calls.widths == [3]
    jitted = baregrad.jit(beam=2)(step)
    for _ in range(3):
        np.testing.assert_array_equal(jitted(x).numpy(), np.arange(12) * 3 + 1)
    assert set(calls.widths[1:]) == {2}
    assert jitted.replays == 1

    @baregrad.jit
    def plain(x: Tensor) -> Tensor:
        return x - 1

    before = len(calls.widths)
    for _ in range(3):
        plain(x)
    assert len(calls.widths) == before
    with pytest.raises(OptionError):
        baregrad.jit(step, beam=-1)
    with pytest.raises(OptionError), baregrad.search(beam=5000):
        pass


def test_a_shipped_schedule_is_used_and_one_that_does_not_fit_is_not(
    session: Session, tmp_path: Path
) -> None:
    backend: Any = session.backend("CPU")
    kernel = k.matmul(12, 16, 20)
    with options.override(beam_file=tmp_path / "found.jsonl", cache=False):
        tuner = Tuner(backend.compiler, backend.device)
        records = Records(options.beam_file)
        for text, used in (
            ("Schedule(bind('i1', 'vector'))", True),
            ("Schedule(bind('zz', 'vector'))", False),
        ):
            key, target, toolchain = tuner._key(kernel)
            records.put(SearchRecord(key, target, toolchain, "m", 4, text, 2.0, 1.0, 9))
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                chosen = tuner.schedules([kernel])
            assert chosen == ({kernel: parse_schedule(text)} if used else {})
            assert bool(caught) is not used
        # Another number of threads is another machine.
        backend.device.threads += 1
        assert tuner.schedules([kernel]) == {}


def test_a_file_of_schedules_that_is_not_there_is_said(session: Session, tmp_path: Path) -> None:
    backend: Any = session.backend("CPU")
    with options.override(beam_file=tmp_path / "misspelt.jsonl", beam=0):
        tuner = Tuner(backend.compiler, backend.device)
        with pytest.warns(RuntimeWarning, match="BEAM_FILE=.*misspelt.jsonl does not exist"):
            assert tuner.schedules([k.matmul(12, 16, 20)]) == {}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tuner.schedules([k.matmul(12, 16, 24)])  # told once
    with pytest.raises(ArgumentError, match="no such file of schedules: found .*misspelt.jsonl"):
        command.main(["--list", "--file", str(tmp_path / "misspelt.jsonl")])


def test_other_devices_say_that_they_are_not_searched(session: Session) -> None:
    backend: Any = session.backend("NULL")
    tuner = Tuner(backend.compiler, backend.device)
    with options.override(beam=2), pytest.warns(RuntimeWarning, match="not on NULL"):
        assert tuner.schedules([k.matmul(8, 8, 8)]) == {}


def test_a_training_step_is_captured_and_searched(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = TrainingStep(
        lambda: nn.Linear(6, 5), lambda found: optim.SGD(found, lr=0.1), (4, 6), (4,), 0, 5
    )
    monkeypatch.setattr(command, "training_steps", lambda: {"Small": step})
    asked: list[int] = []

    def schedules(tuner: Tuner, kernels: Any) -> dict[Any, Any]:
        asked.append(len(kernels))
        return {}

    monkeypatch.setattr(Tuner, "schedules", schedules)
    assert command.main(["--app", "small", "--beam", "1"]) == 0
    assert asked and all(asked)
