"""What an eager call costs the interpreter, in calls of Python functions, which repeat exactly."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest

from baregrad import Tensor
from baregrad.base.options import options
from baregrad.engine.session import Session, use_session

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="elsewhere command lists run in Python"
)


def python_calls(function: Callable[[], Any]) -> int:
    """How many Python functions a call runs once all that it does is known."""
    found = 0

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal found
        found += event == "call" and frame.f_code is not function.__code__

    for _ in range(6):
        function()
    gc.disable()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
        gc.enable()
    return found


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    with options.override(device="CPU", debug=0), use_session(Session()) as session:
        yield
        session.close()


def arrays(count: int) -> list[Tensor]:
    numbers = np.random.default_rng(3).standard_normal((count, 8, 16)).astype(np.float32)
    return [Tensor(one).realize() for one in numbers]


# An addition takes a method, a look for its template and five objects that stand for its result,
# and `realize` a key, a look for its program, and a launch.
CALLS: tuple[tuple[str, int, Callable[[Tensor, Tensor], Tensor]], ...] = (
    ("add", 32, lambda x, y: x + y),
    ("scale", 32, lambda x, y: x * 2),
    ("relu", 32, lambda x, y: x.relu()),
    ("sum", 32, lambda x, y: x.sum()),
    ("softmax", 32, lambda x, y: x.softmax(-1)),
    ("layer_norm", 32, lambda x, y: x.layer_norm((16,))),
    ("matmul of a view", 38, lambda x, y: x @ y.reshape(16, 8)),
    ("slice", 42, lambda x, y: x[:, -1:] * 1),
    ("cat", 48, lambda x, y: Tensor.cat([x, y * 2], dim=1)),
    ("topk", 42, lambda x, y: x.topk(3)[0]),
    ("dropout", 42, lambda x, y: x.dropout(0.5)),
    ("rand", 50, lambda x, y: Tensor.rand(8, 16)),
    ("sigmoid", 32, lambda x, y: x.sigmoid()),
)


@pytest.mark.parametrize(("name", "most", "function"), CALLS, ids=[row[0] for row in CALLS])
def test_a_known_call_runs_few_functions(
    name: str, most: int, function: Callable[[Tensor, Tensor], Tensor]
) -> None:
    x, y = arrays(2)

    def call() -> None:
        function(x, y).realize()

    assert python_calls(call) <= most


def test_a_further_call_of_a_chain_costs_its_own_objects_alone() -> None:
    (x,) = arrays(1)

    def chain(count: int) -> Callable[[], None]:
        def call() -> None:
            y = x
            for _ in range(count):
                y = y.exp()
            y.realize()

        return call

    assert python_calls(chain(12)) - python_calls(chain(2)) <= 10 * 10


def test_a_known_backward_pass_runs_few_functions() -> None:
    (x,) = arrays(1)

    def step() -> None:
        leaf = x.detach().requires_grad_()
        loss = (leaf * 2).square().sum()
        loss.backward()
        assert leaf.grad is not None
        loss.realize(leaf.grad)

    assert python_calls(step) <= 120
