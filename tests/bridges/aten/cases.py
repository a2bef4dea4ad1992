"""What the tests of operators share: one operator of PyTorch's beside the function of ours."""

from __future__ import annotations

from typing import Any

import torch

from baregrad.base.options import options
from baregrad.bridges.aten import OPERATORS
from baregrad.bridges.torch_memory import give, lend
from baregrad.tensor import Tensor


def check(name: str, *arguments: Any, overload: str = "default", **named: Any) -> None:
    """Compare results, which PyTorch computes in the same dtype."""
    operator = getattr(getattr(torch.ops.aten, name), overload)
    wanted = operator(*arguments, **named)
    function = OPERATORS.get(f"{name}.{overload}") or OPERATORS[name]
    with options.override(device="CPU"):
        found = function(*map(_ours, arguments), **{key: _ours(one) for key, one in named.items()})
        _compare(found, wanted)


def _ours(one: Any) -> Any:
    if isinstance(one, torch.Tensor):
        return lend(one, "CPU")
    if isinstance(one, (list, tuple)):
        return [_ours(each) for each in one]
    return one


def _compare(found: Any, wanted: Any) -> None:
    if isinstance(wanted, (tuple, list)):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            _compare(one, other)
    elif wanted is not None:
        assert isinstance(found, Tensor)
        torch.testing.assert_close(give(found), wanted, rtol=1e-4, atol=1e-5,
                                   equal_nan=True)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normal numbers of a seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
