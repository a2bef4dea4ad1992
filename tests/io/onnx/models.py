"""Small ONNX models for the tests, made by the package `onnx`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def value(name: str, shape: Sequence[Any] | None, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> Any:
    return helper.make_node(op, list(inputs), list(outputs), **attributes)


def made(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    constants: Mapping[str, np.ndarray] | None = None,
    opset: int = 21,
    microsoft: bool = False,
    **more: Any,
) -> Any:
    graph = helper.make_graph(
        list(nodes), "test", list(inputs), list(outputs),
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )  # fmt: skip
    imports = [helper.make_opsetid("", opset)]
    if microsoft:
        imports.append(helper.make_opsetid("com.microsoft", 1))
    return helper.make_model(graph, opset_imports=imports, ir_version=10, **more)


def by_onnxruntime(model: Any, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs that onnxruntime gives."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model), settings,
        providers=["CPUExecutionProvider"],
    )
    return session.run(None, dict(inputs))
