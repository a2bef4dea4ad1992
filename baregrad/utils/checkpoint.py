"""`torch.utils.checkpoint`: activations computed again for gradients instead of kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from baregrad import func
from baregrad.base.errors import ArgumentError
from baregrad.base.namespaces import unknown_name

__all__ = ["checkpoint", "checkpoint_sequential"]


def checkpoint(
    function: Callable[..., Any], *args: Any, use_reentrant: bool | None = None,
    preserve_rng_state: bool = True, **kwargs: Any,
) -> Any:
    """Return function(*args, **kwargs), whose inside is not kept; see `func.checkpoint`.

    use_reentrant: either way is this one. Raises ArgumentError unless draws are the same again.
    """
    if not preserve_rng_state:
        raise ArgumentError("draws are the same when they are made again",
                            found="preserve_rng_state=False")  # fmt: skip
    return func.checkpoint(function, *args, **kwargs)


def checkpoint_sequential(
    functions: Sequence[Callable[[Any], Any]], segments: int, input: Any,
    use_reentrant: bool | None = None,
) -> Any:
    """Return what functions make one after another, of which only `segments` values are kept."""
    steps = list(functions)
    if not 1 <= segments <= len(steps):
        raise ArgumentError("segments of at least a function each", found=segments,
                            wanted=f"1 to {len(steps)}")  # fmt: skip

    def run(part: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
        def through(x: Any) -> Any:
            for step in part:
                x = step(x)
            return x

        return through

    size, x = len(steps) // segments, input
    for first in range(0, size * (segments - 1), size):
        x = checkpoint(run(steps[first : first + size]), x)
    # The last part is kept: its gradients are computed at once.
    return run(steps[size * (segments - 1) :])(x)


def __getattr__(name: str) -> object:
    raise unknown_name("baregrad.utils.checkpoint", name, __all__)
