"""Faults put in at each rung are named rightly, each with the repair that mends it."""

from __future__ import annotations

import ctypes
import errno
from dataclasses import dataclass, field
from typing import Any

import pytest

from baregrad.base.errors import DeviceError
from baregrad.base.options import options
from baregrad.cli.doctor_nvidia import examine_nvidia
from baregrad.cli.nvidia_rungs import Rung, climb
from baregrad.runtime.nvidia.abi import Record, names
from baregrad.runtime.nvidia.abi import numbers as nv
from baregrad.runtime.nvidia.abi.status import NAMES
from baregrad.runtime.nvidia.driver.port import Port
from baregrad.testing.virtual_gpu.machine.gpu_model import GpuModel
from baregrad.testing.virtual_gpu.virtual_port import VirtualPort

NODES = ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm")
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Wed Aug 27\n"
VERSION = "/proc/driver/nvidia/version"
CARD = "/sys/bus/pci/devices/0000:07:00.0"
ON_BUS = {f"{CARD}/vendor": "0x10de\n", f"{CARD}/class": "0x030200\n"}


def status(name: str) -> int:
    return next(number for number, known in NAMES.items() if known == f"NV_ERR_{name}")


class FaultyPort(VirtualPort):
    """A port on which calls fail, by name: with an error of the system or a driver's status."""

    def __init__(
        self,
        failing: dict[str, int | OSError] | None = None,
        answers: dict[str, tuple[str, int]] | None = None,
        **rest: Any,
    ) -> None:
        super().__init__(models=(GpuModel(), GpuModel()), **rest)
        self.failing = failing or {}
        self.answers = answers or {}

    def open(self, path: str) -> int:
        found = self.failing.get(path)
        if isinstance(found, OSError):
            raise found
        return super().open(path)

    def ioctl(self, fd: int, request: int, argument: Record, inner: Record | None = None) -> None:
        name = called(request, argument)
        found = self.failing.get(name)
        if isinstance(found, OSError):
            raise found
        if found:
            place = next(one for one in argument.struct.fields if one.endswith("tatus"))
            argument[place] = found
            return
        super().ioctl(fd, request, argument, inner)
        if name in self.answers and inner is not None:
            place, value = self.answers[name]
            if place != "classList":
                inner[place] = value
            elif inner["classList"]:
                ctypes.memset(inner["classList"], value, 4 * inner["numClasses"])


def called(request: int, argument: Record) -> str:
    """The name of a call: of the control, the class that is made, the ioctl."""
    if request >> 8 & 0xFF != nv.NV_IOCTL_MAGIC or request < 1 << 30:
        return names.uvm_name(request)
    if request & 0xFF == nv.NV_ESC_RM_CONTROL:
        return names.command_name(argument["cmd"])
    if request & 0xFF == nv.NV_ESC_RM_ALLOC:
        return names.class_name(argument["hClass"])
    return names.escape_name(request & 0xFF)


@dataclass
class PretendedMachine:
    """A machine of a few files, with a driver behind a port."""

    files: dict[str, str] = field(default_factory=dict)
    nodes: tuple[str, ...] = NODES
    closed: tuple[str, ...] = ()
    driver: Port = field(default_factory=FaultyPort)

    def exists(self, path: str) -> bool:
        return path in self.nodes or path in self.files

    def may_open(self, path: str) -> bool:
        return path not in self.closed

    def text(self, path: str) -> str:
        return self.files.get(path, "")

    def names(self, folder: str) -> list[str]:
        inside = [one for one in (*self.nodes, *self.files) if one.startswith(f"{folder}/")]
        return sorted({one[len(folder) + 1 :].partition("/")[0] for one in inside})

    def port(self) -> Port:
        return self.driver


def machine(
    failing: dict[str, int | OSError] | None = None,
    answers: dict[str, tuple[str, int]] | None = None,
    **rest: Any,
) -> PretendedMachine:
    return PretendedMachine(
        {VERSION: OPEN, **ON_BUS}, driver=FaultyPort(failing, answers, **rest)
    )


def bare(files: dict[str, str], nodes: tuple[str, ...] = ()) -> PretendedMachine:
    return PretendedMachine(files, nodes)


def refused(number: int) -> OSError:
    return OSError(number, "no")


CHANNEL = "HOPPER_CHANNEL_GPFIFO_A"
# What is wrong, the rung that it breaks, and what its repair says.
FAULTS: dict[str, tuple[PretendedMachine, str, str]] = {
    "no GPU": (bare({}), "node", "BAREGRAD_DEVICE=CPU"),
    "no driver": (bare(ON_BUS), "node", "install NVIDIA's driver for the GPU at 0000:07:00.0"),
    "module not loaded": (
        bare({**ON_BUS, "/usr/bin/nvidia-modprobe": ""}), "node", "modprobe nvidia nvidia-uvm"),
    "nouveau": (bare({**ON_BUS, "/sys/module/nouveau": ""}), "node", "blacklist it"),
    "container without GPUs": (bare({VERSION: OPEN, "/.dockerenv": ""}), "node", "--gpus all"),
    "nodes not made": (bare({VERSION: OPEN}), "node", "make /dev/nvidiactl: `nvidia-modprobe"),
    "no node of memory": (
        bare({VERSION: OPEN}, NODES[:3]), "node", "make /dev/nvidia-uvm: `nvidia-modprobe"),
    "no control node": (bare({VERSION: OPEN}, NODES[:2]), "node", "make /dev/nvidiactl"),
    "closed node": (
        PretendedMachine({VERSION: OPEN}, closed=NODES[:1]), "permissions", "write /dev/nvidia0"),
    "closed control node": (
        PretendedMachine({VERSION: OPEN}, closed=NODES[2:3]), "permissions", "/dev/nvidiactl"),
    "device cgroup": (
        machine({"/dev/nvidiactl": refused(errno.EPERM)}), "release", "--device /dev/nvidiactl"),
    "module went away": (
        machine({"/dev/nvidiactl": refused(errno.ENXIO)}), "release", "modprobe nvidia"),
    "too many files": (machine({"/dev/nvidiactl": refused(errno.EMFILE)}), "release", "ulimit -n"),
    "version not told": (machine(
        {"NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION_V2": status("NOT_SUPPORTED")}),
        "release", "update NVIDIA's driver"),
    "module and library differ": (
        machine({"NV01_ROOT_CLIENT": status("LIB_RM_VERSION_MISMATCH")}), "release", "reload"),
    "no permission from the driver": (
        machine({"NV01_ROOT_CLIENT": status("INSUFFICIENT_PERMISSIONS")}),
        "release", "NVIDIA_DRIVER_CAPABILITIES"),
    "GPU did not start": (
        machine({"/dev/nvidia0": refused(errno.EIO)}), "GPUs", "restart the machine"),
    "GPU off the bus": (machine({"NV01_DEVICE_0": status("GPU_IS_LOST")}), "GPUs", "Xid 79"),
    "firmware silent": (machine({"NV20_SUBDEVICE_0": status("TIMEOUT")}), "GPUs", "Xid 119"),
    "reset asked for": (machine({}, {
        "NV2080_CTRL_CMD_GPU_GET_RECOVERY_ACTION": ("action", 1)}), "GPU 0", "nvidia-smi -r"),
    "restart asked for": (machine({}, {
        "NV2080_CTRL_CMD_GPU_GET_RECOVERY_ACTION": ("action", 2)}), "GPU 0", "restart the machine"),
    "divided": (machine({}, {
        "NV2080_CTRL_CMD_GPU_GET_INFO_V2": ("gpuInfoList[0].data", 1)}), "GPU 0", "-mig 0"),
    "work forbidden": (machine({}, {
        "NV2080_CTRL_CMD_GPU_QUERY_COMPUTE_MODE_RULES": ("rules", 2)}), "GPU 0", "-c 0"),
    "memory failed": (machine({}, {
        names.command_name(nv.ECC_GET_VOLATILE_COUNTS): ("dramUncTot", 3)}), "GPU 0", "replaced"),
    "unknown generation": (machine({}, {
        "NV0080_CTRL_CMD_GPU_GET_CLASSLIST": ("classList", 0)}), "classes", "DEVICE=CUDA"),
    "classes not told": (
        machine({"NV0080_CTRL_CMD_GPU_GET_CLASSLIST": status("INVALID_PARAM_STRUCT")}),
        "classes", "baregrad info"),
    "driver of memory not there": (
        machine({"/dev/nvidia-uvm": refused(errno.ENODEV)}), "memory", "nvidia-uvm"),
    "driver of memory of another release": (
        machine({"UVM_INITIALIZE": refused(errno.EINVAL)}), "memory", "baregrad info"),
    "no fabric manager": (
        machine({"UVM_REGISTER_GPU": status("FABRIC_MANAGER_NOT_PRESENT")}),
        "memory", "nvidia-fabricmanager"),
    "no address space": (
        machine({"FERMI_VASPACE_A": status("NO_MEMORY")}), "memory", "free memory of the GPU"),
    "doorbell refused": (
        machine({"HOPPER_USERMODE_A": status("INVALID_CLASS")}), "memory", "update NVIDIA's"),
    "in use by one process": (
        machine({"KEPLER_CHANNEL_GROUP_A": status("STATE_IN_USE")}), "channel", "-c 0"),
    "no channels left": (
        machine({CHANNEL: status("NO_FREE_FIFOS")}), "channel", "end other programs"),
    "no room for channels": (
        machine({CHANNEL: status("INSUFFICIENT_RESOURCES")}), "channel", "baregrad info"),
    "compute refused": (
        machine({"HOPPER_COMPUTE_A": status("NOT_SUPPORTED")}), "channel", "update NVIDIA's"),
    "channel not registered": (
        machine({"UVM_REGISTER_CHANNEL": status("GPU_IN_FULLCHIP_RESET")}), "channel", "wait"),
    "group not scheduled": (
        machine({"NVA06C_CTRL_CMD_GPFIFO_SCHEDULE": status("RESET_REQUIRED")}),
        "channel", "nvidia-smi -r"),
}  # fmt: skip


def climbed(one: PretendedMachine) -> list[Rung]:
    with options.override(nv_port="kernel"):
        return climb(one, lambda device: "computes what it should")


def test_there_are_thirty_faults_at_least() -> None:
    assert len(FAULTS) >= 30


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_at_its_rung_with_its_repair(fault: str) -> None:
    one, rung, repair = FAULTS[fault]
    *whole, broken = climbed(one)
    assert (broken.name, repair in broken.repair) == (rung, True), str(broken) + broken.repair
    assert not any(found.repair for found in whole)
    driver = one.driver
    assert isinstance(driver, VirtualPort) and driver.held() == []


def test_a_machine_in_order_has_no_broken_rung() -> None:
    found = climbed(machine())
    assert [one.name for one in found] == [
        "node", "permissions", "module", "release", "GPUs", "GPU 0", "GPU 1", "classes", "memory",
        "channel", "first kernel", "", "",
    ]
    assert not any(one.repair for one in found)
    assert "open, 580.159.04" in str(found[2])
    closed = climbed(PretendedMachine({VERSION: CLOSED}))
    assert "proprietary, 580.159.04" in str(closed[2])


def test_an_old_release_is_named() -> None:
    class AgedPort(FaultyPort):
        def ioctl(
            self, fd: int, request: int, argument: Record, inner: Record | None = None
        ) -> None:
            super().ioctl(fd, request, argument, inner)
            if called(request, argument) == "NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION_V2":
                assert inner is not None
                inner["driverVersionBuffer"] = b"525.147.05".ljust(256, b"\0")

    *_, broken = climbed(PretendedMachine({VERSION: OPEN}, driver=AgedPort()))
    assert broken.name == "release" and "525.147.05" in broken.fact
    assert "install a newer driver" in broken.repair


def test_a_wrong_result_is_the_first_kernel_s() -> None:
    def wrong(device: str) -> str:
        raise DeviceError("a kernel gave a wrong result")

    with options.override(nv_port="kernel"):
        *_, broken = climb(machine(), wrong)
    assert broken.name == "first kernel" and "report it" in broken.repair


def test_the_finding_marks_the_broken_rung() -> None:
    with options.override(nv_port="kernel"):
        found = examine_nvidia(machine({CHANNEL: status("NO_FREE_FIFOS")}))
    assert found.verdict == "missing" and "end other programs" in found.advice
    assert any(fact.startswith("channel: ") and "(broken)" in fact for fact in found.facts)
