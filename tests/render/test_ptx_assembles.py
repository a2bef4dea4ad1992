"""ptxas takes what is rendered, for every generation of GPUs. Skipped where ptxas is not found."""

from __future__ import annotations

import pytest

from baregrad import render
from baregrad.assemble.cuda_toolkit import find_program
from baregrad.assemble.ptxas import PACKAGE, PtxAssembler
from baregrad.base.errors import MissingDependency
from baregrad.dtypes import COMPUTED, DType
from baregrad.ir.node import Node, alu, cast
from baregrad.ir.op import Ops
from baregrad.target.gpu import GPU_ROWS, GpuTarget
from tests.render.gpu_harness import lower, spread
from tests.render.harness import elementwise
from tests.render.test_alu import STORED, Function, functions_of


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


def assemble(programs: list[Node], row: GpuTarget) -> bytes:
    """The cubin of several programs in one module."""
    texts = []
    for place, program in enumerate(programs):
        named = program.replace(arg=program.arg._replace(name=f"k{place}"))
        text = render.get("ptx").render(named, row)
        texts.append(text if not place else text[text.index(".visible") :])
    return PtxAssembler(row.name, flags=QUICK).assemble("\n".join(texts))


def every_op(dtype: DType) -> Node:
    functions = functions_of(dtype)
    functions.append(lambda x, y: alu(Ops.WHERE, alu(Ops.CMPLE, x, y), x, y))
    functions += [lambda x, y, t=to: cast(x, t) for to in STORED]
    same = [to for to in COMPUTED if to.bits == dtype.bits and "bool" not in (to.kind, dtype.kind)]
    bits: list[Function] = [lambda x, y, t=to: Node(Ops.BITCAST, t, (y,)) for to in same]
    return spread(lower(elementwise([*functions, *bits], 64, (dtype, dtype), 2)))


@ROWS
def test_every_op_assembles(row: GpuTarget) -> None:
    assert assemble([every_op(dtype) for dtype in COMPUTED], row)[:4] == b"\x7fELF"
