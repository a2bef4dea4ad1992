"""Tiles that groups of four warps read, for attention and its gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from baregrad.dtypes import dtypes
from baregrad.ir.core.node import range_node
from baregrad.kernel.applying.stream_panels import Panel, panel_array
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


@pytest.mark.parametrize(("queries", "keys", "heads", "shared", "causal"), [
    (128, 128, 1, 1, True), (72, 70, 1, 1, False),
])  # fmt: skip
def test_gradients_by_groups_of_warps(
    queries: int, keys: int, heads: int, shared: int, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them beside PyTorch's in float64, of the same bfloat16 numbers."""
    texts: list[str] = []
    load = PtxDevice.load
    monkeypatch.setattr(
        PtxDevice, "load", lambda self, program: texts.append(program.source) or load(self, program)
    )
    random = np.random.default_rng(queries)
    shapes = [(1, heads, queries, 64), *[(1, shared, keys, 64)] * 2, (1, heads, queries, 64)]
    given = [torch.tensor(random.standard_normal(shape)).bfloat16() for shape in shapes]
    q, k, v = [each.double().requires_grad_() for each in given[:3]]
    grouped = heads != shared
    wanted = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal, enable_gqa=grouped
    )
    wanted.backward(given[3].double())
    with ptx_session():
        x, y, z, g = [Tensor(each.float().numpy()).cast("bfloat16") for each in given]
        own = [each.detach().requires_grad_() for each in (x, y, z)]
        found = own[0].scaled_dot_product_attention(*own[1:], is_causal=causal, enable_gqa=grouped)
        found.backward(g)
        results = [each.cast("float32").numpy() for each in (found, *[one.grad for one in own])]
    for result, one in zip(results, (wanted, q.grad, k.grad, v.grad), strict=True):
        exact = one.detach().numpy()
        assert np.abs(result - exact).max() < 2.0**-6 * np.abs(exact).max()
    # Results, gradients of queries, and of keys and values.
    assert sum("wgmma.mma_async" in text for text in texts) >= 3


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
