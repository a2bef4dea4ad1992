"""A Hopper matrix product: a ring of bulk copies, one producer, two consumer warpgroups.

C = A B^T for A (M, K), B (N, K), C (M, N) of bf16. A cluster of two blocks works on two tiles of
rows and one of columns, so each fetches half of B's tile and multicasts it. Blocks are persistent:
the ring's counter runs on over tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Alloc, KernelInfo, Param
from baregrad.ir.core.axes import Range
from baregrad.ir.core.index import Dim
from baregrad.ir.core.layout import Layout, swizzled_tile, wgmma_accumulator
from baregrad.ir.core.node import Node, cast, const, range_node
from baregrad.ir.core.op import Op, Ops
from baregrad.ir.protocol.attributes import Barrier, CopyTo, Done, Fence, Pipe, Role, wgmma
from baregrad.ir.protocol.derive import derive_synchronisation
from baregrad.target.gpu import gpu_row
from baregrad.testing.examples.levels import at, contracted, fold, kernel, kernel_of, out, param

HOPPER = gpu_row("sm_90a")
BF16 = dtypes.bfloat16
F32 = dtypes.float32
M_ATOM = 64


@dataclass(frozen=True, slots=True)
class MatmulSizes:
    """The problem and its tiling, in elements; a block's tile is 128 x n, k at a time.

    clusters: how many are launched. part: columns of one staged piece of the output.
    """

    rows: int = 512
    columns: int = 64
    depth: int = 320
    n: int = 32
    k: int = 64
    stages: int = 3
    clusters: int = 3
    part: int = 16
    cluster: int = 2
    groups: int = 2

    @property
    def row_tiles(self) -> int:
        """Tiles of rows, each for one cluster."""
        return self.rows // (M_ATOM * self.groups * self.cluster)

    @property
    def column_tiles(self) -> int:
        """Tiles of columns."""
        return self.columns // self.n

    @property
    def k_tiles(self) -> int:
        """Steps along k."""
        return self.depth // self.k


def tensor_level(sizes: MatmulSizes) -> Node:
    """The product of whole arrays, summed in float32."""
    a = param(1, sizes.rows, sizes.depth, dtype=BF16, name="A")
    b = param(2, sizes.columns, sizes.depth, dtype=BF16, name="B")
    return cast(contracted(a, b), BF16)


def kernel_level(sizes: MatmulSizes) -> Node:
    """What the passes make of `tensor_level`."""
    return kernel_of(tensor_level(sizes))


def kernel_by_hand(sizes: MatmulSizes) -> Node:
    """The same, written down."""
    i, j, r = (range_node(e, p) for p, e in enumerate((sizes.rows, sizes.columns, sizes.depth)))
    a = param(1, sizes.rows, sizes.depth, dtype=BF16, name="A")
    b = param(2, sizes.columns, sizes.depth, dtype=BF16, name="B")
    c = param(0, sizes.rows, sizes.columns, dtype=BF16, name="C")
    product = Node(Ops.MUL, F32, (cast(at(a, i, r), F32), cast(at(b, j, r), F32)))
    return kernel("matmul", out(c, cast(fold(Ops.ADD, product, r), BF16), i, j))


# --- words of the loop level ---------------------------------------------------------------------


def effect(op: Op, *src: Node, arg: object = None) -> Node:
    """A statement."""
    return Node(op, dtypes.token, src, arg)


def seq(*statements: Node) -> Node:
    """Statements in order."""
    return effect(Ops.SEQ, *statements)


def axis(id: int, extent: Dim, name: str, bind: str = "loop") -> Node:
    """A range of the loop level."""
    return Node(Ops.RANGE, dtypes.index, (index.as_node(extent),), Range(id, name, bind))


def alloc(id: int, space: str, dtype: DType, shape: tuple[int, ...], name: str,
          layout: Layout | None = None, depth: int = 1) -> Node:  # fmt: skip
    """A buffer of the loop level."""
    return Node(Ops.ALLOC, dtype, (), Alloc(id, space, shape, layout, depth, name))


def load(array: Node, *indices: Dim) -> Node:
    """A read of the loop level."""
    return Node(Ops.LOAD, array.dtype, (array, *map(index.as_node, indices)))


def store(array: Node, value: Node, *indices: Dim) -> Node:
    """A write of the loop level by the lanes."""
    return effect(Ops.STORE, array, value, *map(index.as_node, indices))


def copy(array: Node, value: Node, *rest: Dim, how: CopyTo) -> Node:
    """A write of the loop level by an engine; `rest` is the indices, then pipe and counter."""
    return effect(Ops.COPYTO, array, value, *map(index.as_node, rest), arg=how)


@dataclass(frozen=True, slots=True)
class Parts:
    """The nodes that both roles of the kernel share."""

    sizes: MatmulSizes
    a: Node
    b: Node
    c: Node
    staged_a: Node
    staged_b: Node
    staged_c: Node
    total: Node
    ring: Node
    rank: Node
    group: Node
    tile_loop: Node
    k_loop: Node
    row_tile: Dim
    column_tile: Dim
    counter: Node


def parts_of(sizes: MatmulSizes) -> Parts:
    """Arguments, buffers, the ring and the loops."""
    s = sizes
    a = Node(Ops.PARAM, BF16, (), Param(1, (s.rows, s.depth), "A"))
    b = Node(Ops.PARAM, BF16, (), Param(2, (s.columns, s.depth), "B"))
    c = Node(Ops.PARAM, BF16, (), Param(0, (s.rows, s.columns), "C"))
    height = M_ATOM * s.groups
    tile_a = swizzled_tile("m", height, "k", s.k, 16, s.k * 2)
    tile_b = swizzled_tile("n", s.n, "k", s.k, 16, s.k * 2)
    tile_c = swizzled_tile("m", M_ATOM, "n", s.part, 16, s.part * 2)
    staged_a = alloc(1, "shared", BF16, (height, s.k), "sA", tile_a, s.stages)
    staged_b = alloc(2, "shared", BF16, (s.n, s.k), "sB", tile_b, s.stages)
    staged_c = alloc(3, "shared", BF16, (s.groups, M_ATOM, s.part), "sC", tile_c, 2)
    total = alloc(4, "register", F32, (M_ATOM, s.n), "acc", wgmma_accumulator(s.n))
    ring = effect(Ops.PIPE, staged_a, staged_b, arg=Pipe("ring", s.stages, "load", ("math",)))
    which = axis(0, s.clusters, "cluster", "grid")
    rank = axis(1, s.cluster, "rank", "cluster")
    group = axis(2, s.groups, "group", "warpgroup")
    tiles = s.row_tiles * s.column_tiles
    mine = index.floordiv(index.add(index.sub(tiles - 1, which), s.clusters), s.clusters)
    tile_loop = axis(3, mine, "tile")
    k_loop = axis(4, s.k_tiles, "kt")
    tile = index.add(which, index.mul(tile_loop, s.clusters))
    counter = index.as_node(index.add(index.mul(tile_loop, s.k_tiles), k_loop))
    return Parts(
        s, a, b, c, staged_a, staged_b, staged_c, total, ring, rank, group, tile_loop, k_loop,
        index.floordiv(tile, s.column_tiles), index.mod(tile, s.column_tiles), counter,
    )  # fmt: skip


def load_role(p: Parts) -> Node:
    """One thread fills the ring: A's tile for this block, its half of B's tile for both."""
    s = p.sizes
    slot = index.mod(p.counter, s.stages)
    height = M_ATOM * s.groups
    m, k = axis(10, height, "m", "tile"), axis(11, s.k, "k", "tile")
    n, kb = axis(12, s.n // s.cluster, "n", "tile"), axis(13, s.k, "k", "tile")
    block = index.add(index.mul(p.row_tile, s.cluster), p.rank)
    row = index.add(index.mul(block, height), m)
    column = index.add(index.mul(p.k_loop, s.k), k)
    part = index.add(index.mul(p.rank, s.n // s.cluster), n)
    b_row = index.add(index.mul(p.column_tile, s.n), part)
    b_column = index.add(index.mul(p.k_loop, s.k), kb)
    ends = (p.ring, p.counter)
    shared = CopyTo("tma", multicast=s.cluster > 1)
    body = seq(
        effect(Ops.ACQUIRE, *ends),
        copy(p.staged_a, load(p.a, row, column), slot, m, k, *ends, how=CopyTo("tma")),
        copy(p.staged_b, load(p.b, b_row, b_column), slot, part, kb, *ends, how=shared),
        effect(Ops.COMMIT, *ends),
    )
    inner = effect(Ops.LOOP, p.k_loop, body)
    role = Role("load", 4, 0, 24, elect=True)
    return effect(Ops.ROLE, effect(Ops.LOOP, p.tile_loop, inner), arg=role)


def math_role(p: Parts) -> Node:
    """Two warpgroups multiply 64 rows each, keeping one group in flight; then the epilogue."""
    s = p.sizes
    slot = index.mod(p.counter, s.stages)
    m, n, k = (axis(14 + i, e, x, "tile") for i, (e, x) in enumerate(
        ((M_ATOM, "m"), (s.n, "n"), (s.k, "k"))))  # fmt: skip
    a = load(p.staged_a, slot, index.add(index.mul(p.group, M_ATOM), m), k)
    later = index.less(0, p.k_loop)
    previous = index.as_node(index.add(p.counter, -1))
    last = index.as_node(index.add(index.mul(p.tile_loop, s.k_tiles), s.k_tiles - 1))
    step = seq(
        effect(Ops.WAIT, p.ring, p.counter),
        effect(Ops.FENCE, arg=Fence("registers", "wgmma")),
        effect(Ops.MMA, p.total, a, load(p.staged_b, slot, n, k), later, m, n, k, arg=wgmma(s.n)),
        effect(Ops.DONE, arg=Done("mma", 1)),
        effect(Ops.IF, later, effect(Ops.RELEASE, p.ring, previous)),
    )
    tile = seq(
        effect(Ops.LOOP, p.k_loop, step),
        effect(Ops.DONE, arg=Done("mma", 0)),
        effect(Ops.RELEASE, p.ring, last),
        epilogue(p),
    )
    body = seq(effect(Ops.LOOP, p.tile_loop, tile), effect(Ops.DONE, arg=Done("tma_store", 0)))
    return effect(Ops.ROLE, body, arg=Role("math", 4 * s.groups, 4, 240))


def epilogue(p: Parts) -> Node:
    """Pieces of the accumulator go through two staging buffers to device memory."""
    s = p.sizes
    piece = axis(5, s.n // s.part, "nj")
    m, n = axis(17, M_ATOM, "m", "tile"), axis(18, s.part, "n", "tile")
    where = (index.mod(piece, 2), p.group, m, n)
    column = index.add(index.mul(piece, s.part), n)
    block = index.add(index.mul(p.row_tile, s.cluster), p.rank)
    atom = index.add(index.mul(block, s.groups), p.group)
    row = index.add(index.mul(atom, M_ATOM), m)
    target = index.add(index.mul(p.column_tile, s.n), column)
    together = effect(Ops.BARRIER, arg=Barrier("warpgroup"))
    body = seq(
        effect(Ops.DONE, arg=Done("tma_store", 1, reads_only=True)),
        together,
        store(p.staged_c, cast(load(p.total, m, column), BF16), *where),
        effect(Ops.FENCE, arg=Fence("generic", "async")),
        together,
        copy(p.c, load(p.staged_c, *where), row, target, how=CopyTo("tma_store")),
    )
    return effect(Ops.LOOP, piece, body)


def loop_level(sizes: MatmulSizes) -> Node:
    """The kernel as roles, with its synchronisation derived."""
    p = parts_of(sizes)
    info = KernelInfo("matmul_hopper", "NV", (sizes.clusters,), sizes.cluster, 12)
    body = (load_role(p), math_role(p))
    return derive_synchronisation(Node(Ops.KERNEL, dtypes.token, body, info), HOPPER)


__all__ = ["MatmulSizes", "const", "kernel_by_hand", "kernel_level", "loop_level", "tensor_level"]
