"""What programs ask of memory and histories, and functions of Python over elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import baregrad
from baregrad import Tensor
from baregrad.base.errors import DTypeError, GradientError, ShapeError


def drawn(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(4).standard_normal(shape)


def test_tensors_that_share_memory_say_so() -> None:
    for package in (torch, baregrad):
        t: Any = package
        x, other = t.zeros(3, 4), t.zeros(3, 4)
        assert x.data_ptr() == x.view(12).data_ptr() == x.detach().data_ptr()
        assert x[1].data_ptr() - x.data_ptr() == 16
        assert x.t()[2].storage_offset() == 2
        # Of equal values, and yet of their own.
        assert x.data_ptr() != other.data_ptr()
        assert x[1:].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        assert x.untyped_storage().nbytes() == 48
        assert x.is_set_to(x.view(3, 4)) and not x.is_set_to(x.t())
        assert t.zeros(0).data_ptr() == 0
        assert x.t().dim_order() == (1, 0)


def test_histories_are_there_where_gradients_are() -> None:
    w = baregrad.nn.Parameter(Tensor.ones(2))
    made = (w * 2).sum()
    assert w.grad_fn is None and Tensor.ones(2).grad_fn is None
    assert made.grad_fn is not None and made.grad_fn.name().endswith("Backward0")
    assert made.detach().grad_fn is None


def test_functions_of_python_are_written_over_elements() -> None:
    for package in (torch, baregrad):
        t: Any = package
        x = t.tensor([[1, -2], [3, 4]])
        assert x.apply_(lambda v: v * v) is x and x.tolist() == [[1, 4], [9, 16]]
        assert x.map_(t.tensor([[1, 2], [3, 4]]), lambda a, b: a - b).tolist() == [[0, 2], [6, 12]]
    with pytest.raises(ShapeError, match="keeps its shape"):
        Tensor.ones(3).map_(Tensor.ones(2, 3), max)
    with pytest.raises(GradientError, match="Python functions"):
        Tensor([1.0], requires_grad=True).apply_(abs)


def test_sizes_change_in_place() -> None:
    for package in (torch, baregrad):
        t: Any = package
        x = t.arange(6).reshape(2, 3)
        assert x.resize_(2, 2).tolist() == [[0, 1], [2, 3]]
        assert tuple(x.resize_(3, 4).shape) == (3, 4)
        assert x.reshape(-1)[:4].tolist() == [0, 1, 2, 3]
        assert tuple(x.resize_as_(t.zeros(5)).shape) == (5,)
        y = t.ones(2)
        x = t.zeros(3).set_(y)
        y.add_(1)
        assert x.tolist() == [2, 2]
    with pytest.raises(GradientError, match="keeps its sizes"):
        Tensor([1.0], requires_grad=True).resize_(2)
    with pytest.raises(ShapeError, match="cannot be negative"):
        Tensor([1.0]).resize_(-1)
    with pytest.raises(DTypeError, match="of its dtype"):
        Tensor([1.0]).set_(Tensor([1]))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_numbers_come_apart(dtype: str) -> None:
    values = [0, -0.0, 1, -3.5, 1e-40, 5e-324, 1e38, np.inf, -np.inf, np.nan, 0.1, 1e-45, 65504]
    theirs = torch.tensor(values, dtype=torch.float64).to(getattr(torch, dtype)).frexp()
    ours = Tensor(np.array(values), dtype=dtype).frexp()
    for found, wanted in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(found.tolist(), wanted.tolist())
    assert np.array_equal(np.signbit(ours[0].double().numpy()),
                          np.signbit(theirs[0].double().numpy()))  # fmt: skip
    x, y = drawn(7), torch.tensor(drawn(7), requires_grad=True)
    leaf = Tensor(x, requires_grad=True)
    leaf.frexp()[0].sum().backward()
    y.frexp()[0].sum().backward()
    assert leaf.grad is not None and y.grad is not None
    np.testing.assert_array_equal(leaf.grad.numpy(), y.grad.numpy())
    with pytest.raises(DTypeError, match="of floats"):
        Tensor([1]).frexp()


def test_strides_say_where_values_are_scattered() -> None:
    x, source = drawn(3, 3), drawn(2, 2)
    wanted = torch.tensor(x).as_strided_scatter(torch.tensor(source), (2, 2), (1, 2), 1)
    found = Tensor(x).as_strided_scatter(Tensor(source), (2, 2), (1, 2), 1)
    np.testing.assert_array_equal(found.numpy(), wanted.numpy())
    with pytest.raises(ShapeError, match="has the size"):
        Tensor(x).as_strided_scatter(Tensor(source), (2, 3), (1, 2))
