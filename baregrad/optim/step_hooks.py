"""Hooks of optimisers: functions that are called around steps, and around states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Self

from baregrad.base.errors import ArgumentError

Hook = Callable[..., Any]


class StepHook:
    """A hook of an optimiser, which `remove()`, or the end of a `with` block, takes away again."""

    def __init__(self, held: list[StepHook], hook: Hook) -> None:
        if not callable(hook):
            raise ArgumentError("a hook is a function", found=type(hook).__name__)
        self.hook = hook
        self._held = held

    def remove(self) -> None:
        """Take the hook away; once it is away, do nothing."""
        if self in self._held:
            self._held.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def _hooked(step: Callable[..., Any]) -> Callable[..., Any]:
    """A step around which hooks are called: once, also where it calls that of its base."""

    @wraps(step)
    def stepped(self: WithHooks, *args: Any, **kwargs: Any) -> Any:
        if "_hooks" not in vars(self) or self._is_stepping:
            return step(self, *args, **kwargs)
        whole, named = (self, *args), kwargs
        for one in self._held_at("before_step"):
            found = one.hook(self, whole, named)
            if found is None:
                continue
            if not isinstance(found, tuple) or len(found) != 2:
                raise ArgumentError("a hook before a step returns None or the step's arguments",
                                    found=type(found).__name__, wanted="(args, kwargs)")
            whole, named = found
        self._is_stepping = True
        try:
            result = step(*whole, **named)
        finally:
            del self._is_stepping
        for one in self._held_at("after_step"):
            one.hook(self, whole, named)
        return result

    return stepped


class WithHooks:
    """What an optimiser does of hooks: they are called in the order in which they came."""

    _hooks: Mapping[str, list[StepHook]]
    _is_stepping = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "step" in vars(cls):
            cls.step = _hooked(cls.step)  # type: ignore[attr-defined]

    def _held_at(self, place: str) -> list[StepHook]:
        return list(vars(self).get("_hooks", {}).get(place, ()))

    def _register(self, place: str, hook: Hook, prepend: bool = False) -> StepHook:
        held = vars(self).setdefault("_hooks", {}).setdefault(place, [])
        made = StepHook(held, hook)
        held.insert(0 if prepend else len(held), made)
        return made

    def _called(self, place: str, *args: Any) -> Any:
        """What the hooks of a place make of the last argument, each in place of the one before."""
        last = args[-1] if args else None
        for one in self._held_at(place):
            found = one.hook(self, *args[:-1], last) if args else one.hook(self)
            last = last if found is None else found
        return last

    def register_step_pre_hook(self, hook: Hook) -> StepHook:
        """Call `hook(optimizer, args, kwargs)` before each step; args begin with the optimizer.

        It may return others, (args, kwargs), such as with another closure.
        """
        return self._register("before_step", hook)

    def register_step_post_hook(self, hook: Hook) -> StepHook:
        """Call `hook(optimizer, args, kwargs)` after each step."""
        return self._register("after_step", hook)

    def register_state_dict_pre_hook(self, hook: Hook, prepend: bool = False) -> StepHook:
        """Call `hook(optimizer)` before the state is shown."""
        return self._register("before_state", hook, prepend)

    def register_state_dict_post_hook(self, hook: Hook, prepend: bool = False) -> StepHook:
        """Call `hook(optimizer, state_dict)`, which may return another state, once it is shown."""
        return self._register("after_state", hook, prepend)

    def register_load_state_dict_pre_hook(self, hook: Hook, prepend: bool = False) -> StepHook:
        """Call `hook(optimizer, state_dict)`, which may return another, before it is loaded."""
        return self._register("before_loading", hook, prepend)

    def register_load_state_dict_post_hook(self, hook: Hook, prepend: bool = False) -> StepHook:
        """Call `hook(optimizer)` once a state is loaded."""
        return self._register("after_loading", hook, prepend)
