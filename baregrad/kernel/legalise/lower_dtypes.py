"""Loop level: dtypes that the machine does not compute with become ones that it does.

Floats narrower than 32 bits are computed in float32 and rounded at each op's result, except in the
accumulators of reductions, which stay in float32 until they are read elsewhere. Those that are only
moved, by loads, choices and stores, are moved as raw codes: a conversion to float32 and back would
change which NaN they are. Truth values are bytes in memory. Guards come to stand directly on the
loads that need them. A buffer whose elements have no machine type holds their raw codes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from baregrad.dtypes import DType, computed_for, dtypes, encode, round_scalar
from baregrad.ir.core import index
from baregrad.ir.core.monoid import Monoid
from baregrad.ir.core.node import Node, alu, cast, const, rebuild, toposort
from baregrad.ir.core.op import ALU, Op, Ops, mask_of
from baregrad.kernel.legalise.narrow_floats import (
    decode_float,
    encode_float,
    round_bfloat16,
    storage_dtype,
)
from baregrad.kernel.legalise.transcendental_exp import power_of_few_digits
from baregrad.kernel.loops.loop_pieces import (
    HOLD_VALUES,
    PLAIN,
    is_plain,
    stays_inside,
    values_below,
)

F32, U8, BOOL = dtypes.float32, dtypes.uint8, dtypes.bool
# Ops whose result is representable whenever their operands are.
_EXACT = frozenset((
    Ops.NEG, Ops.ABS, Ops.MAX, Ops.MIN, Ops.WHERE, Ops.FLOOR, Ops.CEIL, Ops.TRUNC, Ops.RINT,
))
# Arithmetic on positions is made of these; of all other nodes, these may have to change.
_POSITIONS = mask_of((
    Ops.CONST, Ops.VAR, Ops.RANGE, Ops.ADD, Ops.SUB, Ops.MUL, Ops.NEG, Ops.FLOORDIV, Ops.MOD,
    Ops.MIN, Ops.MAX,
))
# Of other dtypes than these all has to be asked, and the ops that may have to change over these.
_ORDINARY = PLAIN | {dtypes.index, dtypes.token}
_ASKED = mask_of((Ops.CAST, Ops.BITCAST, Ops.GUARD, Ops.REDUCE, Ops.SCAN, Ops.STORE))


def lower_dtypes(
    kernel: Node, native: frozenset[DType], widened: frozenset[DType] = frozenset(),
    for_gpu: bool = False,
) -> Node:
    """A loop-level KERNEL over bool, integers of 8 to 64 bits, float32, float64 and index.

    Narrow floats in `native` are left in memory and in CASTs from and to float32; codes of those
    in `widened`, which lie in memory as integers, are made float32 by a CAST of a BITCAST.
    for_gpu: powers of narrow floats are made in float32 alone, and registers that hold choices
    among narrow floats are not rounded again where they are read.
    """
    if is_plain(kernel):
        return kernel
    # Constants and positions are native.
    for node in values_below(kernel):
        # Most are plain: asking the rest of the question costs more than the walk.
        if (node.dtype not in _ORDINARY or node.op.bit & _ASKED) and not _is_native(node):
            break
    else:
        return kernel
    lowering = _Lowering(native, widened, for_gpu, _chosen(kernel) if for_gpu else frozenset())
    for node in toposort(kernel, enter=_holds_values):
        lowering.visit(node)
    return lowering.done[kernel]


def is_narrow(dtype: DType) -> bool:
    """Whether values of this dtype are computed in float32."""
    return dtype.is_narrow


def _holds_values(node: Node) -> bool:
    """Whether a node is more than arithmetic on positions, which stays as it is."""
    return node.dtype is not dtypes.index or bool(node.mask & ~_POSITIONS)


def _is_native(node: Node) -> bool:
    """Whether a node certainly stays as it is; all nodes of most kernels do."""
    dtype = node.dtype
    if dtype.is_narrow or dtype.bits == 4:
        return False
    op = node.op
    if not op.bit & HOLD_VALUES:
        return True
    if op is Ops.GUARD:
        # A load whose address is read from memory hands its guard on to what it reads there.
        load = node.src[1]
        return load.op is Ops.LOAD and not any(place.mask & Ops.LOAD.bit for place in load.src[1:])
    if op is Ops.STORE or op is Ops.REDUCE or op is Ops.SCAN:
        monoid = node.arg if op is Ops.STORE else node.arg.monoid
        return monoid is None or not any(map(_is_coded, monoid.states))
    if op is Ops.CAST:
        # Of a constant, which is not asked by itself.
        source = node.src[0].dtype
        if source is dtype or is_narrow(source) or source.bits == 4:
            return False
    return op is not Ops.BITCAST and dtype is not BOOL


def _holds(wide: DType, narrow: DType) -> bool:
    """Whether a float dtype of 16 bits has every value of a narrower one."""
    assert wide.format is not None and narrow.format is not None
    return narrow.bits < wide.bits and narrow.format.exponent_bits <= wide.format.exponent_bits


def _is_coded(dtype: DType) -> bool:
    return dtype.kind == "bool" or is_narrow(dtype) or dtype.bits == 4


class _Lowering:
    """One walk: `done` maps each node to its replacement.

    `raw` maps loads of float32 accumulators, and folds of them, to their unrounded values. `moved`
    maps narrow floats that lie in memory, and choices among those, to what memory holds. `chosen`:
    the accumulators that hold no value that is not rounded already.
    """

    def __init__(
        self, native: frozenset[DType], widened: frozenset[DType], short_powers: bool,
        chosen: frozenset[Node],
    ) -> None:
        self.native = native
        self.widened = widened
        self.short_powers = short_powers
        self.chosen = chosen
        self.done: dict[Node, Node] = {}
        self.raw: dict[Node, Node] = {}
        self.moved: dict[Node, Node] = {}
        self.monoids: dict[Monoid, Monoid] = {}

    def visit(self, node: Node) -> None:
        """Replace a node whose sources are replaced already."""
        rule = _RULES.get(node.op)
        if rule is not None:
            self.done[node] = rule(self, node)
        elif not _holds_values(node):
            self.done[node] = node
        elif node.op in ALU:
            self.done[node] = self.arithmetic(node)
        else:
            self.done[node] = self.same(node)

    def same(self, node: Node) -> Node:
        """The node itself over replaced sources."""
        done = self.done
        for child in node.src:
            if done[child] is not child:
                return Node(node.op, node.dtype, tuple(done[c] for c in node.src), node.arg)
        return node

    # --- values and codes -----------------------------------------------------------------------

    def memory(self, dtype: DType) -> DType:
        """The dtype of a buffer's elements in memory."""
        if dtype in self.native:
            return dtype
        if dtype.kind == "bool":
            return U8
        return storage_dtype(dtype) if _is_coded(dtype) else dtype

    def decode(self, code: Node, dtype: DType) -> Node:
        """The value of what memory holds."""
        if dtype.kind == "bool":
            return alu(Ops.CMPNE, code, const(0, U8))
        if dtype in self.native:
            return cast(code, F32)
        if dtype in self.widened:
            return cast(Node(Ops.BITCAST, dtype, (code,)), F32)
        if dtype.kind == "float":
            return decode_float(code, dtype)
        return _decode_int4(code, dtype)

    def encode(self, value: Node, dtype: DType, exact: bool = True) -> Node:
        """What memory holds for a value, which is rounded to `dtype` already if `exact`."""
        if dtype.kind == "bool":
            return cast(value, U8)
        if dtype in self.native:
            if value.op is Ops.CAST and value.src[0].dtype is dtype:
                return value.src[0]
            return cast(value, dtype)
        if dtype.kind == "float":
            return encode_float(value, dtype, exact)
        code = value if value.dtype is U8 else Node(Ops.BITCAST, U8, (value,))
        return alu(Ops.AND, code, const(15, U8))

    def round(self, value: Node, dtype: DType) -> Node:
        """A float32 rounded to a narrower dtype, still as float32."""
        if dtype is dtypes.bfloat16 and dtype not in self.native:
            return round_bfloat16(value)
        return self.decode(self.encode(value, dtype, exact=False), dtype)

    # --- rules ----------------------------------------------------------------------------------

    def arithmetic(self, node: Node) -> Node:
        """An ALU op: on narrow floats in float32, then rounded."""
        if node.op is Ops.WHERE:
            return self.where(node)
        if not is_narrow(node.dtype):
            return self.same(node)
        src = tuple([self.done[child] for child in node.src])
        if node.op is Ops.POW and self.short_powers:
            return self.round(power_of_few_digits(*src), node.dtype)
        value = Node(node.op, F32, src, node.arg)
        return value if node.op in _EXACT else self.round(value, node.dtype)

    def where(self, node: Node) -> Node:
        """A choice, for which a guard of the same condition need not choose as well."""
        cond, value, other = (self.done[child] for child in node.src)
        if node.src[1] in self.moved or node.src[2] in self.moved:
            codes = [_as_integer(self.code(child), node.dtype) for child in node.src[1:]]
            self.moved[node] = _retyped(_choice(cond, *codes), self.memory(node.dtype))
        elif node.dtype in self.native:
            wide = [_unrounded(child, self.done[child]) for child in node.src[1:]]
            if wide[0] is not None and wide[1] is not None:
                # What is chosen is rounded once, and nothing is widened to be chosen.
                return self.round(_choice(cond, wide[0], wide[1]), node.dtype)
        return _choice(cond, value, other)

    def code(self, node: Node) -> Node:
        """What memory holds for a value: what it held before where that is only moved."""
        if node in self.moved:
            return self.moved[node]
        if is_narrow(node.dtype) and node.op is Ops.CONST:
            code = const(int(encode(node.arg, node.dtype)), storage_dtype(node.dtype))
            return _retyped(code, self.memory(node.dtype))
        return self.encode(self.done[node], node.dtype)

    def const(self, node: Node) -> Node:
        """A constant: narrow floats as the float32, 4-bit integers as the byte that they are."""
        if is_narrow(node.dtype):
            return const(round_scalar(node.arg, node.dtype), F32)
        return const(node.arg, computed_for(node.dtype)) if node.dtype.bits == 4 else node

    def cast(self, node: Node) -> Node:
        """A conversion: to narrow floats by way of float32."""
        (x,) = node.src
        value = self.done[x]
        source, target = x.dtype, node.dtype
        if is_narrow(target):
            wide = cast(value, F32)
            if is_narrow(source) and target.bits == 16 and _holds(target, source):
                return wide
            return wide if source is target else self.round(wide, target)
        if target.bits == 4:
            return _cast_int4(value, target)
        if target.kind == "bool" and value.dtype.kind != "bool":
            zero = const(0.0 if value.dtype.is_float else 0, value.dtype)
            return alu(Ops.CMPNE, value, zero)
        return cast(value, target)

    def bitcast(self, node: Node) -> Node:
        """Reinterpretation: raw codes of the source read as codes of the target."""
        (x,) = node.src
        code = self.code(x) if _is_coded(x.dtype) else self.done[x]
        if not _is_coded(node.dtype):
            return _retyped(code, node.dtype)
        code = _retyped(code, self.memory(node.dtype))
        if is_narrow(node.dtype):
            self.moved[node] = code
        return self.decode(code, node.dtype)

    def buffer(self, node: Node) -> Node:
        """A PARAM or ALLOC of codes; accumulators of narrow floats are float32."""
        if node.op is Ops.ALLOC and node.arg.space == "register" and is_narrow(node.dtype):
            return Node(Ops.ALLOC, F32, self.same(node).src, node.arg)
        memory = self.memory(node.dtype)
        return node if memory is node.dtype else node.replace(dtype=memory)

    def load(self, node: Node) -> Node:
        """A LOAD: of codes, then decoded; of accumulators, then rounded."""
        found = _codes(node, self.done)
        if not _is_coded(node.dtype):
            return found
        if found.dtype is F32:
            self.raw[node] = found
            return found if node.src[0] in self.chosen else self.round(found, node.dtype)
        if is_narrow(node.dtype):
            self.moved[node] = found
        return self.decode(found, node.dtype)

    def guard(self, node: Node) -> Node:
        """A GUARD: brought down to the loads below it, with a WHERE unless it is on one."""
        cond, value = (self.done[child] for child in node.src)
        if node.src[1] in self.moved:
            code = _guarded(node, cond, _as_integer(self.moved[node.src[1]], node.dtype))
            self.moved[node] = _retyped(code, self.memory(node.dtype))
        return _guarded(node, cond, value)

    def reduce(self, node: Node) -> Node:
        """A fold of tile ranges, or a running one: of narrow floats in float32."""
        monoid = node.arg.monoid
        wide = self.wide_monoid(monoid)
        src = tuple(self.raw.get(child, self.done[child]) for child in node.src)
        found = Node(node.op, wide.states[0], src, node.arg._replace(monoid=wide))
        return found if monoid.arity > 1 else self.rounded(node, found)

    def proj(self, node: Node) -> Node:
        """One part of a tuple."""
        (whole,) = node.src
        dtype = self.done[whole].arg.monoid.states[node.arg]
        return self.rounded(node, Node(Ops.PROJ, dtype, (self.done[whole],), node.arg))

    def rounded(self, node: Node, found: Node) -> Node:
        """What a fold comes to: of narrow floats rounded, and kept as it is as well."""
        if not is_narrow(node.dtype):
            return found
        self.raw[node] = found
        return self.round(found, node.dtype)

    def store(self, node: Node) -> Node:
        """A STORE: of codes; what accumulates is neither rounded nor coded in registers."""
        target, value, *indices = node.src
        buffer = self.done[target]
        places = tuple(self.done[child] for child in indices)
        held, monoid_of = self.done[value], self.wide_monoid
        if _is_coded(target.dtype) and buffer.dtype is F32:
            held = self.accumulated(target, value)
        elif _is_coded(target.dtype):
            held, monoid_of = self.code(value), self.coded_monoid
        monoid = None if node.arg is None else monoid_of(node.arg)
        return Node(Ops.STORE, node.dtype, (buffer, held, *places), monoid)

    def copy(self, node: Node) -> Node:
        """A COPYTO: of codes as they are."""
        if node.arg.box is not None:
            return node.replace(src=tuple([self.done[child] for child in node.src]))
        target, value, *indices = node.src
        read = value.src[1] if value.op is Ops.GUARD else value
        if read.op is Ops.CAST:
            # The engine that copies rounds.
            code = cast(_codes(read.src[0], self.done), self.memory(read.dtype))
        else:
            code = _codes(read, self.done)
        if value.op is Ops.GUARD:
            code = Node(Ops.GUARD, code.dtype, (self.done[value.src[0]], code))
        places = tuple([self.done[child] for child in indices])
        return Node(Ops.COPYTO, node.dtype, (self.done[target], code, *places), node.arg)

    def multiply(self, node: Node) -> Node:
        """An MMA: of factors as they lie in memory."""
        total, *factors = node.src[:3]
        # What is rounded in registers is so by the product itself.
        codes = [
            cast(self.done[one.src[0]], one.dtype) if one.op is Ops.CAST else _codes(one, self.done)
            for one in factors
        ]
        return Node(Ops.MMA, node.dtype, (self.done[total], *codes, *node.src[3:]), node.arg)

    def accumulated(self, buffer: Node, value: Node) -> Node:
        """The float32 that a register keeps: not rounded where it carries on an accumulation."""
        if value in self.raw:
            return self.raw[value]
        if value.op in ALU and any(
            child.op is Ops.LOAD and child.src[0] is buffer for child in value.src
        ):
            src = tuple(self.raw.get(child, self.done[child]) for child in value.src)
            return Node(value.op, F32, src, value.arg)
        return self.done[value]

    # --- monoids --------------------------------------------------------------------------------

    def wide_monoid(self, monoid: Monoid) -> Monoid:
        """The monoid with float32 in the place of narrow floats; no rounding inside."""
        if not any(is_narrow(dtype) for dtype in monoid.states):
            return monoid
        found = self.monoids.get(monoid)
        if found is None:
            states = tuple(F32 if is_narrow(dtype) else dtype for dtype in monoid.states)
            found = self.monoids[monoid] = monoid._replace(
                states=states,
                identity=tuple(map(_widened, monoid.identity)),
                lift=tuple(map(_widened, monoid.lift)),
                combine=tuple(map(_widened, monoid.combine)),
            )
        return found

    def coded_monoid(self, monoid: Monoid) -> Monoid:
        """The monoid on raw codes, for accumulating in memory."""
        (dtype,) = monoid.states
        memory = self.memory(dtype)
        inside: dict[Node, Node] = {}
        for node in toposort(*monoid.combine):
            if node.op is Ops.SLOT:
                slot = Node(Ops.SLOT, memory, (), node.arg)
                self.done[node] = inside[node] = self.decode(slot, dtype)
            else:
                self.visit(node)
        code = self.encode(self.done[monoid.combine[0]], dtype)
        for node in inside:
            del self.done[node]
        start, slot = Node(Ops.CONST, memory, (), 0), Node(Ops.SLOT, memory, (), 0)
        alike = monoid.commutative, monoid.idempotent
        return Monoid(f"{monoid.name}_coded", (memory,), (start,), (slot,), (code,), *alike)


def _chosen(kernel: Node) -> frozenset[Node]:
    """The registers of narrow floats in which nothing is stored but what is one already.

    That is what memory holds, what was rounded, and choices among such, as an extreme's value.
    """
    order = toposort(kernel, enter=_holds_values)
    stores = [node for node in order if node.op is Ops.STORE and _is_register(node.src[0])]
    found = {store.src[0] for store in stores}
    while True:
        narrow: dict[Node, bool] = {}
        for node in order:
            narrow[node] = _is_narrow_already(node, narrow, found)
        # What is added up to a register is no choice.
        others = {s.src[0] for s in stores if s.arg is not None or not narrow[s.src[1]]}
        if others.isdisjoint(found):
            return frozenset(found)
        found -= others


def _is_register(node: Node) -> bool:
    return node.op is Ops.ALLOC and node.arg.space == "register" and is_narrow(node.dtype)


def _is_narrow_already(node: Node, known: Mapping[Node, bool], chosen: set[Node]) -> bool:
    """Whether a value is no wider than its dtype; so are all that are not of narrow ones.

    known: the same of its sources. chosen: registers of which loads are so.
    """
    if node.op is Ops.REDUCE:
        folds = all(one.op in _EXACT or one.op is Ops.SLOT or not is_narrow(one.dtype)
                    for one in toposort(*node.arg.monoid.combine))  # fmt: skip
        return folds and all(known.get(child, True) for child in node.src)
    if not is_narrow(node.dtype) and node.op is not Ops.PROJ:
        return True
    if node.op is Ops.LOAD:
        return not _is_register(node.src[0]) or node.src[0] in chosen
    if node.op in _EXACT or node.op in (Ops.GUARD, Ops.PROJ):
        return all(known.get(child, True) for child in node.src)
    return node.op in (Ops.CAST, Ops.BITCAST, Ops.CONST)


def _codes(load: Node, done: dict[Node, Node]) -> Node:
    """What a LOAD finds in memory, over replaced sources."""
    src = tuple([done[child] for child in load.src])
    return Node(Ops.LOAD, src[0].dtype, src)


def _unrounded(node: Node, value: Node) -> Node | None:
    """The float32 of which a narrow float, whose replacement is a value, is rounded; or None.

    A constant is one already.
    """
    if node.op is Ops.CONST:
        return value
    code = value.src[0] if value.op is Ops.CAST else value
    is_rounded = code.op is Ops.CAST and code.dtype is node.dtype
    return code.src[0] if is_rounded and code.src[0].dtype is F32 else None


def _choice(cond: Node, value: Node, other: Node) -> Node:
    if value.op is Ops.WHERE and value.src[0] is cond:
        value = value.src[1]
    return Node(Ops.WHERE, value.dtype, (cond, value, other))


def _widened(node: Node) -> Node:
    return rebuild(node, lambda n: n.replace(dtype=F32) if is_narrow(n.dtype) else None)


def _decode_int4(code: Node, dtype: DType) -> Node:
    """The value of an integer of 4 bits."""
    if dtype.kind == "uint":
        return alu(Ops.AND, code, const(15, U8))
    shift = const(4, dtypes.int8)
    signed = Node(Ops.BITCAST, dtypes.int8, (code,))
    return alu(Ops.SHR, alu(Ops.SHL, signed, shift), shift)


def _cast_int4(value: Node, target: DType) -> Node:
    """A number as an integer of 4 bits."""
    wide = computed_for(target)
    if value.dtype.is_float:
        whole = cast(value, wide)
        low, high = const(int(target.min), wide), const(int(target.max), wide)
        return alu(Ops.MIN, alu(Ops.MAX, whole, low), high)
    code = cast(cast(value, wide), U8) if wide is U8 else cast(value, wide)
    coded = code if code.dtype is U8 else Node(Ops.BITCAST, U8, (code,))
    return _decode_int4(coded, target)


def _retyped(code: Node, dtype: DType) -> Node:
    """The same bits as another dtype."""
    if code.op is Ops.BITCAST:
        (code,) = code.src
    return code if code.dtype is dtype else Node(Ops.BITCAST, dtype, (code,))


def _as_integer(code: Node, dtype: DType) -> Node:
    """A raw code as an integer, of which every machine chooses without changing it."""
    return _retyped(code, storage_dtype(dtype))


def _guarded(node: Node, cond: Node, value: Node) -> Node:
    """What a GUARD comes to, of a value or of its raw code."""
    zero = const(False if value.dtype.kind == "bool" else 0, value.dtype)
    if not value.has(Ops.LOAD):
        return alu(Ops.WHERE, cond, value, zero)
    # Decoding gives 0 for the code 0, so a guarded load needs no choice after it.
    alone = node.src[1].op is Ops.LOAD and not _is_read_by(node.src[0], node.src[1])
    if alone and not _is_shared(cond, value):
        return _guard_loads(cond, value, False)
    return alu(Ops.WHERE, cond, _guard_loads(cond, value, True), zero)


def _guard_loads(cond: Node, value: Node, chosen: bool) -> Node:
    """`value` with its loads done only where `cond` holds, those that addresses are made of too.

    What the condition reads itself is loaded anyway. chosen: a choice by `cond` comes after it, so
    that what is inside its array anyway needs no guard: elements that lanes share, which a
    condition on each lane would have loaded one by one.
    """
    done: dict[Node, Node] = {}
    bit = Ops.LOAD.bit
    if cond.mask & bit:
        order = toposort(cond, enter=lambda n: bool(n.mask & bit) and n.op is not Ops.GUARD)
        done = {node: node for node in order if node.op is Ops.LOAD or node.op is Ops.GUARD}
    for node in toposort(value, enter=lambda n: bool(n.mask & bit) and n not in done):
        if node in done:
            continue
        if not node.mask & bit:
            done[node] = node
            continue
        src = tuple(done[child] for child in node.src)
        if node.op is Ops.GUARD:
            # Its load was given the guard: one of both conditions is left.
            load = src[1].src[1] if src[1].op is Ops.GUARD else src[1]
            done[node] = Node(Ops.GUARD, node.dtype, (index.both(cond, src[0]), load))
            continue
        found = node if src == node.src else Node(node.op, node.dtype, src, node.arg)
        if node.op is Ops.LOAD and not (chosen and stays_inside(node)):
            found = Node(Ops.GUARD, node.dtype, (cond, found))
        done[node] = found
    return done[value]


def _is_read_by(cond: Node, load: Node) -> bool:
    """Whether a condition reads what it guards, so that it is loaded anyway."""
    return cond.has(Ops.LOAD) and load in toposort(cond)


def _is_shared(cond: Node, value: Node) -> bool:
    """Whether a guarded LOAD is the same for lanes with guards of their own, and always there."""
    if not any(axis.arg.bind == "vector" for axis in cond.ranges - value.ranges):
        return False
    return value.op is Ops.LOAD and stays_inside(value)


_RULES: MappingProxyType[Op, Callable[[_Lowering, Node], Node]] = MappingProxyType({
    Ops.CONST: _Lowering.const,
    Ops.CAST: _Lowering.cast,
    Ops.BITCAST: _Lowering.bitcast,
    Ops.PARAM: _Lowering.buffer,
    Ops.ALLOC: _Lowering.buffer,
    Ops.LOAD: _Lowering.load,
    Ops.GUARD: _Lowering.guard,
    Ops.REDUCE: _Lowering.reduce,
    Ops.SCAN: _Lowering.reduce,
    Ops.PROJ: _Lowering.proj,
    Ops.STORE: _Lowering.store,
    Ops.COPYTO: _Lowering.copy,
    Ops.MMA: _Lowering.multiply,
})
