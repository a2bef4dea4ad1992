"""NVIDIA GPU generations as their driver sees them: one row each, from Turing to Blackwell.

Sources: the driver's class lists (open-gpu-kernel-modules 580.95.05,
`src/nvidia/generated/g_gpu_class_list.c`), the class headers (SDK `class/cl*.h`) and open-gpu-doc
`classes/`. Classes are numbers as in those headers.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from baregrad.base.errors import UnsupportedDevice


@dataclass(frozen=True, slots=True)
class NvidiaGeneration:
    """What differs between generations for whoever drives the GPU, not for its kernels.

    The `..._class` fields are the newest classes of the chip, which the driver also lists on newer
    chips beside theirs. `host_address_bits` bounds rings and semaphores of the host unit, and what
    it can fetch; `copy_payload_bits` what a copy engine's semaphore releases. `launch_descriptor`
    is the version of the launch descriptor; `launch_by_action` says whether kernels are launched by
    SEND_SIGNALING_PCAS2_B. `shared_sizes_kib` are the amounts of shared memory that a
    multiprocessor can be set up with, of which each block loses `shared_reserved_nbytes` to the
    system (CUDA C++ Programming Guide, compute capabilities); `counts_reserved` says whether a
    kernel's own shared memory in its cubin has these bytes already.
    """

    name: str
    chips: str
    sm_versions: tuple[int, ...]
    usermode_class: int
    channel_class: int
    compute_class: int
    copy_class: int
    launch_descriptor: tuple[int, int]
    launch_by_action: bool
    address_bits: int
    host_address_bits: int
    copy_payload_bits: int
    shared_sizes_kib: tuple[int, ...]
    shared_reserved_nbytes: int = 1024
    counts_reserved: bool = False


_TO_100 = (8, 16, 32, 64, 100)
_TO_164 = (8, 16, 32, 64, 100, 132, 164)
_TO_228 = (8, 16, 32, 64, 100, 132, 164, 196, 228)

# Oldest first: of the rows whose compute class a GPU lists, the last is its own.
NVIDIA_ROWS = (
    NvidiaGeneration(
        name="Turing",
        chips="TU10x",
        sm_versions=(0x705,),
        usermode_class=0xC461,
        channel_class=0xC46F,
        compute_class=0xC5C0,
        copy_class=0xC5B5,
        launch_descriptor=(2, 3),
        launch_by_action=False,
        address_bits=49,
        host_address_bits=40,
        copy_payload_bits=32,
        shared_sizes_kib=(32, 64),
        shared_reserved_nbytes=0,
    ),
    NvidiaGeneration(
        name="Ampere",
        chips="GA100",
        # The headers have no number for 8.0, and begin with 8.2.
        sm_versions=(0x800, 0x802),
        usermode_class=0xC561,
        channel_class=0xC56F,
        compute_class=0xC6C0,
        copy_class=0xC6B5,
        launch_descriptor=(3, 0),
        launch_by_action=True,
        address_bits=49,
        host_address_bits=40,
        copy_payload_bits=32,
        shared_sizes_kib=_TO_164,
    ),
    NvidiaGeneration(
        name="Ampere",
        chips="GA10x",
        sm_versions=(0x806,),
        usermode_class=0xC561,
        channel_class=0xC56F,
        compute_class=0xC7C0,
        copy_class=0xC7B5,
        launch_descriptor=(3, 0),
        launch_by_action=True,
        address_bits=49,
        host_address_bits=40,
        copy_payload_bits=64,
        shared_sizes_kib=_TO_100,
    ),
    NvidiaGeneration(
        name="Ada",
        chips="AD10x",
        sm_versions=(0x809,),
        usermode_class=0xC561,
        channel_class=0xC56F,
        compute_class=0xC9C0,
        copy_class=0xC7B5,
        launch_descriptor=(3, 0),
        launch_by_action=True,
        address_bits=49,
        host_address_bits=40,
        copy_payload_bits=64,
        shared_sizes_kib=_TO_100,
    ),
    NvidiaGeneration(
        name="Hopper",
        chips="GH100",
        sm_versions=(0x900,),
        usermode_class=0xC661,
        channel_class=0xC86F,
        compute_class=0xCBC0,
        copy_class=0xC8B5,
        launch_descriptor=(4, 0),
        launch_by_action=True,
        address_bits=57,
        host_address_bits=57,
        copy_payload_bits=64,
        shared_sizes_kib=_TO_228,
        counts_reserved=True,
    ),
    NvidiaGeneration(
        name="Blackwell",
        chips="GB100, GB102, GB110, GB112, GB10B",
        sm_versions=(0xA00, 0xA01, 0xA03),
        usermode_class=0xC661,
        channel_class=0xC96F,
        compute_class=0xCDC0,
        copy_class=0xC9B5,
        launch_descriptor=(5, 0),
        launch_by_action=True,
        address_bits=57,
        host_address_bits=57,
        copy_payload_bits=64,
        shared_sizes_kib=_TO_228,
        counts_reserved=True,
    ),
    NvidiaGeneration(
        name="Blackwell",
        chips="GB20x, GB20B, GB20C",
        sm_versions=(0xA04, 0xC00, 0xC01),
        usermode_class=0xC761,
        channel_class=0xCA6F,
        compute_class=0xCEC0,
        copy_class=0xCAB5,
        launch_descriptor=(5, 0),
        launch_by_action=True,
        address_bits=57,
        host_address_bits=57,
        copy_payload_bits=64,
        shared_sizes_kib=_TO_100,
        counts_reserved=True,
    ),
)


def nvidia_row(classes: Collection[int]) -> NvidiaGeneration:
    """Return the generation of a GPU whose driver lists these classes.

    Raises UnsupportedDevice for one older than Turing, or newer than every row.
    """
    for row in reversed(NVIDIA_ROWS):
        wanted = (row.usermode_class, row.channel_class, row.compute_class, row.copy_class)
        if all(number in classes for number in wanted):
            return row
    # A compute class ends in C0 and grows with the generation.
    compute = sorted(number for number in classes if number & 0xFF == 0xC0)
    raise UnsupportedDevice(
        "the GPU is of a generation that this version does not drive",
        found="compute classes " + (", ".join(f"{number:#06x}" for number in compute) or "none"),
        wanted=", ".join(dict.fromkeys(row.name for row in NVIDIA_ROWS)),
    )
