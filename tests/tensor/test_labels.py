"""What commands are called: a fault that a GPU tells of later must find the user's line."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from baregrad.base.options import options
from baregrad.engine.session import Session, use_session
from baregrad.runtime.commands import CommandList, Exec
from baregrad.runtime.interface import Device
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit


@pytest.fixture
def labels(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The labels of all launches that are submitted to devices with command lists."""
    found: list[str] = []
    session = Session()
    with use_session(session), options.override(device="CPU", debug=1):
        device: Device = session.backend("CPU").device
        submit = device.submit

        def noted(commands: CommandList, *rest: Any, **more: Any) -> Any:
            found.extend(one.label for one in commands.commands if isinstance(one, Exec))
            return submit(commands, *rest, **more)

        monkeypatch.setattr(device, "submit", noted)
        yield found
    session.close()


def line() -> int:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def test_a_launch_is_labelled_with_the_line_that_asked_for_it(labels: list[str]) -> None:
    x = Tensor(np.arange(6, dtype=np.float32))
    made = line() + 1
    y = x.sin()
    y.realize()
    assert len(labels) == 1
    assert labels[0].endswith(f"test_labels.py:{made}")


def test_so_is_a_captured_one(labels: list[str]) -> None:
    made = line() + 4

    @jit
    def step(x: Tensor) -> Tensor:
        return x.cos() * 2

    for seed in range(4):
        step(Tensor(np.full(6, seed, np.float32)))
    assert labels
    assert all(label.endswith(f"test_labels.py:{made}") for label in labels)
