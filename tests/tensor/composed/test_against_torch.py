"""Functions that are short compositions, by PyTorch's names and arguments, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import baregrad
from baregrad.base.errors import ArgumentError, DTypeError, ShapeError
from baregrad.base.options import options
from baregrad.nn import functional

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((4, 7)).astype(np.float32)
S = np.sort(X, axis=1)
V = RANDOM.standard_normal((4, 3)).astype(np.float32)
N = RANDOM.integers(0, 4, (4, 7))
HOLES = X.copy()
HOLES[0] = np.nan
HOLES[1, 2:5] = np.nan
M = RANDOM.standard_normal((3, 3)).astype(np.float32)
P = (M @ M.T + np.eye(3)).astype(np.float32)
A, B = RANDOM.integers(-50, 50, (2, 40))
WAVE = RANDOM.standard_normal(64).astype(np.float32)
IMAGE = RANDOM.standard_normal((2, 3, 5, 6)).astype(np.float32)
W = RANDOM.standard_normal(3).astype(np.float32)
ROWS = np.array([[1, 2], [1, 2], [0, 3], [1, 2]])

Case = Callable[[Any], Any]
OURS: Any = baregrad


def f(t: Any) -> Any:
    """PyTorch's functions of layers, or ours."""
    return torch.nn.functional if t is torch else functional


def moved_statistics(t: Any) -> Any:
    mean, variance = t.zeros(3), t.ones(3)
    y = f(t).instance_norm(t.tensor(IMAGE), mean, variance, t.tensor(W), t.tensor(W))
    return t.cat([y.reshape(-1), mean, variance])


def frames(t: Any) -> Any:
    return t.stft(
        t.tensor(WAVE), 16, hop_length=4, window=t.hann_window(16), return_complex=True
    )


def _written_by_strides(t: Any) -> Any:
    """A window of a part's elements, added to through it and a view of it."""
    whole = t.tensor(X) * 1
    shown = whole[1:].as_strided((2, 3), (4, 1))
    shown.add_(100.0)
    shown[1].mul_(2.0)
    return whole


CASES: dict[str, Case] = {
    "searchsorted": lambda t: t.searchsorted(t.tensor(S), t.tensor(V)),
    "searchsorted right": lambda t: t.searchsorted(t.tensor(S), t.tensor(V), right=True),
    "searchsorted in one row": lambda t: (
        t.searchsorted(t.tensor(S[0]), t.tensor(V), side="right", out_int32=True)
    ),
    "searchsorted a number": lambda t: t.searchsorted(t.tensor(S[0]), 0.3),
    "searchsorted sorter": lambda t: (
        t.searchsorted(t.tensor(X), t.tensor(V), sorter=t.tensor(np.argsort(X, 1)))
    ),
    "bucketize": lambda t: t.bucketize(t.tensor(X), t.tensor([-1, 0, 1.])),
    "isin": lambda t: t.isin(t.tensor(N), t.tensor(np.array([1, 3]))),
    "isin invert": lambda t: t.isin(t.tensor(N), t.tensor(np.array([1, 3])), invert=True),
    "isin a number": lambda t: t.isin(t.tensor(N), 2),
    "histc": lambda t: t.histc(t.tensor(X), 10),
    "histc2": lambda t: t.histc(t.tensor(X), bins=5, min=-1, max=1),
    "mode": lambda t: t.mode(t.tensor(N))[0],
    "mode2": lambda t: t.tensor(N).mode(0, keepdim=True)[0],
    "nanmedian": lambda t: t.nanmedian(t.tensor(HOLES)),
    "nanmedian along": lambda t: t.nanmedian(t.tensor(HOLES), dim=1)[0],
    "nanquantile": lambda t: t.nanquantile(t.tensor(HOLES), 0.3, dim=1),
    "nanquantiles": lambda t: (
        t.nanquantile(t.tensor(HOLES), t.tensor([0.2, 0.8]), dim=0, keepdim=True)
    ),
    "quantiles": lambda t: t.quantile(t.tensor(X), t.tensor([0.2, 0.5])),
    "quantile nearest": lambda t: t.quantile(t.tensor(X), 0.4, dim=1, interpolation="nearest"),
    "quantile midpoint": lambda t: (
        t.quantile(t.tensor(X), 0.4, dim=1, interpolation="midpoint", keepdim=True)
    ),
    "quantiles of NaN": lambda t: t.quantile(t.tensor(HOLES), t.tensor([0.2, 0.5]), dim=1),
    "unique_consecutive": lambda t: t.unique_consecutive(t.tensor(N)),
    "unique_consecutive counts": lambda t: (
        t.unique_consecutive(t.tensor(N), return_inverse=True, return_counts=True)[2]
    ),
    "unique_consecutive columns": lambda t: t.unique_consecutive(t.tensor(N), dim=1),
    "unique columns": lambda t: t.unique(t.tensor(N), dim=1),
    "unique inverse": lambda t: t.unique(t.tensor(N), dim=1, return_inverse=True)[1],
    "unique counts": lambda t: (
        t.unique(t.tensor(np.array([[1, 2], [1, 2], [0, 3], [1, 2]])), dim=0, return_counts=True)[1]
    ),
    "unravel_index": lambda t: t.unravel_index(t.tensor(np.array([3, 17, 5])), (4, 7))[1],
    "nonzero_static": lambda t: t.nonzero_static(t.tensor(N), size=5),
    "nonzero_static fill": lambda t: t.tensor(N).nonzero_static(size=50, fill_value=-7),
    "combinations": lambda t: t.combinations(t.tensor(A[:5]), 3),
    "combinations replacement": lambda t: t.combinations(t.tensor(A[:5]), with_replacement=True),
    "tensordot axes": lambda t: t.tensordot(t.tensor(X), t.tensor(X), dims=([0], [0])),
    "tensordot one": lambda t: t.tensordot(t.tensor(X), t.tensor(X.T.copy()), dims=1),
    "tensordot none": lambda t: t.tensordot(t.tensor(X), t.tensor(V), dims=0),
    "trapezoid": lambda t: t.trapezoid(t.tensor(X), dx=0.5),
    "trapezoid places": lambda t: t.trapezoid(t.tensor(X), t.tensor(S), dim=0),
    "cumulative_trapezoid": lambda t: t.cumulative_trapezoid(t.tensor(X), dim=0),
    "trapz": lambda t: t.trapz(t.tensor(X)),
    "gcd": lambda t: t.gcd(t.tensor(A), t.tensor(B)),
    "lcm": lambda t: t.lcm(t.tensor(A), t.tensor(B)),
    "nextafter": lambda t: t.nextafter(t.tensor(X), t.tensor(np.ones((4, 7), np.float32))),
    "cholesky": lambda t: t.cholesky(t.tensor(P)),
    "cholesky_inverse": lambda t: t.cholesky_inverse(t.cholesky(t.tensor(P))),
    "cholesky_solve": lambda t: t.cholesky_solve(t.tensor(M), t.cholesky(t.tensor(P))),
    "logdet": lambda t: t.logdet(t.tensor(P)),
    "logdet negative": lambda t: t.logdet(t.tensor(-P)),
    "det": lambda t: t.tensor(M).det(),
    "inverse": lambda t: t.inverse(t.tensor(P)),
    "pinverse": lambda t: t.pinverse(t.tensor(X)),
    "matrix_power": lambda t: t.matrix_power(t.tensor(M), 3),
    "matrix_exp": lambda t: t.matrix_exp(t.tensor(M)),
    "slogdet": lambda t: t.tensor(M).slogdet()[1],
    "triangular_solve": lambda t: t.triangular_solve(t.tensor(M), t.tensor(P))[0],
    "svd": lambda t: t.svd(t.tensor(X))[1],
    "qr": lambda t: t.qr(t.tensor(X))[1],
    "fill_diagonal_": lambda t: t.tensor(X).fill_diagonal_(5.),
    "fill_diagonal_ wrap": lambda t: t.tensor(X.T.copy()).fill_diagonal_(5., wrap=True),
    "fill_diagonal_ cube": lambda t: t.zeros(3, 3, 3).fill_diagonal_(1.),
    "put_": lambda t: t.tensor(X).put_(t.tensor(np.array([1, 5])), t.tensor([9., 8.])),
    "put_ accumulate": lambda t: (
        t.tensor(X).put_(t.tensor(np.array([1, 1])), t.tensor([9., 8.]), accumulate=True)
    ),
    "hann_window": lambda t: t.hann_window(9),
    "hann_window whole": lambda t: t.hann_window(9, periodic=False),
    "hamming_window": lambda t: t.hamming_window(8),
    "blackman_window": lambda t: t.blackman_window(8),
    "bartlett_window": lambda t: t.bartlett_window(7),
    "kaiser_window": lambda t: t.kaiser_window(8),
    "stft": lambda t: t.view_as_real(frames(t)),
    "istft": lambda t: t.istft(frames(t), 16, hop_length=4, window=t.hann_window(16)),
    "real": lambda t: t.real(t.view_as_complex(t.tensor(X[:, :2].copy()))),
    "imag": lambda t: t.imag(t.view_as_complex(t.tensor(X[:, :2].copy()))),
    "rsub": lambda t: t.rsub(t.tensor(X), 2, alpha=3),
    "logspace": lambda t: t.logspace(0, 2, 5, base=5.0, dtype=t.float64),
    "cosine_similarity broadcast": lambda t: (
        f(t).cosine_similarity(t.tensor(IMAGE[:1]), t.tensor(IMAGE[:, :1]), dim=-2)
    ),
    "cov": lambda t: t.cov(t.tensor([[1, 2, 5], [3, 4, 0]])),
    "corrcoef": lambda t: t.corrcoef(t.tensor([[1., 2.]])),
    "addbmm of bytes": lambda t: (
        t.addbmm(*[t.ones(*n, dtype=t.uint8) for n in ((2, 3), (2, 2, 3), (2, 3, 3))])
    ),
    "var_mean": lambda t: t.var_mean(t.tensor(X), dim=1, unbiased=False, keepdim=True)[0],
    "std_mean": lambda t: t.std_mean(t.tensor(X), False)[0],
    "var unbiased first": lambda t: t.tensor(X).var(False),
    "softmin dtype": lambda t: f(t).softmin(t.tensor(X), dim=1, dtype=t.float64),
    "diag_embed": lambda t: t.diag_embed(t.tensor(X), offset=1, dim1=0, dim2=2),
    "diag_embed turned": lambda t: t.diag_embed(t.tensor(X), dim1=1, dim2=0),
    "diff": lambda t: t.diff(t.tensor(X), prepend=t.zeros(4, 1), append=t.ones(4, 2)),
    "unfold of a number": lambda t: t.tensor(3.).unfold(0, 1, 1),
    "repeat_interleave": lambda t: t.repeat_interleave(t.tensor(X), t.tensor([1, 0, 2, 3]), dim=0),
    "repeat_interleave size": lambda t: (
        t.repeat_interleave(t.tensor(X), t.tensor([1, 0, 2, 3]), dim=0, output_size=6)
    ),
    "repeat_interleave flat": lambda t: t.repeat_interleave(t.tensor([5, 6]), t.tensor([2, 1])),
    "repeat_interleave one": lambda t: t.repeat_interleave(t.tensor(X), t.tensor([2]), dim=1),
    "index_fill tensor": lambda t: t.tensor(X).index_fill(1, t.tensor([0, 2]), t.tensor(3.)),
    "index_add of a number": lambda t: t.tensor(1.).index_add(0, t.tensor([0]), t.tensor(2.)),
    "instance_norm running": lambda t: (
        f(t).instance_norm(t.tensor(IMAGE), t.zeros(3), t.ones(3), use_input_stats=False)
    ),
    "bicubic": lambda t: f(t).interpolate(t.tensor(IMAGE), size=(9, 4), mode="bicubic"),
    "bicubic corners": lambda t: (
        f(t).interpolate(t.tensor(IMAGE), scale_factor=2.3, mode="bicubic", align_corners=True)
    ),
    "bicubic down": lambda t: (
        f(t).interpolate(t.tensor(IMAGE), scale_factor=0.7, mode="bicubic", align_corners=False)
    ),
    "recompute_scale_factor": lambda t: (
        f(t).interpolate(t.tensor(IMAGE), scale_factor=0.7, mode="bilinear",
            recompute_scale_factor=True)
    ),
    "vector_norm complex": lambda t: (
        t.linalg.vector_norm(t.complex(t.tensor(X), t.tensor(X)), ord=0)
    ),
    "eigvalsh of nothing": lambda t: t.linalg.eigvalsh(t.zeros(2, 0, 0, dtype=t.complex64)),
    "arange of int64": lambda t: t.arange(-0.9, 2.1, 2.0, dtype=t.int64),
    "arange of int32": lambda t: t.arange(0.5, 5.000001, 2.0, dtype=t.int32),
    "linspace of integers": lambda t: t.linspace(4.3, 50, 50, dtype=t.int64),
    "linspace between tensors": lambda t: t.linspace(t.tensor(-1.3), 1, 9, dtype=t.float64),
    "logspace of integers": lambda t: t.logspace(0, 1.2, 4, base=5.0, dtype=t.int64),
    "diff not taken": lambda t: t.diff(t.tensor(X), n=0, prepend=t.zeros(4, 1)),
    "cov weighted": lambda t: t.cov(
        t.tensor(X).bfloat16(), correction=0, aweights=t.tensor(S[0] * S[0])
    ),
    "istft of all frequencies": lambda t: t.istft(
        t.complex(t.tensor(X[:, :4]), t.tensor(X[:, 3:])), 4, onesided=False,
        window=t.hann_window(4),
    ),
    "cat of complex": lambda t: t.cat([t.complex(t.tensor(X), t.tensor(S))], 1),
    "stack of complex": lambda t: t.stack([t.complex(t.tensor(X), t.tensor(S))] * 2, -1),
    "squeeze no axis": lambda t: t.squeeze(t.complex(t.ones(1, 1), t.ones(1, 1)), []),
    "bincount weights": lambda t: t.bincount(t.tensor([0, 2, 2]), t.tensor([1, 2, 3])),
    "histc of bfloat16": lambda t: t.histc(t.tensor(X).bfloat16(), 10, -2, 2).float(),
    "unravel_index of bytes": lambda t: t.unravel_index(t.tensor([3, 9]).to(t.uint8), (4, 5))[0],
    "group_norm of nothing": lambda t: f(t).group_norm(t.zeros(0, 4, 2), 2),
    "as_strided": lambda t: t.as_strided(t.tensor(X), (3, 2, 2), (7, 2, 1), 1),
    "as_strided is written through": _written_by_strides,
    "as_strided of a part": lambda t: t.tensor(X)[1:].as_strided((3, 2), (2, 1), 8),
    "unique_consecutive of nothing": lambda t: t.unique_consecutive(
        t.zeros(0, 3), return_inverse=True, return_counts=True, dim=0
    )[2],
    "unique_consecutive of no elements": lambda t: t.unique_consecutive(t.zeros(3, 0)),
    "nanmedian of nothing": lambda t: t.nanmedian(t.zeros(0, 3)),
    "combinations of none": lambda t: t.combinations(t.tensor(X)[0], 0),
    "index_reduce of no axes": lambda t: t.index_reduce(
        t.tensor(X)[0, 0], 0, t.tensor([0]), t.tensor(X)[1, 0], "prod"
    ),
    "trapezoid at places of the last axes": lambda t: t.trapezoid(
        t.tensor(IMAGE), t.tensor(IMAGE[0]), dim=-2
    ),
    "index_reduce": lambda t: t.index_reduce(
        t.tensor(X), 1, t.tensor([0, 3, 0]), t.tensor(V), "amax", include_self=False
    ),
    "chain_matmul": lambda t: t.chain_matmul(t.tensor(X), t.tensor(S.T.copy()), t.tensor(V)),
    "vmap": lambda t: t.vmap(t.dot)(t.tensor(X), t.tensor(S)),
    "vander": lambda t: t.vander(t.tensor(W)),
    "pixel_unshuffle": lambda t: t.pixel_unshuffle(t.tensor(IMAGE[..., :4, :]), 2),
    "lgamma_": lambda t: t.tensor(P).abs().lgamma_(),
    "constant_pad_nd": lambda t: t.constant_pad_nd(t.tensor(X), (1, 2), 3.0),
    "narrow_copy": lambda t: t.narrow_copy(t.tensor(X), 1, 2, 3),
    "gaussian_nll_loss of rows": lambda t: f(t).gaussian_nll_loss(
        t.tensor(X[:, :4]), t.tensor(S[:, :4]), t.tensor(S[:, 0] ** 2 + 1)
    ),
    "ldexp of bfloat16": lambda t: t.ldexp(t.tensor(X).bfloat16(), t.tensor(N)).float(),
    "prelu of a number": lambda t: f(t).prelu(t.tensor(-2.0), t.tensor([0.3])),
    "instance_norm moves": moved_statistics,
    "zeros_like device": lambda t: t.zeros_like(t.tensor(X), device="cpu", dtype=t.float64),
    "new_full device": lambda t: t.tensor(X).new_full((2,), 3, device="cpu"),
    "eye requires": lambda t: t.eye(2, requires_grad=True).detach(),
}


@pytest.mark.parametrize("name", CASES)
def test_functions_agree(name: str) -> None:
    with options.override(device="REF"):
        found, wanted = CASES[name](baregrad), CASES[name](torch)
        assert str(found.dtype) == str(wanted.dtype).removeprefix("torch.")
        assert tuple(found.shape) == tuple(wanted.shape)
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=2e-5, atol=2e-5)


GRADIENTS: tuple[Callable[[Any, Any], Any], ...] = (
    lambda t, x: t.quantile(x, t.tensor([0.2, 0.7]), dim=1),
    lambda t, x: t.nanmedian(x, dim=1)[0],
    lambda t, x: t.tensordot(x, x, dims=([0], [0])),
    lambda t, x: t.trapezoid(x * x, dx=0.5, dim=0),
    lambda t, x: t.repeat_interleave(x, t.tensor([1, 0, 2, 3]), dim=0) ** 2,
    lambda t, x: x.index_fill(1, t.tensor([0, 2]), x[0, 1]),
    lambda t, x: f(t).interpolate(x.reshape(1, 1, 4, 7), size=(9, 3), mode="bicubic"),
    lambda t, x: f(t).cosine_similarity(x[:, None], x[None], dim=-1),
    lambda t, x: t.mode(x, dim=1)[0],
    lambda t, x: t.as_strided(x, (3, 4), (2, 1), 1) ** 2,
    lambda t, x: t.sinc(x * 0.2),
    lambda t, x: t.diff(x * x, prepend=x[:, :1]),
    lambda t, x: t.logdet(x[:, :4] @ x[:, :4].mT + t.eye(4)),
    lambda t, x: t.cholesky_solve(x, t.cholesky(x @ x.mT + t.eye(4))),
    lambda t, x: t.istft(
        t.stft(x.reshape(-1), 8, window=t.hann_window(8), return_complex=True), 8,
        window=t.hann_window(8),
    ),
)


@pytest.mark.parametrize("case", GRADIENTS, ids=range(len(GRADIENTS)))
def test_gradients_agree(case: Callable[[Any, Any], Any]) -> None:
    gradients = []
    with options.override(device="REF"):
        for t in (baregrad, torch):
            x = t.tensor(X, requires_grad=True)
            y = case(t, x)
            weights = t.tensor(np.random.default_rng(1).random(tuple(y.shape), np.float32))
            (y * weights).sum().backward()
            gradients.append(x.grad.numpy())
    np.testing.assert_allclose(gradients[0], gradients[1], rtol=1e-4, atol=2e-5)


def test_draws_in_place_follow_their_distributions() -> None:
    OURS.Tensor.manual_seed(3)
    one = OURS.zeros(20000)
    assert np.median(one.exponential_(2.0).numpy()) == pytest.approx(np.log(2) / 2, rel=0.05)
    assert abs(np.median(one.cauchy_(1.0, 0.5).numpy()) - 1.0) < 0.03
    assert np.median(one.log_normal_(0.5, 1.0).numpy()) == pytest.approx(np.exp(0.5), rel=0.05)
    trials = one.geometric_(0.3).numpy()
    assert trials.min() == 1 and trials.mean() == pytest.approx(1 / 0.3, rel=0.05)
    assert set(one.random_(2, 5).numpy()) == {2.0, 3.0, 4.0}
    assert one.random_().numpy().max() < 2**24 + 1


def test_what_cannot_be_is_refused() -> None:
    x = OURS.tensor(X)
    cases: tuple[tuple[Callable[[], Any], type[Exception]], ...] = (
        (lambda: x.searchsorted(OURS.zeros(2, 3)), ShapeError),
        (lambda: x.searchsorted(x, side="middle"), ArgumentError),
        (lambda: x.tensordot(x, dims=1), ShapeError),
        (lambda: x.gcd(x), DTypeError),
        (lambda: x.quantile(0.5, interpolation="cubic"), ArgumentError),
        (lambda: x.repeat_interleave(OURS.tensor([1, 2]), dim=0), ShapeError),
        (lambda: x.repeat_interleave(OURS.tensor([1, -1, 0, 2]), dim=0), ArgumentError),
        (lambda: x.repeat_interleave(OURS.tensor([1.5]), dim=0), DTypeError),
        (lambda: x.searchsorted(x, right=True, side="left"), ArgumentError),
        (lambda: x.unravel_index((3, 4)), DTypeError),
        (lambda: x.put(OURS.tensor([0, 1]), OURS.tensor([1.0])), ShapeError),
        (lambda: x[:, :2].trapezoid(x[0, :3]), ShapeError),
        (lambda: OURS.hann_window(4, dtype=OURS.int64), DTypeError),
        (lambda: x.diag_embed(0, 1, 1), ShapeError),
        (lambda: OURS.zeros(2, 3, 4).fill_diagonal_(1.0), ShapeError),
        (lambda: OURS.zeros(3).exponential_(0.0), ArgumentError),
        (lambda: OURS.zeros(3).geometric_(1.0), ArgumentError),
        (lambda: OURS.hann_window(-1), ArgumentError),
        (lambda: functional.interpolate(x, size=3, mode="bicubic"), ShapeError),
    )
    for case, kind in cases:
        with pytest.raises(kind):
            case()


def test_the_precision_of_products_is_the_option() -> None:
    before = OURS.get_float32_matmul_precision()
    with options.override(matmul_precision=before):
        OURS.set_float32_matmul_precision("medium")
        assert options.matmul_precision == OURS.get_float32_matmul_precision() == "high"
        OURS.set_float32_matmul_precision("highest")
        assert options.matmul_precision == "highest"
        with pytest.raises(ArgumentError, match="lowest"):
            OURS.set_float32_matmul_precision("lowest")
    with pytest.raises(ShapeError, match="strides"):
        OURS.tensor(X).as_strided((3,), (20,))
    with pytest.raises(ShapeError, match="in order"):
        OURS.tensor(X).T.as_strided((3,), (1,))
    with pytest.raises(ShapeError, match="as_strided"):
        OURS.tensor(X).as_strided((3, 3), (1, 1)).zero_()
    made = OURS.tensor(X)
    assert made.is_signed()
    assert made.is_cuda is made.device.startswith(("CUDA", "NV"))


def test_sinc_has_its_gradient_near_0() -> None:
    x = np.array([0.0, 1e-4, -1.2e-4, 3e-3, 0.1, 0.159, 0.16, 2.0])
    for dtype, within in (("float32", 1e-6), ("float64", 1e-14)):
        given = OURS.tensor(x.astype(dtype), requires_grad=True)
        given.sinc().sum().backward()
        y = x.astype(dtype).astype(np.float64) * np.pi
        # The formula loses digits below, where the first terms of the series are left.
        away = np.where(y < 0.03, 1.0, y)
        far = (away * np.cos(away) - np.sin(away)) / away**2
        wanted = np.where(y < 0.03, -y / 3 + y**3 / 30 - y**5 / 840, far)
        np.testing.assert_allclose(
            given.grad.numpy(), wanted * np.pi, atol=4 * within, rtol=within
        )
