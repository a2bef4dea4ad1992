"""What `import baregrad as torch` gives, against PyTorch."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import baregrad
from baregrad.base.errors import ArgumentError, DTypeError, ShapeError
from baregrad.tensor import Tensor

X = [[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]]
CASES: tuple[Callable[[Any], Any], ...] = (
    lambda t: t.range(1, 4),
    lambda t: t.range(0.5, 2.0, 0.5),
    lambda t: t.range(5, 1, -2, dtype=t.int64),
    lambda t: t.squeeze_copy(t.tensor([X])),
    lambda t: t.unbind_copy(t.tensor(X))[1],
    lambda t: t.poisson(t.zeros(3)),
    lambda t: t.tensor(X),
    lambda t: t.tensor([1, 2, 3]),
    lambda t: t.as_tensor(np.arange(3, dtype=np.int32)),
    lambda t: t.cat([t.tensor(X), t.tensor(X)], axis=1),
    lambda t: t.stack(tensors=(t.tensor(X), t.tensor(X)), dim=1),
    lambda t: t.sum(t.tensor(X), axis=0, keepdims=True),
    lambda t: t.softmax(input=t.tensor(X), dim=-1),
    lambda t: t.split(t.tensor(X), split_size_or_sections=2, dim=1)[1],
    lambda t: t.where(t.tensor(X) > 0, t.tensor(X), 0.0),
    lambda t: t.einsum("ij,kj->ik", t.tensor(X), t.tensor(X)),
    lambda t: t.full((2, 2), 3.0),
    lambda t: t.zeros(2, 3, dtype=t.long),
    lambda t: t.arange(1, 7, 2),
    lambda t: t.clamp(t.tensor(X), min=0),
    lambda t: t.dstack((t.tensor(X), t.tensor(X))),
    lambda t: t.column_stack((t.tensor([1.0, 2.0]), t.tensor(X))),
    lambda t: t.block_diag(t.tensor(X), t.tensor([7.0]), t.tensor(5.0)),
    lambda t: t.cartesian_prod(t.tensor([1, 2]), t.tensor([3, 4, 5])),
    lambda t: t.logspace(0, 2, 5),
    lambda t: t.logspace(-1, 1, 4, base=2.0),
    lambda t: t.tril_indices(3, 4, 1),
    lambda t: t.triu_indices(3, 4, -1),
    lambda t: t.atleast_2d(t.tensor([1.0, 2.0])),
    lambda t: t.atleast_3d(t.tensor([1.0, 2.0])),
    lambda t: t.atleast_1d(t.tensor(2.0), t.tensor([1.0]))[0],
    lambda t: t.broadcast_tensors(t.tensor([1.0, 2.0]), t.tensor([[1.0], [2.0]]))[0],
    lambda t: t.scalar_tensor(3),
    lambda t: t.tensor(X, requires_grad=True).detach() * t.pi,
)


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_functions_agree(case: Callable[[Any], Any]) -> None:
    wanted, found = case(torch), case(baregrad)
    assert tuple(found.shape) == tuple(wanted.shape)
    assert str(wanted.dtype).removeprefix("torch.") == str(found.dtype)
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-6)


def test_facts_agree() -> None:
    for t in (torch, baregrad):
        assert tuple(t.broadcast_shapes((2, 1), (3,), (1, 1, 1))) == (1, 2, 3)
        assert t.finfo(t.float32).min == -3.4028234663852886e38
        assert t.iinfo(t.int8).max == 127 and t.finfo(t.float16).bits == 16
        assert t.result_type(t.tensor([1]), 1.5) == t.float32
        assert t.promote_types(t.int8, t.uint8) == t.int16
        assert t.is_tensor(t.tensor(1.0)) and not t.is_tensor(1.0)
        assert t.get_default_dtype() == t.float32
    assert baregrad.device("cpu") == "CPU" and baregrad.device("cpu:0") == "CPU"
    assert baregrad.func.vmap is not None and baregrad.data is not None


def test_draws_have_the_moments_that_are_asked_for() -> None:
    baregrad.manual_seed(0)
    means = baregrad.tensor([0.0, 10.0]).reshape(2, 1).expand(2, 4000)
    found = baregrad.normal(means, 2.0).numpy()
    assert np.abs(found.mean(1) - [0, 10]).max() < 0.2 and np.abs(found.std(1) - 2).max() < 0.1
    whole = baregrad.randint_like(baregrad.tensor([[1, 2]]).expand(50, 2), 3, 5).numpy()
    assert set(np.unique(whole)) == {3, 4}


def test_gradients_are_off_where_nothing_is_to_be_inferred() -> None:
    x = baregrad.tensor(X, requires_grad=True)
    with baregrad.inference_mode():
        assert not (x * 2).requires_grad
    assert (x * 2).requires_grad


def test_what_is_not_there_names_the_nearest() -> None:
    for name, near in (
        ("sof_max", "softmax"), ("layer_normm", "layer_norm"),
    ):
        with pytest.raises(AttributeError, match=f"has no '{name}'.*'{near}'"):
            getattr(baregrad, name)


@pytest.mark.parametrize("words", [
    {"bins": 4}, {"bins": 3, "range": (-2.0, 4.0)}, {"bins": 2, "density": True},
    {"bins": 4, "weight": [[1.0, 2.0, 0.5], [0.0, 1.0, 3.0]]}, {"bins": [-3.0, 0.0, 0.5, 5.0]},
], ids=str)  # fmt: skip
def test_histograms_equal_pytorchs(words: dict[str, Any]) -> None:
    def made(t: Any) -> dict[str, Any]:
        return {key: t.tensor(value) if isinstance(value, list) else value
                for key, value in words.items()}  # fmt: skip

    found = baregrad.histogram(baregrad.tensor(X), **made(baregrad))
    wanted = torch.histogram(torch.tensor(X), **made(torch))
    np.testing.assert_allclose(found.hist.numpy(), wanted.hist.numpy(), rtol=1e-6)
    np.testing.assert_allclose(found.bin_edges.numpy(), wanted.bin_edges.numpy(), rtol=1e-6)


def test_devices_say_what_pytorchs_do() -> None:
    for made in (baregrad, torch):
        x = made.zeros(2, device="cpu")
        for each in (x, x + 1, made.nn.Linear(1, 1, device="cpu").weight, pickle.loads(
            pickle.dumps(x))):  # fmt: skip
            assert (each.device.type, each.device.index) == ("cpu", None)
    one = baregrad.device("cuda", 1)
    assert (one, one.type, one.index) == ("CUDA:1", "cuda", 1)  # type: ignore[attr-defined]
    assert type(pickle.loads(pickle.dumps(one))) is str
    assert copy.deepcopy(one) is one


def test_seeds_and_settings() -> None:
    baregrad.use_deterministic_algorithms(True)
    assert baregrad.are_deterministic_algorithms_enabled()
    assert baregrad.get_default_device() == Tensor([1.0]).device
    made = baregrad.seed()
    first = baregrad.rand(3).tolist()
    baregrad.manual_seed(made)
    assert baregrad.rand(3).tolist() == first
    copied, x = baregrad.view_copy(y := baregrad.tensor(X), 6), baregrad.tensor(X)
    copied.zero_()
    np.testing.assert_array_equal(y.numpy(), x.numpy())
    with pytest.raises(ArgumentError, match="lead to the end"):
        baregrad.range(1, 3, -1)
    with pytest.raises(ArgumentError, match="to a larger one"):
        baregrad.histogram(x, 3, range=(2.0, 1.0))
    for odd in (float("nan"), float("inf")):
        with pytest.raises(ArgumentError, match="finite"):
            baregrad.histogram(baregrad.tensor([1.0, odd]), 3)
        with pytest.raises(ArgumentError, match="lead to the end"):
            baregrad.range(0, odd)
    with pytest.raises(DTypeError, match="of floats"):
        baregrad.histogram(baregrad.tensor([1, 2]), 3)
    with pytest.raises(ShapeError, match="for each element"):
        baregrad.histogram(x, 3, weight=baregrad.tensor([1.0]))
    with pytest.raises(ShapeError, match="two or more"):
        baregrad.histogram(x, baregrad.tensor([0.0]))
    none = baregrad.histogram(baregrad.tensor([]), 2)
    assert none.bin_edges.tolist() == [0.0, 0.5, 1.0] and none.hist.tolist() == [0.0, 0.0]


def test_bad_arguments_are_told() -> None:
    with pytest.raises(DTypeError, match="a tensor is wanted"):
        baregrad.block_diag(Tensor(X), 3)
    with pytest.raises(ShapeError, match="do not go together"):
        baregrad.broadcast_shapes((2,), (3,))
    with pytest.raises(ArgumentError, match="a device is named"):
        baregrad.device(3)
    with pytest.raises(DTypeError, match="iinfo is of integers"):
        baregrad.iinfo("float32")
    with pytest.raises(TypeError, match="unexpected keyword"):
        Tensor(X).sum(axes=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword"):
        Tensor(X).sum(dim=1, axis=1)  # type: ignore[call-arg]


def test_rooms_are_found_whichever_is_asked_for_first() -> None:
    code = (
        "import baregrad as torch\n"
        "assert torch.dtypes.float32 is torch.float32\n"
        "assert torch.tensor([1.0]).item() == 1.0\n"
        "from baregrad.tensor import Tensor\n"
        "import baregrad.nn.functional as F, baregrad.nn as nn\n"
        "assert F.relu(torch.tensor([-1.0])).item() == 0.0\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
