"""A loop-level kernel as an outline that a person reads: loops, stores, and what runs as a tile.

It does not parse back (`ir.text` does): long expressions are cut short.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType

from baregrad.dtypes import dtypes
from baregrad.ir.core.node import Node, extent_of, toposort
from baregrad.ir.core.op import Op, Ops

_INFIX = MappingProxyType({
    Ops.ADD: "+", Ops.SUB: "-", Ops.MUL: "*", Ops.DIV: "/", Ops.FLOORDIV: "//", Ops.MOD: "%",
    Ops.CMPLT: "<", Ops.CMPLE: "<=", Ops.CMPEQ: "==", Ops.CMPNE: "!=", Ops.AND: "&", Ops.OR: "|",
})  # fmt: skip
# Characters of an expression beyond which it is cut.
MOST = 80


def outline(kernel: Node) -> str:
    """Return a KERNEL of the loop level, a statement a line.

    Axes that are bound to lanes, registers or threads are named after the statement that runs for
    the whole tile of them.
    """
    texts = texts_of(kernel)
    text = "\n".join(line for body in kernel.src for line in _statement(body, texts, ""))
    if kernel.arg.grain == 1:
        return text
    return text.replace(" on pool:", f" on pool, {kernel.arg.grain} at a time:", 1)


def texts_of(root: Node) -> dict[Node, str]:
    """Return each node at or below one as text."""
    texts: dict[Node, str] = {}
    for node in toposort(root):
        texts[node] = _expression(node, texts)
    return texts


def _statement(node: Node, texts: dict[Node, str], indent: str) -> Iterator[str]:
    deeper = indent + "  "
    if node.op is Ops.SEQ:
        for child in node.src:
            yield from _statement(child, texts, indent)
    elif node.op is Ops.LOOP:
        axis = node.src[0]
        unit = f" on {axis.arg.bind}" if axis.arg.bind != "loop" else ""
        yield f"{indent}for {texts[axis]} of {extent_text(axis, texts)}{unit}:"
        yield from _statement(node.src[1], texts, deeper)
    elif node.op is Ops.IF:
        yield f"{indent}if {_cut(texts[node.src[0]])}:"
        yield from _statement(node.src[1], texts, deeper)
    elif node.op is Ops.COPYTO and node.arg.box is not None:
        target, array, slot, place, *corner = (texts[one] for one in node.src)
        sizes = " x ".join(map(str, reversed(node.arg.box.box)))
        how = "a walk" if node.arg.box.walk is not None else "a box"
        where = _cut(_element([target, slot, place]))
        yield f"{indent}{where} = {_cut(_element([array, *corner]))}  # {how} of {sizes}, tma"
    elif node.op is Ops.STORE or node.op is Ops.COPYTO:
        target = _element([texts[node.src[0]], *(texts[place] for place in node.src[2:])])
        how = _tile(node, texts)
        if node.op is Ops.COPYTO:
            how = f"{how}, {node.arg.engine}" if how else f"  # {node.arg.engine}"
        yield f"{indent}{_cut(target)} = {_cut(texts[node.src[1]])}{how}"
    elif node.op is Ops.MMA and node.src[0].op is Ops.LOAD:
        total, left, right = [texts[one] for one in node.src[:3]]
        tiles = ", ".join([f"{texts[one]}={extent_text(one, texts)}" for one in node.src[4:]])
        yield f"{indent}{_cut(total)} += {_cut(left)} * {_cut(right)}  # {node.arg.name} {tiles}"
    elif node.op is Ops.DONE and node.arg.engine == "mma":
        some = f"but {node.arg.keep} " if node.arg.keep else ""
        yield f"{indent}wait until all {some}groups of products are done"
    elif node.op is Ops.DONE and node.arg.engine == "bulk":
        what = "read" if node.arg.reads_only else "done"
        yield f"{indent}wait until all stores of runs are {what}, and threads meet"
    elif node.op is Ops.DONE and node.arg.engine == "tma":
        yield f"{indent}wait until all boxes of this iteration are there"
    elif node.op is Ops.DONE:
        some = f"but {node.arg.keep} groups " if node.arg.keep else ""
        what = f"all {some}of copies are done, and " if node.arg.engine == "copy" else ""
        yield f"{indent}wait until {what}threads meet"
    elif node.op is Ops.COMMIT and not node.src:
        yield f"{indent}these copies are a group"
    else:
        yield f"{indent}{_cut(texts[node])}"


def _tile(node: Node, texts: dict[Node, str]) -> str:
    """The axes for all of which a statement runs at once."""
    below = toposort(node.src[1], *node.src[2:])
    tiles = [one for one in below if one.op is Ops.RANGE and one.arg.is_tile]
    tiles.sort(key=lambda one: one.arg.id)
    if not tiles:
        return ""
    told = [f"{one.arg.bind} {texts[one]}={extent_text(one, texts)}" for one in tiles]
    return f"  # {', '.join(told)}"


def extent_text(axis: Node, texts: dict[Node, str]) -> str:
    """Return the extent of an axis as text."""
    extent = extent_of(axis)
    return str(extent) if isinstance(extent, int) else texts.get(extent, "n")


def _expression(node: Node, texts: dict[Node, str]) -> str:
    op: Op = node.op
    if op is Ops.CONST:
        return f"{node.arg:g}" if isinstance(node.arg, float) else str(node.arg)
    if op is Ops.RANGE:
        if node.arg.axis:
            return str(node.arg.axis)
        return node.arg.bind if node.arg.is_tile else f"i{node.arg.id}"
    if op is Ops.VAR:
        return str(node.arg.name)
    if op is Ops.PARAM:
        return node.arg.name or f"p{node.arg.slot}"
    if op is Ops.ALLOC:
        return f"{node.arg.space}{node.arg.id}"
    parts = [texts[child] for child in node.src]
    if max(map(len, parts), default=0) > 2 * MOST:
        parts = [part if len(part) <= 2 * MOST else "..." for part in parts]
    if op is Ops.LOAD:
        return _element(parts)
    if op is Ops.ADD and node.dtype is dtypes.index:
        # In one order, however the sum was put together.
        terms = [term for part in parts for term in part.split(" + ")]
        return " + ".join(sorted(terms, key=_size))
    if op in _INFIX and len(parts) == 2:
        left, right = (
            f"({text})" if child.op in _INFIX and _binds(child.op) < _binds(op) else text
            for child, text in zip(node.src, parts, strict=True)
        )
        return f"{left} {_INFIX[op]} {right}"
    return f"{op.name.lower()}({', '.join(parts)})"


def _size(term: str) -> tuple[bool, int, str]:
    """Where a term of an address stands: far strides first, what is constant last."""
    scale = term.rpartition(" * ")[2]
    return term.isdigit(), -int(scale) if scale.isdigit() else -1, term


def _element(parts: list[str]) -> str:
    """An array and the places in it; nothing but its name where it has no axes."""
    return f"{parts[0]}[{', '.join(parts[1:])}]" if parts[1:] else parts[0]


def _binds(op: Op) -> int:
    """How closely an infix operator binds."""
    if op in (Ops.MUL, Ops.DIV, Ops.FLOORDIV, Ops.MOD):
        return 3
    return 2 if op in (Ops.ADD, Ops.SUB) else 1


def _cut(text: str) -> str:
    return text if len(text) <= MOST else f"{text[: MOST - 4]} ..."
