"""GGUF files: read by mapping them, written, and their packed weights as lazy arithmetic.

In come files of language models as llama.cpp makes them; out come metadata, and weights that stay
packed on the device. Imports `io`'s mapping of files and `tensor`.
"""

from __future__ import annotations

from baregrad.io.gguf.planes import share_memory
from baregrad.io.gguf.quantise import can_quantise, quantise
from baregrad.io.gguf.reader import GgufFile, GgufTensor
from baregrad.io.gguf.types import TYPES, GgmlType, by_id, by_name
from baregrad.io.gguf.values import Kind, TypedValue, Value
from baregrad.io.gguf.weight import PackedWeight, PlanarWeight
from baregrad.io.gguf.writer import TensorToWrite, write_gguf

__all__ = [
    "TYPES",
    "GgmlType",
    "GgufFile",
    "GgufTensor",
    "Kind",
    "PackedWeight",
    "PlanarWeight",
    "TensorToWrite",
    "TypedValue",
    "Value",
    "by_id",
    "by_name",
    "can_quantise",
    "quantise",
    "share_memory",
    "write_gguf",
]
