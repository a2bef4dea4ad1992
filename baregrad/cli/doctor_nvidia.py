"""What `baregrad doctor` says of the device NV: each rung from its nodes to a kernel, and ptxas."""

from __future__ import annotations

import numpy as np

from baregrad.base.errors import DeviceError
from baregrad.base.options import options
from baregrad.cli.finding import Finding, find_ptxas
from baregrad.cli.nvidia_rungs import HostSystem, ThisMachine, climb
from baregrad.engine.session import Session, use_session
from baregrad.tensor import Tensor

_NEEDS = "an NVIDIA GPU of Turing or later and its kernel driver (535 or later), and ptxas"
_NUMBERS = 97


def examine_nvidia(machine: HostSystem | None = None) -> Finding:
    """Look at the GPUs of a machine, opening each of them, by default those of this one."""
    fact, missing = _assembler()
    rungs = climb(machine or ThisMachine(), _nothing_run if missing else run_a_kernel)
    broken = next((one for one in rungs if one.repair), None)
    facts = [f"{one} (broken)" if one is broken else str(one) for one in rungs]
    advice = broken.repair if broken is not None else missing
    verdict = "missing" if advice else "ready"
    return Finding("NV", verdict, _NEEDS, (*facts, fact), advice)  # type: ignore[arg-type]


def run_a_kernel(device: str) -> str:
    """Run a small kernel, and say so; raises DeviceError where its result is wrong."""
    numbers = np.arange(_NUMBERS, dtype=np.float32)
    with use_session(Session()) as session, options.override(device=device):
        try:
            found = (Tensor(numbers) * 3 + 1).numpy()
        finally:
            session.close()
    if not np.array_equal(found, numbers * 3 + 1):
        raise DeviceError("a kernel gave a wrong result", found=found[:4], wanted="1, 4, 7, 10")
    return "computes what it should"


def _nothing_run(device: str) -> str:
    return "not tried, for want of an assembler"


def _assembler() -> tuple[str, str]:
    if options.nv_port == "virtual":
        return "the virtual GPU needs no ptxas", ""
    return find_ptxas()
