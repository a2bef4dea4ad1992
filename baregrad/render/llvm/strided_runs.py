"""Strided loads that are neighbours of each other: each lane's elements are read at once.

Lanes far apart are read one by one. Where several loads of a block read elements that lie side by
side in each lane, as the words of a packed row do, a lane has one access for all of them: words of
16 bytes are transposed in registers, narrower elements are parts of one integer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Any

from baregrad.base.bits import is_power_of_two
from baregrad.dtypes import as_dtype
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.render.llvm.parts import joined, shuffled
from baregrad.render.llvm.text import FunctionText
from baregrad.render.llvm.types import splat_text, type_text

# Words of a lane that one access reads, and lanes that are transposed at once.
_WORDS, _WORD_BITS = 4, 32
# By the bits of an element, how many of a lane one access may read, the most first.
_SIZES = MappingProxyType({8: (4, 2), 16: (2,), _WORD_BITS: (_WORDS,)})
# Lanes that are nearer to each other, in elements, are read with what lies between them.
LEAST_DISTANCE = 8
# By the label of a block and a load in it, the loads that are its neighbours, the first one first.
Runs = dict[tuple[int, Node], tuple[Node, ...]]


def runs_of(program: Node) -> Runs:
    """The strided loads of a program that are neighbours within a block of it."""
    found: Runs = {}
    open_blocks, last = [0], 0
    groups: dict[tuple[Any, ...], dict[Node, None]] = {}
    for node in program.src:
        if node.op is Ops.BEGIN or node.op is Ops.TEST:
            last += 1
            open_blocks.append(last)
        elif node.op is Ops.END:
            open_blocks.pop()
        elif node.op is Ops.VLOAD and _may_be_moved(node):
            access = node.arg
            form = (node.dtype, access.width, access.align, _distance(node))
            groups.setdefault((open_blocks[-1], node.src, form), {})[node] = None
    for (label, *_), loads in groups.items():
        for run in _cut(sorted(loads, key=lambda load: load.arg.at)):
            found.update(dict.fromkeys([(label, load) for load in run], run))
    return found


def _may_be_moved(load: Node) -> bool:
    """Whether a load of far lanes may be made elsewhere in its block."""
    access = load.arg
    if len(load.src) > 2 or load.src[1].shape or access.rows:
        return False
    if load.src[1].mask & Ops.REG.bit:
        return False
    if not access.constant or access.width < _WORDS or not is_power_of_two(access.width):
        return False
    return abs(_distance(load)) >= LEAST_DISTANCE and load.dtype.kind != "bool"


def _distance(load: Node) -> int:
    """Elements of the array from each lane to the next one; 0 where that differs, or is near."""
    access, unit = load.arg, _unit(load)
    if not access.order:
        return int(access.stride) * unit
    step: int = access.order[1] - access.order[0]
    is_even = access.order == tuple(range(0, step * access.width, step)) if step else False
    return step if is_even else 0


def _unit(load: Node) -> int:
    """How many elements of its array a load's element is."""
    return load.dtype.bits // load.src[0].dtype.bits


def _cut(loads: Sequence[Node]) -> Iterator[tuple[Node, ...]]:
    """Loads in the order of their places, as runs that are read at once."""
    first = loads[0]
    unit = _unit(first)
    sizes = _SIZES.get(first.dtype.bits, ())
    at = 0
    while at < len(loads):
        start = loads[at].arg.at
        for size in sizes:
            run = tuple(loads[at : at + size])
            if [load.arg.at for load in run] == [start + unit * step for step in range(size)]:
                yield run
                at += size
                break
        else:
            at += 1


def is_loaded_in_run(f: FunctionText, node: Node) -> bool:
    """Load a strided load's elements with its neighbours', if it has such.

    The first of them that is met in a block loads what all of them want.
    """
    if f.runs is None:
        f.runs = runs_of(f.program)
    key = (f.blocks[-1].label if f.blocks else 0, node)
    run = f.runs.get(key)
    if run is None:
        return False
    first = run[0]
    if key in f.loaded:
        return True
    f.loaded.update([(key[0], load) for load in run])
    base, offset = first.src
    where = f.pointer(base, f.use(offset), first.arg.at, base.dtype)
    if first.dtype.bits == _WORD_BITS:
        _transposed(f, run, where)
    else:
        _joined(f, run, where)
    return True


def _places(f: FunctionText, load: Node, where: str) -> list[str]:
    """The addresses of a strided load's lanes."""
    start = f"getelementptr {type_text(load.src[0].dtype)}, ptr {where}, i64"
    step = _distance(load)
    return [f.value(f"{start} {step * lane}") for lane in range(load.arg.width)]


def _transposed(f: FunctionText, run: Sequence[Node], where: str) -> None:
    """Four words of each lane, of which four lanes are a square, by halves as Eklundh does."""
    dtype, lanes = run[0].dtype, run[0].arg.width
    kinds, align = type_text(dtype, _WORDS), run[0].arg.align
    rows = [
        f.value(f"load {kinds}, ptr {place}, align {align}, !invariant.load !0")
        for place in _places(f, run[0], where)
    ]
    # One vector has every fourth lane, so that parts of vectors change places within squares.
    vectors = [joined(f, dtype, lanes, _WORDS, rows[first::_WORDS]) for first in range(_WORDS)]
    squares = range(0, lanes, _WORDS)
    low = [at + k for at in squares for k in (0, lanes, 1, lanes + 1)]
    high = [at + k for at in squares for k in (2, lanes + 2, 3, lanes + 3)]
    left = [at + k for at in squares for k in (0, 1, lanes, lanes + 1)]
    right = [at + k for at in squares for k in (2, 3, lanes + 2, lanes + 3)]
    pairs = [
        [shuffled(f, dtype, lanes, vectors[at : at + 2], order) for at in (0, 2)]
        for order in (low, high)
    ]
    found = [shuffled(f, dtype, lanes, pair, order) for pair in pairs for order in (left, right)]
    f.names.update(zip(run, found, strict=True))


def _joined(f: FunctionText, run: Sequence[Node], where: str) -> None:
    """Narrow elements as parts of one integer of each lane."""
    dtype, lanes, align = run[0].dtype, run[0].arg.width, run[0].arg.align
    bits = dtype.bits * len(run)
    whole = as_dtype(f"uint{bits}")
    element, kinds = type_text(whole), type_text(whole, lanes)
    total = "poison"
    for lane, place in enumerate(_places(f, run[0], where)):
        one = f.value(f"load {element}, ptr {place}, align {align}, !invariant.load !0")
        total = f.value(f"insertelement {kinds} {total}, {element} {one}, i64 {lane}")
    narrow = type_text(as_dtype(f"uint{dtype.bits}"), lanes)
    for step, load in enumerate(run):
        part = total
        if step:
            part = f.value(f"lshr {kinds} {total}, {splat_text(step * dtype.bits, whole, lanes)}")
        part = f.value(f"trunc {kinds} {part} to {narrow}")
        if dtype.kind == "float":
            part = f.value(f"bitcast {narrow} {part} to {type_text(dtype, lanes)}")
        f.names[load] = part
