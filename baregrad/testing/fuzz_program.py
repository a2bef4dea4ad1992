"""Random programs: inputs, state, statements, and how they grow from a seed.

A program is text, so that what runs is what is printed. While it grows, every statement is run
lazily on the reference device, which says whether it is well typed, and gives shapes and dtypes.
Sizes of a program are integers that change from call to call. It grows with them at their largest,
both as bound variables and as plain integers, and a statement has to be well typed either way.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from baregrad.base.errors import BaregradError
from baregrad.base.options import options
from baregrad.dtypes import DType
from baregrad.engine.canonical import bind
from baregrad.ir.core.index import lower, upper, variable
from baregrad.tensor import Tensor
from baregrad.testing.fuzz_values import Data, Known, either, settle

# How often a program is called, if nothing happens between its calls.
CALLS = 3
# What turns a number, and a row of numbers, into another type that means the same.
FOREIGN_NUMBERS = ("as_int64", "as_int32", "as_int16", "as_scalar")
FOREIGN_ROWS = ("as_array", "as_short_array", "as_tuple", "as_list")
_ROWS = (*FOREIGN_ROWS, "as_tensor", "as_bytes")
_FOREIGN = (*FOREIGN_NUMBERS, *_ROWS)
# What statements may name beside the program's values.
NAMES = ("Tensor", "slice", "np", *_FOREIGN)
_DRAWING = re.compile(r"\.(rand|dropout|uniform_)")
# What is a view of some tensors and a copy of others.
_RESHAPING = re.compile(r"\.(reshape|flatten|unflatten|view|ravel)\(")
_LEFT_OVER = re.compile(r"\.(reshape|view|unflatten)\(.*-1\b")
# Functions whose slope jumps, or that choose an element: at a jump the smallest error decides.
_JUMPING = re.compile(r"\.(abs|relu|maximum|minimum|clamp|amax|amin|cummax|sort)\(")


def given(plain: bool = False) -> dict[str, Any]:
    """What a program finds by name, beside its own values.

    plain: what makes arguments of foreign types leaves them as they are.
    """
    if plain:
        same: dict[str, Any] = dict.fromkeys(FOREIGN_NUMBERS, _same)
        return {"Tensor": Tensor, "np": np, **same, **dict.fromkeys(_ROWS, list)}
    return {
        "Tensor": Tensor,
        "np": np,
        "as_int64": np.int64,
        "as_int32": np.int32,
        "as_int16": np.int16,
        "as_scalar": np.array,
        "as_array": np.array,
        "as_short_array": partial(np.array, dtype=np.int16),
        "as_tuple": _numbers,
        "as_list": list,
        "as_tensor": Tensor,
        "as_bytes": partial(Tensor, dtype="int8"),
    }


def _same(value: int) -> int:
    return value


def _numbers(values: Sequence[int]) -> list[Any]:
    return [np.int64(value) for value in values]


@dataclass(frozen=True, slots=True)
class Statement:
    """One line: the names that it defines, the names that it reads, its text."""

    text: str
    defines: tuple[str, ...]
    reads: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Statement:
        """Find the names in the text of a statement."""
        found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)]
        defines = tuple(n.id for n in found if isinstance(n.ctx, ast.Store))
        reads = tuple(n.id for n in found if not isinstance(n.ctx, ast.Store))
        return cls(text, defines, tuple(r for r in reads if r not in NAMES))


    def uses(self, name: str) -> bool:
        """Whether it reads a value's elements: not its shape alone."""
        shape_only = r"(?!\.(?:shape\b|\w+_like\())"
        return re.search(rf"\b{name}\b{shape_only}", self.text) is not None

    @property
    def target(self) -> str:
        """The name of what it makes, or changes."""
        return re.split(r"\W", self.text, maxsplit=1)[0]


@dataclass(frozen=True, slots=True)
class Size:
    """An integer that changes from call to call, within inclusive bounds."""

    lowest: int
    largest: int

    def bound(self, name: str, value: int) -> Any:
        """The value as a symbolic integer."""
        return bind(variable(name, self.lowest, self.largest), value)


@dataclass(frozen=True, slots=True)
class FuzzProgram:
    """Arguments and state by name, statements, the names returned, and what is known of those.

    sizes: integers that are arguments as well. setup: statements over the state, before the first
    call; what they define is state too. between: those after each call but the last.
    """

    seed: int
    arguments: dict[str, Data]
    state: dict[str, Data]
    statements: tuple[Statement, ...]
    results: tuple[str, ...]
    known: dict[str, Known]
    loose: tuple[str, ...] = ()
    sizes: dict[str, Size] = field(default_factory=dict)
    setup: tuple[Statement, ...] = ()
    between: tuple[tuple[Statement, ...], ...] = ()

    @property
    def calls(self) -> int:
        """How often it is called."""
        return len(self.between) + 1 if self.between else CALLS

    @property
    def draws(self) -> bool:
        """Whether it draws random numbers."""
        return any(_DRAWING.search(statement.text) for statement in self.statements)

    @property
    def is_foreign(self) -> bool:
        """Whether arguments are of foreign types."""
        return any(name in self.source() for name in _FOREIGN)

    def held(self) -> list[str]:
        """The names of all state."""
        return list(dict.fromkeys([*self.state, *(n for s in self.setup for n in s.defines)]))

    def source(self) -> str:
        """The function `program` as Python."""
        body = [statement.text for statement in self.statements]
        body.append(f"return [{', '.join(self.results)}]")
        lines = "\n".join(f"    {line}" for line in body)
        return f"def program({', '.join((*self.arguments, *self.sizes))}):\n{lines}\n"

    def data(self, call: int) -> dict[str, np.ndarray[Any, Any]]:
        """The arguments of a call, or the state's first values for call -1."""
        rows = self.state if call < 0 else self.arguments
        found = {}
        for position, (name, row) in enumerate(rows.items()):
            key = int(name[1:]) if name[1:].isdigit() else position
            rng = np.random.default_rng([self.seed, call + 1, key, ord(name[0])])
            found[name] = row.draw(rng)
        return found

    def integers(self, call: int) -> dict[str, int]:
        """The sizes of a call."""
        return {
            name: random.Random(f"{self.seed} {call} {name}").randint(size.lowest, size.largest)
            for name, size in self.sizes.items()
        }

    def without(self, position: int) -> FuzzProgram:
        """The program without a statement, and without what reads what it alone defines."""
        gone = set(self.statements[position].defines)
        kept = []
        for i, statement in enumerate(self.statements):
            if i == position or gone.intersection(statement.reads):
                gone.update(statement.defines)
            else:
                kept.append(statement)
        results = tuple(name for name in self.results if name not in gone)
        return replace(self, statements=tuple(kept), results=results)


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    strides, offset = tensor._strides()
    return (*strides, offset)


def restore(before: list[tuple[Any, Any, Any]]) -> None:
    """Put storages back to what they held."""
    for storage, node, grad in before:
        storage.node, storage.grad = node, grad


@dataclass(slots=True)
class Maker:
    """Grows one program. `values` holds lazy tensors by name, `known` what is known of them.

    only: the one floating dtype of a program with gradients, whose rounding is bounded roughly.
    symbolic: the same tensors where sizes are bound variables; empty in a program without sizes.
    broken: statements that raise what is no error of ours.
    reshaped: storages that are not written any more. Where sizes are symbolic, whether a reshape is
    a view does not hang on their values; where they are plain it does, and a write would tell.
    """

    rng: random.Random
    only: DType | None = None
    values: dict[str, Tensor] = field(default_factory=dict)
    known: dict[str, Known] = field(default_factory=dict)
    statements: list[Statement] = field(default_factory=list)
    arguments: dict[str, Data] = field(default_factory=dict)
    state: dict[str, Data] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    recent: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    broken: list[Statement] = field(default_factory=list)
    count: int = 0
    sizes: dict[str, Size] = field(default_factory=dict)
    symbolic: dict[str, Any] = field(default_factory=dict)
    reshaped: set[Any] = field(default_factory=set)

    def size(self, lowest: int, largest: int) -> str:
        """Add a size to the program, before its arguments; return its name."""
        name = f"n{len(self.sizes)}"
        self.sizes[name] = Size(lowest, largest)
        self.symbolic[name] = self.sizes[name].bound(name, largest)
        return name

    def extent(self, name: str, axis: int) -> str:
        """An extent as it is written in a statement."""
        if self.is_symbolic(name, axis):
            return f"{name}.shape[{axis}]"
        return str(self.values[name].shape[axis])

    def is_symbolic(self, name: str, axis: int) -> bool:
        """Whether an extent depends on sizes."""
        return bool(self.sizes) and not isinstance(self.symbolic[name].shape[axis], int)

    def most(self, name: str) -> tuple[int, ...]:
        """The largest extents that a value may have, which are not those of the largest sizes."""
        if not self.sizes:
            return self.values[name].shape
        return tuple(upper(extent) for extent in self.symbolic[name].shape)

    def may_be_empty(self, name: str, axis: int) -> bool:
        """Whether an extent may be 0."""
        return bool(self.sizes) and lower(self.symbolic[name].shape[axis]) < 1

    def start(self, name: str, data: Data, rows: dict[str, Data]) -> None:
        """Add an argument or a piece of state."""
        rows[name] = data
        blank = np.zeros(data.shape, np.float32)
        self.values[name] = Tensor(blank, device="REF").cast(data.dtype)
        if self.sizes:
            self.symbolic[name] = Tensor(blank, device="REF").cast(data.dtype)
        known = data.known()
        # State comes back at the next call with whatever was written into it.
        self.known[name] = replace(known, grain=0.0) if rows is self.state else known
        self.recent.append(name)

    def argument(self, data: Data) -> str:
        """Add an argument of its own to the program; return its name."""
        name = f"a{len(self.arguments)}"
        self.start(name, data, self.arguments)
        return name

    def pick(self, test: Callable[[Tensor, Known], bool] | None = None) -> str | None:
        """A value that passes a test, more often a recent one; None if there is none."""
        found = [
            name
            for name in self.recent
            if test is None or test(self.values[name], self.known[name])
        ]
        if not found:
            return None
        return self.rng.choice(found[-5:] if self.rng.random() < 0.7 else found)

    def run(self, text: str, give: Callable[[DType], Known] | None, loose: bool = False) -> bool:
        """Take a statement that defines one name, if it is well typed and something stays known."""
        statement = Statement.parse(text)
        if self._is_uncertain(statement):
            return False
        (name,) = statement.defines
        spaces = self.tried(text)
        if spaces is None:
            return False
        made: Tensor = spaces[0][name]
        if made.numel() > 3000 or made.ndim > 5:
            return False
        if self._is_undetermined(text, spaces[-1][name]):
            return False
        forked = self._forked(statement, spaces)
        if forked and self._holds_written_state(forked):
            return False
        if self.only is not None and made.dtype.kind == "float" and made.dtype is not self.only:
            return False
        assert give is not None
        known = settle(give(made.dtype), made.dtype)
        if known is None and not loose:
            return False
        self.values[name] = made
        if self.sizes:
            self.symbolic[name] = spaces[1][name]
        self.known[name] = known or Known(1e3, 1.0)
        self.recent.append(name)
        self.statements.append(statement)
        self.reshaped.update(forked)
        self._spread(made, self.known[name])
        return True

    def tried(self, text: str) -> list[dict[str, Any]] | None:
        """What names stand for after a statement: with plain sizes, and with symbolic ones.

        None where it is refused; what it had written by then is as it was before.
        """
        largest = {name: size.largest for name, size in self.sizes.items()}
        spaces: list[dict[str, Any]] = [{**given(plain=True), **self.values, **largest}]
        if self.sizes:
            spaces.append({**given(), **self.symbolic})
        elif any(name in text for name in _FOREIGN):
            spaces.append({**given(), **self.values})
        held = {t._storage for space in spaces for t in space.values() if isinstance(t, Tensor)}
        before = [(storage, storage.node, storage.grad) for storage in held]
        with options.override(device="REF"):
            for space in reversed(spaces):
                try:
                    exec(text, space)  # noqa: S102 - the program is the subject
                except BaregradError as error:
                    self.refused.append(f"{text}: {error}")
                except Exception:  # noqa: BLE001 - it will be found when the program runs
                    self.broken.append(Statement.parse(text))
                else:
                    if len(spaces) > 1 and not self.sizes and space is spaces[1]:
                        restore(before)
                    continue
                restore(before)
                return None
        return spaces

    def _is_undetermined(self, text: str, made: Any) -> bool:
        """Whether -1 may stand beside an extent of 0, which only plain sizes refuse."""
        if not self.sizes or made.ndim < 2 or not _LEFT_OVER.search(text):
            return False
        return any(lower(extent) < 1 for extent in made.shape)

    def _forked(self, statement: Statement, spaces: list[dict[str, Any]]) -> set[Any]:
        """The storages that a reshape of or to symbolic extents reads and makes."""
        if not self.sizes or not _RESHAPING.search(statement.text):
            return set()
        names = [n for n in (*statement.defines, *statement.reads) if n not in self.sizes]
        extents = [e for n in names for e in (*spaces[1][n].shape, *_layout(spaces[1][n]))]
        if all(isinstance(extent, int) for extent in extents):
            return set()
        return {space[name]._storage for space in spaces for name in names}

    def _holds_written_state(self, storages: set[Any]) -> bool:
        """Whether state is among storages that has to be clamped in the end."""
        return any(
            row.dtype.kind == "float" and name in self.written
            and self.values[name]._storage in storages
            for name, row in self.state.items()
        )  # fmt: skip

    def _is_fixed(self, text: str, target: str) -> bool:
        """Whether `target` must not be changed by a statement.

        It was reshaped, or is state that would then require gradients, which views of it may not.
        """
        tensor = self.values[target]
        both = (tensor, self.symbolic.get(target, tensor))
        if any(each._storage in self.reshaped for each in both):
            return True
        reads = [self.values[n] for n in Statement.parse(text).reads if n in self.values]
        return any(value.requires_grad for value in reads) and any(
            self.values[name]._storage is tensor._storage for name in self.state
        )

    def _is_uncertain(self, statement: Statement) -> bool:
        """Whether its gradients hang on rounding: values with an error may be at a jump."""
        if self.only is None or not _JUMPING.search(statement.text):
            return False
        return any(self.known[name].error for name in statement.reads if name in self.known)

    def write(self, text: str, target: str, incoming: Known) -> bool:
        """Take a statement that changes `target` in place."""
        tensor = self.values[target]
        if incoming.error and any(self.values[s]._storage is tensor._storage for s in self.state):
            return False  # errors would grow from call to call
        known = settle(either(self.known[target], incoming), tensor.dtype)
        if known is None or self._is_fixed(text, target):
            return False
        if self.tried(text) is None:
            return False
        self._spread(tensor, known)
        self.statements.append(Statement.parse(text))
        self.written.update(
            name
            for name in (*self.arguments, *self.state)
            if self.values[name]._storage is tensor._storage
        )
        return True

    def _spread(self, tensor: Tensor, known: Known) -> None:
        """All that shows a storage shows what is written into it."""
        for name, other in self.values.items():
            if other._storage is tensor._storage:
                self.known[name] = either(self.known[name], known)

    def fresh(self) -> str:
        """A name that is not taken."""
        self.count += 1
        return f"v{self.count}"
