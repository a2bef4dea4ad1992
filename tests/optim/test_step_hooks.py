"""Hooks around steps and states, and rates that programs keep or set themselves."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import baregrad
from baregrad import nn, optim
from baregrad.base.errors import ArgumentError, JitError


@pytest.mark.parametrize("package", [torch, baregrad])
def test_hooks_are_called_in_order(package: Any) -> None:
    t, seen = package, []
    w = t.nn.Parameter(t.ones(2))
    optimizer = t.optim.SGD([w], 0.1)
    before = optimizer.register_step_pre_hook(lambda o, args, kwargs: seen.append("before"))
    optimizer.register_step_post_hook(lambda o, args, kwargs: seen.append("after"))
    optimizer.register_state_dict_pre_hook(lambda o: seen.append("shown"))
    optimizer.register_state_dict_post_hook(lambda o, state: {**state, "more": 1})
    optimizer.register_load_state_dict_pre_hook(
        lambda o, state: {key: state[key] for key in state if key != "more"}
    )
    optimizer.register_load_state_dict_post_hook(lambda o: seen.append("loaded"))
    w.sum().backward()
    optimizer.step()
    before.remove()
    before.remove()
    optimizer.step()
    state = optimizer.state_dict()
    assert state["more"] == 1
    optimizer.load_state_dict(state)
    assert seen == ["before", "after", "after", "shown", "loaded"]
    if package is baregrad:
        with pytest.raises(ArgumentError, match="a hook is a function"):
            optimizer.register_step_pre_hook(3)


@pytest.mark.parametrize("package", [torch, baregrad])
def test_hooks_before_a_step_make_its_arguments(package: Any) -> None:
    t, seen = package, []
    w = t.nn.Parameter(t.ones(2))
    optimizer = t.optim.SGD([w], 0.1)
    twice = {"closure": lambda: (w * 2).sum()}
    optimizer.register_step_pre_hook(lambda o, args, kwargs: ((o,), twice))
    optimizer.register_step_pre_hook(
        lambda o, args, kwargs: seen.append((args[0] is o, len(args), len(kwargs)))
    )
    for _ in range(2):
        # What those after it return is not asked.
        optimizer.register_step_post_hook(lambda o, args, kwargs: len(args))
    assert float(optimizer.step()) == 4.0
    assert seen == [(True, 1, 1)]
    optimizer.register_step_pre_hook(lambda o, args, kwargs: 3)
    with pytest.raises((ArgumentError, RuntimeError), match="None or"):
        optimizer.step()


@pytest.mark.parametrize("package", [torch, baregrad])
def test_lbfgs_calls_hooks(package: Any) -> None:
    t, seen = package, []
    w = t.nn.Parameter(t.ones(2))
    optimizer = t.optim.LBFGS([w], 0.1, max_iter=2)
    optimizer.register_step_pre_hook(lambda o, args, kwargs: seen.append("before"))
    optimizer.register_step_post_hook(lambda o, args, kwargs: seen.append("after"))

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (w * w).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert seen == ["before", "after"]


def test_hooks_are_called_once_around_a_step_of_a_subclass() -> None:
    class Scaled(optim.SGD):
        def step(self, closure: Any = None, scale: float = 1.0) -> Any:
            seen.append(scale)
            return super().step(closure)

    w, seen = nn.Parameter(baregrad.ones(2)), []  # type: ignore[var-annotated]
    optimizer = Scaled([w], 0.1)
    optimizer.register_step_pre_hook(lambda o, args, kwargs: seen.append("before"))
    optimizer.register_step_post_hook(lambda o, args, kwargs: seen.append(kwargs))
    w.sum().backward()
    optimizer.step(scale=2.0)
    assert seen == ["before", 2.0, {"scale": 2.0}]


@pytest.mark.parametrize("read", [
    lambda group: group["lr"], lambda group: group.get("lr"), lambda group: dict(group)["lr"],
    lambda group: {**group}["lr"], lambda group: dict(group.items())["lr"],
    lambda group: copy.copy(group)["lr"],
    lambda group: next(iter(group.values())),
])  # fmt: skip
def test_a_rate_that_was_read_stays(read: Any) -> None:
    optimizer = optim.SGD([nn.Parameter(baregrad.ones(1))], 1.0)
    schedule, kept = optim.lr_scheduler.StepLR(optimizer, 1, 0.5), []
    for _ in range(3):
        kept.append(read(optimizer.param_groups[0]))
        optimizer.step()
        schedule.step()
    assert [float(one) for one in kept] == [1.0, 0.5, 0.25]
    optimizer.param_groups[0].update(lr=0.125)
    optimizer.step()
    assert float(optimizer.param_groups[0].lr) == 0.125
    optimizer.param_groups[0]["lr"] *= 2
    assert float(optimizer.param_groups[0]["lr"]) == 0.25


def rates(t: Any) -> list[float]:
    """Of a schedule that a program writes itself, of one on a lambda, and of fractions."""

    class Warm(t.optim.lr_scheduler._LRScheduler if t is not torch  # type: ignore[misc]
               else t.optim.lr_scheduler.LRScheduler):  # fmt: skip
        def __init__(self, optimizer: Any, steps: int, last_epoch: int = -1) -> None:
            self.steps_up = steps
            super().__init__(optimizer, last_epoch)

        def get_lr(self) -> list[float]:
            share = min(1.0, (self.last_epoch + 1) / self.steps_up)
            return [base * share for base in self.base_lrs]

    groups = [{"params": [t.nn.Parameter(t.ones(1))]},
              {"params": [t.nn.Parameter(t.ones(1))], "lr": 0.3}]  # fmt: skip
    optimizer = t.optim.SGD(groups, 1.0)
    found: list[Any] = []
    for schedule in (
        Warm(optimizer, 4), t.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 0.9**n),
        t.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3, 2),
    ):
        for _ in range(5):
            found += [float(group["lr"]) for group in optimizer.param_groups]
            optimizer.step()
            schedule.step()
        found.append(schedule.last_epoch)
        schedule.step(2.5) if "Cosine" in type(schedule).__name__ else schedule.step()
        found += [float(one) for one in schedule.get_last_lr()]
    return found


@pytest.mark.filterwarnings("ignore")
def test_schedules_of_ones_own() -> None:
    np.testing.assert_allclose(rates(baregrad), rates(torch), rtol=1e-12)


def test_a_schedule_in_python_is_not_captured() -> None:
    class Own(optim.LRScheduler):
        def get_lr(self) -> list[float]:
            return [0.5]

    optimizer = optim.SGD([nn.Parameter(baregrad.ones(1))], 1.0)
    schedule = Own(optimizer)

    @baregrad.jit
    def step(x: baregrad.Tensor) -> baregrad.Tensor:
        schedule.step()
        return x + 1

    with pytest.raises(JitError, match="in Python"):
        for _ in range(3):
            step(baregrad.ones(1))
