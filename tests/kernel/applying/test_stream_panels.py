"""Tiles that groups of four warps read, for attention and its gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from baregrad.dtypes import dtypes
from baregrad.ir.core.node import const, range_node
from baregrad.ir.core.substitution import substitute
from baregrad.kernel.applying.stream_panels import Panel, in_panel, in_quads, panel_array
from baregrad.tensor import Tensor
from baregrad.testing.ptx_device import PtxDevice, ptx_session


def test_panels_have_64_columns_each() -> None:
    across = range_node(192, 1)
    exchanged = Panel(panel_array(1, 32, 192, dtypes.float16, 2, True), across, across)
    padded = Panel(panel_array(2, 32, 192, dtypes.float16, 2, False), across, across)
    assert exchanged.array.shape == (3, 32, 64) and padded.array.shape == (32, 200)
    assert exchanged.count == padded.count == 32 and exchanged.width == padded.width == 192
    assert exchanged.places(5, 130) == (2, 5, 2) == exchanged.places(5, 2, 2)
    assert padded.places(5, 130) == (5, 130)


def test_lanes_have_four_steps_of_octets_side_by_side() -> None:
    """The first factor's steps, and the second one's columns, are those of the PTX ISA's tables.

    A lane l has steps 2 (l % 4) and the next, and those 8 on, in 16 bits each: of 8-bit floats the
    word that it has of a row of as many.
    """
    for lane in range(4):
        steps = [2 * lane, 2 * lane + 1, 2 * lane + 8, 2 * lane + 9]
        assert [in_quads(16 + 4 * lane + place) for place in range(4)] == [16 + s for s in steps]
    tile, own = range_node(4, 1), range_node(8, 2)
    (column,) = in_panel((tile,), own, octets=True)
    columns = np.array([
        [substitute(column, {tile: const(t, dtypes.index), own: const(c, dtypes.index)}).arg
         for c in range(8)] for t in range(4)
    ])  # fmt: skip
    # A row of a turned matrix has eight times two columns, of which a lane's word has one pair.
    np.testing.assert_array_equal(columns.reshape(2, 2, 8).swapaxes(1, 2).ravel(), np.arange(32))


@pytest.mark.parametrize(("row", "is_there"), [(48, True), (40, False)])
def test_octets_lie_as_they_are_where_chunks_are_whole(
    row: int, is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys and values in chunks of 16 are copied, a tile ahead; others threads widen on their way.

    Beside float64, of all that e4m3 has but NaN.
    """
    texts: list[str] = []
    load = PtxDevice.load
    monkeypatch.setattr(
        PtxDevice, "load", lambda self, program: texts.append(program.source) or load(self, program)
    )
    random = np.random.default_rng(row)
    codes = random.permutation(np.arange(2 * 2 * 75 * row) % 256).astype(np.uint8)
    codes[codes & 127 == 127] = 0
    octets = torch.tensor(codes.reshape(2, 2, 75, row)).view(torch.float8_e4m3fn)
    query = torch.tensor(random.standard_normal((2, 4, 1, 32)) / 64).bfloat16()
    wanted = torch.nn.functional.scaled_dot_product_attention(
        query.double(), octets.double()[..., :32], octets.double().flip(2)[..., :32],
        enable_gqa=True,
    ).numpy()
    with ptx_session():
        q = Tensor(query.float().numpy()).cast("bfloat16").realize()
        k, v = (
            Tensor(each.float().numpy()).cast("float8_e4m3fn").contiguous().realize()
            for each in (octets, octets.view(torch.uint8).flip(2).view(torch.float8_e4m3fn))
        )
        k, v = (each[..., :32].cast("bfloat16") for each in (k, v))
        found = q.scaled_dot_product_attention(k, v, enable_gqa=True).cast("float32").numpy()
    assert np.abs(found - wanted).max() < 2.0**-7 * np.abs(wanted).max()
    assert any("0x3120" in text for text in texts) == is_there
    # Values are float16s by one instruction, as which powers are multiplied.
    (text,) = [each for each in texts if "mma.sync" in each]
    assert (".f32.f16.f16.f32" in text) == is_there and ".f32.bf16.bf16.f32" in text


def attended_octets(query: Any, key: Any, value: Any, scale: float) -> tuple[Any, Any]:
    """What four queries of bfloat16 make of two heads of e4m3s, and what it is in float64."""
    q, k, v = torch.tensor(query).bfloat16(), torch.tensor(key), torch.tensor(value)
    k, v = k.to(torch.float8_e4m3fn), v.to(torch.float8_e4m3fn)
    wanted = torch.nn.functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), enable_gqa=True, scale=scale
    )
    with ptx_session():
        x = Tensor(q.float().numpy()).cast("bfloat16").realize()
        y, z = [Tensor(one.float().numpy()).cast("float8_e4m3fn").realize() for one in (k, v)]
        y, z = y.cast("bfloat16"), z.cast("bfloat16")
        found = x.scaled_dot_product_attention(y, z, enable_gqa=True, scale=scale)
        return found.cast("float32").numpy(), wanted.numpy()


@pytest.mark.parametrize("step", [8, 12, 16])
def test_large_scores_that_rise_by_their_last_place_are_no_infinite_powers(step: int) -> None:
    """Above 2 ** 27 eight more than a maximum may round to sixteen more."""
    query, key = np.zeros((1, 4, 1, 64)), np.zeros((1, 2, 256, 64))
    query[..., 0], key[..., 0] = 2.0**18, 416
    query[..., 40], key[..., 40] = step, np.arange(256) // 32
    value = np.random.default_rng(step).standard_normal(key.shape)
    found, wanted = attended_octets(query, key, value, 1.0)
    assert np.abs(found - wanted).max() < 2.0**-7 * np.abs(wanted).max()


@pytest.mark.parametrize("height", [14.0, 16.0, 18.0])
def test_small_powers_of_octets_have_their_digits(height: float) -> None:
    """All that is summed may be values of keys with scores far below the largest one's."""
    random = np.random.default_rng(7)
    query, key = random.standard_normal((1, 4, 1, 64)) / 8, random.standard_normal((1, 2, 96, 64))
    query[..., 0], key[..., 0] = height, 0
    key[:, :, 0], key[:, :, 0, 0] = 0, 1
    value = 1 + np.abs(random.standard_normal(key.shape))
    value[:, :, 0] = 0
    found, wanted = attended_octets(query, key, value, 1.0)
    assert np.abs(found - wanted).max() < 2.0**-7 * np.abs(wanted).max()


@pytest.mark.parametrize(("rows", "once"), [(1, True), (9, True), (150, False)])
def test_what_one_block_alone_reads_comes_by_whole_lines(
    rows: int, once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys and values, unless blocks of further rows read them too."""
    texts: list[str] = []
    load = PtxDevice.load
    monkeypatch.setattr(
        PtxDevice, "load", lambda self, program: texts.append(program.source) or load(self, program)
    )
    random = np.random.default_rng(rows)
    query = random.standard_normal((2, 2, rows, 64))
    key, value = (random.standard_normal((2, 2, 40, 64)) for _ in range(2))
    given = [torch.tensor(each).bfloat16() for each in (query, key, value)]
    wanted = torch.nn.functional.scaled_dot_product_attention(*[one.double() for one in given])
    # Single warps, as of machines without units for four.
    with ptx_session(architecture="sm_89"):
        q, k, v = (Tensor(one.float().numpy()).cast("bfloat16").realize() for one in given)
        found = q.scaled_dot_product_attention(k, v).cast("float32").numpy()
    assert np.abs(found - wanted.numpy()).max() < 2.0**-7 * np.abs(wanted.numpy()).max()
    (text,) = [each for each in texts if "mma.sync" in each]
    whole = [line for line in text.splitlines() if "cp.async.cg" in line]
    assert whole and any("L2::128B" in line for line in whole) == once


@pytest.mark.parametrize(("queries", "keys", "widths", "unit", "causal"), [
    (128, 128, (64, 64), "wgmma.mma_async", True), (72, 70, (64, 64), "wgmma.mma_async", False),
    (64, 40, (64, 128), "wgmma.mma_async", False), (20, 36, (32, 16), "mma.sync", True),
])  # fmt: skip
def test_gradients_by_matrix_units(
    queries: int, keys: int, widths: tuple[int, int], unit: str, causal: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """All of them beside PyTorch's in float64, of the same bfloat16 numbers.

    widths: of keys and of values, whose products a gradient's weights are made of.
    """
    texts: list[str] = []
    load = PtxDevice.load
    monkeypatch.setattr(
        PtxDevice, "load", lambda self, program: texts.append(program.source) or load(self, program)
    )
    random = np.random.default_rng(queries)
    wide, out = widths
    shapes = [(1, 1, queries, wide), (1, 1, keys, wide), (1, 1, keys, out), (1, 1, queries, out)]
    given = [torch.tensor(random.standard_normal(shape)).bfloat16() for shape in shapes]
    q, k, v = [each.double().requires_grad_() for each in given[:3]]
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    wanted.backward(given[3].double())
    with ptx_session():
        x, y, z, g = [Tensor(each.float().numpy()).cast("bfloat16") for each in given]
        own = [each.detach().requires_grad_() for each in (x, y, z)]
        found = own[0].scaled_dot_product_attention(*own[1:], is_causal=causal)
        found.backward(g)
        results = [each.cast("float32").numpy() for each in (found, *[one.grad for one in own])]
    for result, one in zip(results, (wanted, q.grad, k.grad, v.grad), strict=True):
        exact = one.detach().numpy()
        assert np.abs(result - exact).max() < 2.0**-6 * np.abs(exact).max()
    # Results, gradients of queries, and of keys and values; not all where values are wide.
    assert sum(unit in text for text in texts) >= 3 - (out > 64)


def seen_of(count: Any, lengths: Any, queries: int, keys: int, window: int) -> Any:
    """Which keys a query sees, of the last ones up to its own place; some of either's numbers."""
    place, key = count(queries).reshape(-1, 1) + (keys - queries), count(keys)
    seen = (key <= place) & (key > place - window) if window else key >= 0
    return seen if lengths is None else seen & (key < lengths.reshape(-1, 1, 1, 1))


@pytest.mark.parametrize(("keys", "window", "lengths"), [
    (200, 20, None), (136, 0, (0, 70)), (130, 40, (70, 130)),
])  # fmt: skip
def test_tiles_that_windows_and_lengths_hide_change_no_number(
    keys: int, window: int, lengths: tuple[int, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside float64; of a sequence without keys, or of keys that nothing sees, all is 0."""
    texts: list[str] = []
    load = PtxDevice.load
    monkeypatch.setattr(
        PtxDevice, "load", lambda self, program: texts.append(program.source) or load(self, program)
    )
    random = np.random.default_rng(keys)
    count = 1 if lengths is None else len(lengths)
    shapes = [(count, 1, 64, 64), *[(count, 1, keys, 64)] * 2, (count, 1, 64, 64)]
    given = [torch.tensor(random.standard_normal(shape)).bfloat16() for shape in shapes]
    q, k, v = [each.double().requires_grad_() for each in given[:3]]
    theirs = seen_of(
        torch.arange, None if lengths is None else torch.tensor(lengths), 64, keys, window
    )
    # Of rows that see nothing, powers of zeros are left out afterwards.
    weights = (q @ k.mT / 8).masked_fill(~theirs, -1e300).softmax(-1) * theirs
    wanted = weights @ v
    wanted.backward(given[3].double())
    with ptx_session():
        x, y, z, g = [Tensor(each.float().numpy()).cast("bfloat16").realize() for each in given]
        own = [each.detach().requires_grad_() for each in (x, y, z)]
        held = None if lengths is None else Tensor(np.array(lengths, np.int32)).realize()
        seen = seen_of(Tensor.arange, held, 64, keys, window)
        found = own[0].scaled_dot_product_attention(*own[1:], seen)
        found.backward(g)
        results = [each.cast("float32").numpy() for each in (found, *[one.grad for one in own])]
    for result, one in zip(results, (wanted, q.grad, k.grad, v.grad), strict=True):
        exact = one.detach().numpy()
        assert np.abs(result - exact).max() < 2.0**-7 * np.abs(exact).max()
        assert not result[exact == 0].any()
    assert sum("wgmma.mma_async" in text for text in texts) >= 3
