"""How element types are called in our own code, in safetensors headers and in PyTorch's pickles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class ElementType:
    """One element type: our name, its width in bits, and what two file formats call it.

    `safetensors` is the code in a safetensors header and `torch_storage` the class name of
    PyTorch's typed storage; None where the format has no such type. `name`
    is also what PyTorch calls the dtype.
    """

    name: str
    bits: int
    safetensors: str | None = None
    torch_storage: str | None = None

    @property
    def itemsize(self) -> int:
        """Bytes an element takes; 0 for types packed below a byte."""
        return self.bits // 8


# Sources: the safetensors format description (README of the format, "dtype" values) and the
# class names that torch.save writes (torch/storage.py, one typed storage per dtype).
ELEMENT_TYPES: tuple[ElementType, ...] = (
    ElementType("bool", 8, "BOOL", "BoolStorage"),
    ElementType("uint8", 8, "U8", "ByteStorage"),
    ElementType("int8", 8, "I8", "CharStorage"),
    ElementType("uint16", 16, "U16"),
    ElementType("int16", 16, "I16", "ShortStorage"),
    ElementType("uint32", 32, "U32"),
    ElementType("int32", 32, "I32", "IntStorage"),
    ElementType("uint64", 64, "U64"),
    ElementType("int64", 64, "I64", "LongStorage"),
    ElementType("float16", 16, "F16", "HalfStorage"),
    ElementType("bfloat16", 16, "BF16", "BFloat16Storage"),
    ElementType("float32", 32, "F32", "FloatStorage"),
    ElementType("float64", 64, "F64", "DoubleStorage"),
    ElementType("complex64", 64, "C64", "ComplexFloatStorage"),
    ElementType("complex128", 128, None, "ComplexDoubleStorage"),
    ElementType("float8_e5m2", 8, "F8_E5M2"),
    ElementType("float8_e4m3fn", 8, "F8_E4M3"),
    ElementType("float8_e5m2fnuz", 8, "F8_E5M2FNUZ"),
    ElementType("float8_e4m3fnuz", 8, "F8_E4M3FNUZ"),
    ElementType("float8_e8m0fnu", 8, "F8_E8M0"),
    ElementType("float6_e2m3fn", 6, "F6_E2M3"),
    ElementType("float6_e3m2fn", 6, "F6_E3M2"),
    ElementType("float4_e2m1fn", 4, "F4"),
)

BY_NAME: Mapping[str, ElementType] = MappingProxyType({t.name: t for t in ELEMENT_TYPES})

BY_SAFETENSORS: Mapping[str, ElementType] = MappingProxyType(
    {t.safetensors: t for t in ELEMENT_TYPES if t.safetensors is not None}
)

BY_TORCH_STORAGE: Mapping[str, ElementType] = MappingProxyType(
    {t.torch_storage: t for t in ELEMENT_TYPES if t.torch_storage is not None}
)
