"""A stream whose scores are made one tile of keys ahead of the sums that their powers are for.

While threads raise the powers of a tile, the matrix unit is busy with the sums for the one before:

    scores 0 | powers 0 |
             |  scores 1 | sums 0 ........ |
                         |  powers 1       |
                                           | scores 2 | sums 1 ........ |
                                                      |  powers 2       |

So powers have registers of their own, and a tile's values are copied a tile after its keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node, extent_of, make_node
from baregrad.ir.core.op import Ops
from baregrad.ir.core.substitution import substitute
from baregrad.ir.protocol.attributes import Done
from baregrad.kernel.gpu.barriers import sequence

Copies = Callable[[Dim], Sequence[Node]]


class StreamParts(NamedTuple):
    """Statements for a tile of keys, which is that of an axis, and what copies one.

    scores: begins their product. powers: makes them of the scores. scaled: scales what is summed as
    they need it. sums: begins the product of powers and values.
    """

    scores: Sequence[Node]
    powers: Sequence[Node]
    scaled: Sequence[Node]
    sums: Sequence[Node]
    keys: Copies
    values: Copies


def done(engine: str, keep: int = 0, by_warps: bool = False) -> Node:
    """All but some groups of copies or of products are waited for, by a block or by each warp."""
    return make_node(Ops.DONE, dtypes.token, (), Done(engine, keep, by_warps=by_warps))


def commit() -> Node:
    """The copies so far are a group."""
    return make_node(Ops.COMMIT, dtypes.token)


def one_ahead(tile: Node, number: Node, parts: StreamParts) -> list[Node]:
    """The statements of a block, behind the copies of its rows, for all tiles of keys.

    tile: the axis of tiles, of which there is one at least. number: an axis of one tile less.
    """
    later = index.add(number, 1)
    loop = [
        done("copy"),
        *_at(parts.scores, tile, later), *_at(parts.sums, tile, number),
        *parts.keys(index.add(number, 2)), *parts.values(later), commit(),
        done("mma", 1), *_at(parts.powers, tile, later),
        done("mma"), *parts.scaled,
    ]  # fmt: skip
    last = index.sub(extent_of(tile), 1)
    return [
        *parts.keys(0), commit(), *parts.values(0), *parts.keys(1), commit(),
        done("copy", 1), *_at(parts.scores, tile, 0), done("mma"), *_at(parts.powers, tile, 0),
        make_node(Ops.LOOP, dtypes.token, (number, sequence(loop))),
        done("copy"), *_at(parts.sums, tile, last), done("mma"),
    ]  # fmt: skip


def _at(statements: Sequence[Node], axis: Node, place: Dim) -> list[Node]:
    """Statements for the tile at a place."""
    return [substitute(one, {axis: index.as_node(place)}) for one in statements]


class Term(NamedTuple):
    """Weights in an array, by the number of their sum: what makes them, and products it reads."""

    number: int
    array: Node
    reads: frozenset[int]
    statements: tuple[Node, ...]


@dataclass(slots=True)
class GroupsBegun:
    """Products that groups of warps have begun, by number, and whether they do so at all."""

    begun: list[int]
    is_on: bool

    def wait(self, of: Iterable[int]) -> list[Node]:
        """What waits for some of them, if they may be under way."""
        places = [self.begun.index(one) for one in of if one in self.begun]
        if not places or not self.is_on:
            return []
        keep = len(self.begun) - 1 - max(places)
        self.begun = self.begun[len(self.begun) - keep :]
        return [done("mma", keep)]
