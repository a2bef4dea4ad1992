"""Calls that are damaged on their way: the virtual driver answers, and never falls over."""

from __future__ import annotations

import contextlib
import random

import pytest

from baregrad.base.errors import BaregradError
from baregrad.runtime.nvidia.abi.layout import Record
from baregrad.testing.virtual_gpu.machine.gpu_model import GpuModel
from baregrad.testing.virtual_gpu.virtual_port import VirtualPort
from tests.testing.virtual_gpu.virtual_tools import LINK, RELEASES, Opened, opened

_CHANCE = 0.04
# Where the caller's own memory lies: damaged, the driver would write over what it must not, as any
# driver would.
_POINTERS = ("pMemory", "limit", "pAllocParms", "params", "List", "length", "Linear")


class DamagingPort(VirtualPort):
    """Changes a bit, a byte or a request now and then; keeps what the driver fell over."""

    def __init__(self, release: str, seed: int) -> None:
        super().__init__(release, (GpuModel(memory_nbytes=1 << 30),), seed=seed, lag=False)
        self.chance = random.Random(seed)
        self.fallen: list[Exception] = []
        self.damaged = 0

    def ioctl(self, fd: int, request: int, argument: Record, inner: Record | None = None) -> None:
        if self.chance.random() < _CHANCE:
            self.damaged += 1
            kind = self.chance.randrange(4)
            if kind == 0:
                request ^= 1 << self.chance.randrange(32)
            elif kind == 1:
                fd = self.chance.choice([*self.driver.files, 5])
            else:
                record = inner if inner is not None and kind == 2 else argument
                row = self.chance.choice([
                    one for name, one in record.struct.fields.items()
                    if not name.rpartition(".")[2].endswith(_POINTERS)
                ])  # fmt: skip
                view = record.view()
                place = row.offset + self.chance.randrange(min(row.nbytes, 16))
                view[place] = self.chance.choice((0, 0xFF, view[place] ^ 1, view[place] ^ 0x80))
        try:
            super().ioctl(fd, request, argument, inner)
        except OSError:
            raise
        except Exception as error:
            self.fallen.append(error)
            raise


def work(gpu: Opened) -> None:
    memory = gpu.gpu.memory.visible(128)
    memory.view[:128] = bytes(128)
    gpu.run(gpu.kernel(LINK, "link"), memory, 1)


@pytest.mark.parametrize("release", RELEASES)
def test_damaged_calls_are_answered(release: str) -> None:
    damaged = 0
    for seed in range(60):
        port = DamagingPort(release, seed)
        # What comes of it is an error of the runtime's, or nothing at all.
        with contextlib.suppress(BaregradError, OSError, AssertionError), opened(port) as gpu:
            work(gpu)
        assert not port.fallen, (seed, port.fallen)
        damaged += port.damaged
    assert damaged > 100
