"""Linear level to LLVM IR text.

Every value is in static single assignment form already: registers that the program writes become
phi nodes here, so LLVM needs no pass to find that out. Floating-point operations carry no
fast-math flags and nothing is contracted, so the bits are those of the evaluator.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from baregrad.base.errors import CompilerBug
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Op, Ops
from baregrad.render.llvm.masks import doubts
from baregrad.render.llvm.memory import MEMORY_RULES
from baregrad.render.llvm.ops import ELEMENTWISE_RULES
from baregrad.render.llvm.registers import ControlBlock
from baregrad.render.llvm.rows import AFTER_ROWS, flush_rows, write_rows
from baregrad.render.llvm.text import POISON, FunctionText, IntrinsicCall, Rule, each_row
from baregrad.render.llvm.tile_runs import TILE_RULES, llvm_configured
from baregrad.render.llvm.types import value_type
from baregrad.target.cpu import CpuTarget

_VSTORE = Ops.VSTORE


def render(
    program: Node, target: CpuTarget, variables: Sequence[str] | None, arrays: int
) -> str:
    """The module of one PROGRAM: one function of the CPU kernels' signature.

    It finds its arrays by slot, however many `arrays` there are.
    """
    f = _written(program, target, variables, True)
    entry = f.signature.entry
    if not f.streamed:
        return _text(f, _function(entry, "", f.lines))
    # Where they are not aligned, or are read as well, the same kernel with ordinary stores.
    plain = _written(program, target, variables, False).lines
    if target.fences_streams:
        # Such stores are not in order: they must be done before the chunk is reported as done.
        f.run(IntrinsicCall.of("llvm.x86.sse.sfence", "void"))
    functions = [
        *_function(entry, "", _choice(f)),
        *_function(f"{entry}.streamed", "internal ", f.lines),
        *_function(f"{entry}.plain", "internal ", plain),
    ]
    return _text(f, functions) + "!1 = !{i32 1}\n"


def _written(
    program: Node, target: CpuTarget, variables: Sequence[str] | None, streams: bool
) -> FunctionText:
    """The text of a PROGRAM's function, with stores that bypass the caches or without."""
    f = FunctionText(program, target, variables, streams)
    f.prologue()
    first = len(f.lines)
    for node in program.src:
        op = node.op
        rule = _rule_of(op)
        if rule is None:
            raise CompilerBug("LLVM IR has no rule for an op", found=node)
        if len(node.shape) == 2 or (op is _VSTORE and node.arg.rows):
            write_rows(f, node, rule)
            continue
        if f.block and op in AFTER_ROWS:
            flush_rows(f, op is Ops.SET)
        rule(f, node)
    f.lines[first:first] = doubts(f)
    if f.tiles:
        llvm_configured(f, first)
    return f


_ARGUMENTS = ("%buffers", "%variables", "%begin", "%end", "%scratch")
_PARAMETERS = "ptr noalias {}, ptr noalias {}, i64 {}, i64 {}, ptr noalias {}".format(*_ARGUMENTS)
_PASSED = "ptr {}, ptr {}, i64 {}, i64 {}, ptr {}".format(*_ARGUMENTS)


def _function(name: str, linkage: str, lines: Sequence[str]) -> list[str]:
    """The lines of a function of the kernels' signature."""
    head = f"define {linkage}void @{name}({_PARAMETERS}) #0 {{"
    return [head, "entry:", *lines, "  ret void", "}"]


def _choice(f: FunctionText) -> list[str]:
    """A kernel that lets its stores bypass the caches where all arrays that they go to are aligned.

    Else, as with memory that is a caller's own, it uses ordinary stores; so too where results are
    given the memory of what is read, as state that is changed is: its lines are in the caches, and
    would be thrown out of them one by one. An Adam step over 16 MiB takes 5.7 ms, and 12 with
    stores that bypass the caches.
    """
    entry = f.signature.entry
    places = {base.arg.slot: f"%a{base.arg.slot}" for base in f.signature.params}
    lines = []
    for slot, place in places.items():
        lines += [
            f"  %p{slot} = getelementptr ptr, ptr %buffers, i64 {slot}",
            f"  {place} = load i64, ptr %p{slot}, !invariant.load !0",
        ]
    streamed = [base.arg.slot for base in f.streamed]
    others = [slot for slot in places if slot not in streamed]
    rest, shared = "0", "false"
    for slot in streamed:
        lines.append(f"  %o{slot} = or i64 {rest}, {places[slot]}")
        rest = f"%o{slot}"
        for other in others:
            same, either = f"%e{slot}.{other}", f"%s{slot}.{other}"
            lines += [
                f"  {same} = icmp eq i64 {places[slot]}, {places[other]}",
                f"  {either} = or i1 {shared}, {same}",
            ]
            shared = either
    return [
        *lines,
        f"  %rest = and i64 {rest}, {f.target.vector_bytes - 1}",
        "  %odd = icmp ne i64 %rest, 0",
        f"  %ordinary = or i1 %odd, {shared}",
        "  br i1 %ordinary, label %plain, label %streamed",
        "streamed:",
        f"  call void @{entry}.streamed({_PASSED})",
        "  ret void",
        "plain:",
        f"  call void @{entry}.plain({_PASSED})",
    ]


def _text(f: FunctionText, lines: Sequence[str]) -> str:
    """The text of a module, given the lines of its functions."""
    names = ",".join(["+" + name for name in f.target.features])
    bits = f.target.vector_bytes * 8
    attributes = (
        f'attributes #0 = {{ nounwind "target-cpu"="{f.target.llvm_cpu}" '
        f'"target-features"="{names}" '
        f'"min-legal-vector-width"="{bits}" "prefer-vector-width"="{bits}" }}\n!0 = !{{}}\n'
    )
    return "\n".join([*lines, *f.declarations, attributes])


# --- control -------------------------------------------------------------------------------------


def _begin(f: FunctionText, node: Node) -> None:
    src = node.src
    start, stop = f.use(src[0]), f.use(src[1])
    if len(src) > 2 and f.program.arg.grain > 1:
        # Chunks are counted, and a loop begins at their first iterations.
        start, stop = [f.value(f"mul i64 {end}, {f.program.arg.grain}") for end in (start, stop)]
    block = _open(f)
    label, carried, lines = block.label, block.carried, f.lines
    body = f"L{label}"
    if block.certain:
        lines.append(f"  br label %{body}\n{body}:")
    else:
        runs = next(f.unused)
        lines.append(
            f"  {runs} = icmp slt i64 {start}, {stop}\n"
            f"  br i1 {runs}, label %{body}, label %E{label}\n{body}:"
        )
    block.counter = (f.define(node), start, stop)
    # What comes around is not known yet: END fills in the phi nodes.
    block.phi_at = len(lines)
    lines.append("")
    if carried:
        block.phis = [_name_of(f, register) for register in carried]
        f.names.update(zip(carried, block.phis, strict=True))
        lines += [""] * len(carried)
    f.label = body


def _name_of(f: FunctionText, register: Node) -> str:
    """A fresh name for what a register holds."""
    return next(f.unused_rows) if len(register.shape) == 2 else next(f.unused)


def _open(f: FunctionText) -> ControlBlock:
    block = f.coming.pop()
    block.start = f.label
    if block.carried or block.merged:
        for register in (*block.carried, *block.merged):
            block.before[register] = f.names.get(register, POISON)
    f.blocks.append(block)
    return block


def _test(f: FunctionText, node: Node) -> None:
    condition = f.use(node.src[0])
    block = _open(f)
    label = block.label
    f.label = f"L{label}"
    f.lines.append(f"  br i1 {condition}, label %{f.label}, label %E{label}\n{f.label}:")


def _end(f: FunctionText, node: Node) -> None:
    block = f.blocks.pop()
    for key in block.pointers:
        f.pointers.pop(key, None)
    lines, label, last, before, carried = f.lines, block.label, f.label, block.before, block.carried
    f.label = f"E{label}"
    if block.counter is None:
        lines.append(f"  br label %E{label}\nE{label}:")
    else:
        counter, start, stop = block.counter
        following, more = next(f.unused), next(f.unused)
        # A sum's steps are few: LLVM spares the comparison where the end is to be met exactly, and
        # takes longer to see it.
        order = "ne" if carried else "slt"
        lines.append(
            f"  {following} = add nsw i64 {counter}, 1\n"
            f"  {more} = icmp {order} i64 {following}, {stop}\n"
            f"  br i1 {more}, label %L{label}, label %E{label}\nE{label}:"
        )
        names, middle, end = f.names, f", %{block.start} ], [ ", f", %{last} ]"
        place = block.phi_at
        lines[place] = f"  {counter} = phi i64 [ {start}{middle}{following}{end}"
        for r, phi in zip(carried, block.phis, strict=True):
            place += 1
            line = f"  {phi} = phi {value_type(r)} [ {before[r]}{middle}{names[r]}{end}"
            lines[place] = each_row(r, line)
    if block.certain:
        return
    for register in block.merged:
        after = f.names[register]
        merged = f.names[register] = _name_of(f, register)
        ways = f"[ {before[register]}, %{block.start} ], [ {after}, %{last} ]"
        lines.append(each_row(register, f"  {merged} = phi {value_type(register)} {ways}"))


_RULES: MappingProxyType[Op, Rule] = MappingProxyType(
    {
        **ELEMENTWISE_RULES,
        **MEMORY_RULES,
        **TILE_RULES,
        Ops.BEGIN: _begin,
        Ops.TEST: _test,
        Ops.END: _end,
    }
)
# Asked faster than a read-only view of it.
_rule_of = dict(_RULES).get
