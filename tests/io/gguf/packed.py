"""Random packed rows, and what they hold by somebody else's reading."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, quants

from baregrad.io.gguf import TYPES, GgmlType

PACKED = tuple(row for row in TYPES if row.is_packed)
# Where blocks hold float16 numbers.
_HALVES = {
    "Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q8_1": (0, 2),
    "Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "TQ1_0": (52,), "TQ2_0": (64,),
}  # fmt: skip


def random_rows(
    row: GgmlType, rows: int, width: int, seed: int = 0, scale: float = 0.05
) -> npt.NDArray[np.uint8]:
    """Random bytes of rows, of which all scales are of the size of `scale`."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (rows, width // row.block, row.nbytes), dtype=np.uint8)
    sizes = rng.uniform(-scale, scale, blocks.shape[:2]).astype(np.float16)
    bits = sizes.view(np.uint16)
    if row.name in ("MXFP4", "NVFP4"):
        blocks[..., : 1 if row.name == "MXFP4" else 4] &= 0x7E
    elif row.name == "Q8_K":
        blocks[..., :4] = sizes.astype("<f4")[..., None].view(np.uint8)
    elif row.name == "IQ1_M":
        for place in range(4):
            blocks[..., 49 + 2 * place] &= 0x0F
            blocks[..., 49 + 2 * place] |= ((bits >> 4 * place & 15) << 4).astype(np.uint8)
    else:
        for start in _HALVES.get(row.name, (0,)):
            blocks[..., start : start + 2] = sizes[..., None].view(np.uint8)
    return blocks.reshape(rows, -1)


def reference(row: GgmlType, packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """The elements of packed rows, by `gguf`, or by the layouts where it has no reading."""
    blocks = packed.reshape(-1, row.nbytes)
    with np.errstate(all="ignore"):
        if row.name in _READINGS:
            values = _READINGS[row.name](blocks).astype(np.float32)
        else:
            values = quants.dequantize(blocks, GGMLQuantizationType[row.name])
    return values.reshape(len(packed), -1)


def _half(blocks: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    return np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float64)


def _q8_1(blocks: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    return _half(blocks) * blocks[:, 4:].view(np.int8)


def _q8_k(blocks: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    scale = np.ascontiguousarray(blocks[:, :4]).view("<f4").astype(np.float64)
    return scale * blocks[:, 4:260].view(np.int8)


def _q1_0(blocks: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    bits = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little")
    return np.where(bits == 1, _half(blocks), -_half(blocks))


def _q2_0(blocks: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    bits = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little").astype(np.float64)
    return _half(blocks) * (bits[:, ::2] + 2 * bits[:, 1::2] - 1)


_READINGS = {"Q8_1": _q8_1, "Q8_K": _q8_k, "Q1_0": _q1_0, "Q2_0": _q2_0}
