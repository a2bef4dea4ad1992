"""Lanes, registers, loads and stores in PTX: one rule per op.

A vector access becomes the fewest instructions that its alignment allows: of 16 bytes, or 32 where
the target has them. Elements of 8 and 16 bits travel in words of 32, and are unpacked by byte
permutations. Source: PTX ISA, "ld", "st", "prmt".
"""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Op, Ops
from baregrad.render.gpu import pieces
from baregrad.render.ptx.text import Names, PtxText, Rule, braces
from baregrad.render.ptx.types import ptx_type, sign_text

# --- lanes and registers -------------------------------------------------------------------------


def copy(f: PtxText, node: Node, names: Names) -> None:
    """The value of a node is what some registers hold now."""
    _move(f, node, f.define(node), names)


def alias(f: PtxText, node: Node, source: Node, names: Names) -> None:
    """The value of a node is part of another's: the same registers, unless they may change."""
    if source.op is Ops.REG:
        copy(f, node, names)
    else:
        f.names[node] = names


def _splat(f: PtxText, node: Node) -> None:
    (x,) = node.src
    name = f.one(x)
    if x.op is Ops.REG:
        name = f.value(node.dtype, f"mov.{ptx_type(node.dtype).bits}", name)
    f.names[node] = (name,) * f.width(node)


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


def _join(f: PtxText, node: Node) -> None:
    names = tuple([f.one(x) for x in node.src])
    if any(x.op is Ops.REG for x in node.src):
        copy(f, node, names)
    else:
        f.names[node] = names


def _any(f: PtxText, node: Node) -> None:
    names = f.use(node.src[0])
    (result,) = f.define(node)
    total = names[0]
    for name in names[1:-1]:
        total = f.made("%p", "or.pred", total, name)
    if len(names) > 1:
        f.emit("or.pred", result, total, names[-1])
    else:
        f.emit("mov.pred", result, total)


def _read(f: PtxText, node: Node) -> None:
    copy(f, node, f.lanes(node.src[0], f.width(node)))


def _set(f: PtxText, node: Node) -> None:
    register, value = node.src
    targets = f.use(register)
    if f.results.get(value) is not register:
        _move(f, register, targets, f.lanes(value, len(targets)))
    if register.dtype is dtypes.float32 and value.op in (Ops.FMA, Ops.ADD, Ops.MUL):
        f.computed = targets[-1]
    elif f.computed in targets:
        f.computed = ""


def _move(f: PtxText, node: Node, targets: Names, sources: Names) -> None:
    kind = ptx_type(node.dtype).bits
    for target, source in zip(targets, sources, strict=True):
        f.emit(f"mov.{kind}", target, source)


# --- addresses -----------------------------------------------------------------------------------


class PtxAddress(NamedTuple):
    """An address: a register or symbol, and a displacement in bytes."""

    base: str
    at: int

    def text(self, more: int = 0) -> str:
        """The operand of a load or store, some bytes further on."""
        at = self.at + more
        # ptxas takes a sum alone, also of a negative offset.
        return f"[{self.base}+{at}]" if at else f"[{self.base}]"


_SPACES: MappingProxyType[str, str] = MappingProxyType({"shared": "shared", "device": "global"})


def _space(buffer: Node) -> str:
    if buffer.op is Ops.PARAM:
        return "global"
    return _SPACES.get(buffer.arg.space, "local")


def _base(f: PtxText, buffer: Node) -> PtxAddress:
    if buffer.op is Ops.PARAM:
        return PtxAddress(f.names[buffer][0], 0)
    if buffer.arg.space == "shared":
        return PtxAddress("shared_memory", f.signature.shared[buffer])
    name = "device" if buffer.arg.space == "device" else "local"
    return PtxAddress(f"{name}{buffer.arg.id}", 0)


def place_of(f: PtxText, buffer: Node, offset: Node, lane: int, elements: int) -> PtxAddress:
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
# The widest access of memory that is a block's or a thread's own.
_NEAR_BYTES = 16
# What one prefetch brings, at most.
LINE_NBYTES = 128


def _near(f: PtxText, base: str, at: int, space: str) -> PtxAddress:
    if abs(at) < _FAR or space != "global":
        return PtxAddress(base, at)
    moved = f.made("%rd", "add.s64", base, str(at))
    return PtxAddress(moved, 0)


def _indexed(f: PtxText, buffer: Node, base: str, offset: Node, name: str) -> str:
    """The register of base + size * offset, made once in a block."""
    key = (buffer, (name,))
    found = f.addresses.get(key)
    if found is not None:
        return found
    size = str(buffer.dtype.itemsize)
    wide = offset.dtype.bits == 64
    space = _space(buffer)
    if space == "shared":
        word = f.made("%r", "cvt.u32.u64", name) if wide else name
        found = f.made("%r", "mad.lo.s32", word, size, f.made("%r", "mov.u32", base))
    else:
        if buffer.op is Ops.ALLOC:
            base = f.made("%rd", "mov.u64", base)
        if not wide:
            opcode = f"mad.wide.{sign_text(offset.dtype)}32"
            found = f.made("%rd", opcode, name, size, base)
        elif size == "1":
            found = f.made("%rd", "add.s64", base, name)
        else:
            found = f.made("%rd", "mad.lo.s64", name, size, base)
    return found if offset.op is Ops.REG else f.remember(key, found)


# --- accesses ------------------------------------------------------------------------------------


class PtxAccess(NamedTuple):
    """One load or store: its address, its first lane and how many lanes, and its words.

    words: how many there are, and their type. guard: the predicate under which it is done, if any.
    """

    where: str
    lane: int
    lanes: int
    words: int
    kind: str
    guard: str

    @property
    def suffix(self) -> str:
        """What ends its opcode."""
        return f".v{self.words}.{self.kind}" if self.words > 1 else f".{self.kind}"


def _words(dtype: DType, lanes: int) -> tuple[int, str]:
    """The number and type of the words that neighbours travel in."""
    nbytes = lanes * dtype.itemsize
    if dtype.itemsize < 4 <= nbytes:
        return nbytes // 4, "b32"
    if dtype.itemsize < 4 and lanes > 1:
        return 1, "u16"
    return lanes, ptx_type(dtype).memory


def _accesses(f: PtxText, node: Node, masks: Names) -> list[PtxAccess]:
    """The loads or stores of an access: as few as its alignment allows, or one for each lane."""
    buffer, offset = node.src[:2]
    access, dtype = node.arg, buffer.dtype
    adjacent = access.width == 1 or (access.stride == 1 and not offset.shape)
    if adjacent and len(set(masks)) == 1:
        where = place_of(f, buffer, offset, 0, access.at)
        size = dtype.itemsize
        most = f.target.load_bytes if _space(buffer) == "global" else _NEAR_BYTES
        return [
            PtxAccess(where.text(lane * size), lane, lanes, *_words(dtype, lanes), masks[0])
            for lane, lanes in pieces(size, access.width, access.align, most)
        ]
    found = []
    for lane in range(access.width):
        place, more = (lane, 0) if offset.shape else (0, access.stride * lane)
        where = place_of(f, buffer, offset, place, access.at + more)
        found.append(PtxAccess(where.text(), lane, 1, *_words(dtype, 1), masks[lane]))
    return found


def _cells(f: PtxText, node: Node) -> Names:
    """The registers that an access of an ALLOC in registers means; () for memory."""
    cells, access = f.cells.get(node.src[0]), node.arg
    if cells is None:
        return ()
    first = int(f.one(node.src[1])) + access.at
    return tuple([cells[first + access.stride * lane] for lane in range(access.width)])


def _masks(f: PtxText, node: Node, mask: list[Node]) -> Names:
    """The predicate of each lane of an access, "" for none."""
    return f.lanes(mask[0], node.arg.width) if mask else ("",) * node.arg.width


def _vector(names: Names) -> str:
    return names[0] if len(names) == 1 else braces(names)


# --- loads ---------------------------------------------------------------------------------------


def _prefetch(f: PtxText, node: Node) -> None:
    """Ask the second cache, which all share, for the lines of an access."""
    where = place_of(f, node.src[0], node.src[1], 0, node.arg.at)
    for at in range(0, node.arg.width * node.src[0].dtype.itemsize, LINE_NBYTES):
        f.emit("prefetch.global.L2", where.text(at), guard=f.open[-1].guard if f.open else "")


def _vload(f: PtxText, node: Node) -> None:
    buffer, _, *mask = node.src
    kind = ptx_type(node.dtype).bits
    masks = _masks(f, node, mask)
    cells = _cells(f, node)
    if cells:
        for name, cell, guard in zip(f.define(node), cells, masks, strict=True):
            if guard:
                f.emit(f"mov.{kind}", name, f.zero(node.dtype))
            f.emit(f"mov.{kind}", name, cell, guard=guard)
        return
    opcode = f"ld.{_space(buffer)}"
    if node.arg.constant and _never_changes(f, buffer):
        opcode += ".nc"
    if buffer in f.passing:
        opcode += ".L1::no_allocate"
    accesses = _accesses(f, node, masks)
    names = f.define(node)
    for access in accesses:
        _load(f, buffer.dtype, opcode, access, names[access.lane : access.lane + access.lanes])
    if node in f.results:
        # What else sets the REG is not in the words that were loaded.
        for name in names:
            f.uppers.pop(name, None)


def _never_changes(f: PtxText, buffer: Node) -> bool:
    """Whether no memory of a parameter changes while the kernel runs, so that `ld.nc` may read it.

    A kernel that begins early runs while the one in front writes. ptxas moves `ld.nc` across
    `griddepcontrol.wait`, as it may: PTX says that such memory is read-only for the whole kernel.
    """
    is_read_only = buffer.op is Ops.PARAM and buffer not in f.signature.written
    return is_read_only and not f.target.dependent_launch


def _load(f: PtxText, dtype: DType, opcode: str, access: PtxAccess, names: Names) -> None:
    """One load: into the value's own registers, or into words that are unpacked."""
    direct = access.lanes == access.words and dtype is not dtypes.bool
    targets = names if direct else tuple([f.fresh("%r") for _ in range(access.words)])
    if access.guard:
        bits = ptx_type(dtype).bits if direct else "b32"
        for name in targets:
            f.emit(f"mov.{bits}", name, f.zero(dtype) if direct else "0")
    f.emit(opcode + access.suffix, _vector(targets), access.where, guard=access.guard)
    if not direct:
        _unpack(f, dtype, targets, names)


def _unpack(f: PtxText, dtype: DType, words: Names, results: Names) -> None:
    """Elements of 8 and 16 bits out of 32-bit words."""
    per = 4 // dtype.itemsize
    for place, result in enumerate(results):
        word, part = words[place // per], place % per
        if dtype.is_float:
            if part == 0:
                other = results[place + 1] if place + 1 < len(results) else "_"
                f.emit("mov.b32", f"{{{result}, {other}}}", word)
            elif dtype is dtypes.bfloat16 and f.multiplies_words:
                f.uppers[result] = word
        elif dtype is dtypes.bool:
            octet = f.made("%r", "prmt.b32", word, "0", selector(dtype, part))
            f.emit("setp.ne.u32", result, octet, "0")
        else:
            f.emit("prmt.b32", result, word, "0", selector(dtype, part))
            f.bytes[result] = word, part


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
    buffer, _, value, *mask = node.src
    values = f.lanes(value, node.arg.width)
    masks = _masks(f, node, mask)
    cells = _cells(f, node)
    for lane, cell in enumerate(cells):
        f.emit(f"mov.{ptx_type(buffer.dtype).bits}", cell, values[lane], guard=masks[lane])
    if not cells:
        for access in _accesses(f, node, masks):
            names = values[access.lane : access.lane + access.lanes]
            _store(f, buffer.dtype, f"st.{_space(buffer)}", access, names)


def _store(f: PtxText, dtype: DType, opcode: str, access: PtxAccess, names: Names) -> None:
    """One store: of the value's own registers, or of words that they are packed into."""
    if dtype is dtypes.bool:
        names = tuple([f.made("%r", "selp.b32", "1", "0", name) for name in names])
        dtype = dtypes.uint8
    if access.lanes > 1:
        names = tuple([f.held(name, dtype) for name in names])
    if access.lanes != access.words:
        names = _pack(f, dtype, names)
    f.emit(opcode + access.suffix, access.where, _vector(names), guard=access.guard)


def _pack(f: PtxText, dtype: DType, names: Names) -> Names:
    """Elements of 8 and 16 bits put together to 32-bit words."""
    if dtype.is_float:
        pairs = zip(names[0::2], names[1::2], strict=True)
        return tuple([f.made("%r", "mov.b32", braces(pair)) for pair in pairs])
    if dtype.itemsize == 1:
        names = _joined(f, names, "0x0040")
    return _joined(f, names, "0x5410") if len(names) > 1 else names


def _joined(f: PtxText, names: Names, choice: str) -> Names:
    pairs = zip(names[0::2], names[1::2], strict=True)
    return tuple([f.made("%r", "prmt.b32", low, high, choice) for low, high in pairs])


MEMORY_RULES: MappingProxyType[Op, Rule] = MappingProxyType(
    {
        Ops.SPLAT: _splat,
        Ops.LANES: _line,
        Ops.PART: _part,
        Ops.JOIN: _join,
        Ops.EXTRACT: _extract,
        Ops.ANY: _any,
        Ops.READ: _read,
        Ops.SET: _set,
        Ops.VLOAD: _vload,
        Ops.VSTORE: _vstore,
        Ops.PREFETCH: _prefetch,
    }
)
