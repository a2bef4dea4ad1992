"""Hooks of optimisers: functions that are called around steps, and around states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


class WithHooks:
    """What an optimiser does of hooks: they are called in the order in which they came."""

    _hooks: Mapping[str, list[StepHook]]

    def _register(self, place: str, hook: Hook, prepend: bool = False) -> StepHook:
        held = vars(self).setdefault("_hooks", {}).setdefault(place, [])
        made = StepHook(held, hook)
        held.insert(0 if prepend else len(held), made)
        return made

    def _called(self, place: str, *args: Any) -> Any:
        """What the hooks of a place make of the last argument, each in place of the one before."""
        last = args[-1] if args else None
        for one in list(vars(self).get("_hooks", {}).get(place, ())):
            found = one.hook(self, *args[:-1], last) if args else one.hook(self)
            last = last if found is None else found
        return last

    def register_step_pre_hook(self, hook: Hook) -> StepHook:
        """Call `hook(optimizer, args, kwargs)` before each step."""
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
