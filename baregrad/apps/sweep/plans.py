"""The kernels of a row: what they move and do, how they were planned, and how fast they could be.

The roofline as in `explain`: a kernel takes at least what its bytes take at the rate of a copy, and
what its operations take at the rate of a large product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from baregrad.apps.beside.ours import Ours
from baregrad.engine.explain_kernel import Found, choice_lines, work_of
from baregrad.ir.core.node import Node
from baregrad.kernel import choose


def noted(side: Ours, run: Callable[[], Any], has_plans: bool) -> list[dict[str, Any]]:
    """Run work once and return its kernels, with their plans where they are asked for."""
    found: dict[Node, Found] = {}
    counts: dict[Node, int] = {}

    def note(one: Any) -> None:
        for launch in [step for part in one.programs for step in part.executable.plan.steps]:
            kernel = launch.kernel
            found.setdefault(kernel, Found(kernel, one.program.variables))
            counts[kernel] = counts.get(kernel, 0) + 1

    with side.session.watching.observing(note):
        run()
        side.wait()
    return merged(
        [_record(side, one, counts[kernel], has_plans) for kernel, one in found.items()]
    )


def merged(kernels: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return kernels with those that differ in no more than their constants as one."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for one in kernels:
        key = tuple(str(one[name]) for name in one if name != "launches")
        if key in found:
            found[key]["launches"] += one["launches"]
        else:
            found[key] = dict(one)
    return list(found.values())


def _record(side: Ours, found: Found, launches: int, has_plans: bool) -> dict[str, Any]:
    work = work_of(found)
    record: dict[str, Any] = {
        "name": found.kernel.arg.name, "launches": launches, "nbytes": work.nbytes,
        "operations": work.operations,
    }
    if has_plans:
        choice = choose(found.kernel, side.backend.compiler.target)
        record["plan"] = choice_lines(choice, found.kernel.arg.name)
    return record


def least_seconds(
    kernel: Mapping[str, Any], bytes_per_s: float, flops_per_s: float
) -> float:
    """Return what one launch of a kernel takes at least."""
    nbytes, operations = float(kernel["nbytes"]), float(kernel["operations"])
    return max(nbytes / bytes_per_s, operations / flops_per_s)
