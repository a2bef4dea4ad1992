"""Layers that take their channels from their first input, beside PyTorch's."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from baregrad import Tensor, jit, manual_seed, nn, optim
from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.dtypes import dtypes

CASES: tuple[tuple[str, tuple[Any, ...], dict[str, Any], tuple[int, ...]], ...] = (
    ("LazyLinear", (4,), {"bias": False}, (2, 3)),
    ("LazyConv1d", (4, 2), {"stride": 2}, (3, 6)),
    ("LazyConv2d", (4,), {"kernel_size": 3, "padding": 1}, (2, 3, 4, 4)),
    ("LazyConvTranspose2d", (4, 2), {}, (1, 3, 2, 2)),
    ("LazyBatchNorm1d", (), {"momentum": 0.5}, (4, 3)),
    ("LazyInstanceNorm2d", (), {"affine": True, "track_running_stats": False},
     (2, 3, 4, 4)),
)


@pytest.mark.parametrize(("name", "args", "kwargs", "shape"), CASES)
def test_a_lazy_layer_becomes_a_plain_one(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], shape: tuple[int, ...]
) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    ours, theirs = getattr(nn, name)(*args, **kwargs), getattr(torch.nn, name)(*args, **kwargs)
    assert name in repr(ours)
    ours(Tensor(x))
    theirs(torch.tensor(x))
    assert type(ours) is getattr(nn, name.removeprefix("Lazy"))
    wanted = {key: tuple(value.shape) for key, value in theirs.state_dict().items()}
    assert {key: tuple(value.shape) for key, value in ours.state_dict().items()} == wanted
    ours.load_state_dict({key: Tensor(value) for key, value in theirs.state_dict().items()})
    np.testing.assert_allclose(
        ours(Tensor(x)).numpy(), theirs(torch.tensor(x)).detach().numpy(), rtol=1e-4, atol=1e-5
    )


def test_a_model_of_lazy_layers_trains_after_its_first_call() -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.Dropout(0.5), nn.LazyLinear(1)).eval()
    assert len(list(model.parameters())) == len(model.state_dict()) == 4
    assert all(isinstance(one, nn.UninitializedParameter) for one in model.parameters())
    x = Tensor(np.ones((2, 3), np.float32))
    first = model(x).numpy()
    np.testing.assert_array_equal(model(x).numpy(), first)
    assert not model[2].training and len(list(model.parameters())) == 4
    model(x).sum().backward()
    assert all(one.grad is not None for one in model[3].parameters())


def test_a_lazy_layer_is_made_as_it_was_sent() -> None:
    model = nn.Sequential(nn.LazyLinear(4)).to(Tensor([0.0]).device).double()
    assert model(Tensor(np.ones((2, 3)))).dtype is model[0].weight.dtype is dtypes.float64


def test_what_is_made_of_a_copy_is_not_told_the_other() -> None:
    layer = nn.LazyLinear(4)
    twin = copy.copy(layer)
    twin.double()
    assert twin(Tensor(np.ones((2, 3)))).dtype is dtypes.float64
    assert repr(layer) == "LazyLinear(4)"
    assert layer(Tensor(np.ones((2, 5), np.float32))).dtype is dtypes.float32


def test_what_has_no_channels_is_refused() -> None:
    with pytest.raises(ShapeError, match="channels"):
        nn.LazyConv2d(3, 1)(Tensor([1.0, 2.0]))


@pytest.mark.parametrize(("name", "args", "kwargs", "shape"), [
    *CASES, ("LazyConv2d", (4, 1), {"groups": 2}, (2, 6, 3, 3)),
    ("LazyConvTranspose1d", (4, 2), {"groups": 2}, (1, 6, 3)),
    ("LazyBatchNorm1d", (), {"affine": False}, (4, 3)),
])  # fmt: skip
def test_a_state_makes_a_lazy_layer(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], shape: tuple[int, ...]
) -> None:
    theirs = getattr(torch.nn, name)(*args, **kwargs)
    x = torch.tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32))
    theirs(x)
    layer = getattr(nn, name)(*args, **kwargs)
    model = nn.ModuleDict({"a": layer, "b": layer})
    state = {key: Tensor(value) for key, value in theirs.state_dict().items()}
    model.load_state_dict({f"{place}.{key}": value for place in "ab"
                           for key, value in state.items()})
    assert type(model["b"]) is getattr(nn, name.removeprefix("Lazy"))
    np.testing.assert_allclose(
        model["a"].eval()(Tensor(x.numpy())).numpy(), theirs.eval()(x).detach().numpy(),
        rtol=1e-4, atol=1e-5,
    )


def test_a_state_that_does_not_fit_changes_no_lazy_layer() -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 1))
    whole = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)).state_dict()
    for wrong, message in (
        ({**whole, "0.weight": Tensor.zeros(5, 3)}, r"0.weight \(\[5, 3\] for \[4, 3\]\)"),
        ({key: whole[key] for key in ("1.weight", "1.bias")}, "missing: 0.weight, 0.bias"),
        ({key: whole[key] for key in ("0.bias", "1.weight", "1.bias")}, "missing: 0.weight"),
    ):
        with pytest.raises(ShapeError, match=message):
            model.load_state_dict(wrong)
        assert type(model[0]) is nn.LazyLinear
    found = model.load_state_dict({"1.bias": whole["1.bias"]}, strict=False)
    assert found.missing_keys == ["1.weight"] and type(model[0]) is nn.LazyLinear
    model.load_state_dict(whole)
    np.testing.assert_array_equal(model[0].weight.numpy(), whole["0.weight"].numpy())


def test_loading_draws_nothing_and_guesses_no_channels() -> None:
    state = {"weight": Tensor.zeros(4, 3), "bias": Tensor.zeros(4)}
    drawn = []
    for fits in (None, state, {"bias": state["bias"]}):
        manual_seed(3)
        layer = nn.LazyLinear(4)
        if fits is not None:
            layer.load_state_dict(fits, strict=False)
        drawn.append(Tensor.rand(2).tolist())
    assert drawn[0] == drawn[1] == drawn[2]
    # A bias alone does not say how many channels there are, nor does a layer without parameters.
    assert type(layer) is nn.LazyLinear
    assert layer(Tensor(np.ones((2, 7), np.float32))).shape == (2, 4)
    model = nn.Sequential(nn.LazyInstanceNorm1d(), nn.Linear(3, 1))
    model.load_state_dict({"1." + key: value for key, value in model[1].state_dict().items()})
    assert model(Tensor(np.ones((2, 5, 3), np.float32))).shape == (2, 5, 1)


def test_copies_and_pickles_have_parameters_of_their_own() -> None:
    layer = nn.LazyLinear(4)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert twin(Tensor(np.ones((2, 3), np.float32))).shape == (2, 4)
        assert type(twin) is nn.Linear and type(layer) is nn.LazyLinear
    with pytest.raises(AttributeError, match="'weights' before its first call"):
        layer.weights  # noqa: B018


def test_an_optimiser_may_be_made_before_the_first_call() -> None:
    """Beside PyTorch's: the parameters that it was given are those that are trained."""
    kinds: list[Any] = [nn, torch.nn]
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    start = np.random.default_rng(1).standard_normal((2, 3)).astype(np.float32)
    ends = []
    for kind, made, opt in zip(kinds, (Tensor, torch.tensor), (optim, torch.optim), strict=True):
        model = kind.Sequential(kind.LazyLinear(2, bias=False))
        held = list(model.parameters())
        sgd = opt.SGD(held, 0.1, momentum=0.9)
        sgd.zero_grad()
        sgd.step()
        model(made(x))
        assert held[0] is model[0].weight and type(held[0]) is not kind.UninitializedParameter
        model.load_state_dict({**model.state_dict(), "0.weight": made(start)})
        for _ in range(2):
            sgd.zero_grad()
            (model(made(x)) ** 2).sum().backward()
            sgd.step()
        ends.append({key: value.numpy() for key, value in model.state_dict().items()})
    for key, value in ends[1].items():
        np.testing.assert_allclose(ends[0][key], value, rtol=1e-4, atol=1e-5, err_msg=key)


@pytest.mark.parametrize("name", ["LazyLinear", "LazyBatchNorm1d"])
def test_what_stands_for_parameters_is_as_pytorch_has_it(name: str) -> None:
    args: tuple[int, ...] = (4,) if name == "LazyLinear" else ()
    facts = []
    for kind in (nn, torch.nn):
        layer: Any = getattr(kind, name)(*args)
        layer.half()
        assert layer.has_uninitialized_params()
        facts.append((
            layer.cls_to_become.__name__, [key for key, _ in layer.named_parameters()],
            list(layer.state_dict()),
            {key: isinstance(value, torch.nn.UninitializedBuffer | nn.UninitializedBuffer)
             for key, value in layer.named_buffers()},
            str(layer.weight.dtype).removeprefix("torch."), layer.weight.requires_grad,
            isinstance(layer.weight, kind.Parameter), layer.weight.is_leaf, repr(layer.weight),
        ))
    assert facts[0] == facts[1]


def test_parameters_without_values_say_so() -> None:
    layer = nn.LazyLinear(4)
    frozen = layer.requires_grad_(False).weight
    for wrong in (
        lambda: frozen.shape, lambda: frozen + 1, lambda: len(frozen), lambda: frozen.numpy(),
        lambda: frozen.numel(), lambda: nn.init.ones_(frozen), lambda: Tensor.ones(2) * frozen,
        lambda: nn.Linear(3, 4).load_state_dict(layer.state_dict()),
    ):
        with pytest.raises(ArgumentError, match="before the layer's first call"):
            wrong()
    state = nn.LazyLinear(4).state_dict()
    assert not any(layer.load_state_dict(state)) and type(layer) is nn.LazyLinear
    for twin in (copy.deepcopy(frozen), pickle.loads(pickle.dumps(frozen))):
        assert isinstance(twin, nn.UninitializedParameter) and not twin.requires_grad
    layer.initialize_parameters(Tensor.ones(2, 5))
    assert frozen is layer.weight and frozen.shape == (4, 5) and not frozen.requires_grad
    alone = nn.UninitializedParameter(dtype=dtypes.float64)
    alone.materialize((2, 3))
    assert type(alone) is Tensor and alone.dtype is dtypes.float64 and alone.requires_grad


def test_what_was_there_before_goes_where_the_input_is() -> None:
    layer = nn.LazyBatchNorm1d()
    assert len(list(layer.buffers())) == 3
    layer(Tensor(np.ones((4, 3), np.float32), device="REF"))
    assert {one.device for one in layer.state_dict().values()} == {"REF"}


def test_a_jitted_step_may_make_the_parameters_that_an_optimiser_waits_for() -> None:
    def trained(wrap: Any) -> list[float]:
        manual_seed(3)
        layer = nn.LazyLinear(2)
        optimiser = optim.SGD(layer.parameters(), lr=0.1)

        def step(x: Tensor) -> Tensor:
            optimiser.zero_grad()
            loss = (layer(x) ** 2).mean()
            loss.backward()
            optimiser.step()
            return loss.detach()

        called, x = wrap(step), np.arange(12, dtype=np.float32).reshape(4, 3) / 12
        return [called(Tensor(x)).item() for _ in range(4)]

    np.testing.assert_allclose(trained(jit), trained(lambda step: step), rtol=1e-6)
