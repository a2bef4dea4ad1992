"""Schedules against PyTorch's, and inside captured functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import baregrad
from baregrad import jit, optim
from baregrad.base.errors import ArgumentError, JitError
from baregrad.tensor import Tensor

THEIRS = torch.optim.lr_scheduler
CASES: tuple[tuple[str, Callable[[Any, Any], Any]], ...] = (
    ("step", lambda m, o: m.StepLR(o, 3, 0.5)),
    ("milestones", lambda m, o: m.MultiStepLR(o, [2, 5, 5], 0.5)),
    ("exponential", lambda m, o: m.ExponentialLR(o, 0.8)),
    ("cosine", lambda m, o: m.CosineAnnealingLR(o, 7, 0.01)),
    ("linear", lambda m, o: m.LinearLR(o, 0.25, 1.0, 4)),
    ("restarts", lambda m, o: m.CosineAnnealingWarmRestarts(o, 3, 1, 0.01)),
    ("longer restarts", lambda m, o: m.CosineAnnealingWarmRestarts(o, 1, 2)),
    ("three times as long", lambda m, o: m.CosineAnnealingWarmRestarts(o, 2, 3)),
    ("constant", lambda m, o: m.ConstantLR(o, 0.25, 3)),
    ("polynomial", lambda m, o: m.PolynomialLR(o, 6, 2.0)),
    ("one cycle", lambda m, o: m.OneCycleLR(o, 0.9, 11)),
    ("one cycle of epochs", lambda m, o: m.OneCycleLR(
        o, [0.9], epochs=3, steps_per_epoch=4, pct_start=0.5, anneal_strategy="linear")),
    ("three phases", lambda m, o: m.OneCycleLR(
        o, 0.9, 14, pct_start=0.4, three_phase=True, div_factor=5, final_div_factor=50)),
    ("cyclic", lambda m, o: m.CyclicLR(o, 0.1, 0.5, 3, 4, cycle_momentum=False)),
    ("cyclic lower", lambda m, o: m.CyclicLR(o, 0.1, 0.5, 2, mode="triangular2",
                                              cycle_momentum=False)),
    ("cyclic powers", lambda m, o: m.CyclicLR(o, 0.1, 0.5, 3, mode="exp_range", gamma=0.9,
                                               cycle_momentum=False)),
    ("multiplied", lambda m, o: m.MultiplicativeLR(o, lambda step: 1 - step / 20)),
    ("chained", lambda m, o: m.ChainedScheduler(
        [m.ConstantLR(o, 0.25, 3), m.ExponentialLR(o, 0.9), m.StepLR(o, 4, 0.5)])),
    ("lambda", lambda m, o: m.LambdaLR(o, lambda step: 0.9**step)),
    (
        "sequential",
        lambda m, o: m.SequentialLR(
            o, [m.LinearLR(o, 0.1, 1.0, 3), m.CosineAnnealingLR(o, 6)], [3]
        ),
    ),
)


@pytest.mark.differential
@pytest.mark.parametrize("make", [make for _, make in CASES], ids=[name for name, _ in CASES])
def test_rates_equal_pytorchs(make: Callable[[Any, Any], Any]) -> None:
    ours = optim.SGD([Tensor.ones(1, requires_grad=True)], lr=0.4)
    theirs = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.4)
    first, second = make(optim, ours), make(THEIRS, theirs)
    for _ in range(10):
        assert first.get_last_lr() == pytest.approx(second.get_last_lr(), rel=1e-12)
        assert ours.param_groups[0]["lr"].item() == first.get_last_lr()[0]
        ours.step()
        theirs.step()
        first.step()
        second.step()


@pytest.mark.differential
@pytest.mark.parametrize("captured", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("make", [make for _, make in CASES], ids=[name for name, _ in CASES])
def test_rates_go_on_from_what_something_else_set(
    make: Callable[[Any, Any], Any], captured: bool
) -> None:
    ours = optim.SGD([Tensor.ones(1, requires_grad=True)], lr=0.4)
    theirs = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.4)
    first, second = make(optim, ours), make(THEIRS, theirs)
    if captured and isinstance(first, optim.LambdaLR):
        return
    step = jit(first.step) if captured else first.step
    for turn in range(10):
        if turn in (2, 6):
            for side in (ours, theirs):
                side.param_groups[0]["lr"] = 0.3 + turn / 10
        step()
        second.step()
        assert first.get_last_lr() == pytest.approx(second.get_last_lr(), rel=1e-5), turn


@pytest.mark.differential
@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_a_cycle_again_and_again_moves_momenta(name: str) -> None:
    words = {"momentum": 0.5} if name == "SGD" else {}
    w, v = Tensor.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    ours = getattr(optim, name)([w], lr=0.1, **words)
    theirs = getattr(torch.optim, name)([v], lr=0.1, **words)
    first = optim.lr_scheduler.CyclicLR(ours, 0.01, 0.2, 2, 3)
    second = THEIRS.CyclicLR(theirs, 0.01, 0.2, 2, 3)
    for step in range(8):
        w.grad, v.grad = Tensor([1.0, -step, 2.0]), torch.tensor([1.0, -step, 2.0])
        ours.step()
        theirs.step()
        first.step()
        second.step()
        np.testing.assert_allclose(w.numpy(), v.detach().numpy(), rtol=1e-5)


@pytest.mark.differential
@pytest.mark.parametrize("settings", [{}, {"three_phase": True, "anneal_strategy": "linear"}])
@pytest.mark.parametrize(("name", "words"), [
    ("SGD", {"momentum": 0.5}), ("SGD", {"momentum": 0.9, "nesterov": True}), ("Adam", {}),
    ("AdamW", {"weight_decay": 0.1}), ("RMSprop", {"momentum": 0.3}),
])  # fmt: skip
@pytest.mark.parametrize("captured", [False, True])
def test_a_cycle_moves_momenta_too(
    name: str, words: dict[str, Any], settings: dict[str, Any], captured: bool
) -> None:
    data = np.random.default_rng(0).standard_normal((12, 5)).astype(np.float32)
    w, v = Tensor(data[0], requires_grad=True), torch.tensor(data[0], requires_grad=True)
    ours = getattr(optim, name)([w], lr=0.1, **words)
    theirs = getattr(torch.optim, name)([v], lr=0.1, **words)
    first = optim.OneCycleLR(ours, 0.05, 12, **settings)
    second = THEIRS.OneCycleLR(theirs, 0.05, 12, **settings)

    def step(x: Tensor) -> Tensor:
        ours.zero_grad()
        loss = ((w - x) ** 2).sum()
        loss.backward()
        ours.step()
        first.step()
        return loss

    run = jit(step) if captured else step
    for x in data[1:]:
        theirs.zero_grad()
        ((v - torch.tensor(x)) ** 2).sum().backward()
        theirs.step()
        second.step()
        run(Tensor(x))
        np.testing.assert_allclose(w.numpy(), v.detach().numpy(), rtol=2e-4, atol=1e-5)
    key = "betas" if "Adam" in name else "momentum"
    found, wanted = ours.state_dict()["param_groups"][0][key], theirs.param_groups[0][key]
    assert found == pytest.approx(wanted, rel=1e-6)
    if captured:
        assert run.captures == 1  # type: ignore[attr-defined]


def test_cycles_that_are_none() -> None:
    ours = optim.SGD([Tensor.ones(1, requires_grad=True)], lr=0.4)
    for words, told in (
        ({"max_lr": 1.0}, "a cycle has steps: found 0"),
        ({"max_lr": [1.0, 2.0], "total_steps": 3}, "2 peaks for 1 groups"),
        ({"max_lr": 1.0, "total_steps": 3, "pct_start": 2}, "a share"),
        ({"max_lr": 1.0, "total_steps": 3, "anneal_strategy": "up"}, "found 'up'"),
    ):
        with pytest.raises(ArgumentError, match=told):
            optim.OneCycleLR(ours, **words)
    with pytest.raises(ArgumentError, match="from 1 on: found 0, 1"):
        optim.CosineAnnealingWarmRestarts(ours, 0)


FIGURES = (3.0, 2.0, 2.0, 2.1, 1.9999, 1.5, 1.6, 1.7, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0, 2.1)


@pytest.mark.differential
@pytest.mark.parametrize(
    "settings",
    [
        {"patience": 1},
        {"patience": 0, "cooldown": 2, "factor": 0.5, "min_lr": 0.03},
        {"mode": "max", "patience": 2, "threshold": 0.3, "threshold_mode": "abs"},
    ],
)
def test_rates_of_a_plateau_equal_pytorchs(settings: dict[str, Any]) -> None:
    ours = optim.SGD([Tensor.ones(1, requires_grad=True)], lr=0.4)
    theirs = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.4)
    first = optim.ReduceLROnPlateau(ours, **settings)
    second = THEIRS.ReduceLROnPlateau(theirs, **settings)
    rates = []
    for number, figure in enumerate(FIGURES):
        if number == 6:  # goes on from its state
            state = first.state_dict()
            first = optim.ReduceLROnPlateau(ours, **settings)
            first.load_state_dict(state)
        first.step(Tensor(figure) if number % 2 else figure)
        second.step(figure)
        rates += first.get_last_lr()
        assert rates[-1] == pytest.approx(theirs.param_groups[0]["lr"], rel=1e-12)
    assert len(set(rates)) > 1


def test_warmup_starts_at_its_factor_and_ends_at_the_base() -> None:
    optimiser = optim.SGD([Tensor.ones(1, requires_grad=True)], lr=0.4)
    schedule = optim.LinearWarmup(optimiser, 4)
    rates = []
    for _ in range(6):
        rates += schedule.get_last_lr()
        schedule.step()
    assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.4])


def test_a_schedule_goes_on_from_its_state() -> None:
    def made() -> optim.StepLR:
        return optim.StepLR(optim.SGD([Tensor.ones(1, requires_grad=True)], lr=1.0), 2, 0.5)

    first, second = made(), made()
    for _ in range(3):
        first.step()
    second.load_state_dict(first.state_dict())
    assert second.get_last_lr() == first.get_last_lr() == [0.5]
    second.step()
    assert second.get_last_lr() == [0.25]


def test_wrong_lists_are_errors() -> None:
    optimiser = optim.SGD([Tensor.ones(1, requires_grad=True)], lr=1.0)
    with pytest.raises(ValueError, match="milestones"):
        optim.SequentialLR(optimiser, [optim.StepLR(optimiser, 1)], [3])
    with pytest.raises(ValueError, match="min or max.*'best'"):
        optim.ReduceLROnPlateau(optimiser, "best")
    with pytest.raises(ValueError, match="reduces.*not 1.5"):
        optim.ReduceLROnPlateau(optimiser, factor=1.5)
    with pytest.raises(ValueError, match="2 functions"):
        optim.LambdaLR(optimiser, [lambda s: 1.0, lambda s: 1.0])


def run_steps(jitted: bool, outside: bool) -> tuple[list[float], list[float]]:
    """Parameters and rates over steps, captured or not, scheduled inside the function or not."""
    from baregrad.tensor.jit.jit import Jit

    p = Tensor([1.0, -2.0], requires_grad=True)
    optimiser = optim.AdamW([p], lr=0.1)
    schedule = optim.StepLR(optimiser, 2, 0.5)

    def step(x: Tensor) -> Tensor:
        optimiser.zero_grad()
        loss = (p * x).square().sum()
        loss.backward()
        optimiser.step()
        if not outside:
            schedule.step()
        return loss

    call: Any = Jit(step) if jitted else step
    rates = []
    for number in range(7):
        call(Tensor([1.0, float(number)]))
        if outside:
            schedule.step()
        rates += schedule.get_last_lr()
    if jitted:
        assert call.captures == 1
        assert call.replays == 5
    return p.tolist(), rates


@pytest.mark.parametrize("outside", [False, True])
def test_captured_steps_see_the_rates(outside: bool) -> None:
    eager, rates = run_steps(False, outside)
    assert rates == [0.1, 0.05, 0.05, 0.025, 0.025, 0.0125, 0.0125]
    assert run_steps(True, outside) == (eager, rates)


def test_a_python_schedule_is_refused_inside_a_captured_function() -> None:
    from baregrad.tensor.jit.jit import Jit

    optimiser = optim.SGD([Tensor.ones(1, requires_grad=True)], lr=1.0)
    schedule = optim.LambdaLR(optimiser, lambda step: 0.5**step)

    def step(x: Tensor) -> Tensor:
        schedule.step()
        return x + 1

    with pytest.raises(JitError, match="LambdaLR"):
        Jit(step)(Tensor([1.0]))


def test_a_chain_of_no_list_is_refused() -> None:
    with pytest.raises(ArgumentError, match="a chain is of schedules"):
        optim.ChainedScheduler(np.float16(1.0))  # type: ignore[arg-type]


def others(library: Any, tensor: Any, save: bool) -> list[float]:
    """Rates of two schedules of one optimiser, which the second goes on from as it is made."""
    kinds = library.optim.lr_scheduler if library is torch else library.optim

    def made() -> tuple[Any, list[Any]]:
        optimiser = library.optim.SGD([library.nn.Parameter(tensor([1.0]))], lr=0.5)
        return optimiser, [
            kinds.LinearLR(optimiser, 0.1, 1.0, 3), kinds.CosineAnnealingLR(optimiser, 6),
        ]

    optimiser, schedules = made()
    rates = []
    for number in range(8):
        rates += schedules[1].get_last_lr()
        if save and number == 4:
            states = [each.state_dict() for each in (optimiser, *schedules)]
            optimiser, schedules = made()
            for each, state in zip((optimiser, *schedules), states, strict=True):
                each.load_state_dict(state)
        for each in schedules:
            each.step()
    return rates


@pytest.mark.parametrize("save", [False, True])
def test_schedules_go_on_from_those_made_before_and_from_saved_rates(save: bool) -> None:
    wanted = others(torch, torch.tensor, save)
    assert others(baregrad, Tensor, save) == pytest.approx(wanted, rel=1e-6)
    assert wanted[0] == pytest.approx(0.05)
