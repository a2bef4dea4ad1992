"""Memory that a GPU reads and writes: its own, its own seen by the host, and pinned host memory.

Host and GPU see the same memory at different addresses: `host` is the view of one, `gpu_va` the
address of the other.
"""

from __future__ import annotations

import errno
import functools
from collections.abc import Callable
from dataclasses import dataclass, field

from baregrad.base.bits import round_up
from baregrad.base.errors import ArgumentError, DriverError, OutOfMemory
from baregrad.runtime.nvidia.abi import Record
from baregrad.runtime.nvidia.abi import numbers as nv
from baregrad.runtime.nvidia.abi import status as nv_status
from baregrad.runtime.nvidia.driver.card import Card
from baregrad.runtime.teardown import Teardown

PAGE_NBYTES = 4 << 10
HUGE_PAGE_NBYTES = 2 << 20


@dataclass(eq=False)
class Allocation:
    """Memory that a GPU reads and writes at `gpu_va`, and the host through `host`, if it can.

    `handle` is the driver's object, and `mapped_on` the peers that see it, by uuid. Freed by
    `close`, or with the GPU that it belongs to.
    """

    gpu_va: int
    nbytes: int
    handle: int
    host: memoryview | None
    host_address: int = 0
    mapped_on: set[bytes] = field(default_factory=set, repr=False)
    _close: Callable[[], None] = field(default=lambda: None, repr=False)

    @property
    def view(self) -> memoryview:
        """The bytes, for the host; raises ArgumentError where it cannot see them."""
        if self.host is None:
            raise ArgumentError("the host cannot see this memory", hint="copy it")
        return self.host

    def close(self) -> None:
        """Free the memory; a second call does nothing. The host's view must not be used again."""
        self.host = None
        self._close()


class MemoryManager:
    """Allocates, maps and frees the memory of one GPU.

    Every piece is freed with its `owner`, by default after the GPU's channels.
    """

    def __init__(self, card: Card) -> None:
        self._card = card
        self._client = card.client

    def device(
        self, nbytes: int, *, low: bool = False, owner: Teardown | None = None
    ) -> Allocation:
        """Return memory of the GPU that the host does not see, in pages of 2 MiB.

        `low` asks for an address below 2**40. Raises OutOfMemory.
        """
        return self._make(
            "device memory",
            round_up(max(nbytes, 1), HUGE_PAGE_NBYTES),
            low,
            self._video_memory,
            owner,
        )

    def visible(self, nbytes: int, *, owner: Teardown | None = None) -> Allocation:
        """Return contiguous memory of the GPU that the host writes to, below 2**40.

        The host's stores are combined and its loads slow.
        """
        return self._make(
            "visible device memory",
            round_up(max(nbytes, 1), HUGE_PAGE_NBYTES),
            True,
            functools.partial(self._video_memory, visible=True),
            owner,
        )

    def pinned(self, nbytes: int, *, owner: Teardown | None = None) -> Allocation:
        """Return zeroed host memory that the GPU reads and writes, coherent with the host's caches.

        Its address is below 2**40.
        """
        return self._make(
            "pinned memory",
            round_up(max(nbytes, 1), PAGE_NBYTES),
            True,
            self._host_pages,
            owner,
        )

    def system(self, nbytes: int, *, owner: Teardown | None = None) -> Allocation:
        """Return zeroed host memory of the driver's own, like `pinned` but in pages of 2 MiB.

        Raises OutOfMemory where the system has no such pages left.
        """
        return self._make(
            "host memory in large pages",
            round_up(max(nbytes, 1), HUGE_PAGE_NBYTES),
            True,
            self._system_memory,
            owner,
        )

    def host(
        self, nbytes: int, *, large_pages: bool = True, owner: Teardown | None = None
    ) -> Allocation:
        """Return host memory for copies: in large pages if there are some, else pinned."""
        if large_pages and nbytes >= HUGE_PAGE_NBYTES:
            try:
                return self.system(nbytes, owner=owner)
            except (OutOfMemory, DriverError):
                # The system has no such pages left, or none at all.
                pass
        return self.pinned(nbytes, owner=owner)

    def driver_page(self, *, owner: Teardown | None = None) -> Allocation:
        """Return a zeroed page that the driver itself writes; it has no address on the GPU."""
        return self._make("a page of the driver", PAGE_NBYTES, None, self._system_page, owner)

    # Kinds of memory: each returns the driver's handle and the host's address, 0 for none.

    def _video_memory(
        self, nbytes: int, teardown: Teardown, *, visible: bool = False
    ) -> tuple[int, int]:
        params = self._params(
            nbytes, HUGE_PAGE_NBYTES,
            type=nv.MEMORY_TYPE_IMAGE,
            flags=nv.MEMORY_FLAGS_DEVICE,
            attr=nv.ATTR_PAGE_HUGE | (nv.ATTR_CONTIGUOUS if visible else nv.ATTR_ANY_PAGES),
            attr2=nv.ATTR2_NO_ZBC | nv.ATTR2_GPU_CACHED | nv.ATTR2_HUGE_2M,
        )  # fmt: skip
        handle = self._allocate(teardown, nv.NV01_MEMORY_LOCAL_USER, params)
        if not visible:
            return handle, 0
        return handle, self.map_for_host(teardown, handle, nbytes, node=self._card.node)

    def _system_memory(self, nbytes: int, teardown: Teardown) -> tuple[int, int]:
        params = self._params(
            nbytes, HUGE_PAGE_NBYTES,
            type=nv.MEMORY_TYPE_IMAGE,
            flags=nv.MEMORY_FLAGS_HOST,
            attr=nv.ATTR_LOCATION_PCI | nv.ATTR_PAGE_HUGE | nv.ATTR_ANY_PAGES
            | nv.ATTR_WRITE_BACK,
            attr2=nv.ATTR2_NO_ZBC | nv.ATTR2_GPU_UNCACHED | nv.ATTR2_HUGE_2M,
        )  # fmt: skip
        handle = self._allocate(teardown, nv.NV01_MEMORY_SYSTEM, params)
        return handle, self.map_for_host(teardown, handle, nbytes, node="/dev/nvidiactl")

    def _system_page(self, nbytes: int, teardown: Teardown) -> tuple[int, int]:
        params = self._params(
            nbytes, PAGE_NBYTES,
            type=nv.MEMORY_TYPE_NOTIFIER,
            flags=nv.MEMORY_FLAGS_HOST,
            attr=nv.ATTR_LOCATION_PCI | nv.ATTR_PAGE_4K | nv.ATTR_WRITE_BACK,
            attr2=nv.ATTR2_NO_ZBC | nv.ATTR2_GPU_UNCACHED,
        )  # fmt: skip
        handle = self._allocate(teardown, nv.NV01_MEMORY_SYSTEM, params)
        address = self.map_for_host(teardown, handle, nbytes, node="/dev/nvidiactl")
        self._client.port.view(address, nbytes)[:] = bytes(nbytes)
        return handle, address

    def _host_pages(self, nbytes: int, teardown: Teardown) -> tuple[int, int]:
        port = self._client.port
        try:
            address = port.map_memory(nbytes)
        except OSError as error:
            kind = OutOfMemory if error.errno == errno.ENOMEM else DriverError
            raise kind(
                f"the kernel maps no {nbytes} bytes of host memory", found=error.strerror
            ) from error
        teardown.push("host pages", lambda: port.unmap(address, nbytes))
        return self._pin(address, nbytes, teardown), address

    def _pin(self, address: int, nbytes: int, teardown: Teardown) -> int:
        """Keep pages of this process in place and return the driver's handle for them."""
        client, card = self._client, self._card
        record = client.struct("alloc_memory").record(fd=-1)
        handle = client.fresh_handle()
        record["params.hRoot"] = client.root
        record["params.hObjectParent"] = card.device
        record["params.hObjectNew"] = handle
        record["params.hClass"] = nv.NV01_MEMORY_SYSTEM_OS_DESCRIPTOR
        record["params.flags"] = nv.OS_DESCRIPTOR_FLAGS
        record["params.pMemory"] = address
        record["params.limit"] = nbytes - 1
        client.resource_manager(
            nv.NV_ESC_RM_ALLOC_MEMORY, record, f"to pin {nbytes} bytes",
            fd=card.fd, status="params.status",
        )  # fmt: skip
        teardown.push("the pin", lambda: client.free(card.device, handle))
        return handle

    # Steps that they share.

    def _params(self, nbytes: int, alignment: int, **values: int) -> Record:
        return self._client.struct("memory").record(
            owner=self._client.root,
            format=nv.MEMORY_FORMAT,
            size=nbytes,
            alignment=alignment,
            limit=nbytes - 1,
            **values,
        )

    def _allocate(self, teardown: Teardown, kind: int, params: Record) -> int:
        client, device = self._client, self._card.device
        return client.make(teardown, "the memory", device, kind, params)

    def map_for_host(
        self, teardown: Teardown, handle: int, nbytes: int, *, node: str, read_only: bool = False
    ) -> int:
        """Map an object's memory into this process and return where.

        The driver keeps one mapping for each descriptor, so each gets its own: of the GPU's node
        for its memory and registers, of the control node for host memory. Memory that programs may
        read alone is refused unless it is mapped `read_only`.
        """
        client, card, port = self._client, self._card, self._client.port
        fd = client.open_node(node, teardown)
        if node == card.node:
            card.register_fd(fd)
        parent = card.device
        record = client.struct("map_memory").record(fd=fd)
        record["params.hClient"] = client.root
        record["params.hDevice"] = parent
        record["params.hMemory"] = handle
        record["params.length"] = nbytes
        record["params.flags"] = nv.MAP_READ_ONLY if read_only else 0
        client.resource_manager(
            nv.NV_ESC_RM_MAP_MEMORY, record, f"to map {nbytes} bytes for the host",
            status="params.status",
        )  # fmt: skip
        linear = record["params.pLinearAddress"]
        teardown.push("the driver's mapping", lambda: self._forget_mapping(parent, handle, linear))
        try:
            address = port.map_device(fd, nbytes)
        except OSError as error:
            raise DriverError(
                f"the kernel maps no {nbytes} bytes of {node}", found=error.strerror
            ) from error
        teardown.push("the host's mapping", lambda: port.unmap(address, nbytes))
        return address

    def _forget_mapping(self, parent: int, handle: int, linear: int) -> None:
        client = self._client
        record = client.struct("unmap_memory").record(
            hClient=client.root, hDevice=parent, hMemory=handle, pLinearAddress=linear
        )
        client.resource_manager(nv.NV_ESC_RM_UNMAP_MEMORY, record, "to forget a mapping")

    def _make(
        self,
        name: str,
        nbytes: int,
        low: bool | None,
        kind: Callable[[int, Teardown], tuple[int, int]],
        owner: Teardown | None,
    ) -> Allocation:
        """Allocate memory of a kind, map it for the GPU unless `low` is None, and list it."""
        teardown = Teardown()
        with teardown:
            try:
                handle, address = kind(nbytes, teardown)
                gpu_va = 0 if low is None else self._map_for_gpu(teardown, handle, nbytes, low)
            except DriverError as error:
                if error.code in (nv_status.NO_MEMORY, nv_status.INSUFFICIENT_RESOURCES):
                    raise OutOfMemory(
                        f"the GPU has no {name} left", found=f"{nbytes} bytes", hint=str(error)
                    ) from error
                raise
        host = self._client.port.view(address, nbytes) if address else None
        if host is not None:
            # A use after the end then raises, instead of reading what is no longer mapped.
            teardown.push("the view", host.release)
        parent = self._card.allocations if owner is None else owner
        token = parent.push(name, teardown.close)
        close = functools.partial(parent.run, token)
        return Allocation(gpu_va, nbytes, handle, host, address, _close=close)

    def _map_for_gpu(self, teardown: Teardown, handle: int, nbytes: int, low: bool) -> int:
        """Map an object's memory into the GPU's address space and return where."""
        client = self._client
        # Page tables use the largest page that divides address, size and allocation.
        huge = nbytes % HUGE_PAGE_NBYTES == 0
        addresses = client.low_addresses if low else client.high_addresses
        gpu_va = addresses.take(nbytes, HUGE_PAGE_NBYTES if huge else PAGE_NBYTES)
        teardown.push("GPU addresses", lambda: addresses.give(gpu_va))
        record = client.struct("uvm_create_external_range").record(base=gpu_va, length=nbytes)
        client.uvm(nv.UVM_CREATE_EXTERNAL_RANGE, record, "a range of GPU addresses")
        teardown.push("the range", lambda: self._free_range(gpu_va, nbytes))
        self.map_external(gpu_va, nbytes, handle)
        return gpu_va

    def map_external(self, gpu_va: int, nbytes: int, handle: int) -> None:
        """Map an object's memory on this GPU, in a range of addresses that exists already."""
        client = self._client
        record = client.struct("uvm_map_external").record(
            base=gpu_va,
            length=nbytes,
            gpuAttributesCount=1,
            rmCtrlFd=client.control_fd,
            hClient=client.root,
            hMemory=handle,
        )
        record["perGpuAttributes[0].gpuUuid"] = self._card.uuid
        record["perGpuAttributes[0].gpuMappingType"] = nv.MAPPING_READ_WRITE_ATOMIC
        client.uvm(nv.UVM_MAP_EXTERNAL_ALLOCATION, record, f"to map {nbytes} bytes on the GPU")

    def _free_range(self, gpu_va: int, nbytes: int) -> None:
        client = self._client
        record = client.struct("uvm_free").record(base=gpu_va)
        if "length" in record.struct.fields:
            record["length"] = nbytes
        client.uvm(nv.UVM_FREE, record, "to free a range of GPU addresses")
