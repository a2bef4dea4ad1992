"""What a virtual GPU pretends to be: its architecture, its memory and its counts."""

from __future__ import annotations

from dataclasses import dataclass

from baregrad.base.errors import ArgumentError
from baregrad.runtime.nvidia.abi import numbers as nv
from baregrad.target.nvidia import NVIDIA_ROWS, NvidiaGeneration

# Two of the graphics engine's runlist, two small ones, one with most, and some more small ones.
_COPY_ENGINES = (
    (0x63, 0x1), (0x63, 0x2), (0x62, 0x1), (0x62, 0x2), (0x70, 0xFFC),
    *((0x60, 0x1 << 12 + number) for number in range(5)),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A GPU to pretend: its architecture ("sm_90"), its memory in bytes, and its counts.

    `copy_engines` are the abilities (NV2080_CTRL_CE_CAPS) and the mask of physical engines of each,
    0 for one that is not there; `shows_copy_parts` whether an ordinary client sees the latter.
    """

    architecture: str = "sm_90"
    memory_nbytes: int = 16 << 30
    gpcs: int = 2
    tpcs_per_gpc: int = 2
    units_per_tpc: int = 2
    warps_per_unit: int = 64
    copy_engines: tuple[tuple[int, int], ...] = _COPY_ENGINES
    shows_copy_parts: bool = True

    @property
    def sm_version(self) -> int:
        """The compute capability, major << 8 | minor."""
        major, minor = divmod(int(self.architecture.removeprefix("sm_").rstrip("af")), 10)
        return major << 8 | minor

    @property
    def generation(self) -> NvidiaGeneration:
        """The row of its generation; raises ArgumentError for none."""
        for row in NVIDIA_ROWS:
            if self.sm_version in row.sm_versions:
                return row
        known = [version for row in NVIDIA_ROWS for version in row.sm_versions]
        raise ArgumentError(
            "no GPU of this architecture can be pretended",
            found=self.architecture,
            wanted=", ".join(f"sm_{(one >> 8) * 10 + (one & 255)}" for one in known),
        )

    @property
    def classes(self) -> tuple[int, ...]:
        """The classes of objects that the driver lists for it: older ones beside its own."""
        row = self.generation
        oldest = NVIDIA_ROWS[0]
        listed = (
            oldest.usermode_class, row.usermode_class, oldest.channel_class, row.channel_class,
            row.compute_class, oldest.copy_class, row.copy_class,
        )  # fmt: skip
        return tuple(dict.fromkeys(listed))

    def facts(self) -> dict[int, int]:
        """What it says of itself, by NV2080_CTRL_GR_INFO_INDEX."""
        return {
            nv.NV2080_CTRL_GR_INFO_INDEX_SM_VERSION: self.sm_version,
            nv.NV2080_CTRL_GR_INFO_INDEX_MAX_WARPS_PER_SM: self.warps_per_unit,
            nv.NV2080_CTRL_GR_INFO_INDEX_LITTER_NUM_GPCS: self.gpcs,
            nv.NV2080_CTRL_GR_INFO_INDEX_LITTER_NUM_TPC_PER_GPC: self.tpcs_per_gpc,
            nv.NV2080_CTRL_GR_INFO_INDEX_LITTER_NUM_SM_PER_TPC: self.units_per_tpc,
        }
