"""The Hopper matrix product as machine instructions, every number taken from the loop level."""

from __future__ import annotations

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.attrs import Machine, Reg
from baregrad.ir.core.node import Node, alu, cast, const, toposort
from baregrad.ir.core.op import Op, Ops
from baregrad.ir.verify.protocol_limits import (
    MBARRIER_NBYTES,
    shared_nbytes,
    shared_offsets,
    slot_nbytes,
)
from baregrad.testing.examples.levels import Levels
from baregrad.testing.examples.matmul_hopper import (
    HOPPER,
    M_ATOM,
    MatmulSizes,
    kernel_level,
    loop_level,
    tensor_level,
)

I64 = dtypes.int64
F32 = dtypes.float32
BF16 = dtypes.bfloat16
WGMMA_K = 16
LANES = HOPPER.warp_lanes
WARPGROUP = HOPPER.warpgroup_warps
Value = Node | int


class LinearBuilder:
    """Instructions in order; methods append one and give its value."""

    def __init__(self) -> None:
        self.code: list[Node] = []
        self.loops = 0

    def put(self, node: Node) -> Node:
        """Append an instruction."""
        self.code.append(node)
        return node

    def machine(self, name: str, *src: Value, imm: tuple[int, ...] = (),
                dtype: DType = dtypes.token) -> Node:  # fmt: skip
        """A target instruction."""
        return self.put(Node(Ops.MACHINE, dtype, tuple(map(integer, src)), Machine(name, imm)))

    def do(self, op: Op, a: Value, b: Value) -> Node:
        """Integer arithmetic; constants fold."""
        return self.put(alu(op, integer(a), integer(b)))

    def sum(self, *terms: Value) -> Node:
        """The sum of several values."""
        total = integer(terms[0])
        for term in terms[1:]:
            total = self.do(Ops.ADD, total, term)
        return total

    def scaled(self, a: Value, factor: int, *more: Value) -> Node:
        """a * factor + more."""
        return self.sum(self.do(Ops.MUL, a, factor), *more)

    def begin(self, start: Value, stop: Value) -> Node:
        """A loop's counter; `end` closes it."""
        self.loops += 1
        return self.put(Node(Ops.BEGIN, I64, (integer(start), integer(stop)), self.loops))

    def test(self, condition: Node) -> None:
        """What follows, up to `end`, runs in the lanes where the condition holds."""
        self.put(Node(Ops.TEST, dtypes.token, (condition,)))

    def end(self, count: int = 1) -> None:
        """Close loops and tests."""
        for _ in range(count):
            self.put(Node(Ops.END, dtypes.token))


def integer(value: Value) -> Node:
    """An operand."""
    return value if isinstance(value, Node) else const(value, I64)


class MatmulEmitter:
    """Writes the kernel; what it knows of the protocol comes from the loop level's PIPE."""

    def __init__(self, sizes: MatmulSizes) -> None:
        self.sizes = sizes
        self.kernel = loop_level(sizes)
        nodes = toposort(self.kernel)
        self.pipe = next(n.arg for n in nodes if n.op is Ops.PIPE)
        self.params = {n.arg.slot: n for n in nodes if n.op is Ops.PARAM}
        self.roles = {n.arg.name: n.arg for n in nodes if n.op is Ops.ROLE}
        self.offsets = {b.arg.name: at for b, at in shared_offsets(self.kernel).items()}
        self.slots = {b.arg.name: slot_nbytes(b) for b in shared_offsets(self.kernel)}
        self.bits = {b.arg.name: b.arg.layout.swizzle.bits for b in shared_offsets(self.kernel)}
        self.shared = shared_nbytes(self.kernel)
        self.full = self.shared - 2 * sizes.stages * MBARRIER_NBYTES
        self.empty = self.full + sizes.stages * MBARRIER_NBYTES
        self.asm = LinearBuilder()
        self.total = [Node(Ops.REG, F32, (), Reg(i, LANES)) for i in range(sizes.n // 2)]

    def program(self) -> Node:
        """The PROGRAM."""
        asm = self.asm
        self.warp = asm.machine("warp", dtype=I64)
        self.rank = asm.machine("cluster.rank", dtype=I64)
        self.which = asm.machine("cluster.id", dtype=I64)
        self.lane = asm.put(Node(Ops.LANES, I64, (), LANES))
        self.first_lane = asm.do(Ops.CMPEQ, self.lane, 0)
        s = self.sizes
        tiles = s.row_tiles * s.column_tiles
        left = asm.do(Ops.SUB, tiles - 1 + s.clusters, self.which)
        self.mine = asm.do(Ops.FLOORDIV, left, s.clusters)
        self.set_up()
        asm.machine("barrier.cluster")
        asm.test(asm.do(Ops.CMPLT, self.warp, self.roles["math"].first))
        asm.machine("setmaxnreg", imm=(self.roles["load"].registers,))
        self.load()
        asm.end()
        asm.test(asm.do(Ops.CMPLE, self.roles["math"].first, self.warp))
        asm.machine("setmaxnreg", imm=(self.roles["math"].registers,))
        self.math()
        asm.end()
        info = self.kernel.arg._replace(shared_nbytes=self.shared)
        return Node(Ops.PROGRAM, dtypes.token, tuple(asm.code), info)

    def set_up(self) -> None:
        """One thread makes the barriers."""
        asm = self.asm
        asm.test(asm.do(Ops.CMPEQ, self.warp, 0))
        asm.test(self.first_lane)
        for slot in range(self.pipe.depth):
            step = slot * MBARRIER_NBYTES
            asm.machine("mbarrier.init", self.full + step, imm=(self.pipe.full_arrivals,))
            asm.machine("mbarrier.init", self.empty + step, imm=(self.pipe.empty_arrivals,))
        asm.machine("mbarrier.fence_init")
        asm.end(2)

    def turn(self, counter: Node) -> tuple[Node, Node, Node]:
        """Slot, the offset of its barrier, and the parity of its lap."""
        asm = self.asm
        slot = asm.do(Ops.MOD, counter, self.pipe.depth)
        lap = asm.do(Ops.FLOORDIV, counter, self.pipe.depth)
        return slot, asm.do(Ops.MUL, slot, MBARRIER_NBYTES), asm.do(Ops.AND, lap, 1)

    def tile(self, number: Node) -> tuple[Node, Node]:
        """First row of this block's tile, and first column."""
        asm, s = self.asm, self.sizes
        tile = asm.scaled(number, s.clusters, self.which)
        cluster_row = asm.do(Ops.FLOORDIV, tile, s.column_tiles)
        block = asm.scaled(cluster_row, s.cluster, self.rank)
        column = asm.do(Ops.MUL, asm.do(Ops.MOD, tile, s.column_tiles), s.n)
        return asm.do(Ops.MUL, block, M_ATOM * s.groups), column

    def load(self) -> None:
        """The producer: one lane of the role's first warp."""
        asm, s = self.asm, self.sizes
        asm.test(asm.do(Ops.CMPEQ, self.warp, self.roles["load"].first))
        asm.test(self.first_lane)
        number = asm.begin(0, self.mine)
        row, column = self.tile(number)
        k = asm.begin(0, s.k_tiles)
        slot, step, parity = self.turn(asm.scaled(number, s.k_tiles, k))
        asm.machine("mbarrier.wait", asm.sum(step, self.empty), asm.do(Ops.XOR, parity, 1))
        full = asm.sum(step, self.full)
        asm.machine("mbarrier.arrive.expect_tx", full, imm=(self.pipe.full_nbytes,))
        along = asm.do(Ops.MUL, k, s.k)
        height = M_ATOM * s.groups
        a = asm.scaled(slot, self.slots["sA"], self.offsets["sA"])
        asm.machine(
            "tma.load", self.params[1], a, along, row, full, imm=(height, s.k, self.bits["sA"], 0)
        )
        part = s.n // s.cluster
        mine = asm.do(Ops.MUL, self.rank, part)
        pitch = 16 << self.bits["sB"]
        b = asm.scaled(slot, self.slots["sB"], self.offsets["sB"], asm.do(Ops.MUL, mine, pitch))
        asm.machine(
            "tma.load", self.params[2], b, along, asm.sum(column, mine), full,
            imm=(part, s.k, self.bits["sB"], int(s.cluster > 1)),
        )  # fmt: skip
        asm.end(2)
        count = asm.do(Ops.MUL, self.mine, s.k_tiles)
        first = asm.do(Ops.MAX, asm.do(Ops.SUB, count, self.pipe.depth), 0)
        _, step, parity = self.turn(asm.begin(first, count))
        asm.machine("mbarrier.wait", asm.sum(step, self.empty), parity)
        asm.end(3)

    def release(self, counter: Node) -> None:
        """One warp of the group arrives in each block of the cluster, a lane for each."""
        asm = self.asm
        _, step, _ = self.turn(counter)
        asm.test(self.leading)
        asm.test(asm.do(Ops.CMPLT, self.lane, self.sizes.cluster))
        asm.machine("mbarrier.arrive.remote", asm.sum(step, self.empty), self.lane)
        asm.end(2)

    def math(self) -> None:
        """A consumer: every warp of its warpgroup."""
        asm, s = self.asm, self.sizes
        mine = asm.do(Ops.SUB, self.warp, self.roles["math"].first)
        self.group = asm.do(Ops.FLOORDIV, mine, WARPGROUP)
        self.place = asm.do(Ops.MOD, mine, WARPGROUP)
        self.leading = asm.do(Ops.CMPEQ, self.place, 0)
        for register in self.total:
            asm.put(Node(Ops.SET, dtypes.token, (register, self.zeros())))
        number = asm.begin(0, self.mine)
        row, column = self.tile(number)
        k = asm.begin(0, s.k_tiles)
        counter = asm.scaled(number, s.k_tiles, k)
        slot, step, parity = self.turn(counter)
        asm.machine("mbarrier.wait", asm.sum(step, self.full), parity)
        self.multiply(slot, k)
        asm.machine("wgmma.wait", imm=(1,))
        asm.test(asm.do(Ops.CMPLT, 0, k))
        self.release(asm.do(Ops.SUB, counter, 1))
        asm.end(2)
        asm.machine("wgmma.wait", imm=(0,))
        self.release(asm.scaled(number, s.k_tiles, s.k_tiles - 1))
        for piece in range(s.n // s.part):
            self.write(piece, row, column)
        asm.end()
        asm.test(self.leading)
        asm.test(self.first_lane)
        asm.machine("bulk.wait", imm=(0, 0))
        asm.end(2)

    def zeros(self) -> Node:
        """A zero in every lane."""
        return self.asm.put(Node(Ops.SPLAT, F32, (const(0.0, F32),), LANES))

    def multiply(self, slot: Node, k: Node) -> None:
        """One group: an instruction for each 32 bytes of k."""
        asm, s = self.asm, self.sizes
        pitch = 16 << self.bits["sA"]
        rows = asm.do(Ops.MUL, self.group, M_ATOM * pitch)
        a = asm.scaled(slot, self.slots["sA"], self.offsets["sA"], rows)
        b = asm.scaled(slot, self.slots["sB"], self.offsets["sB"])
        later = asm.do(Ops.CMPLT, 0, k)
        asm.machine("wgmma.fence")
        for step in range(s.k // WGMMA_K):
            keep = later if step == 0 else const(True, dtypes.bool)
            ends = (asm.sum(a, 32 * step), asm.sum(b, 32 * step))
            asm.machine("wgmma.mma", *ends, keep, *self.total, imm=(s.n, self.bits["sA"]))
        asm.machine("wgmma.commit")

    def write(self, piece: int, row: Node, column: Node) -> None:
        """16 columns of the accumulator through one of two staging buffers."""
        asm, s = self.asm, self.sizes
        bits = self.bits["sC"]
        pitch = 16 << bits
        base = self.offsets["sC"] + piece % 2 * self.slots["sC"]
        tile = asm.scaled(self.group, M_ATOM * pitch, base)
        number = asm.sum(self.group, 1)
        asm.test(self.leading)
        asm.test(self.first_lane)
        asm.machine("bulk.wait", imm=(1, 1))
        asm.end(2)
        asm.machine("bar.sync", number, imm=(WARPGROUP,))
        # Lane 8i + r addresses row r of matrix i; matrices go down first, then right.
        matrix, r = asm.do(Ops.FLOORDIV, self.lane, 8), asm.do(Ops.MOD, self.lane, 8)
        down = asm.do(Ops.MOD, matrix, 2)
        line = asm.sum(asm.do(Ops.MUL, self.place, 16), asm.do(Ops.MUL, down, 8), r)
        chunk = asm.do(Ops.MUL, asm.do(Ops.FLOORDIV, matrix, 2), 16)
        plain = asm.sum(tile, asm.do(Ops.MUL, line, pitch), chunk)
        picked = asm.do(Ops.AND, asm.do(Ops.SHR, plain, 7), (1 << bits) - 1)
        address = asm.do(Ops.XOR, plain, asm.do(Ops.SHL, picked, 4))
        registers = self.total[8 * piece : 8 * piece + 8]
        values = [asm.put(cast(register, BF16)) for register in registers]
        asm.machine("stmatrix", address, *values)
        asm.machine("fence.proxy.async")
        asm.machine("bar.sync", number, imm=(WARPGROUP,))
        asm.test(self.leading)
        asm.test(self.first_lane)
        first = asm.sum(row, asm.do(Ops.MUL, self.group, M_ATOM))
        asm.machine(
            "tma.store", self.params[0], tile, asm.sum(column, piece * s.part), first,
            imm=(M_ATOM, s.part, bits),
        )  # fmt: skip
        asm.machine("bulk.commit")
        asm.end(2)


def linear_level(sizes: MatmulSizes) -> Node:
    """The machine instructions of the kernel; n a multiple of 16, pieces of 16 columns."""
    return MatmulEmitter(sizes).program()


def matmul_hopper_levels(sizes: MatmulSizes | None = None) -> Levels:
    """The four levels; the schedule is the text that the builders of the lower levels follow."""
    sizes = MatmulSizes() if sizes is None else sizes
    return Levels(
        "matmul_hopper",
        tensor_level(sizes),
        kernel_level(sizes),
        f"{sizes!r}",
        loop_level(sizes),
        linear_level(sizes),
    )
