"""CPU families: one row for each width of vector unit that we generate code for.

Rows say what a kernel may assume. What the host at hand has beyond its row (core count, cache
sizes) is put in by the runtime, which may look, with `dataclasses.replace`.

Sources: Intel 64 and IA-32 Architectures Optimization Reference Manual (order number 248966);
AMD Software Optimization Guide for the AMD EPYC 9005 processors; Arm Neoverse N1 Software
Optimization Guide; the x86-64 psABI. Cache sizes and core counts are
those of ordinary machines of the family and only guide the choice of tiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from baregrad.base.errors import UnsupportedDevice

KIB = 1024
MIB = 1024 * 1024
# Of memory, as all of these machines have it unless asked for more.
PAGE_NBYTES = 4 * KIB
# Reads of that many bytes crowd a last cache however large it is.
CROWDING_BYTES = 16 * MIB


def crowding_bytes(l2_bytes: int, l3_bytes: int, cores: int) -> int:
    """Reads of how many bytes leave no room in caches for what is written at the same time.

    Those of half of the last cache, if they are more than all second caches hold. `l3_bytes` of 0
    is a size that is not known.
    """
    last = min(l3_bytes // 2, CROWDING_BYTES) if l3_bytes else CROWDING_BYTES
    return max(last, cores * l2_bytes)


@dataclass(frozen=True, slots=True)
class CpuTarget:
    """What a CPU kernel may assume about its machine.

    `vector_bytes` is the width of a vector register and `vector_registers` their number. With
    `fma`, a multiply-add is one instruction, of which `fma_per_cycle` start in a cycle and take
    `fma_latency` cycles: at least their product must be in flight. `masks` says whether loads and
    stores of part of a vector cost no more. Caches are in bytes; `l3_bytes` is shared by all cores.
    `rows_from_memory`: of how many rows at once a core reads an array from memory fastest, and
    writes one bypassing the caches; `asks_ahead`: whether it reads faster where lines are asked for
    ahead of time; `vector_bytes_from_memory`: in vectors of how many bytes, at most, a sum does.
    Stores to arrays of `streamed_bytes` bypass the caches even where the last one could hold them,
    and in kernels that work on row after row those to arrays of `streamed_row_bytes`.
    `slow_underflow`: whether arithmetic whose result is rounded to 0 takes a hundred times as long.
    `alone_ns`: what takes less is one chunk, since waking a thread costs some microseconds;
    `chunk_ns`: what a chunk takes at least. The rates are rough: `bytes_per_cycle` of the second
    cache, the third and memory, for one core; `panel_bytes_per_cycle` of the second one while the
    core computes, `image_bytes_per_cycle` of an image that it does not hold; `tile_step_ns` of a
    step of four tiles of a matrix unit; `l2_latency` the cycles until a line of it comes;
    `bytes_per_ns` and `vector_ops_per_ns` of simple kernels; `chunk_handout_ns` for each chunk,
    `wake_ns` once for the threads. `features` and `llvm_cpu` are LLVM's names of what the code
    uses; `needs` is the least of them, `extras` what it would use besides.
    """

    kind: ClassVar[Literal["cpu"]] = "cpu"
    name: str
    architecture: str
    llvm_cpu: str
    features: tuple[str, ...]
    needs: tuple[str, ...]
    extras: tuple[str, ...]
    vector_bytes: int
    vector_registers: int
    fma: bool
    fma_per_cycle: int
    fma_latency: int
    masks: bool
    l1_bytes: int = 32 * KIB
    l2_bytes: int = 512 * KIB
    l3_bytes: int = 16 * MIB
    line_bytes: int = 64
    cores: int = 1
    rows_from_memory: int = 4
    asks_ahead: bool = True
    vector_bytes_from_memory: int = 64
    streamed_bytes: int = 32 * MIB
    streamed_row_bytes: int = 32 * MIB
    slow_underflow: bool = True
    alone_ns: float = 30_000.0
    chunk_ns: float = 10_000.0
    cycles_per_ns: float = 2.5
    loads_per_cycle: float = 2.0
    bytes_per_cycle: tuple[float, float, float] = (32.0, 10.0, 4.0)
    panel_bytes_per_cycle: float = 26.0
    image_bytes_per_cycle: float = 8.0
    tile_step_ns: float = 40.0
    l2_latency: int = 20
    bytes_per_ns: float = 8.0
    vector_ops_per_ns: float = 3.0
    chunk_handout_ns: float = 300.0
    wake_ns: float = 4_000.0

    @property
    def converted_floats(self) -> tuple[str, ...]:
        """The narrow floats that the machine itself converts to float32 and back."""
        converts = self.architecture == "aarch64" or "f16c" in self.features
        return ("float16",) if converts else ()

    @property
    def widened_floats(self) -> tuple[str, ...]:
        """The narrow floats that the machine converts to float32 alone: none."""
        return ()

    @property
    def dot_instructions(self) -> tuple[str, ...]:
        """The instructions that add to a lane the products of four bytes, or of two bfloat16.

        The bytes of one factor are unsigned, those of the other signed.
        """
        return tuple([name for name in ("dot4", "dot2") if self.dot_lanes(name)])

    def dot_lanes(self, name: str) -> tuple[int, ...]:
        """Return on how many lanes at once the machine does one of `dot_instructions`."""
        if name == "dot2":
            return (4, 8, 16) if "avx512bf16" in self.features else ()
        if "avx512vnni" in self.features:
            return (4, 8, 16)
        return (4, 8) if "avxvnni" in self.features else ()

    @property
    def tile_instructions(self) -> tuple[str, ...]:
        """The instructions that multiply tiles of 16 rows of 64 bytes, of which there are eight.

        They want the system's leave: the features of a host are those that may be used.
        """
        if "amx-tile" not in self.features:
            return ()
        found = ("tdpbf16ps",) if "amx-bf16" in self.features else ()
        bytes_too = ("tdpbssd", "tdpbsud", "tdpbusd", "tdpbuud")
        return found + (bytes_too if "amx-int8" in self.features else ())

    @property
    def has_ldexp(self) -> bool:
        """Whether one instruction multiplies a lane by a power of two, subnormals included."""
        return bool(self.ldexp_bits)

    @property
    def ldexp_bits(self) -> tuple[int, ...]:
        """The bits of the registers that the instruction of `has_ldexp` takes, widest first."""
        if "avx512f" not in self.features:
            return ()
        return (512, 256, 128) if "avx512vl" in self.features else (512,)

    @property
    def has_lookup(self) -> bool:
        """Whether one instruction takes each lane from a table of 16 float32 in a register."""
        return "avx512f" in self.features

    @property
    def saturates(self) -> bool:
        """Whether one instruction converts lanes to integers with saturation, and NaN to 0."""
        return self.architecture == "aarch64"

    @property
    def fences_streams(self) -> bool:
        """Whether stores that bypass the caches are unordered until a fence."""
        return self.architecture == "x86_64"

    def masks_loads(self, itemsize: int) -> bool:
        """Return whether loads of elements of `itemsize` bytes can be masked."""
        return self.masks or (itemsize >= 4 and "avx" in self.features)

    def lanes(self, itemsize: int) -> int:
        """Return how many elements of `itemsize` bytes a vector register holds."""
        return self.vector_bytes // itemsize

    @property
    def key(self) -> str:
        """What compiled code depends on, as text for cache keys: not the cores or caches."""
        underflow = "" if self.slow_underflow else ":underflow"
        return f"{self.name}:{self.llvm_cpu}:{','.join(self.features)}{underflow}"


# What a row must have, and what its code uses besides where the host has it; neither list changes
# an answer's meaning, only how fast it comes.
_SSE_EXTRAS = ("sse3", "ssse3", "sse4.1", "sse4.2", "popcnt")
_AVX2_EXTRAS = (*_SSE_EXTRAS, "f16c", "bmi", "bmi2", "lzcnt", "movbe", "prfchw", "avxvnni")
_AVX512_EXTRAS = (
    *_AVX2_EXTRAS, "avx512cd", "avx512vnni", "avx512bf16", "avx512fp16",
    "amx-tile", "amx-bf16", "amx-int8",
)
_SSE2 = ("sse2",)
_AVX2 = ("sse2", "avx", "avx2", "fma")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512dq", "avx512vl")

# What Linux calls some of them in /proc/cpuinfo, and LLVM's name.
_SPELLINGS = (
    ("pni", "sse3"), ("bmi1", "bmi"), ("sse4_1", "sse4.1"), ("sse4_2", "sse4.2"),
    ("abm", "lzcnt"), ("3dnowprefetch", "prfchw"),
    ("avx512_bf16", "avx512bf16"), ("avx512_fp16", "avx512fp16"), ("avx512_vnni", "avx512vnni"),
    ("avx_vnni", "avxvnni"), ("asimd", "neon"), ("fp", "fp-armv8"), ("asimddp", "dotprod"),
    ("asimdhp", "fullfp16"), ("amx_tile", "amx-tile"), ("amx_bf16", "amx-bf16"),
    ("amx_int8", "amx-int8"),
)

# Widest first: the first row whose needs are all there is the one.
CPU_ROWS = (
    CpuTarget(
        "x86-64-avx512", "x86_64", "x86-64", _AVX512, _AVX512, _AVX512_EXTRAS,
        vector_bytes=64, vector_registers=32, fma=True, fma_per_cycle=2, fma_latency=4,
        masks=True, l2_bytes=1 * MIB, l3_bytes=32 * MIB, cores=8,
    ),
    CpuTarget(
        "x86-64-avx2", "x86_64", "x86-64", _AVX2, _AVX2, _AVX2_EXTRAS,
        vector_bytes=32, vector_registers=16, fma=True, fma_per_cycle=2, fma_latency=4,
        masks=False, cores=4,
    ),
    CpuTarget(
        "x86-64-sse2", "x86_64", "x86-64", _SSE2, _SSE2, _SSE_EXTRAS,
        vector_bytes=16, vector_registers=16, fma=False, fma_per_cycle=1, fma_latency=8,
        masks=False, l2_bytes=256 * KIB, l3_bytes=4 * MIB, cores=2,
    ),
    CpuTarget(
        "arm64-neon", "aarch64", "generic", ("neon",), ("neon",),
        ("fp-armv8", "dotprod", "fullfp16", "bf16"),
        vector_bytes=16, vector_registers=32, fma=True, fma_per_cycle=2, fma_latency=4,
        masks=False, l1_bytes=64 * KIB, l2_bytes=1 * MIB, cores=4,
    ),
)


# How cores read and write what is in memory, and what else differs between those of one width, by
# the system's name of their vendor. Intel's follow
# each page of a row by itself, so several rows have more lines under way, and stop at its end. A
# core of Zen 4 sums a matrix of 64 MiB in 2.7 ms row by row, and in 4.3 four rows at once; two that
# share a last cache take 1.41 ms in vectors of 64 bytes, and 1.34 in those of 32. x+1 of 16 MiB
# takes two of them 0.55 ms, and 0.61 where lines are asked for ahead of time; a layernorm of 16 MiB
# takes 0.91 ms by way of its caches, and 0.71 bypassing them, where an Intel core gains nothing. A
# VSCALEFPS of Zen 4 takes 2 cycles whatever comes out.
_VENDORS: MappingProxyType[str, Mapping[str, Any]] = MappingProxyType({
    "AuthenticAMD": MappingProxyType(
        {
            "rows_from_memory": 1,
            "asks_ahead": False,
            "vector_bytes_from_memory": 32,
            "streamed_row_bytes": 16 * MIB,
            "slow_underflow": False,
        }
    ),
})


def cpu_row(features: frozenset[str], vendor: str = "") -> CpuTarget:
    """Return the widest row that a machine with these features can run.

    `features` are spelled as LLVM or as Linux's /proc/cpuinfo spells them; the row's own
    `features` are then those of them that its code uses. `vendor` is as Linux spells it. Raises
    UnsupportedDevice where no row fits.
    """
    known = features.union(llvm for linux, llvm in _SPELLINGS if linux in features)
    for row in CPU_ROWS:
        if known.issuperset(row.needs):
            used = row.needs + tuple(name for name in row.extras if name in known)
            return replace(row, features=used, **_VENDORS.get(vendor, {}))
    raise UnsupportedDevice(
        "no row for this CPU",
        found=", ".join(sorted(features)) or "no features",
        wanted="; or ".join(f"{row.name}: {', '.join(row.needs)}" for row in CPU_ROWS[-2:]),
        hint="use the device REF, which needs NumPy alone",
    )


def cpu_row_named(name: str) -> CpuTarget:
    """Return the row called `name`; raise UnsupportedDevice where there is none."""
    for row in CPU_ROWS:
        if row.name == name:
            return row
    raise UnsupportedDevice(
        "unknown CPU row", found=name, wanted=", ".join(row.name for row in CPU_ROWS)
    )
