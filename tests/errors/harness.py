"""Mistakes as small programs: what each must be told, and on which line.

A program's faulty line ends in `#!`. Running it must raise an error of baregrad's tree whose
message holds every text of `says`, and the innermost line of the traceback that is no file of the
package's must be the faulty one; where the error names a line itself, it is that one too.
"""

from __future__ import annotations

import contextlib
import textwrap
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baregrad import nn, optim
from baregrad.base.errors import BaregradError
from baregrad.base.options import options
from baregrad.dtypes import dtypes
from baregrad.engine.canonical import bind
from baregrad.ir.core.index import variable
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit

PACKAGE = str(Path(BaregradError.__init__.__code__.co_filename).parents[1])
PREPARED = textwrap.dedent("""
    x = Tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    v = Tensor([1.0, 2.0])
    i = Tensor([0, 1])
    b = Tensor([True, False])
    g = Tensor([1.0, 2.0], requires_grad=True)
""")


@dataclass(frozen=True)
class Case:
    """A mistake: a program, the error's class, and texts that its message must hold."""

    name: str
    program: str
    kind: type[BaregradError]
    says: tuple[str, ...]

    def __str__(self) -> str:
        return self.name


def one(line: str, kind: type[BaregradError], *says: str) -> Case:
    """A case of one line."""
    return Case(line, line + "  #!", kind, says)


def check(case: Case, folder: Path) -> None:
    """Run a case on the reference device and compare what it raises."""
    text = PREPARED + textwrap.dedent(case.program)
    wanted = next(n for n, line in enumerate(text.splitlines(), 1) if line.endswith("#!"))
    path = folder / "program.py"
    path.write_text(text)
    names: dict[str, Any] = {
        "Tensor": Tensor, "dtypes": dtypes, "jit": jit, "options": options, "folder": folder,
        "nn": nn, "optim": optim, "size": bind(variable("n", 1, 4), 2),
    }
    with options.override(device="REF"):
        try:
            exec(compile(text, str(path), "exec"), names)
        except BaregradError as error:
            _compare(case, error, path, wanted)
        else:
            raise AssertionError(f"nothing was raised by: {case.program}")


def _compare(case: Case, error: BaregradError, path: Path, line: int) -> None:
    assert type(error) is case.kind, f"{type(error).__name__}: {error}"
    for text in case.says:
        assert text in str(error), f"{text!r} is not in: {error}"
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((PACKAGE, contextlib.__file__))
    ]
    assert (frames[-1].filename, frames[-1].lineno) == (str(path), line)
    assert error.at in (None, f"{path}:{line}")
