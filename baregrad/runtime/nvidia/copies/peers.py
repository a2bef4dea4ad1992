"""Copies between GPUs: straight from one to the other where they are peers, else by the host.

GPUs that NVLink joins are peers from the moment that the driver knows both; those on PCIe are asked
for, and may be refused. Either way it is the mapping of one's memory on the other that proves it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from baregrad.base.errors import DriverError
from baregrad.runtime.nvidia.abi import numbers as nv
from baregrad.runtime.nvidia.abi import status as nv_status
from baregrad.runtime.nvidia.queue.pushbuffer import PushBuffer

if TYPE_CHECKING:
    from baregrad.runtime.buffers import Buffer, Contiguous
    from baregrad.runtime.nvidia.driver.client import Client
    from baregrad.runtime.nvidia.driver.device_memory import MemoryBlock
    from baregrad.runtime.nvidia.driver.memory import Allocation
    from baregrad.runtime.nvidia.driver.objects import Gpu

_BY_HOST_NBYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class PeerAccess:
    """Whether one GPU reads and writes another's memory, and why or why not."""

    direct: bool
    why: str


class PeerDevice(Protocol):
    """A device to another one that it may copy to."""

    client: Client
    gpu: Gpu
    peers: dict[bytes, PeerAccess]

    def pinned(self, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return host memory that the GPU reaches."""
        ...

    def copy_in(self, buffer: Buffer, data: Contiguous) -> None:
        """Copy host bytes to a buffer."""

    def copy_out(self, buffer: Buffer, data: bytearray | memoryview | np.ndarray[Any, Any]) -> None:
        """Copy a buffer to host bytes."""

    def wait_for_block(self, block: MemoryBlock) -> None:
        """Wait until no work uses a block."""

    def copy_after(self, work: PushBuffer, *blocks: MemoryBlock, nbytes: int = 0) -> None:
        """Have the copying channel do work after all that uses these blocks, and wait for it."""


def peer_access(device: PeerDevice, other: PeerDevice) -> PeerAccess:
    """Say whether `device` can use the memory of `other`; tries it, once."""
    if device is other:
        return PeerAccess(True, "it is the same device")
    if device.client is not other.client:
        return PeerAccess(False, "the devices were opened on different connections to the driver")
    found = device.peers.get(other.gpu.uuid)
    if found is None:
        found = device.peers[other.gpu.uuid] = _try(device, other)
    return found


def _try(device: PeerDevice, other: PeerDevice) -> PeerAccess:
    try:
        answer = _enable(device.gpu, other.gpu)
        probe = other.gpu.memory.device(1)
        try:
            map_on(device.gpu, probe)
        finally:
            probe.close()
    except DriverError as error:
        return PeerAccess(False, f"the driver says no: {error}")
    how = "PCIe" if answer == nv_status.OK else "NVLink"
    return PeerAccess(True, f"they are peers over {how}")


def _enable(gpu: Gpu, other: Gpu) -> int:
    """Ask for access; return the driver's answer, which is a refusal for peers over NVLink."""
    client = gpu.client
    record = client.struct("uvm_enable_peer_access").record(
        gpuUuidA=gpu.uuid, gpuUuidB=other.uuid
    )
    accepted = (nv_status.OK, nv_status.INVALID_DEVICE)
    return client.uvm(nv.UVM_ENABLE_PEER_ACCESS, record, "access to a peer", accepted=accepted)


def map_on(gpu: Gpu, allocation: Allocation) -> None:
    """Map another GPU's memory at the address that it has there; freed with the memory."""
    if gpu.uuid in allocation.mapped_on:
        return
    gpu.memory.map_external(allocation.gpu_va, allocation.nbytes, allocation.handle)
    allocation.mapped_on.add(gpu.uuid)


def copy_between(to: PeerDevice, come: PeerDevice, target: Buffer, source: Buffer) -> None:
    """Copy `source`, on `come`, to `target`, on `to`, of the same size; done when this returns."""
    if not source.nbytes:
        return
    # Writing to a peer is faster than reading from it.
    if peer_access(come, to).direct:
        _copy_directly(to, come, target, source)
    else:
        _copy_by_host(to, come, target, source)


def _copy_directly(to: PeerDevice, come: PeerDevice, target: Buffer, source: Buffer) -> None:
    block: MemoryBlock = target.memory.block  # type: ignore[attr-defined]
    to.wait_for_block(block)
    map_on(come.gpu, block.allocation)
    push = PushBuffer()
    push.copy(target.address, source.address, source.nbytes)
    block = source.memory.block  # type: ignore[attr-defined]
    come.copy_after(push, block, nbytes=source.nbytes)


def _copy_by_host(to: PeerDevice, come: PeerDevice, target: Buffer, source: Buffer) -> None:
    size = min(source.nbytes, _BY_HOST_NBYTES)
    host = come.pinned(size) if size > 1 << 20 else np.empty(size, np.uint8)
    for begin in range(0, source.nbytes, size):
        nbytes = min(size, source.nbytes - begin)
        come.copy_out(source.view(begin, nbytes), host[:nbytes])
        to.copy_in(target.view(begin, nbytes), host[:nbytes])
