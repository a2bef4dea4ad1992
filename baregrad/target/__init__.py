"""Facts about machines, without I/O: one row per CPU family and per GPU generation."""

from __future__ import annotations

from baregrad.target.cpu import CpuTarget as CpuTarget
from baregrad.target.cpu import cpu_row as cpu_row
from baregrad.target.gpu import GpuTarget as GpuTarget
from baregrad.target.gpu import NvidiaTarget as NvidiaTarget
from baregrad.target.gpu import gpu_row as gpu_row

AnyTarget = CpuTarget | GpuTarget

__all__ = ["AnyTarget", "CpuTarget", "GpuTarget", "NvidiaTarget", "cpu_row", "gpu_row"]
