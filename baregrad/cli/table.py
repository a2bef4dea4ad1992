"""Plain text tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def format_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return rows as left-aligned columns under a heading; the last column is not padded."""
    cells = [tuple(head), *(tuple(map(str, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        padded = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(padded).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)
