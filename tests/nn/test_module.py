"""Modules: what they hold, by which names, and what loading a state says when it does not fit."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from baregrad import nn, optim
from baregrad.base.errors import (
    ArgumentError,
    DTypeError,
    GradientError,
    IndexOutOfRange,
    ShapeError,
)
from baregrad.tensor import Tensor


class Block(nn.Module):
    def __init__(self) -> None:
        self.first = nn.Linear(3, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.ReLU()])
        self.scale = nn.Parameter(Tensor.ones(4))
        self.register_buffer("seen", Tensor.zeros(2))
        self.register_buffer("scratch", Tensor.zeros(5), persistent=False)
        self.steps = 3

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[0](self.first(x)) * self.scale


def test_names_and_order() -> None:
    block = Block()
    names = ["scale", "first.weight", "first.bias", "layers.0.weight", "layers.0.bias"]
    assert [name for name, _ in block.named_parameters()] == names
    assert list(block.state_dict()) == ["scale", "seen", *names[1:]]
    assert [name for name, _ in block.named_buffers()] == ["seen", "scratch"]
    assert [name for name, _ in block.named_modules()] == [
        "", "first", "layers", "layers.0", "layers.1",
    ]


def test_shared_parameters_come_once_but_stay_in_the_state() -> None:
    block = Block()
    block.layers[0].weight = nn.Parameter(Tensor.ones(4, 4))
    block.tied = block.layers[0].weight
    assert len(list(block.parameters())) == 5
    assert {"tied", "layers.0.weight"} <= set(block.state_dict())


def test_modes_reach_everything() -> None:
    block = Block()
    assert all(not module.training for module in block.eval().modules())
    assert all(module.training for module in block.train().modules())
    block.requires_grad_(False)
    assert not any(p.requires_grad for p in block.parameters())
    assert len(list(block.parameters())) == 5


def test_calls_draw_initial_values_once() -> None:
    block = Block()
    x = Tensor.ones(2, 3)
    np.testing.assert_array_equal(block(x).numpy(), block(x).numpy())
    assert block.first.weight._storage.node.op.name == "BUFFER"


def test_the_state_aliases_the_module() -> None:
    block = Block()
    state = block.state_dict()
    state["scale"].fill_(3.0)
    assert block.scale.tolist() == [3.0] * 4


def test_a_loaded_state_is_independent_of_its_source() -> None:
    first, second = Block(), Block()
    second.load_state_dict(first.state_dict())
    with Tensor.no_grad():
        first.scale.fill_(7.0)
    assert second.scale.tolist() == [1.0] * 4
    np.testing.assert_array_equal(second.first.weight.numpy(), first.first.weight.numpy())


def test_a_state_that_does_not_fit_names_every_problem_and_changes_nothing() -> None:
    block = Block()
    state = block.state_dict()
    before = block.first.weight.numpy()
    del state["scale"]
    state["extra"] = Tensor.ones(1)
    state["first.bias"] = Tensor.ones(5)
    state["first.weight"] = Tensor.ones(4, 3)
    wanted = r"missing: scale; unexpected: extra; of another shape: first.bias \(\[5\] for \[4\]\)"
    with pytest.raises(ShapeError, match=wanted):
        block.load_state_dict(state)
    with pytest.raises(ShapeError, match="of another shape: first.bias"):
        block.load_state_dict(state, strict=False)
    np.testing.assert_array_equal(block.first.weight.numpy(), before)
    del state["first.bias"]
    found = block.load_state_dict(state, strict=False)
    assert found.missing_keys == ["scale", "first.bias"]
    assert found.unexpected_keys == ["extra"]
    assert block.first.weight.numpy().min() == 1


def test_containers() -> None:
    chain = nn.Sequential(nn.Linear(2, 3), Tensor.relu, nn.Linear(3, 1))
    assert len(chain) == 3
    assert [type(m).__name__ for m in chain[1:]] == ["FunctionModule", "Linear"]
    assert chain[-1] is list(chain)[2]
    assert list(chain.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    with pytest.raises(IndexOutOfRange, match="module 3"):
        chain[3]
    table = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.ReLU()})
    assert list(table) == ["a", "b"]
    assert "a" in table
    assert list(table.state_dict()) == ["a.weight", "a.bias"]
    with pytest.raises(IndexOutOfRange, match="'c'"):
        table["c"]
    assert "(0): Linear(2, 3, bias=True)" in repr(chain)


def test_copies_and_pickles_are_whole() -> None:
    block = Block()
    for other in (copy.deepcopy(block), pickle.loads(pickle.dumps(block))):
        x = Tensor.ones(1, 3)
        np.testing.assert_array_equal(other(x).numpy(), block(x).numpy())
        with Tensor.no_grad():
            other.scale.fill_(0.0)
        assert block.scale.tolist() == [1.0] * 4


def test_state_of_plain_objects() -> None:
    class Holder:
        def __init__(self) -> None:
            self.w = Tensor.ones(2, requires_grad=True)
            self.parts = [Tensor.zeros(1), {"inner": nn.Linear(1, 1)}]
            self.again = self

    holder = Holder()
    assert list(nn.get_state_dict(holder)) == [
        "w", "parts.0", "parts.1.inner.weight", "parts.1.inner.bias",
    ]
    assert len(nn.get_parameters(holder)) == 3
    nn.load_state_dict(holder, {"w": Tensor([5.0, 6.0])}, strict=False)
    assert holder.w.tolist() == [5.0, 6.0]
    with pytest.raises(ShapeError, match="does not fit Holder"):
        nn.load_state_dict(holder, {})


def test_wrong_moves_and_missing_forwards_are_errors() -> None:
    with pytest.raises(DTypeError, match="floating-point"):
        nn.Linear(1, 1).to("int32")
    with pytest.raises(NotImplementedError, match="Module has no forward"):
        nn.Module()(1)
    with pytest.raises(ShapeError, match="groups"):
        nn.Conv2d(3, 4, 3, groups=2)


def test_batch_statistics_do_not_hold_the_graphs_of_past_steps() -> None:
    """The running statistics are computed with each step, so no chain of batches grows."""
    from baregrad import optim

    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    optimiser = optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        model(Tensor.rand(4, 2)).square().mean().backward()
        optimiser.step()
    assert all(b._storage.node.op.name == "BUFFER" for b in model.buffers())


def test_a_name_that_is_not_there_is_told_with_the_nearest() -> None:
    with pytest.raises(AttributeError, match="'BatchNorm2d'"):
        nn.BatchNorm2D  # noqa: B018 - the name is what is tested
    with pytest.raises(AttributeError, match="'AdamW'"):
        optim.Adamw  # noqa: B018
    assert not hasattr(nn, "nothing_like_it")


def test_modules_and_parameters_are_found_by_path() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.BatchNorm1d(3)))
    assert model.get_submodule("1.0") is model[1][0] and model.get_submodule("") is model
    assert model.get_parameter("0.weight") is model[0].weight
    assert model.get_buffer("1.0.running_mean") is model[1][0].running_mean
    with pytest.raises(ArgumentError, match="no module there"):
        model.get_submodule("1.2")
    with pytest.raises(ArgumentError, match="no parameter there"):
        model.get_parameter("1.0.running_mean")
    assert [n for n, _ in model.named_parameters("m", recurse=False)] == []
    assert [n for n, _ in model[0].named_parameters("m")] == ["m.weight", "m.bias"]


def test_parameters_are_told_by_what_they_are() -> None:
    layer = nn.Module()
    layer.scale = nn.Parameter(Tensor.ones(2))
    with pytest.raises(GradientError, match=r"Tensor\.empty\(n\)"):
        nn.Parameter(Tensor(4))
    layer.register_parameter("bias", None)
    layer.add_module("inner", nn.Linear(2, 2))
    assert isinstance(layer.scale, nn.Parameter) and isinstance(layer.scale, Tensor)
    assert layer.__getattr__("inner") is layer.inner
    assert not isinstance(layer.scale * 2, nn.Parameter)
    assert not isinstance(Tensor.ones(2), nn.Parameter)
    assert sorted(layer.state_dict()) == ["inner.bias", "inner.weight", "scale"]


def test_lists_and_dicts_of_parameters() -> None:
    held = nn.Module()
    held.row = nn.ParameterList([Tensor.ones(2), Tensor.zeros(3)])
    held.named = nn.ParameterDict({"a": Tensor.ones(1)})
    held.named["b"] = nn.Parameter(Tensor.zeros(2))
    assert list(held.state_dict()) == ["row.0", "row.1", "named.a", "named.b"]
    assert len(held.row) == 2 and held.row[-1].shape == (3,) and "a" in held.named
    assert [v.shape for v in held.row] == [(2,), (3,)] and len(held.named) == 2
    held.row[0] = Tensor.ones(5)
    assert held.row[0].requires_grad and [k for k, _ in held.named.items()] == ["a", "b"]
    with pytest.raises(DTypeError, match="a parameter is a tensor"):
        held.row.append(3)  # type: ignore[arg-type]
    with pytest.raises(IndexOutOfRange):
        held.named["c"]


def test_lists_of_modules_change() -> None:
    held = nn.ModuleList([nn.ReLU(), nn.Tanh()])
    held.insert(1, nn.Sigmoid())
    held[0] = nn.GELU()
    assert [type(m).__name__ for m in held] == ["GELU", "Sigmoid", "Tanh"]
    assert list(dict(held[1:].named_children())) == ["0", "1"]
    named = nn.ModuleDict([("a", nn.ReLU())])
    named.update({"b": nn.Tanh()})
    assert isinstance(named.pop("a"), nn.ReLU) and list(named) == ["b"]


def test_layers_joined_in_evaluation_do_what_both_did() -> None:
    conv, norm = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)
    x = Tensor.randn(4, 2, 6, 6)
    both = nn.Sequential(conv, norm)
    both(x).realize()
    with pytest.raises(ArgumentError, match="running statistics"):
        nn.utils.fuse_conv_bn_eval(conv, norm)
    both.eval()
    fused = nn.utils.fuse_conv_bn_eval(conv, norm)
    np.testing.assert_allclose(fused(x).numpy(), both(x).numpy(), atol=1e-5)
    assert [name for name, _ in fused.named_parameters()] == ["weight", "bias"]
    linear, other = nn.Linear(5, 4), nn.BatchNorm1d(4)
    pair = nn.Sequential(linear, other)
    pair(x[:, 0, 0, :5]).realize()
    pair.eval()
    alone = nn.utils.fuse_linear_bn_eval(linear, other)
    np.testing.assert_allclose(
        alone(x[:, 0, 0, :5]).numpy(), pair(x[:, 0, 0, :5]).numpy(), atol=1e-5
    )


def test_batch_normalisations_are_replaced_with_their_state() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sequential(nn.BatchNorm2d(2)), nn.ReLU())
    before = dict(model.state_dict())
    found = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    assert isinstance(found.get_submodule("1.0"), nn.SyncBatchNorm)
    assert list(found.state_dict()) == list(before)
    x = Tensor.randn(2, 1, 5, 5)
    wanted = before["0.weight"].numpy()
    np.testing.assert_array_equal(found.state_dict()["0.weight"].numpy(), wanted)
    assert found(x).shape == (2, 2, 3, 3)


def test_norms_of_all_gradients_and_what_is_imported_by_path() -> None:
    from baregrad.nn.utils.rnn import pad_sequence

    p = Tensor([3.0, 4.0], requires_grad=True)
    (p * p / 2).sum().backward()
    total = nn.utils.get_total_norm([p.grad])
    assert total.item() == 5
    nn.utils.clip_grads_with_norm_(p, 1.0, total)
    np.testing.assert_allclose(p.grad.numpy(), [0.6, 0.8], rtol=1e-5)
    assert pad_sequence([Tensor([1.0]), Tensor([1.0, 2.0])]).shape == (2, 2)


def test_modules_are_put_at_paths() -> None:
    def made(lib: Any) -> Any:
        model = lib.Sequential(lib.Linear(2, 2), lib.Sequential(lib.ReLU()))
        model.set_submodule("1.0", lib.Linear(2, 3))
        model.set_submodule("0", lib.Linear(2, 2, bias=False), strict=True)
        model.set_submodule("1.more", lib.Tanh())
        return model

    mine = made(nn)
    assert list(mine.state_dict()) == list(made(torch.nn).state_dict())
    for path, strict in (("", False), ("2.0", False), ("0.weight", False), ("1.none", True)):
        with pytest.raises(ArgumentError):
            mine.set_submodule(path, nn.ReLU(), strict)


def test_programs_find_what_they_import() -> None:
    from baregrad.nn.attention import SDPBackend, sdpa_kernel
    from baregrad.nn.parameter import Parameter

    assert Parameter is nn.Parameter is nn.parameter.Parameter
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], set_priority=True):
        assert nn.functional.scaled_dot_product_attention(*[Tensor.ones(1, 2, 4)] * 3).shape
    refused: tuple[Any, ...] = ([], ["flash"])
    for odd in refused:
        with pytest.raises(ArgumentError, match="SDPBackend"), sdpa_kernel(odd):
            pass
    for name in SDPBackend:
        assert int(getattr(torch.nn.attention.SDPBackend, name.name)) == name
