"""The objects of the virtual driver: a tree below each client, every one by a handle of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from baregrad.testing.virtual_gpu.driver.calls import Refusal
from baregrad.testing.virtual_gpu.machine.host import HardwareChannel, HardwareGroup
from baregrad.testing.virtual_gpu.machine.machine import HardwareGpu
from baregrad.testing.virtual_gpu.machine.memory import AddressSpace, Backing

_FIRST_HANDLE = 0xCAF0_0001


@dataclass(eq=False)
class DriverObject:
    """An object: its handle, its class, what it hangs on and what hangs on it."""

    handle: int
    kind: int
    parent: DriverObject | None
    children: dict[int, DriverObject] = field(default_factory=dict)

    def below(self) -> Iterator[DriverObject]:
        """Yield it and all below it, the lowest first."""
        for child in list(self.children.values())[::-1]:
            yield from child.below()
        yield self


@dataclass(eq=False)
class DeviceObject(DriverObject):
    """A GPU that a client opened, or its subdevice."""

    gpu: HardwareGpu = field(kw_only=True)


@dataclass(eq=False)
class MemoryObject(DriverObject):
    """Memory of a GPU or of the host; `mappable` says by whose descriptors the host may map it."""

    backing: Backing = field(kw_only=True)
    gpu: HardwareGpu = field(kw_only=True)
    is_system: bool = field(kw_only=True)
    is_pinned: bool = False
    is_registers: bool = False
    is_read_only: bool = False
    # Mappings into the process by the linear address that the driver made up for each.
    mappings: dict[int, int] = field(default_factory=dict)


@dataclass(eq=False)
class VaSpaceObject(DriverObject):
    """An address space of a GPU; nothing is mapped before UVM has taken it over."""

    gpu: HardwareGpu = field(kw_only=True)
    space: AddressSpace = field(kw_only=True)
    is_external: bool = field(kw_only=True)
    is_registered: bool = False


@dataclass(eq=False)
class GroupObject(DriverObject):
    """A channel group on one engine."""

    gpu: HardwareGpu = field(kw_only=True)
    engine: int = field(kw_only=True)
    va_space: VaSpaceObject | None = field(kw_only=True)
    hardware: HardwareGroup = field(kw_only=True)


@dataclass(eq=False)
class ShareObject(DriverObject):
    """A context share: the address space of a group's channels."""

    va_space: VaSpaceObject = field(kw_only=True)


@dataclass(eq=False)
class ChannelObject(DriverObject):
    """A channel and its doorbell token."""

    gpu: HardwareGpu = field(kw_only=True)
    group: GroupObject = field(kw_only=True)
    va_space: VaSpaceObject = field(kw_only=True)
    hardware: HardwareChannel = field(kw_only=True)
    token: int = field(kw_only=True)


@dataclass(eq=False)
class ClientObject(DriverObject):
    """The root of one client, which belongs to the control descriptor that made it."""

    fd: int = field(kw_only=True)
    objects: dict[int, DriverObject] = field(default_factory=dict)
    handles: Iterator[int] = field(default_factory=lambda: itertools.count(_FIRST_HANDLE))

    def find(self, handle: int, status: str = "OBJECT_NOT_FOUND") -> DriverObject:
        """Return an object by handle, or refuse."""
        found = self.objects.get(handle)
        if found is None:
            raise Refusal(status, f"no object {handle:#x}")
        return found

    def new_handle(self, wanted: int) -> int:
        """Return the handle that the caller wants, or one of the driver's if that is 0."""
        if not wanted:
            return next(one for one in self.handles if one not in self.objects)
        if wanted in self.objects:
            raise Refusal("INSERT_DUPLICATE_NAME", f"the handle {wanted:#x} is taken")
        return wanted

    def add(self, made: DriverObject) -> None:
        """Enter an object below its parent."""
        assert made.parent is not None
        self.objects[made.handle] = made
        made.parent.children[made.handle] = made


T = TypeVar("T", bound=DriverObject)


def expect(found: DriverObject, kind: type[T], status: str = "INVALID_OBJECT") -> T:
    """Return an object that must be of a kind, or refuse."""
    if not isinstance(found, kind):
        raise Refusal(status, f"the object {found.handle:#x} is of class {found.kind:#x}")
    return found
