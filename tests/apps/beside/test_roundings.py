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
