"""What the verifier asks of whole graphs: closed ranges, single writers, blocks, one chunk loop."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType

from baregrad.ir.core.axes import TILE_BINDS
from baregrad.ir.core.bounds import bounds
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops

Fault = tuple[Node, str]


def structure_faults(order: list[Node], level: str) -> Iterator[Fault]:
    """What is wrong with the graph as a whole; `order` has every node, sources first."""
    yield from _leaf_faults(order, level)
    roots = {
        "kernel": (Ops.KERNEL, _writer_faults), "loop": (Ops.KERNEL, _loop_faults),
        "linear": (Ops.PROGRAM, _program_faults),
    }  # fmt: skip
    if level in roots:
        op, faults = roots[level]
        for node in order:
            if node.op is op:
                yield from faults(node)


def _leaf_faults(order: list[Node], level: str) -> Iterator[Fault]:
    """One PARAM per slot, one VAR per name, and below the tensor level one RANGE per id."""
    known: dict[tuple[str, object], Node] = {}
    for node in order:
        key: tuple[str, object]
        if node.op is Ops.PARAM:
            key = ("argument", node.arg.slot)
        elif node.op is Ops.VAR:
            key = ("variable", node.arg.name)
        elif node.op is Ops.RANGE:
            key = ("range", node.arg.id)
        else:
            continue
        first = known.setdefault(key, node)
        # Several kernels in one graph number their ranges and arguments each for itself.
        if first is not node and not (level == "kernel" and order[-1].op is Ops.SINK):
            yield node, f"two nodes for the {key[0]} {key[1]}: {first!r}"


# --- kernel level ------------------------------------------------------------------------------


def _writer_faults(kernel: Node) -> Iterator[Fault]:
    """Each element has one writer, unless writes accumulate or scatter by data."""
    places: set[tuple[Node, ...]] = set()
    for out in kernel.src:
        if out.arg.monoid is not None:
            continue
        array, value, *indices = out.src
        place = (array, *indices)
        if place in places:
            yield out, "two OUTs write the same place"
        places.add(place)
        if any(index.has(Ops.INDEX) for index in indices):
            continue
        held = frozenset[Node]().union(*(index.ranges for index in indices))
        for axis in value.ranges - held:
            if bounds(axis.src[0])[0] > 1:
                yield out, f"every point of {axis!r} writes the same element"


# --- loop level --------------------------------------------------------------------------------


def _loop_faults(kernel: Node) -> Iterator[Fault]:
    """Every range is closed by one LOOP around it; the chunk loop is outermost and alone."""
    pool_loops = 0
    stack: list[tuple[Node, tuple[Node, ...]]] = [(child, ()) for child in reversed(kernel.src)]
    seen: set[tuple[Node, tuple[Node, ...]]] = set()
    while stack:
        node, around = stack.pop()
        if (node, around) in seen and node.op is not Ops.LOOP:
            continue
        seen.add((node, around))
        if node.op is Ops.LOOP:
            axis = node.src[0]
            if axis in around:
                yield node, "a LOOP over a range inside a LOOP over the same range"
            if axis.arg.bind == "pool":
                pool_loops += 1
                if around:
                    yield node, "a LOOP over a pool range that is not outermost"
                if pool_loops > 1:
                    yield node, "more than one LOOP over a pool range"
            stack.append((node.src[1], (*around, axis)))
        elif node.op in (Ops.SEQ, Ops.ROLE):
            stack.extend((child, around) for child in reversed(node.src))
        else:
            parts = node.src
            if node.op is Ops.IF:
                stack.append((node.src[1], around))
                parts = node.src[:1]
            for axis in frozenset[Node]().union(*(part.ranges for part in parts)):
                if axis not in around and axis.arg.bind not in _OPEN:
                    yield axis, "no LOOP around the statement closes this range"


# What is spread over lanes, registers and whatever runs at once has no LOOP.
_OPEN = TILE_BINDS | {"grid", "cluster", "warpgroup"}


# --- linear level ------------------------------------------------------------------------------

# How many sources are read of instructions that write registers.
_READ: MappingProxyType[str, int] = MappingProxyType({
    "ldmatrix": 2, "ldmatrix.across": 2, "cvt.pack": 1, "cvt.widen": 1,
})  # fmt: skip
_OPERANDS = frozenset((Ops.CONST, Ops.PARAM, Ops.ALLOC, Ops.VAR, Ops.REG, Ops.LANES))


def _program_faults(program: Node) -> Iterator[Fault]:
    """Blocks balance, a value is computed before its use and in a block that is still open.

    Of an instruction that stands twice the latter counts: renderers name a value once.
    """
    blocks: list[list[Node]] = [[]]
    made: dict[Node, bool] = {}
    written: set[Node] = set()
    for node in program.src:
        operands = node.src[1:] if node.op is Ops.SET else node.src
        if node.op is Ops.MACHINE and node.arg.name in _READ:
            # The registers that follow are what it writes.
            count = _READ[node.arg.name]
            operands = node.src[:count]
            written.update(node.src[count:])
        for operand in operands:
            if operand.op is Ops.REG and operand not in written:
                yield node, f"{operand!r} is read before it is written"
            if operand.op not in _OPERANDS and not made.get(operand):
                yield node, f"{operand!r} is used where it has not been computed"
        if node.op is Ops.SET:
            if node.src[0].op is not Ops.REG:
                yield node, f"SET of {node.src[0].op.name}, wanted REG"
            register, value = node.src
            fits = register.shape == value.shape or value.op is Ops.CONST
            if register.dtype is not value.dtype or not fits:
                yield node, f"SET of {register!r} to {value!r}"
            written.add(register)
        if node.op in (Ops.BEGIN, Ops.TEST):
            blocks.append([node])
        elif node.op is Ops.END:
            if len(blocks) == 1:
                yield node, "END without BEGIN or TEST"
                return
            made.update(dict.fromkeys(blocks.pop(), False))
            continue
        else:
            blocks[-1].append(node)
        made[node] = True
    if len(blocks) > 1:
        yield program, f"{len(blocks) - 1} blocks are not closed"
