"""Whether operations are recorded for gradients: on, unless inside `no_grad`."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from functools import wraps
from types import TracebackType
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_ENABLED: ContextVar[bool] = ContextVar("baregrad_grad_enabled", default=True)


# `is_grad_enabled` for ourselves, without a frame of Python: every call of every operation asks.
grad_enabled: Callable[[], bool] = _ENABLED.get


def is_grad_enabled() -> bool:
    """Whether operations on tensors that require gradients give tensors that do."""
    return _ENABLED.get()


class set_grad_enabled:  # noqa: N801 - used as a function, spelled as in PyTorch
    """A context, and a decorator, in which gradients are recorded or not."""

    def __init__(self, mode: bool) -> None:
        self.mode = bool(mode)
        self._marks: list[Token[bool]] = []

    def __enter__(self) -> None:
        self._marks.append(_ENABLED.set(self.mode))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _ENABLED.reset(self._marks.pop())

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return `function` run in the context."""

        @wraps(function)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
            with set_grad_enabled(self.mode):
                return function(*args, **kwargs)

        return wrapped


def no_grad() -> set_grad_enabled:
    """Return a context, or decorator, in which results do not require gradients."""
    return set_grad_enabled(False)


def enable_grad() -> set_grad_enabled:
    """Return a context, or decorator, that records gradients again inside `no_grad`."""
    return set_grad_enabled(True)
