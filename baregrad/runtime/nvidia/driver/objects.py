"""One GPU: the objects below the client that every channel and every allocation needs."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from baregrad.base.errors import DriverError
from baregrad.runtime.nvidia.abi import numbers as nv
from baregrad.runtime.nvidia.driver.card import Card
from baregrad.runtime.nvidia.driver.client import Client
from baregrad.runtime.nvidia.driver.memory import MemoryManager
from baregrad.runtime.nvidia.driver.suballocator import Suballocator
from baregrad.runtime.teardown import Teardown
from baregrad.target.nvidia import NvidiaGeneration, nvidia_row

# The GPU's address space as the driver knows it, of which we use what memory.py hands out.
_VA_BASE = 0x1000
_VA_NBYTES = 0x1FFFFFB000000


@dataclass(frozen=True, slots=True)
class UnitCounts:
    """Warps of a multiprocessor, multiprocessors of a TPC, TPCs of a GPC, and GPCs of the die."""

    warps_per_unit: int
    units_per_tpc: int
    tpcs_per_gpc: int
    gpcs: int

    @property
    def units(self) -> int:
        """Multiprocessors in all."""
        return self.units_per_tpc * self.tpcs_per_gpc * self.gpcs


class Gpu(Card):
    """An open GPU: a card with its doorbell, address space and memory, freed in reverse order.

    `generation` is its row of `target/nvidia.py`.
    """

    def __init__(self, client: Client, index: int = 0) -> None:
        super().__init__(client, index)
        with self.teardown:
            self.generation: NvidiaGeneration = nvidia_row(self.classes())
            self.memory = MemoryManager(self)
            self.usermode = client.make(
                self.teardown, "the doorbell", self.subdevice, self.generation.usermode_class, None
            )
            self._registers = self.memory.map_for_host(
                self.teardown, self.usermode, nv.NVC361_NV_USERMODE__SIZE, node=self.node
            )
            self._open_address_space()
            # Channels are closed first, then memory, since they may still be using it.
            self.teardown.push("memory", self.allocations.close)
            self.channels = Teardown()
            self.teardown.push("channels", self.channels.close)
            self.pieces = Suballocator(self.memory)
        self._token = client.teardown.push(self.node, self.teardown.close)

    def _open_address_space(self) -> None:
        """Make an address space, whose page tables the unified memory driver fills at our word."""
        client = self.client
        params = client.struct("va_space").record(
            flags=nv.VA_SPACE_FLAGS, vaSize=_VA_NBYTES, vaBase=_VA_BASE
        )
        self.va_space = client.make(
            self.teardown, "the address space", self.device, nv.FERMI_VASPACE_A, params
        )
        record = client.struct("uvm_register_gpu").record(gpu_uuid=self.uuid, rmCtrlFd=-1)
        client.uvm(nv.UVM_REGISTER_GPU, record, "to register the GPU")
        self.teardown.push("the GPU's registration", self._unregister)
        record = client.struct("uvm_register_gpu_vaspace").record(
            gpuUuid=self.uuid,
            rmCtrlFd=client.control_fd,
            hClient=client.root,
            hVaSpace=self.va_space,
        )
        client.uvm(nv.UVM_REGISTER_GPU_VASPACE, record, "to register the address space")
        self.teardown.push("the address space's registration", self._unregister_va_space)

    def _unregister(self) -> None:
        record = self.client.struct("uvm_unregister_gpu").record(gpu_uuid=self.uuid)
        self.client.uvm(nv.UVM_UNREGISTER_GPU, record, "to unregister the GPU")

    def _unregister_va_space(self) -> None:
        record = self.client.struct("uvm_unregister_gpu_vaspace").record(gpuUuid=self.uuid)
        self.client.uvm(nv.UVM_UNREGISTER_GPU_VASPACE, record, "to unregister addresses")

    # What the GPU says of itself.

    def facts(self, *indices: int) -> tuple[int, ...]:
        """Return numbers that the GPU reports of itself, by their NV2080_CTRL_GR_INFO_INDEX."""
        return self.ask_each(nv.NV2080_CTRL_CMD_GR_GET_INFO, "gr", indices)

    def memory_nbytes(self) -> tuple[int, int]:
        """Return how much memory the GPU has, and how much of it is free."""
        wanted = (nv.NV2080_CTRL_FB_INFO_INDEX_HEAP_SIZE, nv.NV2080_CTRL_FB_INFO_INDEX_HEAP_FREE)
        whole, free = self.ask_each(nv.NV2080_CTRL_CMD_FB_GET_INFO, "fb", wanted)
        return whole << 10, free << 10

    @functools.cached_property
    def counts(self) -> UnitCounts:
        """How many multiprocessors the die has, whatever of them is fused off."""
        return UnitCounts(*self.facts(
            nv.NV2080_CTRL_GR_INFO_INDEX_MAX_WARPS_PER_SM,
            nv.NV2080_CTRL_GR_INFO_INDEX_LITTER_NUM_SM_PER_TPC,
            nv.NV2080_CTRL_GR_INFO_INDEX_LITTER_NUM_TPC_PER_GPC,
            nv.NV2080_CTRL_GR_INFO_INDEX_LITTER_NUM_GPCS,
        ))  # fmt: skip

    @functools.cached_property
    def sm_version(self) -> int:
        """The architecture of its multiprocessors: major << 8 | minor."""
        return self.facts(nv.NV2080_CTRL_GR_INFO_INDEX_SM_VERSION)[0]

    # The user mode page.

    @property
    def doorbell_address(self) -> int:
        """Where a channel's token is stored to notify the GPU of new work."""
        return self._registers + nv.NVC361_NOTIFY_CHANNEL_PENDING

    def timer_ns(self) -> int:
        """Return the GPU's own clock, that of its time stamps, in nanoseconds."""
        view = self.client.port.view(self._registers, nv.NVC361_NV_USERMODE__SIZE).cast("I")
        for _ in range(100):
            high = view[nv.NVC361_TIME_1 // 4]
            low = view[nv.NVC361_TIME_0 // 4]
            if view[nv.NVC361_TIME_1 // 4] == high:
                return high << 32 | low
        raise DriverError("the GPU's clock cannot be read", found="a high half that never rests")

    def close(self) -> None:
        """Free all that hangs on this GPU, last made first."""
        self.client.teardown.run(self._token)

    def __enter__(self) -> Gpu:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
