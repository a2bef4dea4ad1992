"""Composite operators of the standard that have no function here, by the standard's own bodies."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np

from baregrad.io.onnx.call import NodeCall
from baregrad.io.onnx.graph import GraphDef, NodeDef
from baregrad.io.onnx.packages import onnx_package
from baregrad.io.onnx.reading import read_function
from baregrad.io.onnx.values import Value, is_symbolic, is_text
from baregrad.tensor import Tensor


def has_function(node: NodeDef) -> bool:
    """Whether the standard defines an operator by others."""
    schema = _schema(node)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def function_of(call: NodeCall) -> GraphDef | None:
    """The body of an operator for inputs of these types, or None where it has none."""
    kinds = tuple(_kind(value) for value in call.inputs)
    made: GraphDef | None = call.scope.cached(
        ("function", id(call.node), kinds), lambda: _body(call)
    )
    return made


def _schema(node: NodeDef) -> Any | None:
    defs = onnx_package().defs
    try:
        return defs.get_schema(node.op, node.version, node.domain)
    except defs.SchemaError:
        return None


def _body(call: NodeCall) -> GraphDef | None:
    onnx = onnx_package()
    schema = _schema(call.node)
    if schema is None or call.node.message is None:
        return None
    node = call.node
    if schema.has_function:
        function = schema.function_body
    elif schema.has_context_dependent_function:
        types = [_type(onnx, value) for value in call.inputs]
        data = schema.get_context_dependent_function(
            node.message.SerializeToString(), [one.SerializeToString() for one in types]
        )
        function = onnx.FunctionProto.FromString(data)
    else:
        return None
    made = {name for one in function.node for name in one.output} | set(function.input)
    absent = [name for name in function.output if name not in made]
    for name in absent:
        function.output.remove(name)
    called = onnx.helper.make_node(
        node.op, list(function.input), list(function.output), domain="expanded"
    )
    called.attribute.extend(node.message.attribute)
    for name, default in schema.attributes.items():
        if name not in node.attributes and default.default_value.name:
            called.attribute.append(default.default_value)
    function.name, function.domain = node.op, "expanded"
    wrapped = onnx.FunctionProto()
    wrapped.name, wrapped.domain = f"{node.op} of the standard", "expanded"
    wrapped.input.extend(function.input)
    wrapped.output.extend(function.output)
    wrapped.node.append(called)
    wrapped.opset_import.extend(function.opset_import)
    return read_function(wrapped, {"": node.version}, {("expanded", node.op): function})


def _kind(value: Value) -> object:
    if isinstance(value, Tensor):
        return value.dtype.name, value.ndim
    if isinstance(value, np.ndarray):
        return "int64" if is_symbolic(value) else str(value.dtype), value.ndim
    return type(value).__name__


def _type(onnx: Any, value: Value) -> Any:
    """The type of a value as a TypeProto."""
    if value is None:
        return onnx.TypeProto()
    if isinstance(value, list):
        inner = _type(onnx, value[0]) if value else onnx.TypeProto()
        return onnx.helper.make_sequence_type_proto(inner)
    if is_text(value):
        element = onnx.TensorProto.STRING
    else:
        name = value.dtype.name if isinstance(value, Tensor) else str(value.dtype)
        name = "int64" if name == "object" else name
        element = getattr(onnx.TensorProto, _SPELLED.get(name, name.upper()))
    shape = [extent if isinstance(extent, int) else None for extent in value.shape]
    return onnx.helper.make_tensor_type_proto(element, shape)


_SPELLED = MappingProxyType({
    "float32": "FLOAT", "float64": "DOUBLE", "float8_e4m3fn": "FLOAT8E4M3FN",
    "float8_e5m2": "FLOAT8E5M2", "float4_e2m1fn": "FLOAT4E2M1",
})  # fmt: skip
