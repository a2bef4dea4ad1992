"""Attention and rotary positions, of the standard and of `com.microsoft`."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Any

from baregrad.dtypes import dtypes
from baregrad.io.onnx.call import NodeCall, Result, standard
from baregrad.tensor import Tensor


def heads_of(x: Tensor, heads: int) -> Tensor:
    """(N, L, heads*E) -> (N, heads, L, E)."""
    n, length, width = x.shape
    return x.reshape((n, length, heads, width // heads)).transpose(1, 2)


def joined(x: Tensor) -> Tensor:
    """(N, heads, L, E) -> (N, L, heads*E)."""
    n, heads, length, width = x.shape
    return x.transpose(1, 2).reshape((n, length, heads * width))


def causal(rows: Any, columns: Any, device: str, past: Any = 0) -> Tensor:
    """(rows, columns) bools: row i sees the columns up to i and those of the past."""
    row = Tensor.arange(rows, device=device).reshape(-1, 1)
    return Tensor.arange(columns, device=device).le(row + past)


def scores_of(
    query: Tensor, key: Tensor, scale: float, softcap: float = 0.0
) -> Tensor:
    """query @ key.mT * scale in float32, kept within +-softcap; heads of the key are shared."""
    heads, own = query.shape[1], key.shape[1]
    if heads != own:
        key = key.repeat_interleave(heads // own, 1)
    wide = dtypes.float64 if query.dtype is dtypes.float64 else dtypes.float32
    found = (query.cast(wide) * scale).matmul(key.cast(wide).mT)
    return (found / softcap).tanh().mul(softcap) if softcap else found


def weighted(weights: Tensor, value: Tensor) -> Tensor:
    """weights @ value, heads of the value shared."""
    heads, own = weights.shape[1], value.shape[1]
    if heads != own:
        value = value.repeat_interleave(heads // own, 1)
    return weights @ value.cast(weights.dtype)


def softmax_of(scores: Tensor) -> Tensor:
    """softmax over the last axis, in which a row of -inf gives zeros."""
    high = scores.amax(-1, True)
    shifted = (scores - (high == float("-inf")).where(0, high)).exp()
    total = shifted.sum(-1, True)
    return shifted / (total == 0).where(1, total)


def _attention(call: NodeCall) -> Result:
    query, key, value = call[0], call[1], call[2]
    flat = query.ndim == 3
    if flat:
        heads, own = call.wanted("q_num_heads"), call.wanted("kv_num_heads")
        query, key, value = heads_of(query, heads), heads_of(key, own), heads_of(value, own)
    past: Any = 0
    if call.has(4):
        past = call[4].shape[2]
        key, value = Tensor.cat([call[4], key], dim=2), Tensor.cat([call[5], value], dim=2)
    scale = call.attribute("scale", 1 / math.sqrt(query.shape[-1]))
    raw = scores_of(query, key, scale)
    softcap = call.attribute("softcap", 0.0)
    capped = (raw / softcap).tanh() * softcap if softcap else raw
    minus = float("-inf")
    bias: Tensor | None = None
    length = key.shape[2]
    if call.has(3):
        bias = call[3]
        if bias.dtype is dtypes.bool:
            bias = bias.where(0.0, minus)
        missing = length - bias.shape[-1]
        if not isinstance(missing, int) or missing:
            bias = bias.cast(raw.dtype).pad([0, missing], value=minus)
        bias = bias.cast(raw.dtype)
    allowed = _allowed(call, query.shape[2], length, past)
    masked = capped if bias is None else capped + bias
    if allowed is not None:
        masked = allowed.where(masked, minus)
    weights = softmax_of(masked)
    found = weighted(weights, value).cast(query.dtype)
    mode = call.attribute("qk_matmul_output_mode", 0)
    shown = (raw, capped, masked, weights)[mode]
    return joined(found) if flat else found, key, value, shown.cast(query.dtype)


def _allowed(call: NodeCall, rows: Any, columns: Any, past: Any) -> Tensor | None:
    """What takes part by its place: kept keys, those not later, those in a window."""
    before: Any = past
    columns_at = Tensor.arange(columns, device=call.device)
    tests = []
    if call.has(6):
        counts = call[6].reshape(-1, 1, 1, 1)
        tests.append(columns_at < counts)
        before = counts - rows
    if call.attribute("is_causal", 0):
        tests.append(causal(rows, columns, call.device, before))
    own = Tensor.arange(rows, device=call.device).reshape(-1, 1) + before
    left = call.attribute("left_window_size", -1)
    right = call.attribute("right_window_size", -1)
    if left >= 0:
        tests.append(columns_at >= own - left)
    if right >= 0:
        tests.append(columns_at <= own + right)
    found: Tensor | None = None
    for test in tests:
        found = test if found is None else found & test
    return found


def rotated(
    x: Tensor, cosine: Tensor, sine: Tensor, interleaved: bool, width: int = 0
) -> Tensor:
    """x (N, heads, L, E) with pairs of its first `width` elements turned by (N, L, width/2)."""
    width = width or x.shape[-1]
    turned, rest = x.narrow(-1, 0, width), x.narrow(-1, width, x.shape[-1] - width)
    cosine, sine = cosine.unsqueeze(1), sine.unsqueeze(1)
    if interleaved:
        pairs = turned.reshape((*turned.shape[:-1], width // 2, 2))
        a, b = pairs[..., 0], pairs[..., 1]
        found = Tensor.stack([a * cosine - b * sine, b * cosine + a * sine], dim=-1)
        found = found.reshape(turned.shape)
    else:
        a, b = turned.chunk(2, -1)
        found = Tensor.cat([a * cosine - b * sine, b * cosine + a * sine], dim=-1)
    found = found.cast(x.dtype)
    return Tensor.cat([found, rest], dim=-1) if width != x.shape[-1] else found


def _rotary(call: NodeCall) -> Result:
    x, cosine, sine = call[0], call[1], call[2]
    flat = x.ndim == 3
    y = heads_of(x, call.wanted("num_heads")) if flat else x
    width = call.attribute("rotary_embedding_dim", 0)
    if call.has(3):
        cosine, sine = (_rows(table, call[3]) for table in (cosine, sine))
    half = (width or y.shape[-1]) // 2
    cosine, sine = cosine.narrow(-1, 0, half), sine.narrow(-1, 0, half)
    found = rotated(y, cosine, sine, bool(call.attribute("interleaved", 0)), width)
    return joined(found) if flat else found


def _rows(table: Tensor, places: Tensor) -> Tensor:
    """Rows of a table, for places of any shape."""
    found = table.index_select(0, places.reshape(-1))
    return found.reshape((*places.shape, table.shape[-1]))


OPERATORS = MappingProxyType(standard({"Attention": _attention, "RotaryEmbedding": _rotary}))
