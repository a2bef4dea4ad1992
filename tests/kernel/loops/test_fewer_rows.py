"""Blocks of several rows of a symbolic number: as much is computed as there are rows."""

from __future__ import annotations

import re

import numpy as np
import pytest

from baregrad.dtypes import dtypes
from baregrad.io.gguf import weight
from baregrad.ir.core.node import toposort
from baregrad.ir.core.op import WORD_PRODUCTS, Ops
from baregrad.kernel import choose_schedule, grid_size
from baregrad.kernel.planning.common.decisions import Decisions
from baregrad.kernel.planning.first_schedule import choose
from baregrad.render import get
from baregrad.render.gpu import read_early
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import HOPPER, lowered
from tests.kernel.packed_products import packed_product
from tests.render.gpu_harness import run_ptx


@pytest.mark.parametrize(("name", "most"), [("Q4_K", 4), ("Q4_1", 4)])
@pytest.mark.parametrize("out", [6, 4096])
def test_there_is_a_version_for_each_number_of_rows(
    name: str, most: int, out: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight, "LARGE_NBYTES", 1)
    kernel = packed_product(name, 8, out, 1024, dtypes.bfloat16, symbolic=True)
    loop, program = lowered(kernel, choose_schedule(kernel, HOPPER))
    assert sum(node.op is Ops.IF for node in toposort(loop)) >= most.bit_length()
    counts = list[int]()
    depth = 0
    for node in program.src:
        counts += [0] * (not depth and node.op is Ops.TEST)
        depth += (node.op in (Ops.TEST, Ops.BEGIN)) - (node.op is Ops.END)
        if node.op in WORD_PRODUCTS:
            counts[-1] += 1
    several = [1 << place for place in range(most.bit_length())]
    assert [count // counts[0] for count in counts] == several
    # What of the words each version loads is as wide as if it were the only one.
    text = get("ptx").render(program, HOPPER)
    wide = [len(re.findall(r"ld\.global\S*\.v4\.b32", part)) for part in _parts(text)]
    assert len(wide) == len(several) and min(wide) > 0


def _parts(text: str) -> list[str]:
    """The text of each block under a condition that is in no other."""
    found = re.finditer(r"^  @!%p\d+ bra (E\d+);\n(?:.*\n)*?\1:", text, re.M)
    return [part.group() for part in found]


def test_what_is_known_is_one_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight, "LARGE_NBYTES", 1)
    kernel = packed_product("Q4_K", 6, 64, 1024, dtypes.bfloat16)
    loop, _ = lowered(kernel, choose_schedule(kernel, HOPPER))
    text = [node for node in toposort(loop) if node.op is Ops.IF]
    assert not any(node.mask & Ops.REDUCE.bit for node in text)


@pytest.mark.parametrize(("least", "most", "together", "versions"), [
    (2, 4, 4, 2), (3, 4, 4, 1), (2, 3, 4, 2), (1, 2, 4, 2), (2, 2, 4, 1), (1, 3, 8, 3),
])  # fmt: skip
def test_there_is_no_version_for_as_many_rows_as_there_never_are(
    least: int, most: int, together: int, versions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bounds of their number may say that all blocks have so many rows, or that none has."""
    monkeypatch.setattr(weight, "LARGE_NBYTES", 1)
    wanted = Decisions({"rows of words": str(together)})
    kernel = packed_product("Q4_K", most, 9, 512, dtypes.bfloat16, symbolic=True, least=least)
    loop, program = lowered(kernel, choose(kernel, HOPPER, wanted).schedule)
    whole = packed_product("Q4_K", most, 9, 512, dtypes.bfloat16)
    arrays = k.arguments(whole)
    blocks = grid_size(loop)
    assert isinstance(blocks, int)
    conditions = [node for node in toposort(loop) if node.op is Ops.IF and node.has(Ops.REDUCE)]
    assert len(conditions) == versions * (versions > 1)
    rows = k.run_kernel(whole, arrays)[0]
    for count in range(least, most + 1):
        found = {slot: np.array(array) for slot, array in arrays.items()}
        found[0][:] = 7
        run_ptx(program, [found[slot] for slot in range(len(found))], {"rows": count}, grid=blocks)
        k.assert_equal({0: rows[:count]}, {0: found[0][:count]})
        assert (found[0][count:] == 7).all()


def test_each_version_copies_the_words_of_a_turn_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the same places: a block runs one of them."""
    monkeypatch.setattr(weight, "LARGE_NBYTES", 1)
    kernel = packed_product("Q4_K", 8, 14336, 4096, dtypes.bfloat16, symbolic=True)
    _, program = lowered(kernel, choose_schedule(kernel, HOPPER))
    copies = [
        node for node in program.src if node.op is Ops.MACHINE and node.arg.name == "cp.async"
    ]
    text = get("ptx").render(program, HOPPER)
    parts = _parts(text)
    assert len(parts) == 3
    # Four rows' words, scales and minima; those of the first turn are asked for ahead of the wait.
    for part in parts:
        before, _, behind = part.partition("griddepcontrol.wait")
        assert [len(re.findall(r"cp\.async\.c[ag]", each)) for each in (before, behind)] == [12, 12]
    assert len({node.src[0] for node in copies}) == 12
    # The list is told of these alone, which no kernel in front may write.
    assert read_early(program) == tuple(sorted({node.src[2].arg.slot for node in copies}))
