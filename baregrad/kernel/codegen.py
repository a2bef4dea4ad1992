"""The passes from the loop level to the linear level, in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from baregrad.dtypes import as_dtype, dtypes
from baregrad.ir.algebra.passes import Pass
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Op
from baregrad.kernel.gpu.ahead.early_loads import leave_to_first, load_early
from baregrad.kernel.gpu.ahead.loads_ahead import load_ahead
from baregrad.kernel.gpu.ahead.numbers_ahead import numbers_ahead
from baregrad.kernel.gpu.group_products import group_products
from baregrad.kernel.gpu.loop_bounds import bound_loops
from baregrad.kernel.gpu.roles import with_roles
from baregrad.kernel.gpu.spread_copies import spread_copies
from baregrad.kernel.gpu.threads import to_threads
from baregrad.kernel.gpu.wide_accesses import widen_accesses
from baregrad.kernel.legalise.lower_dtypes import lower_dtypes
from baregrad.kernel.legalise.lower_integers import lower_integers
from baregrad.kernel.legalise.transcendental import GPU_FUNCTIONS, functions_of, lower_functions
from baregrad.kernel.linearise.exchanges import exchange_results
from baregrad.kernel.linearise.late_products import delay_products
from baregrad.kernel.linearise.linearise import linearise
from baregrad.kernel.loops.wide_reads import widen_reads
from baregrad.target import AnyTarget
from baregrad.target.gpu import GpuTarget

_THREADS = Pass(
    "threads",
    "each thread of a block runs its own part of what the block does",
    "loop",
    "loop",
    to_threads,
    ("lower-functions", "lower-integers"),
)

_GROUP_PRODUCTS = Pass(
    "group-products",
    "groups of warps multiply beside their threads, which wait for that",
    "loop",
    "loop",
    group_products,
    ("threads",),
)

_LOOP_BOUNDS = Pass(
    "loop-bounds",
    "each thread's loops end where its data does",
    "loop",
    "loop",
    bound_loops,
    ("threads",),
)

_SPREAD_COPIES = Pass(
    "spread-copies",
    "copies are begun between the steps of products",
    "loop",
    "loop",
    spread_copies,
    ("threads",),
)

_ROLES = Pass(
    "roles",
    "a warp of its own begins the copies of boxes, ahead of all others",
    "loop",
    "loop",
    with_roles,
    ("group-products",),
)

_OF_THREADS = (_THREADS, _GROUP_PRODUCTS, _LOOP_BOUNDS, _SPREAD_COPIES, _ROLES)

_WIDE_READS = Pass(
    "wide-reads",
    "neighbours that are put together as one wider integer are read at once",
    "loop",
    "loop",
    widen_reads,
    ("lower-dtypes", "lower-integers"),
)


def codegen_passes(target: AnyTarget) -> tuple[Pass, ...]:
    """The passes from a loop-level KERNEL to the PROGRAM that `render` takes."""
    functions: Mapping[Op, Callable[..., Node]] = GPU_FUNCTIONS
    if target.kind == "cpu":
        functions = functions_of(target.has_ldexp, target.slow_underflow, target.has_lookup)
    native = frozenset(map(as_dtype, target.converted_floats))
    widened = frozenset(map(as_dtype, target.widened_floats))
    return (
        Pass(
            "lower-dtypes",
            "the machine computes with neither narrow floats nor bits in memory",
            "loop",
            "loop",
            lambda kernel: lower_dtypes(kernel, native, widened, target.kind == "gpu"),
        ),
        Pass(
            "lower-functions",
            "the machine has no transcendental functions",
            "loop",
            "loop",
            lambda kernel: lower_functions(kernel, functions),
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
        *(_OF_THREADS if target.kind == "gpu" else (_WIDE_READS,)),
        Pass(
            "linearise",
            "the machine runs one instruction after the other",
            "loop",
            "linear",
            linearise,
            ("lower-functions", "lower-integers"),
        ),
        *(_of_gpus(target) if target.kind == "gpu" else ()),
    )


def _of_gpus(target: GpuTarget) -> tuple[Pass, ...]:
    """The passes after which a GPU's thread multiplies late, and moves neighbours at once."""
    # Compute capability 8.0 rounds two floats at once, and copies beside its threads.
    halves = dtypes.float16, dtypes.bfloat16
    pairs = tuple([each for each in halves if each.name in target.converted_floats])
    pairs = pairs if target.async_copies else ()
    return (
        Pass(
            "late-products",
            "a loop's last products are made behind its next iteration's barrier",
            "linear",
            "linear",
            delay_products,
            ("linearise",),
        ),
        Pass(
            "exchange-results",
            "lanes of a row exchange their columns of four tiles",
            "linear",
            "linear",
            lambda program: exchange_results(program, pairs),
            ("late-products",),
        ),
        Pass(
            "wide-accesses",
            "neighbours that are loaded or stored one by one are moved at once",
            "linear",
            "linear",
            lambda program: widen_accesses(program, target.load_bytes),
            ("linearise",),
        ),
        *_of_waits(target),
    )


def _of_waits(target: GpuTarget) -> tuple[Pass, ...]:
    """The passes that ask memory for what is used behind a wait ahead of it."""
    return (
        Pass(
            "early-loads",
            "what is used with a sum is under way before the threads meet for it",
            "linear",
            "linear",
            load_early,
            ("wide-accesses",),
        ),
        Pass(
            "loads-ahead",
            "weights are under way before a kernel waits, or a loop's next turn begins",
            "linear",
            "linear",
            lambda program: load_ahead(program, target),
            ("early-loads",),
        ),
        Pass(
            "numbers-ahead",
            "positions and tables are read before a kernel waits, which no launch writes",
            "linear",
            "linear",
            lambda program: numbers_ahead(program, target),
            ("loads-ahead",),
        ),
        Pass(
            "first-warp",
            "what a warp's thread stores of a sum, the other warps need not know",
            "linear",
            "linear",
            leave_to_first,
            ("numbers-ahead",),
        ),
    )


def to_linear(kernel: Node, target: AnyTarget) -> Node:
    """The PROGRAM of a loop-level KERNEL, after all passes of `codegen_passes`."""
    for one in codegen_passes(target):
        kernel = one.run(kernel)
    return kernel
