"""Hooks of tensors: functions that are called with gradients as these pass.

A hook of a leaf is called with the gradient of each backward pass before it is added to `grad`. One
of a result is called as gradients pass what is computed of the tensor from then on.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from baregrad.base.errors import ArgumentError, DTypeError, GradientError, ShapeError
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.tensor.array import nodes
from baregrad.tensor.array.core import Array
from baregrad.tensor.array.views import Hook, Hooks, assign_gradient, change_steps

if TYPE_CHECKING:
    from baregrad.tensor.array.tensor_like import Tensor


class TensorHook:
    """A hook of a tensor, which `remove()`, or the end of a `with` block, takes away again."""

    def __init__(self, hooks: Hooks, hook: Hook) -> None:
        self._hooks, self._hook = hooks, hook

    def remove(self) -> None:
        """Take the hook away; once it is away, do nothing."""
        hooks = self._hooks
        hooks.before = tuple([one for one in hooks.before if one is not self._hook])
        hooks.after = tuple([one for one in hooks.after if one is not self._hook])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def register_hook(x: Tensor, hook: Callable[[Tensor], Tensor | None]) -> TensorHook:
    """Call `hook(gradient)` with each gradient of `x`; what it returns, if not None, replaces that.

    Return a handle whose `remove()` takes the hook away. Raises GradientError for a tensor that
    does not require gradients; the backward pass raises ShapeError or DTypeError for what is no
    gradient of this tensor.
    """
    if not callable(hook):
        raise ArgumentError("a hook is a function", found=type(hook).__name__)
    held = hooks_of(x)
    called = _called(x, hook)
    held.before = (*held.before, called)
    return TensorHook(held, called)


def _called(x: Tensor, hook: Callable[[Tensor], Tensor | None]) -> Hook:
    """A function of tensors as one of nodes, of gradients of `x`."""
    shape, dtype, device, kind = x.shape, x.dtype, x.device, type(x)

    def called(gradient: Node) -> Node | None:
        made = hook(kind._make(gradient, device))
        if made is None:
            return None
        if not isinstance(made, Array):
            raise DTypeError("a hook returns a gradient, or None", found=type(made).__name__)
        if made.shape != shape:
            raise ShapeError("a gradient has the shape of its tensor", found=list(made.shape),
                             wanted=list(shape))
        return nodes.cast(made._value(), dtype)

    return called


def passed_through(x: Tensor, hook: Callable[[Tensor], Tensor | None]) -> Tensor:
    """A tensor of the same value, aliasing `x`, whose gradients pass `hook` on their way to it."""
    held = Hooks()
    made = type(x)._on(x._storage, (*x._steps, (Ops.DETACH, held)))
    held.before = (_called(x, hook),)
    return made


def register_post_accumulate_grad_hook(
    x: Tensor, hook: Callable[[Tensor], object]
) -> TensorHook:
    """Call `hook(x)` each time a gradient was added to `x.grad`. Raises GradientError for results.

    Return a handle whose `remove()` takes the hook away.
    """
    leaf = x._leaf()
    if leaf is None:
        raise GradientError("gradients are accumulated in leaves", hint="see register_hook()")
    held, owner = hooks_of(x), weakref.ref(x)

    def called(gradient: Node) -> None:
        tensor: Any = owner()
        if tensor is not None:
            hook(tensor)

    held.after = (*held.after, called)
    return TensorHook(held, called)


def retain_grad(x: Tensor) -> None:
    """Have `grad` of a result hold its gradient after `backward()`, as that of a leaf does."""
    if x._leaf() is not None:
        return
    owner = weakref.ref(x)

    def keep(gradient: Tensor) -> None:
        tensor: Any = owner()
        if tensor is not None:
            assign_gradient(tensor, gradient.detach())

    register_hook(x, keep)


def hooks_of(x: Tensor) -> Hooks:
    """The mark of a tensor's hooks, put there if it has none. Raises GradientError."""
    if not x.requires_grad:
        raise GradientError(
            "hooks are called with gradients, which this tensor has none of",
            hint="call requires_grad_() on it, or compute it of tensors that require gradients",
        )
    leaf = x._leaf()
    if leaf is not None:
        if leaf.hooks is None:
            leaf.hooks = Hooks()
            # Other steps than before, for whoever remembers those.
            change_steps(x, (*x._steps,))
        return leaf.hooks
    last = x._steps[-1][1] if x._steps else None
    if last.__class__ is Hooks:
        found: Hooks = last
        return found
    made = Hooks()
    change_steps(x, (*x._steps, (Ops.DETACH, made)))
    return made
