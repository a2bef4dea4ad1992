"""What a row of the suite `gpu` is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from baregrad.apps.beside.two_sides import PEER_LIMIT_S
from baregrad.apps.beside.worker import Case
from baregrad.base.errors import UnsupportedDevice
from baregrad.dtypes import dtypes
from baregrad.kernel.instructions.wgmma import has_groups
from baregrad.target.gpu import gpu_row

BFLOAT16 = 2.0**-7
FLOAT32 = 1e-5
TFLOAT32 = 2.0**-11
PYTORCH = "torch"
COMPILED = "torch.compile"
COPY = "copy"


@dataclass(frozen=True, slots=True)
class GpuRow:
    """A name, a bar, and the work, at its own size or at a tiny one that any device can do.

    `by_warps`: the bar where no groups of warps multiply (`wgmma`), if it is another one.
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
    by_warps: float | None = None

    def bar_on(self, target: str) -> float | None:
        """Return the bar on a machine, by the name of its target, as sm_90a:sm_80."""
        if self.by_warps is None:
            return self.bar
        try:
            of_groups = has_groups(gpu_row(target), dtypes.bfloat16)
        except UnsupportedDevice:
            of_groups = False
        return self.bar if of_groups else self.by_warps
