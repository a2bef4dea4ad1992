"""PTX as data: the modules, kernels, variables, instructions and operands that text becomes."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Identifier:
    """A register, a variable, a label, or `_`; `negated` is a predicate's `!`."""

    text: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Immediate:
    """A literal: an int or a float, `bits` being those of `0f...` and `0d...` literals."""

    value: int | float
    bits: int | None = None


@dataclass(frozen=True, slots=True)
class Vector:
    """Operands in braces."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class OperandPair:
    """Two destinations, `a|b`."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class AddressOperand:
    """A place in memory, `[base+offset]`; a tensor's `[map, {x, y}]` has coordinates."""

    base: Identifier | None
    offset: int = 0
    coordinates: tuple[Operand, ...] = ()


Operand = Identifier | Immediate | Vector | OperandPair | AddressOperand


@dataclass(frozen=True, slots=True)
class PtxInstruction:
    """One instruction; `scope` is the innermost pair of braces that it stands in."""

    line: int
    text: str
    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Identifier | None
    scope: int

    def has(self, *modifiers: str) -> bool:
        """Whether it carries any of the modifiers."""
        return any(one in self.modifiers for one in modifiers)

    def begins(self, prefix: str) -> bool:
        """Whether a modifier is `prefix`, or `prefix` and more after a `::`."""
        return any(one.partition("::")[0] == prefix for one in self.modifiers)

    def one_of(self, options: tuple[str, ...], default: str = "") -> str:
        """Return the first modifier that is among `options`."""
        return next((one for one in self.modifiers if one in options), default)


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable in memory; `count` is None for the open array of dynamic shared memory."""

    space: str
    name: str
    type: str
    align: int
    element_nbytes: int
    count: int | None
    initial: bytes | None = None

    @property
    def nbytes(self) -> int:
        """Bytes it takes; 0 for an open array."""
        return self.element_nbytes * (self.count or 0)


@dataclass(slots=True)
class KernelText:
    """An entry function as parsed.

    `scopes[k]` is the scope around scope k (-1 around the outermost); registers, variables and
    labels are keyed by (scope, name), labels giving the index of the instruction that follows.
    """

    name: str
    parameters: list[Variable] = field(default_factory=list)
    scopes: list[int] = field(default_factory=lambda: [-1])
    registers: dict[tuple[int, str], str] = field(default_factory=dict)
    variables: dict[tuple[int, str], Variable] = field(default_factory=dict)
    labels: dict[tuple[int, str], int] = field(default_factory=dict)
    branch_tables: dict[tuple[int, str], tuple[str, ...]] = field(default_factory=dict)
    instructions: list[PtxInstruction] = field(default_factory=list)
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def chain(self, scope: int) -> list[int]:
        """Return a scope and those around it, the innermost first."""
        found = []
        while scope >= 0:
            found.append(scope)
            scope = self.scopes[scope]
        return found


@dataclass(slots=True)
class ModuleText:
    """A PTX file as parsed."""

    version: str = ""
    target: str = ""
    variables: dict[str, Variable] = field(default_factory=dict)
    kernels: dict[str, KernelText] = field(default_factory=dict)
