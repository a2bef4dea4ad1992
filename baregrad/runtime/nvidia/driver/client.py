"""The driver's client: objects made, asked and freed by ioctl, both error layers checked."""

from __future__ import annotations

import errno
import itertools
from types import MappingProxyType

from baregrad.base.errors import DriverError, UnsupportedDevice
from baregrad.runtime.nvidia.abi import Record, Struct, names, release_for, status_name
from baregrad.runtime.nvidia.abi import numbers as nv
from baregrad.runtime.nvidia.abi import status as nv_status
from baregrad.runtime.nvidia.abi.rm_structs import BUILD_VERSION, BUILD_VERSION_776
from baregrad.runtime.nvidia.driver.addresses import HIGH_RANGE, LOW_RANGE, AddressRange
from baregrad.runtime.nvidia.driver.port import Port
from baregrad.runtime.teardown import Teardown

# The kernel answers EINVAL for a struct of the wrong size too, so say what it may mean.
_ERRNO_HINTS = MappingProxyType({
    errno.ENOENT: "is the NVIDIA kernel driver loaded?",
    errno.ENXIO: "is the NVIDIA kernel driver loaded?",
    errno.EACCES: "may this user open the device nodes?",
    errno.EPERM: "may this user open the device nodes?",
    errno.EINVAL: "the driver's release may not have the structs that were taken for it",
})  # fmt: skip
# What a control with a struct of another size is answered with.
_WRONG_SIZE = (nv_status.INVALID_PARAM_STRUCT, nv_status.INVALID_ARGUMENT)


class Client:
    """A connection to the driver: the root of every object, and the process's GPU address space.

    Owns two descriptors and one root object. Handles that the driver chooses are its own;
    `fresh_handle` gives those that we have to choose. A process that is forked off cannot use it.
    `memory`: whether memory is to be mapped; who only asks needs no unified memory driver.
    """

    def __init__(self, port: Port, *, strict_faults: bool = False, memory: bool = True) -> None:
        self.port = port
        self.teardown = Teardown()
        self.low_addresses = AddressRange(LOW_RANGE)
        self.high_addresses = AddressRange(HIGH_RANGE)
        self._handles = itertools.count(0x5A000001)
        with self.teardown:
            self.control_fd = self.open_node("/dev/nvidiactl", self.teardown)
            if memory:
                self.uvm_fd = self.open_node("/dev/nvidia-uvm", self.teardown)
            self.release = release_for("535.54.03")
            self.root = 0
            self.root = self.allocate(0, nv.NV01_ROOT_CLIENT, None)
            self.teardown.push("the client", lambda: self.free(0, self.root))
            self.version = self._driver_version()
            self.release = release_for(self.version)
            if memory:
                self._initialize_uvm(strict_faults)

    def _driver_version(self) -> str:
        """Return the driver's release; the struct that holds it grew, so two sizes are tried."""
        for struct in (BUILD_VERSION, BUILD_VERSION_776):
            record = struct.record()
            try:
                self.control(self.root, nv.NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION_V2, record)
            except DriverError as error:
                if struct is BUILD_VERSION_776 or error.code not in _WRONG_SIZE:
                    raise
                continue
            return record.data("driverVersionBuffer").split(b"\0")[0].decode("ascii", "replace")
        raise AssertionError("one of the two returns or raises")

    def _initialize_uvm(self, strict_faults: bool) -> None:
        flags = nv.UVM_INIT_FLAGS_DISABLE_HMM if strict_faults else 0
        record = self.release["uvm_initialize"].record(flags=flags)
        self.uvm(nv.UVM_INITIALIZE, record, "to begin")
        # A second descriptor keeps the driver informed of this process's memory; where the driver
        # needs none it says so with a warning.
        second = self.open_node("/dev/nvidia-uvm", self.teardown)
        record = self.release["uvm_mm_initialize"].record(uvmFd=self.uvm_fd)
        self.uvm(
            nv.UVM_MM_INITIALIZE, record, "this process's memory", fd=second,
            accepted=(nv_status.OK, nv_status.NOTHING_TO_DO),
        )  # fmt: skip

    def struct(self, name: str) -> Struct:
        """Return a struct as this driver release has it."""
        return self.release[name]

    def fresh_handle(self) -> int:
        """Return a handle that nobody else of this client has."""
        return next(self._handles)

    # Descriptors.

    def open_node(self, path: str, teardown: Teardown) -> int:
        """Open a device node; `teardown` closes it."""
        try:
            fd = self.port.open(path)
        except OSError as error:
            raise DriverError(
                f"cannot open {path}",
                found=error.strerror,
                hint=_ERRNO_HINTS.get(error.errno or 0),
            ) from error
        teardown.push(path, lambda: self.port.close(fd))
        return fd

    # Calls.

    def resource_manager(
        self,
        number: int,
        record: Record,
        what: str,
        *,
        fd: int | None = None,
        inner: Record | None = None,
        status: str = "status",
    ) -> None:
        """Make one ioctl of the resource manager; `status` names its answer, "" for none."""
        request = 3 << 30 | record.nbytes << 16 | nv.NV_IOCTL_MAGIC << 8 | number
        fd = self.control_fd if fd is None else fd
        self._call(fd, request, record, inner, (names.escape_name(number), what), status)

    def uvm(
        self,
        number: int,
        record: Record,
        what: str,
        *,
        fd: int | None = None,
        accepted: tuple[int, ...] = (nv_status.OK,),
    ) -> int:
        """Make one ioctl of the unified memory driver and return its status, one of `accepted`."""
        fd = self.uvm_fd if fd is None else fd
        call = (names.uvm_name(number), what)
        return self._call(fd, number, record, None, call, "rmStatus", accepted)

    def _call(
        self,
        fd: int,
        request: int,
        record: Record,
        inner: Record | None,
        call: tuple[str, str],
        status: str,
        accepted: tuple[int, ...] = (nv_status.OK,),
    ) -> int:
        """Make an ioctl, and raise for an error of the kernel and for one of the driver's."""
        ioctl, what = call
        structs = record.struct.name + (f" and {inner.struct.name}" if inner is not None else "")
        try:
            self.port.ioctl(fd, request, record, inner)
        except OSError as error:
            raise DriverError(
                f"the kernel refused {what}",
                ioctl=ioctl,
                struct=structs,
                status=errno.errorcode.get(error.errno or 0, str(error.errno)),
                hint=_ERRNO_HINTS.get(error.errno or 0),
            ) from error
        answer = record[status] if status else nv_status.OK
        if answer not in accepted:
            raise DriverError(
                f"the NVIDIA driver refused {what}",
                ioctl=ioctl,
                struct=structs,
                status=status_name(answer),
                code=answer,
            )
        return answer

    def allocate(self, parent: int, kind: int, params: Record | None, *, handle: int = 0) -> int:
        """Make an object of class `kind` below `parent` and return its handle."""
        record = self.release["alloc"].record(
            hRoot=self.root,
            hObjectParent=parent,
            hObjectNew=handle,
            hClass=kind,
            pAllocParms=params.address if params is not None else 0,
            paramsSize=params.nbytes if params is not None else 0,
        )
        what = f"an object of class {names.class_name(kind)}"
        self.resource_manager(nv.NV_ESC_RM_ALLOC, record, what, inner=params)
        return record["hObjectNew"]

    def control(self, handle: int, command: int, params: Record) -> None:
        """Ask an object something, or tell it."""
        record = self.release["control"].record(
            hClient=self.root,
            hObject=handle,
            cmd=command,
            params=params.address,
            paramsSize=params.nbytes,
        )
        what = names.command_name(command)
        self.resource_manager(nv.NV_ESC_RM_CONTROL, record, what, inner=params)

    def free(self, parent: int, handle: int) -> None:
        """Free an object and all below it."""
        record = self.release["free"].record(
            hRoot=self.root, hObjectParent=parent, hObjectOld=handle
        )
        self.resource_manager(nv.NV_ESC_RM_FREE, record, f"to free the object {handle:#x}")

    def make(
        self, teardown: Teardown, name: str, parent: int, kind: int, params: Record | None
    ) -> int:
        """Make an object that `teardown` frees."""
        handle = self.allocate(parent, kind, params)
        teardown.push(name, lambda: self.free(parent, handle))
        return handle

    # GPUs.

    def cards(self) -> list[tuple[int, int]]:
        """Return the GPU id and the node's number of every GPU that has a node here.

        The driver lists all GPUs of the machine, of which a container may be given a part.
        """
        record = Record(self.release["card_info"], nv.NV_MAX_DEVICES)
        self.resource_manager(nv.NV_ESC_CARD_INFO, record, "to list the GPUs", status="")
        found = [
            (record["gpu_id", i], record["minor_number", i])
            for i in range(nv.NV_MAX_DEVICES)
            if record["valid", i]
            and self.port.exists(f"/dev/nvidia{record['minor_number', i]}")
        ]
        return sorted(found, key=lambda card: card[1])

    def card(self, index: int) -> tuple[int, int]:
        """Return the GPU id and node number of the GPU `index`; raise UnsupportedDevice if none."""
        cards = self.cards()
        if not 0 <= index < len(cards):
            raise UnsupportedDevice(
                "this machine has no such NVIDIA GPU",
                found=index,
                wanted=f"0 to {len(cards) - 1}" if cards else "a GPU",
            )
        return cards[index]

    # The end.

    def close(self) -> None:
        """Free all that is left, last made first."""
        self.teardown.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

