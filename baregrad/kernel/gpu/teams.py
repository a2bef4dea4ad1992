"""Teams of threads in a block, which take its iterations in turns: one stores, another multiplies.

A block that persists has the threads of its tile several times over. All teams read the one ring of
boxes, whose copies come for one iteration after the other, so that each slot is read by one team.
While the matrix unit makes the products of a team's tile, another one computes and stores what it
makes of its own results, at whatever cost: nothing is stored between two tiles' products.

A slot's phases are told apart by parity alone. So a team may wait for its first slot only once
nobody waits for what was in any slot before: who has begun an iteration's last products passes the
ring on to the next iteration, by a barrier of phases for each team. What is true of it: (1) each
warp of a team passes the ring on once per iteration, behind all its waits for slots, (2) a team
waits for the ring ahead of them, but for the block's first iteration, (3) no barrier is two phases
ahead of who waits for it: its next one is complete only once that team has passed the ring on
itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from baregrad.base.bits import is_power_of_two
from baregrad.base.errors import ScheduleError
from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Alloc, KernelInfo
from baregrad.ir.core.axes import THREAD_BINDS, Var
from baregrad.ir.core.node import Node, extent_of, make_node, range_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.core.substitution import substitute
from baregrad.ir.protocol.attributes import Pipe
from baregrad.kernel.facts.axis_table import AxisTable
from baregrad.kernel.gpu.barriers import THREAD, WARP, sequence
from baregrad.kernel.gpu.boxes import ENGINE

# More than two teams would wait for the matrix unit.
MOST_TEAMS = 2
# The array of barriers that pass the ring on, beyond the ids of all others.
PASSED_ID, EACH = (1 << 25) + 1, 2
# The least id of a block's iterations; and what is added to it for those of a team.
TURNS_ID, OWN_ID = 1 << 26, 1 << 10


def block_of_teams(info: KernelInfo) -> tuple[int, ...]:
    """The threads of a block along its dimensions, those of its teams one behind the other."""
    *inner, outer = info.block
    return (*inner, outer * info.teams)


def check_teams(table: AxisTable) -> None:
    """Raise ScheduleError where teams of a block would read no ring, or meet."""
    if table.teams == 1:
        return
    if not any(step.engine == ENGINE for step in table.pipelines) or table.staged_outputs:
        raise ScheduleError(
            "teams share boxes that an engine copies, and meet nowhere",
            wanted=f"pipeline(..., engine={ENGINE!r}), and no stage_output",
            hint="persist(...) of one team",
        )


def in_teams(statements: Sequence[Node], info: KernelInfo, ring: Node, warps: int) -> list[Node]:
    """What all threads do that do not copy, where each team does some of a block's iterations.

    statements: of one team, whose threads are numbered by themselves. ring: the PIPE of the slots
    that they read. warps: those of a team. Raises ScheduleError where threads meet, and where a
    block has no iterations.
    """
    found = list[Node]()
    count = prod(info.block)
    thread = Node(Ops.VAR, dtypes.index, (), Var(THREAD, 0, count * info.teams - 1))
    team, own = index.floordiv(thread, count), index.as_node(index.mod(thread, count))
    for one in statements:
        if one.op is Ops.IF:
            inside = in_teams(list(_in_order(one.src[1])), info, ring, warps)
            found.append(make_node(one.op, one.dtype, (one.src[0], sequence(inside))))
            continue
        turns = one.op is Ops.LOOP and one.src[0].arg.id >= TURNS_ID
        meets = one.has(Ops.BARRIER) or one.has(Ops.SCAN)
        meets = meets or (one.has(Ops.REDUCE) and not _folds_by_lanes(one))
        if meets or not (turns or one.op is Ops.DONE):
            raise ScheduleError(
                "teams take the iterations of a block in turns, and meet nowhere",
                found="threads that meet" if meets else "something outside of iterations",
                hint="persist(...) of fewer blocks, or of one team",
            )
        if not turns:
            found.append(one)
            continue
        axis = one.src[0]
        body = _passing(axis, list(_in_order(one.src[1])), ring, _passed(info.teams, warps))
        left = index.sub(extent_of(axis), team)
        each = index.floordiv(index.add(left, info.teams - 1), info.teams)
        mine = range_node(each, OWN_ID + axis.arg.id, axis.arg.axis, "loop")
        moved = {at: own for at in toposort(body) if at.op is Ops.VAR and at.arg.name == THREAD}
        moved[axis] = index.as_node(index.add(index.mul(mine, info.teams), team))
        for loop in toposort(body):
            if loop.op is Ops.RANGE and axis in loop.src[0].ranges:
                # Who copies has the loop whose length is that of the block's iteration.
                length, (number, name) = substitute(loop.src[0], moved), loop.arg[:2]
                moved[loop] = range_node(length, OWN_ID + number, name, "loop")
        found.append(make_node(Ops.LOOP, dtypes.token, (mine, substitute(body, moved))))
    return found


def _folds_by_lanes(statement: Node) -> bool:
    """Whether all its folds are by neighbouring lanes of a warp, which exchange numbers."""
    for node in toposort(statement):
        if node.op is not Ops.REDUCE:
            continue
        axes = [one for one in node.src if one.op is Ops.RANGE and one.arg.is_thread]
        for axis in axes:
            size = index.upper(extent_of(axis))
            if axis.arg.bind != THREAD_BINDS[0] or size > WARP or not is_power_of_two(size):
                return False
        monoid = node.arg.monoid
        if monoid.primitive is None or not monoid.commutative:
            return False
        if axes and any(axis.arg.bind == "vector" for axis in node.ranges):
            return False
    return True


def _passing(turn: Node, items: list[Node], ring: Node, passed: Node) -> Node:
    """A block's iteration, where the loop that reads slots is waited for and then passed on."""
    loops = [place for place, one in enumerate(items) if _reads(one, ring)]
    if not loops:
        return sequence(items)
    (at,) = loops
    before = make_node(Ops.WAIT, dtypes.token, (passed, index.as_node(index.sub(turn, 1))))
    waits = make_node(Ops.IF, dtypes.token, (index.less(0, turn), before))
    passes = make_node(Ops.COMMIT, dtypes.token, (passed, turn))
    return sequence([*items[:at], waits, items[at], passes, *items[at + 1 :]])


def _reads(statement: Node, ring: Node) -> bool:
    """Whether a statement is the loop of which each iteration waits for a slot."""
    if statement.op is not Ops.LOOP:
        return False
    return any(one.op is Ops.WAIT and one.src[0] is ring for one in _in_order(statement.src[1]))


def _in_order(body: Node) -> Iterator[Node]:
    """The statements right inside a body."""
    if body.op is not Ops.SEQ:
        yield body
        return
    for one in body.src:
        yield from _in_order(one)


def _passed(teams: int, warps: int) -> Node:
    """The protocol by which the ring goes on from an iteration to the next one."""
    where = Alloc(PASSED_ID, "shared", (teams, EACH), name="passed")
    phases = Node(Ops.ALLOC, dtypes.uint64, (), where)
    what = Pipe("passed", teams, "products", ("products",), warps, scope="block")
    return Node(Ops.PIPE, dtypes.token, (phases,), what)
