"""Softmax, matmul, streaming attention and Q6_K: every level against NumPy in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from baregrad.ir.analysis.stream import merge_streams
from baregrad.ir.core.node import toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.kernel_level import evaluate_kernel
from baregrad.ir.evaluate.linear_level import evaluate_linear
from baregrad.ir.evaluate.loop_level import evaluate_loop
from baregrad.ir.evaluate.tensor_level import evaluate
from baregrad.kernel import Schedule
from baregrad.testing.examples import matvec_q6k
from baregrad.testing.examples.attention import (
    attention_in_passes,
    attention_levels,
    attention_schedule,
)
from baregrad.testing.examples.levels import Levels, lowered
from baregrad.testing.examples.matmul_cpu import matmul_levels
from baregrad.testing.examples.matvec_q6k import decode_levels, matvec_levels
from baregrad.testing.examples.softmax import softmax_levels
from tests.examples.runs import assert_round_trip

Array = np.ndarray[Any, Any]


def check(levels: Levels, inputs: list[Array], wanted: Array, tolerance: float) -> None:
    """All four levels give `wanted`; each parses back."""
    assert_round_trip(levels)
    arguments = dict(enumerate(inputs, 1))
    assert_near(evaluate(levels.tensor, arguments), wanted, tolerance)
    runs = (
        (evaluate_kernel, levels.kernel),
        (evaluate_loop, levels.loop),
        (evaluate_linear, levels.linear),
    )
    for run, node in runs:
        result = np.full(wanted.shape, np.nan, np.float32)
        run(node, {0: result, **arguments})
        assert_near(result, wanted, tolerance)


def assert_near(found: Array, wanted: Array, tolerance: float) -> None:
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance * abs(wanted).max())


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def softmax(x: Array) -> Array:
    power = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    return power / power.sum(-1, keepdims=True)


@pytest.mark.parametrize(("rows", "columns"), [(3, 75), (5, 32), (2, 64)])
def test_softmax(rows: int, columns: int) -> None:
    x = normal(rows, columns) * 10
    check(softmax_levels(rows, columns), [x], softmax(x), 1e-6)


def test_softmax_in_one_pass() -> None:
    """The stream law merges the two reductions of the same kernel."""
    levels = softmax_levels(3, 40)
    merged = merge_streams(levels.kernel)
    reductions = [node for node in toposort(merged) if node.op is Ops.REDUCE]
    assert len(reductions) == 1 and reductions[0].arg.monoid.arity == 2
    x = normal(3, 40) * 10
    check(
        lowered("softmax", levels.tensor, merged, Schedule()),
        [x], softmax(x), 1e-6,
    )  # fmt: skip


@pytest.mark.parametrize(("m", "n", "k"), [(8, 64, 32), (4, 32, 5), (12, 96, 17)])
def test_matmul(m: int, n: int, k: int) -> None:
    levels = matmul_levels(m, n, k)
    a, b = normal(m, k), normal(n, k, seed=1)
    check(levels, [a, b], a.astype(np.float64) @ b.T.astype(np.float64), 1e-6)
    spaces = {node.arg.space for node in toposort(levels.loop) if node.op is Ops.ALLOC}
    assert spaces == {"scratch", "register"}


@pytest.mark.parametrize(("queries", "keys"), [(2, 24), (3, 1), (1, 40)])
def test_attention(queries: int, keys: int) -> None:
    levels = attention_levels(queries, keys, 32)
    reductions = [node for node in toposort(levels.kernel) if node.op is Ops.REDUCE]
    assert sorted(node.arg.monoid.arity for node in reductions) == [1, 3]
    q, k, v = normal(queries, 32) * 3, normal(keys, 32, seed=1), normal(keys, 32, seed=2)
    wanted = softmax(q.astype(np.float64) @ k.T.astype(np.float64)) @ v
    check(levels, [q, k, v], wanted, 3e-6)


def test_causal_attention_with_an_empty_row() -> None:
    """Masked scores are -inf; a row without any key is 0 / 0, all others are exact."""
    passes = attention_in_passes(5, 5, 32, causal=True)
    levels = attention_levels(5, 5, 32)
    masked = lowered("causal", levels.tensor, merge_streams(passes), attention_schedule())
    q, k, v = normal(5, 32), normal(5, 32, seed=1), normal(5, 32, seed=2)
    scores = q.astype(np.float64) @ k.T.astype(np.float64)
    scores[np.triu_indices(5)] = -np.inf
    wanted = softmax(scores[1:]) @ v
    for run, node in ((evaluate_kernel, masked.kernel), (evaluate_loop, masked.loop),
                      (evaluate_linear, masked.linear)):  # fmt: skip
        result = np.zeros((5, 32), np.float32)
        run(node, [result, q, k, v])
        assert np.isnan(result[0]).all()
        assert_near(result[1:], wanted, 3e-6)


# --- Q6_K ----------------------------------------------------------------------------------------


def decode(blocks: bytes) -> Array:
    """The weights of Q6_K blocks, byte by byte as the format says."""
    weights = []
    for start in range(0, len(blocks), 210):
        block = blocks[start : start + 210]
        low, high, scales = block[:128], block[128:192], block[192:208]
        sign = -1.0 if block[209] & 0x80 else 1.0
        exponent, fraction = block[209] >> 2 & 31, (block[209] & 3) << 8 | block[208]
        d = sign * math.ldexp(fraction + 1024 * (exponent > 0), max(exponent, 1) - 25)
        for e in range(256):
            half, rest = divmod(e, 128)
            quarter, column = divmod(rest, 32)
            nibble = low[64 * half + 32 * (quarter % 2) + column] >> 4 * (quarter // 2) & 15
            pair = high[32 * half + column] >> 2 * quarter & 3
            scale = scales[e // 16]
            scale -= 256 * (scale > 127)
            weights.append(d * scale * ((pair << 4 | nibble) - 32))
    return np.array(weights)


def blocks_of(rows: int, blocks: int) -> Array:
    generator = np.random.default_rng(3)
    raw = generator.integers(0, 256, (rows, blocks, 210)).astype(np.uint8)
    scale = generator.standard_normal((rows, blocks, 1)).astype(np.float16)
    raw[..., 208:] = scale.view(np.uint8)
    return raw


def test_q6k_weights_are_exact() -> None:
    raw = blocks_of(2, 2)
    raw[0, 0, 208:] = (1, 0)  # the smallest subnormal
    wanted = decode(raw.tobytes()).reshape(2, 2, 256)
    check(decode_levels(2, 2), [raw], wanted, 0.0)


@pytest.mark.parametrize("blocks", [1, 3])
def test_q6k_matvec(blocks: int) -> None:
    raw, x = blocks_of(3, blocks), normal(blocks, 256)
    weights = decode(raw.tobytes()).reshape(3, -1)
    check(matvec_levels(3, blocks), [raw, x], weights @ x.reshape(-1), 2e-6)


def test_q6k_by_the_passes_alone() -> None:
    raw, x = blocks_of(2, 2), normal(2, 256)
    result = np.full(2, np.nan, np.float32)
    evaluate_kernel(matvec_q6k.derived_kernel(), [result, raw, x])
    weights = decode(raw.tobytes()).reshape(2, -1)
    assert_near(result, weights @ x.reshape(-1).astype(np.float64), 2e-6)


@pytest.mark.parametrize(("layout", "width"), [("LOW", 4), ("HIGH", 2), ("SCALE", 8), ("D", 16)])
def test_q6k_fields_cover_the_block_once(layout: str, width: int) -> None:
    field = getattr(matvec_q6k, layout)
    seen: dict[int, int] = {}
    for e in range(256):
        bit = field.place({"e": e})["bit"]
        seen[bit] = seen.get(bit, 0) + 1
        assert field.address({"e": e}) == bit
    bounds = {"LOW": (0, 1024), "HIGH": (1024, 1536), "SCALE": (1536, 1664), "D": (1664, 1680)}
    first, stop = bounds[layout]
    assert sorted(seen) == list(range(first, stop, width))
    assert len(set(seen.values())) == 1


def test_a_wrong_layout_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = blocks_of(1, 1)
    wanted = decode(raw.tobytes()).reshape(1, 1, 256)
    monkeypatch.setattr(matvec_q6k, "HIGH", matvec_q6k.LOW)
    with pytest.raises(AssertionError):
        levels: Callable[..., Levels] = decode_levels
        result = np.zeros((1, 1, 256), np.float32)
        evaluate_kernel(levels(1, 1).kernel, [result, raw])
        assert_near(result, wanted, 0.0)
