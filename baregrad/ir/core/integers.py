"""The arithmetic that symbolic integers have in Python: `n + 1`, `2 * n`, `n // 4`, `n % 4`."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from baregrad.base.errors import ShapeError
from baregrad.dtypes import dtypes
from baregrad.ir.core.attrs import Var
from baregrad.ir.core.op import Ops

if TYPE_CHECKING:
    from collections.abc import Callable

    from baregrad.ir.core.node import Node

_SIGNS = MappingProxyType(
    {Ops.ADD: " + ", Ops.SUB: " - ", Ops.MUL: " * ", Ops.FLOORDIV: " // ", Ops.MOD: " % "}
)


class IntegerArithmetic:
    """Operators over nodes of dtype index and ints, simplified at once.

    A result that is constant is an int. Division and modulo floor; by zero they give 0. With a
    tensor the tensor's operator runs; with anything else, and for nodes of other dtypes, Python
    raises TypeError. Where Python wants a number (an order, a truth value, a range), ShapeError.
    """

    __slots__ = ()

    def __add__(self, other: Any) -> Any:
        return _operate("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return _operate("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return _operate("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return _operate("sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return _operate("mul", self, other)

    def __rmul__(self, other: Any) -> Any:
        return _operate("mul", other, self)

    def __floordiv__(self, other: Any) -> Any:
        return _operate("floordiv", self, other)

    def __mod__(self, other: Any) -> Any:
        return _operate("mod", self, other)

    def __neg__(self) -> Any:
        return _operate("mul", self, -1)

    def __lt__(self, other: Any) -> bool:
        raise _unknown(self)

    def __le__(self, other: Any) -> bool:
        raise _unknown(self)

    def __gt__(self, other: Any) -> bool:
        raise _unknown(self)

    def __ge__(self, other: Any) -> bool:
        raise _unknown(self)

    def __bool__(self) -> bool:
        raise _unknown(self)

    def __index__(self) -> int:
        raise _unknown(self)


def named(name: str, lo: int, hi: int) -> Var:
    """What a user's variable is: its name and its bounds.

    Raises ShapeError unless `name` is an identifier of ASCII letters, and lo <= hi are ints.
    """
    if not isinstance(name, str) or not name.isidentifier() or not name.isascii():
        raise ShapeError("a variable has a name", found=repr(name), wanted="an identifier, as 'n'")
    known = all(isinstance(end, int) and not isinstance(end, bool) for end in (lo, hi))
    if not known or lo > hi:
        raise ShapeError(
            f"the variable {name} has no such bounds",
            found=f"{lo!r} to {hi!r}",
            wanted="two integers, the smaller one first",
        )
    return Var(name, lo, hi)


def _unknown(value: IntegerArithmetic) -> ShapeError:
    """The error where Python asks for the value of a symbolic integer."""
    return ShapeError(
        "this needs an integer that is known now, not a symbolic one",
        found=repr(value),
        hint="cut or pad to a size that is known first, or give a Python integer",
    )


def spelled(node: Node, depth: int = 6) -> str | None:
    """A symbolic integer as it would be written, `n=5 + 1` for one with a value; None for others.

    depth: of operators, below which `...` stands.
    """
    if node.op is Ops.VAR:
        return f"{node.arg.name}={node.src[0].arg}" if node.src else str(node.arg.name)
    sign = _SIGNS.get(node.op)
    if sign is None or node.dtype is not dtypes.index:
        return None
    if not depth:
        return "..."
    parts = []
    for one in node.src:
        text = str(one.arg) if one.op is Ops.CONST else spelled(one, depth - 1)
        if text is None:
            return None
        parts.append(f"({text})" if one.op in _SIGNS else text)
    return sign.join(parts)


def _operate(name: str, a: Any, b: Any) -> Any:
    # Late: `index` is made of nodes.
    from baregrad.ir.core import index

    for value in (a, b):
        if isinstance(value, bool) or not isinstance(value, (IntegerArithmetic, int)):
            return NotImplemented
    operator: Callable[[Any, Any], Any] = getattr(index, name)
    return index.as_dim(operator(a, b))
