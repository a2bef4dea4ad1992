"""A session of a module's own, and a program whose kernels are explained."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from baregrad.engine import explain, explain_kernel
from baregrad.engine.session import Session, use_session

PROGRAM = """
from baregrad import Tensor
a = Tensor([[1.0] * 64] * 48).realize()
b = Tensor([[1.0] * 64] * 48).realize()
(a @ b.T).realize()
(a.exp() + b).realize()
a.sum().realize()
"""


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    opened = Session()
    with use_session(opened):
        yield opened
    opened.close()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explained") / "program.py"
    path.write_text(PROGRAM)
    return path


@pytest.fixture(scope="module")
def kernels(program: Path) -> list[explain_kernel.Found]:
    return explain.kernels_of(program)
