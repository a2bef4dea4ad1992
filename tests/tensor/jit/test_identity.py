"""What functions are called by processes: the same for the same, and nothing for a stranger."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baregrad.tensor import Tensor
from baregrad.tensor.jit import identity
from baregrad.tensor.jit.identity import FunctionIdentity, Unnamed
from baregrad.tensor.jit.parts import Call


@pytest.fixture(autouse=True)
def _ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_OURS", (*identity._OURS, f"{__name__}."))


def named(function: Any, *args: Any) -> bool:
    try:
        FunctionIdentity(function, Call(args, {}))
    except Unnamed:
        return False
    return True


def test_what_has_no_name_for_others_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    x = Tensor.ones(3).contiguous().realize()
    view, lazy = x[1:], x + 1
    leaf = Tensor.ones(2).contiguous().realize().requires_grad_()
    thread, objects = object(), np.array([x], object)
    looked_up = {"a": 1}.get
    refused = [
        lambda a: a + view, lambda a: a + lazy, lambda a: a + leaf,
        lambda a: (a, thread), lambda a: (a, objects), lambda a: (a, looked_up),
    ]  # fmt: skip
    given = Tensor.ones(3).contiguous().realize()
    assert named(lambda a: a + x, given)
    assert [named(each, given) for each in refused] == [False] * 6
    assert not named(lambda a, b: a + b, given, given)
    assert not named(lambda a: a + x, x)
    monkeypatch.setattr(identity, "_OURS", ("baregrad.tensor.",))
    assert not named(lambda a: a + x, given)


class Held:
    """A class of ours, as far as these tests go."""


def test_classes_are_known_by_where_they_stand() -> None:
    """One of somebody else's, one that a function made, and one in the place of another."""
    given = Tensor.ones(3).contiguous().realize()
    somebodys = type("Held", (), {"__module__": "somebody"})
    made = type("made.<locals>.Held", (), {"__module__": __name__})
    like = type("Held", (), {"__module__": __name__})
    assert named(lambda a: (Held, Held(), float, np.float32, np.add, a), given)
    for kind in (somebodys, made, like):
        assert not named(lambda a: (kind, a), given)  # noqa: B023
        one = kind()
        assert not named(lambda a: (one, a), given)  # noqa: B023


def test_functions_of_other_lines_and_closures_differ() -> None:
    given = Tensor.ones(3).contiguous().realize()

    def text(function: Any) -> str:
        return FunctionIdentity(function, Call((given,), {})).text

    def made(number: Any) -> Any:
        return lambda a: a * number

    one, other = (lambda a: a + 1), (lambda a: a + 2)  # both on one line: told by their constants
    assert text(made(1)) != text(made(1.0)) != text(made(True))
    assert text(made((1, 2))) != text(made([1, 2]))
    assert text(made(0.0)) != text(made(-0.0))
    assert text(made(2)) == text(made(2))
    assert text(one) != text(other)
