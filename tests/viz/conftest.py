"""One small program, recorded once for all tests of the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from baregrad.viz.documents import RecordedDocuments
from baregrad.viz.recording import Recording, record

PROGRAM = """\
from baregrad import Tensor
import numpy as np

x = Tensor(np.ones((8, 16), np.float32))
w = Tensor(np.ones((16, 4), np.float32), requires_grad=True)
for _ in range(3):
    y = (x @ w) * 1.0
    loss = y.exp().sum()
    loss.backward()
    print(loss.item(), w.grad.sum().item())
"""


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("viz") / "shown.py"
    path.write_text(PROGRAM)
    return path


@pytest.fixture(scope="session")
def recording(program: Path) -> Recording:
    return record(program, "sm_90a")


@pytest.fixture(scope="session")
def documents(recording: Recording) -> RecordedDocuments:
    return RecordedDocuments(recording)
