"""Products of bytes by groups of warps: factors are read as they lie, or turned first."""

from __future__ import annotations

import re
from collections.abc import Callable

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from baregrad.base.options import options
from baregrad.graph import canonicalise
from baregrad.graph.group_factors import (
    has_group_factors,
    has_octet_factors,
    has_warp_factors,
)
from baregrad.ir.core.node import toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel import choose
from baregrad.kernel.planning.gpu import gemm_groups
from baregrad.kernel.planning.gpu.gemm_groups import TILES, GroupTile
from baregrad.nn.block_scaled import FORMATS, BlockScaled, scaled_matmul
from baregrad.nn.float8 import float8_linear
from baregrad.program import Program
from baregrad.schedule import make_plan
from baregrad.target import gpu_row
from baregrad.target.cpu import cpu_row_named
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit
from baregrad.testing.ptx_device import PtxDevice, ptx_session
from tests.graph.streams.test_passes import graph_of

E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
KINDS = (
    (E4M3, E4M3, "float32", "e4m3.e4m3"), (E4M3, E5M2, "float32", "e4m3.e5m2"),
    (np.int8, np.int8, "int32", "s8.s8"), (np.uint8, np.uint8, "int32", "u8.u8"),
)  # fmt: skip


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Those of the kernels that the virtual GPU is given."""
    found: list[str] = []
    load = PtxDevice.load
    monkeypatch.setattr(
        PtxDevice, "load", lambda self, program: found.append(program.source) or load(self, program)
    )
    return found


@pytest.mark.parametrize(("left", "right", "out", "names"), KINDS)
@pytest.mark.parametrize("form", ["NT", "NN", "TN", "TT"])
def test_factors_that_lie_across_are_turned_once(
    left: type, right: type, out: str, names: str, form: str, texts: list[str]
) -> None:
    random = np.random.default_rng(5)
    low = 0 if left is np.uint8 else -8
    a = random.integers(low, 9, (64, 160)).astype(left)
    b = random.integers(low, 9, (64, 160)).astype(right)
    with ptx_session():
        x = Tensor(a) if form[0] == "N" else Tensor(np.ascontiguousarray(a.T)).T
        y = Tensor(b).T if form[1] == "T" else Tensor(np.ascontiguousarray(b.T))
        found = x.matmul(y, out_dtype=out).numpy()
    np.testing.assert_array_equal(found, a.astype(np.float64) @ b.astype(np.float64).T)
    turned = (form[0] == "T") + (form[1] == "N")
    products = [text for text in texts if f"m64n64k32.{'s' if out == 'int32' else 'f'}32" in text]
    assert len(products) == 1 and names in products[0]
    # Two of one shape may be one kernel.
    assert bool(turned) <= len(texts) - 1 <= turned


def rounded(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Floats of eleven significant digits, none of which are near the ends of their range."""
    exact = values.astype(np.float64)
    digit = 2.0 ** (np.frexp(exact)[1] - 11)
    return np.asarray(np.rint(exact / digit) * digit)


UNITS = {"sm_90a": r"m64n\d+k8\.f32\.(\w+\.\w+)", "sm_90a:sm_90": r"k8\.row\.col\.f32\.(\w+\.\w+)"}


@pytest.mark.parametrize("architecture", UNITS)
@pytest.mark.parametrize("form", ["NT", "TN"])
def test_float32_is_rounded_to_tfloat32_where_that_is_wanted(
    form: str, architecture: str, texts: list[str]
) -> None:
    """Results, and both gradients, are sums of products of rounded factors."""
    random = np.random.default_rng(4)
    a, b, g = (random.standard_normal(shape).astype(np.float32)
               for shape in ((72, 128), (64, 128), (72, 64)))  # fmt: skip
    with ptx_session(architecture=architecture), options.override(matmul_precision="high"):
        x, y = (Tensor(each).requires_grad_() for each in (a if form[0] == "N" else a.T, b))
        out = (x if form[0] == "N" else x.T) @ (y.T if form[1] == "T" else y.T.contiguous())
        out.backward(Tensor(g))
        assert x.grad is not None and y.grad is not None
        found = [out.numpy(), x.grad.numpy(), y.grad.numpy()]
    of_a = rounded(g) @ rounded(b)
    wanted = [
        rounded(a) @ rounded(b).T, of_a if form[0] == "N" else of_a.T, rounded(g).T @ rounded(a)
    ]
    for one, other in zip(found, wanted, strict=True):
        # Float32's own rounding of the sums, which are not rounded again.
        np.testing.assert_allclose(one, other, atol=2.0**-22 * np.abs(other).max() * 8)
    products = [re.findall(UNITS[architecture], text) for text in texts]
    assert [set(names) for names in products if names] == [{"tf32.tf32"}] * 3


@pytest.mark.parametrize("form", ["NT", "NN"])
def test_the_copy_engine_rounds_as_it_copies(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ties and subnormals among the rest; so it does what lies across."""
    programs: list[Program] = []
    load = PtxDevice.load
    monkeypatch.setattr(
        PtxDevice, "load", lambda self, program: programs.append(program) or load(self, program)
    )
    random = np.random.default_rng(2)
    a, b = (random.standard_normal((rows, 160)).astype(np.float32) for rows in (128, 256))
    a[:, ::3] = (a[:, ::3].view(np.uint32) & np.uint32(0xFFFFE000) | np.uint32(0x1000)).view("f4")
    with ptx_session(), options.override(matmul_precision="high"):
        y = Tensor(b).T if form[1] == "T" else Tensor(np.ascontiguousarray(b.T))
        found = (Tensor(a) @ y).numpy()
    np.testing.assert_allclose(found, rounded(a) @ rounded(b).T, atol=1e-4)
    assert [one.rounds for one in programs[-1].maps] == [True, True]
    assert len(programs) == 1
    assert "cvt.rn.tf32" not in programs[-1].source


@pytest.mark.parametrize("shape", [(72, 68, 96), (256, 260, 256), (129, 200, 72)], ids=str)
@pytest.mark.parametrize("form", ["NN", "TT", "TN"])
def test_lanes_read_a_factor_that_lies_across(
    form: str, shape: tuple[int, int, int], texts: list[str]
) -> None:
    """It is stored turned only if the other one lies so, too, or rows are no whole words."""
    m, n, depth = shape
    random = np.random.default_rng(8)
    a, b = (random.standard_normal(size).astype(np.float32) for size in ((m, depth), (depth, n)))
    with ptx_session(), options.override(matmul_precision="high"):
        x = Tensor(a) if form[0] == "N" else Tensor(np.ascontiguousarray(a.T)).T
        y = Tensor(b) if form[1] == "N" else Tensor(np.ascontiguousarray(b.T)).T
        found = (x @ y).numpy()
    np.testing.assert_allclose(found, rounded(a) @ rounded(b), atol=1e-4)
    held = form == "NN" or m % 4 == 0 or form == "TN"
    by_lanes = re.findall(r"mma_async\S* \{[^}]*\}, \{", texts[-1])
    assert len(by_lanes) == held * texts[-1].count("mma_async")
    assert len(texts) == 1 + (form == "TN" or not held)


def test_what_was_captured_is_not_replayed_for_another_precision() -> None:
    a = (np.arange(64, dtype=np.float32) / 7).reshape(8, 8)
    with ptx_session():
        product = jit(lambda x: (x @ x).realize())
        exact, rough = [], []
        for _ in range(3):
            exact.append(product(Tensor(a)).numpy())
            with options.override(matmul_precision="high"):
                rough.append(product(Tensor(a)).numpy())
    for each in exact:
        np.testing.assert_allclose(each, a.astype(np.float64) @ a, rtol=1e-6)
    for each in rough:
        np.testing.assert_allclose(each, rounded(a + 1e-30) @ rounded(a + 1e-30), rtol=1e-6)


def test_narrower_floats_beside_tfloat32_are_such_as_well(texts: list[str]) -> None:
    random = np.random.default_rng(7)
    a = random.integers(-64, 65, (64, 96)).astype(np.float32) / 8
    b = random.standard_normal((64, 96)).astype(np.float32)
    with ptx_session(), options.override(matmul_precision="high"):
        found = (Tensor(a).cast("bfloat16").contiguous() @ Tensor(b).T).numpy()
    np.testing.assert_allclose(found, a.astype(np.float64) @ rounded(b).T, atol=1e-3)
    assert any("f32.tf32.tf32" in text for text in texts)


def test_float32_is_multiplied_as_it_is_elsewhere(texts: list[str]) -> None:
    """By default, on a CPU, and by vectors."""
    random = np.random.default_rng(3)
    a, b = (random.standard_normal((64, 128)).astype(np.float32) for _ in range(2))
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    with ptx_session():
        found = [(Tensor(a) @ Tensor(b).T).numpy()]
        with options.override(matmul_precision="high"):
            vector = (Tensor(a) @ Tensor(b[0])).numpy()
    with options.override(matmul_precision="high", device="CPU"):
        found.append((Tensor(a) @ Tensor(b).T).numpy())
    for each in (*found, vector):
        wanted = exact if each.ndim == 2 else exact[:, 0]
        np.testing.assert_allclose(each, wanted, atol=5e-5)
    assert not any("tf32" in text for text in texts)


@pytest.mark.parametrize(("m", "n", "k"), [(48, 64, 160), (64, 64, 96), (64, 64, 136)])
def test_others_are_widened_as_before(m: int, n: int, k: int, texts: list[str]) -> None:
    """Few rows, short sums, and those that end within an instruction's steps."""
    random = np.random.default_rng(6)
    a, b = (random.integers(-8, 9, (rows, k)).astype(E4M3) for rows in (m, n))
    with ptx_session():
        found = Tensor(a).matmul(Tensor(b).T, out_dtype="float32").numpy()
    np.testing.assert_array_equal(found, a.astype(np.float64) @ b.astype(np.float64).T)
    assert not any("e4m3.e4m3" in text for text in texts)


@pytest.mark.parametrize(("kind", "through", "out"), [
    (E4M3, "int32", "float32"), (np.int8, "uint16", "int32"), (np.uint8, "int16", "int32"),
    (np.int8, "float16", "int32"),
])  # fmt: skip
def test_casts_that_change_numbers_are_made(
    kind: type, through: str, out: str, texts: list[str]
) -> None:
    """A fraction or a sign that is lost on the way to the sum is no part of it."""
    random = np.random.default_rng(9)
    low = 0 if kind is np.uint8 else -9
    a, b = ((random.integers(low, 10, (64, 160)) / (4 if kind is E4M3 else 1)).astype(kind)
            for _ in range(2))  # fmt: skip
    with ptx_session():
        left = Tensor(a).cast(through).cast(out)
        found = (left @ Tensor(np.ascontiguousarray(b.T)).cast(out)).numpy()
    wanted = a.astype(through).astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_array_equal(found, wanted.astype(np.int64) if out == "int32" else wanted)
    is_exact = (kind, through) in ((np.uint8, "int16"), (np.int8, "float16"))
    assert any("k32." in text for text in texts) == is_exact


def test_scales_are_multiplied_behind_the_sum(texts: list[str]) -> None:
    random = np.random.default_rng(7)
    a = random.integers(-8, 9, (2, 64, 128)).astype(E4M3)
    b = random.integers(-8, 9, (64, 128)).astype(E4M3)
    with ptx_session():
        scale = Tensor(np.float32(0.5)) * Tensor(np.float32(0.25))
        found = (Tensor(a).matmul(Tensor(b).T, out_dtype="float32") * scale).numpy()
    wanted = a.astype(np.float64) @ b.astype(np.float64).T * 0.125
    np.testing.assert_array_equal(found, wanted)
    assert ["e4m3.e4m3" in text for text in texts].count(True) == 1


def test_training_keeps_the_bytes_that_several_products_read(texts: list[str]) -> None:
    """Each is rounded once, and turned where a gradient's sums go across."""
    random = np.random.default_rng(8)
    x, w, g = (random.standard_normal(shape).astype(np.float32)
               for shape in ((128, 160), (64, 160), (128, 64)))  # fmt: skip

    def run() -> list[object]:
        rows, weight = Tensor(x).requires_grad_(), Tensor(w).requires_grad_()
        out = float8_linear(rows, weight)
        out.backward(Tensor(g))
        return [each.numpy() for each in (out, rows.grad, weight.grad)]

    with options.override(device="CPU"):
        wanted = run()
    with ptx_session():
        found = run()
    for one, other in zip(found, wanted, strict=True):
        # Of a panel's sum the unit keeps 13 bits, its threads those of float32.
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=2.0**-11 * np.abs(other).max())
    kinds = [re.findall(r"k32\.f32\.(\w+\.\w+)", text) for text in texts]
    products = [set(names) for names in kinds if names]
    # The sums of 64 steps of the gradient of rows are too short.
    assert products == [{"e4m3.e4m3"}, {"e5m2.e4m3"}] or products == [{"e4m3.e4m3"}, {"e4m3.e5m2"}]


def test_machines_that_have_such_units() -> None:
    names = ("sm_90a", "sm_80", "sm_100a", "sm_120")
    found = {name: has_group_factors(gpu_row(name)) for name in names}
    assert found == {"sm_90a": True, "sm_80": False, "sm_100a": False, "sm_120": False}
    assert not has_group_factors(cpu_row_named("x86-64-avx512"))


@pytest.mark.parametrize(("rows", "batch", "tiles"), [
    (128, (), (GroupTile(1, 2, 1, 64),)), pytest.param(1, (2,), TILES, marks=pytest.mark.slow),
])  # fmt: skip
def test_scaled_sums_of_panels_are_one_sum(
    rows: int, batch: tuple[int, ...], tiles: tuple[GroupTile, ...], texts: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Blocks' sums are made by the unit and scaled as threads add them up; nothing is stored.

    Two tiles of rows are scaled by their own numbers, out of the same registers.
    """
    monkeypatch.setattr(gemm_groups, "TILES", tiles)
    random = np.random.default_rng(6)
    x, w = (random.integers(-8, 9, (*more, 128, 512)).astype(E4M3) for more in (batch, ()))
    s = 2.0 ** random.integers(-3, 3, (*batch, 128, 4)).astype(np.float32)
    t = 2.0 ** random.integers(-3, 3, (128 // rows, 4)).astype(np.float32)
    with ptx_session():
        left = BlockScaled(FORMATS["fp8"], Tensor(x), Tensor(s))
        right = BlockScaled(FORMATS["fp8"], Tensor(w), Tensor(t), rows)
        found = scaled_matmul(left, right).numpy()
    a = x.astype(np.float64) * np.repeat(s, 128, -1)
    b = w.astype(np.float64) * np.repeat(np.repeat(t, rows, 0), 128, 1)
    np.testing.assert_array_equal(found, a @ b.T)
    assert len(texts) == 1 and "f32.e4m3.e4m3" in texts[0]
    assert len(tiles) > 1 or texts[0].count("wgmma.commit_group") == tiles[0].tiles_m
    # The first panel's scales are read ahead of the loop, and in it those of the next one, where a
    # thread has registers for them.
    products = texts[0].index("wgmma.mma_async")
    loop = [one.start() for one in re.finditer(r" L\d+:", texts[0][:products])][-1]
    reads = [one.start() for one in re.finditer(r"ld\.global\.f32", texts[0])]
    assert len(tiles) > 1 or reads[0] < loop < reads[-1] < products


def test_scaled_sums_are_cut_between_panels() -> None:
    """As products without scales are: where there are few tiles, into parts of whole panels."""
    target = gpu_row("sm_90a")
    for rows, columns, steps, parts in ((128, 512, 16384, 32), (4096, 4096, 8192, 1)):
        shapes = ((rows, steps), (columns, steps), (rows, steps // 128), (columns, steps // 128))
        kinds = ("float8_e4m3fn", "float8_e4m3fn", "float32", "float32")
        given = [Tensor.empty(*shape, dtype=kind).realize()
                 for shape, kind in zip(shapes, kinds, strict=True)]  # fmt: skip
        left, right = (BlockScaled(FORMATS["fp8"], given[at], given[at + 2]) for at in (0, 1))
        sink = canonicalise(graph_of(scaled_matmul(left, right), given), target=target)
        kernel = make_plan(sink, target=target).kernels[0]
        sizes = [axis.src[0].arg for axis in toposort(*kernel.src) if axis.op is Ops.RANGE]
        assert (parts in sizes) == (parts > 1) and sizes.count(128) == 1 + (rows == 128)
        assert "instruction='wgmma'" in str(choose(kernel, target).schedule)


Fold = Callable[[Tensor, Tensor, Tensor], Tensor]
FOLDS: dict[str, tuple[Fold, bool]] = {
    "sums of panels": (lambda x, s, t: (x.sum(-1) * (s * t)).sum(0), True),
    "scales one after the other": (lambda x, s, t: (x.sum(-1) * s * t).sum(0), False),
    "extremes of panels": (lambda x, s, t: (x.amax(-1) * s).sum(0), False),
    "sums of rows": (lambda x, s, t: (x.sum(-1) * s).sum(1), False),
    "sums of columns": (lambda x, s, t: (x.sum(-1) * s).sum(2), False),
}


@pytest.mark.parametrize("name", FOLDS)
def test_what_is_one_sum_of_scaled_panels(name: str) -> None:
    """Scales keep the order in which they are multiplied, in which nothing may overflow."""
    fold, is_one = FOLDS[name]
    x, w = (Tensor.empty(*shape, dtype="float8_e4m3fn").realize()
            for shape in ((2, 64, 1, 128), (2, 1, 64, 128)))  # fmt: skip
    s, t = Tensor.empty(2, 64, 1).realize(), Tensor.empty(2, 1, 64).realize()
    found = fold(x.cast("float32") * w.cast("float32"), s, t)
    sink = canonicalise(graph_of(found, [x, w, s, t]), target=gpu_row("sm_90a"))
    sums = [node for node in toposort(sink) if node.op is Ops.REDUCE]
    assert len(sums) == (1 if is_one else 2)


# --- by single warps, where a machine has no groups of them

WARPS = "sm_90a:sm_90"
FORMS = ("NT", "NN", "TN", "TT")


def factor(values: np.ndarray, is_turned: bool) -> Tensor:
    return Tensor(np.ascontiguousarray(values.T)).T if is_turned else Tensor(values)


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
@pytest.mark.parametrize("form", FORMS)
def test_integers_that_lie_across_are_turned_once(
    kind: type, form: str, texts: list[str]
) -> None:
    random = np.random.default_rng(5)
    low, high = (-128, 128) if kind is np.int8 else (0, 256)
    a, b = (random.integers(low, high, (rows, 160)).astype(kind) for rows in (72, 64))
    with ptx_session(architecture=WARPS):
        x, y = factor(a, form[0] == "T"), factor(b, form[1] == "N").T
        found = x.matmul(y, out_dtype="int32").numpy()
    np.testing.assert_array_equal(found, a.astype(np.int64) @ b.astype(np.int64).T)
    products = [text for text in texts if "mma.sync.aligned.m16n8k32" in text]
    turned = (form[0] == "T") + (form[1] == "N")
    assert len(products) == 1 and bool(turned) <= len(texts) - 1 <= turned


@pytest.mark.parametrize("form", FORMS)
def test_float32_is_rounded_once_where_many_results_share_it(
    form: str, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baregrad.graph.group_factors._MANY_SHARE", 70)
    random = np.random.default_rng(4)
    a, b = (random.standard_normal((rows, 96)).astype(np.float32) for rows in (72, 64))
    with ptx_session(architecture=WARPS), options.override(matmul_precision="high"):
        found = (factor(a, form[0] == "T") @ factor(b, form[1] == "N").T).numpy()
    wanted = rounded(a) @ rounded(b).T
    np.testing.assert_allclose(found, wanted, atol=2.0**-20 * np.abs(wanted).max())
    (product,) = [text for text in texts if "mma.sync.aligned.m16n8k8" in text]
    # The factor that 72 rows share is stored rounded, by one kernel with the other if that lies
    # across.
    assert len(texts) == 2
    assert ("cvt.rn" in product or "cvt.rna" in product) == (form[0] == "N")


def test_factors_of_other_products_stay(texts: list[str]) -> None:
    """Of few rows, short sums and odd ones, which are copied as they lie, element by element."""
    random = np.random.default_rng(6)
    for rows, columns, steps in ((72, 16, 160), (72, 64, 33), (9, 64, 64)):
        a, b = (random.integers(-128, 128, shape).astype(np.int8)
                for shape in ((rows, steps), (steps, columns)))  # fmt: skip
        texts.clear()
        with ptx_session(architecture=WARPS):
            found = Tensor(a).matmul(Tensor(b), out_dtype="int32").numpy()
        np.testing.assert_array_equal(found, a.astype(np.int64) @ b.astype(np.int64))
        assert len(texts) == 1 and "mma.sync" in texts[0]


def test_which_machines_have_such_warps() -> None:
    """Where groups of warps do it, they do it."""
    assert has_warp_factors(gpu_row("sm_80")) and not has_group_factors(gpu_row("sm_80"))
    assert has_warp_factors(gpu_row(WARPS)) and not has_group_factors(gpu_row(WARPS))
    assert has_octet_factors(gpu_row("sm_89")) and not has_octet_factors(gpu_row(WARPS))
    assert not has_warp_factors(gpu_row("sm_75"))
    assert not has_warp_factors(cpu_row_named("x86-64-avx2"))


@pytest.mark.parametrize("rows", [1, 128])
@pytest.mark.parametrize("kinds", [(E4M3, E4M3, "fp8", "fp8"), (E4M3, E5M2, "fp8", "fp8_e5m2")])
def test_scaled_sums_of_warps_are_one_sum(
    rows: int, kinds: tuple[type, type, str, str], texts: list[str]
) -> None:
    """Of 16-bit floats that 8-bit ones are stored as; nothing of a panel's sums is stored."""
    random = np.random.default_rng(6)
    x, w = (random.integers(-8, 9, (128, 512)).astype(kind) for kind in kinds[:2])
    s = 2.0 ** random.integers(-3, 3, (128, 4)).astype(np.float32)
    t = 2.0 ** random.integers(-3, 3, (128 // rows, 4)).astype(np.float32)
    with ptx_session(architecture=WARPS):
        left = BlockScaled(FORMATS[kinds[2]], Tensor(x), Tensor(s))
        right = BlockScaled(FORMATS[kinds[3]], Tensor(w), Tensor(t), rows)
        found = scaled_matmul(left, right).numpy()
    a = x.astype(np.float64) * np.repeat(s, 128, -1)
    b = w.astype(np.float64) * np.repeat(np.repeat(t, rows, 0), 128, 1)
    np.testing.assert_array_equal(found, a @ b.T)
    assert "mma.sync.aligned.m16n8k16" in texts[-1]
    assert not any("mma.sync" in text for text in texts[:-1])
    # Nor do lanes exchange what they have of each panel.
    assert "shfl" not in texts[-1]


@pytest.mark.parametrize("architecture", [WARPS, "sm_90a"])
@pytest.mark.parametrize("length", [64, 128, 40])
def test_a_users_own_scaled_sums_of_halves(architecture: str, length: int) -> None:
    """Of panels as long as the unit's or longer ones it makes one sum; of others nobody does."""
    random = np.random.default_rng(7)
    x = random.integers(-8, 9, (64, 3, length)).astype(np.float16)
    w = random.integers(-8, 9, (72, 3, length)).astype(np.float16)
    s = 2.0 ** random.integers(-3, 3, (72, 3)).astype(np.float32)
    with ptx_session(architecture=architecture):
        product = Tensor(x).cast("float32").unsqueeze(1) * Tensor(w).cast("float32")
        found = (product * Tensor(s).unsqueeze(-1)).sum((-2, -1)).numpy()
    wanted = np.einsum("ial,jal,ja->ij", *(each.astype(np.float64) for each in (x, w, s)))
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("kinds", [(E4M3, E4M3), (E5M2, E5M2), (E4M3, E5M2)])
@pytest.mark.parametrize("form", FORMS)
def test_8_bit_floats_of_warps(form: str, kinds: tuple[type, type], texts: list[str]) -> None:
    """Two of one kind are multiplied as they are, where there are units for them."""
    random = np.random.default_rng(5)
    a, b = (random.integers(-8, 9, (rows, 160)).astype(kind)
            for rows, kind in zip((72, 64), kinds, strict=True))  # fmt: skip
    with ptx_session(architecture="sm_89"):
        x, y = factor(a, form[0] == "T"), factor(b, form[1] == "N").T
        found = x.matmul(y, out_dtype="float32").numpy()
    np.testing.assert_array_equal(found, a.astype(np.float64) @ b.astype(np.float64).T)
    (product,) = [text for text in texts if "mma.sync" in text]
    assert ("m16n8k32" in product) == (kinds[0] is kinds[1])


def test_scaled_8_bit_floats_of_warps(texts: list[str]) -> None:
    random = np.random.default_rng(6)
    x, w = (random.integers(-8, 9, (128, 512)).astype(E4M3) for _ in range(2))
    s, t = (2.0 ** random.integers(-3, 3, (128, 4)).astype(np.float32) for _ in range(2))
    with ptx_session(architecture="sm_89"):
        left, right = (BlockScaled(FORMATS["fp8"], Tensor(each), Tensor(scales))
                       for each, scales in ((x, s), (w, t)))  # fmt: skip
        found = scaled_matmul(left, right).numpy()
    a, b = (each.astype(np.float64) * np.repeat(scales, 128, -1)
            for each, scales in ((x, s), (w, t)))  # fmt: skip
    np.testing.assert_array_equal(found, a @ b.T)
    assert len(texts) == 1 and "m16n8k32.row.col.f32.e4m3.e4m3" in texts[0]
