"""Factors of convolutions in the order that matrix units take them: values stay, layouts change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from baregrad.base.options import options
from baregrad.dtypes import DType, dtypes
from baregrad.engine.canonical import bind
from baregrad.engine.session import Session, use_session
from baregrad.graph import canonicalise
from baregrad.ir.core import index
from baregrad.ir.core.index import variable
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.target import AnyTarget, gpu_row
from baregrad.target.cpu import cpu_row_named
from baregrad.tensor import Tensor
from baregrad.testing.ptx_device import ptx_session

HOPPER = gpu_row("sm_90a")


def stored(made: Node) -> list[tuple[Any, ...]]:
    """The shapes of what is stored in another order, with 16 bits."""
    return sorted(
        node.shape for node in toposort(made)
        if node.op is Ops.CONTIGUOUS and node.dtype.bits == 16
    )  # fmt: skip


def convolved(
    image: tuple[int, ...], filters: tuple[int, ...], target: AnyTarget = HOPPER,
    dtype: DType = dtypes.bfloat16, **how: Any,
) -> list[tuple[Any, ...]]:  # fmt: skip
    with options.override(device="NULL"), use_session(Session()):
        x, w = (Tensor.rand(*shape).cast(dtype).realize() for shape in (image, filters))
        sink = Node(Ops.SINK, dtypes.token, (x.conv2d(w, **how).node,))
        return stored(canonicalise(sink, target=target))


def gradient(
    image: tuple[int, ...], filters: tuple[int, ...], result: tuple[int, ...],
    by_filter: bool = False, **how: Any,
) -> Node:  # fmt: skip
    """The graph of the gradient of a convolution by its image, or by its filter."""
    with options.override(device="NULL"), use_session(Session()):
        x, w, seed = (Tensor.rand(*shape).bfloat16() for shape in (image, filters, result))
        by = (w if by_filter else x).requires_grad_()
        x.conv2d(w, **how).backward(seed)
        assert by.grad is not None
        return canonicalise(Node(Ops.SINK, dtypes.token, (by.grad.node,)), target=HOPPER)


def test_channels_are_stored_innermost_without_the_zeros_around() -> None:
    """Zeros are stored where an element has so many products that a condition for each is dear."""
    found = convolved((2, 32, 8, 8), (16, 32, 3, 3), padding=1)
    assert found == [(2, 8, 8, 32), (16, 3, 3, 32)]
    found = convolved((2, 32, 8, 8), (256, 32, 3, 3), padding=1)
    assert found == [(2, 8, 8, 32), (256, 3, 3, 32)]
    found = convolved((2, 32, 8, 8), (1024, 32, 3, 3), padding=1)
    assert found == [(2, 10, 10, 32), (1024, 3, 3, 32)]
    # Fewer where sums run along the image.
    made = gradient((2, 32, 8, 8), (256, 32, 3, 3), (2, 256, 8, 8), by_filter=True, padding=1)
    assert (2, 10, 10, 32) in stored(made)
    found = convolved((8, 32, 8, 8), (256, 32, 3, 3), padding=1, stride=2)
    assert found == [(8, 8, 8, 32), (256, 3, 3, 32)]


@pytest.mark.parametrize("axes", ((0,), (2,), (2, 3)))
def test_symbolic_images_are_stored_as_others_are(axes: tuple[int, ...]) -> None:
    """Batches, heights and widths may be; the filter's gradient is summed along them."""
    found = []
    for stop in (8, bind(variable("n", 1, 8), 3)):
        with options.override(device="NULL"), use_session(Session()):
            x, w = (Tensor.rand(*s).bfloat16().realize() for s in ((8, 32, 8, 8), (16, 32, 3, 3)))
            x = x[tuple([slice(stop) if axis in axes else slice(None) for axis in range(4)])]
            w = w.detach().requires_grad_()
            out = x.conv2d(w, padding=1)
            out.backward(out.detach())
            assert w.grad is not None
            for root in (out, w.grad):
                made = canonicalise(Node(Ops.SINK, dtypes.token, (root.node,)), target=HOPPER)
                found.append({
                    tuple([index.upper(size) for size in node.shape]) for node in toposort(made)
                    if node.op is Ops.CONTIGUOUS and node.dtype.bits == 16
                })
    # What the filter's gradient is cut into has no parts of a symbolic number.
    assert found[0] == found[2] and all((8, 8, 8, 32) in each for each in found)


def test_few_channels_stay_where_they_are() -> None:
    found = convolved((2, 3, 16, 16), (16, 3, 7, 7), padding=3, stride=2)
    assert found == [(2, 3, 22, 22), (3, 7, 7, 16)]


def test_images_of_odd_sizes_are_stored_with_channels_innermost_without_windows() -> None:
    assert convolved((8, 64, 7, 7), (64, 64, 1, 1)) == [(8, 7, 7, 64)]
    # Rows and columns together are whole chunks, or the copy pays for too few results.
    assert convolved((8, 64, 12, 6), (64, 64, 1, 1)) == []
    assert convolved((8, 64, 14, 14), (64, 64, 1, 1)) == []
    assert convolved((8, 64, 7, 7), (32, 64, 1, 1)) == []


def places_of_computed(image: tuple[int, ...], filters: int, stride: int = 1) -> list[Any]:
    """What is stored of an image that is computed, for a convolution 1x1."""
    with options.override(device="NULL"), use_session(Session()):
        x = Tensor.rand(*image).bfloat16().realize().relu()
        w = Tensor.rand(filters, image[1], 1, 1).bfloat16().realize()
        sink = Node(Ops.SINK, dtypes.token, (x.conv2d(w, stride=stride).node,))
        found = stored(canonicalise(sink, target=HOPPER))
    return [shape for shape in found if shape[-2:] != (1, 1)]


def test_images_that_are_computed_are_stored_as_an_engine_copies_them() -> None:
    """So are they in memory where there are many filters; boxes are of 64 neighbours."""
    assert places_of_computed((8, 64, 14, 14), 64) == [(8, 14, 14, 64)]
    assert convolved((8, 64, 14, 14), (512, 64, 1, 1)) == [(8, 14, 14, 64)]
    # Chunks are copied well, if for few filters.
    assert places_of_computed((8, 64, 28, 28), 128) == []
    assert places_of_computed((8, 64, 28, 28), 256) == [(8, 28, 28, 64)]
    assert places_of_computed((8, 64, 56, 56), 256) == []


def test_an_engine_walks_over_places_that_are_not_wanted() -> None:
    """Where all of the image is stored for others too, or the places that are wanted are."""
    assert (8, 14, 14, 64) in places_of_computed((8, 64, 14, 14), 64, 2)
    assert places_of_computed((8, 64, 16, 16), 64, 2) == []


def test_of_strided_windows_of_one_element_their_places_are_stored() -> None:
    assert convolved((8, 64, 16, 16), (64, 64, 1, 1), stride=2) == [(8, 64, 8, 8, 1, 1)]
    assert convolved((8, 64, 13, 13), (64, 64, 1, 1), stride=2) == [(8, 7, 7, 1, 1, 64)]


def test_filters_of_a_gradient_by_the_input_lie_along_what_is_summed() -> None:
    """Of a strided one the results of several filters are neighbours, whose channels are not."""
    found = stored(gradient((2, 32, 16, 16), (48, 32, 3, 3), (2, 48, 8, 8), stride=2, padding=1))
    # Nothing of the zeros around the image is computed, nor stored.
    assert found == [(2, 8, 8, 48), (32, 3, 3, 48)]


def test_a_filter_s_gradient_is_stored_along_what_is_copied_in_chunks() -> None:
    """That is its channels, in whose order no two taps of a tile of results are neighbours."""
    made = gradient((2, 32, 8, 8), (48, 32, 3, 3), (2, 48, 8, 8), by_filter=True, padding=1)
    assert stored(made) == [(1, 48, 3, 3, 32), (2, 8, 8, 32)]
    # In parts, each of them is.
    shapes = (64, 64, 56, 56), (64, 64, 3, 3), (64, 64, 56, 56)
    made = gradient(*shapes, by_filter=True, padding=1)
    (parts,) = [node.shape for node in toposort(made)
                if node.op is Ops.CONTIGUOUS and node.dtype is dtypes.float32]  # fmt: skip
    assert [extent for extent in parts[1:] if extent != 1] == [64, 3, 3, 64]
    # Pixels are summed: what has no windows has its results in any order.
    made = gradient((2, 64, 8, 8), (48, 64, 1, 1), (2, 48, 8, 8), by_filter=True)
    assert stored(made) == []


def test_no_zeros_between_elements_are_part_of_a_product() -> None:
    (shape,) = stored(gradient((2, 64, 16, 16), (96, 64, 1, 1), (2, 96, 8, 8), stride=2))
    assert tuple(extent for extent in shape if extent != 1) == (2, 64, 8, 8)


def test_parts_of_whole_residues_are_cut_from_what_is_stored() -> None:
    """13 places are no two residues; 14 are."""
    found = stored(gradient((2, 32, 13, 13), (96, 32, 3, 3), (2, 96, 7, 7), stride=2, padding=1))
    assert (2, 32, 14, 14) in found


def test_parts_of_the_axis_that_lies_innermost_stay_where_they_are() -> None:
    """Heads cut from a packed array are read in chunks, as are heads that lie inside positions."""
    with options.override(device="NULL"), use_session(Session()):
        packed = Tensor.rand(2, 128, 3 * 64).bfloat16().realize()
        q, k, v = (x.unflatten(-1, (2, 32)).transpose(1, 2) for x in packed.chunk(3, -1))
        other = Tensor.rand(2, 2, 128, 32).bfloat16().realize()
        layer = Tensor.rand(64, 64).bfloat16().realize()
        results = (q @ k.mT, v.mT @ v, other.transpose(1, 2).flatten(2) @ layer)
        for result in results:
            sink = Node(Ops.SINK, dtypes.token, (result.node,))
            assert stored(canonicalise(sink, target=HOPPER)) == []


def test_what_both_factors_share_is_not_brought_innermost() -> None:
    with options.override(device="NULL"), use_session(Session()):
        shapes = ((8, 13, 8, 67), (8, 67, 8, 96))
        x, y = (Tensor.rand(*shape).cast(dtypes.float16).realize() for shape in shapes)
        product = x.permute(0, 2, 1, 3) @ y.permute(0, 2, 1, 3)
        sink = Node(Ops.SINK, dtypes.token, (product.node,))
        assert stored(canonicalise(sink, target=HOPPER)) == []


@pytest.mark.parametrize("by_image", [False, True])
def test_parts_of_many_channels_are_summed_outside_the_taps(by_image: bool) -> None:
    """What taps read again is near then; of one part, and on other machines, nothing changes."""

    def summed(channels: int, target: AnyTarget = HOPPER) -> tuple[Any, ...]:
        before, after = (64, channels) if by_image else (channels, 64)
        shapes = (64, before, 8, 8), (after, before, 3, 3), (64, after, 8, 8)
        with options.override(device="NULL"), use_session(Session()):
            x, w, seed = (Tensor.rand(*shape).bfloat16().realize() for shape in shapes)
            made: Any = x.requires_grad_(by_image).conv2d(w, padding=1)
            if by_image:
                made.backward(seed)
                made = x.grad
            graph = canonicalise(Node(Ops.SINK, dtypes.token, (made.node,)), target=target)
        (total,) = [node for node in toposort(graph) if node.op is Ops.REDUCE]
        shape = total.src[0].shape
        return tuple([shape[axis] for axis in total.arg.axes])

    assert summed(256) == (4, 3, 3, 64)
    assert sorted(summed(64)) == [3, 3, 64]
    assert sorted(summed(256, gpu_row("sm_80"))) == [3, 3, 256]


def test_what_has_no_windows_or_no_matrix_unit_is_left_alone() -> None:
    small = ((2, 32, 8, 8), (16, 32, 3, 3))
    assert convolved((2, 32, 8, 8), (16, 32, 1, 1)) == []
    assert convolved(*small, dtype=dtypes.float32, padding=1) == []
    assert convolved((2, 32, 8, 8), (32, 1, 3, 3), groups=32, padding=1) == []
    assert convolved(*small, padding=1, target=cpu_row_named("x86-64-avx512")) == []


CASES: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
    ((2, 16, 5, 5), (16, 16, 3, 3), {"padding": 1}),
    ((2, 16, 6, 6), (24, 16, 3, 3), {"padding": 1, "stride": 2}),
    ((4, 16, 9, 9), (16, 16, 1, 1), {"stride": 2}),
    ((1, 64, 7, 9), (16, 64, 3, 3), {"padding": 1, "stride": 2}),
    ((4, 64, 4, 5), (64, 64, 1, 1), {}),
    ((2, 16, 6, 6), (64, 16, 4, 4), {}),
    ((1, 32, 5, 5), (16, 16, 3, 3), {"padding": 1, "groups": 2}),
    ((2, 3, 8, 8), (16, 3, 5, 5), {"padding": 2, "stride": 2}),
    ((2, 16, 7, 7), (16, 16, 2, 3), {"dilation": 2}),
    ((1, 128, 3, 4), (64, 128, 3, 3), {"padding": 1}),
)


@pytest.mark.parametrize("padding", [0, 1])
def test_what_lies_with_its_channels_innermost_is_stored_nowhere(padding: int) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float16)
            for shape in ((2, 5, 6, 64), (16, 3, 3, 64)))  # fmt: skip
    left, right = (torch.tensor(one.astype(np.float64)).permute(0, 3, 1, 2) for one in (x, w))
    wanted = torch.nn.functional.conv2d(left, right, padding=padding).numpy()
    with ptx_session():
        a, b = (Tensor(one).realize().permute(0, 3, 1, 2) for one in (x, w))
        y = a.conv2d(b, padding=padding)
        sink = Node(Ops.SINK, dtypes.token, (y.node,))
        assert stored(canonicalise(sink, target=HOPPER)) == []
        found = y.numpy()
    assert np.abs(found - wanted).max() < 2.0**-9 * float(np.abs(wanted).max())


@pytest.mark.few(6)
@pytest.mark.parametrize(("image", "filters", "how", "is_computed"), [
    *[(*case, False) for case in CASES],
    # Of what is computed all has boxes, and an engine walks over places that are not wanted.
    ((2, 64, 6, 6), (64, 64, 1, 1), {}, True),
    ((2, 64, 5, 8), (256, 64, 1, 1), {}, True),
    ((8, 64, 10, 6), (128, 64, 1, 1), {"stride": 2}, True),
])
def test_convolutions_and_their_gradients(
    image: tuple[int, ...], filters: tuple[int, ...], how: dict[str, Any], is_computed: bool
) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float16) for shape in (image, filters))
    left, right = (torch.tensor(one.astype(np.float64), requires_grad=True) for one in (x, w))
    result = torch.nn.functional.conv2d(left.relu() if is_computed else left, right, **how)
    seed = rng.standard_normal(result.shape).astype(np.float16)
    result.backward(torch.tensor(seed.astype(np.float64)))
    wanted = [result.detach(), left.grad, right.grad]
    with ptx_session():
        a, b = Tensor(x).requires_grad_(), Tensor(w).requires_grad_()
        y = (a.relu() if is_computed else a).conv2d(b, **how)
        y.backward(Tensor(seed))
        assert a.grad is not None
        assert b.grad is not None
        found = [y.detach().numpy(), a.grad.numpy(), b.grad.numpy()]
    for one, other in zip(found, wanted, strict=True):
        assert other is not None
        assert np.abs(one - other.numpy()).max() < 2.0**-9 * float(other.abs().max())
