"""The virtual GPUs of one machine: what they are, their clocks and channels, and who runs next.

Work is taken apart into steps. Which of the steps that could be done now is done next is drawn
from a seeded generator: only semaphores, waits for idle and the order within an engine hold, so a
wait that somebody forgot shows sooner or later, and the same seed shows it again.
"""

from __future__ import annotations

import functools
import logging
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from baregrad.base.errors import ArgumentError
from baregrad.runtime.nvidia.abi import numbers as nv
from baregrad.target.nvidia import NVIDIA_ROWS, NvidiaGeneration
from baregrad.testing.virtual_gpu.machine.compute import ComputeCaches
from baregrad.testing.virtual_gpu.machine.faults import FaultReport, GpuFault
from baregrad.testing.virtual_gpu.machine.host import HardwareChannel

_log = logging.getLogger(__name__)

_FIRST_TOKEN = 0x0003_0001
_LAUNCHES_KEPT = 4096
# Two of the graphics engine's runlist, two small ones, one with most, and some more small ones.
_COPY_ENGINES = (
    (0x63, 0x1), (0x63, 0x2), (0x62, 0x1), (0x62, 0x2), (0x70, 0xFFC),
    *((0x60, 0x1 << 12 + number) for number in range(5)),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A GPU to pretend: its architecture ("sm_90"), its memory in bytes, and its counts.

    `copy_engines` are the abilities (NV2080_CTRL_CE_CAPS) and the mask of physical engines of each,
    0 for one that is not there; `tells_copy_parts` whether an ordinary client is told the latter.
    """

    architecture: str = "sm_90"
    memory_nbytes: int = 16 << 30
    gpcs: int = 2
    tpcs_per_gpc: int = 2
    units_per_tpc: int = 2
    warps_per_unit: int = 64
    copy_engines: tuple[tuple[int, int], ...] = _COPY_ENGINES
    tells_copy_parts: bool = True

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


class HardwareGpu:
    """One GPU: its memory in use, its channels by token, its caches."""

    def __init__(self, machine: Machine, index: int, model: GpuModel) -> None:
        self.machine = machine
        self.index = index
        self.model = model
        self.row = model.generation
        self.classes = model.classes
        self.facts = model.facts()
        self.minor = index
        self.gpu_id = 0x700 + 0x100 * index
        self.uuid = bytes([0xBA, 0x5E, index]) + b"virtual-gpu-x"
        self.used_nbytes = 0
        self.caches = ComputeCaches()
        self.channels: dict[int, HardwareChannel] = {}
        self._next_token = _FIRST_TOKEN

    @property
    def node(self) -> str:
        """The path of its device node."""
        return f"/dev/nvidia{self.minor}"

    def add(self, channel: HardwareChannel) -> int:
        """Take in a channel and return its doorbell token."""
        token = self._next_token
        self._next_token += 1
        self.channels[token] = channel
        return token


class Machine:
    """GPUs and the order of their work; `seed` decides what chance decides.

    `step_limit` bounds the instructions of a block of a kernel. With `stall` a kernel that spends
    them never ends, as on hardware; otherwise its channel group is stopped with code 109.
    """

    def __init__(
        self,
        models: tuple[GpuModel, ...],
        seed: int,
        *,
        step_limit: int,
        stall: bool,
        check_unwritten: bool,
    ) -> None:
        self.random = random.Random(seed)
        self.step_limit = step_limit
        self.stall = stall
        self.check_unwritten = check_unwritten
        self.faults: list[FaultReport] = []
        self.launched: deque[str] = deque(maxlen=_LAUNCHES_KEPT)
        # How many grids began before the one in front had ended.
        self.begun_early = 0
        self.note: Callable[[str], None] | None = None
        self._last_ns = 0
        self.gpus = tuple(HardwareGpu(self, index, model) for index, model in enumerate(models))

    def time_ns(self) -> int:
        """Return the GPUs' clock, which never stands still between two looks."""
        self._last_ns = max(time.perf_counter_ns(), self._last_ns + 1)
        return self._last_ns

    # Work.

    def ready(self) -> list[Callable[[], None]]:
        """Return every step that could be done now."""
        found: list[Callable[[], None]] = []
        for gpu in self.gpus:
            for channel in gpu.channels.values():
                found += [functools.partial(self._guard, channel, one) for one in channel.ready()]
        return found

    def run(self, steps: int | None = None) -> bool:
        """Do so many steps, or all that can be done; return whether any was."""
        done = 0
        while steps is None or done < steps:
            ready = self.ready()
            if not ready:
                break
            (ready[0] if len(ready) == 1 else self.random.choice(ready))()
            done += 1
        return done > 0

    def pending(self) -> bool:
        """Return whether any channel has work, be it ready or waiting."""
        # Asked from beside the thread that makes and frees channels, so of a copy.
        return any(one.busy() for gpu in self.gpus for one in tuple(gpu.channels.values()))

    def _guard(self, channel: HardwareChannel, step: Callable[[], None]) -> None:
        try:
            step()
        except GpuFault as fault:
            gpu = channel.gpu
            token = next((key for key, one in gpu.channels.items() if one is channel), 0)
            line = (
                f"NVRM: Xid (PCI:0000:{gpu.gpu_id >> 8:02x}:00): {fault.code}, "
                f"Ch {token & 0xFFFF:08x}, {fault}"
            )
            self.faults.append(FaultReport(gpu.index, token, fault, line))
            _log.error("%s", line)
            if self.note is not None:
                self.note(line)
            channel.fault = fault
            channel.group.stop(fault.code, self.time_ns())
