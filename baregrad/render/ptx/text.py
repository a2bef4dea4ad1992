"""The text of one PTX kernel while it is written: registers, operands, addresses, open blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import ELEMENTWISE, WORD_PRODUCTS, Ops, mask_of
from baregrad.render.gpu import HIDDEN, GpuSignature
from baregrad.render.interface import alloc_nbytes, leaves
from baregrad.render.ptx.types import literal, ptx_type
from baregrad.target.gpu import NvidiaTarget

Names = tuple[str, ...]
ALL_LANES = "0xFFFFFFFF"
_BLOCKS = mask_of((Ops.BEGIN, Ops.TEST, Ops.END))
_STEPS = mask_of(ELEMENTWISE) | Ops.VLOAD.bit


@dataclass(slots=True)
class Open:
    """A loop or condition being written: its label, and of a loop the counter and its end.

    guard: the predicate of a condition that is no branch: what has an effect inside has it.
    """

    label: str
    counter: str = ""
    stop: str = ""
    kind: str = ""
    guard: str = ""
    addresses: list[tuple[Node, Names]] = field(default_factory=list)


class PtxText:
    """One kernel being written.

    A value is a tuple of registers (or literals), one a lane, or one for all lanes. PTX registers
    are variables, so a REG is one for each lane, and any other value gets new ones each time that
    its instruction is written.
    """

    def __init__(self, program: Node, target: NvidiaTarget, signature: GpuSignature) -> None:
        self.program = program
        self.target = target
        self.signature = signature
        self.lines: list[str] = []
        self.names: dict[Node, Names] = {}
        self.counts: dict[str, int] = {}
        self.labels = 0
        self.open: list[Open] = []
        # Element addresses that are in a register already, by base and offset.
        self.addresses: dict[tuple[Node, Names], str] = {}
        # The float16 that a float32 was an 8-bit float as, by the register of the float32.
        self.halves: dict[str, str] = {}
        # The float32 that a bfloat16 was rounded from, by the register of the bfloat16.
        self.rounded: dict[str, str] = {}
        # The word whose upper half is a bfloat16, by the register of that, as loaded, where words
        # are multiplied. Elsewhere nothing says how many registers there are: a product of 8-bit
        # codes by floats took 82 for 80, which is a block less of a multiprocessor.
        self.uppers: dict[str, str] = {}
        self.multiplies_words = any(node.op in WORD_PRODUCTS for node in program.src)
        # Which byte of which word a register has, as loaded.
        self.bytes: dict[str, tuple[str, int]] = {}
        # The float32 that arithmetic set a REG to last, since products of groups were begun, where
        # no other way leads to what comes next.
        self.computed = ""
        # The registers of an ALLOC's elements, where every access names them by constants.
        self.cells: dict[Node, Names] = {}
        self.results = _direct_results(program)
        # The conditions that guard instructions and are no branches.
        self.guarded: frozenset[Node] = frozenset()
        self.rolled: frozenset[Node] = frozenset()
        # Arrays that a multiprocessor's cache need not keep.
        self.passing: frozenset[Node] = frozenset()

    # --- registers and operands -----------------------------------------------------------------

    def fresh(self, prefix: str) -> str:
        """A register that nobody has, by the prefix of its kind."""
        count = self.counts[prefix] = self.counts.get(prefix, 0) + 1
        return f"{prefix}{count}"

    def register(self, dtype: DType) -> str:
        """A register for a value of a dtype."""
        return self.fresh(ptx_type(dtype).prefix)

    def define(self, node: Node) -> Names:
        """The registers of a node's value: its own, or those of the REG that it is SET to."""
        register = self.results.get(node)
        if register is not None:
            names = self.use(register)
        else:
            prefix = ptx_type(node.dtype).prefix
            names = tuple([self.fresh(prefix) for _ in range(self.width(node))])
        self.names[node] = names
        return names

    def use(self, node: Node) -> Names:
        """The operands that hold a value now: one a lane, or one for all."""
        found = self.names.get(node)
        if found is not None:
            return found
        op = node.op
        if op is Ops.CONST:
            return (self.constant(node),)
        if op is Ops.REG:
            return self.define(node)
        raise CompilerBug("a value is used before it was made", found=node)

    def one(self, node: Node) -> str:
        """The operand of a scalar."""
        names = self.use(node)
        if len(names) != 1:
            raise CompilerBug("a vector where a scalar belongs", found=node)
        return names[0]

    def lanes(self, node: Node, count: int) -> Names:
        """The operands of a value, one for each of `count` lanes."""
        names = self.use(node)
        return names * count if len(names) == 1 else names

    def constant(self, node: Node) -> str:
        """A constant: a literal, or where instructions take none, a register that holds it."""
        dtype = node.dtype
        text = str(int(node.arg)) if dtype is dtypes.bool else literal(node.arg, dtype)
        if ptx_type(dtype).bits in ("pred", "b16"):
            return self.value(dtype, f"mov.{ptx_type(dtype).bits}", text)
        return text

    def held(self, operand: str, dtype: DType) -> str:
        """An operand in a register, for instructions that take no literals."""
        if operand.startswith("%"):
            return operand
        return self.value(dtype, f"mov.{ptx_type(dtype).bits}", operand)

    def word(self, node: Node) -> str:
        """An integer as 32 bits."""
        name = self.one(node)
        if node.dtype.bits != 64 or not name.startswith("%"):
            return name
        return self.made("%r", "cvt.u32.u64", name)

    def zero(self, dtype: DType) -> str:
        """The literal 0 of a dtype; of a bool, as `mov` takes it."""
        return "0" if dtype is dtypes.bool else literal(0, dtype)

    def width(self, node: Node) -> int:
        """The lanes that a thread holds of a value, 1 for a scalar.

        In a PROGRAM of whole warps a vector has one element in each of the warp's threads.
        """
        return node.shape[0] if node.shape and not self.signature.warps else 1

    # --- lines ----------------------------------------------------------------------------------

    def emit(self, opcode: str, *operands: str, guard: str = "") -> None:
        """Add an instruction; `guard` is a predicate, or one with `!` before it."""
        prefix = f"@{guard} " if guard else ""
        text = f"{opcode} {', '.join(operands)}" if operands else opcode
        self.lines.append(f"{'  ' * len(self.open)}  {prefix}{text};")

    def made(self, prefix: str, opcode: str, *operands: str) -> str:
        """A fresh register, by the prefix of its kind, that an instruction writes."""
        register = self.fresh(prefix)
        self.emit(opcode, register, *operands)
        return register

    def value(self, dtype: DType, opcode: str, *operands: str) -> str:
        """A fresh register for a value of a dtype, that an instruction writes."""
        return self.made(ptx_type(dtype).prefix, opcode, *operands)

    def label(self, name: str) -> None:
        """Add a label."""
        self.lines.append(f"{'  ' * len(self.open)}{name}:")

    def fresh_label(self) -> str:
        """The number of a label that nobody has."""
        self.labels += 1
        return str(self.labels)

    # --- the beginning --------------------------------------------------------------------------

    def prologue(self) -> None:
        """Load the arguments and the numbers of block and thread."""
        call = self.signature.call
        used = leaves(self.program)
        for param in filter(set(used).__contains__, call.params):
            address = self.made("%rd", "ld.param.u64", f"[p{param.arg.slot}]")
            self.emit("cvta.to.global.u64", address, address)
            self.names[param] = (address,)
        for node in used:
            if node.op is Ops.VAR:
                self._variable(node)

    def _variable(self, node: Node) -> None:
        name = node.arg.name
        kind = ptx_type(node.dtype)
        register = self.fresh(kind.prefix)
        if name in HIDDEN:
            special = f"%{HIDDEN[name]}.x"
            if kind.bits == "b64":
                self.emit(f"cvt.{kind.compute}.u32", register, special)
            else:
                self.emit("mov.u32", register, special)
        elif name in self.signature.call.variables:
            place = self.signature.call.variables.index(name)
            self.emit(f"ld.param.{kind.compute}", register, f"[v{place}]")
        else:
            raise CompilerBug("a variable that a GPU kernel does not have", found=name)
        self.names[node] = (register,)

    def memory(self) -> tuple[list[str], list[str]]:
        """Declarations of memory, before the kernel and in it; ALLOCs get names or cells."""
        outside: list[str] = []
        inside: list[str] = []
        signature = self.signature
        if signature.shared_nbytes:
            where = f".shared .align {signature.alignment} .b8"
            if signature.dynamic_nbytes(self.target):
                outside.append(f".extern {where} shared_memory[];")
            else:
                inside.append(f"  {where} shared_memory[{signature.shared_nbytes}];")
        for alloc in signature.own:
            outside.append(f".global .align 16 .b8 device{alloc.arg.id}[{alloc_nbytes(alloc)}];")
        constant = _constant_allocs(self.program)
        for alloc in signature.private:
            nbytes = alloc_nbytes(alloc)
            if alloc in constant:
                cells = [self.register(alloc.dtype) for _ in range(nbytes // alloc.dtype.itemsize)]
                self.cells[alloc] = tuple(cells)
            else:
                inside.append(f"  .local .align 16 .b8 local{alloc.arg.id}[{max(nbytes, 1)}];")
        return outside, inside

    # --- blocks ---------------------------------------------------------------------------------

    def leave(self) -> None:
        """Close the innermost block; addresses found in it are forgotten."""
        for key in self.open.pop().addresses:
            self.addresses.pop(key, None)

    def remember(self, key: tuple[Node, Names], address: str) -> str:
        """Keep an address for the innermost block, by its base and offset, and return it."""
        self.addresses[key] = address
        if self.open:
            self.open[-1].addresses.append(key)
        return address


Rule = Callable[[PtxText, Node], None]


def braces(names: Sequence[str]) -> str:
    """Operands that are one vector."""
    return f"{{{', '.join(names)}}}"


def _constant_allocs(program: Node) -> frozenset[Node]:
    """The private ALLOCs whose every access has a constant offset."""
    good: set[Node] = set()
    bad: set[Node] = set()
    for node in program.src:
        for place, child in enumerate(node.src):
            if child.op is Ops.ALLOC:
                access = node.op is Ops.VLOAD or node.op is Ops.VSTORE
                plain = access and place == 0 and node.src[1].op is Ops.CONST
                (good if plain else bad).add(child)
    return frozenset(good - bad)


def _direct_results(program: Node) -> dict[Node, Node]:
    """Instructions whose value is only wanted in a REG: {instruction: the REG}.

    Between the instruction and its SET nothing may touch the REG or open or close a block. An
    instruction writes its result last, so that it may read the REG itself.
    """
    uses: dict[Node, int] = {}
    times: dict[Node, int] = {}
    for node in program.src:
        times[node] = times.get(node, 0) + 1
        for child in node.src:
            uses[child] = uses.get(child, 0) + 1
    found: dict[Node, Node] = {}
    made: dict[Node, int] = {}
    touched: dict[Node, int] = {}
    start = -1
    for place, node in enumerate(program.src):
        if node.op.bit & _BLOCKS:
            start = place
        if node.op is Ops.SET:
            register, value = node.src
            at = made.get(value, -1)
            once = at > start and uses[value] == times[value] == 1
            if once and touched.get(register, -1) <= at and register.shape == value.shape:
                found[value] = register
            touched[register] = touched[value] = place
            continue
        for child in node.src:
            if child.op is Ops.REG:
                touched[child] = place
        if node.op.bit & _STEPS:
            made[node] = place
    return found
