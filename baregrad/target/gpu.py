"""GPU generations: one row each. Sizes are in bytes unless said.

Source of the row of sm_90a: measurements on one H200 and listings of NVIDIA's assembler; where the
two say nothing, the CUDA C++ Programming Guide's table of compute capabilities. The limits of the
other rows are that table's (release 13.0); `ptx_isa` and what an architecture accepts are from the
PTX ISA manual's release notes, and were tried with ptxas 13.0. Nothing of them was measured.

Rates and sizes of memory are those of the largest card of a generation with full clocks, from the
datasheets and NVIDIA's papers on each architecture: they rank schedules, and nothing else.

A card also runs what older cards run: `sm_90a:sm_80` is a card of the row sm_90a, with its sizes
and rates, whose kernels are made of the instructions of sm_80. `sm_90` has those of Hopper's that
later generations keep: not the matrix unit of four warps, nor registers that change hands.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from baregrad.base.bits import round_down, round_up
from baregrad.base.errors import UnsupportedDevice

KIB = 1024
# Registers of a thread that multiplies in a group of warps, beside its sums and what it reads
# ahead; where others copy for it; and what ptxas 13 asks for at launch, whatever changes hands
# later: beside 64 it asked for 26 (C7602).
GROUP_REGISTERS, LEAST_BESIDE, LEAST_AT_LAUNCH = 50, 34, 26


@dataclass(frozen=True, slots=True)
class MatrixShape:
    """One family of shapes of a matrix unit: (m, k) by (k, n) onto (m, n).

    `operands` are the dtypes of a and b (all pairs of one tuple go together), `accumulators` those
    of the result, by name. `n` runs over `widths`. `k_major_only` says whether both operands must
    have k contiguous; `macs_per_cycle` is the full rate of one multiprocessor.
    """

    operands: tuple[str, ...]
    accumulators: tuple[str, ...]
    m: int
    k: int
    widths: range
    k_major_only: bool
    macs_per_cycle: int


@dataclass(frozen=True, slots=True)
class GpuTarget:
    """What a GPU kernel may assume about its machine, whoever makes it.

    Limits named `..._per_block` hold for one thread block and `..._per_unit` for a multiprocessor,
    which may run several. `name` is what the assembler calls the architecture. `load_bytes` is the
    widest access. `converted_floats` are the narrow floats that the machine itself converts to
    float32 and back, `widened_floats` those that it converts to float32 only: back it rounds by
    other rules. `async_copies`: whether copies from device memory to shared memory go on beside
    their threads. `warp_products`: what the lanes of a warp multiply together, as the dtype
    of both factors and the steps of a sum. `dependent_launch` says whether a kernel may begin
    before the one in front of it has ended, and waits for that by itself: every kernel of ours does
    so then. `busy_threads` and `busy_blocks` keep all its multiprocessors busy, roughly. `units`
    are the multiprocessors; `cache_bytes` is the size of the second cache, which gives each of them
    `cache_bytes_per_cycle`, as shared memory gives `shared_bytes_per_cycle`; `warp_macs_per_cycle`
    are multiply-adds of 16-bit floats that warps get from its matrix units; `launch_ns` is what a
    kernel takes that does nothing.
    """

    kind: ClassVar[Literal["gpu"]] = "gpu"
    name: str
    warp_lanes: int
    warps_per_unit: int
    blocks_per_unit: int
    threads_per_block: int
    registers_per_unit: int
    registers_per_thread: int
    register_granule: int
    register_partitions: int
    shared_bytes_per_unit: int
    shared_bytes_per_block: int
    shared_bytes_default: int
    shared_bytes_reserved: int
    shared_banks: int
    barrier_transfer_bytes: int
    register_shift: range
    warpgroup_warps: int
    matrix_shapes: tuple[MatrixShape, ...]
    load_bytes: int
    converted_floats: tuple[str, ...]
    widened_floats: tuple[str, ...]
    async_copies: bool
    warp_products: tuple[tuple[str, int], ...]
    dependent_launch: bool
    busy_threads: int
    busy_blocks: int
    units: int
    cycles_per_ns: float
    memory_bytes_per_ns: float
    cache_bytes: int
    cache_bytes_per_cycle: int
    shared_bytes_per_cycle: int
    warp_macs_per_cycle: int
    memory_latency_ns: float
    launch_ns: float

    @property
    def fma(self) -> bool:
        """Whether a multiply-add with one rounding is an instruction, as on every generation."""
        return True

    @property
    def bulk_copies(self) -> bool:
        """Whether runs of bytes are copied beside the threads (`cp.async.bulk`)."""
        return self.barrier_transfer_bytes > 0

    def multiplies_in_groups(self, dtype: str, steps: int) -> bool:
        """Whether groups of four warps add up so many products of a dtype at once."""
        return self.warpgroup_warps == 4 and any(
            dtype in shape.operands and shape.k == steps for shape in self.matrix_shapes
        )

    def registers_at_launch(self, threads: int) -> int:
        """Return how many registers each thread has where a block of `threads` is given all."""
        return round_down(self.registers_per_unit // threads, self.register_granule)

    def warps_by_registers(self, registers: int) -> int:
        """Return how many warps a multiprocessor holds at `registers` a thread.

        Registers are allotted to each of its partitions by itself, in granules.
        """
        granted = round_up(max(registers, 1), self.register_granule)
        share = self.registers_per_unit // self.register_partitions
        warps = self.register_partitions * (share // (self.warp_lanes * granted))
        return min(warps, self.warps_per_unit)

    def resident_blocks(self, warps: int, registers: int, shared_bytes: int) -> int:
        """Return how many blocks of `warps` warps a multiprocessor holds at once, 0 for too big."""
        shared = max(shared_bytes + self.shared_bytes_reserved, 1)
        by_shared = self.shared_bytes_per_unit // shared
        if shared_bytes > self.shared_bytes_per_block or registers > self.registers_per_thread:
            return 0
        by_registers = self.warps_by_registers(registers) // warps
        by_warps = self.warps_per_unit // warps
        return min(self.blocks_per_unit, by_warps, by_shared, by_registers)

    def blocks_of_groups(
        self, warps: int, kept: int, shared_bytes: int,
        roles: tuple[tuple[int, int], ...] = (),
    ) -> int:  # fmt: skip
        """Return how many blocks it holds whose warps multiply in groups, 0 for too big.

        warps: of a block. kept: registers of a thread that products and what is read ahead take.
        roles: where some of the warps copy for the others, the number of each kind, and the
        registers that their threads have in the end, 0 for those of the launch.
        """
        if not roles:
            return self.resident_blocks(warps, kept + GROUP_REGISTERS, shared_bytes)
        total = sum(count * registers for count, registers in roles)
        for blocks in range(self.resident_blocks(warps, 1, shared_bytes), 0, -1):
            given = self.registers_at_launch(blocks * warps * self.warp_lanes)
            enough = total <= given * warps if total else given >= kept + LEAST_BESIDE
            if enough and (blocks == 1 or given >= kept + LEAST_AT_LAUNCH):
                return blocks
        return 0


@dataclass(frozen=True, slots=True)
class NvidiaTarget(GpuTarget):
    """A generation of NVIDIA's GPUs.

    `capability` is the compute capability (major, minor), and `ptx_isa` the version of PTX that
    texts are written in: the first with all that renderers use of the architecture. `elects`:
    whether an instruction elects a lane of a warp (`elect.sync`). `nan_extremes`: whether maxima
    and minima of float32 can be asked to be NaN where an operand is (`max.NaN.f32`).
    `instructions` is the architecture whose instructions kernels are made of, empty for its own.
    """

    capability: tuple[int, int]
    ptx_isa: tuple[int, int]
    elects: bool
    nan_extremes: bool
    instructions: str = ""

    @property
    def architecture(self) -> str:
        """What the assembler calls the card: the name without whose instructions it uses."""
        return self.name.partition(_OF)[0]

    def with_instructions_of(self, other: NvidiaTarget) -> NvidiaTarget:
        """Return this card as one whose kernels are made of the instructions of an older one.

        Raises UnsupportedDevice where it does not run them all.
        """
        if other.name == self.name:
            return self
        if other.capability > self.capability or other.name.endswith("a"):
            raise UnsupportedDevice(
                f"{self.name} does not run all instructions of {other.name}", found=other.name,
                wanted=", ".join([row.name for row in (*GPU_ROWS, _LASTING) if row is not other
                                  and row.capability <= self.capability
                                  and not row.name.endswith("a")]) or "no other",
            )  # fmt: skip
        taken = {name: getattr(other, name) for name in _INSTRUCTIONS}
        taken["ptx_isa"] = max(self.ptx_isa, other.ptx_isa)
        return replace(
            self, name=f"{self.name}{_OF}{other.name}", instructions=other.name, **taken
        )


# Between the name of a card and whose instructions it uses; then the fields that follow from these.
_OF = ":"
_INSTRUCTIONS = (
    "barrier_transfer_bytes", "register_shift", "warpgroup_warps", "matrix_shapes", "load_bytes",
    "converted_floats", "widened_floats", "async_copies", "warp_products", "dependent_launch",
    "elects", "nan_extremes",
)

_WIDTHS = range(8, 257, 8)
_EIGHT_BITS = ("float8_e4m3fn", "float8_e5m2")
_WARPGROUP_SHAPES = (
    MatrixShape(("bfloat16",), ("float32",), 64, 16, _WIDTHS, False, 2048),
    MatrixShape(("float16",), ("float32", "float16"), 64, 16, _WIDTHS, False, 2048),
    MatrixShape(("tfloat32",), ("float32",), 64, 8, _WIDTHS, True, 1024),
    MatrixShape(
        _EIGHT_BITS, ("float32", "float16"), 64, 32, _WIDTHS, True, 4096
    ),
    # 8 and 24 wide exist as well; the step of 16 keeps the row regular.
    MatrixShape(("int8", "uint8"), ("int32",), 64, 32, range(16, 257, 16), True, 4096),
)

# Pairs of a dtype and of how many elements 16 or 32 bytes of each row hold.
_WARP_PRODUCTS = tuple([
    (dtype, nbytes // itemsize)
    for dtype, itemsize in (
        ("float16", 2), ("bfloat16", 2), ("tfloat32", 4), ("int8", 1), ("uint8", 1),
    )
    for nbytes in (16, 32)
])  # fmt: skip

_HOPPER = NvidiaTarget(
    name="sm_90a",
    capability=(9, 0),
    ptx_isa=(8, 0),
    warp_lanes=32,
    warps_per_unit=64,
    blocks_per_unit=32,
    threads_per_block=1024,
    registers_per_unit=65536,
    registers_per_thread=255,
    register_granule=8,
    register_partitions=4,
    shared_bytes_per_unit=228 * KIB,
    shared_bytes_per_block=227 * KIB,
    shared_bytes_default=48 * KIB,
    shared_bytes_reserved=1 * KIB,
    shared_banks=32,
    barrier_transfer_bytes=(1 << 20) - 1,
    register_shift=range(24, 257, 8),
    warpgroup_warps=4,
    matrix_shapes=_WARPGROUP_SHAPES,
    load_bytes=16,
    converted_floats=("float16", "bfloat16", "tfloat32"),
    widened_floats=_EIGHT_BITS,
    async_copies=True,
    warp_products=_WARP_PRODUCTS,
    dependent_launch=True,
    busy_threads=1 << 17,
    busy_blocks=128,
    units=132,
    cycles_per_ns=1.75,
    memory_bytes_per_ns=3350.0,
    cache_bytes=50 << 20,
    cache_bytes_per_cycle=36,
    shared_bytes_per_cycle=128,
    warp_macs_per_cycle=1024,
    memory_latency_ns=600.0,
    launch_ns=1500.0,
    elects=True,
    nan_extremes=True,
)
# Hopper's without those of its row alone, which PTX marks by the letter of sm_90a.
_LASTING = replace(
    _HOPPER, name="sm_90", register_shift=range(0), warpgroup_warps=0, matrix_shapes=()
)
_TURING = replace(
    _HOPPER,
    name="sm_75",
    capability=(7, 5),
    ptx_isa=(6, 5),
    warps_per_unit=32,
    blocks_per_unit=16,
    shared_bytes_per_unit=64 * KIB,
    shared_bytes_per_block=64 * KIB,
    shared_bytes_reserved=0,
    barrier_transfer_bytes=0,
    register_shift=range(0),
    warpgroup_warps=0,
    matrix_shapes=(),
    converted_floats=("float16",),
    widened_floats=(),
    async_copies=False,
    warp_products=(("float16", 8),),
    dependent_launch=False,
    units=72,
    cycles_per_ns=1.6,
    memory_bytes_per_ns=670.0,
    cache_bytes=6 << 20,
    elects=False,
    nan_extremes=False,
)
_AMPERE = replace(
    _TURING,
    name="sm_80",
    capability=(8, 0),
    ptx_isa=(7, 0),
    warps_per_unit=64,
    blocks_per_unit=32,
    shared_bytes_per_unit=164 * KIB,
    shared_bytes_per_block=163 * KIB,
    shared_bytes_reserved=1 * KIB,
    converted_floats=("float16", "bfloat16"),
    async_copies=True,
    warp_products=_WARP_PRODUCTS,
    units=108,
    cycles_per_ns=1.4,
    memory_bytes_per_ns=2040.0,
    cache_bytes=40 << 20,
    nan_extremes=True,
)
_AMPERE_GRAPHICS = replace(
    _AMPERE,
    name="sm_86",
    capability=(8, 6),
    ptx_isa=(7, 1),
    warps_per_unit=48,
    blocks_per_unit=16,
    shared_bytes_per_unit=100 * KIB,
    shared_bytes_per_block=99 * KIB,
    units=84,
    cycles_per_ns=1.8,
    memory_bytes_per_ns=1010.0,
    cache_bytes=6 << 20,
)
_ADA = replace(
    _AMPERE_GRAPHICS,
    name="sm_89",
    capability=(8, 9),
    # That of its products of 8-bit floats.
    ptx_isa=(8, 4),
    warp_products=(*_WARP_PRODUCTS, *[(dtype, 32) for dtype in _EIGHT_BITS]),
    blocks_per_unit=24,
    units=128,
    cycles_per_ns=2.5,
    cache_bytes=72 << 20,
)
# Its matrix units work on tensor memory; no renderer writes those instructions yet.
_BLACKWELL = replace(
    _HOPPER,
    name="sm_100a",
    capability=(10, 0),
    ptx_isa=(8, 8),
    warpgroup_warps=0,
    matrix_shapes=(),
    load_bytes=32,
    units=148,
    cycles_per_ns=1.9,
    memory_bytes_per_ns=8000.0,
    cache_bytes=126 << 20,
)
_BLACKWELL_GRAPHICS = replace(
    _ADA,
    name="sm_120",
    capability=(12, 0),
    ptx_isa=(8, 8),
    barrier_transfer_bytes=(1 << 20) - 1,
    widened_floats=_EIGHT_BITS,
    load_bytes=32,
    dependent_launch=True,
    units=170,
    cycles_per_ns=2.4,
    memory_bytes_per_ns=1790.0,
    cache_bytes=96 << 20,
    elects=True,
)

GPU_ROWS = (
    _TURING,
    _AMPERE,
    _AMPERE_GRAPHICS,
    _ADA,
    _HOPPER,
    _BLACKWELL,
    _BLACKWELL_GRAPHICS,
)


def gpu_row(name: str) -> NvidiaTarget:
    """Return the row of a GPU generation, or of one with the instructions of an older one.

    name: of a row, as sm_90a, or of two, as sm_90a:sm_80. Raises UnsupportedDevice where there is
    none, or where the one does not run what the other does.
    """
    card, of, instructions = name.partition(_OF)
    if of:
        return gpu_row(card).with_instructions_of(gpu_row(instructions))
    for row in (*GPU_ROWS, _LASTING):
        if row.name == name:
            return row
    raise UnsupportedDevice(
        "unknown GPU generation", found=repr(name),
        wanted=", ".join([row.name for row in (*GPU_ROWS, _LASTING)]),
    )
