"""The types of PTX operands, and NumPy's view of each.

f32, f64 and integers are held as NumPy's own; f16, bf16 and the 8-bit floats as raw codes, since
NumPy does not compute with all of them; packed types as the integer that holds them.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class OperandType:
    """A type's name, kind (`u` `s` `b` `f` `pred`), bits, and the NumPy dtype of its values.

    `lane` names the type of each half of a packed one.
    """

    name: str
    kind: str
    bits: int
    numpy: np.dtype[Any]
    lane: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of one value in memory."""
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        """Whether it is a floating-point type, packed ones included."""
        return self.kind == "f"


def _rows() -> list[OperandType]:
    rows = [OperandType("pred", "pred", 1, np.dtype(bool))]
    for bits in (8, 16, 32, 64):
        rows.append(OperandType(f"u{bits}", "u", bits, np.dtype(f"uint{bits}")))
        rows.append(OperandType(f"b{bits}", "b", bits, np.dtype(f"uint{bits}")))
        rows.append(OperandType(f"s{bits}", "s", bits, np.dtype(f"int{bits}")))
    rows += [
        OperandType("f32", "f", 32, np.dtype(np.float32)),
        OperandType("f64", "f", 64, np.dtype(np.float64)),
        OperandType("tf32", "f", 32, np.dtype(np.uint32)),
        OperandType("f16", "f", 16, np.dtype(np.uint16)),
        OperandType("bf16", "f", 16, np.dtype(np.uint16)),
        OperandType("e4m3", "f", 8, np.dtype(np.uint8)),
        OperandType("e5m2", "f", 8, np.dtype(np.uint8)),
    ]
    packed = {"u16": "u", "s16": "s", "f16": "f", "bf16": "f"}
    for lane, kind in packed.items():
        rows.append(OperandType(f"{lane}x2", kind, 32, np.dtype(np.uint32), lane))
    for lane in ("e4m3", "e5m2"):
        rows.append(OperandType(f"{lane}x2", "f", 16, np.dtype(np.uint16), lane))
    return rows


TYPES: Final = MappingProxyType({row.name: row for row in _rows()})
UNSIGNED: Final = MappingProxyType({bits: np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)})


def raw_type(bits: int) -> OperandType:
    """Return the untyped row of a width in bits."""
    return TYPES[f"b{bits}"]

