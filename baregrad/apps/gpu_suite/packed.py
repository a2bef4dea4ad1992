"""Products of one row with a large matrix, of 16 and 8 bits or packed, and of rows by experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from baregrad.apps.bench_measure import Array
from baregrad.apps.beside.draws import Draw
from baregrad.apps.beside.ours import Ours
from baregrad.apps.beside.peer import Peer
from baregrad.apps.beside.tensor_case import ROTATED_NBYTES, TensorCase
from baregrad.apps.beside.work import SideWork
from baregrad.apps.gpu_suite.row import COPY, GpuRow
from baregrad.dtypes import dtypes
from baregrad.io.gguf import PackedWeight, by_name
from baregrad.llm.models.expert_groups import ExpertGroups, rows_of_tile
from baregrad.tensor import Tensor
from baregrad.tensor.ops.shapes import stored

# Where a block holds float16 numbers, which random bytes might make infinite.
_HALVES = MappingProxyType({"Q8_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,)})
_MATRIX, _TINY = (14336, 4096), (24, 512)


def _blocks(kind: str, shape: tuple[int, ...], random: np.random.Generator) -> Array:
    """Random bytes (..., bytes of a row) of a packed weight, whose scales are small numbers."""
    row = by_name(kind)
    count = prod(shape) // row.block
    drawn = random.integers(0, 256, min(count, 4099) * row.nbytes, np.uint8)
    raw = np.resize(drawn.reshape(-1, row.nbytes), (count, row.nbytes))
    for at in _HALVES[kind]:
        scales = (random.random(count, np.float32) * 1e-3 + 1e-3).astype(np.float16)
        raw[:, at : at + 2] = scales.view(np.uint8).reshape(count, 2)
    return raw.reshape(*shape[:-1], -1)


def _numbers(kind: str, shape: tuple[int, ...], random: np.random.Generator) -> Array:
    """What such bytes stand for, as float32."""
    raw = Tensor(_blocks(kind, shape, random), device="CPU")
    return PackedWeight(by_name(kind), shape, raw).dense().numpy()


@dataclass(frozen=True, slots=True)
class PackedProduct:
    """A row of bfloat16 numbers times a packed matrix (out, width); PyTorch's is of bfloat16."""

    kind: str
    shape: tuple[int, int]

    @property
    def nbytes(self) -> int:
        """Bytes of the packed matrix."""
        return self.shape[0] * by_name(self.kind).row_nbytes(self.shape[1])

    def on_ours(self, side: Ours) -> SideWork:
        """Multiply by as many matrices as no cache holds, in one replay."""
        sets = []
        for random in self._seeds():
            raw = Tensor(_blocks(self.kind, self.shape, random), device=side.name)
            weight = PackedWeight(by_name(self.kind), self.shape, raw).in_planes()
            sets.append((weight, side.tensor(self._row, np.random.default_rng(1))))
        return side.repeated(lambda weight, x: weight.linear(x), sets)

    def on_peer(self, side: Peer) -> SideWork:
        """Multiply by the numbers of the last matrix; exact is the product in float64."""
        random = list(self._seeds())[-1]
        matrix = side.torch.from_numpy(_numbers(self.kind, self.shape, random)).to(side.device)
        x = side.tensor(self._row, np.random.default_rng(1))
        short = matrix.to(side.torch.bfloat16)
        work = side.repeated(lambda x: x @ short.T, [(x,)])
        return SideWork(
            work.run, work.outputs,
            exact=lambda: [side.array(x.double() @ matrix.double().T)],
            facts={"traffic": self.nbytes, "flops": 2.0 * prod(self.shape)},
        )

    @property
    def _row(self) -> Draw:
        return Draw((1, self.shape[1]))

    def _seeds(self) -> list[np.random.Generator]:
        copies = max(2, -(-ROTATED_NBYTES // self.nbytes)) if self.nbytes > 1 << 20 else 1
        return [np.random.default_rng(number) for number in range(copies)]


def _plain(dtype: str, is_tiny: bool) -> TensorCase:
    """A row of bfloat16 numbers times a matrix of a dtype, widened where it is read."""
    out, width = _TINY if is_tiny else _MATRIX
    draws = Draw((1, width)), Draw((out, width), dtype, scale=width**-0.5)
    return TensorCase(
        draws, lambda x, w: x @ w.cast("bfloat16").T, lambda torch, x, w: x @ w.to(x.dtype).T,
        traffic=draws[1].nbytes, flops=2.0 * out * width,
    )


def _packed(kind: str, is_tiny: bool) -> PackedProduct:
    return PackedProduct(kind, _TINY if is_tiny else _MATRIX)


# --- rows by experts ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExpertRows:
    """Rows in unequal numbers times the matrices of some experts, tile by tile.

    PyTorch's time is that of a dense product of the same work. kind: of the packed matrices, or ""
    for bfloat16.
    """

    kind: str
    rows: int
    width: int
    out: int
    experts: int = 8

    def on_ours(self, side: Ours) -> SideWork:
        """Multiply rows that lie in tiles of one expert each; results are those of the rows."""
        index = Tensor(self._index()[:, None], device=side.name).realize()
        rows = rows_of_tile(index, self.experts) or 16
        groups = ExpertGroups(index, self.experts, rows)
        tiles = groups.spread(side.tensor(self._draw, np.random.default_rng(1))).contiguous()
        groups.realize(tiles)
        shape = (self.experts, self.out, self.width)
        if self.kind:
            raw = Tensor(_blocks(self.kind, shape, np.random.default_rng(2)), device=side.name)
            weight = PackedWeight(by_name(self.kind), shape, raw).in_planes()
        else:
            drawn = side.tensor(self._matrices, np.random.default_rng(2))
            weight = PackedWeight(by_name("BF16"), shape, drawn)

        def product(x: Tensor) -> Tensor:
            return groups.times(weight, x)

        work = side.repeated(product, [(tiles,)])

        def outputs() -> list[Array]:
            return [side.array(groups.gather(stored(product(tiles)))[:, 0])]

        return SideWork(work.run, outputs)

    def on_peer(self, side: Peer) -> SideWork:
        """Multiply all rows by the first matrix; the results compared are each expert's."""
        torch = side.torch
        x = side.tensor(self._draw, np.random.default_rng(1))
        if self.kind:
            shape = (self.experts, self.out, self.width)
            numbers = _numbers(self.kind, shape, np.random.default_rng(2))
            matrices = torch.from_numpy(numbers).to(side.device).to(torch.bfloat16)
        else:
            matrices = side.tensor(self._matrices, np.random.default_rng(2))
        work = side.repeated(lambda x: x @ matrices[0].T, [(x,)])

        def exact() -> list[Array]:
            found = torch.empty(self.rows, self.out, device=side.device)
            index = torch.from_numpy(self._index()).to(side.device)
            for expert in range(self.experts):
                found[index == expert] = x[index == expert].float() @ matrices[expert].float().T
            return [side.array(found)]

        return SideWork(
            work.run, exact, exact=exact,
            facts={"flops": 2.0 * self.rows * self.width * self.out},
        )

    def _index(self) -> Array:
        random = np.random.default_rng(0)
        shares = random.dirichlet(np.full(self.experts, 4.0))
        return random.choice(self.experts, self.rows, p=shares).astype(np.int32)

    @property
    def _draw(self) -> Draw:
        return Draw((self.rows, self.width))

    @property
    def _matrices(self) -> Draw:
        return Draw((self.experts, self.out, self.width), scale=self.width**-0.5)


def _by_experts(kind: str, is_tiny: bool) -> ExpertRows:
    return ExpertRows(kind, 64, 256, 48) if is_tiny else ExpertRows(kind, 8192, 4096, 14336)


def _row(
    name: str, bar: float, case: Callable[[bool], Any], against: str = COPY,
    tolerance: float = 2.0**-7,
) -> GpuRow:
    return GpuRow(name, bar, case, against, tolerance, limit_s=60.0)


PACKED = (
    *(_row(f"matvec 14336x4096 {name}", 0.92, partial(_plain, dtype))
      for name, dtype in (("bf16", "bfloat16"), ("fp8", dtypes.float8_e4m3fn.name))),
    *(_row(f"matvec 14336x4096 {kind}", 0.85, partial(_packed, kind)) for kind in _HALVES),
    *(_row(f"8192 rows by 8 experts, 4096 to 14336, {kind or 'bf16'}", 0.9,
           partial(_by_experts, kind), "torch", 2.0**-6) for kind in ("", "Q4_K")),
)  # fmt: skip
