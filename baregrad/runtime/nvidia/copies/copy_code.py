"""Machine code for copies of ordinary arrays: what threads do without Python, its lock, or calls.

Some threads and the caller's share the pieces of one copy. Whoever is free takes the next piece
(`next`, up to `end`), waits until the piece's slot of pinned memory may be used, moves the bytes
between it and the array with the C library's `memmove`, and rings the doorbell for the words of the
next copy that this allows: of the same piece to the GPU, or of the piece `ahead` that comes to the
host in the same slot. So pieces are submitted in any order, each as soon as it can be. Numbers of
pieces go on from copy to copy and never begin again, so a thread that is late finds either nothing
to do or a piece that is its own: `next` only grows, and reaches the `end` of a copy before that of
the next one is set. The caller sets the rest before `end`, and leaves it alone until `finished` is
`end` too; only the words may come later, until when `held` is set.

A slot's number is that of the piece modulo their count. It has a word of 32 bits, which the GPU
writes when it has moved a piece (its number plus 1) and which is compared in a circle. `lag` is the
count of slots for copies to the GPU, where a slot may be used once the GPU has emptied it, and 0
for copies to the host, where it may be used once the GPU has filled it.

(A channel that waits for words of the host by itself, with one submission for a copy, gave 20 to 44
GB/s with 4 to 16 MiB of slots on an H200, as if the GPU looked at them every 0.2 ms.)

Calls are those of Linux for x86-64: futex (202: wait 128, wake 129, both of this process) and
nanosleep (35). Registers are saved as the System V ABI wants.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import platform
import sys
import time
from collections.abc import Callable

from baregrad.base.errors import DriverError

_READ_EXECUTE = 5
_PROBED_TURNS = 2000
_LONGEST_TURN_NS = 500
_MAP_FAILED = ctypes.c_void_p(-1).value

LISTING = """
# Of a thread of the crew: pieces, as long as there are any; looks, then sleeps; ends with `stop`.
work:
    53                push rbx
    55                push rbp
    4154              push r12
    4155              push r13
    4156              push r14
    4157              push r15
    4889fb            mov rbx, rdi
again:
    488bab50010000    mov rbp, [rbx+S_idle_spins]
look:
    448bb3c8000000    mov r14d, [rbx+S_called]
    83bbd000000000    cmp dword ptr [rbx+S_stop], 0
    7573              jne leave
    488b83c0000000    mov rax, [rbx+S_end]
    4c8b23            mov r12, [rbx+S_next]
    4939c4            cmp r12, rax
    7331              jae none
    498d4c2401        lea rcx, [r12+1]
    4c89e0            mov rax, r12
    f0480fb10b        lock cmpxchg [rbx+S_next], rcx
    75d2              jne look
take:
    488bab48010000    mov rbp, [rbx+S_spins]
    e8e7000000        call piece
    85c0              test eax, eax
    75bb              jne again
    b823000000        mov eax, 35
    488dbb58010000    lea rdi, [rbx+S_nap]
    31f6              xor esi, esi
    0f05              syscall
    ebde              jmp take
none:
    f390              pause
    48ffcd            dec rbp
    75a9              jne look
    f0ff83cc000000    lock inc dword ptr [rbx+S_sleepers]
    b8ca000000        mov eax, 202
    488dbbc8000000    lea rdi, [rbx+S_called]
    be80000000        mov esi, 128
    4489f2            mov edx, r14d
    4531d2            xor r10d, r10d
    0f05              syscall
    f0ff8bcc000000    lock dec dword ptr [rbx+S_sleepers]
    e976ffffff        jmp again
leave:
    415f              pop r15
    415e              pop r14
    415d              pop r13
    415c              pop r12
    5d                pop rbp
    5b                pop rbx
    c3                ret
# Of the caller: pieces, then waits for those of others; 0 when all are done, 1 to be called again.
join:
    53                push rbx
    55                push rbp
    4154              push r12
    4155              push r13
    4156              push r14
    4157              push r15
    4889fb            mov rbx, rdi
    4889b370010000    mov [rbx+S_turns], rsi
    4c8ba368010000    mov r12, [rbx+S_mine]
    49ffcc            dec r12
    791e              jns mine
claim:
    488b83c0000000    mov rax, [rbx+S_end]
    4c8b23            mov r12, [rbx+S_next]
    4939c4            cmp r12, rax
    7338              jae others
    498d4c2401        lea rcx, [r12+1]
    4c89e0            mov rax, r12
    f0480fb10b        lock cmpxchg [rbx+S_next], rcx
    75e2              jne claim
mine:
    488bab70010000    mov rbp, [rbx+S_turns]
    e849000000        call piece
    85c0              test eax, eax
    740d              je keep
    48c7836801000000000000  mov qword ptr [rbx+S_mine], 0
    ebc5              jmp claim
keep:
    49ffc4            inc r12
    4c89a368010000    mov [rbx+S_mine], r12
    eb1b              jmp later
others:
    488bab70010000    mov rbp, [rbx+S_turns]
wait:
    488b4340          mov rax, [rbx+S_finished]
    483b83c0000000    cmp rax, [rbx+S_end]
    7411              je all
    f390              pause
    48ffcd            dec rbp
    75ec              jne wait
later:
    b801000000        mov eax, 1
    e969ffffff        jmp leave
all:
    31c0              xor eax, eax
    e962ffffff        jmp leave
# One piece, r12: waits until its slot may be used, moves it, submits; 1 when done, 0 not yet.
piece:
    4d89e7            mov r15, r12
    4c23bb30010000    and r15, [rbx+S_mask]
    4d89fd            mov r13, r15
    49c1e506          shl r13, 6
    4c03ab28010000    add r13, [rbx+S_words]
    458d742401        lea r14d, [r12+1]
    442bb338010000    sub r14d, [rbx+S_lag]
turn:
    83bbd400000000    cmp dword ptr [rbx+S_abort], 0
    0f85eb000000      jne drop
    418b4500          mov eax, [r13]
    4429f0            sub eax, r14d
    790a              jns ready
    f390              pause
    48ffcd            dec rbp
    75e3              jne turn
    31c0              xor eax, eax
    c3                ret
ready:
    4c89e6            mov rsi, r12
    482bb300010000    sub rsi, [rbx+S_base]
    488b8310010000    mov rax, [rbx+S_cuts]
    488b54f008        mov rdx, [rax+8*rsi+8]
    488b34f0          mov rsi, [rax+8*rsi]
    4829f2            sub rdx, rsi
    4803b308010000    add rsi, [rbx+S_host]
    4c89ff            mov rdi, r15
    480fafbb20010000  imul rdi, [rbx+S_stride]
    4803bb18010000    add rdi, [rbx+S_stage]
    83bb3c01000000    cmp dword ptr [rbx+S_out], 0
    7409              je move
    4889f9            mov rcx, rdi
    4889f7            mov rdi, rsi
    4889ce            mov rsi, rcx
move:
    ff9340010000      call [rbx+S_move]
    4d89e6            mov r14, r12
    4c03b388010000    add r14, [rbx+S_ahead]
    4c3bb3c0000000    cmp r14, [rbx+S_end]
    7377              jae drop
    4c2bb300010000    sub r14, [rbx+S_base]
held:
    83bbd400000000    cmp dword ptr [rbx+S_abort], 0
    7567              jne drop
    83bbd800000000    cmp dword ptr [rbx+S_held], 0
    7404              je free
    f390              pause
    ebea              jmp held
# The words are there now, and where they are.
free:
    4c0fafb390010000  imul r14, [rbx+S_entry_stride]
    4c03b380010000    add r14, [rbx+S_entry]
lock_it:
    b801000000        mov eax, 1
    878380000000      xchg eax, [rbx+S_lock]
    85c0              test eax, eax
    7404              je ring
    f390              pause
    ebed              jmp lock_it
# As `ring` of doorbell.py does.
ring:
    488bbb78010000    mov rdi, [rbx+S_ring]
    8b4718            mov eax, [rdi+24]
    488b0f            mov rcx, [rdi]
    4c8934c1          mov [rcx+8*rax], r14
    ffc0              inc eax
    23471c            and eax, [rdi+28]
    894718            mov [rdi+24], eax
    0faef0            mfence
    488b4f08          mov rcx, [rdi+8]
    8901              mov [rcx], eax
    0faef0            mfence
    488b4f10          mov rcx, [rdi+16]
    8b5720            mov edx, [rdi+32]
    8911              mov [rcx], edx
    c7838000000000000000  mov dword ptr [rbx+S_lock], 0
drop:
    f048ff4340        lock inc qword ptr [rbx+S_finished]
    b801000000        mov eax, 1
    c3                ret
# Of the caller: wakes so many threads as sleep.
wake:
    f0ff87c8000000    lock inc dword ptr [rdi+S_called]
    83bfcc00000000    cmp dword ptr [rdi+S_sleepers], 0
    7415              je woken
    89f2              mov edx, esi
    4881c7c8000000    add rdi, S_called
    be81000000        mov esi, 129
    b8ca000000        mov eax, 202
    0f05              syscall
woken:
    c3                ret
# Whether a number has become so large within so many looks.
until:
    483937            cmp [rdi], rsi
    730a              jae reached
    f390              pause
    48ffca            dec rdx
    75f4              jne until
    31c0              xor eax, eax
    c3                ret
reached:
    b801000000        mov eax, 1
    c3                ret
"""


class CrewState(ctypes.Structure):
    """What threads of a copy share; offsets are those that the code has.

    What all write lies in cache lines of its own. `called` is what they sleep on and `sleepers` how
    many do; `mine` is the caller's piece plus 1 while it waits, else 0; `nap` a timespec. `cuts` is
    the address of numbers of 64 bits: how many bytes of the array at `host` lie in front of each
    piece of the copy that begins with number `base`, and of what would follow the last. `held`
    keeps them from submitting, and `lock` from doing so at once; `ring` is the RingState of the
    channel, `entry` that of the first piece's words, `entry_stride` what those of two pieces differ
    by.
    """

    _fields_ = (
        ("next", ctypes.c_uint64), ("_next_line", ctypes.c_uint8 * 56),
        ("finished", ctypes.c_uint64), ("_finished_line", ctypes.c_uint8 * 56),
        ("lock", ctypes.c_uint32), ("_lock_line", ctypes.c_uint8 * 60),
        ("end", ctypes.c_uint64), ("called", ctypes.c_uint32), ("sleepers", ctypes.c_uint32),
        ("stop", ctypes.c_uint32), ("abort", ctypes.c_uint32), ("held", ctypes.c_uint32),
        ("_line", ctypes.c_uint8 * 36),
        ("base", ctypes.c_uint64), ("host", ctypes.c_uint64), ("cuts", ctypes.c_uint64),
        ("stage", ctypes.c_uint64), ("stride", ctypes.c_uint64), ("words", ctypes.c_uint64),
        ("mask", ctypes.c_uint64), ("lag", ctypes.c_uint32), ("out", ctypes.c_uint32),
        ("move", ctypes.c_uint64), ("spins", ctypes.c_uint64), ("idle_spins", ctypes.c_uint64),
        ("nap", ctypes.c_uint64 * 2), ("mine", ctypes.c_uint64), ("turns", ctypes.c_uint64),
        ("ring", ctypes.c_uint64), ("entry", ctypes.c_uint64), ("ahead", ctypes.c_uint64),
        ("entry_stride", ctypes.c_uint64),
    )  # fmt: skip


def read_listing(text: str) -> tuple[bytes, dict[str, int]]:
    """Return the bytes of a listing and where its labels are."""
    code, labels = bytearray(), {}
    for line in text.splitlines():
        if line.endswith(":"):
            labels[line[:-1]] = len(code)
        elif line and not line.startswith("#"):
            code += bytes.fromhex(line.split()[0])
    return bytes(code), labels


class CopyCode:
    """The code, in a page of this process; raises DriverError where that may not be.

    `work(state)`, `join(state, turns)`, `wake(state, count)` and `until(address, value, turns)` let
    other threads of Python run meanwhile. `turn_ns` is about what one look takes.
    """

    def __init__(self) -> None:
        library = self._library = ctypes.CDLL(None, use_errno=True)
        library.mmap.restype = ctypes.c_void_p
        library.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3,
                                 ctypes.c_int64)  # fmt: skip
        library.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        code, labels = read_listing(LISTING)
        # Not freed when the interpreter ends: threads may still be in there.
        place = self.take_page()
        ctypes.memmove(place, code, len(code))
        if library.mprotect(place, mmap.PAGESIZE, _READ_EXECUTE):
            raise DriverError(f"no code may be made: {os.strerror(ctypes.get_errno())}")
        word, pointer = ctypes.c_uint64, ctypes.c_void_p
        self.work: Callable[[int], None] = ctypes.CFUNCTYPE(None, pointer)(place + labels["work"])
        self.join: Callable[[int, int], int] = ctypes.CFUNCTYPE(ctypes.c_int, pointer, word)(
            place + labels["join"]
        )
        self.wake: Callable[[int, int], None] = ctypes.CFUNCTYPE(None, pointer, ctypes.c_int)(
            place + labels["wake"]
        )
        self.until: Callable[[int, int, int], int] = ctypes.CFUNCTYPE(
            ctypes.c_int, pointer, word, word
        )(place + labels["until"])
        self.move = ctypes.cast(library.memmove, pointer).value
        self.turn_ns = self._probe()

    def take_page(self) -> int:
        """Return the address of a zeroed page that stays until `give_page`."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        found: int = self._library.mmap(
            None, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0
        )
        if found in (None, _MAP_FAILED):
            raise DriverError(f"no page may be mapped: {os.strerror(ctypes.get_errno())}")
        return found

    def give_page(self, address: int) -> None:
        """Free a page that no thread uses any more."""
        self._library.munmap(address, mmap.PAGESIZE)

    def _probe(self) -> float:
        never = ctypes.c_uint64(0)
        begin = time.perf_counter_ns()
        self.until(ctypes.addressof(never), 1, _PROBED_TURNS)
        taken = (time.perf_counter_ns() - begin) / _PROBED_TURNS
        return min(max(taken, 1.0), _LONGEST_TURN_NS)

    def turns(self, seconds: float) -> int:
        """Return how many looks take about so long."""
        return max(1, int(seconds * 1e9 / self.turn_ns))


@functools.cache
def copy_code() -> CopyCode | None:
    """Return the code, None where there is none for this machine, or none may be made."""
    if platform.machine() != "x86_64" or sys.platform != "linux":
        return None
    try:
        return CopyCode()
    except DriverError:
        return None
