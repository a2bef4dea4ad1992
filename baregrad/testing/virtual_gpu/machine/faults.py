"""What stops a channel of the virtual GPU, with the codes of real error notifiers.

Source of the codes: the driver's SDK `nverror.h`; see `runtime/nvidia/abi/faults.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from baregrad.base.errors import BaregradError

ENGINE_EXCEPTION = 13
MMU_FAULT = 31
BAD_ENTRY = 32
BAD_CLASS = 69
TIMED_OUT = 109


class GpuFault(BaregradError):
    """Work that stops its channel group; `code` is what the notifier and the kernel log tell.

    `kernel` names the one that ran, "" for none, and `program` is where its code lies; `address` is
    the one accessed, None for none, and `kind` what the driver calls such a fault. The cause, where
    there is one, is the interpreter's KernelFault.
    """

    def __init__(
        self,
        code: int,
        message: str,
        *,
        kernel: str = "",
        program: int = 0,
        address: int | None = None,
        kind: str = "",
    ) -> None:
        super().__init__(message)
        self.code = code
        self.kernel = kernel
        self.program = program
        self.address = address
        self.kind = kind


@dataclass(frozen=True, slots=True)
class FaultReport:
    """One stop of a channel group: on which GPU and channel, why, and its line in the log."""

    gpu: int
    channel: int
    fault: GpuFault
    line: str
