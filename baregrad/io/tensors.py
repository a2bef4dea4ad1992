"""Tensors in files: safetensors and PyTorch checkpoints, in and out."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

from baregrad.base.errors import (
    ArgumentError,
    DTypeError,
    FileFormatError,
    ShapeError,
    UnsupportedDType,
)
from baregrad.dtypes import DType, computed_for, dtypes, part_of
from baregrad.io.element_types import BY_NAME
from baregrad.io.safetensors import SafetensorsFile, write
from baregrad.io.stored_tensor import StoredTensor
from baregrad.io.torch_checkpoint import TorchName, read_checkpoint
from baregrad.tensor import Tensor
from baregrad.tensor.array.arguments import explained
from baregrad.tensor.array.core import realize_storages
from baregrad.tensor.array.link import session
from baregrad.tensor.array.storage import buffer_node
from baregrad.tensor.ops.creation import choose_device

Path = str | os.PathLike[str]


@explained
def safe_save(
    tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors by name as a safetensors file, which appears whole or not at all.

    Computes them, in one run. float4_e2m1fn lies there two in a byte, the first in its lower half.
    Raises ShapeError for symbolic shapes and for an odd number of those, UnsupportedDType for
    integers of 4 bits, which the format has no name for, and OSError where the file cannot be
    written.
    """
    if not isinstance(tensors, Mapping):
        raise DTypeError(
            "tensors are saved by name", found=type(tensors).__name__,
            wanted="a dict, such as a module's state_dict()",
        )
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise DTypeError(
                f"{name!r} is no tensor", found=f"{type(tensor).__name__} {tensor!r:.40}",
                hint="wrap it: Tensor(...)",
            )
        if not all(isinstance(extent, int) for extent in tensor.shape):
            raise ShapeError(f"{name!r} has a symbolic shape", found=list(tensor.shape))
        if tensor.dtype.name not in BY_NAME:
            raise UnsupportedDType(
                f"{name!r} is of a dtype that the format has no name for",
                found=f"dtype {tensor.dtype}",
                hint=f"cast it first: .cast({computed_for(tensor.dtype)!r})",
            )
        if tensor.dtype.bits < 8 and tensor.numel() % 2:
            raise ShapeError(
                f"{name!r} is of half bytes and does not fill whole ones",
                found=f"{list(tensor.shape)} of {tensor.dtype}",
                wanted="an even number of elements",
            )
    realize_storages(tensor._storage for tensor in tensors.values())
    rows = {
        name: (tensor.dtype.name, tensor.shape, _bytes_of(tensor))
        for name, tensor in tensors.items()
    }
    write(path, rows, metadata)


@explained
def safe_load(path: Path, device: str | None = None) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file by name.

    The file stays mapped: on a device that sees host memory nothing is copied or read before it is
    used. Raises FileFormatError for a broken file, UnsupportedDType for a dtype that tensors lack.
    """
    where = choose_device(device)
    with SafetensorsFile(path) as file:
        return {
            name: mapped_tensor(
                file.raw(name), _dtype(name, file.entry(name).dtype), file.entry(name).shape,
                where,
            )
            for name in file.keys()  # noqa: SIM118 - the order of the header
        }


@explained
def load_torch(path: Path, device: str | None = None) -> dict[str, Tensor]:
    """Return every tensor of a PyTorch checkpoint by its path: keys and positions joined by dots.

    Nothing in the file is run. Contiguous tensors stay mapped as in `safe_load`. Parameters come
    out as plain tensors. Raises FileFormatError for a broken or hostile file.
    """
    where = choose_device(device)
    found = read_checkpoint(path).tensors()
    return {name: _stored(name, tensor, where) for name, tensor in found.items()}


@explained
def save(obj: object, f: Path | IO[bytes]) -> None:
    """Write an object as a PyTorch checkpoint, which `torch.load` and `load` read.

    obj: dicts, lists, tuples, tensors, numbers, text, bytes and dtypes, as a module's or an
    optimiser's state_dict() is. f: a path, whose file appears whole or not at all, or an open file.
    Raises DTypeError for other objects, such as a module itself.
    """
    from baregrad.io.torch_writing import write_checkpoint

    write_checkpoint(obj, f)


@explained
def load(
    f: Path | IO[bytes], map_location: str | None = None, weights_only: bool = True,
    mmap: bool | None = None,
) -> Any:
    """Return the object of a PyTorch checkpoint: dicts, lists, tuples, tensors and plain values.

    map_location: the device of tensors, whichever they were saved from. What was saved as one
    tensor, or as tensors of the same elements, is one tensor. Nothing in the file is run, whatever
    `weights_only` says, and files are always mapped. Raises FileFormatError, and ArgumentError for
    functions and dicts of devices.
    """
    if callable(map_location) or isinstance(map_location, Mapping):
        raise ArgumentError(
            "map_location is one device for all tensors", found=f"{map_location!r:.40}",
            hint='map_location="CPU" is what a function that returns its storage asks for',
        )
    where = choose_device(None if map_location is None else str(map_location))
    if isinstance(f, str | os.PathLike):
        return _Loaded(os.fspath(f), where).of(read_checkpoint(f).value, "")
    if not hasattr(f, "read") or hasattr(f, "encoding"):
        raise ArgumentError("a path, or a file that is open for reading bytes", found=repr(f))
    with tempfile.NamedTemporaryFile() as copied:
        shutil.copyfileobj(f, copied)
        copied.flush()
        return _Loaded("the file", where).of(read_checkpoint(copied.name).value, "")


_PLAIN = (str, bytes, bytearray, int, float, complex, bool, type(None), set, frozenset)


class _Loaded:
    """Values of a checkpoint with tensors, dtypes and devices of ours."""

    def __init__(self, path: str, device: str) -> None:
        self.path = path
        self.device = device
        # By what they show: tied weights are read once.
        self._made: dict[tuple[object, ...], Tensor] = {}

    def of(self, value: Any, name: str) -> Any:
        """Return one value. name: its path, for errors."""
        if isinstance(value, StoredTensor):
            return self._tensor(name or "tensor", value)
        if isinstance(value, TorchName):
            return _dtype(name, value.name) if value.kind == "dtype" else value.name
        if isinstance(value, dict):
            return {key: self.of(one, f"{name}.{key}".lstrip(".")) for key, one in value.items()}
        # What stands for a class or a storage is no plain tuple.
        if isinstance(value, list) or type(value) is tuple:
            return type(value)([self.of(one, f"{name}.{place}".lstrip("."))
                                for place, one in enumerate(value)])  # fmt: skip
        if not isinstance(value, _PLAIN):
            raise FileFormatError(
                f"{self.path!r} holds at {name!r} what is neither a tensor nor a plain value",
                found=type(value).__name__, hint="read_checkpoint() gives it as it is",
            )
        return value

    def _tensor(self, name: str, value: StoredTensor) -> Tensor:
        shown = (id(value.storage), value.dtype, value.offset, value.shape, value.strides,
                 value.requires_grad)  # fmt: skip
        found = self._made.get(shown)
        if found is None:
            found = _stored(name, value, self.device)
            if value.requires_grad:
                found.requires_grad_()
            self._made[shown] = found
        return found


def _dtype(name: str, dtype: str) -> DType:
    found = vars(dtypes).get(dtype)
    if isinstance(found, DType) and found.is_complex:
        return found
    if not isinstance(found, DType) or found.storage is None:
        raise UnsupportedDType(
            f"the tensor {name!r} is of a dtype that tensors do not have",
            found=dtype,
            hint="SafetensorsFile and read_checkpoint give its bytes",
        )
    return found


def _bytes_of(tensor: Tensor) -> np.ndarray[tuple[int, ...], np.dtype]:
    """The bytes of a computed tensor as they lie in a file."""
    raw = np.ascontiguousarray(tensor.detach()._raw())
    if tensor.dtype.bits >= 8:
        return raw
    pairs = raw.reshape(-1, 2)
    packed: np.ndarray[tuple[int, ...], np.dtype] = pairs[:, 0] | pairs[:, 1] << 4
    return packed


def _unpacked(data: memoryview) -> memoryview:
    """Codes of 4 bits, the first in a byte's lower half, in a byte each."""
    both = np.frombuffer(data, np.uint8)
    return np.stack([both & 15, both >> 4], -1).reshape(-1).data


def _stored(name: str, tensor: StoredTensor, device: str) -> Tensor:
    dtype = _dtype(name, tensor.dtype)
    if tensor.is_contiguous:
        return mapped_tensor(tensor.raw, dtype, tensor.shape, device)
    raw = np.ascontiguousarray(tensor.bits())
    return mapped_tensor(raw.reshape(-1).view(np.uint8).data, dtype, tensor.shape, device)


def mapped_tensor(
    data: memoryview, dtype: DType, shape: tuple[int, ...], device: str | None
) -> Tensor:
    """Return bytes of a file as a tensor, without a copy where the device can read them there.

    They are copied where they are not aligned for `dtype`, and halves of bytes become bytes.
    """
    device = choose_device(device)
    if dtype.bits < 8:
        data = _unpacked(data)
    if dtype.is_complex:
        return mapped_tensor(data, part_of(dtype), (*shape, 2), device).view_as_complex()
    if not data.nbytes:
        return Tensor.zeros(*shape, dtype=dtype, device=device)
    bytes_ = np.frombuffer(data, np.uint8)
    if bytes_.ctypes.data % dtype.itemsize:
        # Kernels load whole elements; a file need not align them.
        bytes_ = bytes_.copy()
    ref = session().wrap(bytes_.data, dtype, shape, device)
    return Tensor._make(buffer_node(ref, dtype), device)
