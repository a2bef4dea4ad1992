"""Products on bytes: rows rounded as llama.cpp does, whole numbers exact, the same for any rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from baregrad import Tensor, bind, jit, variable
from baregrad.base.options import options
from baregrad.dtypes import dtypes
from baregrad.engine.session import Session, use_session
from baregrad.io.gguf import PackedWeight, by_name
from baregrad.io.gguf.byte_products import CODES, SMALL_BLOCK
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from tests.io.gguf.packed import random_rows, reference

Floats = npt.NDArray[np.float32]
ROWS = 24


def weight_of(name: str, width: int) -> tuple[PackedWeight, npt.NDArray[np.float64]]:
    row = by_name(name)
    packed = random_rows(row, ROWS, width)
    weight = PackedWeight(row, (ROWS, width), Tensor(packed))
    return weight, reference(row, packed).astype(np.float64)


def rows_of(count: int, width: int, seed: int = 2) -> Floats:
    x = np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32)
    x[0, :SMALL_BLOCK] = 0
    return x


def rounded(x: Floats, block: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """What rows stand for once they are bytes, and their scales as they were before float16."""
    parts = x.reshape(len(x), -1, block)
    largest = np.abs(parts).max(-1, keepdims=True)
    with np.errstate(all="ignore"):
        inverse = np.where(largest == 0, 0, np.float32(127) / largest).astype(np.float32)
        codes = np.rint(parts * inverse)
        if block == SMALL_BLOCK:
            step = largest / np.float32(127)
            kept = step.astype(np.float16).astype(np.float32)
        else:
            step = kept = np.where(largest == 0, 0, np.float32(1) / inverse)
    assert np.abs(codes).max() <= 127
    return codes.astype(np.float64) * kept, codes.sum(-1) * step[..., 0].astype(np.float64)


def expected(name: str, x: Floats, dense: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    values, sums = rounded(x, min(by_name(name).block, 256))
    product = values.reshape(len(x), -1) @ dense.T
    if name in ("Q4_1", "Q5_1"):
        # Minima meet the sum of a block, which float16 holds.
        row = by_name(name)
        packed = random_rows(row, ROWS, x.shape[1]).reshape(ROWS, -1, row.nbytes)
        minima = np.ascontiguousarray(packed[..., 2:4]).view(np.float16)[..., 0].astype(np.float64)
        off = sums.astype(np.float32).astype(np.float16).astype(np.float64) - values.sum(-1)
        product += off @ minima.T
    return product


@pytest.mark.parametrize("device", ["CPU", "REF"])
@pytest.mark.parametrize("name", CODES)
def test_a_product_is_that_of_rounded_rows(name: str, device: str) -> None:
    width = 512 if by_name(name).block == 256 else 160
    with options.override(device=device):
        weight, dense = weight_of(name, width)
        for count in (1, 5):
            x = rows_of(count, width)
            found = weight.linear(Tensor(x)).numpy()
            wanted = expected(name, x, dense)
            bound = np.abs(x.astype(np.float64)) @ np.abs(dense).T
            assert (np.abs(found - wanted) <= 2e-6 * bound + 1e-30).all()
            # Bytes are that near to what they stand for.
            assert (np.abs(found - x @ dense.T) <= 0.01 * bound + 1e-30).all()


@pytest.mark.parametrize("name", CODES)
def test_a_product_is_made_where_the_weight_is(name: str) -> None:
    """Whatever the default device is."""
    weight, _ = weight_of(name, 256)
    rows = Tensor(rows_of(2, 256))
    with options.override(device="REF"):
        assert weight.linear(rows).device == rows.device == "CPU"


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_1", "Q8_0", "Q3_K", "Q4_K"])
def test_rows_may_be_huge_or_tiny(name: str) -> None:
    width = 256
    weight, dense = weight_of(name, width)
    scales = np.array([1e-30, 1e-8, 1e-5, 1e4, 1e7, 1e20], np.float32)
    x = rows_of(1, width) * scales[:, None]
    found = weight.linear(Tensor(x)).numpy()
    bound = np.abs(x.astype(np.float64)) @ np.abs(dense).T
    assert (np.abs(found - x @ dense.T) <= 0.01 * bound).all()
    nothing = weight.linear(Tensor(np.full((1, width), 1e-38, np.float32))).numpy()
    assert (np.abs(nothing) <= 1e-38 * np.abs(dense).sum(1)).all()


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q2_K", "Q6_K"])
def test_what_is_not_finite_spoils_its_own_row_alone(name: str, value: float) -> None:
    width = 256
    weight, _ = weight_of(name, width)
    x = rows_of(3, width)
    wanted = weight.linear(Tensor(x)).numpy()
    x[1, 40] = value
    found = weight.linear(Tensor(x)).numpy()
    assert not np.isfinite(found[1]).any()
    np.testing.assert_array_equal(found[::2], wanted[::2])


@pytest.mark.parametrize("name", ["Q4_1", "Q8_0", "Q4_K", "Q6_K"])
def test_a_row_has_the_same_bits_whatever_the_number_of_rows(name: str) -> None:
    width = 512
    weight, _ = weight_of(name, width)
    x = rows_of(70, width)
    alone = [weight.linear(Tensor(row[None])).numpy()[0] for row in x]
    np.testing.assert_array_equal(weight.linear(Tensor(x)).numpy(), alone)
    count = variable("count", 1, 70)
    product = jit(lambda x, n: weight.linear(x[:n]))
    for rows in (1, 2, 7, 12, 53, 70):
        found = product(Tensor(x), bind(count, rows)).numpy()
        np.testing.assert_array_equal(found, alone[:rows])


@pytest.mark.parametrize("name", ["Q4_1", "Q8_0", "Q6_K"])
def test_rows_may_have_matrices_of_their_own(name: str) -> None:
    width, row = 512, by_name(name)
    packed = np.stack([random_rows(row, ROWS, width, seed) for seed in range(3)])
    stack = PackedWeight(row, (3, ROWS, width), Tensor(packed))
    x = rows_of(4, width).reshape(2, 2, width)
    index = np.array([[2, 0], [1, 2]], np.int32)
    found = stack.at(Tensor(index)).each(Tensor(x)).numpy()
    for place, matrix in np.ndenumerate(index):
        alone = stack.at(int(matrix)).linear(Tensor(x[place][None])).numpy()[0]
        np.testing.assert_array_equal(found[place], alone)
    # One row may meet several matrices.
    found = stack.at(Tensor(index)).each(Tensor(x[:, :1])).numpy()
    alone = stack.at(2).linear(Tensor(x[1, :1])).numpy()[0]
    np.testing.assert_array_equal(found[1, 1], alone)


def test_exact_products_take_numbers_as_they_are() -> None:
    """Where they are asked for, where gradients are wanted, and for types without words."""
    weight, dense = weight_of("Q8_0", 160)
    x = rows_of(3, 160)
    bound = np.abs(x.astype(np.float64)) @ np.abs(dense).T
    exact = weight.exactly()
    assert exact.is_exact and exact.at(slice(0, 2)).is_exact and exact.as_rows().is_exact
    wanting = Tensor(x).requires_grad_()
    products = (weight.linear(Tensor(x), exact=True), exact.linear(Tensor(x)),
                weight.linear(wanting))  # fmt: skip
    for found in products:
        assert (np.abs(found.numpy() - x @ dense.T) <= 1e-6 * bound).all()
    products[2].sum().backward()
    assert wanting.grad is not None
    np.testing.assert_allclose(wanting.grad.numpy()[0], dense.sum(0), rtol=1e-4, atol=1e-5)


def test_activations_keep_their_dtype_and_leading_axes() -> None:
    weight, dense = weight_of("Q4_0", 64)
    x = rows_of(6, 64)
    found = weight.linear(Tensor(x).reshape(2, 3, 64).bfloat16())
    assert found.dtype is dtypes.bfloat16 and found.shape == (2, 3, ROWS)
    near = x @ dense.T
    bound = np.abs(x.astype(np.float64)) @ np.abs(dense).T
    assert (np.abs(found.float().numpy().reshape(6, ROWS) - near) <= 0.02 * bound + 1e-30).all()


@pytest.mark.few(4)
@pytest.mark.parametrize("name", CODES)
def test_words_and_scales_are_made_where_they_are_multiplied(name: str) -> None:
    """Two kernels or a few make the bytes of all products of `x`; each product is one beside."""
    width, kernels = 512, list[Node]()
    with use_session(Session()) as session, options.override(device="NULL"):
        weights = [weight_of(name, width)[0] for _ in range(2)]
        x = Tensor(np.ones((16, width), np.float32))
        session.watching.observers.append(
            lambda run: kernels.extend(one.kernel for one in run.executable.plan.steps)
        )
        (weights[0].linear(x) * weights[1].linear(x)).realize()
        session.close()
    assert sum(kernel.has(Ops.DOT4) for kernel in kernels) == 2
    assert len(kernels) <= 6
