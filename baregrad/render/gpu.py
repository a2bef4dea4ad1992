"""What the renderers of GPU programs agree on: who runs a program, and where its memory lies.

A PROGRAM is the code of one thread, or of a warp if it asks for its number. Grid and block are
one-dimensional: the hidden variable `.block` is the block's number and `.thread` the thread's
number in its block, whose bound plus one is the block's size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

from baregrad.base.bits import round_up
from baregrad.base.errors import CompilerBug
from baregrad.dtypes import as_dtype
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.program import MapSpec
from baregrad.render.interface import Signature, alloc_nbytes, leaves, signature
from baregrad.target.gpu import GpuTarget

WARP_LANES = 32
BLOCK = ".block"
THREAD = ".thread"
# Of blocks of a cluster: the cluster's number, and a block's in it.
CLUSTER, RANK = ".cluster", ".rank"
HIDDEN: MappingProxyType[str, str] = MappingProxyType(
    {BLOCK: "ctaid", THREAD: "tid", CLUSTER: "clusterid", RANK: "cluster_ctaid"}
)
# What every kernel of a target with `dependent_launch` runs in every thread, before it touches
# memory or ends: it waits until the kernel in front has ended and its writes are seen. Where the
# launch began in the usual way there is nothing to wait for. That the next kernel may begin is said
# by launches, so none runs `griddepcontrol.launch_dependents`. Source: PTX ISA, `griddepcontrol`.
WAIT = "griddepcontrol.wait"
# The MACHINE that says where a PROGRAM waits; of one without, a renderer finds the place.
WAITS = "launch.wait"
# Machine instructions that combine an element of memory with a value in one step.
ATOMS = ("atom.add", "atom.max", "atom.min")
# Wide enough for vector accesses; what an engine copies to needs more.
SHARED_ALIGNMENT = 16
TILE_ALIGNMENT = 1024


@dataclass(frozen=True, slots=True)
class Box:
    """What a bulk copy moves of an argument array, of `shape` elements that lie `strides` apart.

    All count elements, the innermost dimension first. In shared memory the chunks of a box are
    exchanged within 16 << `swizzle` bytes. rounds: float32 to tfloat32. walk: the corners and the
    steps of a box of places that the engine walks along, as of `Walk`.
    """

    param: Node
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    rounds: bool = False
    walk: tuple[tuple[int, ...], ...] = ()

    @property
    def spec(self) -> MapSpec:
        """The tensor map that a kernel takes for it."""
        size = self.param.dtype.itemsize
        strides = tuple([size * stride for stride in self.strides[1:]])
        span = 16 << self.swizzle if self.swizzle else 0
        slot = self.param.arg.slot
        return MapSpec(slot, size, self.shape, strides, self.box, span, self.rounds, self.walk)


@dataclass(frozen=True, slots=True)
class GpuSignature:
    """How a GPU's PROGRAM is called, and what its threads have.

    call: entry, parameters and symbolic integers. A kernel takes an address of 64 bits for each
    parameter, then 64 bits for each integer, then a tensor map of 128 bytes, aligned to 64, for
    each of `boxes`. threads: of a block. warps: whether the PROGRAM is the code of a whole warp.
    shared: the byte offset of each shared ALLOC, which take `shared_nbytes` together; they are
    dynamic, to be asked for at the launch, where that is more than what blocks have by default.
    alignment: of each of them, in bytes.
    private: ALLOCs of each thread. own: those that blocks of all launches share, zeros at first.
    written: the parameters that the program writes.
    """

    call: Signature
    threads: int
    warps: bool
    boxes: tuple[Box, ...]
    shared: dict[Node, int]
    shared_nbytes: int
    alignment: int
    private: tuple[Node, ...]
    own: tuple[Node, ...]
    written: frozenset[Node]

    def check(self, target: GpuTarget) -> None:
        """Raise CompilerBug where no block of `target` can be so large."""
        limits = (
            ("threads", self.threads, target.threads_per_block),
            ("bytes of shared memory", self.shared_nbytes, target.shared_bytes_per_block),
        )
        for what, found, most in limits:
            if found > most:
                raise CompilerBug(
                    f"a block of {target.name} cannot have so many {what}",
                    found=found,
                    wanted=f"at most {most}",
                )

    def dynamic_nbytes(self, target: GpuTarget) -> int:
        """The dynamic shared memory that a launch must ask for, in bytes."""
        return self.shared_nbytes if self.shared_nbytes > target.shared_bytes_default else 0


def gpu_signature(
    program: Node, variables: Sequence[str] | None = None, arrays: int = 0
) -> GpuSignature:
    """The signature of a GPU's PROGRAM; `variables` and `arrays` as a renderer takes them.

    Raises CompilerBug for an ALLOC in a space that threads do not have, and for a CPU's loop.
    """
    if any(node.op is Ops.BEGIN and len(node.src) > 2 for node in program.src):
        raise CompilerBug("a loop over a CPU's chunks in a GPU kernel", found=program)
    call = signature(program, variables, arrays)
    shared: dict[Node, int] = {}
    private, own = list(call.stack), list[Node]()
    nbytes = program.arg.shared_nbytes if program.arg else 0
    alignment = TILE_ALIGNMENT if nbytes or multiplies_groups(program) else SHARED_ALIGNMENT
    for alloc in call.scratch:
        if alloc.arg.space == "scratch":
            private.append(alloc)
        elif alloc.arg.space == "shared":
            shared[alloc] = nbytes
            nbytes = round_up(nbytes + alloc_nbytes(alloc), alignment)
        elif alloc.arg.space == "device":
            own.append(alloc)
        else:
            wanted = "register, scratch, shared or device"
            raise CompilerBug("a GPU's thread has no such memory", found=alloc, wanted=wanted)
    # What is stored to, or handed to an instruction that may write it.
    targets = [n.src[0] for n in program.src if n.op in (Ops.VSTORE, Ops.MACHINE) and n.src]
    written = frozenset([node for node in targets if node.op is Ops.PARAM])
    machine = [node for node in program.src if node.op is Ops.MACHINE]
    warps = any(node.arg.name == "warp" for node in machine)
    boxes = tuple(dict.fromkeys([box_of(node) for node in machine if node.arg.name in _COPIES]))
    threads = program.arg.warps * WARP_LANES if warps else _threads(program)
    return GpuSignature(
        call, threads, warps, boxes, shared, nbytes, alignment, tuple(private), tuple(own), written
    )


def read_early(program: Node) -> tuple[int, ...]:
    """The slots of the arrays that a PROGRAM reads before it waits for the kernel in front."""
    found: set[int] = set()
    for node in program.src:
        if node.op is Ops.MACHINE and node.arg.name == WAITS:
            return tuple(sorted(found))
        # What is only asked for is not read.
        if node.op is not Ops.PREFETCH:
            found.update([one.arg.slot for one in node.src if one.op is Ops.PARAM])
    return ()


def multiplies_groups(program: Node) -> bool:
    """Whether a PROGRAM has products of groups of four warps, which read whole rows of copies."""
    return any(is_group_product(node) for node in program.src)


def is_group_product(node: Node) -> bool:
    """Whether a node is a product of four warps, of which one factor may be in registers."""
    return node.op is Ops.MACHINE and node.arg.name in ("wgmma", "wgmma.held")


def group_sums(node: Node) -> tuple[Node, ...]:
    """The registers that a product of four warps adds to."""
    return node.src[6 if node.arg.name == "wgmma.held" else 4 :]


def group_product(
    left: str, right: str, turned: tuple[int, ...], columns: int
) -> tuple[str, tuple[str, ...]]:
    """The instruction that multiplies numbers of two dtypes for four warps, and its immediates."""
    dtype = as_dtype(left)
    names = ("f32" if dtype.is_float else "s32", _OPERANDS[left], _OPERANDS[right])
    settings: tuple[str, ...] = ("1", "1") if dtype.is_float else ()
    if dtype.bits == 16:
        settings += tuple(map(str, turned))
    shape = f"m64n{columns}k{32 // dtype.itemsize}"
    return f"wgmma.mma_async.sync.aligned.{shape}.{'.'.join(names)}", settings


def check_atomic(node: Node) -> None:
    """Raise CompilerBug where no GPU combines values of a dtype with memory in one step."""
    dtype = node.src[0].dtype
    if dtype.bits < 32 or (dtype.is_float and node.arg.name != "atom.add"):
        wanted = "int of 32 or 64 bits, or a sum of float"
        raise CompilerBug(f"no {node.arg.name} of a dtype", found=dtype, wanted=wanted)


# Bits in which the places of a step and of the fourth one on differ, in rows of 128 bytes whose
# chunks are exchanged: that of the rows alone, and all.
LATE_NBYTES = 4 * 128
ACROSS_NBYTES = LATE_NBYTES | 4 * 16
_BOXES = ("tma.box", "tma.multicast", "tma.walk")
_COPIES = frozenset(("tma.load", "tma.store", *_BOXES))
# Chunks of rows of 128 bytes are exchanged.
_ROWS_SWIZZLE = 3
# Dtypes as matrix units call them.
_OPERANDS: MappingProxyType[str, str] = MappingProxyType({
    "bfloat16": "bf16", "float16": "f16", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2",
    "tfloat32": "tf32", "int8": "s8", "uint8": "u8",
})  # fmt: skip


def box_of(copy: Node) -> Box:
    """The box that a bulk copy moves."""
    sizes = copy.arg.immediates
    if copy.arg.name in _BOXES:
        walks = copy.arg.name == "tma.walk"
        rank, *others = sizes
        parts = [others[:rank], others[rank : 2 * rank]]
        counts = (2, *[rank - 2] * 3) if walks else (rank,)
        begin = 2 * rank
        for count in counts:
            parts.append(others[begin : begin + count])
            begin += count
        shape, strides, box, *walk = map(tuple, parts)
        param, target = copy.src[4], copy.src[0]
        rounds = param.dtype is not target.dtype
        return Box(param, shape, strides, box, _ROWS_SWIZZLE, rounds, tuple(walk))
    rows, columns, swizzle = sizes[:3]
    height, width = copy.src[0].shape
    return Box(copy.src[0], (width, height), (1, width), (columns, rows), swizzle)


def _threads(program: Node) -> int:
    """The threads of a block: as many as the PROGRAM says, or as the bound of `.thread`."""
    if program.arg is not None and program.arg.block:
        return int(prod(program.arg.block)) + WARP_LANES * int(program.arg.copiers)
    used = filter(lambda leaf: leaf.op is Ops.VAR and leaf.arg.name == THREAD, leaves(program))
    return next((int(variable.arg.hi) + 1 for variable in used), 1)


def pieces(size: int, width: int, align: int, most: int) -> list[tuple[int, int]]:
    """How `width` adjacent elements of `size` bytes are accessed: (first, how many) of each access.

    Each is as wide as the alignment of the first element allows, `most` bytes at most.
    """
    total = width * size
    found: list[tuple[int, int]] = []
    at = 0
    while at < total:
        nbytes = size
        while nbytes * 2 <= min(most, total - at) and (at | align) % (nbytes * 2) == 0:
            nbytes *= 2
        found.append((at // size, nbytes // size))
        at += nbytes
    return found
