"""How loads and stores address memory: affine parts told apart once per access."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from baregrad.base.bits import is_power_of_two
from baregrad.base.errors import CompilerBug
from baregrad.dtypes import DType, dtypes
from baregrad.ir import index
from baregrad.ir.attrs import TILE_BINDS, Access, Reg
from baregrad.ir.bounds import bounds
from baregrad.ir.node import NO_RANGES, Node, extent_of, toposort_having
from baregrad.ir.op import Ops
from baregrad.kernel.loop_pieces import is_plain, values_below

Terms = tuple[tuple[Node, int], ...]
MOST_NARROW = 1 << 31
_INDEX = dtypes.index
_LOADS = Ops.LOAD.bit
_PRODUCTS = Ops.MMA.bit
_ACCESSES = _LOADS | Ops.STORE.bit | Ops.COPYTO.bit
# Kernels have the same few attributes over and over: finding one costs less than making it.
access_of = lru_cache(1 << 12)(Access)
register_of = lru_cache(1 << 10)(Reg)


class Address:
    """The flat offset of an access, in elements, split by what it depends on.

    offset = constant + sum(scale * unrolled range) + sum(scale * fixed atom) + sum(scale * point
    atom) + stride * vector range + sum(scale * lane atom). A fixed atom depends on no tile range, a
    point atom on unrolled ones in a way that is not affine, a lane atom likewise on the vector
    range `vector` of `width` lanes. `group` numbers the equal `fixed` parts of a kernel.
    """

    __slots__ = (
        "constant",
        "fits_registers",
        "fixed",
        "group",
        "is_narrow",
        "lanes",
        "points",
        "rows",
        "stride",
        "unrolled",
        "vector",
        "width",
    )

    def __init__(self, terms: dict[Node, int], constant: int) -> None:
        unrolled: list[tuple[Node, int]] = []
        fixed: list[tuple[Node, int]] = []
        points: list[tuple[Node, int]] = []
        lanes: list[tuple[Node, int]] = []
        stride = 0
        vector: Node | None = None
        for atom, scale in terms.items():
            if not scale:
                continue
            kind, axis = _kind(atom)
            if axis is not None:
                if vector is not None and vector is not axis:
                    raise CompilerBug("an access with two vector ranges", found=list(terms))
                vector = axis
            if kind == _VECTOR:
                stride += scale
            else:
                (fixed, unrolled, points, lanes)[kind].append((atom, scale))
        width = 1 if vector is None else lanes_of(vector)
        if width == 1:
            # One lane is no vector.
            fixed += lanes
            lanes, stride, vector = [], 0, None
        self.constant = constant
        self.unrolled = tuple(unrolled)
        self.fixed = tuple(fixed)
        self.group = 0
        self.points = tuple(points)
        self.stride = stride
        self.lanes = tuple(lanes)
        self.vector = vector
        self.width = width
        # Whether the access names whole registers: only tile ranges move it, each affinely, and
        # lanes are adjacent and aligned.
        self.fits_registers = not (fixed or points or lanes) and stride == (width > 1)
        if width > 1 and self.fits_registers:
            steps = [constant, *[scale for _, scale in unrolled]]
            self.fits_registers = not any(step % width for step in steps)
        self.is_narrow = False
        # The places along the axes that were asked for last.
        self.rows: tuple[tuple[Node, ...], tuple[int, ...]] | None = None

    def is_regular(self, lanes: int) -> bool:
        """Whether `lanes` lanes lie a constant number of elements apart."""
        return not self.lanes and lanes == max(self.width, 1)

    @property
    def is_scattered(self) -> bool:
        """Whether lanes are not side by side in memory."""
        return self.width > 1 and (bool(self.lanes) or self.stride not in (0, 1))

    def is_even(self, lanes: int) -> bool:
        """Whether the offset is a multiple of `lanes`, but for its constant and its lanes."""
        parts = (*self.fixed, *self.points, *self.unrolled)
        return all(scale % lanes == 0 for _, scale in parts)

    def measure(self) -> None:
        """Find out whether the offset and all its parts fit 32 bits."""
        far = abs(self.constant) + abs(self.stride) * self.width
        for atom, scale in (*self.fixed, *self.points, *self.unrolled, *self.lanes):
            low, high = bounds(atom)
            far += abs(scale) * max(abs(low), abs(high))
        self.is_narrow = far < MOST_NARROW

    def at(self, point: Mapping[Node, int]) -> int:
        """The constant part of the offset at a point of the unrolled ranges."""
        total = self.constant
        for axis, scale in self.unrolled:
            total += scale * point[axis]
        return total

    def places(self, axes: tuple[Node, ...]) -> tuple[int, ...]:
        """What points along unrolled axes add to the constant part, the first varying slowest."""
        known = self.rows
        if known is not None and known[0] == axes:
            return known[1]
        scales = dict(self.unrolled)
        found = [0]
        for axis in axes:
            moves = [scales.get(axis, 0) * step for step in range(lanes_of(axis))]
            found = [place + move for place in found for move in moves]
        rows = tuple(found)
        self.rows = (axes, rows)
        return rows


_FIXED, _UNROLLED, _POINT, _LANES, _VECTOR = range(5)


def _kind(atom: Node) -> tuple[int, Node | None]:
    """How an atom moves an offset, and the vector range that it depends on."""
    if atom.op is Ops.RANGE:
        bind = atom.arg.bind
        if bind not in TILE_BINDS:
            return _FIXED, None
        return (_VECTOR, atom) if bind == "vector" else (_UNROLLED, None)
    vector: Node | None = None
    kind = _FIXED
    for axis in atom.ranges:
        if axis.arg.bind == "vector":
            if vector is not None:
                raise CompilerBug("an index with two vector ranges", found=atom)
            vector = axis
        elif axis.arg.bind in TILE_BINDS:
            kind = _POINT
    return (kind, None) if vector is None else (_LANES, vector)


def analyse(buffer: Node, indices: tuple[Node, ...]) -> Address:
    """The address of element `indices` of `buffer`, row-major over its shape."""
    shape = buffer.shape
    if len(shape) != len(indices):
        raise CompilerBug("as many indices as axes are wanted", found=indices, wanted=shape)
    if len(indices) == 1:
        return Address(*index.linear(indices[0]))
    return Address(*index.flat_terms(indices, shape))


def lanes_of(axis: Node) -> int:
    """The extent of a tile range; raises CompilerBug if it is not constant."""
    extent = extent_of(axis)
    if not isinstance(extent, int):
        raise CompilerBug("a tile range needs a constant extent", found=axis)
    return extent


class Request(NamedTuple):
    """What each iteration of a loop asks for: so many `elements` of `array`.

    The first iteration's begin `first` after the sum of `row`, the scaled atoms of an address.
    """

    array: Node
    row: Terms
    first: int
    elements: int


class Memory:
    """What a kernel does to buffers: those it writes, and the ALLOCs that can be registers.

    written, again: what some statement writes, and what several do.
    addresses: of each LOAD and STORE. registers: lanes of each register of an ALLOC. loads: the
    LOADs of each buffer. single: no more than one argument is written. That one may lie over an
    argument that is read, element by element, so a load must not pass the write of another.
    ahead: the accesses that ask for what comes after them, and by how many bytes. requests: what
    each iteration of a loop asks for, by the name of its axis.
    """

    def __init__(self, kernel: Node, gpu: bool = False) -> None:
        self.addresses: dict[Node, Address] = {}
        self.written: set[Node] = set()
        self.again: set[Node] = set()
        self.registers: dict[Node, int] = {}
        self.loads: dict[Node, list[Node]] = {}
        refused: set[Node] = set()
        known: dict[Any, Address] = {}
        groups: dict[Terms, int] = {}
        # Of what is plain nobody else asks for more than the accesses.
        plain = is_plain(kernel)
        order = toposort_having(_ACCESSES, *kernel.src) if plain else values_below(kernel)
        for node in order:
            bit = node.op.bit
            if not bit & _ACCESSES:
                if bit & _PRODUCTS:
                    # A tile is written by what multiplies, without a STORE.
                    self.written.add(node.src[0].src[0])
                    self.again.add(node.src[0].src[0])
                continue
            buffer = node.src[0]
            if bit & _LOADS:
                indices = node.src[1:]
                self.loads.setdefault(buffer, []).append(node)
            else:
                indices = node.src[2:]
                if buffer in self.written:
                    self.again.add(buffer)
                self.written.add(buffer)
            key = (buffer.shape, indices)
            address = known.get(key)
            if address is None:
                address = known[key] = analyse(buffer, indices)
                address.group = groups.setdefault(address.fixed, len(groups))
                if gpu:
                    address.measure()
            self.addresses[node] = address
            if buffer.op is Ops.ALLOC and buffer.arg.space == "register" and buffer not in refused:
                width = address.width
                if address.fits_registers and self.registers.get(buffer, width) == width:
                    self.registers[buffer] = width
                else:
                    refused.add(buffer)
                    self.registers.pop(buffer, None)

        self.requests: dict[str, list[Request]] = {}
        self.ahead = _asking(self.addresses, self.written, self.requests)
        self.single = sum(1 for buffer in self.written if buffer.op is Ops.PARAM) <= 1

    def reads_elsewhere(self, store: Node, axes: tuple[Node, ...]) -> bool:
        """Whether a store's value reads elements of its buffer that another point may write."""
        loads = self.loads.get(store.src[0])
        if loads is None:
            return False
        position = store.src[2:]
        moved = NO_RANGES.union(*[place.ranges for place in position])
        if moved.issuperset(axes):
            loads = [load for load in loads if load.src[1:] != position]
        if not loads:
            return False
        below = set(toposort_having(Ops.LOAD.bit, store.src[1]))
        return not below.isdisjoint(loads)


def _asking(
    addresses: Mapping[Node, Address],
    written: set[Node],
    requests: dict[str, list[Request]],
) -> dict[Node, int]:
    """Of each array that is asked for ahead of time, an access inside the most loops.

    Of those it is the last one, but of an argument that is written the first write: from then on
    its lines are there. Where loops take shares of an array, `requests` has them instead.
    """
    found: dict[Node, tuple[int, Node]] = {}
    shared: dict[Node, list[Address]] = {}
    for node, address in addresses.items():
        buffer = node.src[0]
        if not buffer.arg.ahead:
            continue
        if buffer.op is Ops.PARAM and buffer.arg.shares:
            shared.setdefault(buffer, []).append(address)
            continue
        if address.stride == 1 and not address.lanes:
            stored = buffer.op is Ops.PARAM and buffer in written
            loops = len(address.fixed)
            most = found[buffer][0] if buffer in found else -1
            if (loops > most or (loops == most and not stored)) and (
                (node.op is Ops.LOAD) is not stored
            ):
                found[buffer] = (loops, node)
    for buffer, uses in shared.items():
        # What all accesses have in common is where a row begins.
        common = frozenset.intersection(*[frozenset(address.fixed) for address in uses])
        row = tuple([term for term in uses[0].fixed if term in common])
        first = min(address.constant for address in uses)
        size = buffer.dtype.itemsize
        for name, begin, nbytes in buffer.arg.shares:
            request = Request(buffer, row, first + begin // size, nbytes // size)
            requests.setdefault(name, []).append(request)
    return {node: node.src[0].arg.ahead for _, node in found.values()}


def is_streamed(buffer: Node) -> bool:
    """Whether what is written to the buffer goes past the caches."""
    return buffer.op is Ops.PARAM and buffer.arg.streamed


def streamed_nbytes(lanes: int, dtype: DType) -> int:
    """Bytes of a vector that may be streamed to its own place; of an element for odd ones."""
    nbytes = lanes * dtype.itemsize
    return nbytes if is_power_of_two(nbytes) else dtype.itemsize


def touches_index(node: Node) -> bool:
    """Whether a node computes with positions."""
    return node.dtype is _INDEX or node.src[-1].dtype is _INDEX
