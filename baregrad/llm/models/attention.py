"""Attention of new tokens to those that a sequence holds."""

from __future__ import annotations

from baregrad.dtypes import dtypes
from baregrad.tensor import Tensor


def attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    places: Tensor | None,
    *,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
) -> Tensor:
    """Return softmax(query @ keys * scale) @ values of each head, over what each token may see.

    (T, heads, E), (S, key heads, E), (S, key heads, V) -> (T, heads, V). Key j stands at place j;
    a token at place i sees those up to i, of them the latest `window` (0 for all). `places` is
    (T,), or None for one token that stands last. `soft_cap`: scores become cap * tanh(score / cap).
    """
    rows = query.transpose(0, 1), keys.transpose(0, 1), values.transpose(0, 1)
    visible = _visible(keys, places, window)
    mixed: Tensor
    if not soft_cap:
        mixed = rows[0].scaled_dot_product_attention(
            rows[1], rows[2], visible, scale=scale, enable_gqa=True
        )
        return mixed.transpose(0, 1)
    # (key heads, heads of each, T, E) beside (key heads, 1, S, E)
    heads = keys.shape[1]
    wide = rows[0].reshape(heads, query.shape[1] // heads, *rows[0].shape[1:])
    scores = (wide.cast(dtypes.float32) * scale) @ rows[1].unsqueeze(1).cast(dtypes.float32).mT
    scores = (scores * (1 / soft_cap)).tanh() * soft_cap
    if visible is not None:
        scores = visible.where(scores, float("-inf"))
    mixed = scores.softmax(-1) @ rows[2].unsqueeze(1).cast(dtypes.float32)
    mixed = mixed.reshape(*query.shape[1::-1], values.shape[2])
    return mixed.transpose(0, 1).cast(query.dtype)


def _visible(keys: Tensor, places: Tensor | None, window: int) -> Tensor | None:
    """Which keys (S,) each token (T,) sees: (T, S), None for all."""
    count = keys.shape[0]
    if places is None:
        if not window or (isinstance(count, int) and count <= window):
            return None
        places = Tensor.arange(count - 1, count, device=keys.device)
    own = places.unsqueeze(1)
    others = Tensor.arange(count, dtype=own.dtype, device=keys.device).unsqueeze(0)
    visible: Tensor = others <= own
    if window:
        visible = visible & (others > own - window)
    return visible
