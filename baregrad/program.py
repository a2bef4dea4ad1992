"""An executable for one device: its bytes, its launch signature and what it uses.

A Program is the only thing that a runtime accepts. It knows no IR: sizes that depend on symbolic
integers are launch expressions, small tuples that `evaluate` computes at launch. A Program is
saved as its own compact form (`to_bytes`, `from_bytes`), never as a pickle, so that reading a
broken or hostile file raises FileFormatError and runs nothing.

The signature of a CPU kernel (kind "cpu-object") is, in C:

    void entry(void **buffers, const int64_t *variables,
               int64_t chunk_begin, int64_t chunk_end, void *scratch);

It does the chunks [chunk_begin, chunk_end) of its parallel axis. How many chunks there are never
depends on the number of threads, so the result has the same bits for any number of them.

The parameters of a GPU kernel (kind "cubin") are the addresses of its buffers, 64 bits each, and
then its variables, int64, in the order of `params` and `variables`, and then its tensor maps, 128
bytes each, in the order of `maps`. Its `launch` says how many blocks of how many threads run it.
"""

from __future__ import annotations

import json
import operator
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeAlias

from baregrad.base.errors import DeviceError, FileFormatError

# An integer, ("var", name), or (op, a, b) with op one of BINARY_OPS.
LaunchExpr: TypeAlias = int | tuple[Any, ...]

CPU_OBJECT = "cpu-object"
CUBIN = "cubin"
# Python's unbounded integers. By 0, which an extent of no elements is, quotient and rest are 0.
BINARY_OPS: MappingProxyType[str, Callable[[int, int], int]] = MappingProxyType({
    "add": operator.add,
    "mul": operator.mul,
    "floordiv": lambda a, b: a // b if b else 0,
    "mod": lambda a, b: a % b if b else 0,
    "max": max,
    "min": min,
})
ACCESSES = ("r", "w", "rw")
MAX_DEPTH = 64

_MAGIC = b"BGPROG\x00\x04"
_PREFIX = struct.Struct("<8sQQQ")


@dataclass(frozen=True, slots=True)
class ParamSpec:
    """One buffer that a program takes.

    `nbytes` is the least size of the buffer, or None where it is not known; `access` is "r", "w"
    or "rw".
    """

    name: str
    dtype_name: str
    nbytes: LaunchExpr | None
    access: str

    def __post_init__(self) -> None:
        if self.access not in ACCESSES:
            raise ValueError(f"access of {self.name!r} is {self.access!r}, not r, w or rw")
        if self.nbytes is not None:
            check(self.nbytes)

    @property
    def writes(self) -> bool:
        """Whether the program may write to the buffer."""
        return "w" in self.access


@dataclass(frozen=True, slots=True)
class Resources:
    """What one launch uses: scratch bytes of each thread, operations, bytes moved."""

    scratch_nbytes: LaunchExpr = 0
    flops: LaunchExpr = 0
    bytes_read: LaunchExpr = 0
    bytes_written: LaunchExpr = 0

    def __post_init__(self) -> None:
        for value in (self.scratch_nbytes, *self.work()):
            check(value)

    def work(self) -> tuple[LaunchExpr, LaunchExpr, LaunchExpr]:
        """Return operations, bytes read and bytes written: together, how much there is to do."""
        return (self.flops, self.bytes_read, self.bytes_written)


@dataclass(frozen=True, slots=True)
class GpuLaunch:
    """How many threads of a GPU run a program.

    `grid` blocks of `block` threads, (x, y, z) each; `cluster` neighbouring blocks along x run
    together; `shared_nbytes` is the dynamic shared memory of a block. `waits` promises that every
    thread waits for the kernel in front (`griddepcontrol.wait`) before it touches memory that
    others write, and before it ends: only such a kernel may begin before that one has ended.
    `early` are the places in `params` of buffers that it reads before it waits: it may begin early
    where no kernel in front writes them.
    """

    grid: tuple[LaunchExpr, LaunchExpr, LaunchExpr]
    block: tuple[int, int, int]
    cluster: int = 1
    shared_nbytes: int = 0
    waits: bool = False
    early: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.grid) != 3 or len(self.block) != 3:
            raise ValueError(f"a grid and a block have three sizes: {self.grid}, {self.block}")
        for value in self.grid:
            check(value)
        sizes = (*self.block, self.cluster, self.shared_nbytes + 1)
        whole = all(type(size) is int and size >= 1 for size in sizes)
        if not whole or type(self.waits) is not bool:
            raise ValueError(f"a launch has sizes that are none: {self}")
        if not all(type(place) is int and place >= 0 for place in self.early):
            raise ValueError(f"a launch reads early what has no place: {self}")


@dataclass(frozen=True, slots=True)
class MapSpec:
    """A tensor map: how a GPU's engine copies boxes of a buffer to shared memory.

    `param` is the buffer's place in `params`. All tuples have the innermost dimension first:
    `shape` and `box` count elements of `itemsize` bytes, `strides` the bytes from one index to the
    next of dimensions 1 and up. Rows lie exchanged within `swizzle` bytes, 0 for as they are.
    rounds: elements are float32, which are rounded to tfloat32 on their way. walk: `box` is so many
    elements at so many places, which the engine walks along: the corners that it walks between,
    low and high, and its steps, for each dimension but the first and the last.
    """

    param: int
    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    rounds: bool = False
    walk: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        rank = len(self.shape)
        ranks = (rank, len(self.strides) + 1, len(self.box) + (rank - 2 if self.walk else 0))
        sizes = (self.itemsize, *self.shape, *self.strides, *self.box)
        counts = all(type(size) is int and size >= 1 for size in sizes)
        others = (self.param, self.swizzle)
        plain = all(type(number) is int and number >= 0 for number in others)
        if len(set(ranks)) > 1 or not counts or not plain:
            raise ValueError(f"a tensor map of sizes that are none: {self}")
        if type(self.rounds) is not bool or (self.rounds and self.itemsize != 4):
            raise ValueError(f"a tensor map rounds what is no float32: {self}")
        lengths = [len(each) for each in self.walk]
        whole = all(type(number) is int for each in self.walk for number in each)
        if lengths not in ([], [rank - 2] * 3) or not whole:
            raise ValueError(f"a tensor map of a walk that is none: {self}")


# A variable that a PTX module declares in global memory, before its kernels or behind one: not a
# kernel's parameter, which may be said to point there.
_VARIABLE = r"(?m)^[ \t]*(?:\.(?:visible|extern|weak|common)\s+)*\.global\s+\."
# One that a text in CUDA C does: no function, which has parentheses behind its name.
_DEVICE_VARIABLE = r"\b__device__\b(?:\s*__\w+__(?:\([^()]*\))?)*[^(){};]*[;=\[{]"


@lru_cache(maxsize=512)
def _declares_variables(text: str) -> bool:
    """Whether a text in PTX or CUDA C does; each list that launches its kernel asks again."""
    if "__device__" in text and re.search(_DEVICE_VARIABLE, text) is not None:
        return True
    return re.search(_VARIABLE, text) is not None


@dataclass(frozen=True, slots=True)
class Program:
    """An executable and how to launch it.

    `code` is what the device loads (for "cpu-object" a relocatable ELF object) and `entry` the
    symbol in it. `params` are the buffers and `variables` the names of the symbolic integers
    (int64), both in the order of the call. `chunks` is the length of the parallel axis, 1 for a
    serial program; a GPU's program has a `launch` instead. `source` is the text that `code` was
    made from. `maps` are the tensor maps that a GPU's program takes.
    """

    name: str
    kind: str
    code: bytes
    entry: str
    params: tuple[ParamSpec, ...]
    variables: tuple[str, ...] = ()
    chunks: LaunchExpr = 1
    source: str = ""
    meta: Resources = field(default_factory=Resources)
    launch: GpuLaunch | None = None
    maps: tuple[MapSpec, ...] = ()

    def __post_init__(self) -> None:
        check(self.chunks)
        if any(spec.param >= len(self.params) for spec in self.maps):
            raise ValueError(f"program {self.name!r} has a tensor map of no buffer")
        if self.launch is not None and max(self.launch.early, default=-1) >= len(self.params):
            raise ValueError(f"program {self.name!r} reads early what is no buffer")
        if len(set(self.variables)) != len(self.variables):
            raise ValueError(f"program {self.name!r} names a variable twice: {self.variables}")
        wanted = set(self.variables)
        for expr in self.launch_exprs():
            missing = variables_of(expr) - wanted
            if missing:
                raise ValueError(f"program {self.name!r} uses undeclared {sorted(missing)}")

    def launch_exprs(self) -> tuple[LaunchExpr, ...]:
        """Return every launch expression of the program."""
        sizes = tuple(param.nbytes for param in self.params if param.nbytes is not None)
        grid = self.launch.grid if self.launch is not None else ()
        return (self.chunks, self.meta.scratch_nbytes, *self.meta.work(), *sizes, *grid)

    @property
    def keeps_variables(self) -> bool:
        """Whether the text that it was made from declares variables, which its launches share."""
        return self.kind == CUBIN and _declares_variables(self.source)

    def to_bytes(self) -> bytes:
        """Return the saved form: a prefix, a JSON header, the code and the source, raw."""
        header = {
            "name": self.name,
            "kind": self.kind,
            "entry": self.entry,
            "params": [[p.name, p.dtype_name, p.nbytes, p.access] for p in self.params],
            "variables": self.variables,
            "chunks": self.chunks,
            "meta": [self.meta.scratch_nbytes, *self.meta.work()],
            "launch": self.launch and astuple(self.launch),
            "maps": [astuple(spec) for spec in self.maps],
        }
        text = json.dumps(header, separators=(",", ":")).encode()
        source = self.source.encode()
        prefix = _PREFIX.pack(_MAGIC, len(text), len(self.code), len(source))
        return b"".join((prefix, text, self.code, source))

    @classmethod
    def from_bytes(cls, data: bytes) -> Program:
        """Return the program that `to_bytes` saved; raise FileFormatError for anything else."""
        try:
            return _parse(data)
        except (struct.error, ValueError, TypeError, KeyError, RecursionError) as error:
            if isinstance(error, FileFormatError):
                raise
            raise FileFormatError(
                f"a saved program is malformed ({error})", hint="delete it; it will be made again"
            ) from error


def evaluate(expr: LaunchExpr, bindings: Mapping[str, int]) -> int:
    """Return the value of a launch expression; raise DeviceError for an unbound variable.

    Integers are unbounded; floordiv and mod round towards minus infinity, and by 0 are 0.
    """
    if isinstance(expr, int):
        return expr
    op = expr[0]
    if op == "var":
        value = bindings.get(expr[1])
        if value is None:
            raise DeviceError(
                f"the variable {expr[1]!r} has no value",
                found=f"values for {sorted(bindings)}",
                hint="give its value when submitting",
            )
        return value
    return BINARY_OPS[op](evaluate(expr[1], bindings), evaluate(expr[2], bindings))


def substitute(expr: LaunchExpr, bindings: Mapping[str, int]) -> LaunchExpr:
    """Return the expression with the variables of `bindings` replaced; an int if none is left."""
    if isinstance(expr, int):
        return expr
    if expr[0] == "var":
        return bindings.get(expr[1], expr)
    left = substitute(expr[1], bindings)
    right = substitute(expr[2], bindings)
    made = (expr[0], left, right)
    if isinstance(left, int) and isinstance(right, int):
        return evaluate(made, bindings)
    return made


def variables_of(expr: LaunchExpr) -> frozenset[str]:
    """Return the names of the variables in a launch expression."""
    names = set()
    stack = [expr]
    while stack:
        top = stack.pop()
        if isinstance(top, int):
            continue
        if top[0] == "var":
            names.add(top[1])
        else:
            stack.extend(top[1:])
    return frozenset(names)


def check(expr: LaunchExpr) -> None:
    """Raise ValueError unless `expr` is a launch expression of at most MAX_DEPTH levels."""
    stack: list[tuple[Any, int]] = [(expr, 0)]
    while stack:
        top, depth = stack.pop()
        if depth > MAX_DEPTH:
            raise ValueError(f"a launch expression is deeper than {MAX_DEPTH} levels")
        if isinstance(top, int) and not isinstance(top, bool):
            continue
        if not isinstance(top, tuple) or not top:
            raise ValueError(f"{top!r} is no launch expression")
        if top[0] == "var" and len(top) == 2 and isinstance(top[1], str):
            continue
        if len(top) != 3 or not isinstance(top[0], str) or top[0] not in BINARY_OPS:
            raise ValueError(f"{top!r} is no launch expression")
        stack.append((top[1], depth + 1))
        stack.append((top[2], depth + 1))


def _parse(data: bytes) -> Program:
    magic, header_size, code_size, source_size = _PREFIX.unpack_from(data)
    if magic != _MAGIC:
        raise FileFormatError("not a saved program", found=magic, wanted=_MAGIC)
    total = _PREFIX.size + header_size + code_size + source_size
    if total != len(data):
        raise FileFormatError("a saved program has the wrong size", found=len(data), wanted=total)
    code_at = _PREFIX.size + header_size
    header = json.loads(data[_PREFIX.size : code_at])
    texts = (header["name"], header["kind"], header["entry"], *header["variables"])
    for name, dtype_name, _, access in header["params"]:
        texts += (name, dtype_name, access)
    if not all(isinstance(text, str) for text in texts):
        raise FileFormatError("a saved program has a name that is no text")
    params = tuple(
        ParamSpec(name, dtype_name, None if nbytes is None else _tuples(nbytes), access)
        for name, dtype_name, nbytes, access in header["params"]
    )
    return Program(
        name=header["name"],
        kind=header["kind"],
        code=bytes(data[code_at : code_at + code_size]),
        entry=header["entry"],
        params=params,
        variables=tuple(header["variables"]),
        chunks=_tuples(header["chunks"]),
        source=str(data[code_at + code_size :], "utf-8"),
        meta=Resources(*(_tuples(value) for value in header["meta"])),
        launch=_launch(header["launch"]),
        maps=tuple(map(_map_spec, header["maps"])),
    )


def _map_spec(value: Any) -> MapSpec:
    param, itemsize, shape, strides, box, swizzle, rounds, walk = value
    sizes = (tuple(shape), tuple(strides), tuple(box))
    return MapSpec(param, itemsize, *sizes, swizzle, rounds, tuple(map(tuple, walk)))


def _launch(value: Any) -> GpuLaunch | None:
    if value is None:
        return None
    grid, block, cluster, shared_nbytes, waits, early = value
    sizes: Any = tuple(map(_tuples, grid))
    return GpuLaunch(sizes, tuple(block), cluster, shared_nbytes, waits, tuple(early))


def _tuples(value: Any) -> LaunchExpr:
    """Return a launch expression read from JSON, which has lists where we have tuples.

    Whatever else the file says is left for `check` to refuse.
    """
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    result: LaunchExpr = value
    return result
