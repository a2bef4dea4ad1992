"""What the verifier asks of single nodes: dtypes, attributes, and how sources fit, op by op."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from baregrad.dtypes import DType, dtypes
from baregrad.ir.analysis.words import PRODUCTS, TILE
from baregrad.ir.core.attrs import Out, Scatter
from baregrad.ir.core.axes import BINDS
from baregrad.ir.core.bounds import bounds
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import (
    ATOMIC,
    COMPARE,
    INTEGERS,
    MOVEMENT,
    STATEMENTS,
    WORD_PRODUCTS,
    Column,
    Op,
    Ops,
)

NODE_RULES: Column[Callable[[Node, str], str | None]] = Column("rule of the verifier")

# --- sources -----------------------------------------------------------------------------------

_RANGES = frozenset((Ops.RANGE,))
# Which ops the sources may be of, None for any; the last set is that of all sources that follow.
_SOURCES: MappingProxyType[Op, tuple[frozenset[Op] | None, ...]] = MappingProxyType({
    Ops.PROJ: (frozenset((Ops.REDUCE, Ops.SCAN)),),
    Ops.STAGE: (None, _RANGES),
    **dict.fromkeys((Ops.INDEX, Ops.LOAD), (frozenset((Ops.PARAM, Ops.STAGE, Ops.ALLOC)), None)),
    Ops.OUT: (frozenset((Ops.PARAM,)), None),
    Ops.STORE: (frozenset((Ops.PARAM, Ops.ALLOC)), None),
    # At the kernel level no statement is legal, below it no OUT.
    Ops.KERNEL: (STATEMENTS | {Ops.OUT},),
    **dict.fromkeys((Ops.SEQ, Ops.ROLE), (STATEMENTS,)),
    Ops.LOOP: (_RANGES, STATEMENTS),
    Ops.IF: (None, STATEMENTS),
    Ops.PIPE: (frozenset((Ops.ALLOC,)),),
    **dict.fromkeys(
        (Ops.ACQUIRE, Ops.COMMIT, Ops.WAIT, Ops.RELEASE, Ops.DRAIN),
        (frozenset((Ops.PIPE,)), None),
    ),
})  # fmt: skip
_CONDITIONAL = frozenset((Ops.GUARD, Ops.IF))
_WRITES = frozenset((Ops.OUT, Ops.STORE, Ops.SCATTER))
# Which source has the dtype of the value.
_SAME_DTYPE: MappingProxyType[Op, int] = MappingProxyType({
    **dict.fromkeys(MOVEMENT, 0),
    **dict.fromkeys((
        Ops.CONTIGUOUS, Ops.DETACH, Ops.COPY, Ops.CONVERT, Ops.FOLD, Ops.GATHER, Ops.SCATTER,
        Ops.INDEX, Ops.LOAD, Ops.STAGE,
    ), 0),
    Ops.GUARD: 1,
    Ops.SORT: -1,
})  # fmt: skip


def _is_several(node: Node) -> bool:
    """Whether a node reads neighbours of an array at once, as one unsigned integer."""
    if node.op is not Ops.LOAD or node.dtype.kind != "uint":
        return False
    narrow = node.src[0].dtype
    return narrow.kind == "uint" and node.dtype.bits > narrow.bits


def sources_fault(node: Node) -> str | None:
    """What is wrong with the ops and the dtypes of a node's sources, as far as tables say it."""
    op, src = node.op, node.src
    wanted = _SOURCES.get(op, (None,))
    for place, child in enumerate(src):
        ops = wanted[min(place, len(wanted) - 1)]
        if ops is not None and child.op not in ops:
            names = "a statement" if ops >= STATEMENTS else ", ".join(sorted(map(repr, ops)))
            return f"{op.name} of {child.op.name}, wanted {names}"
    if op in _CONDITIONAL and src[0].dtype is not dtypes.bool:
        return f"{op.name} by {src[0].dtype}, wanted bool"
    if op in _WRITES and src[1].dtype is not src[0].dtype:
        return f"{op.name} of {src[1].dtype} into {src[0].dtype}"
    same = _SAME_DTYPE.get(op)
    if same is not None and src[same].dtype is not node.dtype and not _is_several(node):
        return f"{op.name} of {src[same].dtype} has dtype {node.dtype}"
    return None


# --- elementwise -------------------------------------------------------------------------------

_ONE_KIND = MappingProxyType(
    {Ops.THREEFRY: dtypes.uint64, **dict.fromkeys(WORD_PRODUCTS, dtypes.int32)}
)


def elementwise_rule(op: Op, dtype: DType, operands: tuple[DType, ...]) -> str | None:
    """Operands of one dtype that the op computes with; WHERE chooses by a bool."""
    if op is Ops.CAST:
        return "CAST of an effect" if dtypes.token in (operands[0], dtype) else None
    if op is Ops.BITCAST:
        return _bitcast(operands[0], dtype)
    if op is Ops.DOT2:
        found = (*operands, dtype)
        if found == (dtypes.int32, dtypes.int32, dtypes.float32, dtypes.float32):
            return None
        return f"DOT2 of {', '.join(map(str, found[:3]))}, wanted two int32 and a float32"
    if op is Ops.WHERE:
        if operands[0] is not dtypes.bool:
            return f"{op.name} by {operands[0]}, wanted bool"
        operands = operands[1:]
    kind = operands[0]
    if any(operand is not kind for operand in operands):
        return f"{op.name} of {', '.join(map(str, operands))}: they must be one dtype"
    wanted = dtypes.bool if op in COMPARE else kind
    if dtype is not wanted:
        return f"{op.name} of {kind} has dtype {dtype}, wanted {wanted}"
    if kind.kind not in op.kinds or _ONE_KIND.get(op, kind) is not kind:
        return f"{op.name} does not compute with {kind}"
    if kind.storage_only and op is not Ops.WHERE:
        return f"{op.name} of {kind}, which is stored and cast but not computed with"
    return None


def _bitcast(source: DType, target: DType) -> str | None:
    if not source.bits or source.bits != target.bits:
        return f"BITCAST of {source} to {target}: the sizes differ"
    return None


@NODE_RULES(Ops.LOOKUP)
def _lookup(node: Node, level: str) -> str | None:
    place, length = node.src[0].dtype, len(node.arg)
    if place.kind != "uint" or node.dtype.kind != "float" or node.dtype.storage_only:
        return f"LOOKUP of {node.dtype} at {place}, wanted floats at an unsigned integer"
    if not length or length & (length - 1):
        return f"LOOKUP in a table of {length} numbers, wanted a power of two"
    return None


# --- leaves ------------------------------------------------------------------------------------


@NODE_RULES(Ops.CONST)
def _const(node: Node, level: str) -> str | None:
    value, kind = node.arg, node.dtype.kind
    wanted = {"bool": bool, "float": float}.get(kind, int)
    if type(value) is not wanted:
        return f"a constant of {node.dtype} holds a {type(value).__name__}"
    if kind in ("int", "uint") and not node.dtype.min <= value <= node.dtype.max:
        return f"{value} does not fit {node.dtype}"
    return None


@NODE_RULES(Ops.PARAM)
def _param(node: Node, level: str) -> str | None:
    if node.arg.slot < 0:
        return f"argument number {node.arg.slot}"
    return _stored(node.dtype) or _extents(node)


def _stored(dtype: DType) -> str | None:
    return None if dtype.bits else f"an array of {dtype}, which is never stored"


@NODE_RULES(Ops.BUFFER, Ops.RESHAPE, Ops.PERMUTE, Ops.EXPAND)
def _extents(node: Node, level: str = "") -> str | None:
    for extent in node.shape:
        if isinstance(extent, Node):
            if extent.dtype is not dtypes.index:
                return f"an extent of dtype {extent.dtype}, wanted index"
        elif extent < 0:
            return f"a negative extent in {list(node.shape)}"
    return None


@NODE_RULES(Ops.VAR)
def _var(node: Node, level: str) -> str | None:
    # The machine's own variables, such as the bounds of a chunk, are machine integers.
    machine = level == "linear" and node.dtype in (dtypes.int32, dtypes.int64)
    if node.dtype is not dtypes.index and not machine:
        return f"a variable of dtype {node.dtype}, wanted index"
    return None if node.arg.lo <= node.arg.hi else f"empty bounds of the variable {node.arg.name}"


@NODE_RULES(Ops.IOTA)
def _iota(node: Node, level: str) -> str | None:
    if (node.arg is None) == (not node.src):
        return "IOTA takes its extent from its attribute or from its source, not both"
    if node.src and node.src[0].dtype is not dtypes.index:
        return "IOTA's extent must be an index"
    return "IOTA of bool" if node.dtype.kind == "bool" else _extents(node)


@NODE_RULES(Ops.RANGE)
def _range(node: Node, level: str) -> str | None:
    if node.dtype is not dtypes.index or node.src[0].dtype is not dtypes.index:
        return "a RANGE and its extent have dtype index"
    if node.arg.bind not in BINDS:
        return f"a RANGE bound to {node.arg.bind!r}, wanted one of {', '.join(BINDS)}"
    if node.src[0].ranges and level == "kernel":
        return "a RANGE whose extent depends on another range"
    return "a RANGE of negative extent" if bounds(node.src[0])[1] < 0 else None


# --- tensor level ------------------------------------------------------------------------------


def _axes_fault(axes: tuple[int, ...], rank: int) -> str | None:
    if len(set(axes)) != len(axes) or any(not 0 <= axis < rank for axis in axes):
        return f"axes {list(axes)} of an array of {rank} axes"
    return None


@NODE_RULES(Ops.FLIP)
def _flip(node: Node, level: str) -> str | None:
    return _axes_fault(node.arg, len(node.src[0].shape))


@NODE_RULES(Ops.PAD)
def _pad(node: Node, level: str) -> str | None:
    for pad in node.arg:
        if pad.interior < 0 or any(isinstance(e, int) and e < 0 for e in (pad.lo, pad.hi)):
            return f"a negative pad {pad}"
    return _extents(node)


@NODE_RULES(Ops.SHRINK)
def _shrink(node: Node, level: str) -> str | None:
    if any(cut.step < 1 for cut in node.arg):
        return "SHRINK with a step below 1"
    return _extents(node)


@NODE_RULES(Ops.WINDOW, Ops.FOLD)
def _window(node: Node, level: str) -> str | None:
    window = node.arg
    if min(window.taps, window.stride, window.dilation) < 1:
        return f"taps, stride and dilation must be positive in {window}"
    if node.op is Ops.FOLD:
        fault = _fold(node)
        if fault is not None:
            return fault
    return _extents(node)


def _fold(node: Node) -> str | None:
    window, shape = node.arg, node.src[0].shape
    positions = shape[window.axis]
    if shape[-1] != window.taps:
        return f"FOLD of {shape[-1]} taps, wanted {window.taps}"
    if isinstance(positions, int) and isinstance(window.extent, int):
        span = window.dilation * (window.taps - 1) + 1
        if (window.extent - span) // window.stride + 1 != positions:
            return f"FOLD of {positions} positions does not rebuild an axis of {window.extent}"
    return None


@NODE_RULES(Ops.GATHER)
def _gather(node: Node, level: str) -> str | None:
    if any(index.dtype.kind not in INTEGERS for index in node.src[1:]):
        return "GATHER by indices that are not integers"
    return None


@NODE_RULES(Ops.SCATTER)
def _scatter(node: Node, level: str) -> str | None:
    base, values, *indices = node.src
    if len(indices) != len(base.shape):
        return f"SCATTER with {len(indices)} indices for {len(base.shape)} axes"
    if any(index.dtype.kind not in INTEGERS for index in indices):
        return "SCATTER by indices that are not integers"
    shapes = {operand.shape for operand in (values, *indices) if operand.shape}
    if len(shapes) > 1:
        return "SCATTER's values and indices must have one shape"
    return _monoid_fault(node.arg.monoid, base.dtype) or _atomic_fault(node.arg, base.dtype)


@NODE_RULES(Ops.SORT)
def _sort(node: Node, level: str) -> str | None:
    if any(word.dtype.kind not in INTEGERS or not word.shape for word in node.src):
        return "SORT of what are no arrays of integers"
    if len({word.shape for word in node.src}) > 1:
        return "SORT of arrays of several shapes"
    return None


def _monoid_fault(monoid: object, dtype: DType) -> str | None:
    """A monoid that accumulates into memory has one state, of the memory's dtype."""
    if monoid is None:
        return None
    states = getattr(monoid, "states", ())
    if states != (dtype,):
        return f"accumulating {monoid!r} into {dtype}"
    return None


def _atomic_fault(how: Scatter | Out, dtype: DType) -> str | None:
    """Machines combine integers of 32 and 64 bits in one step."""
    known = how.monoid is not None and how.monoid.primitive in ATOMIC
    if how.atomic and not (known and dtype.is_int and dtype.bits >= 32):
        return f"no atomic {how.monoid!r} of {dtype}"
    return None


# --- reductions --------------------------------------------------------------------------------


@NODE_RULES(Ops.REDUCE, Ops.SCAN)
def _folding(node: Node, level: str) -> str | None:
    """REDUCE and SCAN: as many values as states, then ranges at the lower levels."""
    monoid = node.arg.monoid
    values, ranges = node.src[: monoid.arity], node.src[monoid.arity :]
    if len(values) != monoid.arity:
        return f"{node.op.name} of {len(values)} values by {monoid!r}"
    for value, state in zip(values, monoid.states, strict=True):
        if value.dtype is not state:
            return f"{node.op.name} by {monoid!r} of a value of {value.dtype}"
    if node.dtype is not monoid.states[0]:
        return f"{node.op.name} by {monoid!r} has dtype {node.dtype}, wanted {monoid.states[0]}"
    if level == "tensor":
        if ranges:
            return f"{node.op.name} over ranges at the tensor level"
        shapes = {value.shape for value in values if value.shape}
        if len(shapes) > 1:
            return f"{node.op.name} of values of different shapes"
        axes = node.arg.axes if node.op is Ops.REDUCE else (node.arg.axis,)
        return _axes_fault(axes, len(node.src[0].shape))
    if any(axis.op is not Ops.RANGE for axis in ranges):
        return f"{node.op.name} over something that is not a RANGE"
    if len(set(ranges)) != len(ranges) or not ranges:
        return f"{node.op.name} over {len(ranges)} ranges, wanted at least one, each once"
    return _axis_bindings(node, ranges, level)


def _axis_bindings(node: Node, ranges: tuple[Node, ...], level: str) -> str | None:
    if level == "loop" and any(not axis.arg.is_tile for axis in ranges):
        return f"{node.op.name} over a range that is looped over: use LOOP and an accumulator"
    if node.op is Ops.REDUCE and node.arg.axes:
        return "REDUCE with axes below the tensor level"
    return None


@NODE_RULES(Ops.PROJ)
def _project(node: Node, level: str) -> str | None:
    states = node.src[0].arg.monoid.states
    if not 0 <= node.arg < len(states):
        return f"PROJ of part {node.arg} of {len(states)}"
    return None if node.dtype is states[node.arg] else f"PROJ of {states[node.arg]}"


# --- memory ------------------------------------------------------------------------------------


@NODE_RULES(Ops.REPEAT, Ops.CHOOSE, Ops.CALL)
def _control(node: Node, level: str) -> str | None:
    form, other = node.arg, getattr(node.arg, "other", node.arg.body)
    if form.body.op is not Ops.SINK or other.op is not Ops.SINK:
        return f"the body of {node.op.name} is no SINK"
    kinds = [[(root.dtype, root.shape) for root in body.src] for body in (form.body, other)]
    if kinds[0] != kinds[1]:
        return "the bodies of CHOOSE have other results"
    if node.op is not Ops.REPEAT:
        return None if node.dtype is form.body.src[form.part].dtype else "another dtype's result"
    carried = [(value.dtype, value.shape) for value in node.src[: form.carried]]
    if form.adjoint is None and carried != kinds[0][: form.carried]:
        return "REPEAT carries on what is not like what it took"
    if len(node.src) < form.carried + form.read:
        return f"REPEAT has {len(node.src)} sources for {form.carried} carried, {form.read} read"
    return "a length, or a condition" if form.length is None and not form.conditional else None


def _indices_fault(array: Node, indices: tuple[Node, ...]) -> str | None:
    rank = len(array.shape)
    # Shared buffers may be rings: the slot comes first.
    ring = getattr(array.arg, "depth", 1) > 1 or getattr(array.arg, "space", "") == "shared"
    if len(indices) != rank and not (ring and len(indices) == rank + 1):
        return f"{len(indices)} indices for {rank} axes"
    for index in indices:
        if index.dtype is not dtypes.index:
            return f"an index of dtype {index.dtype}, wanted index (CAST it)"
    return None


@NODE_RULES(Ops.INDEX, Ops.LOAD)
def _read(node: Node, level: str) -> str | None:
    return _indices_fault(node.src[0], node.src[1:])


@NODE_RULES(Ops.STAGE)
def _stage(node: Node, level: str) -> str | None:
    if len(set(node.src[1:])) != len(node.src[1:]):
        return "STAGE over a range twice"
    return _stored(node.dtype)


@NODE_RULES(Ops.OUT)
def _out(node: Node, level: str) -> str | None:
    array, indices = node.src[0], node.src[2:]
    monoid = _monoid_fault(node.arg.monoid, array.dtype)
    monoid = monoid or _atomic_fault(node.arg, array.dtype)
    return monoid or _indices_fault(array, indices) or _write_bounds(array, indices)


def _write_bounds(array: Node, indices: tuple[Node, ...]) -> str | None:
    """An index is wrong for certain when it lies outside, or when its exact bounds do."""
    for axis, (index, extent) in enumerate(zip(indices, array.shape, strict=False)):
        lo, hi = bounds(index)
        most = extent if isinstance(extent, int) else bounds(extent)[1]
        exact = isinstance(extent, int) and _is_affine(index)
        if hi < 0 or lo >= max(most, 1) or (exact and (lo < 0 or hi >= max(most, 1))):
            return f"index {axis} reaches {lo} to {hi} in an axis of {most}"
    return None


def _is_affine(index: Node) -> bool:
    """Whether the bounds of an index are reached: a sum of distinct scaled ranges and variables."""
    seen: set[Node] = set()
    stack = [index]
    while stack:
        node = stack.pop()
        if node.op in (Ops.RANGE, Ops.VAR):
            if node in seen or (node.op is Ops.RANGE and node.src[0].op is not Ops.CONST):
                return False
            seen.add(node)
        elif node.op is Ops.MUL:
            if node.src[1].op is not Ops.CONST:
                return False
            stack.append(node.src[0])
        elif node.op in (Ops.ADD, Ops.SUB, Ops.NEG):
            stack.extend(node.src)
        elif node.op is not Ops.CONST:
            return False
    return True


# --- statements --------------------------------------------------------------------------------


@NODE_RULES(Ops.LOOP)
def _loop(node: Node, level: str) -> str | None:
    axis = node.src[0].arg
    if axis.is_tile:
        return f"LOOP over a range bound to {axis.bind}, which is never looped over"
    return None


@NODE_RULES(Ops.STORE)
def _store(node: Node, level: str) -> str | None:
    array = node.src[0]
    return _monoid_fault(node.arg, array.dtype) or _indices_fault(array, node.src[2:])


@NODE_RULES(Ops.ALLOC)
def _alloc(node: Node, level: str) -> str | None:
    if node.arg.depth < 1:
        return f"an ALLOC of depth {node.arg.depth}"
    return _stored(node.dtype) or _extents(node)


@NODE_RULES(Ops.BITFIELD)
def _bitfield(node: Node, level: str) -> str | None:
    word, offset = node.src[0].dtype, node.src[1].dtype
    if word.kind != "uint" or not 1 <= node.arg <= word.bits:
        return f"BITFIELD of {node.arg} bits of {word}, wanted bits of an unsigned word"
    if offset is not word or node.dtype is not word:
        return f"BITFIELD of {word} at an offset of {offset} has dtype {node.dtype}: wanted one"
    return None


# --- what runs at the same time ----------------------------------------------------------------


@NODE_RULES(Ops.ROLE)
def _role(node: Node, level: str) -> str | None:
    if node.arg.warps < 1:
        return f"the role {node.arg.name} has {node.arg.warps} warps"
    return None


@NODE_RULES(Ops.PIPE)
def _pipe(node: Node, level: str) -> str | None:
    for buffer in node.src:
        if node.arg.depth not in (buffer.arg.depth, buffer.shape[0]):
            return f"the pipe {node.arg.name} wants buffers of its depth {node.arg.depth}"
    return None


@NODE_RULES(Ops.ACQUIRE, Ops.COMMIT, Ops.WAIT, Ops.RELEASE, Ops.DRAIN)
def _pipe_step(node: Node, level: str) -> str | None:
    if not node.src and node.op is Ops.COMMIT:
        return None
    if len(node.src) != 2:
        return f"{node.op.name} of {len(node.src)} sources, wanted a pipe and a counter"
    counter = node.src[1].dtype
    return None if counter is dtypes.index else f"{node.op.name} at {counter}, wanted index"


@NODE_RULES(Ops.COPYTO)
def _copy_to(node: Node, level: str) -> str | None:
    sources = node.src
    if len(sources) > 1 and sources[-2].op is Ops.PIPE:
        sources = sources[:-2]
    array, value, *indices = sources
    if node.arg.box is not None:
        corner = node.arg.box.corner
        if array.op is not Ops.ALLOC or value.op is not Ops.PARAM or len(indices) != corner + 2:
            return f"COPYTO of a box at {corner} positions from {value.op.name} at {indices}"
        rounds = value.dtype is dtypes.float32 and array.dtype is dtypes.tfloat32
        return None if rounds or value.dtype is array.dtype else (
            f"COPYTO of {value.dtype} as {array.dtype}"
        )
    read = value.src[1] if value.op is Ops.GUARD else value
    if read.op is Ops.CAST and array.dtype is dtypes.tfloat32 and node.arg.engine == "tma":
        # The engine rounds.
        (read,) = read.src
    if read.op is not Ops.LOAD or value.dtype is not array.dtype:
        return f"COPYTO of {value.op.name} of {value.dtype}, wanted a LOAD of {array.dtype}"
    return _indices_fault(array, tuple(indices))


def _warp_mma(node: Node) -> str | None:
    total, a, b = node.src[:3]
    held, beside, operand = node.arg.a_space == "register", node.arg.beside, node.arg.operand
    if beside is not None and b.op is Ops.LOAD and operand.bits == 2 * b.dtype.bits:
        # 8-bit floats are widened on their way to the unit.
        b = b.replace(dtype=operand if a.op is Ops.CAST else a.dtype)
    if held and a.op is Ops.CAST and a.src[0].dtype is node.arg.accumulator:
        # Results of another product, rounded on the way.
        held, a = False, a.src[0].replace(dtype=b.dtype)
    # Floats of 8 bits may be of either kind.
    alike = a.dtype is b.dtype or (
        a.dtype.bits == b.dtype.bits == 8 and a.dtype.is_float and b.dtype.is_float
    )
    if held or any(one.op is not Ops.LOAD for one in (total, a, b)) or not alike:
        return "MMA of a warp wants a LOAD of registers, and two of shared memory"
    return None


@NODE_RULES(Ops.WORDS)
def _words(node: Node, level: str) -> str | None:
    factors = PRODUCTS.get(node.arg)
    if factors is None:
        return f"WORDS by {node.arg}, wanted one of {', '.join(PRODUCTS)}"
    if node.dtype is not factors.total or any(x.dtype is not dtypes.int32 for x in node.src):
        return f"WORDS by {node.arg} of {node.src[0].dtype} and {node.src[1].dtype}, wanted int32"
    return None


def _words_mma(node: Node) -> str | None:
    total, a, b, keep, *axes = node.src
    factors = PRODUCTS[node.arg.name]
    if any(one.op is not Ops.LOAD for one in (total, a, b)) or total.dtype is not factors.total:
        return f"MMA of words wants three LOADs, the first of {factors.total}"
    if a.dtype is not dtypes.int32 or b.dtype is not a.dtype or keep.dtype is not dtypes.bool:
        return f"MMA of {a.dtype} and {b.dtype} if {keep.dtype}, wanted words (int32), bool"
    if any(axis.arg.bind != "tile" for axis in axes):
        return "MMA of words over something that is not a tile range"
    extents = [axis.src[0].arg for axis in axes]
    if any(type(e) is not int for e in extents) or any(e % TILE for e in extents[:2]):
        return f"MMA of words over {extents}, wanted multiples of {TILE} and whole numbers"
    if extents[2] != TILE:
        return f"MMA of {extents[2]} words a step, wanted {TILE}"
    return None


@NODE_RULES(Ops.MMA)
def _mma(node: Node, level: str) -> str | None:
    total, a, b, keep, *axes = node.src
    mma = node.arg
    if any(axis.op is not Ops.RANGE or not axis.arg.is_tile for axis in axes):
        return "MMA over something that is not a tile range"
    if mma.name in PRODUCTS:
        return _words_mma(node)
    if total.op is Ops.LOAD:
        return _warp_mma(node)
    if total.op is not Ops.ALLOC or total.dtype is not mma.accumulator:
        return f"MMA into {total.op.name} of {total.dtype}, wanted a register ALLOC"
    if a.dtype is not mma.operand or b.dtype is not mma.operand or keep.dtype is not dtypes.bool:
        return f"MMA of {a.dtype} and {b.dtype} if {keep.dtype}, wanted {mma.operand}, bool"
    extents = tuple(axis.src[0].arg for axis in axes)
    m, n, k = mma.shape
    if extents[:2] != (m, n) or extents[2] % k or total.shape != (m, n):
        return f"MMA over {extents} into {list(total.shape)}, wanted {m}, {n} and a multiple of {k}"
    return None
