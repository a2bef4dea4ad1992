"""Blocks as they run: registers, memory, and which threads may go on.

All threads at the lowest program counter run together, so branches that part meet again where the
text does. A thread waits at a warp's instruction until those that it names are there, at a barrier
until the block is. Every thread is run now and then, so that one may wait for what another writes.

Blocks that share nothing run as one, thread behind thread: an instruction is then read once for all
of them. Each has barriers and a part of shared memory of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np

from baregrad.testing.virtual_gpu.ptx.cluster import BlockCluster
from baregrad.testing.virtual_gpu.ptx.errors import (
    DivergentBarrier,
    KernelFault,
    KernelHang,
    MisalignedAccess,
    OutOfBoundsAccess,
    PrematureAccess,
    RegisterDeadlock,
    SharedMemoryRace,
    UninitialisedRead,
    WindowOverrun,
)
from baregrad.testing.virtual_gpu.ptx.memory import (
    CONST_WINDOW,
    LOCAL_WINDOW,
    PARAM_WINDOW,
    RANK_SHIFT,
    SHARED_WINDOW,
    WINDOW_NBYTES,
    PtxMemory,
    Region,
)
from baregrad.testing.virtual_gpu.ptx.races import Race, SharedRaces
from baregrad.testing.virtual_gpu.ptx.states import (
    AT_CLUSTER,
    AT_PHASE,
    AT_REGISTERS,
    AT_WARP,
    DONE,
    RUNS,
    STATES,
)
from baregrad.testing.virtual_gpu.ptx.syntax import KernelText, PtxInstruction
from baregrad.testing.virtual_gpu.ptx.types import UNSIGNED, Array

Index = slice | Array
Shape = tuple[int, int, int]
Located = list[tuple[Region, Array, Array]]
Execute = Callable[["Block", Index], None]

EVERYONE: Final = slice(None)
WARP: Final = 32

# Every this many turns the thread that has waited longest is run.
_FAIR_TURN: Final = 64


class PreparedInstruction(NamedTuple):
    """An instruction ready to run; `control` ones move the threads' counters themselves."""

    run: Execute
    control: bool


@dataclass(frozen=True, eq=False, slots=True)
class PreparedKernel:
    """A kernel whose every instruction is ready: what blocks run.

    `leaders` are the places of instructions at which threads that parted may meet, `granule` the
    bytes of the smallest access that may touch shared memory, `globals` the module's variables.
    `joins` says whether blocks may run as one.
    """

    kernel: KernelText
    instructions: list[PtxInstruction]
    steps: list[PreparedInstruction]
    leaders: frozenset[int]
    register_bits: list[int]
    shared_nbytes: int
    local_nbytes: int
    constants: np.ndarray[Any, np.dtype[np.uint8]]
    globals: PtxMemory
    granule: int
    joins: bool


class Block:
    """The threads of one block, or of several that run as one, and all that they share."""

    def __init__(
        self,
        program: PreparedKernel,
        memory: PtxMemory,
        grid: Shape,
        shape: Shape,
        places: Sequence[Shape],
        parameters: np.ndarray[Any, np.dtype[np.uint8]],
        shared_nbytes: int,
        cluster: BlockCluster,
        step_limit: int = 20_000_000,
        skew: float = 0.0,
        unseen: int | None = None,
    ) -> None:
        self.program = program
        self.memory = memory
        self.grid = grid
        self.shape = shape
        self.places, self.place = places, places[0]
        # The threads of each block, and those of all.
        self.each = shape[0] * shape[1] * shape[2]
        self.count = count = self.each * len(places)
        self.threads = np.arange(count)
        self.registers: list[Array | None] = [None] * len(program.register_bits)
        self.carry = np.zeros(count, bool)
        self.parameters = Region(PARAM_WINDOW, parameters, None, "parameters")
        self.constants = Region(CONST_WINDOW, program.constants, None, "constants")
        self.shared_nbytes = shared_nbytes
        self.shared = _unwritten(SHARED_WINDOW, shared_nbytes * len(places), "shared memory")
        self.local = _unwritten(LOCAL_WINDOW, program.local_nbytes * count, "local memory")
        self.cluster = cluster
        # The cluster's threads are agents one after the other, this block's from here on.
        self.first_agent = first = len(cluster.blocks) * count
        self.clocks = cluster.clocks if shared_nbytes else None
        self.races: SharedRaces | None = None
        if self.clocks is not None:
            own = slice(first, first + count)
            self.races = SharedRaces(self.clocks, own, self.shared.nbytes, program.granule)
            self.shared.races = self.races
        self.counter = np.zeros(count, np.int64)
        self.state = np.zeros(count, np.uint8)
        self.step = 0
        self.steps_left = step_limit
        self.skew = skew
        # Of a kernel that began early: who has not waited yet, and writes not seen till then.
        self.unwaited, self._unseen = (None if unseen is None else np.ones(count, bool)), unseen
        self._last_run = np.zeros(count, np.int64)
        self._turn = 0
        self._specials: dict[str, Array] = {}
        # State of the families of instructions that keep some: barriers, copies, matrix groups.
        self.family: dict[str, Any] = {}

    # ---- faults ---------------------------------------------------------------------------------

    def thread(self, number: int) -> Shape:
        """Return the (x, y, z) of a thread's number."""
        x, y, _ = self.shape
        number %= self.each
        return number % x, number // x % y, number // (x * y)

    def fault(
        self,
        kind: type[KernelFault],
        message: str,
        thread: int | None = None,
        address: int | None = None,
        hint: str | None = None,
    ) -> NoReturn:
        """Raise a fault of the instruction being run."""
        instruction = self.program.instructions[self.step]
        raise kind(
            message,
            line=instruction.line,
            text=instruction.text,
            thread=None if thread is None else self.thread(thread),
            block=self.places[0 if thread is None else thread // self.each],
            address=address,
            hint=hint,
        )

    # ---- threads --------------------------------------------------------------------------------

    def ids(self, index: Index) -> Array:
        """Return the numbers of the threads of an index."""
        return np.asarray(self.threads[index])

    def agents(self, index: Index) -> Array:
        """Return the threads of an index as agents of the cluster's clocks."""
        return self.ids(index) + self.first_agent

    def full(self, index: Index, values: Array) -> Array:
        """Return values, one for all or one a thread, as one a thread."""
        count = self.count if isinstance(index, slice) else len(index)
        return values if len(values) == count else np.broadcast_to(values, (count,))

    def warp(self, number: int) -> Array:
        """Return the threads of a warp."""
        return np.arange(number * WARP, min(number * WARP + WARP, self.count))

    @property
    def warps(self) -> int:
        """The number of warps, the last of which may not be whole."""
        return -(-self.count // WARP)

    def special(self, name: str, make: Callable[[Block], Array]) -> Array:
        """Return a special register's values, made once a block."""
        found = self._specials.get(name)
        if found is None:
            found = self._specials[name] = make(self)
        return found

    # ---- running --------------------------------------------------------------------------------

    def advance(self, turns: int) -> bool:
        """Let threads run, `turns` times at most; return whether any did."""
        for turn in range(turns):
            index = self._next()
            if index is None:
                if self.unwaited is not None and self.ended:
                    self._check_waited(EVERYONE, "ends")
                return turn > 0
            self._run_from(index)
        return True

    @property
    def ended(self) -> bool:
        """Whether every thread is done."""
        return bool((self.state == DONE).all())

    def wait_for_launch(self, index: Index) -> None:
        """Note that threads waited for the kernel in front, which has ended by then."""
        if self.unwaited is not None:
            self.unwaited[index] = False

    def check_constant(self, index: Index) -> None:
        """Fault where a kernel that began early reads memory as constant while it runs."""
        if self.unwaited is not None:
            self.fault(
                PrematureAccess,
                "the kernel began early and reads memory as constant, which the one in front may"
                " have written since",
                int(self.ids(index)[0]),
                hint="an assembler may move ld.nc before griddepcontrol.wait: use ld",
            )

    def _check_waited(self, index: Index, what: str, but: Array | None = None) -> None:
        assert self.unwaited is not None
        early = self.unwaited[index]
        if but is not None:
            early = early & but
        if early.any():
            self.fault(
                PrematureAccess,
                f"the kernel began early and {what} before it waits for the one in front",
                int(self.ids(index)[int(np.argmax(early))]),
                hint="griddepcontrol.wait comes first, in every thread",
            )

    def _next(self) -> Index | None:
        """Return the threads to run: those that stand where the first runnable one stands.

        None where nobody can run.
        """
        runnable = self.state == RUNS
        if not runnable.any():
            return None
        self._turn = turn = self._turn + 1
        if turn % _FAIR_TURN == _FAIR_TURN - 1:
            oldest = np.where(runnable, self._last_run, np.iinfo(np.int64).max)
            at = self.counter[int(np.argmin(oldest))]
        else:
            at = self.counter[runnable].min()
        # Those that wait here for their warp are looked at again with the newcomers.
        chosen = (runnable | (self.state == AT_WARP)) & (self.counter == at)
        self._last_run[chosen] = turn
        self.state[chosen] = RUNS
        return EVERYONE if chosen.all() else np.flatnonzero(chosen)

    def _run_from(self, index: Index) -> None:
        """Run threads that stand at one place until they part, wait, or meet a place to meet."""
        program = self.program
        steps, leaders = program.steps, program.leaders
        at = int(self.counter[index][0])
        together = isinstance(index, slice)
        while True:
            self.step = at
            self.steps_left -= 1
            if self.steps_left < 0:
                self.fault(KernelHang, "the budget of instructions is spent")
            run, control = steps[at]
            if control:
                self.counter[index] = at
                run(self, index)
                if not together:
                    return
                counters = self.counter
                at = int(counters[0])
                if self.state.any() or (counters != at).any():
                    return
                continue
            run(self, index)
            at += 1
            if at in leaders and not together:
                self.counter[index] = at
                return

    def stuck(self) -> NoReturn:
        """Raise what explains why nobody can go on."""
        waiting = np.flatnonzero(self.state != DONE)
        first = int(waiting[0])
        self.step = int(self.counter[first])
        places = []
        for at in np.unique(self.counter[waiting]):
            here = waiting[self.counter[waiting] == at]
            what = STATES[int(self.state[here[0]])]
            line = self.program.instructions[int(at)].line
            places.append(f"{len(here)} threads from {self.thread(int(here[0]))} at line {line}")
            places[-1] += f" ({what})"
        done = int((self.state == DONE).sum())
        text = "; ".join(places) + (f"; {done} threads have ended" if done else "")
        kinds = {AT_REGISTERS: RegisterDeadlock, AT_PHASE: KernelHang, AT_CLUSTER: KernelHang}
        states = self.state[waiting]
        kind = next((kinds[one] for one in kinds if (states == one).any()), DivergentBarrier)
        self.fault(kind, f"nobody can go on: {text}", first)

    # ---- memory ---------------------------------------------------------------------------------

    def locate(
        self, space: str, addresses: Array, index: Index, nbytes: int, reads: bool = False
    ) -> Located:
        """Return the accesses by region: [(region, byte offsets, which accesses)].

        Checks alignment and bounds. `addresses` is (n,) int64, one a thread of `index`. reads: they
        write nothing.
        """
        wrong = addresses % nbytes if nbytes > 1 else None
        if wrong is not None and wrong.any():
            at = int(np.argmax(wrong != 0))
            self.fault(
                MisalignedAccess,
                f"an access of {nbytes} bytes is not aligned",
                int(self.ids(index)[at]),
                int(addresses[at]),
            )
        if space == "global":
            return self._locate_global(addresses, index, nbytes, reads)
        if space != "generic":
            whole = np.ones(len(addresses), bool)
            return self.locate_window(space, addresses, index, nbytes, whole)
        windows = (
            (SHARED_WINDOW, "cluster"), (LOCAL_WINDOW, "local"),
            (PARAM_WINDOW, "param"), (CONST_WINDOW, "const"),
        )
        found: Located = []
        rest = np.ones(len(addresses), bool)
        for base, name in windows:
            which = (addresses >= base) & (addresses < base + WINDOW_NBYTES)
            if which.any():
                offsets = addresses - base
                found += self.locate_window(name, offsets, index, nbytes, which)
                rest &= ~which
        if rest.any():
            ids = self.ids(index)[rest]
            for region, offsets, which in self._locate_global(addresses[rest], ids, nbytes, reads):
                wide = rest.copy()
                wide[rest] = which
                found.append((region, offsets, wide))
        return found

    def _locate_global(
        self, addresses: Array, index: Index, nbytes: int, reads: bool
    ) -> Located:
        if self.unwaited is not None and reads and self.unwaited[index].any():
            unseen = self.memory.overlaps_recent(self._unseen or 0, addresses, nbytes)
            self._check_waited(index, "touches memory that those in front wrote", unseen)
        elif self.unwaited is not None:
            self._check_waited(index, "touches memory")
        if not reads:
            self.memory.recent.append((np.array(addresses), nbytes))
        found, outside = self.memory.locate(addresses, nbytes)
        if outside >= 0:
            # The module's own variables are few, and looked at last.
            own, missing = self.program.globals.locate(addresses, nbytes)
            if missing >= 0:
                address = int(addresses[outside])
                where = self.memory.near(address)
                self.fault(
                    OutOfBoundsAccess,
                    f"an access of {nbytes} bytes outside all allocations, {where}",
                    int(self.ids(index)[outside]),
                    address,
                )
            found = own
        return [(region, addresses[which] - region.base, which) for region, which in found]

    def locate_window(
        self, space: str, offsets: Array, index: Index, nbytes: int, which: Array
    ) -> Located:
        """Return the accesses that `which` names by offsets in a space with a size of its own."""
        if space == "cluster":
            return _locate_cluster(self, offsets, index, nbytes, which)
        region = {
            "shared": self.shared, "local": self.local,
            "param": self.parameters, "const": self.constants,
        }[space]
        size = {"local": self.program.local_nbytes, "shared": self.shared_nbytes}.get(
            space, region.nbytes
        )
        chosen = offsets if which.all() else offsets[which]
        if len(chosen) and (int(chosen.min()) < 0 or int(chosen.max()) + nbytes > size):
            at = int(np.argmax(which & ((offsets < 0) | (offsets + nbytes > size))))
            self.fault(
                WindowOverrun,
                f"an access of {nbytes} bytes outside the {size} bytes of {space} memory",
                int(self.ids(index)[at]),
                int(offsets[at]),
            )
        if space == "local":
            chosen = chosen + self.ids(index)[which] * size
        elif space == "shared" and len(self.places) > 1:
            chosen = chosen + self.ids(index)[which] // self.each * size
        return [(region, chosen, which)]

    def load(
        self, space: str, addresses: Array, index: Index, width: int, lanes: int,
        atomic: bool = False,
    ) -> list[Array]:
        """Return `lanes` arrays of unsigned integers of `width` bytes, one value a thread."""
        addresses = self.full(index, addresses)
        out = [np.empty(len(addresses), UNSIGNED[8 * width]) for _ in range(lanes)]
        reads = not atomic
        for region, offsets, which in self.locate(space, addresses, index, width * lanes, reads):
            self.check_read(region, offsets, index, which, width, lanes, atomic)
            for lane, values in enumerate(out):
                values[which] = region.load(offsets + lane * width, width)
        return out

    def check_read(
        self, region: Region, offsets: Array, index: Index, which: Array, width: int,
        lanes: int = 1, atomic: bool = False,
    ) -> None:
        """Raise where a read meets bytes that nobody wrote, or races with a write."""
        for lane in range(lanes if region.written is not None else 0):
            bad = region.unwritten(offsets + lane * width, width)
            if bad is not None:
                at = int(np.argmax(bad))
                self.fault(
                    UninitialisedRead,
                    f"a read of {region.label} that nobody wrote",
                    int(self.ids(index)[which][at]),
                    _address_of(self, region, int(offsets[at]) + lane * width),
                )
        if region.races is not None:
            race = region.races.read(self.agents(index)[which], offsets, width * lanes, atomic)
            if race is not None:
                self.report(race, int(offsets[race.place]))

    def store(
        self, space: str, addresses: Array, index: Index, values: list[Array], atomic: bool = False
    ) -> None:
        """Write one value of each array a thread, side by side."""
        addresses = self.full(index, addresses)
        width, lanes = values[0].dtype.itemsize, len(values)
        for region, offsets, which in self.locate(space, addresses, index, width * lanes):
            if region is self.parameters or region is self.constants:
                self.fault(OutOfBoundsAccess, f"a write to {region.label}, which are constant")
            self.check_write(region, offsets, index, which, width * lanes, atomic)
            for lane, one in enumerate(values):
                chosen = self.full(index, one)[which]
                region.store(offsets + lane * width, chosen, width)
                if region.races is not None:
                    _check_collision(self, region, offsets + lane * width, chosen, index, which)

    def check_write(
        self, region: Region, offsets: Array, index: Index, which: Array, nbytes: int,
        atomic: bool = False,
    ) -> None:
        """Raise where a write to shared memory races with an earlier access."""
        if region.races is None:
            return
        race = region.races.write(self.agents(index)[which], offsets, nbytes, atomic)
        if race is not None:
            self.report(race, int(offsets[race.place]))

    def report(self, race: Race, offset: int) -> NoReturn:
        """Raise a race in shared memory."""
        self.fault(
            SharedMemoryRace,
            f"a race in shared memory: it {race.kind} by {self.cluster.who(race.other, self)}"
            " with no barrier between",
            race.agent % self.count,
            offset % self.shared_nbytes,
        )


def _unwritten(base: int, nbytes: int, label: str) -> Region:
    """Return memory whose bytes are a pattern that nobody may read."""
    return Region(base, np.full(nbytes, 0xA5, np.uint8), np.zeros(nbytes, np.uint8), label)


def _locate_cluster(
    block: Block, offsets: Array, index: Index, nbytes: int, which: Array
) -> Located:
    """Find accesses in the shared memory of the blocks that their addresses name."""
    ranks = offsets >> RANK_SHIFT
    if not ranks.any():
        return block.locate_window("shared", offsets, index, nbytes, which)
    found: Located = []
    for rank in np.unique(ranks[which]):
        here = which & (ranks == rank)
        thread = int(block.ids(index)[here][0])
        owner = block if not rank else block.cluster.peer(block, int(rank) - 1, thread)
        inside = offsets - (int(rank) << RANK_SHIFT)
        [(_, chosen, _)] = block.locate_window("shared", inside, index, nbytes, here)
        found.append((owner.shared, chosen, here))
    return found


def _check_collision(
    block: Block, region: Region, offsets: Array, values: Array, index: Index, which: Array
) -> None:
    """Raise where threads of one store gave one place different values."""
    lost = region.load(offsets, values.dtype.itemsize) != values
    if lost.any():
        at = int(np.argmax(lost))
        ids = block.agents(index)[which]
        winner = int(ids[np.flatnonzero(offsets == offsets[at])[-1]])
        block.report(Race(at, int(ids[at]), winner, "writes what is written"), int(offsets[at]))


def _address_of(block: Block, region: Region, offset: int) -> int:
    """Return the address that a kernel uses for a byte of a region."""
    windows = (block.local, block.parameters, block.constants)
    if region is block.shared:
        return offset % block.shared_nbytes
    return offset if region in windows else region.base + offset
