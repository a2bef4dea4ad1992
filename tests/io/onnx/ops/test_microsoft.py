"""Operators of com.microsoft against onnxruntime's, whose they are."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad import io
from baregrad.base.errors import UnsupportedError
from tests.io.onnx.models import by_onnxruntime, made, node

KINDS = {"float32": 1, "int32": 6, "int64": 7, "uint8": 2, "int8": 3, "float16": 10, "bool": 9}
rng = np.random.default_rng(0)


def f(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def i32(*values) -> np.ndarray:
    return np.array(values, np.int32)


def u8(*shape: int) -> np.ndarray:
    return rng.integers(0, 255, shape).astype(np.uint8)


def scalar(value: float, dtype: str = "float32") -> np.ndarray:
    return np.array(value, dtype)


def agree(op, inputs, outputs=1, tolerance=1e-4, domain="com.microsoft", **attributes) -> None:
    """Inputs are arrays, or None for one that is left out."""
    from onnx import helper

    names = ["" if array is None else f"x{at}" for at, array in enumerate(inputs)]
    given = {name: array for name, array in zip(names, inputs, strict=True) if name}
    results = [f"y{at}" for at in range(outputs)]
    model = made(
        [node(op, names, results, domain=domain, **attributes)],
        [helper.make_tensor_value_info(name, KINDS[str(array.dtype)], array.shape)
         for name, array in given.items()],
        [helper.make_empty_tensor_value_info(name) for name in results],
        opset=17, microsoft=True,
    )  # fmt: skip
    wanted = by_onnxruntime(model, given)
    found = list(io.load_onnx(model)(given).values())
    for one, other in zip(found, wanted, strict=True):
        array = one.numpy()
        assert array.shape == other.shape
        assert array.dtype == other.dtype
        np.testing.assert_allclose(
            array.astype(np.float64), other.astype(np.float64), tolerance, tolerance
        )


@pytest.mark.parametrize(("op", "count"), [
    ("Gelu", 1), ("QuickGelu", 1), ("FastGelu", 1), ("FastGelu", 2), ("BiasGelu", 2),
])  # fmt: skip
def test_activations(op: str, count: int) -> None:
    agree(op, [f(2, 3, 8), f(8)][:count])


def test_products() -> None:
    agree("FusedMatMul", [f(2, 5, 3), f(2, 5, 4)], transA=1, alpha=0.5)
    agree("FusedMatMul", [f(2, 3, 5), f(2, 4, 5)], transB=1)
    agree("FusedGemm", [f(3, 5), f(5, 4), f(4)], activation="Relu")
    agree("FusedConv", [f(1, 3, 6, 6), f(4, 3, 3, 3), f(4)], activation="Relu", pads=[1, 1, 1, 1])


def test_products_of_packed_weights() -> None:
    agree("MatMulNBits", [f(3, 64), u8(8, 2, 16), f(16)], K=64, N=8, bits=4, block_size=32,
          tolerance=1e-3)  # fmt: skip
    agree("MatMulNBits", [f(3, 64), u8(8, 2, 16), f(16), u8(8)], K=64, N=8, bits=4,
          block_size=32, tolerance=1e-3)  # fmt: skip


def test_norms() -> None:
    agree("SkipLayerNormalization", [f(2, 3, 8), f(2, 3, 8), f(8), f(8)])
    agree("SkipLayerNormalization", [f(2, 3, 8), f(2, 3, 8), f(8), f(8), f(8)])
    agree("SkipSimplifiedLayerNormalization", [f(2, 3, 8), f(2, 3, 8), f(8)])
    agree("SimplifiedLayerNormalization", [f(2, 3, 8), f(8)], domain="")


def test_embedding_norm() -> None:
    words = rng.integers(0, 10, (2, 4)).astype(np.int32)
    segments = rng.integers(0, 2, (2, 4)).astype(np.int32)
    mask = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32)
    inputs = [words, segments, f(10, 8), f(6, 8), f(2, 8), f(8), f(8), mask]
    agree("EmbedLayerNormalization", inputs, outputs=2, epsilon=1e-5)


def test_attention() -> None:
    inputs = [f(2, 4, 8), f(8, 24, scale=0.4), f(24)]
    agree("Attention", inputs, num_heads=2)
    agree("Attention", inputs, num_heads=2, unidirectional=1)
    agree("Attention", [*inputs, i32(4, 2)], num_heads=2)
    mask = np.array([[1, 1, 1, 0], [1, 1, 1, 1]], np.int32)
    agree("Attention", [*inputs, mask], num_heads=2)
    agree("Attention", [*inputs, None, f(2, 2, 2, 3, 4)], num_heads=2, outputs=2)


def test_multi_head_attention() -> None:
    agree("MultiHeadAttention", [f(2, 3, 8), f(2, 5, 8), f(2, 5, 8)], num_heads=2)
    agree("MultiHeadAttention", [f(2, 3, 8), f(2, 5, 8), f(2, 5, 8), f(24)], num_heads=2)
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
    agree("MultiHeadAttention", [f(2, 3, 8), f(2, 5, 8), f(2, 5, 8), None, mask], num_heads=2)
    agree("MultiHeadAttention", [f(2, 3, 8), f(2, 3, 8), f(2, 3, 8), None, None, None,
                                 f(2, 2, 4, 4), f(2, 2, 4, 4)], num_heads=2, outputs=3)  # fmt: skip


@pytest.mark.parametrize("rotary", [0, 1])
def test_grouped_attention(rotary: int) -> None:
    tables = [f(32, 8), f(32, 8)] if rotary else []
    first = [f(1, 5, 64), f(1, 5, 32), f(1, 5, 32), None, None, i32(4), scalar(5, "int32")]
    agree("GroupQueryAttention", [*first, *tables], num_heads=4, kv_num_heads=2, outputs=3,
          do_rotary=rotary)  # fmt: skip
    past = [f(1, 2, 6, 16), f(1, 2, 6, 16)]
    later = [f(1, 1, 64), f(1, 1, 32), f(1, 1, 32), *past, i32(6), scalar(7, "int32")]
    agree("GroupQueryAttention", [*later, *tables], num_heads=4, kv_num_heads=2, outputs=3,
          do_rotary=rotary)  # fmt: skip


def test_rotary_positions() -> None:
    places = np.arange(3, dtype=np.int64)[None].repeat(2, 0)
    agree("RotaryEmbedding", [f(2, 3, 16), places, f(10, 4), f(10, 4)])
    agree("RotaryEmbedding", [f(2, 3, 16), places, f(10, 4), f(10, 4)], interleaved=1)
    agree("RotaryEmbedding", [f(2, 2, 3, 8), np.array([4]), f(10, 4), f(10, 4)])


def test_quantised() -> None:
    def number():
        return [scalar(rng.random() / 20 + 0.01), u8()]

    three, five = number(), number()
    agree("QLinearAdd", [u8(2, 6), *three, u8(6), *five, *number()], tolerance=1)
    agree("QLinearMul", [u8(2, 6), *three, u8(6), *five, *number()], tolerance=1)
    agree("QLinearSigmoid", [u8(2, 6), *three, scalar(1 / 256), scalar(0, "uint8")], tolerance=1)
    agree("QLinearLeakyRelu", [u8(2, 6), *three, *number()], tolerance=1, alpha=0.1)
    agree("QLinearGlobalAveragePool", [u8(1, 2, 3, 3), *three, *number()], tolerance=1,
          channels_last=0)  # fmt: skip
    agree("DynamicQuantizeMatMul", [f(3, 8), u8(8, 4), scalar(0.1), scalar(7, "uint8")],
          tolerance=0.2)  # fmt: skip
    agree("MatMulIntegerToFloat", [u8(3, 8), u8(8, 4), scalar(0.1), scalar(0.2),
                                   scalar(7, "uint8"), scalar(9, "uint8")])  # fmt: skip


def test_a_fused_product_ends_with_the_numbers_of_its_activation() -> None:
    inputs = [f(3, 5), f(5, 4), f(4)]
    agree("FusedGemm", inputs, activation="LeakyRelu", activation_alpha=0.3)
    agree("FusedGemm", inputs, activation="HardSigmoid", activation_alpha=0.3,
          activation_beta=0.4)  # fmt: skip


def test_masks_that_say_where_sequences_end_and_start() -> None:
    for batch, mask in ((1, i32(3, 1)), (2, i32(3, 4, 0, 1)), (2, i32(3, 2))):
        agree("Attention", [f(batch, 4, 8), f(8, 24), f(24), mask], num_heads=2)


def test_a_causal_mask_is_of_one_sequence() -> None:
    same = [f(2, 4, 8), f(2, 4, 8), f(2, 4, 8)]
    agree("MultiHeadAttention", same, num_heads=2, unidirectional=1)
    with pytest.raises(UnsupportedError, match="another sequence"):
        agree("MultiHeadAttention", [f(2, 4, 8), f(2, 5, 8), f(2, 5, 8)], num_heads=2,
              unidirectional=1)  # fmt: skip


def test_values_of_another_width() -> None:
    agree("Attention", [f(2, 4, 8), f(8, 20), f(20)], num_heads=2, qkv_hidden_sizes=[6, 6, 8])


def test_dynamic_quantisation_gives_the_same_integers() -> None:
    weights = [u8(8, 4), np.array([0.1], np.float32), u8(1)]
    agree("DynamicQuantizeMatMul", [f(3, 8), *weights], tolerance=1e-3)
    agree("DynamicQuantizeLinear", [np.zeros(3, np.float32)], outputs=3, domain="")


def test_columns_in_another_order_than_their_groups_are_refused() -> None:
    inputs = [f(2, 32), u8(3, 2, 8), f(6), None, i32(*[0] * 32)]
    with pytest.raises(UnsupportedError, match="order of their groups"):
        agree("MatMulNBits", inputs, K=32, N=3, bits=4, block_size=16)
