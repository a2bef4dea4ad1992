"""Typed attributes of what runs at the same time: roles, pipes, copies, matrix units, barriers.

A program says who moves what (Role, Pipe, CopyTo) and which matrix unit runs (Mma); arrival counts,
bytes and scopes are derived from that (`derive.py`), proved (`ir/verify/protocols.py`), and run
under hostile timing (`ir/evaluate/gpu_loop.py`). Issue and completion are two nodes: COPYTO and
WAIT, MMA and DONE.
"""

from __future__ import annotations

from dataclasses import dataclass

from baregrad.base.errors import VerifyError
from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.layout import Layout, swizzled_tile, wgmma_accumulator
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import ATTRIBUTES, Ops
from baregrad.target.gpu import GpuTarget


class ProtocolError(VerifyError):
    """A kernel whose parts that run at the same time do not fit together."""


@ATTRIBUTES(Ops.ROLE)
@dataclass(frozen=True, slots=True)
class Role:
    """Some warps of a block that run a body of their own.

    registers: per thread, 0 to keep what the launch gave; in the code of one thread, what those
    keep who copy. elect: one thread runs the body. `first` is the role's first warp in its block.
    """

    name: str
    warps: int
    first: int = 0
    registers: int = 0
    elect: bool = False

    def agents(self, target: GpuTarget) -> int:
        """How many independent threads of control: one if elected, else one per warpgroup."""
        return 1 if self.elect else max(self.warps // target.warpgroup_warps, 1)


@ATTRIBUTES(Ops.PIPE)
@dataclass(frozen=True, slots=True)
class Pipe:
    """The ring protocol of some buffers of `depth` slots between a role and others.

    Derived: full_arrivals and full_nbytes complete a slot's filling, empty_arrivals its emptying;
    scope is `block` or `cluster`, or `grid` of warps that hand something to those of another block,
    a slot each. Zero or empty: not derived yet.
    """

    name: str
    depth: int
    producer: str
    consumers: tuple[str, ...]
    full_arrivals: int = 0
    full_nbytes: int = 0
    empty_arrivals: int = 0
    scope: str = ""


@dataclass(frozen=True, slots=True)
class Walk:
    """How an engine walks along places of an array, for all dimensions but the first and the last.

    From `low` on by `steps` as far as `high`, which counts from the last place there is; then once
    more from `low`, a step further along the next dimension. The innermost one first.
    """

    low: tuple[int, ...]
    high: tuple[int, ...]
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorBox:
    """What a copy of a box moves of an array, of which a tensor map has sizes and strides.

    All count elements, the innermost dimension first, whose stride is 1. Of a `walk` the box is so
    many elements along the first dimension, at so many places; behind where it begins stand
    offsets that are added to each place along the dimensions of the walk.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    walk: Walk | None = None

    @property
    def corner(self) -> int:
        """How many positions say where a box begins."""
        return len(self.shape) + (0 if self.walk is None else len(self.walk.low))


@ATTRIBUTES(Ops.COPYTO)
@dataclass(frozen=True, slots=True)
class CopyTo:
    """How COPYTO moves its tile: an engine, and what completes when it is done.

    engine: `tma` (device memory to shared memory, completes bytes of a pipe), `tma_store` (shared
    memory to device memory, completes in a group of its own), `bulk` (likewise, runs of elements,
    whose stores one lane of each warp begins) or `async` (each thread its own elements, from device
    memory to shared memory; completes with the group that COMMIT closes).
    multicast: the tile lands in every block of the cluster. box: that of a `tma` whose sources are
    an array, an input, a slot, a place in it, and where the box begins along each dimension.
    lines: other copies of the block read what lies beside it, so whole lines may come at once.
    """

    engine: str
    multicast: bool = False
    box: TensorBox | None = None
    lines: bool = False


def is_box(statement: Node) -> bool:
    """Whether a statement is the copy of a box by an engine, in code without pipes or with them."""
    return statement.op is Ops.COPYTO and bool(statement.arg.engine == "tma")


@ATTRIBUTES(Ops.MMA)
@dataclass(frozen=True, slots=True)
class Mma:
    """A matrix instruction: acc[m, n] (+)= sum over k of a[m, k] * b[n, k], exact products in f32.

    shape: (m, n, k) of one instruction; an MMA node over a longer k is several, one group. a_space:
    `shared` or `register`. b_major: the axis of b whose elements are neighbours, `k` or `n`;
    a_major likewise `k` or `m`. Layouts of the operands are those of `operand_layouts`.

    `mma.sync` is a warp's own: it is done when it returns, its accumulator is a LOAD of registers
    over the tile (16 x 8) and what is spread over more of them. With a_space `register`, a is such
    registers rounded to the operand's dtype, CAST(LOAD): k runs over two tiles' columns. exchanged:
    four lanes that have a row's results of four tiles exchange them afterwards: each has a tile's.

    beside: the dtype of b, where that is an 8-bit float of another kind than a; None elsewhere.
    """

    name: str
    shape: tuple[int, int, int]
    operand: DType
    accumulator: DType
    a_space: str = "shared"
    b_major: str = "k"
    a_major: str = "k"
    exchanged: bool = False
    beside: DType | None = None


@ATTRIBUTES(Ops.DONE)
@dataclass(frozen=True, slots=True)
class Done:
    """Wait until at most `keep` groups of an engine are in flight.

    Engines are `mma`, `tma_store`, `bulk` and `copy`: the thread's own asynchronous copies; of
    `lanes` and `slots` there is nothing in flight; of `tma`, none of an iteration's boxes may be.
    After all but `mma` and `tma` the block's threads meet, so that each sees what all have waited
    for: `slots` are read by then. reads_only: of stores, it is enough that their source was read.
    by_warps: the lanes of each warp meet alone, as they read nothing else of what was copied.
    """

    engine: str
    keep: int = 0
    reads_only: bool = False
    by_warps: bool = False


@ATTRIBUTES(Ops.BARRIER)
@dataclass(frozen=True, slots=True)
class Barrier:
    """All threads of a `warp`, a `warpgroup` of the role, a `block` or a `cluster` meet."""

    scope: str


@ATTRIBUTES(Ops.FENCE)
@dataclass(frozen=True, slots=True)
class Fence:
    """Accesses through one proxy come before those through another.

    `registers` to `wgmma`: registers written before are seen by the matrix unit. `generic` to
    `async`: ordinary writes to shared memory are seen by copy engines and the matrix unit.
    """

    source: str
    target: str


def wgmma(
    n: int, operand: DType = dtypes.bfloat16, a_space: str = "shared", b_major: str = "k"
) -> Mma:
    """The warpgroup instruction of 64 x n on 32 bytes of k."""
    shape = (64, n, 256 // operand.bits)
    return Mma("wgmma", shape, operand, dtypes.float32, a_space, b_major)


def operand_layouts(mma: Mma, depth: int) -> tuple[Layout, Layout, Layout]:
    """Layouts of accumulator (m, n), a (m, k) and b (n, k) for an MMA over `depth` of k."""
    bits = mma.operand.bits
    m, n, _ = mma.shape
    span = min(depth * bits // 8, 128)
    if mma.a_space == "register":
        a = wgmma_accumulator(depth).renamed({"n": "k"})
    else:
        a = swizzled_tile("m", m, "k", depth, bits, span)
    if mma.b_major == "k":
        b = swizzled_tile("n", n, "k", depth, bits, span)
    else:
        b = swizzled_tile("k", depth, "n", n, bits, min(n * bits // 8, 128))
    return wgmma_accumulator(n), a, b
