"""What scheduling gives: buffers, launches in order, and why each value was fused or stored."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from baregrad.dtypes import DType
from baregrad.ir.core import index
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops


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

    writes: positions in `buffers` that the kernel writes. origins: tensor nodes it computes, if
    they were asked for. part: kernel and buffers of what writes only the elements that change, for
    arrays that lie where the old ones do.
    """

    kernel: Node
    buffers: tuple[int, ...]
    writes: tuple[int, ...]
    origins: tuple[Node, ...] = ()
    part: tuple[Node, tuple[int, ...]] | None = None


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

    outputs: for each output of the SINK, its buffer; an output that is an argument unchanged is
    that "param" buffer. arena_nbytes: what the temporaries share. over: the "output" buffers that
    may lie where an argument does, each with that "param" buffer; see `written_over`. decisions:
    one per value of interest, for `explain`.
    """

    buffers: tuple[PlannedBuffer, ...]
    steps: tuple[Launch, ...]
    outputs: tuple[int, ...]
    arena_nbytes: Dim
    over: tuple[tuple[int, int], ...] = ()
    decisions: tuple[Decision, ...] = field(default=(), compare=False, repr=False)

    @property
    def kernels(self) -> tuple[Node, ...]:
        """The kernels of the launches, in order."""
        return tuple(step.kernel for step in self.steps)

    def written_over(self, outputs: Collection[int]) -> Plan:
        """The plan with these "output" buffers of `over` written where their arguments lie.

        Steps that only copied an argument there are left out, and what changes a part of it writes
        that alone.
        """
        place = {output: param for output, param in self.over if output in outputs}
        if not place:
            return self
        steps: list[Launch] = []
        for step in self.steps:
            moved = tuple([place.get(one, one) for one in step.buffers])
            if moved != step.buffers:
                if copies_itself(step, moved):
                    continue
                # What it reads may have moved alone.
                over = all(step.buffers[one] in place for one in step.writes)
                if step.part is not None and over:
                    kernel, places = step.part
                    step = step._replace(kernel=kernel, part=None)
                    moved = tuple([place.get(one, one) for one in places])
                step = step._replace(buffers=moved)
            steps.append(step)
        count = 0
        buffers: list[PlannedBuffer] = []
        for position, buffer in enumerate(self.buffers):
            if position in place:
                buffer = self.buffers[place[position]]
            elif buffer.kind == "output":
                buffer = buffer._replace(slot=count)
                count += 1
            buffers.append(buffer)
        return replace(
            self,
            buffers=tuple(buffers),
            steps=tuple(steps),
            outputs=tuple([place.get(one, one) for one in self.outputs]),
            over=tuple([pair for pair in self.over if pair[0] not in place]),
        )

    def explain(self) -> str:
        """One line per decision, then one per step."""
        lines = [str(decision) for decision in self.decisions]
        lines += [f"run   {step.kernel.arg.name} {list(step.buffers)}" for step in self.steps]
        return "\n".join(lines)


def copies_itself(step: Launch, buffers: tuple[int, ...]) -> bool:
    """Whether a step over these buffers only copies memory onto itself."""
    if len(buffers) != 2 or buffers[0] != buffers[1] or len(step.kernel.src) != 1:
        return False
    target, value, *idx = step.kernel.src[0].src
    if value.op is not Ops.INDEX or value.dtype is not target.dtype:
        return False
    array, *places = value.src
    return index.flatten(places, array.shape) == index.flatten(idx, target.shape)
