"""PyTorch checkpoints, written: the zip archive that `torch.load` reads, of plain objects.

An object is a pickle of protocol 2 (CPython's Lib/pickletools.py names its opcodes) in which
tensors name storages, members of the archive. All is data, so that `weights_only` reads it.
"""

from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Iterator, Mapping
from typing import IO

import numpy as np

from baregrad.base.errors import ArgumentError, DTypeError, ShapeError, UnsupportedDType
from baregrad.dtypes import DType, computed_for
from baregrad.io.element_types import BY_NAME
from baregrad.io.files import replaced
from baregrad.io.value_tree import MAX_DEPTH
from baregrad.tensor import Tensor
from baregrad.tensor.array import views
from baregrad.tensor.array.core import realize_storages

_ROOT = "archive"
_SMALLEST, _LARGEST = -(1 << 31), (1 << 31) - 1
_SCALARS = (str, bytes, int, float, complex, bool, type(None))


def write_checkpoint(value: object, file: str | os.PathLike[str] | IO[bytes]) -> None:
    """Write an object of dicts, lists, tuples, tensors, numbers, text, bytes and dtypes.

    Tensors that show the same elements share a storage, as tied weights do; views of others are
    written as they look. file: a path, whose file appears whole or not at all, or an open file.
    Raises DTypeError for other objects, UnsupportedDType for tensors of less than a byte an
    element, ArgumentError for containers inside of themselves, or too deep to be read.
    """
    if not isinstance(file, str | os.PathLike) and not hasattr(file, "write"):
        raise ArgumentError("a path, or a file that is open for writing", found=repr(file))
    pickle = _Pickle()
    tensors = list(_tensors(value, "the object", 0))
    realize_storages(tensor._storage for tensor in tensors)
    text = pickle.of(value)
    if isinstance(file, str | os.PathLike):
        with replaced(file) as opened:
            _write(opened, text, pickle.storages)
    else:
        _write(file, text, pickle.storages)


def _write(file: IO[bytes], pickle: bytes, storages: list[Tensor]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(f"{_ROOT}/data.pkl", pickle)
        archive.writestr(f"{_ROOT}/byteorder", "little")
        for key, tensor in enumerate(storages):
            raw = np.ascontiguousarray(tensor.detach()._raw())
            archive.writestr(f"{_ROOT}/data/{key}", raw.tobytes())
        archive.writestr(f"{_ROOT}/version", "3\n")


def _tensors(value: object, path: str, depth: int) -> Iterator[Tensor]:
    """The tensors of an object, all of which is looked at. Raises DTypeError and others."""
    if depth > MAX_DEPTH:
        raise ArgumentError(
            "an object deeper than checkpoints are, or a container inside of itself",
            found=f"more than {MAX_DEPTH} levels at {path:.40}",
        )
    if isinstance(value, Tensor):
        known = BY_NAME.get(value.dtype.name)
        if known is None or known.bits < 8:
            raise UnsupportedDType(
                f"{path} is of a dtype that PyTorch has no storages of", found=value.dtype,
                hint=f"cast it first: .cast({computed_for(value.dtype)!r})",
            )
        if not all(isinstance(extent, int) for extent in value.shape):
            raise ShapeError(f"{path} has a symbolic shape", found=list(value.shape))
        yield value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            parts = key if isinstance(key, tuple) else (key,)
            if not all(isinstance(part, _SCALARS) for part in parts):
                raise DTypeError(f"a key of {path} is no plain value", found=f"{key!r:.40}")
            yield from _tensors(one, f"{path}[{key!r}]", depth + 1)
    elif isinstance(value, list | tuple):
        for place, one in enumerate(value):
            yield from _tensors(one, f"{path}[{place}]", depth + 1)
    elif not isinstance(value.item() if isinstance(value, np.generic) else value,
                        (*_SCALARS, DType)):  # fmt: skip
        raise DTypeError(
            f"{path} is no data: a checkpoint holds dicts, lists, tensors, numbers and text",
            found=f"{type(value).__name__} {value!r:.40}",
            hint="save its state_dict(), and make it anew to load that",
        )


class _Pickle:
    """The pickle of one object, and the storages that it names, by their keys."""

    def __init__(self) -> None:
        self.storages: list[Tensor] = []
        self._keys: dict[int, int] = {}
        self._parts: list[bytes] = []

    def of(self, value: object) -> bytes:
        """Return the program that makes an object."""
        self._parts.append(b"\x80\x02")
        self._put(value)
        self._parts.append(b".")
        return b"".join(self._parts)

    def _name(self, module: str, name: str) -> None:
        self._parts.append(f"c{module}\n{name}\n".encode())

    def _tuple(self, *values: object) -> None:
        self._parts.append(b"(")
        for one in values:
            self._put(one)
        self._parts.append(b"t")

    def _put(self, value: object) -> None:
        add = self._parts.append
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, bool):
            add(b"N" if value is None else b"\x88" if value else b"\x89")
        elif isinstance(value, int):
            add(_integer(value))
        elif isinstance(value, float):
            add(b"G" + struct.pack(">d", value))
        elif isinstance(value, complex):
            self._name("__builtin__", "complex")
            self._tuple(value.real, value.imag)
            add(b"R")
        elif isinstance(value, str):
            raw = value.encode("utf-8", "surrogatepass")
            add(b"X" + struct.pack("<I", len(raw)) + raw)
        elif isinstance(value, bytes):
            self._name("_codecs", "encode")
            self._tuple(value.decode("latin1"), "latin1")
            add(b"R")
        elif isinstance(value, DType):
            self._name("torch", value.name)
        elif isinstance(value, Tensor):
            self._put_tensor(value)
        elif isinstance(value, Mapping):
            add(b"}(")
            for key, one in value.items():
                self._put(key)
                self._put(one)
            add(b"u")
        elif isinstance(value, tuple):
            self._tuple(*value)
        else:
            assert isinstance(value, list)
            add(b"](")
            for one in value:
                self._put(one)
            add(b"e")

    def _put_tensor(self, tensor: Tensor) -> None:
        shown = id(tensor._storage if views.is_whole(tensor._steps) else tensor)
        if shown not in self._keys:
            self._keys[shown] = len(self.storages)
            self.storages.append(tensor)
        element = BY_NAME[tensor.dtype.name]
        kind = element.torch_storage
        shape = tuple(int(extent) for extent in tensor.shape)
        steps = [1]
        for extent in reversed(shape[1:]):
            steps.append(steps[-1] * max(extent, 1))
        add = self._parts.append
        # What no storage is called after names its dtype at the end, above a storage of bytes.
        version = "v3" if kind is None else "v2"
        self._name("torch._utils", f"_rebuild_tensor_{version}")
        # A tuple of what follows, the first of which stands for its storage.
        add(b"((")
        self._put("storage")
        count = tensor.numel()
        if kind is None:
            self._name("torch.storage", "UntypedStorage")
            count *= element.itemsize
        else:
            self._name("torch", kind)
        for one in (str(self._keys[shown]), "cpu", count):
            self._put(one)
        add(b"tQ")
        self._put(0)
        self._tuple(*shape)
        self._tuple(*(reversed(steps) if shape else ()))
        self._put(bool(tensor.requires_grad))
        self._name("collections", "OrderedDict")
        add(b")R")
        if kind is None:
            self._name("torch", element.name)
        add(b"tR")


def _integer(value: int) -> bytes:
    if _SMALLEST <= value <= _LARGEST:
        return b"J" + struct.pack("<i", value)
    raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    if len(raw) > 255:
        raise DTypeError("an integer of so many digits", found=f"{value.bit_length()} bits")
    return b"\x8a" + bytes([len(raw)]) + raw
