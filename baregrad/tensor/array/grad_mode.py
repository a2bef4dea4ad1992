"""Modes of operations: whether they are recorded for gradients, and in which dtype they compute.

Recording is on, unless inside `no_grad`; inside `autocast` products take narrow floats, and what
loses by them float32.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from functools import lru_cache, wraps
from types import TracebackType
from typing import Any, NamedTuple, ParamSpec, TypeVar

from baregrad.base.errors import DTypeError
from baregrad.dtypes import DType, as_dtype, dtypes

P = ParamSpec("P")
R = TypeVar("R")

class Casting(NamedTuple):
    """What stands for a bool of `grad_enabled` inside `autocast`: as true as that would be."""

    recorded: bool
    dtype: DType

    def __bool__(self) -> bool:
        return self.recorded


_ENABLED: ContextVar[bool | Casting] = ContextVar("baregrad_grad_enabled", default=True)


# `is_grad_enabled` for ourselves, without a frame of Python: every call of every operation asks,
# and what is known of a call is known for this very value.
grad_enabled: Callable[[], bool] = _ENABLED.get  # type: ignore[assignment]


def is_grad_enabled() -> bool:
    """Whether operations on tensors that require gradients give tensors that do."""
    return bool(_ENABLED.get())


def cast_dtype() -> DType | None:
    """The dtype that `autocast` has products take, None outside of it."""
    mode = _ENABLED.get()
    return mode.dtype if isinstance(mode, Casting) else None


@lru_cache(maxsize=16)
def _mode(recorded: bool, dtype: DType | None) -> bool | Casting:
    """One object for each mode, so that modes are compared by identity."""
    return recorded if dtype is None else Casting(recorded, dtype)


class _ModeContext:
    """A context, and a decorator, of a mode, which is what it was again behind it.

    An interrupt is raised when a call returns, or at the first step of a function. So the mode is
    set by the last call of a step, and taken back where an interrupt comes with that. What remains
    is the first step of `__exit__`, which a decorated function, or `run`, has not.
    """

    def __init__(self) -> None:
        # A chain, as one context may be entered several times: the last is first.
        self._marks: tuple[Token[bool | Casting], Any] | None = None

    def _inside(self) -> bool | Casting:
        raise NotImplementedError

    def __enter__(self) -> None:
        inside, before = self._inside(), _ENABLED.get()
        try:
            mark = _ENABLED.set(inside)
        except BaseException:
            _ENABLED.set(before)
            raise
        self._marks = mark, self._marks

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._marks is not None
        mark, self._marks = self._marks
        _ENABLED.reset(mark)

    def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function in the context: no interrupt leaves the mode as it is in there."""
        inside, before = self._inside(), _ENABLED.get()
        try:
            _ENABLED.set(inside)
            return function(*args, **kwargs)
        finally:
            _ENABLED.set(before)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return `function` run in the context."""

        @wraps(function)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
            return self.run(function, *args, **kwargs)

        return wrapped


class autocast(_ModeContext):  # noqa: N801 - spelled as in PyTorch
    """A context, and a decorator, in which products of floats take narrow ones.

    Matrix products, convolutions and attention cast operands of 32 bits and fewer to `dtype`,
    bfloat16 unless told; softmax, norms, losses, powers and logarithms cast narrow ones to float32.
    Parameters stay as they are, and gradients come in their dtypes. `device_type` is taken for
    PyTorch's sake. Raises DTypeError for a dtype that is no float of 16 bits.
    """

    def __init__(
        self, device_type: str = "cpu", dtype: object = None, enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        super().__init__()
        found = dtypes.bfloat16 if dtype is None else as_dtype(dtype)
        if enabled and found not in (dtypes.bfloat16, dtypes.float16):
            raise DTypeError("autocast is to floats of 16 bits", found=found,
                             wanted="bfloat16 or float16")
        self.dtype = found if enabled else None

    def _inside(self) -> bool | Casting:
        return _mode(bool(_ENABLED.get()), self.dtype)


class set_grad_enabled(_ModeContext):  # noqa: N801 - used as a function, spelled as in PyTorch
    """A context, and a decorator, in which gradients are recorded or not."""

    def __init__(self, mode: bool) -> None:
        super().__init__()
        self.mode = bool(mode)

    def _inside(self) -> bool | Casting:
        return _mode(self.mode, cast_dtype())


def no_grad() -> set_grad_enabled:
    """Return a context, or decorator, in which results do not require gradients."""
    return set_grad_enabled(False)


def enable_grad() -> set_grad_enabled:
    """Return a context, or decorator, that records gradients again inside `no_grad`."""
    return set_grad_enabled(True)
