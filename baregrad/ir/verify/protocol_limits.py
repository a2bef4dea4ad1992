"""What a block may use: shared memory, registers, boxes of bulk copies, operand layouts.

Figures that are not in the target's row: NVIDIA, PTX ISA (`cp.async.bulk.tensor`, `wgmma`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from baregrad.base.bits import round_up
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.protocol.attributes import operand_layouts
from baregrad.ir.protocol.derive import box_axes
from baregrad.ir.verify.protocol_traces import roles_of
from baregrad.target.gpu import GpuTarget

LONGEST_BOX = 256
MBARRIER_NBYTES = 8


def limit_faults(kernel: Node, target: GpuTarget) -> Iterator[str]:
    """What exceeds a limit."""
    used = shared_nbytes(kernel)
    if used > target.shared_bytes_per_block:
        yield f"{used} bytes of shared memory, of {target.shared_bytes_per_block}"
    yield from _register_faults(kernel, target)
    for node in toposort(kernel):
        if node.op is Ops.COPYTO:
            yield from _box_faults(node)
        elif node.op is Ops.MMA:
            yield from _operand_faults(node)


def shared_nbytes(kernel: Node) -> int:
    """Bytes of shared memory: buffers at their alignment, in order of id, then the barriers."""
    offset: int = 0
    for buffer, place in shared_offsets(kernel).items():
        offset = max(offset, place + slot_nbytes(buffer) * buffer.arg.depth)
    barriers = sum(2 * int(n.arg.depth) for n in toposort(kernel) if n.op is Ops.PIPE)
    return offset + barriers * MBARRIER_NBYTES


def slot_nbytes(buffer: Node) -> int:
    """Bytes from one slot of a shared buffer to the next, with its rows at their layout's pitch."""
    layout = buffer.arg.layout
    count = math.prod(buffer.shape)
    dense = count * buffer.dtype.bits // 8
    if layout is None:
        return int(dense)
    tile = math.prod(layout.extents().values())
    return int(max(dense, count // tile * layout.nbytes()))


def shared_offsets(kernel: Node) -> dict[Node, int]:
    """Where each shared buffer starts, in bytes."""
    found = [n for n in toposort(kernel) if n.op is Ops.ALLOC and n.arg.space == "shared"]
    offsets: dict[Node, int] = {}
    offset = 0
    for buffer in sorted(found, key=lambda node: node.arg.id):
        layout = buffer.arg.layout
        align = 128 if layout is None or layout.swizzle is None else layout.swizzle.alignment
        offset = round_up(offset, align)
        offsets[buffer] = offset
        offset += slot_nbytes(buffer) * buffer.arg.depth
    return offsets


def _register_faults(kernel: Node, target: GpuTarget) -> Iterator[str]:
    """Whole warpgroups; what they ask for together is at most what the launch gave."""
    roles = roles_of(kernel)
    four = target.warpgroup_warps
    warps = sum(role.warps for role in roles)
    if warps != kernel.arg.warps:
        yield f"the roles have {warps} warps, the kernel {kernel.arg.warps}"
    taken: set[int] = set()
    for role in roles:
        here = set(range(role.first, role.first + role.warps))
        if here & taken:
            yield f"the role {role.name} shares warps with another"
        taken |= here
    if not any(role.registers for role in roles):
        return
    total = 0
    for role in roles:
        if role.warps % four or role.first % four:
            yield f"the role {role.name} changes its registers but is no whole warpgroup"
        if role.registers not in target.register_shift:
            yield (
                f"{role.registers} registers a thread for {role.name}, wanted a multiple of "
                f"{target.register_shift.step} from {target.register_shift[0]} to "
                f"{target.register_shift[-1]}"
            )
        total += role.registers * (role.warps // four)
    launched = target.registers_at_launch(warps * target.warp_lanes) * (warps // four)
    if total > launched:
        yield f"{total} registers for one thread of each warpgroup, the launch gives {launched}"


def _box_faults(copy: Node) -> Iterator[str]:
    """Boxes of bulk copies: extents, rows of 16 bytes, rows inside the swizzle's span."""
    axes = box_axes(copy)
    for axis in axes:
        if axis.src[0].arg > LONGEST_BOX:
            yield f"a box of {axis.src[0].arg} along {axis.arg.axis}, at most {LONGEST_BOX}"
    row = int(axes[-1].src[0].arg) * copy.src[0].dtype.bits // 8
    read = copy.src[1].src[1] if copy.src[1].op is Ops.GUARD else copy.src[1]
    buffer = copy.src[0] if copy.src[0].op is Ops.ALLOC else read.src[0]
    if row % 16:
        yield f"rows of {row} bytes in a box, wanted a multiple of 16"
    layout = buffer.arg.layout
    if layout is not None and layout.swizzle is not None:
        span = 16 << layout.swizzle.bits
        if row > span:
            yield f"rows of {row} bytes in a box for a swizzle of {span} bytes"


def _operand_faults(mma: Node) -> Iterator[str]:
    """Operands lie as the instruction reads them; in registers, after CONVERT to its layout."""
    total, a, b = mma.src[:3]
    depth = int(mma.src[6].src[0].arg)
    accumulator, left, right = operand_layouts(mma.arg, depth)
    if total.arg.layout != accumulator:
        yield f"{total.arg.name} does not lie as an accumulator of {mma.arg.name}"
    if mma.arg.a_space == "register":
        if a.op is not Ops.CONVERT or a.arg != left:
            yield f"a register operand of {mma.arg.name} is not converted to its layout"
        operands = [(b, right)]
    else:
        operands = [(a, left), (b, right)]
    for operand, layout in operands:
        for node in toposort(operand):
            if node.op is Ops.LOAD:
                found = node.src[0].arg.layout
                if found is None or not found.continues(layout):
                    yield f"{node.src[0].arg.name} does not lie as {mma.arg.name} reads it"
