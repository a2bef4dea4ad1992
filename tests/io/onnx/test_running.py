"""Forms that operators had in older operator sets, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from baregrad import io
from tests.io.onnx.models import by_onnxruntime, made, node, value

rng = np.random.default_rng(0)


def f(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def i(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


X = f(2, 4, 6)
IMAGE = f(1, 2, 6, 6)

CASES = (
    (7, "Add", [X, f(6)], {}),
    (7, "Gemm", [f(3, 4), f(4, 5), f(5)], {"alpha": 0.5, "beta": 2.0}),
    (7, "BatchNormalization", [IMAGE, f(2), f(2), f(2), np.abs(f(2))], {}),
    (7, "Dropout", [X], {"ratio": 0.3}),
    (7, "Upsample", [IMAGE], {"mode": "nearest", "scales": [1.0, 1.0, 2.0, 2.0]}),
    (7, "AveragePool", [IMAGE], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    (8, "MaxPool", [IMAGE], {"kernel_shape": [2, 2], "strides": [2, 2]}),
    (9, "Upsample", [IMAGE, np.array([1, 1, 2, 3], np.float32)], {"mode": "linear"}),
    (9, "Slice", [X], {"starts": [1, -4], "ends": [3, 1 << 40], "axes": [1, 2]}),
    (10, "Slice", [X, i(0, 5), i(3, -100), i(1, 2), i(2, -2)], {}),
    (10, "Resize", [IMAGE, np.array([1, 1, 2, 2], np.float32)], {"mode": "nearest"}),
    (10, "TopK", [X, i(3)], {"axis": 1}),
    (11, "Squeeze", [f(2, 1, 3, 1)], {"axes": [1, -1]}),
    (11, "Unsqueeze", [X], {"axes": [0, 4]}),
    (11, "ReduceSum", [X], {"axes": [0, -1], "keepdims": 0}),
    (11, "ReduceMean", [X], {"axes": [1]}),
    (11, "ReduceMax", [X], {}),
    (11, "Softmax", [X], {"axis": 1}),
    (11, "LogSoftmax", [X], {}),
    (11, "Hardmax", [X], {}),
    (10, "Clip", [X], {"min": -0.5, "max": 0.25}),
    (10, "Pad", [X], {"pads": [0, 1, 2, 0, 0, 1], "mode": "constant", "value": 1.5}),
    (11, "Pad", [X, i(0, 1, 2, 0, 0, 1)], {"mode": "reflect"}),
    (11, "Split", [X], {"axis": 1, "split": [1, 3]}),
    (11, "Flatten", [X], {"axis": -1}),
    (11, "ArgMax", [X], {"axis": -1, "keepdims": 0}),
    (11, "GatherND", [X, np.array([[0, 1], [1, -1]], np.int64)], {}),
    (11, "CumSum", [X, np.array(1)], {"reverse": 1}),
    (11, "OneHot", [i(1, -1, 3), np.array(4), np.array([0, 1], np.float32)], {"axis": 0}),
    (12, "Pow", [np.abs(X), np.array(2, np.int64)], {}),
    (12, "Einsum", [f(3, 4), f(4, 5)], {"equation": "ij,jk->ki"}),
    (13, "ReduceSum", [X, i(1)], {}),
    (15, "Shape", [X], {"start": 1}),
    (16, "PRelu", [X, f(4, 1)], {}),
    (17, "LayerNormalization", [X, f(6), f(6)], {}),
    (18, "Split", [X], {"axis": 2, "num_outputs": 4}),
    (18, "ReduceL2", [X, i(0, 1)], {"keepdims": 0}),
)


@pytest.mark.differential
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[1]}-{case[0]}")
def test_an_older_form_agrees_with_onnxruntime(case) -> None:
    opset, op, arrays, attributes = case
    names = [f"x{at}" for at in range(len(arrays))]
    parts = len(attributes["split"]) if "split" in attributes else attributes.get("num_outputs")
    outputs = [f"y{at}" for at in range(2 if op == "TopK" else parts or 1)]
    # Sizes and the like are constants, as exporters write them.
    constants = {name: array for name, array in zip(names, arrays, strict=True)
                 if array.dtype != np.float32 or (op in ("Upsample", "Resize") and array.ndim == 1)}
    given = {name: array for name, array in zip(names, arrays, strict=True)
             if name not in constants}  # fmt: skip
    model = made(
        [node(op, names, outputs, **attributes)],
        [value(name, array.shape) for name, array in given.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs], constants, opset=opset,
    )  # fmt: skip
    model.ir_version = 5 if opset < 11 else 8
    wanted = by_onnxruntime(model, given)
    loaded = io.load_onnx(model)
    for _ in range(2):
        for one, other in zip(loaded(given).values(), wanted, strict=True):
            array = one.numpy()
            assert array.dtype == other.dtype
            assert array.shape == other.shape
            np.testing.assert_allclose(array, other, 1e-4, 1e-5)
