"""Gradients of what has a body: a loop the other way round, a choice of gradients, a reference's.

A loop's gradient reads what each step began with, which the loop keeps where that is asked for, and
computes the rest of a step again. One that ends by a condition has none, but its derivative goes
forward: what stands for its gradient has no value, and is differentiated by the gradient it is of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from baregrad.dtypes import dtypes
from baregrad.ir.core.attrs import Choose, Param, Repeat, TextKernel
from baregrad.ir.core.control import (
    body_params,
    choose_form,
    form_of,
    input_shapes,
    no_gradient,
    repeat_form,
    result,
    results,
)
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import CONTROL, Ops
from baregrad.tensor.array import nodes
from baregrad.tensor.autograd.putting_in import order_below, put_in, without_seeds

PullBack = Callable[..., dict[Node, Node]]


def results_together(order: Iterable[Node]) -> dict[Node, list[Node]]:
    """By the first of them in `order`, sources first, the results of each loop or choice in it."""
    groups: dict[Any, list[Node]] = {}
    for node in order:
        if node.op in CONTROL:
            groups.setdefault((node.src, form_of(node)), []).append(node)
    return {group[0]: group for group in groups.values()}


def pulled_through(
    node: Node, seeds: Mapping[int, Node], wanted: Sequence[bool], again: bool, pull_back: PullBack
) -> Sequence[Node | None]:
    """The gradient by each source of a loop or a choice, of which `node` is a result.

    seeds: gradients of its results, by their parts. wanted: whether gradients by each source lead
    anywhere. again: gradients of these are asked for later.
    pull_back: that of graphs. Raises GradientError for a loop that ends by a condition.
    """
    form = node.arg
    if isinstance(form, Choose):
        return _of_choice(node, seeds, wanted, pull_back)
    if isinstance(form, TextKernel):
        return _of_reference(node, seeds, wanted, pull_back)
    if form.adjoint is not None:
        return _of_adjoint(node, seeds, pull_back)
    if form.conditional:
        if not again:
            raise no_gradient()
        return _adjoint(node, seeds)
    return _of_loop(node, form, seeds, wanted, pull_back)


class _Backward(NamedTuple):
    """The body of a loop's gradient, and which of the loop's inputs it reaches.

    kept: which of what it could read it does.
    """

    body: Node
    carried: tuple[int, ...]
    summed: tuple[int, ...]
    read: tuple[int, ...]
    kept: tuple[int, ...]


def _of_loop(
    node: Node, form: Repeat, seeds: Mapping[int, Node], wanted: Sequence[bool],
    pull_back: PullBack,
) -> Sequence[Node | None]:
    """The loop the other way round: gradients of what is carried, and sums of what all share."""
    values, common = node.src, form_of(node)
    first, last = form.carried, form.carried + form.read
    roots = form.body.src
    stacked = tuple(sorted(part for part in seeds if first <= part < len(roots)))
    if len(seeds) > len(stacked) + sum(part < first for part in seeds):
        # Of what steps began with: those before carried it on, so that it is a result of theirs.
        return _of_kept(node, form, seeds, wanted, pull_back)
    back = _backward(node, stacked, tuple(wanted), pull_back)
    begin = [seeds.get(i, nodes.zeros_like(values[i])) for i in back.carried]
    begin += [nodes.zeros_like(values[i]) for i in back.summed]
    began = [result(common, values, len(roots) + i) for i in range(first)]
    rows = [*began, *values[first:last], *[seeds[part] for part in stacked]]
    given = [*begin, *rows, *values[last:]]
    read = sum(i < len(begin) + len(rows) for i in back.kept) - len(begin)
    other = repeat_form(back.body, len(begin), read, form.length, not form.backwards)
    sources = [given[i] for i in back.kept]
    found: list[Node | None] = [None] * len(values)
    places = [*back.carried, *back.summed, *back.read]
    made = results(other, sources, range(len(places)))
    for place, one in zip(places, made, strict=True):
        found[place] = one
    return found


def _of_kept(
    node: Node, form: Repeat, seeds: Mapping[int, Node], wanted: Sequence[bool],
    pull_back: PullBack,
) -> Sequence[Node | None]:
    """The gradient where some are of what steps began with: results of a loop that gives it too."""
    roots = form.body.src
    params = body_params(form, node.src)
    body = Node(Ops.SINK, dtypes.token, (*roots, *params[: form.carried]))
    wider = result(form_of(node)._replace(body=body), node.src, 0)
    return _of_loop(wider, wider.arg, seeds, wanted, pull_back)


def _backward(
    node: Node, stacked: tuple[int, ...], wanted: tuple[bool, ...], pull_back: PullBack
) -> _Backward:
    """The body of a loop's gradient, made once for all loops over the same body."""
    form = node.arg
    key = ("backward", form.carried, form.read, stacked, wanted)
    shapes = tuple(input_shapes(form, node.src))
    known = form.body.memo.get(key)
    if known is not None and known[0] == shapes:
        back: _Backward = known[1]
        return back
    first, last = form.carried, form.carried + form.read
    params, roots = body_params(form, node.src), form.body.src
    carried = tuple(i for i in range(first) if roots[i].dtype.is_float)
    seeds = _params([roots[i] for i in (*carried, *stacked)], len(params))
    # A gradient of what is carried may lead on in the step before.
    targets = [*params[:first], *[params[i] for i in range(first, len(params)) if wanted[i]]]
    by = _gradients(form.body, (*carried, *stacked), seeds, targets, pull_back)
    summed = tuple(i for i in by if i >= last)
    read = tuple(i for i in by if first <= i < last)
    totals = _params([params[i] for i in summed], len(params) + len(seeds))
    made = [by.get(i, nodes.zeros_like(params[i])) for i in carried]
    made += [nodes.sum_of_two(total, by[i]) for total, i in zip(totals, summed, strict=True)]
    made += [by[i] for i in read]
    order = [
        *seeds[: len(carried)], *totals, *params[:last], *seeds[len(carried) :], *params[last:]
    ]
    (body,), kept, _ = _of_use([_renumbered(made, order)], order, len(carried) + len(summed))
    back = _Backward(body, carried, summed, read, tuple(kept))
    form.body.memo[key] = shapes, back
    return back


def _gradients(
    body: Node, wanted: Sequence[int], seeds: Sequence[Node], params: Sequence[Node],
    pull_back: PullBack,
) -> dict[int, Node]:
    """The gradients of some results of a body by those of the PARAMs they reach, by slots."""
    targets = [param for param in params if param.dtype.is_float]
    found = pull_back([body.src[part] for part in wanted], seeds, targets, True)
    return {param.arg.slot: found[param] for param in params if param in found}


def _params(likes: Sequence[Node], first: int) -> list[Node]:
    """PARAMs of the shapes and dtypes of some values, from a slot on."""
    return [
        Node(Ops.PARAM, like.dtype, (), Param(slot, like.shape))
        for slot, like in enumerate(likes, first)
    ]


def _renumbered(roots: Sequence[Node], params: Sequence[Node]) -> Node:
    """A body of results over PARAMs, which get the slots at which they are listed."""
    places = {one: Node(Ops.PARAM, one.dtype, (), Param(slot, one.shape))
              for slot, one in enumerate(params)}
    return Node(Ops.SINK, dtypes.token, tuple(put_in(list(roots), places)))


def _of_use(
    bodies: Sequence[Node], sources: Sequence[Node], least: int
) -> tuple[list[Node], list[int], list[Node]]:
    """Bodies without the PARAMs that neither reads; which sources are left, and these.

    least: how many of the first are left in any case. A derivative of what is linear does not
    depend on that, and is not to depend on there being a value.
    """
    params: dict[int, Node] = {}
    for node in order_below([root for body in bodies for root in body.src], ()):
        if node.op is Ops.PARAM:
            params[node.arg.slot] = node
    kept = [slot for slot in range(len(sources)) if slot < least or slot in params]
    if len(kept) == len(sources):
        return list(bodies), kept, list(sources)
    places = {
        params[slot]: Node(Ops.PARAM, params[slot].dtype, (), params[slot].arg._replace(slot=new))
        for new, slot in enumerate(kept) if slot in params
    }
    made = [Node(Ops.SINK, dtypes.token, tuple(put_in(body.src, places))) for body in bodies]
    return made, kept, [sources[slot] for slot in kept]


# --- choices -------------------------------------------------------------------------------------


def _of_choice(
    node: Node, seeds: Mapping[int, Node], wanted: Sequence[bool], pull_back: PullBack
) -> Sequence[Node | None]:
    form, values = node.arg, node.src
    params = body_params(form, values)
    parts = tuple(sorted(seeds))
    given = _params([form.body.src[part] for part in parts], len(params))
    targets = [one for one, is_wanted in zip(params, wanted, strict=True) if is_wanted]
    by = [_gradients(body, parts, given, targets, pull_back) for body in (form.body, form.other)]
    reached = sorted({*by[0], *by[1]})
    bodies = [
        _renumbered([each.get(i, nodes.zeros_like(params[i])) for i in reached],
                    [*params, *given])
        for each in by
    ]
    bodies, _, sources = _of_use(bodies, [*values, *[seeds[one] for one in parts]], 1)
    other = choose_form(*bodies)
    found: list[Node | None] = [None] * len(values)
    made = results(other, sources, range(len(reached)))
    for place, one in zip(reached, made, strict=True):
        found[place] = one
    return found


# --- kernels of text ------------------------------------------------------------------------------


def _of_reference(
    node: Node, seeds: Mapping[int, Node], wanted: Sequence[bool], pull_back: PullBack
) -> Sequence[Node | None]:
    """The gradients of what a kernel of text is compared with, at the kernel's arguments."""
    form, values = node.arg, node.src
    params, parts = body_params(form, values), tuple(sorted(seeds))
    given = _params([form.body.src[part] for part in parts], len(params))
    targets = [one for one, is_wanted in zip(params, wanted, strict=True) if is_wanted]
    by = _gradients(form.body, parts, given, targets, pull_back)
    places = dict(zip(params, values, strict=True))
    places.update(zip(given, [seeds[part] for part in parts], strict=True))
    made = dict(zip(by, put_in(list(by.values()), places), strict=True))
    return [made.get(slot) for slot in range(len(values))]


# --- loops that end by a condition ---------------------------------------------------------------


def _adjoint(node: Node, seeds: Mapping[int, Node]) -> Sequence[Node | None]:
    """What stands for gradients until it is differentiated by those that it is made of."""
    parts = tuple(sorted(seeds))
    form: Repeat = node.arg._replace(adjoint=parts)
    sources = [*node.src, *[seeds[part] for part in parts]]
    return [
        result(form, sources, place) if value.dtype.is_float else None
        for place, value in enumerate(node.src)
    ]


def _of_adjoint(
    node: Node, tangents: Mapping[int, Node], pull_back: PullBack
) -> Sequence[Node | None]:
    """Derivatives along `tangents` of the sources: the loop with what they become beside it."""
    form: Repeat = node.arg
    assert form.adjoint is not None
    count = len(node.src) - len(form.adjoint)
    values = node.src[:count]
    first = form.carried
    plain = form._replace(adjoint=None)
    params = body_params(plain, values)
    moving = [i for i in range(count) if values[i].dtype.is_float]
    carried = [i for i in moving if i < first]
    along = _params([params[i] for i in moving], len(params))
    made = _forward(form.body, carried, params, moving, along, pull_back)
    flag = form.body.src[first - 1]
    order = [
        *params[: first - 1], *along[: len(carried)], params[first - 1],
        *params[first:], *along[len(carried) :],
    ]
    body = _renumbered([*form.body.src[: first - 1], *made, flag], order)
    given = [tangents.get(i, nodes.zeros_like(values[i])) for i in moving]
    sources = [
        *values[: first - 1], *given[: len(carried)], values[first - 1],
        *values[first:], *given[len(carried) :],
    ]
    other = repeat_form(body, first + len(carried), 0, form.length, False, True)
    found: list[Node | None] = [None] * len(node.src)
    for place, part in enumerate(form.adjoint, count):
        found[place] = result(other, sources, first - 1 + carried.index(part))
    return found


def _forward(
    body: Node, wanted: Sequence[int], params: Sequence[Node], moving: Sequence[int],
    along: Sequence[Node], pull_back: PullBack,
) -> list[Node]:
    """A body's derivatives forward: those of its gradients, by the gradients they are made of."""
    roots = [body.src[part] for part in wanted]
    seeds = _params(roots, len(params) + len(along))
    by = _gradients(body, wanted, seeds, params, pull_back)
    parts = [by[i] for i in moving if i in by]
    tangents = [one for i, one in zip(moving, along, strict=True) if i in by]
    found = pull_back(parts, tangents, seeds, True) if parts else {}
    return without_seeds([found.get(seed, nodes.zeros_like(seed)) for seed in seeds], seeds)
