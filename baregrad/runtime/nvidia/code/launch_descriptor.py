"""Launch descriptors: one grid of a kernel in the structure that the compute engine reads.

`GridLaunch` says it in plain values; `encode` and `decode` translate by the table of one version,
so what is written is what is read. Sources of the bits: see descriptor_fields.py; values of the
enumerations are from the same headers. That a grid of clusters is counted in clusters was seen on
an H200.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from baregrad.base.bits import round_up
from baregrad.base.errors import ArgumentError, FileFormatError, UnsupportedError
from baregrad.runtime.nvidia.code.descriptor_fields import DescriptorLayout

ALIGNMENT = 256
MAX_THREADS = 1024

Values = dict[tuple[str, int], int]

_KIND_BLOCKS, _KIND_CLUSTERS = 2, 3
_GROUP_NONE = 0x3F
# What a grid waits for before it counts as done: nothing, its writes seen by all of the machine, or
# by all of the GPU (QMD CWD_MEMBAR_TYPE, clcbc0qmd.h).
BARRIER_NONE, BARRIER_SYSTEM, BARRIER_GPU = 0, 1, 3
_ACTION_SCHEDULE = 1
_FOUR_WORDS, _TWO_WORDS = 0, 2
_MAX_PREFETCH = 0x1FF << 8
_AXES = ("width", "height", "depth")
# Set in every launch, where the version has them.
_ALWAYS = (
    ("group", _GROUP_NONE),
    ("global_caching", 1),
    ("no_call_limit", 1),
    ("sampler_by_header", 1),
)
_TEXTURES = ("invalidate_texture_header", "invalidate_sampler")
_FETCHED = "invalidate_texture_data"
_DATA = "invalidate_shader_data"


@dataclass(frozen=True, slots=True)
class Manners:
    """What a grid does beside running: which caches it drops first, and its barrier at the end.

    `data` is what earlier kernels left in the caches of the multiprocessors, `fetched` what they
    read there as constant (`ld.global.nc`, textures); a kernel that reads what others wrote since
    needs both dropped. `textures` are descriptors of textures and samplers. `banks` are constants,
    whose memory may have held others that are still in the cache. Code is dropped by the channel.
    """

    textures: bool = True
    fetched: bool = True
    data: bool = True
    banks: bool = True
    barrier: int = BARRIER_SYSTEM


THOROUGH = Manners()


@dataclass(frozen=True, slots=True)
class Bank:
    """A constant bank: its number, where it lies, its bytes (rounded up to 16)."""

    number: int
    address: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class SemaphoreRelease:
    """A 64-bit value stored when the grid has finished and its writes are seen by all.

    With `timestamp`, the GPU's time in nanoseconds follows it: 16 bytes, aligned to 16, else 8.
    With `barrier`, all writes of the grid are seen by the whole machine first.
    """

    address: int
    value: int
    timestamp: bool = True
    barrier: bool = True


@dataclass(frozen=True, slots=True)
class SharedConfig:
    """How much shared memory a multiprocessor is set up with, in KiB: least, most, wished for."""

    least_kib: int
    most_kib: int
    target_kib: int


@dataclass(frozen=True, slots=True)
class GridLaunch:
    """One grid. Addresses are the GPU's; triples are (x, y, z).

    `grid` counts blocks, `block` threads, `cluster` blocks. `shared_nbytes` is what one block takes
    in all, what the system reserves included (see cubin.py). `local_nbytes` is what one thread has.
    `instruction_set` is 16 times the major and the minor compute capability, 0x90 on Hopper.
    `program_nbytes` is how much code to fetch ahead. `next_address` is the descriptor to launch
    after this one, 0 for none.
    """

    program_address: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    register_count: int
    shared_nbytes: int
    shared_config: SharedConfig
    instruction_set: int
    banks: tuple[Bank, ...]
    barrier_count: int = 1
    local_nbytes: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)
    program_nbytes: int = 0
    releases: tuple[SemaphoreRelease, ...] = ()
    next_address: int = 0
    manners: Manners = THOROUGH

    def __post_init__(self) -> None:
        blocks, threads = self.grid, self.block
        if min(blocks) < 1 or min(threads) < 1 or min(self.cluster) < 1:
            raise ArgumentError(
                "a launch has no empty axes", found=f"grid {blocks}, block {threads}"
            )
        if threads[0] * threads[1] * threads[2] > MAX_THREADS:
            raise ArgumentError(
                "a block has too many threads", found=threads, wanted=f"at most {MAX_THREADS}"
            )
        if any(count % size for count, size in zip(blocks, self.cluster, strict=True)):
            raise ArgumentError(
                "a grid is not made of whole clusters",
                found=f"grid {blocks}, cluster {self.cluster}",
            )
        if len({bank.number for bank in self.banks}) != len(self.banks):
            raise ArgumentError("a launch binds a constant bank twice", found=self.banks)

    def with_local(self, nbytes: int) -> GridLaunch:
        """Return the launch with another size of each thread's local memory."""
        return dataclasses.replace(self, local_nbytes=nbytes)


def carve_out_code(kib: int) -> int:
    """Return the code of a multiprocessor set up with `kib` KiB of shared memory."""
    return kib // 4 + 1


def choose_shared_config(
    nbytes: int, sizes_kib: tuple[int, ...], blocks: int = 1, least: int = 1
) -> SharedConfig:
    """Return the set-up for `blocks` blocks of `nbytes` at once, of the chip's `sizes_kib`.

    The target is what all need, or the most there is; the least is what `least` of them need, which
    a launch has for each multiprocessor: one that is set up for fewer would stay so for all of the
    launch. Raises ArgumentError where one block has no room.
    """
    sizes = sorted(sizes_kib)
    fitting = [size for size in sizes if size * 1024 >= nbytes]
    if not fitting:
        raise ArgumentError(
            "a block needs more shared memory than a multiprocessor has",
            found=f"{nbytes} bytes",
            wanted=f"at most {sizes[-1] * 1024}",
        )

    def room(count: int) -> int:
        return next((size for size in fitting if size * 1024 >= nbytes * count), fitting[-1])

    return SharedConfig(room(min(least, blocks)), sizes[-1], room(blocks))


def encode(launch: GridLaunch, layout: DescriptorLayout) -> bytearray:
    """Return the descriptor of a launch in one version of the structure.

    Raises ArgumentError for a value that does not fit, UnsupportedError for what the version lacks.
    """
    values: Values = {("major_version", 0): layout.version[0]}
    values["minor_version", 0] = layout.version[1]
    for name, value in (*_ALWAYS, *_manners(launch.manners)):
        if name in layout.fields:
            values[name, 0] = value
    for triple, name in ((grid_units(launch, layout), "grid"), (launch.block, "block")):
        for axis, extent in zip(_AXES, triple, strict=True):
            values[f"{name}_{axis}", 0] = extent
    values |= _program(launch) | _shared(launch, layout) | _cluster(launch, layout)
    values |= _banks(launch, layout) | _releases(launch.releases, layout)
    return layout.encode(values | _next(launch.next_address, layout))


def write_grid_units(
    data: bytearray | memoryview, launch: GridLaunch, layout: DescriptorLayout
) -> None:
    """Change the grid to that of `launch`."""
    for axis, extent in zip(_AXES, grid_units(launch, layout), strict=True):
        layout.write(data, f"grid_{axis}", extent)


def release_payload_offset(layout: DescriptorLayout) -> int:
    """Return the byte at which the value of the first release begins."""
    ((low, _),) = layout.fields["release_payload"].pieces(0)
    return low // 8


def write_release(
    data: bytearray | memoryview, release: SemaphoreRelease, layout: DescriptorLayout
) -> None:
    """Have a launch that releases nothing yet release something."""
    for (name, index), value in _releases((release,), layout).items():
        layout.write(data, name, value, index)


def progress_flags(
    layout: DescriptorLayout, *, stamped: bool = False
) -> tuple[tuple[int, int], ...]:
    """Return what a launch has set that writes 64 bits when it is done, beside its release.

    Nothing waits for them. With `stamped` the time follows them. It comes as bits to set in bytes:
    (offset, bits). Raises UnsupportedError where the version has no such release.
    """
    words = _FOUR_WORDS if stamped else _TWO_WORDS
    names = {"release_enable": 1, "release_wide": 1, "release_words": words}
    return _bits({(name, 1): value for name, value in names.items()}, layout)


def write_latch(
    data: bytearray | memoryview, layout: DescriptorLayout, latch: int, *, waits: bool
) -> None:
    """Have a launch let the next one begin early, or with `waits` be the one that does.

    The kernel that begins early waits by `griddepcontrol.wait` before it touches memory. Raises
    UnsupportedError where the version has no latches.
    """
    name = "wait_latch" if waits else "arrive_latch"
    values = {f"{name}_valid": 1, name: latch}
    if waits:
        values |= {"latch_drops_data": 1, "latch_drops_fetched": 1}
    else:
        values |= {"early_exit": 1, "early_exit_at_launch": 1}
    for field_name, value in values.items():
        layout.write(data, field_name, value)


def write_kept(data: bytearray | memoryview, layout: DescriptorLayout) -> None:
    """Have a launch drop no cached data when it begins."""
    for name in (_FETCHED, _DATA):
        layout.write(data, name, 0)


def write_local(data: bytearray, nbytes: int, layout: DescriptorLayout) -> None:
    """Change the local memory of each thread."""
    layout.write(data, "local_high_nbytes", round_up(nbytes, 16))


def next_flags(layout: DescriptorLayout) -> tuple[tuple[int, int], ...]:
    """Return what a launch that is followed by another has set beside the address of that one.

    It comes as bits to set in bytes: (offset, bits).
    """
    values = {key: value for key, value in _next(256, layout).items() if key[0] != "next_address"}
    return _bits(values, layout)


def _bits(values: Values, layout: DescriptorLayout) -> tuple[tuple[int, int], ...]:
    data = layout.encode(values)
    return tuple((offset, bits) for offset, bits in enumerate(data) if bits)


def grid_units(launch: GridLaunch, layout: DescriptorLayout) -> tuple[int, int, int]:
    """Return what the descriptor's grid counts: clusters where there are some, else blocks."""
    if "grid_kind" not in layout.fields:
        return launch.grid
    x, y, z = (a // b for a, b in zip(launch.grid, launch.cluster, strict=True))
    return x, y, z


def _manners(manners: Manners) -> tuple[tuple[str, int], ...]:
    textures = tuple((name, int(manners.textures)) for name in _TEXTURES)
    barrier = ("completion_barrier", manners.barrier)
    data = ((_FETCHED, int(manners.fetched)), (_DATA, int(manners.data)))
    return (*textures, *data, barrier)


def _program(launch: GridLaunch) -> Values:
    values: Values = {
        ("program_address", 0): launch.program_address,
        ("register_count", 0): launch.register_count,
        ("barrier_count", 0): launch.barrier_count,
        ("local_high_nbytes", 0): round_up(launch.local_nbytes, 16),
        ("instruction_set", 0): launch.instruction_set,
    }
    if launch.program_nbytes >= 256:
        values["prefetch_address", 0] = launch.program_address & ~255
        values["prefetch_nbytes", 0] = min(launch.program_nbytes & ~255, _MAX_PREFETCH)
    return values


def _shared(launch: GridLaunch, layout: DescriptorLayout) -> Values:
    config = launch.shared_config
    if launch.shared_nbytes > config.least_kib * 1024:
        raise ArgumentError(
            "a block does not fit the least shared memory that it is launched with",
            found=f"{launch.shared_nbytes} bytes",
            wanted=f"at most {config.least_kib} KiB",
        )
    return {
        ("shared_nbytes", 0): round_up(launch.shared_nbytes, 128),
        ("shared_config_min", 0): carve_out_code(config.least_kib),
        ("shared_config_max", 0): carve_out_code(config.most_kib),
        ("shared_config_target", 0): carve_out_code(config.target_kib),
    }


def _cluster(launch: GridLaunch, layout: DescriptorLayout) -> Values:
    clustered = launch.cluster != (1, 1, 1)
    if "grid_kind" not in layout.fields:
        if clustered:
            raise UnsupportedError("this GPU has no clusters of blocks", found=launch.cluster)
        return {}
    if not clustered:
        return {("grid_kind", 0): _KIND_BLOCKS}
    sizes = zip(_AXES, launch.cluster, strict=True)
    values = {(f"cluster_{axis}", 0): size for axis, size in sizes}
    return {("grid_kind", 0): _KIND_CLUSTERS} | values


def _banks(launch: GridLaunch, layout: DescriptorLayout) -> Values:
    values: Values = {}
    for bank in launch.banks:
        if bank.address % layout.bank_alignment:
            raise ArgumentError(
                f"constant bank {bank.number} is not aligned",
                found=f"{bank.address:#x}",
                wanted=f"a multiple of {layout.bank_alignment}",
            )
        values["bank_valid", bank.number] = 1
        values["bank_invalidate", bank.number] = int(launch.manners.banks)
        values["bank_address", bank.number] = bank.address
        values["bank_nbytes", bank.number] = round_up(bank.nbytes, 16)
    return values


def _releases(releases: tuple[SemaphoreRelease, ...], layout: DescriptorLayout) -> Values:
    values: Values = {}
    for index, release in enumerate(releases):
        grain = 16 if release.timestamp else 8
        if release.address % grain:
            raise ArgumentError(
                "a release is not aligned",
                found=f"{release.address:#x}",
                wanted=f"a multiple of {grain}",
            )
        values["release_enable", index] = 1
        values["release_address", index] = release.address
        values["release_payload", index] = release.value
        if "release_wide" in layout.fields:
            values["release_wide", index] = 1
            values["release_words", index] = _FOUR_WORDS if release.timestamp else _TWO_WORDS
            values["release_barrier", index] = int(release.barrier)
        elif release.timestamp:
            # Turing has 32-bit payloads and one barrier for all.
            values["release_words", index] = _FOUR_WORDS
            values["release_barrier", 0] = int(release.barrier)
        else:
            raise UnsupportedError("this GPU releases 64 bits with a timestamp only")
    return values


def _next(address: int, layout: DescriptorLayout) -> Values:
    if not address:
        return {}
    values: Values = {("next_address", 0): address, ("next_enable", 0): 1}
    if "next_action" in layout.fields:
        return values | {("next_action", 0): _ACTION_SCHEDULE, ("next_prefetch", 0): 1}
    return values | {("next_is_grid", 0): 1}


def decode(data: bytes | bytearray | memoryview, layout: DescriptorLayout) -> GridLaunch:
    """Return the launch that a descriptor describes, sizes as they were rounded.

    Raises FileFormatError for a descriptor of another version, or one that launches nothing.
    """
    values = layout.decode(data)

    def value(name: str, index: int = 0) -> int:
        return values.get((name, index), 0)

    kind = value("grid_kind") if "grid_kind" in layout.fields else _KIND_BLOCKS
    if kind not in (_KIND_BLOCKS, _KIND_CLUSTERS):
        raise FileFormatError("a launch descriptor is of no known kind", found=kind)
    cluster = _triple(values, "cluster") if kind == _KIND_CLUSTERS else (1, 1, 1)
    x, y, z = (a * b for a, b in zip(_triple(values, "grid"), cluster, strict=True))
    codes = (value(f"shared_config_{name}") for name in ("min", "max", "target"))
    try:
        return GridLaunch(
            program_address=value("program_address"),
            grid=(x, y, z),
            block=_triple(values, "block"),
            register_count=value("register_count"),
            shared_nbytes=value("shared_nbytes"),
            shared_config=SharedConfig(*(max(code - 1, 0) * 4 for code in codes)),
            instruction_set=value("instruction_set"),
            banks=tuple(
                Bank(number, value("bank_address", number), value("bank_nbytes", number))
                for number in range(layout.fields["bank_valid"].count)
                if value("bank_valid", number)
            ),
            barrier_count=value("barrier_count"),
            local_nbytes=value("local_high_nbytes") + value("local_low_nbytes"),
            cluster=cluster,
            program_nbytes=value("prefetch_nbytes"),
            releases=tuple(
                SemaphoreRelease(
                    value("release_address", index),
                    value("release_payload", index),
                    value("release_words", index) == _FOUR_WORDS,
                )
                for index in range(layout.fields["release_enable"].count)
                if value("release_enable", index)
            ),
            next_address=value("next_address") if value("next_enable") else 0,
            manners=Manners(
                textures=bool(value(_TEXTURES[0])),
                fetched=bool(value(_FETCHED)),
                data=bool(value(_DATA)),
                banks=all(
                    value("bank_invalidate", number)
                    for number in range(layout.fields["bank_valid"].count)
                    if value("bank_valid", number)
                ),
                barrier=value("completion_barrier"),
            ),
        )
    except ArgumentError as error:
        raise FileFormatError(f"a launch descriptor launches nothing ({error})") from error


def _triple(values: Mapping[tuple[str, int], int], name: str) -> tuple[int, int, int]:
    x, y, z = (values.get((f"{name}_{axis}", 0), 0) for axis in _AXES)
    return x, y, z
