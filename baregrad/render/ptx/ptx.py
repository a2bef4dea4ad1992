"""Linear level to PTX text: one entry, the code of one thread.

Values are PTX's virtual registers, named by kind: %p predicates, %r and %rd integers of 32 and 64
bits, %h codes of 16-bit floats, %f and %fd floats. A vector is one of them for each lane. The entry
takes an address for each parameter, `p0` for slot 0, then 64 bits for each symbolic integer.
Source: PTX ISA 8.8.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from types import MappingProxyType

from baregrad.base.errors import CompilerBug
from baregrad.ir.analysis.rows import by_rows
from baregrad.ir.analysis.words import WORD_NBYTES
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import ELEMENTWISE, Op, Ops, mask_of
from baregrad.render.gpu import BLOCK, WAIT, WAITS, gpu_signature
from baregrad.render.gpu_integers import narrow_integers
from baregrad.render.group_registers import blocks_of_groups
from baregrad.render.interface import leaves
from baregrad.render.ptx.fetch_ahead import FOLDS, HINTS, fetch_ahead, read_once
from baregrad.render.ptx.hopper import registers_at_launch
from baregrad.render.ptx.machine import machine
from baregrad.render.ptx.memory import MEMORY_RULES
from baregrad.render.ptx.ops import across, elementwise
from baregrad.render.ptx.text import Open, PtxText, Rule
from baregrad.render.ptx.types import DECLARED, ptx_type
from baregrad.target.gpu import NvidiaTarget

# What may go on while the kernel in front still runs, since it touches no memory of the device:
# arithmetic, what is done under a condition or in a loop, and what prepares barriers for a block.
_ARITHMETIC = mask_of(ELEMENTWISE)
_OPENS, _CLOSES = Ops.TEST.bit | Ops.BEGIN.bit, Ops.END.bit
_BEFORE_WAIT = _ARITHMETIC | Ops.SET.bit | _OPENS | _CLOSES
_PREPARES = frozenset((
    "warps", "elect", "mbarrier.init", "mbarrier.fence_init", "bar.sync", "barrier.cluster",
))  # fmt: skip
# Threads that a multiprocessor is to have, in blocks that are large from so many threads on;
# registers of a thread beside the elements that it loads; and how many it may want for.
BUSY_THREADS, LARGE_BLOCK = 1024, 512
OTHER_REGISTERS, MOST_WANTING = 24, 40


def render(
    program: Node, target: NvidiaTarget, variables: Sequence[str] | None, arrays: int
) -> str:
    """The PTX module of one PROGRAM, for one generation of GPUs."""
    narrowed = narrow_integers(by_rows(program))
    signature = gpu_signature(narrowed, variables, arrays)
    signature.check(target)
    return _module(PtxText(narrowed, target, signature))


def _module(f: PtxText) -> str:
    """The text of a module."""
    outside, inside = f.memory()
    f.prologue()
    _prefetch_maps(f)
    waits_at = _place_of_wait(f.program.src) if f.target.dependent_launch else -1
    f.guarded = _guarded(f.program.src)
    f.rolled = _rolled(f.program.src)
    if f.target.ptx_isa >= HINTS:
        f.passing = read_once(f.program, f.signature.threads) - f.signature.written
    for place, node in enumerate(f.program.src):
        rule = _RULES.get(node.op)
        if rule is None:
            raise CompilerBug("PTX has no rule for an op", found=node)
        if place == waits_at:
            fetch_ahead(f)
            f.emit(WAIT)
        rule(f, node)
    if waits_at == len(f.program.src):
        f.emit(WAIT)
    major, minor = f.target.ptx_isa
    call = f.signature.call
    declared = [
        f"  .reg .{kind} {prefix}<{f.counts[prefix] + 1}>;"
        for prefix, kind in DECLARED.items()
        if prefix in f.counts
    ]
    return "\n".join(
        (
            f".version {major}.{minor}",
            f".target {f.target.architecture}",
            ".address_size 64",
            *outside,
            f".visible .entry {call.entry}({_parameters(f)})",
            *_launch_bounds(f),
            "{",
            *declared,
            *inside,
            *f.lines,
            "  ret;",
            "}",
            "",
        )
    )


def _place_of_wait(code: Sequence[Node]) -> int:
    """Before which instruction all threads wait for the kernel in front: as late as may be."""
    depth, found = 0, 0
    if any(node.op is Ops.MACHINE and node.arg.name == WAITS for node in code):
        return -1
    for place, node in enumerate(code):
        if not depth:
            found = place
        prepares = node.op is Ops.MACHINE and node.arg.name in _PREPARES
        if not (prepares or node.op.bit & _BEFORE_WAIT):
            return found
        depth += bool(node.op.bit & _OPENS) - bool(node.op.bit & _CLOSES)
    return len(code)


def _prefetch_maps(f: PtxText) -> None:
    """Ask for tensor maps, which are the launch's own: the first copy by each would wait for it."""
    maps = len(f.signature.boxes)
    if not maps:
        return
    first = f.made("%p", "setp.eq.u32", f.made("%r", "mov.u32", "%tid.x"), "0")
    for number in range(maps):
        f.emit("prefetch.param.tensormap", f"[m{number}]", guard=first)


def _launch_bounds(f: PtxText) -> list[str]:
    """What every launch has, so that registers are allotted for it."""
    info = f.program.arg
    lines = [f".reqntid {f.signature.threads}, 1, 1"]
    if _shares_registers(f):
        lines.append(f".minnctapersm {BUSY_THREADS // f.signature.threads}")
    elif blocks := _blocks_of_loads(f):
        lines.append(f".minnctapersm {blocks}")
    elif (blocks := _blocks(f)) > (not f.program.arg.copiers):
        # Registers change hands where it is said how many there are.
        lines.append(f".minnctapersm {blocks}")
    if info.cluster > 1:
        lines.append(f".reqnctapercluster {info.cluster}, 1, 1")
    if f.signature.warps:
        if any(node.op is Ops.MACHINE and node.arg.name == "setmaxnreg" for node in f.program.src):
            lines.append(f".maxnreg {registers_at_launch(f)}")
    return lines


def _begins_with_powers(code: Sequence[Node]) -> bool:
    """Whether threads take powers before they meet, in no loop."""
    for node in code:
        if node.op is Ops.EXP2_NEAR:
            return all(one.op is not Ops.BEGIN for one in code)
        if node.op is Ops.BEGIN or (node.op is Ops.MACHINE and node.arg.name in FOLDS):
            return False
    return False


def _blocks(f: PtxText) -> int:
    return blocks_of_groups(f.program, f.signature, f.target)


def _loaded_nbytes(code: Sequence[Node]) -> int:
    """Bytes that a thread loads, of what is under conditions the most that one of them lets be."""
    machine = [node for node in code if node.op is Ops.MACHINE]
    copied = {node.src[0] for node in machine if node.arg.name == "cp.async"}
    always = inside = most = depth = 0
    is_test = False
    for node in code:
        if not depth:
            most, inside, is_test = max(most, inside), 0, node.op is Ops.TEST
        depth += (node.op in (Ops.BEGIN, Ops.TEST)) - (node.op is Ops.END)
        if node.op is Ops.VLOAD and (node.src[0].op is Ops.PARAM or node.src[0] in copied):
            nbytes = max(node.arg.width, 1) * node.dtype.itemsize
            always, inside = always + nbytes * (not is_test), inside + nbytes * is_test
    return always + max(most, inside)


def _blocks_of_loads(f: PtxText) -> int:
    """How many blocks have registers for all that their threads load at once; or 0.

    Of words that are multiplied, and of what is combined by powers before threads meet. Untold, the
    assembler leaves room for more blocks, and has loads wait behind arithmetic.
    """
    code = f.program.src
    if not f.multiplies_words and not _begins_with_powers(code):
        return 0
    nbytes = _loaded_nbytes(code)
    warps = -(-f.signature.threads // f.target.warp_lanes)
    most: int = f.target.resident_blocks(warps, nbytes // WORD_NBYTES + OTHER_REGISTERS, 0)
    numbers = [one for one in leaves(f.program) if one.op is Ops.VAR and one.arg.name == BLOCK]
    count = max([one.arg.hi + 1 for one in numbers], default=0)
    # A few registers are worth less than that the last blocks begin with the others.
    begins = most * f.target.units < count <= (most + 1) * f.target.units
    # With more than there can be, the assembler would take neither number.
    return most + (begins and most < f.target.resident_blocks(warps, 1, 0))


def _shares_registers(f: PtxText) -> bool:
    """Whether a large block leaves registers for another one, of which it would take a few more.

    While a block's threads meet at a barrier they ask memory for nothing.
    """
    code, threads = f.program.src, f.signature.threads
    if not LARGE_BLOCK <= threads < BUSY_THREADS or not any(
        node.op is Ops.MACHINE and node.arg.name == "bar.sync" for node in code
    ):
        return False
    before_loops = takewhile(lambda node: node.op is not Ops.BEGIN, code)
    loads = [node for node in before_loops if node.op is Ops.VLOAD and node.src[0].op is Ops.PARAM]
    wanted: int = sum([node.arg.width for node in loads]) + OTHER_REGISTERS
    room: int = f.target.registers_at_launch(BUSY_THREADS)
    return room < wanted <= room + MOST_WANTING


def _parameters(f: PtxText) -> str:
    """The entry's parameters, one a line, with what they are."""
    call = f.signature.call
    written = f.signature.written
    rows = []
    for param in call.params:
        shape = ", ".join([_extent_text(extent) for extent in param.shape])
        use = "written" if param in written else "read"
        rows.append((f".param .u64 p{param.arg.slot}", f"{param.dtype}[{shape}], {use}"))
    for place, name in enumerate(call.variables):
        rows.append((f".param .s64 v{place}", name))
    for place, box in enumerate(f.signature.boxes):
        sizes = " x ".join(map(str, reversed(box.box)))
        what = f"tensor map of p{box.param.arg.slot}, boxes of {sizes}"
        rows.append((f".param .align 64 .b8 m{place}[128]", what))
    last = len(rows) - 1
    lines = [f"  {text}{',' * (n < last)}  // {what}\n" for n, (text, what) in enumerate(rows)]
    return "".join(["\n", *lines]) if lines else ""


def _extent_text(extent: int | Node) -> str:
    if isinstance(extent, int):
        return str(extent)
    return str(extent.arg.name) if extent.op is Ops.VAR else "..."


# --- control -------------------------------------------------------------------------------------


def _begin(f: PtxText, node: Node) -> None:
    low, high = node.src
    start, stop = f.one(low), f.one(high)
    kind = ptx_type(node.dtype)
    (counter,) = f.define(node)
    label = f.fresh_label()
    if high.op is Ops.REG:
        # The end is what it is when the loop begins.
        stop = f.value(node.dtype, f"mov.{kind.bits}", stop)
    f.emit(f"mov.{kind.bits}", counter, start)
    if not (low.op is Ops.CONST and high.op is Ops.CONST and low.arg < high.arg):
        none = f.made("%p", f"setp.ge.{kind.compute}", counter, stop)
        f.emit("bra", f"E{label}", guard=none)
    # What was computed ahead of a loop may be something else in the second iteration.
    f.computed = ""
    f.label(f"L{label}")
    if node in f.rolled:
        f.emit('.pragma "nounroll"')
    f.open.append(Open(label, counter, stop, kind.compute))


def _rolled(code: Sequence[Node]) -> frozenset[Node]:
    """The loops whose bodies are products of four warps: written out they would take no less time.

    The assembler would write them out, and take seconds for it.
    """
    found: set[Node] = set()
    around: list[Node] = []
    for node in code:
        if node.op is Ops.BEGIN or node.op is Ops.TEST:
            around.append(node)
        elif node.op is Ops.END:
            around.pop()
        elif node.op is Ops.MACHINE and node.arg.name == "wgmma":
            found.update(around)
    return frozenset(found)


def _guarded(code: Sequence[Node]) -> frozenset[Node]:
    """The conditions around copies that are begun, or asked for, alone: each is guarded.

    A branch would end what the assembler puts in order.
    """
    found: set[Node] = set()
    others: set[Node] = set()
    for place, node in enumerate(code):
        if node.op is not Ops.TEST:
            continue
        inside = takewhile(lambda one: one.op is not Ops.END, code[place + 1 :])
        plain = all(
            one.op.bit & _ARITHMETIC or one.op is Ops.PREFETCH
            or (one.op is Ops.MACHINE and one.arg.name == "cp.async")
            for one in inside
        )
        (found if plain else others).add(node)
    return frozenset(found - others)


def _test(f: PtxText, node: Node) -> None:
    condition = f.one(node.src[0])
    if node in f.guarded:
        f.open.append(Open("", guard=condition))
        return
    label = f.fresh_label()
    f.emit("bra", f"E{label}", guard=f"!{condition}")
    f.open.append(Open(label))


def _end(f: PtxText, node: Node) -> None:
    block = f.open[-1]
    # Where a body is left out, nothing was computed in it.
    f.computed = ""
    if block.counter:
        f.emit(f"add.{block.kind}", block.counter, block.counter, "1")
        more = f.made("%p", f"setp.lt.{block.kind}", block.counter, block.stop)
        f.emit("bra", f"L{block.label}", guard=more)
    f.leave()
    if not block.guard:
        f.label(f"E{block.label}")


_RULES: MappingProxyType[Op, Rule] = MappingProxyType(
    {
        **dict.fromkeys(ELEMENTWISE, elementwise),
        **MEMORY_RULES,
        Ops.ACROSS: across,
        Ops.BEGIN: _begin,
        Ops.TEST: _test,
        Ops.END: _end,
        Ops.MACHINE: machine,
    }
)
