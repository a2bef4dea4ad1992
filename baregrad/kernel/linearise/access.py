"""How loads and stores address memory: each offset is split into affine parts once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from baregrad.base.bits import is_power_of_two
from baregrad.base.errors import CompilerBug
from baregrad.dtypes import DType, dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import MOST_RUNS, Access, Reg, run_of
from baregrad.ir.core.axes import TILE_BINDS
from baregrad.ir.core.bounds import bounds
from baregrad.ir.core.node import NO_RANGES, Node, const, instruction, toposort_having
from baregrad.ir.core.op import Ops, mask_of
from baregrad.ir.core.substitution import substitute
from baregrad.kernel.loops.loop_pieces import is_plain, nodes_having, values_below

Terms = tuple[tuple[Node, int], ...]
MOST_NARROW = 1 << 31
PAGE_NBYTES = 4096
_INDEX = dtypes.index
_RANGE, _LOAD, _ALLOC = Ops.RANGE, Ops.LOAD, Ops.ALLOC
_PRODUCTS = Ops.MMA.bit
_ACCESSES = frozenset((Ops.LOAD, Ops.STORE, Ops.COPYTO))
_HOLD_ACCESSES = mask_of(_ACCESSES)
# Kernels have the same few attributes over and over: finding one costs less than making it.
access_of = lru_cache(1 << 12)(Access)


class Address:
    """The flat offset of an access, in elements, split by what it depends on.

    offset = constant + sum(scale * unrolled range) + sum(scale * fixed atom) + sum(scale * point
    atom) + stride * vector range + sum(scale * lane atom). A fixed atom depends on no tile range, a
    point atom on unrolled ones in a way that is not affine, a lane atom likewise on the vector
    range `vector` of `width` lanes. `group` numbers the equal `fixed` parts of a kernel.
    """

    __slots__ = (
        "_order", "constant", "fixed", "group", "is_narrow", "lanes", "points", "rows", "stride",
        "unrolled", "vector", "width",
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
            if atom.op is not _RANGE:
                kind, axis = _kind(atom)
                (fixed, points, lanes)[kind].append((atom, scale))
            else:
                bind = atom.arg.bind
                if bind not in TILE_BINDS:
                    fixed.append((atom, scale))
                    continue
                if bind != "vector":
                    unrolled.append((atom, scale))
                    continue
                stride += scale
                axis = atom
            if axis is not None:
                if vector is not None and vector is not axis:
                    raise CompilerBug("an access with two vector ranges", found=list(terms))
                vector = axis
        width = 1 if vector is None else lanes_of(vector)
        if width == 1 and vector is not None:
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
        self.is_narrow = False
        self._order: tuple[int, tuple[int, ...]] | None = None
        # The places along the axes that were asked for last.
        self.rows: tuple[tuple[Node, ...], tuple[int, ...]] | None = None

    def fits_registers(self) -> bool:
        """Whether the access names whole registers.

        Only tile ranges move it, each affinely, and lanes are adjacent and aligned.
        """
        width = self.width
        if self.fixed or self.points or self.lanes or self.stride != (width > 1):
            return False
        if width == 1:
            return True
        return not (self.constant % width or any(scale % width for _, scale in self.unrolled))

    def is_regular(self, lanes: int) -> bool:
        """Whether the distance between neighbours of `lanes` lanes is constant."""
        return not self.lanes and lanes == max(self.width, 1)

    @property
    def is_scattered(self) -> bool:
        """Whether lanes are not side by side in memory."""
        return self.width > 1 and (bool(self.lanes) or self.stride not in (0, 1))

    def order(self, unit: int) -> tuple[int, tuple[int, ...]]:
        """Where few neighbours of `unit` elements begin, and where from there each lane reads.

        Or few runs of neighbours, or of one, that lie apart.

        () where lanes read anything else, or neighbours in their order.
        """
        if self._order is None:
            self._order = _order_of(self, unit)
        return self._order

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

    def strays(self, array: Node) -> bool:
        """Whether lanes that a mask leaves out may lie pages away from an argument."""
        if array.op is not Ops.PARAM or self.lanes or abs(self.stride) != 1:
            return False
        low, high = self.constant, self.constant + self.width
        if self.stride < 0:
            low, high = self.constant - self.width, self.constant
        for atom, scale in (*self.fixed, *self.points, *self.unrolled):
            ends = [scale * end for end in bounds(atom)]
            low, high = low + min(ends), high + max(ends)
        size = index.product(array.shape)
        least = size if isinstance(size, int) else bounds(size)[0]
        room = PAGE_NBYTES // array.dtype.itemsize
        return low < -room or high > least + room

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
        found: Sequence[int] = (0,)
        for axis in axes:
            size, scale = lanes_of(axis), scales.get(axis, 0)
            moves = range(0, scale * size, scale) if scale else (0,) * size
            found = moves if len(found) == 1 else [p + move for p in found for move in moves]
        rows = tuple(found)
        self.rows = (axes, rows)
        return rows

    def layout(self, axes: tuple[Node, ...]) -> tuple[int, tuple[int, ...]]:
        """Where the points along unrolled axes begin, and their places from there."""
        return self.constant, self.places(axes)


_NONE: tuple[int, tuple[int, ...]] = (0, ())


def _order_of(address: Address, unit: int) -> tuple[int, tuple[int, ...]]:
    vector, width = address.vector, address.width
    atoms = [atom for atom, _ in address.lanes]
    if vector is None or any(atom.ranges != {vector} or atom.has(_LOAD) for atom in atoms):
        return _NONE
    found = []
    for lane in range(width):
        place = {vector: const(lane, _INDEX)}
        parts = [(index.linear(substitute(atom, place)), scale) for atom, scale in address.lanes]
        if any(terms for (terms, _), _ in parts):
            return _NONE
        found.append(address.stride * lane + sum(at * scale for (_, at), scale in parts))
    first = min(found)
    order = tuple([place - first for place in found])
    is_near = max(order) < width * unit and not any(place % unit for place in order)
    is_near = is_near or run_of(order, unit) * MOST_RUNS >= width
    return (first, order) if max(order) and is_near else _NONE


_FIXED, _POINT, _LANES = range(3)


def _kind(atom: Node) -> tuple[int, Node | None]:
    """How an atom that is no range moves an offset, and the vector range that it depends on."""
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
    extent = axis.src[0]
    if extent.op is not Ops.CONST:
        raise CompilerBug("a tile range needs a constant extent", found=axis)
    size: int = extent.arg
    return size


@lru_cache(1 << 10)
def register_of(number: int, dtype: DType, width: int, rows: int) -> Node:
    """The `number`-th register of a kernel; a tile of `rows` of them, if not 0."""
    shape = (rows, width) if rows else (width,) if width > 1 else ()
    return instruction(Ops.REG, dtype, (), Reg(number, width, rows), shape)


class PrefetchRequest(NamedTuple):
    """What each iteration of a loop prefetches: a number of `elements` of `array`.

    The first iteration's begin `first` after the sum of `row`, the scaled atoms of an address.
    """

    array: Node
    row: Terms
    first: int
    elements: int


class MemoryUse:
    """What a kernel does to buffers: those it writes, and the ALLOCs that can be registers.

    read, written, again: what some LOAD reads, what some statement writes, and what several do.
    addresses: of each LOAD and STORE. registers: lanes of each register of an ALLOC. single: no
    more than one argument is written. That one may lie over an argument that is read, element by
    element, so a load must not pass the write of another.
    ahead: the accesses that ask for what comes after them, and by how many bytes. requests: what
    each iteration of a loop asks for, by the name of its axis.
    """

    def __init__(self, kernel: Node, gpu: bool = False) -> None:
        self.addresses = addresses = dict[Node, Address]()
        self.read = read = set[Node]()
        self.written = written = set[Node]()
        self.again = again = set[Node]()
        self.registers = registers = dict[Node, int]()
        refused: set[Node] = set()
        asks = False
        known: dict[Any, Address] = {}
        groups: dict[Terms, int] = {}
        # Of what is plain nobody else asks for more than the accesses.
        plain = is_plain(kernel)
        nodes = nodes_having(_HOLD_ACCESSES, kernel.src) if plain else values_below(kernel)
        if kernel.mask & _PRODUCTS:
            # A tile is written by what multiplies, without a STORE.
            again.update([node.src[0].src[0] for node in nodes if node.op.bit & _PRODUCTS])
            written |= again
        for node in nodes:
            op = node.op
            if op not in _ACCESSES:
                continue
            src = node.src
            buffer = src[0]
            if op is Ops.COPYTO and node.arg.box is not None:
                written.add(buffer)
                continue
            if op is _LOAD:
                indices = src[1:]
                read.add(buffer)
            else:
                indices = src[2:]
                if buffer in written:
                    again.add(buffer)
                written.add(buffer)
            key = (buffer.shape, indices)
            address = known.get(key)
            if address is None:
                address = known[key] = analyse(buffer, indices)
                address.group = groups.setdefault(address.fixed, len(groups))
                if gpu:
                    address.measure()
            addresses[node] = address
            asks = asks or buffer.arg.ahead > 0
            if buffer.op is _ALLOC and buffer.arg.space == "register" and buffer not in refused:
                width = address.width
                if address.fits_registers() and registers.get(buffer, width) == width:
                    registers[buffer] = width
                else:
                    refused.add(buffer)
                    registers.pop(buffer, None)
        self.requests: dict[str, list[PrefetchRequest]] = {}
        self.ahead: dict[Node, int] = {}
        if asks:
            ordered = toposort_having(_HOLD_ACCESSES, *kernel.src)
            asking = [node for node in ordered if node in addresses and node.src[0].arg.ahead]
            self.ahead = _asking(asking, addresses, written, self.requests)
        self.single = len([one for one in written if one.op is Ops.PARAM]) <= 1

    def reads_elsewhere(
        self, store: Node, axes: tuple[Node, ...], masks: tuple[Node, ...] = ()
    ) -> bool:
        """Whether a store reads elements of its buffer that another point may write.

        What it reads is its value's and that of the conditions that it is under, `masks`.
        """
        buffer = store.src[0]
        if buffer not in self.read:
            return False
        loads = [one for one in self.addresses if one.src[0] is buffer and one.op is _LOAD]
        position = store.src[2:]
        moved = NO_RANGES.union(*[place.ranges for place in position])
        if moved.issuperset(axes):
            loads = [load for load in loads if load.src[1:] != position]
        if not loads:
            return False
        below = nodes_having(Ops.LOAD.bit, (store.src[1], *masks))
        return not set(loads).isdisjoint(below)


def _asking(
    accesses: Sequence[Node],
    addresses: Mapping[Node, Address],
    written: set[Node],
    requests: dict[str, list[PrefetchRequest]],
) -> dict[Node, int]:
    """Of each array that is asked for ahead of time, one of its `accesses`, inside the most loops.

    Of those it is the last one, but of an argument that is written the first write: from then on
    its lines are there. Where loops take shares of an array, `requests` has them instead.
    """
    found: dict[Node, tuple[int, Node]] = {}
    shared: dict[Node, list[Address]] = {}
    for node in accesses:
        buffer, address = node.src[0], addresses[node]
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
        # What all accesses have in common is where a row begins; what lies behind it was read with
        # an earlier one.
        uses = [address for address in uses if address.constant >= 0] or uses
        common = frozenset.intersection(*[frozenset(address.fixed) for address in uses])
        asking = [name for name, _, _ in buffer.arg.shares]
        row = tuple([
            term for term in uses[0].fixed
            if term in common and not (term[0].op is _RANGE and term[0].arg.axis in asking)
        ])
        first = min(address.constant for address in uses)
        size = buffer.dtype.itemsize
        for name, begin, nbytes in buffer.arg.shares:
            request = PrefetchRequest(buffer, row, first + begin // size, nbytes // size)
            requests.setdefault(name, []).append(request)
    return {node: node.src[0].arg.ahead for _, node in found.values()}


def is_streamed(buffer: Node) -> bool:
    """Whether the buffer is written by non-temporal stores."""
    return buffer.op is Ops.PARAM and buffer.arg.streamed


def vector_nbytes(lanes: int, dtype: DType) -> int:
    """Bytes of a vector that addresses may be multiples of; of an element for odd ones."""
    nbytes = lanes * dtype.itemsize
    return nbytes if is_power_of_two(nbytes) else dtype.itemsize


def touches_index(node: Node) -> bool:
    """Whether a node computes with positions."""
    return node.dtype is _INDEX or node.src[-1].dtype is _INDEX
