"""What stops a channel: the codes that an error notifier and the kernel log's Xid lines share.

Source: SDK `nverror.h`.
"""

from __future__ import annotations

from types import MappingProxyType

# What a trap, an illegal instruction and a shared address out of range are reported as.
ENGINE_EXCEPTION = 13
CODES = MappingProxyType({
    ENGINE_EXCEPTION: "graphics engine exception (illegal instruction or address, shared memory "
    "out of range)",
    31: "MMU fault (an address that is not mapped, or not for this access)",
    32: "bad method header or ring entry",
    43: "channel reset",
    44: "fault while switching contexts",
    45: "removed before its work was done",
    48: "double-bit memory error",
    62: "the power unit halted",
    63: "memory page retired or row remapped",
    64: "memory page could not be retired",
    69: "wrong class or method",
    79: "the GPU has fallen off the bus",
    94: "contained memory error",
    95: "uncontained memory error",
    109: "context switch timed out",
    119: "the GPU's system processor does not answer",
    120: "error of the GPU's system processor",
})  # fmt: skip


def fault_name(code: int) -> str:
    """Return what a code means, with the code."""
    return f"{CODES.get(code, 'an error without a name here')} (Xid {code})"
