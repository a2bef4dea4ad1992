"""Whether the warps of a block can be parted as a schedule says: those that copy, and all others.

A block gets as many registers for each thread as for any other when it is launched. What copiers
give back the others may take (`setmaxnreg`), four warps at a time, and wait until it is there: of
more than a block was given they would wait for ever.
"""

from __future__ import annotations

from math import prod

from baregrad.base.errors import ScheduleError
from baregrad.ir.core.axes import THREAD_BINDS
from baregrad.kernel.facts.axis_table import AxisTable
from baregrad.kernel.gpu.boxes import ENGINE
from baregrad.kernel.language.schedule import Roles, illegal
from baregrad.target.gpu import GpuTarget


def check_step(table: AxisTable, step: Roles) -> None:
    """Note a step, or raise ScheduleError where the machine cannot part warps as it says."""
    target = table.gpu
    if target is None or not target.bulk_copies:
        raise illegal(
            step, "warps are parted where an engine copies for some of them",
            found="a CPU" if target is None else target.name,
            wanted="a GPU of compute capability 9.0", hint="leave the step out",
        )
    if table.roles is not None:
        raise illegal(step, "the warps of a block are parted once", found=str(table.roles),
                      hint="keep one of the two")  # fmt: skip
    _check_registers(target, step)
    table.roles = step


def _check_registers(target: GpuTarget, step: Roles) -> None:
    """Whether threads can ask for as many registers as a step says."""
    kept = [registers for _, registers in (step.copies, step.products)]
    if not any(kept):
        return
    shift = target.register_shift
    if not shift:
        raise illegal(
            step, f"{target.name} has no registers that change hands (setmaxnreg)",
            found=f"{kept[0]} and {kept[1]} registers", wanted="numbers of warps alone",
            hint=f"roles(copies={step.copies[0]}, products={step.products[0]})",
        )
    for name, (warps, registers) in (("copies", step.copies), ("products", step.products)):
        if registers not in shift:
            raise illegal(
                step, f"a thread cannot ask for so many registers: {name}",
                found=registers or "none", hint="registers of both roles, or of neither",
                wanted=f"a multiple of {shift.step}, {shift.start} to {shift[-1]}",
            )
        if warps % target.warpgroup_warps:
            raise illegal(
                step, f"{target.warpgroup_warps} warps take and give registers together: {name}",
                found=f"{warps} warps", wanted=f"a multiple of {target.warpgroup_warps}",
                hint="other numbers of warps, or no registers",
            )
    warps = step.copies[0] + step.products[0]
    given = target.registers_at_launch(warps * target.warp_lanes)
    total = sum(count * registers for count, registers in (step.copies, step.products))
    if total > given * warps:
        raise illegal(
            step, "a block has not so many registers, and its threads would wait for ever",
            found=f"{total * target.warp_lanes:,}",
            wanted=f"at most {given * warps * target.warp_lanes:,}: {given} for each thread of "
            f"{warps} warps", hint="fewer for a thread of either role",
        )


def check_roles(table: AxisTable) -> None:
    """Raise ScheduleError where boxes have no warps of their own, or these have no boxes.

    Likewise where a step says of other warps than a block has that they multiply.
    """
    step, target = table.roles, table.gpu
    copies = any(one.engine == ENGINE for one in table.pipelines)
    if step is None:
        if copies:
            raise ScheduleError(
                "boxes are copied by warps that do nothing else",
                found=f"pipeline(..., engine={ENGINE!r}) and no such warps",
                wanted="roles(copies=4, products=...) beside it",
                hint="with pipeline(..., engine='async') all warps copy",
            )
        return
    if not copies:
        raise illegal(
            step, "some warps have boxes to copy, and there are none",
            wanted=f"pipeline(..., engine={ENGINE!r})", hint="leave the step out: all warps copy",
        )
    assert target is not None
    # Axes of one dimension of the block are as long as each other.
    sizes = {axis.unit: axis.extent for axis in table.axes.values() if axis.unit in THREAD_BINDS}
    block = table.matrix * prod([each for each in sizes.values() if isinstance(each, int)])
    there = block * table.teams // target.warp_lanes
    if step.products[0] != there:
        raise illegal(
            step, "all warps that do not copy multiply", found=f"{step.products[0]} warps",
            wanted=f"{there}: {table.teams} teams of {there // table.teams}" if table.teams > 1
            else f"{there}", hint=f"products={there}, or other threads of a block",
        )
    most = target.threads_per_block // target.warp_lanes
    if step.copies[0] + there > most:
        raise illegal(
            step, "a block has not so many warps", found=f"{step.copies[0]} + {there}",
            wanted=f"at most {most}", hint="copies=4, or fewer threads",
        )
