"""Registers' worth of a vector's lanes in LLVM IR, for instructions that only take those."""

from __future__ import annotations

from collections.abc import Sequence

from baregrad.dtypes import DType
from baregrad.render.llvm.text import FunctionText
from baregrad.render.llvm.types import type_text


def part(f: FunctionText, dtype: DType, lanes: int, name: str, first: int, size: int) -> str:
    """`size` lanes of a value of `lanes`, from `first` on; what is not there is anything."""
    found, element = next(f.unused), type_text(dtype)
    if lanes == 1:
        whole = type_text(dtype, size)
        f.lines.append(f"  {found} = insertelement {whole} poison, {element} {name}, i32 0")
        return found
    if lanes == size:
        return name
    return shuffled(f, dtype, lanes, (name,), [
        place if place < lanes else None for place in range(first, first + size)
    ])


def joined(
    f: FunctionText, dtype: DType, lanes: int, size: int, parts: list[str]
) -> str:
    """The first `lanes` lanes of registers of `size`."""
    while len(parts) > 1:
        if len(parts) % 2:
            parts.append("poison")
        pairs = zip(parts[0::2], parts[1::2], strict=True)
        parts = [shuffled(f, dtype, size, pair, list(range(2 * size))) for pair in pairs]
        size *= 2
    (whole,) = parts
    if lanes == size:
        return whole
    if lanes == 1:
        return f.value(f"extractelement {type_text(dtype, size)} {whole}, i32 0")
    return shuffled(f, dtype, size, (whole,), list(range(lanes)))


def shuffled(
    f: FunctionText, dtype: DType, lanes: int, sources: Sequence[str], places: Sequence[int | None]
) -> str:
    """Some lanes of one value or two of `lanes` each, by number; None is anything."""
    kinds = type_text(dtype, lanes)
    second = sources[1] if len(sources) > 1 else "poison"
    wanted = ", ".join("i32 poison" if p is None else f"i32 {p}" for p in places)
    order = f"<{len(places)} x i32> <{wanted}>"
    return f.value(f"shufflevector {kinds} {sources[0]}, {kinds} {second}, {order}")
