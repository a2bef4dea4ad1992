"""How the kernels of products are planned for a GPU, which need not be there.

    python benchmarks/gpu_contractions.py [--target sm_90a] [--only GLOB] [--registers]

The cases are the products and convolutions of `baregrad bench --suite gpu`, which times them beside
PyTorch and compares values. Each kernel is told with its arrays, its grid, the reasons for its
schedule, and whether it is on the matrix unit; --registers assembles those that are, and tells what
they hold and spill. The exit status says whether all products of 16-bit floats are on the unit.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from baregrad.apps.beside.ours import with_gradients
from baregrad.apps.gpu_suite.products import CONVOLUTIONS, PRODUCTS
from baregrad.base.options import options
from baregrad.dtypes import as_dtype
from baregrad.engine.compiler import Compiler
from baregrad.graph import canonicalise
from baregrad.ir.core.node import Node
from baregrad.kernel import choose, facts_of, grid_size, lower
from baregrad.kernel.language.schedule import Tensorize
from baregrad.render import get
from baregrad.schedule import make_plan
from baregrad.target import gpu_row
from baregrad.tensor import Tensor
from benchmarks.kernel_digests import listening
from benchmarks.matrix_units import outside


def plans_of(case: Any, target: Any) -> list[Any]:
    """The plans of a case of the suite for a machine; nothing is run."""
    sinks: dict[Node, None] = {}
    with options.override(device="NULL", cache=False):
        inputs = [
            Tensor.rand(*draw.shape).cast(as_dtype(draw.dtype)).realize() for draw in case.inputs
        ]
        work = case.ours
        if case.wanted:
            work = with_gradients(work, case.wanted, case.is_scalar, case.alone)
        with listening(sinks):
            results = work(*inputs)
            first, *others = results if isinstance(results, list | tuple) else [results]
            first.realize(*others)
    return [make_plan(canonicalise(sink, target=target), target=target) for sink in sinks]


def assembled(kernel: Node, target: Any) -> str:
    """Registers and spills of a kernel, in the assembler's words."""
    *_, last = Compiler(target, get("ptx"), None, None).stages(kernel)
    text = str(last.result).encode()
    # It may replace what it writes to, `/dev/null` as well.
    with tempfile.TemporaryDirectory() as folder:
        command = ["ptxas", "-v", f"-arch={target.name}", "-fmad=false", "-", "-o"]
        command.append(f"{folder}/code")
        done = subprocess.run(command, input=text, capture_output=True, check=True)
    told = done.stderr.decode()
    return ", ".join(re.findall(r"\d+ registers|\d+ bytes spill stores", told))


def show(name: str, case: Any, target: Any, with_registers: bool) -> bool:
    """Print the kernels of a case; whether all of its products are on the matrix unit."""
    print(f"\n{name}: {1e-9 * case.flops:.1f} GFLOP")
    left = 0
    for plan in plans_of(case, target):
        left += len(outside(plan, target))
        for kernel in plan.kernels:
            choice = choose(kernel, target)
            unit = any(isinstance(step, Tensorize) for step in choice.schedule.steps)
            arrays = {each.array: each for each in facts_of(kernel).accesses}
            told = ", ".join(
                f"{'writes' if each.write else 'reads'} {array.dtype}{list(array.shape)}"
                for array, each in arrays.items()
            )
            blocks = grid_size(lower(kernel, target, choice.schedule))
            print(f"  {'matrix unit' if unit else 'other'}: {blocks} blocks, {told}")
            for reason in choice.why():
                print(f"    {reason}")
            if unit and with_registers:
                print(f"    {assembled(kernel, target)}")
    return not left


def main() -> int:
    """Show the plans; 1 where a product of 16-bit floats is on other units."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--target", default="sm_90a", help="a GPU's row of `target`")
    parser.add_argument("--only", default="*", metavar="GLOB", help="which rows of the suite")
    parser.add_argument("--registers", action="store_true", help="assemble with ptxas")
    chosen = parser.parse_args()
    target = gpu_row(chosen.target)
    good = True
    for row in (*PRODUCTS, *CONVOLUTIONS):
        if fnmatch(row.name, chosen.only):
            good = show(row.name, row.case(False), target, chosen.registers) and good
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
