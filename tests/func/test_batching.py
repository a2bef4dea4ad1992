"""vmap beside PyTorch's, op by op and nested, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from baregrad.base.errors import ArgumentError, ShapeError, UnsupportedError
from baregrad.func import grad, vmap
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit
from baregrad.testing.fuzz_grow import grow
from baregrad.testing.fuzz_program import FuzzProgram, given

F = torch.nn.functional
X = np.random.default_rng(0).normal(size=(5, 4, 6)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(5, 4, 6)).astype(np.float32)
PLACES = np.random.default_rng(2).integers(0, 4, (5, 3, 6))


def same(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, tuple | list):
        for one, other in zip(ours, theirs, strict=True):
            same(one, other)
    else:
        assert tuple(ours.shape) == tuple(theirs.shape)
        np.testing.assert_allclose(
            ours.numpy(), theirs.detach().numpy(), rtol=2e-5, atol=2e-5
        )


UNARY: dict[str, Callable[[Any], Any]] = {
    "arithmetic": lambda x: (x * 2 + 1).tanh() / (x.exp() + 1),
    "sum": lambda x: x.sum(0) + x.sum(),
    "mean": lambda x: x.mean((0, 1)),
    "amax": lambda x: x.amax(1),
    "argmax": lambda x: x.argmax(1),
    "max": lambda x: tuple(x.max(0)),
    "softmax": lambda x: x.softmax(0),
    "var": lambda x: x.var(1),
    "logsumexp": lambda x: x.logsumexp(0),
    "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: x.cumprod(0),
    "sort": lambda x: tuple(x.sort(1)),
    "argsort": lambda x: x.argsort(0),
    "topk": lambda x: tuple(x.topk(2, 1)),
    "reshape": lambda x: x.reshape(6, 4).permute(1, 0),
    "flip": lambda x: x.flip(1),
    "roll": lambda x: x.roll(1, 0),
    "slices": lambda x: x[1:3, ::2],
    "picked": lambda x: x[:, 2] + x[1, 0],
    "spread": lambda x: x[:, None].expand(4, 3, 6),
    "tril": lambda x: x.tril(),
    "windows": lambda x: x.unfold(1, 3, 2),
    "product": lambda x: x @ x.mT,
    "norm": lambda x: x.norm(),
    "repeat": lambda x: x.repeat(2, 1),
    "prod": lambda x: x.prod(1),
    "mask": lambda x: x.masked_fill(x > 0, 0.5),
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "half": lambda x: x.half().float(),
    "scalar": lambda x: x[0, 0] * x,
}


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_ops_of_an_example_are_those_of_a_batch(name: str, axis: int) -> None:
    function = UNARY[name]
    x = np.ascontiguousarray(np.moveaxis(X, 0, axis))
    same(vmap(function, axis)(Tensor(x)), torch.vmap(function, axis)(torch.tensor(x)))


BINARY: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "where": (lambda x, y: x.where(x < y, y),) * 2,
    "product": (lambda x, y: x @ y.mT,) * 2,
    "cat": (lambda x, y: Tensor.cat([x, y], dim=1), lambda x, y: torch.cat([x, y], dim=1)),
    "stack": (lambda x, y: Tensor.stack([x, y], dim=1), lambda x, y: torch.stack([x, y], 1)),
    "outer": (lambda x, y: x[0][:, None] * y[1],) * 2,
    "minimum": (lambda x, y: x.minimum(y[0]),) * 2,
}


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)])
def test_operands_that_all_examples_share(name: str, axes: tuple[int | None, int | None]) -> None:
    ours, theirs = BINARY[name]
    given = [x if axis == 0 else x[0] for x, axis in zip((X, Y), axes, strict=True)]
    same(vmap(ours, axes)(*map(Tensor, given)), torch.vmap(theirs, axes)(*map(torch.tensor, given)))


@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)])
def test_places_of_examples(axes: tuple[int | None, int | None]) -> None:
    x, places = [a if axis == 0 else a[0] for a, axis in zip((X, PLACES), axes, strict=True)]
    given, wanted = (Tensor(x), Tensor(places)), (torch.tensor(x), torch.tensor(places))
    same(vmap(lambda x, i: x.gather(0, i), axes)(*given),
         torch.vmap(lambda x, i: x.gather(0, i), axes)(*wanted))
    same(vmap(lambda x, i: x.scatter_add(0, i, x[:3] * 2), axes)(*given),
         torch.vmap(lambda x, i: x.scatter_add(0, i, x[:3] * 2), axes)(*wanted))
    same(vmap(lambda x, i: x[i[:, 0]], axes)(*given),
         torch.vmap(lambda x, i: x[i[:, 0]], axes)(*wanted))


def test_layers_of_networks() -> None:
    images = np.random.default_rng(3).normal(size=(3, 2, 4, 8, 8)).astype(np.float32)
    weight = np.random.default_rng(4).normal(size=(6, 4, 3, 3)).astype(np.float32)

    def ours(x: Tensor, w: Tensor) -> Tensor:
        return x.conv2d(w, padding=1).relu().max_pool2d(2).layer_norm((4, 4))

    def theirs(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(F.max_pool2d(F.conv2d(x, w, padding=1).relu(), 2), (4, 4))

    same(vmap(ours, (0, None))(Tensor(images), Tensor(weight)),
         torch.vmap(theirs, (0, None))(torch.tensor(images), torch.tensor(weight)))


def test_trees_and_axes_of_parts() -> None:
    def function(pair: dict[str, Any], scale: Any) -> dict[str, Any]:
        return {"sum": pair["a"] + pair["b"] * scale, "both": (pair["a"], pair["b"])}

    axes: Any = ({"a": 0, "b": 1}, None)
    pair = {"a": X, "b": np.moveaxis(Y, 0, 1).copy()}
    ours = vmap(function, axes, 1)({k: Tensor(v) for k, v in pair.items()}, 2.0)
    theirs = torch.vmap(function, axes, 1)({k: torch.tensor(v) for k, v in pair.items()}, 2.0)
    same(ours["sum"], theirs["sum"])
    same(ours["both"], theirs["both"])


def test_it_nests_and_goes_with_jit_and_gradients() -> None:
    def loss(w: Any, x: Any) -> Any:
        return (x @ w).tanh().sum()

    w = np.random.default_rng(5).normal(size=(6, 2)).astype(np.float32)
    wanted = torch.vmap(torch.func.grad(loss), (None, 0))(torch.tensor(w), torch.tensor(X))
    per_example = vmap(grad(loss), (None, 0))
    captured = jit(per_example)
    for _ in range(3):
        same(captured(Tensor(w), Tensor(X)), wanted)
    same(vmap(vmap(lambda x: x.softmax(0)))(Tensor(X)),
         torch.vmap(torch.vmap(lambda x: x.softmax(0)))(torch.tensor(X)))
    leaf = Tensor(X).requires_grad_()
    vmap(lambda x: (x * x).sum())(leaf).sum().backward()
    assert leaf.grad is not None
    np.testing.assert_allclose(leaf.grad.numpy(), 2 * X, rtol=1e-6)


def test_writes_inside_are_of_each_example() -> None:
    def function(x: Any) -> Any:
        y = x.clone()
        y[1] = x[0] * 2
        return y

    same(vmap(function)(Tensor(X)), torch.vmap(function)(torch.tensor(X)))


def test_what_does_not_depend_on_an_example() -> None:
    constant = Tensor(X[0])
    both = vmap(lambda x: (x.sum(), constant * 2), out_dims=(0, None))(Tensor(X))
    np.testing.assert_array_equal(both[1].numpy(), X[0] * 2)
    np.testing.assert_array_equal(
        vmap(lambda x: constant)(Tensor(X)).numpy(), np.broadcast_to(X[0], X.shape)
    )


def test_same_draws_for_each_example() -> None:
    drawn = vmap(lambda x: x * 0 + Tensor.rand(6), randomness="same")(Tensor(X)).numpy()
    np.testing.assert_array_equal(drawn, np.broadcast_to(drawn[:1, :1], drawn.shape))
    with pytest.raises(ArgumentError, match="draws random numbers"):
        vmap(lambda x: x + Tensor.rand(6))(Tensor(X))
    with pytest.raises(UnsupportedError, match="randomness"):
        vmap(lambda x: x, randomness="different")


def test_random_programs_of_a_batch_are_those_of_its_examples() -> None:
    tried = 0
    for seed in range(6000, 6040):
        program = grow(seed)
        # What draws, changes state or takes no tensors is no function of an example.
        if not (program.draws or program.is_foreign or program.state) and program.arguments:
            tried += 1
            check_batch(program)
    assert tried > 15


def check_batch(program: FuzzProgram) -> None:
    space = given(True)
    exec(program.source(), space)
    sizes = program.integers(0).values()
    batch = [np.stack([one, np.roll(one, 1)]) for one in program.data(0).values()]

    def function(*arguments: Tensor) -> tuple[Tensor, ...]:
        return tuple([x.cast("float64") for x in space["program"](*arguments, *sizes)])

    examples = [function(*[Tensor(each[i]) for each in batch]) for i in range(2)]
    found = vmap(function)(*map(Tensor, batch))
    for both, one, other in zip(found, *examples, strict=True):
        wanted = np.stack([one.numpy(), other.numpy()])
        np.testing.assert_allclose(both.numpy(), wanted, rtol=2e-3, atol=2e-3)


def test_refused() -> None:
    x = Tensor(X)
    with pytest.raises(ArgumentError, match="not there yet"):
        vmap(lambda x: x if x.sum().item() > 0 else -x)(x)
    with pytest.raises(ShapeError, match="as many examples"):
        vmap(lambda x, y: x + y)(x, x[:3])
    with pytest.raises(ShapeError, match="does not have"):
        vmap(lambda x: x, 7)(x)
    with pytest.raises(ArgumentError, match="in_dims"):
        vmap(lambda x: x, (0, 0))(x)
    with pytest.raises(ArgumentError, match="at least"):
        vmap(lambda x: x, None)(x)
    with pytest.raises(ArgumentError, match="returns tensors"):
        vmap(lambda x: 3.0)(x)
    with pytest.raises(ArgumentError, match="transforms functions"):
        vmap(x)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="out_dims None"):
        vmap(lambda x: x, out_dims=None)(x)


@pytest.mark.parametrize("is_argument", (False, True))
def test_a_tensor_of_all_examples_is_not_written_by_each(is_argument: bool) -> None:
    y = Tensor([1.0, 2.0, 3.0])

    def change(x: Tensor, other: Tensor = y) -> Tensor:
        other += x
        return x

    x = Tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    with pytest.raises(ArgumentError, match="did not make"):
        vmap(change, (0, None))(x, y) if is_argument else vmap(change)(x)
    assert y.tolist() == [1, 2, 3]
