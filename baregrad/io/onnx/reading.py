"""From the messages of a file to plain data: weights as arrays, functions put in their places.

Source: the ONNX specification (IR version 12), docs/IR.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from baregrad.base.errors import BaregradError, FileFormatError, OutOfMemory
from baregrad.io.onnx.graph import Dim, GraphDef, NodeDef, ValueType
from baregrad.io.onnx.packages import onnx_package

Opsets = Mapping[str, int]
OLDEST, NEWEST = 7, 28
MOST_DEEP = 32
# Functions that call others twice each, some levels deep, would be expanded without end.
MOST_NODES = 1 << 20


@dataclass(frozen=True, slots=True)
class ModelDef:
    """A model: its graph, with functions expanded, and what it asks for."""

    graph: GraphDef
    opsets: Opsets
    producer: str
    ir_version: int


def read_model(source: str | os.PathLike[str] | bytes | Any) -> ModelDef:
    """Read a model from a file, its bytes, or a ModelProto.

    External data is read from beside the file. Raises FileFormatError for a broken model, OSError
    for a file that cannot be opened, MissingDependency without the package `onnx`.
    """
    onnx = onnx_package()
    folder: str | None = None
    if isinstance(source, bytes | bytearray):
        message = _parsed(onnx, bytes(source), "the model")
    elif isinstance(source, str | os.PathLike):
        path = Path(source)
        folder = str(path.parent)
        message = _parsed(onnx, path.read_bytes(), repr(str(path)))
    elif isinstance(source, onnx.ModelProto):
        message = source
    else:
        raise FileFormatError(
            "a model is a file, its bytes or a ModelProto", found=type(source).__name__
        )
    opsets = {_domain(one.domain): int(one.version) for one in message.opset_import}
    version = opsets.get("", NEWEST)
    if not OLDEST <= version <= NEWEST:
        raise FileFormatError(
            "the model is of an operator set that is not read", found=version,
            wanted=f"{OLDEST} to {NEWEST}",
            hint="convert it: onnx.version_converter.convert_version(model, 21)",
        )
    functions = {
        (_domain(one.domain), one.name): one for one in message.functions
    }
    reader = _Reader(onnx, folder, opsets, functions)
    try:
        graph = reader.graph(message.graph)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, BaregradError):
            raise
        raise FileFormatError(
            "the model is broken", found=f"{type(error).__name__}: {error}"
        ) from error
    return ModelDef(graph, opsets, message.producer_name, int(message.ir_version))


def read_function(message: Any, opsets: Opsets, functions: Mapping[Any, Any]) -> GraphDef:
    """Read a FunctionProto without attributes of its own as a graph."""
    own = {_domain(one.domain): int(one.version) for one in message.opset_import}
    reader = _Reader(onnx_package(), None, {**opsets, **own}, functions)
    nodes = reader.nodes(message.node, {})
    empty = ("tensor", "", None)
    inputs = tuple(ValueType(name, *empty) for name in message.input)
    outputs = tuple(ValueType(name, *empty) for name in message.output)
    return GraphDef(message.name, inputs, outputs, {}, tuple(nodes))


def _parsed(onnx: Any, data: bytes, name: str) -> Any:
    message = onnx.ModelProto()
    try:
        message.ParseFromString(data)
    except Exception as error:
        raise FileFormatError(
            f"{name} is not an ONNX model", found=f"{len(data)} bytes that do not parse",
            hint="fetch or export it again",
        ) from error
    if not message.HasField("graph"):
        raise FileFormatError(f"{name} is not an ONNX model", found="no graph")
    return message


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


class _Reader:
    """Reads graphs of one model."""

    def __init__(
        self, onnx: Any, folder: str | None, opsets: Opsets, functions: Mapping[Any, Any],
        depth: int = 0,
    ) -> None:
        self.onnx = onnx
        self.folder = folder
        self.opsets = opsets
        self.functions = functions
        self.depth = depth
        self.expanded = 0
        self.total = [0]

    def graph(self, message: Any, values: Mapping[str, Any] | None = None) -> GraphDef:
        """Read a GraphProto; `values` are the attributes that a function was called with."""
        constants = {one.name: self.array(one) for one in message.initializer}
        for one in message.sparse_initializer:
            constants[one.values.name] = self._dense(one)
        nodes = self.nodes(message.node, values or {})
        inputs = tuple(
            self.type(one.name, one.type) for one in message.input if one.name not in constants
        )
        outputs = tuple(self.type(one.name, one.type) for one in message.output)
        known = {one.name for one in inputs} | set(constants)
        for node in nodes:
            for name in node.outputs:
                if name and name in known:
                    raise FileFormatError("two nodes make one value", found=repr(name))
                known.add(name)
        return GraphDef(message.name, inputs, outputs, constants, tuple(nodes))

    def nodes(self, messages: Iterable[Any], values: Mapping[str, Any]) -> list[NodeDef]:
        """Read NodeProtos; calls of the model's own functions become their nodes."""
        found: list[NodeDef] = []
        for message in messages:
            key = (_domain(message.domain), message.op_type)
            attributes = self._attributes(message, values)
            function = self.functions.get(key)
            if function is not None:
                found += self._call(function, message, attributes)
                continue
            found.append(
                NodeDef(
                    message.op_type, key[0], message.name, tuple(message.input),
                    tuple(message.output), attributes, self.opsets.get(key[0], 1),
                    self._resolved(message, attributes),
                )
            )  # fmt: skip
        return found

    def _resolved(self, message: Any, attributes: Mapping[str, Any]) -> Any:
        """A node's message with values in the place of names of a function's attributes."""
        named = [one.name for one in message.attribute if one.ref_attr_name]
        if not named:
            return message
        made = self.onnx.NodeProto()
        made.CopyFrom(message)
        kept = [one for one in message.attribute if not one.ref_attr_name]
        del made.attribute[:]
        made.attribute.extend(kept)
        for name in named:
            value = attributes.get(name)
            if isinstance(value, int | float | str | list):
                made.attribute.append(self.onnx.helper.make_attribute(name, value))
        return made

    def _attributes(self, message: Any, values: Mapping[str, Any]) -> dict[str, Any]:
        attributes: dict[str, Any] = {}
        for one in message.attribute:
            if one.ref_attr_name:
                if one.ref_attr_name in values:
                    attributes[one.name] = values[one.ref_attr_name]
            else:
                attributes[one.name] = self.attribute(one, values)
        return attributes

    def _call(self, function: Any, call: Any, given: Mapping[str, Any]) -> list[NodeDef]:
        """The nodes of a function, renamed so that each call has values of its own."""
        if self.depth > MOST_DEEP:
            raise FileFormatError(f"the function {function.name!r} calls itself")
        values = {one.name: self.attribute(one, {}) for one in function.attribute_proto}
        values.update(given)
        opsets = {_domain(one.domain): int(one.version) for one in function.opset_import}
        inner = _Reader(
            self.onnx, self.folder, {**self.opsets, **opsets}, self.functions, self.depth + 1
        )
        inner.total = self.total
        prefix = f"{call.name or function.name}/{self.depth}.{self.expanded}/"
        self.expanded += 1
        names = dict.fromkeys(function.input, "")
        names.update(zip(function.input, call.input, strict=False))
        outside = zip(function.output, call.output, strict=False)
        # Of an input that is handed on, or a name given twice, a copy is made below.
        copies: list[NodeDef] = []
        for name, wanted in outside:
            if not wanted:
                continue
            if name in names:
                copies.append(
                    NodeDef("Identity", "", "", (names[name],), (wanted,), {},
                            self.opsets.get("", NEWEST))
                )  # fmt: skip
            else:
                names[name] = wanted
        body = inner.nodes(function.node, values)
        self.total[0] += len(body)
        if self.total[0] > MOST_NODES:
            raise FileFormatError(
                f"the function {function.name!r} is called too often",
                found=f"more than {MOST_NODES} nodes",
            )
        return [_renamed(node, names, prefix) for node in body] + copies

    def attribute(self, message: Any, values: Mapping[str, Any]) -> Any:
        """The value of an AttributeProto."""
        kind = message.type or self._kind(message)
        kinds = self.onnx.AttributeProto
        if kind == kinds.GRAPH:
            return self.graph(message.g, values)
        if kind == kinds.GRAPHS:
            return [self.graph(one, values) for one in message.graphs]
        if kind == kinds.TENSOR:
            return self.array(message.t)
        if kind == kinds.TENSORS:
            return [self.array(one) for one in message.tensors]
        if kind == kinds.SPARSE_TENSOR:
            return self._dense(message.sparse_tensor)
        if kind == kinds.STRING:
            return _text(message.s)
        if kind == kinds.STRINGS:
            return [_text(one) for one in message.strings]
        if kind == kinds.FLOAT:
            return float(message.f)
        if kind == kinds.INT:
            return int(message.i)
        if kind == kinds.FLOATS:
            return [float(one) for one in message.floats]
        if kind == kinds.INTS:
            return [int(one) for one in message.ints]
        if kind == kinds.TYPE_PROTO:
            return self.type("", message.tp)
        raise FileFormatError(f"the attribute {message.name!r} is of an unknown type", found=kind)

    def _kind(self, message: Any) -> int:
        """The type of an attribute of a writer that left it out."""
        kinds = self.onnx.AttributeProto
        names = (
            ("ints", kinds.INTS), ("floats", kinds.FLOATS), ("strings", kinds.STRINGS),
            ("graphs", kinds.GRAPHS),
        )  # fmt: skip
        for field, kind in names:
            if len(getattr(message, field)):
                return int(kind)
        for field, kind in (("g", kinds.GRAPH), ("t", kinds.TENSOR), ("s", kinds.STRING),
                            ("f", kinds.FLOAT)):  # fmt: skip
            if message.HasField(field):
                return int(kind)
        return int(kinds.INT)

    def array(self, message: Any) -> np.ndarray[Any, Any]:
        """The elements of a TensorProto; strings as NumPy's `str`."""
        try:
            if message.data_location == self.onnx.TensorProto.EXTERNAL:
                if self.folder is None:
                    raise ValueError("it is in a file beside the model: load the model's own file")
                copied = self.onnx.TensorProto()
                copied.CopyFrom(message)
                self.onnx.external_data_helper.load_external_data_for_tensor(copied, self.folder)
                message = copied
            if any(extent < 0 for extent in message.dims):
                raise ValueError(f"an extent is negative: {list(message.dims)}")
            array = self.onnx.numpy_helper.to_array(message)
        except Exception as error:
            # The package's own classes, which are imported late, are among them.
            raise FileFormatError(
                f"the weight {message.name!r} cannot be read", found=str(error)
            ) from error
        if array.dtype == object:
            texts = [_text(one) for one in array.reshape(-1)]
            return np.array(texts, str).reshape(array.shape)
        return np.asarray(array)

    def _dense(self, message: Any) -> np.ndarray[Any, Any]:
        values, places = self.array(message.values), self.array(message.indices)
        shape = tuple(message.dims)
        try:
            made = np.zeros(shape, values.dtype)
        except MemoryError as error:
            raise OutOfMemory("no room for a sparse weight", found=list(shape)) from error
        if places.ndim == 1:
            made.reshape(-1)[places] = values
        else:
            made[tuple(places.T)] = values
        return made

    def type(self, name: str, message: Any) -> ValueType:
        """The type that a TypeProto declares."""
        kind = message.WhichOneof("value") or ""
        if kind == "sequence_type":
            inner = self.type(name, message.sequence_type.elem_type)
            return replace(inner, kind="sequence")
        if kind == "optional_type":
            inner = self.type(name, message.optional_type.elem_type)
            return replace(inner, kind=f"optional {inner.kind}")
        if kind == "map_type":
            return ValueType(name, "map", "", None)
        tensor = message.sparse_tensor_type if kind == "sparse_tensor_type" else message.tensor_type
        shape: tuple[Dim, ...] | None = None
        if tensor.HasField("shape"):
            shape = tuple(_dim(one) for one in tensor.shape.dim)
        return ValueType(name, "tensor", self._dtype(tensor.elem_type), shape)

    def _dtype(self, element: int) -> str:
        if not element:
            return ""
        if element == self.onnx.TensorProto.STRING:
            return "str"
        return str(np.dtype(self.onnx.helper.tensor_dtype_to_np_dtype(element)))


def _dim(message: Any) -> Dim:
    kind = message.WhichOneof("value")
    if kind == "dim_value":
        return int(message.dim_value) if message.dim_value > 0 else None
    return str(message.dim_param) if kind == "dim_param" and message.dim_param else None


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _renamed(node: NodeDef, names: dict[str, str], prefix: str) -> NodeDef:
    """A function's node under the names that its values have where it is called."""
    def name_of(name: str) -> str:
        return names.setdefault(name, prefix + name) if name else ""

    attributes = {
        key: _renamed_graph(value, names, prefix) if isinstance(value, GraphDef) else value
        for key, value in node.attributes.items()
    }
    inputs = tuple(map(name_of, node.inputs))
    return replace(node, inputs=inputs, outputs=tuple(map(name_of, node.outputs)),
                   attributes=attributes)  # fmt: skip


def _renamed_graph(graph: GraphDef, names: dict[str, str], prefix: str) -> GraphDef:
    inside = dict(names)
    for value in graph.inputs:
        inside[value.name] = prefix + value.name
    for name in graph.constants:
        inside[name] = prefix + name
    nodes = tuple(_renamed(node, inside, prefix) for node in graph.nodes)

    def renamed(value: ValueType) -> ValueType:
        return replace(value, name=inside.setdefault(value.name, prefix + value.name))

    return GraphDef(
        graph.name, tuple(map(renamed, graph.inputs)), tuple(map(renamed, graph.outputs)),
        {inside[name]: array for name, array in graph.constants.items()}, nodes,
    )  # fmt: skip
