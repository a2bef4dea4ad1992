"""What every renderer offers, and what all of them agree on about a program's signature."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import NamedTuple, Protocol, TypeVar

from baregrad.base.bits import round_up
from baregrad.dtypes import dtypes
from baregrad.ir.attrs import Param
from baregrad.ir.node import Node
from baregrad.ir.op import Ops, mask_of
from baregrad.target.cpu import CpuTarget
from baregrad.target.gpu import GpuTarget

SCRATCH_ALIGNMENT = 64


Target = TypeVar("Target", CpuTarget, GpuTarget, contravariant=True)


class Renderer(Protocol[Target]):
    """Linear level to source text.

    `name` is what options call it; `assembler` is the kind of assembler that takes its text
    ("llvm", "c", "ptxas" or "nvrtc").
    """

    @property
    def name(self) -> str:
        """What options call it."""

    @property
    def assembler(self) -> str:
        """The kind of assembler that takes its text."""

    def render(
        self,
        program: Node,
        target: Target,
        variables: Sequence[str] | None = None,
        arrays: int = 0,
    ) -> str:
        """The source text of a PROGRAM; equal arguments give equal texts.

        variables: the names of symbolic integers in the order of the call; by default those that
        the program uses, sorted. arrays: how many arrays the call passes, where the program may use
        fewer.
        """


class Signature(NamedTuple):
    """How a PROGRAM is called.

    entry: its symbol. params: its PARAM nodes in order of slot. variables: the names of its
    symbolic integers, in the order of the call. scratch: the byte offset of each ALLOC in the
    thread's scratch memory, whose size is `scratch_nbytes`. stack: ALLOCs that are locals.
    """

    entry: str
    params: tuple[Node, ...]
    variables: tuple[str, ...]
    scratch: dict[Node, int]
    scratch_nbytes: int
    stack: tuple[Node, ...]


def signature(
    program: Node, variables: Sequence[str] | None = None, arrays: int = 0
) -> Signature:
    """The signature of a PROGRAM; `variables` and `arrays` as a renderer takes them."""
    params: dict[int, Node] = {}
    used: set[str] = set()
    scratch: dict[Node, int] = {}
    stack: list[Node] = []
    nbytes = 0
    for node in _leaves(program):
        op = node.op
        if op is Ops.PARAM:
            params[node.arg.slot] = node
        elif op is Ops.VAR:
            if not node.arg.name.startswith("."):
                used.add(node.arg.name)
        elif op is Ops.ALLOC:
            if node.arg.space == "register":
                stack.append(node)
            else:
                scratch[node] = nbytes
                nbytes = round_up(nbytes + alloc_nbytes(node), SCRATCH_ALIGNMENT)
    for slot in range(arrays):
        if slot not in params:
            params[slot] = Node(Ops.PARAM, dtypes.uint8, (), Param(slot, ()))
    ordered = tuple(params[slot] for slot in sorted(params))
    names = tuple(sorted(used) if variables is None else variables)
    return Signature(entry_name(program), ordered, names, scratch, nbytes, tuple(stack))


_LEAVES = mask_of((Ops.PARAM, Ops.VAR, Ops.ALLOC, Ops.REG))


def _leaves(program: Node) -> list[Node]:
    """What the instructions of a PROGRAM refer to and no instruction makes, in order of use."""
    memo = program.memo
    found: list[Node] | None = memo.get("leaves")
    if found is None:
        # Most operands are made by instructions, which have operands themselves.
        used = dict.fromkeys(chain.from_iterable([node.src for node in program.src]))
        found = [node for node in used if not node.src and node.op.bit & _LEAVES]
        memo["leaves"] = found
    return found


def scratch_nbytes(program: Node) -> int:
    """Bytes of scratch memory that each thread running a PROGRAM needs."""
    return signature(program).scratch_nbytes


def alloc_nbytes(alloc: Node) -> int:
    """The bytes of an ALLOC of constant extents."""
    count: int = prod(alloc.shape) * max(alloc.arg.depth, 1)
    return count * alloc.dtype.itemsize


def entry_name(program: Node) -> str:
    """The symbol of a program: its kernel's name with anything but letters and digits as `_`."""
    name: str = program.arg.name if program.arg else "kernel"
    if name.isidentifier() and name.isascii():
        return name
    name = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return name if name and not name[0].isdigit() else "k_" + name


def round_float32(value: float) -> float:
    """A Python float as float32 holds it."""
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return rounded


# --- registers ----------------------------------------------------------------------------------


@dataclass(slots=True)
class BlockRegisters:
    """What a loop or condition does to registers.

    carried: written in a loop after being read there, so that an iteration sees the one before.
    merged: written inside and read after the END before being written again. certain: whether the
    body surely runs.
    """

    carried: tuple[Node, ...] = ()
    merged: tuple[Node, ...] = ()
    certain: bool = False


_CONTROL = mask_of((Ops.BEGIN, Ops.TEST, Ops.END))
_REGISTERS = Ops.REG.bit
_SET = Ops.SET
_REG = Ops.REG
_END = Ops.END
# The place of an instruction, itself, and the registers that it reads.
_Event = tuple[int, Node, Collection[Node]]


class _Open:
    """A block being scanned: what it wrote, wrote surely, and read before writing it surely."""

    __slots__ = ("begin", "exposed", "killed", "loops", "written")

    def __init__(self, begin: int, loops: bool) -> None:
        self.begin = begin
        self.loops = loops
        self.written: dict[Node, None] = {}
        self.killed: set[Node] = set()
        self.exposed: set[Node] = set()


def block_registers(program: Node) -> dict[int, BlockRegisters]:
    """For the place of every BEGIN and TEST, what its block does to registers."""
    code = program.src
    known = frozenset([node for node in _leaves(program) if node.op is _REG])
    blocks: dict[int, BlockRegisters] = {}
    scanned: dict[int, _Open] = {}
    ends: dict[int, int] = {}
    events: list[_Event] = []
    innermost = _Open(-1, False)
    stack = [innermost]
    read_of, unrelated = known.intersection, known.isdisjoint
    # Most read no register, and the masks of most of those say so.
    asked = [
        (place, node)
        for place, node in enumerate(code)
        if node.mask & _REGISTERS or node.op.bit & _CONTROL
    ]
    for place, node in asked:
        op = node.op
        reads: Collection[Node] = ()
        if op is _SET:
            register, value = node.src
            if value.op is _REG:
                _expose((value,), stack)
                reads = (value,)
            innermost.killed.add(register)
            innermost.written[register] = None
        elif op.bit & _CONTROL:
            if op is _END:
                closed = stack.pop()
                innermost = stack[-1]
                scanned[closed.begin] = closed
                ends[place] = closed.begin
                innermost.written.update(closed.written)
                if blocks[closed.begin].certain:
                    innermost.killed |= closed.killed
            else:
                low, high = node.src[0], node.src[-1]
                reads = read_of(node.src)
                _expose(reads, stack)
                certain = op is Ops.BEGIN and len(node.src) == 2
                certain = certain and low.op is Ops.CONST and high.op is Ops.CONST
                blocks[place] = BlockRegisters((), (), certain and low.arg < high.arg)
                innermost = _Open(place, op is Ops.BEGIN)
                stack.append(innermost)
        elif unrelated(node.src):
            continue
        else:
            reads = read_of(node.src)
            _expose(reads, stack)
        events.append((place, node, reads))
    if known:
        _find_merges(events, blocks, scanned, ends)
    return blocks


def _expose(reads: Collection[Node], stack: list[_Open]) -> None:
    """Tell the open blocks of registers that are read before they were surely written."""
    for read in reads:
        for block in reversed(stack):
            # What is exposed here was already told to the blocks around.
            if read in block.exposed or read in block.killed:
                break
            block.exposed.add(read)


def _find_merges(
    events: list[_Event],
    blocks: dict[int, BlockRegisters],
    scanned: dict[int, _Open],
    ends: dict[int, int],
) -> None:
    """Go backwards with the registers that will be read, and fill in `carried` and `merged`."""
    live: set[Node] = set()
    after: list[set[Node]] = []
    for place, node, reads in reversed(events):
        op = node.op
        if op is _SET:
            live.discard(node.src[0])
        elif op is Ops.END:
            begin = ends[place]
            found = scanned[begin]
            block = blocks[begin]
            block.merged = tuple([r for r in found.written if r in live])
            if found.loops:
                block.carried = tuple([r for r in found.written if r in found.exposed])
            after.append(live)
            live = live | found.exposed
            continue
        elif op.bit & _CONTROL:
            outside = after.pop()
            if not blocks[place].certain:
                live = live | outside
        if reads:
            live.update(reads)
