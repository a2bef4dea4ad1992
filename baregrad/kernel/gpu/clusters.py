"""Blocks that run together: what is the same for all of them each copies a part of, for all.

The blocks of a cluster lie next to each other along one axis of the grid. A box that does not begin
elsewhere in another one of them is cut into as many slices as there are blocks; each has its engine
copy one, which lands at the same place in all. So every block announces all bytes of its own slots,
whoever copies them, and a slot is empty once the warps of all blocks have said so to each one that
copies there. Nobody ends before all are done, since others may still say something to it. Source:
PTX ISA, "cp.async.bulk.tensor", `.multicast::cluster`, and "barrier.cluster".
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from baregrad.base.errors import ScheduleError
from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.axes import Var
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.protocol.attributes import Barrier
from baregrad.kernel.facts.axis_table import AxisTable
from baregrad.kernel.gpu.boxes import ENGINE, ROW_NBYTES

# Blocks of a cluster that every machine with clusters runs.
MOST_CLUSTER = 8
# The number of a cluster, and of a block in it.
CLUSTER, RANK = ".cluster", ".rank"
# All threads of all blocks of a cluster.
MEETING = Node(Ops.BARRIER, dtypes.token, (), Barrier("cluster"))
# Rows after which chunks of a box are exchanged anew.
_ROWS = 8


def check_cluster(table: AxisTable) -> None:
    """Raise ScheduleError where blocks run together for nothing, or not all of them can."""
    if table.cluster == 1:
        return
    if table.blocks % table.cluster:
        raise ScheduleError(
            f"blocks that persist are no whole clusters of {table.cluster}",
            found=f"persist({table.blocks})", wanted=f"a multiple of {table.cluster}",
        )
    if not any(step.engine == ENGINE for step in table.pipelines):
        raise ScheduleError(
            "blocks of a cluster share boxes that an engine copies, and there are none",
            wanted=f"pipeline(..., engine={ENGINE!r})", hint="bind(..., 'grid')",
        )


def block_of(cluster: int, clusters: int) -> tuple[Node, Node]:
    """The number of a cluster, of so many at most, and of a block in it: hidden variables."""
    number = Node(Ops.VAR, dtypes.index, (), Var(CLUSTER, 0, clusters - 1))
    return number, Node(Ops.VAR, dtypes.index, (), Var(RANK, 0, cluster - 1))


def differs(node: Node) -> bool:
    """Whether something is not the same for all blocks of a cluster, with threads or without."""
    if any(axis.arg.bind == "cluster" for axis in node.ranges):
        return True
    return any(one.op is Ops.VAR and one.arg.name == RANK for one in toposort(node))


def slice_of(copy: Node, cluster: int) -> Node:
    """The COPYTO of a box as a slice of it for all blocks, or as it is where it is cut in none."""
    target, param, slot, at, *corner = copy.src
    box = copy.arg.box
    if cluster == 1 or box.walk is not None or any(map(differs, corner)):
        return copy
    dim = max((d for d, size in enumerate(box.box) if size > 1), default=0)
    within = prod(box.box[:dim])
    part = box.box[dim] // cluster
    lines = within * part * target.dtype.itemsize // ROW_NBYTES
    if not dim or box.box[dim] % cluster or lines % _ROWS:
        return copy
    _, rank = block_of(cluster, 1)
    corner[dim] = _moved(corner[dim], rank, part)
    sizes = (*box.box[:dim], part, *box.box[dim + 1 :])
    one = replace(copy.arg, multicast=True, box=replace(box, box=sizes))
    src = (target, param, slot, _moved(at, rank, within * part), *corner)
    return copy.replace(src=src, arg=one)


def _moved(place: Node, rank: Node, step: int) -> Node:
    found: Dim = index.add(index.as_dim(place), index.mul(rank, step))
    return index.as_node(found)


def nbytes_of(copy: Node, cluster: int) -> int:
    """Bytes that land in a block's slot: its own slice, and those of the others."""
    nbytes: int = prod(copy.arg.box.box) * copy.src[0].dtype.itemsize
    return nbytes * (cluster if copy.arg.multicast else 1)
