"""Operators of PyTorch's that traced graphs call, with gradients, beside PyTorch itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from functorch.compile import aot_function, make_boxed_func
from torch import nn
from torch._decomp import core_aten_decompositions
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F  # noqa: N812

from baregrad.base.options import options
from baregrad.bridges.torch_backend import baregrad, report
from baregrad.bridges.torch_graph import TorchGraph, missing

aten = torch.ops.aten
Function = Callable[..., Any]


def values(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def stepped(function: Function) -> Function:
    """The results of a function and the gradients of its floats."""

    def of(*arguments: torch.Tensor) -> list[torch.Tensor]:
        leaves = [
            one.detach().requires_grad_() if one.is_floating_point() else one for one in arguments
        ]
        result = function(*leaves)
        several = list(result) if isinstance(result, tuple) else [result]
        floats = [one for one in several if one.requires_grad]
        if not floats:
            return several
        total = sum((one * torch.linspace(0.5, 1, one.numel()).reshape(one.shape)).sum()
                    for one in floats)
        asked = [one for one in leaves if one.requires_grad]
        assert isinstance(total, torch.Tensor)
        return several + [one for one in torch.autograd.grad(total, asked, allow_unused=True)
                          if one is not None]

    return of


def agree(function: Function, *arguments: torch.Tensor) -> None:
    lacking = []

    def compiled(graph: Any, _: Any) -> Any:
        lacking.append(missing(graph))
        return make_boxed_func(graph.forward if lacking[-1] else TorchGraph(graph))

    ours = aot_function(function, compiled, decompositions=core_aten_decompositions())
    with options.override(device="CPU"):
        found = stepped(ours)(*arguments)
    assert not any(lacking), lacking
    for one, other in zip(found, stepped(function)(*arguments), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def scattered(x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    return torch.as_strided_scatter(x * 2, source, (2, 3), (1, 4), 1)


FEW: dict[str, tuple[Function, tuple[torch.Tensor, ...]]] = {
    # One more is computed of it: PyTorch lays gradients of results as these lie, on one another.
    "strides that overlap": (lambda x: (x * 2).as_strided((3, 4), (2, 1), 1) + 1, (values(3, 4),)),
    "strides of a turned one": (
        lambda x: (x.t().contiguous().t() * 2).as_strided((2, 3), (4, 1), 2), (values(3, 4),)),
    "written by strides": (scattered, (values(3, 4), values(2, 3, seed=1))),
    "weights by rows": (
        lambda v, g: torch._weight_norm(v, g, 0), (values(3, 2, 2), values(3, 1, 1, seed=1))),
}
MANY: dict[str, tuple[Function, tuple[torch.Tensor, ...]]] = {
    "strides of what repeats": (
        lambda x: (x * 2).expand(3, 4).as_strided((2, 2), (0, 1), 1) + 1, (values(1, 4),)),
    "strides with gaps": (
        lambda x: (x * 2)[:, ::2].as_strided((2, 2), (4, 2), 4), (values(3, 4),)),
    "strides from an offset": (
        lambda x: (x * 2)[1:].as_strided((2, 2), (2, 1)), (values(3, 4),)),
    "strides of channels last": (
        lambda x: (x * 2).contiguous(memory_format=torch.channels_last).as_strided(
            (2, 7), (24, 2), 1), (values(2, 3, 2, 4),)),
    "no elements": (lambda x: x.as_strided((0, 2), (1, 1)), (values(3, 4),)),
    "one element": (lambda x: (x * 2).as_strided((), (), 3), (values(3, 4),)),
    "written side by side": (
        lambda x, y: torch.as_strided_scatter(x * 2, y, (2, 3), (3, 1), 2),
        (values(3, 4), values(2, 3, seed=1))),
    "written to a turned one": (
        lambda x, y: torch.as_strided_scatter((x.detach() * 2).t(), y, (2, 3), (4, 1), 1),
        (values(3, 4), values(2, 3, seed=1))),
    "weights by columns": (
        lambda v, g: torch._weight_norm(v, g, 2), (values(3, 2, 4), values(1, 1, 4, seed=1))),
    "weights in between": (
        lambda v, g: torch._weight_norm(v, g, 1), (values(3, 2, 4), values(1, 2, 1, seed=1))),
    "distances": (torch.cdist, (values(2, 4, 3), values(2, 5, 3, seed=1))),
    "distances of 1": (lambda x, y: torch.cdist(x, y, 1.0), (values(4, 3), values(5, 3, seed=1))),
    "parts of space": (lambda x: F.adaptive_avg_pool3d(x, (2, 3, 1)), (values(1, 2, 4, 5, 3),)),
    "masked": (lambda x, m, y: x.masked_scatter(m, y),
               (values(3, 4), values(3, 4, seed=2) > 0, values(12, seed=1))),
    "diagonal": (lambda x, y: torch.diagonal_scatter(x, y, 1), (values(3, 4), values(3, seed=1))),
    "running maxima": (lambda x: torch.cummax(x, 1), (values(3, 4),)),
    "running minima": (lambda x: torch.cummin(x, 0), (values(3, 4),)),
    "running sums of powers": (lambda x: torch.logcumsumexp(x, 1), (values(3, 4),)),
    "third": (lambda x: torch.kthvalue(x, 3, 1), (values(3, 4),)),
    "median": (lambda x: torch.median(x, 1), (values(3, 5),)),
    "extremes": (lambda x: torch.aminmax(x, dim=1), (values(3, 5),)),
    "sorted places": (lambda x, y: torch.searchsorted(x.sort().values, y, right=True),
                      (values(3, 5).round(), values(3, 4, seed=1).round())),
    "buckets": (lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])), (values(3, 5),)),
    "hard shrink": (lambda x: F.hardshrink(x, 0.3), (values(3, 5),)),
    "soft shrink": (lambda x: F.softshrink(x, 0.3), (values(3, 5),)),
    "inverse error": (lambda x: torch.erfinv(x.tanh() * 0.9), (values(3, 5),)),
    "larger": (torch.fmax, (values(3, 5), values(3, 5, seed=1))),
    "gamma": (lambda x: torch.lgamma(x.abs() + 0.5), (values(3, 5),)),
    "product and a vector": (
        lambda b, x, y: torch.addmv(b, x, y, beta=2, alpha=3),
        (values(3), values(3, 4, seed=1), values(4, seed=2))),
    "sum of products": (
        lambda b, x, y: torch.addbmm(b, x, y, beta=2, alpha=3),
        (values(3, 5), values(2, 3, 4, seed=1), values(2, 4, 5, seed=2))),
    "triangle": (lambda x: x[tuple(torch.tril_indices(3, 4, -1))], (values(3, 4),)),
    **{f"{mode} {size} {corners}": (
        lambda x, mode=mode, size=size, corners=corners: F.interpolate(
            x, size=size, mode=mode, align_corners=corners), (values(1, 2, *[4, 5, 3][:axes]),))
        for mode, axes, corners in (
            ("nearest", 1, None), ("nearest", 2, None), ("nearest", 3, None),
            ("nearest-exact", 2, None), ("linear", 1, False), ("bilinear", 2, False),
            ("bilinear", 2, True), ("trilinear", 3, False), ("bicubic", 2, False),
            ("bicubic", 2, True))
        for size in (3, 7)},
    **{f"{mode} by factors": (
        lambda x, mode=mode: F.interpolate(x, scale_factor=(1.7, 0.6), mode=mode),
        (values(1, 2, 4, 5),)) for mode in ("nearest", "bilinear", "bicubic")},
    **{f"{mode} {padding} {corners}": (
        lambda x, g, mode=mode, padding=padding, corners=corners: F.grid_sample(
            x, g * 0.8, mode, padding, corners), (values(2, 2, 4, 5), values(2, 3, 3, 2, seed=1)))
        for mode in ("bilinear", "nearest", "bicubic")
        for padding in ("zeros", "border", "reflection") for corners in (False, True)},
    "grid in space": (lambda x, g: F.grid_sample(x, g * 0.8, align_corners=False),
                      (values(1, 2, 3, 4, 5), values(1, 2, 2, 3, 3, seed=1))),
}  # fmt: skip


@pytest.mark.parametrize("name", FEW)
def test_an_operator_and_its_gradients(name: str) -> None:
    agree(FEW[name][0], *FEW[name][1])


@pytest.mark.slow
@pytest.mark.parametrize("name", MANY)
def test_more_operators_and_their_gradients(name: str) -> None:
    agree(MANY[name][0], *MANY[name][1])


def test_strides_that_lead_out_of_the_tensor_are_left_to_pytorch() -> None:
    x = values(4, 4)
    for function in (
        lambda x: (x * 2)[1:].as_strided((2, 2), (4, 1), 0),
        lambda x: (x * 2)[:, ::2].as_strided((2, 2), (4, 1), 0),
    ):
        graph = make_fx(function, tracing_mode="fake")(x)
        assert "as_strided" in str(missing(graph))


def test_what_a_graph_asserts_is_checked() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x >= 0).all(), "below nothing")
        return x + 1

    graph = make_fx(function)(torch.ones(3))
    assert "_assert_async" in str(graph.graph)
    assert not missing(graph)
    run = TorchGraph(graph)
    with options.override(device="CPU"):
        for _ in range(3):
            assert run(torch.ones(3))[0].tolist() == [2, 2, 2]
            with pytest.raises(RuntimeError, match="below nothing"):
                run(torch.tensor([1.0, -1.0, 1.0]))


@pytest.mark.slow
def test_strides_follow_lengths_that_change() -> None:
    before = report()

    def function(x: torch.Tensor) -> torch.Tensor:
        y = (x * 2).t()
        return y.as_strided((x.shape[0], 2), (3, 1), 1)

    with options.override(device="CPU"):
        compiled = torch.compile(function, backend=baregrad, dynamic=True)
        for length in (3, 7, 5):
            x = values(length, 3)
            torch.testing.assert_close(compiled(x), function(x))
    assert report().left == before.left


@pytest.mark.slow
def test_draws_have_their_ranges_and_means() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (aten.uniform(x, 2.0, 4.0), aten.normal_functional(x, 1.0, 2.0),
                aten.exponential(x, 2.0), torch.randint(3, 9, (20000,)), torch.randperm(50))

    graph = make_fx(function)(torch.zeros(20000))
    assert not missing(graph)
    with options.override(device="CPU"):
        even, normal, late, whole, order = TorchGraph(graph)(torch.zeros(20000))
    assert 2 <= even.min() < 2.01 < 3.99 < even.max() < 4
    # Five deviations of a mean of 20,000.
    assert abs(normal.mean() - 1) < 5 * 2 / 141
    assert abs(normal.std() - 2) < 0.06
    assert abs(late.mean() - 0.5) < 5 * 0.5 / 141
    assert late.min() >= 0
    assert sorted(set(whole.tolist())) == [3, 4, 5, 6, 7, 8]
    assert sorted(order.tolist()) == list(range(50))


@pytest.mark.slow
def test_a_module_of_normed_weights_is_trained_whole() -> None:
    torch._dynamo.reset()
    module = nn.utils.parametrizations.weight_norm(nn.Conv1d(3, 4, 2))
    x = values(2, 3, 8)
    before = report()
    with options.override(device="CPU"):
        torch.compile(module, backend=baregrad)(x).square().sum().backward()
    found = [one.grad.clone() for one in module.parameters() if one.grad is not None]
    module.zero_grad()
    module(x).square().sum().backward()
    assert report().left == before.left
    for one, other in zip(found, module.parameters(), strict=True):
        torch.testing.assert_close(one, other.grad, rtol=1e-4, atol=1e-5)
