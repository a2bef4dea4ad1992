"""Optimisers against PyTorch's, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from baregrad import nn, optim
from baregrad.base.errors import ArgumentError, DTypeError, GradientError, ShapeError
from baregrad.base.options import options
from baregrad.dtypes import dtypes
from baregrad.engine.backends import CompiledBackend
from baregrad.graph import canonicalise
from baregrad.schedule import make_plan
from baregrad.target import gpu_row
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit

Case = tuple[str, Callable[[Any, Any], Any]]

CASES: tuple[Case, ...] = (
    ("sgd", lambda o, p: o.SGD(p, lr=0.1)),
    ("sgd decay", lambda o, p: o.SGD(p, lr=0.1, weight_decay=0.1)),
    ("sgd momentum", lambda o, p: o.SGD(p, lr=0.1, momentum=0.9, dampening=0.2)),
    ("sgd nesterov", lambda o, p: o.SGD(p, 0.1, 0.9, nesterov=True, weight_decay=1e-2)),
    ("sgd maximize", lambda o, p: o.SGD(p, lr=0.01, momentum=0.5, maximize=True)),
    ("rmsprop", lambda o, p: o.RMSprop(p, lr=0.01)),
    ("rmsprop decay", lambda o, p: o.RMSprop(p, lr=0.01, alpha=0.9, weight_decay=0.1)),
    ("rmsprop all", lambda o, p: o.RMSprop(p, lr=0.01, momentum=0.8, centered=True, eps=1e-6)),
    ("adam", lambda o, p: o.Adam(p, lr=0.01)),
    ("adam decay", lambda o, p: o.Adam(p, lr=0.02, betas=(0.8, 0.95), weight_decay=0.1)),
    ("adam amsgrad", lambda o, p: o.Adam(p, lr=0.02, amsgrad=True, eps=1e-6)),
    ("adamw", lambda o, p: o.AdamW(p, lr=0.01)),
    ("adamw amsgrad", lambda o, p: o.AdamW(p, lr=0.01, weight_decay=0.2, amsgrad=True)),
    ("adagrad", lambda o, p: o.Adagrad(p, lr=0.1, lr_decay=0.1, weight_decay=0.01)),
    ("adagrad begun", lambda o, p: o.Adagrad(p, 0.1, initial_accumulator_value=0.5)),
    ("adadelta", lambda o, p: o.Adadelta(p, weight_decay=0.1)),
    ("adamax", lambda o, p: o.Adamax(p, lr=0.02, weight_decay=0.1)),
    ("nadam", lambda o, p: o.NAdam(p, lr=0.02, weight_decay=0.1)),
    ("nadam apart", lambda o, p: o.NAdam(p, 0.02, weight_decay=0.1, decoupled_weight_decay=True)),
    ("radam", lambda o, p: o.RAdam(p, lr=0.02, betas=(0.5, 0.9), weight_decay=0.1)),
    ("radam long", lambda o, p: o.RAdam(p, lr=0.02, betas=(0.9, 0.999))),
    ("adafactor", lambda o, p: o.Adafactor(p, lr=0.1, weight_decay=0.1)),
    ("rprop", lambda o, p: o.Rprop(p, lr=0.02)),
    ("asgd", lambda o, p: o.ASGD(p, lr=0.1, lambd=0.1, t0=2, weight_decay=0.01)),
)
IDS = [name for name, _ in CASES]


class Pair:
    """The same small network here and in PyTorch, and the data of each step."""

    def __init__(self, make: Callable[[Any, Any], Any]) -> None:
        torch.manual_seed(3)
        self.theirs = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)
        )
        self.ours = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        state = {name: Tensor(t.clone()) for name, t in self.theirs.state_dict().items()}
        self.ours.load_state_dict(state)
        self.our_optimiser = make(optim, self.ours.parameters())
        self.their_optimiser = make(torch.optim, self.theirs.parameters())
        self.rng = np.random.default_rng(0)

    def backward(self) -> None:
        data = self.rng.standard_normal((16, 4), np.float32)
        aim = self.rng.standard_normal((16, 2), np.float32)
        self.ours(Tensor(data)).mse_loss(Tensor(aim)).backward()
        torch.nn.functional.mse_loss(self.theirs(torch.tensor(data)), torch.tensor(aim)).backward()

    def step(self) -> None:
        self.our_optimiser.zero_grad()
        self.their_optimiser.zero_grad()
        self.backward()
        self.our_optimiser.step()
        self.their_optimiser.step()

    def check(self, tolerance: float = 1e-6) -> None:
        for (name, p), q in zip(
            self.ours.named_parameters(), self.theirs.parameters(), strict=True
        ):
            found, wanted = p.numpy(), q.detach().numpy()
            np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.differential
@pytest.mark.parametrize("make", [make for _, make in CASES], ids=IDS)
def test_steps_equal_pytorchs(make: Callable[[Any, Any], Any]) -> None:
    pair = Pair(make)
    for _ in range(6):
        pair.step()
        pair.check()


def test_gradients_become_none_or_zero() -> None:
    layer = nn.Linear(3, 2)
    optimiser = optim.SGD(layer.parameters(), lr=0.1)
    for clear in (optimiser.zero_grad, layer.zero_grad):
        clear(set_to_none=False)
        assert layer.bias.grad is None
        layer(Tensor.ones(4, 3)).sum().backward()
        assert layer.bias.grad.tolist() == [4.0, 4.0]
        clear(set_to_none=False)
        assert layer.bias.grad.tolist() == [0.0, 0.0]
        clear()
        assert layer.bias.grad is None


@pytest.mark.differential
def test_gradients_accumulate_over_batches() -> None:
    pair = Pair(lambda o, p: o.AdamW(p, lr=0.01))
    for _ in range(2):
        pair.our_optimiser.zero_grad()
        pair.their_optimiser.zero_grad()
        for _ in range(3):
            pair.backward()
        pair.our_optimiser.step()
        pair.their_optimiser.step()
        pair.check()


@pytest.mark.differential
def test_parameters_without_gradients_wait_and_count_on_their_own() -> None:
    rng = np.random.default_rng(0)
    start = rng.standard_normal((2, 3), np.float32)
    ours = [Tensor(row, requires_grad=True) for row in start]
    theirs = [torch.tensor(row, requires_grad=True) for row in start]
    first, second = optim.Adam(ours, lr=0.1), torch.optim.Adam(theirs, lr=0.1)
    for which in ((0,), (0, 1), (1,), (0, 1)):
        first.zero_grad()
        second.zero_grad()
        scale = rng.standard_normal(3, np.float32)
        for params, optimiser, make in ((ours, first, Tensor), (theirs, second, torch.tensor)):
            sum((params[i] * make(scale)).square().sum() for i in which).backward()
            optimiser.step()
        for p, q in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=0, atol=1e-6)


@pytest.mark.differential
def test_groups_have_settings_of_their_own_and_rates_can_be_assigned() -> None:
    pair = Pair(lambda o, p: o.SGD(p, lr=0.1))
    for name, model, module in (("ours", pair.ours, optim), ("theirs", pair.theirs, torch.optim)):
        groups = [
            {"params": list(model[0].parameters())},
            {"params": list(model[2].parameters()), "lr": 0.5, "momentum": 0.9},
        ]
        setattr(pair, "our_optimiser" if name == "ours" else "their_optimiser",
                module.SGD(groups, lr=0.1))
    pair.step()
    pair.check()
    for optimiser in (pair.our_optimiser, pair.their_optimiser):
        optimiser.param_groups[0]["lr"] = 0.02
    pair.step()
    pair.check()


@pytest.mark.differential
@pytest.mark.parametrize("make", [CASES[2][1], CASES[7][1]], ids=[IDS[2], IDS[7]])
def test_a_state_goes_over_from_pytorch_and_back_into_ours(make: Callable[[Any, Any], Any]) -> None:
    pair = Pair(make)
    for _ in range(2):
        pair.step()
    pair.our_optimiser = make(optim, pair.ours.parameters())
    pair.our_optimiser.load_state_dict(pair.their_optimiser.state_dict())
    pair.step()
    pair.check()
    state = pair.our_optimiser.state_dict()
    pair.our_optimiser = make(optim, pair.ours.parameters())
    pair.our_optimiser.load_state_dict(state)
    pair.step()
    pair.check()


def test_small_updates_of_bfloat16_add_up_in_float32() -> None:
    p = Tensor.ones(3).bfloat16().realize().requires_grad_()
    optimiser = optim.SGD([p], lr=1e-3)
    for _ in range(10):
        optimiser.zero_grad()
        p.sum().backward()
        optimiser.step()
    assert p.dtype is dtypes.bfloat16
    assert optimiser.state[p]["master"].tolist() == pytest.approx([0.99] * 3, abs=1e-6)
    assert p.tolist() == [float(torch.tensor(0.99).bfloat16())] * 3


NARROW: tuple[Case, ...] = (
    ("sgd", lambda o, p, **m: o.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, **m)),
    ("rmsprop", lambda o, p, **m: o.RMSprop(p, lr=0.01, momentum=0.8, centered=True, **m)),
    ("adamw", lambda o, p, **m: o.AdamW(p, lr=0.01, weight_decay=0.1, **m)),
)


@pytest.mark.differential
@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("make", [make for _, make in NARROW], ids=[name for name, _ in NARROW])
def test_without_master_weights_all_has_the_parameters_dtype(
    make: Callable[..., Any], jitted: bool
) -> None:
    """PyTorch's steps in float32, of which all that is kept is rounded at the end."""
    values = np.random.default_rng(1).standard_normal((2, 3, 64)).astype(np.float32)
    p = Tensor(values[0]).bfloat16().realize().requires_grad_()
    q = torch.tensor(values[0]).bfloat16().float().requires_grad_()
    ours, theirs = make(optim, [p], master_weights=False), make(torch.optim, [q])
    p.grad = Tensor(values[1]).bfloat16()
    q.grad = torch.tensor(values[1]).bfloat16().float()
    step = jit(ours.step) if jitted else ours.step
    for _ in range(5):
        step()
        theirs.step()
        kept = {name: one for name, one in theirs.state[q].items() if name != "step"}
        for one in (q.data, *kept.values()):
            one.copy_(one.bfloat16())
        names = {name for name, one in kept.items() if one is not None}
        assert ours.state[p].keys() == names | {"step"}
        pairs = [(p, q), *((ours.state[p][name], kept[name]) for name in names)]
        for one, other in pairs:
            assert one.dtype is dtypes.bfloat16
            # An element near the middle of two may be rounded either way.
            found, wanted = one.float().numpy(), other.detach().numpy()
            np.testing.assert_allclose(found, wanted, rtol=2.0**-7, atol=1e-6)
            assert (found == wanted).mean() > 0.95
    again = make(optim, [p])
    again.load_state_dict(ours.state_dict())
    assert again.state[p].keys() == ours.state[p].keys()


def test_without_master_weights_a_step_is_rounded_once() -> None:
    p = Tensor.ones(3).bfloat16().realize().requires_grad_()
    optimiser = optim.AdamW([p], lr=1e-2, weight_decay=0.5, master_weights=False)
    p.grad = Tensor.full((3,), 0.3).bfloat16()
    g = float(torch.tensor(0.3).bfloat16())
    mean, square = 0.1 * g, 0.001 * g * g
    exact = 1 - 1e-2 * 0.5 - 1e-2 * (mean / 0.1) / ((square / 0.001) ** 0.5 + 1e-8)
    optimiser.step()
    assert p.tolist() == [float(torch.tensor(exact).bfloat16())] * 3
    assert optimiser.state[p]["exp_avg"].tolist() == [float(torch.tensor(mean).bfloat16())] * 3


def test_a_step_computes_everything_in_one_run() -> None:
    from baregrad.engine.session import Run, current_session

    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimiser = optim.AdamW(model.parameters(), lr=0.01)
    schedule = optim.CosineAnnealingLR(optimiser, 10)
    runs: list[Run] = []
    for number in range(3):
        x = Tensor(np.random.default_rng(number).standard_normal((8, 4), np.float32))
        if number == 2:
            current_session().watching.observers.append(runs.append)
        optimiser.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimiser.step()
        schedule.step()
        loss.item()
    current_session().watching.observers.remove(runs.append)
    assert len(runs) == 1


@pytest.mark.differential
def test_clipping_equals_pytorchs() -> None:
    for bound in (0.1, 100.0):
        for kind in (2.0, 1.0, float("inf")):
            pair = Pair(lambda o, p: o.SGD(p, lr=0.1))
            pair.backward()
            found = optim.clip_grad_norm_(pair.ours.parameters(), bound, kind)
            wanted = torch.nn.utils.clip_grad_norm_(pair.theirs.parameters(), bound, kind)
            assert found.item() == pytest.approx(wanted.item(), rel=1e-5)
            pair.our_optimiser.step()
            pair.their_optimiser.step()
            pair.check()
    pair = Pair(lambda o, p: o.SGD(p, lr=0.1))
    pair.backward()
    optim.clip_grad_value_(pair.ours.parameters(), 0.01)
    torch.nn.utils.clip_grad_value_(pair.theirs.parameters(), 0.01)
    pair.our_optimiser.step()
    pair.their_optimiser.step()
    pair.check()


def test_wrong_parameters_are_errors() -> None:
    p = Tensor.ones(2, requires_grad=True)
    with pytest.raises(ShapeError, match="wants parameters"):
        optim.SGD([])
    for nothing in (np.ma.masked, [{"params": np.array(1.0)}]):
        with pytest.raises(DTypeError, match="parameters are tensors"):
            optim.SGD(nothing, lr=0.1)
    with pytest.raises(ArgumentError, match="under 'params'"):
        optim.SGD([{"weights": [p]}], lr=0.1)
    with pytest.raises(GradientError, match="leaves"):
        optim.SGD([p * 2])
    with pytest.raises(ShapeError, match="twice"):
        optim.SGD([p, p])
    with pytest.raises(ValueError, match="nesterov"):
        optim.SGD([p], nesterov=True)
    with pytest.raises(ValueError, match="learning rate"):
        optim.Adam([p], lr=-1.0)
    with pytest.raises(ShapeError, match="no gradient"):
        optim.clip_grad_norm_([p], 1.0)
    optimiser = optim.SGD([p], lr=1.0)
    with pytest.raises(ShapeError, match="other groups"):
        optimiser.load_state_dict(optim.SGD([Tensor.ones(1), Tensor.ones(1)]).state_dict())


@pytest.mark.parametrize("master_weights", [False, True])
def test_a_gpu_computes_all_of_a_parameters_step_in_one_kernel(master_weights: bool) -> None:
    """So gradient and states are read once, and what is beside them once a step."""
    sinks: list[Any] = []
    with pytest.MonkeyPatch.context() as patch, options.override(device="NULL"):
        p = Tensor.zeros(64, 768).bfloat16().realize().requires_grad_()
        p.grad = Tensor.ones(64, 768).bfloat16().realize()
        optimiser = optim.AdamW([p], master_weights=master_weights)
        prepare = CompiledBackend.prepare

        def noted(self: CompiledBackend, program: Any, donated: Any) -> Any:
            sinks.append(program.sink)
            return prepare(self, program, donated)

        patch.setattr(CompiledBackend, "prepare", noted)
        optimiser.step()
        planned = len(sinks)
        optimiser.step()
    # The first step is a step like others: its states are in memory before.
    assert len(sinks) == planned
    sink = sinks[-1]
    hopper = gpu_row("sm_90a")
    plan = make_plan(canonicalise(sink, target=hopper), target=hopper)
    large = [step for step in plan.steps if any(
        plan.buffers[place].shape == (64, 768) for place in step.buffers
    )]
    assert len(large) == 1


def test_the_first_two_calls_of_a_jitted_step_are_one_program() -> None:
    """Though biases lie in one memory at first, and states are made in the first call."""
    planned: list[Any] = []
    prepare = CompiledBackend.prepare

    def noted(self: CompiledBackend, program: Any, donated: Any) -> Any:
        planned.append(program)
        return prepare(self, program, donated)

    with pytest.MonkeyPatch.context() as patch, options.override(device="NULL"):
        drawn = [Tensor.ones(8, 8) * number for number in (1, 2)]
        weights = [one.contiguous().realize().requires_grad_() for one in drawn]
        biases = [Tensor.zeros(8).contiguous().realize().requires_grad_() for _ in range(2)]
        optimiser = optim.AdamW([*weights, *biases])

        def step(x: Tensor) -> Tensor:
            optimiser.zero_grad()
            for weight, bias in zip(weights, biases, strict=True):
                x = (x @ weight + bias).relu()
            loss = x.sum()
            loss.backward()
            optimiser.step()
            return loss

        jitted, given = jit(step), Tensor.ones(4, 8).contiguous().realize()
        patch.setattr(CompiledBackend, "prepare", noted)
        jitted(given)
        first = len(planned)
        jitted(given)
    assert first and len(planned) == first


@pytest.mark.differential
@pytest.mark.parametrize("settings", [
    {}, {"nesterov": False, "weight_decay": 0.0}, {"adjust_lr_fn": "match_rms_adamw"},
])  # fmt: skip
def test_muon_steps_as_pytorchs(settings: dict[str, Any]) -> None:
    """To what bfloat16 leaves: sums of its products are added in another order."""
    rng = np.random.default_rng(0)
    start = rng.standard_normal((6, 4), np.float32)
    ours, theirs = Tensor(start, requires_grad=True), torch.tensor(start, requires_grad=True)
    mine = optim.Muon([ours], lr=0.1, **settings)
    other = torch.optim.Muon([theirs], lr=0.1, **settings)
    for _ in range(4):
        gradient = rng.standard_normal((6, 4), np.float32)
        ours.grad, theirs.grad = Tensor(gradient), torch.tensor(gradient)
        mine.step()
        other.step()
    np.testing.assert_allclose(ours.numpy(), theirs.detach().numpy(), atol=6e-3)
    with pytest.raises(ShapeError, match="Muon is for matrices"):
        optim.Muon([Tensor.ones(3, requires_grad=True)])


def valley(x: Any) -> Any:
    """Rosenbrock's function, whose least value is 0 at ones."""
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs_finds_the_least_value(search: str | None) -> None:
    x = Tensor([-1.2, 1.0, 0.5], dtype="float64", requires_grad=True)
    t = torch.tensor([-1.2, 1.0, 0.5], dtype=torch.float64, requires_grad=True)
    settings = {"lr": 0.5 if search is None else 1.0, "line_search_fn": search, "max_iter": 8}
    mine, other = optim.LBFGS([x], **settings), torch.optim.LBFGS([t], **settings)

    def ours() -> Tensor:
        mine.zero_grad()
        loss: Tensor = valley(x)
        loss.backward()
        return loss

    def theirs() -> torch.Tensor:
        other.zero_grad()
        loss: torch.Tensor = valley(t)
        loss.backward()
        return loss

    losses = []
    for _ in range(2 if search is None else 8):
        losses.append((mine.step(ours).item(), other.step(theirs).item()))
    if search is None:
        np.testing.assert_allclose(x.numpy(), t.detach().numpy(), rtol=1e-6)
        assert losses[0][0] == pytest.approx(losses[0][1])
    else:
        np.testing.assert_allclose(x.numpy(), np.ones(3), atol=1e-5)
    with pytest.raises(ArgumentError, match="computes the loss again"):
        mine.step()


def test_numbers_beside_parameters_are_loaded() -> None:
    """Of states that PyTorch made too, whose counts and products are scalars."""
    pair = Pair(lambda o, p: o.NAdam(p, lr=0.01))
    pair.step()
    state = pair.their_optimiser.state_dict()
    pair.our_optimiser.load_state_dict(state)
    for _ in range(3):
        pair.step()
    pair.check()


def test_rprop_grows_its_steps_in_the_parameters_dtype() -> None:
    x = Tensor([3.0], dtype="float64", requires_grad=True)
    optimiser = optim.Rprop([x], lr=0.1)
    for _ in range(2):
        optimiser.zero_grad()
        (x * 1.0).sum().backward()
        optimiser.step()
    assert abs(x.item() - (3.0 - 0.1 - 0.1 * 1.2)) < 1e-14


@pytest.mark.parametrize("kind", [optim.Adam, optim.RMSprop, optim.Adadelta])
def test_one_that_a_captured_function_makes_begins_anew_each_time(kind: Any) -> None:
    @jit
    def trained(x: Tensor, start: Tensor) -> Tensor:
        w = start.detach().clone().requires_grad_()
        optimizer = kind([w], lr=0.1)
        for _ in range(2):
            (w * w * x).sum().backward()
            optimizer.step()
        return w.detach()

    x, start = Tensor([0.5, 1.0, 2.0]).realize(), Tensor([1.0, 2.0, 3.0]).realize()
    w = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    theirs = getattr(torch.optim, kind.__name__)([w], lr=0.1)
    for _ in range(2):
        (w * w * torch.tensor([0.5, 1.0, 2.0])).sum().backward()
        theirs.step()
    for _ in range(5):
        np.testing.assert_allclose(trained(x, start).numpy(), w.detach().numpy(), rtol=1e-5)
