"""Structs of the resource manager (`/dev/nvidiactl`, `/dev/nvidiaN`) as of release 535.54.03.

Lines are those of release 580.95.05, where a struct that changed since is declared as well.
"""

from __future__ import annotations

from baregrad.runtime.nvidia.abi.layout import struct

# What an ioctl takes.

FREE = struct("NVOS00_PARAMETERS", "nvos.h:160", 16, """
    0  u32 hRoot
    4  u32 hObjectParent
    8  u32 hObjectOld
    12 u32 status
""")

ALLOC = struct("NVOS21_PARAMETERS", "nvos.h:462", 32, """
    0  u32 hRoot
    4  u32 hObjectParent
    8  u32 hObjectNew
    12 u32 hClass
    16 u64 pAllocParms
    24 u32 paramsSize
    28 u32 status
""")

CONTROL = struct("NVOS54_PARAMETERS", "nvos.h:2229", 32, """
    0  u32 hClient
    4  u32 hObject
    8  u32 cmd
    12 u32 flags
    16 u64 params
    24 u32 paramsSize
    28 u32 status
""")

ALLOC_MEMORY = struct("nv_ioctl_nvos02_parameters_with_fd",
                      "nv-unix-nvos-params-wrappers.h:33", 56, """
    0  u32 params.hRoot
    4  u32 params.hObjectParent
    8  u32 params.hObjectNew
    12 u32 params.hClass
    16 u32 params.flags
    24 u64 params.pMemory
    32 u64 params.limit
    40 u32 params.status
    48 i32 fd
""")

MAP_MEMORY = struct("nv_ioctl_nvos33_parameters_with_fd",
                    "nv-unix-nvos-params-wrappers.h:42", 56, """
    0  u32 params.hClient
    4  u32 params.hDevice
    8  u32 params.hMemory
    16 u64 params.offset
    24 u64 params.length
    32 u64 params.pLinearAddress
    40 u32 params.status
    44 u32 params.flags
    48 i32 fd
""")

UNMAP_MEMORY = struct("NVOS34_PARAMETERS", "nvos.h:1861", 32, """
    0  u32 hClient
    4  u32 hDevice
    8  u32 hMemory
    16 u64 pLinearAddress
    24 u32 status
    28 u32 flags
""")

CARD_INFO = struct("nv_ioctl_card_info_t", "nv-ioctl.h:54", 72, """
    0  u8  valid
    4  u32 pci_info.domain
    8  u8  pci_info.bus
    9  u8  pci_info.slot
    10 u8  pci_info.function
    12 u16 pci_info.vendor_id
    14 u16 pci_info.device_id
    16 u32 gpu_id
    40 u64 fb_address
    48 u64 fb_size
    56 u32 minor_number
""")

REGISTER_FD = struct("nv_ioctl_register_fd_t", "nv-ioctl.h:124", 4, "0 i32 ctl_fd")

# What an allocation takes, by class.

DEVICE = struct("NV0080_ALLOC_PARAMETERS", "class/cl0080.h:54", 56, """
    0  u32 deviceId
    4  u32 hClientShare
    8  u32 hTargetClient
    12 u32 hTargetDevice
    24 u64 vaSpaceSize
    48 u32 vaMode
""")

SUBDEVICE = struct("NV2080_ALLOC_PARAMETERS", "class/cl2080.h:43", 4, "0 u32 subDeviceId")

VA_SPACE = struct("NV_VASPACE_ALLOCATION_PARAMETERS", "nvos.h:3154", 48, """
    0  u32 index
    4  u32 flags
    8  u64 vaSize
    40 u64 vaBase
""")

MEMORY = struct("NV_MEMORY_ALLOCATION_PARAMS", "nvos.h:1608", 120, """
    0   u32 owner
    4   u32 type
    8   u32 flags
    24  u32 attr
    28  u32 attr2
    32  u32 format
    64  u64 size
    72  u64 alignment
    80  u64 offset
    88  u64 limit
    108 u32 hVASpace
""")

CHANNEL_GROUP = struct("NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS", "nvos.h:2904", 20, """
    0  u32 hObjectError
    4  u32 hObjectEccError
    8  u32 hVASpace
    12 u32 engineType
""")

CONTEXT_SHARE = struct("NV_CTXSHARE_ALLOCATION_PARAMETERS", "nvos.h:3232", 12, """
    0  u32 hVASpace
    4  u32 flags
    8  u32 subctxId
""")

_CHANNEL_HEAD = """
    0   u32 hObjectError
    4   u32 hObjectBuffer
    8   u64 gpFifoOffset
    16  u32 gpFifoEntries
    20  u32 flags
    24  u32 hContextShare
    28  u32 hVASpace
    32  u32 hUserdMemory[0]
    64  u64 userdOffset[0]
    128 u32 engineType
    132 u32 cid
"""
CHANNEL_304 = struct("NV_CHANNEL_ALLOC_PARAMS", "alloc/alloc_channel.h:296", 304, _CHANNEL_HEAD)
CHANNEL_360 = struct("NV_CHANNEL_ALLOC_PARAMS", "alloc/alloc_channel.h:296", 360, _CHANNEL_HEAD)
CHANNEL_368 = struct("NV_CHANNEL_ALLOC_PARAMS", "alloc/alloc_channel.h:296", 368, _CHANNEL_HEAD)
# Release 610 inserts a handle after hVASpace (gvisor pkg/abi/nvgpu/classes.go:506).
CHANNEL_376 = struct("NV_CHANNEL_ALLOC_PARAMS", "gvisor classes.go:510", 376, """
    0   u32 hObjectError
    4   u32 hObjectBuffer
    8   u64 gpFifoOffset
    16  u32 gpFifoEntries
    20  u32 flags
    24  u32 hContextShare
    28  u32 hVASpace
    36  u32 hUserdMemory[0]
    72  u64 userdOffset[0]
    136 u32 engineType
    140 u32 cid
""")

COPY_ENGINE = struct("NVB0B5_ALLOCATION_PARAMETERS", "class/clb0b5sw.h:50", 8, """
    0  u32 version
    4  u32 engineType
""")

DEBUGGER = struct("NV83DE_ALLOC_PARAMETERS", "class/cl83de.h:51", 12, """
    4  u32 hAppClient
    8  u32 hClass3dObject
""")

VA_SPACE_56 = struct("NV_VASPACE_ALLOCATION_PARAMETERS", "nvos.h:3154", 56, """
    0  u32 index
    4  u32 flags
    8  u64 vaSize
    40 u64 vaBase
    48 u32 pasid
""")

MEMORY_128 = struct("NV_MEMORY_ALLOCATION_PARAMS", "nvos.h:1608", 128, """
    0   u32 owner
    4   u32 type
    8   u32 flags
    24  u32 attr
    28  u32 attr2
    32  u32 format
    64  u64 size
    72  u64 alignment
    80  u64 offset
    88  u64 limit
    108 u32 hVASpace
    120 i32 numaNode
""")

# What a control takes.

BUILD_VERSION = struct("NV0000_CTRL_SYSTEM_GET_BUILD_VERSION_V2_PARAMS",
                       "ctrl/ctrl0000/ctrl0000system.h:2399", 1032, """
    0    bytes[256] driverVersionBuffer
    1024 u32        changelistNumber
""")

BUILD_VERSION_776 = struct("NV0000_CTRL_SYSTEM_GET_BUILD_VERSION_V2_PARAMS",
                           "ctrl/ctrl0000/ctrl0000system.h:2399", 776, """
    0   bytes[256] driverVersionBuffer
    768 u32        changelistNumber
""")

ID_INFO = struct("NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS",
                 "ctrl/ctrl0000/ctrl0000gpu.h:176", 32, """
    0  u32 gpuId
    4  u32 gpuFlags
    8  u32 deviceInstance
    12 u32 subDeviceInstance
    24 u32 gpuInstance
    28 i32 numaId
""")

CLASS_LIST = struct("NV0080_CTRL_GPU_GET_CLASSLIST_PARAMS",
                    "ctrl/ctrl0080/ctrl0080gpu.h:74", 16, """
    0  u32 numClasses
    8  u64 classList
""")

# An element of the list that the call above fills.
WORD = struct("NvU32", "nvtypes.h:159", 4, "0 u32 value")

GID_INFO = struct("NV2080_CTRL_GPU_GET_GID_INFO_PARAMS",
                  "ctrl/ctrl2080/ctrl2080gpu.h:1785", 268, """
    0  u32 index
    4  u32 flags
    8  u32 length
    12 bytes[256] data
""")

GR_INFO_LIST = struct("NV2080_CTRL_GR_GET_INFO_PARAMS", "ctrl/ctrl2080/ctrl2080gr.h:399", 32, """
    0  u32 grInfoListSize
    8  u64 grInfoList
    16 u32 grRouteInfo.flags
    24 u64 grRouteInfo.route
""")

GR_INFO = struct("NV2080_CTRL_GR_INFO", "ctrl/ctrlxxxx.h:71", 8, """
    0  u32 index
    4  u32 data
""")

FB_INFO_LIST = struct("NV2080_CTRL_FB_GET_INFO_PARAMS", "ctrl/ctrl2080/ctrl2080fb.h:454", 16, """
    0  u32 fbInfoListSize
    8  u64 fbInfoList
""")

FB_INFO = struct("NV2080_CTRL_FB_INFO", "ctrl/ctrlxxxx.h:71", 8, """
    0  u32 index
    4  u32 data
""")

# Two bytes of abilities for each copy engine, and which of them there are.
ALL_COPY_CAPS_68 = struct("NV2080_CTRL_CE_GET_ALL_CAPS_PARAMS",
                          "ctrl/ctrl2080/ctrl2080ce.h:331", 68, """
    0  bytes[64] capsTbl
    64 u32 present
""")
ALL_COPY_CAPS = struct("NV2080_CTRL_CE_GET_ALL_CAPS_PARAMS",
                       "ctrl/ctrl2080/ctrl2080ce.h:331", 136, """
    0   bytes[128] capsTbl
    128 u64 present
""")

PARTS_OF_COPY_ENGINE = struct("NV2080_CTRL_CE_GET_CE_PCE_MASK_PARAMS",
                              "ctrl/ctrl2080/ctrl2080ce.h:167", 8, """
    0  u32 ceEngineType
    4  u32 pceMask
""")

# Of the seven kinds of programs, the last is that of grids.
MMU_FAULT = struct("NV906F_CTRL_GET_MMU_FAULT_INFO_PARAMS", "ctrl/ctrl906f.h:214", 104, """
    0  u32 addrHi
    4  u32 addrLo
    8  u32 faultType
    12 bytes[32] faultString
    96 u64 shaderProgramVA[6]
""")

WORK_SUBMIT_TOKEN = struct("NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN_PARAMS",
                           "ctrl/ctrlc36f.h:83", 4, "0 u32 workSubmitToken")

SCHEDULE_2 = struct("NVA06F_CTRL_GPFIFO_SCHEDULE_PARAMS",
                    "ctrl/ctrla06f/ctrla06fgpfifo.h:69", 2, """
    0  u8 bEnable
    1  u8 bSkipSubmit
""")
SCHEDULE_3 = struct("NVA06F_CTRL_GPFIFO_SCHEDULE_PARAMS",
                    "ctrl/ctrla06f/ctrla06fgpfifo.h:69", 3, """
    0  u8 bEnable
    1  u8 bSkipSubmit
    2  u8 bSkipEnable
""")

# What the driver writes into an error notifier.

NOTIFICATION = struct("NvNotification", "nvgputypes.h:57", 16, """
    0  u32 timeStamp.nanoseconds[0]
    4  u32 timeStamp.nanoseconds[1]
    8  u32 info32
    12 u16 info16
    14 u16 status
""")
