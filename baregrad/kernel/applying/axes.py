"""What each step of a schedule does to the table of axes, and when it is legal.

The kernel is rewritten once, at the end (`apply.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from math import prod
from types import MappingProxyType
from typing import Any

from baregrad.base.errors import ScheduleError
from baregrad.ir.core import index
from baregrad.ir.core.axes import THREAD_BINDS
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import extent_of
from baregrad.kernel.applying.staging_checks import (
    check_factor,
    check_prefetch,
    check_room,
    check_shares,
    check_stream,
    illegal,
    nodes_of,
)
from baregrad.kernel.facts.analysis import Facts, out_axes
from baregrad.kernel.facts.axis_table import (
    SCANNED,
    Axis,
    AxisTable,
    Limit,
    Piece,
    Terms,
    table_for,
)
from baregrad.kernel.gpu.clusters import MOST_CLUSTER
from baregrad.kernel.gpu.parted_warps import check_step as check_step_of_roles
from baregrad.kernel.gpu.pipelines import check_pipeline
from baregrad.kernel.gpu.shared_layouts import check_layout
from baregrad.kernel.gpu.teams import MOST_TEAMS
from baregrad.kernel.instructions.instruction import check_step
from baregrad.kernel.instructions.rows import ROWS
from baregrad.kernel.language.schedule import (
    CPU_UNITS,
    GPU_UNITS,
    Bind,
    Collapse,
    Persist,
    Pipeline,
    Prefetch,
    Reorder,
    Roles,
    Schedule,
    Split,
    StageFactor,
    StageInput,
    StageOutput,
    StageReduce,
    Step,
    StreamOutput,
    StreamTiles,
    Tensorize,
    part_of_axis,
)
from baregrad.target import AnyTarget

# A tile may have so many times the elements that the registers hold: what is spilled is slow, and
# each element is code.
TILES = 4
# What is bound to these is spread over registers.
REGISTER_UNITS = ("vector", "unroll")


def apply_step(table: AxisTable, step: Step) -> None:
    """Apply one step. Raises ScheduleError where it is not legal."""
    _RULES[type(step)](table, step)


def _stage(table: AxisTable, step: StageInput | StageFactor | StageReduce) -> None:
    """A copy in scratch memory: of a constant size, over axes that stay as they are."""
    names = (step.axis, *step.axes) if isinstance(step, StageReduce) else step.names
    if len(set(names)) != len(names):
        raise ScheduleError(f"{step} names an axis twice")
    if isinstance(step, StageFactor):
        check_factor(table, step)
    if not isinstance(step, StageReduce):
        check_layout(step, table.gpu is not None)
    sizes = []
    for name in names:
        axis = table.axis(name, step)
        if not isinstance(axis.extent, int):
            raise illegal(step, "a copy has a constant size")
        if axis.unit == "pool":
            _check_chunks(axis, table.grain, step)
        if name in table.tensorized:
            raise illegal(step, axis.serial, found=name)
        sizes.append(table.grain if axis.unit == "pool" else axis.extent)
    if isinstance(step, StageInput):
        # What sums of axes reach, and so its room, is known where it is copied.
        table.staged_inputs.append(step)
    elif isinstance(step, StageFactor):
        table.staged_factors.append(step)
        for part in step.axes:
            name, _, size = part_of_axis(part)
            if size and index.mod(table.axes[name].extent, size) != 0:
                _limit_copies(table, name)
    else:
        check_room(table, step, sizes[1:])
        table.staged_reductions.append(step)
    table.staged.update(names)


def _limit_copies(table: AxisTable, name: str) -> None:
    """Have copies that go on past the end of a part of an axis end where that axis does."""
    origin = table.axes[name].origin
    extent = index.product(extent_of(node) for node in nodes_of(table, name))
    found = []
    for piece in table.pieces[origin]:
        scale = dict(piece.terms).get(name)
        if scale is not None:
            terms = sorted(piece.terms, key=lambda term: -term[1])
            # What says the same of tiles that end where the part does is implied.
            others = [each for each in piece.limits if each != _limit(extent, terms)]
            if piece.start == 0 and index.mod(extent, scale) == 0:
                outside = [(each, size // scale) for each, size in terms if size >= scale]
                limit = Limit(0, tuple(outside), index.floordiv(extent, scale))
            else:
                limit = Limit(piece.start, tuple(terms), extent)
            piece = piece._replace(limits=(*others, limit))
        found.append(piece)
    table.pieces[origin] = found
    table.masked = True


def _check_chunks(axis: Axis, grain: int, step: Step) -> None:
    """Refuse copies over the pool's axis, of which each chunk has its part, of two sizes."""
    if index.mod(axis.extent, grain) != 0:
        raise illegal(
            step, "a copy has a constant size, and the last chunk is shorter",
            found=f"{axis.extent} iterations in chunks of {grain}",
            wanted="a grain that divides them",
        )


def _check_registers(table: AxisTable) -> None:
    """Refuse tiles that are far more than registers hold."""
    tiled = [axis for axis in table.axes.values() if axis.unit in REGISTER_UNITS]
    if not table.registers or len(tiled) < 2:
        return
    # No expression has more than all tiles together.
    extents = [axis.extent for axis in tiled if isinstance(axis.extent, int)]
    if prod(extents) <= TILES * table.registers:
        return
    sizes = {}
    for node in (*table.facts.data, *table.facts.reduced):
        merged = table.merged.get(node)
        name = merged[0] if merged else table.names[node]
        sizes[name, node] = max([_tile_of(table, piece) for piece in table.pieces[name]])
    sets = [out_axes(out) for out in table.facts.outs]
    sets += [each.free.union(each.own) for each in table.facts.reductions]
    for axes in sets:
        largest = {name: size for (name, node), size in sizes.items() if node in axes}
        count = prod(largest.values())
        if count > TILES * table.registers:
            raise ScheduleError(
                "the tile of one expression is far more than registers hold",
                found=f"{count} elements", wanted=f"at most {TILES * table.registers}",
                hint="bind fewer or shorter axes to vector and unroll",
            )


def _tile_of(table: AxisTable, piece: Piece) -> int:
    """Elements of a piece that are spread over registers at once."""
    axes = [table.axes[name] for name, _ in piece.terms]
    return prod([a.extent for a in axes if a.unit in REGISTER_UNITS and isinstance(a.extent, int)])


def _free(table: AxisTable, axis: Axis, step: Step) -> None:
    """Refuse what would change an axis that a copy lies over."""
    if axis.name in table.staged:
        raise illegal(
            step, "a copy lies over the axis", found=axis.name,
            hint="split and bind first, stage afterwards",
        )


def _add(table: AxisTable, axis: Axis, step: Step) -> None:
    if axis.name in table.axes or not axis.name.isidentifier():
        raise ScheduleError(
            f"{step} makes an axis that is there already, or whose name is no identifier",
            found=axis.name,
        )
    table.axes[axis.name] = axis


def _split(table: AxisTable, step: Split) -> None:
    axis = table.axis(step.axis, step)
    _free(table, axis, step)
    is_shared = axis.whole == SCANNED and axis.name == axis.origin and table.gpu is not None
    if (axis.whole or axis.serial) and not is_shared:
        raise illegal(step, axis.whole or axis.serial, found=axis.name)
    if axis.unit != "loop":
        raise illegal(
            step, "the axis is bound already", found=axis.unit,
            hint="split first, then bind the parts",
        )
    tile = step.tile
    rest = index.mod(axis.extent, tile)
    if rest != 0 and (axis.exact or not (step.tail or step.masked)):
        raise illegal(
            step, axis.exact or "the sizes do not divide the extent",
            found=f"extent {axis.extent}, tile {tile}",
            wanted="a divisor, tail='name', or masked=True",
        )
    if step.masked and step.tail:
        raise ScheduleError(f"{step} is not legal", wanted="a tail or a mask, not both")
    if is_shared and not (index.lower(axis.extent) > 0 and index.upper(axis.extent) <= tile):
        raise illegal(
            step, SCANNED, found=f"extent {axis.extent}, tile {tile}",
            wanted="one tile, for the threads of a block",
        )
    partial = step.masked and rest != 0
    count = index.floordiv(index.add(axis.extent, tile - 1 if partial else 0), tile)
    terms = []
    scale = tile
    for position, (name, size) in enumerate(step.parts):
        extent = size if position else count
        scale = scale // size if position else tile
        part = Axis(name, extent, axis.reduced, axis.origin, whole=axis.whole, exact=axis.exact)
        _add(table, part, step)
        terms.append((name, scale))
    names = [name for name, _ in step.parts]
    table.masked = table.masked or partial
    if step.tail:
        table.several = True
        _add(table, Axis(step.tail, rest, axis.reduced, axis.origin), step)
        names.append(step.tail)
    place = table.order.index(axis.name)
    table.order[place : place + 1] = names
    del table.axes[axis.name]
    covered = index.mul(count, tile)
    limit = _limit(axis.extent, terms) if partial else None
    table.pieces[axis.origin] = _split_pieces(
        table.pieces[axis.origin], axis.name, terms, step.tail, covered, limit
    )


def _bind(table: AxisTable, step: Bind) -> None:
    axis = table.axis(step.axis, step)
    units = CPU_UNITS if table.gpu is None else GPU_UNITS
    if step.unit not in units:
        raise ScheduleError(
            f"{step} names a unit that a {'CPU' if table.gpu is None else 'GPU'} has not",
            found=step.unit, wanted=", ".join(units),
        )
    if step.unit == "loop":
        return
    if axis.serial:
        raise illegal(step, axis.serial, found=step.unit)
    if step.unit == "pool":
        if axis.reduced:
            raise illegal(
                step, "a reduced axis cannot be shared out among threads",
                found=axis.name, wanted="an axis of the output",
            )
        if axis.name in table.staged:
            _check_chunks(axis, step.grain, step)
        taken = [other.name for other in table.axes.values() if other.unit == "pool"]
        if taken:
            raise illegal(step, "one axis is the pool's", found=taken[0])
        table.grain = step.grain
    elif step.unit == "grid":
        if axis.reduced:
            raise illegal(
                step, "blocks do not meet, so none can reduce along an axis",
                found=axis.name, wanted="an axis of the output",
            )
    elif step.unit == "cluster":
        _check_cluster(table, axis, step)
    elif not isinstance(axis.extent, int):
        raise illegal(step, "a tile needs a constant extent", found=axis.extent)
    elif table.registers and axis.extent > table.registers:
        raise illegal(
            step, "a tile lies in registers", found=f"{axis.extent} elements",
            wanted=f"at most {table.registers}", hint="split the axis first",
        )
    if axis.whole:
        piped = any(pipeline.axis == axis.name for pipeline in table.pipelines)
        is_part = axis.whole == SCANNED and axis.name != axis.origin
        if is_part and step.unit not in ("thread", "vector"):
            raise illegal(step, SCANNED, found=step.unit, wanted="a part on thread or vector")
        threads = axis.unit in THREAD_BINDS or step.unit in THREAD_BINDS
        if not is_part and (piped or threads):
            raise illegal(step, axis.whole, found=step.unit)
    # An empty axis runs on nothing; a tile of no elements would be no tile. One block or one
    # thread is nothing to tell apart.
    if axis.extent != 0 and (axis.extent != 1 or table.gpu is None):
        axis.unit = step.unit
        if step.unit in THREAD_BINDS:
            _check_threads(table, step)
        elif step.unit == "cluster":
            table.cluster = index.upper(axis.extent)


def _check_cluster(table: AxisTable, axis: Axis, step: Bind) -> None:
    """Raise ScheduleError where the blocks along an axis cannot run together."""
    assert table.gpu is not None
    if not table.gpu.bulk_copies:
        raise illegal(step, f"{table.gpu.name} has no clusters of blocks", wanted="bind(_, 'grid')")
    if axis.reduced or not isinstance(axis.extent, int) or axis.extent > MOST_CLUSTER:
        raise illegal(
            step, "a few blocks of the output run together",
            found=f"{axis.name} of {axis.extent}{', which is reduced' * axis.reduced}",
            wanted=f"an axis of the output, of {MOST_CLUSTER} at most",
        )
    if table.cluster > 1:
        raise illegal(step, "a block is of one cluster", found="a second axis of clusters")


def _check_threads(table: AxisTable, step: Bind) -> None:
    """Axes of one dimension of the block are as long as each other; a block has its limit."""
    assert table.gpu is not None
    # The lanes of a warp that has a matrix unit do are nobody else's.
    sizes: dict[str, Dim] = {"thread": table.matrix} if table.matrix else {}
    if table.matrix and step.unit == "thread":
        raise illegal(step, "the lanes of a warp are taken")
    for other in table.axes.values():
        if other.unit not in THREAD_BINDS:
            continue
        known = sizes.setdefault(other.unit, other.extent)
        if known != other.extent:
            raise illegal(
                step, f"a block has one size along {step.unit}",
                found=f"{known} and {other.extent}", wanted="axes of one extent",
            )
    threads = prod([size for size in sizes.values() if isinstance(size, int)])
    if threads > table.gpu.threads_per_block:
        raise illegal(
            step, f"{table.gpu.name} has no block of so many threads",
            found=threads, wanted=f"at most {table.gpu.threads_per_block}",
        )


def _reorder(table: AxisTable, step: Reorder) -> None:
    if len(set(step.axes)) != len(step.axes):
        raise ScheduleError(f"{step} names an axis twice")
    if not table.axes.keys() >= set(step.axes):
        for name in step.axes:
            table.axis(name, step)
    places = sorted(map(table.order.index, step.axes))
    serial = [name for name in table.order if table.axes[name].serial]
    for place, name in zip(places, step.axes, strict=True):
        table.order[place] = name
    if serial and serial != [name for name in table.order if table.axes[name].serial]:
        raise illegal(
            step, f"{table.axes[serial[0]].serial}", wanted=f"the order {', '.join(serial)} kept",
        )
    if not table.facts.scanned:
        return
    data = [table.axes[name] for name in table.order if not table.axes[name].reduced]
    for outer, inner in itertools.pairwise(data):
        if outer.whole == SCANNED and inner.whole != SCANNED:
            raise illegal(step, SCANNED, wanted=f"{inner.name} outside {outer.name}")


def _collapse(table: AxisTable, step: Collapse) -> None:
    nodes = []
    named = {name: node for node, name in table.names.items()}
    for name in step.axes:
        axis = table.axis(name, step)
        _free(table, axis, step)
        node = named.get(name)
        why = axis.whole or axis.serial or axis.exact
        if node is None or len(table.pieces.get(name, ())) != 1 or why:
            raise illegal(step, why or "the axis was changed", found=name, wanted="fresh axes")
        nodes.append(node)
    if len(nodes) < 2 or len({table.axes[name].reduced for name in step.axes}) != 1:
        raise ScheduleError(f"{step} is not legal", wanted="two or more axes of one kind")
    together = frozenset(nodes)
    for reduction in table.facts.reductions:
        if len(together.intersection(reduction.own)) not in (0, len(nodes)):
            raise illegal(
                step, "a reduction runs along some of these axes alone",
                wanted="axes that are reduced together",
            )
    total = index.product(table.axes[name].extent for name in step.axes)
    reduced = table.axes[step.axes[0]].reduced
    _add(table, Axis(step.name, total, reduced, step.name), step)
    table.order[table.order.index(step.axes[0])] = step.name
    stride: Dim = 1
    for node, name in reversed(tuple(zip(nodes, step.axes, strict=True))):
        extent = table.axes[name].extent
        table.merged[node] = (step.name, stride, extent)
        stride = index.mul(stride, extent)
        del table.axes[name], table.pieces[name]
        if name in table.order:
            table.order.remove(name)
    table.pieces[step.name] = [Piece(0, ((step.name, 1),))]
    table.groups[step.name] = tuple(reversed(nodes))


def _split_pieces(
    pieces: list[Piece],
    axis: str,
    parts: list[tuple[str, int]],
    tail: str,
    covered: Dim,
    limit: Limit | None,
) -> list[Piece]:
    found: list[Piece] = []
    for piece in pieces:
        scales = dict(piece.terms)
        if axis not in scales:
            found.append(piece)
            continue
        found.append(with_parts(piece, axis, parts, limit))
        if tail:
            last = [(tail, 1)]
            shifted = []
            for each in piece.limits:
                scale = dict(each.terms).get(axis, 0)
                start = index.add(each.start, index.mul(covered, scale))
                shifted.append(Limit(start, _replaced(each.terms, axis, last), each.extent))
            start = index.add(piece.start, index.mul(covered, scales[axis]))
            found.append(Piece(start, _replaced(piece.terms, axis, last), tuple(shifted)))
    return found


def with_parts(
    piece: Piece, axis: str, parts: list[tuple[str, int]], limit: Limit | None
) -> Piece:
    """A piece in which an axis is a sum of parts, and one limit more."""
    old = [each._replace(terms=_replaced(each.terms, axis, parts)) for each in piece.limits]
    limits = old if limit is None else [*old, limit]
    return Piece(piece.start, _replaced(piece.terms, axis, parts), tuple(limits))


def _replaced(terms: Terms, axis: str, parts: list[tuple[str, int]]) -> Terms:
    """A sum in which an axis is a sum of others."""
    found = [term for term in terms if term[0] != axis]
    for name, scale in terms:
        if name == axis:
            found.extend((part, scale * size) for part, size in parts)
    return tuple(found)


def _limit(extent: Dim, parts: list[tuple[str, int]]) -> Limit:
    """That a sum of parts, outermost first, lies below the extent of what they are parts of.

    Inner parts that fill the extent evenly have no say: a vector lies inside or outside whole.
    """
    for place, (_, size) in enumerate(parts):
        if index.mod(extent, size) == 0:
            scaled = tuple((name, each // size) for name, each in parts[: place + 1])
            return Limit(0, scaled, index.floordiv(extent, size))
    return Limit(0, tuple(parts), extent)


def table_after(facts: Facts, schedule: Schedule, target: AnyTarget | None) -> AxisTable:
    """The axes of a kernel after all steps of a schedule. Raises ScheduleError for illegal ones."""
    table = table_for(facts, target)
    for step in schedule.steps:
        apply_step(table, step)
    _check_registers(table)
    for request in table.ahead.values():
        if request.loops:
            check_shares(table, request)
    return table


def _stream(table: AxisTable, step: StreamOutput) -> None:
    check_stream(table, step)
    table.streamed.add(step.param)


def _prefetch(table: AxisTable, step: Prefetch) -> None:
    check_prefetch(table, step)
    table.ahead[step.param] = step


def _tensorize(table: AxisTable, step: Tensorize) -> None:
    check_step(table, step, ROWS[step.instruction])


def _persist(table: AxisTable, step: Persist) -> None:
    if table.gpu is None or table.blocks:
        raise illegal(step, "blocks are those of a GPU", wanted="a GPU, and one such step")
    if step.teams > MOST_TEAMS:
        raise illegal(
            step, "the matrix unit has work for no more teams", wanted=f"at most {MOST_TEAMS}"
        )
    table.blocks, table.teams, table.cut = step.blocks, step.teams, step.cut


def _stage_output(table: AxisTable, step: StageOutput) -> None:
    if table.gpu is None or not table.gpu.bulk_copies:
        raise illegal(
            step, "the machine does not store runs beside its threads",
            wanted="a GPU of compute capability 9.0",
        )
    if step.param in table.staged_outputs:
        raise illegal(step, "the output is staged already")
    table.staged_outputs.add(step.param)


def _stream_tiles(table: AxisTable, step: StreamTiles) -> None:
    raise illegal(step, "it is the only step of a kernel that is one stream over keys")


_RULES: MappingProxyType[type, Callable[[AxisTable, Any], None]] = MappingProxyType({
    Split: _split, Bind: _bind, Reorder: _reorder, Collapse: _collapse,
    StreamOutput: _stream, Prefetch: _prefetch, Pipeline: check_pipeline,
    Persist: _persist, Roles: check_step_of_roles, Tensorize: _tensorize,
    StreamTiles: _stream_tiles, StageInput: _stage,
    StageOutput: _stage_output, StageFactor: _stage, StageReduce: _stage,
})
