"""MACHINE instructions in PTX: one rule per name.

The names, with their immediates in brackets and their sources:

    bar.sync (barrier)                     all threads of the block meet
    bar.sync (warps) barrier               that number of warps meet
    bar.warp.sync                          the lanes of a warp meet
    shfl.sync.bfly (mask) value            the value of lane `this ^ mask`
    shfl.sync.down (delta) value           that of lane `this + delta`, its own beyond the warp
    shfl.sync.up (delta) value             that of lane `this - delta`, its own before lane 0
    shfl.sync.idx (lane) value             that of one lane
    launch.wait                            for the kernel in front, where this one began early
    atom.add (at) buffer, offset, value [, mask]
                                           adds to element `offset + at`; its value is the old one
    atom.max, atom.min                     the same with the larger and the smaller integer

Those of a warp's matrix unit are in `ptx_warp.py`, those of Hopper's engines in `ptx_hopper.py`.
"""

from __future__ import annotations

from types import MappingProxyType

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.render.gpu import ATOMS, WAIT, WAITS, WARP_LANES, check_atomic
from baregrad.render.ptx.hopper import HOPPER_RULES
from baregrad.render.ptx.memory import place_of
from baregrad.render.ptx.text import ALL_LANES, Names, PtxText, Rule, braces
from baregrad.render.ptx.types import ptx_type
from baregrad.render.ptx.warp import WARP_RULES


def machine(f: PtxText, node: Node) -> None:
    """A target instruction."""
    rule = RULES.get(node.arg.name)
    if rule is None:
        raise CompilerBug(
            "PTX has no rule for a machine instruction",
            found=node.arg.name,
            wanted=", ".join(sorted(RULES)),
        )
    rule(f, node)


def _bar_sync(f: PtxText, node: Node) -> None:
    if not node.src:
        f.emit("bar.sync", str(node.arg.immediates[0]))
        return
    number = f.word(node.src[0])
    f.emit("bar.sync", number, str(WARP_LANES * node.arg.immediates[0]))


def _shuffle(f: PtxText, node: Node) -> None:
    mode = node.arg.name.rpartition(".")[2]
    # Lanes beyond the clamp keep their own value.
    rest = str(node.arg.immediates[0]), "0" if mode == "up" else "31", ALL_LANES
    names = f.lanes(node.src[0], f.width(node))
    for result, name in zip(f.define(node), names, strict=True):
        _shuffle_one(f, f"shfl.sync.{mode}.b32", node.dtype, result, name, rest)


def _shuffle_one(
    f: PtxText, opcode: str, dtype: DType, result: str, name: str, rest: Names
) -> None:
    name = f.held(name, dtype)
    if dtype.bits == 64:
        halves = [f.fresh("%r") for _ in range(4)]
        f.emit("mov.b64", braces(halves[:2]), name)
        for source, found in zip(halves[:2], halves[2:], strict=True):
            f.emit(opcode, found, source, *rest)
        f.emit("mov.b64", result, braces(halves[2:]))
    elif ptx_type(dtype).bits == "b32" or dtype is dtypes.float32:
        f.emit(opcode, result, name, *rest)
    elif dtype is dtypes.bool:
        word = f.made("%r", "selp.b32", "1", "0", name)
        f.emit("setp.ne.u32", result, f.made("%r", opcode, word, *rest), "0")
    else:
        word = f.made("%r", "cvt.u32.u16", name)
        f.emit("cvt.u16.u32", result, f.made("%r", opcode, word, *rest))


def _wait(f: PtxText, node: Node) -> None:
    f.emit(WAIT)


def _atomic(f: PtxText, node: Node) -> None:
    buffer, offset, value, *mask = node.src
    check_atomic(node)
    name = node.arg.name.rpartition(".")[2]
    # Sums wrap alike whatever their sign.
    is_long = name == "add" and buffer.dtype is dtypes.int64
    kind = "u64" if is_long else ptx_type(buffer.dtype).compute
    space = "shared" if buffer.op is Ops.ALLOC else "global"
    where = place_of(f, buffer, offset, 0, sum(node.arg.immediates))
    operand = f.one(value)
    guard = f.one(mask[0]) if mask else ""
    if node.dtype is dtypes.token:
        f.emit(f"red.{space}.{name}.{kind}", where.text(), operand, guard=guard)
    else:
        (result,) = f.define(node)
        f.emit(f"atom.{space}.{name}.{kind}", result, where.text(), operand, guard=guard)


RULES: MappingProxyType[str, Rule] = MappingProxyType(
    {
        "bar.sync": _bar_sync,
        "bar.warp.sync": lambda f, node: f.emit("bar.warp.sync", ALL_LANES),
        WAITS: _wait,
        **dict.fromkeys([f"shfl.sync.{mode}" for mode in ("bfly", "down", "up", "idx")], _shuffle),
        **dict.fromkeys(ATOMS, _atomic),
        **WARP_RULES,
        **HOPPER_RULES,
    }
)
