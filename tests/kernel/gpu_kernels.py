"""Kernels on GPUs for the tests: every level below `kernel` gives what it gives, down to PTX."""

from __future__ import annotations

from typing import Any

import numpy as np

from baregrad.ir.core.node import Node
from baregrad.ir.evaluate.gpu_threads import evaluate_threads
from baregrad.ir.verify.verify import verify
from baregrad.kernel import Schedule, apply_schedule, codegen_passes, grid_size, lower
from baregrad.kernel.language.schedule import parse_schedule
from baregrad.target import gpu_row
from tests.kernel import kernels as k
from tests.render.gpu_harness import run_ptx

HOPPER = gpu_row("sm_90a")
Arrays = dict[int, Any]


def lowered(kernel: Node, schedule: Schedule | str, target: Any = HOPPER) -> tuple[Node, Node]:
    """The loop level of a block, as it is told apart into threads, and that of one thread.

    The former computes with the machine's own operations already; both are verified.
    """
    steps = parse_schedule(schedule) if isinstance(schedule, str) else schedule
    loop = node = lower(kernel, target, steps)
    verify(loop, "loop")
    for item in codegen_passes(target):
        if item.name == "threads":
            loop = node
        node = item.run(node)
        verify(node, item.level_out)
    return loop, node


def run_threads(loop: Node, program: Node, arrays: Arrays) -> Arrays:
    """What all threads of all blocks make of the arrays."""
    copies = {slot: np.array(array) for slot, array in arrays.items()}
    blocks = grid_size(loop)
    assert isinstance(blocks, int)
    evaluate_threads(program, copies, HOPPER, max(blocks // program.arg.cluster, 1))
    return copies


def run_text(loop: Node, program: Node, arrays: Arrays, target: Any = HOPPER) -> Arrays:
    """What the PTX of a program makes of the arrays, races and strays found out."""
    copies = {slot: np.array(array) for slot, array in arrays.items()}
    blocks = grid_size(loop)
    assert isinstance(blocks, int)
    given = [copies[slot] for slot in range(len(copies))]
    run_ptx(program, given, target=target, grid=max(blocks, 1))
    return copies


def check_gpu(kernel: Node, schedule: Schedule | str, target: Any = HOPPER) -> Node:
    """Every level gives what the kernel gives; the PROGRAM comes back."""
    steps = parse_schedule(schedule) if isinstance(schedule, str) else schedule
    arrays = k.arguments(kernel)
    wanted = k.run_kernel(kernel, arrays)
    k.assert_equal(wanted, k.run_kernel(apply_schedule(kernel, steps, target), arrays))
    loop, program = lowered(kernel, steps, target)
    blocks = k.run_loop(loop, arrays)
    k.assert_equal(wanted, blocks)
    threads = run_threads(loop, program, arrays)
    for slot, expected in blocks.items():
        # The order of every fold is the same at both levels, so the bits are.
        np.testing.assert_array_equal(threads[slot], expected)
    text = run_text(loop, program, arrays)
    for slot, expected in threads.items():
        np.testing.assert_array_equal(text[slot], expected)
    return program
