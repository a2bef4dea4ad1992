"""Linear level of a GPU: loads and stores of neighbours, one by one, become wide ones.

What is written out for several places, as a window that slides along a row, reads neighbours by
instructions of their own. Those at one base, under one condition and within one stretch of code
without branches are one access where they fill an aligned one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from baregrad.dtypes import dtypes
from baregrad.ir.core.attrs import Access
from baregrad.ir.core.node import Node, instruction
from baregrad.ir.core.op import Ops

_ENDS = frozenset((Ops.BEGIN, Ops.TEST, Ops.END, Ops.MACHINE))
_VLOAD, _VSTORE = Ops.VLOAD, Ops.VSTORE
# What does more than compute a value, or reads what others do.
_ACTS = _ENDS | {_VLOAD, _VSTORE, Ops.SET}
# Accesses that may be one, by the element at which each is: their positions in the code.
Group = dict[int, int]


def widen_accesses(program: Node, most: int) -> Node:
    """A PROGRAM with scalar accesses of neighbours joined to accesses of `most` bytes at most."""
    code = _with_rows_apart(_with_shared_tests(program.src))
    # What is run ahead of the instruction at a position, and what in its place.
    ahead: dict[int, list[Node]] = {}
    instead: dict[int, Node | None] = {}
    for group in _groups(code):
        first = code[min(group.values())]
        for begin, width in _aligned(group, first, most):
            positions = [group[begin + lane] for lane in range(width)]
            access = Access(width, 1, begin, width * first.src[0].dtype.itemsize)
            if first.op is _VLOAD:
                access = access._replace(constant=first.arg.constant)
                _load(code, positions, access, ahead, instead)
            else:
                _store(code, positions, access, ahead, instead)
    return program.replace(src=tuple(_rewritten(code, ahead, instead)))


def _with_shared_tests(code: Sequence[Node]) -> Sequence[Node]:
    """Code in which stores under one condition, with nothing but values between, are one block."""
    done = list[Node]()
    # The block of stores that is the last one, by its positions in `done`.
    block: tuple[int, int] | None = None
    position = 0
    while position < len(code):
        node = code[position]
        end = _end_of_stores(code, position) if node.op is Ops.TEST else position
        if end == position:
            block = None if node.op in _ACTS else block
            done.append(node)
        elif block is not None and done[block[0]] is node:
            begin, last = block
            values, body = done[last + 1 :], (*done[begin + 1 : last], *code[position + 1 : end])
            done[begin:] = [*values, node, *_once(body, values), code[end]]
            block = begin + len(values), len(done) - 1
        else:
            block = len(done), len(done) + end - position
            done += code[position : end + 1]
        position = max(end, position) + 1
    return done


def _with_rows_apart(code: Sequence[Node]) -> Sequence[Node]:
    """Code in which vectors of lanes that lie apart are stored lane by lane, if others lie beside.

    So a lane of each may be stored with its neighbours, as two rows of a matrix unit's results are
    where rows lie together.
    """
    stretch, places = 0, dict[Any, set[int]]()
    keys = list[Any]()
    for node in code:
        stretch += node.op in _ENDS or node.op is Ops.SET or node.op is _VLOAD
        key = None
        if node.op is _VSTORE and _lies_in_rows(node):
            key = (*node.src[:2], stretch, node.arg._replace(at=0, align=1))
            places.setdefault(key, set()).add(node.arg.at)
        keys.append(key)
    if not places:
        return code
    done = list[Node]()
    for node, key in zip(code, keys, strict=True):
        at = node.arg.at if key is not None else 0
        if key is None or not places[key] & {at - 1, at + 1}:
            done.append(node)
            continue
        buffer, place, value = node.src
        for lane in range(node.arg.width):
            one = instruction(Ops.EXTRACT, value.dtype, (value,), lane)
            access = Access(1, 1, at + lane * node.arg.stride, buffer.dtype.itemsize)
            done += [one, instruction(_VSTORE, dtypes.token, (buffer, place, one), access)]
    return done


def _lies_in_rows(node: Node) -> bool:
    """Whether lanes are stored to places of an argument that are far apart, whatever happens."""
    plain = node.arg.width > 1 and node.arg.stride > 1 and not node.arg.rows
    return plain and len(node.src) == 3 and node.src[0].op is Ops.PARAM


def _once(body: Sequence[Node], known: Sequence[Node]) -> list[Node]:
    """The instructions of a block of stores: each value once, and those that are known not at all.

    One that was known and is computed inside again would be gone behind the block.
    """
    done, seen = list[Node](), set(known)
    for node in body:
        if node not in seen:
            done.append(node)
        if node.op is not _VSTORE:
            seen.add(node)
    return done


def _end_of_stores(code: Sequence[Node], begin: int) -> int:
    """Where a block ends that has nothing but stores and values; where it begins for others."""
    position = begin + 1
    while code[position].op is _VSTORE or code[position].op not in _ACTS:
        position += 1
    return position if code[position].op is Ops.END else begin


# --- which --------------------------------------------------------------------------------------


def _groups(code: Sequence[Node]) -> list[Group]:
    """Scalar accesses of one kind, base and condition with nothing between that may not pass."""
    found: dict[Any, Group] = {}
    counts = _times_in_stretch(code)
    defined: dict[Node, int] = {}
    # By memory: how often it was written, and what the latest stores have in common.
    writes: Counter[Node | None] = Counter()
    latest: dict[Node | None, Any] = {}
    stretch = 0
    for position, node in enumerate(code):
        defined[node] = position
        stretch += node.op in _ENDS
        if node.op is not _VLOAD and node.op is not _VSTORE:
            continue
        buffer, place, *others = node.src
        # Arguments may be the same memory.
        memory = None if buffer.op is Ops.PARAM else buffer
        mask = others[node.op is _VSTORE :]
        where = (buffer, place, *mask)
        made = [defined.get(each) for each in where]
        key: Any = (node.op, *where, *made, stretch, node.arg._replace(at=0, align=1))
        if node.op is _VLOAD:
            latest.pop(memory, None)
        elif latest.get(memory) != key or node.arg.at in found[key, writes[memory]]:
            latest[memory] = key
            writes[memory] += 1
        group = found.setdefault((key, writes[memory]), {})
        if counts[node, stretch] == 1 and _may_join(node):
            group.setdefault(node.arg.at, position)
    return [group for group in found.values() if len(group) > 1]


def _times_in_stretch(code: Sequence[Node]) -> Counter[tuple[Node, int]]:
    """How often each access is in each stretch: what blocks that exclude each other do is alike."""
    found = Counter[tuple[Node, int]]()
    stretch = 0
    for node in code:
        stretch += node.op in _ENDS
        if node.op is _VLOAD or node.op is _VSTORE:
            found[node, stretch] += 1
    return found


def _may_join(node: Node) -> bool:
    """Whether an access is of one element of memory that threads share."""
    buffer = node.src[0]
    if buffer.op is not Ops.PARAM and buffer.arg.space not in ("shared", "device"):
        return False
    plain = node.arg.width == 1 and not node.arg.rows
    scalars = all(not child.shape and child.op is not Ops.REG for child in node.src[1:])
    return plain and scalars and buffer.dtype is not dtypes.bool


def _aligned(group: Group, first: Node, most: int) -> list[tuple[int, int]]:
    """Where wide accesses begin that a group fills, and their widths."""
    widest = min(most // first.src[0].dtype.itemsize, _multiple(first.src[1], most))
    left = set(group)
    found = []
    width = widest
    while width > 1:
        for begin in sorted({at // width * width for at in left}):
            lanes = range(begin, begin + width)
            if left.issuperset(lanes):
                left.difference_update(lanes)
                found.append((begin, width))
        width //= 2
    return found


def _multiple(place: Node, most: int) -> int:
    """A power of two, `most` at most, that an offset is a multiple of."""
    op, src = place.op, place.src
    if op is Ops.CONST:
        number = int(place.arg)
        return min(number & -number, most) if number else most
    if op is Ops.CAST:
        return _multiple(src[0], most)
    if op is Ops.ADD:
        return min(_multiple(src[0], most), _multiple(src[1], most))
    if op is Ops.MUL:
        return min(_multiple(src[0], most) * _multiple(src[1], most), most)
    if op is Ops.FMA:
        product = _multiple(src[0], most) * _multiple(src[1], most)
        return min(product, _multiple(src[2], most), most)
    return 1


# --- in their place -----------------------------------------------------------------------------


def _mask(mask: Sequence[Node], width: int) -> list[Node]:
    """The condition of a scalar access for all lanes of a wide one."""
    return [instruction(Ops.SPLAT, dtypes.bool, (each,), width, (width,)) for each in mask]


def _load(
    code: Sequence[Node], positions: Sequence[int], access: Access,
    ahead: dict[int, list[Node]], instead: dict[int, Node | None],
) -> None:
    """One load ahead of the first, and its lanes in the place of each."""
    buffer, place, *mask = code[positions[0]].src
    masks = _mask(mask, access.width)
    shape = (access.width,)
    wide = instruction(_VLOAD, buffer.dtype, (buffer, place, *masks), access, shape)
    ahead.setdefault(min(positions), []).extend((*masks, wide))
    for lane, position in enumerate(positions):
        instead[position] = instruction(Ops.EXTRACT, buffer.dtype, (wide,), lane)


def _store(
    code: Sequence[Node], positions: Sequence[int], access: Access,
    ahead: dict[int, list[Node]], instead: dict[int, Node | None],
) -> None:
    """One store in the place of the last."""
    buffer, place, _, *mask = code[positions[0]].src
    masks = _mask(mask, access.width)
    values = tuple([code[position].src[2] for position in positions])
    joined = instruction(Ops.JOIN, values[0].dtype, values, None, (access.width,))
    last = max(positions)
    ahead.setdefault(last, []).extend((*masks, joined))
    wide = instruction(_VSTORE, dtypes.token, (buffer, place, joined, *masks), access)
    instead.update(dict.fromkeys(positions, None))
    instead[last] = wide


def _rewritten(
    code: Sequence[Node], ahead: dict[int, list[Node]], instead: dict[int, Node | None]
) -> list[Node]:
    """The code with what is in the place of some instructions, and what reads those.

    What is there already is not made again: in a block it would be gone behind that.
    """
    memo: dict[Node, Node] = {}
    done: list[Node] = []
    # Where each value was made that is still there, and those of each open block.
    made: dict[Node, int] = {}
    blocks: list[list[Node]] = [[]]

    def renewed(node: Node) -> Node:
        src = tuple([memo.get(child, child) for child in node.src])
        return node if src == node.src else node.replace(src=src)

    def append(node: Node, is_new: bool) -> None:
        if is_new and node in made and (node.op is not _VLOAD or node.arg.constant):
            if all(made.get(child, -1) < made[node] for child in node.src):
                return
        if node.op is Ops.END:
            for each in blocks.pop():
                made.pop(each, None)
        elif node.op is Ops.BEGIN or node.op is Ops.TEST:
            blocks.append([])
        if node not in made:
            blocks[-1].append(node)
        made[node] = len(done)
        done.append(node)

    for position, node in enumerate(code):
        for each in ahead.get(position, ()):
            append(memo.setdefault(each, renewed(each)), True)
        new = instead.get(position, node)
        if new is None:
            continue
        found = renewed(new)
        memo[node] = memo[new] = found
        append(found, new is not node and new.op is not _VSTORE)
    return done
