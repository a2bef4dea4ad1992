"""The text form of a graph: one numbered line per node, which parses back to the same nodes.

    %0 = PARAM f32[4,5] : Param(slot=0, shape=(4, 5))
    %1 = CONST f32[] : 2.0
    %2 = MUL f32[4,5] %0 %1
    %3 = REDUCE f32[4] %2 : Reduce(monoid=add<f32>, axes=(1,))

A line is `%number = OP dtype[shape] sources : attribute`; the last node is the root. `?` is a
symbolic extent. Monoids that are not built in get lines of their own, `!0 = Monoid(...)`. The
contents of a BUFFER are not part of the text: it becomes `&number`, for which `parse` takes
handles. Lines that start with `#` are comments.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import DType
from baregrad.ir.core.attribute_fields import attribute_fields
from baregrad.ir.core.attrs import BufferRef
from baregrad.ir.core.monoid import Monoid, arg_extreme, primitive
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Op, Ops
from baregrad.ir.text.parse import dtype_name, parse

__all__ = ["attribute_nodes", "dtype_name", "dump", "parse"]


def dump(node: Node) -> str:
    """The text of the graph below `node`, sources first; raises CompilerBug for odd attributes."""
    return _Printer().text(node)


def attribute_nodes(arg: object) -> Iterator[Node]:
    """The nodes that an attribute holds: symbolic extents and the parts of its monoids."""
    stack = [arg]
    while stack:
        item = stack.pop()
        if isinstance(item, Node):
            yield item
        elif isinstance(item, Monoid):
            if builtin_monoid(item) is None:
                stack.extend(reversed((item.identity, item.lift, item.combine)))
        elif isinstance(item, tuple):
            stack.extend(reversed(item))
        elif not isinstance(item, DType | Op):
            fields = attribute_fields(type(item)) or ()
            stack.extend(getattr(item, field.name) for field in reversed(fields))


def builtin_monoid(monoid: Monoid) -> str | None:
    """`add<f32>` and the like for a monoid that `ir.monoid` makes by name, else None."""
    dtype = monoid.states[0] if monoid.states else None
    if dtype is None:
        return None
    if monoid.primitive is not None:
        same = monoid == primitive(monoid.primitive, dtype)
    elif monoid.name in ("argmax", "argmin"):
        same = monoid == arg_extreme(Ops.MAX if monoid.name == "argmax" else Ops.MIN, dtype)
    else:
        same = False
    return f"{monoid.name}<{dtype_name(dtype)}>" if same else None


class _Printer:
    """Numbers nodes, monoids and buffers in order of first use."""

    def __init__(self) -> None:
        self.numbers: dict[Node, int] = {}
        self.monoids: dict[Monoid, int] = {}
        self.handles: dict[int, int] = {}
        self.lines: list[str] = []

    def text(self, root: Node) -> str:
        """Lines of everything that `root` needs, in order."""
        needs: dict[Node, tuple[Node, ...]] = {}
        stack: list[tuple[Node, bool]] = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if ready:
                self.line(node)
            elif node not in needs:
                below = node.src
                if node.arg is not None:
                    below = (*attribute_nodes(node.arg), *below)
                needs[node] = below
                stack.append((node, True))
                stack.extend((child, False) for child in reversed(below) if child not in needs)
        return "\n".join(self.lines) + "\n"

    def line(self, node: Node) -> None:
        """Append the line of one node, whose needs have theirs."""
        if node in self.numbers:
            return
        shape = ",".join(str(e) if isinstance(e, int) else "?" for e in node.shape)
        sources = "".join(f" %{self.numbers[child]}" for child in node.src)
        attribute = "" if node.arg is None else f" : {self.value(node.arg)}"
        number = self.numbers[node] = len(self.numbers)
        kind = dtype_name(node.dtype)
        self.lines.append(f"%{number} = {node.op.name} {kind}[{shape}]{sources}{attribute}")

    def value(self, item: object) -> str:
        """The text of an attribute or a part of one."""
        if isinstance(item, str):
            return json.dumps(item)
        if isinstance(item, bool) or item is None:
            return {True: "true", False: "false", None: "none"}[item]
        if isinstance(item, int | float):
            return repr(item)
        if isinstance(item, Node):
            return f"%{self.numbers[item]}"
        if isinstance(item, tuple) and attribute_fields(type(item)) is None:
            inside = ", ".join(self.value(part) for part in item)
            return f"({inside},)" if len(item) == 1 else f"({inside})"
        if isinstance(item, DType):
            return f"${dtype_name(item)}"
        if isinstance(item, Op):
            return f"@{item.name}"
        if isinstance(item, Monoid):
            return self.monoid(item)
        if isinstance(item, BufferRef):
            number = self.handles.setdefault(id(item.handle), len(self.handles))
            shape, device = self.value(item.shape), self.value(item.device)
            return f"BufferRef(handle=&{number}, shape={shape}, device={device})"
        if attribute_fields(type(item)) is not None:
            return self.fields(item)
        raise CompilerBug("an attribute that has no text", found=f"{type(item).__name__} {item!r}")

    def fields(self, item: Any) -> str:
        """`Name(field=value)` with the fields that differ from their defaults."""
        shown = []
        for field in attribute_fields(type(item)) or ():
            value = getattr(item, field.name)
            if field.default is dataclasses.MISSING or not _same(value, field.default):
                shown.append(f"{field.name}={self.value(value)}")
        return f"{type(item).__name__}({', '.join(shown)})"

    def monoid(self, monoid: Monoid) -> str:
        """The name of a monoid; one that is not built in is given a line first."""
        name = builtin_monoid(monoid)
        if name is not None:
            return name
        if monoid not in self.monoids:
            text = self.fields(monoid)
            self.monoids[monoid] = len(self.monoids)
            self.lines.append(f"!{self.monoids[monoid]} = {text}")
        return f"!{self.monoids[monoid]}"


def _same(value: object, default: object) -> bool:
    """Equality of values and of their types: True is not 1."""
    return type(value) is type(default) and value == default
