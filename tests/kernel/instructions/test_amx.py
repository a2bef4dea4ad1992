"""Products on a CPU core's matrix unit: schedules at every level, their text, and refusals.

The evaluators stand in for the unit; where the host has one, kernels run on it as well.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from baregrad import Tensor, dtypes
from baregrad.assemble.llvm import LlvmAssembler
from baregrad.base.errors import ScheduleError
from baregrad.dtypes import DType
from baregrad.ir.analysis.words import PRODUCTS, tiles_value, words_value
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.linear_level import evaluate_linear
from baregrad.ir.text.dump import dump, parse
from baregrad.ir.verify.verify import verify
from baregrad.kernel import apply_schedule, choose_schedule, lower, parse_schedule
from baregrad.kernel.codegen import codegen_passes, to_linear
from baregrad.kernel.facts.analysis import facts_of
from baregrad.kernel.search.mutate import neighbours
from baregrad.render import get
from baregrad.target.cpu import cpu_row_named
from tests.kernel import kernels as k

I8, U8, BRAIN, F32 = dtypes.int8, dtypes.uint8, dtypes.bfloat16, dtypes.float32
ROW = cpu_row_named("x86-64-avx512")
TILES = ("amx-tile", "amx-bf16", "amx-int8")
AMX = replace(ROW, name="amx", features=(*ROW.features, "avx512vnni", *TILES), cores=2,
              l1_bytes=49152, l2_bytes=1 << 21)  # fmt: skip
# Caches so small that sums are split into blocks at tests' sizes.
SMALL = replace(AMX, name="small", l2_bytes=1 << 15)
SIGNS = [(I8, I8, "tdpbssd"), (U8, I8, "tdpbusd"), (I8, U8, "tdpbsud"), (U8, U8, "tdpbuud")]
SPLITS = (
    "split('i0', outer='o', m=16, masked=True), split('i1', outer='b', n=16, masked=True), "
    "split('r2', outer='s', w=16, d={d}, masked=True), bind('n', 'vector'), "
    "reorder('b', 'o', 's', 'm', 'n', 'w', 'd')"
)
TENSOR = "tensorize('m', 'n', 's', 'w', 'd', instruction='amx')"
STAGES = (
    "stage_input(2, 's', 'w', 'n', lanes=16), stage_input(1, 's', 'm', 'w', lanes=16), "
    "stage_reduce('s', 'm', 'n')"
)


def numbers(array: Any) -> Any:
    """Values of an array, that may hold the codes of bfloat16."""
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return array.astype(np.float64)


def check(kernel: Node, schedule: Any, target: Any, a_t: bool = False, b_t: bool = False) -> Node:
    """All levels give the product that NumPy gives; the PROGRAM comes back."""
    arrays = k.arguments(kernel)
    a, b = numbers(arrays[1]), numbers(arrays[2])
    wanted = (a.T if a_t else a) @ (b.T if b_t else b)
    loop = lower(kernel, target, schedule)
    verify(loop, "loop")
    assert any(node.op is Ops.MMA for node in toposort(loop))
    program = loop
    for one in codegen_passes(target):
        program = one.run(program)
        verify(program, one.level_out)
    applied = apply_schedule(kernel, schedule, target)
    linear = {slot: np.array(array) for slot, array in arrays.items()}
    evaluate_linear(program, linear)
    exact = arrays[0].dtype.kind == "i"
    for found in (k.run_kernel(applied, arrays), k.run_loop(loop, arrays), linear):
        if exact:
            assert np.array_equal(found[0], wanted)
        else:
            # A bfloat16 keeps 8 bits; a float32 sum of some dozens of products 20 or so.
            size = np.abs(wanted).max()
            near = 2.0**-8 if arrays[0].dtype == np.uint16 else 2.0**-20
            assert np.abs(numbers(found[0]) - wanted).max() <= near * size
    return program


@pytest.mark.parametrize(("left", "right", "name"), SIGNS, ids=str)
def test_bytes_of_any_signs(left: DType, right: DType, name: str) -> None:
    schedule = parse_schedule(f"Schedule({SPLITS.format(d=4)}, {TENSOR}, {STAGES})")
    assert parse_schedule(str(schedule)) == schedule
    program = check(k.byte_product(5, 18, 70, types=(left, right)), schedule, AMX)
    assert [node.arg.name for node in program.src if node.op is Ops.MACHINE] == [name]


@pytest.mark.parametrize("dtype", [BRAIN, F32], ids=str)
def test_halves(dtype: DType) -> None:
    schedule = parse_schedule(f"Schedule({SPLITS.format(d=2)}, {TENSOR}, {STAGES})")
    check(k.brain_product(17, 6, 37, dtype=dtype), schedule, AMX)


@pytest.mark.parametrize("renderer", ["llvm", "c"])
def test_the_text_has_the_instructions(renderer: str) -> None:
    for kernel, name in ((k.byte_product(64, 64, 256), "tdpbssd"),
                         (k.brain_product(64, 64, 256), "tdpbf16ps")):
        program = to_linear(lower(kernel, AMX, choose_schedule(kernel, AMX)), AMX)
        assert dump(parse(dump(program))) == dump(program)
        text = get(renderer).render(program, AMX)
        if renderer == "llvm":
            text = LlvmAssembler(None).disassemble(text)
        # Two tiles each way: four products, and every factor is read once.
        assert text.count(f"{name} %" if renderer == "c" else f"{name}\t") == 4
        assert text.count("tilestored") == 4 and text.count("tilezero") == 4
        assert text.count("tileloadd") == 8
        assert text.index("ldtilecfg") < text.rindex("tilerelease")


@pytest.mark.parametrize("sizes", [(64, 64, 128), (33, 70, 290)], ids=str)
def test_search_finds_neighbours(sizes: tuple[int, int, int]) -> None:
    """Mutations of such a schedule are legal or refused with words."""
    kernel = k.byte_product(*sizes)
    schedule = choose_schedule(kernel, SMALL)
    moves = list(neighbours(facts_of(kernel), schedule, SMALL))[::5]
    legal = 0
    for move in moves:
        try:
            lower(kernel, SMALL, move.schedule)
            legal += 1
        except ScheduleError as error:
            assert "wanted" in str(error) or "not legal" in str(error)
    assert legal


def test_kernels_without_tiles_configure_none() -> None:
    program = to_linear(lower(k.matmul(64, 64, 64), AMX), AMX)
    text = get("llvm").render(program, AMX)
    assert "ldtilecfg" not in text and "tilerelease" not in text


@pytest.mark.parametrize("features", [(), TILES[:1], (TILES[0], "amx-int8")], ids=str)
def test_without_the_instruction_nothing_is_tensorized(features: tuple[str, ...]) -> None:
    target = replace(AMX, features=(*ROW.features, *features))
    kernel = k.brain_product(64, 64, 64)
    assert "amx" not in str(choose_schedule(kernel, target))
    text = f"Schedule({SPLITS.format(d=2)}, {TENSOR}, {STAGES})"
    with pytest.raises(ScheduleError, match="no such instruction"):
        lower(kernel, target, parse_schedule(text))


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (f"{SPLITS.format(d=4)}, {TENSOR}", "2 bfloat16"),
        (f"{SPLITS.format(d=2)}, bind('m', 'unroll'), {TENSOR}", "no part of the size"),
        (f"{SPLITS.format(d=2)}, stage_input(1, 'm', 'w'), {TENSOR}", "no part of the size"),
        (f"{SPLITS.format(d=2)}, {TENSOR}, bind('m', 'unroll')", "does all of the axis"),
        (f"{SPLITS.format(d=2)}, {TENSOR}, {TENSOR}", "no part of the size"),
        (f"{SPLITS.format(d=2)}, tensorize('m', 'n', 'w', 'd', instruction='amx')", "found 4 axes"),
        (f"{SPLITS.format(d=2)}, tensorize('n', 'm', 's', 'w', 'd', instruction='amx')", "no part"),
        (f"{SPLITS.format(d=2)}, {TENSOR}", "need an array"),
        (f"{SPLITS.format(d=2)}, {TENSOR}, stage_reduce('s', 'm', 'n')", "lie side by side"),
        (f"{SPLITS.format(d=2)}, {TENSOR}, {STAGES.replace('m, n', 'n, m')}"
         .replace("'s', 'm', 'n')", "'s', 'n', 'm')"), "lie side by side"),
    ],
)  # fmt: skip
def test_what_is_refused(steps: str, said: str) -> None:
    with pytest.raises(ScheduleError, match=said):
        lower(k.brain_product(33, 35, 70), AMX, parse_schedule(f"Schedule({steps})"))


def test_other_sums_are_refused() -> None:
    with pytest.raises(ScheduleError, match="does no such sum"):
        text = f"Schedule({SPLITS.format(d=2)}, {TENSOR}, {STAGES})"
        lower(k.matmul(32, 32, 64), AMX, parse_schedule(text))


def _words(values: Any) -> Any:
    return np.ascontiguousarray(values).view(np.int32)


def _codes(values: list[float]) -> Any:
    return (np.array(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("name", [name for name in PRODUCTS if name != "tdpbf16ps"])
def test_extremes_of_bytes(name: str) -> None:
    rng = np.random.default_rng(len(name))
    types = [np.int8 if dtype is I8 else np.uint8 for dtype in PRODUCTS[name][:2]]
    a, b = (rng.choice([np.iinfo(t).min, np.iinfo(t).max], (3, 32)).astype(t) for t in types)
    wanted = a.astype(np.int64) @ b.astype(np.int64).T
    found = tiles_value(name, np.ones((3, 3), np.int32), _words(a), _words(b).T)
    assert np.array_equal(found, wanted + 1)
    assert np.array_equal(words_value(name, _words(a), _words(b)).sum(-1), np.diag(wanted))


def test_special_values_of_halves() -> None:
    """As the instruction gave them on a processor of the fourth generation of Xeon."""
    def dot(left: list[float], right: list[float]) -> float:
        a, b = np.zeros((2, 32), np.uint16)
        a[: len(left)], b[: len(right)] = _codes(left), _codes(right)
        total = np.zeros((1, 1), np.float32)
        return float(tiles_value("tdpbf16ps", total, _words(a)[None], _words(b)[:, None])[0, 0])

    assert dot([np.inf], [1.0]) == np.inf
    assert np.isnan(dot([np.inf], [0.0])) and np.isnan(dot([np.nan], [1.0]))
    assert np.isnan(dot([np.inf, np.inf], [1.0, -1.0]))
    assert dot([1e-39], [2.0**100]) == 0.0 and dot([2.0**-70], [2.0**-70]) == 0.0
    assert dot([2.0**127, 0.0, 2.0**127], [1.0, 1.0, 1.0]) == np.inf
    assert dot([2.0**127, 2.0**127], [1.0, -1.0]) == 0.0
    assert np.isnan(dot([2.0**100, 2.0**100], [2.0**100, -(2.0**100)]))
    # Halves of words are added up apart, and each addition rounds.
    assert dot([1.0, 2.0**-24, -1.0], [1.0, 1.0, 1.0]) == 2.0**-24
    assert dot([1.0, 0.0, 2.0**-24, 0.0, -1.0], [1.0] * 5) == 0.0
    assert dot([2.0**24, 1.0, -(2.0**24)], [1.0] * 3) == 1.0


@pytest.mark.parametrize(("m", "n", "inner"), [(64, 64, 64), (127, 130, 132), (40, 300, 1030)])
def test_sums_of_halves_against_numpy(m: int, n: int, inner: int) -> None:
    """On the host as it is: by its matrix unit where it has one."""
    rng = np.random.default_rng(m)
    shapes = (m, inner), (inner, n)
    a, b = (Tensor(rng.standard_normal(shape, np.float32)).cast(BRAIN) for shape in shapes)
    wide = [x.cast(F32).numpy().astype(np.float64) for x in (a, b)]
    found = a.matmul(b).cast(F32).numpy()
    assert np.abs(found - wide[0] @ wide[1]).max() <= 2.0**-8 * np.abs(wide[0] @ wide[1]).max()
