"""`scan`: a loop over tensors whose body is planned once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from baregrad.base.errors import ArgumentError, DeviceError, DTypeError, ShapeError
from baregrad.dtypes import dtypes
from baregrad.engine.control.sources import KEPT
from baregrad.func.regions import TracedRegion, traced_region
from baregrad.func.stand_ins import (
    carries,
    check_callable,
    check_randomness,
    drawing,
    places_of,
    results_of,
    tensors_of,
    with_tensors,
)
from baregrad.ir.core.attrs import Param
from baregrad.ir.core.control import Form, repeat_form, result, results
from baregrad.ir.core.index import lower
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.tensor.array import nodes
from baregrad.tensor.array.grad_mode import grad_enabled
from baregrad.tensor.array.operands import one_device
from baregrad.tensor.autograd.putting_in import put_in
from baregrad.tensor.tensor import Tensor


def body_of(traced: TracedRegion, what: str, inputs: Sequence[Node] | None = None) -> Node:
    """A traced function as the body of a loop or a choice: a SINK over PARAMs, by its inputs.

    inputs: those of the body, where the function has some of them alone. Raises ArgumentError for
    one that copies from device to device, DeviceError for one with results of another.
    """
    device = traced.region.device
    for one in tensors_of(traced.result):
        if one.device != device:
            raise DeviceError(
                f"the function of {what} gives a tensor of another device",
                found=one.device, wanted=device, hint=f"move it before {what}",
            )
    params = {
        one: Node(Ops.PARAM, one.dtype, (), Param(slot, one.shape))
        for slot, one in enumerate(traced.region.inputs if inputs is None else inputs)
    }
    body = Node(Ops.SINK, dtypes.token, tuple(put_in(traced.region.roots, params)))
    if body.mask & Ops.COPY.bit:
        raise ArgumentError(
            f"the function of {what} copies a tensor to another device",
            hint=f"move what it reads before {what}, and its results after it",
        )
    return body


def made_tensors(
    form: Form, values: Sequence[Node], given: Sequence[Tensor], count: int, device: str,
    kept: Sequence[int] = (),
) -> list[Tensor]:
    """The first results of a loop or a choice over values as tensors.

    given: the tensors whose values the first of these are; inside a function that is traced they
    alone say whether gradients are wanted. kept: results that are computed along with the others
    where gradients may be asked for.
    """
    parts = results(form, values, range(count))
    if not grad_enabled():
        return [Tensor._make(part, device, False) for part in parts]
    carrying = any(map(carries, values))
    began = tuple([result(form, values, one) for one in kept]) if carrying else ()
    for part in parts:
        part.memo[KEPT] = began
    wanted = carrying or any(x.requires_grad for x in given)
    return [Tensor._make(part, device, wanted and part.dtype.is_float) for part in parts]


def scan(
    func: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any = None,
    length: Any = None, reverse: bool = False, randomness: str = "error",
) -> tuple[Any, Any]:
    """Return (carry, ys) of a loop over the rows of `xs`: carry, y = func(carry, x) for each.

    The function is called once, and its body planned and compiled once for all steps, when the
    results are asked for. xs: tensors of one leading extent, symbolic or not, which each step reads
    its row of, or a tree of such; None for `length` steps without. init, and what is carried on,
    are a tensor or a tree of one kind. ys: the second results, stacked. reverse: from the last row
    to the first. For gradients what each step began with is kept, and all else of it computed
    again. randomness: "error" refuses functions that draw, "same" gives each step the same draws.
    Raises ArgumentError, ShapeError or DTypeError.
    """
    check_callable(func, "scan")
    check_randomness(randomness, "scan")
    carry, read = tensors_of(init), tensors_of(xs)
    steps = _length(read, length)
    given = (*carry, *read)
    if not given:
        raise ArgumentError("scan carries a tensor on, or reads one", found="no tensor")
    device = one_device(given)
    likes = [x.node for x in carry]
    likes += [nodes.full(0, x.shape[1:], x.dtype) for x in read]

    def call(tensors: list[Tensor]) -> tuple[Any, list[Tensor]]:
        first = with_tensors(init, tensors[: len(carry)])
        result = func(first, with_tensors(xs, tensors[len(carry) :]))
        if not isinstance(result, tuple) or len(result) != 2:
            raise ArgumentError(
                "the function of scan returns a pair", found=f"{type(result).__name__}",
                wanted="(what is carried on, what is stacked)",
            )
        then = like_before(first, result[0], "scan")
        rows = [] if result[1] is None else results_of(result[1], "scan")
        return (then, result[1]), [*tensors_of(then), *rows]

    with drawing(randomness, "scan", "step"):
        traced = traced_region(call, likes, device, "scan")
    body = body_of(traced, "scan")
    form = repeat_form(body, len(carry), len(read), steps, reverse)
    values = [x.node for x in (*carry, *read)]
    count = len(body.src)
    kept = range(count, count + len(carry))
    made = made_tensors(form, [*values, *traced.captured], given, count, device, kept)
    end = with_tensors(traced.result[0], made[: len(carry)])
    rows = traced.result[1]
    return end, None if rows is None else with_tensors(rows, made[len(carry) :])


def _length(read: Sequence[Tensor], length: Any) -> Any:
    """The number of a loop's steps, which may be symbolic."""
    found = {} if length is None else {length: None}
    for x in read:
        if not x.ndim:
            raise ShapeError("scan reads tensors with a leading axis", found=list(x.shape))
        found[x.shape[0]] = None
    if len(found) != 1:
        raise ShapeError(
            "scan takes as many steps as its inputs have rows, or `length`",
            found=", ".join(map(str, found)) or "neither",
        )
    (steps,) = found
    if isinstance(steps, Node) and steps.dtype is dtypes.index:
        if not read and lower(steps) < 0:
            raise ArgumentError(
                "the length of a scan is a count", found=f"{steps}, which may be negative",
                hint="bounds of its variables say that it is not",
            )
        return steps
    if steps.__class__ is not int or steps < 0:
        raise ArgumentError("the length of a scan is a count", found=repr(steps))
    return steps


def like_before(first: Any, then: Any, what: str, both: str = "both sides of a step") -> Any:
    """A tree of tensors in the structure of another with like tensors at the same places.

    both: what the two are of `what`, for the user. Raises ArgumentError, ShapeError or DTypeError
    where they differ: what is at one place is not to become what is at another.
    """
    results_of(first, what)
    results_of(then, what)
    old, new = places_of(first), places_of(then)
    for place in (*old, *new):
        if place not in new or place not in old:
            raise ArgumentError(
                f"{both} of {what} have tensors at the same places of a tree",
                found=_listed(new), wanted=_listed(old),
            )
    for number, (place, one) in enumerate(old.items(), 1):
        other = new[place]
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            error = ShapeError if one.shape != other.shape else DTypeError
            which = f" (tensor {number} of {len(old)})" if len(old) > 1 else ""
            raise error(
                f"{both} of {what} have the same shapes and dtypes{which}",
                found=f"{list(other.shape)} {other.dtype}", wanted=f"{list(one.shape)} {one.dtype}",
            )
    return with_tensors(first, [new[place] for place in old])


def _listed(places: Collection[tuple[Any, ...]]) -> str:
    """How many places of a tree there are, and the first of them as indices."""
    shown = ["".join(f"[{key!r}]" for key in place) or "itself" for place in list(places)[:4]]
    return f"{len(places)}: {', '.join(shown)}{', …' if len(places) > 4 else ''}"
