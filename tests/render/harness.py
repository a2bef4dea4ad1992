"""Loop-level kernels built by hand, and runs of them by every route from the loop level on."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from baregrad import render
from baregrad.assemble.cc import CAssembler
from baregrad.assemble.llvm import LlvmAssembler
from baregrad.dtypes import DType, decode, dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Alloc, KernelInfo, Param, Reduce
from baregrad.ir.core.monoid import Monoid, primitive
from baregrad.ir.core.node import Node, range_node, toposort
from baregrad.ir.core.op import Op, Ops
from baregrad.ir.evaluate.linear_level import evaluate_linear
from baregrad.ir.evaluate.loop_level import evaluate_loop
from baregrad.kernel import to_linear
from baregrad.render.interface import signature
from baregrad.runtime.cpu.host import detect_host
from baregrad.runtime.cpu.loader import Loader
from baregrad.target.cpu import CpuTarget, cpu_row

F32, I32, I64 = dtypes.float32, dtypes.int32, dtypes.int64
TOKEN = dtypes.token
Arrays = list[Any]
ENTRY = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
)


# --- building -----------------------------------------------------------------------------------


def param(slot: int, *shape: Any, dtype: DType = F32) -> Node:
    return Node(Ops.PARAM, dtype, (), Param(slot, tuple(shape)))


def alloc(id: int, *shape: int, dtype: DType = F32, space: str = "register") -> Node:
    return Node(Ops.ALLOC, dtype, (), Alloc(id, space, tuple(shape)))


def load(buffer: Node, *indices: Any) -> Node:
    nodes = tuple(index.as_node(i) for i in indices)
    return Node(Ops.LOAD, buffer.dtype, (buffer, *nodes))


def store(buffer: Node, value: Node, *indices: Any, monoid: Monoid | None = None) -> Node:
    nodes = tuple(index.as_node(i) for i in indices)
    return Node(Ops.STORE, TOKEN, (buffer, value, *nodes), monoid)


def loop(axis: Node, *body: Node) -> Node:
    return Node(Ops.LOOP, TOKEN, (axis, seq(*body)))


def branch(cond: Node, *body: Node) -> Node:
    return Node(Ops.IF, TOKEN, (cond, seq(*body)))


def seq(*body: Node) -> Node:
    return body[0] if len(body) == 1 else Node(Ops.SEQ, TOKEN, body)


def kernel(*body: Node, name: str = "k") -> Node:
    return Node(Ops.KERNEL, TOKEN, body, KernelInfo(name))


def guard(cond: Node, value: Node) -> Node:
    return Node(Ops.GUARD, value.dtype, (cond, value))


def fold(op: Op, value: Node, *axes: Node) -> Node:
    return Node(Ops.REDUCE, value.dtype, (value, *axes), Reduce(primitive(op, value.dtype)))


def vector(lanes: int, id: int) -> Node:
    return range_node(lanes, id, bind="vector")


def unroll(count: int, id: int) -> Node:
    return range_node(count, id, bind="unroll")


def elementwise(
    functions: Sequence[Callable[..., Node]], count: int, inputs: Sequence[DType], lanes: int = 8
) -> Node:
    """One kernel that writes each function of the inputs to an array of its own."""
    first = len(functions)
    arrays = [param(first + k, count, dtype=dtype) for k, dtype in enumerate(inputs)]
    i, v = range_node(count // lanes, 0), vector(lanes, 1)
    place = index.add(index.mul(i, lanes), v)
    values = [function(*(load(array, place) for array in arrays)) for function in functions]
    stores = [
        store(param(slot, count, dtype=value.dtype), value, place)
        for slot, value in enumerate(values)
    ]
    return kernel(loop(i, *stores))


# --- running ------------------------------------------------------------------------------------


@functools.cache
def host() -> CpuTarget:
    return cpu_row(detect_host().features)


@functools.cache
def tools() -> tuple[Loader, LlvmAssembler, CAssembler]:
    machine = {"x86_64": 62, "aarch64": 183}[host().architecture]
    return Loader(machine), LlvmAssembler(), CAssembler()


def lower(node: Node) -> Node:
    return to_linear(node, host())


def compiled(
    program: Node, renderer: str = "llvm", row: CpuTarget | None = None
) -> Callable[..., None]:
    """The code of a PROGRAM for a row, this machine's, as a function of arrays and more."""
    loader, llvm, cc = tools()
    text = render.get(renderer).render(program, row or host())
    loaded = loader.load((llvm if renderer == "llvm" else cc).assemble(text))
    sig = signature(program)
    entry = ENTRY(loaded.address(sig.entry))

    def call(arrays: Arrays, variables: dict[str, int] | None = None, chunks: Any = (0, 1)) -> None:
        addresses = (ctypes.c_void_p * max(len(arrays), 1))(*(a.ctypes.data for a in arrays))
        names = [(variables or {})[name] for name in sig.variables]
        values = (ctypes.c_int64 * max(len(names), 1))(*names)
        scratch = np.full(sig.scratch_nbytes + 64, 0xA5, np.uint8)
        aligned = (scratch.ctypes.data + 63) // 64 * 64
        entry(ctypes.addressof(addresses), ctypes.addressof(values), *chunks, aligned)

    call.keep = loaded  # type: ignore[attr-defined]
    return call


def outputs(
    node: Node,
    arrays: Arrays,
    variables: dict[str, int] | None = None,
    routes: Sequence[str] = ("loop", "linear", "llvm"),
    chunks: int = 1,
) -> dict[str, Arrays]:
    """The arrays after a run of a loop-level kernel by each route, each on copies of its own."""
    program = lower(node)
    results = {}
    for route in routes:
        copies = [np.array(array) for array in arrays]
        if route == "loop":
            evaluate_loop(node, copies, variables)
        elif route == "linear":
            evaluate_linear(program, copies, variables)
        else:
            compiled(program, route)(copies, variables, (0, chunks))
        results[route] = copies
    return results


def same_bits(left: Any, right: Any, dtype: DType | None = None) -> bool:
    """Whether two arrays hold the same bits, any NaN counting as any other."""
    if dtype is not None and dtype.numpy is None:
        left, right = decode(left, dtype), decode(right, dtype)
    if left.dtype.kind != "f":
        return bool(np.array_equal(left, right))
    nan = np.isnan(left) & np.isnan(right)
    return bool(np.all(nan | ((left == right) & (np.signbit(left) == np.signbit(right)))))


def check(
    node: Node,
    arrays: Arrays,
    variables: dict[str, int] | None = None,
    routes: Sequence[str] = ("loop", "linear", "llvm"),
    chunks: int = 1,
) -> Arrays:
    """Assert that all routes agree, bit for bit; the arrays after the run."""
    results = outputs(node, arrays, variables, routes, chunks)
    first = results[routes[0]]
    kinds = {leaf.arg.slot: leaf.dtype for leaf in toposort(node) if leaf.op is Ops.PARAM}
    for route in routes[1:]:
        for slot, (expected, found) in enumerate(zip(first, results[route], strict=True)):
            assert same_bits(expected, found, kinds.get(slot)), (
                f"slot {slot}: {routes[0]} has {expected}, {route} has {found}"
            )
    return first
