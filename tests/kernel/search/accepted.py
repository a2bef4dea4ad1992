"""Whether a schedule is accepted; then it computes what its kernel does, at every level."""

from __future__ import annotations

from baregrad.base.errors import ScheduleError
from baregrad.ir.core.node import Node
from baregrad.ir.verify.verify import verify
from baregrad.kernel import Schedule, apply_schedule, lower
from baregrad.target.cpu import cpu_row_named
from tests.kernel import kernels as k

AVX = cpu_row_named("x86-64-avx2")


def same(kernel: Node, schedule: Schedule) -> bool:
    """That a schedule computes what its kernel does; False where it is refused as a whole."""
    arrays = k.arguments(kernel)
    wanted = k.run_kernel(kernel, arrays)
    try:
        applied = apply_schedule(kernel, schedule, AVX)
        loop = lower(kernel, AVX, schedule)
    except ScheduleError as error:
        assert str(error)
        return False
    verify(loop, "loop")
    k.assert_equal(wanted, k.run_kernel(applied, arrays))
    k.assert_equal(wanted, k.run_loop(loop, arrays))
    return True
