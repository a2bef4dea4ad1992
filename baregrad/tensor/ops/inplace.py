"""Changing tensors in place: every view of the same storage sees it."""

from __future__ import annotations

from typing import Any

from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.tensor.array import nodes, views
from baregrad.tensor.array.operands import F, as_chosen, as_stored, lift, one_device
from baregrad.tensor.array.put_off import put_off
from baregrad.tensor.array.storage import Overtaken, Storage
from baregrad.tensor.array.tensor_like import Operand, Scalar, Tensor, TensorLike
from baregrad.tensor.ops.indexing import _fit, check_writable, fitting_shape


def copy_(x: Tensor, value: Operand) -> Tensor:
    """Write a value, broadcast and cast, over the whole of `x`; return `x`.

    A tensor of any real dtype is cast, floats to integers towards 0. Raises DTypeError for a
    number of a higher category than `x`, and for complex numbers into real ones.
    """
    lifted = lift(value, x)
    if not isinstance(lifted, TensorLike) or lifted.dtype.is_complex:
        check_writable(x.dtype.kind, lifted)
    if isinstance(lifted, TensorLike):
        if lifted.device != x.device:
            lifted = lifted.to(x.device)
        if x.dtype.kind not in ("float", "complex"):
            lifted = lifted.detach()
    _write(x, lifted)
    return x


def _write(x: Tensor, value: Tensor | Scalar | Node, since: int | None = None) -> None:
    """Write a value, broadcast and cast, over what `x` shows; since: as of `Storage.put`."""
    if x.is_paired:
        if isinstance(value, TensorLike):
            fitting_shape(value.shape, x.shape)
        _write(x.pairs(), x.pairs_like(value), since)
        return
    if isinstance(value, TensorLike) and value.requires_grad and views.are_data(x._steps):
        value = value.detach()
    if isinstance(value, TensorLike) and x._write_whole(value, since):
        return
    if not _write_by_call(x, value, since):
        node = nodes.broadcast(_fit(as_chosen(value, x.dtype), x.shape), x.shape)
        x._write(node, isinstance(value, TensorLike) and value.requires_grad, since)


def _write_by_call(x: Tensor, value: Tensor | Scalar | Node, since: int | None) -> bool:
    """Write over what `x` shows by a call that may be put off; False where gradients may pass."""
    storage = x._storage
    if storage.grad or any(op is Ops.DETACH for op, _ in x._steps):
        return False
    if any(extent.__class__ is int and extent == 0 for extent in x.shape):
        return False
    if isinstance(value, TensorLike) and value.requires_grad:
        return False

    def put(seen: int) -> None:
        made = put_off(_written_over, (x, value), {})._storage
        storage.put(made.node if made.deferred is None else made.deferred, since=seen)

    if since is None:
        storage.update(put)
    else:
        put(since)
    return True


def _written_over(x: Tensor, value: Tensor | Scalar | Node) -> Tensor:
    """All of what `x` is a view of, with a value in place of what `x` shows."""
    node = nodes.broadcast(_fit(as_chosen(value, x.dtype), x.shape), x.shape)
    whole = views.write(x._storage.node, x._present_steps(), node)
    return type(x)._on(Storage(whole, x._storage.device))


def assign(x: Tensor, value: Operand) -> Tensor:
    """Write a value over the whole of `x`, as x[...] = value; return `x`."""
    return copy_(x, value)


def fill_(x: Tensor, value: bool | int | float) -> Tensor:
    """Write one value over the whole of `x`; return `x`."""
    check_writable(x.dtype.kind, value)
    if x.is_paired:
        _write(x, value)
    else:
        x._write(nodes.broadcast(as_stored(value, x.dtype), x.shape))
    return x


def zero_(x: Tensor) -> Tensor:
    """Write zeros over the whole of `x`; return `x`."""
    return fill_(x, 0 if x.dtype.kind != "bool" else False)


def masked_fill_(x: Tensor, mask: Tensor, value: Operand) -> Tensor:
    """Write a value where the mask holds; return `x`."""
    lifted = lift(value, x)
    check_writable(x.dtype.kind, lifted)
    value = as_tensor_like(lifted, x)
    x._storage.update(lambda since: update(x, mask.where(value, x), since))
    return x


def as_tensor_like(value: Any, x: Tensor) -> Any:
    """A tensor cast to the dtype of `x`; a scalar as it is."""
    return value.cast(x.dtype) if isinstance(value, TensorLike) else value


def update(x: Tensor, value: Tensor, since: int | None = None) -> Tensor:
    """Put a tensor computed from `x` in its place, cast to its dtype; return `x`.

    since: as of `Storage.put`. Raises DTypeError when its dtype is of a higher category,
    ShapeError when it has grown.
    """
    check_writable(x.dtype.kind, value)
    one_device((x, value))
    _write(x, value, since)
    return x


def in_place(function: F, name: str) -> F:
    """The form of a function that writes its result over its first operand."""

    def method(x: TensorLike, *args: Any, **kwargs: Any) -> Any:
        while True:
            since = x._storage.since
            try:
                return update(x, put_off(function, (x, *args), kwargs), since)
            except Overtaken:
                continue

    # What `named_like` does of it: names and words are other ones.
    method.__module__, method.__annotations__ = function.__module__, function.__annotations__
    method.__wrapped__ = function  # type: ignore[attr-defined]
    method.__name__ = method.__qualname__ = name
    what = name.strip("_")
    method.__doc__ = f"Write the result of `{what}` over `x`; return `x`."
    return method  # type: ignore[return-value]
