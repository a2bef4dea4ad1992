"""What a block asks for before it waits: all that it reads of packed numbers, nothing beside."""

from __future__ import annotations

import dataclasses
import re
from math import prod

import pytest

from baregrad import dtypes
from baregrad.ir.core.node import Node, const
from baregrad.ir.core.op import Ops
from baregrad.kernel import choose_schedule, codegen, grid_size
from baregrad.render import get
from baregrad.render.ptx.fetch_ahead import MOST_NBYTES, BlockPlaces, joined, read_once, runs_of
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import HOPPER, lowered
from tests.kernel.packed_products import packed_product

ASKED = re.compile(r"cp\.async\.bulk\.prefetch\.L2\.global \[%rd\d+\], (\d+);")


@pytest.fixture(autouse=True)
def nothing_is_loaded_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that wait ahead of all their loads: others ask for nothing."""
    monkeypatch.setattr(codegen, "load_ahead", lambda program, target: program)


def product(name: str, out: int, width: int, rows: int = 1) -> tuple[Node, int]:
    kernel = packed_product(name, rows, out, width, dtypes.bfloat16)
    loop, program = lowered(kernel, choose_schedule(kernel, HOPPER))
    blocks = grid_size(loop)
    assert isinstance(blocks, int)
    return program, blocks


@pytest.mark.parametrize(("name", "rows"), [("Q4_0", 1), ("Q6_K", 1), ("Q8_0", 1), ("Q6_K", 16)])
def test_blocks_ask_for_all_words_and_for_each_once(name: str, rows: int) -> None:
    program, blocks = product(name, 64, 512 if rows > 1 else 1024, rows)
    runs = list(runs_of(program, prod(program.arg.block)))
    assert any(run.buffer.dtype is dtypes.uint32 for run in runs)
    for run in runs:
        stride, low, high = run.places
        starts = [stride * block + low for block in range(blocks)]
        places = [place for start in starts for place in range(start, start + high + 1 - low)]
        assert places == list(range(prod(run.buffer.arg.shape)))
        assert run.blocks == blocks
    text = get("ptx").render(program, HOPPER)
    before, _, after = text.partition("griddepcontrol.wait")
    assert sorted(int(nbytes) for nbytes in ASKED.findall(before)) == sorted(
        run.nbytes for run in runs
    )
    assert not ASKED.search(after)


def test_blocks_ask_for_no_more_than_the_array_has() -> None:
    program, _ = product("Q4_K", 37, 1024)
    for run in runs_of(program, prod(program.arg.block)):
        end = run.places.stride * (run.blocks - 1) + run.places.high
        assert end < prod(run.buffer.arg.shape) <= end + run.places.stride


def test_small_sums_ask_for_nothing() -> None:
    program, _ = product("Q4_K", 4, 256)
    assert not ASKED.search(get("ptx").render(program, HOPPER))


def test_matrices_in_one_array_are_asked_for_apart() -> None:
    first = [BlockPlaces(64, 32, 63), BlockPlaces(64, 0, 31)]
    second = [BlockPlaces(64, 4096, 4127), BlockPlaces(64, 4128, 4200)]
    assert joined([*first, *second]) == [BlockPlaces(64, 0, 63), BlockPlaces(64, 4096, 4159)]
    assert joined([*first, None]) == joined([*first, BlockPlaces(32, 0, 31)]) == []
    assert joined([BlockPlaces(0, 0, 63)]) == joined([]) == []


def test_blocks_that_begin_later_ask_for_nothing() -> None:
    program, blocks = product("Q8_0", 131072, 1024)
    text = get("ptx").render(program, HOPPER)
    (bound,) = re.findall(r"setp\.ge\.or\.u32 %p\d+, %r\d+, (\d+),", text)
    assert HOPPER.units <= int(bound) < blocks


def test_blocks_ask_for_a_share_of_the_cache_together() -> None:
    program, blocks = product("Q4_K", 131072, 4096)
    runs = list(runs_of(program, prod(program.arg.block)))
    asked = [int(nbytes) for nbytes in ASKED.findall(get("ptx").render(program, HOPPER))]
    assert len(asked) == len(runs) and all(asked)
    assert MOST_NBYTES > sum(run.nbytes for run in runs) > sum(asked)
    assert HOPPER.cache_bytes // 9 < blocks * sum(asked) < HOPPER.cache_bytes // 7


def loads(text: str) -> dict[str, list[str]]:
    """Of what `ld.global` reads and how, by the register of the array that it is from."""
    found: dict[str, list[str]] = {}
    bases = dict(re.findall(r"(?:mad\.\S+|add\.s64) (%rd\d+), .*?(%rd\d+);", text))
    for how, place in re.findall(r"ld\.global(\S*) .*?\[(%rd\d+)", text):
        while place in bases:
            place = bases[place]
        found.setdefault(place, []).append(how)
    return found


@pytest.mark.parametrize("out", [64, 131072])
@pytest.mark.parametrize("name", ["Q4_K", "Q8_0"])
def test_words_that_are_read_once_pass_the_first_cache(name: str, out: int) -> None:
    """Not the row, which all blocks read, nor what several threads of one read."""
    program, _ = product(name, out, 1024)
    once = read_once(program, prod(program.arg.block))
    assert {buffer.dtype.name for buffer in once} == {"uint32"}
    found = loads(get("ptx").render(program, HOPPER))
    hinted = [hows for hows in found.values() if any("no_allocate" in how for how in hows)]
    assert len(hinted) == len(once)
    assert all("no_allocate" in how for hows in hinted for how in hows)
    assert len(found) > len(hinted)


def test_older_versions_have_no_such_hints() -> None:
    program, _ = product("Q4_K", 64, 1024)
    old = dataclasses.replace(HOPPER, ptx_isa=(7, 3))
    assert "no_allocate" not in get("ptx").render(program, old)


def test_words_that_several_read_stay_in_the_cache() -> None:
    """As where a loop reads them over and over, or two threads do."""
    program, _ = product("Q4_K", 64, 1024)
    threads = prod(program.arg.block)
    once = read_once(program, threads)
    begin = Node(Ops.BEGIN, dtypes.int32, (const(0, dtypes.int32), const(2, dtypes.int32)))
    end = Node(Ops.END, dtypes.token)
    again = program.replace(src=(begin, *program.src, end))
    assert once and not read_once(again, threads)
    assert not read_once(program, 2 * threads)
    # Those of matrix units are narrow, and several have parts of a line.
    program, _ = product("Q4_K", 64, 512, 16)
    assert any(run.buffer.dtype is dtypes.uint32 for run in runs_of(program, threads))
    assert not read_once(program, prod(program.arg.block))


@pytest.mark.parametrize(
    ("rows", "length", "asked"), ((1, 4096, [16384]), (1, 512, []), (8, 4096, []))
)
def test_small_kernels_ask_for_whole_arrays(rows: int, length: int, asked: list[int]) -> None:
    """Before they wait, as a norm's weights are in no cache; not for what is long, or a trifle."""
    kernel = k.row_reduce(rows, length)
    _, program = lowered(kernel, choose_schedule(kernel, HOPPER))
    before, _, after = get("ptx").render(program, HOPPER).partition("griddepcontrol.wait")
    assert [int(nbytes) for nbytes in ASKED.findall(before)] == asked and not ASKED.search(after)
