"""What scheduling gives: buffers, launches in order, and why each value was fused or stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from baregrad.dtypes import DType
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node


class PlannedBuffer(NamedTuple):
    """One array of a plan, contiguous and row-major.

    kind: "param" (an argument, `slot` says which), "temp" (`offset` bytes into the arena), "output"
    (fresh memory, the `slot`-th output that needs some) or "const". nbytes: an int, or an index
    node over VARs.
    """

    kind: str
    dtype: DType
    shape: tuple[Dim, ...]
    nbytes: Dim
    slot: int = -1
    offset: int = 0


class Launch(NamedTuple):
    """One run of a KERNEL over buffers of the plan, in the order of its PARAM slots.

    writes: positions in `buffers` that the kernel writes. aliases: pairs (written slot, read slot)
    of PARAMs that share memory because an input was donated. origins: tensor nodes it computes, if
    they were asked for.
    """

    kernel: Node
    buffers: tuple[int, ...]
    writes: tuple[int, ...]
    aliases: tuple[tuple[int, int], ...] = ()
    origins: tuple[Node, ...] = ()


# What is printed as a reason; empty for none.
Reason = str | tuple[float, float]


class Decision(NamedTuple):
    """Why a tensor value was kept inside kernels or stored in memory."""

    value: Node
    stored: bool
    reason: Reason

    def __str__(self) -> str:
        shape = "x".join(str(extent) for extent in self.value.shape) or "scalar"
        verb = "store" if self.stored else "fuse"
        return f"{verb:<5} {self.value.op.name:<10} {self.value.dtype.name} {shape}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Plan:
    """A computation as launches over buffers.

    outputs: for each output of the SINK, its buffer; an output that is an argument unchanged, or
    that was written into a donated argument, is that "param" buffer. arena_nbytes: what the
    temporaries share. decisions: one per value of interest, for `explain`.
    """

    buffers: tuple[PlannedBuffer, ...]
    steps: tuple[Launch, ...]
    outputs: tuple[int, ...]
    arena_nbytes: Dim
    decisions: tuple[Decision, ...] = field(default=(), compare=False, repr=False)

    @property
    def kernels(self) -> tuple[Node, ...]:
        """The kernels of the launches, in order."""
        return tuple(step.kernel for step in self.steps)

    def explain(self) -> str:
        """One line per decision, then one per step."""
        lines = [str(decision) for decision in self.decisions]
        lines += [f"run   {step.kernel.arg.name} {list(step.buffers)}" for step in self.steps]
        return "\n".join(lines)
