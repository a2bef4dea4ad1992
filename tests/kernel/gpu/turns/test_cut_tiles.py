"""Tiles of the last round that are cut between blocks: sums in one order, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from baregrad.base.errors import ScheduleError
from baregrad.base.options import options
from baregrad.dtypes import DType, dtypes
from baregrad.ir.core import index
from baregrad.ir.core.axes import Var
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.alu import to_array
from baregrad.ir.evaluate.kernel_level import evaluate_value
from baregrad.ir.protocol.attributes import ProtocolError
from baregrad.kernel import choose, lower, parse_schedule
from baregrad.kernel.gpu.pictures import pipeline_lines
from baregrad.kernel.gpu.turns.cut_tiles import CutTiles
from baregrad.kernel.planning.gpu import gemm_groups, gemm_mma
from baregrad.program import CUBIN, GpuLaunch, Program
from baregrad.render import get
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit
from baregrad.testing.ptx_device import ptx_session
from baregrad.testing.virtual_gpu.ptx.program import PtxModule
from tests.kernel import kernels as k
from tests.kernel.gpu.test_roles import TMA, Sizes, piped
from tests.kernel.gpu.test_window_boxes import Conv
from tests.kernel.gpu_kernels import HOPPER, lowered, run_text, run_threads
from tests.kernel.instructions.test_mma_sync import count, product
from tests.kernel.instructions.test_wgmma import bytes_product, text_of_bytes
from tests.kernel.test_gpu_assembles import assembled, needs_ptxas
from tests.render.gpu_harness import run_module
from tests.render.test_cuda import text_of

Shape = tuple[int, int, int]


def cut(spelled: str) -> str:
    return re.sub(r"persist\((\d+)\)", r"persist(\1, cut=True)", spelled)


def of_cut(turned: tuple[bool, bool], blocks: int, **sizes: int) -> str:
    return cut(piped(turned, TMA.format(3), blocks, **sizes))


# --- which panels are whose -----------------------------------------------------------------------


@pytest.mark.parametrize(("blocks", "tiles", "whole", "panels"), [
    (2, 1, 0, 5), (5, 3, 0, 7), (7, 2, 0, 4), (4, 1, 1, 9), (6, 5, 2, 5), (132, 68, 0, 8),
    (132, 131, 0, 5), (132, 12, 1, 11), (132, 64, 1, 9),
])  # fmt: skip
def test_each_panel_has_one_block(
    blocks: int, tiles: int, whole: int, panels: int
) -> None:
    """By counting: tiles once each, and stretches of tails that differ by a panel at most."""
    turn = Node(Ops.VAR, dtypes.index, (), Var("turn", 0, 1 << 20))
    block = Node(Ops.VAR, dtypes.index, (), Var("block", 0, blocks - 1))
    own = CutTiles(block, blocks, tiles, whole, panels)
    taken: dict[tuple[int, int], int] = {}
    given: dict[int, list[tuple[int, int]]] = {}
    wanted: dict[int, tuple[int, int]] = {}
    lengths = []
    for number in range(blocks):

        def at(dim: index.Dim, turns: int, number: int = number) -> int:
            values = {"turn": turns, "block": number}
            return int(evaluate_value(index.as_node(dim), {}, variables=values))

        total = 0
        for turns in range(at(own.turns, 0)):
            tile, begin, end = (at(one(turn), turns) for one in (own.tile, own.begin, own.end))
            assert at(own.before(turn), turns) == total and begin < end
            total += end - begin
            for panel in range(begin, end):
                assert taken.setdefault((tile, panel), number) == number
            part = tile - whole * blocks
            if begin:
                assert at(own.part(turn), turns) == part
                given.setdefault(part, []).append((begin, number))
            elif end < panels:
                assert at(own.part(turn), turns) == part
                first, count = own.others(own.part(turn))
                wanted[part] = at(first, turns), at(count, turns)
                # Who waits comes behind all that it waits for.
                assert sum(wanted[part]) <= number
        lengths.append(total)
    assert len(taken) == (whole * blocks + tiles) * panels
    tails, heads = lengths[: blocks - tiles], lengths[blocks - tiles :]
    assert max(tails) - min(tails) <= 1 and len({*heads}) == 1
    places = [part + number for part, parts in given.items() for _, number in parts]
    assert len({*places}) == len(places) and max(places) < blocks
    assert wanted.keys() == given.keys() == {*range(tiles)}
    for part, (first, count) in wanted.items():
        # In the order of panels.
        assert [number for _, number in sorted(given[part])] == [*range(first, first + count)]


def test_heads_are_as_long_as_all_have_panels_but_for_parts() -> None:
    """Few tiles have many parts, which those with heads read; of many tiles others store them."""

    def head(tiles: int) -> int:
        block = Node(Ops.VAR, dtypes.index, (), Var("block", 0, 131))
        return CutTiles(block, 132, tiles, 0, 264).head - 2 * tiles

    assert head(66) == 0 and head(12) < head(33) < 0 < head(99)


# --- sums -----------------------------------------------------------------------------------------


CASES: tuple[tuple[Shape, tuple[bool, bool], int, Sizes], ...] = (
    # A tile that two blocks share beside whole ones; one of several; past all edges.
    ((192, 64, 320), (False, True), 2, {}),
    ((64, 64, 448), (True, False), 5, {}),
    ((200, 56, 136), (True, False), 3, {"groups": 2}),
    ((192, 128, 256), (False, False), 3, {"tiles": 2, "panels": 2}),
    # Stretches with parts of several tails.
    ((320, 64, 320), (False, True), 6, {}),
)


@pytest.mark.parametrize(("shape", "turned", "blocks", "sizes"), CASES, ids=str)
def test_sums_of_tiles_that_are_cut(
    shape: Shape, turned: tuple[bool, bool], blocks: int, sizes: Sizes
) -> None:
    """Within float32's rounding of those in float64, and the same in any order of warps."""
    kernel = product(*shape, *turned, bias=True)
    loop, program = lowered(kernel, of_cut(turned, blocks, **sizes))
    arrays = k.arguments(kernel)
    found = run_text(loop, program, arrays)[0]
    exact, most = in_float64(shape, turned, arrays)
    assert (np.abs(found - exact) <= shape[2] * 2.0**-24 * most).all()
    np.testing.assert_array_equal(run_threads(loop, program, arrays)[0], found)


def in_float64(
    shape: Shape, turned: tuple[bool, bool], arrays: dict[int, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """A product with its bias, and the sums of the magnitudes."""
    m, n, depth = shape
    left, right = (to_array(arrays[slot], dtypes.float16).astype(np.float64) for slot in (1, 2))
    left = left.reshape(depth, m).T if turned[0] else left.reshape(m, depth)
    right = right.reshape(n, depth).T if turned[1] else right.reshape(depth, n)
    bias = arrays[3].astype(np.float64).reshape(-1)
    return np.maximum(left @ right + bias, 0), np.abs(left) @ np.abs(right) + np.abs(bias)


@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.float8_e4m3fn], ids=str)
def test_sums_of_bytes_that_are_cut(dtype: DType) -> None:
    """Those of integers are exact; of panels of 8-bit floats threads add up their own."""
    kernel = bytes_product(128, 64, 640, (dtype, dtype))
    spelled = f"{text_of_bytes(TMA.format(3))[:-1]}, persist(3))"
    arrays = k.arguments(kernel)
    whole, parts = (lowered(kernel, one) for one in (spelled, cut(spelled)))
    found = run_text(*parts, arrays)[0]
    np.testing.assert_array_equal(run_threads(*parts, arrays)[0], found)
    wanted = run_text(*whole, arrays)[0]
    if dtype is dtypes.int8:
        np.testing.assert_array_equal(found, wanted)
        return
    left, right = (np.abs(to_array(arrays[slot], dtype).astype(np.float64)) for slot in (1, 2))
    most = left.reshape(128, -1) @ right.reshape(64, -1).T
    assert (np.abs(found - wanted) <= 640 * 2.0**-24 * most).all()


KERNEL = product(192, 64, 320, b_t=True, bias=True)
SPELLED = of_cut((False, True), 2)


def test_a_module_runs_again_and_again() -> None:
    """Flags are as they were: what one launch hands over no later one takes."""
    loop, program = lowered(KERNEL, SPELLED)
    module = PtxModule.parse(get("ptx").render(program, HOPPER))
    results = []
    for seed in (0, 1, 0):
        arrays = k.arguments(KERNEL, seed)
        given = [np.array(arrays[slot]) for slot in range(len(arrays))]
        run_module(module, program, given, grid=2)
        results.append(given[0])
        np.testing.assert_array_equal(run_text(loop, program, arrays)[0], given[0])
    np.testing.assert_array_equal(results[0], results[2])
    assert (results[0] != results[1]).any()


@pytest.mark.parametrize("language", ["ptx", "cuda"])
def test_launches_of_one_kernel_do_not_overlap(language: str) -> None:
    """They have the same flags and sums, though all that they are given is different."""

    def has_own_memory(spelled: str) -> bool:
        text = get(language).render(lowered(KERNEL, spelled)[1], HOPPER)
        launch = GpuLaunch((2, 1, 1), (256, 1, 1))
        return Program("k", CUBIN, b"", "k", (), source=text, launch=launch).keeps_variables

    assert has_own_memory(SPELLED)
    assert not has_own_memory(SPELLED.replace(", cut=True", ""))


# --- what is verified -----------------------------------------------------------------------------


def without(program: Node, name: str) -> Node:
    """A PROGRAM that has forgotten one kind of instruction."""
    code = [one for one in program.src if one.op is not Ops.MACHINE or one.arg.name != name]
    assert len(code) < len(program.src)
    return program.replace(src=tuple(code))


@pytest.mark.parametrize(("name", "fault"), [
    ("flag.raise", "waits for a block that comes later"), ("flag.lower", "flags are still up"),
])  # fmt: skip
def test_a_forgotten_flag_is_found(name: str, fault: str) -> None:
    loop, program = lowered(KERNEL, SPELLED)
    with pytest.raises(ProtocolError, match=fault):
        run_threads(loop, without(program, name), k.arguments(KERNEL))


def test_what_is_read_without_waiting_is_found() -> None:
    """Sums that nobody has handed over yet are no numbers, and a flag that was not up is one."""
    loop, program = lowered(KERNEL, SPELLED)
    arrays = k.arguments(KERNEL)
    found = run_threads(loop, without(program, "flag.wait"), arrays)[0]
    np.testing.assert_array_equal(found, run_threads(loop, program, arrays)[0])
    stores = [one for one in program.src if one.op is Ops.VSTORE
              and one.src[0].op is Ops.ALLOC and one.src[0].arg.space == "device"]  # fmt: skip
    code = tuple([one for one in program.src if one not in stores])
    assert np.isnan(run_threads(loop, program.replace(src=code), arrays)[0]).any()


@needs_ptxas
def test_the_text_assembles() -> None:
    """A flag is raised behind the stores that it speaks of, and waited for ahead of their loads."""
    text = get("ptx").render(lowered(KERNEL, SPELLED)[1], HOPPER)
    order = [text.index(one) for one in ("st.global.v", "bar.warp.sync", "st.release.gpu.global")]
    assert order == sorted(order)
    reads = text.index("ld.global.v2.f32", text.index("ld.acquire.gpu.global"))
    assert reads < text.index("st.relaxed.gpu.global")
    assert assembled(text, HOPPER.architecture)[1] == 0


def test_cuda_c_has_the_same_memory_and_flags() -> None:
    text = text_of(lowered(KERNEL, SPELLED)[1])
    sums, flags = re.findall(r"^__device__ __align__\(16\) (\w+) \w+\[(\d+)\];", text, re.M)
    # Two blocks of four warps, and accumulators of 64 x 64.
    assert sums == ("float", str(2 * 64 * 64)) and flags == ("u32", str(2 * 4))
    steps = ("__syncwarp", "st.release.gpu", "ld.acquire.gpu", "__syncwarp", "st.relaxed.gpu")
    places = [0]
    for step in steps:
        places.append(text.index(step, places[-1]))
    assert places == sorted(places)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(("change", "fault"), [
    (("cut=True", "teams=2, cut=True"), "tiles are cut between blocks"),
    (("'tma'", "'async'"), "tiles are cut between blocks"),
    (("persist(2", "stage_output(0), persist(2"), "tiles are cut between blocks"),
    (("cut=True", "cut=1"), "cut"),
    (("persist(2", "persist(90"), "fewer panels than blocks"),
    (("persist(2", "persist(3"), "no tiles"),
])  # fmt: skip
def test_what_cannot_be_cut(change: tuple[str, str], fault: str) -> None:
    spelled = SPELLED.replace(*change)
    if "'async'" in spelled:
        spelled = re.sub(r", roles\(.*?\)\)", "", spelled)
    if "teams=2" in spelled:
        spelled = spelled.replace("products=(4, 216)", "products=(8, 232)")
    with pytest.raises(ScheduleError, match=fault):
        lowered(KERNEL, spelled)


def test_a_picture_tells_of_heads_and_tails() -> None:
    lines = pipeline_lines(lower(KERNEL, HOPPER, parse_schedule(SPELLED)), HOPPER)
    assert any("some blocks do heads" in line for line in lines)
    whole = parse_schedule(SPELLED.replace(", cut=True", ""))
    assert "heads" not in "".join(pipeline_lines(lower(KERNEL, HOPPER, whole), HOPPER))


def test_a_schedule_prints_what_it_cuts() -> None:
    steps = parse_schedule(SPELLED)
    assert "persist(2, cut=True)" in str(steps) and parse_schedule(str(steps)) == steps
    assert "cut" not in str(parse_schedule(SPELLED.replace(", cut=True", "")))


def test_replays_of_a_schedule_that_somebody_edited(tmp_path: Path) -> None:
    """A captured product gives what NumPy does, each time."""
    file = tmp_path / "mine"
    file.write_text(f"reduce_192x64_320 = {SPELLED}\n")
    rng = np.random.default_rng(0)
    shapes = ((192, 320), (64, 320)) * 2
    drawn = [rng.integers(-8, 8, shape).astype(np.float32) for shape in shapes]
    with ptx_session() as session, options.override(schedules=file):
        function = jit(lambda a, b: a.matmul(b.T, out_dtype="float32"))
        pairs = [[Tensor(one).cast("bfloat16").realize() for one in drawn[at : at + 2]]
                 for at in (0, 2)]  # fmt: skip
        for number in (0, 1, 0, 1):
            left, right = drawn[2 * number : 2 * number + 2]
            # Sums of whole numbers are exact in any order.
            np.testing.assert_array_equal(function(*pairs[number]).numpy(), left @ right.T)
        backend: Any = session.backend("NV")
        programs = backend.compiler._programs.values()
        assert any(b"ld.acquire.gpu" in program.code for program in programs)


@pytest.mark.parametrize("backwards", [False, True], ids=["forward", "filter"])
def test_walks_along_images_that_are_cut(backwards: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a panel begins is a place and a tap, also of the panels in the middle of a tile."""
    ranked = gemm_groups.ranked_groups

    def small_boxes(*given: Any, **named: Any) -> list[Any]:
        found = [one for one in ranked(*given, **named) if one.boxes and not one.cut]
        cheap = [one._replace(cycles=one.tile.m * one.tile.n / 1e6 + one.slots) for one in found]
        return sorted(cheap, key=lambda one: one.cycles)

    monkeypatch.setattr(gemm_mma, "ranked_groups", small_boxes)
    conv = Conv(2, (8, 8), padding=1)
    kernel = conv.by_filter() if backwards else conv.forward()
    spelled = re.sub(r"persist\(.*?\), ", "", str(choose(kernel, HOPPER).schedule))
    arrays = k.arguments(kernel)
    whole = lowered(kernel, spelled)
    parts = lowered(kernel, spelled.replace("pipeline(", "persist(5, cut=True), pipeline("))
    assert count(parts[1], "tma.walk") and count(parts[1], "flag.wait")
    found = run_text(*parts, arrays)
    k.assert_equal(run_text(*whole, arrays), found)
    np.testing.assert_array_equal(run_threads(*parts, arrays)[0], found[0])
