"""Gradients: one table keyed by op, and the walk that applies it.

A rule takes a node and the gradient of its value and gives a gradient for each source, None where
none flows. It is written in nodes, so that gradients can be differentiated again. Where an operand
was broadcast from shape (), the walk sums its gradient; a rule need not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from baregrad.base.errors import JitError
from baregrad.base.options import options
from baregrad.ir.algebra.rules import ALGEBRA
from baregrad.ir.core.node import Node, rebuild, toposort
from baregrad.ir.core.op import CONTROL, CONTROL_MASK, Op, Ops
from baregrad.tensor.array import nodes
from baregrad.tensor.array.link import note_line, session
from baregrad.tensor.array.storage import live_values
from baregrad.tensor.array.views import (
    Again,
    Cut,
    Hooks,
    Leaf,
    Pulled,
    passes_gradients,
    without_again,
)
from baregrad.tensor.autograd.gradients_elementwise import ELEMENTWISE_RULES
from baregrad.tensor.autograd.gradients_structure import STRUCTURE_RULES

Gradients = tuple[Node | None, ...]
Rule = Callable[[Node, Node], Gradients]

RULES: Mapping[Op, Rule] = MappingProxyType({**ELEMENTWISE_RULES, **STRUCTURE_RULES})

NO_GRADIENT: Mapping[Op, str] = MappingProxyType(
    {
        Ops.CONST: "a constant has no sources",
        Ops.BUFFER: "a realised array has no sources; leaves are marked by DETACH",
        Ops.PARAM: "the argument of a program has no sources",
        Ops.VAR: "a symbolic integer is not differentiable",
        Ops.IOTA: "a count of positions has no sources that are values",
        Ops.SLOT: "it stands in monoids only, which have rules as a whole",
        Ops.NOT: "its operands are integers or bools",
        Ops.AND: "its operands are integers or bools",
        Ops.OR: "its operands are integers or bools",
        Ops.XOR: "its operands are integers or bools",
        Ops.SHL: "its operands are integers",
        Ops.SHR: "its operands are integers",
        Ops.FLOORDIV: "its operands are integers",
        Ops.TRUNCDIV: "its operands are integers",
        Ops.THREEFRY: "its operands are integers",
        Ops.DOT4: "its operands are integers",
        Ops.DOT2LO: "its operands are integers",
        Ops.DOT2HI: "its operands are integers",
        Ops.SORT: "its operands are integers",
        Ops.CMPLT: "its result is a bool",
        Ops.CMPLE: "its result is a bool",
        Ops.CMPEQ: "its result is a bool",
        Ops.CMPNE: "its result is a bool",
        Ops.BITCAST: "the bits of a number are not a differentiable function of it",
        Ops.DETACH: "it is there to stop gradients, or marks a tensor",
        Ops.SINK: "it has no value",
        Ops.REPEAT: "all results of a loop are pulled back together, see `gradients_control`",
        Ops.CHOOSE: "all results of a choice are pulled back together, see `gradients_control`",
        Ops.CALL: "all results of a kernel are pulled back together, see `gradients_control`",
    }
)


def _through(mark: object, gradient: Node) -> Node:
    """A gradient behind a mark that it passes."""
    return mark.changed(gradient) if isinstance(mark, Hooks) else gradient


def is_leaf(node: Node) -> bool:
    """Whether a node marks a tensor that gradients are accumulated in."""
    return node.op is Ops.DETACH and isinstance(node.arg, Leaf)


def pull_back(
    roots: Sequence[Node],
    seeds: Sequence[Node],
    targets: Iterable[Node] | None = None,
    again: bool = False,
) -> dict[Node, Node]:
    """Gradients of sum(seed * root) over roots, for targets; for every leaf reached if None.

    The result holds those targets alone that a gradient reaches. again: gradients of it are asked
    for later, of which any tensor may be the target. Raises GradientError from a rule that cannot
    give one.
    """
    wanted = None if targets is None else set(targets)
    before: dict[Node, Node] | None = {}
    order, carrying = _carriers(roots, wanted)
    are_marked = again or any(node.arg.__class__ is Again for node in order)
    if are_marked and (wanted is None or all(map(is_leaf, wanted))):
        roots, before = _merged(roots, seeds, again)
        order, carrying = _carriers(roots, wanted)
    sums: dict[Node, Node] = {}
    for root, seed in zip(roots, seeds, strict=True):
        _add(sums, root, seed, carrying)
    found: dict[Node, Node] = {}
    has_control = any(root.mask & CONTROL_MASK for root in roots)
    together = _control_in(order) if has_control else {}
    for node in reversed(order):
        if has_control and node.op in CONTROL:
            # What reads any of them comes later in the order than all of them do.
            group = together.get(node, ())
            found |= {one: sums[one] for one in group if one in sums and one in (wanted or ())}
            _pull_control(group, sums, carrying, again)
            continue
        if node not in carrying or node not in sums:
            continue
        gradient = sums.pop(node)
        if is_leaf(node) if wanted is None else node in wanted:
            found[node] = gradient
        if node.op is Ops.DETACH:
            _pull_mark(node, gradient, sums, carrying, again)
            continue
        rule = RULES.get(node.op)
        if rule is None:
            continue
        # A tuple-valued reduction has no gradient of its own: its parts reach through it.
        sources = node.src[0].src if node.op is Ops.PROJ else node.src
        parts = rule(node, gradient)
        origins = tuple(map(without_again, sources))
        if origins != sources:
            # Which of two equal results has the mark may not change a sum's order.
            known = {node: node, gradient: gradient, **dict(zip(sources, origins, strict=True))}
            parts = tuple([_replaced(part, known) for part in parts])
        _note_lines(node, parts)
        for source, part in zip(origins, parts, strict=True):
            if part is not None:
                _add(sums, source, part, carrying)
    if not before:
        return found
    return {
        target: rebuild(total, lambda node: None, memo=before) for target, total in found.items()
    }


def _note_lines(node: Node, parts: Gradients) -> None:
    """Note the line that asked for a value as that of what its gradients are made of."""
    where = session().origins.get(node) if options.notes_lines else None
    if where is not None:
        for part in parts:
            if part is not None:
                note_line(part, where)


def _pull_mark(
    node: Node, gradient: Node, sums: dict[Node, Node], carrying: set[Node], again: bool
) -> None:
    """Hand the gradient of a marked value on, as the mark says."""
    if isinstance(node.arg, Pulled):
        rule = node.arg.rule if again else node.arg.once
        parts = rule(gradient)
        _note_lines(node, parts)
        for origin, own in zip(node.arg.sources, parts, strict=True):
            if own is not None:
                _add(sums, origin, own, carrying)
    elif passes_gradients(node):
        _add(sums, node.src[0], _through(node.arg, gradient), carrying)


def _control_in(order: Sequence[Node]) -> Mapping[Node, Sequence[Node]]:
    """By the first of them, the results of each loop or choice; a program without has no need."""
    from baregrad.tensor.autograd.gradients_control import results_together

    return results_together(order)


def _pull_control(
    group: Sequence[Node], sums: dict[Node, Node], carrying: set[Node], again: bool
) -> None:
    """Hand the gradients of the results of a loop or a choice on to its sources, all at once."""
    from baregrad.tensor.autograd.gradients_control import pulled_through

    handed = {one.arg.part: sums.pop(one) for one in group if one in sums}
    if handed:
        sources = list(map(without_again, group[0].src))
        leads = [source in carrying for source in sources]
        parts = pulled_through(group[0], handed, leads, again, pull_back)
        for source, part in zip(sources, parts, strict=False):
            if part is not None:
                _add(sums, source, part, carrying)


def _merged(
    roots: Sequence[Node], seeds: Sequence[Node], again: bool
) -> tuple[Sequence[Node], dict[Node, Node] | None]:
    """The roots over equal results as one node, unless two are told apart, and what each was."""
    known: dict[Node, Node] = {}
    merged = _without_marks(roots, known)
    if not again:
        return merged, {}
    _without_marks(seeds, known)
    before = _origins(known)
    return roots if before is None else merged, before


def _without_marks(roots: Sequence[Node], known: dict[Node, Node]) -> list[Node]:
    """The roots over equal results as one node, which is one sum of gradients.

    Which of them were written out depends on who else wanted them, and that may change no sum.
    Only a target would have to be told from its equals. `known` gets what each node became.
    """

    def enter(node: Node) -> bool:
        marked = node.dtype.kind == "float" and bool(node.mask & Ops.DETACH.bit)
        # Such a mark names its sources as they are.
        return marked and passes_gradients(node) and node.arg.__class__ is not Pulled

    def visit(node: Node) -> Node | None:
        origin = without_again(node)
        return None if origin is node else origin

    return [rebuild(root, visit, memo=known, enter=enter) for root in roots]


def _origins(known: Mapping[Node, Node]) -> dict[Node, Node] | None:
    """What each node was before equal results became one, for what may be a target later.

    None where a tensor holds one of two equal results and another tensor the other.
    """
    equals: dict[Node, list[Node]] = {}
    for origin, node in known.items():
        if without_again(origin) is origin:
            equals.setdefault(node, []).append(origin)
    if all(origin is node for node, among in equals.items() for origin in among):
        return {}
    held = live_values()
    found: dict[Node, Node] = {}
    for node, among in equals.items():
        kept = among if len(among) == 1 else [origin for origin in among if origin in held]
        if len(kept) > 1:
            return None
        found.update((node, origin) for origin in kept)
    return found


def _replaced(part: Node | None, known: dict[Node, Node]) -> Node | None:
    """A part of a gradient over what the nodes in it are to be."""
    return part if part is None else rebuild(part, lambda node: None, memo=known)


def _add(sums: dict[Node, Node], node: Node, gradient: Node, carrying: set[Node]) -> None:
    if node not in carrying:
        return
    if not gradient.shape:
        # A backward pass starts with 1: what is folded here changes nothing, what is folded later
        # changes everything above it.
        gradient = ALGEBRA.apply(gradient)
    if gradient.shape != node.shape:
        fits = len(gradient.shape) >= len(node.shape) and gradient.shape != ()
        gradient = (nodes.sum_to if fits else nodes.broadcast)(gradient, node.shape)
    known = sums.get(node)
    sums[node] = gradient if known is None else nodes.sum_of_two(known, gradient)


def _check_cut(cut: Cut, wanted: set[Node] | None) -> None:
    """Raise JitError where a gradient goes on into what was computed before a capture."""
    if wanted is None or not wanted.isdisjoint(toposort(cut.node)):
        raise JitError(
            "a jitted function takes gradients through a tensor that was computed outside of it",
            hint="compute the tensor inside the function, or detach() it",
        )


def _carriers(roots: Sequence[Node], wanted: set[Node] | None) -> tuple[list[Node], set[Node]]:
    """Nodes below the roots, sources first, and those through which a gradient reaches a target."""
    bits = Ops.DETACH.bit
    for target in wanted or ():
        bits |= target.op.bit

    def enter(node: Node) -> bool:
        open_ = node.dtype.kind == "float" and bool(node.mask & bits)
        return open_ and passes_gradients(node)

    order = below(roots, enter)
    carrying: set[Node] = set()
    for node in order:
        if node.dtype.kind != "float":
            continue
        if node.op is Ops.DETACH and isinstance(node.arg, Cut):
            _check_cut(node.arg, wanted)
            continue
        if is_leaf(node) if wanted is None else node in wanted:
            carrying.add(node)
        elif enter(node) and any(source in carrying for source in _sources(node)):
            carrying.add(node)
    return order, carrying


def below(roots: Sequence[Node], enter: Callable[[Node], bool]) -> list[Node]:
    """Nodes at or below the roots, sources first: those of marks as well, wherever they stand."""
    order = toposort(*roots, enter=enter)
    marks = [node.arg for node in order if node.arg.__class__ is Pulled]
    if not marks or set(order).issuperset(source for mark in marks for source in mark.sources):
        return order
    done: dict[Node, None] = {}
    stack: list[tuple[Node, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        node, is_left = stack.pop()
        if is_left:
            done.setdefault(node)
        elif node not in done:
            stack.append((node, True))
            if enter(node):
                stack.extend((source, False) for source in reversed(_sources(node)))
    return list(done)


def _sources(node: Node) -> tuple[Node, ...]:
    """What a node is made of, as far as gradients are concerned."""
    return node.arg.sources if node.arg.__class__ is Pulled else node.src
