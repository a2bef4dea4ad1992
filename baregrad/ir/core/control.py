"""Loops, choices and kernels of text: each of their results is a node over the same sources."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from baregrad.base.errors import CompilerBug, GradientError
from baregrad.ir.core.attrs import Choose, Param, Repeat, TextKernel
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node, make_node, toposort
from baregrad.ir.core.op import CONTROL, CONTROL_MASK, Ops

Form = Repeat | Choose | TextKernel
_TOGETHER = "results together"


def repeat_form(
    body: Node, carried: int, read: int, length: Dim | None, backwards: bool = False,
    conditional: bool = False,
) -> Repeat:
    """A loop as what its results' attributes have in common."""
    return Repeat(body, carried, read, length, 0, (), backwards, conditional)


def choose_form(body: Node, other: Node) -> Choose:
    """A choice as what its results' attributes have in common."""
    return Choose(body, other, 0, ())


def call_form(
    body: Node, taken: int, language: str, entry: str, text: str, names: tuple[str, ...],
    sizes: tuple[tuple[str, int], ...], grid: tuple[int, ...], block: tuple[int, ...],
    shared_nbytes: int,
) -> TextKernel:
    """A kernel of text as what its results' attributes have in common."""
    return TextKernel(
        body, taken, language, entry, text, names, sizes, grid, block, shared_nbytes, 0, ()
    )


def result(form: Form, src: Sequence[Node], part: int) -> Node:
    """One result of a form over sources; of a loop also what each step began with."""
    roots = form.body.src
    if not isinstance(form, Repeat):
        root, op = roots[part], Ops.CHOOSE if isinstance(form, Choose) else Ops.CALL
        return make_node(op, root.dtype, tuple(src), form._replace(part=part, shape=root.shape))
    if form.adjoint is not None:
        shape, dtype = src[part].shape, src[part].dtype
    else:
        root = roots[part] if part < len(roots) else roots[part - len(roots)]
        shape, dtype = root.shape, root.dtype
        if part >= form.carried:
            if form.length is None:
                raise CompilerBug("a loop of unknown length stacks nothing", found=repr(form))
            shape = (form.length, *shape)
    return make_node(Ops.REPEAT, dtype, tuple(src), form._replace(part=part, shape=shape))


def results(form: Form, src: Sequence[Node], parts: Iterable[int]) -> list[Node]:
    """Some results of one form, which are computed together while anybody has them."""
    found = [result(form, src, part) for part in parts]
    known = tuple([weakref.ref(one) for one in found])
    for one in found:
        one.memo[_TOGETHER] = known
    return found


def computed_with(node: Node) -> list[Node]:
    """The results that are computed together with one, as far as anybody has them."""
    known = node._memo.get(_TOGETHER, ()) if node._memo else ()
    return [one for one in (each() for each in known) if one is not None]


def form_of(node: Node) -> Form:
    """What all results of a node's loop, choice or kernel have in common, beside their sources."""
    form: Form = node.arg._replace(part=0, shape=())
    return form


def input_shapes(form: Form, src: Sequence[Node]) -> list[tuple[Any, ...]]:
    """The shapes of a body's PARAMs."""
    if not isinstance(form, Repeat):
        return [value.shape for value in src]
    first, last = form.carried, form.carried + form.read
    return [x.shape[1:] if first <= i < last else x.shape for i, x in enumerate(src)]


def body_params(form: Form, src: Sequence[Node]) -> list[Node]:
    """The PARAMs of a body, by the places of the sources."""
    return [
        make_node(Ops.PARAM, value.dtype, (), Param(slot, shape))
        for slot, (value, shape) in enumerate(zip(src, input_shapes(form, src), strict=True))
    ]


def no_gradient() -> GradientError:
    """What to raise where the gradient of a loop that ends by a condition is asked for."""
    return GradientError(
        "a while_loop has no gradient: how many steps it takes is not known before it runs",
        wanted="func.scan, or a `limit` of steps",
        hint="its derivatives go forward: func.jvp, func.jacfwd",
    )


def groups(
    roots: Iterable[Node], enter: Callable[[Node], bool] = lambda node: True
) -> list[list[Node]]:
    """The loops, choices and kernels of text below some roots: the results of each.

    Those that others read come first.

    enter: whether what a node is made of is looked at.
    """
    found: dict[Any, list[Node]] = {}
    reads = lambda node: bool(node.mask & CONTROL_MASK) and enter(node)  # noqa: E731
    for node in toposort(*roots, enter=reads):
        if node.op in CONTROL and enter(node):
            found.setdefault((node.src, form_of(node)), []).append(node)
    return list(found.values())
