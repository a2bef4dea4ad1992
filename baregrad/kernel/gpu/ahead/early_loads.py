"""Linear level of a GPU: what is read behind a fold of threads is under way before they meet.

A sum's result is often used with other elements of memory, as a residual or the weights of a norm
are. They were loaded where they are used, when threads had met, which takes as long again as the
first loads did. Loads of arguments whose places do not hang on what was folded begin with those, as
many as registers have room for. Of a sum that one thread stores, the last part behind their meeting
is left to that thread's warp.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from baregrad.dtypes import dtypes
from baregrad.ir.core.node import Node, instruction, make_node
from baregrad.ir.core.op import ELEMENTWISE, Ops
from baregrad.kernel.gpu.barriers import THREAD

# What threads of a warp, or of a block, do together for a fold.
_FOLDS = ("shfl.sync.bfly", "bar.sync")
# Bytes of a thread that are begun early, at most: registers that are held meanwhile.
MOST_NBYTES = 128
_ARRANGED = (Ops.SPLAT, Ops.EXTRACT, Ops.PART, Ops.JOIN, Ops.READ)


def load_early(program: Node) -> Node:
    """A PROGRAM whose loads of arguments behind its first fold stand before it where they can."""
    code = program.src
    fold = next((place for place, found in _outside(code) if is_fold(found)), None)
    if fold is None or any(map(_may_write, code[:fold])):
        return program
    at = _place(code, fold)
    defined = {node for place, node in _outside(code) if place < at}
    counts = Counter(code)
    moved: dict[Node, None] = {}
    early_ones: dict[Node, Node] = {}
    room = MOST_NBYTES

    def is_there(node: Node) -> bool:
        is_known = node in moved or not counts[node] or (node in defined and counts[node] == 1)
        return is_known and node.op is not Ops.REG

    for load, tests in _candidates(code, fold):
        nbytes = max(load.arg.width, 1) * load.dtype.itemsize
        needed = arithmetic_of((*load.src[1:], *tests), counts, is_there)
        if needed is None or nbytes > room or counts[load] > 1:
            continue
        room -= nbytes
        moved.update(dict.fromkeys(needed))
        early = made_under(load, tests)
        moved.update(dict.fromkeys(early))
        early_ones[load] = early[-1]
    if not early_ones:
        return program
    gone = moved.keys() | early_ones.keys()
    rest = [node for node in code[at:] if node not in gone]
    return program.replace(src=(*code[:at], *moved, *renamed(rest, early_ones)))


def _outside(code: Sequence[Node]) -> Iterator[tuple[int, Node]]:
    """The instructions outside of loops and conditions, with their positions."""
    depth = 0
    for place, node in enumerate(code):
        depth -= node.op is Ops.END
        if not depth and node.op is not Ops.END:
            yield place, node
        depth += node.op in (Ops.BEGIN, Ops.TEST)


def is_fold(node: Node) -> bool:
    """Whether an instruction is what threads of a warp, or of a block, do together for a fold."""
    return node.op is Ops.MACHINE and node.arg.name in _FOLDS


def _may_write(node: Node) -> bool:
    """Whether an instruction may write an argument, which others may be the same memory as."""
    if node.op is Ops.MACHINE:
        return not is_fold(node)
    return node.op is Ops.VSTORE and node.src[0].op is Ops.PARAM


def _place(code: Sequence[Node], fold: int) -> int:
    """Where loads begin: behind the last ones ahead of a fold, or the loop that those are in."""
    at = fold
    while at and code[at - 1].op is not Ops.END and code[at - 1].op is not Ops.VLOAD:
        at -= 1
    return at or fold


def _candidates(code: Sequence[Node], fold: int) -> Iterator[tuple[Node, tuple[Node, ...]]]:
    """Loads of arguments behind a fold, up to a loop or a store, and the conditions on each."""
    tests: list[Node] = []
    for node in code[fold:]:
        if node.op is Ops.BEGIN or _may_write(node):
            return
        if node.op is Ops.TEST:
            tests.append(node.src[0])
        elif node.op is Ops.END:
            tests.pop()
        elif node.op is Ops.VLOAD and node.src[0].op is Ops.PARAM and not node.arg.rows:
            yield node, tuple(tests)


def arithmetic_of(
    roots: Sequence[Node], counts: Counter[Node], is_there: Callable[[Node], bool]
) -> list[Node] | None:
    """The instructions that some values are made of, in order, but for those that are there.

    None where one of them is no arithmetic on whole numbers that nothing sets anew. counts: how
    often each instruction stands in the code.
    """
    found: dict[Node, None] = {}
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        node, is_done = stack.pop()
        if is_done:
            found[node] = None
            continue
        if node in found or is_there(node):
            continue
        if node.op not in ELEMENTWISE or node.dtype.kind == "float" or counts[node] > 1:
            return None
        stack.append((node, True))
        stack += [(child, False) for child in node.src]
    return list(found)


def made_under(load: Node, tests: Sequence[Node]) -> list[Node]:
    """A load that is made where all conditions hold, behind what makes one of them."""
    if not tests:
        return [load]
    made: list[Node] = []
    mask = tests[0]
    for other in tests[1:]:
        mask = make_node(Ops.AND, dtypes.bool, (mask, other))
        made.append(mask)
    buffer, place, *masks = load.src
    width = load.arg.width
    if width > 1:
        mask = instruction(Ops.SPLAT, dtypes.bool, (mask,), width, (width,))
        made.append(mask)
    for other in masks:
        mask = instruction(Ops.AND, dtypes.bool, (other, mask), None, mask.shape)
        made.append(mask)
    early = instruction(Ops.VLOAD, load.dtype, (buffer, place, mask), load.arg, load.shape)
    return [*made, early]


def renamed(code: Sequence[Node], memo: dict[Node, Node]) -> list[Node]:
    """Instructions that use others in the place of some, which `memo` names, and of themselves."""
    done: list[Node] = []
    for node in code:
        src = tuple([memo.get(child, child) for child in node.src])
        memo[node] = new = node if src == node.src else node.replace(src=src)
        done.append(new)
    return done


# --- what one warp does --------------------------------------------------------------------------


def leave_to_first(program: Node) -> Node:
    """A PROGRAM whose first warp alone finishes a sum that a thread of it stores.

    Behind the last barrier each warp would read what all have summed, and fold it once more.
    """
    code = list(program.src)
    for end in reversed([place for place, node in enumerate(code) if node.op is Ops.TEST]):
        condition = _first_warp(code, end)
        begin = end
        while begin and _is_own(code[begin - 1]):
            begin -= 1
        if condition is None or not begin or not is_fold(code[begin - 1]):
            continue
        after = _closed(code, end)
        own, others = _parted(code, begin, end, after, condition)
        registers = {node.src[0] for node in others if node.op is Ops.SET}
        is_apart = registers.isdisjoint([child for node in own for child in node.src])
        if is_apart and any(map(is_fold, own)):
            test = instruction(Ops.TEST, dtypes.token, (condition,))
            close = instruction(Ops.END, dtypes.token, ())
            code[begin:after] = [*others, test, *own, *code[end:after], close]
    return program.replace(src=tuple(code)) if len(code) > len(program.src) else program


def _first_warp(code: Sequence[Node], place: int) -> Node | None:
    """The part of a TEST's condition, or of that of the TEST in it, that says: the first warp.

    Only of one that is all there is in the TEST around it.
    """
    after = _closed(code, place)
    while code[place].op is Ops.TEST and _closed(code, place) == after:
        (condition,) = code[place].src
        for one in condition.src if condition.op is Ops.AND else ():
            if one.op is Ops.CMPEQ and _is_warp(one.src[0]) and one.src[1].op is Ops.CONST:
                return one
        place, after = place + 1, after - 1
    return None


def _is_warp(number: Node) -> bool:
    """Whether a value is the number of the warp in its block."""
    if number.op is not Ops.SHR or number.src[1].op is not Ops.CONST:
        return False
    thread = number.src[0]
    return thread.op is Ops.VAR and thread.arg.name == THREAD and 1 << number.src[1].arg == 32


def _is_own(node: Node) -> bool:
    """Whether an instruction changes nothing but what the warp itself goes on with."""
    if node.op is Ops.MACHINE:
        return bool(node.arg.name == _FOLDS[0])
    return node.op in ELEMENTWISE or node.op in _ARRANGED or node.op in (Ops.VLOAD, Ops.SET)


def _closed(code: Sequence[Node], place: int) -> int:
    """Behind the END of the TEST at a position."""
    depth = 0
    for at in range(place, len(code)):
        depth += (code[at].op in (Ops.BEGIN, Ops.TEST)) - (code[at].op is Ops.END)
        if not depth:
            return at + 1
    return len(code)


def _parted(
    code: Sequence[Node], begin: int, end: int, after: int, condition: Node
) -> tuple[list[Node], list[Node]]:
    """The instructions from `begin` to `end`: those for what a TEST there does, and the others."""
    outside = [*code[:begin], *code[after:]]
    kept = {condition}
    for node in outside:
        kept.update([one for one in node.src[node.op is Ops.SET :] if one.op is Ops.REG])
    for node in code[after:]:
        kept.update(node.src)
    own: list[Node] = []
    others: list[Node] = []
    for node in reversed(code[begin:end]):
        is_kept = (node.src[0] if node.op is Ops.SET else node) in kept
        (others if is_kept else own).append(node)
        if is_kept:
            kept.update(node.src)
    return own[::-1], others[::-1]
