"""Copies on one GPU by kernels: copy engines move less than half of what memory can.

A copy engine is asked for small copies all the same, which are not worth a kernel of their own.
"""

from __future__ import annotations

from baregrad.base.options import options
from baregrad.dtypes import dtypes
from baregrad.engine.compiler import Compiler
from baregrad.ir.core.attrs import KernelInfo, Out, Param
from baregrad.ir.core.node import Node, range_node
from baregrad.ir.core.op import Ops
from baregrad.runtime.commands import Kernel
from baregrad.runtime.interface import Device

LEAST_NBYTES = 1 << 16


class CopyKernels:
    """The kernels of a device that copy, by how much they copy."""

    def __init__(self, compiler: Compiler, device: Device) -> None:
        self._compiler = compiler
        self._device = device
        self._known: dict[int, Kernel] = {}

    def __call__(self, nbytes: int) -> Kernel | None:
        """The kernel that copies so many bytes, to its first array; None for a copy engine."""
        if nbytes < LEAST_NBYTES:
            return None
        found = self._known.get(nbytes)
        if found is None:
            kernel = copying(nbytes)
            # Nobody has asked for a search of this one.
            with options.override(beam=0):
                found = self._compiler.load([kernel], self._device, _nothing)[kernel]
            self._known[nbytes] = found
        return found


def copying(nbytes: int) -> Node:
    """The KERNEL that writes as many bytes as it reads, as words where it can."""
    dtype = dtypes.uint8 if nbytes % 4 else dtypes.uint32
    count = nbytes // dtype.itemsize
    target, source = (Node(Ops.PARAM, dtype, (), Param(slot, (count,))) for slot in (0, 1))
    place = range_node(count, 0)
    value = Node(Ops.INDEX, dtype, (source, place))
    out = Node(Ops.OUT, dtypes.token, (target, value, place), Out())
    return Node(Ops.KERNEL, dtypes.token, (out,), KernelInfo(f"copy_{nbytes}"))


def _nothing() -> None:
    """Nobody waits for the progress of one kernel."""
