"""Structs of the unified memory driver (`/dev/nvidia-uvm`) as of release 535.54.03.

Lines are those of `uvm_ioctl.h` of release 580.95.05.
"""

from __future__ import annotations

from baregrad.runtime.nvidia.abi.layout import struct

INITIALIZE = struct("UVM_INITIALIZE_PARAMS", "uvm_linux_ioctl.h:34", 16, """
    0  u64 flags
    8  u32 rmStatus
""")

MM_INITIALIZE = struct("UVM_MM_INITIALIZE_PARAMS", "uvm_ioctl.h:1088", 8, """
    0  i32 uvmFd
    4  u32 rmStatus
""")

REGISTER_GPU = struct("UVM_REGISTER_GPU_PARAMS", "uvm_ioctl.h:534", 40, """
    0  bytes[16] gpu_uuid
    16 u8  numaEnabled
    20 i32 numaNodeId
    24 i32 rmCtrlFd
    28 u32 hClient
    32 u32 hSmcPartRef
    36 u32 rmStatus
""")

UNREGISTER_GPU = struct("UVM_UNREGISTER_GPU_PARAMS", "uvm_ioctl.h:550", 20, """
    0  bytes[16] gpu_uuid
    16 u32 rmStatus
""")

REGISTER_GPU_VASPACE = struct("UVM_REGISTER_GPU_VASPACE_PARAMS", "uvm_ioctl.h:402", 32, """
    0  bytes[16] gpuUuid
    16 i32 rmCtrlFd
    20 u32 hClient
    24 u32 hVaSpace
    28 u32 rmStatus
""")

UNREGISTER_GPU_VASPACE = struct("UVM_UNREGISTER_GPU_VASPACE_PARAMS", "uvm_ioctl.h:416", 20, """
    0  bytes[16] gpuUuid
    16 u32 rmStatus
""")

REGISTER_CHANNEL = struct("UVM_REGISTER_CHANNEL_PARAMS", "uvm_ioctl.h:427", 56, """
    0  bytes[16] gpuUuid
    16 i32 rmCtrlFd
    20 u32 hClient
    24 u32 hChannel
    32 u64 base
    40 u64 length
    48 u32 rmStatus
""")

UNREGISTER_CHANNEL_28 = struct("UVM_UNREGISTER_CHANNEL_PARAMS", "uvm_ioctl.h:443", 28, """
    0  bytes[16] gpuUuid
    16 u32 hClient
    20 u32 hChannel
    24 u32 rmStatus
""")
UNREGISTER_CHANNEL_12 = struct("UVM_UNREGISTER_CHANNEL_PARAMS", "uvm_ioctl.h:443", 12, """
    0  u32 hClient
    4  u32 hChannel
    8  u32 rmStatus
""")

ENABLE_PEER_ACCESS = struct("UVM_ENABLE_PEER_ACCESS_PARAMS", "uvm_ioctl.h:456", 36, """
    0  bytes[16] gpuUuidA
    16 bytes[16] gpuUuidB
    32 u32 rmStatus
""")

CREATE_EXTERNAL_RANGE = struct("UVM_CREATE_EXTERNAL_RANGE_PARAMS", "uvm_ioctl.h:1043", 24, """
    0  u64 base
    8  u64 length
    16 u32 rmStatus
""")

# The attributes of one GPU are filled in: a call maps memory for one GPU.
_MAPPING = """
    0  u64 base
    8  u64 length
    16 u64 offset
    24 bytes[16] perGpuAttributes[0].gpuUuid
    40 u32 perGpuAttributes[0].gpuMappingType
    44 u32 perGpuAttributes[0].gpuCachingType
    48 u32 perGpuAttributes[0].gpuFormatType
    52 u32 perGpuAttributes[0].gpuElementBits
    56 u32 perGpuAttributes[0].gpuCompressionType
"""
MAP_EXTERNAL_1200 = struct("UVM_MAP_EXTERNAL_ALLOCATION_PARAMS", "uvm_ioctl.h:492", 1200,
                           _MAPPING + """
    1176 u64 gpuAttributesCount
    1184 i32 rmCtrlFd
    1188 u32 hClient
    1192 u32 hMemory
    1196 u32 rmStatus
""")
MAP_EXTERNAL_9264 = struct("UVM_MAP_EXTERNAL_ALLOCATION_PARAMS", "uvm_ioctl.h:492", 9264,
                           _MAPPING + """
    9240 u64 gpuAttributesCount
    9248 i32 rmCtrlFd
    9252 u32 hClient
    9256 u32 hMemory
    9260 u32 rmStatus
""")

UNMAP_EXTERNAL = struct("UVM_UNMAP_EXTERNAL_PARAMS", "uvm_ioctl.h:936", 40, """
    0  u64 base
    8  u64 length
    16 bytes[16] gpuUuid
    32 u32 rmStatus
""")

FREE_24 = struct("UVM_FREE_PARAMS", "uvm_ioctl.h:510", 24, """
    0  u64 base
    8  u64 length
    16 u32 rmStatus
""")
FREE_16 = struct("UVM_FREE_PARAMS", "uvm_ioctl.h:510", 16, """
    0  u64 base
    8  u32 rmStatus
""")
