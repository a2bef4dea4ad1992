"""Complex tensors: how they come in, go out, and pass through functions of functions."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from baregrad.base.errors import DTypeError, GradientError, IndexOutOfRange, ShapeError
from baregrad.dtypes import dtypes
from baregrad.func import grad, vmap
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit

Z = np.array([[1 + 2j, -3j], [0.5, -1 - 1j]], np.complex64)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_values_come_in_and_go_out(dtype: type) -> None:
    z = Z.astype(dtype)
    for made in (Tensor(z), Tensor(torch.tensor(z)), Tensor(torch.tensor(z.conj()).conj()),
                 Tensor.from_numpy(z), Tensor.from_dlpack(torch.tensor(z)),
                 pickle.loads(pickle.dumps(Tensor(z))), copy.deepcopy(Tensor(z))):
        assert (str(made.dtype), made.shape) == (z.dtype.name, z.shape)
        assert np.array_equal(np.asarray(made), z)
        assert np.array_equal(np.from_dlpack(made), z)
    assert Tensor(z).tolist() == z.tolist()
    assert Tensor(z)[0, 1].item() == complex(Tensor(z)[0, 1]) == -3j
    assert str(z.dtype) in repr(Tensor(z))


def test_makers() -> None:
    assert Tensor(1j).dtype is dtypes.complex64
    assert Tensor([1, 2j]).tolist() == [1, 2j]
    assert Tensor([1.5], dtype=complex).tolist() == [1.5 + 0j]
    assert Tensor.zeros(2, dtype="complex128").tolist() == [0j, 0j]
    assert Tensor.full((2,), 1 - 1j).tolist() == [1 - 1j] * 2
    assert Tensor.eye(2, dtype=dtypes.complex64).tolist() == [[1, 0], [0, 1]]
    assert Tensor(Z).ones_like().tolist() == [[1, 1], [1, 1]]
    assert Tensor([3.0]).complex(Tensor([4.0])).abs().item() == 5.0
    turned = Tensor([2.0]).polar(Tensor([np.pi / 2], dtype=dtypes.float32))
    assert abs(turned.item() - 2j) < 1e-6
    with pytest.raises(DTypeError, match="imaginary"):
        Tensor(Z, dtype=dtypes.float32)


def test_strides_and_sizes_are_of_complex_elements() -> None:
    z = Tensor(Z)
    assert (z.stride(), z.T.stride(), z.element_size(), z.nbytes) == ((2, 1), (1, 2), 8, 32)
    assert z.is_contiguous() and z.is_complex() and not z.is_floating_point()


def test_a_jitted_function_takes_and_gives_them() -> None:
    @jit
    def both(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        return a * b, a.abs(), {"more": a + 1}

    for scale in range(1, 5):
        product, size, others = both(Tensor(Z * scale), Tensor(Z))
        assert np.allclose(product.numpy(), Z * scale * Z)
        assert np.allclose(size.numpy(), abs(Z * scale))
        assert np.allclose(others["more"].numpy(), Z * scale + 1)


def test_vmap_and_grad_take_them() -> None:
    made = vmap(lambda a, b: a * b.sum())(Tensor(Z), Tensor(Z))
    assert np.allclose(made.numpy(), Z * Z.sum(1, keepdims=True))
    found = grad(lambda z: z.abs().square().sum())(Tensor(Z))
    assert np.allclose(found.numpy(), 2 * Z, atol=1e-6)


@pytest.mark.differential
@pytest.mark.parametrize("axis", [0, -1, -2])
@pytest.mark.parametrize("out", [0, -1, -2])
def test_vmap_counts_the_axes_that_are_shown(axis: int, out: int) -> None:
    def example(x: Any, y: Any) -> Any:
        return x * y.sum(), y.conj() * 2

    given = Z[:, :1] * np.arange(1, 4), Z.real[:, :1] * np.ones(3)
    found = vmap(example, axis, out)(*map(Tensor, given))
    wanted = torch.func.vmap(example, axis, out)(*map(torch.tensor, given))
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.resolve_conj().numpy(), rtol=1e-6)


def test_vmap_has_no_axis_of_parts() -> None:
    for how in ({"in_dims": 2}, {"in_dims": -3}, {"out_dims": 2}, {"out_dims": -3}):
        with pytest.raises((ShapeError, IndexOutOfRange)):
            vmap(lambda x: x * 2, **how)(Tensor(Z))


def test_leaves_collect_gradients() -> None:
    z = Tensor(Z, requires_grad=True)
    for _ in range(2):
        (z * z.conj()).real.sum().backward()
    assert z.grad is not None
    assert np.allclose(z.grad.numpy(), 4 * Z)
    again = copy.deepcopy(z)
    assert again.requires_grad and again.grad is not None
    with pytest.raises(GradientError):
        copy.deepcopy(z * 2)
    (found,) = (z * z).gradient(z, grad_outputs=Tensor(np.ones_like(Z)))
    assert np.allclose(found.numpy(), 2 * Z.conj())
