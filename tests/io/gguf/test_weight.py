"""Packed weights: every bit as `gguf` reads it, and never widened in memory."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad import Tensor, bind, dtypes, jit, variable
from baregrad.base.errors import ShapeError
from baregrad.base.options import options
from baregrad.engine.session import Session, use_session
from baregrad.io.gguf import GgmlType, PackedWeight, by_name
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.kernel.loops.sharing import prepare
from tests.io.gguf.packed import PACKED, random_rows, reference


def weight_of(row: GgmlType, packed: np.ndarray, width: int) -> PackedWeight:
    return PackedWeight(row, (len(packed), width), Tensor(packed))


@pytest.mark.parametrize("row", PACKED, ids=str)
def test_dense_has_the_bits_of_the_reference(row: GgmlType) -> None:
    rng = np.random.default_rng(1)
    # Any bytes, scales that are no numbers among them.
    packed = rng.integers(0, 256, (64, 4 * row.nbytes), dtype=np.uint8)
    found = weight_of(row, packed, 4 * row.block).dense().numpy()
    wanted = reference(row, packed)
    same = (found.view(np.uint32) == wanted.view(np.uint32)) | (np.isnan(found) & np.isnan(wanted))
    assert found.dtype == np.float32
    assert same.all()
    assert np.isfinite(wanted).mean() > 0.8


@pytest.mark.parametrize("row", PACKED, ids=str)
@pytest.mark.parametrize("count", [1, 7])
def test_linear_is_the_product_with_the_dense_matrix(row: GgmlType, count: int) -> None:
    width = 2 * row.block if row.block > 32 else 160
    packed = random_rows(row, 24, width)
    x = np.random.default_rng(2).standard_normal((count, width)).astype(np.float32)
    dense = reference(row, packed).astype(np.float64)
    found = weight_of(row, packed, width).linear(Tensor(x), exact=True).numpy()
    bound = np.abs(x.astype(np.float64)) @ np.abs(dense).T
    assert (np.abs(found - x @ dense.T) <= 1e-6 * bound).all()


@pytest.mark.parametrize("row", PACKED, ids=str)
def test_rows_are_those_of_the_dense_matrix(row: GgmlType) -> None:
    packed = random_rows(row, 9, row.block)
    index = np.array([[3, 0, 8], [8, 1, 3]])
    found = weight_of(row, packed, row.block).rows(Tensor(index)).numpy()
    assert np.array_equal(found, reference(row, packed)[index])


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "F64"])
def test_elements_that_are_not_packed_are_weights_as_well(name: str) -> None:
    row = by_name(name)
    assert row.dtype is not None
    values = np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32)
    weight = PackedWeight(row, (6, 8), Tensor(values).cast(row.dtype))
    wanted = Tensor(values).cast(row.dtype).cast(dtypes.float32).numpy()
    assert np.array_equal(weight.dense().numpy(), wanted)
    x = Tensor(np.eye(8, dtype=np.float32))
    assert np.array_equal(weight.linear(x).numpy(), wanted.T)
    assert weight.nbytes == 48 * row.nbytes


def test_a_stack_gives_its_matrices() -> None:
    row = by_name("Q4_0")
    packed = random_rows(row, 12, 64)
    stack = PackedWeight(row, (3, 4, 64), Tensor(packed.reshape(3, 4, -1)))
    wanted = reference(row, packed).reshape(3, 4, 64)
    assert np.array_equal(stack.dense().numpy(), wanted)
    assert np.array_equal(stack.at(1).dense().numpy(), wanted[1])
    assert np.array_equal(stack.at(Tensor([2, 0])).dense().numpy(), wanted[[2, 0]])
    with pytest.raises(ShapeError, match="at\\(index\\) gives one matrix"):
        stack.linear(Tensor.zeros(1, 64))
    for wrong in ((1, 63), (2, 128), ()):
        with pytest.raises(ShapeError, match="another width"):
            stack.at(0).linear(Tensor.zeros(*wrong))


@pytest.mark.parametrize("name", ["Q4_1", "Q8_0", "Q4_K", "Q6_K", "IQ3_S"])
@pytest.mark.parametrize("most", [8, 256])
def test_a_row_is_the_same_whatever_the_number_of_rows(name: str, most: int) -> None:
    """Rows of a symbolic number, as a prompt's chunk or a batch has: right, and bit for bit one."""
    row, rng = by_name(name), np.random.default_rng(3)
    packed = random_rows(row, 256, 512)
    weight, count = weight_of(row, packed, 512), variable("count", 1, most)
    product = jit(lambda x, n: weight.linear(x[:n], exact=True))
    x = rng.standard_normal((most, 512)).astype(np.float32)
    whole = product(Tensor(x), bind(count, most)).numpy()
    dense = reference(row, packed).astype(np.float64)
    bound = np.abs(x.astype(np.float64)) @ np.abs(dense).T
    assert (np.abs(whole - x @ dense.T) <= 1e-6 * bound).all()
    for rows in (1, 2, 3, most - 3):
        assert np.array_equal(product(Tensor(x), bind(count, rows)).numpy(), whole[:rows])


@pytest.mark.parametrize("row", PACKED, ids=str)
def test_many_rows_share_a_row_of_numbers_that_is_kept(row: GgmlType) -> None:
    """In scratch memory: one kernel reads the bytes, and no array of numbers is stored."""
    width = max(row.block, 128)
    packed = random_rows(row, 24, width)
    kernels: list[Node] = []
    with use_session(Session()) as session, options.override(device="NULL"):
        x = Tensor(np.ones((40, width), np.float32))
        product = weight_of(row, packed, width).linear(x, exact=True)
        session.watching.observers.append(
            lambda run: kernels.extend(one.kernel for one in run.executable.plan.steps)
        )
        product.realize()
        session.close()
    (kernel,) = kernels
    assert prepare(kernel).has(Ops.STAGE)
