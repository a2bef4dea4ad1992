"""Products, convolutions, pooling, losses, normalisations and attention against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from baregrad.base.errors import ArgumentError, DTypeError, IndexOutOfRange, ShapeError
from baregrad.base.options import options
from baregrad.dtypes import DType, dtypes
from baregrad.tensor import Tensor
from tests.tensor.oracle import compare

# name, shapes of the arguments, function
PRODUCTS: tuple[tuple[str, tuple[tuple[int, ...], ...], Any], ...] = (
    ("matmul", ((3, 4), (4, 5)), lambda f, x, y: x @ y),
    ("matmul vectors", ((4,), (4,)), lambda f, x, y: x @ y),
    ("matmul row", ((4,), (4, 3)), lambda f, x, y: x @ y),
    ("matmul column", ((3, 4), (4,)), lambda f, x, y: x @ y),
    ("matmul batch", ((2, 3, 4), (2, 4, 5)), lambda f, x, y: x @ y),
    ("matmul broadcast", ((2, 1, 3, 4), (5, 4, 2)), lambda f, x, y: x @ y),
    ("matmul batch row", ((4,), (2, 4, 3)), lambda f, x, y: x @ y),
    ("matmul batch column", ((2, 3, 4), (4,)), lambda f, x, y: x @ y),
    ("matmul transposed", ((4, 3), (5, 4)), lambda f, x, y: x.T @ y.T),
    ("matmul empty", ((3, 0), (0, 2)), lambda f, x, y: x @ y),
    ("dot", ((4,), (4,)), lambda f, x, y: x.dot(y)),
    ("mm", ((3, 4), (4, 5)), lambda f, x, y: x.mm(y)),
    ("mv", ((3, 4), (4,)), lambda f, x, y: x.mv(y)),
    ("bmm", ((2, 3, 4), (2, 4, 5)), lambda f, x, y: x.bmm(y)),
    ("outer", ((3,), (4,)), lambda f, x, y: x.outer(y)),
    ("addmm", ((3, 5), (3, 4), (4, 5)), lambda f, x, y, z: x.addmm(y, z, beta=0.5, alpha=2)),
    ("baddbmm", ((2, 3, 5), (2, 3, 4), (2, 4, 5)), lambda f, x, y, z: x.baddbmm(y, z)),
    ("linear", ((2, 3, 4), (5, 4), (5,)), lambda f, x, y, z: f.linear(x, y, z)),
    ("trace", ((3, 4),), lambda f, x: x.trace()),
    ("cosine", ((3, 4), (3, 4)), lambda f, x, y: f.cosine_similarity(x, y)),
    ("einsum ij,jk", ((2, 3), (3, 4)), lambda f, x, y: f.einsum("ij,jk->ik", x, y)),
    ("einsum ij,jk implicit", ((2, 3), (3, 4)), lambda f, x, y: f.einsum("ij,jk", x, y)),
    ("einsum trace", ((3, 3),), lambda f, x: f.einsum("ii", x)),
    ("einsum diagonal", ((3, 3),), lambda f, x: f.einsum("ii->i", x)),
    ("einsum sum", ((2, 3),), lambda f, x: f.einsum("ij->j", x)),
    ("einsum transpose", ((2, 3),), lambda f, x: f.einsum("ij->ji", x)),
    ("einsum outer", ((2,), (3,)), lambda f, x, y: f.einsum("i,j->ij", x, y)),
    ("einsum batch", ((2, 3, 4), (2, 4, 5)), lambda f, x, y: f.einsum("bij,bjk->bik", x, y)),
    (
        "einsum dots",
        ((2, 1, 3, 4), (5, 4, 2)),
        lambda f, x, y: f.einsum("...ij,...jk->...ik", x, y),
    ),
    (
        "einsum three",
        ((2, 3), (3, 4), (4, 5)),
        lambda f, x, y, z: f.einsum("ij,jk,kl->il", x, y, z),
    ),
    ("einsum all", ((2, 3), (2, 3)), lambda f, x, y: f.einsum("ij,ij->", x, y)),
)

CONVOLUTIONS: tuple[tuple[str, tuple[tuple[int, ...], ...], Any], ...] = (
    ("conv1d", ((2, 3, 8), (4, 3, 3), (4,)), lambda f, x, w, b: f.conv1d(x, w, b)),
    (
        "conv1d stride",
        ((2, 3, 9), (4, 3, 3), (4,)),
        lambda f, x, w, b: f.conv1d(x, w, b, stride=2, padding=1, dilation=2),
    ),
    (
        "conv1d same",
        ((2, 3, 9), (4, 3, 4), (4,)),
        lambda f, x, w, b: f.conv1d(x, w, b, padding="same"),
    ),
    ("conv2d", ((2, 3, 6, 5), (4, 3, 3, 2), (4,)), lambda f, x, w, b: f.conv2d(x, w, b)),
    ("conv2d padded", ((2, 3, 6, 5), (4, 3, 3, 3)), lambda f, x, w: f.conv2d(x, w, padding=1)),
    (
        "conv2d stride",
        ((2, 3, 7, 8), (4, 3, 3, 3)),
        lambda f, x, w: f.conv2d(x, w, stride=(2, 3), padding=(1, 2)),
    ),
    (
        "conv2d dilation",
        ((1, 2, 7, 8), (2, 2, 3, 2)),
        lambda f, x, w: f.conv2d(x, w, dilation=(2, 3)),
    ),
    ("conv2d groups", ((2, 4, 5, 5), (6, 2, 3, 3)), lambda f, x, w: f.conv2d(x, w, groups=2)),
    (
        "conv2d depthwise",
        ((2, 4, 5, 5), (4, 1, 3, 3)),
        lambda f, x, w: f.conv2d(x, w, groups=4, padding=1),
    ),
    ("conv2d 1x1", ((2, 4, 5, 5), (3, 4, 1, 1)), lambda f, x, w: f.conv2d(x, w)),
    ("conv2d single", ((3, 6, 5), (4, 3, 3, 2)), lambda f, x, w: f.conv2d(x, w)),
    (
        "conv3d",
        ((1, 2, 4, 5, 4), (3, 2, 2, 3, 2)),
        lambda f, x, w: f.conv3d(x, w, padding=1, stride=2),
    ),
    (
        "conv_transpose1d",
        ((2, 4, 5), (4, 3, 3)),
        lambda f, x, w: f.conv_transpose1d(x, w, stride=2, padding=1, output_padding=1),
    ),
    (
        "conv_transpose2d",
        ((2, 4, 4, 3), (4, 3, 3, 2), (3,)),
        lambda f, x, w, b: f.conv_transpose2d(x, w, b),
    ),
    (
        "conv_transpose2d stride",
        ((2, 4, 4, 3), (4, 3, 3, 3)),
        lambda f, x, w: f.conv_transpose2d(x, w, stride=(2, 3), padding=1, output_padding=(1, 0)),
    ),
    (
        "conv_transpose2d padding",
        ((1, 2, 6, 6), (2, 2, 2, 2)),
        lambda f, x, w: f.conv_transpose2d(x, w, padding=2),
    ),
    (
        "conv_transpose2d groups",
        ((2, 4, 4, 3), (4, 3, 3, 2)),
        lambda f, x, w: f.conv_transpose2d(x, w, groups=2, dilation=2),
    ),
    (
        "conv_transpose2d stride and groups",
        ((2, 16, 3, 5), (16, 3, 5, 1), (6,)),
        lambda f, x, w, b: f.conv_transpose2d(
            x, w, b, stride=(3, 2), padding=(4, 0), output_padding=(2, 1), groups=2
        ),
    ),
    (
        "conv_transpose2d stride one way, dilation the other",
        ((1, 8, 4, 4), (8, 3, 3, 3)),
        lambda f, x, w: f.conv_transpose2d(x, w, stride=(2, 1), padding=1, dilation=(1, 2)),
    ),
    (
        "conv_transpose1d stride and dilation",
        ((2, 4, 5), (4, 3, 3)),
        lambda f, x, w: f.conv_transpose1d(x, w, stride=2, padding=1, dilation=2),
    ),
    (
        "conv_transpose3d",
        ((1, 2, 2, 3, 2), (2, 2, 2, 2, 2)),
        lambda f, x, w: f.conv_transpose3d(x, w, stride=2),
    ),
)

POOLS: tuple[tuple[str, tuple[tuple[int, ...], ...], Any], ...] = (
    ("max_pool1d", ((2, 3, 8),), lambda f, x: f.max_pool1d(x, 2)),
    ("max_pool2d", ((2, 3, 6, 8),), lambda f, x: f.max_pool2d(x, 2)),
    ("max_pool2d 3 2 1", ((2, 3, 7, 8),), lambda f, x: f.max_pool2d(x, 3, 2, 1)),
    ("max_pool2d dilation", ((2, 3, 7, 8),), lambda f, x: f.max_pool2d(x, 2, 1, 1, 2)),
    ("max_pool2d ceil", ((2, 3, 6, 8),), lambda f, x: f.max_pool2d(x, 3, 2, ceil_mode=True)),
    (
        "max_pool2d indices",
        ((2, 3, 7, 8),),
        lambda f, x: f.max_pool2d(x, 3, 2, 1, return_indices=True),
    ),
    ("max_pool3d", ((1, 2, 4, 4, 6),), lambda f, x: f.max_pool3d(x, 2)),
    ("avg_pool1d", ((2, 3, 8),), lambda f, x: f.avg_pool1d(x, 3, 2)),
    ("avg_pool2d", ((2, 3, 6, 8),), lambda f, x: f.avg_pool2d(x, 2)),
    ("avg_pool2d padded", ((2, 3, 7, 8),), lambda f, x: f.avg_pool2d(x, 3, 2, 1)),
    (
        "avg_pool2d uncounted",
        ((2, 3, 7, 8),),
        lambda f, x: f.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    ),
    ("avg_pool2d ceil", ((2, 3, 7, 8),), lambda f, x: f.avg_pool2d(x, 3, 2, 1, ceil_mode=True)),
    (
        "avg_pool2d ceil 2",
        ((2, 3, 6, 8),),
        lambda f, x: f.avg_pool2d(x, 3, 2, ceil_mode=True, count_include_pad=False),
    ),
    ("avg_pool2d divisor", ((2, 3, 6, 8),), lambda f, x: f.avg_pool2d(x, 2, divisor_override=3)),
    ("avg_pool3d", ((1, 2, 4, 4, 6),), lambda f, x: f.avg_pool3d(x, 2)),
    ("adaptive_avg_pool1d", ((2, 3, 7),), lambda f, x: f.adaptive_avg_pool1d(x, 3)),
    ("adaptive_avg_pool2d 1", ((2, 3, 7, 5),), lambda f, x: f.adaptive_avg_pool2d(x, 1)),
    ("adaptive_avg_pool2d", ((2, 3, 7, 5),), lambda f, x: f.adaptive_avg_pool2d(x, (3, 4))),
    ("adaptive_avg_pool2d none", ((2, 3, 7, 5),), lambda f, x: f.adaptive_avg_pool2d(x, (None, 2))),
    ("adaptive_max_pool2d", ((2, 3, 6, 4),), lambda f, x: f.adaptive_max_pool2d(x, (3, 2))),
    ("adaptive_max_pool2d uneven", ((2, 3, 7, 5),), lambda f, x: f.adaptive_max_pool2d(x, (3, 2))),
    ("adaptive_max_pool2d larger", ((2, 3, 3, 2),), lambda f, x: f.adaptive_max_pool2d(x, (4, 5))),
    ("nearest", ((2, 3, 4, 5),), lambda f, x: f.interpolate(x, scale_factor=2)),
    ("nearest size", ((2, 3, 4, 5),), lambda f, x: f.interpolate(x, size=(7, 3))),
    ("nearest times", ((2, 3, 4, 5),), lambda f, x: f.interpolate(x, size=(28, 15))),
    (
        "nearest-exact times", ((2, 3, 4, 5),),
        lambda f, x: f.interpolate(x, scale_factor=(3, 41), mode="nearest-exact"),
    ),
    (
        "nearest exact",
        ((2, 3, 4, 5),),
        lambda f, x: f.interpolate(x, size=(7, 3), mode="nearest-exact"),
    ),
    ("linear", ((2, 3, 4),), lambda f, x: f.interpolate(x, size=7, mode="linear")),
    ("bilinear", ((2, 3, 4, 5),), lambda f, x: f.interpolate(x, size=(7, 3), mode="bilinear")),
    (
        "bilinear scale",
        ((2, 3, 4, 5),),
        lambda f, x: f.interpolate(x, scale_factor=1.5, mode="bilinear"),
    ),
    (
        "bilinear corners",
        ((2, 3, 4, 5),),
        lambda f, x: f.interpolate(x, size=(7, 9), mode="bilinear", align_corners=True),
    ),
    ("area", ((2, 3, 4, 5),), lambda f, x: f.interpolate(x, size=(2, 3), mode="area")),
)

NORMS: tuple[tuple[str, tuple[tuple[int, ...], ...], Any], ...] = (
    ("layer_norm", ((2, 3, 4), (4,), (4,)), lambda f, x, w, b: f.layer_norm(x, (4,), w, b)),
    (
        "layer_norm two",
        ((2, 3, 4), (3, 4), (3, 4)),
        lambda f, x, w, b: f.layer_norm(x, (3, 4), w, b),
    ),
    ("layer_norm plain", ((2, 3, 4),), lambda f, x: f.layer_norm(x, (4,), eps=1e-3)),
    ("rms_norm", ((2, 3, 4), (4,)), lambda f, x, w: f.rms_norm(x, (4,), w)),
    ("rms_norm eps", ((2, 3, 4), (4,)), lambda f, x, w: f.rms_norm(x, (4,), w, eps=0.1)),
    ("group_norm", ((2, 4, 3), (4,), (4,)), lambda f, x, w, b: f.group_norm(x, 2, w, b)),
    (
        "batch_norm",
        ((4, 3, 2), (3,), (3,)),
        lambda f, x, w, b: f.batch_norm(x, None, None, w, b, training=True),
    ),
    ("normalize", ((2, 3, 4),), lambda f, x: f.normalize(x)),
    ("normalize 1", ((2, 3, 4),), lambda f, x: f.normalize(x, p=1.0, dim=-1)),
    (
        "attention",
        ((2, 3, 4), (2, 5, 4), (2, 5, 6)),
        lambda f, q, k, v: f.scaled_dot_product_attention(q, k, v),
    ),
    (
        "attention causal",
        ((2, 4, 4), (2, 4, 4), (2, 4, 4)),
        lambda f, q, k, v: f.scaled_dot_product_attention(q, k, v, is_causal=True),
    ),
    (
        "attention causal longer",
        ((2, 3, 4), (2, 5, 4), (2, 5, 4)),
        lambda f, q, k, v: f.scaled_dot_product_attention(q, k, v, is_causal=True),
    ),
    (
        "attention added mask",
        ((2, 3, 4), (2, 5, 4), (2, 5, 6), (3, 5)),
        lambda f, q, k, v, m: f.scaled_dot_product_attention(q, k, v, m, scale=0.3),
    ),
    (
        "attention bool mask",
        ((2, 3, 4), (2, 5, 4), (2, 5, 6), (3, 5)),
        lambda f, q, k, v, m: f.scaled_dot_product_attention(q, k, v, m > -0.5),
    ),
    (
        "attention groups",
        ((1, 4, 3, 4), (1, 2, 5, 4), (1, 2, 5, 6)),
        lambda f, q, k, v: f.scaled_dot_product_attention(q, k, v, enable_gqa=True),
    ),
)

LOSSES: tuple[tuple[str, tuple[tuple[int, ...], ...], Any], ...] = (
    ("mse", ((3, 4), (3, 4)), lambda f, x, y, r: f.mse_loss(x, y, reduction=r)),
    ("l1", ((3, 4), (3, 4)), lambda f, x, y, r: f.l1_loss(x, y, reduction=r)),
    ("smooth_l1", ((3, 4), (3, 4)), lambda f, x, y, r: f.smooth_l1_loss(x, y, reduction=r)),
    (
        "smooth_l1 beta",
        ((3, 4), (3, 4)),
        lambda f, x, y, r: f.smooth_l1_loss(x, y, reduction=r, beta=0.3),
    ),
    ("huber", ((3, 4), (3, 4)), lambda f, x, y, r: f.huber_loss(x, y, reduction=r, delta=0.7)),
    (
        "bce",
        ((3, 4), (3, 4)),
        lambda f, x, y, r: f.binary_cross_entropy(x.sigmoid(), y.sigmoid().detach(), reduction=r),
    ),
    (
        "bce logits",
        ((3, 4), (3, 4)),
        lambda f, x, y, r: f.binary_cross_entropy_with_logits(x, y.sigmoid(), reduction=r),
    ),
    (
        "bce weights",
        ((3, 4), (3, 4), (4,)),
        lambda f, x, y, w, r: f.binary_cross_entropy_with_logits(
            x, y.sigmoid().detach(), reduction=r, pos_weight=w.exp().detach()
        ),
    ),
    ("kl_div", ((3, 4), (3, 4)), lambda f, x, y, r: f.kl_div(x, y.softmax(1), reduction=r)),
    (
        "kl_div log",
        ((3, 4), (3, 4)),
        lambda f, x, y, r: f.kl_div(x, y.log_softmax(1), reduction=r, log_target=True),
    ),
    (
        "cross_entropy soft",
        ((3, 4), (3, 4)),
        lambda f, x, y, r: f.cross_entropy(x, y.softmax(1), reduction=r),
    ),
    (
        "cross_entropy soft smooth",
        ((3, 4, 2), (3, 4, 2)),
        lambda f, x, y, r: f.cross_entropy(x, y.softmax(1), reduction=r, label_smoothing=0.1),
    ),
)


@pytest.mark.parametrize("row", (*PRODUCTS, *CONVOLUTIONS, *POOLS, *NORMS), ids=lambda r: r[0])
def test_values_and_gradients(row: Any) -> None:
    _, shapes, function = row
    rng = np.random.default_rng(1)
    arrays = [rng.uniform(-2, 2, shape) for shape in shapes]
    compare(
        function,
        arrays,
        dtypes.float64,
        tolerance=1e-6 if row in POOLS else 1e-10,
        grad_tolerance=1e-6,
    )
    compare(function, arrays, dtypes.float32, tolerance=1e-5, grad=False)


@pytest.mark.parametrize("row", LOSSES, ids=lambda r: r[0])
@pytest.mark.parametrize("reduction", ("mean", "sum", "none"))
@pytest.mark.filterwarnings("ignore:reduction")
def test_losses(row: Any, reduction: str) -> None:
    _, shapes, function = row
    rng = np.random.default_rng(2)
    arrays = [rng.uniform(-2, 2, shape) for shape in shapes]
    compare(
        lambda f, *tensors: function(f, *tensors, reduction),
        arrays,
        dtypes.float64,
        grad_tolerance=1e-8,
    )


CLASSES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("plain", {}),
    ("ignore", {"ignore_index": 1}),
    ("smooth", {"label_smoothing": 0.2}),
    ("smooth ignore", {"label_smoothing": 0.2, "ignore_index": 1}),
)


@pytest.mark.parametrize("row", CLASSES, ids=lambda r: r[0])
@pytest.mark.parametrize("reduction", ("mean", "sum", "none"))
@pytest.mark.parametrize("weighted", (False, True))
def test_class_losses(row: Any, reduction: str, weighted: bool) -> None:
    _, options = row
    rng = np.random.default_rng(3)
    for shape in ((4,), (5, 4), (2, 4, 3)):
        rest = shape[:0] if len(shape) == 1 else (shape[0], *shape[2:])
        ids = np.asarray(rng.integers(0, 4, rest))
        arrays = [rng.uniform(-2, 2, shape), ids, rng.uniform(0.5, 1.5, (4,))]
        if len(shape) == 1:
            arrays[1] = np.asarray(2)

        def function(f: Any, x: Any, target: Any, weight: Any) -> Any:
            chosen = weight.detach() if weighted else None
            return f.cross_entropy(x, target, chosen, reduction=reduction, **options)

        def negative(f: Any, x: Any, target: Any, weight: Any) -> Any:
            chosen = weight.detach() if weighted else None
            skipped = options.get("ignore_index", -100)
            return f.nll_loss(x, target, chosen, reduction=reduction, ignore_index=skipped)

        kinds = (dtypes.float64, dtypes.int64, dtypes.float64)
        compare(function, arrays, kinds, grad_tolerance=1e-8)
        if "smooth" not in row[0]:
            compare(negative, arrays, kinds, grad_tolerance=1e-8, second=False)


def test_one_class_of_all_the_probability_has_a_near_gradient_where_labels_are_smooth() -> None:
    """Its gradient is the target's whole weight, which no sum over classes has rounded."""
    rng = np.random.default_rng(12)
    scores = rng.standard_normal((16, 64)).astype(np.float32)
    high, aim = rng.integers(0, 64, 16), rng.integers(0, 64, 16)
    scores[np.arange(16), high] += 12
    with options.override(device="CPU"):
        x = Tensor(scores, requires_grad=True)
        x.cross_entropy(Tensor(aim), reduction="sum", label_smoothing=0.1).backward()
        assert x.grad is not None
        found = x.grad.numpy()
    power = np.exp(scores.astype(np.float64))
    true = power / power.sum(-1, keepdims=True) - 0.1 / 64 - 0.9 * np.eye(64)[aim]
    assert np.abs(found - true).max() < 6 * 2.0**-24


def test_a_row_that_is_not_counted_may_have_infinite_scores_where_labels_are_smooth() -> None:
    scores = np.array([[0.5, 1, -1], [0, -np.inf, 2]], np.float32)
    x = Tensor(scores, requires_grad=True)
    loss = x.cross_entropy(Tensor([1, -100]), reduction="sum", label_smoothing=0.2)
    loss.backward()
    logs = scores[0].astype(np.float64) - np.log(np.exp(scores[0].astype(np.float64)).sum())
    assert abs(loss.item() + 0.8 * logs[1] + 0.2 * logs.mean()) < 1e-6
    assert x.grad is not None and not x.grad.numpy()[1].any()


def test_max_pool_gives_the_gradient_to_the_first_of_equals() -> None:
    array = np.random.default_rng(4).integers(0, 2, (2, 2, 6, 6)).astype(float)
    compare(lambda f, x: f.max_pool2d(f.relu(x), 2), [array], dtypes.float64)
    compare(lambda f, x: f.max_pool2d(x, 3, 2, 1), [array], dtypes.float64)


def test_max_pool_gives_no_gradient_to_padding() -> None:
    """Not even where every element of a window is as low as the padding around it."""
    x = Tensor(np.full((1, 1, 4, 4), -np.inf, np.float32), requires_grad=True)
    x.max_pool2d(3, 2, 1).backward(Tensor(np.array([[[[1, 2], [3, 4]]]], np.float32)))
    expected = np.zeros((4, 4), np.float32)
    expected[0, 0], expected[0, 1], expected[1, 0], expected[1, 1] = 1, 2, 3, 4
    np.testing.assert_array_equal(x.grad.numpy()[0, 0], expected)


@pytest.mark.parametrize("training", (True, False))
def test_batch_norm_moves_its_statistics(training: bool) -> None:
    rng = np.random.default_rng(5)
    array = rng.uniform(-1, 3, (4, 3, 2, 2)).astype(np.float32)
    mean, variance = rng.uniform(size=3).astype(np.float32), rng.uniform(1, 2, 3).astype(np.float32)
    ours = [Tensor(a) for a in (array, mean, variance)]
    theirs = [torch.tensor(a) for a in (array, mean, variance)]
    ours[0].requires_grad_()
    got = ours[0].batch_norm(*ours[1:], training=training)
    wanted = torch.nn.functional.batch_norm(*theirs, training=training)
    for a, b in zip((got, *ours[1:]), (wanted, *theirs[1:]), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-5)
    assert not ours[1].requires_grad


def test_narrow_floats_accumulate_in_float32() -> None:
    rng = np.random.default_rng(6)
    for dtype in (dtypes.float16, dtypes.bfloat16):
        a, b = rng.uniform(-1, 1, (4, 300)), rng.uniform(-1, 1, (300, 5))
        compare(lambda f, x, y: x @ y, [a, b], dtype, second=False)
        compare(lambda f, x: f.layer_norm(x, (300,)), [a], dtype, second=False, grad_tolerance=0.1)
        image, weight = rng.uniform(-1, 1, (1, 20, 5, 5)), rng.uniform(-1, 1, (3, 20, 3, 3))
        compare(lambda f, x, w: f.conv2d(x, w, padding=1), [image, weight], dtype, grad=False)
        q = rng.uniform(-1, 1, (2, 6, 8))
        compare(lambda f, x: f.scaled_dot_product_attention(x, x, x), [q], dtype, grad=False)


def test_integer_products() -> None:
    rng = np.random.default_rng(7)
    a, b = rng.integers(-9, 9, (3, 4)), rng.integers(-9, 9, (4, 5))
    for dtype in (dtypes.int32, dtypes.int64, dtypes.int8):
        compare(lambda f, x, y: x @ y, [a, b], dtype)


def test_a_row_that_sees_nothing_gives_zeros() -> None:
    q = Tensor.ones(1, 2, 4)
    mask = Tensor([[True, False], [False, False]])
    out = q.scaled_dot_product_attention(q, q, mask)
    assert out.tolist() == [[[1.0] * 4, [0.0] * 4]]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    (
        (lambda x: x @ x, ShapeError, r"inner extents.*\[2, 3\] and \[2, 3\]"),
        (lambda x: x @ 2, ShapeError, "at least one axis"),
        (lambda x: x.mm(x[0]), ShapeError, "matrices"),
        (lambda x: x.einsum("ij", x, x), ShapeError, "a term for each operand"),
        (lambda x: x.einsum("ijk->i", x), ShapeError, "does not fit its operand"),
        (lambda x: x.conv2d(x), ShapeError, "wants \\(N, C"),
        (lambda x: x[None, None].conv2d(Tensor.ones(1, 2, 1, 1)), ShapeError, "channels"),
        (
            lambda x: x[None, None].conv2d(Tensor.ones(1, 1, 5, 5)),
            ShapeError,
            "larger than the padded",
        ),
        (lambda x: x[None, None].max_pool2d(2, padding=2), ShapeError, "at most half"),
        (lambda x: x.cross_entropy(Tensor([0, 3])), IndexOutOfRange, "class id.*3, wanted 0 to 2"),
        (lambda x: x.cross_entropy(Tensor([0])), ShapeError, "a class id for each row"),
        (lambda x: x.nll_loss(Tensor([0.0, 1.0])), DTypeError, "integers"),
        (lambda x: x.mse_loss(x[0]), ShapeError, "one shape"),
        (lambda x: x.mse_loss(x, reduction="max"), ValueError, "reduction"),
        (lambda x: x.layer_norm(4), ShapeError, r"ends in \[4\]"),
        (lambda x: x.group_norm(2), ShapeError, "groups"),
        (lambda x: x.dropout(1.5), ValueError, "probability"),
    ),
)
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(Tensor.ones(2, 3))


@pytest.mark.parametrize(("given", "error"), [
    ({"size": 0}, ShapeError), ({"scale_factor": 0.01}, ShapeError),
    ({"scale_factor": (2.0, 2.0)}, ShapeError), ({"size": 3, "align_corners": True}, ArgumentError),
    ({"size": 3, "mode": "area", "align_corners": False}, ArgumentError),
])  # fmt: skip
def test_what_cannot_be_resampled_is_refused(given: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"interpolate|align_corners"):
        Tensor.zeros(1, 1, 4).interpolate(**given)
    with pytest.raises(ShapeError, match="elements to pick from"):
        Tensor.zeros(1, 1, 0).interpolate(3)
    with pytest.raises(ShapeError):
        Tensor.zeros(1, 1).interpolate(3)


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("size", [(2, 5), (9, 4), (12, 20), (7, 6), (7, 11), (15, 6), (3, 3)])
def test_bytes_are_resampled_in_fixed_point(size: tuple[int, int], corners: bool) -> None:
    array = np.random.default_rng(21).integers(0, 256, (2, 3, 7, 6))
    compare(
        lambda f, x: f.interpolate(x, size, mode="bilinear", align_corners=corners),
        [array], dtypes.uint8,
    )


def test_a_row_of_bytes_is_resampled_in_fractions() -> None:
    for device in ("REF", "CPU"):
        x = Tensor([[[0, 200]]], dtype=dtypes.uint8, device=device)
        assert x.interpolate(4, mode="linear").tolist() == [[[0, 50, 150, 200]]]
        y = x.reshape(1, 1, 1, 1, 2).interpolate((1, 1, 4), mode="trilinear")
        assert y.tolist() == [[[[[0, 50, 150, 200]]]]]


@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.int32, dtypes.int64, dtypes.bool], ids=str)
@pytest.mark.parametrize("mode", ["linear", "area"])
def test_other_integers_are_not_resampled_in_fractions(dtype: DType, mode: str) -> None:
    with pytest.raises(DTypeError, match=r"found dtype .*float\(\)"):
        Tensor([[[0, 1]]], dtype=dtype).interpolate(4, mode=mode)


def test_attention_is_of_floats() -> None:
    x = Tensor([[1, 2], [3, 4]])
    with pytest.raises(DTypeError, match="attention .* found dtype int64"):
        x.scaled_dot_product_attention(x, x)


@pytest.mark.parametrize("equation", ["i1", "i*->i", "i;j"])
def test_axes_of_einsum_are_letters(equation: str) -> None:
    with pytest.raises(ArgumentError, match="letters"):
        Tensor.einsum(equation, Tensor.zeros(2, 3))


def test_means_of_parts_leave_out_what_is_infinite_elsewhere() -> None:
    values = np.array([[[1.0, 2.0, 3.0, np.inf, 5.0, -np.inf, 7.0]]], np.float32)
    wanted = torch.nn.functional.adaptive_avg_pool1d(torch.tensor(values), 4)
    found = Tensor(values).adaptive_avg_pool1d(4)
    np.testing.assert_array_equal(found.numpy(), wanted.numpy())
