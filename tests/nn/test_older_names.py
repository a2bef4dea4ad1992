"""Names that older programs use, against PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import baregrad
from baregrad import Tensor, amp, nn
from baregrad.autograd import Function
from baregrad.base.errors import ShapeError, UnsupportedError

F = torch.nn.functional


@pytest.mark.differential
def test_functions_equal_pytorchs() -> None:
    rng = np.random.default_rng(0)
    x, w, b = (rng.standard_normal(s).astype(np.float32) for s in ((7, 2, 3), (3, 3, 4), (4,)))
    ours = [Tensor(each, requires_grad=True) for each in (x, w, b)]
    theirs = [torch.tensor(each, requires_grad=True) for each in (x, w, b)]
    found = nn.functional.conv_tbc(ours[0], ours[1], ours[2], 1)
    wanted = F.conv_tbc(theirs[0], theirs[1], theirs[2], 1)
    np.testing.assert_allclose(found.numpy(), wanted.detach().numpy(), rtol=1e-4, atol=1e-5)
    (found**2).sum().backward()
    (wanted**2).sum().backward()
    for one, other in zip(ours, theirs, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        np.testing.assert_allclose(one.grad.numpy(), other.grad.numpy(), rtol=1e-3, atol=1e-3)
    image = rng.standard_normal((2, 6, 3, 3)).astype(np.float32)
    np.testing.assert_array_equal(
        nn.functional.native_channel_shuffle(Tensor(image), 3).numpy(),
        F.native_channel_shuffle(torch.tensor(image), 3).numpy(),
    )
    held = Tensor(x)
    assert nn.functional.rrelu_(held, 0.2, 0.2) is held
    np.testing.assert_allclose(held.numpy(), np.where(x >= 0, x, x * np.float32(0.2)), rtol=1e-6)


def facts(library: Any, tensor: Any) -> list[Any]:
    x = tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], dtype=library.float64)
    parts = [*x.unsafe_chunk(2, 1), *x.unsafe_split(1), *x.unsafe_split_with_sizes([1, 2], 1)]
    return [
        [part.tolist() for part in parts], x.narrow_copy(1, 1, 2).tolist(), x.get_device(),
        x.is_conj(), x.is_neg(), x.resolve_neg().tolist(), tuple(x.new(2, 3).shape),
        x.new([1, 2]).tolist(), str(x.new([1, 2]).dtype).rpartition(".")[2],
        library.get_device(x), library.typename(x), library.typename(nn.Linear).rpartition(".")[2],
        [library.can_cast(one, other)
         for one in (library.bool, library.uint8, library.int64, library.float32)
         for other in (library.bool, library.int8, library.float16, library.complex64)],
        library.is_autocast_enabled("cpu"), library.get_autocast_dtype("cpu") is library.bfloat16,
    ]  # fmt: skip


def test_facts_and_parts_of_tensors() -> None:
    assert facts(baregrad, Tensor) == facts(torch, torch.tensor)
    assert Tensor.ones(1).new(np.int64(3)).shape == (3,)
    for given in ((2.0, 3.0), (2, 3.0), (True,)):
        with pytest.raises(ShapeError, match="an extent is an integer"):
            Tensor.ones(1).new(*given)
    with baregrad.autocast("cpu", dtype=baregrad.float16):
        assert baregrad.is_autocast_enabled()
        assert baregrad.get_autocast_gpu_dtype() is baregrad.float16


def seen(library: Any, function: Any, mixed: Any, cast_inputs: Any) -> list[Any]:
    """What a function of its own sees of a mode in which products are narrow."""
    told: list[Any] = []
    keeps = mixed.custom_fwd(device_type="cpu", cast_inputs=cast_inputs)

    class Doubled(function):  # type: ignore[misc]
        @staticmethod
        @keeps  # type: ignore[untyped-decorator]
        def forward(ctx: Any, x: Any, scale: int) -> Any:
            told.append((library.is_autocast_enabled("cpu"), str(x.dtype).rpartition(".")[2]))
            return x * scale

        @staticmethod
        @mixed.custom_bwd(device_type="cpu")  # type: ignore[untyped-decorator]
        def backward(ctx: Any, gradient: Any) -> Any:
            told.append(library.is_autocast_enabled("cpu"))
            return gradient * 2, None

    x = library.ones(2, requires_grad=True)
    for enabled in (False, True):
        with library.autocast("cpu", dtype=library.bfloat16, enabled=enabled):
            y = Doubled.apply(x, 2)
        y.sum().backward()
    return [*told, x.grad.tolist()]


def test_functions_keep_the_mode_of_their_forward() -> None:
    for name in (None, "float32", "float16"):
        found, wanted = (
            seen(library, function, mixed, name and getattr(library, name))
            for library, function, mixed in (
                (baregrad, Function, amp), (torch, torch.autograd.Function, torch.amp))
        )  # fmt: skip
        assert found == wanted
    assert baregrad.cuda.amp.custom_fwd is amp.custom_fwd


def test_a_module_on_one_device() -> None:
    inner = nn.Linear(2, 1)
    model = nn.DataParallel(inner, [0])
    assert list(model.state_dict()) == ["module.weight", "module.bias"]
    x = Tensor.ones(3, 2)
    np.testing.assert_array_equal(model(x).numpy(), inner(x).numpy())
    with pytest.raises(UnsupportedError, match="one device"):
        nn.DataParallel(inner, [0, 1])
