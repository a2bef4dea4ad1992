"""The passes from the loop level to the linear level, in order."""

from __future__ import annotations

from baregrad.ir.passes import Pass
from baregrad.kernel.linearise import linearise
from baregrad.kernel.lower_dtypes import lower_dtypes
from baregrad.kernel.lower_integers import lower_integers
from baregrad.kernel.transcendental import lower_functions
from baregrad.target.cpu import CpuTarget


def codegen_passes(target: CpuTarget) -> tuple[Pass, ...]:
    """The passes from a loop-level KERNEL to the PROGRAM that `render` takes."""
    native_float16 = target.converts_float16
    return (
        Pass(
            "lower-dtypes",
            "the machine computes with neither narrow floats nor bits in memory",
            "loop",
            "loop",
            lambda kernel: lower_dtypes(kernel, native_float16),
        ),
        Pass(
            "lower-functions",
            "the machine has no transcendental functions",
            "loop",
            "loop",
            lower_functions,
            ("lower-dtypes",),
        ),
        Pass(
            "lower-integers",
            "the machine's divisions and shifts are not defined for all operands, or slow",
            "loop",
            "loop",
            lower_integers,
            ("lower-dtypes",),
        ),
        Pass(
            "linearise",
            "the machine runs one instruction after the other",
            "loop",
            "linear",
            linearise,
            ("lower-functions", "lower-integers"),
        ),
    )
