"""DLPack capsules of device memory: how libraries in one process hand arrays to each other.

Source: dlpack.h, version 0.8, and its Python specification. What is handed out is owned by whoever
takes it, until he calls the deleter; what is taken is copied, and given back at once.
"""

from __future__ import annotations

import ctypes
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple

from baregrad.base.errors import ArgumentError, DeviceError, DTypeError
from baregrad.dtypes import DType, as_dtype
from baregrad.runtime.buffers import Buffer, Memory
from baregrad.runtime.interface import Device

CUDA = 2
# What stands for a kind of numbers, beside the number of bits.
_CODES = MappingProxyType({"int": 0, "uint": 1, "float": 2, "bfloat": 4, "complex": 5, "bool": 6})
_NAME, _USED = b"dltensor", b"used_dltensor"


class _Place(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("number", ctypes.c_int32))


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("place", _Place), ("ndim", ctypes.c_int32), ("type", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


class _Handed:
    """What a capsule stands for: alive from when it is made until its deleter is called."""

    def __init__(self, buffer: Buffer, dtype: DType, shape: tuple[int, ...], number: int) -> None:
        self.buffer = buffer
        self.shape = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        code = "bfloat" if dtype.name == "bfloat16" else dtype.kind
        if code not in _CODES or (dtype.bits % 8 and dtype.name != "bool"):
            raise DTypeError("DLPack has no such dtype", found=dtype,
                             hint="cast it to a plain one first")
        bits = 8 if dtype.name == "bool" else dtype.bits
        self.managed = _Managed()
        tensor = self.managed.tensor
        tensor.data, tensor.place = buffer.address, _Place(CUDA, number)
        tensor.ndim, tensor.type = len(shape), _Type(_CODES[code], bits, 1)
        tensor.shape = ctypes.cast(self.shape, ctypes.POINTER(ctypes.c_int64))
        self.managed.context = id(self)
        self.managed.deleter = _forget


def _let_go(address: int) -> None:
    """Let go of what a capsule stood for; called by its new owner."""
    managed = _Managed.from_address(address)
    ctypes.pythonapi.Py_DecRef(ctypes.cast(managed.context, ctypes.py_object))


_forget = _Deleter(_let_go)


def _of_python(name: str, result: Any, *arguments: Any) -> Any:
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_is_valid = _of_python("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_pointer_of = _of_python(
    "PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p
)
_rename = _of_python("PyCapsule_SetName", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_make = _of_python(
    "PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _Destructor
)


def _let_go_unused(capsule: int) -> None:
    """Let go of what nobody took out of a capsule."""
    if _is_valid(capsule, _NAME):
        _let_go(_pointer_of(capsule, _NAME))


_unused = _Destructor(_let_go_unused)


def capsule_of(buffer: Buffer, dtype: DType, shape: tuple[int, ...], number: int) -> Any:
    """A capsule of a whole buffer of the CUDA device `number`, in row-major order.

    Whoever takes it may write to it: it is nobody else's. Raises DTypeError for dtypes that DLPack
    lacks.
    """
    handed = _Handed(buffer, dtype, shape, number)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(handed))
    return _make(ctypes.addressof(handed.managed), _NAME, _unused)


class Taken(NamedTuple):
    """A copy of what a capsule held."""

    buffer: Buffer
    dtype: DType
    shape: tuple[int, ...]


def copied_from(capsule: Any, device: Device, number: int) -> Taken:
    """A copy of what a capsule holds in memory of a CUDA device, of which it is; then give it back.

    The producer has made its work visible to this device's stream. Raises DeviceError for memory
    of another device, ArgumentError for what is not in row-major order, DTypeError.
    """
    at = id(capsule)
    if not _is_valid(at, _NAME):
        raise ArgumentError("not a capsule of DLPack that nobody has taken", found=repr(capsule))
    address = _pointer_of(at, _NAME)
    _rename(at, _USED)
    managed = _Managed.from_address(address)
    try:
        tensor = managed.tensor
        shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
        if tensor.place.kind != CUDA or tensor.place.number != number:
            raise DeviceError("memory of another device", found=f"DLPack's "
                              f"({tensor.place.kind}, {tensor.place.number})",
                              wanted=f"({CUDA}, {number})")
        dtype = _dtype(tensor.type)
        _check_order(tensor, shape)
        nbytes = prod(shape) * dtype.itemsize
        if not nbytes:
            return Taken(device.allocate(0), dtype, shape)
        place = Memory(tensor.data + tensor.byte_offset, nbytes, owner=capsule)
        made = device.duplicate(Buffer(device, place, 0, nbytes))
        device.synchronize()
        return Taken(made, dtype, shape)
    finally:
        if managed.deleter:
            managed.deleter(address)


def _dtype(found: _Type) -> DType:
    names = {code: name for name, code in _CODES.items()}
    name = names.get(found.code, "")
    if found.lanes != 1 or not name:
        raise DTypeError("a dtype that we lack", found=f"code {found.code}, {found.bits} bits, "
                         f"{found.lanes} lanes")
    full = "bool" if name == "bool" else f"{name}{found.bits}"
    return as_dtype(full)


def _check_order(tensor: _Tensor, shape: tuple[int, ...]) -> None:
    if not tensor.strides:
        return
    step = 1
    for axis in reversed(range(len(shape))):
        if shape[axis] > 1 and tensor.strides[axis] != step:
            raise ArgumentError(
                "an array on a GPU is taken in row-major order",
                found=f"strides {[tensor.strides[i] for i in range(len(shape))]}",
                hint="make it contiguous first",
            )
        step *= max(shape[axis], 1)
