"""Which type each tensor of a model gets when the model is quantised to one type.

Matrices are quantised, and what is small or delicate is not: vectors, norms, the choice of experts,
positions. The head, and the table of words where it is the head as well, keeps more bits. Rows that
the wanted type's blocks do not divide get the next type that has small blocks.
Source of the choices: src/llama-quant.cpp of github.com/ggml-org/llama.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from baregrad.io.gguf.types import GgmlType, by_name

# What takes the place of a type whose blocks do not divide the rows.
SMALLER_BLOCKS: Mapping[str, str] = MappingProxyType({
    "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
})  # fmt: skip
# `general.file_type`: the number by which files say what most of their tensors are.
FILE_TYPES: Mapping[str, int] = MappingProxyType({
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q4_K": 14,
    "Q5_K": 16, "Q6_K": 18, "BF16": 32,
})  # fmt: skip
_KEPT_PARTS = ("_norm.", "ffn_gate_inp.", "position_embd.", "token_types.", "rope_freqs.")
_HEAD, _WORDS = "output.weight", "token_embd.weight"


def fitting(wanted: GgmlType, width: int) -> GgmlType:
    """Return the wanted type, or what takes its place for rows of `width` elements."""
    found: GgmlType | None = wanted
    while found is not None and width % found.block:
        smaller = SMALLER_BLOCKS.get(found.name)
        found = None if smaller is None else by_name(smaller)
    return found or by_name("F16")


def is_quantised(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor gets the wanted type; else it stays as it is."""
    if len(shape) < 2 or not name.endswith(".weight"):
        return False
    return not any(part in name for part in _KEPT_PARTS)


def type_for(
    name: str, shape: tuple[int, ...], stored: GgmlType, wanted: GgmlType, has_head: bool
) -> GgmlType:
    """Return the type of one tensor in a model quantised to `wanted`.

    stored: its type before. has_head: whether the model has a head apart from its table of words.
    """
    if not is_quantised(name, shape):
        return stored
    if name == (_HEAD if has_head else _WORDS) and wanted.is_packed and wanted.name != "Q8_0":
        wanted = by_name("Q6_K")
    return fitting(wanted, shape[-1])
