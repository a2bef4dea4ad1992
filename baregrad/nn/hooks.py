"""Hooks: functions that are called around each call of a module, and around its state.

And states: values put into tensors by their names.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

from baregrad.base.errors import ArgumentError, DTypeError, ShapeError, UnsupportedError
from baregrad.tensor import Tensor
from baregrad.tensor.array.grad_mode import grad_enabled
from baregrad.tensor.autograd.hooks import passed_through

# By what name a state holds what is no tensor.
EXTRA_STATE = "_extra_state"


_SHOWN = 6  # names of one kind in an error


class _Hook(NamedTuple):
    """A function around a module's call, and whether it is given keyword arguments as well."""

    function: Callable[..., Any]
    with_kwargs: bool
    # Tells hooks of one function apart.
    token: object


class HookHandle:
    """A hook of a module, which `remove()`, or the end of a `with` block, takes away again."""

    def __init__(self, owner: StateHooks, place: str, hook: _Hook) -> None:
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


class Passage:
    """One call of a module, through which gradients pass back."""

    def __init__(self, module: Hooked) -> None:
        self.module = module
        self.grad_output: list[Tensor | None] = []
        self.grad_input: list[Tensor | None] = []
        # The places of inputs whose gradients are still to come.
        self.awaited: set[int] = set()

    def enter(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments, whose gradients are noted."""
        made = []
        for arg in args:
            if isinstance(arg, Tensor):
                place = len(self.grad_input)
                self.grad_input.append(None)
                if arg.requires_grad and grad_enabled():
                    self.awaited.add(place)
                    arg = passed_through(arg, partial(self._came_out, place))
            made.append(arg)
        return tuple(made)

    def leave(self, output: Any) -> Any:
        """The output, whose gradients are noted."""
        if isinstance(output, list | tuple):
            found = [self._left(one) for one in output]
            named = type(output) not in (list, tuple)
            return type(output)(*found) if named else type(output)(found)
        return self._left(output)

    def _left(self, x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        place = len(self.grad_output)
        self.grad_output.append(None)
        if not x.requires_grad or not grad_enabled():
            return x
        return passed_through(x, partial(self._went_in, place))

    def _went_in(self, place: int, gradient: Tensor) -> Tensor | None:
        self.grad_output[place] = gradient
        for hook in vars(self.module).get("_before_backward", ()):
            found = hook.function(self.module, tuple(self.grad_output))
            if found is not None:
                self.grad_output = list(found) if isinstance(found, tuple) else [found]
        if not self.awaited:
            self._told()
        return self.grad_output[place]

    def _came_out(self, place: int, gradient: Tensor) -> Tensor | None:
        self.grad_input[place] = gradient
        self.awaited.discard(place)
        return None if self.awaited else self._told()

    def _told(self) -> Tensor | None:
        """Call the hooks, all gradients being there; return what replaces that of the one input."""
        changed = None
        for hook in vars(self.module).get("_after_backward", ()):
            found = hook.function(self.module, tuple(self.grad_input), tuple(self.grad_output))
            if found is None:
                continue
            parts = found if isinstance(found, tuple) else (found,)
            if len(self.grad_input) != 1 or len(parts) != 1:
                raise UnsupportedError(
                    "a hook replaces the gradient of a module of one tensor",
                    found=f"{len(self.grad_input)} tensors, {len(parts)} gradients",
                    hint="register_hook() on the tensors themselves changes theirs",
                )
            (changed,) = parts
            self.grad_input = [changed]
        return changed


class Loading(dict[str, Any]):
    """A state that modules may change before it is loaded."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        super().__init__(state)
        # Ids of modules whose values are put into them by their names.
        self.ours: set[int] = set()


class StateHooks:
    """What a module does of hooks around `state_dict` and `load_state_dict`."""

    def register_state_dict_pre_hook(self, hook: Callable[..., Any]) -> HookHandle:
        """Call `hook(module, prefix, keep_vars)` before the module's state is shown."""
        return self._register("_before_state", hook, False, False)

    def register_state_dict_post_hook(self, hook: Callable[..., Any]) -> HookHandle:
        """Call `hook(module, state_dict, prefix, local_metadata)` once its state is shown.

        It may change `state_dict`; what it returns takes its place, if not None.
        """
        return self._register("_after_state", hook, False, False)

    # A name that published models call.
    _register_state_dict_hook = register_state_dict_post_hook

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any]) -> HookHandle:
        """Call a hook before values are put into the module, which may change the state's names.

        It is `hook(module, state_dict, prefix, local_metadata, strict, missing_keys,
        unexpected_keys, error_msgs)`, and changes a copy of what the caller gave.
        """
        return self._register("_before_loading", hook, False, True)

    def _register_load_state_dict_pre_hook(
        self, hook: Callable[..., Any], with_module: bool = False
    ) -> HookHandle:
        """The hook of `register_load_state_dict_pre_hook`, as models give it: without a module."""
        return self._register("_before_loading", hook, False, with_module)

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any]) -> HookHandle:
        """Call `hook(module, incompatible_keys)` once values are in the module and those below.

        It may change the lists of names; with `strict` what is left in them raises after it.
        """
        return self._register("_after_loading", hook, False, False)

    def get_extra_state(self) -> Any:
        """Return what else belongs to the state; a subclass that writes it writes both."""
        raise NotImplementedError(f"{type(self).__name__} has no get_extra_state()")

    def set_extra_state(self, state: Any) -> None:
        """Take what `get_extra_state` returned."""
        raise NotImplementedError(f"{type(self).__name__} has no set_extra_state()")

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


class Hooked(StateHooks):
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

    def register_full_backward_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> HookHandle:
        """Call `hook(module, grad_output)` before gradients pass the module.

        grad_output is a tuple, of None where nothing came; what is returned, if not None, replaces
        it.
        """
        return self._register("_before_backward", hook, prepend, False)

    def register_full_backward_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> HookHandle:
        """Call `hook(module, grad_input, grad_output)` once gradients passed the module.

        Both are tuples: of the tensors among the positional arguments, None for those that require
        no gradients, and of the tensors of the output. What is returned for a module of one such
        argument, if not None, replaces its gradient. The module's output is a tensor, or a list or
        tuple of them.
        """
        return self._register("_after_backward", hook, prepend, False)

    # PyTorch's older name, whose hooks some programs register still.
    register_backward_hook = register_full_backward_hook

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


class StateDict(OrderedDict[str, Any]):
    """Tensors by dotted paths, and what is told of each module, by its path."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._metadata: dict[str, dict[str, Any]] = {}
        super().__init__(*args, **kwargs)


class IncompatibleKeys(NamedTuple):
    """Names that `load_state_dict` wanted and did not get, and got and did not want."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def load_into(
    own: Mapping[str, Tensor], state: Mapping[str, Tensor], strict: bool, what: str,
    only_checked: bool = False,
) -> IncompatibleKeys:
    """Put the values of `state` into the tensors `own`; see `Module.load_state_dict`.

    only_checked: look whether they fit, and leave them.
    """
    for name, value in state.items():
        if name in own and not isinstance(value, Tensor):
            raise DTypeError(
                f"the state of {what} holds no tensor at {name!r}",
                found=f"{type(value).__name__} {value!r:.40}",
                hint="wrap it: Tensor(...)",
            )
    missing = [name for name in own if name not in state]
    unexpected = [name for name in state if name not in own]
    shapes = [
        f"{name} ({list(state[name].shape)} for {list(tensor.shape)})"
        for name, tensor in own.items()
        if name in state and state[name].shape != tensor.shape
    ]
    problems = [("of another shape", shapes)]
    if strict:
        problems = [("missing", missing), ("unexpected", unexpected), *problems]
    if any(names for _, names in problems):
        raise ShapeError(
            f"the state does not fit {what}",
            found="; ".join(f"{kind}: {some_names(names)}" for kind, names in problems if names),
            wanted=f"{len(own)} tensors by the names and shapes of state_dict()",
            hint="strict=False loads what has a place" if strict and not shapes else None,
        )
    with Tensor.no_grad():
        for name, tensor in own.items():
            if name in state and not only_checked:
                tensor.copy_(state[name].detach())
    return IncompatibleKeys(missing, unexpected)


def some_names(names: Sequence[str]) -> str:
    """The first of several names, and how many there are besides."""
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
