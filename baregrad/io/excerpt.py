"""Values from files in messages: short, whatever a hostile file makes them."""

from __future__ import annotations


def excerpt(value: object, limit: int = 60) -> str:
    """Return `value` as text of about `limit` characters at most, for an error's message."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, (str, bytes)):
        text = repr(value[:limit])
    elif value is None or isinstance(value, (int, float)):
        text = repr(value)
    elif isinstance(value, (list, tuple)) and len(value) <= 16:
        # One level only: deep nesting would recurse.
        text = f"[{', '.join(_scalar(item) for item in value)}]"
    elif isinstance(value, (list, tuple, dict, set, frozenset)):
        text = f"a {type(value).__name__} of {len(value)} items"
    else:
        text = f"a {type(value).__name__}"
    return text if len(text) <= limit + 2 else text[: limit - 3] + "..."


def _scalar(value: object) -> str:
    if value is None or isinstance(value, (str, bytes, int, float)):
        return excerpt(value, 24)
    return f"a {type(value).__name__}"
