"""Contractions of 16-bit floats that are planned for matrix units: joined axes, edges, batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from baregrad.ir.core.index import variable
from baregrad.ir.core.node import Node
from baregrad.kernel import choose, choose_schedule
from baregrad.kernel.language.schedule import Split
from baregrad.kernel.planning.gpu import gemm_mma
from baregrad.kernel.planning.gpu.gemm_tiles import TILES, TileChoice, WarpTile
from baregrad.render import get
from baregrad.target import gpu_row
from baregrad.tensor import Tensor
from baregrad.testing.ptx_device import ptx_session
from baregrad.testing.virtual_gpu.ptx.block import Block
from baregrad.testing.virtual_gpu.ptx.ops import copies as copies_of_ptx
from tests.kernel import kernels as k
from tests.kernel.contractions import contraction, convolution
from tests.kernel.gpu_kernels import HOPPER, check_gpu, lowered, run_text
from tests.kernel.test_gpu_assembles import assembled, needs_ptxas


def copies(kernel: Node) -> tuple[int, int]:
    """How many elements copies of the left and the right factor take, as the plan says."""
    (told,) = (why for why in choose(kernel, HOPPER).why() if why.startswith("matrix units"))
    left, _, right = told.partition("copies of ")[2].removesuffix(" elements").partition(" and ")
    return int(left), int(right)


@pytest.mark.parametrize("sides", ("rows", "columns", "both"))
def test_symbolic_sides_are_of_matrix_units_and_in_no_groups(sides: str) -> None:
    """Blocks of a group are there whether there are rows for them or not."""
    many = variable("many", 1, 4096)
    rows = (many,) if sides != "columns" else (64,)
    columns = (many,) if sides != "rows" else (1024,)
    found = choose(contraction(rows, columns, (64,), "ax", "nx", "an"), HOPPER)
    assert found.why()[0].startswith("matrix units")
    names = {name for step in found.schedule.steps if isinstance(step, Split)
             for name, size in step.parts if size > 1}  # fmt: skip
    grouped = {"rows": "n_g", "columns": "m_g"}
    assert {name for name in names if name.endswith("_g")} <= {grouped.get(sides)}


JOINED: dict[str, tuple[Node, tuple[int, int]]] = {
    "rows that lie together": (
        contraction((4, 24), (48,), (64,), "abx", "nx", "abn"), (8, 8)),
    "rows that do not": (
        contraction((4, 8), (32,), (64,), "abx", "nx", "bna"), (8, 8)),
    "depth that lies together": (
        contraction((32,), (48,), (4, 24), "xya", "xyn", "an"), (8, 8)),
    "depth that one factor has in another order": (
        contraction((32,), (40,), (6, 16), "axy", "nyx", "an"), (0, 8)),
    "columns that lie together across": (
        contraction((24,), (4, 16), (48,), "ax", "xno", "ano"), (8, 8)),
    "three axes a side": (
        contraction((2, 3, 8), (2, 2, 16), (4, 2, 8), "abcxyz", "xyznop", "abcnop"), (8, 8)),
    "columns that lie together by some": (
        contraction((16,), (3, 6, 8), (16,), "ax", "nxop", "anop"), (8, 8)),
    "depth that lies together by some": (
        contraction((16,), (16,), (3, 6, 4), "xayz", "xnyz", "an"), (8, 8)),
    "batches": (
        contraction((32,), (24,), (32,), "sax", "sxn", "san", (3,)), (8, 8)),
    "batches turned": (
        contraction((32,), (24,), (32,), "sxa", "snx", "sna", (3,)), (8, 8)),
    "heads between": (
        contraction((32,), (24,), (32,), "satx", "sntx", "stan", (2, 2)), (8, 8)),
    "edges in the depth": (
        contraction((32,), (24,), (40,), "ax", "nx", "an"), (8, 8)),
    "odd sizes": (
        contraction((19,), (21,), (33,), "ax", "nx", "an"), (1, 1)),
    "few rows": (
        contraction((8,), (72,), (128,), "ax", "xn", "an"), (8, 8)),
    "few columns": (
        contraction((72,), (8,), (128,), "ax", "nx", "an"), (8, 8)),
}  # fmt: skip


@pytest.mark.parametrize("name", JOINED)
def test_axes_of_a_side_are_one(name: str) -> None:
    kernel, lanes = JOINED[name]
    schedule = choose_schedule(kernel, HOPPER)
    assert "tensorize" in str(schedule)
    assert sorted(copies(kernel)) == sorted(lanes)
    check_gpu(kernel, schedule)


@needs_ptxas
@pytest.mark.parametrize("sizes", [(4096, 4096, 4096), (16, 8192, 8192), (1000, 520, 200)])
@pytest.mark.parametrize("arrays", [("ax", "xn"), ("xa", "nx")], ids=str)
def test_no_tile_spills(sizes: tuple[int, int, int], arrays: tuple[str, str]) -> None:
    m, n, deep = sizes
    kernel = contraction((m,), (n,), (deep,), *arrays, "an")
    for row in ("sm_80", "sm_90a"):
        target = gpu_row(row)
        _, program = lowered(kernel, choose_schedule(kernel, target), target)
        registers, spilled = assembled(get("ptx").render(program, target), row)
        assert spilled == 0
        assert registers * math.prod(program.arg.block) <= target.registers_per_unit


@pytest.mark.parametrize("deep", [32, 48, 64, 128])
def test_all_of_a_short_sum_is_on_its_way_at_once(deep: int) -> None:
    kernel = contraction((128,), (128,), (deep,), "ax", "nx", "an")
    schedule = choose_schedule(kernel, HOPPER)
    assert "pipeline('k_o', depth=2, engine='async')" in str(schedule)
    assert "cp.async" in get("ptx").render(check_gpu(kernel, schedule), HOPPER)


def test_a_linear_layer_and_its_gradients_are_on_the_unit() -> None:
    rng = np.random.default_rng(0)
    x, w, g = (rng.standard_normal(shape).astype(np.float16)
               for shape in ((2, 16, 32), (48, 32), (2, 16, 48)))  # fmt: skip
    with ptx_session() as session:
        left, right = Tensor(x).requires_grad_(), Tensor(w).requires_grad_()
        y = left @ right.transpose(0, 1)
        y.backward(Tensor(g))
        assert left.grad is not None
        assert right.grad is not None
        found = [y.detach().numpy(), left.grad.numpy(), right.grad.numpy()]
        made = session.backend("NV").compiler._programs.values()
        assert sum("mma.sync" in one.source for one in made) == 3
    x, w, g = (one.astype(np.float64) for one in (x, w, g))
    wanted = [x @ w.T, g @ w, np.einsum("bto,bti->oi", g, x)]
    for one, other in zip(found, wanted, strict=True):
        assert np.abs(one - other).max() < 2.0**-9 * np.abs(other).max()


CONVOLUTIONS: tuple[tuple[Callable[..., Node], tuple[Any, ...]], ...] = (
    (convolution, (2, 8, 4, 16, 3, True)),
    (convolution, (2, 8, 4, 16, 3, False)),
    (convolution, (2, 16, 4, 16, 1, True)),
    (convolution, (1, 3, 5, 24, 3, False)),
)


@pytest.mark.parametrize(("make", "sizes"), CONVOLUTIONS)
def test_convolutions_are_products(make: Callable[..., Node], sizes: tuple[Any, ...]) -> None:
    kernel = make(*sizes)
    schedule = choose_schedule(kernel, HOPPER)
    assert "tensorize" in str(schedule)
    check_gpu(kernel, schedule)


@pytest.mark.parametrize("kernel", [
    contraction((64,), (128,), (64,), "ax", "nx", "an"),
    contraction((128,), (2, 64), (64,), "ax", "nox", "nao"),
    contraction((64,), (2, 2, 48), (64,), "ax", "nopx", "naop"),
    contraction((64,), (4, 2, 14), (64,), "ax", "nopx", "naop"),
])  # fmt: skip
def test_a_lane_stores_sixteen_bytes_at_once(kernel: Node) -> None:
    """Columns take turns among a warp's tiles where the right factor's steps lie together."""
    schedule = choose_schedule(kernel, HOPPER)
    assert "bind('n_v', 'vector')" in str(schedule)
    text = get("ptx").render(check_gpu(kernel, schedule), HOPPER)
    assert text.count("st.global") == text.count("st.global.v4") > 0


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("kernel", [
    contraction((64,), (64,), (192,), "ax", "xn", "an"),
    contraction((40,), (72,), (192,), "xa", "xn", "an"),
    contraction((64,), (3, 2, 16), (192,), "ax", "xnop", "anop"),
])  # fmt: skip
def test_four_lanes_exchange_columns_that_come_together(
    kernel: Node, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that each has all of a tile, where the right factor's columns lie together."""
    chosen = TileChoice(WarpTile(2, 2, 2, 4), slots, 0.0)
    monkeypatch.setattr(gemm_mma, "ranked_tiles", lambda *_: [chosen])
    schedule = choose_schedule(kernel, HOPPER)
    assert "n_v=4, n_i=8" in str(schedule)
    text = get("ptx").render(check_gpu(kernel, schedule), HOPPER)
    assert text.count("st.global") == text.count("st.global.v4") > 0
    # Each of the 32 results of a lane is given or kept twice.
    assert text.count("shfl.sync") == 32


def test_elsewhere_two_columns_are_neighbours_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    for size, arrays, tiles in ((128, ("ax", "xn", "an"), 2), (74, ("ax", "nx", "an"), 4)):
        chosen = TileChoice(WarpTile(2, 2, 2, tiles), 1, 0.0)
        monkeypatch.setattr(gemm_mma, "ranked_tiles", lambda *_, one=chosen: [one])
        schedule = choose_schedule(contraction((64,), (size,), (64,), *arrays), HOPPER)
        assert "tensorize" in str(schedule)
        assert "n_v" not in str(schedule)


@pytest.mark.few(20)
@pytest.mark.parametrize("deep", [16, 64, 128])
@pytest.mark.parametrize("arrays", ["ax nx", "ax xn", "xa nx", "xa xn"])
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_rows_of_a_matrix_lie_in_different_banks(
    monkeypatch: pytest.MonkeyPatch, tile: WarpTile, arrays: str, deep: int
) -> None:
    """The eight rows of 16 bytes that `ldmatrix` reads at once, of every matrix of every warp."""
    monkeypatch.setattr(gemm_mma, "ranked_tiles", lambda *_: [TileChoice(tile, 1, 0.0)])
    left, right = arrays.split()
    kernel = contraction((tile.m,), (tile.n,), (deep,), left, right, "an")
    found: list[Any] = []
    real = Block.load

    def load(block: Block, space: str, places: Any, *rest: Any) -> Any:
        if space == "shared":
            found.append(places)
        return real(block, space, places, *rest)

    monkeypatch.setattr(Block, "load", load)
    loop, program = lowered(kernel, choose_schedule(kernel, HOPPER))
    run_text(loop, program, k.arguments(kernel))
    assert found
    for places in found:
        chunks = places.reshape(-1, 8) // 16 % 8
        assert (np.sort(chunks, axis=1) == np.arange(8)).all()


@pytest.mark.few(10)
@pytest.mark.parametrize("arrays", ["ax nx", "ax xn", "xa nx", "xa xn"])
@pytest.mark.parametrize("tile", [one for one in TILES if one.m % 64 == one.n % 64 == 0], ids=str)
def test_eight_lanes_copy_a_line_of_all_banks(
    monkeypatch: pytest.MonkeyPatch, tile: WarpTile, arrays: str
) -> None:
    """Words that come by themselves, whichever way a panel lies."""
    monkeypatch.setattr(gemm_mma, "ranked_tiles", lambda *_: [TileChoice(tile, 2, 0.0)])
    kernel = contraction((tile.m,), (tile.n,), (128,), *arrays.split(), "an")
    found: list[Any] = []
    real = copies_of_ptx._land

    def land(block: Block, ids: Any, places: Any, words: Any) -> None:
        found.append(places)
        real(block, ids, places, words)

    monkeypatch.setattr(copies_of_ptx, "_land", land)
    loop, program = lowered(kernel, choose_schedule(kernel, HOPPER))
    run_text(loop, program, k.arguments(kernel))
    assert found
    for places in found:
        eights = places.reshape(-1, 8)
        assert (np.sort(eights // 16 % 8, axis=1) == np.arange(8)).all()
        assert (eights // 128 == eights[:, :1] // 128).all()
