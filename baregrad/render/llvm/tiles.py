"""Tiles that are written by their columns, in LLVM IR: transposed in registers, then stored.

A tile of n vectors is transposed by halves, as Eklundh does (A fast computer method for matrix
transposing, 1972): log2(n) rounds that interleave pairs of vectors, first element by element, then
by groups of as many as there were rounds. As long as a group is smaller than the 16 bytes within
which x86 exchanges elements in a cycle, that is done within each 16 bytes, so columns end in
another order; each is stored from where it is. What code generators make of all exchanges at once
takes them long, so two tiles of one form share a function.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import count as counted
from operator import attrgetter, itemgetter
from typing import NamedTuple

from baregrad.base.bits import next_power_of_two
from baregrad.dtypes import DType
from baregrad.ir.core.attrs import Turned
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.render.llvm.masks import masked_load_call, masked_store_call
from baregrad.render.llvm.text import ROW, FunctionText, row_numbers
from baregrad.render.llvm.types import (
    STREAMED_NBYTES,
    lanes_of,
    lanes_text,
    mask_text,
    order_text,
    type_text,
    value_type,
)

BLOCK_NBYTES = 16
_op_of = attrgetter("op")


class Tile(NamedTuple):
    """The form of a tile: `rows` vectors of `lanes`, of which the first `columns` are written.

    stride: elements between columns. ending: what ends the store of a column. masks: whether stores
    of a part of a vector are masked.
    """

    dtype: DType
    rows: int
    lanes: int
    columns: int
    stride: int
    ending: str
    masks: bool


def turn(f: FunctionText, node: Node) -> None:
    """Write a tile by its columns: in tiles of at most as many rows as a register has lanes."""
    base, offset = node.src[:2]
    access, dtype = node.arg, base.dtype
    vector = node.src[2]
    lanes = lanes_of(vector)
    rows = _names(f, node.src[2:], lanes)
    if access.rows:
        rows = [name for _, name in sorted(zip(access.rows, rows, strict=True))]
    width = min(lanes, f.target.lanes(dtype.itemsize))
    if not f.turns:
        f.turns = list(map(_op_of, f.program.src)).count(Ops.TURN)
    several = f.turns > 1 or access.width > width or len(rows) > width
    for first in range(0, access.width, width):
        columns = min(width, access.width - first)
        parts = rows if width == lanes else _parts(f, rows, vector, first, width)
        for above in range(0, len(rows), width):
            held = parts[above : above + width]
            nbytes = len(held) * dtype.itemsize
            streamed = base.op is Ops.PARAM and base.arg.streamed and nbytes in STREAMED_NBYTES
            streamed = streamed and access.align % nbytes == 0
            at = access.at + first * access.stride + above
            where = f.pointer(base, f.use(offset), at, dtype)
            ending = f.streamed_ending(base, nbytes) if streamed else f"align {dtype.itemsize}"
            tile = Tile(dtype, len(held), width, columns, access.stride, ending, f.target.masks)
            _write(f, tile, where, held, several and not streamed)


def turn_copy(f: FunctionText, node: Node) -> None:
    """Copy a tile, its rows as columns: a function for as many of each as a register has lanes."""
    base, place, source, offset = node.src
    form: Turned = node.arg
    dtype = base.dtype
    width = min(next_power_of_two(form.columns), f.target.lanes(dtype.itemsize))
    whole = f.target.masks_loads(dtype.itemsize)
    ending = f"align {dtype.itemsize}"
    to, start = f.use(place), f.use(offset)
    for first in range(0, form.columns, width):
        columns = min(width, form.columns - first)
        for above in range(0, form.rows, width):
            rows = min(width, form.rows - above)
            tile = Tile(dtype, rows, width, columns, form.pitch, ending, f.target.masks)
            f.declarations.update(_masked_store(tile))
            name, texts = _copy_function(tile, form.stride, whole)
            f.declarations.update(dict.fromkeys(texts))
            where = f.pointer(base, to, form.start + first * form.pitch + above, dtype)
            read = f.pointer(source, start, form.at + above * form.stride + first, dtype)
            f.lines.append(f"  call void {name}(ptr {where}, ptr {read})")


@lru_cache(1 << 8)
def _copy_function(tile: Tile, stride: int, masks: bool) -> tuple[str, tuple[str, ...]]:
    """The name of a function that copies a tile, and the texts of it and of what it calls.

    stride: elements between rows. masks: whether a part of a row is read under a mask, rather than
    element by element.
    """
    dtype, lanes, columns = tile.dtype, tile.lanes, tile.columns
    element, kinds = type_text(dtype), type_text(dtype, lanes)
    name = f"@turned.{'.'.join(map(str, tile[1:5]))}.{stride}.{element}"
    lines = [f"define internal void {name}(ptr %p, ptr %q) #0 {{"]
    texts: tuple[str, ...] = ()
    for row in range(tile.rows):
        lines.append(f"  %q{row} = getelementptr {element}, ptr %q, i64 {row * stride}")
        if columns == lanes:
            lines.append(f"  %x{row} = load {kinds}, ptr %q{row}, align {dtype.itemsize}")
        elif masks:
            mask = mask_text(columns, lanes)
            call = masked_load_call(dtype, lanes, f"%q{row}", dtype.itemsize, mask)
            texts = (call.declaration,)
            lines.append(f"  %x{row} = {call.text}")
        else:
            lines += _elements(dtype, lanes, columns, row)
    rows = [f"%x{row}" for row in range(tile.rows)]
    lines += [_body(tile).format("%t", "%p", *rows), "  ret void\n}"]
    return name, (*texts, "\n".join(lines))


def _elements(dtype: DType, lanes: int, columns: int, row: int) -> list[str]:
    """The first columns of a row, loaded one by one."""
    element, kinds = type_text(dtype), type_text(dtype, lanes)
    lines = []
    total = "poison"
    for lane in range(columns):
        after = f"%x{row}" if lane == columns - 1 else f"%x{row}.{lane}"
        lines += [
            f"  %a{row}.{lane} = getelementptr {element}, ptr %q{row}, i64 {lane}",
            f"  %e{row}.{lane} = load {element}, ptr %a{row}.{lane}, align {dtype.itemsize}",
            f"  {after} = insertelement {kinds} {total}, {element} %e{row}.{lane}, i64 {lane}",
        ]
        total = after
    return lines


def _names(f: FunctionText, vectors: Sequence[Node], lanes: int) -> list[str]:
    """The names of vectors, of which some may be rows of a tile."""
    names = []
    for vector in vectors:
        name = f.use(vector, lanes)
        if len(vector.shape) == 2:
            names += [name.replace(ROW, number) for number in row_numbers(vector.shape[0])]
        else:
            names.append(name)
    return names


def _parts(
    f: FunctionText, found: list[str], vector: Node, first: int, width: int
) -> list[str]:
    """Some of the lanes of vectors such as this one."""
    name, kinds = next(f.unused), value_type(vector)
    start, end = f" = shufflevector {kinds} ", f", {kinds} poison, {order_text(first, width)}"
    names = [f"{name}.{place}" for place in range(len(found))]
    f.lines += [f"  {part}{start}{whole}{end}" for part, whole in zip(names, found, strict=True)]
    return names


def _write(f: FunctionText, tile: Tile, where: str, rows: list[str], several: bool) -> None:
    """The text that writes a tile; by a function where the program writes several."""
    f.declarations.update(_masked_store(tile))
    if not several:
        f.lines.append(_body(tile).format(next(f.unused), where, *rows))
        return
    name, text = _function(tile)
    f.declarations[text] = None
    kinds = type_text(tile.dtype, tile.lanes)
    operands = f", {kinds} ".join(rows)
    f.lines.append(f"  call void {name}(ptr {where}, {kinds} {operands})")


@lru_cache(1 << 8)
def _function(tile: Tile) -> tuple[str, str]:
    """The name and text of a function that writes a tile."""
    kinds = type_text(tile.dtype, tile.lanes)
    parts = (*tile[1:5], type_text(tile.dtype))
    name = f"@turn.{'.'.join(map(str, parts))}"
    rows = [f"%x{row}" for row in range(tile.rows)]
    head = f"define internal void {name}(ptr %p, {kinds} {f', {kinds} '.join(rows)}) #0 {{"
    return name, "\n".join((head, _body(tile).format("%t", "%p", *rows), "  ret void\n}"))


@lru_cache(1 << 8)
def _body(tile: Tile) -> str:
    """The lines that write a tile, as a format: of a name, the pointer and the rows."""
    kinds = type_text(tile.dtype, tile.lanes)
    size = next_power_of_two(tile.rows)
    names = [f"{{{row + 2}}}" for row in range(tile.rows)]
    names += ["poison"] * (size - tile.rows)
    # Of each vector the lanes of the tile, as they stood in its rows.
    held = [tuple(range(tile.lanes))] * size
    number = counted()
    lines = []
    step = 1
    while step < size:
        orders = [_order(tile, step, high) for high in (False, True)]
        texts = [lanes_text(order) for order in orders]
        halves = [itemgetter(*order) for order in orders]
        for low in range(size):
            if low & step:
                continue
            high = low + step
            pair, lanes = (names[low], names[high]), held[low] + held[high]
            for place, half, text in zip((low, high), halves, texts, strict=True):
                held[place] = half(lanes)
                if pair == ("poison", "poison"):
                    continue
                names[place] = f"{{0}}.{next(number)}"
                lines.append(
                    f"  {names[place]} = shufflevector {kinds} {pair[0]}, {kinds} {pair[1]}, {text}"
                )
        step *= 2
    for name, lanes in zip(names, held, strict=True):
        for first in range(0, tile.lanes, size):
            if lanes[first] < tile.columns:
                lines += _column(tile, size, name, first, lanes[first])
    return "\n".join(lines)


def _order(tile: Tile, step: int, high: bool) -> list[int]:
    """The lanes of two vectors in groups of `step`, in turns: of the low or high half of each.

    Halves are those of every 16 bytes, or of all lanes where groups are that long.
    """
    block = min(BLOCK_NBYTES // tile.dtype.itemsize, tile.lanes)
    if step >= block:
        block = tile.lanes
    half = block // 2
    found: list[int] = []
    for begin in range(half if high else 0, tile.lanes, block):
        for first in range(begin, begin + half, step):
            for vector in (0, tile.lanes):
                found += range(vector + first, vector + first + step)
    return found


def _column(tile: Tile, size: int, name: str, first: int, column: int) -> list[str]:
    """The lines that store one column, which begins at a lane of a vector.

    size: the rows of the tile, filled up to a power of two.
    """
    dtype = tile.dtype
    where = f"{{0}}.p{column}"
    at = tile.stride * column
    lines = [f"  {where} = getelementptr {type_text(dtype)}, ptr {{1}}, i64 {at}"]
    count = tile.rows
    masked = tile.masks and count < size
    kept = size if masked else count
    if kept < tile.lanes:
        source, name = name, f"{{0}}.c{column}"
        kinds = type_text(dtype, tile.lanes)
        if kept == 1:
            lines.append(f"  {name} = extractelement {kinds} {source}, i64 {first}")
        else:
            order = order_text(first, kept)
            lines.append(f"  {name} = shufflevector {kinds} {source}, {kinds} poison, {order}")
    if masked:
        mask = mask_text(count, size)
        call = masked_store_call(dtype, size, name, where, dtype.itemsize, mask)
        lines.append(f"  {call.text}")
    else:
        lines.append(f"  store {type_text(dtype, kept)} {name}, ptr {where}, {tile.ending}")
    return lines


@lru_cache(1 << 8)
def _masked_store(tile: Tile) -> dict[str, None]:
    """The declaration of the instruction by which columns are stored under a mask, if any is."""
    size = next_power_of_two(tile.rows)
    if not tile.masks or tile.rows == size:
        return {}
    return {masked_store_call(tile.dtype, size, "", "", 0, "").declaration: None}
