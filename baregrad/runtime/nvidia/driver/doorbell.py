"""Machine code for what must be quick: rings, doorbells, and looking at timelines.

Each function is written down in assembly and as the bytes that it is, for both processors that the
driver knows; a test has an assembler compare them. Where it is called from Python it is a builtin
function of CPython's stable interface, whose call costs a tenth of one through ctypes.

The same in Python, by the `store` of a port, is `ByStores`: virtual GPUs and traces must see each
store.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import platform
import sys
from abc import abstractmethod
from collections.abc import Callable
from types import MappingProxyType
from typing import NamedTuple

from baregrad.base.errors import DriverError

# `store(address, value)`: orders all earlier stores, then stores 32 bits.
# `ring(ring state, entry)`: puts an entry into a ring, then moves the pointer, then rings.
# `go(ticket)`: submits words, or returns 0 where something stands in their way (`Ticket`).
# `spin(pair)`: returns 1 once both timelines are at their last values, or 0 after
# about 30 us: 65536 ticks of the time stamp counter, or the 32768th part of a second.
# `called_go`, `called_spin`: the same as functions (self, argument) of Python objects.
_X86_64 = """
.intel_syntax noprefix
store:
    mfence
    mov [rdi], esi
    ret
ring:
    mov eax, [rdi + 24]
    mov rcx, [rdi]
    mov [rcx + 8*rax], rsi
    inc eax
    and eax, [rdi + 28]
    mov [rdi + 24], eax
    mfence
    mov rcx, [rdi + 8]
    mov [rcx], eax
    mfence
    mov rcx, [rdi + 16]
    mov edx, [rdi + 32]
    mov [rcx], edx
    ret
go:
    xor eax, eax
    mov rdx, [rdi]
    mov rcx, [rdi + 8]
    cmp dword ptr [rdx + 36], 0
    je 3f
    cmp dword ptr [rcx + 36], 0
    je 3f
    mov rsi, [rdx + 48]
    mov rsi, [rsi]
    cmp [rdi + 24], rsi
    ja 3f
    mov r8, [rdx + 56]
    cmp word ptr [r8], 0
    jne 3f
    mov r8, [rcx + 48]
    mov r8, [r8]
    cmp [rcx + 40], r8
    ja 3f
    mov r8, [rdx + 40]
    mov r9, r8
    sub r9, rsi
    mov r10d, [rdx + 28]
    cmp r9, r10
    jae 3f
    mov r11, [rdi + 32]
    inc r8
    mov r9, [rdi + 40]
    mov r10, [rdi + 48]
1:  dec r10
    js 2f
    mov [r9 + 8*r10], rax
    jmp 1b
2:  mov r9, [rdi + 16]
    mov [r9], r8
    mov [rdi + 24], r8
    mov [rdx + 40], r8
    mov rsi, r11
    mov rdi, rdx
    call ring
    mov rax, r8
3:  ret
spin:
    xor eax, eax
    mov r10, [rdi]
    mov rcx, [rdi + 8]
    cmp [r10 + 36], eax
    je 4f
    cmp [rcx + 36], eax
    je 4f
    rdtsc
    mov r9d, eax
    mov rsi, [r10 + 40]
    mov r8, [r10 + 48]
1:  cmp [r8], rsi
    jae 2f
    pause
    rdtsc
    sub eax, r9d
    cmp eax, 65536
    jb 1b
    xor eax, eax
    ret
2:  mov rsi, [rcx + 40]
    mov r8, [rcx + 48]
3:  cmp [r8], rsi
    jae 5f
    pause
    rdtsc
    sub eax, r9d
    cmp eax, 65536
    jb 3b
    xor eax, eax
    ret
5:  mov eax, 1
4:  ret
called_go:
    push rbx
    lea rbx, [rip + go]
    jmp 1f
called_spin:
    push rbx
    lea rbx, [rip + spin]
1:  mov rdi, rsi
    call [rip + from_python]
    test rax, rax
    je 2f
    mov rdi, rax
    call rbx
    mov rdi, rax
    pop rbx
    jmp [rip + to_python]
2:  pop rbx
    ret
    .balign 8
from_python:
    .quad 0
to_python:
    .quad 0
"""
_AARCH64 = """
store:
    dsb sy
    str w1, [x0]
    ret
ring:
    ldr w8, [x0, 24]
    ldr x9, [x0]
    str x1, [x9, x8, lsl 3]
    add w8, w8, 1
    ldr w9, [x0, 28]
    and w8, w8, w9
    str w8, [x0, 24]
    dsb sy
    ldr x9, [x0, 8]
    str w8, [x9]
    dsb sy
    ldr x9, [x0, 16]
    ldr w10, [x0, 32]
    str w10, [x9]
    ret
go:
    ldp x1, x2, [x0]
    ldr w3, [x1, 36]
    ldr w4, [x2, 36]
    cbz w3, 3f
    cbz w4, 3f
    ldr x3, [x1, 48]
    ldar x3, [x3]
    ldr x4, [x0, 24]
    cmp x4, x3
    b.hi 3f
    ldr x4, [x1, 56]
    ldrh w4, [x4]
    cbnz w4, 3f
    ldr x4, [x2, 48]
    ldar x4, [x4]
    ldr x5, [x2, 40]
    cmp x5, x4
    b.hi 3f
    ldr x4, [x1, 40]
    sub x5, x4, x3
    ldr w6, [x1, 28]
    cmp x5, x6
    b.hs 3f
    ldr x12, [x0, 32]
    add x4, x4, 1
    ldp x5, x6, [x0, 40]
1:  cbz x6, 2f
    str xzr, [x5], 8
    sub x6, x6, 1
    b 1b
2:  ldr x5, [x0, 16]
    str w4, [x5]
    lsr x6, x4, 32
    str w6, [x5, 4]
    str x4, [x0, 24]
    str x4, [x1, 40]
    mov x0, x1
    mov x1, x12
    mov x11, x30
    bl ring
    mov x0, x4
    ret x11
3:  mov x0, 0
    ret
spin:
    ldp x1, x2, [x0]
    mov x0, 0
    ldr w3, [x1, 36]
    ldr w4, [x2, 36]
    cbz w3, 4f
    cbz w4, 4f
    mrs x8, cntfrq_el0
    lsr x8, x8, 15
    mrs x7, cntvct_el0
    add x7, x7, x8
    ldr x3, [x1, 40]
    ldr x4, [x1, 48]
1:  ldar x5, [x4]
    cmp x5, x3
    b.hs 2f
    isb
    mrs x8, cntvct_el0
    cmp x8, x7
    b.lo 1b
    ret
2:  ldr x3, [x2, 40]
    ldr x4, [x2, 48]
3:  ldar x5, [x4]
    cmp x5, x3
    b.hs 5f
    isb
    mrs x8, cntvct_el0
    cmp x8, x7
    b.lo 3b
    ret
5:  mov x0, 1
4:  ret
called_go:
    adr x9, go
    b 1f
called_spin:
    adr x9, spin
1:  stp x29, x30, [sp, -32]!
    mov x29, sp
    str x9, [sp, 16]
    mov x0, x1
    ldr x9, from_python
    blr x9
    cbz x0, 2f
    ldr x9, [sp, 16]
    blr x9
    ldr x9, to_python
    blr x9
2:  ldp x29, x30, [sp], 32
    ret
    .balign 8
from_python:
    .quad 0
to_python:
    .quad 0
"""
SOURCES = MappingProxyType({"x86_64": _X86_64, "aarch64": _AARCH64})
CODE = MappingProxyType({
    "x86_64": bytes.fromhex(
        "0faef089 37c38b47 18488b0f 488934c1 ffc02347 1c894718 0faef048 8b4f0889 010faef0 "
        "488b4f10 8b572089 11c331c0 488b1748 8b4f0883 7a240074 75837924 00746f48 8b723048 "
        "8b364839 77187762 4c8b4238 66418338 0075574c 8b41304d 8b004c39 4128774a 4c8b4228 "
        "4d89c149 29f1448b 521c4d39 d173374c 8b5f2049 ffc04c8b 4f284c8b 573049ff ca78064b "
        "8904d1eb f54c8b4f 104d8901 4c894718 4c894228 4c89de48 89d7e857 ffffff4c 89c0c331 "
        "c04c8b17 488b4f08 41394224 744b3941 2474460f 314189c1 498b7228 4d8b4230 49393073 "
        "11f3900f 314429c8 3d000001 0072ed31 c0c3488b 71284c8b 41304939 307311f3 900f3144 "
        "29c83d00 00010072 ed31c0c3 b8010000 00c35348 8d1d18ff ffffeb08 53488d1d 93ffffff "
        "4889f7ff 15170000 004885c0 740f4889 c7ffd348 89c75bff 250b0000 005bc390 00000000 "
        "00000000 00000000 00000000"
    ),
    "aarch64": bytes.fromhex(
        "9f3f03d5 010000b9 c0035fd6 081840b9 090040f9 217928f8 08050011 091c40b9 0801090a "
        "081800b9 9f3f03d5 090440f9 280100b9 9f3f03d5 090840f9 0a2040b9 2a0100b9 c0035fd6 "
        "010840a9 232440b9 442440b9 e3040034 c4040034 231840f9 63fcdfc8 040c40f9 9f0003eb "
        "28040054 241c40f9 84004079 c4030035 441840f9 84fcdfc8 451440f9 bf0004eb 28030054 "
        "241440f9 850003cb 261c40b9 bf0006eb 82020054 0c1040f9 84040091 059842a9 860000b4 "
        "bf8400f8 c60400d1 fdffff17 050840f9 a40000b9 86fc60d3 a60400b9 040c00f9 241400f9 "
        "e00301aa e1030caa eb031eaa caffff97 e00304aa 60015fd6 000080d2 c0035fd6 010840a9 "
        "000080d2 232440b9 442440b9 63030034 44030034 08e03bd5 08fd4fd3 47e03bd5 e700088b "
        "231440f9 241840f9 85fcdfc8 bf0003eb c2000054 df3f03d5 48e03bd5 1f0107eb 43ffff54 "
        "c0035fd6 431440f9 441840f9 85fcdfc8 bf0003eb c2000054 df3f03d5 48e03bd5 1f0107eb "
        "43ffff54 c0035fd6 200080d2 c0035fd6 89f6ff10 02000014 c9fbff10 fd7bbea9 fd030091 "
        "e90b00f9 e00301aa 29010058 20013fd6 a00000b4 e90b40f9 20013fd6 c9000058 20013fd6 "
        "fd7bc2a8 c0035fd6 00000000 00000000 00000000 00000000"
    ),
})  # fmt: skip
# Where functions begin, and where the addresses of two functions of Python's go.
PLACES = MappingProxyType({
    "x86_64": MappingProxyType({
        "store": 0, "ring": 6, "go": 46, "spin": 179,
        "called_go": 270, "called_spin": 280, "from_python": 320, "to_python": 328,
    }),
    "aarch64": MappingProxyType({
        "store": 0, "ring": 12, "go": 72, "spin": 248,
        "called_go": 376, "called_spin": 384, "from_python": 440, "to_python": 448,
    }),
})  # fmt: skip


class RingState(ctypes.Structure):
    """A channel's ring of 64-bit entries and its timeline, as `ring`, `go` and `spin` use them.

    Addresses of the ring's first entry, of the pointer that the GPU reads, and of the doorbell; the
    next entry's number; what keeps numbers in the ring, their count less one; the doorbell's token;
    whether the addresses are good. Then the value of the last submission, and the addresses of the
    timeline and of 16 bits that are not zero once the driver reports an error.
    """

    _fields_ = (
        ("ring", ctypes.c_uint64), ("put_address", ctypes.c_uint64),
        ("doorbell_address", ctypes.c_uint64), ("put", ctypes.c_uint32),
        ("mask", ctypes.c_uint32), ("token", ctypes.c_uint32), ("open", ctypes.c_uint32),
        ("last", ctypes.c_uint64), ("timeline_address", ctypes.c_uint64),
        ("alarm_address", ctypes.c_uint64),
    )  # fmt: skip


class Ticket(ctypes.Structure):
    """What is submitted by `go`: words in memory that nothing but the timeline's value changes in.

    Addresses of the RingStates of the channel that takes them and of the one that copies; where the
    timeline's value goes; what the timeline has when the words are not in flight; the ring's entry;
    where 64-bit words are set to zero first, and how many.

    `go` refuses while the words are in flight, the ring is full, the driver reports an error, or
    the other channel is at work; then it has changed nothing.
    """

    _fields_ = (
        ("state", ctypes.c_uint64), ("copies", ctypes.c_uint64),
        ("value_address", ctypes.c_uint64), ("value", ctypes.c_uint64),
        ("entry", ctypes.c_uint64), ("clear_address", ctypes.c_uint64),
        ("clear_words", ctypes.c_uint64),
    )  # fmt: skip


class RingPair(ctypes.Structure):
    """Addresses of the RingStates of two channels whose timelines `spin` looks at."""

    _fields_ = (("state", ctypes.c_uint64), ("copies", ctypes.c_uint64))


def _word(address: int) -> int:
    return int(ctypes.c_uint64.from_address(address).value)


def _is_idle(state: RingState) -> bool:
    return _word(state.timeline_address) >= int(state.last)


class ByStores:
    """What the machine code does, by `store` of whoever inherits this."""

    @abstractmethod
    def store(self, address: int, value: int) -> None:
        """Order all earlier writes, then store 32 bits."""

    def ring(self, state: int, entry: int) -> None:
        """Put an entry into the ring of the RingState at an address, and ring its doorbell."""
        found = RingState.from_address(state)
        ctypes.c_uint64.from_address(found.ring + 8 * found.put).value = entry
        found.put = found.put + 1 & found.mask
        self.store(found.put_address, found.put)
        self.store(found.doorbell_address, found.token)

    def go(self, ticket: int) -> int:
        """Submit the Ticket at an address; return the timeline's value when it is done, or 0."""
        asked = Ticket.from_address(ticket)
        state, copies = (RingState.from_address(one) for one in (asked.state, asked.copies))
        if not (state.open and copies.open):
            return 0
        done = _word(state.timeline_address)
        alarm = ctypes.c_uint16.from_address(state.alarm_address).value
        if asked.value > done or alarm or not _is_idle(copies):
            return 0
        if state.last - done >= state.mask:
            return 0
        value = int(state.last) + 1
        ctypes.memset(asked.clear_address, 0, 8 * asked.clear_words)
        ctypes.c_uint64.from_address(asked.value_address).value = value
        asked.value = state.last = value
        self.ring(asked.state, asked.entry)
        return value

    def spin(self, pair: int) -> int:
        """Return whether the timelines of a RingPair are at their last values; looks once."""
        asked = RingPair.from_address(pair)
        states = [RingState.from_address(one) for one in (asked.state, asked.copies)]
        return int(all(one.open and _is_idle(one) for one in states))


class Native(NamedTuple):
    """The machine code as functions, see `Port` for what they do; and what they lie in."""

    store: Callable[[int, int], None]
    ring: Callable[[int, int], None]
    go: Callable[[int], int]
    spin: Callable[[int], int]
    kept: tuple[object, ...]


@functools.cache
def native() -> Native:
    """Return the machine code for this processor, in one page until the process ends.

    Raises DriverError where there is none, or pages may not be made executable.
    """
    machine = platform.machine()
    code = CODE.get(machine)
    if code is None:
        raise DriverError("no doorbell code for this processor", found=machine)
    page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(page))
    page[: len(code)] = code
    places = {name: begin + offset for name, offset in PLACES[machine].items()}
    for place, name in (
        ("from_python", "PyLong_AsVoidPtr"), ("to_python", "PyLong_FromUnsignedLongLong"),
    ):  # fmt: skip
        function = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value
        ctypes.c_uint64.from_address(places[place]).value = function or 0
    library = ctypes.CDLL(None, use_errno=True)
    library.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if library.mprotect(begin, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC):
        raise DriverError(
            f"no page may be made executable: {os.strerror(ctypes.get_errno())}",
            hint="a security policy may forbid programs that make code (SELinux execmem)",
        )
    store = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32)(places["store"])
    # Nobody needs the interpreter in the meantime, and keeping it is cheaper.
    ring = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64)(places["ring"])
    (go, go_method), (spin, spin_method) = (_function(places, name) for name in ("go", "spin"))
    return Native(store, ring, go, spin, (page, go_method, spin_method))


class _Method(ctypes.Structure):
    """`PyMethodDef` of the stable interface (Python/C API, "Common Object Structures")."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("call", ctypes.c_void_p), ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )  # fmt: skip


_METH_O = 8


def _function(places: dict[str, int], name: str) -> tuple[Callable[[int], int], object]:
    """Return a builtin function of one integer, and what must be kept as long as it."""
    if sys.implementation.name != "cpython":
        plain: Callable[[int], int] = ctypes.PYFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)(
            places[name]
        )
        return plain, None
    method = _Method(name.encode(), places[f"called_{name}"], _METH_O, None)
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype = ctypes.py_object
    make.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    made: Callable[[int], int] = make(ctypes.addressof(method), None, None)
    return made, method
