"""Programs for one CPU thread made programs for many GPU threads, and runs of their PTX."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from baregrad import render
from baregrad.dtypes import dtypes
from baregrad.ir.attrs import Var
from baregrad.ir.node import Node, rebuild
from baregrad.ir.op import Ops
from baregrad.kernel import codegen_passes
from baregrad.render.gpu import gpu_signature
from baregrad.target.cpu import CPU_ROWS
from baregrad.target.gpu import GpuTarget, gpu_row
from baregrad.testing.virtual_gpu.ptx_memory import Memory
from baregrad.testing.virtual_gpu.ptx_program import Module

HOPPER = gpu_row("sm_90a")
I32, I64 = dtypes.int32, dtypes.int64
TOKEN = dtypes.token
BLOCK = Node(Ops.VAR, I32, (), Var(".block", 0, 2**31 - 1))


def thread(count: int) -> Node:
    """The number of a thread in a block of `count`."""
    return Node(Ops.VAR, I32, (), Var(".thread", 0, count - 1))


@functools.cache
def _converting_row() -> Any:
    return next(row for row in CPU_ROWS if row.converts_float16)


def lower(node: Node) -> Node:
    """A loop-level KERNEL at the linear level; float16 is converted by the machine."""
    for item in codegen_passes(_converting_row()):
        node = item.run(node)
    return node


def spread(program: Node, threads: int | None = None) -> Node:
    """The PROGRAM whose outermost loop, the last of its instructions, is run by threads.

    threads: of a block; by default as many as the loop has steps, which must be a multiple.
    """
    code = list(program.src)
    place = next(k for k, node in enumerate(code) if node.op is Ops.BEGIN)
    counter = code[place]
    assert code[-1].op is Ops.END and len(counter.src) == 2
    steps = counter.src[1].arg
    count = steps if threads is None else threads
    assert steps % count == 0
    number = Node(Ops.CAST, I64, (thread(count),))
    head = [number]
    if count < steps:
        block = Node(Ops.CAST, I64, (BLOCK,))
        size = Node(Ops.CONST, I64, (), count)
        first = Node(Ops.MUL, I64, (block, size))
        number = Node(Ops.ADD, I64, (first, number))
        head += [block, first, number]
    body = Node(Ops.PROGRAM, TOKEN, (*code[:place], *head, *code[place + 1 : -1]), program.arg)
    return rebuild(body, lambda node: number if node is counter else None)


def run_ptx(
    program: Node,
    arrays: Sequence[Any],
    variables: dict[str, int] | None = None,
    target: GpuTarget = HOPPER,
    grid: int = 1,
) -> None:
    """Run a PROGRAM's PTX on the interpreter, in place on its argument arrays."""
    text = render.get("ptx").render(program, target)
    sig = gpu_signature(program)
    kernel = Module.parse(text).kernel(sig.call.entry)
    memory = Memory()
    places = [memory.put(np.ascontiguousarray(arrays[p.arg.slot])) for p in sig.call.params]
    names = [(variables or {})[name] for name in sig.call.variables]
    kernel.launch(memory, (grid,), (sig.threads,), [*places, *names], sig.dynamic_nbytes(target))
    for param, place in zip(sig.call.params, places, strict=True):
        array = arrays[param.arg.slot]
        array[...] = memory.get(place, array.dtype, array.shape)
