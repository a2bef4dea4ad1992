"""Buffers by `nn.Buffer`, and what hooks and overriding see of a module's state, as PyTorch's."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import baregrad
from baregrad import Tensor, nn
from baregrad.base.errors import ShapeError

SIDES = [(baregrad, Tensor), (torch, torch.tensor)]


def test_buffers_are_registered_where_they_are_assigned() -> None:
    def seen(library: Any) -> list[Any]:
        class Layer(library.nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.weight = library.nn.Parameter(library.ones(2))
                self.mean = library.nn.Buffer(library.zeros(2))
                self.mask = library.nn.Buffer(library.ones(3), persistent=False)

        layer = copy.deepcopy(Layer())
        layer.mean = layer.mean + 1
        buffer = library.nn.Buffer(library.zeros(1))
        other = Layer()
        other.mean = library.nn.Parameter(library.zeros(2))
        del other.mask
        other.mask = library.nn.Parameter(library.zeros(2))
        other.register_buffer("last", library.zeros(2, requires_grad=True))
        return [
            [name for name, _ in layer.named_parameters()],
            [name for name, _ in layer.named_buffers()], list(layer.state_dict()),
            layer.mean.tolist(), isinstance(buffer, library.nn.Buffer),
            isinstance(library.zeros(1), library.nn.Buffer), buffer.requires_grad,
            [name for name, _ in layer.double().named_buffers()],
            sorted(name for name, _ in other.double().named_parameters()),
            [name for name, _ in other.named_buffers()],
        ]

    assert seen(baregrad) == seen(torch)


def watched(library: Any, tensor: Any) -> list[Any]:
    """What hooks around the state of a model are told, and what they make of it."""
    told: list[Any] = []
    model = library.nn.Sequential(library.nn.Linear(1, 1), library.nn.Linear(1, 1, bias=False))
    model[1].register_state_dict_pre_hook(lambda m, prefix, keep: told.append((prefix, keep)))
    handle = model[1].register_state_dict_post_hook(
        lambda m, state, prefix, local: state.__setitem__("more", tensor([1.0]))
    )
    told.append(list(model.state_dict()))
    handle.remove()
    told.append(list(model.state_dict(prefix="a.", keep_vars=True)))

    def note_and_clear(module: Any, keys: Any) -> None:
        told.append(list(keys.missing_keys))
        keys.missing_keys.clear()

    def rename(
        state: Any, prefix: str, local: Any, strict: bool, missing: Any, extra: Any, errors: Any
    ) -> None:
        told.append((prefix, strict, missing, extra, errors))
        state[prefix + "weight"] = state.pop(prefix + "gamma")

    model[1]._register_load_state_dict_pre_hook(rename)
    model[0].register_load_state_dict_pre_hook(lambda m, *rest: told.append(m is model[0]))
    model.register_load_state_dict_post_hook(note_and_clear)
    given = {"0.weight": tensor([[2.0]]), "1.gamma": tensor([[3.0]])}
    keys = model.load_state_dict(given)
    told += [list(given), list(keys.missing_keys), list(keys.unexpected_keys)]
    told.append([model[0].weight.tolist(), model[1].weight.tolist()])
    return told


def test_hooks_around_the_state() -> None:
    assert watched(baregrad, Tensor) == watched(torch, torch.tensor)


@pytest.mark.parametrize(("library", "tensor"), SIDES)
def test_modules_that_load_and_show_more_than_tensors(library: Any, tensor: Any) -> None:
    class Frozen(library.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", library.zeros(2))
            self.count = 0

        def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
            state.pop(prefix + "num_batches_tracked", None)
            super()._load_from_state_dict(state, prefix, *rest)

        def get_extra_state(self) -> Any:
            return {"count": self.count}

        def set_extra_state(self, state: Any) -> None:
            self.count = state["count"]

    model = library.nn.Sequential(Frozen())
    model[0].count = 4
    state = model.state_dict()
    assert state["0._extra_state"] == {"count": 4}
    other = library.nn.Sequential(Frozen())
    given = {**state, "0.mean": tensor([1.0, 2.0]), "0.num_batches_tracked": tensor(3)}
    other.load_state_dict(given)
    assert other[0].count == 4
    assert other[0].mean.tolist() == [1.0, 2.0]
    with pytest.raises(ShapeError if library is baregrad else RuntimeError, match="_extra_state"):
        other.load_state_dict({"0.mean": tensor([1.0, 2.0])})


def test_hooks_behind_loading_are_called_from_below() -> None:
    def called(library: Any) -> list[str]:
        told: list[str] = []
        inner = library.nn.Sequential(library.nn.Linear(1, 1), library.nn.Linear(1, 1))
        model = library.nn.Sequential(inner, library.nn.Linear(1, 1))
        for name, module in model.named_modules():
            module.register_load_state_dict_post_hook(lambda *_, name=name: told.append(name))
        model.load_state_dict(model.state_dict())
        return told

    assert called(baregrad) == called(torch)


def test_names_of_what_stands_at_two_places() -> None:
    def names(library: Any) -> list[Any]:
        one = library.nn.Linear(1, 1, bias=False)
        model = library.nn.Sequential(one, library.nn.Sequential(one))
        return [
            [name for name, _ in model.named_parameters(remove_duplicate=False)],
            [name for name, _ in model.named_parameters("a")],
            [name for name, _ in model.named_modules(remove_duplicate=False)],
            [name for name, _ in model.named_modules(prefix="b")],
        ]

    assert names(baregrad) == names(torch)


@pytest.mark.parametrize(("library", "tensor"), SIDES)
def test_a_module_that_loads_itself(library: Any, tensor: Any) -> None:
    class Own(library.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = library.nn.Parameter(library.zeros(2))

        def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
            with library.no_grad():
                self.weight.copy_(state[prefix + "packed"] * 2)

    model = library.nn.Sequential(Own(), library.nn.Linear(1, 1))
    given = {"0.packed": tensor([1.0, 2.0]), "1.weight": tensor([[5.0]]), "1.bias": tensor([6.0])}
    model.load_state_dict(given, strict=library is baregrad)
    assert model[0].weight.tolist() == [2.0, 4.0]
    assert model[1].bias.tolist() == [6.0]


def test_states_that_are_assigned() -> None:
    for library, tensor in SIDES:
        model = library.nn.Linear(2, 1)
        weight = tensor(np.ones((1, 2)).tolist(), dtype=library.float64)
        model.load_state_dict({"weight": weight, "bias": tensor([0.0])}, assign=True)
        assert model.weight.dtype is library.float64
        assert model.weight.requires_grad
        assert [name for name, _ in model.named_parameters()] == ["weight", "bias"]
    with pytest.raises(ShapeError, match="another shape"):
        nn.Linear(2, 1).load_state_dict(
            {"weight": Tensor.ones(1, 3), "bias": Tensor.ones(1)}, assign=True
        )
