"""The kernel's calls for tracing: ptrace, and the seccomp filter that says where to stop.

Numbers are those of Linux's `linux/ptrace.h`, `linux/seccomp.h` and `linux/bpf_common.h`. System
calls are read by PTRACE_GET_SYSCALL_INFO (Linux 5.3), which is the same on every processor.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import platform
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from baregrad.base.errors import UnsupportedError

POKE, CONT, GET_REGISTERS, SET_REGISTERS, DETACH, SYSCALL = 5, 7, 12, 13, 17, 24
SETOPTIONS, GETEVENTMSG = 0x4200, 0x4201
SEIZE, INTERRUPT, LISTEN = 0x4206, 0x4207, 0x4208
GET_SYSCALL_INFO = 0x420E

OPTION_SYSGOOD = 0x1
OPTION_FORKS = 0x2 | 0x4 | 0x8  # fork, vfork, clone
OPTION_EXEC = 0x10
OPTION_SECCOMP = 0x80
OPTION_EXITKILL = 0x100000

EVENT_FORK, EVENT_VFORK, EVENT_CLONE, EVENT_EXEC, EVENT_SECCOMP = 1, 2, 3, 4, 7
EVENT_STOP = 128
# Set in the signal of a stop that a system call caused.
SYSCALL_STOP = 0x80
WAIT_ALL = 0x40000000  # __WALL: threads as well as processes

# x86-64: how many words `user_regs_struct` has, places in it, and bytes of a system call.
_REGISTERS = 27
RAX, RDX, RSI, RDI, ORIGINAL_RAX, RIP, RSP = 10, 12, 13, 14, 15, 16, 19
SYSCALL_NBYTES = 2

_PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
_RET_ALLOW, _RET_TRACE = 0x7FFF0000, 0x7FF00000
_LOAD, _JUMP_EQUAL, _JUMP_SET, _AND, _RETURN = 0x20, 0x15, 0x45, 0x54, 0x06

MAP_SHARED = 1


@dataclass(frozen=True)
class SyscallTable:
    """What differs by processor: the audit number of its calls, and their numbers by name."""

    audit: int
    numbers: Mapping[str, int]

    @functools.cached_property
    def names(self) -> Mapping[int, str]:
        """Return the names of the system calls that we know, by number."""
        return {number: name for name, number in self.numbers.items()}


_MACHINES = MappingProxyType({
    "x86_64": SyscallTable(0xC000003E, MappingProxyType({
        "open": 2, "close": 3, "stat": 4, "lstat": 6, "mmap": 9, "munmap": 11, "ioctl": 16,
        "exit_group": 231, "newfstatat": 262, "openat": 257, "statx": 332, "openat2": 437,
        "prctl": 157, "seccomp": 317,
    })),
    "aarch64": SyscallTable(0xC00000B7, MappingProxyType({
        "ioctl": 29, "openat": 56, "close": 57, "newfstatat": 79, "exit_group": 94,
        "munmap": 215, "mmap": 222,
        "statx": 291, "openat2": 437,
    })),
})  # fmt: skip

# What the filter stops at. Of ioctl and mmap, only such as may be the driver's.
# At the end of a process its memory is still there.
EXITS = "exit_group"
WATCHED = ("open", "openat", "openat2", "close", "munmap", "ioctl", "mmap", EXITS)
# For a recording as well whether a node is there, and memory that is shared with nobody yet.
RECORDED = (*WATCHED, "stat", "newfstatat", "statx")
# Before a program has to do with the driver: opens for more than reading, as of its nodes (all but
# capabilities), and filters that it installs itself, which might forbid that ours is replaced.
FILTERS = frozenset({"prctl", "seccomp"})
FIRST = ("open", "openat", "openat2", "ioctl", "mmap", *sorted(FILTERS))
STATS = frozenset({"stat", "newfstatat", "statx"})
OPENS = frozenset({"open", "openat", "openat2"})


def machine() -> SyscallTable:
    """Return this processor's table; raise UnsupportedError where there is none."""
    found = _MACHINES.get(platform.machine())
    if found is None:
        raise UnsupportedError(
            "tracing is not written for this processor",
            found=platform.machine(), wanted=", ".join(_MACHINES),
        )  # fmt: skip
    return found


def libc() -> ctypes.CDLL:
    """Return the C library with `ptrace` and `prctl` typed."""
    library = ctypes.CDLL(None, use_errno=True)
    library.ptrace.restype = ctypes.c_long
    library.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    library.prctl.argtypes = (ctypes.c_int,) + (ctypes.c_ulong,) * 4
    return library


class Ptrace:
    """`ptrace` as methods that raise OSError."""

    def __init__(self) -> None:
        self._call = libc().ptrace
        self._info = ctypes.create_string_buffer(128)
        self._message = ctypes.c_ulong()
        self._words = (ctypes.c_uint64 * _REGISTERS)()

    def __call__(self, request: int, tid: int, address: int = 0, data: int = 0) -> int:
        """Make one request."""
        done: int = self._call(request, tid, address, data)
        if done == -1:
            number = ctypes.get_errno()
            raise OSError(number, f"ptrace({request:#x}, {tid}): {os.strerror(number)}")
        return done

    def message(self, tid: int) -> int:
        """Return what an event says: the new thread of a fork, the old one of an exec."""
        self(GETEVENTMSG, tid, 0, ctypes.addressof(self._message))
        return int(self._message.value)

    def registers(self, tid: int) -> list[int]:
        """Return the registers of a thread of x86-64."""
        self(GET_REGISTERS, tid, 0, ctypes.addressof(self._words))
        return list(self._words)

    def set_registers(self, tid: int, values: list[int]) -> None:
        """Set the registers of a thread of x86-64."""
        self._words = (ctypes.c_uint64 * _REGISTERS)(*values)
        self(SET_REGISTERS, tid, 0, ctypes.addressof(self._words))

    def syscall(self, tid: int) -> Syscall | None:
        """Return the system call that a thread stopped in, or None outside of one."""
        self(GET_SYSCALL_INFO, tid, len(self._info), ctypes.addressof(self._info))
        raw = self._info.raw
        kind, audit, pointer, stack = struct.unpack_from("<B3xIQQ", raw)
        if kind in (1, 3):
            number, *arguments = struct.unpack_from("<7Q", raw, 24)
            return Syscall(kind, audit, pointer, stack, number, tuple(arguments), 0)
        if kind == 2:
            (value,) = struct.unpack_from("<q", raw, 24)
            return Syscall(kind, audit, pointer, stack, -1, (), value)
        return None


@dataclass(frozen=True, slots=True)
class Syscall:
    """A stop: `kind` is 1 at entry, 3 at entry by the filter, 2 at exit with `value`."""

    kind: int
    audit: int
    pointer: int
    stack: int
    number: int
    arguments: tuple[int, ...]
    value: int


class _Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("true", ctypes.c_ubyte), ("false", ctypes.c_ubyte),
                ("value", ctypes.c_uint)]  # fmt: skip


class _Program(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("rows", ctypes.POINTER(_Instruction))]


def filter_rows(names: tuple[str, ...]) -> list[tuple[int, int, int, int]]:
    """Return the filter's instructions (code, jump if true, if false, operand).

    It stops at each of `names`; at `ioctl` where the request is of the driver's kind ('F') or a
    bare number, as the unified memory driver has them; at `mmap` of a descriptor, shared.
    """
    here = machine()
    rows: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, 4),
        (_JUMP_EQUAL, 1, 0, here.audit),
        (_RETURN, 0, 0, _RET_ALLOW),
        (_LOAD, 0, 0, 0),
    ]
    for name in names:
        if name not in here.numbers:
            continue
        body = (_FIRST_BODIES if names == FIRST else _BODIES).get(name, _BODIES.get(name, ()))
        if name == "mmap" and names == RECORDED:
            body = body[:3]
        rows.append((_JUMP_EQUAL, 0, len(body) + 1, here.numbers[name]))
        rows += body
        rows.append((_RETURN, 0, 0, _RET_TRACE))
    rows.append((_RETURN, 0, 0, _RET_ALLOW))
    return rows


def _argument(index: int) -> tuple[int, int, int, int]:
    """Load the low half of an argument (both processors are little-endian)."""
    return (_LOAD, 0, 0, 16 + 8 * index)


# Each falls through to a stop, or returns.
_BODIES: Mapping[str, tuple[tuple[int, int, int, int], ...]] = MappingProxyType({
    "ioctl": (
        _argument(1),
        (_AND, 0, 0, 0xFF00),
        (_JUMP_EQUAL, 4, 0, 0x4600),
        _argument(1),
        (_AND, 0, 0, 0xCFFFFF00),
        (_JUMP_EQUAL, 1, 0, 0),
        (_RETURN, 0, 0, _RET_ALLOW),
    ),
    "mmap": (
        _argument(3),
        (_JUMP_SET, 1, 0, MAP_SHARED),
        (_RETURN, 0, 0, _RET_ALLOW),
        _argument(4),
        (_JUMP_EQUAL, 0, 1, 0xFFFFFFFF),
        (_RETURN, 0, 0, _RET_ALLOW),
    ),
})  # fmt: skip


def _for_writing(flags: int) -> tuple[tuple[int, int, int, int], ...]:
    """Stop where the argument of flags says more than reading."""
    return (_argument(flags), (_AND, 0, 0, os.O_ACCMODE), (_JUMP_EQUAL, 0, 1, os.O_RDONLY),
            (_RETURN, 0, 0, _RET_ALLOW))  # fmt: skip


_FIRST_BODIES: Mapping[str, tuple[tuple[int, int, int, int], ...]] = MappingProxyType({
    "open": _for_writing(1),
    "openat": _for_writing(2),
    "prctl": (_argument(0), (_JUMP_EQUAL, 1, 0, PR_SET_SECCOMP), (_RETURN, 0, 0, _RET_ALLOW)),
})  # fmt: skip


class SyscallFilter:
    """The seccomp filter, made ready so that a forked child has only to install it."""

    def __init__(self, names: tuple[str, ...] = WATCHED) -> None:
        rows = filter_rows(names)
        self._rows = (_Instruction * len(rows))(*(_Instruction(*row) for row in rows))
        self._program = _Program(len(rows), self._rows)
        self._prctl = libc().prctl

    def as_bytes(self, address: int) -> bytes:
        """Return it as `seccomp` takes it: what refers to the rows, and the rows behind that."""
        head = ctypes.sizeof(_Program)
        return struct.pack("<HxxxxxxQ", len(self._rows), address + head) + bytes(self._rows)

    def install(self) -> None:
        """Install it in this process, and what it becomes; raise OSError if not allowed."""
        program = ctypes.addressof(self._program)
        done = self._prctl(PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0)
        if done and ctypes.get_errno() == errno.EACCES:
            # Who is not root may filter only if no program it starts becomes root either.
            self._prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            done = self._prctl(PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0)
        if done:
            number = ctypes.get_errno()
            raise OSError(number, f"seccomp: {os.strerror(number)}")
