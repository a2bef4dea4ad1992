"""Which struct a driver release uses: a tree of releases, each with what changed since its parent.

A branch of the driver is cut from its predecessor before that one's last release, so a change made
late in a branch may be missing from the first releases of the next: each release names its parent.
Checked against the published headers by `check_headers`: all 129 tags from 535.54.03 to 595.45.04.
Release 610.43.02 publishes none; its one change is that of gvisor's nvproxy (version.go:1155).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from baregrad.base.errors import DriverError
from baregrad.runtime.nvidia.abi import rm_structs as rm
from baregrad.runtime.nvidia.abi import status_structs as status
from baregrad.runtime.nvidia.abi import uvm_structs as uvm
from baregrad.runtime.nvidia.abi.layout import Struct

Version = tuple[int, ...]

_VERSION = re.compile(r"(\d{3,})\.(\d+)(?:\.(\d+))?")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Release:
    """The structs of one driver release, by our names for what they are for."""

    version: Version
    structs: Mapping[str, Struct] = field(repr=False)

    def __getitem__(self, name: str) -> Struct:
        return self.structs[name]


# What every release has that changes nothing.
_ROOT: Mapping[str, Struct] = MappingProxyType({
    "free": rm.FREE,
    "alloc": rm.ALLOC,
    "control": rm.CONTROL,
    "alloc_memory": rm.ALLOC_MEMORY,
    "map_memory": rm.MAP_MEMORY,
    "unmap_memory": rm.UNMAP_MEMORY,
    "card_info": rm.CARD_INFO,
    "register_fd": rm.REGISTER_FD,
    "device": rm.DEVICE,
    "subdevice": rm.SUBDEVICE,
    "va_space": rm.VA_SPACE,
    "memory": rm.MEMORY,
    "channel_group": rm.CHANNEL_GROUP,
    "context_share": rm.CONTEXT_SHARE,
    "channel": rm.CHANNEL_304,
    "copy_engine": rm.COPY_ENGINE,
    "all_copy_caps": rm.ALL_COPY_CAPS_68,
    "parts_of_copy_engine": rm.PARTS_OF_COPY_ENGINE,
    "debugger": rm.DEBUGGER,
    "build_version": rm.BUILD_VERSION_776,
    "id_info": rm.ID_INFO,
    "class_list": rm.CLASS_LIST,
    "gid_info": rm.GID_INFO,
    "gr_info_list": rm.GR_INFO_LIST,
    "gr_info": rm.GR_INFO,
    "fb_info_list": rm.FB_INFO_LIST,
    "fb_info": rm.FB_INFO,
    "mmu_fault": rm.MMU_FAULT,
    "work_submit_token": rm.WORK_SUBMIT_TOKEN,
    "schedule": rm.SCHEDULE_2,
    "notification": rm.NOTIFICATION,
    "name_string": status.NAME_STRING_132,
    "bus_info_list": status.BUS_INFO_LIST,
    "bus_info": status.BUS_INFO,
    "bios_info_list": status.BIOS_INFO_LIST,
    "bios_info": status.BIOS_INFO,
    "gpu_info": status.GPU_INFO_64,
    "compute_mode": status.COMPUTE_MODE,
    "ecc_configuration": status.ECC_CONFIGURATION,
    "error_count": status.ERROR_COUNT,
    "processes": status.PROCESSES,
    "process": status.PROCESS,
    "nvlinks": status.NVLINKS_5896,
    "uvm_initialize": uvm.INITIALIZE,
    "uvm_mm_initialize": uvm.MM_INITIALIZE,
    "uvm_register_gpu": uvm.REGISTER_GPU,
    "uvm_unregister_gpu": uvm.UNREGISTER_GPU,
    "uvm_register_gpu_vaspace": uvm.REGISTER_GPU_VASPACE,
    "uvm_unregister_gpu_vaspace": uvm.UNREGISTER_GPU_VASPACE,
    "uvm_register_channel": uvm.REGISTER_CHANNEL,
    "uvm_unregister_channel": uvm.UNREGISTER_CHANNEL_28,
    "uvm_enable_peer_access": uvm.ENABLE_PEER_ACCESS,
    "uvm_create_external_range": uvm.CREATE_EXTERNAL_RANGE,
    "uvm_map_external": uvm.MAP_EXTERNAL_1200,
    "uvm_unmap_external": uvm.UNMAP_EXTERNAL,
    "uvm_free": uvm.FREE_24,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Node:
    """A release at which something changed, the release that it descends from, and the changes."""

    version: Version
    parent: Version | None
    changes: Mapping[str, Struct]


_TREE = (
    _Node((535, 54, 3), None, _ROOT),
    _Node((535, 86, 5), (535, 54, 3), {"channel": rm.CHANNEL_360}),
    _Node(
        (545, 23, 6),
        (535, 86, 5),
        {
            "memory": rm.MEMORY_128, "all_copy_caps": rm.ALL_COPY_CAPS,
            "gpu_info": status.GPU_INFO_65, "shared_data": status.SHARED_DATA,
            "shared_data_poll": status.SHARED_DATA_POLL,
        },
    ),
    _Node(
        (550, 40, 53),
        (545, 23, 6),
        {
            "uvm_map_external": uvm.MAP_EXTERNAL_9264,
            "performance_state": status.PERFORMANCE_STATE,
        },
    ),
    _Node((555, 42, 2), (550, 40, 53), {"nvlinks": status.NVLINKS_6152}),
    _Node((560, 28, 3), (555, 42, 2), {"build_version": rm.BUILD_VERSION}),
    _Node(
        (565, 57, 1),
        (560, 28, 3),
        {"recovery_action": status.RECOVERY_ACTION, "ecc_counts": status.ECC_COUNTS},
    ),
    _Node(
        (570, 86, 15), (565, 57, 1),
        {"channel": rm.CHANNEL_368, "nvlinks": status.NVLINKS_13320},
    ),
    _Node(
        (575, 51, 2),
        (570, 86, 15),
        {
            "schedule": rm.SCHEDULE_3, "thermal": status.THERMAL,
            "gpu_info": status.GPU_INFO_66,
        },
    ),
    _Node(
        (580, 65, 6),
        (575, 51, 2),
        {
            "va_space": rm.VA_SPACE_56, "gpu_info": status.GPU_INFO_70,
            "nvlinks": status.NVLINKS_13344,
        },
    ),
    _Node(
        (590, 44, 1),
        (580, 65, 6),
        {
            "uvm_free": uvm.FREE_16, "uvm_unregister_channel": uvm.UNREGISTER_CHANNEL_12,
            "nvlinks": status.NVLINKS_13864,
        },
    ),
    _Node((595, 44, 2), (590, 44, 1), {"name_string": status.NAME_STRING_68}),
    _Node((610, 43, 2), (595, 44, 2), {"channel": rm.CHANNEL_376}),
)

OLDEST: Version = (535, 54, 3)
# The newest branch whose structs we know; a later one is taken for its equal, with a warning.
NEWEST_BRANCH = 610


def parse_version(text: str) -> Version:
    """Return `580.159.04` as numbers; raise DriverError for what is no release."""
    match = _VERSION.match(text.strip())
    if match is None:
        raise DriverError("the driver's version cannot be read", found=repr(text))
    return tuple(int(part) for part in match.groups(default="0"))


def version_text(version: Version) -> str:
    """Return a version as the vendor writes it: two digits at least in each part."""
    return ".".join(f"{part:02d}" for part in version)


def nodes() -> Mapping[Version, Release]:
    """Return every release of the tree with all its structs."""
    made: dict[Version, Release] = {}
    for node in _TREE:
        inherited = {} if node.parent is None else made[node.parent].structs
        made[node.version] = Release(node.version, {**inherited, **node.changes})
    return made


def release_for(text: str) -> Release:
    """Return the structs of the driver release `text`: those of the nearest one not newer.

    Warns where the release is of a branch newer than any that was checked; raises DriverError for
    one older than 535.54.03.
    """
    version = parse_version(text)
    if version < OLDEST:
        raise DriverError(
            "the NVIDIA kernel driver is too old",
            found=text,
            wanted=f"{version_text(OLDEST)} or newer",
            hint="install a newer driver",
        )
    releases = nodes()
    nearest = max(known for known in releases if known <= version)
    if version[0] > NEWEST_BRANCH:
        _log.warning(
            "the NVIDIA driver %s is newer than any that is known; taking it for %s",
            text,
            version_text(nearest),
        )
    return Release(version, releases[nearest].structs)
