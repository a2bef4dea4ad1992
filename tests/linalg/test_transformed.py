"""Linear algebra under vmap and derivatives of functions, against PyTorch's of each matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from baregrad import Tensor, linalg
from baregrad.base.errors import LinAlgError
from baregrad.func import grad, hessian, jacfwd, jacrev, jvp, vmap

PARTS = {"eigh": 0, "svd": 1, "qr": 1, "lu": 2, "lu_factor": 0, "slogdet": 1}


def positive(*shape: int) -> np.ndarray:
    x = np.random.default_rng(0).standard_normal(shape)
    return x @ x.swapaxes(-1, -2) + np.eye(shape[-1])


def part(module: Any, name: str) -> Callable[[Any], Any]:
    function = getattr(module, name)
    return (lambda x: function(x)[PARTS[name]]) if name in PARTS else function


def close(ours: Tensor, theirs: torch.Tensor) -> None:
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", [
    "cholesky", "eigh", "eigvalsh", "qr", "svd", "svdvals", "lu", "lu_factor", "inv", "det",
    "slogdet", "pinv", "matrix_exp",
])  # fmt: skip
def test_batches_and_derivatives(name: str) -> None:
    x = positive(2, 3, 3)
    ours, theirs = part(linalg, name), part(torch.linalg, name)
    wanted = torch.tensor(x)
    close(vmap(ours, 1)(Tensor(x.swapaxes(0, 1))), theirs(wanted))
    rows = [torch.autograd.functional.jacobian(theirs, one) for one in wanted]
    close(vmap(jacrev(ours))(Tensor(x)), torch.stack(rows))
    close(jacfwd(ours)(Tensor(x[0])), rows[0])
    product = jvp(ours, (Tensor(x[0]),), (Tensor(x[1]),))[1]
    close(product, torch.autograd.functional.jvp(theirs, wanted[0], wanted[1])[1])


@pytest.mark.slow
def test_vectors_of_larger_and_of_complex_matrices() -> None:
    x = positive(2, 20, 20)
    values, vectors = vmap(linalg.eigh)(Tensor(x))
    np.testing.assert_allclose(values.numpy(), np.linalg.eigvalsh(x), rtol=1e-12)
    back = vectors * values.unsqueeze(1) @ vectors.mT
    np.testing.assert_allclose(back.numpy(), x, atol=1e-12)
    x = x[:, :3, :3] + 1j * np.triu(np.ones((3, 3)), 1) - 1j * np.tril(np.ones((3, 3)), -1)
    values, _ = vmap(linalg.eigh)(Tensor(x))
    np.testing.assert_allclose(values.numpy(), np.linalg.eigvalsh(x), rtol=1e-12)


def test_what_all_examples_share_and_second_derivatives() -> None:
    x, right = positive(3, 3), np.random.default_rng(1).standard_normal((4, 3))
    found = vmap(linalg.solve, (None, 0))(Tensor(x), Tensor(right))
    np.testing.assert_allclose(found.numpy(), np.linalg.solve(x, right.T).T, atol=1e-13)
    wanted = torch.autograd.functional.hessian(
        lambda x: torch.linalg.slogdet(x)[1], torch.tensor(x)
    )
    close(hessian(lambda x: linalg.slogdet(x)[1])(Tensor(x)), wanted)
    with Tensor.no_grad():
        close(hessian(lambda x: linalg.slogdet(x)[1])(Tensor(x)), wanted)


def test_what_is_wrong_is_told_where_numbers_are_there_and_nan_elsewhere() -> None:
    wrong = np.stack([np.eye(2), -np.eye(2)])
    with pytest.raises(LinAlgError, match="not positive definite"):
        grad(lambda x: linalg.cholesky(x).sum())(Tensor(wrong[1]))
    found = vmap(linalg.cholesky)(Tensor(wrong)).numpy()
    np.testing.assert_array_equal(found[0], np.eye(2))
    assert np.isnan(found[1]).any()
