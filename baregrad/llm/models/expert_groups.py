"""Tokens by the experts that they take, for products of whole tiles of rows with each expert.

The rows that an expert has are laid side by side and filled up to tiles, so that each tile of rows
is multiplied by one matrix, which is read where it lies. All of it is computed on the device.
"""

from __future__ import annotations

from types import MappingProxyType

from baregrad.base.bits import next_power_of_two
from baregrad.base.options import is_gpu
from baregrad.dtypes import DType, dtypes
from baregrad.io.gguf import PackedWeight, by_name
from baregrad.ir.core.index import upper
from baregrad.tensor import Tensor
from baregrad.tensor.ops.shapes import stored

# Rows of a tile: those of the least of a matrix unit; as many as share what is unpacked for them;
# and as many as share what is read of numbers in memory, where experts have more rows.
LEAST_ROWS, PACKED_ROWS, MOST_ROWS = 16, 64, 128
# The types that hold numbers of 16 bits as they are.
_PLAIN = MappingProxyType({"bfloat16": "BF16", "float16": "F16"})


def rows_of_tile(index: Tensor, count: int) -> int:
    """Rows of a tile for tokens whose experts (T, used) of `count` are named; 0 for none.

    It follows from the most tokens that there may be, not from how many there are: rows get the
    same bits whatever is beside them. Where experts have one row at most there are no tiles.
    """
    rows = upper(index.shape[0]) * index.shape[1]
    if rows <= count or not is_gpu(index.device):
        return 0
    each = rows // count
    most = MOST_ROWS if each > MOST_ROWS else PACKED_ROWS
    return min(max(next_power_of_two(each), LEAST_ROWS), most)


def for_tiles(weight: PackedWeight, dtype: DType, rows: int) -> PackedWeight:
    """Return a stack of matrices as tiles of so many rows of a dtype read it.

    Where experts have several of the largest tiles, each would unpack the same numbers: these are
    stored, for the time of a step. On an H200 8,192 rows by 8 experts of 4,096 x 14,336 in Q4_K
    took 1,780 us so, 320 of them for the numbers; where threads of tiles of 128 x 256 unpacked
    panels beside the matrix unit 5,160, of 256 x 128 3,330.
    """
    if rows < MOST_ROWS or not weight.type.is_packed or dtype.name not in _PLAIN:
        return weight
    return PackedWeight(by_name(_PLAIN[dtype.name]), weight.shape, stored(weight.dense(dtype)))


class ExpertGroups:
    """Where each row of each token lies among tiles of rows of one expert.

    index: the experts (T, used) of each token, of `count`. rows: of a tile.
    """

    def __init__(self, index: Tensor, count: int, rows: int) -> None:
        self.used = index.shape[1]
        self.rows = rows
        taken = index.flatten().cast(dtypes.int32)
        # At most so many tiles are filled in part, and those without a row name some expert.
        self.tiles = (taken.shape[0] + count * (rows - 1)) // rows
        order = Tensor.arange(taken.shape[0], dtype=dtypes.int32, device=index.device)
        experts = Tensor.arange(count, dtype=dtypes.int32, device=index.device)
        is_same = taken.unsqueeze(1) == taken.unsqueeze(0)
        before = (is_same & (order.unsqueeze(0) < order.unsqueeze(1))).sum(1, dtype=dtypes.int32)
        held = (taken.unsqueeze(0) == experts.unsqueeze(1)).sum(1, dtype=dtypes.int32)
        tiles = stored((held + (rows - 1)) // rows)
        ends = (experts.unsqueeze(0) <= experts.unsqueeze(1)).where(tiles, 0)
        ends = ends.sum(1, dtype=dtypes.int32)
        begins = stored(ends - tiles)
        self._place = stored(begins[taken] * rows + before)
        number = Tensor.arange(self.tiles, dtype=dtypes.int32, device=index.device)
        passed = (ends.unsqueeze(0) <= number.unsqueeze(1)).sum(1, dtype=dtypes.int32)
        self.experts = stored(passed.minimum(count - 1))
        self._taken = stored(ends[-1:])
        nobody = Tensor.full((self.tiles * rows,), -1, dtype=dtypes.int32, device=index.device)
        self._rows = nobody.scatter(0, self._place.cast(dtypes.int64), order)

    def realize(self, *others: Tensor) -> None:
        """Compute now where rows lie, once for all products of these groups, and other tensors."""
        self.experts.realize(self._taken, self._place, self._rows, *others)

    def spread(self, x: Tensor) -> Tensor:
        """Return the rows (tiles, rows, width) of tokens (T, width), and zeros where there is none.

        Any numbers would do there. For zeros a matrix unit takes less power, which limits it: with
        384 of 8,576 rows of nobody, 8 experts of 4,096 x 14,336 took an H200 1.9 % less, on and on.
        """
        found = x[self._rows.maximum(0) // self.used]
        found = stored((self._rows >= 0)[:, None].where(found, 0))
        return found.reshape(self.tiles, self.rows, x.shape[-1])

    def times(self, weight: PackedWeight, x: Tensor) -> Tensor:
        """Return rows (tiles, rows, in) times the matrix of each tile: (tiles, rows, out).

        Tiles that no expert has are zeros, whatever is in them, and cost next to nothing: they are
        the last ones, from a number in memory on.
        """
        product = for_tiles(weight, x.dtype, self.rows).at(self.experts).each(x)
        # Counted here: a captured call keeps numbers that were counted before in memory, from which
        # no compiler knows that tiles up to one place are there.
        number = Tensor.arange(self.tiles, dtype=dtypes.int32, device=x.device)
        return (number < self._taken)[:, None, None].where(product, 0)

    def gather(self, x: Tensor) -> Tensor:
        """Return what tiles (tiles, rows, width) hold for each token: (T, used, width)."""
        found = x.reshape(self.tiles * self.rows, x.shape[-1])[self._place]
        return found.unflatten(0, (-1, self.used))
