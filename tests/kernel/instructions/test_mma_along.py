"""Products of bytes and of tfloat32 by a warp's unit, which reads both factors along the sum."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pytest

from baregrad.base.errors import ScheduleError
from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.node import Node, alu, cast
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.alu import to_array
from baregrad.kernel import choose_schedule, lower, parse_schedule
from baregrad.render import get
from baregrad.target import gpu_row
from baregrad.target.gpu import NvidiaTarget
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import HOPPER, check_gpu, lowered, run_text, run_threads
from tests.kernel.instructions.test_mma_sync import HEAD, MMA, count
from tests.kernel.test_gpu_assembles import assembled, needs_ptxas

TF32, I8, U8 = dtypes.tfloat32, dtypes.int8, dtypes.uint8
E4M3, E5M2 = dtypes.float8_e4m3fn, dtypes.float8_e5m2
# Its cards multiply by single warps alone, with Hopper's copies or Ampere's.
WARPS = gpu_row("sm_90a:sm_90"), gpu_row("sm_80")
OCTETS = gpu_row("sm_89"), gpu_row("sm_120")
# One panel of two steps of 32 bytes.
COPIES = "stage_factor(0, 'w', 'u', 'm', 'ki', 'kk'), stage_factor(1, 'v', 'n', 'ki', 'kk')"
SWIZZLED = COPIES.replace(")", ", swizzle=3)")
Turned = tuple[bool, bool]


def product(m: int, n: int, r: int, dtype: DType, turned: Turned = (False, True)) -> Node:
    """c = a b, of int32 or of float32; `turned` says which factors lie transposed."""
    i, j, q = (k.range_node(size, place) for place, size in enumerate((m, n, r)))
    kept = dtypes.float32 if dtype is TF32 else dtype
    total = dtypes.float32 if dtype.is_float else dtypes.int32
    a = k.param(1, *((r, m) if turned[0] else (m, r)), dtype=kept)
    b = k.param(2, *((n, r) if turned[1] else (r, n)), dtype=kept)
    sides = k.at(a, *((q, i) if turned[0] else (i, q))), k.at(b, *((j, q) if turned[1] else (q, j)))
    left, right = (cast(cast(side, dtype), total) for side in sides)
    summed = k.reduce(Ops.ADD, alu(Ops.MUL, left, right), q)
    return k.kernel(k.out(k.param(0, m, n, dtype=total), summed, i, j), name="along")


def text(dtype: DType, more: str = "", copies: str = COPIES, nbytes: int = 32) -> str:
    head = HEAD.replace("kk=16", f"kk={nbytes // dtype.itemsize}")
    return f"Schedule({head}, {MMA}, {copies}{more})"


@pytest.mark.parametrize("dtype", [I8, U8, TF32], ids=str)
def test_a_step_is_32_bytes_of_whatever_is_summed(dtype: DType) -> None:
    depth = 256 // dtype.itemsize
    program = check_gpu(product(64, 16, depth, dtype), text(dtype))
    # Two by two tiles and two steps: both factors' matrices come as those of 16-bit floats do.
    assert (count(program, "mma.sync"), count(program, "ldmatrix")) == (8, 6)


@pytest.mark.parametrize("dtype", [I8, TF32], ids=str)
@pytest.mark.parametrize("shape", [(40, 20, 50), (33, 9, 64), (1, 1, 8)], ids=str)
def test_partial_tiles(dtype: DType, shape: tuple[int, int, int]) -> None:
    check_gpu(product(*shape, dtype), text(dtype))


def test_steps_of_16_bytes() -> None:
    program = check_gpu(product(33, 16, 80, I8), text(I8, nbytes=16))
    assert "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32" in get("ptx").render(program, HOPPER)


@pytest.mark.parametrize(("pipe", "copies", "steps"), [
    (", pipeline('ko', 3, 'async')", SWIZZLED, 4), (", pipeline('ko', 2)", COPIES, 2),
])  # fmt: skip
def test_rings_of_panels(pipe: str, copies: str, steps: int) -> None:
    spelled = text(I8, pipe, copies).replace("ki=2", f"ki={steps}")
    check_gpu(product(64, 16, 512, I8), spelled)


def floats(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Floats of eleven significant digits; none is near the ends of their range."""
    exact = values.astype(np.float64)
    digit = 2.0 ** (np.frexp(exact)[1] - 11)
    return np.asarray(np.rint(exact / digit) * digit)


SIZES = ((64, 64, 256), (40, 20, 72), (33, 9, 51), (70, 66, 100), (17, 130, 35))


@pytest.mark.few(8)
@pytest.mark.parametrize("target", WARPS, ids=lambda target: target.name)
@pytest.mark.parametrize("turned", [(False, True), (False, False), (True, False), (True, True)])
@pytest.mark.parametrize("dtype", [I8, U8, TF32], ids=str)
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_products_are_those_of_numpy(
    shape: tuple[int, int, int], dtype: DType, turned: Turned, target: NvidiaTarget
) -> None:
    """As they are planned, in any orientation and of odd sizes; of integers exactly."""
    kernel = product(*shape, dtype, turned)
    schedule = choose_schedule(kernel, target)
    assert "instruction='mma'" in str(schedule)
    loop, program = lowered(kernel, schedule, target)
    random = np.random.default_rng(shape[0])
    m, n, r = shape
    shapes = (r, m) if turned[0] else (m, r), (n, r) if turned[1] else (r, n)
    if dtype is TF32:
        a, b = (random.standard_normal(each).astype(np.float32) for each in shapes)
        wide = floats(a), floats(b)
    else:
        low, high = (-128, 128) if dtype is I8 else (0, 256)
        a, b = (random.integers(low, high, each).astype(dtype.numpy) for each in shapes)
        wide = a.astype(np.int64), b.astype(np.int64)
    left, right = (each.T if other else each for each, other in zip(wide, turned, strict=True))
    wanted = left @ right
    kept = np.float32 if dtype is TF32 else np.int32
    found = run_text(loop, program, {0: np.zeros(m * n, kept), 1: a.ravel(), 2: b.ravel()})[0]
    if dtype is TF32:
        bound = r * 2.0**-24 * (np.abs(left) @ np.abs(right))
        assert (np.abs(found.reshape(m, n) - wanted) <= bound).all()
    else:
        np.testing.assert_array_equal(found.reshape(m, n), wanted)


@pytest.mark.few(6)
@pytest.mark.parametrize("target", OCTETS, ids=lambda target: target.name)
@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
@pytest.mark.parametrize("shape", [(64, 64, 384), (70, 130, 256), (65, 72, 160)], ids=str)
def test_products_of_8_bit_floats(
    shape: tuple[int, int, int], dtype: DType, target: NvidiaTarget
) -> None:
    """Within float32's rounding of those in float64; a panel's sums begin anew."""
    kernel = product(*shape, dtype)
    schedule = choose_schedule(kernel, target)
    loop, program = lowered(kernel, schedule, target)
    arrays = k.arguments(kernel)
    left, right = (to_array(arrays[slot], dtype).astype(np.float64) for slot in (1, 2))
    found = run_text(loop, program, arrays, target)[0]
    np.testing.assert_array_equal(found, run_threads(loop, program, arrays)[0])
    bound = shape[2] * 2.0**-24 * (np.abs(left) @ np.abs(right).T)
    assert (np.abs(found - left @ right.T) <= bound).all()
    written = get("ptx").render(program, target)
    name = "e4m3" if dtype is E4M3 else "e5m2"
    assert f"mma.sync.aligned.m16n8k32.row.col.f32.{name}.{name}.f32" in written
    registers = {node.src[-1] for node in program.src
                 if node.op is Ops.MACHINE and node.arg.name == "mma.sync"}  # fmt: skip
    cleared = [node for node in program.src if node.op is Ops.SET and node.src[0] in registers]
    assert registers and len(cleared) >= len(registers)


def test_sums_of_integers_wrap() -> None:
    """None of 65,536 does, but what is added to them may be near the end of its range."""
    kernel = product(16, 8, 64, I8)
    loop, program = lowered(kernel, text(I8))
    arrays = {0: np.zeros(128, np.int32), 1: np.full(1024, -128, np.int8),
              2: np.full(512, -128, np.int8)}  # fmt: skip
    np.testing.assert_array_equal(run_text(loop, program, arrays)[0], 64 * 2**14)


ACROSS = "stage_factor(0, 'ki', 'kk', 'w', 'u', 'm'), stage_factor(1, 'ki', 'kk', 'v', 'n')"


@pytest.mark.parametrize(("dtype", "spelled", "message"), [
    (I8, text(I8, copies=ACROSS), "wanted an axis of the tile innermost in the copy"),
    (TF32, text(TF32, copies=ACROSS), "wanted an axis of the tile innermost in the copy"),
    (I8, text(I8, copies=COPIES.replace(")", ", pad=8)")), "rows of 16 elements"),
    (I8, text(dtypes.float16, copies=COPIES).replace("kk=16", "kk=8"), "found 8 products of int8"),
])  # fmt: skip
def test_what_the_unit_does_not_read_is_refused(
    dtype: DType, spelled: str, message: str
) -> None:
    with pytest.raises(ScheduleError, match=re.escape(message)):
        lower(product(64, 16, 128, dtype), HOPPER, parse_schedule(spelled))


@needs_ptxas
@pytest.mark.parametrize("row", ["sm_80", "sm_86", "sm_89", "sm_90a:sm_90", "sm_100a", "sm_120"])
@pytest.mark.parametrize("dtype", [I8, TF32, E4M3], ids=str)
def test_it_assembles_for_every_generation(dtype: DType, row: str) -> None:
    """As it is planned for large products, and nothing is spilled."""
    target = gpu_row(row)
    kernel = product(4096, 4096, 4096, dtype)
    schedule = choose_schedule(kernel, target)
    written = get("ptx").render(lowered(kernel, schedule, target)[1], target)
    names = {I8: "k32.row.col.s32.s8", TF32: "k8.row.col.f32.tf32", E4M3: "k32.row.col.f32.e4m3"}
    has_it = (dtype.name, 32 // dtype.itemsize) in target.warp_products
    assert (names[dtype] in written) == has_it and "mma.sync" in written
    assert assembled(written, target.architecture)[1] == 0


@pytest.mark.parametrize(("dtype", "names"), [
    (I8, "m16n8k32.row.col.s32.s8.s8.s32"), (TF32, "m16n8k8.row.col.f32.tf32.tf32.f32"),
])  # fmt: skip
def test_cuda_c_spells_it_too(dtype: DType, names: str) -> None:
    _, program = lowered(product(64, 16, 256 // dtype.itemsize, dtype), text(dtype))
    found = get("cuda").render(program, HOPPER)
    assert found.count(f"mma.sync.aligned.{names}") == 8
    assert ('"+r"(' in found) == (dtype is I8)
