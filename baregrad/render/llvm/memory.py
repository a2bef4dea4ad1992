"""Lanes, registers, loads and stores in LLVM IR: one rule per op."""

from __future__ import annotations

import math
from functools import lru_cache
from types import MappingProxyType

from baregrad.base.bits import next_power_of_two
from baregrad.dtypes import DType, dtypes
from baregrad.ir.analysis.words import WORD_NBYTES
from baregrad.ir.core.attrs import MOST_RUNS, run_of
from baregrad.ir.core.monoid import primitive
from baregrad.ir.core.node import Node, const
from baregrad.ir.core.op import Op, Ops
from baregrad.render.llvm.masks import (
    any_of,
    doubted,
    guarded_load,
    masked_load_call,
    masked_store_call,
    or_zeros,
)
from baregrad.render.llvm.ops import beyond_text, folding_text
from baregrad.render.llvm.parts import shuffled
from baregrad.render.llvm.strided_runs import is_loaded_in_run
from baregrad.render.llvm.text import PLACE, ROW, FunctionText, IntrinsicCall, Rule
from baregrad.render.llvm.tiles import turn, turn_copy
from baregrad.render.llvm.types import (
    STREAMED_NBYTES,
    constant_text,
    lanes_of,
    lanes_text,
    order_text,
    suffix_text,
    type_text,
    value_type,
)

# What is asked for so many bytes ahead that the first cache has this many times as many, or fewer,
# would push out of it what is worked on.
NEAR_SHARE = 4
# Of strided accesses: whether it loads, the elements, lanes, stride and alignment.
Form = tuple[bool, DType, int, int, int]


def _splat(f: FunctionText, node: Node) -> None:
    (x,) = node.src
    lanes = lanes_of(node)
    if x.op is Ops.CONST:
        f.names[node] = constant_text(x, lanes)
        return
    kinds, element = value_type(node), type_text(node.dtype)
    first = f.value(f"insertelement {kinds} poison, {element} {f.use(x)}, i64 0")
    order = f"<{lanes} x i32> zeroinitializer"
    f.set(node, f"shufflevector {kinds} {first}, {kinds} poison, {order}")


def _line(f: FunctionText, node: Node) -> None:
    f.names[node] = _line_text(node.dtype, node.arg)


@lru_cache(1 << 8)
def _line_text(dtype: DType, lanes: int) -> str:
    element = type_text(dtype)
    return "<" + ", ".join([f"{element} {lane}" for lane in range(lanes)]) + ">"


def _part(f: FunctionText, node: Node) -> None:
    first, count = node.arg
    (x,) = node.src
    kinds, operand = value_type(x), f.use(x, lanes_of(x))
    f.set(node, f"shufflevector {kinds} {operand}, {kinds} poison, {order_text(first, count)}")


def _extract(f: FunctionText, node: Node) -> None:
    (x,) = node.src
    f.set(node, f"extractelement {value_type(x)} {f.use(x, lanes_of(x))}, i64 {node.arg}")


def _join(f: FunctionText, node: Node) -> None:
    kinds, element = value_type(node), type_text(node.dtype)
    found = "poison"
    for lane, x in enumerate(node.src):
        found = f.value(f"insertelement {kinds} {found}, {element} {f.use(x)}, i64 {lane}")
    f.names[node] = found


def _across(f: FunctionText, node: Node) -> None:
    (x,) = node.src
    lanes = lanes_of(x)
    name, op = f.define(node), node.arg.monoid.primitive
    if _drops_nans(op, x.dtype, lanes):
        f.declare(f"llvm.vector.reduce.or.v{lanes}i1", "i1", type_text(dtypes.bool, lanes))
    text = _across_text(op, x.dtype, lanes)
    f.lines.append(text.replace("$", name).replace("#", f.use(x, lanes)))


@lru_cache(1 << 8)
def _across_text(op: Op, dtype: DType, lanes: int) -> str:
    """The text of `_across`, "$" for the name of its value and "#" for that of the vector.

    Where lanes are no power of two, what the upper ones lack is filled up with what changes
    nothing. The largest or smallest float is found in as few steps as one after the other need, and
    whether some lane is NaN beside them.
    """
    lines = []
    vector, result = "#", "$"
    nans = _drops_nans(op, dtype, lanes)
    if nans:
        kinds, masks, result = type_text(dtype, lanes), type_text(dtypes.bool, lanes), "$m"
        lines.append(f"  $u = fcmp uno {kinds} #, #")
        lines.append(f"  $a = call i1 @llvm.vector.reduce.or.v{lanes}i1({masks} $u)")
    while lanes > 1:
        half = next_power_of_two(lanes) // 2
        kinds = type_text(dtype, lanes)
        low, high = f"$l{half}", f"$h{half}"
        rest = "poison" if lanes == 2 * half else constant_text(_neutral(op, dtype), lanes)
        for name, other, first in ((low, "poison", 0), (high, rest, half)):
            if half == 1:
                lines.append(f"  {name} = extractelement {kinds} {vector}, i64 {first}")
                continue
            order = order_text(first, half)
            lines.append(f"  {name} = shufflevector {kinds} {vector}, {kinds} {other}, {order}")
        vector = f"$f{half}" if half > 1 else result
        fold = beyond_text if nans else folding_text
        lines.append(fold(op, dtype, half, vector, low, high))
        lanes = half
    if nans:
        kind, nan = type_text(dtype), constant_text(const(math.nan, dtype), 1)
        lines.append(f"  $ = select i1 $a, {kind} {nan}, {kind} $m")
    return "\n".join(lines)


def _drops_nans(op: Op, dtype: DType, lanes: int) -> bool:
    """Whether a fold of lanes looks for NaNs by itself."""
    return dtype.kind == "float" and op in (Ops.MAX, Ops.MIN) and lanes > 2


def _neutral(op: Op, dtype: DType) -> Node:
    """What changes no value: 0 plus -0 would not be -0."""
    if op is Ops.ADD and dtype.kind == "float":
        return const(-0.0, dtype)
    return primitive(op, dtype).identity[0]


def _any(f: FunctionText, node: Node) -> None:
    (x,) = node.src
    f.names[node] = any_of(f, x, lanes_of(x))


def _same(f: FunctionText, node: Node) -> None:
    f.names[node] = f.use(node.src[0], lanes_of(node))


def _row(f: FunctionText, node: Node) -> None:
    f.names[node] = f.use(node.src[0]).replace(ROW, str(node.arg))


def _set(f: FunctionText, node: Node) -> None:
    register, value = node.src
    names = f.names
    names[register] = names.get(value) or f.use(value, lanes_of(register))


# --- memory --------------------------------------------------------------------------------------


def _vload(f: FunctionText, node: Node) -> None:
    src = node.src
    base, offset = src[:2]
    access = node.arg
    dtype, lanes = node.dtype, access.width
    constant = ", !invariant.load !0" if access.constant else ""
    masked = len(src) > 2
    if offset.shape:
        if masked and not access.at and _has_elements(base):
            _gather_or_first(f, node)
        else:
            _gather(f, node, [_lane(f, offset, lane) for lane in range(lanes)])
        return
    where = _place(f, node)
    if access.order:
        _ordered(f, node, where, constant)
        return
    at_once = masked and lanes > 1 and src[2].op is Ops.SPLAT
    each = masked and not at_once and not f.target.masks_loads(dtype.itemsize)
    if lanes > 1 and (access.stride != 1 or each):
        _strided(f, node, where)
        return
    kinds = type_text(dtype, lanes)
    if access.ahead:
        _prefetch(f, where, access.ahead, lanes * dtype.itemsize, False)
    if not masked:
        f.set(node, f"load {kinds}, ptr {where}, align {access.align}{constant}")
        return
    if lanes == 1:
        f.define(node)
        f.names[node] = guarded_load(f, dtype, where, f.use(src[2]), constant)
        return
    if at_once:
        place = or_zeros(f, f.use(src[2].src[0]), where, lanes * dtype.itemsize)
        f.set(node, f"load {kinds}, ptr {place}, align {access.align}")
        return
    f.names[node] = _masked_load(f, node, where, f.use(src[2], lanes))


def _ordered(f: FunctionText, node: Node, where: str, constant: str) -> None:
    """Lanes that are some of neighbours, in any order, or runs or lanes that are loaded apart."""
    dtype, access = node.dtype, node.arg
    unit, align = dtype.bits // node.src[0].dtype.bits, access.align
    order = [place // unit for place in access.order]
    if max(order) < access.width and not any(place % unit for place in access.order):
        near = type_text(dtype, max(order) + 1)
        found = f.value(f"load {near}, ptr {where}, align {align}{constant}")
        f.set(node, f"shufflevector {near} {found}, {near} poison, {lanes_text(order)}")
        return
    size = run_of(access.order, unit)
    if access.width > MOST_RUNS * size:
        if not is_loaded_in_run(f, node):
            start = f"getelementptr {type_text(node.src[0].dtype)}, ptr {where}, i64"
            places = [f.value(f"{start} {at}") for at in access.order]
            f.names[node] = _collect(f, node, places, None)
        return
    # Of one element there is one alone: LLVM would fill a vector with copies of it one by one.
    length = size if access.order[0] != access.order[size - 1] else 1
    kinds, found = type_text(dtype, length), "poison"
    both = type_text(dtype, max(length, 2))
    for number, at in enumerate(access.order[::size]):
        place = f.value(f"getelementptr {type_text(node.src[0].dtype)}, ptr {where}, i64 {at}")
        part = f.value(f"load {kinds}, ptr {place}, align {align}{constant}")
        if length == 1:
            found = f.value(f"insertelement {both} {found}, {kinds} {part}, i64 {number}")
        elif number:
            lanes = order_text(0, 2 * size)
            f.set(node, f"shufflevector {kinds} {found}, {kinds} {part}, {lanes}")
        else:
            found = part
    if length == 1:
        lanes = lanes_text([lane // size for lane in range(access.width)])
        f.set(node, f"shufflevector {both} {found}, {both} poison, {lanes}")


def _masked_load(f: FunctionText, node: Node, where: str, condition: str) -> str:
    """Neighbours from an address on, those of a mask, else 0.

    Where a vector is several registers, LLVM 22 reads all of one that nobody asks for a lane of, be
    it there or not: AVX2 gets an address that is there, and no mask that is known beforehand.
    """
    access = node.arg
    if not f.target.masks and access.width * node.dtype.itemsize > f.target.vector_bytes:
        condition = doubted(f, node.src[2], access.width, condition)
    if access.strays or not f.target.masks:
        wanted = any_of(f, node.src[2], access.width)
        where = or_zeros(f, wanted, where, access.width * node.dtype.itemsize)
    return f.given(masked_load_call(node.dtype, access.width, where, access.align, condition))


def _place(f: FunctionText, node: Node) -> str:
    """The address of an access; of a tile's that in each row."""
    base, offset = node.src[:2]
    access = node.arg
    if not access.rows:
        return f.pointer(base, f.use(offset), access.at, base.dtype)
    f.places.append(access.rows)
    return f.value(f"getelementptr {type_text(base.dtype)}, ptr {f.row_base}, i64 {PLACE}")


def _prefetch(
    f: FunctionText, where: str, ahead: int, nbytes: int, write: bool, is_far: bool = False
) -> None:
    """Ask for the lines that lie `ahead` bytes beyond an access of `nbytes`.

    is_far: there is more up to there than the first cache has room for: the second one takes them.
    """
    how = ("i32", str(int(write))), ("i32", "2" if is_far else "3"), ("i32", "1")
    for at in range(ahead, ahead + nbytes, f.target.line_bytes):
        place = f.value(f"getelementptr i8, ptr {where}, i64 {at}")
        f.run(IntrinsicCall.of("llvm.prefetch.p0", "void", ("ptr", place), *how))


def _request(f: FunctionText, node: Node) -> None:
    """Ask for all lines of an access."""
    access, array = node.arg, node.src[0]
    nbytes = access.width * array.dtype.itemsize
    is_far = array.arg.ahead * NEAR_SHARE >= f.target.l1_bytes
    _prefetch(f, _place(f, node), 0, nbytes, not access.constant, is_far)


def _lane(f: FunctionText, vector: Node, lane: int) -> str:
    if vector.op is Ops.SPLAT and vector.src[0].op is Ops.CONST:
        return str(vector.src[0].arg)
    return f.value(f"extractelement {value_type(vector)} {f.use(vector)}, i64 {lane}")


def _gather(f: FunctionText, node: Node, offsets: list[str]) -> None:
    array = node.src[0]
    element, base = type_text(array.dtype), f.pointer(array, "0", node.arg.at, array.dtype)
    addresses = [f.value(f"getelementptr {element}, ptr {base}, i64 {place}") for place in offsets]
    mask = node.src[2] if len(node.src) > 2 else None
    f.names[node] = _collect(f, node, addresses, mask)


def _gather_or_first(f: FunctionText, node: Node) -> None:
    """Lanes of an array that has elements: those that are masked off read its first one instead.

    So one choice of all places and one of all results do, instead of two for each lane.
    """
    base, offset, mask = node.src
    lanes = node.arg.width
    kinds, places = value_type(node), type_text(offset.dtype, lanes)
    masks, condition = type_text(dtypes.bool, lanes), f.use(mask, lanes)
    start = f"getelementptr {type_text(base.dtype)}, ptr {f.names[base]}, {type_text(offset.dtype)}"
    choice = f"select {masks} {condition}"
    chosen = f.value(f"{choice}, {places} {f.use(offset)}, {places} zeroinitializer")
    addresses = []
    for lane in range(lanes):
        place = f.value(f"extractelement {places} {chosen}, i64 {lane}")
        addresses.append(f.value(f"{start} {place}"))
    found = _collect(f, node, addresses, None)
    f.set(node, f"{choice}, {kinds} {found}, {kinds} zeroinitializer")


def _has_elements(array: Node) -> bool:
    return all(isinstance(size, int) and size > 0 for size in array.shape)


def _strided(f: FunctionText, node: Node, where: str) -> None:
    """Lanes at a constant stride; backwards is a load and a reversal."""
    lanes, stride = node.arg.width, node.arg.stride
    element, kinds = type_text(node.dtype), value_type(node)
    masked = len(node.src) > 2
    if is_loaded_in_run(f, node):
        return
    if stride == -1 and (not masked or f.target.masks_loads(node.dtype.itemsize)):
        backwards = range(lanes - 1, -1, -1)
        first = f.value(f"getelementptr {element}, ptr {where}, i64 {1 - lanes}")
        if masked:
            condition = f.use(node.src[2], lanes)
            condition = shuffled(f, dtypes.bool, lanes, (condition,), backwards)
            found = _masked_load(f, node, first, condition)
        else:
            found = f.value(f"load {kinds}, ptr {first}, align {node.arg.align}")
        f.names[node] = shuffled(f, node.dtype, lanes, (found,), backwards)
        return
    if masked and f.target.masks and node.dtype.itemsize >= WORD_NBYTES:
        _masked_gather(f, node, where)
        return
    if stride == 2 and (not masked or f.target.masks):
        _every_other(f, node, where)
        return
    function = _function(f, node)
    if function:
        f.set(node, f"call {kinds} {function}(ptr {where})")
        return
    if masked:
        start = f"getelementptr {element}, ptr {where}, i64"
        others = [f.value(f"{start} {stride * lane}") for lane in range(1, lanes)]
        f.names[node] = _collect(f, node, [where, *others], node.src[2])
        return
    name = next(f.unused)
    text = _lines_of(_form(node), node.arg.constant)
    f.lines.append(text.replace("@", where).replace("$", name))
    f.names[node] = f"{name}.v{lanes - 1}"


def _masked_gather(f: FunctionText, node: Node, where: str) -> None:
    """One instruction of machines with masks, which reads nothing where the mask is false."""
    lanes, stride = node.arg.width, node.arg.stride
    kinds, masks = value_type(node), type_text(dtypes.bool, lanes)
    places = lanes_text([stride * lane for lane in range(lanes)])
    addresses = f.value(f"getelementptr {type_text(node.dtype)}, ptr {where}, {places}")
    name = f"llvm.masked.gather.{suffix_text(node.dtype, lanes)}.v{lanes}p0"
    place = (f"<{lanes} x ptr>", addresses), ("i32", str(node.arg.align))
    mask = masks, f.use(node.src[2], lanes)
    f.names[node] = f.call(name, kinds, *place, mask, (kinds, "zeroinitializer"))


def _every_other(f: FunctionText, node: Node, where: str) -> None:
    """Every other element: those of two loads, the second of which ends where the lanes do."""
    lanes = node.arg.width
    element, kinds = type_text(node.dtype), value_type(node)
    after = f.value(f"getelementptr {element}, ptr {where}, i64 {lanes - 1}")
    first, second = _elements(f, node, where, 0), _elements(f, node, after, lanes - 1)
    places = [2 * lane if 2 * lane < lanes else 2 * lane + 1 for lane in range(lanes)]
    f.set(node, f"shufflevector {kinds} {first}, {kinds} {second}, {lanes_text(places)}")


def _elements(f: FunctionText, node: Node, where: str, at: int) -> str:
    """Neighbours from element `at` of a load of every other one, of which its mask allows those."""
    lanes, align = node.arg.width, node.arg.align
    if len(node.src) == 2:
        return f.value(f"load {value_type(node)}, ptr {where}, align {align}")
    masks = type_text(dtypes.bool, lanes)
    # A lane's condition for its own element, and that of no lane for the elements between.
    places = [(at + k) // 2 if (at + k) % 2 == 0 else lanes for k in range(lanes)]
    condition = f.use(node.src[2], lanes)
    taken = f.value(
        f"shufflevector {masks} {condition}, {masks} zeroinitializer, {lanes_text(places)}"
    )
    return f.given(masked_load_call(node.dtype, lanes, where, align, taken))


def _collect(f: FunctionText, node: Node, addresses: list[str], mask: Node | None) -> str:
    """One load per lane, put together."""
    element, kinds = type_text(node.dtype), value_type(node)
    constant = ", !invariant.load !0" if node.arg.constant else ""
    ending = f", align {node.arg.align}{constant}"
    total = "poison"
    for lane, address in enumerate(addresses):
        if mask is None:
            found = f.value(f"load {element}, ptr {address}{ending}")
        else:
            found = guarded_load(f, node.dtype, address, _lane(f, mask, lane), constant)
        total = f.value(f"insertelement {kinds} {total}, {element} {found}, i64 {lane}")
    return total


def _vstore(f: FunctionText, node: Node) -> None:
    base, _, value, *mask = node.src
    access = node.arg
    lanes = access.width
    where = _place(f, node)
    kinds = type_text(base.dtype, lanes)
    operand = f.use(value, lanes)
    if lanes > 1 and access.stride != 1:
        _spread(f, node, where, operand)
        return
    if not mask:
        ending = f"align {access.align}"
        if access.align >= STREAMED_NBYTES[0] and base.op is Ops.PARAM and base.arg.streamed:
            # Several registers' worth goes one by one, and no array is aligned to more than one.
            ending = f.streamed_ending(base, min(access.align, f.target.vector_bytes))
        if access.ahead:
            _prefetch(f, where, access.ahead, lanes * base.dtype.itemsize, True)
        f.lines.append(f"  store {kinds} {operand}, ptr {where}, {ending}")
        return
    condition = f.use(mask[0], lanes)
    f.run(masked_store_call(base.dtype, lanes, operand, where, access.align, condition))


def _spread(f: FunctionText, node: Node, where: str, operand: str) -> None:
    """One store per lane, at a constant stride."""
    access, dtype = node.arg, node.src[0].dtype
    kinds = type_text(dtype, access.width)
    function = _function(f, node)
    if function:
        f.lines.append(f"  call void {function}(ptr {where}, {kinds} {operand})")
        return
    text = _lines_of(_form(node), False).replace("#", operand)
    f.lines.append(text.replace("@", where).replace("$", next(f.unused)))


@lru_cache(1 << 8)
def _lines_of(form: Form, constant: bool) -> str:
    """The lines of an access one lane after the other, with marks for what they are filled in with.

    "$" for the name of its value, "@" for its place and "#" for what is stored.
    """
    loads, dtype, lanes, stride, align = form
    element, kinds = type_text(dtype), type_text(dtype, lanes)
    ending = f"align {align}, !invariant.load !0" if constant else f"align {align}"
    lines = []
    total = "poison"
    for lane in range(lanes):
        place, one, after = f"$.a{lane}", f"$.x{lane}", f"$.v{lane}"
        lines.append(f"  {place} = getelementptr {element}, ptr @, i64 {stride * lane}")
        if loads:
            lines.append(f"  {one} = load {element}, ptr {place}, {ending}")
            lines.append(f"  {after} = insertelement {kinds} {total}, {element} {one}, i64 {lane}")
        else:
            lines.append(f"  {one} = extractelement {kinds} #, i64 {lane}")
            lines.append(f"  store {element} {one}, ptr {place}, {ending}")
        total = after
    return "\n".join(lines)


# --- strided accesses that repeat ----------------------------------------------------------------

# From how many accesses of one form on a function is shorter, to compile and to run.
_MANY = 4


def _function(f: FunctionText, node: Node) -> str:
    """The function that a strided access calls, or "" for one that is written out.

    A program may have dozens of them that differ in their place alone, as at the end of a tile of
    accumulators: most of its text and machine code, and of LLVM's time, for few of its steps.
    """
    if len(node.src) > (2 if node.op is Ops.VLOAD else 3):
        return ""
    counts = f.strided
    if not counts:
        for one in f.program.src:
            if (one.op is Ops.VLOAD or one.op is Ops.VSTORE) and one.arg.stride != 1:
                form = _form(one)
                counts[form] = counts.get(form, 0) + max(len(one.arg.rows), 1)
    form = _form(node)
    if counts[form] < _MANY:
        return ""
    name, text = _function_text(form)
    f.declarations[text] = None
    return name


def _form(node: Node) -> Form:
    """What strided accesses share that call the same function."""
    access = node.arg
    loads = node.op is Ops.VLOAD
    dtype = node.dtype if loads else node.src[0].dtype
    return (loads, dtype, access.width, access.stride, access.align)


@lru_cache(1 << 8)
def _function_text(form: Form) -> tuple[str, str]:
    """The name and text of a function that reads or writes lanes at a stride."""
    loads, dtype, lanes, stride, align = form
    element, kinds = type_text(dtype), type_text(dtype, lanes)
    verb = "load" if loads else "store"
    name = f"@{verb}.{element}.{lanes}.{stride}.{align}"
    head = f"{kinds} {name}(ptr %p)" if loads else f"void {name}(ptr %p, {kinds} %x)"
    last = f"  ret {kinds} %t.v{lanes - 1}" if loads else "  ret void"
    body = _lines_of(form, False).replace("#", "%x").replace("@", "%p").replace("$", "%t")
    return name, "\n".join((f"define internal {head} #0 {{", body, last, "}"))


MEMORY_RULES: MappingProxyType[Op, Rule] = MappingProxyType(
    {
        Ops.SPLAT: _splat,
        **dict.fromkeys((Ops.ROWS, Ops.READ), _same),
        Ops.ROW: _row,
        Ops.LANES: _line,
        Ops.PART: _part,
        Ops.EXTRACT: _extract,
        Ops.JOIN: _join,
        Ops.ACROSS: _across,
        Ops.ANY: _any,
        Ops.SET: _set,
        Ops.VLOAD: _vload,
        Ops.VSTORE: _vstore,
        Ops.PREFETCH: _request,
        Ops.TURN: turn,
        Ops.TURNED: turn_copy,
    }
)
