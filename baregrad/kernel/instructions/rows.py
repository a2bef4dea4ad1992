"""The instructions that schedules may ask for, by name."""

from __future__ import annotations

from types import MappingProxyType

from baregrad.kernel.instructions.amx import AMX
from baregrad.kernel.instructions.dot_instructions import DOT2, DOT4
from baregrad.kernel.instructions.instruction import Instruction
from baregrad.kernel.instructions.mma_sync import MMA_SYNC
from baregrad.kernel.instructions.wgmma import WGMMA

ROWS: MappingProxyType[str, Instruction] = MappingProxyType(
    {row.name: row for row in (DOT4, DOT2, MMA_SYNC, WGMMA, AMX)}
)
