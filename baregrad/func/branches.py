"""`cond` and `while_loop`: control flow that depends on values of tensors.

Where values can be read they decide what runs. Inside a capture or another transformation they
cannot: then both branches are computed, and a loop takes all of its steps, and values are chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.engine.session import current_session
from baregrad.func.loops import check_carry, scan
from baregrad.func.regions import TracedRegion, refuse_writes, traced_region
from baregrad.func.stand_ins import (
    carries,
    check_callable,
    drawing,
    reads_stand_ins,
    results_of,
    tensors_of,
    with_tensors,
)
from baregrad.ir.core.node import Node
from baregrad.tensor.array.grad_mode import grad_enabled
from baregrad.tensor.tensor import Tensor


def cond(
    pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any],
    operands: tuple[Any, ...] = (),
) -> Any:
    """Return true_fn(*operands) if `pred` holds, else false_fn(*operands).

    pred: a bool, or a tensor of one element. operands: a tuple. Where pred can be read, one
    function runs. Under jit, vmap or a derivative by stand-ins both do, results of one structure,
    shapes and dtypes, and the right ones are chosen; the gradient of the other is multiplied by 0
    then. Raises ArgumentError or ShapeError.
    """
    check_callable(true_fn, "cond")
    check_callable(false_fn, "cond")
    if not isinstance(operands, tuple | list):
        raise ArgumentError(
            "operands of cond are a tuple of arguments", found=type(operands).__name__
        )
    if not isinstance(pred, Tensor):
        if not isinstance(pred, bool):
            raise ArgumentError(
                "cond chooses by a bool or a tensor", found=f"{type(pred).__name__} {pred!r:.40}"
            )
        return true_fn(*operands) if pred else false_fn(*operands)
    pred = _decision(pred, "cond")
    if _is_readable([pred]):
        return true_fn(*operands) if pred.item() else false_fn(*operands)
    results = true_fn(*operands), false_fn(*operands)
    check_carry(results[0], results[1], "cond")
    left, right = map(tensors_of, results)
    chosen = [pred.where(one, other) for one, other in zip(left, right, strict=True)]
    return with_tensors(results[0], chosen)


def while_loop(
    cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried_inputs: Any,
    limit: int | None = None,
) -> tuple[Any, ...]:
    """Return what is carried in the end: carried = body_fn(*carried) while cond_fn(*carried).

    Both functions are called once; each step is a run of one program. cond_fn gives a tensor of one
    element. limit: the most steps. It is needed where values cannot be read, under jit, vmap or a
    derivative by stand-ins: there so many steps are taken, of which those after the last change
    nothing. Raises ArgumentError, ShapeError or DTypeError.
    """
    check_callable(cond_fn, "while_loop")
    check_callable(body_fn, "while_loop")
    if not isinstance(carried_inputs, tuple):
        carried_inputs = (carried_inputs,)
    if limit is not None and (limit.__class__ is not int or limit < 0):
        raise ArgumentError("the limit of a while_loop is a count of steps", found=repr(limit))
    carry = tensors_of(carried_inputs)
    if not carry:
        raise ArgumentError("while_loop carries tensors on", found="none")

    def step(carried: tuple[Any, ...]) -> tuple[Any, ...]:
        then = body_fn(*carried)
        then = then if isinstance(then, tuple | list) else (then,)
        check_carry(carried, then, "while_loop")
        return tuple(then)

    if not _is_readable(carry):
        return _all_steps(cond_fn, step, carried_inputs, limit)
    device, values = carry[0].device, [x.node for x in carry]

    def ask(carried: tuple[Any, ...]) -> tuple[Any, ...]:
        return (_decision(cond_fn(*carried), "while_loop"),)

    asks = _traced(ask, carried_inputs, values, device)
    does = _traced(step, carried_inputs, values, device)
    taken = 0
    while limit is None or taken < limit:
        (answer,) = asks.region.run([*values, *asks.captured])
        if not Tensor._make(answer, device).item():
            break
        values = does.region.run([*values, *does.captured])
        taken += 1
    grad = grad_enabled()
    made = [Tensor._make(value, device, grad and carries(value)) for value in values]
    found: tuple[Any, ...] = with_tensors(carried_inputs, made)
    return found


def _all_steps(
    cond_fn: Callable[..., Any], step: Callable[..., tuple[Any, ...]], carried: tuple[Any, ...],
    limit: int | None,
) -> tuple[Any, ...]:
    """A loop whose condition cannot be read: steps that come too late change nothing."""
    if limit is None:
        raise ArgumentError(
            "while_loop cannot read its condition inside jit or another transformation",
            hint="give the most steps that it may take: while_loop(..., limit=...)",
        )

    def one(now: tuple[Any, ...], _: None) -> tuple[tuple[Any, ...], None]:
        goes_on = _decision(cond_fn(*now), "while_loop")
        then = tensors_of(step(now))
        kept = [goes_on.where(x, y) for x, y in zip(then, tensors_of(now), strict=True)]
        return with_tensors(now, kept), None

    end: tuple[Any, ...] = scan(one, carried, length=limit)[0]
    return end


def _traced(
    function: Callable[..., tuple[Any, ...]], tree: tuple[Any, ...], values: Sequence[Node],
    device: str,
) -> TracedRegion:
    def call(tensors: list[Tensor]) -> tuple[Any, list[Tensor]]:
        result = function(with_tensors(tree, tensors))
        return result, results_of(result, "while_loop")

    with drawing("error", "while_loop"):
        traced = traced_region(call, values, device)
    refuse_writes(traced.written, "while_loop")
    return traced


def _decision(value: Any, what: str) -> Tensor:
    """A tensor of one element as a bool without axes."""
    if not isinstance(value, Tensor):
        raise ArgumentError(
            f"{what} goes by a tensor of one element", found=f"{type(value).__name__}"
        )
    if any(extent.__class__ is not int or extent != 1 for extent in value.shape):
        raise ShapeError(
            f"{what} goes by a tensor of one element", found=f"shape {list(value.shape)}",
            hint="reduce it first, with all() or any()",
        )
    flat: Tensor = value.reshape(()) if value.ndim else value
    return flat.detach().bool()


def _is_readable(tensors: Sequence[Tensor]) -> bool:
    """Whether the numbers of tensors can be read now."""
    if current_session().watching.downloads:
        return False
    return not reads_stand_ins([x._value() for x in tensors])
