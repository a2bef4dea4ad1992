"""The least time that a machine takes for a program: its bytes moved once, its operations done.

A GPU's rates are those of its row of `target`; a CPU's are measured (`engine/rates`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from baregrad.base.errors import BaregradError
from baregrad.engine.backends import CompiledBackend
from baregrad.engine.rates import Rates, measure_rates
from baregrad.engine.session import current_session
from baregrad.profiling.device_watch import unseen
from baregrad.profiling.records import CommandFacts
from baregrad.runtime.cpu.device import CpuDevice
from baregrad.target.gpu import GpuTarget, gpu_row

# Multiply-adds of float32 that a multiprocessor begins in a cycle, on all generations since Ampere.
_LANES_PER_UNIT = 128
_MATRIX_UNITS = ("mma.sync", "wgmma")


class Limits(Protocol):
    """What a device does at most."""

    def least_ns(self, facts: CommandFacts, variables: Mapping[str, int]) -> float:
        """Return the least time of one run of a command."""
        ...


class GpuLimits:
    """Those of a GPU's generation, the largest card at full clocks."""

    def __init__(self, target: GpuTarget) -> None:
        self._bytes_per_ns = target.memory_bytes_per_ns
        cycles = target.units * target.cycles_per_ns
        self._lanes = 2 * cycles * _LANES_PER_UNIT
        self._matrix = 2 * cycles * target.warp_macs_per_cycle

    def least_ns(self, facts: CommandFacts, variables: Mapping[str, int]) -> float:
        """Return the least time; matrix units count where the program uses them."""
        flops, nbytes = facts.work(variables)
        source = "" if facts.program is None else facts.program.source
        rate = self._matrix if any(word in source for word in _MATRIX_UNITS) else self._lanes
        return max(nbytes / self._bytes_per_ns, flops / rate)


class CpuLimits:
    """Those of this machine's processor as they were measured."""

    def __init__(self, rates: Rates) -> None:
        self._rates = rates

    def least_ns(self, facts: CommandFacts, variables: Mapping[str, int]) -> float:
        """Return the least time; bytes lie in the cache that they fit."""
        flops, nbytes = facts.work(variables)
        return 1e9 * max(self._rates.seconds(nbytes, flops))


def limits_of(device: str, architecture: str) -> Limits | None:
    """Return the limits of a device, measured now if it is the CPU; None where none are known."""
    try:
        if architecture:
            return GpuLimits(gpu_row(architecture))
        backend = current_session().backend(device)
        if isinstance(backend, CompiledBackend) and isinstance(backend.device, CpuDevice):
            with unseen():
                return CpuLimits(measure_rates(backend.device, backend.compiler))
    except BaregradError:
        # A machine of no known row, or without an assembler: its times are told all the same.
        pass
    return None
