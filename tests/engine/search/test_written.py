"""Schedules that somebody wrote: programs run by them, and what is wrong with them is said."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from baregrad import Tensor
from baregrad.base.errors import OptionError, ScheduleError
from baregrad.base.options import options
from baregrad.cli import main
from baregrad.engine.search import written
from baregrad.engine.search.written import parse_written
from baregrad.engine.session import Session, use_session
from baregrad.testing.ptx_device import ptx_session

PRODUCT = """
import numpy as np
from baregrad import Tensor
a = Tensor(np.ones((128, 512), np.float32)).cast("bfloat16").realize()
b = Tensor(np.ones((512, 256), np.float32)).cast("bfloat16").realize()
(a @ b).realize()
"""


@pytest.fixture(autouse=True)
def nobody_tells_of_unused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written.atexit, "register", lambda *_: None)


@pytest.fixture
def own_session() -> Iterator[Session]:
    with options.override(cache=False), use_session(Session()) as session:
        yield session
        session.close()


def programs(session: Session) -> dict[str, str]:
    compiler = session.backend("CPU").compiler  # type: ignore[attr-defined]
    return {str(job[1]): program.name for job, program in compiler._programs.items()}


def test_a_kernel_runs_by_what_is_written(own_session: Session, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("# rows of eight\nmap_6x40 = Schedule(split('i1', outer='o', v=8), "
                    "bind('v', 'vector'))\n")  # fmt: skip
    x = np.arange(240, dtype=np.float32).reshape(6, 40)
    with options.override(schedules=file):
        np.testing.assert_array_equal((-Tensor(x)).numpy(), -x)
        spelled = "Schedule(split('i1', outer='o', v=8), bind('v', 'vector'))"
        assert programs(own_session)[spelled] == "map_6x40"
    # What is edited holds once the option is set again, in the same process.
    file.write_text("map_6x40 = Schedule(bind('i1', 'vector'))\n")
    os.utime(file, ns=(1, 1))
    with options.override(schedules=file):
        np.testing.assert_array_equal((-Tensor(x)).numpy(), -x)
        assert programs(own_session)["Schedule(bind('i1', 'vector'))"] == "map_6x40"


def test_what_explain_prints_is_edited_and_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program, file = tmp_path / "program.py", tmp_path / "mine.py"
    program.write_text(PRODUCT)
    words = ["explain", str(program), "--target", "sm_90a", "--kernel", "reduce_128x256_512"]
    assert main(words) == 0
    told = capsys.readouterr().out
    text = "# as it was printed\n" + told.partition("schedule\n")[2].partition("why\n")[0]
    assert "depth=6, engine='tma'" in text
    (roles,) = re.findall(r" *roles\(.*\),\n", text)
    edited = text.replace("depth=6, engine='tma'", "depth=3, engine='async'").replace(roles, "")
    rng = np.random.default_rng(5)
    numbers = rng.integers(-3, 4, (128, 512)), rng.integers(-3, 4, (512, 256))
    for spelled, slots in ((text, 6), (edited, 3)):
        file.write_text(spelled)
        with options.override(schedules=file):
            assert main(words) == 0
            told = capsys.readouterr().out
            assert f"it is written in {file}" in told and f": {slots} slots of" in told
            with ptx_session() as session:
                a, b = [Tensor(each.astype(np.float32)).cast("bfloat16") for each in numbers]
                found = a.realize().matmul(b.realize()).cast("float32").numpy()
                compiler = session.backend("NV").compiler  # type: ignore[attr-defined]
                (source,) = [
                    each.source for each in compiler._programs.values()
                    if each.name == "reduce_128x256_512"
                ]
        wanted = Tensor((numbers[0] @ numbers[1]).astype(np.float32)).cast("bfloat16")
        np.testing.assert_array_equal(found, wanted.cast("float32").numpy())
        assert ("cp.async.bulk" in source) == (spelled is text)


def test_a_name_with_digits_is_one_kernel_s(
    own_session: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program, file = tmp_path / "program.py", tmp_path / "mine.py"
    program.write_text("from baregrad import Tensor\nx = Tensor([1.0] * 40).realize()\n"
                       "(-x).realize()\n(x.reshape(5, 8).T + 1).realize()\n")  # fmt: skip
    assert main(["explain", str(program), "--kernel", "map_40"]) == 0
    name, digits = capsys.readouterr().out.split()[1:3]
    file.write_text(
        f"{name} = Schedule(bind('zz', 'vector'))\n"
        f"{name}_{digits} = Schedule(split('i0', outer='o', v=4), unroll('v'))\n"
    )
    with options.override(schedules=file):
        assert (-Tensor([1.0] * 40)).tolist() == [-1.0] * 40
        with pytest.raises(ScheduleError, match=r"map_40 cannot have .*; map_40_\w{8} = "):
            (Tensor([1.0] * 40) * 3).tolist()


def test_what_is_no_file_of_schedules(own_session: Session, tmp_path: Path) -> None:
    missing = options.override(schedules=tmp_path / "nobody.py")
    with missing, pytest.raises(OptionError, match="cannot be read"):
        (Tensor([1.0, 2.0]) * 2).tolist()
    for text, message in (
        ("print('hello')", "not a schedule of a kernel"), ("a = b = Schedule()", "not a schedule"),
        ("a = Schedule()\na = Schedule()", "two schedules"), ("a = 3", "not a schedule"),
        ("a = Schedule(exec('1'))", "not a step"), ("a = (", "do not parse"),
        ("a = Schedule(split('i0', outer=len))", "wrong arguments"),
    ):
        with pytest.raises(ScheduleError, match=message):
            parse_written(text)
    assert not parse_written("# nothing\n")


def test_names_that_no_kernel_has_are_told_at_the_end() -> None:
    file = written._File(parse_written("map_4 = Schedule()\nmap_5 = Schedule()"), {"map_4"})
    with pytest.warns(RuntimeWarning, match=r"no kernel had .* mine\.py has for map_5$"):
        written._tell_of_unused(Path("mine.py"), file)
    file.used.add("map_5")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        written._tell_of_unused(Path("mine.py"), file)
