"""Hooks: functions that are called around each call of a module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self

from baregrad.base.errors import ArgumentError


class _Hook(NamedTuple):
    """A function around a module's call, and whether it is given keyword arguments as well."""

    function: Callable[..., Any]
    with_kwargs: bool
    # Tells hooks of one function apart.
    token: object


class HookHandle:
    """A hook of a module, which `remove()`, or the end of a `with` block, takes away again."""

    def __init__(self, owner: Hooked, place: str, hook: _Hook) -> None:
        self._owner, self._place, self._hook = owner, place, hook

    def remove(self) -> None:
        """Take the hook away; once it is away, do nothing."""
        held = vars(self._owner).get(self._place, ())
        kept = tuple(hook for hook in held if hook.token is not self._hook.token)
        if len(kept) == len(held):
            return
        if kept:
            vars(self._owner)[self._place] = kept
        else:
            vars(self._owner).pop(self._place, None)
        self._owner._count_change()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


class Hooked:
    """What a module does of hooks."""

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> HookHandle:
        """Call `hook(module, args)` before each call; what it returns, if not None, are the args.

        With `with_kwargs` it is `hook(module, args, kwargs)`, which returns both or None.
        """
        return self._register("_before_forward", hook, prepend, with_kwargs)

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> HookHandle:
        """Call `hook(module, args, output)` after each call; what it returns is the output.

        None leaves the output as it is. With `with_kwargs` it is
        `hook(module, args, kwargs, output)`.
        """
        return self._register("_after_forward", hook, prepend, with_kwargs)

    def _register(
        self, place: str, function: Callable[..., Any], prepend: bool, with_kwargs: bool
    ) -> HookHandle:
        if not callable(function):
            raise ArgumentError("a hook is a function", found=f"{type(function).__name__}")
        hook = _Hook(function, with_kwargs, object())
        held = vars(self).get(place, ())
        vars(self)[place] = (hook, *held) if prepend else (*held, hook)
        self._count_change()
        return HookHandle(self, place, hook)

    def _count_change(self) -> None:
        """Let captures of calls notice: they watch what a module held before, not what is new."""
        held = vars(self)
        if "_is_ready" in held:
            held["_is_ready"] += 1

    def _begun(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call as hooks leave them."""
        for hook in vars(self).get("_before_forward", ()):
            if hook.with_kwargs:
                found = hook.function(self, args, kwargs)
                args, kwargs = (args, kwargs) if found is None else found
            else:
                found = hook.function(self, args)
                if found is not None:
                    args = found if isinstance(found, tuple) else (found,)
        return args, kwargs

    def _ended(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """The output of a call as hooks leave it."""
        for hook in vars(self).get("_after_forward", ()):
            given = (args, kwargs, output) if hook.with_kwargs else (args, output)
            found = hook.function(self, *given)
            output = output if found is None else found
        return output
