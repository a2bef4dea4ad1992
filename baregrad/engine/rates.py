"""What a CPU does at most: bytes it copies and float32 operations it does in a second, measured.

The operations are those of a loop of independent multiply-adds in registers, as many as the row of
`target` says must be in flight, on every thread of the device at once.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

from baregrad.engine.compiler import Compiler
from baregrad.program import CPU_OBJECT, ParamSpec, Program
from baregrad.runtime.copy_probe import CopyProbe
from baregrad.runtime.cpu.device import CpuDevice
from baregrad.target.cpu import CpuTarget

# Larger than any cache; long enough that a thread's start is nothing.
COPIED = 1 << 26
# How much of a cache the arrays of its measurement take.
_FILLED = 2
_STEPS = 1 << 20
_RUNS = 5


class Level(NamedTuple):
    """Where arrays of `holds` bytes together lie, and the rate of copying there."""

    name: str
    holds: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes read and written by where they lie, nearest first, and float32 operations, a second.

    All of it on `threads` threads.
    """

    levels: tuple[Level, ...]
    flops_per_s: float
    threads: int

    def level(self, nbytes: float) -> Level:
        """Return where arrays of `nbytes` bytes lie."""
        return next(level for level in self.levels if nbytes <= level.holds)

    def seconds(self, nbytes: float, operations: float) -> tuple[float, float]:
        """Return the least time for moving bytes, and for doing operations."""
        return nbytes / self.level(nbytes).bytes_per_s, operations / self.flops_per_s


def measure_rates(device: CpuDevice, compiler: Compiler) -> Rates:
    """Measure a CPU in some tenths of a second. Raises what assembling raises."""
    host, threads = device.host, device.threads
    levels = []
    caches = (("second cache", host.l2_nbytes * threads), ("third cache", host.l3_nbytes))
    for name, holds in caches:
        if holds:
            nbytes = holds // _FILLED // 2
            rate = CopyProbe(nbytes, threads, COPIED // nbytes + 1).rate()
            levels.append(Level(name, holds, rate))
    levels.append(Level("memory", float("inf"), CopyProbe(COPIED, threads).rate()))
    return Rates(tuple(levels), _flops_per_s(device, compiler), threads)


def _flops_per_s(device: CpuDevice, compiler: Compiler) -> float:
    target: CpuTarget = compiler.target
    lanes = target.lanes(4)
    chains = min(target.fma_per_cycle * target.fma_latency, target.vector_registers - 4)
    from baregrad.assemble.llvm import LlvmAssembler

    code = LlvmAssembler(compiler.cache).assemble(multiply_adds(target, chains))
    program = Program(
        "multiply_adds", CPU_OBJECT, code, "multiply_adds",
        (ParamSpec("out", "float32", 4 * lanes, "w"),), chunks=device.threads,
    )
    kernel = device.load(program)
    out = device.allocate(4 * lanes)
    least = float("inf")
    for _ in range(_RUNS):
        begin = time.perf_counter()
        device.run(kernel, [out])
        least = min(least, time.perf_counter() - begin)
    return device.threads * _STEPS * chains * lanes * 2 / least


def multiply_adds(target: CpuTarget, chains: int) -> str:
    """Return LLVM IR of a kernel of `chains` independent chains of multiply-adds, in vectors."""
    vector = f"<{target.lanes(4)} x float>"
    suffix = f"v{target.lanes(4)}f32"
    half = f"splat (float {0.5:e})"
    lines = [
        "define void @multiply_adds(ptr %buffers, ptr %variables, i64 %begin, i64 %end, "
        "ptr %scratch) #0 {",
        "entry:", "  br label %loop", "loop:",
        "  %i = phi i64 [ 0, %entry ], [ %next, %loop ]",
    ]
    for number in range(chains):
        first = f"splat (float {float(number):e})"
        lines.append(f"  %a{number} = phi {vector} [ {first}, %entry ], [ %b{number}, %loop ]")
    for number in range(chains):
        if target.fma:
            lines.append(
                f"  %b{number} = call {vector} @llvm.fma.{suffix}({vector} %a{number}, "
                f"{vector} {half}, {vector} {half})"
            )
        else:
            lines.append(f"  %m{number} = fmul {vector} %a{number}, {half}")
            lines.append(f"  %b{number} = fadd {vector} %m{number}, {half}")
    lines += [
        "  %next = add i64 %i, 1", f"  %more = icmp ult i64 %next, {_STEPS}",
        "  br i1 %more, label %loop, label %done", "done:",
    ]
    for number in range(1, chains):
        left = "%b0" if number == 1 else f"%s{number - 1}"
        lines.append(f"  %s{number} = fadd {vector} {left}, %b{number}")
    bits = 8 * target.vector_bytes
    # Every chunk writes the same bytes.
    lines += [
        "  %out = load ptr, ptr %buffers",
        f"  store {vector} %{f's{chains - 1}' if chains > 1 else 'b0'}, ptr %out, align 4",
        "  ret void", "}", f"declare {vector} @llvm.fma.{suffix}({vector}, {vector}, {vector})",
        f'attributes #0 = {{ nounwind "min-legal-vector-width"="{bits}" '
        f'"prefer-vector-width"="{bits}" }}',
    ]
    return "\n".join(lines) + "\n"
