"""Text to PTX syntax. Source of the grammar: PTX ISA, chapters "Syntax" and "Directives"."""

from __future__ import annotations

import re
import struct
from typing import Final, NamedTuple, NoReturn

from baregrad.base.errors import CompileError
from baregrad.testing.virtual_gpu.ptx.syntax import (
    AddressOperand,
    Identifier,
    Immediate,
    KernelText,
    ModuleText,
    Operand,
    OperandPair,
    PtxInstruction,
    Variable,
    Vector,
)

_TOKEN: Final = re.compile(
    r"""(?:[ \t\r\f]+|//[^\n]*)*
      (?: (?P<newline>\n+)
      | (?P<comment>/\*.*?\*/)
      | (?P<string>"[^"\n]*")
      | (?P<number>0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|0[xX][0-9a-fA-F]+U?
          |\d+\.\d*(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+|\d+U?)
      | (?P<word>[A-Za-z_$%][\w$]*(?:\.\w+(?:::\w+)*)*)
      | (?P<directive>\.[A-Za-z_]\w*(?:::\w+)*)
      | (?P<mark>[][{}(),;:@!|+\-<>=])
      | (?P<end>\Z))""",
    re.VERBOSE | re.DOTALL,
)
_SPACES: Final = frozenset({"reg", "shared", "local", "const", "global", "param"})
_LINE_DIRECTIVES: Final = frozenset({"version", "target", "address_size", "file", "loc"})
_LINKAGE: Final = frozenset({"visible", "extern", "weak", "common"})


class PtxToken(NamedTuple):
    """A word of the text, its kind, and its line."""

    kind: str
    text: str
    line: int


def type_nbytes(name: str) -> int:
    """Return the bytes of an element of a PTX type, by the digits of its name."""
    digits = re.fullmatch(r"[a-z]+(\d+)(x2)?", name)
    if digits is None:
        return 1
    return int(digits[1]) * (2 if digits[2] else 1) // 8


def parse_module(text: str) -> ModuleText:
    """Return the syntax of a PTX file; raise CompileError, which names the line, if malformed."""
    return _Parser(text).module()


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = text.split("\n")
        self.tokens = self._split()
        self.at = 0

    # ---- words ----------------------------------------------------------------------------------

    def _split(self) -> list[PtxToken]:
        tokens, place, line, make = list[PtxToken](), 0, 1, tuple.__new__
        for match in _TOKEN.finditer(self.text):
            if match.start() != place:
                rest = self.text[place:].lstrip(" \t\r\f")
                self._refuse(f"unexpected character {rest[0]!r}", line)
            kind, place = str(match.lastgroup), match.end()
            text = match[kind]
            if kind in ("newline", "comment"):
                line += text.count("\n")
                continue
            # Half the time that the class takes, of tens of thousands.
            tokens.append(make(PtxToken, (kind, text, line)))
            if kind == "end":
                break
        return tokens

    def _refuse(self, message: str, line: int) -> NoReturn:
        where = f"line {line}: {self.lines[line - 1].strip()}" if line <= len(self.lines) else ""
        raise CompileError(f"malformed PTX: {message}", source=self.text, log=where)

    def _peek(self) -> PtxToken:
        return self.tokens[self.at]

    def _next(self) -> PtxToken:
        token = self.tokens[self.at]
        if token.kind == "end":
            self._refuse("the text ends too early", token.line)
        self.at += 1
        return token

    def _take(self, text: str) -> bool:
        if self._peek().text == text:
            self.at += 1
            return True
        return False

    def _expect(self, text: str) -> PtxToken:
        token = self._next()
        if token.text != text:
            self._refuse(f"{token.text!r} where {text!r} belongs", token.line)
        return token

    def _rest_of_line(self, line: int) -> list[str]:
        words = []
        while self._peek().line == line and self._peek().kind != "end":
            words.append(self._next().text)
        return words

    def _skip_braces(self) -> None:
        self._expect("{")
        depth = 1
        while depth:
            text = self._next().text
            depth += (text == "{") - (text == "}")

    # ---- the module -----------------------------------------------------------------------------

    def module(self) -> ModuleText:
        found = ModuleText()
        while self._peek().kind != "end":
            token = self._next()
            name = token.text.lstrip(".")
            if name in _LINE_DIRECTIVES:
                words = "".join(self._rest_of_line(token.line))
                if name == "version":
                    found.version = words
                elif name == "target":
                    found.target = words
            elif name == "entry":
                kernel = self._kernel()
                found.kernels[kernel.name] = kernel
            elif name == "func":
                self._skip_function()
            elif name == "section":
                self._next()
                self._skip_braces()
            elif name in _SPACES:
                for variable in self._variables(name):
                    found.variables[variable.name] = variable
            elif name in ("pragma", "alias"):
                self._skip_to_semicolon()
            elif name not in _LINKAGE:
                self._refuse(f"{token.text!r} at the top of the module", token.line)
        return found

    def _skip_to_semicolon(self) -> None:
        while self._next().text != ";":
            pass

    def _skip_function(self) -> None:
        # A function that no kernel calls does no harm; a call is refused where it stands.
        while self._peek().text not in ("{", ";"):
            self._next()
        if self._peek().text == "{":
            self._skip_braces()
        else:
            self._next()

    # ---- variables ------------------------------------------------------------------------------

    def _variables(self, space: str) -> list[Variable]:
        """Parse what follows `.shared`, up to its semicolon."""
        found = [self._variable(space)]
        while self._take(","):
            found.append(self._variable(space, found[0]))
        self._expect(";")
        return found

    def _variable(self, space: str, first: Variable | None = None) -> Variable:
        align, kind, lanes = 0, first.type if first else "", 1
        while self._peek().kind == "directive":
            word = self._next().text[1:]
            if word == "align":
                align = int(self._next().text)
            elif word in ("v2", "v4"):
                lanes = int(word[1:])
            elif word not in ("ptr", *_SPACES):
                kind = word
        name = self._next().text
        nbytes = type_nbytes(kind) * lanes
        count: int | None = 1
        while self._take("["):
            if self._take("]"):
                count = None
                continue
            count = (count or 1) * int(self._next().text.rstrip("U"), 0)
            self._expect("]")
        initial = None
        if self._take("="):
            initial = self._initial(kind)
            # `x[] = {...}` takes its length from the values.
            count = len(initial) // nbytes if count is None else count
        return Variable(space, name, kind, align or nbytes, nbytes, count, initial)

    def _initial(self, kind: str) -> bytes:
        values: list[bytes] = []
        depth = 0
        while True:
            token = self._peek()
            if token.text == "{":
                depth += 1
                self._next()
            elif token.text == "}":
                depth -= 1
                self._next()
            elif token.text == ",":
                self._next()
            else:
                value = self._operand()
                if not isinstance(value, Immediate):
                    self._refuse("an initial value that is no number", token.line)
                values.append(immediate_bytes(value, kind))
            if depth == 0:
                return b"".join(values)

    # ---- kernels --------------------------------------------------------------------------------

    def _kernel(self) -> KernelText:
        kernel = KernelText(self._next().text)
        if self._take("(") and not self._take(")"):
            while True:
                self._expect(".param")
                kernel.parameters.append(self._variable("param"))
                if self._take(")"):
                    break
                self._expect(",")
        while self._peek().text != "{":
            token = self._next()
            numbers = []
            while self._peek().kind in ("number", "string") or self._peek().text == ",":
                word = self._next()
                if word.kind == "number":
                    numbers.append(int(word.text, 0))
            kernel.directives[token.text.lstrip(".")] = tuple(numbers)
        self._expect("{")
        self._body(kernel)
        return kernel

    def _body(self, kernel: KernelText) -> None:
        scope = 0
        while True:
            token = self._peek()
            if token.text == "}":
                self._next()
                scope = kernel.scopes[scope]
                if scope < 0:
                    return
            elif token.text == "{":
                self._next()
                kernel.scopes.append(scope)
                scope = len(kernel.scopes) - 1
            elif token.kind == "directive":
                self._body_directive(kernel, scope)
            elif self.tokens[self.at + 1].text == ":":
                self._label(kernel, scope)
            else:
                kernel.instructions.append(self._instruction(scope))

    def _label(self, kernel: KernelText, scope: int) -> None:
        name = self._next().text
        self._expect(":")
        if self._take(".branchtargets"):
            targets = [self._next().text]
            while self._take(","):
                targets.append(self._next().text)
            self._expect(";")
            kernel.branch_tables[scope, name] = tuple(targets)
        else:
            kernel.labels[scope, name] = len(kernel.instructions)

    def _body_directive(self, kernel: KernelText, scope: int) -> None:
        token = self._next()
        name = token.text[1:]
        if name == "reg":
            self._registers(kernel, scope)
        elif name in _SPACES:
            for variable in self._variables(name):
                kernel.variables[scope, variable.name] = variable
        elif name in _LINE_DIRECTIVES:
            self._rest_of_line(token.line)
        elif name == "pragma":
            self._skip_to_semicolon()
        else:
            # Performance directives may stand in the body as well.
            numbers = [word for word in self._rest_of_line(token.line) if word.isdigit()]
            kernel.directives[name] = tuple(map(int, numbers))

    def _registers(self, kernel: KernelText, scope: int) -> None:
        kind = self._next().text[1:]
        while True:
            name = self._next().text
            if self._take("<"):
                count = int(self._next().text)
                self._expect(">")
                for number in range(count):
                    kernel.registers[scope, f"{name}{number}"] = kind
            else:
                kernel.registers[scope, name] = kind
            if self._take(";"):
                return
            self._expect(",")

    def _instruction(self, scope: int) -> PtxInstruction:
        guard = None
        line = self._peek().line
        if self._take("@"):
            negated = self._take("!")
            guard = Identifier(self._next().text, negated)
        token = self._next()
        if token.kind != "word":
            self._refuse(f"{token.text!r} where an instruction belongs", token.line)
        opcode, *modifiers = token.text.split(".")
        operands: list[Operand] = []
        while not self._take(";"):
            operands.append(self._operand())
            if self._take(";"):
                break
            self._expect(",")
        text = self.lines[line - 1].strip()
        return PtxInstruction(
            line, text, opcode, tuple(modifiers), tuple(operands), guard, scope
        )

    # ---- operands -------------------------------------------------------------------------------

    def _operand(self) -> Operand:
        token = self._next()
        if token.text == "{":
            return Vector(self._list("}"))
        if token.text == "(":
            return Vector(self._list(")"))
        if token.text == "[":
            return self._address()
        if token.text == "!":
            return Identifier(self._next().text, negated=True)
        if token.text == "-":
            value = self._operand()
            if not isinstance(value, Immediate):
                self._refuse("a minus before what is no number", token.line)
            return Immediate(-value.value)
        if token.kind == "number":
            return _number(token.text)
        if token.kind != "word":
            self._refuse(f"{token.text!r} where an operand belongs", token.line)
        name = Identifier(token.text)
        return OperandPair(name, self._operand()) if self._take("|") else name

    def _list(self, closing: str) -> tuple[Operand, ...]:
        items: list[Operand] = []
        while not self._take(closing):
            items.append(self._operand())
            self._take(",")
        return tuple(items)

    def _address(self) -> AddressOperand:
        base: Identifier | None = None
        offset = 0
        coordinates: tuple[Operand, ...] = ()
        sign = 1
        plus = False
        while not self._take("]"):
            token = self._next()
            if token.kind == "word":
                base = Identifier(token.text)
            elif token.kind == "number":
                offset += sign * int(token.text.rstrip("U"), 0)
                sign = 1
            elif token.text == "-":
                if base is not None and not plus:
                    # As the vendor's assembler does.
                    self._refuse("a difference in an address: write [base+-4]", token.line)
                sign = -sign
            elif token.text == "{":
                coordinates = self._list("}")
            elif token.text not in ("+", ","):
                self._refuse(f"{token.text!r} in an address", token.line)
            plus = token.text == "+"
        return AddressOperand(base, offset, coordinates)


def _number(text: str) -> Immediate:
    if text[:2] in ("0f", "0F"):
        bits = int(text[2:], 16)
        return Immediate(struct.unpack("<f", struct.pack("<I", bits))[0], bits)
    if text[:2] in ("0d", "0D"):
        bits = int(text[2:], 16)
        return Immediate(struct.unpack("<d", struct.pack("<Q", bits))[0], bits)
    if text[:2] not in ("0x", "0X") and re.search(r"[.eE]", text):
        return Immediate(float(text))
    text = text.rstrip("U")
    octal = len(text) > 1 and text[0] == "0" and text.isdigit()
    return Immediate(int(text, 8) if octal else int(text, 0))


def immediate_bytes(value: Immediate, kind: str) -> bytes:
    """Return the bytes that a literal has as an element of a PTX type."""
    nbytes = type_nbytes(kind)
    if kind[0] == "f" and nbytes in (4, 8):
        if value.bits is not None:
            return value.bits.to_bytes(nbytes, "little")
        return struct.pack("<f" if nbytes == 4 else "<d", value.value)
    if value.bits is not None:
        return value.bits.to_bytes(nbytes, "little")
    return (int(value.value) & ((1 << 8 * nbytes) - 1)).to_bytes(nbytes, "little")
