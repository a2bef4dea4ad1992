"""Copies that are begun some iterations ahead of the loop's iteration that reads them.

What an iteration of the loop copies has several slots, taken in turns. Ahead of the loop the first
slots are filled; each iteration waits for its own slot, meets, begins the copy that is some
iterations ahead, and computes. One meeting of the threads an iteration is enough: whoever comes to
it has read the slot that is filled next. Where matrix units read slots beside their threads, which
wait for what they began an iteration ago, the slot that is filled is one that was read before that.
Of few slots none can wait so long: threads meet again once those products are done, and fill their
slot, although the next products then begin later.

With the engine `tma` an iteration copies what it reads itself, in boxes: it is `roles.py` that has
a warp of its own make the copies ahead.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from baregrad.base.errors import CompilerBug, ScheduleError
from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Alloc, StageInfo
from baregrad.ir.core.axes import BLOCK_BINDS
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node, const, extent_of, make_node, rebuild
from baregrad.ir.core.op import Ops
from baregrad.ir.core.substitution import substitute
from baregrad.ir.protocol.attributes import CopyTo, Done
from baregrad.kernel.facts.analysis import by_id
from baregrad.kernel.facts.axis_table import Axis, AxisTable
from baregrad.kernel.gpu import boxes
from baregrad.kernel.gpu.clusters import check_cluster
from baregrad.kernel.gpu.parted_warps import check_roles
from baregrad.kernel.gpu.shared_copies import SharedCopy, copied_by_threads
from baregrad.kernel.gpu.shared_layouts import layout_of
from baregrad.kernel.gpu.teams import check_teams
from baregrad.kernel.gpu.turns.cut_tiles import check_cut
from baregrad.kernel.language.schedule import Pipeline, StageReduce, Staging, illegal
from baregrad.kernel.loops.loop_blocks import StatementBlock
from baregrad.kernel.loops.loop_pieces import guarded, store

ENGINES = ("lanes", "async", boxes.ENGINE)
# A CPU has nothing that copies beside its threads, but its stores are under way by themselves.
CPU_ENGINE = "stores"
ASYNC_BYTES = (4, 8, 16)
MOST_SLOTS = 8
# So few that each is filled as soon as it was read by matrix units beside their threads.
FEW_SLOTS = 3
# Elements of one copy that a thread may hold in registers while it computes.
MOST_HELD = 64


def check_pipeline(table: AxisTable, step: Pipeline) -> None:
    """Raise ScheduleError where a step's loop cannot be pipelined, as far as its axes tell."""
    axis = table.axis(step.axis, step)
    if table.gpu is None:
        _check_stores(table, axis, step)
        table.pipelines.append(step)
        return
    if step.engine not in ENGINES:
        raise ScheduleError(
            f"{step} names an engine that is not there", found=step.engine,
            wanted=", ".join(ENGINES),
        )
    if step.engine == "async" and not table.gpu.async_copies:
        raise illegal(
            step, f"{table.gpu.name} has no copies that threads need not wait for",
            wanted="engine='lanes'",
        )
    if step.engine == boxes.ENGINE and not (table.gpu.bulk_copies and isinstance(axis.extent, int)):
        raise illegal(
            step, "boxes are copied by an engine, in loops whose iterations are counted",
            found=f"{axis.extent} iterations on {table.gpu.name}",
            wanted="a GPU of compute capability 9.0, and a loop of a known number of iterations",
        )
    most = 2 if step.engine == "lanes" else MOST_SLOTS
    if not 2 <= step.depth <= most:
        raise illegal(
            step, "so many slots are of no use", found=step.depth,
            wanted=f"2 to {most} with engine={step.engine!r}" if most > 2 else "2, or 'async'",
        )
    if axis.unit != "loop" or axis.name in table.staged or axis.extent in (0, 1):
        raise illegal(
            step, "wanted a loop of several iterations, each with its own copies",
            found=f"{axis.name} of {axis.extent} on {axis.unit}",
        )
    if any(other.axis == step.axis for other in table.pipelines):
        raise illegal(step, "the loop is pipelined already")
    axis.whole = "copies are begun ahead along the axis"
    table.pipelines.append(step)


def _check_stores(table: AxisTable, axis: Axis, step: Pipeline) -> None:
    """Raise ScheduleError where a CPU's loop cannot store what the iteration before computed."""
    if step.engine != CPU_ENGINE:
        raise illegal(
            step, "a CPU's thread makes its copies itself, one after the other",
            wanted=f"a GPU, or engine={CPU_ENGINE!r}",
        )
    if step.depth != 2:
        raise illegal(step, "stores wait for the next iteration", found=step.depth, wanted="2")
    if axis.reduced or axis.unit not in ("loop", "pool") or axis.extent in (0, 1):
        raise illegal(
            step, "wanted a loop of several iterations, each with its own stores",
            found=f"{axis.name} of {axis.extent} on {axis.unit}",
        )
    if axis.unit == "pool" and table.grain == 1:
        raise illegal(
            step, "threads take the iterations one by one", found="grain=1",
            wanted="chunks of several",
        )
    if table.pipelines:
        raise illegal(step, "the stores of a loop are delayed already")
    axis.whole = "stores are delayed along the axis"


def slots_of(
    pipelines: list[Pipeline], step: Staging, value: Node, own: tuple[Node, ...]
) -> tuple[list[Pipeline], StageInfo]:
    """The pipelines that a copy `value` over the axes `own` is part of, and how it is kept.

    Raises ScheduleError where a pipeline's loop has one inside that makes the copy anew.
    """
    layout = layout_of(step, value, own)
    free = value.ranges.difference(own) if pipelines else frozenset[Node]()
    apart = [one for one in free if one.arg.is_tile or one.arg.bind in BLOCK_BINDS]
    loops = by_id(free.difference(apart))
    names = [loop.arg.axis for loop in loops]
    for pipeline in pipelines:
        if pipeline.axis not in names:
            continue
        if names[-1] != pipeline.axis:
            raise illegal(
                pipeline, "a copy is made anew in a loop inside it", found=names[-1],
                wanted=f"pipeline({names[-1]!r}, ...), or the loop {pipeline.axis} innermost",
            )
        stage = StageInfo("shared", layout, pipeline.depth, pipeline.engine, pipeline.axis)
        return [pipeline], stage
    return [], StageInfo("shared", layout)


def check_applied(
    table: AxisTable, applied: set[Staging | StageReduce | Pipeline], empty: set[str],
    dead: set[str],
) -> None:
    """Raise ScheduleError for a copy that nothing reads, and a pipeline that nothing is part of.

    Likewise for a cluster whose blocks share nothing, for teams and for roles. Where there is
    nothing to copy, because some axis is empty, or to keep, because all of them have one element,
    nothing is asked of the reads.
    """
    check_cluster(table)
    check_teams(table)
    check_cut(table)
    check_roles(table)
    staging: list[Staging | StageReduce] = [
        *table.staged_inputs, *table.staged_factors, *table.staged_reductions
    ]  # fmt: skip
    for request in staging:
        copied = not isinstance(request, StageReduce)
        named = (request.axis, *request.axes) if isinstance(request, StageReduce) else request.axes
        if request not in applied and empty.isdisjoint(named) and not dead.issuperset(named):
            what = "access of that input" if copied else "reduction over it"
            raise illegal(request, f"no {what} runs along all of these axes, inside its bounds")
    for step in table.pipelines:
        # What is asked of stores is seen at the loop level.
        if step not in applied and step.engine != CPU_ENGINE:
            raise illegal(
                step, "no copy is made anew in each iteration of the loop",
                hint="stage an input that is read along the axis, but not over it",
            )


@dataclass(slots=True)
class Ring:
    """The copies of one loop that are begun ahead, as they are put together.

    ahead: what is copied for each of the first iterations, before the loop. begun: what each
    iteration reads first. copied: the copies that it begins. ended: what it stores, once computed.
    lead: iterations that copies are ahead.
    """

    axis: Node
    depth: int
    lead: int
    engine: str
    ahead: list[tuple[int, StatementBlock]]
    begun: StatementBlock
    copied: StatementBlock
    ended: StatementBlock


def into_ring(
    rings: dict[StatementBlock, Ring], stage: Node, path: list[StatementBlock],
    threads: tuple[Node, ...], by_groups: bool, number: int,
) -> tuple[Node, Node, int]:  # fmt: skip
    """Put what a STAGE copies into the ring of its loop, the last block of `path`.

    Its array, the slot that an iteration reads, and how many register arrays it needs. The rest as
    of `open_ring` and `copied_by_threads`.
    """
    block = path[-1]
    ring = rings.get(block)
    if ring is None:
        ring = rings[block] = open_ring(stage.arg, path[-2], block, by_groups)
    if ring.engine == boxes.ENGINE:
        buffer, copies = boxes.copied_in_boxes(stage, number)
        _add_boxes(ring, buffer, copies)
        return buffer, _slot(ring, ring.axis), 0
    buffer, copy = copied_by_threads(stage, threads, number)
    return buffer, _slot(ring, ring.axis), _add_copy(ring, buffer, copy, number + 1)


def open_ring(
    stage: StageInfo, outer: StatementBlock, body: StatementBlock, by_groups: bool = False
) -> Ring:
    """The ring of the loop whose body is `body`, in `outer`; statements around the copies.

    by_groups: what is copied is read beside the threads, by matrix units of groups of warps.
    """
    axis = body.key
    if axis is None or axis.op is not Ops.RANGE or axis.arg.axis != stage.at:
        raise CompilerBug("a pipelined copy is not made right inside its loop", found=axis)
    extent = extent_of(axis)
    if stage.engine == boxes.ENGINE:
        return _open_boxes(stage, axis, body, by_groups)
    asynchronous = stage.engine == "async"
    late = int(by_groups and stage.depth > FEW_SLOTS)
    lead = stage.depth - 1 - late
    commit = make_node(Ops.COMMIT, dtypes.token)
    ahead = []
    for number in range(lead):
        holds = index.less(number, extent)
        # What is not there is not copied; a slot takes its turn all the same.
        if holds.op is not Ops.CONST or holds.arg:
            ahead.append((number, StatementBlock(outer.axes, holds)))
            body.before.append(ahead[-1][1])
        if asynchronous:
            body.before.append(commit)
    done = Done("copy", lead - 1) if asynchronous else Done("lanes")
    body.first += (make_node(Ops.DONE, dtypes.token, (), done),)
    more = index.less(index.add(axis, lead), extent)
    begun, ended = StatementBlock(body.axes, more), StatementBlock(body.axes, more)
    copied = StatementBlock(body.axes, more) if by_groups and not late else begun
    blocks = [] if more.op is Ops.CONST and not more.arg else [begun]
    closed = [commit] if asynchronous else []
    if by_groups:
        body.last += (make_node(Ops.DONE, dtypes.token, (), Done("mma", 1)),)
    if copied is not begun:
        # Products of the iteration before are done, in all groups.
        body.last += (make_node(Ops.DONE, dtypes.token, (), Done("slots")),)
        body.last += (*[copied for _ in blocks], *closed)
        closed = []
    body.first += (*blocks, *closed)
    ends = tuple([ended for _ in blocks])
    body.last = (*ends, *body.last) if late else (*body.last, *ends)
    return Ring(axis, stage.depth, lead, stage.engine, ahead, begun, copied, ended)


def _open_boxes(stage: StageInfo, axis: Node, body: StatementBlock, by_groups: bool) -> Ring:
    """The ring of a loop each iteration of which copies boxes, and waits for them."""
    if not by_groups:
        raise ScheduleError(
            "what an engine copies in boxes groups of four warps multiply",
            hint="tensorize(..., instruction='wgmma'), or pipeline(..., engine='async')",
        )
    copied = StatementBlock(body.axes, const(True, dtypes.bool))
    done = make_node(Ops.DONE, dtypes.token, (), Done(boxes.ENGINE))
    body.first += (copied, done)
    body.last += (make_node(Ops.DONE, dtypes.token, (), Done("mma", 1)),)
    return Ring(axis, stage.depth, 0, stage.engine, [], copied, copied, copied)


def _add_boxes(ring: Ring, buffer: Node, copies: list[SharedCopy]) -> None:
    """Put the copies of boxes into a ring: each iteration's own."""
    for copy in copies:
        target = (buffer, copy.value, _slot(ring, ring.axis), *copy.places)
        ring.copied.items.append(
            make_node(Ops.COPYTO, dtypes.token, target, CopyTo(boxes.ENGINE, box=copy.box))
        )


def _add_copy(ring: Ring, buffer: Node, copy: SharedCopy, first: int) -> int:
    """Put a copy into a ring; the number of register arrays that it needs, numbered from `first`.

    With `async` the copies of whole words go by themselves. Of all else the threads hold what is
    read, and what is computed of it is computed once it is stored.
    """
    alone = ring.engine == "async" and _is_of_words(buffer, copy)
    for iteration, block in ring.ahead:
        _fill(ring, block, buffer, copy, iteration, alone)
    later = index.add(ring.axis, ring.lead)
    if alone:
        _fill(ring, ring.copied, buffer, copy, later, alone)
        return 0
    value = substitute(copy.value, {ring.axis: index.as_node(later)})
    arrays = _held(value, copy, first)
    kept: dict[Node, Node] = {}
    for node, (read, held, places) in arrays.items():
        inside = read if copy.condition is None else _under(copy.condition, read)
        ring.begun.items.append(store(held, inside, places))
        kept[node] = make_node(Ops.LOAD, held.dtype, (held, *places))
    value = rebuild(value, lambda node: None, memo=kept)
    _put(ring.ended, copy, store(buffer, value, (_slot(ring, later), *copy.places)))
    return len(arrays)


def _slot(ring: Ring, iteration: Dim) -> Node:
    return index.as_node(index.mod(iteration, ring.depth))


def _fill(
    ring: Ring, block: StatementBlock, buffer: Node, copy: SharedCopy, iteration: Dim, alone: bool
) -> None:
    """Copy what one iteration reads; `alone`: without the threads waiting for it."""
    value = substitute(copy.value, {ring.axis: index.as_node(iteration)})
    places = (_slot(ring, iteration), *copy.places)
    if alone and value.op is not Ops.CONST:
        target = (buffer, value, *places)
        _put(block, copy, make_node(Ops.COPYTO, dtypes.token, target, CopyTo("async")))
    else:
        _put(block, copy, store(buffer, value, places))


def _put(block: StatementBlock, copy: SharedCopy, node: Node) -> None:
    """A statement of a copy, in its loop and under its condition."""
    for key in (copy.loop, copy.condition):
        if key is not None:
            body = StatementBlock(block.axes | {key} if key.op is Ops.RANGE else block.axes, key)
            block.items.append(body)
            block = body
    block.items.append(node)


def _held(
    value: Node, copy: SharedCopy, first: int
) -> dict[Node, tuple[Node, Node, tuple[Node, ...]]]:
    """What each thread reads for a copy: the read under its conditions, its registers, the places.

    Where that is too much it is what the copy keeps.
    """
    if copy.loop is not None:
        raise ScheduleError(
            "a copy that is begun ahead takes too many rounds", found=copy.loop,
            hint="smaller copies, more threads, or pipeline(..., engine='async')",
        )
    for reads in (_reads_of(value), {value: value}):
        found: dict[Node, tuple[Node, Node, tuple[Node, ...]]] = {}
        total = 0
        for node, read in reads.items():
            tiles = {axis for axis in read.ranges if axis.arg.is_tile}
            places = tuple(sorted(by_id(tiles), key=lambda axis: bool(axis.arg.bind == "vector")))
            shape = tuple([int(axis.src[0].arg) for axis in places])
            total += prod([n for n, a in zip(shape, places, strict=True) if not a.arg.is_thread])
            number = first + len(found)
            alloc = Alloc(number, "register", shape, name=f"a{number}")
            found[node] = (read, make_node(Ops.ALLOC, read.dtype, (), alloc), places)
        if total <= MOST_HELD:
            return found
    raise ScheduleError(
        "a thread holds too much of a copy that is begun ahead", found=f"{total} elements",
        wanted=f"at most {MOST_HELD}", hint="smaller copies, more threads, or engine='async'",
    )


def _reads_of(value: Node) -> dict[Node, Node]:
    """The elements that a value is computed of, each under all conditions that it is read under.

    The value itself where an element is read under several.
    """
    found: dict[Node, Node] = {}
    stack: list[tuple[Node, Node | None]] = [(value, None)]
    seen = set(stack)
    while stack:
        node, condition = stack.pop()
        if _is_element(node):
            read = node if condition is None else _under(condition, node)
            if found.setdefault(node, read) is not read:
                return {value: value}
            continue
        below = node.src
        if node.op is Ops.GUARD:
            condition = node.src[0] if condition is None else index.both(condition, node.src[0])
            below = node.src[1:]
        for child in below:
            if child.has(Ops.LOAD) and (child, condition) not in seen:
                seen.add((child, condition))
                stack.append((child, condition))
    return found or {value: value}


def _is_element(value: Node) -> bool:
    return (value.src[1] if value.op is Ops.GUARD else value).op is Ops.LOAD


def _under(condition: Node, value: Node) -> Node:
    """A read where a condition holds."""
    if value.op is Ops.GUARD:
        return guarded(index.both(condition, value.src[0]), value.src[1])
    return guarded(condition, value)


def _is_of_words(buffer: Node, copy: SharedCopy) -> bool:
    """Whether a copy takes whole words of an array as they are."""
    vectors = {a for place in copy.places for a in place.ranges if a.arg.bind == "vector"}
    lanes = prod([int(axis.src[0].arg) for axis in vectors])
    nbytes = lanes * max(buffer.dtype.itemsize, 1)
    return _is_element(copy.value) and nbytes in ASYNC_BYTES and buffer.dtype is not dtypes.bool
