"""What to do where the NVIDIA driver, or the system, says no: a repair for each answer."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from types import MappingProxyType

from baregrad.base.errors import BaregradError, DriverError

_LOG = "see the kernel log (dmesg) for a line with NVRM"
_UPDATE = "update NVIDIA's driver"
_RESET = "reset the GPU: `nvidia-smi -r`, as root, with nobody using it; else restart the machine"
_REPORT = "report it with what `baregrad info` prints: a struct of this release may differ"

# By the vendor's names of statuses.
BY_STATUS: Mapping[str, str] = MappingProxyType({
    "NV_ERR_INSUFFICIENT_PERMISSIONS":
        "run as a user who may use the GPU; in a container, give it NVIDIA_DRIVER_CAPABILITIES "
        "with compute and utility",
    "NV_ERR_INVALID_CLIENT": "start the process anew: its connection to the driver is gone",
    "NV_ERR_NO_MEMORY": "free memory of the GPU: `baregrad info` lists who holds it",
    "NV_ERR_INSUFFICIENT_RESOURCES":
        "end other programs on the GPU (`baregrad info` lists them): its channels or its memory "
        "are given out",
    "NV_ERR_NO_FREE_FIFOS": "end other programs on the GPU: all its channels are given out",
    "NV_ERR_STATE_IN_USE":
        "another process has the GPU for itself: end it, or `nvidia-smi -c 0`, as root",
    "NV_ERR_IN_USE":
        "another process has the GPU for itself: end it, or `nvidia-smi -c 0`, as root",
    "NV_ERR_GPU_IS_LOST":
        "the GPU fell off the bus (Xid 79): check power and seating, restart the machine",
    "NV_ERR_RESET_REQUIRED": _RESET,
    "NV_ERR_GPU_IN_FULLCHIP_RESET": "wait until the reset that goes on is over, and try again",
    "NV_ERR_TIMEOUT": f"the GPU's firmware does not answer (Xid 119): {_LOG}; {_RESET}",
    "NV_ERR_GPU_IN_DEBUG_MODE": "detach the debugger that holds the GPU",
    "NV_ERR_NOT_SUPPORTED": f"{_UPDATE}: this one does not offer what is asked for",
    "NV_ERR_INVALID_CLASS": f"{_UPDATE}: this one does not make such objects",
    "NV_ERR_INVALID_PARAM_STRUCT": _REPORT,
    "NV_ERR_INVALID_ARGUMENT": _REPORT,
    "NV_ERR_LIB_RM_VERSION_MISMATCH":
        "load the module that was installed last: restart, or reload the nvidia modules",
    "NV_ERR_FABRIC_MANAGER_NOT_PRESENT":
        "start the fabric manager: `systemctl start nvidia-fabricmanager`, as root",
    "NV_ERR_NVLINK_FABRIC_NOT_READY":
        "wait until the fabric manager has set up NVLink (`systemctl status nvidia-fabricmanager`)",
    "NV_ERR_ECC_ERROR": f"memory of the GPU has failed: {_LOG}; {_RESET}",
    "NV_ERR_MEMORY_ERROR": f"memory of the GPU has failed: {_LOG}; {_RESET}",
    "NV_ERR_OPERATING_SYSTEM": f"the kernel refused the driver something: {_LOG}",
})

# By the system's names of errors.
BY_ERRNO: Mapping[str, str] = MappingProxyType({
    "EACCES": "let this user read and write {node}",
    "EPERM": "let this container use {node}: its device cgroup forbids it (`--gpus all`, or "
    "`--device {node}`)",
    "ENOENT": "make {node}: `nvidia-modprobe -u -c=0`, as root",
    "ENODEV": "load the driver: `modprobe nvidia nvidia-uvm`, as root",
    "ENXIO": "load the driver: `modprobe nvidia nvidia-uvm`, as root",
    "EIO": f"the GPU did not start: {_LOG}; restart the machine",
    "EBUSY": "wait: a reset, or another driver, has the GPU just now",
    "ENOMEM": "free memory of this machine: the kernel has none for the driver",
    "EMFILE": "allow more open files: `ulimit -n`",
    "ENFILE": "close files: the whole machine has none left",
    "EINVAL": _REPORT,
    "ENOTTY": f"{_UPDATE}: this one does not know the call",
    "EFAULT": _REPORT,
})


def errno_name(error: BaseException) -> str:
    """Return the system's name of the error behind one of ours, "" for none."""
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno:
        return errno.errorcode.get(cause.errno, "")
    return ""


def repair_of(error: BaregradError, otherwise: str, node: str = "the device node") -> str:
    """Return what to do about an error; `otherwise` where its answer says nothing by itself."""
    if isinstance(error, DriverError):
        found = BY_STATUS.get(error.status.split(" ")[0])
        if found is not None:
            return found
        if "cannot open " in error.message:
            node = error.message.split("cannot open ")[1].split(":")[0]
    found = BY_ERRNO.get(errno_name(error))
    if found is not None:
        return found.format(node=node)
    return error.hint or otherwise
