"""PTX text to a cubin for the virtual GPU: an ELF file like the vendor's, whose code is the text.

`runtime/nvidia` reads, places and launches it like any other. Where a real cubin has instructions,
this one has `CODE_MAGIC`, the kernel's name and the PTX; `testing/virtual_gpu` finds them at the
address that a launch descriptor names and interprets them. No GPU runs such a file.

The text is scanned, not compiled: what is wrong inside a kernel's body shows when it is run.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod

from baregrad.assemble.cache import DiskCache
from baregrad.assemble.cached import CachedAssembler
from baregrad.base.bits import round_up
from baregrad.base.errors import CompileError, FileFormatError

CODE_MAGIC = b"baregrad PTX 1\0\0"
# Magic, bytes of the name, bytes of the text, CRC-32 of both.
_CODE = struct.Struct("<16sIII")
_MAX_CODE_NBYTES = 1 << 28

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_TARGET = re.compile(r"^\s*\.target\s+sm_(\d+)[af]?\b", re.MULTILINE)
_ENTRY = re.compile(r"\.entry\s+([A-Za-z_$%][\w$]*)")
# A declaration of one or more variables: the space, attributes and type, names with dimensions.
_VARIABLES = re.compile(r"\.(shared|local)\s+((?:\.\w+(?:\s+\d+)?\s+)*)([^;{}=]+);")
_PARAMETER = re.compile(r"\.param\s+((?:\.\w+(?:\s+\d+)?\s+)*)([\w$%]+)\s*(\[\s*\d+\s*\])?")
_REGISTERS = re.compile(r"\.reg\s+\.(\w+)\s+([^;]+);")
_DIRECTIVE = re.compile(r"\.(maxntid|reqntid|reqnctapercluster|noreturn|minnctapersm)\b([\s\d,]*)")
_BARRIER = re.compile(r"\b(?:bar|barrier)\.[\w.:]*\s+(\d+)")
_TYPE = re.compile(r"\.([a-z]+?)(\d+)(x2)?\b")

# Estimates: no more registers than leave room for the largest block, no fewer than ptxas gives.
_MOST_REGISTERS, _LEAST_REGISTERS = 64, 16
_RESERVED_SHARED = 1024
_FIRST_COUNTED = 90
# Where parameters begin in constant bank 0, by the major compute capability.
_PARAMETER_BASES = ((100, 0x380), (90, 0x210), (0, 0x160))


class VirtualAssembler(CachedAssembler):
    """Packs PTX texts into cubins that only the virtual GPU runs; needs nothing of the vendor's.

    `cache` may be None. Raises CompileError for a text without a `.target sm_NN` or an `.entry`.
    """

    form = "virtual-cubin-1"
    name = "virtual"
    version = "1"

    def __init__(self, cache: DiskCache | None = None) -> None:
        super().__init__(cache)

    def disassemble(self, text: str) -> str:
        """Return the text, which is what the virtual GPU runs."""
        return text

    def _build(self, text: str) -> bytes:
        return pack(text)


@dataclass(slots=True)
class _Kernel:
    """What the text says of one kernel; offsets and sizes of parameters in bytes."""

    name: str
    parameters: list[tuple[int, int]] = field(default_factory=list)
    shared_nbytes: int = 0
    local_nbytes: int = 0
    registers: int = _LEAST_REGISTERS
    barriers: int = 0
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def parameter_nbytes(self) -> int:
        """Bytes of all parameters."""
        return max((offset + nbytes for offset, nbytes in self.parameters), default=0)


def pack(text: str) -> bytes:
    """Return the virtual cubin of a PTX text."""
    plain = _COMMENT.sub(" ", text)
    target = _TARGET.search(plain)
    if target is None:
        raise CompileError("a PTX text names no target", source=text, log="wanted: .target sm_NN")
    kernels = _scan(plain, text)
    return _Writer(int(target[1]), kernels, text).file()


def kernel_code(name: str, text: str) -> bytes:
    """Return what stands for the machine code of a kernel."""
    named, written = name.encode(), text.encode()
    head = _CODE.pack(CODE_MAGIC, len(named), len(written), zlib.crc32(named + written))
    return head + named + written


def read_head(head: bytes) -> int:
    """Return the bytes of a whole kernel from its first `HEAD_NBYTES`.

    Raises FileFormatError where they begin no kernel.
    """
    magic, name_nbytes, text_nbytes, _ = _CODE.unpack(head)
    if magic != CODE_MAGIC or name_nbytes + text_nbytes > _MAX_CODE_NBYTES:
        raise FileFormatError("no kernel for the virtual GPU", found=head[:16].hex())
    return _CODE.size + int(name_nbytes) + int(text_nbytes)


def read_code(code: bytes) -> tuple[str, str]:
    """Return a kernel's name and the PTX text; raise FileFormatError where they are damaged."""
    total = read_head(code[: _CODE.size])
    _, name_nbytes, _, wanted = _CODE.unpack_from(code)
    rest = code[_CODE.size : total]
    if zlib.crc32(rest) != wanted:
        raise FileFormatError("a kernel for the virtual GPU is damaged")
    return rest[:name_nbytes].decode(), rest[name_nbytes:].decode()


HEAD_NBYTES = _CODE.size


# ---- reading the text ---------------------------------------------------------------------------


def _scan(plain: str, source: str) -> list[_Kernel]:
    """Return the kernels of a text without comments."""
    entries = list(_ENTRY.finditer(plain))
    if not entries:
        raise CompileError("a PTX text has no kernel", source=source, log="wanted: .entry name")
    outside, found = plain[: entries[0].start()], []
    for number, entry in enumerate(entries):
        end = entries[number + 1].start() if number + 1 < len(entries) else len(plain)
        found.append(_kernel(entry[1], plain[entry.end() : end], outside, source))
    return found


def _kernel(name: str, rest: str, outside: str, source: str) -> _Kernel:
    brace = rest.find("{")
    if brace < 0:
        raise CompileError(f"the kernel {name} of a PTX text has no body", source=source, log="")
    head, body = rest[:brace], rest[brace:]
    kernel = _Kernel(name)
    offset = 0
    for match in _PARAMETER.finditer(head):
        nbytes, align = _element(match[1])
        count = int(match[3].strip("[] \t\n")) if match[3] else 1
        offset = round_up(offset, align)
        kernel.parameters.append((offset, nbytes * count))
        offset += nbytes * count
    for match in _DIRECTIVE.finditer(rest):
        kernel.directives[match[1]] = tuple(map(int, re.findall(r"\d+", match[2])))
    kernel.shared_nbytes = _space_nbytes("shared", (outside, body))
    kernel.local_nbytes = round_up(_space_nbytes("local", (body,)), 8)
    kernel.registers = _register_estimate(body)
    barriers = [int(number) for number in _BARRIER.findall(body)]
    kernel.barriers = max(barriers, default=-1) + 1
    return kernel


def _element(words: str) -> tuple[int, int]:
    """Return the bytes and the alignment of one element of a declaration's words."""
    nbytes = 1
    for match in _TYPE.finditer(words):
        if match[1] == "v":
            continue
        nbytes = max(int(match[2]) * (2 if match[3] else 1) // 8, 1)
    lanes = re.search(r"\.v([248])\b", words)
    nbytes *= int(lanes[1]) if lanes else 1
    align = re.search(r"\.align\s+(\d+)", words)
    return nbytes, int(align[1]) if align else nbytes


def _space_nbytes(space: str, texts: Iterable[str]) -> int:
    """Return the bytes of all sized variables of a space, one behind the other."""
    offset = 0
    for text in texts:
        for match in _VARIABLES.finditer(text):
            if match[1] != space:
                continue
            nbytes, align = _element(match[2])
            for name in match[3].split(","):
                counts = re.findall(r"\[\s*(\w*)\s*\]", name)
                if "" not in counts:
                    sizes = (int(count.rstrip("U"), 0) for count in counts)
                    offset = round_up(offset, align) + nbytes * prod(sizes)
    return offset


def _register_estimate(body: str) -> int:
    words = 0
    for kind, names in _REGISTERS.findall(body):
        if kind == "pred":
            continue
        width = 2 if kind.endswith("64") else 1
        for name in names.split(","):
            counted = re.search(r"<\s*(\d+)\s*>", name)
            words += width * (int(counted[1]) if counted else 1)
    return min(max(round_up(words, 8), _LEAST_REGISTERS), _MOST_REGISTERS)


# ---- writing the file ---------------------------------------------------------------------------

# cubin.py says what each attribute of .nv.info means; these are those of the form 8 of the ABI.
_EM_CUDA, _LINKED, _ABI = 190, 2, 8
_PROGRAM, _SYMBOLS, _STRINGS, _ZEROS, _INFO = 1, 2, 3, 8, 0x70000000
_ALLOCATED, _CODE_FLAGS = 2, 6
_SIZED, _VALUE, _BYTE = 4, 3, 2
_ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_ELF_SECTION = struct.Struct("<IIQQQQIIQQ")
_ELF_SYMBOL = struct.Struct("<IBBHQQ")
_GLOBAL_FUNCTION, _ENTRY_BIT = 0x12, 0x10


@dataclass(slots=True)
class _Section:
    name: str
    kind: int
    data: bytes = b""
    flags: int = 0
    nbytes: int = -1
    align: int = 1
    link: int = 0
    info: int = 0


class _Writer:
    def __init__(self, capability: int, kernels: list[_Kernel], text: str) -> None:
        self.capability = capability
        self.kernels = kernels
        self.text = text
        self.base = next(base for least, base in _PARAMETER_BASES if capability >= least)
        self.sections = [_Section("", 0)]
        self.symbols: list[tuple[str, int]] = []

    def file(self) -> bytes:
        """Return the whole file."""
        for kernel in self.kernels:
            self._add_kernel(kernel)
        names, symbols = bytearray(b"\0"), bytearray(_ELF_SYMBOL.size)
        for name, section in self.symbols:
            nbytes = len(self.sections[section].data)
            symbols += _ELF_SYMBOL.pack(
                len(names), _GLOBAL_FUNCTION, _ENTRY_BIT, section, 0, nbytes
            )
            names += name.encode() + b"\0"
        strings = self._add(_Section(".strtab", _STRINGS, bytes(names)))
        self._add(_Section(".symtab", _SYMBOLS, bytes(symbols), align=8, link=strings, info=1))
        self._add(_Section(".nv.info", _INFO, self._module_info(), align=4))
        return self._layout()

    def _add(self, section: _Section) -> int:
        self.sections.append(section)
        return len(self.sections) - 1

    def _add_kernel(self, kernel: _Kernel) -> None:
        name = kernel.name
        code = kernel_code(name, self.text)
        code += bytes(round_up(len(code), 128) - len(code))
        place = self._add(_Section(f".text.{name}", _PROGRAM, code, _CODE_FLAGS, align=128))
        self.symbols.append((name, place))
        bank = bytes(self.base + kernel.parameter_nbytes)
        self._add(_Section(f".nv.constant0.{name}", _PROGRAM, bank, _ALLOCATED, align=4))
        self._add(_Section(f".nv.info.{name}", _INFO, self._kernel_info(kernel), align=4))
        shared = kernel.shared_nbytes
        if self.capability >= _FIRST_COUNTED:
            shared += _RESERVED_SHARED
        if shared:
            self._add(_Section(
                f".nv.shared.{name}", _ZEROS, b"", _ALLOCATED | 1, nbytes=shared, align=16
            ))  # fmt: skip

    def _module_info(self) -> bytes:
        data = b""
        for number, kernel in enumerate(self.kernels, 1):
            data += _sized(0x2F, struct.pack("<II", number, kernel.registers))
            data += _sized(0x12, struct.pack("<II", number, kernel.local_nbytes))
        return data

    def _kernel_info(self, kernel: _Kernel) -> bytes:
        data = _sized(0x0A, struct.pack("<IHH", 0, self.base, kernel.parameter_nbytes))
        data += struct.pack("<BBH", _VALUE, 0x19, kernel.parameter_nbytes)
        for ordinal, (offset, nbytes) in enumerate(kernel.parameters):
            data += _sized(0x45, struct.pack("<IHHHH", 0, ordinal, offset, nbytes, 0))
        data += struct.pack("<BBH", _BYTE, 0x4C, kernel.barriers)
        for name, attribute in (("maxntid", 0x05), ("reqntid", 0x10), ("reqnctapercluster", 0x3D)):
            axes = kernel.directives.get(name)
            if axes:
                data += _sized(attribute, struct.pack("<III", *(*axes, 1, 1)[:3]))
        return data

    def _layout(self) -> bytes:
        names = bytearray()
        places = []
        self._add(_Section(".shstrtab", _STRINGS))
        for section in self.sections:
            places.append(len(names))
            names += section.name.encode() + b"\0"
        self.sections[-1].data = bytes(names)
        body, headers = bytearray(_ELF_HEADER.size), bytearray()
        for name_at, section in zip(places, self.sections, strict=True):
            body += bytes(round_up(len(body), section.align) - len(body))
            nbytes = section.nbytes if section.nbytes >= 0 else len(section.data)
            headers += _ELF_SECTION.pack(
                name_at, section.kind, section.flags, 0, len(body), nbytes, section.link,
                section.info, section.align,
                _ELF_SYMBOL.size if section.kind == _SYMBOLS else 0,
            )  # fmt: skip
            body += section.data
        body += bytes(round_up(len(body), 8) - len(body))
        ident = b"\x7fELF\x02\x01\x01\x41" + bytes([_ABI]) + bytes(7)
        body[: _ELF_HEADER.size] = _ELF_HEADER.pack(
            ident, _LINKED, _EM_CUDA, 1, 0, 0, len(body), self.capability << 8,
            _ELF_HEADER.size, 0, 0, _ELF_SECTION.size, len(self.sections),
            len(self.sections) - 1,
        )  # fmt: skip
        return bytes(body + headers)


def _sized(attribute: int, payload: bytes) -> bytes:
    return struct.pack("<BBH", _SIZED, attribute, len(payload)) + payload
