"""What every renderer offers, and what all of them agree on about a program's signature."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, filterfalse
from math import prod
from operator import attrgetter
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar

from baregrad.base.bits import round_up
from baregrad.dtypes import COMPUTED, dtypes
from baregrad.ir.core.attrs import Param
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Op, Ops
from baregrad.target.cpu import CpuTarget
from baregrad.target.gpu import NvidiaTarget

SCRATCH_ALIGNMENT = 64
# The instruction of bits that does an op of bools.
BOOL_OPS: MappingProxyType[Op, str] = MappingProxyType(
    {
        **dict.fromkeys((Ops.ADD, Ops.OR, Ops.MAX), "or"),
        **dict.fromkeys((Ops.MUL, Ops.AND, Ops.MIN), "and"),
        **dict.fromkeys((Ops.SUB, Ops.XOR), "xor"),
    }
)
# How C and LLVM call functions on floats.
FLOAT_FUNCTIONS: MappingProxyType[Op, str] = MappingProxyType(
    {
        **{op: op.name.lower() for op in (Ops.SQRT, Ops.FLOOR, Ops.CEIL, Ops.TRUNC, Ops.FMA)},
        Ops.RINT: "roundeven",
    }
)
INTEGERS = tuple([dtype for dtype in COMPUTED if dtype.kind in ("int", "uint")])


Target = TypeVar("Target", CpuTarget, NvidiaTarget)
# The writer of a language: of a PROGRAM, its target, and `variables` and `arrays` of `render`.
Writer = Callable[[Node, Target, Sequence[str] | None, int], str]


@dataclass(frozen=True, slots=True)
class Renderer(Generic[Target]):
    """Linear level to source text.

    `name` is what options call it; `assembler` is the kind of assembler that takes its text
    ("llvm", "c", "ptxas" or "nvrtc").
    """

    name: str
    assembler: str
    write: Writer[Target]

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
        return self.write(program, target, variables, arrays)


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
    for node in leaves(program):
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
    program.memo[_SCRATCH] = nbytes
    ordered = tuple([params[slot] for slot in sorted(params)])
    names = tuple(sorted(used) if variables is None else variables)
    return Signature(entry_name(program), ordered, names, scratch, nbytes, tuple(stack))


_SCRATCH = "render.scratch"
_sources_of = attrgetter("src")
_LEAVES = frozenset((Ops.PARAM, Ops.VAR, Ops.ALLOC, Ops.REG))


def leaves(program: Node) -> list[Node]:
    """What the instructions of a PROGRAM refer to and no instruction makes, in order of use."""
    memo = program.memo
    found: list[Node] | None = memo.get("leaves")
    if found is None:
        # Most operands are made by instructions, which have operands themselves.
        used = chain.from_iterable(map(_sources_of, program.src))
        bare = dict.fromkeys(filterfalse(_sources_of, used))
        found = [node for node in bare if node.op in _LEAVES]
        memo["leaves"] = found
    return found


def scratch_nbytes(program: Node) -> int:
    """Bytes of scratch memory that each thread running a PROGRAM needs."""
    known: int | None = program.memo.get(_SCRATCH)
    return signature(program).scratch_nbytes if known is None else known


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
