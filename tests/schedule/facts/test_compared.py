"""Float sums that end in a comparison are computed once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from baregrad.base.options import options
from baregrad.tensor import Tensor
from tests.differential import sweep

pytestmark = pytest.mark.differential


def test_a_sum_that_is_compared_with_its_own_extreme_is_one_sum() -> None:
    """A product computed in two kernels would differ in its last bits, and equal nothing."""
    rng = np.random.default_rng(3)
    a, b = rng.uniform(-4, 4, (3, 4, 2)), rng.uniform(-4, 4, (5, 2))
    x = torch.tensor(a, requires_grad=True)
    product = x @ torch.tensor(b).T
    largest = product.amax().maximum(product)
    (largest * largest).sum().backward()
    for level in ("tensor", "linear"):
        with options.override(device="REF" if level == "linear" else sweep.DEVICE, ref_level=level):
            ours = Tensor(a, requires_grad=True)
            product_ = ours @ Tensor(b).mT
            largest_ = product_.amax().maximum(product_)
            (gradient,) = (largest_ * largest_).sum().gradient(ours)
            np.testing.assert_allclose(gradient.numpy(), x.grad.numpy(), rtol=1e-12)
