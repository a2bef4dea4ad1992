"""The CUDA driver API as far as it is used: functions, structs and numbers.

Source: `cuda.h` of the CUDA Toolkit 13.0; names are those that libcuda.so.1 exports, which carry
the version that the header's macros append (cuMemAlloc is cuMemAlloc_v2). All of them are in every
driver since release 525 (CUDA 12.0).
"""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    c_char_p,
    c_float,
    c_int,
    c_size_t,
    c_ubyte,
    c_uint,
    c_uint32,
    c_uint64,
    c_void_p,
)
from types import MappingProxyType
from typing import Any

# The first driver API that has every function below (525 and newer).
OLDEST_VERSION = 12000

# enum cudaError_enum (cuda.h:2511).
SUCCESS = 0
OUT_OF_MEMORY = 2
DEINITIALIZED = 4
STUB_LIBRARY = 34
NO_DEVICE = 100
NO_BINARY_FOR_GPU = 209
INVALID_IMAGE = 200
INVALID_PTX = 218
UNSUPPORTED_PTX_VERSION = 222
INVALID_SOURCE = 300
NOT_FOUND = 500
NOT_READY = 600
PEER_ACCESS_ALREADY_ENABLED = 704
NOT_SUPPORTED = 801
SYSTEM_DRIVER_MISMATCH = 803
UNKNOWN = 999
# Errors of the image that was to be loaded, not of the device.
IMAGE_ERRORS = frozenset({
    INVALID_IMAGE, NO_BINARY_FOR_GPU, INVALID_PTX, UNSUPPORTED_PTX_VERSION, INVALID_SOURCE,
    NOT_FOUND,
})  # fmt: skip
# Errors after which the context refuses all further work, as the comments of the enum say:
# uncorrectable ECC and NVLink errors, addresses, timeouts, asserts, stacks, instructions, ...
STICKY_ERRORS = frozenset({214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721})

# enum CUdevice_attribute (cuda.h:720).
MULTIPROCESSOR_COUNT = 16
COMPUTE_CAPABILITY_MAJOR = 75
COMPUTE_CAPABILITY_MINOR = 76
MAX_SHARED_PER_BLOCK_OPTIN = 97
CLUSTER_LAUNCH = 120

STREAM_NON_BLOCKING = 1  # cuda.h:429
EVENT_DEFAULT = 0  # cuda.h:456
EVENT_DISABLE_TIMING = 2  # cuda.h:458
HOST_ALLOC_PORTABLE = 1  # cuda.h:3247
HOST_ALLOC_MAPPED = 2  # cuda.h:3254
MEMORY_TYPE_DEVICE = 2  # CUmemorytype (cuda.h:1112)
# enum CUfunction_attribute (cuda.h:928).
MAX_DYNAMIC_SHARED = 8
NON_PORTABLE_CLUSTER_ALLOWED = 14
# enum CUlaunchAttributeID (cuda.h:2075).
CLUSTER_DIMENSION = 4
# What a launch may use without asking (CUDA C++ Programming Guide, shared memory).
SHARED_DEFAULT_NBYTES = 48 * 1024
PORTABLE_CLUSTER = 8
MAX_GRID = ((1 << 31) - 1, 65535, 65535)


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute (cuda.h:2340) that holds a cluster's dimensions."""

    _fields_ = (
        ("id", c_uint),
        ("pad", c_uint),
        ("cluster", c_uint * 3),
        ("rest", c_ubyte * 52),
    )


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig (cuda.h:2349)."""

    _fields_ = (
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared_nbytes", c_uint),
        ("stream", c_void_p),
        ("attributes", POINTER(LaunchAttribute)),
        ("attribute_count", c_uint),
    )


class KernelNode(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2 (cuda.h:1776)."""

    _fields_ = (
        ("function", c_void_p),
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared_nbytes", c_uint),
        ("params", c_void_p),
        ("extra", c_void_p),
        ("kernel", c_void_p),
        ("context", c_void_p),
    )


class FillNode(ctypes.Structure):
    """CUDA_MEMSET_NODE_PARAMS (cuda.h:1813)."""

    _fields_ = (
        ("target", c_uint64),
        ("pitch", c_size_t),
        ("value", c_uint),
        ("element_nbytes", c_uint),
        ("width", c_size_t),
        ("height", c_size_t),
    )


class CopySide(ctypes.Structure):
    """One half of CUDA_MEMCPY3D."""

    _fields_ = (
        ("x_nbytes", c_size_t),
        ("y", c_size_t),
        ("z", c_size_t),
        ("lod", c_size_t),
        ("memory_type", c_uint),
        ("host", c_void_p),
        ("device", c_uint64),
        ("array", c_void_p),
        ("reserved", c_void_p),
        ("pitch", c_size_t),
        ("height", c_size_t),
    )


class CopyNode(ctypes.Structure):
    """CUDA_MEMCPY3D_v2 (cuda.h:3333)."""

    _fields_ = (
        ("source", CopySide),
        ("target", CopySide),
        ("width_nbytes", c_size_t),
        ("height", c_size_t),
        ("depth", c_size_t),
    )


# The sizes of the structs, as a C compiler gives them for x86-64 and AArch64.
STRUCT_NBYTES = MappingProxyType({
    LaunchAttribute: 72, LaunchConfig: 56, KernelNode: 72, FillNode: 40, CopyNode: 200,
})  # fmt: skip

_ADDRESS = POINTER(c_uint64)
_HANDLE = POINTER(c_void_p)
_INTEGER = POINTER(c_int)

# Arguments of each function; all return CUresult, a C int. Handles are pointers, CUdevice an int
# and CUdeviceptr an unsigned integer of 64 bits (cuda.h:347).
FUNCTIONS: MappingProxyType[str, tuple[Any, ...]] = MappingProxyType({
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (_INTEGER,),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuDeviceGetCount": (_INTEGER,),
    "cuDeviceGet": (_INTEGER, c_int),
    "cuDeviceGetName": (c_void_p, c_int, c_int),
    "cuDeviceGetAttribute": (_INTEGER, c_int, c_int),
    "cuDeviceTotalMem_v2": (POINTER(c_size_t), c_int),
    "cuDeviceCanAccessPeer": (_INTEGER, c_int, c_int),
    "cuDevicePrimaryCtxRetain": (_HANDLE, c_int),
    "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (_HANDLE,),
    "cuCtxEnablePeerAccess": (c_void_p, c_uint),
    "cuStreamCreate": (_HANDLE, c_uint),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuStreamQuery": (c_void_p,),
    "cuStreamWaitEvent": (c_void_p, c_void_p, c_uint),
    "cuStreamWriteValue32_v2": (c_void_p, c_uint64, c_uint32, c_uint),
    "cuEventCreate": (_HANDLE, c_uint),
    "cuEventDestroy_v2": (c_void_p,),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventQuery": (c_void_p,),
    "cuEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
    "cuMemGetInfo_v2": (POINTER(c_size_t), POINTER(c_size_t)),
    "cuMemAlloc_v2": (_ADDRESS, c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemHostAlloc": (_HANDLE, c_size_t, c_uint),
    "cuMemFreeHost": (c_void_p,),
    "cuMemHostGetDevicePointer_v2": (_ADDRESS, c_void_p, c_uint),
    "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_uint64, c_size_t, c_void_p),
    "cuMemcpyDtoDAsync_v2": (c_uint64, c_uint64, c_size_t, c_void_p),
    "cuMemcpyPeerAsync": (c_uint64, c_void_p, c_uint64, c_void_p, c_size_t, c_void_p),
    "cuMemsetD8Async": (c_uint64, c_ubyte, c_size_t, c_void_p),
    "cuModuleLoadData": (_HANDLE, c_void_p),
    "cuModuleUnload": (c_void_p,),
    "cuModuleGetFunction": (_HANDLE, c_void_p, c_char_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuLaunchKernel": (c_void_p, *(c_uint,) * 7, c_void_p, c_void_p, c_void_p),
    "cuLaunchKernelEx": (POINTER(LaunchConfig), c_void_p, c_void_p, c_void_p),
    "cuGraphCreate": (_HANDLE, c_uint),
    "cuGraphDestroy": (c_void_p,),
    "cuGraphAddKernelNode_v2": (_HANDLE, c_void_p, _HANDLE, c_size_t, POINTER(KernelNode)),
    "cuGraphAddMemcpyNode": (_HANDLE, c_void_p, _HANDLE, c_size_t, POINTER(CopyNode), c_void_p),
    "cuGraphAddMemsetNode": (_HANDLE, c_void_p, _HANDLE, c_size_t, POINTER(FillNode), c_void_p),
    "cuGraphAddEventRecordNode": (_HANDLE, c_void_p, _HANDLE, c_size_t, c_void_p),
    "cuGraphKernelNodeSetAttribute": (c_void_p, c_int, c_void_p),
    "cuGraphInstantiateWithFlags": (_HANDLE, c_void_p, ctypes.c_ulonglong),
    "cuGraphExecDestroy": (c_void_p,),
    "cuGraphExecKernelNodeSetParams_v2": (c_void_p, c_void_p, POINTER(KernelNode)),
    "cuGraphExecMemcpyNodeSetParams": (c_void_p, c_void_p, POINTER(CopyNode), c_void_p),
    "cuGraphExecMemsetNodeSetParams": (c_void_p, c_void_p, POINTER(FillNode), c_void_p),
    "cuGraphLaunch": (c_void_p, c_void_p),
})  # fmt: skip
