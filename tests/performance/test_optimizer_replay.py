"""What the replay of an optimiser's step costs the interpreter, which repeats exactly."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest

from baregrad import Tensor, jit, optim
from baregrad.base.options import options
from baregrad.engine.session import Session, use_session

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="elsewhere command lists run in Python"
)


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    with options.override(device="CPU", debug=0), use_session(Session()) as session:
        yield
        session.close()


def step_of(count: int) -> Callable[[], Any]:
    """A jitted step of AdamW over `count` small parameters whose gradients are there."""
    rng = np.random.default_rng(count)
    parameters = [Tensor(one, requires_grad=True) for one in rng.standard_normal((count, 8))]
    gradients = [Tensor(one).realize() for one in rng.standard_normal((count, 8))]
    for one, gradient in zip(parameters, gradients, strict=True):
        one.grad = gradient
    optimiser = optim.AdamW(parameters, lr=1e-3)

    @jit
    def step() -> None:
        for one, gradient in zip(parameters, gradients, strict=True):
            one.grad = gradient
        optimiser.step()

    for _ in range(6):
        step()
    return step


def interpreted(function: Callable[[], Any]) -> tuple[int, int]:
    """How many Python functions a call enters, and how many of the interpreter's codes it runs."""
    calls = codes = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal calls, codes
        frame.f_trace_opcodes = True
        calls += event == "call"
        codes += event == "opcode"
        return trace

    function()  # a capture of another function may have looked at its state
    gc.disable()
    before = sys.gettrace()
    # Python 3.12 sends codes only where a frame asked for them before the tracer was set.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
        gc.enable()
    return calls, codes


def test_a_replayed_step_runs_as_much_python_however_many_parameters_there_are() -> None:
    one, many = step_of(1), step_of(12)
    found = interpreted(one)
    assert found == interpreted(one)
    assert interpreted(many) == found
    calls, codes = found
    assert calls <= 18
    assert codes <= 560


def test_a_gradient_that_was_put_elsewhere_is_still_seen() -> None:
    parameter = Tensor(np.ones(4, np.float32), requires_grad=True)
    parameter.grad = Tensor(np.full(4, 2.0, np.float32)).realize()
    optimiser = optim.SGD([parameter], lr=1.0)
    step = jit(optimiser.step)
    for _ in range(5):
        step()
    assert parameter.tolist() == [-9.0] * 4
    parameter.grad = Tensor(np.full(4, 1.0, np.float32)).realize()
    step()
    step()
    assert parameter.tolist() == [-11.0] * 4
    parameter.grad = None
    step()
    assert parameter.tolist() == [-11.0] * 4
