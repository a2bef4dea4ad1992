"""Reflections kept below a diagonal against PyTorch's, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import baregrad
from baregrad import Tensor, linalg
from baregrad.base.errors import DTypeError, GradientError, ShapeError


def given(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("shape", [
    (4, 4), *(pytest.param(shape, marks=pytest.mark.slow) for shape in [
        (2, 5, 3), (3, 5), (40, 70), (70, 40), (2, 0, 3), (1, 1),
    ]),
])  # fmt: skip
def test_qr_is_packed_as_lapack_packs_it(shape: tuple[int, ...]) -> None:
    x = given(*shape)
    x[..., 1:2] = 0.0
    for one, two in zip(baregrad.geqrf(Tensor(x)), torch.geqrf(torch.tensor(x)), strict=True):
        assert one.shape == tuple(two.shape)
        np.testing.assert_allclose(one.numpy(), two.numpy(), atol=1e-13)


@pytest.mark.parametrize("is_complex", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_products_and_their_gradients(is_complex: bool) -> None:
    x, right = given(2, 5, 3), given(2, 5, 4, seed=1)
    if is_complex:
        x, right = x + 1j * given(2, 5, 3, seed=2), right + 1j * given(2, 5, 4, seed=3)
    packed, factors = torch.geqrf(torch.tensor(x))
    found: list[list[Any]] = []
    for module, top, make in ((linalg, baregrad, Tensor), (torch.linalg, torch, torch.tensor)):
        parts = [make(np.array(part), requires_grad=True)
                 for part in (packed.numpy(), factors.numpy(), right)]
        a, tau, c = parts
        products = [
            module.householder_product(a, tau), top.orgqr(a, tau), top.ormqr(a, tau, c),
            top.ormqr(a, tau, c, transpose=True), top.ormqr(a, tau, c.mT, left=False),
        ]  # fmt: skip
        weights = [np.cos(np.arange(np.prod(one.shape))).reshape(one.shape) for one in products]
        loss = sum((one * make(two)).sum() for one, two in zip(products, weights, strict=True))
        (loss.real if is_complex else loss).backward()
        found.append([*(one.detach() for one in products), *(part.grad for part in parts)])
    for one, two in zip(*found, strict=True):
        np.testing.assert_allclose(one.numpy(), two.resolve_conj().numpy(), atol=1e-12)
    columns = np.linalg.qr(x).Q
    np.testing.assert_allclose(found[0][0].numpy(), columns, atol=1e-13)


def test_what_is_refused() -> None:
    a, tau = Tensor(given(3, 2)), Tensor(given(2))
    with pytest.raises(DTypeError, match="one dtype"):
        linalg.householder_product(a, tau.float())
    for wrong in (tau.unsqueeze(0), Tensor(given(3))):
        with pytest.raises(ShapeError, match="a factor for each"):
            linalg.householder_product(a, wrong)
    with pytest.raises(ShapeError, match="no more columns"):
        linalg.householder_product(a.mT, tau)
    with pytest.raises(ShapeError, match="as many rows"):
        baregrad.ormqr(a, tau, a.mT)
    with pytest.raises(GradientError, match="geqrf"):
        baregrad.geqrf(Tensor(given(2, 2), requires_grad=True))[0].sum().backward()
