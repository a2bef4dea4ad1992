"""Warps that are parted as a schedule says: what is edited runs, and what cannot be is told."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from baregrad.base.errors import ScheduleError
from baregrad.ir.core.op import Ops
from baregrad.kernel import Schedule, choose_schedule, lower, parse_schedule
from baregrad.kernel.language.schedule import Roles, persist, roles
from baregrad.render import get
from baregrad.render.gpu import gpu_signature
from baregrad.testing.virtual_gpu.ptx.errors import KernelFault
from baregrad.testing.virtual_gpu.ptx.program import PtxModule
from tests.kernel import kernels as k
from tests.kernel.gpu.test_roles import BRAIN, TMA, by_threads, piped
from tests.kernel.gpu.test_teams import in_teams
from tests.kernel.gpu_kernels import HOPPER, lowered, run_text, run_threads
from tests.kernel.instructions.test_mma_sync import product
from tests.kernel.instructions.test_wgmma import roles_text
from tests.kernel.test_gpu_assembles import assembled, needs_ptxas
from tests.render.gpu_harness import run_module

KERNEL = product(256, 64, 192, b_t=True)
SPELLED = piped((False, True), TMA.format(2), groups=2)


def edited(spelled: str) -> str:
    """The schedule with other roles."""
    assert roles_text(8) in SPELLED
    return SPELLED.replace(roles_text(8), spelled)


def changes(spelled: str) -> list[tuple[str, int]]:
    """Where a schedule's text has registers change hands, the way and how many a thread has."""
    text = get("ptx").render(lowered(KERNEL, spelled)[1], HOPPER)
    found = re.findall(r"setmaxnreg\.(inc|dec)\.sync\.aligned\.u32 (\d+);", text)
    return [(way, int(count)) for way, count in found]


@pytest.mark.parametrize(("spelled", "wanted"), [
    ("roles(copies=(4, 24), products=(8, 240))", [("dec", 24), ("inc", 240)]),
    ("roles(copies=(4, 56), products=(8, 224))", [("dec", 56), ("inc", 224)]),
    # Fewer than the launch gave either; as many, of which nothing needs to be said; of two blocks.
    ("roles(copies=(4, 40), products=(8, 104))", [("dec", 40), ("dec", 104)]),
    ("roles(copies=(4, 40), products=(8, 168))", [("dec", 40)]),
    ("roles(copies=(8, 24), products=(8, 104))", [("dec", 24), ("inc", 104)]),
    # Nothing changes hands: any number of warps copies.
    ("roles(copies=4, products=8)", []),
    ("roles(copies=1, products=8)", []),
    ("roles(copies=3, products=8)", []),
])  # fmt: skip
def test_edited_roles_run(spelled: str, wanted: list[tuple[str, int]]) -> None:
    """The PTX has what is written, and gives the bits of copies by all threads."""
    arrays = k.arguments(KERNEL)
    expected = run_text(*lowered(KERNEL, by_threads(SPELLED)), arrays)[0]
    k.assert_equal({0: k.run_kernel(KERNEL, arrays)[0]}, {0: expected})
    loop, program = lowered(KERNEL, edited(spelled))
    np.testing.assert_array_equal(run_text(loop, program, arrays)[0], expected)
    np.testing.assert_array_equal(run_threads(loop, program, arrays)[0], expected)
    step = parse_schedule(edited(spelled)).steps[-1]
    assert isinstance(step, Roles)
    assert gpu_signature(program).threads == 32 * (step.copies[0] + step.products[0])
    assert changes(edited(spelled)) == wanted


def test_without_a_role_all_warps_copy() -> None:
    program = lowered(KERNEL, by_threads(SPELLED))[1]
    names = {one.arg.name for one in program.src if one.op is Ops.MACHINE}
    assert program.arg.roles == () and gpu_signature(program).threads == 256
    assert "cp.async" in " ".join(names) and not names & {"warps", "role.registers", "tma.box"}


def test_the_planner_writes_who_copies() -> None:
    """What a multiprocessor has is shared out whole, but for what eights do not divide."""
    chosen = choose_schedule(product(4096, 4096, 4096, b_t=True, dtype=BRAIN), HOPPER)
    (step,) = [one for one in chosen.steps if isinstance(one, Roles)]
    (copiers, few), (others, many) = step.copies, step.products
    each = 32 * (copiers * few + others * many)
    assert few < many and 0 <= HOPPER.registers_per_unit - each < 32 * 8 * (copiers + others)
    assert parse_schedule(str(chosen)) == chosen


@pytest.mark.parametrize("step", [
    roles(copies=4, products=8), roles(copies=(4, 24), products=(8, 240)),
    roles(copies=(4, 0), products=12), roles(copies=1, products=(4, 24)),
], ids=str)  # fmt: skip
def test_what_is_printed_is_parsed(step: Roles) -> None:
    assert parse_schedule(str(Schedule((step,)))) == Schedule((step,))
    assert str(parse_schedule(f"Schedule({step})")) == f"Schedule({step})"


@pytest.mark.parametrize("spelled", [
    "roles()", "roles(copies=4)", "roles(4, 8)", "roles(copies=0, products=8)",
    "roles(copies=(4, -8), products=8)", "roles(copies=(4, 40, 1), products=8)",
    "roles(copies=[4, 40], products=8)", "roles(copies='4', products=8)",
    "roles(copies=True, products=8)", "roles(copies=4, products=8, stores=4)",
])  # fmt: skip
def test_what_is_no_role_is_refused(spelled: str) -> None:
    with pytest.raises(ScheduleError, match="argument"):
        parse_schedule(f"Schedule({spelled})")


@pytest.mark.parametrize(("spelled", "why"), [
    ("roles(copies=(4, 40), products=(8, 230))", "found 230, wanted a multiple of 8, 24 to 256"),
    ("roles(copies=(4, 16), products=(8, 232))", "found 16, wanted a multiple of 8"),
    ("roles(copies=(4, 40), products=(8, 264))", "found 264, wanted a multiple of 8"),
    ("roles(copies=(4, 40), products=8)", "products: found none, .*of both roles, or of neither"),
    ("roles(copies=(1, 40), products=(8, 232))", "copies: found 1 warps, wanted a multiple of 4"),
    ("roles(copies=(4, 40), products=(8, 240))", "wait for ever: found 66,560, wanted at most 64,"),
    ("roles(copies=4, products=12)", "found 12 warps, wanted 8"),
    ("roles(copies=4, products=4)", "found 4 warps, wanted 8"),
    ("roles(copies=25, products=8)", r"not so many warps: found 25 \+ 8, wanted at most 32"),
    ("roles(copies=4, products=8), roles(copies=4, products=8)", "parted once"),
])  # fmt: skip
def test_roles_that_cannot_be_are_told(spelled: str, why: str) -> None:
    with pytest.raises(ScheduleError, match=why):
        lower(KERNEL, HOPPER, parse_schedule(edited(spelled)))


def test_roles_belong_to_boxes() -> None:
    without = SPELLED.replace(f", {roles_text(8)}", "")
    with pytest.raises(ScheduleError, match=r"no such warps, wanted roles\(copies=4, .*'async'"):
        lower(KERNEL, HOPPER, parse_schedule(without))
    with pytest.raises(ScheduleError, match="there are none: wanted pipeline"):
        lower(KERNEL, HOPPER, parse_schedule(SPELLED.replace("'tma'", "'async'")))


def test_machines_that_part_no_warps() -> None:
    plain = Schedule((roles(copies=4, products=8),))
    with pytest.raises(ScheduleError, match=r"found sm_80, wanted a GPU of .* 9\.0"):
        lower(KERNEL, replace(HOPPER, name="sm_80", barrier_transfer_bytes=0), plain)
    fixed = replace(HOPPER, register_shift=range(0))
    with pytest.raises(ScheduleError, match=r"setmaxnreg.*; roles\(copies=4, products=8\)"):
        lower(KERNEL, fixed, parse_schedule(SPELLED))
    lower(KERNEL, fixed, parse_schedule(edited("roles(copies=4, products=8)")))


def test_teams_are_all_that_multiply() -> None:
    kernel = product(256, 64, 192, b_t=True)
    spelled = in_teams(piped((False, True), TMA.format(3), 2))
    assert persist(2, 2) in parse_schedule(spelled).steps
    with pytest.raises(ScheduleError, match="found 4 warps, wanted 8: 2 teams of 4"):
        lower(kernel, HOPPER, parse_schedule(spelled.replace(roles_text(8), roles_text(4))))


def test_more_registers_than_there_are_would_be_waited_for() -> None:
    """The virtual GPU says so of a text: what is refused above is no whim."""
    program = lowered(KERNEL, SPELLED)[1]
    arrays = [array for _, array in sorted(k.arguments(KERNEL).items())]
    right = get("ptx").render(program, HOPPER)
    run_module(PtxModule.parse(right), program, arrays)
    wrong = right.replace("inc.sync.aligned.u32 232", "inc.sync.aligned.u32 240")
    assert wrong != right
    with pytest.raises(KernelFault):
        run_module(PtxModule.parse(wrong), program, arrays)


@needs_ptxas
@pytest.mark.parametrize("spelled", [
    "roles(copies=(4, 24), products=(8, 240))", "roles(copies=(4, 72), products=(8, 216))",
    "roles(copies=1, products=8)",
])  # fmt: skip
def test_edited_roles_assemble(spelled: str) -> None:
    program = lowered(KERNEL, edited(spelled))[1]
    registers, spilled = assembled(get("ptx").render(program, HOPPER), "sm_90a")
    assert registers > 0 and not spilled
