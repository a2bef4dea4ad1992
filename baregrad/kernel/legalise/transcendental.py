"""Loop level: functions that the machine does not have become arithmetic.

`ERRORS` of `tests/kernel/legalise/accuracy.py` states the largest error of each function.
Results do not depend on the vector width, nor on the machine but for those of GELU, TANH, EXP_NEAR
and EXP2_NEAR: see `functions_of` and `GPU_FUNCTIONS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from types import MappingProxyType

from baregrad.dtypes import dtypes
from baregrad.ir.core.monoid import Monoid
from baregrad.ir.core.node import Node, alu, cast, const, rebuild
from baregrad.ir.core.op import Op, Ops, mask_of
from baregrad.kernel.legalise import transcendental_erf, transcendental_exp, transcendental_trig
from baregrad.kernel.loops.loop_pieces import is_plain, values_below

U32, U64 = dtypes.uint32, dtypes.uint64

_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
_PARITY = 0x1BD11BDA


def threefry(counter: Node, key: Node) -> Node:
    """Threefry-2x32 with 20 rounds of a 64-bit counter and key.

    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    half = const(32, U64)
    x, y = cast(counter, U32), cast(alu(Ops.SHR, counter, half), U32)
    first, second = cast(key, U32), cast(alu(Ops.SHR, key, half), U32)
    parity = alu(Ops.XOR, alu(Ops.XOR, first, second), const(_PARITY, U32))
    keys = (first, second, parity)
    x, y = alu(Ops.ADD, x, first), alu(Ops.ADD, y, second)
    for turn in range(20):
        left = _ROTATIONS[turn % 8]
        x = alu(Ops.ADD, x, y)
        up = alu(Ops.SHL, y, const(left, U32))
        down = alu(Ops.SHR, y, const(32 - left, U32))
        y = alu(Ops.XOR, alu(Ops.OR, up, down), x)
        if turn % 4 == 3:
            step = turn // 4 + 1
            x = alu(Ops.ADD, x, keys[step % 3])
            y = alu(Ops.ADD, alu(Ops.ADD, y, keys[(step + 1) % 3]), const(step, U32))
    return alu(Ops.OR, cast(x, U64), alu(Ops.SHL, cast(y, U64), half))


FUNCTIONS: MappingProxyType[Op, Callable[..., Node]] = MappingProxyType({
    Ops.EXP: transcendental_exp.exp,
    Ops.EXP_NEAR: transcendental_exp.exp,
    Ops.EXP2: transcendental_exp.exp2,
    Ops.EXP2_NEAR: transcendental_exp.exp2,
    Ops.LOG: transcendental_exp.log,
    Ops.LOG2: transcendental_exp.log2,
    Ops.TANH: transcendental_exp.tanh,
    Ops.POW: transcendental_exp.power,
    Ops.SIN: transcendental_trig.sin,
    Ops.COS: transcendental_trig.cos,
    Ops.ATAN: transcendental_trig.atan,
    Ops.ERF: transcendental_erf.erf,
    Ops.GELU: transcendental_erf.gelu,
    Ops.GELU_NEAR: transcendental_erf.gelu,
    Ops.THREEFRY: threefry,
})


def _near_on_gpu(x: Node) -> Node:
    """EXP2_NEAR as a GPU has it: an instruction of float32."""
    if x.dtype is dtypes.float32:
        return Node(Ops.EXP2_NEAR, x.dtype, (x,))
    return transcendental_exp.exp2(x)


def _exp_near_on_gpu(x: Node) -> Node:
    """EXP_NEAR by way of a power of two."""
    if x.dtype is dtypes.float32:
        return _near_on_gpu(alu(Ops.MUL, x, const(math.log2(math.e), x.dtype)))
    return transcendental_exp.exp(x)


GPU_FUNCTIONS: MappingProxyType[Op, Callable[..., Node]] = MappingProxyType(
    {
        **FUNCTIONS,
        Ops.EXP_NEAR: _exp_near_on_gpu,
        Ops.EXP2_NEAR: _near_on_gpu,
        Ops.GELU_NEAR: transcendental_erf.gelu_by_power,
        Ops.TANH: transcendental_exp.tanh_by_reciprocal,
    }
)


@lru_cache(8)
def functions_of(
    has_ldexp: bool, slow_underflow: bool, has_lookup: bool
) -> Mapping[Op, Callable[..., Node]]:
    """`FUNCTIONS` for a machine.

    has_ldexp: it has an instruction for LDEXP; slow_underflow: which takes long for what is rounded
    to 0: bits do not depend on these. has_lookup: it has one for LOOKUP, with which GELU of float32
    takes fewer steps, and has other last bits.
    """
    functions = dict(FUNCTIONS)
    if has_ldexp:
        exp, exp2 = transcendental_exp.exp_by_ldexp, transcendental_exp.exp2_by_ldexp
        for op in (Ops.EXP, Ops.EXP_NEAR):
            functions[op] = partial(exp, slow_underflow=slow_underflow)
        for op in (Ops.EXP2, Ops.EXP2_NEAR):
            functions[op] = partial(exp2, slow_underflow=slow_underflow)
    if has_lookup:
        functions[Ops.GELU] = functions[Ops.GELU_NEAR] = transcendental_erf.gelu_by_lookup
    return MappingProxyType(functions)


_MASK = mask_of(FUNCTIONS)
_RUNS = Ops.REDUCE.bit | Ops.SCAN.bit
_FOLDS = _RUNS | Ops.STORE.bit


def lower_functions(
    kernel: Node, functions: Mapping[Op, Callable[..., Node]] = FUNCTIONS
) -> Node:
    """A loop-level KERNEL with the functions of `FUNCTIONS` written out, as a machine wants it."""

    def visit(node: Node) -> Node | None:
        rule = functions.get(node.op)
        if rule is not None:
            return rule(*node.src)
        if node.op.bit & _RUNS and _needs(node.arg.monoid):
            return node.replace(arg=node.arg._replace(monoid=_lowered(node.arg.monoid, visit)))
        if node.op is Ops.STORE and node.arg is not None and _needs(node.arg):
            return node.replace(arg=_lowered(node.arg, visit))
        return None

    mask = _MASK
    if not is_plain(kernel) and _combines(kernel):
        mask |= _FOLDS
    if not kernel.mask & mask:
        return kernel
    return rebuild(kernel, visit, enter=lambda node: bool(node.mask & mask))


def _combines(kernel: Node) -> bool:
    """Whether some REDUCE, SCAN or STORE combines by functions."""
    return any(
        _needs(node.arg.monoid if node.op.bit & _RUNS else node.arg)
        for node in values_below(kernel)
        if node.op.bit & _FOLDS and node.arg is not None
    )


def _needs(monoid: Monoid) -> bool:
    return monoid.primitive is None and any(part.mask & _MASK for part in monoid.combine)


def _lowered(monoid: Monoid, visit: Callable[[Node], Node | None]) -> Monoid:
    """The monoid with functions written out in how it combines."""
    combine = tuple(rebuild(part, visit) for part in monoid.combine)
    return monoid._replace(combine=combine, primitive=None)
