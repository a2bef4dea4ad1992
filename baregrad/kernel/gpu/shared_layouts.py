"""How a copy in shared memory lies: rows padded, or their chunks exchanged (swizzled).

Threads that read down a column of rows as long as all banks would meet in one bank. Either each
row is a little longer, or the chunks of 16 bytes of a row change places, in each row otherwise:
chunk c of row r lies where chunk c ^ r would (`Swizzle`). Of rows of an odd number of such lengths
each has a turn of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from baregrad.dtypes import DType
from baregrad.ir.core import index
from baregrad.ir.core.layout import Layout, Swizzle, row_major
from baregrad.ir.core.node import Node, alu, make_node, rebuild, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.protocol.attributes import is_box
from baregrad.kernel.language.schedule import StageInput, Staging, illegal

CHUNK_BYTES = 16
# Bytes of all banks together: shorter rows lie several side by side.
BANK_BYTES = 128
# Chunks that lie in different banks: beyond them a pattern is of no use.
MOST_BITS = 3
_CHUNK_BITS = CHUNK_BYTES.bit_length() - 1
_ACCESSES = Ops.LOAD.bit | Ops.STORE.bit | Ops.COPYTO.bit


def check_layout(step: Staging, gpu: bool) -> None:
    """Refuse layouts of shared memory where there is none, and such as make no sense."""
    if gpu and isinstance(step, StageInput) and step.ahead:
        raise illegal(step, "a GPU's shared memory has no lines to ask for")
    if (step.pad is not None or step.swizzle) and not gpu:
        raise illegal(step, "only a GPU's shared memory has banks")
    most = MOST_BITS
    if (step.pad or 0) < 0 or not 0 <= step.swizzle <= most or (step.swizzle and step.pad):
        raise illegal(step, wanted=f"0 <= swizzle <= {most}, or pad >= 0, not both")


def layout_of(step: Staging, value: Node, axes: Sequence[Node]) -> Layout | None:
    """How the copy of `value` over `axes` lies; None where the step leaves that open.

    Raises ScheduleError where its rows cannot be swizzled as it says.
    """
    if step.pad is None and not step.swizzle:
        return None
    sizes = [int(axis.src[0].arg) for axis in axes]
    count = columns_of(sizes, value.dtype)
    inner = prod(sizes[-count:])
    lead = [(axis.arg.axis, size) for axis, size in zip(axes[:-count], sizes, strict=False)]
    pitch = inner + (step.pad or 0)
    plain = row_major(value.dtype.bits, *lead, ("column", inner), pitch=pitch)
    if not step.swizzle:
        return plain
    nbytes = inner * max(value.dtype.itemsize, 1)
    rows = prod(sizes[:-count])
    side = max(BANK_BYTES // nbytes, 1)
    if nbytes % (CHUNK_BYTES << step.swizzle):
        raise illegal(
            step, "its rows have no such chunks to exchange", found=f"rows of {nbytes} bytes",
            wanted=f"a multiple of {CHUNK_BYTES << step.swizzle}",
        )
    if rows % (side << step.swizzle):
        raise illegal(
            step, "the pattern repeats after so many rows", found=f"{rows} rows",
            wanted=f"a multiple of {side << step.swizzle}",
        )
    shift = (_lowest_bit(nbytes) * side).bit_length() - 1 - _CHUNK_BITS
    return replace(plain, swizzle=Swizzle(step.swizzle, _CHUNK_BITS, shift))


def _lowest_bit(number: int) -> int:
    return number & -number


def columns_of(sizes: Sequence[int], dtype: DType) -> int:
    """How many of a copy's axes, the last ones, make a row: such that it reaches all banks."""
    count, inner = 1, sizes[-1]
    while count < len(sizes) - 1 and inner * max(dtype.itemsize, 1) < BANK_BYTES:
        count += 1
        inner *= sizes[-count]
    return count


def pitch_of(layout: Layout) -> int:
    """Elements from the beginning of one row to that of the next."""
    inner, *outer = layout.digits
    return outer[0].physical_stride // inner.physical_stride if outer else inner.extent


def in_rows(places: Sequence[Node], sizes: Sequence[int]) -> tuple[Node, ...]:
    """Places in which the last axes, of these sizes, are one."""
    first = len(places) - len(sizes)
    column = index.flatten(places[first:], sizes)
    return (*places[:first], index.as_node(column))


def swizzled_places(array: Node, places: tuple[Node, ...]) -> tuple[Node, ...]:
    """Where an element of a swizzled ALLOC lies, as places in its rows."""
    swizzle = array.arg.layout.swizzle
    shape = array.arg.shape
    size = max(array.dtype.itemsize, 1)
    across = CHUNK_BYTES // size
    slots = len(places) - len(shape)
    row = index.flatten(places[slots:-1], shape[:-1])
    column = places[-1]
    # Each turn is of a number of bytes, a power of two: of as many rows as lie side by side in all
    # banks, or of parts of a row, of which an odd number begins the next one.
    nbytes, part = shape[-1] * size, CHUNK_BYTES << swizzle.shift
    if part % nbytes == 0:
        turns = index.floordiv(row, part // nbytes)
    else:
        turns = index.add(index.mul(row, nbytes // part), index.floordiv(column, part // size))
    turn = index.as_node(index.mod(turns, 1 << swizzle.bits))
    chunk = index.as_node(index.floordiv(column, across))
    mixed = turn if chunk.op is Ops.CONST and chunk.arg == 0 else chunk
    if mixed is chunk and not (turn.op is Ops.CONST and turn.arg == 0):
        mixed = alu(Ops.XOR, chunk, turn)
    place = index.add(index.mul(mixed, across), index.mod(column, across))
    return (*places[:-1], index.as_node(place))


def with_addresses(kernel: Node) -> Node:
    """A loop-level KERNEL in which slots are an axis like others, and swizzles are arithmetic."""
    layouts = [one.arg for one in toposort(kernel) if one.op is Ops.ALLOC]
    if all(one.layout is None and one.depth == 1 for one in layouts):
        return kernel

    def visit(node: Node) -> Node | None:
        if node.op.bit & _ACCESSES:
            first = 1 if node.op is Ops.LOAD else 2
            array = node.src[0]
            if is_box(node):
                # It begins at whole rows, and the engine exchanges chunks.
                return node.replace(src=(_plain(array), *node.src[1:]))
            if array.op is Ops.ALLOC and array.arg.layout is not None:
                places = swizzled_places(array, node.src[first:])
                src = (_plain(array), *node.src[1:first], *places)
                return make_node(node.op, node.dtype, src, node.arg)
            if array.op is Ops.ALLOC and array.arg.depth > 1:
                return node.replace(src=(_plain(array), *node.src[1:]))
        return None

    return rebuild(kernel, visit)


def _plain(array: Node) -> Node:
    """An ALLOC of as many elements, one after the other."""
    info = array.arg
    shape = info.shape if info.depth == 1 else (info.depth, *info.shape)
    return array.replace(arg=info._replace(shape=shape, depth=1, layout=None))

