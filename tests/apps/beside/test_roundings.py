"""PyTorch's ops with one more rounding: as far as half a unit in the last place, and no further."""

from __future__ import annotations

import pytest

from baregrad.apps.beside.roundings import rounding_mode

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32"])
def test_results_are_off_by_half_a_unit_at_most(name: str) -> None:
    dtype = getattr(torch, name)
    x = torch.linspace(1, 3, 999, dtype=torch.float64).to(dtype)
    with rounding_mode(torch, "cpu", 1):
        once = x * 2
    off = once.double() / (x * 2).double() - 1
    eps = torch.finfo(dtype).eps
    assert eps / 4 < off.abs().max() <= eps * 1.01
    assert off.min() < 0 < off.max()
    with rounding_mode(torch, "cpu", 1):
        assert torch.equal(x * 2, once)
    with rounding_mode(torch, "cpu", 2):
        assert not torch.equal(x * 2, once)


def test_gradients_are_rounded_and_what_is_no_new_number_is_not() -> None:
    x = torch.ones(64, requires_grad=True)
    with rounding_mode(torch, "cpu", 0):
        (slope,) = torch.autograd.grad((x * 3).sum(), [x])
        view, places = x.detach()[3:], torch.arange(64)
        changed = torch.zeros(64)
        changed.add_(1.0)
        # Where it is copied to are no random numbers of the mode's.
        elsewhere = x.detach().to("meta")
    assert 0 < (slope / 3 - 1).abs().max() < 1e-6
    assert torch.equal(view, torch.ones(61))
    assert torch.equal(changed, torch.ones(64))
    assert torch.equal(places, torch.tensor([*range(64)]))
    assert elsewhere.device.type == "meta"


def test_formulas_are_as_far_off_as_their_steps() -> None:
    """What cancels inside of an op is off by more than its result's last place; nothing else is."""
    gelu = torch.nn.functional.gelu
    for low, high, least, most in ((-4.5, -3.5, 1e-4, 1e-1), (0.5, 3.0, 1e-8, 1e-6)):
        x = torch.linspace(low, high, 999, requires_grad=True)
        exact = gelu(x.detach().double())
        with rounding_mode(torch, "cpu", 3):
            once = gelu(x)
            (slope,) = torch.autograd.grad(once.sum(), [x])
        assert least < (once / exact - 1).abs().max() < most
        assert once.dtype is slope.dtype is torch.float32


def test_formulas_of_which_nothing_cancels_stay_near() -> None:
    rows, functional = torch.linspace(-2, 3, 640).reshape(10, 64), torch.nn.functional
    rows = rows[:, torch.randperm(64, generator=torch.Generator().manual_seed(0))].requires_grad_()
    weights = torch.cos(torch.arange(640.0)).reshape(10, 64)
    for name, more in (("softmax", (-1,)), ("layer_norm", ((64,),)), ("silu", ())):
        function = getattr(functional, name)
        made = [function(rows, *more)]
        made += torch.autograd.grad((made[0] * weights).sum(), [rows])
        with rounding_mode(torch, "cpu", 4):
            again = [function(rows, *more)]
            again += torch.autograd.grad((again[0] * weights).sum(), [rows])
        for one, other in zip(made, again, strict=True):
            assert 0 < (one - other).abs().max() / one.abs().max() < 1e-5, name
