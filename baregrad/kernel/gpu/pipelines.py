"""Copies that are begun some iterations ahead of the loop's iteration that reads them.

What an iteration of the loop copies has several slots, taken in turns. Ahead of the loop the first
slots are filled; each iteration waits for its own slot, meets, begins the copy that is some
iterations ahead, and computes. One meeting of the threads an iteration is enough: whoever comes to
it has read the slot that is filled next.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from baregrad.base.errors import CompilerBug, ScheduleError
from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Alloc, StageInfo
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node, extent_of, make_node
from baregrad.ir.core.op import Ops
from baregrad.ir.core.substitution import substitute
from baregrad.ir.protocol.attributes import CopyTo, Done
from baregrad.kernel.facts.analysis import by_id
from baregrad.kernel.facts.axis_table import Axis, AxisTable
from baregrad.kernel.gpu.shared_copies import SharedCopy
from baregrad.kernel.gpu.shared_layouts import layout_of
from baregrad.kernel.language.schedule import Pipeline, StageInput, StageReduce, illegal
from baregrad.kernel.loops.loop_blocks import StatementBlock
from baregrad.kernel.loops.loop_pieces import guarded, store

ENGINES = ("lanes", "async")
# A CPU has nothing that copies beside its threads, but its stores are under way by themselves.
CPU_ENGINE = "stores"
ASYNC_BYTES = (4, 8, 16)
MOST_SLOTS = 8
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
    pipelines: list[Pipeline], step: StageInput, value: Node, own: tuple[Node, ...]
) -> tuple[list[Pipeline], StageInfo]:
    """The pipelines that a copy `value` over the axes `own` is part of, and how it is kept.

    Raises ScheduleError where a pipeline's loop has one inside that makes the copy anew.
    """
    layout = layout_of(step, value, own)
    free = value.ranges.difference(own) if pipelines else ()
    loops = by_id({one for one in free if not one.arg.is_tile and one.arg.bind != "grid"})
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
    table: AxisTable, applied: set[StageInput | StageReduce | Pipeline], empty: set[str],
    dead: set[str],
) -> None:
    """Raise ScheduleError for a copy that nothing reads, and a pipeline that nothing is part of.

    Where there is nothing to copy, because some axis is empty, or to keep, because all of them have
    one element, nothing is asked of the reads.
    """
    staging: list[StageInput | StageReduce] = [*table.staged_inputs, *table.staged_reductions]
    for request in staging:
        copied = isinstance(request, StageInput)
        named = request.axes if isinstance(request, StageInput) else (request.axis, *request.axes)
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
    iteration begins. ended: what it stores, once computed.
    """

    axis: Node
    depth: int
    engine: str
    ahead: list[tuple[int, StatementBlock]]
    begun: StatementBlock
    ended: StatementBlock


def open_ring(stage: StageInfo, outer: StatementBlock, body: StatementBlock) -> Ring:
    """The ring of the loop whose body is `body`, in `outer`; statements around the copies."""
    axis = body.key
    if axis is None or axis.op is not Ops.RANGE or axis.arg.axis != stage.at:
        raise CompilerBug("a pipelined copy is not made right inside its loop", found=axis)
    extent = extent_of(axis)
    asynchronous = stage.engine == "async"
    commit = make_node(Ops.COMMIT, dtypes.token)
    ahead = []
    for number in range(stage.depth - 1):
        holds = index.less(number, extent)
        # What is not there is not copied; a slot takes its turn all the same.
        if holds.op is not Ops.CONST or holds.arg:
            ahead.append((number, StatementBlock(outer.axes, holds)))
            body.before.append(ahead[-1][1])
        if asynchronous:
            body.before.append(commit)
    done = Done("copy", stage.depth - 2) if asynchronous else Done("lanes")
    body.first += (make_node(Ops.DONE, dtypes.token, (), done),)
    more = index.less(index.add(axis, stage.depth - 1), extent)
    begun, ended = StatementBlock(body.axes, more), StatementBlock(body.axes, more)
    ever = more.op is not Ops.CONST or bool(more.arg)
    if ever:
        body.first += (begun,)
    if asynchronous:
        body.first += (commit,)
    elif ever:
        body.last += (ended,)
    return Ring(axis, stage.depth, stage.engine, ahead, begun, ended)


def add_copy(ring: Ring, buffer: Node, copy: SharedCopy, number: int) -> None:
    """Put a copy into a ring; `number` is that of a register array that it may need."""
    for iteration, block in ring.ahead:
        _fill(ring, block, buffer, copy, iteration)
    later = index.add(ring.axis, ring.depth - 1)
    if ring.engine == "async":
        _check_engine(buffer, copy)
        _fill(ring, ring.begun, buffer, copy, later)
        return
    held, places = _held(buffer, copy, number)
    value = substitute(copy.value, {ring.axis: index.as_node(later)})
    if copy.condition is not None:
        value = _under(copy.condition, value)
    ring.begun.items.append(store(held, value, places))
    kept = make_node(Ops.LOAD, held.dtype, (held, *places))
    _put(ring.ended, copy, store(buffer, kept, (_slot(ring, later), *copy.places)))


def _slot(ring: Ring, iteration: Dim) -> Node:
    return index.as_node(index.mod(iteration, ring.depth))


def slot_now(ring: Ring) -> Node:
    """The slot that the present iteration reads."""
    return _slot(ring, ring.axis)


def _fill(
    ring: Ring, block: StatementBlock, buffer: Node, copy: SharedCopy, iteration: Dim
) -> None:
    """Copy what one iteration reads."""
    value = substitute(copy.value, {ring.axis: index.as_node(iteration)})
    places = (_slot(ring, iteration), *copy.places)
    if ring.engine == "async" and value.op is not Ops.CONST:
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


def _held(buffer: Node, copy: SharedCopy, number: int) -> tuple[Node, tuple[Node, ...]]:
    """Registers for what each thread copies, and the places in them."""
    tiles = {axis for place in copy.places for axis in place.ranges if axis.arg.is_tile}
    places = tuple(sorted(by_id(tiles), key=lambda axis: bool(axis.arg.bind == "vector")))
    shape = tuple([int(axis.src[0].arg) for axis in places])
    own = prod([int(axis.src[0].arg) for axis in places if not axis.arg.is_thread])
    if copy.loop is not None or own > MOST_HELD:
        raise ScheduleError(
            "a thread holds too much of a copy that is begun ahead",
            found=f"{own} elements{' in each round' if copy.loop is not None else ''}",
            wanted=f"at most {MOST_HELD}", hint="smaller copies, more threads, or engine='async'",
        )
    alloc = Alloc(number, "register", shape, name=f"a{number}")
    return make_node(Ops.ALLOC, buffer.dtype, (), alloc), places


def _under(condition: Node, value: Node) -> Node:
    """A read where a condition holds."""
    if value.op is Ops.GUARD:
        return guarded(index.both(condition, value.src[0]), value.src[1])
    return guarded(condition, value)


def _check_engine(buffer: Node, copy: SharedCopy) -> None:
    """Refuse what the engine cannot copy: it takes whole words."""
    vectors = {a for place in copy.places for a in place.ranges if a.arg.bind == "vector"}
    lanes = prod([int(axis.src[0].arg) for axis in vectors])
    nbytes = lanes * max(buffer.dtype.itemsize, 1)
    if nbytes not in ASYNC_BYTES or buffer.dtype is dtypes.bool:
        raise ScheduleError(
            "an asynchronous copy takes whole words, and these elements do not lie together",
            found=f"{nbytes} bytes of {buffer.dtype}",
            wanted=", ".join(map(str, ASYNC_BYTES)),
            hint="copy along the axis on which they are adjacent, or engine='lanes'",
        )
