"""What a row of the suite `gpu` is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from baregrad.apps.beside.two_sides import PEER_LIMIT_S
from baregrad.apps.beside.worker import Case

BFLOAT16 = 2.0**-7
FLOAT32 = 1e-5
TFLOAT32 = 2.0**-11
PYTORCH = "torch"
COMPILED = "torch.compile"
COPY = "copy"


@dataclass(frozen=True, slots=True)
class GpuRow:
    """A name, a bar, and the work, at its own size or at a tiny one that any device can do.

    `against`: whose time, or rate, the bar is a share of: PyTorch's, that of what its compiler
    makes, or a copy's. `tolerance`: of the largest difference by the largest magnitude. `limit_s`,
    `peer_limit_s`: how long our side and PyTorch's may take from the question to their results.
    """

    name: str
    bar: float | None
    case: Callable[[bool], Case]
    against: str = PYTORCH
    tolerance: float = BFLOAT16
    limit_s: float = 20.0
    peer_limit_s: float = PEER_LIMIT_S
