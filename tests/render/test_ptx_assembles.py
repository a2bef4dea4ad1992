"""ptxas takes what is rendered, for every generation of GPUs. Skipped where ptxas is not found."""

from __future__ import annotations

import pytest

from baregrad import render
from baregrad.assemble.cuda_toolkit import find_program
from baregrad.assemble.ptxas import PACKAGE, PtxAssembler
from baregrad.base.errors import MissingDependency
from baregrad.dtypes import COMPUTED, DType, dtypes
from baregrad.ir.core.node import Node, alu, cast, const
from baregrad.ir.core.op import Ops
from baregrad.target.gpu import GPU_ROWS, NvidiaTarget
from tests.render.gpu_harness import I64, Writer, alloc, lower, scheduled, spread
from tests.render.harness import elementwise
from tests.render.test_alu import STORED, Function, functions_of
from tests.render.test_ptx_kernels import FAMILIES, LARGER
from tests.render.test_ptx_memory import copy_program, param


def _missing() -> bool:
    try:
        find_program("ptxas", PACKAGE)
    except MissingDependency:
        return True
    return False


pytestmark = pytest.mark.skipif(_missing(), reason="ptxas is not installed")
ROWS = pytest.mark.parametrize("row", GPU_ROWS, ids=lambda row: row.name)
# Whether a text is right does not depend on how much is optimised.
QUICK = ("-O1", "-fmad=false")


def assemble(programs: list[Node], row: NvidiaTarget) -> bytes:
    """The cubin of several programs in one module."""
    texts = []
    for place, program in enumerate(programs):
        named = program.replace(arg=program.arg._replace(name=f"k{place}"))
        text = render.get("ptx").render(named, row)
        texts.append(text if not place else text[text.index(".visible") :])
    return PtxAssembler(row.name, flags=QUICK).assemble("\n".join(texts))


def every_op(dtype: DType, row: NvidiaTarget) -> Node:
    functions = functions_of(dtype)
    functions.append(lambda x, y: alu(Ops.WHERE, alu(Ops.CMPLE, x, y), x, y))
    functions += [lambda x, y, t=to: cast(x, t) for to in STORED]
    same = [to for to in COMPUTED if to.bits == dtype.bits and "bool" not in (to.kind, dtype.kind)]
    bits: list[Function] = [lambda x, y, t=to: Node(Ops.BITCAST, t, (y,)) for to in same]
    return spread(lower(elementwise([*functions, *bits], 64, (dtype, dtype), 2), row))


@ROWS
def test_every_op_assembles(row: NvidiaTarget) -> None:
    assert assemble([every_op(dtype, row) for dtype in COMPUTED], row)[:4] == b"\x7fELF"


@ROWS
def test_memory_and_machine_instructions_assemble(row: NvidiaTarget) -> None:
    programs = [
        copy_program(dtype, width, align)
        for dtype in (dtypes.bool, dtypes.int8, dtypes.uint16, dtypes.float16, dtypes.float64)
        for width, align in ((1, dtype.itemsize), (8, 8), (16, 32))
    ]
    assert assemble(programs, row)[:4] == b"\x7fELF"


@ROWS
def test_lanes_apart_and_masks_assemble(row: NvidiaTarget) -> None:
    programs = []
    for dtype in (dtypes.bool, dtypes.int8, dtypes.float16, dtypes.float32):
        for stride in (-1, 3):
            w = Writer()
            x = param(1, 64, dtype)
            some = w.load(x, w.do(Ops.ADD, w.thread(8), const(32, I64)), width=4, stride=stride)
            lanes = w.do(Ops.MUL, w.put(Ops.LANES, I64, arg=4), const(7, I64))
            mask = w.test(Ops.CMPLT, lanes, w.put(Ops.SPLAT, I64, w.thread(8), arg=4))
            gathered = w.load(x, lanes, mask, width=4)
            w.store(param(0, 64, dtype), 0, some, mask, width=4)
            w.store(param(0, 64, dtype), 8, gathered, width=4)
            programs.append(w.program())
    assert assemble(programs, row)[:4] == b"\x7fELF"


@ROWS
def test_kernels_scheduled_for_a_gpu_assemble(row: NvidiaTarget) -> None:
    programs = [scheduled(make(*sizes), row)[0] for make, sizes in [*FAMILIES, *LARGER]]
    assert assemble(programs, row)[:4] == b"\x7fELF"


def together(dtype: DType, nbytes: int) -> Node:
    """Shuffles, barriers, shared memory, local memory, atomics, loops and conditions."""
    w = Writer("add")
    me = w.thread(64)
    shared = alloc(1, nbytes // dtype.itemsize, dtype, "shared")
    local = alloc(2, 8, dtype, "scratch")
    out, x = param(0, 64, dtype), param(1, 64, dtype)
    value = w.load(x, me, constant=True)
    for mode in ("bfly", "down", "up", "idx"):
        value = w.machine(f"shfl.sync.{mode}", value, imm=(1,), dtype=dtype)
    w.store(shared, me, value)
    w.machine("bar.sync", imm=(0,))
    w.branch(w.test(Ops.CMPLT, me, const(32, I64)))
    i = w.begin(0, w.do(Ops.AND, me, const(7, I64)))
    w.store(local, i, w.load(shared, w.do(Ops.ADD, i, me)))
    w.store(out, me, w.load(local, w.do(Ops.SHR, i, const(1, I64))))
    w.end()
    w.end()
    if dtype.bits >= 32:
        one = const(1.0 if dtype.is_float else 1, dtype)
        w.machine("atom.add", out, me, w.machine("atom.add", shared, me, one, dtype=dtype))
    return w.program()


@ROWS
@pytest.mark.parametrize("nbytes", (4096, 60_000))
def test_what_threads_do_together_assembles(row: NvidiaTarget, nbytes: int) -> None:
    for dtype in (dtypes.bool, dtypes.float16, dtypes.int32, dtypes.float64):
        text = render.get("ptx").render(together(dtype, nbytes), row)
        assert PtxAssembler(row.name, flags=QUICK).assemble(text)[:4] == b"\x7fELF"


def test_literals_are_what_the_assembler_reads() -> None:
    """Extreme integers and floats in every place that takes a constant."""
    w = Writer()
    for slot, dtype in enumerate(COMPUTED):
        values = [dtype.min, dtype.max]
        if dtype.is_float:
            values += [float("inf"), float("nan"), -0.0]
        for place, value in enumerate(values):
            one = const(value, dtype)
            w.store(param(slot, 8, dtype), place, one)
            chosen = w.put(Ops.WHERE, dtype, w.test(Ops.CMPLT, w.thread(8), w.thread(8)), one, one)
            w.store(param(slot, 8, dtype), place, chosen)
    for row in GPU_ROWS:
        text = render.get("ptx").render(w.program(), row)
        assert PtxAssembler(row.name, flags=QUICK).assemble(text)[:4] == b"\x7fELF"
