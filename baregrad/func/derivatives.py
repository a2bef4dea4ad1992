"""Derivatives of functions as functions: gradients, products with vectors, whole matrices.

A function is called on values with a mark of their own, and gradients are pulled back to the marks.
What multiplies a Jacobian from the right is the derivative of that by the vector from the left; the
compiler drops what nobody reads of it. Whole Jacobians are such products with all unit vectors, as
a batch.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from baregrad.base.errors import ArgumentError, DTypeError, ShapeError
from baregrad.engine.session import current_session
from baregrad.func.batching_rules import Mapped
from baregrad.func.stand_ins import (
    carries,
    check_callable,
    results_of,
    shown_in,
    stand_in,
    tensors_of,
    with_tensors,
)
from baregrad.ir.core.node import Node, const
from baregrad.ir.core.op import Ops
from baregrad.tensor.array import nodes
from baregrad.tensor.array.grad_mode import enable_grad
from baregrad.tensor.array.views import twin
from baregrad.tensor.autograd.gradients import pull_back
from baregrad.tensor.autograd.putting_in import put_in, without_seeds
from baregrad.tensor.jit.trees import map_tree
from baregrad.tensor.tensor import Tensor

Argnums = int | tuple[int, ...]


class _Traced(NamedTuple):
    """A function's call on marked values.

    by: the tree of what it is differentiated by. inputs, marks: its tensors, and the nodes that
    stood for them. result, outputs: what came out, and its tensors. aux: what came beside it.
    """

    by: Any
    inputs: list[Tensor]
    marks: list[Node]
    result: Any
    outputs: list[Tensor]
    aux: Any

    def unmarked(self, node: Node, like: Tensor) -> Tensor:
        """A derivative as a tensor that knows no mark of this call."""
        values = {mark: x.node for mark, x in zip(self.marks, self.inputs, strict=True)}
        (value,) = put_in([node], values)
        return Tensor._make(value, like.device, carries(value))

    def given(self, tree: Any) -> Any:
        """A result's tree whose tensors know no mark of this call."""
        return with_tensors(tree, [self.unmarked(x._value(), x) for x in tensors_of(tree)])


def _traced(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], argnums: Argnums,
    has_aux: bool, what: str,
) -> _Traced:
    """Call a function on arguments of which some are marked."""
    places = _places(argnums, len(args), what)
    by = args[places[0]] if isinstance(argnums, int) else tuple([args[i] for i in places])
    inputs = tensors_of(by)
    if not inputs:
        raise ArgumentError(f"{what} differentiates by tensors", found=f"{by!r:.60}")
    for x in inputs:
        if not x.dtype.is_float:
            raise DTypeError(
                f"{what} differentiates by floating-point tensors", found=x.dtype,
                hint="cast it first, or leave it out of argnums",
            )
    marks = [twin(x.node) for x in inputs]
    marked = [Tensor._make(mark, x.device, True) for mark, x in zip(marks, inputs, strict=True)]
    held = with_tensors(by, marked)
    changed = list(args)
    for place, one in zip(places, [held] if isinstance(argnums, int) else held, strict=True):
        changed[place] = one
    with enable_grad(), current_session().watching.standing_in():
        result = function(*changed, **kwargs)
    aux = None
    if has_aux:
        if not isinstance(result, tuple) or len(result) != 2:
            raise ArgumentError(
                f"a function under {what} with has_aux returns a pair",
                found=f"{type(result).__name__}", wanted="(what is differentiated, anything else)",
            )
        result, aux = result
    return _Traced(by, inputs, marks, result, results_of(result, what), aux)


def _places(argnums: Argnums, count: int, what: str) -> tuple[int, ...]:
    if not count:
        raise ArgumentError(f"{what} differentiates by positional arguments", found="none")
    places = argnums if isinstance(argnums, tuple | list) else (argnums,)
    if not places or any(not isinstance(i, int) or not -count <= i < count for i in places):
        raise ArgumentError(
            f"argnums of {what} are places of arguments", found=f"{argnums!r}",
            wanted=f"integers in {-count}..{count - 1}",
        )
    places = tuple([i % count for i in places])
    if len(set(places)) < len(places):
        raise ArgumentError(f"argnums of {what} differ", found=f"{argnums!r}")
    return places


def _pulled(
    traced: _Traced, outputs: Sequence[Node], seeds: Sequence[Node], again: bool = True
) -> list[Node]:
    """The gradient by each input; zeros where none arrives.

    again: whether it is differentiated again by something of this call.
    """
    pairs = [(y, s) for y, s in zip(outputs, seeds, strict=True) if y.dtype.is_float]
    roots = [y for y, _ in pairs]
    if not again:
        # By something outside it may be as well.
        own = {mark: nodes.zeros_like(mark) for mark in traced.marks}
        again = any(map(carries, (*put_in(roots, own), *[x.node for x in traced.inputs])))
    # Seeds may be stand-ins, and so may be what the function was called on.
    with current_session().watching.standing_in():
        found = pull_back(roots, [s for _, s in pairs], traced.marks, again)
    return [found.get(mark, nodes.zeros_like(mark)) for mark in traced.marks]


def grad(
    func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return the function that gives the gradient of a scalar function.

    It has the structure of the arguments that `argnums` names. With has_aux `func` returns a pair,
    of which the second is passed on, and so does the result. Raises ShapeError for a result of
    several elements, DTypeError for one that is no float, ArgumentError.
    """
    both = grad_and_value(func, argnums, has_aux)

    @functools.wraps(func)
    def differentiated(*args: Any, **kwargs: Any) -> Any:
        found, value = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return differentiated


def grad_and_value(
    func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return the function that gives (gradient, value) of a scalar function; see `grad`.

    With has_aux the value is the pair that `func` returns.
    """
    check_callable(func, "grad")

    @functools.wraps(func)
    def differentiated(*args: Any, **kwargs: Any) -> Any:
        traced = _traced(func, args, kwargs, argnums, has_aux, "grad")
        if len(traced.outputs) != 1 or traced.result is not traced.outputs[0]:
            raise ArgumentError(
                "a function under grad returns one tensor", found=f"{len(traced.outputs)} in a tree"
            )
        (y,) = traced.outputs
        if y.ndim:
            raise ShapeError(
                "a function under grad returns a scalar", found=f"shape {list(y.shape)}",
                hint="reduce it, for example with sum(); jacrev() is for arrays",
            )
        if not y.dtype.is_float:
            raise DTypeError("a function under grad returns a float", found=y.dtype)
        parts = _pulled(traced, [y._value()], [const(1, y.dtype)], False)
        found = [traced.unmarked(p, x) for p, x in zip(parts, traced.inputs, strict=True)]
        value = traced.given(traced.result)
        if has_aux:
            value = (value, traced.given(traced.aux))
        return with_tensors(traced.by, found), value

    return differentiated


def vjp(func: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """Return (func(*primals), pull): `pull(*cotangents)` is a vector times the Jacobian.

    pull takes what has the structure of the result, and gives a tuple of what has those of the
    primals, or for one primal that alone in a tuple. With has_aux (value, pull, aux) is returned.
    """
    check_callable(func, "vjp")
    traced = _traced(func, primals, {}, tuple(range(len(primals))), has_aux, "vjp")

    def pull(*cotangents: Any) -> tuple[Any, ...]:
        given: Any = cotangents[0] if len(cotangents) == 1 else cotangents
        seeds = _like(tensors_of(given), traced.outputs, "a cotangent", "its result")
        parts = _pulled(
            traced, [y._value() for y in traced.outputs], [s.node for s in seeds],
            any(x.requires_grad for x in seeds),
        )
        found = [traced.unmarked(p, x) for p, x in zip(parts, traced.inputs, strict=True)]
        made: tuple[Any, ...] = with_tensors(traced.by, found)
        return made

    value = traced.given(traced.result)
    return (value, pull, traced.given(traced.aux)) if has_aux else (value, pull)


def jvp(
    func: Callable[..., Any], primals: tuple[Any, ...], tangents: tuple[Any, ...], *,
    has_aux: bool = False,
) -> Any:
    """Return (func(*primals), the Jacobian times the tangents), of the structure of the result.

    With has_aux (value, product, aux) is returned.
    """
    check_callable(func, "jvp")
    if not isinstance(primals, tuple) or not isinstance(tangents, tuple):
        raise ArgumentError("jvp takes tuples of primals and tangents")
    traced = _traced(func, primals, {}, tuple(range(len(primals))), has_aux, "jvp")
    given = _like(tensors_of(tangents), traced.inputs, "a tangent", "its primal")
    pushed = _pushed(traced, [t.node for t in given])
    found = [traced.unmarked(p, y) for p, y in zip(pushed, traced.outputs, strict=True)]
    value, product = traced.given(traced.result), with_tensors(traced.result, found)
    return (value, product, traced.given(traced.aux)) if has_aux else (value, product)


def _pushed(traced: _Traced, tangents: Sequence[Node]) -> list[Node]:
    """The Jacobian times tangents: a vector from the left is put in, and differentiated by."""
    outputs = [y._value() for y in traced.outputs]
    seeds = [stand_in(y.shape, y.dtype, x.device)
             for y, x in zip(outputs, traced.outputs, strict=True)]
    parts = _pulled(traced, outputs, seeds)
    with current_session().watching.standing_in():
        found = pull_back(parts, tangents, seeds, True)
    return without_seeds([found.get(seed, nodes.zeros_like(seed)) for seed in seeds], seeds)


def _like(given: list[Tensor], wanted: list[Tensor], what: str, of: str) -> list[Tensor]:
    """Check that tensors have the shapes and dtypes of others."""
    shapes = [(list(x.shape), x.dtype) for x in given], [(list(x.shape), x.dtype) for x in wanted]
    if shapes[0] != shapes[1]:
        raise ShapeError(
            f"{what} has the shape and dtype of {of}",
            found=", ".join(f"{s} {d}" for s, d in shapes[0]) or "no tensor",
            wanted=", ".join(f"{s} {d}" for s, d in shapes[1]),
        )
    return given


def _units(like: Node) -> Node:
    """All unit vectors of an array's space, (count, *shape)."""
    count = math.prod(like.shape)
    eye = nodes.alu(
        Ops.CMPEQ, nodes.iota_along((count, count), 0), nodes.iota_along((count, count), 1)
    )
    return nodes.reshape(nodes.cast(eye, like.dtype), (count, *like.shape))


def jacrev(
    func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return the function that gives Jacobians, row by row: best where results are few.

    Each has shape (*result, *argument). They have the structure of the result, and within that of
    the arguments that `argnums` names. With has_aux a pair is returned.
    """
    return _jacobian(func, argnums, has_aux, "jacrev", lambda traced: True)


def jacfwd(
    func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return the function that gives Jacobians, column by column: best where arguments are few.

    What it returns is what `jacrev` does.
    """
    return _jacobian(func, argnums, has_aux, "jacfwd", lambda traced: False)


def jacobian(
    func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return the function that gives Jacobians, by rows or by columns, whichever are fewer."""
    return _jacobian(func, argnums, has_aux, "jacobian", _has_few_results)


def hessian(func: Callable[..., Any], argnums: Argnums = 0) -> Callable[..., Any]:
    """Return the function that gives second derivatives: the Jacobian of the gradient.

    They have the structure of the result, and within that twice of what `argnums` names.
    """
    return jacfwd(jacrev(func, argnums), argnums)


def _has_few_results(traced: _Traced) -> bool:
    rows = sum(math.prod(y.shape) for y in traced.outputs)
    return rows <= sum(math.prod(x.shape) for x in traced.inputs)


def _jacobian(
    func: Callable[..., Any], argnums: Argnums, has_aux: bool, what: str,
    by_rows: Callable[[_Traced], bool],
) -> Callable[..., Any]:
    check_callable(func, what)

    @functools.wraps(func)
    def differentiated(*args: Any, **kwargs: Any) -> Any:
        traced = _traced(func, args, kwargs, argnums, has_aux, what)
        for each in shown_in((traced.by, traced.result)):
            if each.is_paired:
                raise DTypeError(
                    f"{what} is of real numbers", found=each.dtype,
                    hint="take and give view_as_real(), the parts along a last axis; or vjp()",
                )
        for each in (*traced.inputs, *traced.outputs):
            if not all(isinstance(extent, int) for extent in each.shape):
                raise ShapeError(
                    f"{what} wants extents that are numbers", found=f"shape {list(each.shape)}"
                )
        for y in traced.outputs:
            if not y.dtype.is_float:
                raise DTypeError(f"a function under {what} returns floats", found=y.dtype)
        rows = _rows(traced) if by_rows(traced) else _columns(traced)
        parts = iter(rows)

        def of_result(y: Any) -> Any:
            found = [traced.unmarked(p, x)
                     for p, x in zip(next(parts), traced.inputs, strict=True)]
            return with_tensors(traced.by, found)

        made = map_tree(traced.result, of_result)
        return (made, traced.given(traced.aux)) if has_aux else made

    return differentiated


def _rows(traced: _Traced) -> list[list[Node]]:
    """For each result the Jacobian by each input: every unit vector from the left, as a batch."""
    made = []
    for y in traced.outputs:
        value = y._value()
        seed = stand_in(value.shape, value.dtype, y.device)
        parts = _pulled(traced, [value], [seed])
        batch = Mapped(math.prod(value.shape), {seed: _units(value)})
        batch.rewrite(parts)
        made.append([nodes.reshape(batch.of(p), (*value.shape, *p.shape)) for p in parts])
    return made


def _columns(traced: _Traced) -> list[list[Node]]:
    """The same, every unit vector from the right as a batch."""
    columns = []
    for position, mark in enumerate(traced.marks):
        tangents = [nodes.zeros_like(one) for one in traced.marks]
        tangents[position] = tangent = stand_in(mark.shape, mark.dtype, "")
        pushed = _pushed(traced, tangents)
        batch = Mapped(math.prod(mark.shape), {tangent: _units(mark)})
        batch.rewrite(pushed)
        columns.append([_last(batch.of(p), p.shape, mark.shape) for p in pushed])
    return [list(row) for row in zip(*columns, strict=True)]


def _last(value: Node, front: tuple[Any, ...], back: tuple[Any, ...]) -> Node:
    """A batch's axis put last, as the axes of what the batch was of."""
    axes = (*range(1, len(front) + 1), 0)
    return nodes.reshape(nodes.permute(value, axes), (*front, *back))
