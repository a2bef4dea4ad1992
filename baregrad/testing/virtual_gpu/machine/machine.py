"""The virtual GPUs of one machine: what they are, their clocks and channels, and who runs next.

Work is divided into steps. Which of the steps that are ready is done next is drawn from a
seeded generator: only semaphores, waits for idle and the order within an engine hold, so a
wait that somebody forgot shows sooner or later, and the same seed shows it again.
"""

from __future__ import annotations

import functools
import logging
import random
from collections.abc import Callable

from baregrad.testing.virtual_gpu.machine.engine import EngineGpu, MachineState
from baregrad.testing.virtual_gpu.machine.faults import FaultReport, GpuFault
from baregrad.testing.virtual_gpu.machine.gpu_model import GpuModel
from baregrad.testing.virtual_gpu.machine.host import HardwareChannel

_log = logging.getLogger(__name__)

_FIRST_TOKEN = 0x0003_0001


class HardwareGpu(EngineGpu):
    """One GPU: its memory in use, its channels by token, its caches."""

    def __init__(self, machine: MachineState, index: int, model: GpuModel) -> None:
        super().__init__(machine, model)
        self.index = index
        self.classes = model.classes
        self.facts = model.facts()
        self.minor = index
        self.gpu_id = 0x700 + 0x100 * index
        self.uuid = bytes([0xBA, 0x5E, index]) + b"virtual-gpu-x"
        self.used_nbytes = 0
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


class HardwareMachine(MachineState):
    """GPUs and the order of their work; `seed` decides what chance decides."""

    def __init__(
        self,
        models: tuple[GpuModel, ...],
        seed: int,
        *,
        step_limit: int,
        stall: bool,
        check_unwritten: bool,
    ) -> None:
        super().__init__(step_limit, stall)
        self.random = random.Random(seed)
        self.check_unwritten = check_unwritten
        self.faults: list[FaultReport] = []
        self.gpus = tuple(HardwareGpu(self, index, model) for index, model in enumerate(models))

    # Work.

    def ready(self) -> list[Callable[[], None]]:
        """Return every step that could be done now."""
        found: list[Callable[[], None]] = []
        for gpu in self.gpus:
            for channel in gpu.channels.values():
                found += [
                    functools.partial(self._guard, gpu, channel, one) for one in channel.ready()
                ]
        return found

    def run(self, steps: int | None = None) -> bool:
        """Do that number of steps, or all that can be done; return whether any was."""
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

    def _guard(
        self, gpu: HardwareGpu, channel: HardwareChannel, step: Callable[[], None]
    ) -> None:
        try:
            step()
        except GpuFault as fault:
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
