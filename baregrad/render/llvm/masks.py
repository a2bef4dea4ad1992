"""What is read and done under masks in LLVM IR: all of a vector, some lanes of it, or nothing."""

from __future__ import annotations

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.render.llvm.text import FunctionText, IntrinsicCall
from baregrad.render.llvm.types import suffix_text, type_text


def any_of(f: FunctionText, mask: Node, lanes: int) -> str:
    """Whether some lane of a mask is true; what all lanes share is asked for by itself.

    Where that is left in the vector, LLVM 22 looks at the first lane of two such alone, and may
    take what it looks at for the mask elsewhere, where lanes differ (AVX-512). Signs that are asked
    for alone it may take by VMOVMSKPS from another register than the one they are in: that
    instruction reaches the first 16 of 32.
    """
    kinds = type_text(dtypes.bool, lanes)
    shared, apart = _conjuncts(mask)
    found = ""
    for own in apart:
        found = _both(f, kinds, found, f.use(own, lanes))
    if found:
        if any(own.op is Ops.CMPLT and own.src[1].op is Ops.CONST for own in apart):
            f.doubts[lanes] = None
            found = f.value(f"xor {kinds} {found}, %never{lanes}")
        found = f.call(f"llvm.vector.reduce.or.v{lanes}i1", "i1", (kinds, found))
    for one in shared:
        found = _both(f, "i1", found, f.use(one))
    return found


def _conjuncts(mask: Node) -> tuple[list[Node], list[Node]]:
    """The scalars that a mask is spread from, and the vectors that it is the conjunction of."""
    shared, apart, stack = [], [], [mask]
    while stack:
        node = stack.pop()
        if node.op is Ops.AND and node.shape:
            stack += node.src
        elif node.op is Ops.SPLAT:
            shared.append(node.src[0])
        else:
            apart.append(node)
    return shared, apart


def _both(f: FunctionText, kinds: str, first: str, second: str) -> str:
    """The conjunction of two values, of which the first may be none."""
    return f.value(f"and {kinds} {first}, {second}") if first else second


def doubted(f: FunctionText, mask: Node, lanes: int, condition: str) -> str:
    """A mask of which LLVM cannot know the part that one of a vector's registers has.

    Where that is false for all lanes, LLVM 22 reads the register without a mask (AVX2): what it
    shows is wrong then, and may lie beyond the array. Where it turns out to be true for all, LLVM
    aborts. The table of buffers is never null, which LLVM does not know.
    """
    if not mask.has(Ops.LANES):
        return condition
    f.doubts[lanes] = None
    return f.value(f"xor {type_text(dtypes.bool, lanes)} {condition}, %never{lanes}")


def doubts(f: FunctionText) -> list[str]:
    """The lines that make what is never true, for the beginning of a function."""
    if not f.doubts:
        return []
    lines = ["  %never = icmp eq ptr %buffers, null"]
    for lanes in f.doubts:
        kinds, one = type_text(dtypes.bool, lanes), f"%never{lanes}.1"
        lines += [
            f"  {one} = insertelement {kinds} poison, i1 %never, i64 0",
            f"  %never{lanes} = shufflevector {kinds} {one}, {kinds} poison, "
            f"{type_text(dtypes.int32, lanes)} zeroinitializer",
        ]
    return lines


def guarded_load(f: FunctionText, dtype: DType, where: str, condition: str, constant: str) -> str:
    """An element where the condition holds, else 0: read from the table of buffers instead."""
    element = type_text(dtype)
    safe = f.value(f"select i1 {condition}, ptr {where}, ptr %buffers")
    found = f.value(f"load {element}, ptr {safe}, align 1{constant}")
    return f.value(f"select i1 {condition}, {element} {found}, {element} zeroinitializer")


def masked_load_call(dtype: DType, lanes: int, where: str, align: int, mask: str) -> IntrinsicCall:
    """A load of neighbours from an address on, those of a mask, else 0."""
    kinds, masks = type_text(dtype, lanes), type_text(dtypes.bool, lanes)
    name = f"llvm.masked.load.{suffix_text(dtype, lanes)}.p0"
    place = ("ptr", where), ("i32", str(align))
    return IntrinsicCall.of(name, kinds, *place, (masks, mask), (kinds, "zeroinitializer"))


def masked_store_call(
    dtype: DType, lanes: int, value: str, where: str, align: int, mask: str
) -> IntrinsicCall:
    """A store of neighbours from an address on, those of a mask."""
    kinds, masks = type_text(dtype, lanes), type_text(dtypes.bool, lanes)
    name = f"llvm.masked.store.{suffix_text(dtype, lanes)}.p0"
    place = ("ptr", where), ("i32", str(align))
    return IntrinsicCall.of(name, "void", (kinds, value), *place, (masks, mask))


def or_zeros(f: FunctionText, condition: str, where: str, nbytes: int) -> str:
    """The address of a vector where the condition holds, else of zeros.

    All of it is read or nothing. A masked load at an address that is not the process's is
    put right by the machine's microcode, a hundred times slower than any other.
    """
    zeros = f"@zeros.{nbytes}"
    f.declarations[f"{zeros} = private constant [{nbytes} x i8] zeroinitializer, align 64"] = None
    return f.value(f"select i1 {condition}, ptr {where}, ptr {zeros}")
