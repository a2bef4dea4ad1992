"""What an engine of a virtual GPU works with: a channel, its GPU, and the machine's state.

The host unit, above the engines, makes the channels; the machine, above that, makes the GPUs.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Protocol

from baregrad.assemble.virtual_cubin import read_code
from baregrad.testing.virtual_gpu.machine.gpu_model import GpuModel
from baregrad.testing.virtual_gpu.machine.memory import AddressSpace
from baregrad.testing.virtual_gpu.ptx.program import PtxKernel, PtxModule

# When to go on: the host unit's program yields it whenever somebody else may come first.
Condition = Callable[[], bool]
Steps = Generator[Condition, None, None]

_LAUNCHES_KEPT = 4096


def always() -> bool:
    """Return True: the condition of a step that waits for nothing."""
    return True


class EngineWork(Protocol):
    """Something that an engine does after the host unit has gone on."""

    ordered: bool
    stuck: bool

    def run(self) -> bool:
        """Do a part; return whether all is done."""
        ...


class Engine(Protocol):
    """An engine as one channel sees it."""

    def method(self, address: int, data: int) -> Steps:
        """Take one method."""
        ...


@dataclass(eq=False)
class ComputeCaches:
    """What a GPU remembers: kernels and descriptors and constants by address, kernels by text."""

    code: dict[int, PtxKernel] = field(default_factory=dict)
    descriptors: dict[int, bytes] = field(default_factory=dict)
    constants: dict[tuple[int, int], bytes] = field(default_factory=dict)
    parsed: dict[bytes, PtxKernel] = field(default_factory=dict)

    def kernel(self, code: bytes) -> PtxKernel:
        """Return the kernel of some code; raise a BaregradError where it has none."""
        digest = hashlib.blake2b(code, digest_size=16).digest()
        found = self.parsed.get(digest)
        if found is None:
            name, text = read_code(code)
            found = self.parsed[digest] = PtxModule.parse(text).kernel(name)
        return found


class MachineState:
    """What all engines of a machine share: a clock, the limits of kernels and what was launched.

    `step_limit` bounds the instructions of a block of a kernel. With `stall` a kernel that spends
    them never ends, as on hardware; otherwise its channel group is stopped with code 109.
    """

    def __init__(self, step_limit: int, stall: bool) -> None:
        self.step_limit = step_limit
        self.stall = stall
        self.launched: deque[str] = deque(maxlen=_LAUNCHES_KEPT)
        # How many grids began before the one in front had ended.
        self.begun_early = 0
        self.note: Callable[[str], None] | None = None
        self._last_ns = 0

    def time_ns(self) -> int:
        """Return the GPUs' clock, which never stands still between two looks."""
        self._last_ns = max(time.perf_counter_ns(), self._last_ns + 1)
        return self._last_ns


class EngineGpu:
    """One GPU as its engines see it: its model, its generation's row, its caches."""

    def __init__(self, machine: MachineState, model: GpuModel) -> None:
        self.machine = machine
        self.model = model
        self.row = model.generation
        self.caches = ComputeCaches()


class EngineChannel:
    """One channel as its engines see it: its address space and the work it still has to do."""

    def __init__(self, gpu: EngineGpu, space: AddressSpace) -> None:
        self.gpu = gpu
        self.space = space
        self.outstanding: list[EngineWork] = []

    def idle(self) -> bool:
        """Return whether the engine has nothing left of this channel."""
        return not self.outstanding

    def release(self, address: int, value: int, *, wide: bool, stamped: bool) -> None:
        """Write a semaphore, with the time behind it if it is `stamped`."""
        data = value.to_bytes(8 if wide or stamped else 4, "little")
        if stamped:
            data += self.gpu.machine.time_ns().to_bytes(8, "little")
        self.space.write(address, data, "HUBCLIENT_HOST semaphore")
