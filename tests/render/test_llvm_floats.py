"""Vectors of floats as integers, and remainders of floats: every lane exact, on every machine."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from llvmlite import binding

from baregrad import render
from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.node import Node, alu, cast
from baregrad.ir.core.op import Ops
from baregrad.target.cpu import CPU_ROWS, CpuTarget
from tests.render.harness import compiled, elementwise, host, lower, same_bits

pytestmark = pytest.mark.differential
F32, F64 = dtypes.float32, dtypes.float64
# Those whose code this machine can run.
ROWS = [
    row for row in CPU_ROWS
    if row.architecture == host().architecture and set(row.needs) <= set(host().features)
]
INTEGERS = [
    dtype for bits in (8, 16, 32, 64)
    for dtype in (getattr(dtypes, f"int{bits}"), getattr(dtypes, f"uint{bits}"))
]


def near_limits(source: DType) -> Any:
    """Floats around the ends of all integers' ranges, beyond them, and small ones."""
    ends = [sign * 2.0**power for power in (7, 8, 15, 16, 31, 32, 63, 64) for sign in (1, -1)]
    values = [0.0, 0.5, 0.99, 1.0, 1.5, 2.5, 100.7, 1e30, np.inf, np.nan, *ends]
    values += [end + step for end in ends for step in (-1, -0.5, 0.5, 1)]
    array = np.array(values, source.numpy)
    array = np.concatenate([array, np.nextafter(array, 0), np.nextafter(array, np.inf), -array])
    return np.resize(array.astype(source.numpy), len(array) * 16)


def saturated(value: float, target: DType) -> int:
    low, high = int(target.min), int(target.max)
    if math.isnan(value):
        return 0
    if math.isinf(value):
        return high if value > 0 else low
    return max(low, min(high, int(value)))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize("lanes", (1, 2, 3, 8, 16, 64))
@pytest.mark.parametrize("source", (F32, F64), ids=str)
def test_floats_become_integers_within_range(source: DType, lanes: int, row: CpuTarget) -> None:
    x = near_limits(source)
    x = x[: len(x) // lanes * lanes]
    node = elementwise([lambda a, t=t: cast(a, t) for t in INTEGERS], len(x), (source,), lanes)
    found = [np.zeros(len(x), target.numpy) for target in INTEGERS]
    compiled(lower(node), row=row)([*found, x])
    for target, array in zip(INTEGERS, found, strict=True):
        assert array.tolist() == [saturated(value, target) for value in x.tolist()], target


@pytest.mark.parametrize("target", INTEGERS[:6], ids=str)
def test_a_vector_of_floats_is_converted_at_once(target: DType) -> None:
    """The vendor's assembler shows no conversion of a single lane, on machines with AVX2."""
    row = next(row for row in CPU_ROWS if row.name == "x86-64-avx2")
    program = lower(elementwise([lambda a: cast(a, target)], 16, (F32,), 8))
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    machine = binding.Target.from_triple("x86_64-unknown-linux-gnu").create_target_machine(
        cpu=row.llvm_cpu, features=",".join(f"+{feature}" for feature in row.features)
    )
    code = machine.emit_assembly(binding.parse_assembly(render.get("llvm").render(program, row)))
    assert "vcvttps2dq" in code
    assert "vcvttss2si" not in code


def remainder(x: Any, y: Any) -> Any:
    """x - y * floor(x / y), from the C library's exact remainder of each pair."""
    with np.errstate(all="ignore"):
        rest = np.fmod(x, y)
        return np.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


def dividends(kind: str, source: DType, count: int) -> tuple[Any, Any]:
    """Pairs whose quotients are near whole numbers, anything, or of special values."""
    random = np.random.default_rng(count)
    y = random.standard_normal(count).astype(source.numpy)
    if kind == "near whole":
        # The largest are as far as quotients go before lanes are taken one by one.
        most = 22 if source is F32 else 51
        x = (np.floor(2 ** random.uniform(0, most, count)) * y).astype(source.numpy)
        x = np.nextafter(x, random.choice([-np.inf, 0, np.inf], count).astype(source.numpy))
    elif kind == "any bits":
        word = np.uint32 if source is F32 else np.uint64
        bits = random.integers(0, np.iinfo(word).max, (2, count), dtype=word, endpoint=True)
        x, y = bits.view(source.numpy)
    else:
        info = np.finfo(source.numpy)
        values = [0, 0.1, 1, 3, 7, info.tiny, info.smallest_subnormal, info.max, np.inf, np.nan]
        both = np.array([*values, *(-value for value in values)], source.numpy)
        x, y = random.choice(both, (2, count))
        # Among them vectors of which every lane is ordinary.
        x[: count // 2], y[: count // 2] = 5.25, random.choice(both[:5], count // 2) + 1
    return x.astype(source.numpy), y


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize("lanes", (1, 2, 3, 8, 16, 64))
@pytest.mark.parametrize("source", (F32, F64), ids=str)
@pytest.mark.parametrize("kind", ("near whole", "any bits", "special"))
def test_remainders_are_exact(kind: str, source: DType, lanes: int, row: CpuTarget) -> None:
    count = 192 * 16
    x, y = dividends(kind, source, count)

    def function(a: Node, b: Node) -> Node:
        return alu(Ops.MOD, a, b)

    found = np.zeros(count, source.numpy)
    program = lower(elementwise([function], count, (source, source), lanes))
    compiled(program, row=row)([found, x, y])
    assert same_bits(remainder(x, y), found)
