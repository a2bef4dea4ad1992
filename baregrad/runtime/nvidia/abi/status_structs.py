"""Structs of controls that ask how a GPU is: its name, clock state, temperature, errors, users.

Lines are those of release 580.95.05. Each is as of the first release that declares it.
"""

from __future__ import annotations

from types import MappingProxyType

from baregrad.runtime.nvidia.abi.layout import Struct, struct

NAME_STRING_132 = struct("NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS",
                         "ctrl/ctrl2080/ctrl2080gpu.h:326", 132, """
    0 u32        gpuNameStringFlags
    4 bytes[128] gpuNameString
""")
NAME_STRING_68 = struct("NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS",
                        "ctrl/ctrl2080/ctrl2080gpu.h:326", 68, """
    0 u32       gpuNameStringFlags
    4 bytes[64] gpuNameString
""")

BUS_INFO_LIST = struct("NV2080_CTRL_BUS_GET_INFO_PARAMS",
                       "ctrl/ctrl2080/ctrl2080bus.h:586", 16, """
    0  u32 busInfoListSize
    8  u64 busInfoList
""")

BUS_INFO = struct("NV2080_CTRL_BUS_INFO", "ctrl/ctrlxxxx.h:71", 8, """
    0  u32 index
    4  u32 data
""")

BIOS_INFO_LIST = struct("NV2080_CTRL_BIOS_GET_INFO_PARAMS",
                        "ctrl/ctrl2080/ctrl2080bios.h:73", 16, """
    0  u32 biosInfoListSize
    8  u64 biosInfoList
""")

BIOS_INFO = struct("NV2080_CTRL_BIOS_INFO", "ctrl/ctrlxxxx.h:71", 8, """
    0  u32 index
    4  u32 data
""")

PERFORMANCE_STATE = struct("NV2080_CTRL_PERF_GET_CURRENT_PSTATE_PARAMS",
                           "ctrl/ctrl2080/ctrl2080perf.h:895", 4, "0 u32 currPstate")

ECC_CONFIGURATION = struct("NV2080_CTRL_GPU_QUERY_ECC_CONFIGURATION_PARAMS",
                           "ctrl/ctrl2080/ctrl2080gpu.h:1329", 8, """
    0  u32 currentConfiguration
    4  u32 defaultConfiguration
""")

ECC_COUNTS = struct("NV2080_CTRL_ECC_GET_VOLATILE_COUNTS_PARAMS",
                    "ctrl/ctrl2080/ctrl2080ecc.h:110", 40, """
    0  u64 sramCorUni
    8  u64 sramUncParityUni
    16 u64 sramUncSecDedUni
    24 u64 dramCorTot
    32 u64 dramUncTot
""")

ERROR_COUNT = struct("NV2080_CTRL_RC_GET_ERROR_COUNT_PARAMS",
                     "ctrl/ctrl2080/ctrl2080rc.h:92", 4, "0 u32 errorCount")

COMPUTE_MODE = struct("NV2080_CTRL_GPU_QUERY_COMPUTE_MODE_RULES_PARAMS",
                      "ctrl/ctrl2080/ctrl2080gpu.h:1290", 4, "0 u32 rules")

RECOVERY_ACTION = struct("NV2080_CTRL_GPU_GET_RECOVERY_ACTION_PARAMS",
                         "ctrl/ctrl2080/ctrl2080gpu.h:4350", 4, "0 u32 action")

# The first of at most 32 instructions that are executed in one call.
THERMAL = struct("NV2080_CTRL_THERMAL_SYSTEM_EXECUTE_V2_PARAMS",
                 "ctrl/ctrl2080/ctrl2080thermal.h:410", 1432, """
    0  u32 clientAPIVersion
    4  u32 clientAPIRevision
    8  u32 clientInstructionSizeOf
    12 u32 executeFlags
    16 u32 successfulInstructions
    20 u32 instructionListSize
    24 u32 instructionList[0].result
    28 u32 instructionList[0].executed
    32 u32 instructionList[0].opcode
    36 u32 instructionList[0].operands.getStatusSensorReading.sensorIndex
    40 i32 instructionList[0].operands.getStatusSensorReading.value
""")

PROCESSES = struct("NV2080_CTRL_GPU_GET_PIDS_PARAMS", "ctrl/ctrl2080/ctrl2080gpu.h:3494", 3812, """
    0  u32         idType
    4  u32         id
    8  u32         pidTblCount
    12 bytes[3800] pidTbl
""")

# The sections are in `NV00DE_SHARED_DATA`, whose layout the vendor's table has by release.
SHARED_DATA = struct("NV00DE_ALLOC_PARAMETERS", "class/cl00de.h:428", 8, """
    0  u64 polledDataMask
""")
SHARED_DATA_POLL = struct("NV00DE_CTRL_REQUEST_DATA_POLL_PARAMS", "ctrl/ctrl00de.h:55", 8, """
    0  u64 polledDataMask
""")

# The first of at most 200 processes that are asked for in one call.
PROCESS = struct("NV2080_CTRL_GPU_GET_PID_INFO_PARAMS",
                 "ctrl/ctrl2080/ctrl2080gpu.h:3634", 14408, """
    0  u32 pidInfoListCount
    8  u32 pidInfoList[0].pid
    12 u32 pidInfoList[0].index
    16 u32 pidInfoList[0].result
    24 u64 pidInfoList[0].data.vidMemUsage.memPrivate
    32 u64 pidInfoList[0].data.vidMemUsage.memSharedOwned
""")


def _gpu_info(count: int) -> Struct:
    """Return the struct of a release that has room for `count` numbers."""
    return struct("NV2080_CTRL_GPU_GET_INFO_V2_PARAMS", "ctrl/ctrl2080/ctrl2080gpu.h:288",
                  4 + 8 * count, """
        0  u32 gpuInfoListSize
        4  u32 gpuInfoList[0].index
        8  u32 gpuInfoList[0].data
    """)


GPU_INFO_64, GPU_INFO_65, GPU_INFO_66, GPU_INFO_70 = map(_gpu_info, (64, 65, 66, 70))


def _nvlinks(nbytes: int, begin: int, count: int, each: int) -> Struct:
    """Return the struct of a release with so many links of so many bytes."""
    wide = "16 u64 enabledLinks.masks[0]" if begin > 16 else ""
    return struct("NV2080_CTRL_CMD_NVLINK_GET_NVLINK_STATUS_PARAMS",
                  "ctrl/ctrl2080/ctrl2080nvlink.h:438", nbytes, f"""
        0  u32 enabledLinkMask
        {wide}
        {begin} bytes[{count * each}] linkInfo
    """)


NVLINKS_5896, NVLINKS_6152 = _nvlinks(5896, 8, 32, 184), _nvlinks(6152, 8, 32, 192)
NVLINKS_13320, NVLINKS_13344 = _nvlinks(13320, 8, 64, 208), _nvlinks(13344, 32, 64, 208)
NVLINKS_13864 = _nvlinks(13864, 32, 64, 216)
# How many links the lists have room for, by their sizes.
NVLINK_ROOM = MappingProxyType({32 * 184: 32, 32 * 192: 32, 64 * 208: 64, 64 * 216: 64})
