"""Factors against their definitions, NumPy's values and PyTorch's gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from baregrad import Tensor, jit, linalg
from baregrad.base.errors import DTypeError, GradientError, LinAlgError, ShapeError
from baregrad.linalg.spectral import rotations, secular


def cases(*shapes: tuple[int, ...]) -> list[Any]:
    """Each shape in one dtype, a large one in float32, and all in the other one when it is slow."""
    usual = [(shape, "float32" if shape[0] > 9 else "float64") for shape in shapes]
    other = {"float32": "float64", "float64": "float32"}
    return usual + [
        pytest.param(shape, other[dtype], marks=pytest.mark.slow) for shape, dtype in usual
    ]


SHAPES = cases((1, 1), (3, 7), (40, 40), (2, 3, 5, 4))
SQUARES = cases((1, 1), (40, 40), (2, 3, 5, 5))
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23}


def given(shape: tuple[int, ...], dtype: str = "float64", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def positive(shape: tuple[int, ...], dtype: str = "float64") -> np.ndarray:
    x = given(shape, dtype)
    return x @ x.swapaxes(-1, -2) + np.eye(shape[-1], dtype=dtype)


def close(found: Any, wanted: Any, scale: float, dtype: str, times: float = 30.0) -> None:
    """Within so many roundings of matrices whose elements are about `scale`."""
    found = found.numpy() if isinstance(found, Tensor) else found
    wanted = wanted.numpy(force=True) if isinstance(wanted, torch.Tensor) else wanted
    size = max(found.shape[-2:], default=1) if found.ndim else 1
    limit = times * EPSILON[dtype] * max(scale, 1e-300) * size
    np.testing.assert_allclose(found, wanted, rtol=0, atol=limit)


def orthonormal(columns: Tensor, dtype: str) -> None:
    x = columns.numpy()
    one = np.broadcast_to(np.eye(x.shape[-1]), (*x.shape[:-2], x.shape[-1], x.shape[-1]))
    close(x.swapaxes(-1, -2) @ x, one, 1.0, dtype)


def norm(x: np.ndarray) -> float:
    return float(np.abs(x).max()) * x.shape[-1]


def same_gradients(
    ours: Callable[[Tensor], Any], theirs: Callable[[torch.Tensor], Any], x: np.ndarray,
    tolerance: float = 1e-9,
) -> None:
    """Gradients of a weighted sum of squares of all results, once and twice."""
    mine, other = Tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    losses: list[Any] = []
    for made in (ours(mine), theirs(other)):
        parts = made if isinstance(made, tuple) else (made,)
        total: Any = 0.0
        for place, part in enumerate(parts):
            weights = np.cos(np.arange(np.prod(part.shape)) + place).reshape(part.shape)
            like: Any = Tensor(weights) if isinstance(part, Tensor) else torch.tensor(weights)
            total = total + (part * part * like).sum() + (part * like).sum()
        losses.append(total)
    (first,) = losses[0].gradient(mine)
    (wanted,) = torch.autograd.grad(losses[1], other, create_graph=True)
    np.testing.assert_allclose(
        first.numpy(), wanted.numpy(force=True), rtol=tolerance, atol=tolerance * 10
    )
    (second,) = (first * first).sum().gradient(mine)
    (more,) = torch.autograd.grad((wanted * wanted).sum(), other)
    scale = float(more.abs().max()) + 1.0
    np.testing.assert_allclose(
        second.numpy() / scale, more.numpy() / scale, rtol=0, atol=tolerance * 1e3
    )


@pytest.mark.parametrize(("shape", "dtype"), SQUARES)
def test_cholesky_is_its_definition(shape: tuple[int, ...], dtype: str) -> None:
    x = positive(shape, dtype)
    for upper in (False, True):
        found = linalg.cholesky(Tensor(x), upper=upper).numpy()
        low = found.swapaxes(-1, -2) if upper else found
        assert (np.triu(low, 1) == 0).all()
        close(low @ low.swapaxes(-1, -2), x, norm(x), dtype)


def test_cholesky_reads_one_triangle() -> None:
    x = positive((4, 4))
    low = linalg.cholesky(Tensor(np.tril(x))).numpy()
    np.testing.assert_allclose(low, np.linalg.cholesky(x), atol=1e-12)
    up = linalg.cholesky(Tensor(np.triu(x)), upper=True).numpy()
    np.testing.assert_allclose(up, np.linalg.cholesky(x).T, atol=1e-12)


def test_cholesky_refuses_what_is_not_positive_definite() -> None:
    x = np.diag([1.0, -1.0])
    with pytest.raises(LinAlgError, match="not positive definite"):
        linalg.cholesky(Tensor(x))
    both = linalg.cholesky_ex(Tensor(np.stack([np.eye(2), x])))
    assert both.info.tolist() == [0, 1]
    assert np.isnan(jit(linalg.cholesky)(Tensor(x)).numpy()).any()


@pytest.mark.parametrize(("shape", "dtype"), SHAPES)
def test_lu_is_its_definition(shape: tuple[int, ...], dtype: str) -> None:
    x = given(shape, dtype)
    p, low, up = (part.numpy() for part in linalg.lu(Tensor(x)))
    close(p @ low @ up, x, norm(x), dtype)
    assert (np.triu(low, 1) == 0).all() and (np.tril(up, -1) == 0).all()
    assert (np.abs(low) <= 1).all()
    close(up, torch.linalg.lu(torch.tensor(x)).U, norm(x), dtype, times=300.0)


def test_factors_of_which_one_has_a_large_inverse_leave_little() -> None:
    """L has an inverse of 2**39, as pivoting lets it; L @ U is x but for rounding all the same."""
    count = 40
    low = np.tril(np.full((count, count), -0.99), -1) + np.eye(count)
    x = low @ (np.triu(given((count, count))) / 6 + 2 * np.eye(count))
    p, low, up = (part.numpy() for part in linalg.lu(Tensor(x)))
    assert np.abs(np.linalg.inv(low)).max() > 1e10
    bound = 16 * EPSILON["float64"] * float((np.abs(low) @ np.abs(up)).max())
    assert float(np.abs(p @ low @ up - x).max()) <= bound


def test_lu_of_a_singular_matrix() -> None:
    x = np.array([[0.0, 0.0, 1.0], [0.0, 0.0, 2.0], [0.0, 3.0, 4.0]])
    p, low, up = (part.numpy() for part in linalg.lu(Tensor(x)))
    np.testing.assert_allclose(p @ low @ up, x, atol=1e-14)


@pytest.mark.parametrize(("shape", "dtype"), SHAPES)
def test_qr_is_its_definition(shape: tuple[int, ...], dtype: str) -> None:
    x = given(shape, dtype)
    for mode in ("reduced", "complete"):
        q, r = linalg.qr(Tensor(x), mode)
        close(q.numpy() @ r.numpy(), x, norm(x), dtype)
        orthonormal(q, dtype)
        assert (np.tril(r.numpy(), -1) == 0).all()
        wanted = np.linalg.qr(x, mode)
        assert q.shape == wanted[0].shape
        close(r, wanted[1], norm(x), dtype, times=300.0)
    close(linalg.qr(Tensor(x), "r").R, np.linalg.qr(x, "r"), norm(x), dtype, times=300.0)


@pytest.mark.parametrize(("shape", "dtype"), SQUARES)
def test_eigh_is_its_definition(shape: tuple[int, ...], dtype: str) -> None:
    x = given(shape, dtype)
    x = x + x.swapaxes(-1, -2)
    values, vectors = linalg.eigh(Tensor(x))
    orthonormal(vectors, dtype)
    close(x @ vectors.numpy(), vectors.numpy() * values.numpy()[..., None, :], norm(x), dtype)
    close(values, np.linalg.eigvalsh(x), norm(x), dtype)
    close(linalg.eigvalsh(Tensor(np.triu(x)), "U"), np.linalg.eigvalsh(x), norm(x), dtype)


@pytest.mark.parametrize("matrix", [
    np.zeros((3, 3)), np.ones((3, 3)), -np.eye(3), np.diag([1e-300, 1e-300, 2e-300]),
    np.diag([1e300, 1.0, -1e300]), np.array([[0.0, 1.0], [1.0, 0.0]]),
])  # fmt: skip
def test_eigh_and_svd_of_special_matrices(matrix: np.ndarray) -> None:
    values, vectors = linalg.eigh(Tensor(matrix))
    orthonormal(vectors, "float64")
    scale = np.abs(matrix).max() or 1.0
    np.testing.assert_allclose(
        values.numpy() / scale, np.linalg.eigvalsh(matrix) / scale, atol=1e-14
    )
    u, s, vh = linalg.svd(Tensor(matrix))
    orthonormal(u, "float64")
    orthonormal(vh.mT, "float64")
    np.testing.assert_allclose(u.numpy() * (s.numpy() / scale) @ vh.numpy(), matrix / scale,
                               atol=1e-14)


# Hostile matrices of 40 rows in float32 are tried below.
@pytest.mark.parametrize(("shape", "dtype"), [
    *cases((1, 1), (3, 7), (2, 3, 5, 4)),
    *[pytest.param((40, 40), dtype, marks=pytest.mark.slow) for dtype in ("float32", "float64")],
])  # fmt: skip
def test_svd_is_its_definition(shape: tuple[int, ...], dtype: str) -> None:
    x = given(shape, dtype)
    for full in (False, True):
        u, s, vh = linalg.svd(Tensor(x), full)
        wanted = np.linalg.svd(x, full)
        assert (u.shape, s.shape, vh.shape) == tuple(part.shape for part in wanted)
        orthonormal(u, dtype)
        orthonormal(vh.mT, dtype)
        count = s.shape[-1]
        close((u.numpy()[..., :count] * s.numpy()[..., None, :]) @ vh.numpy()[..., :count, :], x,
              norm(x), dtype)
        close(s, wanted[1], norm(x), dtype)
    close(linalg.svdvals(Tensor(x)), wanted[1], norm(x), dtype)


def test_svd_of_a_matrix_of_lower_rank() -> None:
    x = given((9, 2)) @ given((2, 6), seed=1)
    u, s, vh = linalg.svd(Tensor(x))
    orthonormal(u, "float64")
    assert (s.numpy()[2:] < 1e-13).all()
    np.testing.assert_allclose((u.numpy()[:, :6] * s.numpy()) @ vh.numpy(), x, atol=1e-13)


@pytest.mark.parametrize(
    "dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)]
)
def test_rows_that_depend_on_each_other_converge(dtype: str) -> None:
    places = np.arange(40)
    for x in (np.ones((40, 40)), 1.0 / (places[:, None] + places[None, :] + 1.0)):
        given = x.astype(dtype)
        found = linalg.svdvals(Tensor(given))
        close(found, np.linalg.svd(given.astype("float64"), compute_uv=False), 1.0, dtype)


def hostile() -> dict[str, np.ndarray]:
    """Symmetric matrices whose eigenvalues are equal, next to each other, or of all sizes."""
    size, rng = 40, np.random.default_rng(3)
    turn = np.linalg.qr(rng.standard_normal((size, size)))[0]
    noise = rng.standard_normal((size, size))
    noise = noise + noise.T
    places = np.arange(size)
    beside = np.where(places % 20 == 19, 1e-8, 1.0)[: size - 1]
    glued = np.diag(np.abs(places % 20 - 10.0)) + np.diag(beside, 1) + np.diag(beside, -1)
    valued = {
        "twice": np.repeat(places[:20], 2), "signs": (-1.0) ** places,
        "sizes": np.geomspace(1.0, 1e-30, size), "next": 1 + 1e-15 * places,
    }  # fmt: skip
    steps = np.diag(np.where(places % 2, 1e-20, 1.0)[: size - 1], 1)
    graded = 2.0 ** -(2.0 * places)
    return {
        "zeros": np.zeros((size, size)), "one": np.eye(size), "glued": glued,
        "steps": steps + steps.T, "rank": np.outer(noise[0], noise[0]),
        "noise": np.eye(size) + 1e-6 * noise, "graded": noise * graded * graded[:, None],
    } | {name: (turn * values) @ turn.T for name, values in valued.items()}  # fmt: skip


# One of each kind: equal eigenvalues, neighbours, those of all sizes, zeros beside the diagonal.
OFTEN = ("zeros", "glued", "steps", "graded", "sizes", "twice")


@pytest.mark.parametrize(("name", "dtype"), [
    pytest.param(
        name, dtype, marks=[] if dtype == "float32" and name in OFTEN else pytest.mark.slow
    )
    for name in hostile() for dtype in ("float32", "float64")
])  # fmt: skip
def test_hostile_matrices_have_small_residuals(name: str, dtype: str) -> None:
    x = hostile()[name].astype(dtype)
    scale = float(np.abs(x).max())
    values, vectors = linalg.eigh(Tensor(x))
    orthonormal(vectors, dtype)
    close(x @ vectors.numpy(), vectors.numpy() * values.numpy(), scale, dtype)
    close(values, np.linalg.eigvalsh(x.astype("float64")), scale, dtype)
    u, s, vh = linalg.svd(Tensor(x))
    orthonormal(u, dtype)
    orthonormal(vh.mT, dtype)
    close((u.numpy() * s.numpy()) @ vh.numpy(), x, scale, dtype)
    close(s, np.linalg.svd(x.astype("float64"), compute_uv=False), scale, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(33, 33), (65, 65), (200, 150), (2, 67, 90)])
def test_singular_vectors_of_matrices_that_are_divided_often(
    shape: tuple[int, ...], dtype: str
) -> None:
    x = given(shape, "float64")
    u, _, vh = np.linalg.svd(x, full_matrices=False)
    count = min(shape[-2:])
    places = np.arange(count)
    for values in (np.ones(count), np.geomspace(1, 1e-20, count), 1.0 * (places < 5),
                   1 + 1e-9 * places, np.repeat(places, 3)[:count] + 0.0):
        made = ((u * values) @ vh).astype(dtype)
        found = linalg.svd(Tensor(made), full_matrices=False)
        left, size, right = (part.numpy() for part in found)
        orthonormal(found.U, dtype)
        orthonormal(found.Vh.mT, dtype)
        assert (size >= 0).all() and (np.diff(size) <= 0).all()
        close((left * size[..., None, :]) @ right, made, float(np.abs(made).max()), dtype)
        wanted = np.linalg.svd(made.astype("float64"), compute_uv=False)
        close(size, wanted, float(wanted.max()), dtype, 2.0)


def test_columns_of_all_sizes_have_orthonormal_factors() -> None:
    x = given((40, 40), "float32") * np.geomspace(1, 1e-30, 40).astype("float32")
    q, r = linalg.qr(Tensor(x))
    orthonormal(q, "float32")
    # Each column is as good as if it stood alone.
    left = np.abs(q.numpy() @ r.numpy() - x).max(axis=0)
    assert (left <= 1e-5 * np.abs(x).max(axis=0)).all()


@pytest.mark.slow
def test_bits_do_not_depend_on_what_is_beside_in_a_batch() -> None:
    x, other = given((2, 40, 40), "float32")
    x, other = x + x.T, other + other.T
    for call in (linalg.eigh, linalg.svd):
        # One neighbour needs fewer steps, and turns columns into one.
        found = [call(Tensor(np.stack([x, beside]))) for beside in (other, np.eye(40, dtype="f4"))]
        for one, another in zip(*found, strict=True):
            np.testing.assert_array_equal(one.numpy()[0], another.numpy()[0])


@pytest.mark.slow
@pytest.mark.usefixtures("few_sweeps")
@pytest.mark.parametrize("call", [linalg.eigh, linalg.svd])
def test_large_factors_in_a_captured_function(call: Any) -> None:
    x = given((34, 34))
    x = x + x.T
    for one, other in zip(jit(call)(Tensor(x)), call(Tensor(x)), strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    x[3, 5] = x[5, 3] = np.nan
    assert all(np.isnan(part.numpy()).all() for part in jit(call)(Tensor(x)))
    with pytest.raises(LinAlgError, match="finite"):
        call(Tensor(x))


@pytest.mark.slow
@pytest.mark.usefixtures("few_sweeps")
@pytest.mark.parametrize("call", [linalg.eigh, linalg.svd])
def test_a_captured_search_that_does_not_end_gives_no_numbers(
    call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secular, "_REPLAYS_CAPTURED", 0)
    x = np.stack([given((34, 34), "float32"), np.zeros((34, 34), "float32")])
    for part in jit(call)(Tensor(x + x.mT)):
        assert np.isnan(part.numpy()[0]).all()
        # The other matrix has no search.
        assert np.isfinite(part.numpy()[1]).all()


def test_ill_conditioned_factors_leave_small_residuals() -> None:
    x = 1.0 / (np.arange(12)[:, None] + np.arange(12)[None, :] + 1.0)
    q, r = linalg.qr(Tensor(x))
    close(q.numpy() @ r.numpy(), x, 1.0, "float64")
    orthonormal(q, "float64")
    u, s, vh = linalg.svd(Tensor(x))
    close((u.numpy() * s.numpy()) @ vh.numpy(), x, 1.0, "float64")
    p, low, up = (part.numpy() for part in linalg.lu(Tensor(x)))
    close(p @ low @ up, x, 1.0, "float64")


def in_place(p: Any, low: Any, up: Any) -> tuple[Any, Any]:
    return p @ low, up


def symmetric(x: Any) -> Any:
    return x + x.mT


def test_gradients_of_cholesky() -> None:
    x = given((2, 4, 4))
    one = np.eye(4) * 3
    same_gradients(
        lambda a: linalg.cholesky(a @ a.mT + Tensor(one)),
        lambda a: torch.linalg.cholesky(a @ a.mT + torch.tensor(one)), x,
    )
    same_gradients(
        lambda a: linalg.cholesky(a @ a.mT + Tensor(one), upper=True),
        lambda a: torch.linalg.cholesky(a @ a.mT + torch.tensor(one), upper=True), x,
    )


@pytest.mark.parametrize("shape", [
    (3, 5), pytest.param((5, 3), marks=pytest.mark.slow),
    pytest.param((2, 3, 3), marks=pytest.mark.slow),
])  # fmt: skip
def test_gradients_of_lu_and_qr(shape: tuple[int, ...]) -> None:
    x = given(shape, seed=3)
    # Rows of L below its square are in no order.
    same_gradients(
        lambda a: in_place(*linalg.lu(a)), lambda a: in_place(*torch.linalg.lu(a)), x
    )
    same_gradients(lambda a: tuple(linalg.qr(a)), lambda a: tuple(torch.linalg.qr(a)), x)


def test_gradients_of_eigh() -> None:
    x = given((2, 4, 4), seed=5)
    # Squares of vectors, whose signs are any.
    same_gradients(
        lambda a: _unsigned(*linalg.eigh(symmetric(a))),
        lambda a: _unsigned(*torch.linalg.eigh(symmetric(a))), x, 1e-8,
    )


def _unsigned(values: Any, vectors: Any) -> tuple[Any, Any]:
    return values, vectors * vectors


@pytest.mark.parametrize("shape", [
    (5, 3), pytest.param((4, 4), marks=pytest.mark.slow),
    pytest.param((2, 3, 4), marks=pytest.mark.slow),
])  # fmt: skip
def test_gradients_of_svd(shape: tuple[int, ...]) -> None:
    def products(u: Any, s: Any, vh: Any) -> tuple[Any, ...]:
        return u * u, s, vh * vh, u.unsqueeze(-2) * vh.mT.unsqueeze(-3)

    same_gradients(
        lambda a: products(*linalg.svd(a, full_matrices=False)),
        lambda a: products(*torch.linalg.svd(a, full_matrices=False)), given(shape, seed=7), 1e-7,
    )
    same_gradients(linalg.svdvals, torch.linalg.svdvals, given(shape, seed=7))


@pytest.fixture
def few_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many sweeps in a captured function as small matrices need: each is compiled."""
    monkeypatch.setattr(rotations, "_SWEEPS_CAPTURED", 7)


@pytest.mark.usefixtures("few_sweeps")
def test_factors_in_a_captured_function() -> None:
    x = positive((3, 3))

    @jit
    def factors(a: Tensor) -> tuple[Tensor, ...]:
        return (linalg.cholesky(a), *linalg.eigh(a), *linalg.lu(a), *linalg.qr(a))

    a = Tensor(x)
    wanted = [part.numpy() for part in factors.function(a)]
    for _ in range(3):
        for one, other in zip(factors(a), wanted, strict=True):
            np.testing.assert_array_equal(one.numpy(), other)


@pytest.mark.usefixtures("few_sweeps")
def test_equal_eigenvalues_come_in_one_order_in_a_captured_function() -> None:
    both = np.stack([np.eye(4), positive((4, 4))])
    wanted = [part.numpy() for part in linalg.eigh(Tensor(both))]
    for one, other in zip(jit(linalg.eigh)(Tensor(both)), wanted, strict=True):
        np.testing.assert_array_equal(one.numpy(), other)
    for one, other in zip(linalg.eigh(Tensor(both[0])), wanted, strict=True):
        np.testing.assert_array_equal(one.numpy(), other[0])
    np.testing.assert_array_equal(np.abs(wanted[1][0]), np.eye(4))


def test_what_does_not_converge_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    x = Tensor(positive((2, 6, 6)))
    monkeypatch.setattr(rotations, "_MOST_SWEEPS", 2)
    monkeypatch.setattr(rotations, "_SWEEPS_CAPTURED", 2)
    for call in (linalg.eigvalsh, linalg.svdvals):
        with pytest.raises(LinAlgError, match="2 sweeps"):
            call(x)
        assert np.isnan(jit(call)(x).numpy()).all()


@pytest.mark.usefixtures("few_sweeps")
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_refused(value: float) -> None:
    x = Tensor(np.diag([1.0, value, 2.0]))
    for call in (linalg.eigvalsh, linalg.svdvals, linalg.matrix_rank, linalg.pinv):
        with pytest.raises(LinAlgError, match="finite"):
            call(x)
    assert np.isnan(jit(linalg.svdvals)(x).numpy()).all()


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ShapeError, match="two axes or more"):
        linalg.svd(Tensor([1.0, 2.0]))
    with pytest.raises(ShapeError, match="square"):
        linalg.cholesky(Tensor.ones(2, 3))
    with pytest.raises(DTypeError, match="float32, float64 or complex"):
        linalg.qr(Tensor.ones(2, 2).half())
    with pytest.raises(GradientError, match="reduced"):
        linalg.qr(Tensor.ones(3, 2, requires_grad=True), "complete").R.sum().backward()
    with pytest.raises(AttributeError, match="'inv'"):
        linalg.inverse  # noqa: B018 - the name is what is tested


@pytest.mark.slow
def test_singular_vectors_of_parts_far_below_the_whole_are_orthogonal() -> None:
    count = 67
    matrix = np.diag(10.0 ** -np.linspace(0, 30, count))
    matrix += np.diag(10.0 ** -np.linspace(0, 28, count - 1), 1)
    for made in (matrix, np.ones((count, count))):
        array = made.astype(np.float32)
        for function in (linalg.svd, jit(linalg.svd)):
            left, values, right = (part.numpy() for part in function(Tensor(array)))
            wanted = np.linalg.svd(array.astype(np.float64), compute_uv=False)
            np.testing.assert_allclose(values, wanted, atol=1e-6 * wanted[0])
            for vectors in (left, right):
                np.testing.assert_allclose(vectors @ vectors.T, np.eye(count), atol=1e-5)
