from __future__ import annotations

import copy
import inspect
import pickle
from pathlib import Path

import pytest

from baregrad.base import errors
from baregrad.base.errors import (
    BaregradError,
    CompileError,
    CompilerBug,
    MissingDependency,
    ShapeError,
    UnsupportedError,
    user_frame,
)

CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, BaregradError)
]


def test_the_drawing_names_every_class_and_no_other() -> None:
    lines = [line for line in (errors.__doc__ or "").splitlines() if "──" in line]
    parents = {0: "BaregradError"}
    drawn = {}
    for line in lines:
        depth, name = line.index("──") // 4, line.split("──")[1].split()[0]
        parents[depth] = name
        drawn[name] = parents[depth - 1]
    assert drawn == {
        one.__name__: one.__bases__[0].__name__ for one in CLASSES if one is not BaregradError
    }


@pytest.mark.parametrize("name,builtin", [
    ("ShapeError", ValueError), ("DTypeError", TypeError), ("IndexOutOfRange", IndexError),
    ("OptionError", ValueError), ("FileFormatError", ValueError),
    ("MissingDependency", ImportError), ("OutOfMemory", MemoryError),
    ("UnsupportedLayout", UnsupportedError), ("VerifyError", BaregradError),
])
def test_errors_are_caught_as_the_built_in_kind(name: str, builtin: type[Exception]) -> None:
    with pytest.raises(builtin):
        raise getattr(errors, name)("wrong")


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_composes_its_message(kind: type[BaregradError]) -> None:
    error = kind("cannot add", found=(2, 3), wanted=(2, 4), hint="reshape one", at="a.py:7")
    assert str(error) == (
        "cannot add: found (2, 3), wanted (2, 4); reshape one (asked for at a.py:7)"
    )
    assert (error.found, error.wanted, error.hint) == ((2, 3), (2, 4), "reshape one")


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_survives_pickle_and_copy(kind: type[BaregradError]) -> None:
    error = kind("cannot add", found=3, hint="try again", at="a.py:7")
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is kind
        assert str(twin) == str(error)


def test_a_message_may_be_facts_alone() -> None:
    assert str(ShapeError(found=1, wanted=2)) == "found 1, wanted 2"
    assert str(ShapeError("plain")) == "plain"
    assert str(ShapeError()) == ""


def test_a_place_can_be_added_later() -> None:
    error = ShapeError("bad")
    error.at = "model.py:12"
    assert str(error) == "bad (asked for at model.py:12)"


def test_missing_dependency_says_what_to_install() -> None:
    error = MissingDependency(package="llvmlite", extra="cpu")
    assert "'llvmlite'" in str(error)
    assert 'pip install "baregrad[cpu]"' in str(error)


def test_compile_error_keeps_source_and_log() -> None:
    error = CompileError(source="int main(", log="1:10: expected ')'\n")
    assert error.source == "int main("
    assert str(error).endswith("\n1:10: expected ')'")


def test_compiler_bug_saves_the_ir_and_says_how_to_replay_it(tmp_path: Path) -> None:
    error = CompilerBug("no rule applies", ir_text="%0 = CONST 1", folder=tmp_path)
    assert error.path is not None
    assert error.path.read_text() == "%0 = CONST 1"
    assert f"baregrad explain {error.path}" in str(error)


def test_compiler_bug_is_raised_even_where_nothing_can_be_written(tmp_path: Path) -> None:
    error = CompilerBug("no rule applies", ir_text="%0", folder=tmp_path / "absent")
    assert error.path is None
    assert error.ir_text == "%0"
    assert str(error) == "no rule applies"


def test_user_frame_is_the_line_outside_the_package() -> None:
    frame = user_frame()
    assert frame.file == __file__
    assert Path(frame.file).read_text().splitlines()[frame.line - 1].strip() == (
        "frame = user_frame()"
    )
    assert str(frame) == f"{frame.file}:{frame.line}"


def _run_as(filename: str) -> str:
    # The function belongs to `filename` as far as its frame can tell.
    names: dict[str, object] = {"user_frame": user_frame}
    exec(compile("def ask():\n    return user_frame()", filename, "exec"), names)
    return names["ask"]().file  # type: ignore[operator]


def test_user_frame_skips_the_package_but_not_its_programs() -> None:
    package = Path(errors.__file__).resolve().parent.parent
    assert _run_as(str(package / "tensor" / "tensor.py")) == __file__
    program = str(package / "apps" / "demo.py")
    assert _run_as(program) == program
