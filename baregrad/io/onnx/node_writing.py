"""How each op of a graph of tensors is written as nodes of ONNX."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from baregrad.base.errors import ShapeError
from baregrad.dtypes import DType, dtypes
from baregrad.io.onnx.values import array_of
from baregrad.ir.core.control import body_params, form_of, result
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Op, Ops
from baregrad.tensor import Tensor
from baregrad.tensor.autograd.putting_in import put_in

OPSET = 20


class UnsupportedNode(Exception):
    """Raised for a node that ONNX has no counterpart of; its text names it."""


def element_of(onnx: Any, dtype: DType) -> int:
    """The TensorProto code of a dtype."""
    if dtype is dtypes.bfloat16:
        return int(onnx.TensorProto.BFLOAT16)
    if dtype.numpy is None:
        raise UnsupportedNode(f"dtype {dtype}")
    return int(onnx.helper.np_dtype_to_tensor_dtype(dtype.numpy))


class GraphWriter:
    """Nodes and constants so far, and the name that each node of the graph has among them."""

    def __init__(self, onnx: Any, device: str, prefix: str = "") -> None:
        self.onnx = onnx
        self.device = device
        # Names in the graph of a loop's body are others than those around it.
        self.prefix = prefix
        self.names: dict[Node, str] = {}
        # Of loops, by their sources and what they have in common: the names of their results.
        self.loops: dict[Any, list[str]] = {}
        # Those of which is read what steps begin with, as gradients do.
        self.kept: set[Any] = set()
        # Of running folds of several states: the name of each.
        self.runs: dict[Node, list[str]] = {}
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._known: dict[tuple[Any, ...], str] = {}

    def name(self, node: Node) -> str:
        """The name of a node's value; what no input takes part in is computed now and stored."""
        if node not in self.names:
            self.names[node] = self._folded(node)
        return self.names[node]

    def _folded(self, node: Node) -> str:
        if node.op is Ops.CONST:
            return self.number(node.arg, node.dtype)
        if node.op is Ops.EXPAND:
            # Stored as what is repeated.
            return self.node("Expand", [self.name(node.src[0]), self.ints(node.shape)])
        return self.constant(np.asarray(array_of(Tensor._make(node, self.device))))

    def node(self, op: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        """Add a node; return the name of its output."""
        name = output or f"{self.prefix}v{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def constant(self, array: np.ndarray[Any, Any]) -> str:
        """The name of an array, which is stored once."""
        small = array.size <= 64
        key = (array.dtype.str, array.dtype.name, array.shape, array.tobytes()) if small else ()
        if small and key in self._known:
            return self._known[key]
        name = f"{self.prefix}c{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(array), name)
                              if array.ndim else self.onnx.numpy_helper.from_array(array, name))
        if small:
            self._known[key] = name
        return name

    def number(self, value: float, dtype: DType) -> str:
        """The name of a constant of no axes."""
        return self.constant(array_of(Tensor.full((), value, dtype=dtype, device="CPU")))

    def ints(self, values: Sequence[int]) -> str:
        """The name of a vector of int64."""
        return self.constant(np.array(values, np.int64).reshape(len(values)))

    def cast(self, name: str, dtype: DType) -> str:
        """A value in another dtype."""
        return self.node("Cast", [name], to=element_of(self.onnx, dtype))

    def reshaped(self, name: str, shape: Sequence[Any]) -> str:
        """A value in another shape."""
        return self.node("Reshape", [name, self.ints([int(e) for e in shape])], allowzero=1)

    def sliced(self, name: str, rows: Sequence[tuple[int, int, int, int]]) -> str:
        """A value cut by (axis, start, end, step)."""
        axes, starts, ends, steps = (self.ints(part) for part in zip(*rows, strict=True))
        return self.node("Slice", [name, starts, ends, axes, steps])


Writer = Callable[[GraphWriter, Node], str]


def _sources(writer: GraphWriter, node: Node) -> list[str]:
    return [writer.name(source) for source in node.src]


def _same(op: str, of_bools: str = "") -> Writer:
    """An op of the same meaning, which may have another name for bools."""

    def write(writer: GraphWriter, node: Node) -> str:
        is_bool = node.src[0].dtype is dtypes.bool
        return writer.node(of_bools if is_bool and of_bools else op, _sources(writer, node))

    return write


def _passed_on(writer: GraphWriter, node: Node) -> str:
    return writer.name(node.src[0])


def _power_of_two(writer: GraphWriter, node: Node) -> str:
    return writer.node("Pow", [writer.number(2, node.dtype), *_sources(writer, node)])


def _log2(writer: GraphWriter, node: Node) -> str:
    log = writer.node("Log", _sources(writer, node))
    return writer.node("Mul", [log, writer.number(1 / np.log(2), node.dtype)])


def _truncated(writer: GraphWriter, node: Node) -> str:
    (x,) = _sources(writer, node)
    below = writer.node("Less", [x, writer.number(0, node.dtype)])
    ceil, floor = writer.node("Ceil", [x]), writer.node("Floor", [x])
    return writer.node("Where", [below, ceil, floor])


def _floor_divided(writer: GraphWriter, node: Node) -> str:
    x, y = _sources(writer, node)
    rest = writer.node("Mod", [x, y])
    return writer.node("Div", [writer.node("Sub", [x, rest]), y])


def _modulo(writer: GraphWriter, node: Node) -> str:
    x, y = _sources(writer, node)
    if node.dtype.kind != "float":
        return writer.node("Mod", [x, y])
    whole = writer.node("Floor", [writer.node("Div", [x, y])])
    return writer.node("Sub", [x, writer.node("Mul", [y, whole])])


def _shifted(direction: str) -> Writer:
    def write(writer: GraphWriter, node: Node) -> str:
        if node.dtype.kind != "uint":
            raise UnsupportedNode(f"{node.op.name} of {node.dtype}")
        return writer.node("BitShift", _sources(writer, node), direction=direction)

    return write


def _compared(op: str, negated: bool = False) -> Writer:
    def write(writer: GraphWriter, node: Node) -> str:
        names = _sources(writer, node)
        if node.src[0].dtype is dtypes.bool:
            names = [writer.cast(name, dtypes.int32) for name in names]
        found = writer.node(op, names)
        return writer.node("Not", [found]) if negated else found

    return write


def _where(writer: GraphWriter, node: Node) -> str:
    condition, a, b = _sources(writer, node)
    if node.dtype is not dtypes.bool:
        return writer.node("Where", [condition, a, b])
    # onnxruntime has no Where of bools.
    other = writer.node("And", [writer.node("Not", [condition]), b])
    return writer.node("Or", [writer.node("And", [condition, a]), other])


def _multiply_add(writer: GraphWriter, node: Node) -> str:
    x, y, z = _sources(writer, node)
    return writer.node("Add", [writer.node("Mul", [x, y]), z])


def _cast(writer: GraphWriter, node: Node) -> str:
    return writer.cast(writer.name(node.src[0]), node.dtype)


# --- movement -------------------------------------------------------------------------------------


def _reshape(writer: GraphWriter, node: Node) -> str:
    return writer.reshaped(_whole(writer, node.src[0]), node.shape)


def _whole(writer: GraphWriter, node: Node) -> str:
    """A value in its whole shape, which one of scalars alone may stand for."""
    name = writer.name(node)
    if node.op is Ops.CONST and node.shape:
        return writer.node("Expand", [name, writer.ints(node.shape)])
    return name


def _permute(writer: GraphWriter, node: Node) -> str:
    return writer.node("Transpose", _sources(writer, node), perm=list(node.arg))


def _expand(writer: GraphWriter, node: Node) -> str:
    return writer.node("Expand", [writer.name(node.src[0]), writer.ints(node.shape)])


def _pad(writer: GraphWriter, node: Node) -> str:
    name = writer.name(node.src[0])
    shape = list(node.src[0].shape)
    for axis, pad in enumerate(node.arg):
        if pad.interior and shape[axis]:
            # Each element becomes one with zeros behind it; those behind the last are cut off.
            apart = writer.reshaped(name, [*shape[: axis + 1], 1, *shape[axis + 1 :]])
            rows = [0] * (2 * (len(shape) + 1))
            rows[len(shape) + 1 + axis + 1] = pad.interior
            apart = writer.node("Pad", [apart, writer.ints(rows),
                                        writer.number(0, node.dtype)])  # fmt: skip
            shape[axis] *= pad.interior + 1
            name = writer.reshaped(apart, shape)
            shape[axis] -= pad.interior
            name = writer.sliced(name, [(axis, 0, shape[axis], 1)])
    if any(pad.lo or pad.hi for pad in node.arg):
        amounts = writer.ints([pad.lo for pad in node.arg] + [pad.hi for pad in node.arg])
        name = writer.node("Pad", [name, amounts, writer.number(0, node.dtype)])
    return name


def _shrink(writer: GraphWriter, node: Node) -> str:
    extents = node.src[0].shape
    rows = [(axis, cut.start, cut.stop, cut.step) for axis, cut in enumerate(node.arg)
            if (cut.start, cut.stop, cut.step) != (0, extents[axis], 1)]  # fmt: skip
    return writer.sliced(writer.name(node.src[0]), rows) if rows else _passed_on(writer, node)


def _flip(writer: GraphWriter, node: Node) -> str:
    rows = [(axis, -1, -(1 << 62), -1) for axis in node.arg]
    return writer.sliced(writer.name(node.src[0]), rows) if rows else _passed_on(writer, node)


def _window(writer: GraphWriter, node: Node) -> str:
    window = node.arg
    positions = int(node.shape[window.axis])
    places = np.arange(positions)[:, None] * window.stride + (
        np.arange(window.taps) * window.dilation
    )
    name = writer.name(node.src[0])
    taken = writer.node("Gather", [name, writer.constant(places)], axis=window.axis)
    ndim = len(node.shape)
    order = [axis for axis in range(ndim) if axis != window.axis + 1] + [window.axis + 1]
    return writer.node("Transpose", [taken], perm=order)


# --- structure ------------------------------------------------------------------------------------


_REDUCTIONS: MappingProxyType[Op, str] = MappingProxyType({
    Ops.ADD: "ReduceSum", Ops.MUL: "ReduceProd", Ops.MAX: "ReduceMax", Ops.MIN: "ReduceMin",
})  # fmt: skip


def _reduce(writer: GraphWriter, node: Node) -> str:
    axes, op = node.arg.axes, node.arg.monoid.primitive
    if op is Ops.ADD:
        found = _einsum(writer, node)
        if found:
            return found
    if node.arg.monoid.arity > 1:
        # Its parts are written each by itself.
        return ""
    if not axes:
        return _passed_on(writer, node)
    name = _whole(writer, node.src[0])
    of_bools = node.dtype is dtypes.bool and op in (Ops.AND, Ops.OR, Ops.MAX, Ops.MIN)
    if of_bools:
        name = writer.cast(name, dtypes.int32)
        op = Ops.MIN if op in (Ops.AND, Ops.MIN) else Ops.MAX
    if op not in _REDUCTIONS:
        raise UnsupportedNode(f"REDUCE by {node.arg.monoid.name}")
    found = writer.node(_REDUCTIONS[op], [name, writer.ints(axes)], keepdims=0)
    return writer.cast(found, dtypes.bool) if of_bools else found


def _part(writer: GraphWriter, node: Node) -> str:
    """A part of a running fold; the extreme over axes, or the lowest place that has it."""
    reduction = node.src[0]
    if reduction.op is Ops.SCAN:
        if reduction not in writer.runs:
            writer.runs[reduction] = _running(writer, reduction)
        part: int = node.arg
        return writer.runs[reduction][part]
    kind = reduction.arg.monoid.name
    if reduction.op is not Ops.REDUCE or kind not in ("argmax", "argmin"):
        raise UnsupportedNode(f"a part of {reduction.op.name} by {kind}")
    x, places = reduction.src
    name, axes = _whole(writer, x), writer.ints(reduction.arg.axes)
    largest = "ReduceMax" if kind == "argmax" else "ReduceMin"
    if not node.arg:
        return writer.node(largest, [name, axes], keepdims=0)
    most = writer.node(largest, [name, axes], keepdims=1)
    beyond = writer.number(int(places.dtype.max), places.dtype)
    has = writer.node("Equal", [name, most])
    held = writer.node("Where", [has, _whole(writer, places), beyond])
    return writer.node("ReduceMin", [held, axes], keepdims=0)


def _einsum(writer: GraphWriter, node: Node) -> str:
    """A sum of products of two arrays that broadcast, or nothing for another sum."""
    product = node.src[0]
    ndim = len(product.shape)
    if product.op is not Ops.MUL or ndim > 26 or node.dtype.bits < 32:
        return ""
    letters = string.ascii_lowercase
    names, terms = [], []
    for source in product.src:
        inner = source
        while inner.op is Ops.EXPAND and len(inner.src[0].shape) == len(inner.shape):
            inner = inner.src[0]
        if len(inner.shape) != ndim:
            return ""
        kept = [axis for axis in range(ndim) if inner.shape[axis] == product.shape[axis]]
        name = _whole(writer, inner)
        if len(kept) != ndim:
            name = writer.reshaped(name, [inner.shape[axis] for axis in kept])
        names.append(name)
        terms.append("".join(letters[axis] for axis in kept))
    result = "".join(letters[axis] for axis in range(ndim) if axis not in node.arg.axes)
    if not set(result) <= set("".join(terms)) or len(set("".join(terms))) < ndim:
        return ""
    return writer.node("Einsum", names, equation=f"{terms[0]},{terms[1]}->{result}")


def _scan(writer: GraphWriter, node: Node) -> str:
    how = node.arg
    if how.monoid.arity > 1:
        # Its parts are written together, for the first of them that is read.
        return ""
    if how.monoid.primitive is not Ops.ADD:
        return _running(writer, node)[0]
    axis = writer.constant(np.array(how.axis, np.int64))
    return writer.node("CumSum", [_whole(writer, node.src[0]), axis])


def _running(writer: GraphWriter, node: Node) -> list[str]:
    """The parts of a running fold: every stretch is put together from two of half as many."""
    monoid, axis = node.arg
    parts = _formulas(writer, monoid.lift, [_whole(writer, source) for source in node.src])
    length = 1
    while length < node.shape[axis]:
        shape = [length if at == axis else int(e) for at, e in enumerate(node.shape)]
        earlier = []
        for part, neutral in zip(parts, monoid.identity, strict=True):
            before = writer.node("Expand", [writer.name(neutral), writer.ints(shape)])
            kept = writer.sliced(part, [(axis, 0, node.shape[axis] - length, 1)])
            earlier.append(writer.node("Concat", [before, kept], axis=axis))
        parts = _formulas(writer, monoid.combine, [*earlier, *parts])
        length *= 2
    return parts


def _formulas(writer: GraphWriter, formulas: Sequence[Node], slots: Sequence[str]) -> list[str]:
    """What formulas of a monoid come to for values in their slots."""
    steps = [node for node in toposort(*formulas) if node.op is not Ops.CONST]
    for node in steps:
        is_slot = node.op is Ops.SLOT
        writer.names[node] = slots[node.arg] if is_slot else WRITERS[node.op](writer, node)
    found = [writer.name(formula) for formula in formulas]
    for node in steps:
        del writer.names[node]
    return found


def _places(writer: GraphWriter, indices: Sequence[Node], shape: Sequence[Any]) -> str:
    """Index arrays, one for each axis, as one whose last axis holds them."""
    parts = []
    for index in indices:
        wide = writer.cast(writer.name(index), dtypes.int64)
        wide = writer.node("Expand", [wide, writer.ints([int(e) for e in shape])])
        parts.append(writer.reshaped(wide, [*shape, 1]))
    return writer.node("Concat", parts, axis=len(shape))


def _gather(writer: GraphWriter, node: Node) -> str:
    if node.arg:
        raise UnsupportedNode("GATHER of what may lie outside")
    base, *indices = node.src
    return writer.node(
        "GatherND", [_whole(writer, base), _places(writer, indices, node.shape)]
    )


def _scatter(writer: GraphWriter, node: Node) -> str:
    how = node.arg
    reduction = {None: "none", Ops.ADD: "add", Ops.MUL: "mul", Ops.MAX: "max", Ops.MIN: "min"}
    op = None if how.monoid is None else how.monoid.primitive
    if how.apart or how.atomic or op not in reduction:
        raise UnsupportedNode("SCATTER of what may lie outside")
    base, values, *indices = node.src
    shape = values.shape
    wide = writer.node("Expand", [writer.name(base), writer.ints(node.shape)])
    places = _places(writer, indices, shape)
    return writer.node("ScatterND", [wide, places, _whole(writer, values)],
                       reduction=reduction[op])  # fmt: skip


def _repeat(writer: GraphWriter, node: Node) -> str:
    """A loop as a Scan, or a Loop with a condition; its results find the one that is there."""
    form = node.arg
    if form.adjoint is not None:
        raise UnsupportedNode("REPEAT of a derivative")
    key = (node.src, form_of(node))
    names = writer.loops.get(key)
    if names is None:
        if key in writer.kept:
            # Behind what steps stack stands what they begin with, as further stacks.
            also = body_params(form, node.src)[: form.carried]
            body = Node(Ops.SINK, dtypes.token, (*form.body.src, *also))
            node = result(key[1]._replace(body=body), node.src, form.part)
        made = _loop_of if form.conditional else _scan_of
        names = writer.loops[key] = made(writer, node)
    found: str = names[form.part]
    return found


def _choose(writer: GraphWriter, node: Node) -> str:
    """A choice as an If, whose branches read what is around it."""
    form, number = node.arg, len(writer.nodes)
    key = (node.src, form_of(node))
    names = writer.loops.get(key)
    if names is None:
        graphs = []
        for body, side in ((form.body, "t"), (form.other, "e")):
            inner = GraphWriter(writer.onnx, writer.device, f"{writer.prefix}b{number}{side}_")
            for param, value in zip(body_params(form, node.src), node.src, strict=True):
                inner.names[param] = writer.name(value)
            graphs.append(_body_of(inner, [], _body_outputs(inner, body.src)))
        names = [f"{writer.prefix}v{number}_{part}" for part in range(len(form.body.src))]
        writer.nodes.append(writer.onnx.helper.make_node(
            "If", [writer.name(node.src[0])], names, then_branch=graphs[0], else_branch=graphs[1],
        ))
        writer.loops[key] = names
    found: str = names[form.part]
    return found


def _reference(writer: GraphWriter, node: Node) -> str:
    """A kernel of text as what it is to compute."""
    places = dict(zip(body_params(node.arg, node.src), node.src, strict=True))
    (made,) = put_in([node.arg.body.src[node.arg.part]], places)
    missing = write_all(writer, [made])
    if missing:
        raise UnsupportedNode(", ".join(missing))
    return writer.name(made)


def _scan_of(writer: GraphWriter, node: Node) -> list[str]:
    onnx, form, number = writer.onnx, node.arg, len(writer.nodes)
    inner = GraphWriter(onnx, writer.device, f"{writer.prefix}b{number}_")
    first, last = form.carried, form.carried + form.read
    given = [_whole(writer, value) for value in node.src[:last]]
    inputs = []
    for slot, param in enumerate(body_params(form, node.src)):
        if slot >= last:
            inner.names[param] = writer.name(node.src[slot])
            continue
        name = inner.names[param] = f"{inner.prefix}i{slot}"
        inputs.append(declared(onnx, name, param))
    if first == last:
        # A Scan reads a row at each step.
        given.append(writer.constant(np.zeros(form.length, np.float32)))
        inputs.append(onnx.helper.make_tensor_value_info(
            f"{inner.prefix}i", onnx.TensorProto.FLOAT, []
        ))
    outputs = _body_outputs(inner, form.body.src)
    graph = _body_of(inner, inputs, outputs)
    names = [f"{writer.prefix}v{number}_{part}" for part in range(len(outputs))]
    read, stacked = len(given) - first, len(outputs) - first
    ways = {"scan_input_directions": [1] * read, "scan_output_directions": [1] * stacked}
    writer.nodes.append(onnx.helper.make_node(
        "Scan", given, names, body=graph, num_scan_inputs=read,
        **{name: way for name, way in ways.items() if way and form.backwards},
    ))
    return names


def _loop_of(writer: GraphWriter, node: Node) -> list[str]:
    """A loop that goes on while its last carried value, a flag that no step reads, is true."""
    onnx, form, number = writer.onnx, node.arg, len(writer.nodes)
    inner = GraphWriter(onnx, writer.device, f"{writer.prefix}b{number}_")
    flag = form.carried - 1
    given = [_whole(writer, value) for value in node.src[:flag]]
    most = "" if form.length is None else writer.constant(np.array(form.length, np.int64))
    goes_on = writer.name(node.src[flag])
    step = onnx.helper.make_tensor_value_info(f"{inner.prefix}i", onnx.TensorProto.INT64, [])
    inputs = []
    for slot, param in enumerate(body_params(form, node.src)):
        if slot > flag:
            inner.names[param] = writer.name(node.src[slot])
            continue
        name = inner.names[param] = f"{inner.prefix}i{slot}"
        inputs.append(declared(onnx, name, param))
    outputs = _body_outputs(inner, form.body.src)
    graph = _body_of(inner, [step, inputs[flag], *inputs[:flag]], [outputs[flag], *outputs[:flag]])
    names = [f"{writer.prefix}v{number}_{part}" for part in range(flag)]
    writer.nodes.append(onnx.helper.make_node("Loop", [most, goes_on, *given], names, body=graph))
    return names


def _body_outputs(inner: GraphWriter, roots: Sequence[Node]) -> list[Any]:
    """Write what a loop's body makes; the declarations of its results."""
    missing = write_all(inner, roots)
    if missing:
        raise UnsupportedNode(", ".join(missing))
    outputs = []
    for part, root in enumerate(roots):
        name = f"{inner.prefix}o{part}"
        inner.node("Expand", [inner.name(root), inner.ints(root.shape)], output=name)
        outputs.append(declared(inner.onnx, name, root))
    return outputs


def _body_of(inner: GraphWriter, inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
    return inner.onnx.helper.make_graph(
        inner.nodes, f"{inner.prefix}body", inputs, outputs, inner.constants
    )


def declared(onnx: Any, name: str, value: Node) -> Any:
    """A value's name, dtype and shape as a model declares them."""
    return onnx.helper.make_tensor_value_info(
        name, element_of(onnx, value.dtype), [int(extent) for extent in value.shape]
    )


def write_all(writer: GraphWriter, roots: Sequence[Node]) -> dict[str, int]:
    """Write what is made of values that have names; how often each op without counterpart stands.

    Raises ShapeError for symbolic shapes.
    """
    missing: dict[str, int] = {}
    dependent = set(writer.names)
    order = list(toposort(*roots))
    writer.kept |= {(node.src, form_of(node)) for node in order if node.op is Ops.REPEAT
                    and len(node.arg.body.src) <= node.arg.part}
    for node in order:
        if node in dependent or not any(source in dependent for source in node.src):
            continue
        dependent.add(node)
        if not all(isinstance(extent, int) for extent in node.shape):
            raise ShapeError("a symbolic shape is not exported", found=list(node.shape))
        write = WRITERS.get(node.op)
        try:
            if write is None:
                raise UnsupportedNode(node.op.name)
            writer.names[node] = write(writer, node)
        except UnsupportedNode as error:
            missing[str(error)] = missing.get(str(error), 0) + 1
            writer.names[node] = ""
    return missing


WRITERS: MappingProxyType[Op, Writer] = MappingProxyType({
    Ops.CONTIGUOUS: _passed_on, Ops.DETACH: _passed_on, Ops.COPY: _passed_on,
    Ops.NEG: _same("Neg"), Ops.NOT: _same("BitwiseNot", "Not"), Ops.ABS: _same("Abs"),
    Ops.RECIPROCAL: _same("Reciprocal"), Ops.SQRT: _same("Sqrt"), Ops.EXP: _same("Exp"),
    Ops.EXP_NEAR: _same("Exp"), Ops.EXP2: _power_of_two, Ops.EXP2_NEAR: _power_of_two,
    Ops.LOG: _same("Log"), Ops.LOG2: _log2, Ops.SIN: _same("Sin"), Ops.COS: _same("Cos"),
    Ops.TANH: _same("Tanh"), Ops.ERF: _same("Erf"), Ops.GELU: _same("Gelu"),
    Ops.GELU_NEAR: _same("Gelu"),
    Ops.ATAN: _same("Atan"), Ops.FLOOR: _same("Floor"), Ops.CEIL: _same("Ceil"),
    Ops.TRUNC: _truncated, Ops.RINT: _same("Round"),
    Ops.ADD: _same("Add", "Or"), Ops.SUB: _same("Sub"), Ops.MUL: _same("Mul", "And"),
    Ops.DIV: _same("Div"), Ops.FLOORDIV: _floor_divided, Ops.MOD: _modulo,
    Ops.TRUNCDIV: _same("Div"), Ops.POW: _same("Pow"), Ops.MAX: _same("Max", "Or"),
    Ops.MIN: _same("Min", "And"), Ops.AND: _same("BitwiseAnd", "And"),
    Ops.OR: _same("BitwiseOr", "Or"), Ops.XOR: _same("BitwiseXor", "Xor"),
    Ops.SHL: _shifted("LEFT"), Ops.SHR: _shifted("RIGHT"),
    Ops.CMPLT: _compared("Less"), Ops.CMPLE: _compared("LessOrEqual"),
    Ops.CMPEQ: _compared("Equal"), Ops.CMPNE: _compared("Equal", negated=True),
    Ops.WHERE: _where, Ops.FMA: _multiply_add, Ops.CAST: _cast,
    Ops.RESHAPE: _reshape, Ops.PERMUTE: _permute, Ops.EXPAND: _expand, Ops.PAD: _pad,
    Ops.SHRINK: _shrink, Ops.FLIP: _flip, Ops.WINDOW: _window,
    Ops.REDUCE: _reduce, Ops.PROJ: _part, Ops.SCAN: _scan, Ops.GATHER: _gather,
    Ops.SCATTER: _scatter, Ops.REPEAT: _repeat, Ops.CHOOSE: _choose, Ops.CALL: _reference,
})  # fmt: skip
