"""The arithmetic that symbolic integers have in Python: `n + 1`, `2 * n`, `n // 4`, `n % 4`."""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from baregrad.base.errors import ShapeError
from baregrad.ir.core.op import Column, Op, Ops
from baregrad.program import BINARY_OPS

SIGNS = MappingProxyType(
    {Ops.ADD: " + ", Ops.SUB: " - ", Ops.MUL: " * ", Ops.FLOORDIV: " // ", Ops.MOD: " % "}
)

# What index arithmetic and conditions are worth, exactly; a quotient by 0 and its rest are 0.
EXACT: MappingProxyType[Op, Callable[..., int]] = MappingProxyType({
    **{op: BINARY_OPS[op.name.lower()] for op in (
        Ops.ADD, Ops.MUL, Ops.FLOORDIV, Ops.MOD, Ops.MAX, Ops.MIN
    )},
    Ops.SUB: operator.sub, Ops.NEG: operator.neg,
    Ops.CMPLT: operator.lt, Ops.CMPLE: operator.le,
    Ops.CMPEQ: operator.eq, Ops.CMPNE: operator.ne,
    Ops.AND: operator.and_, Ops.OR: operator.or_, Ops.NOT: operator.not_,
    Ops.WHERE: lambda condition, a, b: a if condition else b,
})  # fmt: skip
# What makes the simplest value of an op on ints and nodes of dtype index; `index` adds the cells.
SIMPLIFIED: Column[Callable[[Any, Any], Any]] = Column("index arithmetic")


class IntegerArithmetic:
    """Operators over nodes of dtype index and ints, simplified at once.

    A result that is constant is an int. Division and modulo floor; by zero they give 0. With a
    tensor the tensor's operator runs; with anything else, and for nodes of other dtypes, Python
    raises TypeError. Where Python wants a number (an order, a truth value, a range), ShapeError.
    """

    __slots__ = ()

    def __add__(self, other: Any) -> Any:
        return _operate(Ops.ADD, self, other)

    def __radd__(self, other: Any) -> Any:
        return _operate(Ops.ADD, other, self)

    def __sub__(self, other: Any) -> Any:
        return _operate(Ops.SUB, self, other)

    def __rsub__(self, other: Any) -> Any:
        return _operate(Ops.SUB, other, self)

    def __mul__(self, other: Any) -> Any:
        return _operate(Ops.MUL, self, other)

    def __rmul__(self, other: Any) -> Any:
        return _operate(Ops.MUL, other, self)

    def __floordiv__(self, other: Any) -> Any:
        return _operate(Ops.FLOORDIV, self, other)

    def __mod__(self, other: Any) -> Any:
        return _operate(Ops.MOD, self, other)

    def __neg__(self) -> Any:
        return _operate(Ops.MUL, self, -1)

    def _refuse(self, *_: Any) -> Any:
        raise ShapeError(
            "this needs an integer that is known now, not a symbolic one",
            found=repr(self),
            hint="cut or pad to a size that is known first, or give a Python integer",
        )

    __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __index__ = _refuse


def _operate(op: Op, a: Any, b: Any) -> Any:
    for value in (a, b):
        if isinstance(value, bool) or not isinstance(value, (IntegerArithmetic, int)):
            return NotImplemented
    made = SIMPLIFIED.cells[op](a, b)
    return made if isinstance(made, int) or made.op is not Ops.CONST else made.arg
