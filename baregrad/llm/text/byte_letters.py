"""The letters by which byte-level tokenisers write bytes.

GPT-2's table: a byte that prints is its own letter of Latin-1, and the others are the letters from
U+0100 on, in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_PRINTED = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = tuple(byte for byte in range(256) if byte not in _PRINTED)

LETTER_BYTES: Mapping[str, int] = MappingProxyType(
    {chr(byte): byte for byte in _PRINTED}
    | {chr(0x100 + index): byte for index, byte in enumerate(_OTHERS)}
)


def bytes_of_letters(text: str) -> bytes:
    """Return the bytes that a byte-level token spells.

    A text with other characters than those of the table is a token of its own: its UTF-8.
    """
    try:
        return bytes([LETTER_BYTES[letter] for letter in text])
    except KeyError:
        return text.encode("utf-8", "replace")
