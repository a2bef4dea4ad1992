"""Sums over packed numbers on a GPU: right at every level, each word read once."""

from __future__ import annotations

import re
from math import prod

import pytest

from baregrad import Tensor
from baregrad.base.options import options
from baregrad.dtypes import dtypes
from baregrad.graph import canonicalise
from baregrad.io.gguf import PackedWeight, by_name, weight
from baregrad.ir.core.node import Node, extent_of
from baregrad.kernel import choose_schedule, codegen, grid_size
from baregrad.kernel.facts.analysis import facts_of
from baregrad.kernel.gpu.threads import grid_axes
from baregrad.kernel.loops.sharing import prepare
from baregrad.kernel.planning.common.decisions import Decisions
from baregrad.kernel.planning.common.tiling import Reason
from baregrad.kernel.planning.first_schedule import choose
from baregrad.kernel.planning.gpu.gpu_schedule import choose_gpu_schedule
from baregrad.render import get
from baregrad.render.ptx.fetch_ahead import runs_of
from baregrad.schedule import make_plan
from tests.graph.streams.test_passes import graph_of
from tests.kernel.gpu_kernels import HOPPER, check_gpu, lowered
from tests.kernel.packed_products import packed_product


def reasons(kernel: Node) -> str:
    _, found = choose_gpu_schedule(facts_of(prepare(kernel, HOPPER)), HOPPER)
    texts: list[Reason] = list(found)
    return " ".join(str(text).format(*facts) for text, *facts in texts)


@pytest.mark.parametrize(
    ("name", "held"),
    [("Q6_K", 32), ("Q4_K", 16), ("Q5_K", 64), ("Q3_K", 64), ("Q2_K", 32), ("Q4_0", 32),
     ("Q8_0", 8)],
)
def test_a_thread_has_all_that_is_in_two_words(name: str, held: int) -> None:
    kernel = packed_product(name, 1, 6, 512)
    assert f"{held} numbers in words" in reasons(kernel)
    program = check_gpu(kernel, choose_schedule(kernel, HOPPER))
    text = get("ptx").render(program, HOPPER)
    words = len(re.findall(r"ld\.global\S*\.b32", text))
    octets = len(re.findall(r"prmt\.b32", text))
    # Each word holds at least four numbers, each of which is one permutation.
    assert words
    assert octets >= 2 * words


@pytest.mark.parametrize(("name", "out"), [("Q6_K", 5), ("Q4_K", 5), ("Q8_0", 4)])
def test_rows_of_a_thread_share_the_other_factor(name: str, out: int) -> None:
    kernel = packed_product(name, 1, out, 512, dtypes.bfloat16)
    loads = []
    for each in ("1", "2"):
        wanted = Decisions({"rows of a thread": each, "rows of a block": "1"})
        program = check_gpu(kernel, choose(kernel, HOPPER, wanted).schedule)
        text = get("ptx").render(program, HOPPER)
        # Four neighbouring words, and the numbers that they are multiplied with.
        loads.append(len(re.findall(r"ld\.global\S*\.v4\.", text)))
    assert 0 < loads[0] < loads[1] < 2 * loads[0]


@pytest.mark.parametrize(("rows", "out", "turns", "together"), [
    (2, 9, 1, 2), (3, 48, 4, 4), (8, 5, 1, 4), (8, 5, 1, 1),
])  # fmt: skip
def test_several_rows_are_multiplied_by_the_words_that_a_thread_has(
    rows: int, out: int, turns: int, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others by those of the block beside it, which are in the second cache by then."""
    monkeypatch.setattr(weight, "LARGE_NBYTES", 1)
    kernel = packed_product("Q4_K", rows, out, 1024, dtypes.bfloat16)
    assert "32 numbers in words" in reasons(kernel)
    wanted = Decisions({"rows in turn": str(turns), "rows of words": str(together)}, noted=True)
    schedule = choose(kernel, HOPPER, wanted).schedule
    check_gpu(kernel, schedule)
    loop, _ = lowered(kernel, schedule)
    groups = -(-rows // together)
    if groups > 1:
        *_, inner = grid_axes(loop)
        assert extent_of(inner) == groups
    blocks = grid_size(loop)
    assert isinstance(blocks, int) and blocks % groups == 0


@pytest.mark.parametrize(("name", "together"), [
    ("Q4_K", 4), ("Q4_1", 4), ("Q6_K", 1), ("Q2_K", 1), ("Q5_K", 1),
])  # fmt: skip
def test_a_thread_has_registers_for_the_numbers_of_its_rows(
    name: str, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight, "LARGE_NBYTES", 1)
    asked = Decisions(noted=True)
    choose(packed_product(name, 8, 4096, 4096, dtypes.bfloat16), HOPPER, asked)
    assert asked.made["rows of words"].taken == str(together)


@pytest.mark.parametrize(
    ("name", "held"), [("Q4_K", 32), ("Q5_K", 128), ("Q2_K", 64), ("Q4_1", 32)]
)
def test_words_of_codes_are_multiplied_by_words_of_16_bit_rows(
    name: str, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight, "LARGE_NBYTES", 1)
    kernel = packed_product(name, 1, 6, 512, dtypes.bfloat16)
    assert f"{held} numbers in words" in reasons(kernel)
    program = check_gpu(kernel, choose_schedule(kernel, HOPPER))
    text = get("ptx").render(program, HOPPER)
    # Two codes an instruction, the lower ones of a word or the upper ones.
    assert len(re.findall(r"dp2a", text)) % (2 * held // 4) == 0
    assert re.search(r"ld\.global\S*\.v4\.b32", text)
    # A word by itself holds two scales, or scales and minima, which are taken apart.
    for alone in re.findall(r"ld\.global\.b32 (%r\d+)", text):
        assert re.search(rf"prmt\.b32 %r\d+, {alone}, 0,", text)


@pytest.mark.parametrize(("name", "out", "width", "rows"), [
    ("Q6_K", 512, 512, 1), ("Q6_K", 16384, 512, 2), ("Q6_K", 16384, 4096, 4),
    ("Q4_K", 16384, 2048, 4), ("Q4_K", 65536, 512, 4),
])  # fmt: skip
def test_rows_that_keep_a_machine_busy_are_several_of_a_thread(
    name: str, out: int, width: int, rows: int
) -> None:
    asked = Decisions(noted=True)
    choose(packed_product(name, 1, out, width, dtypes.bfloat16), HOPPER, asked)
    assert asked.made["rows of a thread"].taken == str(rows)


@pytest.mark.parametrize(("out", "width", "threads", "rows", "turns"), [
    (14336, 4096, 128, 4, 4), (4096, 14336, 448, 4, 4), (4096, 4096, 128, 4, 1),
    (1024, 4096, 128, 1, 1), (128256, 4096, 128, 4, 31), (65536, 1024, 32, 4, 4),
])  # fmt: skip
def test_all_blocks_of_words_begin_at_once(
    out: int, width: int, threads: int, rows: int, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight, "LARGE_NBYTES", 1)
    asked = Decisions(noted=True)
    kernel = packed_product("Q4_K", 1, out, width, dtypes.bfloat16)
    _, program = lowered(kernel, choose(kernel, HOPPER, asked).schedule)
    names = ("threads of a row", "rows of a thread", "rows in turn")
    assert [asked.made[name].taken for name in names] == [str(n) for n in (threads, rows, turns)]
    text = get("ptx").render(program, HOPPER)
    (least,) = re.findall(r"\.minnctapersm (\d+)", text)
    # What a thread makes of the row it makes ahead of the loop over its rows.
    assert int(least) * prod(program.arg.block) >= 28 * 32
    before, _, loop = text.partition("\nL")
    assert bool(loop) == (turns > 1)
    assert before.count("max.NaN.f32") == 30 and "max.NaN.f32" not in loop
    # The words of all turns but one are copied beside the work.
    assert len(re.findall(r"cp\.async\.cg", loop)) == rows * (turns > 1)
    assert len(re.findall(r"ld\.global\S*\.v4\.b32", before)) == 4 + rows * (turns == 1)


@pytest.mark.parametrize(("name", "out", "width", "turns"), [
    ("Q6_K", 2048, 8192, 1), ("Q6_K", 4096, 14336, 4), ("Q6_K", 14336, 4096, 4),
    ("Q6_K", 128256, 2048, 16), ("Q4_K", 6144, 4096, 2), ("Q4_K", 4096, 14336, 4),
])  # fmt: skip
def test_all_blocks_have_registers_for_what_they_load(
    name: str, out: int, width: int, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 numbers in six bits and their row take 110 registers, 32 in four bits 64 of them."""
    monkeypatch.setattr(weight, "LARGE_NBYTES", 1)
    asked = Decisions(noted=True)
    kernel = packed_product(name, 1, out, width, dtypes.bfloat16)
    loop, program = lowered(kernel, choose(kernel, HOPPER, asked).schedule)
    assert asked.made["rows in turn"].taken == str(turns)
    # What the renderer asks the assembler for says how many blocks are there at once.
    (least,) = re.findall(r"\.minnctapersm (\d+)", get("ptx").render(program, HOPPER))
    blocks = grid_size(loop)
    assert isinstance(blocks, int) and blocks <= int(least) * HOPPER.units


def test_blocks_have_neighbours_in_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """What all read in a turn lies together, two rows of each of a block's eight warps."""
    monkeypatch.setattr(weight, "LARGE_NBYTES", 1)
    monkeypatch.setattr(codegen, "load_ahead", lambda program, target: program)
    kernel = packed_product("Q4_K", 1, 256, 1024, dtypes.bfloat16)
    wanted = Decisions({"rows in turn": "4", "rows of a thread": "2"})
    loop, program = lowered(kernel, choose(kernel, HOPPER, wanted).schedule)
    assert grid_size(loop) == 4
    words = [
        run for run in runs_of(program, prod(program.arg.block))
        if run.buffer.dtype is dtypes.uint32
    ]  # fmt: skip
    assert [(run.nbytes, run.places.stride * 4) for run in words] == [(16 * 512, 16 * 512)]


def test_products_in_turn_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight, "LARGE_NBYTES", 1)
    kernel = packed_product("Q4_K", 1, 37, 1024, dtypes.bfloat16)
    wanted = Decisions({"rows in turn": "4", "rows of a thread": "2"})
    check_gpu(kernel, choose(kernel, HOPPER, wanted).schedule)


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K"])
def test_the_order_of_a_sum_hangs_on_its_length_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight, "LARGE_NBYTES", 1)
    orders = set()
    for out in (64, 4096, 131072):
        asked = Decisions(noted=True)
        choose(packed_product(name, 1, out, 4096, dtypes.bfloat16), HOPPER, asked)
        orders.add((asked.made["threads of a row"].taken, asked.made["steps"].taken))
    assert len(orders) == 1


@pytest.mark.parametrize("width", [256, 768, 2048, 8192])
def test_sums_of_every_length(width: int) -> None:
    kernel = packed_product("Q6_K", 1, 3, width)
    check_gpu(kernel, choose_schedule(kernel, HOPPER))


@pytest.mark.parametrize("name", ["Q6_K", "Q4_K", "Q8_0"])
def test_matrix_units_take_four_numbers_of_a_word_at_once(name: str) -> None:
    kernel = packed_product(name, 16, 16, 256, dtypes.bfloat16)
    assert "matrix units" in reasons(kernel)
    assert "copies of 8 and 4 elements" in reasons(kernel)
    check_gpu(kernel, choose_schedule(kernel, HOPPER))


@pytest.mark.parametrize("name", ["Q6_K", "Q4_K", "Q8_0"])
@pytest.mark.parametrize("least", [1, weight.LARGE_NBYTES])
def test_two_products_with_one_row_are_one_kernel(
    name: str, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight, "LARGE_NBYTES", least)
    row = by_name(name)
    with options.override(device="NULL", cache=False):
        arrays = [
            Tensor.zeros(64, row.row_nbytes(512), dtype=dtypes.uint8).contiguous().realize()
            for _ in range(2)
        ]
        gate, up = (PackedWeight(row, (64, 512), each).in_planes() for each in arrays)
        x = Tensor.ones(1, 512, dtype=dtypes.bfloat16).contiguous().realize()
        sink = graph_of(gate.linear(x).silu() * up.linear(x), [x])
    plan = make_plan(canonicalise(sink, None, HOPPER), target=HOPPER)
    assert len(plan.kernels) == 1


@pytest.mark.parametrize("name", ("Q6_K", "Q8_0"))
def test_two_matrices_in_one_array_are_summed_as_one_is(name: str) -> None:
    row = by_name(name)
    with options.override(device="NULL", cache=False):
        raw = Tensor.zeros(128, row.row_nbytes(4096), dtype=dtypes.uint8).contiguous().realize()
        both = PackedWeight(row, (128, 4096), raw).in_planes()
        x = Tensor.ones(1, 4096, dtype=dtypes.bfloat16).contiguous().realize()
        first, second = (both.at(part).linear(x) for part in (slice(0, 64), slice(64, 128)))
        sinks = [graph_of(one, [x]) for one in (first * second, first)]
    orders = []
    for sink in sinks:
        asked = Decisions(noted=True)
        kernel = make_plan(canonicalise(sink, None, HOPPER), target=HOPPER).kernels[-1]
        choose(kernel, HOPPER, asked)
        orders.append((asked.made["threads of a row"].taken, asked.made["steps"].taken))
    assert orders[0] == orders[1]


def test_blocks_for_one_group_of_rows_fill_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server's only user has as many as there are, whatever number of rows there may be."""
    monkeypatch.setattr(weight, "LARGE_NBYTES", 1)
    for rows in (4, 8):
        asked = Decisions(noted=True)
        choose(packed_product("Q4_K", rows, 14336, 4096, dtypes.bfloat16), HOPPER, asked)
        assert asked.made["rows of words"].taken == "4"
        assert asked.made["rows in turn"].taken == "7"
