"""Operators at the edges of what the standard allows, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from baregrad import io
from baregrad.base.errors import FileFormatError
from tests.io.onnx.models import by_onnxruntime, made, node, value

rng = np.random.default_rng(0)


def f(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def i(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def scalar(number: float, dtype: object = np.float32) -> np.ndarray:
    return np.array(number, dtype)


X, IMAGE = f(3, 4), f(1, 2, 3, 4)
LEAST = np.iinfo(np.int64).min
BYTES = rng.integers(-128, 128, (3, 4)).astype(np.int8)
SCALED = [BYTES, scalar(0.5), scalar(-3, np.int8)]

# Operator set, operator, inputs, attributes, and which inputs are constants.
CASES = (
    (18, "ReduceSum", [i(5, -7, 2)], {"noop_with_empty_axes": 1}, ()),
    (18, "ReduceSum", [i(5, -7, 2)], {"noop_with_empty_axes": 1}, (0,)),
    (18, "ReduceSum", [i(5, -7).astype(np.int32)], {"noop_with_empty_axes": 1}, ()),
    (18, "ReduceL2", [i(5, -7)], {"noop_with_empty_axes": 1}, ()),
    (13, "Slice", [X, i(-100), i(-200), i(0), i(-1)], {}, (1, 2, 3, 4)),
    (13, "Slice", [X, i(-100), i(-200), i(0), i(-1)], {}, (0, 1, 2, 3, 4)),
    (14, "Div", [i(LEAST, LEAST, 5, -5), i(2, 3, -2, -2)], {}, (0, 1)),
    (11, "Range", [scalar(10, int), scalar(0, int), scalar(3, int)], {}, ()),
    (11, "Range", [scalar(one, np.int16) for one in (-30000, 30000, 10000)], {}, (0, 1, 2)),
    (19, "Pad", [X, i(1, -1, -1, 2)], {"mode": "wrap"}, (1,)),
    (19, "Pad", [X, i(-1, 0, 0, 3)], {"mode": "edge"}, (1,)),
    (13, "Sign", [np.array([np.nan, -2, 0, 3], np.float32)], {}, ()),
    (10, "ThresholdedRelu", [np.array([np.nan, -2, 0.5, 3], np.float32)], {"alpha": 0.25}, ()),
    (10, "Resize", [f(1, 1, 2, 8), np.array([1, 1, 0.6, 0.6], np.float32)], {}, (1,)),
    (14, "RNN", [f(3, 2, 3), f(1, 2, 3), f(1, 2, 2)],
     {"hidden_size": 2, "activations": ["ScaledTanh"], "activation_alpha": [0.3],
      "activation_beta": [0.4]}, ()),
    (10, "QLinearMatMul", [BYTES, scalar(0.5), scalar(-3, np.int8), BYTES.T.copy(), scalar(0.5),
                           scalar(-3, np.int8), scalar(64.0), scalar(-3, np.int8)], {}, ()),
    (1, "QLinearGlobalAveragePool", [rng.integers(0, 256, (1, 3, 4, 2)).astype(np.uint8),
     scalar(0.05), scalar(128, np.uint8), scalar(1 / 30), scalar(128, np.uint8)],
     {"channels_last": 1}, (1, 2, 3, 4)),
    (1, "QLinearSoftmax", [BYTES.reshape(3, 2, 2), scalar(0.05), scalar(-3, np.int8),
     scalar(1 / 256), scalar(-128, np.int8)], {"axis": 1, "opset": 11}, (1, 2, 3, 4)),
)  # fmt: skip


@pytest.mark.differential
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[1]}-{case[0]}")
def test_an_extreme_case_agrees_with_onnxruntime(case) -> None:
    opset, op, arrays, attributes, constant = case
    microsoft = opset == 1
    names = [f"x{at}" for at in range(len(arrays))]
    constants = {names[at]: arrays[at] for at in constant}
    given = {name: array for name, array in zip(names, arrays, strict=True)
             if name not in constants}  # fmt: skip
    domain = {"domain": "com.microsoft"} if microsoft else {}
    inputs = [
        value(name, array.shape, helper.np_dtype_to_tensor_dtype(array.dtype))
        for name, array in given.items()
    ]
    model = made(
        [node(op, names, ["y"], **domain, **attributes)], inputs,
        [helper.make_empty_tensor_value_info("y")], constants,
        opset=21 if microsoft else opset, microsoft=microsoft,
    )  # fmt: skip
    (wanted,) = by_onnxruntime(model, given)
    found = io.load_onnx(model)(given)["y"].numpy()
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_allclose(found, wanted, 1e-4, 1e-5)


def test_a_transposed_convolution_has_its_bias_where_padding_reaches_beyond() -> None:
    """A stride larger than the kernel, of which SAME asks for all places."""
    weight, bias = f(2, 3, 1, 1), f(3)
    constants = {"w": weight, "b": bias}
    model = made(
        [node("ConvTranspose", ["x", "w", "b"], ["y"], strides=[2, 2], auto_pad="SAME_LOWER")],
        [value("x", IMAGE.shape)], [value("y", None)], constants,
    )  # fmt: skip
    wanted = np.zeros((1, 3, 6, 8), np.float32) + bias.reshape(3, 1, 1)
    wanted[:, :, ::2, ::2] += np.einsum("nchw,co->nohw", IMAGE, weight[..., 0, 0])
    np.testing.assert_allclose(io.load_onnx(model)(IMAGE)["y"].numpy(), wanted, 1e-5, 1e-5)


@pytest.mark.parametrize(
    ("op", "arrays", "constant"),
    [
        ("Gather", [i(1, 2, 3), i(-9)], True), ("Reshape", [X, i(5, -1)], True),
        ("Squeeze", [f(1, 3, 1), i(1)], True), ("Unsqueeze", [X, i(0, 0)], True),
        ("Unsqueeze", [X, i(0, 0)], False), ("Split", [f(7, 2), i(1, 2)], True),
        ("Range", [scalar(0, int), scalar(5, int), scalar(0, int)], True),
        ("Slice", [X, i(0), i(2), i(0), i(0)], False),
    ],
)  # fmt: skip
def test_what_the_standard_does_not_allow_is_refused_by_name(op, arrays, constant) -> None:
    names = [f"x{at}" for at in range(len(arrays))]
    constants = {name: array for name, array in zip(names, arrays, strict=True)
                 if constant or name != "x0"}  # fmt: skip
    model = made(
        [node(op, names, ["y", "z"] if op == "Split" else ["y"])],
        [value("x0", arrays[0].shape)] if not constant else [],
        [helper.make_empty_tensor_value_info("y")], constants,
    )  # fmt: skip
    with pytest.raises(FileFormatError):
        io.load_onnx(model)(*([] if constant else arrays[:1]))
