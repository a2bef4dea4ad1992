"""A matrix of Q6_K blocks times a vector: fields of bits are layouts of one array of bytes.

A block holds 256 weights in 210 bytes: 128 bytes of low nibbles, 64 of high pairs of bits, 16
signed scales and one float16. A weight is d * scale * (code - 32).
"""

from __future__ import annotations

from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.index import Dim
from baregrad.ir.core.layout import Digit, Layout
from baregrad.ir.core.node import Node, alu, cast, const, range_node
from baregrad.ir.core.op import Ops
from baregrad.kernel import Schedule
from baregrad.kernel.language.schedule import parallelise, unroll, vectorise
from baregrad.testing.examples.levels import (
    Levels,
    at,
    fold,
    kernel,
    kernel_of,
    lowered,
    out,
    param,
)

F32 = dtypes.float32
U8 = dtypes.uint8
U16 = dtypes.uint16
WEIGHTS = 256
BLOCK_NBYTES = 210

# Where the fields of weight e lie, in bits from the start of its block.
LOW = Layout(
    (
        Digit(32, "e", 1, "bit", 8),
        Digit(2, "e", 32, "bit", 256),
        Digit(2, "e", 64, "bit", 4),
        Digit(2, "e", 128, "bit", 512),
    )
)
HIGH = Layout(
    (
        Digit(32, "e", 1, "bit", 8),
        Digit(2, "e", 32, "bit", 2),
        Digit(2, "e", 64, "bit", 4),
        Digit(2, "e", 128, "bit", 256),
    ),
    offset=1024,
)
SCALE = Layout((Digit(16, "e", 1, "", 0), Digit(16, "e", 16, "bit", 8)), offset=1536)
D = Layout((Digit(256, "e", 1, "", 0),), offset=1664)


def byte_of(array: Node, row: Dim, block: Dim, byte: Dim) -> Node:
    """One byte of a block of the array (rows, blocks, 210)."""
    return at(array, row, block, byte)


def field_of(array: Node, layout: Layout, width: int, row: Dim, block: Dim, e: Dim) -> Node:
    """`width` bits of weight e as a byte, by the field's layout."""
    bit = layout.address({"e": e})
    byte = byte_of(array, row, block, index.floordiv(bit, 8))
    offset = cast(index.as_node(index.mod(bit, 8)), U8)
    return byte if width == 8 else Node(Ops.BITFIELD, U8, (byte, offset), width)


def weight(array: Node, row: Dim, block: Dim, e: Dim) -> Node:
    """Weight e of a block as float32, exact."""
    low = field_of(array, LOW, 4, row, block, e)
    high = field_of(array, HIGH, 2, row, block, e)
    code = alu(Ops.OR, low, alu(Ops.SHL, high, const(4, U8)))
    centred = alu(Ops.SUB, cast(code, dtypes.int32), const(32, dtypes.int32))
    stored = field_of(array, SCALE, 8, row, block, e)
    scale = cast(Node(Ops.BITCAST, dtypes.int8, (stored,)), F32)
    first = index.floordiv(D.address({"e": e}), 8)
    halves = [cast(byte_of(array, row, block, index.add(first, i)), U16) for i in range(2)]
    bits = alu(Ops.OR, halves[0], alu(Ops.SHL, halves[1], const(8, U16)))
    d = cast(Node(Ops.BITCAST, dtypes.float16, (bits,)), F32)
    return alu(Ops.MUL, alu(Ops.MUL, d, scale), cast(centred, F32))


def element(digits: tuple[Node, ...]) -> Dim:
    """The weight's number from its digits, outermost first."""
    position: Dim = 0
    for digit in digits:
        position = index.add(index.mul(position, index.as_dim(digit.src[0])), digit)
    return position


def weight_axes(first: int) -> tuple[Node, ...]:
    """The common digits of all four layouts as axes: half, pair, side, sixteen, inner."""
    names = (("half", 2), ("pair", 2), ("side", 2), ("sixteen", 2), ("inner", 16))
    return tuple(range_node(size, first + i, name) for i, (name, size) in enumerate(names))


def matvec_kernel(rows: int, blocks: int) -> Node:
    """The kernel level: y[i] = sum of weight * x over blocks and the digits of a block."""
    w = param(1, rows, blocks, BLOCK_NBYTES, dtype=U8, name="w")
    x = param(2, blocks, WEIGHTS, name="x")
    i, b = range_node(rows, 0, "row"), range_node(blocks, 1, "block")
    digits = weight_axes(2)
    e = element(digits)
    total = fold(Ops.ADD, alu(Ops.MUL, weight(w, i, b, e), at(x, b, e)), b, *digits)
    return kernel("matvec_q6k", out(param(0, rows, name="y"), total, i))


def decode_kernel(rows: int, blocks: int) -> Node:
    """The kernel level of the weights alone, (rows, blocks, 256)."""
    w = param(1, rows, blocks, BLOCK_NBYTES, dtype=U8, name="w")
    i, b = range_node(rows, 0, "row"), range_node(blocks, 1, "block")
    digits = weight_axes(2)
    e = element(digits)
    target = param(0, rows, blocks, WEIGHTS, name="weights")
    return kernel("decode_q6k", out(target, weight(w, i, b, e), i, b, e))


def schedule() -> Schedule:
    """Rows over threads; 16 neighbouring weights, which share a scale, in one vector."""
    return Schedule((parallelise("row"), vectorise("inner"), unroll("sixteen")))


def matvec_levels(rows: int = 3, blocks: int = 2) -> Levels:
    """The four levels; loop and linear level are derived by the compiler's passes."""
    return lowered(
        "matvec_q6k", matvec_tensor(rows, blocks), matvec_kernel(rows, blocks), schedule()
    )


def decode_levels(rows: int = 2, blocks: int = 2) -> Levels:
    """The four levels of the weights alone."""
    tensor = decode_tensor(param(1, rows, blocks, BLOCK_NBYTES, dtype=U8, name="w"))
    return lowered("decode_q6k", tensor, decode_kernel(rows, blocks), schedule())


# --- tensor level --------------------------------------------------------------------------------


def _bytes(array: Node, first: int, stop: int) -> Node:
    from baregrad.ir.core.attrs import Slice

    rows, blocks, _ = array.shape
    cut = (Slice(0, rows), Slice(0, blocks), Slice(first, stop))
    return Node(Ops.SHRINK, U8, (array,), cut)


def _view(value: Node, shape: tuple[int, ...], wide: tuple[int, ...]) -> Node:
    shaped = Node(Ops.RESHAPE, value.dtype, (value,), shape)
    return Node(Ops.EXPAND, value.dtype, (shaped,), wide)


def _shifts(axis: int, step: int, wide: tuple[int, ...]) -> Node:
    """0 and `step`, along an axis of two."""
    counted = alu(Ops.MUL, Node(Ops.IOTA, U8, (), 2), const(step, U8))
    shape = tuple(2 if i == axis else 1 for i in range(len(wide)))
    return _view(counted, shape, wide)


def decode_tensor(array: Node) -> Node:
    """The weights (rows, blocks, 256) by views, shifts and masks of whole arrays."""
    n, b, _ = array.shape
    wide = (n, b, 2, 2, 2, 32)
    low = _view(_bytes(array, 0, 128), (n, b, 2, 1, 2, 32), wide)
    low = alu(Ops.AND, alu(Ops.SHR, low, _shifts(3, 4, wide)), const(15, U8))
    high = _view(_bytes(array, 128, 192), (n, b, 2, 1, 1, 32), wide)
    twos = alu(Ops.ADD, _shifts(3, 4, wide), _shifts(4, 2, wide))
    high = alu(Ops.AND, alu(Ops.SHR, high, twos), const(3, U8))
    code = alu(Ops.OR, low, alu(Ops.SHL, high, const(4, U8)))
    code = Node(Ops.RESHAPE, U8, (code,), (n, b, WEIGHTS))
    centred = alu(Ops.SUB, cast(code, dtypes.int32), const(32, dtypes.int32))
    scales = Node(Ops.BITCAST, dtypes.int8, (_bytes(array, 192, 208),))
    scale = _view(cast(scales, F32), (n, b, 16, 1), (n, b, 16, 16))
    scale = Node(Ops.RESHAPE, F32, (scale,), (n, b, WEIGHTS))
    first, second = (_narrow(_bytes(array, 208 + i, 209 + i)) for i in range(2))
    bits = alu(Ops.OR, first, alu(Ops.SHL, second, const(8, U16)))
    d = cast(Node(Ops.BITCAST, dtypes.float16, (bits,)), F32)
    d = Node(Ops.EXPAND, F32, (d,), (n, b, WEIGHTS))
    return alu(Ops.MUL, alu(Ops.MUL, d, scale), cast(centred, F32))


def _narrow(value: Node) -> Node:
    return cast(value, dtypes.uint16)


def matvec_tensor(rows: int, blocks: int) -> Node:
    """y (rows,) = weights (rows, blocks, 256) times x (blocks, 256)."""
    from baregrad.ir.core.attrs import Reduce
    from baregrad.ir.core.monoid import primitive

    w = param(1, rows, blocks, BLOCK_NBYTES, dtype=U8, name="w")
    x = param(2, blocks, WEIGHTS, name="x")
    shape = (rows, blocks, WEIGHTS)
    wide = _view(x, (1, blocks, WEIGHTS), shape)
    product = alu(Ops.MUL, decode_tensor(w), wide)
    return Node(Ops.REDUCE, F32, (product,), Reduce(primitive(Ops.ADD, F32), (1, 2)))


def derived_kernel() -> Node:
    """The one kernel that the compiler's own passes make of the tensor level."""
    return kernel_of(matvec_tensor(2, 2))
