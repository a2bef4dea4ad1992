"""Packed weights whose fields lie apart: the same bits, the same bytes."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad import Tensor, dtypes
from baregrad.io.gguf import GgmlType, PackedWeight, by_name, share_memory
from baregrad.io.gguf.weight import PlanarWeight
from tests.io.gguf.packed import PACKED, random_rows, reference

# Types whose blocks name points of a grid, hold float32 scales, or bytes that nobody reads.
WHOLE = ("IQ", "Q8_1", "Q8_K")
APART = [row for row in PACKED if not row.name.startswith(WHOLE) or row.name.startswith("IQ4")]


def planar(row: GgmlType, packed: np.ndarray, *shape: int) -> PackedWeight:
    return PackedWeight(row, shape, Tensor(packed)).in_planes()


@pytest.mark.parametrize("row", APART, ids=str)
def test_planes_hold_the_same_numbers_and_bytes(row: GgmlType) -> None:
    width = 2 * row.block
    packed = random_rows(row, 6, width)
    weight = planar(row, packed, 6, width)
    assert isinstance(weight, PlanarWeight)
    assert weight.in_planes() is weight
    # Scales of 6 bits have bytes of their own.
    more = 4 if row.name in ("Q4_K", "Q5_K") else 0
    assert weight.nbytes == packed.nbytes + more * 6 * (width // row.block)
    wanted = reference(row, packed)
    assert np.array_equal(weight.dense().numpy().view(np.uint32), wanted.view(np.uint32))
    assert np.array_equal(weight.raw().reshape(packed.shape), packed)
    assert np.array_equal(weight.rows(Tensor([4, 0])).numpy(), wanted[[4, 0]])


@pytest.mark.parametrize("row", [row for row in PACKED if row not in APART], ids=str)
def test_blocks_that_are_read_in_other_ways_stay_whole(row: GgmlType) -> None:
    weight = PackedWeight(row, (2, row.block), Tensor(random_rows(row, 2, row.block)))
    assert weight.in_planes() is weight


def test_a_stack_gives_its_matrices() -> None:
    row = by_name("Q4_K")
    packed = random_rows(row, 6, 256)
    stack = planar(row, packed.reshape(3, 2, -1), 3, 2, 256)
    wanted = reference(row, packed).reshape(3, 2, 256)
    assert np.array_equal(stack.at(1).dense().numpy(), wanted[1])
    assert stack.at(1).shape == (2, 256)
    assert np.array_equal(stack.at(Tensor([2, 0])).dense().numpy(), wanted[[2, 0]])
    assert np.array_equal(stack.as_rows().dense().numpy(), wanted.reshape(6, 256))


def test_elements_that_are_not_packed_have_no_planes() -> None:
    weight = PackedWeight(by_name("F32"), (2, 4), Tensor.ones(2, 4))
    assert weight.in_planes() is weight


@pytest.mark.parametrize("dtype", [dtypes.bfloat16, dtypes.float32], ids=str)
def test_a_lone_row_is_multiplied_by_the_numbers_as_they_are(dtype: object) -> None:
    row = by_name("Q6_K")
    packed = random_rows(row, 16, 512)
    x = Tensor(np.random.default_rng(5).standard_normal((1, 512)).astype(np.float32)).cast(dtype)
    found = planar(row, packed, 16, 512).linear(x)
    assert found.dtype is dtype
    exact = x.cast(dtypes.float32).numpy().astype(np.float64) @ reference(row, packed).T
    rounded = Tensor(exact.astype(np.float32)).cast(dtype).cast(dtypes.float32).numpy()
    assert np.allclose(found.cast(dtypes.float32).numpy(), rounded, rtol=2**-7, atol=1e-5)


def test_a_weight_names_what_it_is_read_from() -> None:
    row = by_name("Q6_K")
    whole = PackedWeight(row, (2, 256), Tensor(random_rows(row, 2, 256)))
    assert [each is whole.bytes for each in whole.tensors] == [True]
    assert sum(each.numel() * each.dtype.itemsize for each in whole.in_planes().tensors) == 420


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("apart", [False, True])
def test_a_wide_product_is_not_rounded_to_the_dtype_of_the_rows(rows: int, apart: bool) -> None:
    row = by_name("Q6_K")
    packed = random_rows(row, 16, 512)
    weight = PackedWeight(row, (16, 512), Tensor(packed))
    weight = weight.in_planes() if apart else weight
    values = np.random.default_rng(6).standard_normal((rows, 512)).astype(np.float32)
    x = Tensor(values).cast(dtypes.bfloat16)
    found = weight.linear(x, exact=True, wide=True)
    assert found.dtype is dtypes.float32
    wanted = x.cast(dtypes.float32).numpy().astype(np.float64) @ reference(row, packed).T
    # Numbers may be rounded to 16 bits, results are not.
    assert np.abs(found.numpy() - wanted).max() <= 2e-3 * np.abs(wanted).max()
    rounded = found.cast(dtypes.bfloat16).cast(dtypes.float32)
    assert not np.array_equal(rounded.numpy(), found.numpy())


def test_weights_whose_planes_are_parts_of_one_array_each() -> None:
    rows = [by_name(name) for name in ("Q6_K", "Q4_K", "Q8_0", "Q6_K")]
    packed = [random_rows(row, 8, 256, seed) for seed, row in enumerate(rows)]
    weights = [planar(row, each, 8, 256) for row, each in zip(rows, packed, strict=True)]
    share_memory([one.planes for one in weights if isinstance(one, PlanarWeight)])
    x = np.random.default_rng(7).standard_normal((1, 256)).astype(np.float32)
    for row, each, weight in zip(rows, packed, weights, strict=True):
        wanted = reference(row, each)
        assert np.array_equal(weight.dense().numpy(), wanted)
        assert np.array_equal(weight.raw().reshape(each.shape), each)
        assert np.array_equal(weight.at(3).dense().numpy(), wanted[3])
        bound = np.abs(x.astype(np.float64)) @ np.abs(wanted.astype(np.float64)).T
        exact = x.astype(np.float64) @ wanted.astype(np.float64).T
        assert (np.abs(weight.linear(Tensor(x)).numpy() - exact) <= 1e-6 * bound).all()
    # Words, halves, signed bytes: the same for all.
    assert len({id(part) for weight in weights for part in weight.tensors}) == 3
