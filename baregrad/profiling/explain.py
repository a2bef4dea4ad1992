"""The function `explain`; what it needs is imported when it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from baregrad.base.errors import ArgumentError

if TYPE_CHECKING:
    # The package's face names `explain`.
    from baregrad.profiling.explanation import Explanation


def explain(what: Any = None, *args: Any, **kwargs: Any) -> Explanation:
    """Return what a tensor or a call of a function comes to, or a block that is to be explained.

    what: a tensor, which is computed (its lines are known where they were noted when it was built:
    `BAREGRAD_LINES=1`); a function, which is called once with the arguments, and
    whose result is `result`; nothing, for a block of `with`. Raises ArgumentError for others, and
    what the function raises.
    """
    from baregrad.profiling.explanation import Explanation

    told = Explanation()
    if what is None and not args and not kwargs:
        return told
    realize = getattr(what, "realize", None)
    if callable(realize) and not args and not kwargs and not isinstance(what, type):
        with told:
            told.result = realize()
        return told
    if not callable(what):
        raise ArgumentError(
            "this cannot be explained", found=type(what).__name__,
            wanted="a tensor, a function and its arguments, or nothing for a block",
        )
    with told:
        told.result = what(*args, **kwargs)
        outcome = getattr(told.result, "realize", None)
        if callable(outcome):
            outcome()
    return told
