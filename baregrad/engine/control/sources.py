"""Loops, choices and kernels over arrays: what they read computed, their bodies without marks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from baregrad.engine.canonical import take_value, unbind, unbound_graph
from baregrad.ir.core.attrs import BufferRef, Choose, Repeat
from baregrad.ir.core.control import Form, computed_with, form_of, groups, result
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import MOVEMENT, Ops, mask_of

_LONG = mask_of((Ops.REDUCE, Ops.FOLD, Ops.SCAN, Ops.SORT, Ops.SCATTER))
_VIEWS = mask_of((*MOVEMENT, Ops.DETACH, Ops.CAST))
# What is kept of a node along with it: other results of its loop, for gradients.
KEPT = "kept"


def run_control(
    nodes: Sequence[Node], known: Callable[[Node], BufferRef | None],
    realize: Callable[..., list[BufferRef]], remember: Callable[[Node, BufferRef], None],
) -> None:
    """Have the results of the loops, choices and kernels in a graph computed, each by its program.

    known: where a value lies. realize: computes values, given those of `variables`. remember: notes
    where one lies.
    """

    def is_open(node: Node) -> bool:
        return known(node) is None

    def arrays(values: Sequence[Node]) -> list[Node]:
        missing = [one for one in dict.fromkeys(values)
                   if one.op is not Ops.BUFFER and is_open(one)]
        if missing:
            missing += shared_below(nodes, values, is_open)
        refs = dict(zip(missing, realize(missing), strict=True)) if missing else {}
        found = []
        for one in values:
            ref = one.arg if one.op is Ops.BUFFER else refs.get(one) or known(one)
            assert ref is not None
            found.append(Node(Ops.BUFFER, one.dtype, (), ref._replace(shape=one.shape)))
        return found

    for group in groups(nodes, is_open):
        ready = ready_to_run(group, arrays)
        if ready.results == list(nodes):
            # All that is asked for is what one of them is to compute.
            return
        refs = realize(ready.results, variables=ready.variables)
        for node, ref in zip(ready.wanted, refs, strict=True):
            remember(node, ref)


class Ready(NamedTuple):
    """Results of a form, and the same ones over arrays, a program by themselves.

    variables: the values of those in its bodies.
    """

    wanted: list[Node]
    results: list[Node]
    variables: Mapping[str, int]


def ready_to_run(group: Sequence[Node], arrays: Callable[[Sequence[Node]], list[Node]]) -> Ready:
    """Results of a form over arrays, and with each what is kept along with it.

    group: some results of one. arrays: gives those in which values lie.
    """
    wanted = dict.fromkeys(group)
    for node in group:
        wanted.update(dict.fromkeys(computed_with(node)))
        wanted.update(dict.fromkeys(node.memo.get(KEPT, ())))
    first = group[0]
    form = form_of(first)
    variables: dict[str, int] = {}
    plain: Form
    if isinstance(form, Choose):
        plain = form._replace(body=_plain(form.body, variables),
                              other=_plain(form.other, variables))
    elif isinstance(form, Repeat):
        # Where nothing is stacked no shape has the length.
        (length,) = unbind((form.length,), variables)
        plain = form._replace(body=_plain(form.body, variables), length=length)
    else:
        plain = form._replace(body=_plain(form.body, variables))
    sources = arrays(first.src)
    results = [result(plain, sources, node.arg.part) for node in wanted]
    return Ready(list(wanted), results, variables)


def shared_below(
    roots: Sequence[Node], values: Sequence[Node], is_open: Callable[[Node], bool]
) -> list[Node]:
    """What takes long to compute below some values, and is read elsewhere below the roots as well.

    It is computed with these values, so that what runs after their loop need not do so again.
    is_open: whether a node is still to be computed.
    """
    inside = set(toposort(*values, enter=is_open))
    long: set[Node] = set()
    found: dict[Node, None] = {}
    for node in toposort(*roots, enter=is_open):
        if node in inside and is_open(node):
            if node.op.bit & _LONG or not long.isdisjoint(node.src):
                long.add(node)
        elif node not in inside:
            for source in node.src:
                while source.op.bit & _VIEWS and source in long:
                    (source,) = source.src[:1]
                if source in long and _is_array(source):
                    found.setdefault(source)
    return [one for one in found if one not in values]


def _is_array(node: Node) -> bool:
    """Whether a value is one array, and not the states of a fold of several."""
    return node.op not in (Ops.REDUCE, Ops.SCAN) or node.arg.monoid.arity == 1


def _plain(body: Node, variables: dict[str, int]) -> Node:
    """A body without marks and without values of its variables, which `variables` receives."""
    found: tuple[Node | None, Mapping[str, int]] | None = body.memo.get("plain")
    if found is None:
        made, values = unbound_graph(body)
        # No node is to keep itself alive.
        found = body.memo["plain"] = (None if made is body else made, values)
    for name, value in found[1].items():
        take_value(variables, name, value)
    return body if found[0] is None else found[0]
