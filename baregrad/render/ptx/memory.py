"""Lanes, registers, loads and stores in PTX: one rule per op.

A vector access becomes the fewest instructions that its alignment allows: of 16 bytes, or 32 where
the target has them. Elements of 8 and 16 bits travel in words of 32 and are taken apart by byte
permutations. Source: PTX ISA, "ld", "st", "prmt".
"""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Op, Ops
from baregrad.render.gpu import pieces
from baregrad.render.ptx.text import Names, PtxText, Rule
from baregrad.render.ptx.types import ptx_type

# --- lanes and registers -------------------------------------------------------------------------


def copy(f: PtxText, node: Node, names: Names) -> None:
    """The value of a node is what some registers hold now."""
    kind = ptx_type(node.dtype).bits
    for result, name in zip(f.define(node), names, strict=True):
        f.emit(f"mov.{kind}", result, name)


def alias(f: PtxText, node: Node, source: Node, names: Names) -> None:
    """The value of a node is part of another's: the same registers, unless they may change."""
    if source.op is Ops.REG:
        copy(f, node, names)
    else:
        f.names[node] = names


def _splat(f: PtxText, node: Node) -> None:
    (x,) = node.src
    if x.op is Ops.REG:
        register = f.register(node.dtype)
        f.emit(f"mov.{ptx_type(node.dtype).bits}", register, f.one(x))
        f.names[node] = (register,) * f.width(node)
    else:
        f.names[node] = (f.one(x),) * f.width(node)


def _line(f: PtxText, node: Node) -> None:
    if f.signature.warps:
        (result,) = f.define(node)
        bits = ptx_type(node.dtype).bits
        f.emit("mov.u32" if bits == "b32" else "cvt.u64.u32", result, "%laneid")
        return
    f.names[node] = tuple([str(lane) for lane in range(node.arg)])


def _part(f: PtxText, node: Node) -> None:
    first, count = node.arg
    (x,) = node.src
    alias(f, node, x, f.lanes(x, f.width(x))[first : first + count])


def _extract(f: PtxText, node: Node) -> None:
    (x,) = node.src
    alias(f, node, x, (f.lanes(x, f.width(x))[node.arg],))


def _any(f: PtxText, node: Node) -> None:
    names = f.use(node.src[0])
    (result,) = f.define(node)
    total = names[0]
    for name in names[1:-1]:
        either = f.fresh("%p")
        f.emit("or.pred", either, total, name)
        total = either
    if len(names) > 1:
        f.emit("or.pred", result, total, names[-1])
    else:
        f.emit("mov.pred", result, total)


def _read(f: PtxText, node: Node) -> None:
    copy(f, node, f.lanes(node.src[0], f.width(node)))


def _set(f: PtxText, node: Node) -> None:
    register, value = node.src
    if f.results.get(value) is register:
        return
    kind = ptx_type(register.dtype).bits
    targets = f.use(register)
    sources = f.lanes(value, len(targets))
    for target, source in zip(targets, sources, strict=True):
        f.emit(f"mov.{kind}", target, source)


# --- addresses -----------------------------------------------------------------------------------


class Place(NamedTuple):
    """An address: a register or symbol, and a displacement in bytes."""

    base: str
    at: int

    def text(self, more: int = 0) -> str:
        """The operand of a load or store, some bytes further on."""
        at = self.at + more
        # ptxas takes a sum alone, also of a negative offset.
        return f"[{self.base}+{at}]" if at else f"[{self.base}]"


def _space(buffer: Node) -> str:
    if buffer.op is Ops.PARAM:
        return "global"
    return "shared" if buffer.arg.space == "shared" else "local"


def _base(f: PtxText, buffer: Node) -> Place:
    if buffer.op is Ops.PARAM:
        return Place(f.names[buffer][0], 0)
    if buffer.arg.space == "shared":
        return Place("shared_memory", f.signature.shared[buffer])
    return Place(f"local{buffer.arg.id}", 0)


def place_of(f: PtxText, buffer: Node, offset: Node, lane: int, elements: int) -> Place:
    """The address of `elements` behind the offset that one lane gives."""
    size = buffer.dtype.itemsize
    base, at = _base(f, buffer)
    name = f.lanes(offset, lane + 1)[lane]
    if not name.startswith("%"):
        at += (int(name) + elements) * size
        return _near(f, base, at, _space(buffer))
    at += elements * size
    return _near(f, _indexed(f, buffer, base, offset, name), at, _space(buffer))


# Displacements are signed and have 32 bits; some are left for the lanes.
_FAR = 1 << 30


def _near(f: PtxText, base: str, at: int, space: str) -> Place:
    if abs(at) < _FAR or space != "global":
        return Place(base, at)
    moved = f.fresh("%rd")
    f.emit("add.s64", moved, base, str(at))
    return Place(moved, 0)


def _indexed(f: PtxText, buffer: Node, base: str, offset: Node, name: str) -> str:
    """The register of base + size * offset, made once in a block."""
    key = (buffer, (name,))
    found = f.addresses.get(key)
    if found is not None:
        return found
    size = buffer.dtype.itemsize
    wide = offset.dtype.bits == 64
    space = _space(buffer)
    if space == "shared":
        word = name
        if wide:
            word = f.fresh("%r")
            f.emit("cvt.u32.u64", word, name)
        start = f.fresh("%r")
        f.emit("mov.u32", start, base)
        found = f.fresh("%r")
        f.emit("mad.lo.s32", found, word, str(size), start)
    else:
        if space == "local":
            start = f.fresh("%rd")
            f.emit("mov.u64", start, base)
            base = start
        found = f.fresh("%rd")
        sign = "u" if offset.dtype.kind == "uint" else "s"
        if not wide:
            f.emit(f"mad.wide.{sign}32", found, name, str(size), base)
        elif size == 1:
            f.emit("add.s64", found, base, name)
        else:
            f.emit("mad.lo.s64", found, name, str(size), base)
    if offset.op is not Ops.REG:
        f.addresses[key] = found
        if f.open:
            f.open[-1].addresses.append(key)
    return found


# --- pieces of an access -------------------------------------------------------------------------


class Piece(NamedTuple):
    """One load or store: its first element, how many words or elements, their type and bytes."""

    first: int
    elements: int
    words: int
    kind: str


def _pieces(dtype: DType, width: int, align: int, most: int) -> list[Piece]:
    """The accesses that `width` adjacent elements take, and the types of their words."""
    size = dtype.itemsize
    found: list[Piece] = []
    for first, count in pieces(size, width, align, most):
        if size < 4 <= count * size:
            found.append(Piece(first, count, count * size // 4, "b32"))
        elif size < 4 and count > 1:
            found.append(Piece(first, count, 1, "u16"))
        else:
            found.append(Piece(first, count, count, ptx_type(dtype).memory))
    return found


def _vector(names: Names) -> str:
    return names[0] if len(names) == 1 else "{" + ", ".join(names) + "}"


def _suffix(piece: Piece) -> str:
    return f".v{piece.words}.{piece.kind}" if piece.words > 1 else f".{piece.kind}"


# --- loads ---------------------------------------------------------------------------------------


def _vload(f: PtxText, node: Node) -> None:
    buffer, offset, *mask = node.src
    access = node.arg
    cells = f.cells.get(buffer)
    masks = f.lanes(mask[0], access.width) if mask else ()
    if cells is not None:
        _load_cells(f, node, cells, masks)
        return
    opcode = f"ld.{_space(buffer)}"
    if access.constant and _never_changes(f, buffer):
        opcode += ".nc"
    if _is_adjacent(node) and len(set(masks)) <= 1:
        where = place_of(f, buffer, offset, 0, access.at)
        names = f.define(node)
        guard = masks[0] if masks else ""
        for piece in _pieces(buffer.dtype, access.width, access.align, f.target.load_bytes):
            _load_piece(f, buffer.dtype, opcode, where, piece, names, guard)
        return
    spots = _spots(f, node)
    for lane, name in enumerate(f.define(node)):
        (piece,) = _pieces(buffer.dtype, 1, 1, 1)
        guard = masks[lane] if masks else ""
        _load_piece(f, buffer.dtype, opcode, spots[lane], piece, (name,), guard)


def _never_changes(f: PtxText, buffer: Node) -> bool:
    """Whether no memory of a parameter changes while the kernel runs, so that `ld.nc` may read it.

    A kernel that begins early runs while the one in front writes. ptxas moves `ld.nc` across
    `griddepcontrol.wait`, as it may: PTX says that such memory is read-only for the whole kernel.
    """
    is_read_only = buffer.op is Ops.PARAM and buffer not in f.signature.written
    return is_read_only and not f.target.dependent_launch


def _is_adjacent(node: Node) -> bool:
    """Whether the lanes are neighbours in memory, in order."""
    access = node.arg
    return access.width == 1 or (access.stride == 1 and not node.src[1].shape)


def _spots(f: PtxText, node: Node) -> list[Place]:
    """The address of each lane."""
    buffer, offset = node.src[:2]
    access = node.arg
    if offset.shape:
        return [place_of(f, buffer, offset, lane, access.at) for lane in range(access.width)]
    return [
        place_of(f, buffer, offset, 0, access.at + access.stride * lane)
        for lane in range(access.width)
    ]


def _load_cells(f: PtxText, node: Node, cells: Names, masks: Names) -> None:
    """Elements that are registers."""
    access = node.arg
    first = int(f.one(node.src[1])) + access.at
    kind = ptx_type(node.dtype).bits
    for lane, name in enumerate(f.define(node)):
        cell = cells[first + access.stride * lane]
        if not masks:
            f.emit(f"mov.{kind}", name, cell)
        else:
            f.emit(f"mov.{kind}", name, f.zero(node.dtype))
            f.emit(f"mov.{kind}", name, cell, guard=masks[lane])


def _load_piece(
    f: PtxText, dtype: DType, opcode: str, where: Place, piece: Piece, names: Names, guard: str
) -> None:
    """One load: into the value's own registers, or into words that are taken apart."""
    mine = names[piece.first : piece.first + piece.elements]
    direct = piece.elements == piece.words and dtype is not dtypes.bool
    targets = mine if direct else tuple([f.fresh("%r") for _ in range(piece.words)])
    if guard:
        bits = ptx_type(dtype).bits if direct else "b32"
        for name in targets:
            f.emit(f"mov.{bits}", name, f.zero(dtype) if direct else "0")
    text = where.text(piece.first * dtype.itemsize)
    f.emit(f"{opcode}{_suffix(piece)}", _vector(targets), text, guard=guard)
    if not direct:
        _unpack(f, dtype, targets, mine)


def _unpack(f: PtxText, dtype: DType, words: Names, results: Names) -> None:
    """Elements of 8 and 16 bits out of 32-bit words."""
    per = 4 // dtype.itemsize
    for place, result in enumerate(results):
        word, part = words[place // per], place % per
        if dtype.is_float:
            if part == 0:
                other = results[place + 1] if place + 1 < len(results) else "_"
                f.emit("mov.b32", f"{{{result}, {other}}}", word)
        elif dtype is dtypes.bool:
            octet = f.fresh("%r")
            f.emit("prmt.b32", octet, word, "0", selector(dtype, part))
            f.emit("setp.ne.u32", result, octet, "0")
        else:
            f.emit("prmt.b32", result, word, "0", selector(dtype, part))


def selector(dtype: DType, part: int) -> str:
    """The selector of `prmt` that takes an element out of a word and extends it.

    A nibble below 4 names a byte of the word, 4 a zero, and with 8 added its byte's sign repeated.
    """
    size = dtype.itemsize
    first = part * size
    last = first + size - 1
    fill = 8 | last if dtype.kind == "int" else 4
    nibbles = [first + k if k < size else fill for k in range(4)]
    return f"0x{sum(nibble << 4 * k for k, nibble in enumerate(nibbles)):04X}"


# --- stores --------------------------------------------------------------------------------------


def _vstore(f: PtxText, node: Node) -> None:
    buffer, offset, value, *mask = node.src
    access = node.arg
    values = f.lanes(value, access.width)
    masks = f.lanes(mask[0], access.width) if mask else ()
    cells = f.cells.get(buffer)
    if cells is not None:
        first = int(f.one(offset)) + access.at
        for lane, name in enumerate(values):
            cell = cells[first + access.stride * lane]
            guard = masks[lane] if masks else ""
            f.emit(f"mov.{ptx_type(buffer.dtype).bits}", cell, name, guard=guard)
        return
    opcode = f"st.{_space(buffer)}"
    if _is_adjacent(node) and len(set(masks)) <= 1:
        where = place_of(f, buffer, offset, 0, access.at)
        guard = masks[0] if masks else ""
        for piece in _pieces(buffer.dtype, access.width, access.align, f.target.load_bytes):
            _store_piece(f, buffer.dtype, opcode, where, piece, values, guard)
        return
    for lane, spot in enumerate(_spots(f, node)):
        (piece,) = _pieces(buffer.dtype, 1, 1, 1)
        guard = masks[lane] if masks else ""
        _store_piece(f, buffer.dtype, opcode, spot, piece, (values[lane],), guard)


def _store_piece(
    f: PtxText, dtype: DType, opcode: str, where: Place, piece: Piece, values: Names, guard: str
) -> None:
    mine = values[piece.first : piece.first + piece.elements]
    if dtype is dtypes.bool:
        mine = tuple([_octet(f, name) for name in mine])
    if piece.words > 1 or piece.elements > 1:
        mine = tuple([f.held(name, _register_dtype(dtype)) for name in mine])
    if piece.elements != piece.words:
        mine = _pack(f, dtype, mine)
    text = where.text(piece.first * dtype.itemsize)
    f.emit(f"{opcode}{_suffix(piece)}", text, _vector(mine), guard=guard)


def _register_dtype(dtype: DType) -> DType:
    return dtypes.uint8 if dtype is dtypes.bool else dtype


def _octet(f: PtxText, name: str) -> str:
    found = f.fresh("%r")
    f.emit("selp.b32", found, "1", "0", name)
    return found


def _pack(f: PtxText, dtype: DType, names: Names) -> Names:
    """Elements of 8 and 16 bits put together to 32-bit words."""
    if dtype.is_float:
        pairs = list(zip(names[0::2], names[1::2], strict=True))
        words = [f.fresh("%r") for _ in pairs]
        for word, (low, high) in zip(words, pairs, strict=True):
            f.emit("mov.b32", word, f"{{{low}, {high}}}")
        return tuple(words)
    if dtype.itemsize == 1:
        names = _joined(f, names, "0x0040")
    return _joined(f, names, "0x5410") if len(names) > 1 else names


def _joined(f: PtxText, names: Names, choice: str) -> Names:
    found = []
    for low, high in zip(names[0::2], names[1::2], strict=True):
        word = f.fresh("%r")
        f.emit("prmt.b32", word, low, high, choice)
        found.append(word)
    return tuple(found)


MEMORY_RULES: MappingProxyType[Op, Rule] = MappingProxyType(
    {
        Ops.SPLAT: _splat,
        Ops.LANES: _line,
        Ops.PART: _part,
        Ops.EXTRACT: _extract,
        Ops.ANY: _any,
        Ops.READ: _read,
        Ops.SET: _set,
        Ops.VLOAD: _vload,
        Ops.VSTORE: _vstore,
    }
)
