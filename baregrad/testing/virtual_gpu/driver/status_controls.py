"""What a virtual GPU says of how it is: a card in good health that nobody else uses."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from types import MappingProxyType

from baregrad.runtime.nvidia.abi import numbers as nv
from baregrad.testing.virtual_gpu.driver.calls import Arguments, Refusal
from baregrad.testing.virtual_gpu.driver.objects import DeviceObject, DriverObject, expect

NAME = "NVIDIA Virtual GPU"
TEMPERATURE_C = 34
# What its shared memory says, by section: the bit that asks for it, and the fields' values. It has
# no fan, and what holds it back is its power cap alone.
SHARED: MappingProxyType[str, tuple[int, dict[str, tuple[int, ...]]]] = MappingProxyType({
    "clkPublicDomainInfos": (1, {"info": (1980, 3201, 1545, 1965)}),
    "clkThrottleInfo": (2, {"reasonMask": (4,)}),
    "clkThrottleReason": (2, {"reasonMask": (4,)}),
    "perfDevUtil": (2, {"info.gpuPercentBusy": (97,), "info.memoryPercentBusy": (41,)}),
    "powerLimitGpu": (8, {"info.requestedmW": (700_000,), "info.enforcedmW": (650_000,)}),
    "avgPowerUsage":
        (8, {"info.averageGpuPower": (121_330,), "info.averageMemoryPower": (37_800,)}),
    "instPowerUsage": (8, {"info.instGpuPower": (81_570,)}),
})  # fmt: skip
_SENSOR = "instructionList[0].operands.getStatusSensorReading"


def _name(target: DriverObject, params: Arguments) -> None:
    params["gpuNameString"] = NAME.encode()


def _performance_state(target: DriverObject, params: Arguments) -> None:
    params["currPstate"] = 1


def _temperature(target: DriverObject, params: Arguments) -> None:
    opcode = params["instructionList[0].opcode"]
    sizes = (params["clientAPIVersion"], params["clientInstructionSizeOf"])
    if sizes != (1, 44) or params["instructionListSize"] != 1:
        raise Refusal("INVALID_PARAM_STRUCT", f"thermal instructions of another kind: {sizes}")
    if opcode != nv.NV2080_CTRL_THERMAL_SYSTEM_GET_STATUS_SENSOR_READING_OPCODE:
        raise Refusal("INVALID_ARGUMENT", f"no instruction {opcode:#x}")
    if params[f"{_SENSOR}.sensorIndex"]:
        raise Refusal("INVALID_ARGUMENT", "it has one sensor")
    params[f"{_SENSOR}.value"] = TEMPERATURE_C
    params["successfulInstructions"] = params["instructionList[0].executed"] = 1


def _ecc(target: DriverObject, params: Arguments) -> None:
    params["currentConfiguration"] = params["defaultConfiguration"] = 1


def _nothing(target: DriverObject, params: Arguments) -> None:
    """All that is asked for is zero."""


def _nvlinks(target: DriverObject, params: Arguments) -> None:
    """Four links are switched on: the second is down, the third asleep, no other end is seen."""
    each = {184 * 32: 184, 192 * 32: 192, 208 * 64: 208, 216 * 64: 216}
    size = each[len(params.data("linkInfo"))]
    links = b""
    for state in (3, 1, 5, 3):
        one = bytearray(size)
        one[5] = 2
        struct.pack_into("<I", one, 8, state)
        struct.pack_into("<I", one, 36, 106_250)
        links += one
    params["enabledLinkMask"], params["linkInfo"] = 0xF, links


def _gpu_info(target: DriverObject, params: Arguments) -> None:
    if params["gpuInfoList[0].index"] != nv.NV2080_CTRL_GPU_INFO_INDEX_GPU_SMC_MODE:
        raise Refusal("INVALID_ARGUMENT", "no such fact is known here")
    params["gpuInfoList[0].data"] = 2


def _processes(target: DriverObject, params: Arguments) -> None:
    if params["id"] not in expect(target, DeviceObject).gpu.classes:
        raise Refusal("INVALID_ARGUMENT", f"no class {params['id']:#x}")
    params["pidTbl"] = struct.pack("<I", os.getpid())
    params["pidTblCount"] = 1


def _process(target: DriverObject, params: Arguments) -> None:
    used = expect(target, DeviceObject).gpu.used_nbytes
    params["pidInfoList[0].data.vidMemUsage.memPrivate"] = used


STATUS_COMMANDS: MappingProxyType[
    int, tuple[str, Callable[[DriverObject, Arguments], None]]
] = MappingProxyType({
    nv.NV2080_CTRL_CMD_GPU_GET_NAME_STRING: ("name_string", _name),
    nv.NV2080_CTRL_CMD_PERF_GET_CURRENT_PSTATE: ("performance_state", _performance_state),
    nv.NV2080_CTRL_CMD_THERMAL_SYSTEM_EXECUTE_V2: ("thermal", _temperature),
    nv.NV2080_CTRL_CMD_GPU_QUERY_ECC_CONFIGURATION: ("ecc_configuration", _ecc),
    nv.ECC_GET_VOLATILE_COUNTS: ("ecc_counts", _nothing),
    nv.NV2080_CTRL_CMD_RC_GET_ERROR_COUNT: ("error_count", _nothing),
    nv.NV2080_CTRL_CMD_GPU_QUERY_COMPUTE_MODE_RULES: ("compute_mode", _nothing),
    nv.NV2080_CTRL_CMD_GPU_GET_RECOVERY_ACTION: ("recovery_action", _nothing),
    nv.NV2080_CTRL_CMD_GPU_GET_INFO_V2: ("gpu_info", _gpu_info),
    nv.NV2080_CTRL_CMD_NVLINK_GET_NVLINK_STATUS: ("nvlinks", _nvlinks),
    nv.NV2080_CTRL_CMD_GPU_GET_PIDS: ("processes", _processes),
    nv.NV2080_CTRL_CMD_GPU_GET_PID_INFO: ("process", _process),
})
