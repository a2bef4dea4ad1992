"""Where a block's threads meet: a barrier for each hand-over, and none besides."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Alloc
from baregrad.ir.core.axes import Var
from baregrad.ir.core.node import Node, alu, const, range_node
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.gpu_threads import evaluate_threads
from baregrad.ir.protocol.attributes import Done, ProtocolError
from baregrad.kernel.gpu.barriers import BARRIER, with_barriers
from baregrad.kernel.linearise.linearise import linearise
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import HOPPER, check_gpu, lowered, run_threads
from tests.render.harness import F32, alloc, branch, kernel, load, loop, param, store

PANELS = (
    "split('i0', outer='a', y=4, mr=2, masked=True),"
    "split('i1', outer='b', x=8, nv=4, masked=True), split('r2', outer='ko', ki=4, masked=True),"
    "bind('a', 'grid'), bind('b', 'grid'),"
    "bind('y', 'thread_y'), bind('x', 'thread'), bind('mr', 'unroll'), bind('nv', 'vector'),"
    "stage_input(1, 'ki', 'y', 'mr'), stage_input(2, 'ki', 'x', 'nv')"
)


@pytest.mark.parametrize("shape", ((13, 17, 9), (8, 32, 16), (9, 33, 8)))
def test_panels_in_shared_memory(shape: tuple[int, int, int]) -> None:
    program = check_gpu(k.matmul(*shape), f"Schedule({PANELS})")
    # Before what is read is copied over, and between copying and the loop that reads.
    marks = [node.op for node in program.src if node.op in (Ops.BEGIN, Ops.MACHINE)]
    assert marks == [Ops.BEGIN, Ops.MACHINE, Ops.MACHINE, Ops.BEGIN]


def test_a_missing_barrier_is_a_race() -> None:
    kernel = k.matmul(13, 17, 9)
    loop, program = lowered(kernel, f"Schedule({PANELS})")
    places = [n for n, node in enumerate(program.src) if node.op is Ops.MACHINE]
    for place in places:
        code = (*program.src[:place], *program.src[place + 1 :])
        broken = Node(Ops.PROGRAM, program.dtype, code, program.arg)
        with pytest.raises(ProtocolError, match="race"):
            run_threads(loop, broken, k.arguments(kernel))


# --- where they stand -----------------------------------------------------------------------------

ME = Node(Ops.VAR, dtypes.index, (), Var(".thread", 0, 31))
A, B = (Node(Ops.ALLOC, F32, (), Alloc(number, "shared", (64,))) for number in (1, 2))
OWN = alloc(3, 4)
OUT = param(0, 64)


def placed(*body: Node) -> list[str]:
    """The statements of a kernel with its barriers: w and r of an array, |, and what is nested."""
    found = with_barriers(kernel(*body))
    return [text for child in found.src for text in spelled(child)]


def spelled(node: Node) -> list[str]:
    if node is BARRIER:
        return ["|"]
    if node.op is Ops.SEQ:
        return [text for child in node.src for text in spelled(child)]
    if node.op in (Ops.LOOP, Ops.IF):
        return [f"{node.op.name.lower()}({' '.join(spelled(node.src[1]))})"]
    return [names[node]]


def write(array: Node) -> Node:
    return store(array, const(1.0, F32), ME)


def read(array: Node) -> Node:
    return store(OUT, load(array, index.sub(31, ME)), ME)


names = {write(A): "wA", write(B): "wB", read(A): "rA", read(B): "rB"}
I = range_node(5, 0)


@pytest.mark.parametrize(("body", "wanted"), [
    ([write(A), read(A)], "wA | rA"),
    ([read(A), write(A)], "rA | wA"),
    ([write(A), write(A)], "wA | wA"),
    ([read(A), read(A)], "rA rA"),
    ([write(A), write(B), read(A), read(B)], "wA wB | rA rB"),
    ([write(A), read(A), write(B), read(B)], "wA | rA wB | rB"),
    # Around a loop: what the last iteration read is written by the next.
    ([loop(I, write(A), read(A))], "loop(| wA | rA)"),
    ([loop(I, read(A))], "loop(rA)"),
    # Better once ahead of a loop than in each iteration.
    ([write(A), loop(I, read(A))], "wA | loop(rA)"),
    ([write(A), loop(I, write(B), read(A))], "wA | loop(| wB rA)"),
    # A condition that is the same for all threads may have one inside.
    ([branch(index.less(I, 3), write(A), read(A))], "if(wA | rA)"),
    ([write(A), branch(index.less(ME, 3), read(A))], "wA | if(rA)"),
])
def test_threads_meet_between_a_write_and_what_touches_it(body: list[Node], wanted: str) -> None:
    assert " ".join(placed(*body)) == wanted


def test_they_never_meet_where_some_do_not_come() -> None:
    with pytest.raises(CompilerBug, match="some of them do not come"):
        with_barriers(kernel(branch(index.less(ME, 3), write(A), read(A))))
    # Private memory may hold anything, so a condition on it is one on threads.
    private = alu(Ops.CMPLT, load(OWN, 0), const(0.5, F32))
    with pytest.raises(CompilerBug, match="some of them do not come"):
        with_barriers(kernel(branch(private, write(A), read(A))))


def test_a_kernel_without_shared_memory_stays() -> None:
    node = kernel(store(OWN, const(1.0, F32), 0), store(OUT, load(OWN, 0), ME))
    assert with_barriers(node) is node


def test_slots_that_are_filled_in_turns_are_not_waited_for_twice() -> None:
    """The wait for a copy has the barrier behind it; the next slot is another one."""
    ring = Node(Ops.ALLOC, F32, (), Alloc(4, "shared", (64,), depth=2))
    wait = Node(Ops.DONE, dtypes.token, (), Done("lanes"))
    body = [wait, store(OUT, load(ring, ME), ME), store(ring, const(1.0, F32), ME)]
    names.update({wait: "wait", body[1]: "rR", body[2]: "wR"})
    found = " ".join(placed(loop(I, *body)))
    assert found == "loop(wait | rR wR)"


# --- races of one instruction ---------------------------------------------------------------------


@pytest.mark.parametrize("body", [
    # All write one element; all read one, which is written by the last of them alone.
    [store(A, const(1.0, F32), 0)],
    [store(OUT, load(A, 0), ME), store(A, const(1.0, F32), index.sub(31, ME))],
], ids=("writes", "reads"))  # fmt: skip
def test_threads_race_within_one_instruction(body: list[Node]) -> None:
    node = kernel(*body)
    program = linearise(node.replace(arg=node.arg._replace(block=(32,), grid=(1,))))
    with pytest.raises(ProtocolError, match="race"):
        evaluate_threads(program, {0: np.zeros(64, np.float32)}, HOPPER)
