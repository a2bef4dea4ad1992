"""MACHINE instructions of a warp's matrix unit and of copies to shared memory, in PTX.

They stand in the code of one thread; the lanes of a warp do them together. The names, with their
immediates in brackets and their sources:

    mma.sync (k, type[, lane, lane, exchanged]) A words, B words, C   C += A B^T, of 16 x 8:
                                               registers that are changed; of longer ones, two lanes
                                               of each (exchanged: what is done of them later)
    ldmatrix (count, turned[, first]) shared, offset, W   `count` 8 x 8 matrices of 16-bit elements
                                               into the registers W; lane 8i + r gives row r of
                                               matrix i, `first` elements behind the offset
    cvt.pack (type) pair, W                    two floats rounded to 16 bits each, as one word
    cvt.widen (type, type, turned) W, W, W     the four 8-bit floats of a word as two 16-bit ones in
                                               each of two words; turned, the second and the third
                                               change places
    ldmatrix.across (first) shared, offset, W   of 16 rows and 8 steps of tfloat32, a step a row of
                                               128 bytes: `first` elements behind each lane's own
                                               place, the 4 words of A that it has
    cp.async (bytes[, at, first[, lines]]) shared, offset, array, offset[, mask]   zeros where the
                                               mask is false; `at` and `first` elements behind the
                                               offsets; `lines`: the second cache may ask for 128
                                               bytes of memory at once
    cp.async.commit    cp.async.wait (keep)    copies in groups; all but the last `keep` are there
    elect                                      whether this is the one lane that a warp sends

Words are uint32. `k` is how deep A and B are: 32 or 16 bytes of each row, in 4 or 2 words of A and
2 or 1 of B. Fragments are those of PTX ISA, "mma.sync" and "ldmatrix".
"""

from __future__ import annotations

from types import MappingProxyType

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import as_dtype
from baregrad.ir.core.node import Node
from baregrad.render.gpu import ACROSS_NBYTES, LATE_NBYTES
from baregrad.render.ptx.fetch_ahead import HINTS
from baregrad.render.ptx.memory import place_of
from baregrad.render.ptx.text import ALL_LANES, PtxText, Rule, braces
from baregrad.render.ptx.types import ptx_type

# Of each type of A and B: its name in PTX, its bytes, and the name of that of C.
_ELEMENTS: MappingProxyType[str, tuple[str, int, str]] = MappingProxyType(
    {
        "float16": ("f16", 2, "f32"),
        "bfloat16": ("bf16", 2, "f32"),
        "tfloat32": ("tf32", 4, "f32"),
        "int8": ("s8", 1, "s32"),
        "uint8": ("u8", 1, "s32"),
        "float8_e4m3fn": ("e4m3", 1, "f32"),
        "float8_e5m2": ("e5m2", 1, "f32"),
    }
)


def _need(f: PtxText, node: Node, there: bool) -> None:
    """Raise CompilerBug where the target does not have an instruction."""
    if not there:
        raise CompilerBug(f"{f.target.name} has no {node.arg.name} {node.arg.immediates}")


def _multiply(f: PtxText, node: Node) -> None:
    depth, kind, *lanes = node.arg.immediates[:4]
    name, nbytes, total = _ELEMENTS.get(kind, ("", 0, ""))
    if depth * nbytes not in (16, 32):
        raise CompilerBug(
            "no matrix product of a shape",
            found=node.arg.immediates,
            wanted="16 or 32 bytes of " + ", ".join(_ELEMENTS),
        )
    words = depth * nbytes // 8
    _need(f, node, (kind, depth) in f.target.warp_products)
    # Neighbours of C may be a vector, or two of one.
    places = lanes or range(2)
    used = [f.use(child) for child in node.src]
    names = [name for each in used[:-2] for name in each]
    names += [each[place] for each in used[-2:] for place in (places if len(each) > 1 else (0,))]
    if len(names) != words + words // 2 + 4:
        raise CompilerBug("mma.sync of a wrong number of words", found=len(names))
    sums, factors = braces(names[-4:]), [braces(names[:words]), braces(names[words:-4])]
    opcode = f"mma.sync.aligned.m16n8k{depth}.row.col.{total}.{name}.{name}.{total}"
    f.emit(opcode, sums, *factors, sums)


def _load_matrices(f: PtxText, node: Node) -> None:
    count, turned, first = (*node.arg.immediates, 0)[:3]
    buffer, offset, *registers = node.src
    if count not in (1, 2, 4) or len(registers) != count:
        raise CompilerBug("ldmatrix of a wrong number of matrices", found=count, wanted="1, 2 or 4")
    where = place_of(f, buffer, offset, 0, first)
    targets = braces([f.one(register) for register in registers])
    way = ".trans" if turned else ""
    f.emit(f"ldmatrix.sync.aligned.m8n8.x{count}{way}.shared.b16", targets, where.text())


def _load_across(f: PtxText, node: Node) -> None:
    """Two neighbours at a lane's place, and two of 4 steps on or back: the first steps' first.

    Both places differ in the same bits, since chunks are exchanged; one of these tells them apart.
    """
    (first,) = node.arg.immediates
    buffer, offset, *registers = node.src
    place = place_of(f, buffer, offset, 0, 0)
    start = f.made("%r", "add.u32", place.base, str(place.at)) if place.at else place.base
    other = f.made("%r", "xor.b32", start, str(ACROSS_NBYTES))
    bit = f.made("%r", "and.b32", start, str(LATE_NBYTES))
    late = f.made("%p", "setp.ne.u32", bit, "0")
    found = []
    for one in (start, other):
        pair = [f.fresh("%r") for _ in range(2)]
        f.emit("ld.shared.v2.b32", braces(pair), f"[{one}+{4 * first}]")
        found.append(pair)
    for number, register in enumerate(registers):
        mine, theirs = (found[number // 2], found[1 - number // 2])
        f.emit("selp.b32", f.one(register), theirs[number % 2], mine[number % 2], late)


def _pack(f: PtxText, node: Node) -> None:
    pair, word = node.src
    low, high = f.use(pair)
    kind = _ELEMENTS[node.arg.immediates[0]][0]
    f.emit(f"cvt.rn.{kind}x2.f32", f.one(word), high, low)


def _widen(f: PtxText, node: Node) -> None:
    """By way of float16, which such floats are as well; one instruction takes two of them."""
    source, kind, turned = node.arg.immediates
    word = f.one(node.src[0])
    if turned:
        word = f.made("%r", "prmt.b32", word, word, "0x3120")
    halves = [f.fresh("%h") for _ in range(2)]
    f.emit("mov.b32", braces(halves), word)
    opcode = f"cvt.rn.f16x2.{ptx_type(as_dtype(source)).compute}x2"
    for half, target in zip(halves, node.src[1:], strict=True):
        if kind == "float16":
            f.emit(opcode, f.one(target), half)
            continue
        pair = f.made("%r", opcode, half)
        parts = [f.fresh("%h") for _ in range(2)]
        f.emit("mov.b32", braces(parts), pair)
        low, high = (f.made("%f", "cvt.f32.f16", part) for part in parts)
        f.emit(f"cvt.rn.{_ELEMENTS[kind][0]}x2.f32", f.one(target), high, low)


def _copy(f: PtxText, node: Node) -> None:
    nbytes, to, first, lines = (*node.arg.immediates, 0, 0, 0)[:4]
    shared, at, array, offset, *mask = node.src
    _need(f, node, f.target.async_copies)
    if nbytes not in (4, 8, 16):
        raise CompilerBug("a copy of a wrong number of bytes", found=nbytes, wanted="4, 8 or 16")
    target = place_of(f, shared, at, 0, to).text()
    source = place_of(f, array, offset, 0, first).text()
    # Whole sectors need not pass through the first level cache.
    operands = [target, source, str(nbytes)]
    if mask:
        operands.append(f.made("%r", "selp.b32", str(nbytes), "0", f.one(mask[0])))
    guard = f.open[-1].guard if f.open else ""
    opcode = f"cp.async.{'cg' if nbytes == 16 else 'ca'}.shared.global"
    if lines and f.target.ptx_isa >= HINTS:
        opcode += ".L2::128B"
    f.emit(opcode, *operands, guard=guard)


def _group(f: PtxText, node: Node) -> None:
    """A group of copies is closed, or waited for."""
    _need(f, node, f.target.async_copies)
    closes = node.arg.name == "cp.async.commit"
    opcode = "cp.async.commit_group" if closes else "cp.async.wait_group"
    f.emit(opcode, *map(str, node.arg.immediates[:1]))


def _elect(f: PtxText, node: Node) -> None:
    """Lane 0; an instruction for it lets the assembler know that it is one lane."""
    (result,) = f.define(node)
    if f.target.elects:
        f.emit("elect.sync", f"_|{result}", ALL_LANES)
        return
    lane = f.made("%r", "mov.u32", "%laneid")
    f.emit("setp.eq.u32", result, lane, "0")


WARP_RULES: MappingProxyType[str, Rule] = MappingProxyType(
    {
        "mma.sync": _multiply,
        "ldmatrix": _load_matrices,
        "ldmatrix.across": _load_across,
        "cvt.pack": _pack,
        "cvt.widen": _widen,
        "cp.async": _copy,
        "cp.async.commit": _group,
        "cp.async.wait": _group,
        "elect": _elect,
    }
)
