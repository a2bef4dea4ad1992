"""PyTorch checkpoints (`torch.save`), read without running what they contain.

Two formats: the zip archive (PyTorch 1.6 and later), whose `data.pkl` describes the object and
whose `data/KEY` members hold the storages; and the older one, five pickles followed by the
storages. Tensors stay in the mapped file. Sources: what torch.save of PyTorch 2.13 writes, and
its reader, torch/serialization.py and torch/_utils.py, for names and argument orders.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from baregrad.base.errors import FileFormatError
from baregrad.io.element_types import BY_NAME, BY_TORCH_STORAGE
from baregrad.io.excerpt import excerpt
from baregrad.io.files import map_file
from baregrad.io.pickle_machine import Handler, Name, PickleError, PickleMachine, checked_key
from baregrad.io.stored_tensor import FileStorage, StoredTensor, last_element
from baregrad.io.value_tree import check_tree, named_leaves
from baregrad.io.zip_archive import ZipArchive

# Zip files that torch.save writes are not compressed; repacked ones may inflate to this much.
INFLATE_LIMIT_NBYTES = 1 << 30
# A pickle is a program: compressed ones could run long for their size.
_PICKLE_INFLATE_LIMIT_NBYTES = 1 << 22
_ZIP_START = b"PK\x03\x04"
_ZIP_EMPTY = b"PK\x05\x06"
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_PROTOCOL = 1001
# The magic number as a pickle spells it; from protocol 4 on, a frame's header comes before it.
_LEGACY_SPELLING = b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"
_LEGACY_START_NBYTES = 24
_MAX_EXTENT = 1 << 63
# Expanded tensors may be this much larger than the file that holds their few elements.
_EXPANSION_ALLOWANCE_NBYTES = 1 << 24
_DAMAGED = "the file is damaged or hostile: fetch or save it again"
_UNTYPED = "UntypedStorage"


@dataclass(frozen=True, slots=True)
class TorchName:
    """A PyTorch value that is only a name here: `kind` is `dtype` or `device`, as in `cuda:0`."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class TorchCheckpoint:
    """What a checkpoint holds.

    `value` is made of dicts, lists, tuples, sets, scalars, text, bytes, StoredTensor and TorchName.
    OrderedDicts come out as dicts, without attributes.
    """

    path: str
    value: object

    def tensors(self) -> dict[str, StoredTensor]:
        """Return every tensor by its path: keys and positions joined by dots.

        A tensor that stands at two places appears twice. Raises FileFormatError where two places
        have the same path.
        """
        found: dict[str, StoredTensor] = {}
        for name, leaf in named_leaves(self.value):
            if not isinstance(leaf, StoredTensor):
                continue
            if name in found:
                raise FileFormatError(
                    f"{self.path!r}: two tensors have one path",
                    found=excerpt(name),
                    wanted="different ones",
                    hint="walk `value` instead",
                )
            found[name] = leaf
        return found


def read_checkpoint(
    path: str | os.PathLike[str], *, inflate_limit_nbytes: int = INFLATE_LIMIT_NBYTES
) -> TorchCheckpoint:
    """Read the checkpoint at `path`; nothing in it is imported or called.

    `inflate_limit_nbytes` bounds what compressed members may grow to, all together; stored ones,
    as torch.save writes them, are mapped. Raises FileFormatError for a broken or hostile file and
    for one that holds more than data, OSError for one that cannot be opened.
    """
    name = os.fspath(path)
    view = map_file(path)
    start = bytes(view[:_LEGACY_START_NBYTES])
    reader = _Reader(name, len(view))
    if start[:4] in (_ZIP_START, _ZIP_EMPTY):
        value = _read_zip(reader, ZipArchive(view, name, inflate_limit_nbytes))
    elif start[:1] == b"\x80" and _LEGACY_SPELLING in start:
        value = _read_legacy(reader, view)
    else:
        raise FileFormatError(
            f"{name!r} is not a PyTorch checkpoint",
            found=f"{excerpt(start[:8])} at its start",
            wanted="a zip archive, or the magic number of PyTorch 0.4 to 1.5",
            hint="open .safetensors files with SafetensorsFile; save others with torch.save",
        )
    check_tree(value, name)
    return TorchCheckpoint(name, value)


def _read_zip(reader: _Reader, archive: ZipArchive) -> object:
    pickles = [name for name in archive.members if name.split("/")[1:] == ["data.pkl"]]
    if len(pickles) != 1:
        raise reader.error("is a zip archive", f"{len(pickles)} of FOLDER/data.pkl", "one")
    folder = pickles[0].removesuffix("data.pkl")
    if f"{folder}constants.pkl" in archive.members:
        raise FileFormatError(
            f"{reader.path!r} is a TorchScript program, not a checkpoint",
            found="constants.pkl",
            wanted="tensors alone",
            hint="load it in PyTorch and torch.save its state_dict()",
        )
    order = f"{folder}byteorder"
    if order in archive.members and bytes(archive.raw(order, 16)) != b"little":
        raise reader.error("has foreign bytes", excerpt(bytes(archive.raw(order)[:16])), "little")

    def storage(identity: object) -> FileStorage:
        made = reader.storage(identity, expected=5)
        if made.data is None:
            data = archive.raw(f"{folder}data/{made.key}")
            if len(data) != made.nbytes:
                raise PickleError(
                    f"storage {excerpt(made.key)} of {made.nbytes} bytes in a member of {len(data)}"
                )
            made.data = data.toreadonly()
        return made

    view = archive.raw(pickles[0], _PICKLE_INFLATE_LIMIT_NBYTES)
    return PickleMachine(
        view,
        reader.path,
        handlers=reader.handlers,
        constants=_CONSTANTS,
        persistent=storage,
    ).run()


def _read_legacy(reader: _Reader, view: memoryview) -> object:
    position = 0
    for wanted in (_LEGACY_MAGIC, _LEGACY_PROTOCOL, None):
        machine = PickleMachine(view, reader.path, start=position)
        value = machine.run()
        position = machine.position
        if wanted is not None and value != wanted:
            raise reader.error("is of another protocol", excerpt(value), wanted)
        if wanted is None and not (isinstance(value, dict) and value.get("little_endian") is True):
            raise reader.error("has foreign bytes", excerpt(value), "little-endian data")
    machine = PickleMachine(
        view,
        reader.path,
        start=position,
        handlers=reader.handlers,
        constants=_CONSTANTS,
        persistent=lambda identity: reader.storage(identity, expected=6),
    )
    value = machine.run()
    machine = PickleMachine(view, reader.path, start=machine.position)
    keys = machine.run()
    reader.bind_in_order(keys, view, machine.position)
    return value


class _Reader:
    """Builds storages and tensors of one file, and checks each of them."""

    def __init__(self, path: str, file_nbytes: int) -> None:
        self.path = path
        self.max_nbytes = file_nbytes + _EXPANSION_ALLOWANCE_NBYTES
        self.storages: dict[str, FileStorage] = {}
        self.handlers: Mapping[Name, Handler] = MappingProxyType(
            {
                **_PLAIN_HANDLERS,
                Name("torch._utils", "_rebuild_tensor"): self.tensor,
                Name("torch._utils", "_rebuild_tensor_v2"): self.tensor,
                Name("torch._utils", "_rebuild_tensor_v3"): self.tensor_with_dtype,
                Name("torch._utils", "_rebuild_parameter"): self.parameter,
                Name("torch._utils", "_rebuild_parameter_with_state"): self.parameter,
                Name("torch._tensor", "_rebuild_from_type_v2"): self.tensor_with_state,
            }
        )

    def error(self, message: str, found: object, wanted: object) -> FileFormatError:
        return FileFormatError(
            f"{self.path!r} {message}", found=found, wanted=wanted, hint=_DAMAGED
        )

    def storage(self, identity: object, expected: int) -> FileStorage:
        """Return the storage that a persistent id names; each key has one size and type."""
        if not isinstance(identity, tuple) or len(identity) != expected:
            raise PickleError(f"the persistent id {excerpt(identity)}")
        tag, kind, key, location, count = identity[:5]
        if tag != "storage" or not isinstance(kind, _StorageKind):
            raise PickleError(f"the persistent id {excerpt(identity)}")
        if not isinstance(key, str) or not key.isalnum() or not isinstance(location, str):
            raise PickleError(f"the storage {excerpt(key)}, where a key is letters and digits")
        if expected == 6 and identity[5] is not None:
            raise PickleError("a storage that is a view, as before PyTorch 0.4")
        nbytes = _natural(count, "a storage's size") * kind.itemsize
        made = self.storages.setdefault(key, FileStorage(key, kind.dtype, nbytes, location))
        if (made.dtype, made.nbytes) != (kind.dtype, nbytes):
            raise PickleError(f"storage {excerpt(key)} with two sizes or types")
        return made

    def bind_in_order(self, keys: object, view: memoryview, position: int) -> None:
        """Give the storages their bytes: in the order of `keys`, each after its element count."""
        if not isinstance(keys, list):
            raise self.error("lists its storages badly", excerpt(keys), "a list of keys")
        for key in keys:
            storage = self.storages.get(key) if isinstance(key, str) else None
            if storage is None or storage.data is not None:
                raise self.error("lists its storages badly", excerpt(key), "each key once")
            if position + 8 + storage.nbytes > len(view):
                raise self.error("is cut short", f"{len(view) - position} bytes", storage.nbytes)
            (count,) = struct.unpack_from("<q", view, position)
            itemsize = BY_NAME[storage.dtype].itemsize if storage.dtype is not None else 1
            if count * itemsize != storage.nbytes:
                raise self.error(f"storage {excerpt(key)}", f"{count} elements", storage.nbytes)
            position += 8
            storage.data = view[position : position + storage.nbytes].toreadonly()
            position += storage.nbytes
        unbound = [key for key, storage in self.storages.items() if storage.data is None]
        if unbound:
            raise self.error("lacks storages", excerpt(unbound), "bytes for each")

    def tensor(self, arguments: tuple[object, ...]) -> StoredTensor:
        """`_rebuild_tensor(_v2)`: storage, offset, size, stride, requires_grad, hooks, metadata."""
        storage = arguments[0] if arguments else None
        if not isinstance(storage, FileStorage) or not 4 <= len(arguments) <= 7:
            raise PickleError(f"a tensor made of {excerpt(arguments)}")
        if storage.dtype is None:
            raise PickleError("a tensor of an untyped storage, without a dtype")
        _check_resolved(arguments[6:])
        requires_grad = len(arguments) > 4 and arguments[4] is True
        return self.window(storage, storage.dtype, arguments[1:4], requires_grad)

    def tensor_with_dtype(self, arguments: tuple[object, ...]) -> StoredTensor:
        """`_rebuild_tensor_v3`: as `_v2`, with the dtype after the hooks."""
        storage = arguments[0] if arguments else None
        if not isinstance(storage, FileStorage) or not 7 <= len(arguments) <= 8:
            raise PickleError(f"a tensor made of {excerpt(arguments)}")
        dtype = arguments[6]
        if not isinstance(dtype, TorchName) or dtype.name not in BY_NAME:
            raise PickleError(f"a tensor of dtype {excerpt(dtype)}")
        _check_resolved(arguments[7:])
        return self.window(storage, dtype.name, arguments[1:4], arguments[4] is True)

    def window(
        self, storage: FileStorage, dtype: str, place: tuple[object, ...], requires_grad: bool
    ) -> StoredTensor:
        """Return the tensor at `place` (offset, sizes, strides), all inside its storage."""
        offset = _natural(place[0], "a tensor's offset")
        shape = _naturals(place[1], "a tensor's shape")
        strides = _naturals(place[2], "a tensor's strides")
        if len(shape) != len(strides) or len(shape) > 64:
            raise PickleError(f"shape {excerpt(shape)} with strides {excerpt(strides)}")
        itemsize = BY_NAME[dtype].itemsize
        held = storage.nbytes // itemsize
        last = offset
        if 0 not in shape:
            last += last_element(shape, strides) + 1
        if last > held:
            raise PickleError(
                f"a tensor (shape {excerpt(shape)}, strides {excerpt(strides)}, offset {offset}) "
                f"that reaches element {last} of a storage of {held}"
            )
        # Within the bounds of its storage, strides of 0 can still describe terabytes.
        nbytes = itemsize
        for size in shape:
            nbytes *= max(size, 1)
            if nbytes > self.max_nbytes:
                raise PickleError(
                    f"a tensor of shape {excerpt(shape)} out of a storage of {storage.nbytes} bytes"
                    " (if it is meant, save its .clone())"
                )
        return StoredTensor(dtype, shape, strides, offset, storage, requires_grad)

    def parameter(self, arguments: tuple[object, ...]) -> StoredTensor:
        """`_rebuild_parameter(_with_state)`: tensor, requires_grad, hooks, attributes."""
        tensor = arguments[0] if arguments else None
        if not isinstance(tensor, StoredTensor) or not 2 <= len(arguments) <= 4:
            raise PickleError(f"a parameter made of {excerpt(arguments)}")
        return replace(tensor, requires_grad=arguments[1] is True, is_parameter=True)

    def tensor_with_state(self, arguments: tuple[object, ...]) -> StoredTensor:
        """`_rebuild_from_type_v2`: function, type, its arguments, attributes (left out here)."""
        if len(arguments) != 4 or not isinstance(arguments[2], tuple):
            raise PickleError(f"a tensor made of {excerpt(arguments)}")
        handler = self.handlers.get(arguments[0]) if isinstance(arguments[0], Name) else None
        if arguments[1] not in (_TENSOR, _PARAMETER) or handler is None:
            raise PickleError(f"a tensor of the class {excerpt(arguments[1])}")
        # One level: these functions do not nest.
        if handler == self.tensor_with_state:
            raise PickleError("a tensor rebuilt from itself")
        made = handler(arguments[2])
        if not isinstance(made, StoredTensor):
            raise PickleError(f"a tensor that is {excerpt(made)}")
        return made


def _check_resolved(metadata: tuple[object, ...]) -> None:
    """Refuse a tensor whose storage has the conjugate, or the negative, of what it shows."""
    for table in metadata:
        if table is not None and not isinstance(table, dict):
            raise PickleError(f"{excerpt(table)} as what is told of a tensor")
        for bit in ("conj", "neg"):
            if table and table.get(bit):
                raise PickleError(f"a tensor whose {bit} is still to be taken"
                                  f" (save its .resolve_{bit}())")


@dataclass(frozen=True, slots=True)
class _StorageKind:
    """A storage class of PyTorch's; `dtype` is None for untyped bytes."""

    dtype: str | None
    itemsize: int


def _natural(value: object, what: str) -> int:
    if type(value) is not int or not 0 <= value < _MAX_EXTENT:
        raise PickleError(f"{excerpt(value)} as {what}, where 0 to 2**63 - 1 belongs")
    return value


def _naturals(value: object, what: str) -> tuple[int, ...]:
    if not isinstance(value, tuple):
        raise PickleError(f"{excerpt(value)} as {what}, where a tuple belongs")
    return tuple(_natural(item, what) for item in value)


def _make_dict(arguments: tuple[object, ...]) -> dict[object, object]:
    """OrderedDict and Counter: nothing, pairs, or a dict. Keys are checked, values are kept."""
    if not arguments:
        return {}
    source = arguments[0]
    if isinstance(source, dict):
        source = list(source.items())
    if len(arguments) > 1 or not isinstance(source, (list, tuple)):
        raise PickleError(f"a dict made of {excerpt(arguments)}")
    made: dict[object, object] = {}
    for pair in source:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise PickleError(f"a pair of key and value that is {excerpt(pair)}")
        made[checked_key(pair[0])] = pair[1]
    return made


def _make_defaultdict(arguments: tuple[object, ...]) -> dict[object, object]:
    """The factory is dropped: what a checkpoint holds is what it held when saved."""
    return _make_dict(arguments[1:])


def _make_set(arguments: tuple[object, ...]) -> set[object]:
    items = arguments[0] if arguments else []
    if not isinstance(items, (list, tuple, set, frozenset)):
        raise PickleError(f"a set made of {excerpt(arguments)}")
    return {checked_key(item) for item in items}


def _make_frozenset(arguments: tuple[object, ...]) -> frozenset[object]:
    return frozenset(_make_set(arguments))


def _make_complex(arguments: tuple[object, ...]) -> complex:
    real, imaginary = arguments if len(arguments) == 2 else (None, None)
    if not isinstance(real, float) or not isinstance(imaginary, float):
        raise PickleError(f"a complex number made of {excerpt(arguments)}")
    return complex(real, imaginary)


def _encode(arguments: tuple[object, ...]) -> bytes:
    """`_codecs.encode(text, "latin1")`: how protocol 2 spells bytes."""
    text, codec = arguments if len(arguments) == 2 else (None, None)
    if not isinstance(text, str) or codec not in ("latin1", "latin-1"):
        raise PickleError(f"bytes made of {excerpt(arguments)}")
    return text.encode("latin-1")


def _make_bytes(arguments: tuple[object, ...]) -> bytes:
    """Bytes of nothing, of bytes, or of text and its codec; a bare size is refused."""
    if not arguments:
        return b""
    if len(arguments) == 1 and isinstance(arguments[0], bytes):
        return arguments[0]
    return _encode(arguments)


def _make_bytearray(arguments: tuple[object, ...]) -> bytearray:
    return bytearray(_make_bytes(arguments))


def _make_size(arguments: tuple[object, ...]) -> tuple[int, ...]:
    """`torch.Size`, which comes out as a tuple."""
    sizes = arguments[0] if arguments else ()
    return _naturals(tuple(sizes) if isinstance(sizes, list) else sizes, "a size")


def _make_device(arguments: tuple[object, ...]) -> TorchName:
    """`torch.device(type, index)`."""
    if not 1 <= len(arguments) <= 2 or not isinstance(arguments[0], str):
        raise PickleError(f"a device made of {excerpt(arguments)}")
    index = "" if len(arguments) == 1 else f":{_natural(arguments[1], 'a device number')}"
    return TorchName("device", arguments[0] + index)


_TENSOR = Name("torch", "Tensor")
_PARAMETER = Name("torch.nn.parameter", "Parameter")


def _constants() -> dict[Name, object]:
    """Names that stand for themselves: dtypes, storage classes, types as arguments."""
    table: dict[Name, object] = {_TENSOR: _TENSOR, _PARAMETER: _PARAMETER}
    for name in BY_NAME:
        table[Name("torch", name)] = TorchName("dtype", name)
    for name, element in BY_TORCH_STORAGE.items():
        kind = _StorageKind(element.name, element.itemsize)
        for module in ("torch", "torch.cuda", "torch.storage"):
            table[Name(module, name)] = kind
    for module in ("torch", "torch.storage"):
        table[Name(module, _UNTYPED)] = _StorageKind(None, 1)
    # What a defaultdict may make.
    for module in ("builtins", "__builtin__"):
        for name in ("dict", "list", "int", "float", "tuple"):
            table[Name(module, name)] = Name(module, name)
    return table


def _plain_handlers() -> dict[Name, Handler]:
    table: dict[Name, Handler] = {
        Name("collections", "OrderedDict"): _make_dict,
        Name("collections", "Counter"): _make_dict,
        Name("collections", "defaultdict"): _make_defaultdict,
        Name("_codecs", "encode"): _encode,
        Name("torch", "Size"): _make_size,
        Name("torch", "device"): _make_device,
    }
    for module in ("builtins", "__builtin__"):
        table[Name(module, "set")] = _make_set
        table[Name(module, "frozenset")] = _make_frozenset
        table[Name(module, "complex")] = _make_complex
        table[Name(module, "bytes")] = _make_bytes
        table[Name(module, "bytearray")] = _make_bytearray
    return table


_CONSTANTS: Mapping[Name, object] = MappingProxyType(_constants())
_PLAIN_HANDLERS: Mapping[Name, Handler] = MappingProxyType(_plain_handlers())
