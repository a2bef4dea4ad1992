"""Cubins: ELF files with the machine code of kernels, and all that launching one needs to know.

Two forms of the ABI are read: 7, which CUDA 12 writes, and 8, of CUDA 13. Only linked files are
taken: a relocatable one (from `-rdc`) has to go through the vendor's linker first.

The format has no public description. What is read here was found by compiling for sm_75 to sm_120
with nvcc 12.9 and 13.0 and comparing with what `readelf` and `cuobjdump -elf` print; the names of
attributes in comments are those of cuobjdump.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from baregrad.base.errors import FileFormatError, UnsupportedError
from baregrad.runtime.nvidia.code.cubin_elf import (
    CubinRelocation,
    ElfFile,
    ElfSection,
    ElfSymbol,
    read_elf,
)
from baregrad.runtime.nvidia.code.local_memory import thread_nbytes

_REGISTER_COUNT = 0x2F
_MIN_STACK_SIZE = 0x12
_PARAM_BANK = 0x0A
_PARAM_NBYTES = 0x19
_PARAM, _PARAM_WIDE = 0x17, 0x45
_MAX_THREADS, _EXACT_THREADS = 0x05, 0x10
_BARRIER_COUNT = 0x4C
_CLUSTER = 0x3D
_SYSTEM_CALLS = 0x46
_SIZED = 4
_NO_BOUND = 0xFFFFFFFF
# Sections of global variables: those that begin as zeros, and as what the file says.
VARIABLES = (".nv.global", ".nv.global.init")
_CONSTANT = re.compile(r"\.nv\.constant(\d+)(?:\.(.+))?", re.DOTALL)
_MAX_BANK = 17


@dataclass(frozen=True, slots=True)
class Parameter:
    """A kernel's parameter: bytes from the begin of the parameters, and its size."""

    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class CubinKernel:
    """What launching one kernel needs.

    `code` is the number of the section that holds it, which begins with its entry. `banks` are the
    sections of constant banks 1 and up, by bank; bank 0 is filled for each launch: `bank_nbytes` of
    it, from the pattern `bank_template`, with parameters from `parameter_base` on.
    `shared_nbytes` is the size of the section of shared memory (see `shared_total`), `stack_nbytes`
    what one thread needs of local memory (see `local_nbytes`). `max_threads` is the bound that the
    source gives, 0 for none; `exact_threads` and `cluster` are what it demands, None for nothing.
    """

    name: str
    code: int
    register_count: int
    barrier_count: int
    shared_nbytes: int
    stack_nbytes: int
    parameter_base: int
    parameter_nbytes: int
    parameters: tuple[Parameter, ...]
    bank_template: bytes
    banks: Mapping[int, int]
    max_threads: int = 0
    exact_threads: tuple[int, int, int] | None = None
    cluster: tuple[int, int, int] | None = None
    calls: tuple[str, ...] = ()

    @property
    def bank_nbytes(self) -> int:
        """Bytes of constant bank 0."""
        return len(self.bank_template)

    @property
    def local_nbytes(self) -> int:
        """Bytes of local memory of one thread, with what the system takes of it.

        Raises UnsupportedError for a kernel whose functions call themselves: nothing bounds that.
        """
        if self.stack_nbytes == _NO_BOUND:
            raise UnsupportedError(f"the kernel {self.name!r} recurses, so its stack has no bound")
        return thread_nbytes(self.stack_nbytes)

    def shared_total(self, dynamic_nbytes: int, reserved_nbytes: int, counted: bool) -> int:
        """Return the shared memory that one block takes in all.

        The system reserves `reserved_nbytes` at its begin: nothing on Turing, 1024 bytes later.
        `counted` says whether the compiler counts them in the kernel's own.
        """
        if counted:
            return max(self.shared_nbytes, reserved_nbytes) + dynamic_nbytes
        return reserved_nbytes + self.shared_nbytes + dynamic_nbytes


@dataclass(frozen=True, slots=True)
class Cubin:
    """A file's kernels, and the parts of it that go into memory.

    `capability` is 90 for sm_90 and sm_90a. `sections` are those that take memory, by number: code,
    constant banks 1 and up, global variables. `relocations` patch them with addresses of `symbols`.
    """

    capability: int
    abi: int
    kernels: Mapping[str, CubinKernel]
    sections: Mapping[int, ElfSection]
    symbols: tuple[ElfSymbol, ...]
    relocations: tuple[CubinRelocation, ...]

    def kernel(self, name: str) -> CubinKernel:
        """Return a kernel by name.

        Raises FileFormatError where there is none, UnsupportedError for one that calls the vendor's
        own functions (printf, malloc), which need more of a driver than there is.
        """
        found = self.kernels.get(name)
        if found is None:
            raise FileFormatError(
                f"a cubin has no kernel {name!r}", found=", ".join(self.kernels) or "none"
            )
        if found.calls:
            raise UnsupportedError(
                f"the kernel {name!r} calls functions of the vendor's system",
                found=", ".join(found.calls),
            )
        return found


@dataclass(slots=True)
class _Facts:
    """What the attributes say of one kernel, while they are read."""

    register_count: int = -1
    stack_nbytes: int = 0
    barrier_count: int = 0
    parameter_base: int = 0
    parameter_nbytes: int = 0
    max_threads: int = 0
    exact_threads: tuple[int, int, int] | None = None
    cluster: tuple[int, int, int] | None = None
    calls_system: bool = False
    parameters: dict[int, Parameter] = field(default_factory=dict)


def read_cubin(data: bytes) -> Cubin:
    """Return what a cubin holds; raise FileFormatError where it is broken, or no cubin."""
    elf = read_elf(data)
    facts: dict[str, _Facts] = {}
    entries = {index: one for index, one in enumerate(elf.symbols) if one.is_entry}
    for symbol in entries.values():
        facts[symbol.name] = _Facts()
    for section in elf.sections.values():
        if section.name == ".nv.info":
            _read_module_facts(section, entries, facts)
    for section in elf.sections.values():
        if section.name.startswith(".nv.info."):
            found = facts.get(section.name.removeprefix(".nv.info."))
            if found is not None:
                _read_facts(section, found)
    loaded = {index: one for index, one in elf.sections.items() if _takes_memory(one)}
    relocations = tuple(one for one in elf.relocations if one.section in loaded)
    wanted = _wanted(elf.symbols, relocations)
    kernels = {}
    for symbol in entries.values():
        mine = facts[symbol.name]
        calls = wanted or ("a function of no name",) if mine.calls_system else ()
        kernels[symbol.name] = _kernel(symbol, mine, calls, elf)
    return Cubin(elf.capability, elf.abi, kernels, loaded, elf.symbols, relocations)


def _takes_memory(section: ElfSection) -> bool:
    """Whether a section is laid out in device memory once for the module."""
    bank = _CONSTANT.fullmatch(section.name)
    return (
        section.is_code
        or section.name in VARIABLES
        or (bank is not None and int(bank[1]) > 0)
    )


def _wanted(
    symbols: tuple[ElfSymbol, ...], relocations: tuple[CubinRelocation, ...]
) -> tuple[str, ...]:
    """Return the names of functions that are wanted from elsewhere."""
    wanted = (symbols[one.symbol] for one in relocations)
    return tuple(dict.fromkeys(one.name for one in wanted if one.section is None))


def _kernel(
    symbol: ElfSymbol, facts: _Facts, calls: tuple[str, ...], elf: ElfFile
) -> CubinKernel:
    name, sections = symbol.name, elf.sections
    code = sections.get(-1 if symbol.section is None else symbol.section)
    if code is None or not code.is_code or symbol.value:
        raise FileFormatError(f"the kernel {name!r} of a cubin has no code of its own")
    if facts.register_count < 0:
        raise FileFormatError(f"a cubin does not say how many registers {name!r} has")
    template, banks = _banks(name, sections)
    shared = [one.nbytes for one in sections.values() if one.name == f".nv.shared.{name}"]
    return CubinKernel(
        name=name,
        code=code.index,
        register_count=facts.register_count,
        # The older form of the file has it among the flags of the code.
        barrier_count=facts.barrier_count if elf.abi >= 8 else code.flags >> 20 & 0x7F,
        shared_nbytes=max(shared, default=0),
        stack_nbytes=facts.stack_nbytes,
        parameter_base=facts.parameter_base,
        parameter_nbytes=facts.parameter_nbytes,
        parameters=_parameters(name, facts, len(template)),
        bank_template=template,
        banks=banks,
        max_threads=facts.max_threads,
        exact_threads=facts.exact_threads,
        cluster=facts.cluster,
        calls=calls,
    )


def _parameters(name: str, facts: _Facts, bank_nbytes: int) -> tuple[Parameter, ...]:
    """Return the parameters in order, checked to lie in the bank."""
    if facts.parameter_base + facts.parameter_nbytes > bank_nbytes:
        raise FileFormatError(
            f"the parameters of {name!r} do not fit its constant bank",
            found=f"{facts.parameter_nbytes} bytes at {facts.parameter_base:#x}",
            wanted=f"within {bank_nbytes} bytes",
        )
    ordinals = sorted(facts.parameters)
    if ordinals != list(range(len(ordinals))):
        raise FileFormatError(f"parameters of {name!r} are missing", found=ordinals)
    for one in facts.parameters.values():
        if one.offset + one.nbytes > facts.parameter_nbytes:
            raise FileFormatError(f"a parameter of {name!r} lies outside the others", found=one)
    return tuple(facts.parameters[ordinal] for ordinal in ordinals)


def _banks(name: str, sections: Mapping[int, ElfSection]) -> tuple[bytes, dict[int, int]]:
    """Return the pattern of bank 0 and the sections of the others, the kernel's own first."""
    template = b""
    banks: dict[int, int] = {}
    for index, section in sections.items():
        found = _CONSTANT.fullmatch(section.name)
        if found is None or found[2] not in (None, name):
            continue
        bank = int(found[1])
        if bank > _MAX_BANK:
            raise FileFormatError("a cubin has a constant bank that no GPU has", found=bank)
        if bank == 0:
            if found[2] == name:
                template = bytes(section.data)
        elif bank not in banks or found[2] == name:
            banks[bank] = index
    if not template:
        raise FileFormatError(f"the kernel {name!r} of a cubin has no constant bank")
    return template, banks


def _records(section: ElfSection) -> list[tuple[int, int, bytes]]:
    """Return (attribute, value, payload) of each record; the payload is empty for short ones."""
    data, at, found = bytes(section.data), 0, []
    while at < len(data):
        if at + 4 > len(data):
            raise FileFormatError(f"the section {section.name} of a cubin is cut short")
        form, attribute, value = struct.unpack_from("<BBH", data, at)
        at += 4
        payload = b""
        if form == _SIZED:
            payload = data[at : at + value]
            if len(payload) != value:
                raise FileFormatError(f"the section {section.name} of a cubin is cut short")
            at += value
        elif not 1 <= form < _SIZED:
            raise FileFormatError(
                f"the section {section.name} of a cubin has a record of no known form", found=form
            )
        found.append((attribute, value, payload))
    return found


def _read_module_facts(
    section: ElfSection, entries: Mapping[int, ElfSymbol], facts: Mapping[str, _Facts]
) -> None:
    for attribute, _, payload in _records(section):
        if attribute not in (_REGISTER_COUNT, _MIN_STACK_SIZE):
            continue
        index, value = _unpack("<II", payload, section)
        symbol = entries.get(index)
        if symbol is None:
            # A function that is called, not launched.
            continue
        if attribute == _REGISTER_COUNT:
            facts[symbol.name].register_count = value
        else:
            facts[symbol.name].stack_nbytes = value


def _read_facts(section: ElfSection, facts: _Facts) -> None:
    for attribute, value, payload in _records(section):
        if attribute == _PARAM_BANK:
            _, facts.parameter_base, facts.parameter_nbytes = _unpack("<IHH", payload, section)
        elif attribute == _PARAM_NBYTES:
            facts.parameter_nbytes = value
        elif attribute == _PARAM:
            _, ordinal, offset, packed = _unpack("<IHHI", payload, section)
            facts.parameters[ordinal] = Parameter(offset, packed >> 18)
        elif attribute == _PARAM_WIDE:
            _, ordinal, offset, nbytes, _ = _unpack("<IHHHH", payload, section)
            facts.parameters[ordinal] = Parameter(offset, nbytes)
        elif attribute == _MAX_THREADS:
            x, y, z = _unpack("<III", payload, section)
            facts.max_threads = x * y * z
        elif attribute == _EXACT_THREADS:
            x, y, z = _unpack("<III", payload, section)
            facts.exact_threads = (x, y, z)
        elif attribute == _CLUSTER:
            x, y, z = _unpack("<III", payload, section)
            facts.cluster = (x, y, z)
        elif attribute == _BARRIER_COUNT:
            facts.barrier_count = value & 0xFF
        elif attribute == _SYSTEM_CALLS:
            facts.calls_system = True


def _unpack(form: str, payload: bytes, section: ElfSection) -> tuple[int, ...]:
    if len(payload) < struct.calcsize(form):
        raise FileFormatError(
            f"a record of the section {section.name} of a cubin is too short",
            found=len(payload),
            wanted=struct.calcsize(form),
        )
    return struct.unpack_from(form, payload)
