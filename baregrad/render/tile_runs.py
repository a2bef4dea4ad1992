"""Runs of products of tiles, by a core's matrix unit: what every language writes of them.

A run keeps up to 2 x 2 tiles of results in registers 0 to 3; rows of the first factor pass through
registers 4 and 5, those of the second through 6 and 7. All tiles have 16 rows of 64 bytes, so one
configuration serves a kernel from its first instruction to its last.
"""

from __future__ import annotations

from baregrad.base.errors import CompilerBug
from baregrad.ir.analysis.words import PRODUCTS, TILE, WORD_NBYTES
from baregrad.ir.core.node import Node

ROW_NBYTES = TILE * WORD_NBYTES
TILES = 8
# Palette 1, the bytes of each tile's rows (16 bits each, from byte 16 on) and its rows (from 48).
CONFIGURATION = (
    bytes([1]) + bytes(15) + ROW_NBYTES.to_bytes(2, "little") * TILES + bytes(16)
    + bytes([TILE]) * TILES + bytes(8)
)  # fmt: skip
_RUN = "tile_run"
CONFIGURED = "tile_configuration"


class TileRun:
    """What a MACHINE says of a run: tiles each way, steps, and where its three arrays lie."""

    def __init__(self, node: Node) -> None:
        if node.arg.name not in PRODUCTS:
            raise CompilerBug("not an instruction of a CPU", found=node)
        rows, columns, self.steps, *places = node.arg.immediates
        self.instruction: str = node.arg.name
        self.rows, self.columns = rows // TILE, columns // TILE
        self.name = f"{_RUN}_{self.instruction}_{self.rows}x{self.columns}"
        self.keep = node.src[0]
        # Of the results and both factors: array, offset, constant offset, and bytes between rows
        # and between steps.
        self.arrays = [
            (*node.src[1 + 2 * n : 3 + 2 * n], places[3 * n],
             places[3 * n + 1] * WORD_NBYTES, places[3 * n + 2] * WORD_NBYTES)
            for n in range(3)
        ]

    def results(self) -> list[tuple[int, int, int]]:
        """The register, row and column of each tile of results."""
        return [(2 * r + c, r, c) for r in range(self.rows) for c in range(self.columns)]
