"""What the PTX interpreter raises: faults that name the line, the thread and the address.

KernelFault                      a kernel did what it must not
├── OutOfBoundsAccess        no allocation holds the address
│   └── WindowOverrun        past the end of shared, local, constant or parameter memory
├── MisalignedAccess         an address is no multiple of the access's size
├── UninitialisedRead        memory, or a register, that nobody wrote
├── SharedMemoryRace         two threads meet in shared memory with no barrier between
├── DivergentBarrier         threads that must arrive together do not
├── AbsentBlock              shared memory of a block that has ended or not begun
├── KernelHang               nobody can go on, or the budget of instructions is spent
│   └── RegisterDeadlock     a warpgroup asks for registers that no other gives back
└── IllegalInstruction       operands that the hardware refuses when it runs
UnsupportedInstruction           correct PTX that this interpreter does not know
"""

from __future__ import annotations

from baregrad.base.errors import BaregradError, UnsupportedError


class KernelFault(BaregradError):
    """A kernel did what it must not.

    `line` and `text` are those of the PTX instruction, `thread` the thread's (x, y, z) in its
    block, `block` the block's (x, y, z) in the grid, `address` the one accessed; each may be None.
    """

    def __init__(
        self,
        message: str,
        *,
        line: int | None = None,
        text: str = "",
        thread: tuple[int, int, int] | None = None,
        block: tuple[int, int, int] | None = None,
        address: int | None = None,
        hint: str | None = None,
    ) -> None:
        places = []
        if address is not None:
            places.append(f"address {address:#x}")
        if thread is not None:
            places.append(f"thread {thread}")
        if block is not None:
            places.append(f"block {block}")
        if line is not None:
            places.append(f"PTX line {line}: `{text}`")
        super().__init__(", ".join((message, *places)), hint=hint)
        self.line = line
        self.text = text
        self.thread = thread
        self.block = block
        self.address = address


class OutOfBoundsAccess(KernelFault):
    """An access that no allocation holds."""


class WindowOverrun(OutOfBoundsAccess):
    """An access past the end of a space with a size of its own; `address` counts from its begin."""


class MisalignedAccess(KernelFault):
    """An access whose address is no multiple of its size."""


class UninitialisedRead(KernelFault):
    """A read of memory, or of a register, that nobody wrote."""


class SharedMemoryRace(KernelFault):
    """Two accesses of shared memory, one of them a write, that nothing puts in order."""


class DivergentBarrier(KernelFault):
    """Threads that must arrive at an instruction together and do not."""


class KernelHang(KernelFault):
    """Threads that wait for ever, or a kernel that spends its budget of instructions."""


class RegisterDeadlock(KernelHang):
    """A warpgroup waits for registers that the others of its block never give back."""


class AbsentBlock(KernelFault):
    """A use of the shared memory of a block of the cluster that has ended or may not have begun."""


class PrematureAccess(KernelFault):
    """A kernel that began early and did not wait for the one in front before it mattered."""


class IllegalInstruction(KernelFault):
    """Operands that the hardware refuses when the instruction runs."""


class UnsupportedInstruction(UnsupportedError):
    """An instruction, or a form of it, that the interpreter does not know."""

    def __init__(self, message: str, *, line: int, text: str) -> None:
        super().__init__(f"{message}, PTX line {line}: `{text}`")
        self.line = line
        self.text = text
