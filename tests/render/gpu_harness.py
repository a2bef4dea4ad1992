"""Programs for one CPU thread made programs for many GPU threads, and runs of their PTX.

They run on the PTX interpreter, or with RENDER_TESTS_DEVICE=NV (or CUDA) on that device, assembled
by ptxas for its generation whatever the test names:

    RENDER_TESTS_DEVICE=NV pytest -n0 tests/render/test_ptx_*.py tests/render/test_gpu_integers.py
"""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from baregrad import render
from baregrad.assemble.ptxas import PtxAssembler
from baregrad.assemble.virtual_cubin import VirtualAssembler
from baregrad.base.options import options
from baregrad.dtypes import dtypes
from baregrad.ir.core.attrs import Access, Alloc, KernelInfo, Machine, Reg
from baregrad.ir.core.axes import Var
from baregrad.ir.core.node import Node, const, rebuild
from baregrad.ir.core.op import Ops
from baregrad.kernel import codegen_passes, grid_size, to_linear
from baregrad.kernel.lowering import lower as to_loop
from baregrad.program import CUBIN, GpuLaunch, ParamSpec, Program
from baregrad.render.gpu import gpu_signature
from baregrad.runtime import open_device
from baregrad.runtime.tensor_map import map_of
from baregrad.target.cpu import CPU_ROWS
from baregrad.target.gpu import NvidiaTarget, gpu_row
from baregrad.testing.virtual_gpu.ptx.memory import PtxMemory
from baregrad.testing.virtual_gpu.ptx.program import PtxModule

HOPPER = gpu_row("sm_90a")
DEVICE = os.environ.get("RENDER_TESTS_DEVICE", "")
# A race that the interpreter reports is silent on a real machine.
INTERPRETED = pytest.mark.skipif(bool(DEVICE), reason="only the interpreter finds faults of memory")
I32, I64 = dtypes.int32, dtypes.int64
TOKEN = dtypes.token
BLOCK = Node(Ops.VAR, I32, (), Var(".block", 0, 2**31 - 1))


def thread(count: int) -> Node:
    """The number of a thread in a block of `count`."""
    return Node(Ops.VAR, I32, (), Var(".thread", 0, count - 1))


@functools.cache
def _converting_row() -> Any:
    return next(row for row in CPU_ROWS if row.converted_floats)


def lower(node: Node, target: NvidiaTarget | None = None) -> Node:
    """A loop-level KERNEL of one thread at the linear level.

    The machine converts float16 itself, and whatever `target` does.
    """
    for item in codegen_passes(target or _converting_row()):
        if item.name != "threads":
            node = item.run(node)
    return node


def scheduled(kernel: Node, target: NvidiaTarget = HOPPER) -> tuple[Node, int]:
    """The PROGRAM of a kernel-level KERNEL as it is made for a GPU, and how many blocks run it."""
    loop = to_loop(kernel, target)
    blocks = grid_size(loop)
    return to_linear(loop, target), max(blocks if isinstance(blocks, int) else int(blocks.arg), 1)


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
    target: NvidiaTarget = HOPPER,
    grid: int = 1,
    skew: float = 0.0,
) -> None:
    """Run a PROGRAM's PTX, in place on its argument arrays.

    skew: approximate functions are off by that part of their documented error.
    """
    if DEVICE:
        run_device(program, arrays, variables, grid)
        return
    text = render.get("ptx").render(program, target)
    run_module(PtxModule.parse(text), program, arrays, variables, target, grid, skew)


def run_module(
    module: PtxModule,
    program: Node,
    arrays: Sequence[Any],
    variables: dict[str, int] | None = None,
    target: NvidiaTarget = HOPPER,
    grid: int = 1,
    skew: float = 0.0,
) -> None:
    """Run the PTX of a PROGRAM on the interpreter, in place on its argument arrays."""
    sig = gpu_signature(program)
    kernel = module.kernel(sig.call.entry)
    memory = PtxMemory()
    places = [memory.put(np.ascontiguousarray(arrays[p.arg.slot])) for p in sig.call.params]
    names = [(variables or {})[name] for name in sig.call.variables]
    where = {param.arg.slot: place for param, place in zip(sig.call.params, places, strict=True)}
    maps = [map_of(box.spec, where[box.spec.param]) for box in sig.boxes]
    kernel.launch(
        memory, (grid,), (sig.threads,), [*places, *names, *maps], sig.dynamic_nbytes(target),
        early=target.dependent_launch, skew=skew,
    )  # fmt: skip
    for param, place in zip(sig.call.params, places, strict=True):
        array = arrays[param.arg.slot]
        array[...] = memory.get(place, array.dtype, array.shape)


@functools.cache
def opened() -> tuple[Any, Any, NvidiaTarget]:
    """The device that tests were asked to run on, its assembler and its row."""
    device: Any = open_device(DEVICE)
    row = gpu_row(device.architecture)
    atexit.register(device.close)
    virtual = DEVICE.startswith("NV") and options.nv_port == "virtual"
    return device, VirtualAssembler() if virtual else PtxAssembler(row.name), row


def run_device(
    program: Node, arrays: Sequence[Any], variables: dict[str, int] | None, grid: int
) -> None:
    """Run a PROGRAM on a device, in place on its argument arrays."""
    device, assembler, row = opened()
    sig = gpu_signature(program, None, len(arrays))
    text = render.get("ptx").render(program, row, sig.call.variables, len(arrays))
    made = Program(
        name=sig.call.entry,
        kind=CUBIN,
        code=assembler.assemble(text),
        entry=sig.call.entry,
        params=tuple(ParamSpec(f"p{k}", a.dtype.name, None, "rw") for k, a in enumerate(arrays)),
        variables=sig.call.variables,
        source=text,
        launch=GpuLaunch(
            (grid, 1, 1), (sig.threads, 1, 1),
            shared_nbytes=sig.dynamic_nbytes(row), waits=row.dependent_launch,
        ),
        maps=tuple([box.spec for box in sig.boxes]),
    )
    # Nothing is as small as no bytes.
    buffers = [device.allocate(max(array.nbytes, 16)) for array in arrays]
    pairs = [(b.view(0, a.nbytes), a) for b, a in zip(buffers, arrays, strict=True) if a.nbytes]
    for buffer, array in pairs:
        device.copy_in(buffer, np.ascontiguousarray(array))
    device.run(device.load(made), buffers, variables or {})
    device.synchronize()
    for buffer, array in pairs:
        copy = np.empty(array.shape, array.dtype)
        device.copy_out(buffer, copy)
        array[...] = copy


class Writer:
    """A PROGRAM being written by hand: each method appends an instruction and gives its value."""

    def __init__(self, name: str = "k") -> None:
        self.name = name
        self.code: list[Node] = []
        self.loops = 0
        self.registers = 0

    def put(self, op: Any, dtype: Any, *src: Any, arg: Any = None) -> Node:
        node = Node(op, dtype, tuple(map(whole, src)), arg)
        self.code.append(node)
        return node

    def cast(self, value: Node, dtype: Any) -> Node:
        return self.put(Ops.CAST, dtype, value)

    def do(self, op: Any, a: Any, b: Any) -> Node:
        return self.put(op, whole(a).dtype, a, b)

    def test(self, op: Any, a: Any, b: Any) -> Node:
        return self.put(op, dtypes.bool, a, b)

    def load(self, buffer: Node, offset: Any, *mask: Any, **access: Any) -> Node:
        return self.put(Ops.VLOAD, buffer.dtype, buffer, offset, *mask, arg=of(buffer, access))

    def store(self, buffer: Node, offset: Any, value: Any, *mask: Any, **access: Any) -> Node:
        return self.put(Ops.VSTORE, TOKEN, buffer, offset, value, *mask, arg=of(buffer, access))

    def machine(self, name: str, *src: Any, imm: tuple[Any, ...] = (), dtype: Any = TOKEN) -> Node:
        return self.put(Ops.MACHINE, dtype, *src, arg=Machine(name, imm))

    def begin(self, start: Any, stop: Any) -> Node:
        self.loops += 1
        return self.put(Ops.BEGIN, I64, start, stop, arg=self.loops)

    def branch(self, condition: Node) -> None:
        self.put(Ops.TEST, TOKEN, condition)

    def end(self) -> None:
        self.put(Ops.END, TOKEN)

    def register(self, dtype: Any, width: int = 1) -> Node:
        self.registers += 1
        return Node(Ops.REG, dtype, (), Reg(self.registers, width))

    def set(self, register: Node, value: Any) -> None:
        self.put(Ops.SET, TOKEN, register, value)

    def thread(self, count: int) -> Node:
        """This thread's number in its block of `count`, as an offset."""
        return self.cast(thread(count), I64)

    def program(self) -> Node:
        return Node(Ops.PROGRAM, TOKEN, tuple(self.code), KernelInfo(self.name, "GPU"))


def whole(value: Any) -> Node:
    """An operand: a node, or an integer as an offset."""
    return value if isinstance(value, Node) else const(value, I64)


def of(buffer: Node, access: dict[str, Any]) -> Access:
    access.setdefault("align", buffer.dtype.itemsize)
    return Access(**access)


def alloc(id: int, count: int, dtype: Any, space: str) -> Node:
    return Node(Ops.ALLOC, dtype, (), Alloc(id, space, (count,)))


def serial(program: Node) -> Node:
    """A CPU's PROGRAM whose chunks are the steps of an ordinary loop."""

    def visit(node: Node) -> Node | None:
        if node.op is Ops.BEGIN and len(node.src) == 3:
            return Node(Ops.BEGIN, node.dtype, (const(0, I64), node.src[2]), node.arg)
        return None

    return rebuild(program, visit)
