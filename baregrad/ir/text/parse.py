"""The parser of the text form: line by line, no evaluation of code, errors that name the line."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, cast, get_args

from baregrad.base.errors import FileFormatError, ShapeError
from baregrad.dtypes import ALL, DType
from baregrad.ir.core.attribute_fields import AttributeField, attribute_fields
from baregrad.ir.core.layout import Digit, Swizzle
from baregrad.ir.core.monoid import Monoid, arg_extreme, primitive
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import ATTRIBUTES, Op, Ops, all_ops, form_fault

# Its attributes are in the column once it is imported.
from baregrad.ir.protocol import attributes as attributes

_SHORT: MappingProxyType[str, str] = MappingProxyType({"float": "f", "int": "i", "uint": "u"})


def dtype_name(dtype: DType) -> str:
    """The short name of a dtype: f32, bf16, i64, u8, bool, index; long ones keep theirs."""
    if dtype.name == "bfloat16":
        return "bf16"
    short = _SHORT.get(dtype.kind)
    plain = dtype.name == f"{dtype.kind}{dtype.bits}"
    return f"{short}{dtype.bits}" if short and plain else dtype.name


def dtypes_by_name() -> dict[str, DType]:
    """Every dtype by its short name."""
    return {dtype_name(dtype): dtype for dtype in ALL}


_WORDS: MappingProxyType[str, Any] = MappingProxyType(
    {"true": True, "false": False, "none": None, "nan": math.nan, "inf": math.inf}
)
_DEEPEST = 32
_LONGEST_NUMBER = 400

# Alternatives are tried in order; whitespace between tokens carries no meaning.
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<number>-?(?:\d+\.\d+(?:e[+-]?\d+)?|\d+e[+-]?\d+|\d+|inf\b))
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<mark>[%!&$@=:,()<>\[\]?])
    )""",
    re.VERBOSE,
)
# `%3 = ADD f32[4,5] %1 %2`: no attribute, no symbolic extent.
_PLAIN = re.compile(
    r"%(\d{1,9}) = ([A-Z0-9_]+) (\w+)"
    r"\[((?:\d{1,18}(?:,\d{1,18})*)?)\]((?: %\d{1,9})*)\Z",
    re.ASCII,
)


@dataclasses.dataclass(frozen=True, slots=True)
class UnboundBuffer:
    """What stands for a buffer in parsed text: its number there. It cannot be read."""

    number: int


def parse(text: str, buffers: Mapping[int, Any] | None = None) -> Node:
    """The root of the graph that `text` describes; nodes that exist already are found again.

    buffers: runtime handles by their `&number`; others become UnboundBuffer. Raises FileFormatError
    with the number of the line and what was expected there.
    """
    reader = _Reader(buffers or {})
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#") and not reader.read_plain(stripped):
            _Line(reader, number, stripped).read()
    if reader.last is None:
        raise FileFormatError("IR text", found="no node", wanted="a line such as %0 = CONST ...")
    return reader.last


class _Reader:
    """Names that earlier lines have given, and the tables of known words."""

    def __init__(self, buffers: Mapping[int, Any]) -> None:
        self.buffers = dict(buffers)
        self.nodes: dict[int, Node] = {}
        self.monoids: dict[int, Monoid] = {}
        self.last: Node | None = None
        self.ops = {op.name: op for op in all_ops()}
        self.dtypes = dtypes_by_name()
        self.classes = attribute_classes()

    def read_plain(self, line: str) -> bool:
        """Take in a line without an attribute and without a fault, as nearly all are.

        Any other is left as it is, to be read token by token, which takes four times as long.
        """
        match = _PLAIN.match(line)
        if match is None:
            return False
        digits, name, short, extents, sources = match.groups()
        nodes, number = self.nodes, int(digits)
        op, dtype = self.ops.get(name), self.dtypes.get(short)
        src = tuple([nodes.get(int(source)) for source in sources.replace("%", "").split()])
        if number in nodes or op is None or dtype is None or None in src:
            return False
        if form_fault(op, len(src), None) is not None:
            return False
        try:
            node = Node(op, dtype, cast("tuple[Node, ...]", src))
        except (ShapeError, ValueError, TypeError, AttributeError, IndexError):
            return False
        if extents != ",".join(map(str, node.shape)):
            return False
        self.last = nodes[number] = node
        return True


def attribute_classes() -> Mapping[str, type[Any]]:
    """The classes whose values may stand in an attribute, by name."""
    cells = [item for cell in ATTRIBUTES.cells.values() for item in get_args(cell) or (cell,)]
    inner = (Monoid, Swizzle, Digit)
    found = [kind for kind in (*cells, *inner) if attribute_fields(kind) is not None]
    return MappingProxyType({kind.__name__: kind for kind in found})


class _Line:
    """One line as tokens, read from left to right."""

    def __init__(self, reader: _Reader, number: int, line: str) -> None:
        self.reader = reader
        self.number = number
        self.tokens: list[tuple[str, str]] = []
        self.at = 0
        place = 0
        while place < len(line):
            match = _TOKEN.match(line, place)
            if match is None or match.lastgroup is None:
                raise self.wrong(repr(line[place : place + 10]), "a token of the text form")
            self.tokens.append((match.lastgroup, match.group(match.lastgroup)))
            place = match.end()

    def wrong(self, found: str, wanted: str) -> FileFormatError:
        """The error to raise."""
        return FileFormatError(f"IR text, line {self.number}", found=found, wanted=wanted)

    def peek(self) -> str:
        """The next token, or the empty string at the end."""
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def kind(self) -> str:
        """What sort of token comes next: string, number, name, mark or end."""
        return self.tokens[self.at][0] if self.at < len(self.tokens) else "end"

    def take(self, kind: str, wanted: str) -> str:
        """The next token, which must be of one kind."""
        if self.kind() != kind:
            raise self.wrong(self.peek() or "the end of the line", wanted)
        self.at += 1
        return self.tokens[self.at - 1][1]

    def expect(self, mark: str) -> None:
        """Pass over one mark."""
        if self.kind() != "mark" or self.peek() != mark:
            raise self.wrong(self.peek() or "the end of the line", f"'{mark}'")
        self.at += 1

    def accept(self, mark: str) -> bool:
        """Pass over one mark if it comes next."""
        if self.kind() == "mark" and self.peek() == mark:
            self.at += 1
            return True
        return False

    def integer(self, wanted: str) -> int:
        """A decimal integer."""
        text = self.take("number", wanted)
        if len(text) > _LONGEST_NUMBER or not text.lstrip("-").isdigit():
            raise self.wrong(text[:20], wanted)
        return int(text)

    # --- lines ------------------------------------------------------------------------------

    def read(self) -> None:
        """Take the line in."""
        if self.accept("!"):
            number = self.integer("the number of a monoid")
            self.expect("=")
            value = self.value(0)
            if not isinstance(value, Monoid):
                raise self.wrong(type(value).__name__, "Monoid(...)")
            self.reader.monoids[number] = value
        else:
            self.expect("%")
            number = self.integer("the number of a node")
            if number in self.reader.nodes:
                raise self.wrong(f"%{number} a second time", "each number once")
            self.expect("=")
            self.reader.last = self.reader.nodes[number] = self.node()
        if self.kind() != "end":
            raise self.wrong(self.peek(), "the end of the line")

    def node(self) -> Node:
        """`OP dtype[shape] sources : attribute`."""
        op = self.op()
        dtype = self.dtype()
        shape = self.shape()
        sources = []
        while self.accept("%"):
            sources.append(self.earlier("%", self.reader.nodes, "node"))
        arg = self.value(0) if self.accept(":") else None
        return self.build(op, dtype, shape, tuple(sources), arg)

    def build(
        self, op: Op, dtype: DType, shape: tuple[int | None, ...], src: tuple[Node, ...], arg: Any
    ) -> Node:
        """The node, if its parts fit together and give the shape that the line says."""
        fault = form_fault(op, len(src), arg)
        if fault is not None:
            raise self.wrong(fault, "a node of the op table")
        try:
            node = Node(op, dtype, src, arg)
        except (ShapeError, ValueError, TypeError, AttributeError, IndexError) as problem:
            raise self.wrong(str(problem), f"sources that fit {op.name}") from problem
        made = tuple(extent if isinstance(extent, int) else None for extent in node.shape)
        if made != shape:
            raise self.wrong(f"shape {list(shape)}", f"shape {list(made)} of {op.name}")
        return node

    def dtype(self) -> DType:
        """A dtype by its short name."""
        name = self.take("name", "a dtype")
        found = self.reader.dtypes.get(name)
        if found is None:
            raise self.wrong(name, "a dtype, one of " + ", ".join(self.reader.dtypes))
        return found

    def shape(self) -> tuple[int | None, ...]:
        """`[4,?,5]`, None for a symbolic extent."""
        self.expect("[")
        extents: list[int | None] = []
        while not self.accept("]"):
            if extents:
                self.expect(",")
            extents.append(None if self.accept("?") else self.integer("an extent, or ?"))
        return tuple(extents)

    def op(self) -> Op:
        """An op by its name."""
        name = self.take("name", "the name of an op")
        if name not in self.reader.ops:
            raise self.wrong(name, "the name of an op")
        return self.reader.ops[name]

    def earlier(self, mark: str, known: Mapping[int, Any], what: str) -> Any:
        """What an earlier line has given a number; its mark has been read."""
        number = self.integer(f"the number of a {what}")
        if number not in known:
            raise self.wrong(f"{mark}{number}", f"a {what} of an earlier line")
        return known[number]

    # --- values -----------------------------------------------------------------------------

    def value(self, depth: int) -> Any:
        """An attribute or a part of one."""
        if depth > _DEEPEST:
            raise self.wrong("deeper nesting", f"at most {_DEEPEST} levels")
        kind = self.kind()
        if kind == "string":
            return self.string()
        if kind == "number":
            return self.number_value()
        if kind == "name":
            return self.named(depth)
        if self.accept("%"):
            return self.earlier("%", self.reader.nodes, "node")
        if self.accept("!"):
            return self.earlier("!", self.reader.monoids, "monoid")
        if self.accept("&"):
            number = self.integer("the number of a buffer")
            return self.reader.buffers.setdefault(number, UnboundBuffer(number))
        if self.accept("$"):
            return self.dtype()
        if self.accept("@"):
            return self.op()
        if self.accept("("):
            return self.items(depth)
        raise self.wrong(self.peek() or "the end of the line", "a value")

    def items(self, depth: int) -> tuple[Any, ...]:
        """The rest of a tuple."""
        parts: list[Any] = []
        while not self.accept(")"):
            if parts:
                self.expect(",")
                if self.accept(")"):
                    break
            parts.append(self.value(depth + 1))
        return tuple(parts)

    def string(self) -> str:
        """A string in JSON's notation."""
        text = self.take("string", "a string")
        try:
            return str(json.loads(text))
        except json.JSONDecodeError as problem:
            raise self.wrong(text[:20], "a string in JSON's notation") from problem

    def number_value(self) -> int | float:
        """An int or a float, as it is written."""
        text = self.peek()
        if "." in text or "e" in text or "inf" in text:
            self.at += 1
            return float(text)
        return self.integer("a number")

    def named(self, depth: int) -> Any:
        """`true`, `none`, `nan`, `add<f32>` or `Name(field=value)`."""
        name = self.take("name", "a value")
        if name in _WORDS:
            return _WORDS[name]
        if self.accept("<"):
            return self.monoid(name)
        made = self.reader.classes.get(name)
        if made is None:
            raise self.wrong(name, "a value, or the name of an attribute")
        self.expect("(")
        fields: dict[str, Any] = {}
        known = {field.name: field for field in attribute_fields(made) or ()}
        while not self.accept(")"):
            if fields:
                self.expect(",")
            field = self.take("name", "the name of a field")
            if field not in known or field in fields:
                raise self.wrong(field, f"a field of {name}, each once: {', '.join(known)}")
            self.expect("=")
            fields[field] = self.value(depth + 1)
            self.check_field(known[field], fields[field])
        try:
            return made(**fields)
        except (TypeError, ValueError) as problem:
            raise self.wrong(str(problem), f"the fields of {name}") from problem

    def check_field(self, field: AttributeField, value: Any) -> None:
        """A field of a plain type holds a value of that type."""
        fits = _FIELD_TYPES.get(field.type)
        if fits is not None and not fits(value):
            raise self.wrong(f"{field.name}={value!r}"[:60], f"{field.name} of type {field.type}")

    def monoid(self, name: str) -> Monoid:
        """A built-in monoid; `name<` has been read."""
        dtype = self.dtype()
        self.expect(">")
        if name in ("argmax", "argmin"):
            return arg_extreme(Ops.MAX if name == "argmax" else Ops.MIN, dtype)
        op = self.reader.ops.get(name.upper())
        if op not in (Ops.ADD, Ops.MUL, Ops.MAX, Ops.MIN, Ops.AND, Ops.OR, Ops.XOR):
            raise self.wrong(name, "a built-in monoid: add, mul, max, min, and, or, xor, argmax")
        return primitive(op, dtype)


def _is_int(value: object) -> bool:
    return type(value) is int


def _is_dim(value: object) -> bool:
    return type(value) is int or isinstance(value, Node)


_FIELD_TYPES: MappingProxyType[str, Callable[[Any], bool]] = MappingProxyType({
    "int": _is_int,
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "int | Node": _is_dim,
    "tuple[int, ...]": lambda v: type(v) is tuple and all(map(_is_int, v)),
    "tuple[int | Node, ...]": lambda v: type(v) is tuple and all(map(_is_dim, v)),
    "Monoid": lambda value: isinstance(value, Monoid),
    "Monoid | None": lambda value: value is None or isinstance(value, Monoid),
    "tuple[DType, ...]": lambda v: type(v) is tuple and all(isinstance(d, DType) for d in v),
    "tuple[Node, ...]": lambda v: type(v) is tuple and all(isinstance(n, Node) for n in v),
})  # fmt: skip
