"""Schedules against PyTorch's, and inside captured functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from baregrad import optim
from baregrad.base.errors import JitError
from baregrad.tensor import Tensor

THEIRS = torch.optim.lr_scheduler
CASES: tuple[tuple[str, Callable[[Any, Any], Any]], ...] = (
    ("step", lambda m, o: m.StepLR(o, 3, 0.5)),
    ("milestones", lambda m, o: m.MultiStepLR(o, [2, 5, 5], 0.5)),
    ("exponential", lambda m, o: m.ExponentialLR(o, 0.8)),
    ("cosine", lambda m, o: m.CosineAnnealingLR(o, 7, 0.01)),
    ("linear", lambda m, o: m.LinearLR(o, 0.25, 1.0, 4)),
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
    from baregrad.tensor.jit import Jit

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
    from baregrad.tensor.jit import Jit

    optimiser = optim.SGD([Tensor.ones(1, requires_grad=True)], lr=1.0)
    schedule = optim.LambdaLR(optimiser, lambda step: 0.5**step)

    def step(x: Tensor) -> Tensor:
        schedule.step()
        return x + 1

    with pytest.raises(JitError, match="LambdaLR"):
        Jit(step)(Tensor([1.0]))
