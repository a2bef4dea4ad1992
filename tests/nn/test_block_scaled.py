"""Blocks of few bits against ml_dtypes and the formulas of the specification, in NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from baregrad import nn
from baregrad.base.errors import ArgumentError, DTypeError, ShapeError
from baregrad.dtypes import dtypes
from baregrad.nn.block_scaled import FORMATS, quantize_blocks, scaled_matmul
from baregrad.tensor import Tensor
from baregrad.testing.ptx_device import ptx_session

Array = npt.NDArray[np.float32]
NATIVE = {
    "mxfp8": ml_dtypes.float8_e4m3fn, "mxfp8_e5m2": ml_dtypes.float8_e5m2,
    "mxfp4": ml_dtypes.float4_e2m1fn, "fp8": ml_dtypes.float8_e4m3fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2, "fp8_e8m0": ml_dtypes.float8_e4m3fn, "int4": ml_dtypes.int4,
    "nvfp4": ml_dtypes.float4_e2m1fn,
}
LARGEST = {
    "mxfp8": 448, "mxfp8_e5m2": 57344, "mxfp4": 6, "fp8": 448, "fp8_e5m2": 57344, "fp8_e8m0": 448,
    "int4": 7, "nvfp4": 6,
}  # fmt: skip
# The exponents of the largest elements, by the specification.
TOP = {"mxfp8": 8, "mxfp8_e5m2": 15, "mxfp4": 2, "fp8_e8m0": 8}


def drawn(rows: int = 4, columns: int = 256) -> Array:
    random = np.random.default_rng(rows)
    values = random.standard_normal((rows, columns)) * 2.0 ** random.integers(-9, 9, (rows, 1))
    values[0, :40] = 0
    values[1, 5] = 1e-30
    return values.astype(np.float32)


def theirs(x: Array, name: str, rows: int = 1) -> tuple[Array, npt.NDArray[np.float64]]:
    """Elements as float32, and scales for each of them, all by the formulas."""
    kind, length = NATIVE[name], FORMATS[name].length
    blocks = x.reshape(len(x) // rows, rows, -1, length)
    largest = np.abs(blocks).max((1, 3), keepdims=True).astype(np.float64)
    if name in TOP:
        exponent = np.floor(np.log2(np.where(largest > 0, largest, 2.0**-149))) - TOP[name]
        scales = 2.0 ** np.clip(exponent, -127, 127)
    elif name == "nvfp4":
        whole = np.float32(largest.max()) / np.float32(6 * 448)
        kept = largest.astype(np.float32) / (whole * np.float32(6))
        scales = kept.astype(ml_dtypes.float8_e4m3fn).astype(np.float64) * whole
    else:
        top = LARGEST[name]
        scales = np.where(largest > 0, largest.astype(np.float32) / np.float32(top), 1.0)
    top = LARGEST[name]
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = (blocks / scales.astype(np.float32)).clip(-top, top)
    scaled = np.where(scales == 0, 0, scaled)
    elements = np.rint(scaled) if name == "int4" else scaled.astype(kind).astype(np.float32)
    spread = np.broadcast_to(scales, blocks.shape).reshape(x.shape)
    return elements.reshape(x.shape).astype(np.float32), spread


@pytest.mark.parametrize("name", FORMATS)
def test_numbers_are_those_of_the_specification(name: str) -> None:
    x = drawn()
    elements, scales = theirs(x, name)
    found = quantize_blocks(Tensor(x), name)
    np.testing.assert_array_equal(found.elements().numpy(), elements)
    wanted = (elements * scales).astype(np.float32)
    np.testing.assert_array_equal(found.dequantize().numpy(), wanted)
    assert found.shape == x.shape
    assert found.codes.shape[-1] * found.format.packed == x.shape[-1]


def test_codes_lie_as_ml_dtypes_and_two_in_a_byte() -> None:
    x = drawn()
    elements, scales = theirs(x, "mxfp4")
    codes = elements.astype(ml_dtypes.float4_e2m1fn).view(np.uint8) & 15
    found = quantize_blocks(Tensor(x), "mxfp4")
    np.testing.assert_array_equal(found.codes.numpy(), codes[:, ::2] | codes[:, 1::2] << 4)
    kept = scales[:, ::32].astype(np.float32).astype(ml_dtypes.float8_e8m0fnu)
    assert found.scales.dtype.name == "float8_e8m0fnu"
    np.testing.assert_array_equal(found.scales.view(dtypes.uint8).numpy(), kept.view(np.uint8))


def test_every_code_of_four_bits() -> None:
    every = np.arange(256, dtype=np.uint8).reshape(16, 16)
    low_first = np.stack([every & 15, every >> 4], -1).reshape(16, 32)
    wanted = low_first.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    ones = Tensor(np.full((16, 1), 1, np.float32)).cast("float8_e8m0fnu")
    found = nn.BlockScaled(FORMATS["mxfp4"], Tensor(every), ones)
    np.testing.assert_array_equal(found.dequantize().numpy(), wanted)
    short = FORMATS["int4"]._replace(length=32)
    integers = nn.BlockScaled(short, Tensor(every), ones.cast("float32"))
    numbers = (low_first.astype(np.int8) ^ 8) - 8
    np.testing.assert_array_equal(integers.elements().numpy(), numbers)


def test_every_power() -> None:
    codes = np.arange(256, dtype=np.uint8)
    wanted = codes.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    element = Tensor(np.full((256, 32), 1, np.float32)).cast("float8_e4m3fn")
    scales = Tensor(codes[:, None]).view(dtypes.float8_e8m0fnu)
    found = nn.BlockScaled(FORMATS["mxfp8"], element, scales).dequantize()
    np.testing.assert_array_equal(found.numpy()[:, 0], wanted)


def test_infinities_and_nan_are_nan_in_their_block() -> None:
    x = drawn()
    x[2, 3], x[3, 70] = np.inf, np.nan
    found = quantize_blocks(Tensor(x), "mxfp8").dequantize().numpy()
    bad = np.isnan(found)
    assert bad[2, :32].all() and bad[3, 64:96].all() and bad.sum() == 64
    # A scale for all is none.
    assert np.isnan(quantize_blocks(Tensor(x), "nvfp4").dequantize().numpy()).all()


def test_numbers_that_are_hardly_any_stay_numbers() -> None:
    """Of some the scale of the array has two digits, and is a quarter too small for the largest."""
    sizes = (np.arange(1, 64) * 1e-43).astype(np.float32)
    for size in sizes:
        found = quantize_blocks(Tensor(np.full((1, 16), size)), "nvfp4").dequantize().numpy()
        assert np.isfinite(found).all() and (found <= 2 * size).all()


PAIRS = (
    ("fp8", "fp8", 128, "NV"), ("mxfp4", "mxfp8", 1, "NV"),
    pytest.param("nvfp4", "nvfp4", 1, "NV", marks=pytest.mark.slow),
    ("fp8", "fp8", 128, "CPU"), ("nvfp4", "nvfp4", 1, "CPU"),
    ("fp8_e5m2", "fp8", 1, "CPU"), ("mxfp8", "mxfp8_e5m2", 1, "CPU"), ("fp8", "int4", 1, "CPU"),
)  # fmt: skip


@pytest.mark.parametrize(("left", "right", "rows", "device"), PAIRS)
def test_products_are_summed_in_two_levels(left: str, right: str, rows: int, device: str) -> None:
    x, w = drawn(64, 256), drawn(128 if rows > 1 else 64, 256)
    (a, s), (b, t) = theirs(x, left), theirs(w, right, rows)
    wanted = (a * s) @ (b * t).T

    def run() -> npt.NDArray[np.float32]:
        packed = quantize_blocks(Tensor(x), left), quantize_blocks(Tensor(w), right, rows)
        return scaled_matmul(*packed).numpy()

    if device == "NV":
        with ptx_session():
            found = run()
    else:
        found = run()
    size = np.abs(a * s) @ np.abs(b * t).T
    # The unit keeps 13 bits of a block's sum of 8-bit floats, of which no product is the largest.
    bits = 12 if device == "NV" and "fp8" in left else 20
    assert (np.abs(found - wanted) <= 2.0**-bits * size + 1e-30).all()


@pytest.mark.parametrize("name", FORMATS)
def test_no_numbers_have_a_product_too(name: str) -> None:
    some, none = (quantize_blocks(Tensor(drawn(3)[:rows]), name) for rows in (3, 0))
    assert none.dequantize().shape == (0, 256)
    for left, right, shape in ((none, some, (0, 3)), (some, none, (3, 0)), (none, none, (0, 0))):
        assert scaled_matmul(left, right).numpy().shape == shape
    nothing = quantize_blocks(Tensor.zeros(3, 0), name)
    assert scaled_matmul(nothing, nothing).tolist() == [[0.0] * 3] * 3


def test_what_does_not_fit() -> None:
    with pytest.raises(ArgumentError, match="share a scale"):
        quantize_blocks(Tensor(drawn()), "fp8", 0)
    with pytest.raises(ArgumentError, match="mxfp8"):
        quantize_blocks(Tensor(drawn()), "fp6")
    with pytest.raises(ShapeError, match="blocks of 1 x 128"):
        quantize_blocks(Tensor(drawn(2, 96)), "fp8")
    with pytest.raises(ShapeError, match="blocks of 128 x 128"):
        quantize_blocks(Tensor(drawn(96, 128)), "fp8", 128)
    with pytest.raises(DTypeError, match="floats"):
        quantize_blocks(Tensor(drawn()).cast("int32"), "fp8")
    one, other = (quantize_blocks(Tensor(drawn()), name) for name in ("mxfp8", "fp8"))
    with pytest.raises(ShapeError, match="one length"):
        scaled_matmul(one, other)
