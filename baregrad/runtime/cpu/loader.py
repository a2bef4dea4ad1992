"""Loading objects into executable memory, with no compiler around.

Memory is never writable and executable at once: an object is laid out and relocated in writable
pages, which are then made executable. External functions (libm's, memcpy) may lie anywhere, so
calls reach them through stubs beside the code.

Sources: System V ABI AMD64 supplement, table 4.9; ELF for the Arm 64-bit Architecture, 5.7.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

from baregrad.base.bits import round_up
from baregrad.base.errors import CompileError, DriverError
from baregrad.runtime.cpu.elf import AARCH64, X86_64, ObjectFile, Relocation, read_object
from baregrad.runtime.host_memory import address_of

_ARENA_NBYTES = 1 << 20
_STUB_NBYTES = 16
_READ_WRITE, _READ_EXECUTE = 3, 5

# x86-64
_R64, _PC32, _PLT32, _GOTPCREL, _PC64, _GOTPCRELX, _REX_GOTPCRELX = 1, 2, 4, 9, 24, 41, 42
# AArch64
_ABS64, _PREL64, _PREL32 = 257, 260, 261
_ADR_PREL_LO21, _ADR_PREL_PG_HI21, _ADD_ABS_LO12 = 274, 275, 277
_JUMP26, _CALL26, _ADR_GOT_PAGE, _LD64_GOT_LO12 = 282, 283, 311, 312
# Unsigned 12-bit offsets of loads and stores, by the log2 of the bytes moved.
_LDST_LO12 = MappingProxyType({278: 0, 284: 1, 285: 2, 286: 3, 299: 4})
_GOT_KINDS = MappingProxyType(
    {
        X86_64: (_GOTPCREL, _GOTPCRELX, _REX_GOTPCRELX),
        AARCH64: (_ADR_GOT_PAGE, _LD64_GOT_LO12),
    }
)
_CALL_KINDS = MappingProxyType({X86_64: (_PC32, _PLT32), AARCH64: (_JUMP26, _CALL26)})


class _Arena:
    """A mapping that objects are loaded into, by whole pages."""

    def __init__(self, nbytes: int) -> None:
        self.mapping = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = address_of(self.mapping)
        self.nbytes = nbytes
        self.used = 0
        self.free: dict[int, list[int]] = {}


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where in the image each section, slot of the address table and call stub lies."""

    sections: dict[int, int]
    table: dict[int, int]
    stubs: dict[int, int]
    nbytes: int


class LoadedObject:
    """An object in executable memory; unloaded when nothing refers to it any more.

    `address(name)` is where one of its global symbols lies. Whoever may still call into it must
    hold it.
    """

    def __init__(
        self, loader: Loader, arena: _Arena, offset: int, nbytes: int, symbols: dict[str, int]
    ) -> None:
        self._loader = loader
        self._arena = arena
        self._offset = offset
        self.nbytes = nbytes
        self._symbols = symbols

    def address(self, name: str) -> int:
        """Return where the symbol lies; raise CompileError if the object has none of that name."""
        found = self._symbols.get(name)
        if found is None:
            raise CompileError(
                f"a compiled kernel has no entry {name!r}", found=sorted(self._symbols)
            )
        return found

    def __del__(self, ends: Callable[[], bool] = sys.is_finalizing) -> None:
        # When the interpreter ends, what unloading needs may be gone before this is.
        if not ends():
            self._loader.unload(self._arena, self._offset, self.nbytes)


class Loader:
    """Loads objects of this machine; owns the executable memory. Safe from several threads."""

    def __init__(self, machine: int) -> None:
        if machine not in _GOT_KINDS:
            raise DriverError("code of this machine cannot be loaded", found=f"ELF {machine}")
        self.machine = machine
        self._libraries = _libraries()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._externals: dict[str, int] = {}
        self._arenas: list[_Arena] = []
        # Reentrant: unloading runs in garbage collections, which may come while loading.
        self._lock = threading.RLock()

    def load(self, code: bytes) -> LoadedObject:
        """Return the object, relocated and executable; raise CompileError if it is broken."""
        parsed = read_object(code)
        if parsed.machine != self.machine:
            raise CompileError(
                "a kernel was compiled for another machine",
                found=f"ELF machine {parsed.machine}",
                wanted=self.machine,
            )
        layout = self._lay_out(parsed)
        pages = round_up(layout.nbytes, mmap.PAGESIZE)
        with self._lock:
            arena, offset = self._reserve(pages)
            base = arena.address + offset
            try:
                image = self._image(parsed, layout, base)
            except BaseException:
                arena.free.setdefault(pages, []).append(offset)
                raise
            arena.mapping[offset : offset + len(image)] = bytes(image)
            self._protect(base, pages, _READ_EXECUTE)
        symbols = {
            symbol.name: base + layout.sections[symbol.section] + symbol.value
            for symbol in parsed.symbols
            if symbol.name and symbol.section is not None and symbol.section in layout.sections
        }
        return LoadedObject(self, arena, offset, pages, symbols)

    def unload(self, arena: _Arena, offset: int, nbytes: int) -> None:
        """Make the pages of an object free for another one."""
        with self._lock:
            self._protect(arena.address + offset, nbytes, _READ_WRITE)
            if hasattr(mmap, "MADV_DONTNEED"):
                # Fresh pages next time: some processors would else run stale instructions.
                arena.mapping.madvise(mmap.MADV_DONTNEED, offset, nbytes)
            arena.free.setdefault(nbytes, []).append(offset)

    def external(self, name: str) -> int:
        """Return the address of a function of the C or the maths library."""
        found = self._externals.get(name)
        if found is not None:
            return found
        for library in self._libraries:
            try:
                function = getattr(library, name)
            except AttributeError:
                continue
            address = ctypes.cast(function, ctypes.c_void_p).value
            if address:
                self._externals[name] = address
                return address
        raise CompileError(
            f"a compiled kernel calls {name!r}, which no system library has",
            hint="lower the operation before code generation",
        )

    def after_fork(self) -> None:
        """Take a fresh lock: another thread may have held it when the process forked."""
        self._lock = threading.RLock()

    def _reserve(self, nbytes: int) -> tuple[_Arena, int]:
        """Return writable pages."""
        for arena in self._arenas:
            free = arena.free.get(nbytes)
            if free:
                return arena, free.pop()
            if arena.used + nbytes <= arena.nbytes:
                offset = arena.used
                arena.used += nbytes
                return arena, offset
        arena = _Arena(max(_ARENA_NBYTES, nbytes))
        self._arenas.insert(0, arena)
        arena.used = nbytes
        return arena, 0

    def _protect(self, address: int, nbytes: int, protection: int) -> None:
        result = self._libc.mprotect(
            ctypes.c_void_p(address), ctypes.c_size_t(nbytes), ctypes.c_int(protection)
        )
        if result != 0:
            number = ctypes.get_errno()
            raise DriverError(
                f"the system refused to change the protection of code pages: {os.strerror(number)}",
                hint="a security policy may forbid programs that make code (SELinux execmem)",
            )

    def _lay_out(self, parsed: ObjectFile) -> _Layout:
        """Place sections, then the address table, then stubs."""
        at = 0
        sections = {}
        for index, section in parsed.sections.items():
            at = round_up(at, section.alignment)
            sections[index] = at
            at += section.nbytes
        at = round_up(at, 16)
        table: dict[int, int] = {}
        stubs: dict[int, int] = {}
        for item in parsed.relocations:
            target = parsed.symbols[item.symbol]
            if item.kind in _GOT_KINDS[self.machine] and item.symbol not in table:
                table[item.symbol] = at
                at += 8
            elif target.section is None and item.kind in _CALL_KINDS[self.machine]:
                stubs.setdefault(item.symbol, 0)
        at = round_up(at, 16)
        for symbol in stubs:
            stubs[symbol] = at
            at += _STUB_NBYTES
        return _Layout(sections, table, stubs, at)

    def _image(self, parsed: ObjectFile, layout: _Layout, base: int) -> bytearray:
        """Return the bytes of the object as they are to lie at `base`."""
        image = bytearray(layout.nbytes)
        for index, section in parsed.sections.items():
            at = layout.sections[index]
            image[at : at + len(section.data)] = section.data
        for symbol, at in layout.table.items():
            struct.pack_into("<Q", image, at, self._address(parsed, layout, base, symbol))
        for symbol, at in layout.stubs.items():
            image[at : at + _STUB_NBYTES] = self._stub(self.external(parsed.symbols[symbol].name))
        patch = _patch_x86_64 if self.machine == X86_64 else _patch_aarch64
        for item in parsed.relocations:
            if item.symbol in layout.stubs and item.kind in _CALL_KINDS[self.machine]:
                target = base + layout.stubs[item.symbol]
            elif item.kind in _GOT_KINDS[self.machine]:
                target = base + layout.table[item.symbol]
            else:
                target = self._address(parsed, layout, base, item.symbol)
            at = layout.sections[item.section] + item.offset
            patch(image, item, at, base + at, target + item.addend)
        return image

    def _address(self, parsed: ObjectFile, layout: _Layout, base: int, index: int) -> int:
        symbol = parsed.symbols[index]
        if symbol.section is None:
            return self.external(symbol.name)
        if symbol.section not in layout.sections:
            raise CompileError(f"a kernel refers to {symbol.name!r}, which is not loaded")
        return base + layout.sections[symbol.section] + symbol.value

    def _stub(self, target: int) -> bytes:
        """Return code that jumps to `target`, wherever that is."""
        if self.machine == X86_64:
            # jmp [rip + 2], two bytes of padding, the address
            return b"\xff\x25\x02\x00\x00\x00\x66\x90" + struct.pack("<Q", target)
        # ldr x16, .+8; br x16; the address
        return struct.pack("<IIQ", 0x58000050, 0xD61F0200, target)


def _patch_x86_64(image: bytearray, item: Relocation, at: int, place: int, value: int) -> None:
    kind = item.kind
    if kind == _R64:
        struct.pack_into("<Q", image, at, value & 0xFFFFFFFFFFFFFFFF)
        return
    if kind == _PC64:
        struct.pack_into("<q", image, at, value - place)
        return
    if kind not in (_PC32, _PLT32, _GOTPCREL, _GOTPCRELX, _REX_GOTPCRELX):
        raise CompileError(
            f"a kernel needs the relocation {kind} of x86-64, which is not known here",
            hint="compile position-independent code of the small model",
        )
    distance = value - place
    if not -(1 << 31) <= distance < 1 << 31:
        raise CompileError("a kernel refers to data more than 2 GiB away")
    struct.pack_into("<i", image, at, distance)


def _patch_aarch64(image: bytearray, item: Relocation, at: int, place: int, value: int) -> None:
    kind = item.kind
    if kind in (_ABS64, _PREL64):
        number = value if kind == _ABS64 else value - place
        struct.pack_into("<Q", image, at, number & 0xFFFFFFFFFFFFFFFF)
        return
    if kind == _PREL32:
        struct.pack_into("<i", image, at, value - place)
        return
    (word,) = struct.unpack_from("<I", image, at)
    if kind in (_JUMP26, _CALL26):
        word |= _field(value - place, 2, 26)
    elif kind in (_ADR_PREL_PG_HI21, _ADR_GOT_PAGE, _ADR_PREL_LO21):
        pages = value - place
        if kind != _ADR_PREL_LO21:
            pages = (value >> 12) - (place >> 12)
        number = _field(pages, 0, 21)
        word |= (number & 3) << 29 | (number >> 2) << 5
    elif kind == _ADD_ABS_LO12:
        word |= (value & 0xFFF) << 10
    elif kind == _LD64_GOT_LO12:
        word |= (value & 0xFFF) >> 3 << 10
    elif kind in _LDST_LO12:
        word |= (value & 0xFFF) >> _LDST_LO12[kind] << 10
    else:
        raise CompileError(
            f"a kernel needs the relocation {kind} of AArch64, which is not known here",
            hint="compile position-independent code of the small model",
        )
    struct.pack_into("<I", image, at, word)


def _field(value: int, shift: int, width: int) -> int:
    """Return a signed number as an instruction's field, after dropping `shift` zero bits."""
    number = value >> shift
    if not -(1 << (width - 1)) <= number < 1 << (width - 1):
        raise CompileError("a kernel refers to code or data that is too far away")
    return number & ((1 << width) - 1)


def _libraries() -> tuple[ctypes.CDLL, ...]:
    """Return what external functions are looked up in: the process, then the maths library."""
    found = [ctypes.CDLL(None)]
    for name in ("libm.so.6", "libm.so"):
        try:
            found.append(ctypes.CDLL(name))
        except OSError:
            continue
        break
    return tuple(found)
