"""Constant bank 0: what the launcher gives each kernel, and behind it the parameters.

Compiled code reads the shape of the launch, the addresses of the windows and its parameters from
fixed places of this bank, which moved with the generations. They were found by compiling kernels
that read one special register each (nvcc 13.0, sm_75 to sm_120) and looking at the machine code;
those of Hopper were filled in and read back on an H200.

The windows are ranges of generic addresses that lead to shared and local memory: two addresses that
the channel is set up with as well.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

from baregrad.base.errors import ArgumentError, UnsupportedError
from baregrad.runtime.nvidia.code.cubin import CubinKernel, Parameter
from baregrad.runtime.nvidia.code.local_memory import STACK_RESERVED, WINDOW_NBYTES

# Where stacks begin, counted from the begin of the window; they grow downwards.
STACK_TOP = WINDOW_NBYTES - STACK_RESERVED


@dataclass(frozen=True, slots=True)
class BankLayout:
    """Where a generation has each field: byte offsets by name, and where parameters begin.

    Fields are 32 bits wide but for those in `WIDE`; those in `TRIPLES` are three in a row.
    """

    name: str
    parameter_base: int
    offsets: Mapping[str, int]
    has_clusters: bool = False


TRIPLES = frozenset({"block", "grid", "cluster_shape", "cluster_reciprocal", "cluster_count"})
WIDE = frozenset(
    {"shared_window", "local_window", "grid_number", "memory_descriptor", "parameter_address"}
)

_TURING = MappingProxyType({
    "block": 0x00,
    "grid": 0x0C,
    "shared_window": 0x18,
    "local_window": 0x20,
    "stack_top": 0x28,
    "dynamic_shared_nbytes": 0x2C,
    "grid_number": 0x30,
    "unit_count": 0x10C,
})
BANK_TURING = BankLayout("turing", 0x160, _TURING)
BANK_AMPERE = BankLayout("ampere", 0x160, MappingProxyType({
    **_TURING,
    "reserved_shared_nbytes": 0x114,
    "memory_descriptor": 0x118,
}))
BANK_HOPPER = BankLayout("hopper", 0x210, MappingProxyType({
    **_TURING,
    "reserved_shared_nbytes": 0x114,
    "cluster_explicit": 0x140,
    "cluster_shape": 0x144,
    "cluster_reciprocal": 0x150,
    "cluster_count": 0x15C,
    "cluster_size": 0x188,
    "parameter_address": 0x198,
    "memory_descriptor": 0x208,
}), has_clusters=True)
# Code for Blackwell picks one of several copies of the cluster's fields by the size of the cluster;
# how many there are is not known, so only launches without clusters are offered.
BANK_BLACKWELL = BankLayout("blackwell", 0x380, MappingProxyType({
    "grid_number": 0x140,
    "reserved_shared_nbytes": 0x16C,
    "cluster_shape": 0x2A0,
    "dynamic_shared_nbytes": 0x2AC,
    "cluster_reciprocal": 0x2B0,
    "cluster_count": 0x2C0,
    "cluster_size": 0x2CC,
    "unit_count": 0x2D0,
    "shared_window": 0x2F0,
    "local_window": 0x2F8,
    "parameter_address": 0x348,
    "memory_descriptor": 0x358,
    "block": 0x360,
    "cluster_explicit": 0x36C,
    "grid": 0x370,
    "stack_top": 0x37C,
}))

BANK_LAYOUTS = (BANK_TURING, BANK_AMPERE, BANK_HOPPER, BANK_BLACKWELL)


@dataclass(frozen=True, slots=True)
class BankFacts:
    """What a launch gives its kernel; triples are (x, y, z), addresses the GPU's.

    `address` is where this bank lies. `grid` counts blocks, `block` threads; `cluster` is None for
    a launch without clusters. `reserved_shared_nbytes` is what the system takes of each block's
    shared memory, `unit_count` the number of multiprocessors.
    """

    address: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_window: int
    local_window: int
    cluster: tuple[int, int, int] | None = None
    dynamic_shared_nbytes: int = 0
    reserved_shared_nbytes: int = 0
    unit_count: int = 0
    grid_number: int = 0


def fill(kernel: CubinKernel, layout: BankLayout, facts: BankFacts) -> bytearray:
    """Return a kernel's bank 0 for one launch, parameters still zero.

    Raises UnsupportedError for clusters where there are none, ArgumentError where the kernel was
    compiled for another generation or another cluster.
    """
    if kernel.parameters and kernel.parameter_base != layout.parameter_base:
        raise ArgumentError(
            f"the kernel {kernel.name!r} was compiled for another generation than {layout.name}",
            found=f"parameters at {kernel.parameter_base:#x}",
            wanted=f"{layout.parameter_base:#x}",
        )
    _check_cluster(kernel, layout, facts)
    data = bytearray(kernel.bank_template)
    if len(data) < layout.parameter_base:
        data.extend(bytes(layout.parameter_base - len(data)))
    for name, value in _values(layout, facts).items():
        offset = layout.offsets.get(name)
        if offset is not None:
            struct.pack_into(_form(name), data, offset, *value)
    return data


def write_place(data: bytearray | memoryview, layout: BankLayout, address: int) -> None:
    """Tell a bank where it lies itself, once that is known."""
    offset = layout.offsets.get("parameter_address")
    if offset is not None:
        struct.pack_into("<Q", data, offset, address + layout.parameter_base)


def write_grid(
    data: bytearray | memoryview,
    layout: BankLayout,
    grid: tuple[int, int, int],
    cluster: tuple[int, int, int],
) -> None:
    """Tell a bank another grid; all else stays."""
    counts = tuple(a // b for a, b in zip(grid, cluster, strict=True))
    for name, value in (("grid", grid), ("cluster_count", counts)):
        offset = layout.offsets.get(name)
        if offset is not None:
            struct.pack_into("<3I", data, offset, *value)


def _form(name: str) -> str:
    if name == "cluster_reciprocal":
        return "<3f"
    return "<3I" if name in TRIPLES else "<Q" if name in WIDE else "<I"


def _check_cluster(kernel: CubinKernel, layout: BankLayout, facts: BankFacts) -> None:
    cluster = facts.cluster
    if cluster is None and kernel.cluster in (None, (1, 1, 1)):
        return
    if kernel.cluster is not None and cluster != kernel.cluster:
        raise ArgumentError(
            f"the kernel {kernel.name!r} was compiled for one size of cluster",
            found=cluster,
            wanted=kernel.cluster,
        )
    if not layout.has_clusters:
        raise UnsupportedError(
            f"launches with clusters are not offered on {layout.name}", found=cluster
        )


def _values(layout: BankLayout, facts: BankFacts) -> dict[str, tuple[float, ...]]:
    shape = facts.cluster or (1, 1, 1)
    counts = tuple(a // b for a, b in zip(facts.grid, shape, strict=True))
    return {
        "block": facts.block,
        "grid": facts.grid,
        "shared_window": (facts.shared_window,),
        "local_window": (facts.local_window,),
        "stack_top": (STACK_TOP,),
        "dynamic_shared_nbytes": (facts.dynamic_shared_nbytes,),
        "reserved_shared_nbytes": (facts.reserved_shared_nbytes,),
        "unit_count": (facts.unit_count,),
        "grid_number": (facts.grid_number,),
        # Loads and stores take a descriptor of memory from here; zero is the plain one.
        "memory_descriptor": (0,),
        "parameter_address": (facts.address + layout.parameter_base,),
        "cluster_explicit": (int(facts.cluster is not None),),
        "cluster_shape": shape,
        "cluster_reciprocal": tuple(reciprocal_above(size) for size in shape),
        "cluster_count": counts,
        "cluster_size": (prod(shape),),
    }


def reciprocal_above(size: int) -> float:
    """Return the least float32 that is not below 1/size.

    Code divides a block's index by the size of a cluster by multiplying with this and dropping the
    fraction; rounded down, the first block of a cluster would fall into the one before.
    """
    (bits,) = struct.unpack("<I", struct.pack("<f", 1.0 / size))
    value = _float32(bits)
    # The product of two float32 has 48 bits, so this comparison is exact.
    while value * size < 1.0:
        bits += 1
        value = _float32(bits)
    return value


def _float32(bits: int) -> float:
    value: float = struct.unpack("<f", struct.pack("<I", bits))[0]
    return value


def write_parameters(
    data: bytearray | memoryview, kernel: CubinKernel, values: Sequence[int | float | bytes]
) -> None:
    """Put a kernel's parameters into its bank.

    An integer fills its parameter, whether it is signed or not; a float is stored in 8, 4 or 2
    bytes; bytes are copied, and have the size of the parameter.
    """
    if len(values) != len(kernel.parameters):
        raise ArgumentError(
            f"the kernel {kernel.name!r} takes {len(kernel.parameters)} parameters",
            found=len(values),
        )
    for number, (parameter, value) in enumerate(zip(kernel.parameters, values, strict=True)):
        begin = kernel.parameter_base + parameter.offset
        try:
            data[begin : begin + parameter.nbytes] = _encoded(value, parameter)
        except (OverflowError, struct.error, KeyError, ValueError) as error:
            raise ArgumentError(
                f"parameter {number} of the kernel {kernel.name!r} does not fit",
                found=repr(value)[:80],
                wanted=f"{parameter.nbytes} bytes",
            ) from error


def _encoded(value: int | float | bytes, parameter: Parameter) -> bytes:
    if isinstance(value, bytes):
        if len(value) != parameter.nbytes:
            raise ValueError("the size is another")
        return value
    if isinstance(value, float):
        return struct.pack({8: "<d", 4: "<f", 2: "<e"}[parameter.nbytes], value)
    return value.to_bytes(parameter.nbytes, "little", signed=value < 0)
