"""`cond` and `while_loop`: control flow that depends on values of tensors.

Both are nodes of the graph, of which a device reads the condition when it comes to them. Where a
condition can be read at once, `cond` calls the function that it says, and a `while_loop` that
gradients go back through takes its steps at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.engine.session import current_session
from baregrad.func.loops import body_of, like_before, made_tensors, scan
from baregrad.func.regions import TracedRegion, traced_region
from baregrad.func.stand_ins import (
    carries,
    check_callable,
    drawing,
    reads_stand_ins,
    results_of,
    stand_in,
    tensors_of,
    with_tensors,
)
from baregrad.ir.core.control import choose_form, repeat_form
from baregrad.ir.core.node import Node
from baregrad.tensor.array.grad_mode import grad_enabled
from baregrad.tensor.array.operands import one_device
from baregrad.tensor.tensor import Tensor


def cond(
    pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any],
    operands: tuple[Any, ...] = (),
) -> Any:
    """Return true_fn(*operands) if `pred` holds, else false_fn(*operands).

    pred: a bool, or a tensor of one element. operands: a tuple. Where pred can be read, one
    function is called. Under jit, vmap or a derivative by stand-ins both are, for results of one
    structure, shapes and dtypes, and one is computed, with its gradient: the device's host reads
    pred. Where each example of a batch has its own, both are, and the right ones are chosen.
    Raises ArgumentError, ShapeError or DTypeError.
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
    if _is_readable([pred]) and not current_session().watching.keeps_choices:
        return true_fn(*operands) if pred.item() else false_fn(*operands)
    return chosen(pred, true_fn, false_fn, tuple(operands))


def chosen(
    pred: Tensor, true_fn: Callable[..., Any], false_fn: Callable[..., Any],
    operands: tuple[Any, ...],
) -> Any:
    """The choice that `cond` gives where pred, a bool without axes, cannot be read yet."""
    given = tensors_of(operands)
    values = [x.node for x in given]
    device = one_device([pred, *given])
    way = _traced(true_fn, operands, values, device, "cond")

    def other_way(*args: Any) -> Any:
        return like_before(way.result, false_fn(*args), "cond", "both functions")

    ways = [way, _traced(other_way, operands, values, device, "cond")]
    flag = stand_in((), pred.dtype, device)
    count = len(given)
    outside = [each.region.inputs[count:] for each in ways]
    # Both bodies have the inputs of both.
    after = [flag, *ways[0].region.inputs, *outside[1]]
    before = [flag, *ways[1].region.inputs[:count], *outside[0], *outside[1]]
    bodies = [body_of(each, "cond", inputs)
              for each, inputs in zip(ways, (after, before), strict=True)]
    sources = [pred.node, *values, *ways[0].captured, *ways[1].captured]
    made = made_tensors(
        choose_form(*bodies), sources, given, len(bodies[0].src), device
    )
    return with_tensors(ways[0].result, made)


def while_loop(
    cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried_inputs: Any,
    limit: int | None = None,
) -> tuple[Any, ...]:
    """Return what is carried in the end: carried = body_fn(*carried) while cond_fn(*carried).

    cond_fn gives a tensor of one element, and is called twice; body_fn is called once, and each
    step is a run of one program, after which the host reads whether there is another. Its
    derivatives go forward. Gradients go back through it where its condition can be read when it is
    called, and then it takes its steps at once and keeps what each began with. limit: the most
    steps. Under jit, vmap and derivatives by stand-ins so many are taken where it is given, of
    which those after the last change nothing: nothing is read, and gradients go back. Raises
    ArgumentError, ShapeError or DTypeError.
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
        then = tuple(then) if isinstance(then, tuple | list) else (then,)
        found: tuple[Any, ...] = like_before(carried, then, "while_loop")
        return found

    readable = _is_readable(carry)
    if limit is not None and not readable:
        return _all_steps(cond_fn, step, carried_inputs, limit)
    device, values = one_device(carry), [x.node for x in carry]

    def steps_and_asks(*carried: Any) -> tuple[Any, ...]:
        then = step(carried)
        return *then, _decision(cond_fn(*then), "while_loop")

    traced = _traced(steps_and_asks, carried_inputs, values, device, "while_loop")
    first = _decision(cond_fn(*carried_inputs), "while_loop").node
    read = [*values, *traced.captured]
    if readable and grad_enabled() and any(map(carries, read)):
        made = [Tensor._make(value, device, carries(value))
                for value in _step_by_step(traced, values, first, limit, device)]
    else:
        body = body_of(traced, "while_loop", _behind(traced.region.inputs, len(carry), first))
        form = repeat_form(body, len(carry) + 1, 0, limit, conditional=True)
        made = made_tensors(
            form, [*values, first, *traced.captured], carry, len(carry), device
        )
    found: tuple[Any, ...] = with_tensors(carried_inputs, made)
    return found


def _behind(inputs: Sequence[Node], place: int, flag: Node) -> list[Node]:
    """A body's inputs with the flag, which it does not read, behind what is carried."""
    return [*inputs[:place], stand_in((), flag.dtype, ""), *inputs[place:]]


def _step_by_step(
    traced: TracedRegion, values: Sequence[Node], first: Node, limit: int | None, device: str
) -> list[Node]:
    """The steps of a loop taken at once, each of which gradients go back through."""
    carry, goes_on, taken = list(values), first, 0
    while limit is None or taken < limit:
        if not Tensor._make(goes_on, device).item():
            break
        *carry, goes_on = traced.region.run([*carry, *traced.captured])
        taken += 1
    return carry


def _all_steps(
    cond_fn: Callable[..., Any], step: Callable[..., tuple[Any, ...]], carried: tuple[Any, ...],
    limit: int,
) -> tuple[Any, ...]:
    """A loop whose condition is not read: steps that come too late change nothing."""

    def one(now: tuple[Any, ...], _: None) -> tuple[tuple[Any, ...], None]:
        goes_on = _decision(cond_fn(*now), "while_loop")
        then = tensors_of(step(now))
        kept = [goes_on.where(x, y) for x, y in zip(then, tensors_of(now), strict=True)]
        return with_tensors(now, kept), None

    end: tuple[Any, ...] = scan(one, carried, length=limit)[0]
    return end


def _traced(
    function: Callable[..., Any], tree: tuple[Any, ...], values: Sequence[Node], device: str,
    what: str,
) -> TracedRegion:
    def call(tensors: list[Tensor]) -> tuple[Any, list[Tensor]]:
        result = function(*with_tensors(tree, tensors))
        return result, results_of(result, what)

    with drawing("error", what):
        return traced_region(call, values, device, what)


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
