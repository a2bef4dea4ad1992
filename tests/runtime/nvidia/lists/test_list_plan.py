"""What of a list may overlap: what touches no bytes of each other, nor a module's variables."""

from __future__ import annotations

import pytest

from baregrad.program import CUBIN, GpuLaunch, Program
from baregrad.runtime.commands import Exec, Kernel
from baregrad.runtime.null import NullDevice
from baregrad.runtime.nvidia.lists.list_plan import plan_list

ENTRY = """
.visible .entry k(
    .param .u64 .ptr .global .align 1 k_x
) { ld.global.u32 %r1, [x]; ret; }
"""


def kernel(source: str, address: int) -> Kernel:
    launch = GpuLaunch((1, 1, 1), (32, 1, 1))
    program = Program("k", CUBIN, b"", "k", (), source=source, launch=launch)
    return Kernel(NullDevice("NV"), program, address, None)


DECLARED = (
    ".global .align 4 .u32 n;", ".visible\t.global\t.b8 n[4];", f"{ENTRY}.global .u32 n;",
    "__device__ int n;", "__device__ __align__(16) float n[4];", "__device__ int n = 1;",
)  # fmt: skip


@pytest.mark.parametrize("declared", DECLARED)
def test_launches_that_share_variables_come_one_after_the_other(declared: str) -> None:
    shared, other = (kernel(f"{declared}\n{ENTRY}", address) for address in (4096, 8192))
    plain = kernel(ENTRY, 12288)
    assert shared.program.keeps_variables and not plain.program.keeps_variables
    for first, second, waits in ((shared, shared, 1), (shared, other, 0), (plain, plain, 0)):
        plan = plan_list([Exec(first, ()), Exec(second, ())])
        assert [step.kind for step in plan.compute] == ["run", *["idle"] * waits, "run"]


@pytest.mark.parametrize("declared", [
    "static __device__ __forceinline__ int f(int x) { return x; }",
    "__device__ __launch_bounds__(4) int\nf(const int *x);", "__device__ void f() { int n[4]; }",
])  # fmt: skip
def test_functions_are_no_variables(declared: str) -> None:
    assert not kernel(declared, 4096).program.keeps_variables
