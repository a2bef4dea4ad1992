"""Canonical programs: a graph with its buffers and bound variables lifted out as parameters.

Two training steps build equal graphs over different buffers. With every BUFFER replaced by a PARAM
in first-use order the two graphs are one interned node, so the plan, its kernels and its command
list are found by identity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from baregrad.base.errors import DTypeError, ShapeError
from baregrad.dtypes import dtypes
from baregrad.ir.core.attribute_fields import attribute_fields
from baregrad.ir.core.attrs import BufferRef, Param
from baregrad.ir.core.node import Node, alike, instruction, make_node, rebuild, toposort
from baregrad.ir.core.op import CONTROL, FOLDED, SPELLED, Ops
from baregrad.ir.core.requirements import (
    Requirement,
    check,
    moved,
    requirements,
    requirements_of,
)

_VAR = Ops.VAR.bit
_INDEX = dtypes.index


@dataclass(frozen=True)
class Canonical:
    """A SINK over PARAMs, the arrays that the slots stand for, and the values of its variables.

    `made`: what each node that the user's code made became, sources first. `whole`: that is every
    node below the SINK and no other. `requirements`: what values of the variables must satisfy,
    and these do.
    """

    sink: Node
    inputs: tuple[BufferRef, ...]
    variables: Mapping[str, int]
    made: Mapping[Node, Node]
    whole: bool = False
    requirements: tuple[Requirement, ...] = ()

    @cached_property
    def origins(self) -> Mapping[Node, Node]:
        """For each canonical node the one that the user's code made, for reports."""
        return {new: old for old, new in self.made.items()}

    def with_values(self, values: Mapping[str, int]) -> Canonical:
        """The program where more variables have values. Raises ShapeError for second ones."""
        variables = dict(self.variables)
        for name, value in values.items():
            take_value(variables, name, value)
        return replace(self, variables=variables)

    def order(self) -> list[Node]:
        """Every node of `sink`, sources first, as `toposort` lists them."""
        if self.whole:
            return [*dict.fromkeys(self.made.values()), self.sink]
        return toposort(self.sink)


def canonicalise(roots: list[Node], realised: Callable[[Node], BufferRef | None]) -> Canonical:
    """The canonical program that computes `roots`; a node that `realised` knows is only read.

    Constants and their views are no such nodes, except as roots.
    """
    lifted = _Lifted([], {}, {}, {}, {}, {})
    done, variables = lifted.done, lifted.variables
    became = done.__getitem__
    param = lifted.param
    # A walk of `toposort` that needs no list of what it met: every step of a loop that trains
    # without `jit` makes it. Above the sources that are looked at stand the nodes of `path`.
    path: list[tuple[Node | None, Iterator[Node]]] = []
    node: Node | None = None
    sources = iter(roots)
    while True:
        for child in sources:
            if child in done:
                continue
            ref = realised(child) if _is_computed(child.mask) else None
            if ref is not None:
                if child.op is Ops.BUFFER:
                    ref = child.arg
                elif child.mask & _VAR:
                    # It was computed with known extents, and is read with the symbolic ones.
                    ref = ref._replace(shape=child.shape)
                done[child] = param(ref, child)
                continue
            path.append((node, sources))
            node, sources = child, iter(child.src)
            break
        else:
            if node is None:
                break
            op, src = node.op, node.src
            if op is Ops.BUFFER:
                done[node] = param(node.arg, node)
            elif op is Ops.DETACH:
                # It says something about gradients alone, and differs from model to model.
                done[node] = done[src[0]]
            elif node.mask & _VAR:
                done[node] = lifted.renewed(node)
            else:
                made = tuple(map(became, src))
                # Nothing below may have become anything else.
                done[node] = (
                    node if made == src else instruction(op, node.dtype, made, node.arg, node.shape)
                )
            node, sources = path.pop()
    values = []
    whole = not variables
    for root in roots:
        ref = None if _is_computed(root.mask) else realised(root)
        whole = whole and ref is None
        values.append(done[root] if ref is None else param(ref, root))
    sink = Node(Ops.SINK, dtypes.token, tuple(values))
    asked = tuple(lifted.requirements)
    check(asked, variables)
    return Canonical(sink, tuple(lifted.inputs), variables, done, whole, asked)


@dataclass(slots=True)
class _Lifted:
    """What is lifted out of a graph: arrays by slot, variables by name; and what nodes became."""

    inputs: list[BufferRef]
    slots: dict[BufferRef, Node]
    done: dict[Node, Node]
    variables: dict[str, int]
    requirements: dict[Requirement, None]
    forms: dict[Any, Node]

    def renewed(self, node: Node) -> Node:
        """A node that has variables at or below it, over what its sources became.

        Layers that are alike have the same nodes but for the arrays that they read: shapes and
        requirements of one are those of all. Not of what is made of sizes themselves, as a range
        of numbers is: the size says what its shape is.
        """
        if node.op is Ops.VAR:
            return _unbind(node, self.variables)
        done, dtype = self.done, node.dtype
        src = tuple([done[one] for one in node.src])
        # Copies of a layer share what their nodes have beside sources: found by its identity, which
        # is a hint alone where the sources' shapes are compared.
        key = (node.op, dtype, id(node.arg), *[id(one.shape) for one in node.src])
        form = self.forms.get(key)
        if form is not None:
            for one, other in zip(src, form.src, strict=True):
                shape, known = one.shape, other.shape
                if (shape is not known and shape != known) or one.dtype is _INDEX:
                    break
            else:
                return alike(form, src)
        made = self._made(node, src)
        if not any(one.dtype is _INDEX for one in src):
            self.forms[key] = made
        return made

    def _made(self, node: Node, src: tuple[Node, ...]) -> Node:
        arg = _unbind_arg(node.arg, self.variables, self.done)
        same = src == node.src and arg is node.arg
        made = node if same else make_node(node.op, node.dtype, src, arg)
        self.requirements.update(dict.fromkeys(requirements(made)))
        return made

    def param(self, ref: BufferRef, node: Node) -> Node:
        """The PARAM that stands for an array, whose value `node` is."""
        found = self.slots.get(ref)
        if found is None:
            shape = tuple(_unbind_dim(extent, self.variables, self.done) for extent in ref.shape)
            found = Node(Ops.PARAM, node.dtype, (), Param(len(self.inputs), shape))
            self.slots[ref] = found
            self.inputs.append(ref)
        return found


def unbound_graph(root: Node) -> tuple[Node, Mapping[str, int]]:
    """A graph over PARAMs without marks and without values of its variables; and these values.

    So are the bodies of loops and choices in it.
    """
    lifted = _Lifted([], {}, {}, {}, {}, {})
    done, variables = lifted.done, lifted.variables
    for node in toposort(root):
        if node.op is Ops.DETACH:
            done[node] = done[node.src[0]]
        elif node.op in CONTROL:
            arg = node.arg
            for name in {"body", "other"}.intersection(arg._fields):
                body, values = unbound_graph(getattr(arg, name))
                arg = arg._replace(**{name: body})
                for variable, value in values.items():
                    take_value(variables, variable, value)
            src = tuple([done[one] for one in node.src])
            done[node] = make_node(node.op, node.dtype, src, _unbind_arg(arg, variables, done))
        elif node.mask & _VAR:
            done[node] = lifted.renewed(node)
        else:
            src = tuple([done[one] for one in node.src])
            done[node] = node if src == node.src else make_node(node.op, node.dtype, src, node.arg)
    return done[root], variables


def _is_computed(mask: int) -> bool:
    """Whether a value whose ops are these is worth reading where it was computed before."""
    return mask & ~SPELLED != 0 and mask & ~FOLDED != 0


def bind(variable: Node, value: int) -> Node:
    """The variable with a value: a VAR whose source is the value.

    Raises ShapeError when the value lies outside the variable's bounds, and DTypeError for what is
    no variable, or no integer.
    """
    from baregrad.ir.core.node import const

    if not isinstance(variable, Node) or variable.op is not Ops.VAR:
        raise DTypeError("bind gives a variable a value", found=f"{variable!r:.60}",
                         hint='declare one first: n = baregrad.variable("n", 1, 64)')
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise DTypeError(f"{variable.arg.name} is an integer", found=f"{value!r:.60}")
    value = int(value)
    lo, hi = variable.arg.lo, variable.arg.hi
    if not lo <= value <= hi:
        raise ShapeError(
            f"{variable.arg.name} was declared in {lo}..{hi} and cannot be {value}: declare it "
            "with wider bounds, or give a value inside them"
        )
    return Node(Ops.VAR, dtypes.index, (const(value, dtypes.index),), variable.arg)


def _unbind(node: Node, variables: dict[str, int]) -> Node:
    if not node.src:
        return node
    take_value(variables, node.arg.name, int(node.src[0].arg))
    return Node(Ops.VAR, node.dtype, (), node.arg)


def take_value(variables: dict[str, int], name: str, value: int) -> None:
    """Note the value of a variable. Raises ShapeError where it has another one."""
    if variables.setdefault(name, value) != value:
        raise ShapeError(
            f"{name} is both {variables[name]} and {value} in one computation: realise one of them "
            "first, or use two variables"
        )


def unbind(extents: Iterable[Any], variables: dict[str, int]) -> tuple[Any, ...]:
    """Extents without the values of their variables, which `variables` receives.

    Raises ShapeError where a variable has two values.
    """
    memo: dict[Node, Node] = {}
    return tuple([_unbind_dim(extent, variables, memo) for extent in extents])


def _unbind_dim(extent: Any, variables: dict[str, int], memo: dict[Node, Node]) -> Any:
    if not isinstance(extent, Node):
        return extent
    known = memo.get(extent)
    if known is not None:
        return known

    def visit(node: Node) -> Node | None:
        return _unbind(node, variables) if node.op is Ops.VAR else None

    memo[extent] = rebuild(extent, visit)
    return memo[extent]


def unbound_requirements(node: Node) -> tuple[Requirement, ...]:
    """What a node requires of its variables, whatever values they had."""
    variables: dict[str, int] = {}
    memo: dict[Node, Node] = {}
    shape, made = (_unbind_arg(part, variables, memo) for part in moved(node))
    return requirements_of(node.op, shape, made)


def _unbind_arg(arg: Any, variables: dict[str, int], memo: dict[Node, Node]) -> Any:
    """An attribute with the variables inside its dimensions unbound."""
    if isinstance(arg, Node):
        return _unbind_dim(arg, variables, memo)
    fields = attribute_fields(type(arg))
    if fields is None:
        if isinstance(arg, tuple):
            return tuple(_unbind_arg(item, variables, memo) for item in arg)
        return arg
    if type(arg).__name__ in ("Monoid", "Reduce", "Scan", "Scatter"):
        return arg
    old = [getattr(arg, field.name) for field in fields]
    new = [_unbind_arg(value, variables, memo) for value in old]
    return arg if new == old else type(arg)(*new)
