"""An interpreter of pickles that can build plain data and nothing else.

A pickle is a program for a stack machine, and Python's own interpreter of it will import and call
what the program names. This one has no way to import: a name stands for itself, must be in a given
table, and is called only where the table holds a handler of ours. Every length is checked against
the bytes that are there. Opcodes as in CPython's Lib/pickletools.py, protocols 2 to 5; those that
import by other ways (INST, OBJ, EXT) or expect bytes from outside are refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from baregrad.base.errors import FileFormatError
from baregrad.io.excerpt import excerpt

_MAX_NAME_NBYTES = 512
_MAX_KEY_ITEMS = 64
_RESAVE = "keep only tensors and plain containers, as in torch.save(model.state_dict(), path)"
_DAMAGED = "the file is damaged or hostile: fetch or save it again"


class Name(NamedTuple):
    """A dotted name out of a pickle; it is never imported."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


Handler = Callable[[tuple[object, ...]], object]


class PickleError(ValueError):
    """Why a handler refuses its arguments; the machine adds where in the file it happened."""


class PickleBytes:
    """The bytes of a pickle and a place in them; `prefix` is the size of a length, in bytes."""

    def __init__(self, view: memoryview, position: int) -> None:
        self.position = position
        self._view = view

    def opcode(self) -> int:
        """Return the next byte; raise IndexError at the end."""
        opcode = self._view[self.position]
        self.position += 1
        return opcode

    def take(self, nbytes: int) -> memoryview:
        """Return the next bytes; raise PickleError where fewer are left."""
        end = self.position + nbytes
        if end > len(self._view):
            left = len(self._view) - self.position
            raise PickleError(f"a value of {nbytes} bytes where {left} are left")
        piece = self._view[self.position : end]
        self.position = end
        return piece

    def unsigned(self, nbytes: int) -> int:
        """Return an unsigned integer of a fixed size."""
        return int.from_bytes(self.take(nbytes), "little")

    def signed(self, prefix: int) -> int:
        """Return a signed integer behind its length."""
        return int.from_bytes(self.take(self.unsigned(prefix)), "little", signed=True)

    def text(self, prefix: int) -> str:
        """Return UTF-8 text behind its length."""
        return str(self.take(self.unsigned(prefix)), "utf-8", "surrogatepass")

    def data(self, prefix: int) -> bytes:
        """Return bytes behind their length."""
        return bytes(self.take(self.unsigned(prefix)))

    def line(self) -> str:
        """Return the text up to the end of the line; raise PickleError for a long one."""
        piece = bytes(self._view[self.position : self.position + _MAX_NAME_NBYTES])
        end = piece.find(b"\n")
        if end < 0:
            raise PickleError(f"a name without end in {len(piece)} bytes")
        self.position += end + 1
        return piece[:end].decode("utf-8")


class PickleMachine:
    """Runs one pickle out of `view`, from byte `start`.

    `handlers` are the functions that the pickle may call; `constants` the names that it may
    mention, with the inert values they stand for; `persistent` turns a persistent id into a value
    and may be None. After `run`, `position` is the byte after the pickle.
    """

    def __init__(
        self,
        view: memoryview,
        path: str,
        *,
        start: int = 0,
        handlers: Mapping[Name, Handler] | None = None,
        constants: Mapping[Name, object] | None = None,
        persistent: Callable[[object], object] | None = None,
    ) -> None:
        self._bytes = PickleBytes(view, start)
        self._path = path
        self._handlers = handlers or {}
        self._constants = constants or {}
        self._persistent = persistent
        self._stack: list[object] = []
        self._marked: list[list[object]] = []
        self._memo: dict[int, object] = {}

    @property
    def position(self) -> int:
        """The place of the next byte to read."""
        return self._bytes.position

    def run(self) -> object:
        """Run the pickle and return its value; raises FileFormatError for all that is wrong."""
        opcodes = _OPCODES
        start = self.position
        try:
            while True:
                start = self.position
                opcode = self._bytes.opcode()
                if opcode == _STOP:
                    return self._stack.pop()
                step = opcodes.get(opcode)
                if step is None:
                    raise PickleError(f"opcode {opcode:#04x}, which is not offered")
                step(self)
        except FileFormatError:
            raise
        except PickleError as error:
            raise self._error(start, str(error), _DAMAGED) from error
        except IndexError as error:
            raise self._error(start, "the end of the bytes or of the stack", _DAMAGED) from error
        except (ValueError, TypeError, OverflowError, struct.error) as error:
            raise self._error(start, f"a malformed value ({error})", _DAMAGED) from error

    def _error(self, at: int, found: str, hint: str) -> FileFormatError:
        return FileFormatError(
            f"{self._path!r}: pickle stopped at byte {at}",
            found=found,
            wanted="plain data and tensors",
            hint=hint,
        )

    # Stack.

    def _push(self, value: object) -> None:
        self._stack.append(value)

    def _to_mark(self) -> list[object]:
        items = self._stack
        if not self._marked:
            raise PickleError("no mark on the stack")
        self._stack = self._marked.pop()
        return items

    def _mark(self) -> None:
        self._marked.append(self._stack)
        self._stack = []

    def _pop(self) -> None:
        self._stack.pop()

    def _pop_mark(self) -> None:
        self._to_mark()

    def _skip_frame(self) -> None:
        # Frames only help readers that buffer.
        self._bytes.take(8)

    def _check_protocol(self) -> None:
        protocol = self._bytes.unsigned(1)
        if not 2 <= protocol <= 5:
            raise PickleError(f"pickle protocol {protocol}, where 2 to 5 are read")

    # Containers.

    def _tuple(self, count: int) -> None:
        stack = self._stack
        if len(stack) < count:
            raise PickleError(f"{len(stack)} values for a tuple of {count}")
        items = tuple(stack[-count:])
        del stack[-count:]
        stack.append(items)

    def _set_items(self, items: list[object]) -> None:
        table = self._stack[-1]
        if not isinstance(table, dict):
            raise PickleError(f"items for {excerpt(table)} instead of a dict")
        if len(items) % 2:
            raise PickleError(f"{len(items)} values as pairs of keys and values")
        for key, value in zip(items[::2], items[1::2], strict=True):
            table[checked_key(key)] = value

    def _set_item(self) -> None:
        value = self._stack.pop()
        key = self._stack.pop()
        self._set_items([key, value])

    def _make_dict(self) -> None:
        items = self._to_mark()
        self._push({})
        self._set_items(items)

    def _append_items(self, items: list[object]) -> None:
        target = self._stack[-1]
        if not isinstance(target, list):
            raise PickleError(f"items for {excerpt(target)} instead of a list")
        target.extend(items)

    def _add_items(self) -> None:
        items = self._to_mark()
        target = self._stack[-1]
        if not isinstance(target, set):
            raise PickleError(f"items for {excerpt(target)} instead of a set")
        target.update(checked_key(item) for item in items)

    # Memo: a dict, so that a huge index costs nothing.

    def _put(self, index: int) -> None:
        self._memo[index] = self._stack[-1]

    def _get(self, index: int) -> None:
        if index not in self._memo:
            raise PickleError(f"memo {index}, which was never stored")
        self._push(self._memo[index])

    # Names and calls.

    def _name(self, module: object, name: object) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            raise PickleError(f"the name {excerpt(module)}.{excerpt(name)}")
        found = Name(module, name)
        if found in self._constants:
            self._push(self._constants[found])
        elif found in self._handlers:
            self._push(found)
        else:
            raise self._error(
                self.position,
                f"a reference to {excerpt(str(found))}, which is not in the table of what a "
                "checkpoint may hold",
                f"nothing was run; {_RESAVE}",
            )

    def _stack_name(self) -> None:
        name = self._stack.pop()
        self._name(self._stack.pop(), name)

    def _call(self) -> None:
        arguments = self._stack.pop()
        function = self._stack.pop()
        handler = self._handlers.get(function) if isinstance(function, Name) else None
        if handler is None:
            raise PickleError(
                f"a call of {excerpt(function)}, which is no function of a checkpoint"
            )
        if not isinstance(arguments, tuple):
            raise PickleError(f"arguments {excerpt(arguments)} instead of a tuple")
        self._push(handler(arguments))

    def _build(self) -> None:
        state = self._stack.pop()
        target = self._stack[-1]
        # torch.save gives the OrderedDict of a state_dict the attribute `_metadata`; a plain dict
        # has no attributes, and the versions in there matter only to PyTorch's own modules.
        if not isinstance(target, dict) or not (state is None or isinstance(state, (dict, tuple))):
            raise PickleError(f"state {excerpt(state)} for {excerpt(target)}")

    def _resolve_persistent(self) -> None:
        if self._persistent is None:
            raise PickleError("a persistent id where none belongs")
        self._push(self._persistent(self._stack.pop()))


def checked_key(key: object) -> object:
    """Return `key` where it is a scalar, or a flat tuple of scalars; raises PickleError else.

    Hashing deep tuples recurses in C without a bound, so they may not become keys.
    """
    if key is None or isinstance(key, (str, int, float, bytes)):
        return key
    if isinstance(key, tuple) and len(key) <= _MAX_KEY_ITEMS and not isinstance(key, Name):
        if all(item is None or isinstance(item, (str, int, float, bytes)) for item in key):
            return key
    raise PickleError(f"the key {excerpt(key)} where a scalar or a flat tuple belongs")


_STOP = 0x2E
_FLOAT = struct.Struct(">d")
_INT32 = struct.Struct("<i")

# Names as in pickletools: MARK, POP, NONE, ... in the order of its documentation.
_OPCODES: Mapping[int, Callable[[PickleMachine], None]] = MappingProxyType(
    {
        0x80: PickleMachine._check_protocol,  # PROTO
        0x95: PickleMachine._skip_frame,  # FRAME
        0x28: PickleMachine._mark,  # MARK
        0x30: PickleMachine._pop,  # POP
        0x31: PickleMachine._pop_mark,  # POP_MARK
        0x32: lambda m: m._push(m._stack[-1]),  # DUP
        0x4E: lambda m: m._push(None),  # NONE
        0x88: lambda m: m._push(True),  # NEWTRUE
        0x89: lambda m: m._push(False),  # NEWFALSE
        0x4A: lambda m: m._push(_INT32.unpack(m._bytes.take(4))[0]),  # BININT
        0x4B: lambda m: m._push(m._bytes.unsigned(1)),  # BININT1
        0x4D: lambda m: m._push(m._bytes.unsigned(2)),  # BININT2
        0x8A: lambda m: m._push(m._bytes.signed(1)),  # LONG1
        0x8B: lambda m: m._push(m._bytes.signed(4)),  # LONG4
        0x47: lambda m: m._push(_FLOAT.unpack(m._bytes.take(8))[0]),  # BINFLOAT
        0x54: lambda m: m._push(m._bytes.text(4)),  # BINSTRING
        0x55: lambda m: m._push(m._bytes.text(1)),  # SHORT_BINSTRING
        0x58: lambda m: m._push(m._bytes.text(4)),  # BINUNICODE
        0x8C: lambda m: m._push(m._bytes.text(1)),  # SHORT_BINUNICODE
        0x8D: lambda m: m._push(m._bytes.text(8)),  # BINUNICODE8
        0x42: lambda m: m._push(m._bytes.data(4)),  # BINBYTES
        0x43: lambda m: m._push(m._bytes.data(1)),  # SHORT_BINBYTES
        0x8E: lambda m: m._push(m._bytes.data(8)),  # BINBYTES8
        0x96: lambda m: m._push(bytearray(m._bytes.take(m._bytes.unsigned(8)))),  # BYTEARRAY8
        0x29: lambda m: m._push(()),  # EMPTY_TUPLE
        0x74: lambda m: m._push(tuple(m._to_mark())),  # TUPLE
        0x85: lambda m: m._tuple(1),  # TUPLE1
        0x86: lambda m: m._tuple(2),  # TUPLE2
        0x87: lambda m: m._tuple(3),  # TUPLE3
        0x5D: lambda m: m._push([]),  # EMPTY_LIST
        0x6C: lambda m: m._push(m._to_mark()),  # LIST
        0x61: lambda m: m._append_items([m._stack.pop()]),  # APPEND
        0x65: lambda m: m._append_items(m._to_mark()),  # APPENDS
        0x7D: lambda m: m._push({}),  # EMPTY_DICT
        0x64: PickleMachine._make_dict,  # DICT
        0x73: PickleMachine._set_item,  # SETITEM
        0x75: lambda m: m._set_items(m._to_mark()),  # SETITEMS
        0x8F: lambda m: m._push(set()),  # EMPTY_SET
        0x90: PickleMachine._add_items,  # ADDITEMS
        0x91: lambda m: m._push(frozenset(checked_key(key) for key in m._to_mark())),  # FROZENSET
        0x71: lambda m: m._put(m._bytes.unsigned(1)),  # BINPUT
        0x72: lambda m: m._put(m._bytes.unsigned(4)),  # LONG_BINPUT
        0x94: lambda m: m._put(len(m._memo)),  # MEMOIZE
        0x68: lambda m: m._get(m._bytes.unsigned(1)),  # BINGET
        0x6A: lambda m: m._get(m._bytes.unsigned(4)),  # LONG_BINGET
        0x63: lambda m: m._name(m._bytes.line(), m._bytes.line()),  # GLOBAL
        0x93: PickleMachine._stack_name,  # STACK_GLOBAL
        0x52: PickleMachine._call,  # REDUCE
        0x81: PickleMachine._call,  # NEWOBJ: cls.__new__(cls, *args), the same for our handlers
        0x62: PickleMachine._build,  # BUILD
        0x51: PickleMachine._resolve_persistent,  # BINPERSID
    }
)
